"""How many passes a memory access costs: shared-memory wavefronts and global sectors, by Nsight Compute's definitions.

Shared memory has 32 banks of 4 bytes. A warp's access is served in *phases*: 32 lanes at up to 4 bytes a lane, 16 lanes
at 8 bytes, 8 lanes at 16 bytes, and one phase per 8x8 matrix (8 rows of 16 bytes) of ``ldmatrix``. Each pass over the
banks, a *wavefront*, delivers one 4-byte word per bank, so a phase needs as many wavefronts as the busiest bank has
distinct words; lanes that read the same word share it. Conflicts are the wavefronts beyond one per phase.
Global memory moves in 32-byte sectors: a request costs the distinct sectors that its lanes touch.

Two rules are not in NVIDIA's documents; an H200 showed them (results/h200/emulator_patterns.json.gz): wide loads whose
lanes agree in pairs take half as many phases (`load_wavefronts`), and ``cp.async.cg`` counts lines of pairs of lanes
(`bypass_sectors`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from flashladder.emulator.values import WARP, Array, BoolArray

BANKS = 32
WORD = 4  # bytes that a bank delivers in one wavefront
PHASE_BYTES = BANKS * WORD
SECTOR = 32  # bytes
LARGEST = 4096  # addresses of a pattern that is remembered; larger ones are computed each time
_ABSENT = np.iinfo(np.int64).max  # stands for a lane that takes no part; sorts behind every address


def _distinct(items: Array) -> tuple[Array, BoolArray]:
    """Each row of the last axis sorted, and a mask of the first occurrences of what is present."""
    ordered = np.sort(items, axis=-1)
    first = ordered != _ABSENT
    first[..., 1:] &= ordered[..., 1:] != ordered[..., :-1]
    return ordered, first


def _present(units: Array, mask: BoolArray | None) -> Array:
    return units if mask is None else np.where(mask, units, _ABSENT)


def wavefronts(
    address: Array, width: int, mask: BoolArray | None = None, *, lanes: int | None = None
) -> tuple[Array, Array]:
    """Wavefronts and phases of shared-memory accesses, one number per warp.

    Args:
        address: bytes, (..., n): n = 32 lanes, or 8 rows per matrix of an ``ldmatrix`` (width 16).
        width: bytes per lane or row: 1, 2, 4, 8 or 16.
        mask: lanes that take part, same shape as `address`; None for all.
        lanes: lanes of a phase; None for as many as fill 128 bytes.

    Returns:
        Two integer arrays of shape ``address.shape[:-1]``; a phase without active lanes counts in neither.
    """
    words = max(1, width // WORD)
    lanes = lanes or BANKS // words
    first_word = _present((address // np.uint64(WORD)).astype(np.int64), mask)
    rows = first_word.reshape(*address.shape[:-1], -1, lanes)
    if words > 1:
        spread = rows[..., None] + np.arange(words)
        rows = np.where(rows[..., None] == _ABSENT, _ABSENT, spread).reshape(*rows.shape[:-1], -1)
    ordered, first = _distinct(rows)
    phases = int(np.prod(rows.shape[:-1]))
    bank = np.arange(phases).reshape(*rows.shape[:-1], 1) * BANKS + ordered % BANKS
    load = np.bincount(bank[first], minlength=phases * BANKS).reshape(*rows.shape[:-1], BANKS)
    busiest = load.max(axis=-1)
    return busiest.sum(axis=-1), (busiest > 0).sum(axis=-1)


def load_wavefronts(address: Array, width: int, mask: BoolArray | None = None) -> tuple[Array, Array]:
    """`wavefronts` of ``ld.shared``: a phase has twice the lanes where all lanes agree with a neighbour.

    A load of 8 or 16 bytes per lane is served in one or two phases instead of two or four when every active lane reads
    the address of lane ``l ^ 1`` (or every one that of lane ``l ^ 2``), inactive neighbours aside. Stores and
    ``ldmatrix`` have no such rule.
    """
    if width <= WORD:
        return wavefronts(address, width, mask)
    merged = np.zeros(address.shape[:-1], dtype=np.bool_)
    lanes = np.arange(address.shape[-1])
    for distance in (1, 2):
        agrees = address == address[..., lanes ^ distance]
        if mask is not None:
            agrees |= ~(mask & mask[..., lanes ^ distance])
        merged |= agrees.all(axis=-1)
    single = wavefronts(address, width, mask)
    if not merged.any():
        return single
    double = wavefronts(address, width, mask, lanes=2 * PHASE_BYTES // width)
    return np.where(merged, double[0], single[0]), np.where(merged, double[1], single[1])


def bypass_sectors(address: Array, width: int, mask: BoolArray | None = None) -> tuple[Array, Array]:
    """What ncu calls sectors of ``cp.async.cg``, which passes L1 by: distinct 128-byte lines of each pair of lanes."""
    del width
    pairs = _present((address // np.uint64(PHASE_BYTES)).astype(np.int64), mask)
    _, first = _distinct(pairs.reshape(*address.shape[:-1], -1, 2))
    found = first.sum(axis=(-1, -2))
    return found, (found > 0).astype(np.int64)


def sectors(address: Array, width: int, mask: BoolArray | None = None) -> tuple[Array, Array]:
    """Sectors and requests of global-memory accesses, one number per warp.

    Args:
        address: bytes, (..., 32), aligned to `width`, so that a lane touches one sector.
        width: bytes per lane, at most 16.
        mask: lanes that take part, same shape as `address`; None for all.

    Returns:
        Two integer arrays of shape ``address.shape[:-1]``: distinct sectors, and 1 where any lane takes part.
    """
    del width  # an aligned access of up to 32 bytes never crosses a sector
    _, first = _distinct(_present((address // np.uint64(SECTOR)).astype(np.int64), mask))
    found = first.sum(axis=-1)
    return found, (found > 0).astype(np.int64)


Rule = Callable[[Array, int, "BoolArray | None"], tuple[Array, Array]]


@dataclass
class Patterns:
    """The totals of a rule over a slice of the grid, remembered by address pattern: loops repeat the same few.

    Attributes:
        rule: `wavefronts`, `sectors` or one of their kin.
        period: a shift of all addresses of a block by a multiple of this many bytes does not change the result.
        limit: patterns that are remembered, of at most `LARGEST` addresses each.
    """

    rule: Rule
    period: int
    limit: int = 4096
    _known: dict[tuple[int, tuple[int, ...], bytes, bytes], tuple[Array, Array]] = field(default_factory=dict)

    def total(self, address: Array, width: int, mask: BoolArray | None, blocks: int, warps: int) -> tuple[int, int]:
        """The rule's two numbers, summed over all warps of a slice of `blocks` x `warps`.

        `address` and `mask` follow the convention of `values`: any axis may have length 1.
        """
        if address.shape[2] == 1:
            address = np.broadcast_to(address, (*address.shape[:2], WARP))
        if address.shape[0] > 1:
            address = self._block_independent(address)
        if mask is None:
            first, second = self._lookup(address, width, None)
            times = (blocks // address.shape[0]) * (warps // address.shape[1])
            return int(first.sum()) * times, int(second.sum()) * times
        active = mask.any(axis=2)
        if mask.shape[2] == 1 or (active == mask.all(axis=2)).all():  # whole warps: the pattern does not depend on it
            first, second = self._lookup(address, width, None)
            weight = np.broadcast_to(active, (blocks, warps)).astype(np.int64)
            return int((weight * first).sum()), int((weight * second).sum())
        shape = np.broadcast_shapes(address.shape, mask.shape)
        first, second = self._lookup(np.broadcast_to(address, shape), width, np.broadcast_to(mask, shape))
        times = (blocks // shape[0]) * (warps // shape[1])
        return int(first.sum()) * times, int(second.sum()) * times

    def _block_independent(self, address: Array) -> Array:
        """The pattern of one block, where those of all blocks are the same but for a harmless shift."""
        start = address[:, :1, :1]
        shifted = address - (start - start % np.uint64(self.period))
        return shifted[:1] if (shifted == shifted[:1]).all() else address

    def _lookup(self, address: Array, width: int, mask: BoolArray | None) -> tuple[Array, Array]:
        if address.size > LARGEST:
            return self.rule(address, width, mask)
        key = (width, address.shape, address.tobytes(), b"" if mask is None else mask.tobytes())
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= self.limit:
                self._known.clear()
            known = self._known[key] = self.rule(address, width, mask)
        return known
