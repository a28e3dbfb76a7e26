"""A tensor map as a GPU wants it: the 128 bytes that the driver encodes from the same description.

Source: CUDA Driver API (13.0), 6.30 (cuTensorMapEncodeTiled); drivers before CUDA 12 do not have it.
"""

from __future__ import annotations

from collections.abc import Sequence
import ctypes
from typing import Any

from flashladder.emulator.chip.driver import Driver
from flashladder.emulator.machine.copies.map_rules import check_address
from flashladder.emulator.machine.copies.tensor_map import (
    DATA_TYPES,
    FILLS,
    INTERLEAVES,
    MAP_ALIGNMENT,
    MAP_BYTES,
    PROMOTIONS,
    SWIZZLES,
    TensorMap,
)


def encode(call: Driver, given: TensorMap, address: int) -> bytes:
    """The map of the tensor that begins at `address` of the GPU.

    Raises:
        EmulationError: (arguments) the address is not aligned.
        FlashladderError: the driver has no tensor maps, or refuses this one.
    """
    check_address(address)
    room = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)
    begin = ctypes.addressof(room)
    begin += -begin % MAP_ALIGNMENT
    call(
        "cuTensorMapEncodeTiled",
        begin,
        DATA_TYPES.index(given.dtype),
        given.rank,
        address,
        _numbers(ctypes.c_uint64, given.dims),
        _numbers(ctypes.c_uint64, given.strides or (0,)),
        _numbers(ctypes.c_uint32, given.box),
        _numbers(ctypes.c_uint32, given.element_strides),
        INTERLEAVES.index(given.interleave),
        SWIZZLES.index(given.swizzle),
        PROMOTIONS.index(given.l2_promotion),
        FILLS.index(given.fill),
    )
    return ctypes.string_at(begin, MAP_BYTES)


def _numbers(kind: Any, values: Sequence[int]) -> Any:
    """A C array of numbers."""
    return (kind * len(values))(*values)
