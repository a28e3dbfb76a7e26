"""Tensor maps: what a copy of a box of a tensor (``cp.async.bulk.tensor``) has to know, as one Python object.

On a GPU a map is 128 opaque bytes that ``cuTensorMapEncodeTiled`` makes on the host. Here the same description is an
argument of a launch: the emulator passes 128 bytes of its own and reads them back where the program names their
address, in parameters or in global memory; a launch on a GPU has the driver encode it.

    rows = TensorMap(k, "f16", dims=(128, 512), strides=(256,), box=(64, 128), swizzle="128B")
    kernel.launch((1,), (128,), (rows, out))  # the first parameter is a `const __grid_constant__ CUtensorMap`

Source: CUDA Driver API 13.0, 6.30 (cuTensorMapEncodeTiled); PTX ISA 9.0, 5.5 (tensors).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
import struct
from typing import Any, NoReturn
import zlib

import numpy as np

from ptxemu.errors import EmulationError
from ptxemu.values import DTYPES, Array

UNIT = 16  # bytes: alignment of addresses and strides, and of a box's rows


def check_address(address: int) -> None:
    """Refuses a tensor whose first element is not where the hardware wants it."""
    if address % UNIT:
        refuse("address of a tensor map's tensor", f"a multiple of {UNIT} bytes", hex(address))


def whole_numbers(numbers: Any, what: str) -> tuple[int, ...]:
    """Numbers along the axes; one with a fraction is a mistake in somebody's arithmetic."""
    try:
        given = tuple(numbers)
        whole = tuple(int(each) for each in given)
    except (TypeError, ValueError, OverflowError):
        given, whole = (None,), ()
    if whole != given:
        refuse(f"{what} of a tensor map", "whole numbers by axis, such as (64, 16) or (256,)", repr(numbers))
    return whole


def refuse(what: str, expected: object, found: object) -> NoReturn:
    """Fails with one line about a map."""
    raise EmulationError("arguments", what, path="TensorMap", expected=expected, found=found)


MAP_BYTES = 128
MAP_ALIGNMENT = 64  # bytes, of the map itself
MAX_RANK = 5
MAX_BOX = 256  # elements of a box along one axis
MAX_ELEMENT_STRIDE = 8
MAX_STRIDE = 1 << 40  # bytes

# The order of each tuple is that of the driver's enumeration: CUtensorMapDataType, ...Swizzle, ...L2promotion, ...Fill.
DATA_TYPES = (
    *("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16"),
    *("f32.ftz", "tf32", "tf32.ftz"),  # whose elements are f32
)
SWIZZLES = ("none", "32B", "64B", "128B")
PROMOTIONS = ("none", "64B", "128B", "256B")
FILLS = ("zeros", "nan")
INTERLEAVES = ("none",)
CHOICES: tuple[tuple[str, ...], ...] = (DATA_TYPES, SWIZZLES, INTERLEAVES, FILLS, PROMOTIONS)

_MAGIC = b"FLTENSOR"
_LAYOUT = struct.Struct("<8sQ8B5I4x4Q5H5B")  # magic, address, rank and choices, dims - 1, strides, box, element strides


