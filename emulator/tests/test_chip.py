"""Launches through the CUDA driver, with our own in its place: memory is the host's, a kernel is a function."""

from __future__ import annotations

from collections.abc import Iterator
import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.programs import text_of

from ptxemu import PtxemuError, TensorMap, chip
from ptxemu.chip import _SIGNATURES, Driver, Gpu, load_driver, open_gpu

PTX = text_of("chip")
INVALID_PTX, ILLEGAL_ADDRESS = 218, 700


class Library:
    """libcuda.so.1 as far as it is used: kernel ``scale`` multiplies 8 floats in place."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.launches: list[tuple[Any, ...]] = []
        self.memory: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self.status: dict[str, int] = {}
        for name in _SIGNATURES:
            setattr(self, name, self._function(name))

    def _function(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name not in self.status:
                getattr(self, f"do_{name}", lambda *_: None)(*arguments)
            elif name == "cuModuleLoadDataEx":
                log = ctypes.cast(arguments[4][0], ctypes.POINTER(ctypes.c_char))
                for index, character in enumerate(b"ptxas error : line 3\0"):
                    log[index] = character
            return self.status.get(name, 0)

        return call

    def do_cuGetErrorName(self, code: int, out: Any) -> None:
        out._obj.value = {INVALID_PTX: b"CUDA_ERROR_INVALID_PTX", ILLEGAL_ADDRESS: b"CUDA_ERROR_ILLEGAL_ADDRESS"}[code]

    def do_cuDeviceGetCount(self, out: Any) -> None:
        out._obj.value = 1

    def do_cuDeviceGetName(self, out: Any, size: int, device: int) -> None:
        out.value = b"NVIDIA Test"

    def do_cuDriverGetVersion(self, out: Any) -> None:
        out._obj.value = 13010

    def do_cuMemAlloc_v2(self, out: Any, size: int) -> None:
        """Memory at a multiple of 256, as a GPU's is."""
        room = ctypes.create_string_buffer(size + 256)
        out._obj.value = ctypes.addressof(room) + -ctypes.addressof(room) % 256
        self.memory[out._obj.value] = room

    def do_cuTensorMapEncodeTiled(self, *arguments: Any) -> None:
        """Keeps the arguments, arrays as tuples; a map is the bytes 1, 2, 3, ..."""
        self.encoded = [tuple(each) if isinstance(each, ctypes.Array) else each for each in arguments]
        assert arguments[0] % 64 == 0
        ctypes.memmove(arguments[0], bytes(range(1, 129)), 128)

    def do_cuModuleGetFunction(self, function: Any, module: Any, name: Any) -> None:
        self.kernel = bytes(name.value if hasattr(name, "value") else name).decode()

    def do_cuMemFree_v2(self, address: int) -> None:
        del self.memory[address]

    def do_cuMemcpyHtoD_v2(self, target: int, source: int, size: int) -> None:
        ctypes.memmove(target, source, size)

    do_cuMemcpyDtoH_v2 = do_cuMemcpyHtoD_v2

    def do_cuLaunchKernel(self, function: Any, *sizes: Any) -> None:
        places, extra = sizes[-2:]
        assert extra is None
        self.launches.append((*sizes[:7], sum(place is not None for place in places)))
        if self.kernel == "take":
            self.taken = ctypes.string_at(places[0], 128), ctypes.c_uint64.from_address(places[1]).value
        elif places[0]:
            pointer = ctypes.c_uint64.from_address(places[0]).value
            factor = ctypes.c_float.from_address(places[1]).value
            values = (ctypes.c_float * 8).from_address(pointer)
            values[:] = [value * factor for value in values]


@pytest.fixture
def library() -> Library:
    return Library()


