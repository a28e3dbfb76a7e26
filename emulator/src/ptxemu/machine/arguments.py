"""Arguments of a launch as the bytes of its parameters: numbers, arrays, structures, tensor maps, torch's tensors.

Tensors on the CPU come through DLPack. Nothing is copied: the array that stands for a tensor is its memory, so that
what the kernel stores is in the tensor after the launch. torch is not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import ctypes
from dataclasses import dataclass, replace
import sys
from typing import Any, NoReturn, Protocol, TypeAlias, TypeGuard, Union

import numpy as np

from ptxemu.errors import EmulationError
from ptxemu.machine.tensor_map import MAP_ALIGNMENT, MAP_BYTES, TensorMap, check_memory
from ptxemu.syntax.tree import Function, Variable
from ptxemu.values import DTYPES, Array, width

Number: TypeAlias = Union[int, float, np.generic]  # noqa: UP007 - evaluated at run time, where Python 3.10 allows no strings
Argument: TypeAlias = Union[Number, Array, bytes, TensorMap, tuple["Argument", ...]]  # noqa: UP007 - as above


AddressOf: TypeAlias = Callable[[Array], int]  # of an array's first byte, on the machine that runs the kernel
EncodeMap: TypeAlias = Callable[[TensorMap, int], bytes]  # a map of the tensor at an address, as that machine has it

ADDRESS_BITS = 64  # of a parameter that may be a pointer
HINT_MAP = "a CUtensorMap takes a ptxemu.TensorMap, from Python"
HINT_STRUCTURE = "pass a structure from Python, as a tuple of its members or as bytes"


def three(sizes: int | Sequence[int], what: str, path: str) -> tuple[int, int, int]:
    """A size along x, y and z; a number is x, axes that are missing count 1. `path` is the program's, for messages.

    Raises:
        EmulationError: (arguments) not one to three positive whole numbers.
    """
    axes = tuple(sizes) if isinstance(sizes, Sequence | np.ndarray) else (sizes,)
    try:
        whole = tuple(int(size) for size in axes if int(size) == size >= 1)
    except (TypeError, ValueError, OverflowError):
        whole = ()
    if not 1 <= len(axes) <= 3 or len(whole) < len(axes):
        expected = "one to three positive whole numbers"
        raise EmulationError("arguments", f"{what} size", path=path, expected=expected, found=axes)
    x, y, z = (*whole, 1, 1)[:3]
    return x, y, z


@dataclass(frozen=True)
class Parameter:
    """A kernel's parameter: its name, PTX type (``u64``; ``b8[136]`` of a structure passed by value) and bytes."""

    name: str
    type: str
    size: int

    def __str__(self) -> str:
        return f"{self.name}: {self.type}"


def parameters_of(function: Function) -> tuple[Parameter, ...]:
    """A function's parameters as plain facts."""
    return tuple(
        Parameter(each.name, f"{each.type}[{each.count}]" if each.array else each.type, size_of(each))
        for each in function.parameters
    )


def size_of(parameter: Variable) -> int:
    """Bytes of one parameter."""
    return width(parameter.type) * parameter.vector * parameter.count


