"""Shared memory of the cluster: loads and stores whose addresses name a block, each lane its own.

Why apart: in the block's own window all blocks of a slice access the same columns of their rows at once; here a lane of
one block may mean another one's row. Source: PTX ISA 9.0, 5.1.7 (shared), 9.7.9.8 (ld), 9.7.9.11 (st).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flashladder.emulator.machine.memory import values_of, words_of
from flashladder.emulator.machine.spaces.cluster import OFFSET, RANK_SHIFT
from flashladder.emulator.machine.spaces.on_chip import HINTS
from flashladder.emulator.values import Array, BoolArray

if TYPE_CHECKING:
    from flashladder.emulator.machine.state import Step

SPACE = "shared::cluster"
GONE = (
    "every block of a cluster stays until its peers have done with its shared memory: barrier.cluster before the exit"
)


def reaches(step: Step, address: Array, mask: BoolArray | None) -> bool:
    """Whether an address of shared memory names a block of the cluster, as ``mapa`` makes them."""
    cluster = step.machine.cluster
    if not cluster.mapped_any or int(address.max()) <= OFFSET:
        return False
    named = (address > np.uint64(OFFSET)) & (address >> np.uint64(RANK_SHIFT) <= np.uint64(cluster.size))
    active = step.lanes() if mask is None else step.lanes() & mask
    return bool((named & active).any())


def places(
    step: Step, address: Array, width: int, mask: BoolArray | None = None
) -> tuple[tuple[Array, ...], Array, Array]:
    """Where each executing lane's access lies.

    Args:
        step: the instruction.
        address: u64, (blocks|1, warps|1, 32|1), of the cluster's window.
        width: bytes per lane.
        mask: a part of the step's lanes; None: all.

    Returns:
        The lanes (three index arrays), and for each the block of the slice and the offset, int64.

    Raises:
        EmulationError: "out-of-bounds", "misaligned", "exited" (the block is gone).
    """
    machine = step.machine
    active = step.lanes() if mask is None else step.lanes() & mask
    what = f"{width}-byte access of the cluster's shared memory"
    far = ~machine.cluster.valid(address) & active
    if far.any():
        found = f"rank {int(machine.full(address)[far][0] >> np.uint64(RANK_SHIFT)) - 1}"
        expected = f"a block of the cluster, 0 to {machine.cluster.size - 1}"
        step.fail("out-of-bounds", what, lanes=far, address=address, expected=expected, found=found)
    block, offset = machine.cluster.resolve(address)
    outside = (offset + width > machine.shared.nbytes) & active
    if outside.any():
        past = f"{what} past the end of the block's {machine.shared.nbytes} bytes"
        step.fail("out-of-bounds", past, lanes=outside, address=address, hint=machine.shared.hint)
    odd = (offset % width != 0) & active
    if odd.any():
        off = f"{what} at an address that is not a multiple of {width}"
        step.fail("misaligned", off, lanes=odd, address=address, hint=HINTS["misaligned"])
    lanes = np.nonzero(active)
    blocks, offsets = np.broadcast_to(block, machine.shape)[lanes], np.broadcast_to(offset, machine.shape)[lanes]
    refuse_exited(step, lanes, blocks, what)
    return lanes, blocks, offsets


def refuse_exited(step: Step, lanes: tuple[Array, ...], blocks: Array, what: str) -> None:
    """Fails if one of the blocks that lanes mean has exited, other than the lanes' own."""
    alive = np.logical_or.reduce(step.machine.live, axis=(1, 2))
    gone = (blocks != lanes[0]) & ~alive[blocks]
    if gone.any():
        first = int(gone.argmax())
        chosen = np.zeros(step.machine.shape, np.bool_)
        chosen[tuple(axis[first] for axis in lanes)] = True
        peer = step.block_index(int(blocks[first]))
        step.fail("exited", f"{what} of a block that has exited", lanes=chosen, found=f"block {peer}", hint=GONE)


class ClusterMemory:
    """Loads and stores as the block's own window has them, for addresses that name a block."""

    def load(self, step: Step, address: Array, width: int, mask: BoolArray | None = None) -> Array:
        """Reads `width` bytes per executing lane, as `SharedMemory.load` does; the result has the full shape."""
        lanes, blocks, offsets = places(step, address, width, mask)
        rows = step.machine.shared.rows
        missing = rows.unwritten_at(blocks, offsets.astype(np.uint64), width)
        if missing.any():
            wrong = np.zeros(step.machine.shape, np.bool_)
            wrong[tuple(axis[missing] for axis in lanes)] = True
            what = f"{width}-byte read of the cluster's shared memory not written before"
            step.fail("uninitialised", what, lanes=wrong, address=address, hint=HINTS["uninitialised"])
        words = rows.take(blocks, offsets.astype(np.uint64), width)
        full = np.zeros(step.machine.shape, words.dtype)
        full[lanes] = words
        return values_of(full, width)

    def store(self, step: Step, address: Array, width: int, values: Array, mask: BoolArray | None = None) -> None:
        """Writes `width` bytes per executing lane; of several at one place the highest wins."""
        lanes, blocks, offsets = places(step, address, width, mask)
        over = step.machine.mbarriers.hits(blocks, offsets, width)
        if over.any():
            chosen = np.zeros(step.machine.shape, np.bool_)
            chosen[tuple(axis[over] for axis in lanes)] = True
            step.fail("mbarrier", "store over a live mbarrier of the cluster", lanes=chosen, address=address)
        words = np.broadcast_to(words_of(values, width), step.machine.shape)[lanes]
        step.machine.shared.rows.put(blocks, offsets.astype(np.uint64), width, words)


CLUSTER_MEMORY = ClusterMemory()