@dataclass(frozen=True, eq=False)
class TensorMap:
    """A tensor in global memory and the box of it that one copy moves; axes are listed innermost first.

    Attributes:
        tensor: the array (or torch's tensor on the CPU) whose first element is the tensor's; or the index of that array
            among the launch's arguments.
        dtype: one of `DATA_TYPES`; the array's own dtype may be another one of that size (bfloat16 as integers).
        dims: elements along each of one to five axes.
        strides: bytes between neighbours along each axis but the first, whose elements are adjacent.
        box: elements that a copy spans along each axis.
        element_strides: of the elements that the box spans, every how many-th is copied; () stands for all. The first
            is ignored, as the hardware ignores it.
        swizzle: the span within which the box's rows are permuted in shared memory, one of `SWIZZLES`.
        interleave: "none".
        fill: what elements outside the tensor are read as: "zeros" or, of floating-point tensors, "nan".
        l2_promotion: one of `PROMOTIONS`; a hint without effect on values.
        wraps: whether addresses count modulo 2^64, so that a large stride can lead backwards. Then only the boxes that
            copies move must lie in memory, not the whole map.

    Raises:
        EmulationError: (arguments) what the driver would refuse, or a tensor that reaches beyond its array.
    """

    tensor: Array | int
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...] = ()
    swizzle: str = "none"
    interleave: str = "none"
    fill: str = "zeros"
    l2_promotion: str = "256B"
    wraps: bool = False

    def __post_init__(self) -> None:
        """Checks everything that can be known before the launch."""
        for name in ("dims", "strides", "box", "element_strides"):
            object.__setattr__(self, name, whole_numbers(getattr(self, name), name))
        if not self.element_strides:
            object.__setattr__(self, "element_strides", (1,) * self.rank)
        for holds, what, expected, found in self._rules():
            if not holds:
                refuse(f"{what} of a tensor map", expected, found)
        if isinstance(self.tensor, np.ndarray):
            check_memory(self, self.tensor)

    def _rules(self) -> Iterator[tuple[bool, str, object, object]]:
        """What the driver takes: (whether the map fulfils it, what it is about, expected, found)."""
        names = ("dtype", "swizzle", "interleave", "fill", "l2_promotion")
        for name, known in zip(names, CHOICES, strict=True):
            yield getattr(self, name) in known, name, f"one of {', '.join(known)}", repr(getattr(self, name))
        yield 1 <= self.rank <= MAX_RANK, "rank", f"1 to {MAX_RANK} dims", f"{self.rank}"
        for name, count in (("strides", self.rank - 1), ("box", self.rank), ("element_strides", self.rank)):
            found = len(getattr(self, name))
            yield found == count, name, f"{count} numbers for {self.rank} dims", f"{found}"
        yield self.fill != "nan" or "f" in self.dtype, "fill", "zeros for a tensor of integers", self.fill
        yield all(1 <= each <= 1 << 32 for each in self.dims), "dims", "1 to 2^32 each", self.dims
        strides = all(each % UNIT == 0 and 0 <= each < MAX_STRIDE for each in self.strides)
        yield strides, "strides", f"multiples of {UNIT} bytes below 2^40", self.strides
        yield all(1 <= each <= MAX_BOX for each in self.box), "box", f"1 to {MAX_BOX} elements each", self.box
        steps = all(1 <= each <= MAX_ELEMENT_STRIDE for each in self.element_strides)
        yield steps, "element_strides", f"1 to {MAX_ELEMENT_STRIDE} each", self.element_strides
        row = self.box[0] * self.itemsize
        yield row % UNIT == 0, "box", f"rows of a multiple of {UNIT} bytes", f"{row} bytes"
        yield row <= self.span, "box", f"rows of at most {self.swizzle}, the swizzle's span", f"{row} bytes"

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.dims)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return DTYPES[self.element].itemsize

    @property
    def element(self) -> str:
        """The PTX type of an element in memory: f32 of a map of tf32."""
        return "f32" if "f32" in self.dtype else self.dtype

    @property
    def counts(self) -> tuple[int, ...]:
        """Elements that a copy moves along each axis, innermost first."""
        steps = (1, *self.element_strides[1:])
        return tuple(-(-size // step) for size, step in zip(self.box, steps, strict=True))

    @property
    def box_bytes(self) -> int:
        """Bytes that a copy counts on its mbarrier: those of the whole box, outside of the tensor or not."""
        return int(np.prod(self.counts)) * self.itemsize

    @property
    def span(self) -> int:
        """Bytes from one row of the box to the next in shared memory: a row's own, or the swizzle's span."""
        row = self.box[0] * self.itemsize
        return row if self.swizzle == "none" else int(self.swizzle[:-1])

    def encoded(self, address: int) -> bytes:
        """The emulator's own 128 bytes of the map of a tensor that begins at a global `address`.

        Raises:
            EmulationError: (arguments) an address that is not a multiple of 16.
        """
        check_address(address)
        named = (self.dtype, self.swizzle, self.interleave, self.fill, self.l2_promotion)
        places = [known.index(name) for known, name in zip(CHOICES, named, strict=True)]
        dims = [size - 1 for size in self.dims]
        tables = ((dims, 5), (self.strides, 4), (self.box, 5), (self.element_strides, 5))
        numbers = [each for values, count in tables for each in (*values, *[0] * (count - len(values)))]
        body = _LAYOUT.pack(_MAGIC, address, self.rank, *places, 0, 0, *numbers)
        body += bytes(MAP_BYTES - 4 - len(body))
        return body + zlib.crc32(body).to_bytes(4, "little")


@dataclass(frozen=True)
class Decoded:
    """A map as the program finds it in memory: the tensor's global address, and the rest."""

    address: int
    map: TensorMap


def decoded(contents: bytes) -> Decoded | None:
    """The inverse of `TensorMap.encoded`; None for 128 bytes that are no map, or one that was written over."""
    body = contents[: MAP_BYTES - 4]
    if len(contents) != MAP_BYTES or body[:8] != _MAGIC:
        return None
    if zlib.crc32(body) != int.from_bytes(contents[-4:], "little"):
        return None
    _, address, rank, dtype, swizzle, interleave, fill, promotion, _, _, *numbers = _LAYOUT.unpack_from(body)
    dims, strides, box, steps = numbers[:5], numbers[5:9], numbers[9:14], numbers[14:]
    places = (dtype, swizzle, interleave, fill, promotion)
    kind, *choices = (known[place] for known, place in zip(CHOICES, places, strict=True))
    sizes = tuple(size + 1 for size in dims[:rank]), tuple(strides[: rank - 1]), tuple(box[:rank]), tuple(steps[:rank])
    return Decoded(address, TensorMap(0, kind, *sizes, *choices))


# The fields that a program may change in memory: byte in `_LAYOUT`, bytes, entries. PTX ISA 9.0, 9.7.9.28.
FIELDS = {
    "global_address": (8, 8, 1),
    "rank": (16, 1, 1),
    "elemtype": (17, 1, 1),
    "swizzle_mode": (18, 1, 1),
    "interleave_layout": (19, 1, 1),
    "fill_mode": (20, 1, 1),
    "global_dim": (24, 4, MAX_RANK),
    "global_stride": (48, 8, MAX_RANK - 1),
    "box_dim": (80, 2, MAX_RANK),
    "element_stride": (90, 1, MAX_RANK),
}
ELEMENT_TYPES = (  # PTX's own order
    *("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f32.ftz", "f64", "bf16", "tf32", "tf32.ftz"),
)
_CODED = {"swizzle_mode": SWIZZLES, "interleave_layout": INTERLEAVES, "fill_mode": FILLS}


def replaced(contents: bytes, field: str, entry: int, value: int) -> bytes:
    """The 128 bytes with one field changed as ``tensormap.replace`` does; 128 zeros are a map to begin with.

    Args:
        contents: a map that `TensorMap.encoded` or this function made, or zeros.
        field: a key of `FIELDS`.
        entry: the axis (of ``global_stride``: less one), 0 for other fields.
        value: the number; codes as PTX has them, ``rank`` less one.

    Raises:
        EmulationError: (tensor map) no map, or a value or an axis that no map has.
    """
    body = bytearray(contents[: MAP_BYTES - 4])
    blank = not any(contents)
    if not blank and (body[:8] != _MAGIC or zlib.crc32(body) != int.from_bytes(contents[-4:], "little")):
        raise EmulationError("tensor map", "what is changed is no tensor map", expected="128 bytes of one, or zeros")
    place, size, entries = FIELDS[field]
    if field == "elemtype":
        known = ELEMENT_TYPES[value] if value < len(ELEMENT_TYPES) else ""
        value = DATA_TYPES.index(known) if known in DATA_TYPES else -1
    elif field in {"rank", "global_dim"}:  # a rank is given less one and kept whole, sizes the other way round
        value += 1 if field == "rank" else -1
    most = len(_CODED[field]) if field in _CODED else 6 if field == "rank" else 1 << 8 * size
    if not (0 <= entry < entries and 0 <= value < most):
        what = f"{field} {entry} of a tensor map" if entries > 1 else f"{field} of a tensor map"
        raise EmulationError("tensor map", what, expected="an axis and a value that maps have", found=value)
    body[:8] = _MAGIC
    body[place + entry * size : place + (entry + 1) * size] = value.to_bytes(size, "little")
    return bytes(body) + zlib.crc32(body).to_bytes(4, "little")


def check_memory(given: TensorMap, array: Array) -> None:
    """Refuses a tensor that ends behind the memory of the array that it begins in."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    room = owner.ctypes.data + owner.nbytes - array.ctypes.data
    reach = given.dims[0] * given.itemsize
    reach += sum((size - 1) * stride for size, stride in zip(given.dims[1:], given.strides, strict=True))
    if reach > room and not given.wraps:
        expected = f"a tensor within its array, of which {room} bytes are left"
        found = f"{reach} bytes from the first element to the end of the last"
        refuse("dims and strides of a tensor map", expected, found)
