"""Derives tables from raw pairs. A bench writes them; a verifier derives them again and compares (`problems`).

`settle` decides which blocks count, both while blocks are timed and when a document is read. `incomplete` counts blocks
and pairs: a deleted block leaves tables that still follow from the rest. A time below what the GPU's peaks allow is an
error, not a record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
import itertools
import math
from operator import or_
from typing import Any

from flashladder.columns import grouped
from flashladder.errors import FlashladderError
from flashladder.ladder.gpus import gpu_key, load_gpus
from flashladder.problem import Problem
from flashladder.results.schema import A_A, BenchResult, Block, Group, Mean, Pair, Sample, Series, Settings, Summary
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
    """`pairs` per kernel, spread evenly over `blocks`; up to `extra_blocks` more if some blocks are dropped."""

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
    """Throttle-reason bits as words, lowest bit first; unknown bits as one hexadecimal number."""
    rest = bits & ~sum(REASONS)
    return [*(name for bit, name in REASONS.items() if bits & bit), *([hex(rest)] if rest else ())]


def kept(blocks: Sequence[Block]) -> int:
    """How many blocks were not dropped."""
    return sum(block.dropped is None for block in blocks)


def changed_state(samples: Sequence[Sample], ignore: int = NO_THROTTLE) -> str | None:
    """The throttle reasons that changed during a block, except the bits in `ignore`; None: the block counts."""
    bits = [sample.throttle_bits & ~ignore for sample in samples if sample.throttle_bits is not None]
    changed = reduce(or_, (earlier ^ later for earlier, later in itertools.pairwise(bits)), 0)
    return "throttle reasons changed: " + ", ".join(reason_names(changed)) if changed else None


def disturbed(block: Block) -> str | None:
    """Why a block is dropped at first: its throttle reasons changed, or the GPU waited for the host; None: neither."""
    return f"the GPU waited for the host before {block.late} launches" if block.late else changed_state(block.samples)


def settle(blocks: Sequence[Block], *, visit: int, min_pairs: int) -> tuple[Block, ...]:
    """Decides from the samples alone which blocks count.

    A block is dropped if its throttle reasons changed or the GPU waited for the host. If fewer than `min_pairs` pairs
    are left, the GPU is at its power limit, where the power-cap bit flickers, or the host is slow all the time. Then
    blocks with late launches, and blocks in which only the power-cap bit changed, count again: adjacent launches share
    the clock, and the interval shows the gaps. Blocks with thermal or hardware reasons never count.
    """
    strict = tuple(block.model_copy(update={"dropped": disturbed(block)}) for block in blocks)
    if kept(strict) * visit >= min_pairs:
        return strict
    lenient = NO_THROTTLE | SW_POWER_CAP
    return tuple(block.model_copy(update={"dropped": changed_state(block.samples, lenient)}) for block in blocks)


def incomplete(result: BenchResult) -> list[str]:
    """One line per group, block or series that lacks samples, or has more than its settings ask for."""
    processes = {process.index for process in result.processes}
    in_sweep = result.sweep is not None and result.protocol_version != "1"  # protocol 1: no more blocks than elsewhere
    extra = math.inf if result.purpose == "tune" else CELL_EXTRA_BLOCKS if in_sweep else Plan.extra_blocks
    found = []
    for group in result.groups:
        where = f"process {group.process} {group.dtype} S={group.shape.seq_len}"
        if group.process not in processes:
            found.append(f"{where}: the result does not describe this process")
        found += [f"{where}: {line}" for line in _incomplete_group(group, result.settings, extra)]
    if not result.sweep:  # a sweep's plan lists its cells
        cells = by_cell(result.groups)
        have = {cell[1:] for cell, parts in cells.items() if cell[0] == A_A and any(one.pairs for _, one in parts)}
        lost = dict.fromkeys(cell[1:] for cell in cells if cell[1:] not in have)
        found += [f"{dtype} S={shape.seq_len}: no pairs of {A_A}, the floor" for dtype, shape in lost]
    return found


def _incomplete_group(group: Group, settings: Settings, extra: float) -> Iterator[str]:
    """What is wrong with blocks and pairs; at most `extra` blocks replace dropped ones."""
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
            counts = f"{blocks.count(wrong[0])} in block {wrong[0]}" if wrong else "them in another order"
            yield f"{series.kernel}: expected {visit} pairs in each of {n} blocks, found {counts}"


TOLERANCE = 1e-9  # relative: another NumPy may round derived numbers differently


def differences(written: BenchResult, derived: BenchResult) -> list[str]:
    """One line per value that does not follow from the samples: cell, field, written value, derived value."""
    found: list[str] = []
    for name in ("groups", "summaries", "means", "floors_pct"):
        if getattr(written, name) == getattr(derived, name):
            continue
        old, new = (_labelled(one.model_dump(mode="json", include={name})[name]) for one in (written, derived))
        labels, expected = ([label for label, _ in part] for part in (old, new))
        if labels == expected:
            pairs = [(label, a, b) for (label, a), (_, b) in zip(old, new, strict=True)]
            lines = [f"{at}{field}: written {x}, derived {y}" for at, a, b in pairs for field, x, y in unequal(a, b)]
        else:
            lines = [f"{label}: not written" for label in expected if label not in labels]
            lines += [f"{label}: written, not derived" for label in labels if label not in expected]
            lines = lines or ["cells repeated or in another order"]
        found += [f"{name} does not follow from the raw samples: {line}" for line in lines]
    return found


def _labelled(part: Mapping[str, float] | Sequence[Mapping[str, Any]]) -> list[tuple[str, object]]:
    """Dumped groups, summaries, means or floors, each with the name of its cell: kernel or process, dtype, shape."""
    if isinstance(part, Mapping):
        return sorted(part.items())
    labelled: list[tuple[str, object]] = []
    for one in part:
        shape = one.get("shape")
        where = f"S={shape['seq_len']} B={shape['batch']} H={shape['n_heads']}" if shape else "all S"
        labelled.append((f"{one.get('kernel') or 'process ' + str(one['process'])} {one['dtype']} {where}", one))
    return labelled


def unequal(a: object, b: object, field: str = "") -> Iterator[tuple[str, object, object]]:
    """Path (`` field.0.field``) and both values wherever `a` and `b` differ by more than rounding."""
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


Cell = tuple[str, str, Problem]  # kernel key, dtype, shape
Timed = tuple[Floats, list[int]]  # log ratios of a cell's pairs, and the process that each is of


def derive(result: BenchResult) -> BenchResult:
    """The same result with dropped blocks, summaries, means and floors derived from its raw samples.

    In a sweep the A/A series is a cell of its own. A document without that cell has no summaries in that dtype.
    Raises `FlashladderError`: there is no A/A series, and the result is not of a sweep.
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
    ratios = {cell: found for cell, parts in cells.items() if (found := joined(parts))[0].size}
    floors = {
        dtype: floor_of([summarize(*found) for cell, found in ratios.items() if cell[:2] == (A_A, dtype)])
        for dtype in dict.fromkeys(dtype for _, dtype, _ in cells)
    }
    timed = {cell: found for cell, found in ratios.items() if cell[0] != A_A}
    summaries = tuple(
        _summary(cell, cells[cell], summarize(*found), floors[cell[1]], result.settings.min_pairs)
        for cell, found in timed.items()
    )
    floors_pct = {dtype: percent(floor) - 100.0 for dtype, floor in floors.items()}
    update = {"groups": groups, "summaries": summaries, "means": _means(timed), "floors_pct": floors_pct}
    return result.model_copy(update=update)


