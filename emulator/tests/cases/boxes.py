"""A box of a tensor as the hardware sees it, element by element: the reference of the cases of `tensor_copies`.

Plain Python with the rules of PTX ISA 9.0, 5.5: bounds, strides between the elements that are taken, swizzling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from tests.cases.harness import CTA

from ptxemu.values import DTYPES

SIZES = {kind: DTYPES[kind].itemsize for kind in ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16")}


@dataclass(frozen=True)
class Shape:
    """A tensor of at most 2 KiB and a box of it, at most 4 KiB in shared memory.

    Attributes:
        kind: type of the elements.
        dims, strides, box, steps, swizzle, fill: as of a `TensorMap`.
        starts: the box's coordinates in each CTA.
        note: what is special about it.
    """

    kind: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    starts: tuple[tuple[int, ...], ...]
    note: str
    swizzle: str = "none"
    steps: tuple[int, ...] = ()
    fill: str = "zeros"

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return SIZES[self.kind]

    @property
    def counts(self) -> tuple[int, ...]:
        """Elements that are copied along each axis."""
        steps = (1, *(self.steps or (1,) * len(self.box))[1:])
        return tuple((size + step - 1) // step for size, step in zip(self.box, steps, strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes that are copied."""
        total = self.size
        for count in self.counts:
            total *= count
        return total

    @property
    def pitch(self) -> int:
        """Bytes from row to row in shared memory."""
        return self.box[0] * self.size if self.swizzle == "none" else int(self.swizzle[:-1])

    @property
    def shared(self) -> int:
        """Bytes of shared memory that the box's rows take, in whole rounds of all threads."""
        rows = self.nbytes // (self.box[0] * self.size)
        return -(-rows * self.pitch // (4 * CTA)) * 4 * CTA

    def fields(self) -> Mapping[str, Any]:
        """The map's fields."""
        return {
            "dtype": self.kind,
            "dims": self.dims,
            "strides": self.strides,
            "box": self.box,
            "element_strides": self.steps,
            "swizzle": self.swizzle,
            "fill": self.fill,
        }

    def elements(self, start: Sequence[int], *, whole: bool = False) -> list[tuple[int | None, int]]:
        """(byte in the tensor, None outside of it; byte in shared memory) of every element of a box.

        `whole`: 16 bytes of a row of which a part lies in the tensor all do, as an H200 stores them.
        """
        found = []
        dims = (-(-self.dims[0] * self.size // 16) * 16 // self.size if whole else self.dims[0], *self.dims[1:])
        steps = (1, *(self.steps or (1,) * len(self.box))[1:])
        for index in product(*(range(count) for count in reversed(self.counts))):
            place = tuple(reversed(index))
            at = [first + step * each for first, step, each in zip(start, steps, place, strict=True)]
            inside = all(0 <= each < size for each, size in zip(at, dims, strict=True))
            tensor = at[0] * self.size + sum(each * stride for each, stride in zip(at[1:], self.strides, strict=True))
            row = 0
            for each, count in zip(reversed(place[1:]), reversed(self.counts[1:]), strict=True):
                row = row * count + each
            found.append((tensor if inside else None, self._swizzled(row * self.pitch + place[0] * self.size)))
        return found

    def _swizzled(self, byte: int) -> int:
        """Rows of 128 bytes: the 16-byte unit is exchanged by the row's number, within the swizzle's span."""
        line, rest = divmod(byte, 128)
        unit, rest = divmod(rest, 16)
        change = {"none": 0, "32B": line % 2, "64B": line % 4, "128B": line % 8}[self.swizzle]
        return line * 128 + (unit ^ change) * 16 + rest
