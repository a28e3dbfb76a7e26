"""Tables of ablations and toolchains from a packed sweep: Markdown for people, CSV for programs.

A cell is the change of speed in percent with the ends of its 95 % interval; ``=`` means the same within the noise,
``?`` that the interval does not tell, nothing that it is faster or slower. Registers, spilled bytes and digests of
machine code are those that the wheels' manifests gave the result; a dash means that there is no such number.

Run: ``python analysis/ablation.py FILE`` and ``python analysis/toolchain.py FILE``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math

from flashladder.columns import csv_text, markdown
from flashladder.ladder.ablation import load_description
from flashladder.ladder.config import KernelConfig
from flashladder.report.tables import DASH
from flashladder.report.variants.worth import Comparison, Side
from flashladder.results.schema import BenchResult, Kernel

CSV = (
    "base", "subject", "cuda", "base_config", "config", "dtype", "seq_len", "batch", "n_heads", "worth_pct", "low_pct",
    "high_pct", "verdict", "a_a_floor_points", "same_machine_code", "base_text_sha256", "text_sha256", "base_registers",
    "registers", "base_spill_store_bytes", "spill_store_bytes", "lacking",
)  # fmt: skip
_BETTER = "A positive number: faster than through the pinned compiler."
MARKS = {"same": " =", "ambiguous": " ?", "faster": "", "slower": ""}
Table = dict[tuple[str, str, str], list[Comparison]]  # by variant, its configuration and the base's


def percent_of(log_ratio: float) -> float:
    """A log ratio of speeds as a change in percent."""
    return 100.0 * math.expm1(log_ratio)


def worth(one: Comparison) -> str:
    """``+3.2 % (+3.0 to +3.4) =``, or why there is no number."""
    if one.worth is None or one.verdict is None:
        return one.lacking
    middle, low, high = (percent_of(value) for value in (one.worth.median, one.worth.low, one.worth.high))
    return f"{middle:+.1f} % ({low:+.1f} to {high:+.1f}){MARKS[one.verdict]}"


def ablation_markdown(result: BenchResult, found: Sequence[Comparison]) -> str:
    """One table per iteration, configuration and dtype: a line per change, a column per length."""
    parts = ["# What each change is worth", _where(result)]
    for (base, config, dtype), rows in _sections(found).items():
        first = next(iter(rows.values()))[0]
        taken = first.variant.subject.sign == "-"
        how = "the change is taken back from it" if taken else "the change is added to it"
        parts += [
            f"## Iteration {base}, {dtype}: {how}",
            f"`{config}`; {_static(first.base.kernel)}. A positive number: faster with the change.",
            _table(
                rows,
                ("change", "step", "configuration", "regs", "spills"),
                lambda one: (
                    one.variant.subject.change,
                    _step(one),
                    _brief(one.variant),
                    *_numbers(one.variant.kernel),
                ),
            ),
        ]
    return "\n\n".join([*parts, _legend(found)]) + "\n"


def toolchain_markdown(result: BenchResult, found: Sequence[Comparison]) -> str:
    """One table per iteration and dtype: a line per compiler, the pinned one first, a column per length."""
    parts = ["# The same source through other compilers", _where(result)]
    for (base, config, dtype), rows in _sections(found).items():
        pinned = next(iter(rows.values()))[0].base.kernel
        parts += [
            f"## Iteration {base}, {dtype}",
            f"`{config}`; nvcc {_nvcc(pinned)}, pinned: text `{_text(pinned)}`, {_static(pinned)}. {_BETTER}",
            _table(
                rows,
                ("CUDA", "nvcc", "text", "regs", "spills"),
                lambda one: (
                    one.variant.subject.cuda,
                    _nvcc(one.variant.kernel),
                    _text(one.variant.kernel),
                    *_numbers(one.variant.kernel),
                ),
            ),
        ]
    return "\n\n".join([*parts, _legend(found)]) + "\n"


def to_csv(found: Sequence[Comparison]) -> str:
    """Every comparison in a line of its own."""
    rows: list[Sequence[object]] = []
    for one in found:
        base, variant = one.base, one.variant
        values = [] if one.worth is None else [one.worth.median, one.worth.low, one.worth.high]
        numbers = [f"{percent_of(value):.4f}" for value in values] or ["", "", ""]
        kernels = (base.kernel, variant.kernel)
        rows.append([
            base.subject.text, variant.subject.text, variant.subject.cuda, base.config, variant.config, one.dtype,
            one.shape.seq_len, one.shape.batch, one.shape.n_heads, *numbers, one.verdict or "",
            f"{percent_of(one.floor):.4f}", one.same_code, *(_field(kernel, "text_sha256") for kernel in kernels),
            *(_field(kernel, name) for name in ("registers", "spill_stores") for kernel in kernels), one.lacking,
        ])  # fmt: skip
    return csv_text(CSV, rows)


def _sections(found: Sequence[Comparison]) -> dict[tuple[str, str, str], Table]:
    """Comparisons by base, its configuration and dtype; in each by variant."""
    sections: dict[tuple[str, str, str], Table] = {}
    for one in found:
        section = sections.setdefault((one.base.subject.text, one.base.config, one.dtype), {})
        key = (one.variant.subject.text, one.variant.subject.cuda, one.variant.config)
        section.setdefault(key, []).append(one)
    return sections


def _table(rows: Table, header: tuple[str, ...], fields: Callable[[Comparison], tuple[str, ...]]) -> str:
    """A line per variant: `fields` of it, then its worth at each length, in order of the lengths."""
    lengths = sorted({(one.shape.seq_len, one.shape.batch) for row in rows.values() for one in row})
    lines = []
    for row in rows.values():
        cells = {(one.shape.seq_len, one.shape.batch): one for one in row}
        told = [worth(cells[length]) if length in cells else DASH for length in lengths]
        same = " (same machine code)" if row[0].same_code else ""
        first, *others = fields(row[0])
        lines.append([first + same, *others, *told])
    return markdown([*header, *(f"S = {length}" for length, _ in lengths)], lines, left=len(header) - 2)


def _where(result: BenchResult) -> str:
    floors = ", ".join(f"{floor:.2f} points in {dtype}" for dtype, floor in sorted(result.floors_pct.items()))
    pairs = result.settings.pairs
    return (
        f"{result.gpu.name}, driver {result.gpu.driver}, torch {result.reference.torch}; each kernel in {pairs} pairs "
        f"with FA2, ratios compared through it. A/A floor, FA2 beside itself: {floors}."
    )


def _legend(found: Sequence[Comparison]) -> str:
    """What the marks mean, and how many cells were not measured."""
    lacking = sum(one.worth is None for one in found)
    told = f" {lacking} of {len(found)} comparisons lack a measurement." if lacking else ""
    return (
        "In brackets the 95 % interval, the noise of two ratios included: the floor times the square root of two. `=`: "
        "the samples' own interval lies within that noise. `?`: neither within nor beyond. Registers are per thread, "
        "spills bytes "
        f"stored and loaded, both as ptxas reports them.{told}"
    )


def _step(one: Comparison) -> str:
    """The words of an ablation's change: ``layout linear, k_order column_major``; a step of knobs only has none."""
    change = load_description(one.variant.subject.text).change
    return ", ".join(f"{concern} {value}" for concern, value in change.items()) or "tile and loads"


def _brief(side: Side) -> str:
    return KernelConfig.parse(side.config).brief()


def _numbers(kernel: Kernel | None) -> tuple[str, str]:
    """Registers, and bytes of spill stores and loads."""
    if kernel is None or kernel.registers is None:
        return DASH, DASH
    return str(kernel.registers), f"{kernel.spill_stores}/{kernel.spill_loads}"


def _static(kernel: Kernel | None) -> str:
    registers, spills = _numbers(kernel)
    return f"{registers} registers, spills {spills}"


def _text(kernel: Kernel | None) -> str:
    return kernel.text_sha256[:12] if kernel and kernel.text_sha256 else DASH


def _nvcc(kernel: Kernel | None) -> str:
    return kernel.toolchain.get("nvidia-cuda-nvcc", DASH) if kernel else DASH


def _field(kernel: Kernel | None, name: str) -> object:
    found = getattr(kernel, name) if kernel else None
    return "" if found is None else found
