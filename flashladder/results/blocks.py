"""Which blocks of a timing count, and whether all of its blocks and pairs are there.

The timer asks while blocks are timed; a reader asks again of the document, so both use the same rules. A block that was
taken out together with its pairs leaves tables that follow from the rest, so blocks and pairs are counted here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
import itertools

from flashladder.results.schema import A_A, BenchResult, Block, Group, Sample, Series, Settings

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


FIRST_PROTOCOL = "1"  # in which a sweep's cells had no more blocks than others


def incomplete(result: BenchResult) -> list[str]:
    """One line per group, block or series whose samples are not those that its settings ask for."""
    processes = {process.index for process in result.processes}
    own = result.sweep is not None and result.protocol_version != FIRST_PROTOCOL
    usual = CELL_EXTRA_BLOCKS if own else Plan.extra_blocks
    extra = None if result.purpose == "tune" else usual
    found = []
    for group in result.groups:
        where = f"process {group.process} {group.dtype} S={group.shape.seq_len}"
        if group.process not in processes:
            found.append(f"{where}: the result does not describe this process")
        lines = (_too_few(group, result.settings.blocks, extra), *_of_group(group, result.settings))
        found += [f"{where}: {line}" for line in lines if line]
    return found if result.sweep else found + _without_floor(result.groups)


def _without_floor(groups: Sequence[Group]) -> list[str]:
    """Dtypes and shapes at which the reference was not timed beside itself; a sweep's plan tells by itself."""
    every = dict.fromkeys((group.dtype, group.shape) for group in groups)
    have = {(one.dtype, one.shape) for one in groups for series in one.series if series.kernel == A_A and series.pairs}
    return [
        f"{dtype} S={shape.seq_len}: no pairs of {A_A}, the floor"
        for dtype, shape in every
        if (dtype, shape) not in have
    ]


def _too_few(group: Group, wanted: int, extra: int | None) -> str | None:
    """What is wrong with the number of blocks; `extra` at most are timed in place of dropped ones, None: any number."""
    n = len(group.blocks)
    if [block.index for block in group.blocks] != list(range(n)):
        return f"blocks: expected 0 to {n - 1}, found {', '.join(str(block.index) for block in group.blocks)}"
    counted = sum(disturbed(block) is None for block in group.blocks)
    replaced = extra is None or counted >= wanted or n == wanted + extra
    if n >= wanted and replaced and (extra is None or n <= wanted + extra):
        return None
    more = "" if extra is None else f", and up to {wanted + extra} until {wanted} count"
    return f"blocks: expected at least {wanted}{more}, found {n}, of which {counted} count"


def _of_group(group: Group, settings: Settings) -> Iterator[str]:
    timed = sorted(series.kernel for series in group.series if series.pairs)
    for block in group.blocks:
        if len(block.samples) != 2:
            yield f"block {block.index}: expected 2 looks at the GPU, found {len(block.samples)}"
        if sorted(block.order) != timed:
            odd = sorted(set(block.order) ^ set(timed)) or ["one of them twice"]
            yield f"block {block.index}: its order and the series with pairs are not the same kernels: {odd[0]}"
    indices = [block.index for block in group.blocks]
    for series in group.series:
        yield from _of_series(series, indices, settings)


def _of_series(series: Series, indices: list[int], settings: Settings) -> Iterator[str]:
    """A kernel that was wrong before has no pairs; every other has equally many in each block, one block at a time."""
    visit = -(-settings.pairs // settings.blocks)
    if not series.pairs and series.before and not series.before.ok:
        return
    blocks = [pair.block for pair in series.pairs]
    if blocks != [index for index in indices for _ in range(visit)]:
        wrong = [index for index in sorted({*indices, *blocks}) if blocks.count(index) != visit or index not in indices]
        told = f"{blocks.count(wrong[0])} in block {wrong[0]}" if wrong else "them in another order"
        yield f"{series.kernel}: expected {visit} pairs in each of {len(indices)} blocks, found {told}"
