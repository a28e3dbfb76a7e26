"""From raw pairs to tables: what a bench writes, and what a verifier derives again from the samples and compares.

A committed table must follow from its raw samples, so one function makes both (`derive`), and `problems` compares.
Which blocks count is decided here too (`settle`), for the timer while blocks are timed and for readers of the document;
a block that was taken out together with its pairs leaves tables that follow from the rest, so both are counted.
A time below what the GPU's peaks allow is an error, not a record. `invoke verify PATH` asks for the problems of a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
import itertools
import math
from operator import or_
from typing import Any

import numpy as np

from flashladder.errors import FlashladderError
from flashladder.ladder.gpus import gpu_key, load_gpus
from flashladder.problem import Shape
from flashladder.results.schema import A_A, BenchResult, Block, Group, Mean, Sample, Series, Settings, Summary
from flashladder.results.statistics import (
    Floats,
    LogSummary,
    floor_of,
    harmonic_summary,
    log_ratios,
    median,
    percent,
    summarize,
    verdict,
)

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


def reason_names(bits: int) -> list[str]:
    """Throttle-reason bits as words, lowest bit first; bits that nobody named come as hex."""
    rest = bits & ~sum(REASONS)
    return [*(name for bit, name in REASONS.items() if bits & bit), *([hex(rest)] if rest else ())]


def kept(blocks: Sequence[Block]) -> int:
    """How many blocks were not dropped."""
    return sum(block.dropped is None for block in blocks)


def changed_state(samples: Sequence[Sample], ignore: int = NO_THROTTLE) -> str | None:
    """Why a block is dropped: the throttle reasons (without the bits in `ignore`) that came or went during it."""
    bits = [sample.throttle_bits & ~ignore for sample in samples if sample.throttle_bits is not None]
    changed = reduce(or_, (earlier ^ later for earlier, later in itertools.pairwise(bits)), 0)
    return "throttle reasons changed: " + ", ".join(reason_names(changed)) if changed else None


def disturbed(block: Block) -> str | None:
    """Why a block is dropped at first: the GPU's throttle reasons changed during it, or it waited for the host."""
    return f"the GPU waited for the host before {block.late} launches" if block.late else changed_state(block.samples)


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
    extra = math.inf if result.purpose == "tune" else CELL_EXTRA_BLOCKS if own else Plan.extra_blocks
    found = []
    for group in result.groups:
        where = f"process {group.process} {group.dtype} S={group.shape.seq_len}"
        if group.process not in processes:
            found.append(f"{where}: the result does not describe this process")
        found += [f"{where}: {line}" for line in _of_group(group, result.settings, extra)]
    if not result.sweep:  # whose plan tells by itself
        cells = by_cell(result.groups)
        have = {cell[1:] for cell, parts in cells.items() if cell[0] == A_A and any(one.pairs for _, one in parts)}
        lost = dict.fromkeys(cell[1:] for cell in cells if cell[1:] not in have)
        found += [f"{dtype} S={shape.seq_len}: no pairs of {A_A}, the floor" for dtype, shape in lost]
    return found


