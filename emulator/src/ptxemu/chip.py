"""The same launch on this machine's GPU through the CUDA driver alone: what the emulator is compared with.

What the emulator computes is proven on the chip by running the same text with the same arguments on both. NumPy and
the driver's own library are all that a bare machine has: the driver compiles the PTX itself, so that no toolchain is
needed.

    with open_gpu() as gpu:
        gpu.load(text).kernel("scale").launch((4,), (128,), (array, 2.0))

Source: CUDA Driver API 13.0, 6.2 to 6.22, 6.30 (cuTensorMapEncodeTiled, which drivers before CUDA 12 do not have).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
import ctypes
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ptxemu.errors import PtxemuError
from ptxemu.machine.arguments import Argument, Pointers, offsets, pack, three
from ptxemu.machine.tensor_map import (
    DATA_TYPES,
    FILLS,
    INTERLEAVES,
    MAP_ALIGNMENT,
    MAP_BYTES,
    PROMOTIONS,
    SWIZZLES,
    TensorMap,
    check_address,
)
from ptxemu.syntax.parser import parse, text_of
from ptxemu.syntax.tree import Function
from ptxemu.values import Array

LIBRARY = "libcuda.so.1"

_HANDLE = ctypes.c_void_p
_INT, _UINT = ctypes.c_int, ctypes.c_uint
_SIZE = ctypes.c_size_t
_OUT = ctypes.c_void_p  # a pointer made by ctypes.byref
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (_UINT,),
    "cuGetErrorName": (ctypes.c_int, _OUT),
    "cuDriverGetVersion": (_OUT,),
    "cuDeviceGetCount": (_OUT,),
    "cuDeviceGet": (_OUT, ctypes.c_int),
    "cuDeviceGetName": (ctypes.c_char_p, ctypes.c_int, ctypes.c_int),
    "cuDevicePrimaryCtxRetain": (_OUT, ctypes.c_int),
    "cuDevicePrimaryCtxRelease_v2": (ctypes.c_int,),
    "cuDevicePrimaryCtxReset_v2": (ctypes.c_int,),
    "cuCtxSetCurrent": (_HANDLE,),
    "cuCtxSynchronize": (),
    "cuModuleLoadDataEx": (_OUT, ctypes.c_char_p, _UINT, _OUT, _OUT),
    "cuModuleUnload": (_HANDLE,),
    "cuModuleGetFunction": (_OUT, _HANDLE, ctypes.c_char_p),
    "cuFuncSetAttribute": (_HANDLE, ctypes.c_int, ctypes.c_int),
    "cuMemAlloc_v2": (_OUT, _SIZE),
    "cuMemFree_v2": (ctypes.c_uint64,),
    "cuMemcpyHtoD_v2": (ctypes.c_uint64, ctypes.c_void_p, _SIZE),
    "cuMemcpyDtoH_v2": (ctypes.c_void_p, ctypes.c_uint64, _SIZE),
    "cuLaunchKernel": (_HANDLE, *[_UINT] * 6, _UINT, _HANDLE, _OUT, _OUT),
    "cuTensorMapEncodeTiled": (_HANDLE, _INT, _UINT, ctypes.c_uint64, *[_OUT] * 4, *[_INT] * 4),
}
_SINCE_CUDA_12 = {"cuTensorMapEncodeTiled"}  # functions that an older driver does without


class Driver:
    """The driver's functions with their types; a status other than 0 is an error with the driver's own name for it."""

    def __init__(self, library: Any) -> None:
        self.functions: dict[str, Callable[..., int]] = {}
        for name, types in _SIGNATURES.items():
            if name in _SINCE_CUDA_12 and not hasattr(library, name):
                continue
            function = getattr(library, name)
            function.argtypes, function.restype = types, ctypes.c_int
            self.functions[name] = function

    def __call__(self, name: str, *arguments: Any, log: ctypes.Array[ctypes.c_char] | None = None) -> None:
        """Calls one function of the driver.

        Raises:
            PtxemuError: the driver refused; the message holds its name of the error and what `log` says.
        """
        if name not in self.functions:
            raise PtxemuError(f"the CUDA driver has no {name}", expected="one for CUDA 12 or newer")
        code = self.functions[name](*arguments)
        if code:
            told = log.value.decode(errors="replace").strip() if log is not None else ""
            raise PtxemuError(
                f"the CUDA driver refused {name}", found=f"{self.error_name(code)} ({code})", hint=told or None
            )

    def error_name(self, code: int) -> str:
        """For example ``CUDA_ERROR_INVALID_PTX``."""
        text = ctypes.c_char_p()
        self.functions["cuGetErrorName"](code, ctypes.byref(text))
        return (text.value or b"an error without a name").decode()


def load_driver(library: str = LIBRARY) -> Driver:
    """The driver of this machine.

    Raises:
        PtxemuError: there is none.
    """
    try:
        return Driver(ctypes.CDLL(library))
    except (OSError, AttributeError) as error:
        hint = "run it on a machine with an NVIDIA GPU"
        raise PtxemuError(f"no CUDA driver ({library})", found=str(error), hint=hint) from error


def encode(call: Driver, given: TensorMap, address: int) -> bytes:
    """The map of the tensor that begins at `address` of the GPU.

    Raises:
        EmulationError: (arguments) the address is not aligned.
        PtxemuError: the driver has no tensor maps, or refuses this one.
    """
    check_address(address)
    room = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)
    begin = ctypes.addressof(room)
    begin += -begin % MAP_ALIGNMENT
    tables: tuple[tuple[Any, Sequence[int]], ...] = (
        *((ctypes.c_uint64, given.dims), (ctypes.c_uint64, given.strides or (0,))),
        *((ctypes.c_uint32, given.box), (ctypes.c_uint32, given.element_strides)),
    )
    call(
        "cuTensorMapEncodeTiled",
        begin,
        DATA_TYPES.index(given.dtype),
        given.rank,
        address,
        *((kind * len(values))(*values) for kind, values in tables),
        INTERLEAVES.index(given.interleave),
        SWIZZLES.index(given.swizzle),
        PROMOTIONS.index(given.l2_promotion),
        FILLS.index(given.fill),
    )
    return ctypes.string_at(begin, MAP_BYTES)


LOG_BYTES = 1 << 16  # room for the compiler's messages
DEFAULT_SHARED = 48 * 1024  # bytes of dynamic shared memory that need no attribute
VERSION_FILE = Path("/sys/module/nvidia/version")  # the kernel module's own name, for example 580.95.05

# Values of enumerations that we pass: CUjit_option, CUfunction_attribute.
_JIT_ERROR_LOG, _JIT_ERROR_BYTES = 5, 6
_MAX_DYNAMIC_SHARED = 8


@dataclass
class Gpu:
    """One GPU with its primary context, which torch would use too.

    Attributes:
        name: for example ``NVIDIA H200``.
        driver_version: of the kernel module where the system tells it, for example ``580.95.05``.
        cuda_version: the CUDA version of the driver: (13, 0).
    """

    call: Driver
    index: int
    name: str
    driver_version: str
    cuda_version: tuple[int, int]
    device: int = field(repr=False)

    def retain(self) -> None:
        """Makes the primary context current."""
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self.call("cuCtxSetCurrent", context)

    def reset(self) -> None:
        """Throws the context away with all modules and memory, and begins a new one: after a kernel that failed."""
        for name in ("cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxRelease_v2"):
            self.call.functions[name](self.device)  # both repeat the error of the kernel that failed
        self.retain()

    def load(self, path_or_text: str | Path) -> GpuProgram:
        """Compiles PTX (text, or the path of a file) for this GPU.

        Raises:
            PtxemuError: the driver's compiler refused; the message holds its log.
            EmulationError: the parser could not read the text.
        """
        text, path = text_of(path_or_text)
        entries = {function.name: function for function in parse(text, path).functions if function.is_entry}
        module, log = ctypes.c_void_p(), ctypes.create_string_buffer(LOG_BYTES)
        options = (ctypes.c_int * 2)(_JIT_ERROR_LOG, _JIT_ERROR_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.cast(log, ctypes.c_void_p), LOG_BYTES)
        self.call("cuModuleLoadDataEx", ctypes.byref(module), text.encode(), 2, options, values, log=log)
        return GpuProgram(self, module, entries, path)


@dataclass(frozen=True)
class GpuProgram:
    """A module on the GPU."""

    gpu: Gpu
    module: ctypes.c_void_p
    entries: dict[str, Function]
    path: str

    def kernel(self, name: str | None = None) -> GpuKernel:
        """The kernel of that name; without one, the only kernel there is.

        Raises:
            PtxemuError: there is no such kernel, or there are several.
        """
        chosen = [entry for entry in self.entries if name in {None, entry}]
        if len(chosen) != 1:
            raise PtxemuError(
                "which kernel?" if chosen else f"no kernel {name}", where=self.path, expected=", ".join(self.entries)
            )
        function = ctypes.c_void_p()
        self.gpu.call("cuModuleGetFunction", ctypes.byref(function), self.module, chosen[0].encode())
        return GpuKernel(self, function, self.entries[chosen[0]])

    def unload(self) -> None:
        """Frees the module."""
        self.gpu.call("cuModuleUnload", self.module)


@dataclass(frozen=True)
class GpuKernel:
    """A kernel on the GPU; `launch` has the emulator's signature."""

    program: GpuProgram
    function: ctypes.c_void_p
    entry: Function

    def launch(
        self, grid: int | Sequence[int], block: int | Sequence[int], args: Sequence[Argument], *, shared_bytes: int = 0
    ) -> None:
        """Runs the kernel and waits for it.

        Args:
            grid: CTAs along x, y, z; missing axes count 1.
            block: threads of a CTA along x, y, z.
            args: one per parameter: C-contiguous arrays are pointers (copied to the GPU, and back when they are
                writable), numbers take the parameter's type, tuples are structures, the driver encodes tensor maps.
            shared_bytes: dynamic shared memory of a CTA.

        Raises:
            PtxemuError: the driver refused the launch, or the kernel failed; after a failed kernel the context is
                lost, see `Gpu.reset`.
        """
        call = self.program.gpu.call
        with _buffers(call) as memory:
            arrays = Pointers(memory.allocate, self.program.path)
            space = pack(self.entry, args, arrays.address_of, self.program.path, partial(encode, call))
            if shared_bytes > DEFAULT_SHARED:
                call("cuFuncSetAttribute", self.function, _MAX_DYNAMIC_SHARED, shared_bytes)
            # Each parameter by its address: how a GPU aligns a tensor map among them is the driver's business.
            data = ctypes.create_string_buffer(space, max(len(space), 1))
            begin = ctypes.addressof(data)
            places = [begin + offset for offset in offsets(self.entry)[0].values()]
            pointers = (ctypes.c_void_p * max(len(places), 1))(*places)
            sizes = *three(grid, "grid", self.program.path), *three(block, "block", self.program.path)
            call("cuLaunchKernel", self.function, *sizes, shared_bytes, None, pointers, None)
            call("cuCtxSynchronize")
            for address, owner in arrays.changed():
                memory.fetch(address, owner)


