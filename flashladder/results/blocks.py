"""Which blocks of a timing count: those in which nothing but the kernels changed, by what was seen of the GPU.

Why apart from the timer: it is asked while blocks are timed, and again whenever a document is read, by the same words.
Nothing to run here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
import itertools

from flashladder.results.schema import Block, Sample

GPU_IDLE = 0x1
SW_POWER_CAP = 0x4
REASONS = {
    GPU_IDLE: "idle",
    0x2: "application clocks",
    SW_POWER_CAP: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "reliability",
}  # bits of nvmlDeviceGetCurrentClocksEventReasons
NO_THROTTLE = GPU_IDLE | 0x2 | 0x100  # idling and chosen clocks say nothing about the load
CELL_EXTRA_BLOCKS = 12  # of a sweep's cell, whose blocks are short: a busy host disturbs several in a row


@dataclass(frozen=True)
class Plan:
    """How many pairs per kernel: `blocks` blocks of equally many, up to `extra_blocks` more when some are dropped."""

    pairs: int = 24
    blocks: int = 8
    extra_blocks: int = 4
    min_pairs: int = 20
    input_sets: int = 3
    seed: int = 0

    @property
    def visit(self) -> int:
        """Pairs of one kernel in one block."""
        return -(-self.pairs // self.blocks)


def reason_names(bits: int) -> tuple[str, ...]:
    """Throttle-reason bits as words, lowest bit first; bits that nobody named come as hex."""
    known = [name for bit, name in REASONS.items() if bits & bit]
    rest = bits & ~sum(REASONS)
    return (*known, hex(rest)) if rest else tuple(known)


def kept(blocks: Sequence[Block]) -> int:
    """How many blocks were not dropped."""
    return sum(block.dropped is None for block in blocks)


def changed_state(samples: Sequence[Sample], ignore: int = NO_THROTTLE) -> str | None:
    """Why a block is dropped: the throttle reasons (without the bits in `ignore`) that came or went during it."""
    bits = [sample.throttle_bits & ~ignore for sample in samples if sample.throttle_bits is not None]
    changed = 0
    for earlier, later in itertools.pairwise(bits):
        changed |= earlier ^ later
    return "throttle reasons changed: " + ", ".join(reason_names(changed)) if changed else None


def disturbed(block: Block) -> str | None:
    """Why a block is dropped at first: the GPU's throttle reasons changed during it, or it waited for the host."""
    if block.late:
        return f"the GPU waited for the host before {block.late} launches"
    return changed_state(block.samples)


def settle(blocks: Sequence[Block], *, visit: int, min_pairs: int) -> tuple[Block, ...]:
    """Decides from the samples alone which blocks count; the same blocks always give the same answer.

    A block whose throttle reasons changed, or in which the GPU waited for the host, is dropped. Where that leaves fewer
    than `min_pairs` pairs, the card works at the edge of its power limit and the power-cap bit flickers, or the host is
    slow throughout: then blocks in which only that bit changed and blocks with late launches count again (adjacent
    launches share the clock, and the interval shows the gaps), those with thermal or hardware reasons never.
    """
    strict = tuple(block.model_copy(update={"dropped": disturbed(block)}) for block in blocks)
    if kept(strict) * visit >= min_pairs:
        return strict
    lenient = NO_THROTTLE | SW_POWER_CAP
    return tuple(block.model_copy(update={"dropped": changed_state(block.samples, lenient)}) for block in blocks)