def _of_group(group: Group, settings: Settings, extra: float) -> Iterator[str]:
    """What is wrong with blocks and pairs; `extra` blocks at most are timed in place of dropped ones."""
    indices, wanted = [block.index for block in group.blocks], settings.blocks
    n, counted = len(indices), sum(disturbed(block) is None for block in group.blocks)
    if indices != list(range(n)):
        yield f"blocks: expected 0 to {n - 1}, found {', '.join(map(str, indices))}"
    elif not wanted <= n <= wanted + extra or (counted < wanted and n < wanted + extra < math.inf):
        more = "" if extra == math.inf else f", and up to {wanted + extra} until {wanted} count"
        yield f"blocks: expected at least {wanted}{more}, found {n}, of which {counted} count"
    timed = sorted(series.kernel for series in group.series if series.pairs)
    for block in group.blocks:
        if len(block.samples) != 2:
            yield f"block {block.index}: expected 2 looks at the GPU, found {len(block.samples)}"
        if sorted(block.order) != timed:
            odd = sorted(set(block.order) ^ set(timed)) or ["one of them twice"]
            yield f"block {block.index}: its order and the series with pairs are not the same kernels: {odd[0]}"
    visit = -(-settings.pairs // settings.blocks)
    for series in group.series:
        blocks = [pair.block for pair in series.pairs]
        wrong_before = not blocks and series.before and not series.before.ok
        if not wrong_before and blocks != [index for index in indices for _ in range(visit)]:
            wrong = [i for i in sorted({*indices, *blocks}) if blocks.count(i) != visit or i not in indices]
            told = f"{blocks.count(wrong[0])} in block {wrong[0]}" if wrong else "them in another order"
            yield f"{series.kernel}: expected {visit} pairs in each of {n} blocks, found {told}"


PEAKS = ("fp16_tensor_rate", "sms", "max_clock", "memory_bandwidth")  # FLOP/clock/SM, SMs, MHz, GB/s
TOLERANCE = 1e-9  # relative: re-derived numbers may differ by the rounding of another NumPy


def differences(written: BenchResult, derived: BenchResult) -> list[str]:
    """One line per value that does not follow from the samples: cell, field, as written, as derived."""
    found: list[str] = []
    for name in ("groups", "summaries", "means", "floors_pct"):
        if getattr(written, name) == getattr(derived, name):
            continue
        old, new = (_labelled(one.model_dump(mode="json", include={name})[name]) for one in (written, derived))
        expected, labels = dict(new), [label for label, _ in old]
        lines = [f"{label}: not written" for label in expected if label not in labels]
        lines += [f"{label}: written, not derived" for label in labels if label not in expected]
        if not lines and labels != list(expected):
            lines.append("cells repeated or in another order")
        elif not lines:
            pairs = [(label, one, expected[label]) for label, one in old]
            lines = [f"{at}{field}: written {x}, derived {y}" for at, a, b in pairs for field, x, y in unequal(a, b)]
        found += [f"{name} does not follow from the raw samples: {line}" for line in lines]
    return found


def _labelled(part: Mapping[str, float] | Sequence[Mapping[str, Any]]) -> list[tuple[str, object]]:
    """Dumped groups, summaries, means or floors, each beside its cell: kernel or process, dtype, shape."""
    if isinstance(part, Mapping):
        return sorted(part.items())
    labelled: list[tuple[str, object]] = []
    for one in part:
        shape = one.get("shape")
        where = f"S={shape['seq_len']} B={shape['batch']} H={shape['n_heads']}" if shape else "all S"
        labelled.append((f"{one.get('kernel') or 'process ' + str(one['process'])} {one['dtype']} {where}", one))
    return labelled


def unequal(a: object, b: object, field: str = "") -> Iterator[tuple[str, object, object]]:
    """Values that differ by more than rounding: `` field.0.field``, and both."""
    if isinstance(a, dict) and isinstance(b, dict):  # of one model: the same keys
        for key in a:
            yield from unequal(a[key], b[key], f"{field}.{key}" if field else f" {key}")
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from unequal(x, y, f"{field}.{index}")
    elif isinstance(a, float) and isinstance(b, float):
        if not math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            yield field, a, b
    elif a != b:
        yield field, a, b


Cell = tuple[str, str, Shape]  # kernel key, dtype, shape
Timed = tuple[Floats, list[int]]  # log ratios of a cell's pairs, and the process that each is of


def derive(result: BenchResult) -> BenchResult:
    """The same result with dropped blocks, summaries, means and floors derived from its raw samples.

    Raises:
        FlashladderError: there is no A/A series. In a sweep that is a cell of its own: one that lacks it, for it failed
            or for this is the record of another cell, has samples and no summaries in that dtype.
    """
    visit = -(-result.settings.pairs // result.settings.blocks)
    groups = tuple(
        group.model_copy(update={"blocks": settle(group.blocks, visit=visit, min_pairs=result.settings.min_pairs)})
        for group in result.groups
    )
    cells = by_cell(groups)
    if result.sweep is not None:
        known = {dtype for kernel, dtype, _ in cells if kernel == A_A}
        cells = {cell: parts for cell, parts in cells.items() if cell[1] in known}
    ratios = {cell: joined(parts) for cell, parts in cells.items()}
    a_a: dict[str, list[LogSummary]] = {dtype: [] for _, dtype, _ in ratios}
    for (kernel, dtype, _), found in ratios.items():
        if kernel == A_A and found[0].size:
            a_a[dtype].append(summarize(*found))
    floors = {dtype: floor_of(own) for dtype, own in a_a.items()}
    timed = {cell: found for cell, found in ratios.items() if cell[0] != A_A and found[0].size}
    summaries = tuple(
        _summary(cell, cells[cell], summarize(*found), floors[cell[1]], result.settings.min_pairs)
        for cell, found in timed.items()
    )
    floors_pct = {dtype: percent(floor) - 100.0 for dtype, floor in floors.items()}
    update = {"groups": groups, "summaries": summaries, "means": _means(timed), "floors_pct": floors_pct}
    return result.model_copy(update=update)


def by_cell(groups: Sequence[Group]) -> dict[Cell, list[tuple[Group, Series]]]:
    """Series of one kernel, dtype and shape together, over all processes, in a fixed order."""
    cells: dict[Cell, list[tuple[Group, Series]]] = {}
    for group in groups:
        for series in group.series:
            cells.setdefault((series.kernel, group.dtype, group.shape), []).append((group, series))
    order = sorted(
        cells, key=lambda cell: (cell[1] != "fp16", cell[0], cell[2].seq_len, cell[2].batch, cell[2].n_heads)
    )
    return {cell: cells[cell] for cell in order}


def kept_pairs(group: Group, series: Series) -> list[tuple[float, float]]:
    """Times of pairs in blocks that count: (reference, kernel) in microseconds."""
    dropped = {block.index for block in group.blocks if block.dropped is not None}
    return [(pair.reference_us, pair.kernel_us) for pair in series.pairs if pair.block not in dropped]


def joined(parts: Sequence[tuple[Group, Series]]) -> Timed:
    """Log ratios of all processes, and the process of each."""
    pairs = [(group.process, *pair) for group, series in parts for pair in kept_pairs(group, series)]
    if not pairs:
        return np.empty(0), []
    clusters, reference_us, kernel_us = zip(*pairs, strict=True)
    return log_ratios(reference_us, kernel_us), list(clusters)


def _summary(
    cell: Cell, parts: Sequence[tuple[Group, Series]], found: LogSummary, floor: float, min_pairs: int
) -> Summary:
    kernel, dtype, shape = cell
    times = np.array([pair for part in parts for pair in kept_pairs(*part)])
    reference_us, kernel_us = median(times[:, 0]), median(times[:, 1])
    blocks = [block for group, _ in parts for block in group.blocks]
    clocks = [s.sm_clock_mhz for b in blocks if b.dropped is None for s in b.samples if s.sm_clock_mhz is not None]
    return Summary(
        kernel=kernel,
        dtype=dtype,
        shape=shape,
        pct=percent(found.median),
        pct_low=percent(found.low),
        pct_high=percent(found.high),
        verdict=verdict(found, floor, enough=min_pairs),
        n_pairs=found.n,
        dropped_share=sum(block.dropped is not None for block in blocks) / len(blocks),
        readmitted_share=sum(block.dropped is None and disturbed(block) is not None for block in blocks) / len(blocks),
        kernel_us=kernel_us,
        reference_us=reference_us,
        tflops=shape.flops / kernel_us / 1e6,
        reference_tflops=shape.flops / reference_us / 1e6,
        sm_clock_mhz=median(np.array(clocks, dtype=np.float64)) if clocks else None,
    )


def waited_for_host(parts: Sequence[tuple[Group, Series]]) -> bool:
    """Whether the GPU waited for the host before launches of most blocks that count of a cell.

    Its times then tell how long the host took to queue a launch; nobody can take that out of them. A block is late by
    the first of its launches that was, so that each of several subjects in turn counts as late with the slowest.
    """
    counted = [block for group, _ in parts for block in group.blocks if block.dropped is None]
    return 2 * sum(bool(block.late) for block in counted) > len(counted)


def cells_of_host_time(groups: Sequence[Group]) -> frozenset[Cell]:
    """The cells whose times tell the host's, not the GPU's (`waited_for_host`)."""
    return frozenset(cell for cell, timed in by_cell(groups).items() if waited_for_host(timed))


def _means(timed: Mapping[Cell, Timed]) -> tuple[Mean, ...]:
    by_kernel: dict[tuple[str, str], dict[Cell, Timed]] = {}
    for cell, ratios in timed.items():
        by_kernel.setdefault(cell[:2], {})[cell] = ratios
    means = []
    for (kernel, dtype), cells in by_kernel.items():
        found, lengths = harmonic_summary(list(cells.values())), tuple(shape.seq_len for *_, shape in cells)
        pct, low, high = map(percent, (found.median, found.low, found.high))
        means.append(Mean(kernel=kernel, dtype=dtype, seq_lens=lengths, pct=pct, pct_low=low, pct_high=high))
    return tuple(means)


def fastest_possible_us(shape: Shape, gpu_name: str) -> float | None:
    """Microseconds below which no kernel can be: max(FLOPs / peak, bytes / bandwidth) of ``configs/gpus/*.yaml``.

    The compute peak is that at the highest clock the driver offers (fp16 and bf16 have the same rate). None for a GPU
    without a file there.
    """
    key = gpu_key(gpu_name)
    if key is None:
        return None
    peaks = load_gpus()[key].peaks
    if missing := [name for name in PEAKS if name not in peaks]:
        where = f"configs/gpus/{key}.yaml"
        raise FlashladderError("the GPU's description lacks a value", where=where, expected=missing[0])
    rate, n_sm, clock_mhz, gb_per_s = (peaks[name].value for name in PEAKS)
    return max(shape.flops / (rate * n_sm * clock_mhz * 1e6), shape.input_bytes / (gb_per_s * 1e9)) * 1e6


def too_fast(where: str, us: float, shape: Shape, gpu_name: str) -> list[str]:
    """A line about a launch that took less than the GPU's peaks allow."""
    least = fastest_possible_us(shape, gpu_name) or 0.0
    return [f"{where}: {us:.1f} us is below the {least:.1f} us that the GPU's peaks allow"] if us < least else []


def problems(result: BenchResult) -> list[str]:
    """What is wrong with a result: impossible times, wrong outputs, missing samples, tables that do not follow."""
    found, flushed, least = [], result.settings.flush_bytes, 2 * result.gpu.l2_bytes
    if flushed < least:  # part of the L2 stays as it was (rule 3 of the measurement protocol)
        found.append(f"settings.flush_bytes: expected at least {least}, twice the L2, found {flushed}")
    found += incomplete(result)
    for group in result.groups:
        for series in group.series:
            where = f"{series.kernel} {group.dtype} S={group.shape.seq_len}"
            best = min((min(pair.reference_us, pair.kernel_us) for pair in series.pairs), default=math.inf)
            found += too_fast(where, best, group.shape, result.gpu.name)
            if series.kernel != A_A:
                looks = {"before": series.before, "after": series.after}
                found += [f"{where}: not correct {when} timing" for when, one in looks.items() if not (one and one.ok)]
                if series.kernel not in result.kernels and series.kernel not in result.references:
                    found.append(f"{where}: the result does not say which machine code this is")
    return found + differences(result, derive(result))
