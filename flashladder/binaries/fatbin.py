"""Fatbins as data: where in a file they lie, and what each of their entries is, from headers alone.

Why: a library of half a gigabyte holds thousands of cubins and cuobjdump takes twenty seconds to list them; headers
tell in one which of them a question is about. A fatbin is a header of 16 bytes and entries, each with a header of its
own; the format has no public description, what is read here is what fatbinary 12 and 13 write and cuobjdump reads.

Nothing to run here; ``invoke sass LIBRARY`` lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
import mmap
import struct
from typing import Literal

MAGIC = struct.pack("<I", 0xBA55ED50)
CONTAINER = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes of all entries
# kind, version, bytes of this header, bytes of the payload with padding, bytes of it as stored where it is compressed,
# place of options, PTX version (minor, major), architecture, place and length of the name, flags, 0, bytes unpacked
ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_KINDS: dict[int, Literal["ptx", "cubin"]] = {1: "ptx", 2: "cubin"}
_LZ4, _ZSTD, _ALONE = 0x2000, 0x8000, 0x100000  # flags
Form = Literal["plain", "lz4", "zstd", "damaged"]

MOST_UNPACKED = 256 << 20  # bytes of an entry; the largest of PyTorch has 34 MiB
MOST_RATIO = 4096  # of unpacked to stored bytes: what a bomb would need more of


@dataclass(frozen=True)
class Entry:
    """One PTX or one cubin of a fatbin.

    Attributes:
        kind: what it is.
        number: of its architecture, 80.
        header: where its header begins in the file.
        begin: where its bytes begin.
        stored: how many bytes there are.
        form: whether and how they are compressed; ``damaged`` where their size cannot be true.
        size: bytes unpacked.
        container: where the fatbin begins that holds it.
        alone: whether it is for that architecture and no later one, as fatbinary's ``sm=90a`` says.
    """

    kind: Literal["ptx", "cubin"]
    number: int
    header: int
    begin: int
    stored: int
    form: Form
    size: int
    container: int
    alone: bool = False

    @property
    def arch(self) -> str:
        """``sm_80`` of machine code, ``compute_80`` of PTX, ``sm_90a`` of what is for one architecture alone."""
        return f"{'sm' if self.kind == 'cubin' else 'compute'}_{self.number}{'a' * self.alone}"


def entries(data: mmap.mmap | bytes) -> Iterator[Entry]:
    """Every entry of every fatbin in a file, wherever it lies; entries of another kind (LTO-IR) are passed over.

    A place that only looks like a fatbin is passed over too: its header or its first entry does not hold together.
    """
    at = data.find(MAGIC)
    while at >= 0:
        end = _end(data, at)
        if end:
            yield from _entries_of(data, at, end)
        at = data.find(MAGIC, max(end, at + len(MAGIC)))


def _end(data: mmap.mmap | bytes, at: int) -> int:
    """Where the fatbin that begins at `at` ends; 0 when there is none."""
    if at + CONTAINER.size > len(data):
        return 0
    _, version, header, size = CONTAINER.unpack_from(data, at)
    end = at + CONTAINER.size + size
    if version != 1 or header != CONTAINER.size or end > len(data):
        return 0
    return end if not size or _entry_end(data, at + CONTAINER.size, end) else 0


def _entry_end(data: mmap.mmap | bytes, at: int, end: int) -> int:
    """Where the entry ends whose header begins at `at`, in a fatbin that ends at `end`; 0 when there is none."""
    if at + ENTRY.size > end:
        return 0
    header, payload = struct.unpack_from("<IQ", data, at + 4)
    after: int = at + header + payload
    return after if header >= ENTRY.size and after <= end else 0


def _entries_of(data: mmap.mmap | bytes, container: int, end: int) -> Iterator[Entry]:
    at = container + CONTAINER.size
    while after := _entry_end(data, at, end):
        kind, _, header, payload, stored, _, _, _, number, _, _, flags, _, size = ENTRY.unpack_from(data, at)
        if kind in _KINDS:
            form: Form = "lz4" if flags & _LZ4 else "zstd" if flags & _ZSTD else "plain"
            if form == "plain":
                stored = size = payload
            if stored > payload or size > min(MOST_UNPACKED, MOST_RATIO * stored):
                form = "damaged"
            alone = bool(flags & _ALONE)
            yield Entry(_KINDS[kind], number, at, at + header, stored, form, size, container, alone)
        at = after