def by_cell(groups: Sequence[Group]) -> dict[Cell, list[tuple[Group, Series]]]:
    """The series of each kernel, dtype and shape over all processes, in a fixed order."""
    parts = ((group, series) for group in groups for series in group.series)
    cells = grouped(parts, lambda part: (part[1].kernel, part[0].dtype, part[0].shape))
    order = sorted(
        cells,
        key=lambda cell: (cell[1] != "fp16", cell[0], cell[2].seq_len, cell[2].batch, cell[2].n_heads, cell[2].kind),
    )
    return {cell: cells[cell] for cell in order}


def kept_pairs(group: Group, series: Series) -> list[Pair]:
    """The pairs in blocks that count."""
    dropped = {block.index for block in group.blocks if block.dropped is not None}
    return [pair for pair in series.pairs if pair.block not in dropped]


def joined(parts: Sequence[tuple[Group, Series]]) -> Timed:
    """Log ratios of all processes, and the process of each; empty where no block counts."""
    timed = [(group.process, pair) for group, series in parts for pair in kept_pairs(group, series)]
    ratios = log_ratios([pair.reference_us for _, pair in timed], [pair.kernel_us for _, pair in timed])
    return ratios, [process for process, _ in timed]


def _summary(
    cell: Cell, parts: Sequence[tuple[Group, Series]], found: LogSummary, floor: float, min_pairs: int
) -> Summary:
    kernel, dtype, shape = cell
    pairs = [pair for part in parts for pair in kept_pairs(*part)]
    reference_us, kernel_us = (median([getattr(one, name) for one in pairs]) for name in ("reference_us", "kernel_us"))
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
        sm_clock_mhz=median(clocks) if clocks else None,
    )


