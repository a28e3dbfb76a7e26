"""Does a ``wgmma`` read a tile of shared memory as the tensor copy wrote it?

A copy of a box writes rows side by side, perhaps swizzled; a descriptor says how to find rows and columns again. On a
GPU nothing compares the two: a wrong field gives wrong numbers. `Tiles` remembers of each chunk of 16 bytes which copy
wrote it and where in the box it belongs, and holds a descriptor to that:

- the eight rows of a core matrix are eight rows of one box that follow each other, at the same column, and begin at a
  multiple of eight where the box is swizzled;
- in a box of two axes, all core matrices lie to each other as in the operand.

Chunks that threads wrote themselves, or that came from copies without a tensor map, are not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ptxemu.errors import PtxemuError
from ptxemu.machine.tensor_map import TensorMap
from ptxemu.machine.warpgroups import CHUNK, SPANS, SWIZZLES, Shape, chunk_addresses, field
from ptxemu.values import Array

CORE = 8  # rows of a core matrix
UNKNOWN = -1
# Fields of a descriptor: first bit, bits, and how a number of it is counted in messages.
START, LEADING, STRIDE, SWIZZLE = (0, 14), (16, 14), (32, 14), (62, 2)
NAMES = {START: "start", LEADING: "leading offset (LBO)", STRIDE: "stride offset (SBO)", SWIZZLE: "swizzle"}


@dataclass(frozen=True)
class Misfit:
    """A descriptor that does not read what a copy wrote.

    Attributes:
        text: the field, what it should be and what it is.
        copy: the number of the instruction that copied the tile.
        thread: who issued it.
        address: of the first chunk in question.
    """

    text: str
    copy: int
    thread: int
    address: int


@dataclass(frozen=True)
class _Tile:
    """One copied box: its map, its first address, its instruction's number, who issued it."""

    map: TensorMap
    begin: int
    site: int
    thread: int


