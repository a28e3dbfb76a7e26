"""Matrix descriptors of ``wgmma``: where in shared memory the rows and columns of an operand lie.

Why apart: a descriptor is 64 bits that say nothing of the matrix's size, and of the four layouts and two majors each
reads its two strides in another way. Here they become addresses of 16-byte *chunks*, which are what swizzling moves; an
instruction along K is always two chunks wide where K is contiguous ("K-major"), and eight rows of 16 elements high
where the other axis is ("MN-major").

| bits | field |
| --- | --- |
| 0 to 13 | start address / 16 |
| 16 to 29 | leading dimension byte offset / 16 (LBO) |
| 32 to 45 | stride dimension byte offset / 16 (SBO) |
| 49 to 51 | base offset: (address >> 7) & 7 of the start of the swizzle's pattern where that is not aligned to it |
| 62 to 63 | swizzle: 0 none, 1 128 bytes, 2 64 bytes, 3 32 bytes |

With T the chunks of a swizzle's span (8, 4, 2; 1 without), chunk addresses before swizzling are

- K-major: row m, chunk c: (m % 8) 16 T + (m / 8) SBO + c (16 if swizzled, else LBO);
- MN-major: row k of K, chunk c (8 columns): (k % 8) 16 T + (c % T) 16, and then (c / T) LBO + (k / 8) SBO if swizzled,
  else c SBO + (k / 8) LBO.

Swizzling exchanges chunks within their span: address bits 4 and up are combined by exclusive or with as many bits from
bit 7 up, counted from the base offset. Source: PTX ISA 9.0, 9.7.15.5.1 (matrices in shared memory, descriptors).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from flashladder.emulator.values import Array

CHUNK = 16  # bytes
SPANS = (1, 8, 4, 2)  # chunks of a row of the swizzle's pattern, by the field of bits 62 and 63
SWIZZLES = ("none", "128B", "64B", "32B")
REMEMBERED = 8  # descriptors of an operand, all blocks and warpgroups together, whose addresses are kept


@dataclass(frozen=True)
class Shape:
    """What a descriptor does not say: an operand's rows (M or N), its bytes along K, which axis is contiguous.

    Attributes:
        rows: M or N.
        k_major: whether elements that follow each other along K lie side by side.
    """

    rows: int
    k_major: bool

    @property
    def chunks(self) -> tuple[int, int]:
        """(rows, chunks of a row) K-major: (M or N, 2); MN-major, 16-bit elements: (16, M / 8 or N / 8)."""
        return (self.rows, 2) if self.k_major else (16, self.rows // 8)


def field(raw: Array, first: int, bits: int) -> Array:
    """Some bits of descriptors, as int64."""
    found: Array = ((raw >> np.uint64(first)) & np.uint64((1 << bits) - 1)).astype(np.int64)
    return found


def render(raw: int) -> str:
    """A descriptor in words, for messages."""
    number = np.array(raw, np.uint64)
    start, leading, stride = (CHUNK * int(field(number, first, 14)) for first in (0, 16, 32))
    return (
        f"start {start:#x}, leading offset {leading}, stride offset {stride}, base offset "
        f"{int(field(number, 49, 3))}, swizzle {SWIZZLES[int(field(number, 62, 2))]}"
    )


def chunk_addresses(raw: Array, shape: Shape) -> Array:
    """The address of every chunk of an operand.

    Args:
        raw: descriptors, u64, of any shape.
        shape: of the operand.

    Returns:
        int64, (*raw.shape, *shape.chunks), bytes of the block's shared window, in it or not.
    """
    if raw.size > REMEMBERED:
        return _addresses(raw, shape)
    return _known(raw.tobytes(), raw.shape, shape)


@lru_cache(maxsize=512)
def _known(raw: bytes, size: tuple[int, ...], shape: Shape) -> Array:
    return _addresses(np.frombuffer(raw, np.uint64).reshape(size), shape)


def _addresses(raw: Array, shape: Shape) -> Array:
    raw = raw[..., None, None]
    leading, stride = CHUNK * field(raw, 16, 14), CHUNK * field(raw, 32, 14)
    span = np.array(SPANS)[field(raw, 62, 2)]
    high, wide = shape.chunks
    row, chunk = np.arange(high)[:, None], np.arange(wide)[None, :]
    within = row % 8 * CHUNK * span
    if shape.k_major:
        beyond = row // 8 * stride + chunk * np.where(span > 1, CHUNK, leading)
    else:
        swizzled = chunk % span * CHUNK + chunk // span * leading + row // 8 * stride
        beyond = np.where(span > 1, swizzled, chunk * stride + row // 8 * leading)
    address = CHUNK * field(raw, 0, 14) + within + beyond
    turned = ((address >> 7) - field(raw, 49, 3)) & (span - 1)
    found: Array = address ^ (turned << 4)
    return found
