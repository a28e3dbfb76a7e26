"""Arguments of a launch that are no NumPy arrays: tensors of other libraries on the CPU, through DLPack.

Why: whoever has a kernel to try has torch tensors beside it. Nothing is copied: the array that stands for a tensor is
its memory, so that what the kernel stores is in the tensor after the launch. torch is not imported.
"""

from __future__ import annotations

from collections.abc import Sequence
import ctypes
from dataclasses import replace
from typing import Any, NoReturn, Protocol, TypeGuard

import numpy as np

from flashladder.emulator.errors import EmulationError
from flashladder.emulator.machine.copies.tensor_map import TensorMap
from flashladder.emulator.values import Array

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
        raise EmulationError(
            "arguments", "arguments of a launch", path=path, expected=expected, found=type(arguments).__name__
        )
    return tuple(_with_arrays(argument, path) for argument in arguments)


def _with_arrays(argument: Any, path: str) -> Any:
    if is_tensor(argument):
        return as_array(argument, path)
    if isinstance(argument, TensorMap) and is_tensor(argument.tensor):
        return replace(argument, tensor=as_array(argument.tensor, path))
    return as_arrays(argument, path) if isinstance(argument, tuple) else argument


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
        source: Any = tensor if integers is None else _viewed(tensor, integers)
        shared = np.from_dlpack(source)
    except (BufferError, TypeError, RuntimeError, AttributeError) as error:
        hint = "pass x.detach()" if getattr(tensor, "requires_grad", False) else "pass a NumPy array"
        _refuse(path, "a tensor whose memory NumPy can share", str(error), hint)
    storage = getattr(tensor, "untyped_storage", None)
    return shared if storage is None or shared.size == 0 else _in_storage(shared, storage())


def _viewed(tensor: Any, dtype: str) -> Any:
    """The same bits as integers, by the tensor's own library (which need not be torch)."""
    import sys

    library = sys.modules[type(tensor).__module__.partition(".")[0]]
    return tensor.view(getattr(library, dtype))


def _in_storage(shared: Array, storage: Any) -> Array:
    """A torch tensor's array as a writable view of its whole storage: Q, K and V may be parts of one."""
    first, nbytes = storage.data_ptr(), storage.nbytes()
    named = shared.dtype if nbytes % shared.itemsize == 0 else np.uint8  # errors show the memory's dtype
    memory = np.frombuffer((ctypes.c_uint8 * nbytes).from_address(first), named)
    return np.ndarray(shared.shape, shared.dtype, memory, shared.ctypes.data - first, shared.strides)


def _refuse(path: str, expected: str, found: str, hint: str) -> NoReturn:
    raise EmulationError(
        "arguments", "a tensor among the arguments", path=path, expected=expected, found=found, hint=hint
    )