def waited_for_host(parts: Sequence[tuple[Group, Series]]) -> bool:
    """Whether the GPU waited for the host in most of a cell's blocks that count.

    The times then include how long the host took to queue a launch, and cannot be corrected. One late launch makes the
    whole block late, for all subjects in it.
    """
    counted = [block for group, _ in parts for block in group.blocks if block.dropped is None]
    return 2 * sum(bool(block.late) for block in counted) > len(counted)


def cells_of_host_time(groups: Sequence[Group]) -> frozenset[Cell]:
    """The cells whose times the host determined, not the GPU (`waited_for_host`)."""
    return frozenset(cell for cell, timed in by_cell(groups).items() if waited_for_host(timed))


def _means(timed: Mapping[Cell, Timed]) -> tuple[Mean, ...]:
    means = []
    for kernel, dtype in dict.fromkeys(cell[:2] for cell in timed):
        cells = [cell for cell in timed if cell[:2] == (kernel, dtype)]
        found, lengths = harmonic_summary([timed[cell] for cell in cells]), tuple(shape.seq_len for *_, shape in cells)
        pct, low, high = map(percent, (found.median, found.low, found.high))
        means.append(Mean(kernel=kernel, dtype=dtype, seq_lens=lengths, pct=pct, pct_low=low, pct_high=high))
    return tuple(means)


def fastest_possible_us(shape: Problem, gpu_name: str) -> float | None:
    """The least microseconds that a kernel needs: max(FLOPs / peak, bytes / bandwidth) of ``configs/gpus/*.yaml``.

    The compute peak is at the driver's highest clock, and the same for fp16 and bf16. None: the GPU has no file there.
    """
    key = gpu_key(gpu_name)
    if key is None:
        return None
    peaks, names = load_gpus()[key].peaks, ("fp16_tensor_rate", "sms", "max_clock", "memory_bandwidth")
    if missing := [name for name in names if name not in peaks]:
        where = f"configs/gpus/{key}.yaml"
        raise FlashladderError("the GPU's description lacks a value", where=where, expected=missing[0])
    rate, n_sm, clock_mhz, gb_per_s = (peaks[name].value for name in names)  # FLOP/clock/SM, SMs, MHz, GB/s
    return max(shape.flops / (rate * n_sm * clock_mhz * 1e6), shape.input_bytes / (gb_per_s * 1e9)) * 1e6


def too_fast(where: str, us: float, shape: Problem, gpu_name: str) -> list[str]:
    """A line about a launch that took less time than the GPU's peaks allow; else nothing."""
    least = fastest_possible_us(shape, gpu_name) or 0.0
    return [f"{where}: {us:.1f} us is below the {least:.1f} us that the GPU's peaks allow"] if us < least else []


def problems(result: BenchResult) -> list[str]:
    """What is wrong with a result: impossible times, wrong outputs, missing samples, tables that differ from them."""
    found, flushed, least = [], result.settings.flush_bytes, 2 * result.gpu.l2_bytes
    if flushed < least:  # part of the L2 would stay warm (rule 3 of the measurement protocol)
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