class Tiles:
    """What tensor copies wrote into the shared memory of a block or cluster."""

    def __init__(self) -> None:
        self._tiles: list[_Tile] = []
        self._of = np.zeros(0, np.int32)  # of each chunk: the copy's number
        self._at = np.zeros(0, np.int32)  # and its place in the box, in bytes

    def loaded(self, address: Array, places: Array, box: TensorMap, site: int, thread: int) -> None:
        """A copy writes chunks at these addresses, int64, which belong to these places of its box."""
        if box.rank == 1:
            self.forget(address // CHUNK)
            return
        chunks = address // CHUNK
        if (last := int(chunks.max()) + 1) > len(self._of):
            more = max(last, 2 * len(self._of)) - len(self._of)
            self._of = np.concatenate([self._of, np.full(more, UNKNOWN, np.int32)])
            self._at = np.concatenate([self._at, np.zeros(more, np.int32)])
        self._of[chunks], self._at[chunks] = len(self._tiles), places
        self._tiles.append(_Tile(box, int(address.min()), site, thread))

    def forget(self, chunks: Array) -> None:
        """Something else is written into chunks, which are named by their numbers."""
        if self._tiles:
            self._of[chunks[chunks < len(self._of)]] = UNKNOWN

    def misfit(self, matrix: str, raw: int, shape: Shape, base: int) -> Misfit | None:
        """Why a descriptor does not read a tile as it was copied; None: it does, or nobody knows.

        `matrix` is A or B, `base` the address at which the block's shared memory begins.
        """
        if not self._tiles:
            return None
        address = self._addresses(raw, shape, base)
        wrong = self._wrong(address, raw)
        if wrong is None:
            return None
        row, chunk = wrong
        place = int(address[row, chunk])
        tile = self._tiles[int(self._of[place // CHUNK])]
        known = (self._tile(address) >= 0).sum()
        said = f"matrix {matrix} is not read as it was copied"
        for bits, number in self._others(raw, shape, tile, base):
            other = (raw & ~(((1 << bits[1]) - 1) << bits[0])) | number << bits[0]
            new = self._addresses(other, shape, base)
            if (self._tile(new) >= 0).sum() >= known and self._wrong(new, other) is None:
                expected, found = _shown(bits, number), _shown(bits, raw >> bits[0] & ((1 << bits[1]) - 1))
                return Misfit(
                    f"{said}: {NAMES[bits]} of the descriptor: expected {expected}, found {found}",
                    tile.site, tile.thread, place,
                )  # fmt: skip
        box = f"a box of {' x '.join(map(str, tile.map.counts))} {tile.map.dtype}, swizzle {tile.map.swizzle}"
        text = f"{said}: {box}; no single field explains it"
        return Misfit(text, tile.site, tile.thread, place)

    def _addresses(self, raw: int, shape: Shape, base: int) -> Array:
        return chunk_addresses(np.array(raw, np.uint64), shape) + base

    def _tile(self, address: Array) -> Array:
        chunks = address // CHUNK
        inside = chunks < len(self._of)
        return np.where(inside, self._of[np.where(inside, chunks, 0)], UNKNOWN)

    def _wrong(self, address: Array, raw: int) -> tuple[int, int] | None:
        """The first row and chunk of a core matrix that is none of its box, or lies elsewhere than the others."""
        tile = self._tile(address)
        if (tile < 0).all():
            return None
        at = self._at[np.where(tile < 0, 0, address // CHUNK)].astype(np.int64)
        plain = int(field(np.array(raw, np.uint64), *SWIZZLE)) == 0
        present = np.unique(tile[tile >= 0])  # a long kernel has copied many boxes, an operand lies in few
        boxes = [self._tiles[each].map for each in present]
        tile = np.where(tile < 0, UNKNOWN, np.searchsorted(present, tile))
        spans = np.array([box.span for box in boxes])
        judged = np.array([not (plain and box.swizzle == "none") for box in boxes])
        flat = np.array([sum(count > 1 for count in box.counts) <= 2 for box in boxes])
        tile, at = (each.reshape(-1, CORE, each.shape[1]) for each in (tile, at))
        first, start = tile[:, 0], at[:, 0]
        whole = (tile >= 0).all(axis=1) & judged[first]
        span = np.maximum(spans[first], CHUNK)
        follow = start[:, None] + span[:, None] * np.arange(CORE)[:, None]
        broken = whole & ((tile != first[:, None]).any(axis=1) | (at != follow).any(axis=1))
        broken |= whole & (start // span % CORE != 0) & (span > CHUNK)
        if not broken.any():
            row = start // span - CORE * np.arange(len(start))[:, None]
            column = start % span // CHUNK - np.arange(start.shape[1])
            for each in np.unique(first[whole & flat[first]]):
                mine = whole & (first == each)
                one = tuple(np.argwhere(mine)[0])
                broken |= mine & ((row != row[one]) | (column != column[one]))
        if not broken.any():
            return None
        block, chunk = np.argwhere(broken)[0]
        return int(block) * CORE, int(chunk)

    def _others(self, raw: int, shape: Shape, tile: _Tile, base: int) -> Iterator[tuple[tuple[int, int], int]]:
        """Values of fields that could have been meant."""
        span, rows = tile.map.span, int(np.prod(tile.map.counts[1:]))
        yield SWIZZLE, SWIZZLES.index(tile.map.swizzle)
        start = raw & 0x3FFF
        yield START, start >> 4
        yield STRIDE, CORE * span // CHUNK
        yield LEADING, rows * span // CHUNK
        if shape.k_major:
            yield LEADING, CORE * span // CHUNK
        step = start * CHUNK + base - tile.begin
        if step > 0 and step % CHUNK**2 == 0:  # it was added in bytes
            yield START, (tile.begin - base) // CHUNK + step // CHUNK**2


def _shown(bits: tuple[int, int], number: int) -> str:
    if bits == SWIZZLE:
        return f"{SWIZZLES[number]} ({number})"
    return f"{number:#x} ({number * CHUNK} bytes)"


def explained(raw: int) -> str:
    """A descriptor, field by field."""
    number = np.array(raw, np.uint64)
    lines = [f"descriptor {raw:#018x}"]
    for bits, what in (
        (START, "start address"), (LEADING, "leading dimension byte offset (LBO)"),
        (STRIDE, "stride dimension byte offset (SBO)"), ((49, 3), "base offset"), (SWIZZLE, "swizzle"),
    ):  # fmt: skip
        value = int(field(number, *bits))
        shown = f"{value * CHUNK:#x} = {value * CHUNK}" if bits in (START, LEADING, STRIDE) else str(value)
        shown = f"{value}: {SWIZZLES[value]}" if bits == SWIZZLE else shown
        lines.append(f"  bits {bits[0]:2d} to {bits[0] + bits[1] - 1:2d}  {what:36s} {shown}")
    rest = raw & ~sum(((1 << count) - 1) << first for first, count in (START, LEADING, STRIDE, (49, 3), SWIZZLE))
    if rest:
        lines.append(f"  bits outside of all fields are set: {rest:#x}; the hardware may read another descriptor")
    span = SPANS[int(field(number, *SWIZZLE))]
    if span > 1:
        lines.append(f"K-major: rows are {span * CHUNK} bytes apart, groups of eight rows SBO; LBO is not used")
        lines.append(f"MN-major: {span * CHUNK} bytes along M or N, then LBO; eight rows of K, then SBO")
        usual = CORE * span * CHUNK
        if int(field(number, *STRIDE)) * CHUNK != usual:
            lines.append(f"rows that follow each other have an SBO of {usual}")
    else:
        lines.append("K-major: core matrices of 8 x 16 bytes, LBO apart along K, SBO along M or N")
        lines.append("MN-major: core matrices of 8 x 16 bytes, SBO apart along M or N, LBO along K")
    return "\n".join(lines)


def run(words: Sequence[str]) -> str:
    """``ptxemu descriptor NUMBER ...``: what `explained` says of each.

    Raises:
        PtxemuError: no number, or one that no descriptor is.
        SystemExit: after ``--help``.
    """
    if any(word in ("-h", "--help") for word in words):
        print("usage: ptxemu descriptor NUMBER ...\n\nExplains shared-memory descriptors of wgmma, field by field.")
        print("\nexample: ptxemu descriptor 0x4000004000010040")
        raise SystemExit(0)
    found = []
    for word in words:
        try:
            number = int(word, 0)
        except ValueError:
            number = -1
        if not 0 <= number < 1 << 64:
            expected = "a number of 64 bits, such as 0x4000004000010040"
            raise PtxemuError("bad descriptor", expected=expected, found=repr(word))
        found.append(explained(number))
    if not found:
        raise PtxemuError("no descriptor is named", expected="ptxemu descriptor 0x4000004000010040", found="nothing")
    return "\n\n".join(found)