@pytest.fixture
def gpu(library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    monkeypatch.setattr(chip, "VERSION_FILE", tmp_path / "version")
    with open_gpu(driver=Driver(library)) as opened:
        yield opened


def test_a_launch_updates_arrays_and_frees_everything(library: Library, gpu: Gpu) -> None:
    values = np.arange(8, dtype=np.float32)
    gpu.load(PTX).kernel("scale").launch((2,), (4, 2), (values, 0.5), shared_bytes=1024)
    assert values.tolist() == [0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5]
    assert library.memory == {}
    assert library.launches[0][:7] == (2, 1, 1, 4, 2, 1, 1024)
    assert "cuFuncSetAttribute" not in library.calls
    library.calls.clear()  # an array that is passed twice has one copy, one that is read only is not fetched
    text = PTX.replace("(.param .u64 p, .param .f32 factor)", "(.param .u64 p, .param .u64 q)")
    values.flags.writeable = False
    gpu.load(text).kernel("scale").launch((1,), (8,), (values, values))
    assert library.calls.count("cuMemAlloc_v2") == library.calls.count("cuMemFree_v2") == 1
    assert "cuMemcpyDtoH_v2" not in library.calls
    assert values[1] == 0.5


def test_views_point_into_one_copy_of_their_owner(library: Library, gpu: Gpu) -> None:
    owner = np.arange(16, dtype=np.float32)
    gpu.load(PTX).kernel("scale").launch((1,), (8,), (owner[4:12], 2.0))
    assert owner[3:13].tolist() == [3, 8, 10, 12, 14, 16, 18, 20, 22, 12]
    gpu.load(PTX).kernel("scale").launch((1,), (8,), (owner.reshape(4, 4).T, 0.0))
    assert owner[7:9].tolist() == [0, 16]
    with pytest.raises(PtxemuError, match="the memory behind an array: expected C-contiguous"):
        gpu.load(PTX).kernel("scale").launch((1,), (8,), (np.zeros((4, 4), order="F"), 2.0))


def test_much_shared_memory_needs_an_attribute(library: Library, gpu: Gpu) -> None:
    program = gpu.load(PTX)
    program.kernel("other").launch((1,), (1,), (), shared_bytes=48 * 1024)
    assert "cuFuncSetAttribute" not in library.calls
    program.kernel("other").launch((1,), (1,), (), shared_bytes=100_000)
    program.unload()
    assert library.calls.index("cuFuncSetAttribute") < len(library.calls) - library.calls[::-1].index("cuLaunchKernel")
    assert library.launches[1][6:] == (100_000, 0)


def test_who_the_gpu_is(library: Library, gpu: Gpu, tmp_path: Path) -> None:
    assert (gpu.name, gpu.driver_version, gpu.cuda_version) == ("NVIDIA Test", "CUDA 13.1", (13, 1))
    (tmp_path / "version").write_text("580.95.05\n")
    with open_gpu(driver=Driver(library)) as again:
        assert again.driver_version == "580.95.05"


def test_ptx_that_the_driver_refuses_comes_with_its_log(library: Library, gpu: Gpu) -> None:
    library.status["cuModuleLoadDataEx"] = INVALID_PTX
    with pytest.raises(PtxemuError, match=r"CUDA_ERROR_INVALID_PTX \(218\); ptxas error : line 3"):
        gpu.load(PTX)


def test_a_kernel_that_fails_is_named_and_the_gpu_can_be_reset(library: Library, gpu: Gpu) -> None:
    library.status["cuCtxSynchronize"] = ILLEGAL_ADDRESS
    kernel = gpu.load(PTX).kernel("other")
    with pytest.raises(PtxemuError, match=r"refused cuCtxSynchronize: found CUDA_ERROR_ILLEGAL_ADDRESS \(700\)"):
        kernel.launch((1,), (1,), ())
    gpu.reset()
    primary = (f"cuDevicePrimaryCtx{verb}" for verb in ("Reset_v2", "Release_v2", "Retain"))
    assert library.calls[-4:] == [*primary, "cuCtxSetCurrent"]


def test_a_kernel_is_chosen_by_name(gpu: Gpu, tmp_path: Path) -> None:
    program = gpu.load(PTX)
    with pytest.raises(PtxemuError, match="no kernel none: expected scale, other, take"):
        program.kernel("none")
    with pytest.raises(PtxemuError, match=r"which kernel\?"):
        program.kernel()
    only = tmp_path / "only.ptx"
    only.write_text(PTX[: PTX.index(".visible .entry other")])
    gpu.load(only).kernel()
    with pytest.raises(PtxemuError, match=r"none\.ptx: cannot read the file"):
        gpu.load(tmp_path / "none.ptx")


def test_a_machine_without_a_gpu_is_one_line(library: Library) -> None:
    with pytest.raises(PtxemuError, match=r"no CUDA driver .*run it on a machine with an NVIDIA GPU"):
        load_driver("libcuda_of_nobody.so.1")
    with pytest.raises(PtxemuError, match="no GPU 1: found 1 of them"), open_gpu(1, Driver(library)):
        pass


def test_the_driver_encodes_tensor_maps(library: Library, gpu: Gpu) -> None:
    tensor = np.zeros((64, 32), np.float16)
    given = TensorMap(tensor, "f16", (32, 64), (64,), (32, 8), (1, 2), swizzle="64B", fill="nan", l2_promotion="128B")
    gpu.load(PTX).kernel("take").launch((1,), (32,), (given, tensor))
    (_, kind, rank, address, *rest) = library.encoded
    assert (kind, rank) == (6, 2)
    assert rest == [(32, 64), (64,), (32, 8), (1, 2), 0, 2, 2, 1]
    assert library.taken == (bytes(range(1, 129)), address)  # the map's tensor is the array that is passed, too


def test_a_driver_of_cuda_11_has_no_tensor_maps(library: Library) -> None:
    del library.__dict__["cuTensorMapEncodeTiled"]
    with pytest.raises(PtxemuError, match="has no cuTensorMapEncodeTiled: expected one for CUDA 12 or newer"):
        Driver(library)("cuTensorMapEncodeTiled")