def offsets(function: Function) -> tuple[dict[str, int], int]:
    """The offset of each parameter in the parameter space, and the bytes of the whole; each at its alignment."""
    places, end = dict[str, int](), 0
    for parameter in function.parameters:
        align = parameter.align or width(parameter.type) * parameter.vector
        places[parameter.name] = -(-end // align) * align
        end = places[parameter.name] + size_of(parameter)
    return places, end


def pack(
    function: Function,
    arguments: Sequence[Argument],
    address_of: AddressOf,
    path: str = "<ptx>",
    encode: EncodeMap = TensorMap.encoded,
) -> bytes:
    """The parameter space of one launch; `encode` makes the 128 bytes of a tensor map.

    Raises:
        EmulationError: kind ``arguments``: another number of them, or one that does not fit its parameter.
    """
    if len(arguments) != len(function.parameters):
        what = f"number of arguments of {function.name}"
        expected = f"{len(function.parameters)}: {', '.join(map(describe, function.parameters)) or 'none'}"
        found = len(arguments)
        raise EmulationError("arguments", what, path=path, line=function.line, expected=expected, found=found)
    places, total = offsets(function)
    space = bytearray(total)

    def map_of(given: TensorMap) -> bytes:
        return encode(given, address_of(tensor_of(given, arguments, path)))

    for parameter, argument in zip(function.parameters, arguments, strict=True):
        start = places[parameter.name]
        space[start : start + size_of(parameter)] = _Packer(parameter, address_of, map_of, path).bytes_of(argument)
    return bytes(space)


def tensor_of(given: TensorMap, arguments: Sequence[Argument], path: str) -> Array:
    """The array that a tensor map is of: its own, or the argument whose index it names.

    Raises:
        EmulationError: (arguments) that argument is no array.
    """
    if isinstance(given.tensor, np.ndarray):
        return given.tensor
    index = given.tensor if isinstance(given.tensor, int | np.integer) else -1
    named = arguments[index] if 0 <= index < len(arguments) else None
    if not isinstance(named, np.ndarray):
        expected = "an array, or the index of one among the arguments"
        found = repr(given.tensor)
        raise EmulationError("arguments", "tensor of a tensor map", path=path, expected=expected, found=found)
    check_memory(given, named)
    return named


def describe(parameter: Variable) -> str:
    """A parameter for messages: ``scale (f32)``, ``args (a structure of 136 bytes)``."""
    return f"{parameter.name} ({f'a structure of {size_of(parameter)} bytes' if parameter.array else parameter.type})"


@dataclass(frozen=True)
class _Packer:
    """Makes the bytes of one parameter."""

    parameter: Variable
    address_of: AddressOf
    map_of: Callable[[TensorMap], bytes]
    path: str

    def bytes_of(self, argument: Argument) -> bytes:
        """The argument in the parameter's type."""
        if isinstance(argument, np.ndarray):
            data = np.uint64(self.address_of(argument)).tobytes()
        elif isinstance(argument, bytes):
            data = argument
        elif isinstance(argument, TensorMap):
            data = self.map_of(argument)
        elif isinstance(argument, tuple) or self.parameter.array:
            data, _ = self._structure(argument)
        else:
            data = self._number(argument)
        if len(data) != size_of(self.parameter):
            what = f", an array's address: {argument.dtype}" if isinstance(argument, np.ndarray) else ""
            self._refuse(f"{size_of(self.parameter)} bytes", f"{len(data)} bytes{what}")
        return data

    def _number(self, number: Number) -> bytes:
        """A number in its parameter's type; an untyped parameter (``b32``) takes a NumPy number's bits."""
        dtype = DTYPES[self.parameter.type]
        if dtype.kind not in "iu":  # bfloat16 counts as a float here
            try:
                with np.errstate(over="ignore"):
                    made = np.array(number).astype(dtype)
            except OverflowError:  # of an int beyond float64
                made = np.array(np.inf, dtype)
            if np.isinf(made) and number not in (np.inf, -np.inf):
                self._refuse(f"a number that fits {self.parameter.type}, or inf", number)
            return made.tobytes()
        if isinstance(number, np.generic):
            if self.parameter.type.startswith("b") and number.dtype.itemsize == dtype.itemsize:
                return number.tobytes()
            number = number.item()
        bits = 8 * dtype.itemsize
        if not isinstance(number, int):
            self._refuse("an integer" if bits < ADDRESS_BITS else "an integer, or an array for a pointer", repr(number))
        if not -(1 << (bits - 1)) <= number < 1 << bits:
            self._refuse(f"a number of {bits} bits", number)
        return int(number % (1 << bits)).to_bytes(dtype.itemsize, "little")

    def _structure(self, value: Argument) -> tuple[bytes, int]:
        """A value in C's layout: its bytes and its alignment."""
        if isinstance(value, TensorMap):
            return self.map_of(value), MAP_BYTES  # as CUDA 13 aligns it; CUDA 12 had half of that
        if not isinstance(value, tuple):  # a pointer, a NumPy number of its own type, a Python int as C's ``int``
            if isinstance(value, np.ndarray):
                data = np.uint64(self.address_of(value)).tobytes()
            elif isinstance(value, np.generic):
                data = value.tobytes()
            elif isinstance(value, int) and not isinstance(value, bool) and -(1 << 31) <= value < 1 << 31:
                data = np.int32(value).tobytes()
            else:
                self._refuse("arrays, NumPy numbers, 32-bit integers or tuples as members", repr(value))
            return data, max(1, len(data))
        members, largest = bytearray(), 1
        for item in value:
            data, align = self._structure(item)
            members += bytes(-len(members) % align) + data
            largest = max(largest, align)
        return bytes(members) + bytes(-len(members) % largest), largest

    def _refuse(self, expected: object, found: object) -> NoReturn:
        is_map = size_of(self.parameter) == MAP_BYTES and (self.parameter.align or 1) >= MAP_ALIGNMENT
        what, line = f"the argument does not fit the parameter {describe(self.parameter)}", self.parameter.line
        hint = HINT_MAP if is_map else HINT_STRUCTURE if self.parameter.array else None
        raise EmulationError("arguments", what, path=self.path, line=line, expected=expected, found=found, hint=hint)


class Pointers:
    """Device addresses of the arrays among a launch's arguments.

    A view is a pointer into the array that owns its memory: Q, K and V may be three views of one tensor.

    Args:
        allocate: makes a copy of an array, the n-th of the launch, on the machine that runs the kernel; its address.
        path: the PTX file, for messages.
    """

    def __init__(self, allocate: Callable[[Array, int], int], path: str) -> None:
        self.allocate = allocate
        self.path = path
        self.owners: list[tuple[int, Array]] = []
        self.written: set[int] = set()  # base addresses of owners that some writable argument points into

    def address_of(self, array: Array) -> int:
        """The address of the array's first element; its owner is allocated and filled at first use."""
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if not owner.flags.c_contiguous:
            self._refuse("C-contiguous", f"strides {owner.strides} of shape {owner.shape}")
        if owner.dtype.hasobject:
            self._refuse("numbers", f"dtype {owner.dtype}")
        if not array.dtype.isnative:
            self._refuse("this machine's byte order, as astype gives", f"dtype {array.dtype.str}")
        base, owner = self._place(owner)
        if array.flags.writeable:
            if not owner.flags.writeable:
                self._refuse("writable as the view of it is", "read-only")
            self.written.add(base)
        return base + array.ctypes.data - owner.ctypes.data

    def _place(self, owner: Array) -> tuple[int, Array]:
        """The allocation that holds an array's memory and the array it was made from, perhaps another one.

        Two arrays may share memory without a common owner: those that ``torch.Tensor.numpy`` returns do.
        """
        first, end = owner.ctypes.data, owner.ctypes.data + owner.nbytes
        for address, known in self.owners:
            begin, behind = known.ctypes.data, known.ctypes.data + known.nbytes
            if known is owner or begin <= first < end <= behind:
                return address, known
            if max(begin, first) < min(behind, end):
                self._refuse("no part of another argument's, or passed after it", "an array around another one")
        base = self.allocate(owner, len(self.owners))
        self.owners.append((base, owner))
        return base, owner

    def _refuse(self, expected: str, found: str) -> NoReturn:
        raise EmulationError("arguments", "the memory behind an array", path=self.path, expected=expected, found=found)

    def changed(self) -> list[tuple[int, Array]]:
        """Copies that the kernel may have written to, with the arrays that want them back."""
        return [(address, owner) for address, owner in self.owners if address in self.written]


CPU = 1  # kDLCPU of dlpack.h
BITS = {"bfloat16": "int16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}  # what NumPy's DLPack cannot name


class Tensor(Protocol):
    """Whatever speaks DLPack."""

    def __dlpack__(self) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, int]: ...


def is_tensor(value: object) -> TypeGuard[Tensor]:
    """Whether it is another library's tensor."""
    return hasattr(value, "__dlpack_device__") and not isinstance(value, np.ndarray | np.generic)


def as_arrays(arguments: Sequence[Any], path: str) -> tuple[Any, ...]:
    """A launch's arguments with every tensor, also in tuples and maps, replaced by an array on the same memory.

    Raises:
        EmulationError: (arguments) no sequence, a tensor that is not on the CPU, or whose memory NumPy cannot share.
    """
    if not isinstance(arguments, Sequence) or isinstance(arguments, str | bytes):
        expected = "a tuple or a list of them, such as (x,)"
        found = type(arguments).__name__
        raise EmulationError("arguments", "arguments of a launch", path=path, expected=expected, found=found)

    def with_arrays(argument: Any) -> Any:
        if is_tensor(argument):
            return as_array(argument, path)
        if isinstance(argument, TensorMap) and is_tensor(argument.tensor):
            return replace(argument, tensor=as_array(argument.tensor, path))
        return as_arrays(argument, path) if isinstance(argument, tuple) else argument

    return tuple(map(with_arrays, arguments))


def as_array(tensor: Tensor, path: str) -> Array:
    """The tensor's memory as an array of its shape, strides and dtype; of bfloat16 and float8 as integers.

    Raises:
        EmulationError: as of `as_arrays`.
    """
    if str(getattr(tensor, "device", "")) == "meta" or hasattr(tensor, "fake_mode"):  # torch's FakeTensor
        _refuse(path, "a tensor with memory", "a meta or fake one, which has a shape alone", "pass a real tensor")
    if int(tensor.__dlpack_device__()[0]) != CPU:
        _refuse(path, "a tensor on the CPU", f"one on {getattr(tensor, 'device', 'another device')}", "pass x.cpu()")
    shared: Array
    integers = BITS.get(str(getattr(tensor, "dtype", "")).rpartition(".")[2])
    try:
        source: Any = tensor
        if integers is not None:  # the same bits, by the tensor's own library (which need not be torch)
            source = source.view(getattr(sys.modules[type(tensor).__module__.partition(".")[0]], integers))
        shared = np.from_dlpack(source)
    except (BufferError, TypeError, RuntimeError, AttributeError) as error:
        hint = "pass x.detach()" if getattr(tensor, "requires_grad", False) else "pass a NumPy array"
        _refuse(path, "a tensor whose memory NumPy can share", str(error), hint)
    if not hasattr(tensor, "untyped_storage") or shared.size == 0:
        return shared
    storage = tensor.untyped_storage()  # of torch: a writable view of all of it, because Q, K and V may be parts of one
    first, nbytes = storage.data_ptr(), storage.nbytes()
    named = shared.dtype if nbytes % shared.itemsize == 0 else np.uint8  # errors show the memory's dtype
    memory = np.frombuffer((ctypes.c_uint8 * nbytes).from_address(first), named)
    return np.ndarray(shared.shape, shared.dtype, memory, shared.ctypes.data - first, shared.strides)


def _refuse(path: str, expected: str, found: str, hint: str) -> NoReturn:
    what = "a tensor among the arguments"
    raise EmulationError("arguments", what, path=path, expected=expected, found=found, hint=hint)