class _Buffers:
    """Memory on the GPU that one launch holds."""

    def __init__(self, call: Driver) -> None:
        self.call = call
        self.addresses: list[int] = []

    def allocate(self, owner: Array, number: int) -> int:  # noqa: ARG002 - the signature that `Pointers` calls
        """A copy of an array; its address."""
        place = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(place), max(owner.nbytes, 1))
        self.addresses.append(place.value)
        if owner.nbytes:
            self.call("cuMemcpyHtoD_v2", place.value, owner.ctypes.data, owner.nbytes)
        return place.value

    def fetch(self, address: int, owner: Array) -> None:
        """Copies back what the kernel may have written."""
        if owner.nbytes:
            self.call("cuMemcpyDtoH_v2", owner.ctypes.data, address, owner.nbytes)


@contextmanager
def _buffers(call: Driver) -> Iterator[_Buffers]:
    """Buffers that are freed at the end, whatever happened."""
    memory = _Buffers(call)
    try:
        yield memory
    finally:
        for address in memory.addresses:
            call.functions["cuMemFree_v2"](address)  # a lost context refuses, having freed it already: no second error


@contextmanager
def open_gpu(index: int = 0, driver: Driver | None = None) -> Iterator[Gpu]:
    """GPU `index` with its primary context current; `driver` is for tests.

    Raises:
        PtxemuError: there is no driver or no GPU.
    """
    call = driver or load_driver()
    call("cuInit", 0)
    count, device, version = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    call("cuDeviceGetCount", ctypes.byref(count))
    if index >= count.value:
        raise PtxemuError(f"no GPU {index}", found=f"{count.value} of them")
    call("cuDeviceGet", ctypes.byref(device), index)
    name = ctypes.create_string_buffer(256)
    call("cuDeviceGetName", name, 256, device.value)
    call("cuDriverGetVersion", ctypes.byref(version))
    cuda = (version.value // 1000, version.value % 1000 // 10)
    known = VERSION_FILE.is_file()
    driver_version = VERSION_FILE.read_text(encoding="ascii").strip() if known else f"CUDA {cuda[0]}.{cuda[1]}"
    gpu = Gpu(call, index, name.value.decode(), driver_version, cuda, device.value)
    gpu.retain()
    try:
        yield gpu
    finally:
        call.functions["cuDevicePrimaryCtxRelease_v2"](device.value)  # after a failed kernel it may refuse
