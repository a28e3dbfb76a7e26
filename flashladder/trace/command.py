"""``invoke trace N``: compares each intermediate of an iteration's softmax with PyTorch, and names the first wrong one.

A wrong O only shows that there is a mistake. S, m, P, l and O of each KV block show which step makes it, in which warp,
row and column. They come from the shipped PTX on this CPU. On a GPU ``--sanitize`` adds compute-sanitizer's four tools.

Run: ``invoke trace 7``. Exit code: 0 all within rounding, 1 a difference, 2 it could not run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
import math
import re
from typing import TYPE_CHECKING

from flashladder.arguments import within
from flashladder.build.compile import ptx_for
from flashladder.columns import table, terminal_width, told_on_terminal
from flashladder.emulate.command import LaunchOptions, judged, require_fits
from flashladder.errors import FlashladderError
from flashladder.files import dump_json, relative
from flashladder.ladder.ablation import load_description
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.selection import one_config
from flashladder.names import INTERMEDIATES
from flashladder.problem import Problem
from flashladder.trace.recorder import QUAD, STATISTICS

if TYPE_CHECKING:
    from flashladder.trace.compare import Comparison, Trace, Where

SCHEMA_VERSION = 1
MOST_BLOCKS = 6  # KV blocks of which all rows are shown
MOST_RANGES = 4
OUTPUTS = ("O_rescaled", "O", "out")  # intermediates with d_head columns
WINDOW = 8  # shown rows and columns of values
HEAD = ("KV block", "", "max error", "RMS error", "of allowed", "from fp64", "beyond", "warp", "row", "column")


TOLD = {
    "S": ("Q K^T, the accumulators after the last k-tile",
          "Q K^T is wrong: look at which rows and columns of Q and K reach the tensor cores"),
    "S_scaled": ("S scale, where the kernel multiplies before it takes the maximum",
                 "S is right there: look at the scale"),
    "m": ("running maximum of the row; from iteration 17 on the one in use, in powers of two",
          "S and the m before are right there: look at the maximum over the row, its exchange, or the vote"),
    "P": ("exp((S - m) scale) in fp32",
          "S and m are right there: look at the scale, the subtraction and the exponential"),
    "P16": ("P as the tensor cores multiply it",
            "P is right there: look at its conversion to 16 bits"),
    "l": ("running sum of P, each lane's columns",
          "P, m and the l before are right there: look at the sum over the row and its correction to the new maximum"),
    "O_rescaled": ("O brought to the new maximum, before P V is added",
                   "m and the O before are right there: look at O's correction to the new maximum, or how O begins"),
    "O": ("O after P V, not yet divided by l",
          "P and the rescaled O are right there: look at which rows and columns of V reach the tensor cores"),
    "out": ("O / l in 16 bits, as it is stored",
            "O and l are right there: look at l's sum over the quad, the division, the rounding, the store"),
}  # fmt: skip
"""The meaning of each intermediate, and where to look if it is the first that differs."""


def render(found: Trace) -> str:
    """The screen: head, table, verdict."""
    shape = found.shape
    order = "last to first" if found.backward else "first to last"
    size = f"batch {shape.batch}, seq_len {shape.seq_len}, heads {shape.n_heads}, d_head {shape.d_head}"
    head = [
        f"iteration {found.iteration.description}: {found.iteration.title}",
        found.config.short_form(),
        f"{size}: {len(found.ctas)} CTAs, {len(found.steps)} KV blocks of {found.config.B_c} keys, {order}",
        relative(ptx_for(found.iteration, found.config).ptx),
    ]
    return "\n".join([*head, "", *_table(found), "", *verdict(found)])


def _table(found: Trace) -> list[str]:
    """A row per KV block and intermediate; of many KV blocks, only wrong ones, the first and the last."""
    steps = sorted({one.step for one in found.comparisons if one.block is not None})
    wrong = {one.step for one in found.comparisons if one.first is not None}
    shown = set(steps) if len(steps) <= MOST_BLOCKS else {*sorted(wrong)[: MOST_BLOCKS - 2], steps[0], steps[-1]}
    rows: list[Sequence[str]] = [HEAD]
    rows += [_row(one) for one in found.comparisons if one.block is None or one.step in shown]
    lines = table(rows, terminal_width(), right=range(2, len(HEAD)))
    hidden = [step for step in steps if step not in shown]
    if hidden:
        state = "some with differences" if wrong & set(hidden) else "all within what is allowed"
        lines.append(f"... {len(hidden)} more KV blocks, {state}; --json has them")
    return lines


def _row(one: Comparison) -> Sequence[str]:
    """Name, errors, number of elements beyond their bounds, and the element with the largest share of its bound."""
    block = "end" if one.block is None else str(one.block) if one.name == INTERMEDIATES[0] else ""
    errors = f"{one.max_error:.1e}", f"{one.rms:.1e}", f"{one.share:.2g}", f"{one.drift:.1e}"
    column = "" if one.worst.column is None else str(one.worst.column)
    return block, one.name, *errors, str(one.n_beyond or "-"), str(one.worst.warp), str(one.worst.row), column


def verdict(found: Trace) -> list[str]:
    """The first wrong element and its error, the number of wrong elements, their maker, and where to look."""
    from flashladder.trace.compare import lookalike

    counted = len(found.steps) == found.n_expected
    lines = [] if counted else [f"{len(found.steps)} KV blocks are visited, and there are {found.n_expected}"]
    wrong = found.first
    if wrong is None or wrong.first is None:
        return [*lines, "no difference beyond rounding" if counted else "no other difference"]
    first = wrong.first
    what, suspects = TOLD[wrong.name]
    off, (x, y, z) = abs(first.found - first.expected), first.cta
    when = "after the last KV block"
    if wrong.block is not None:
        begin, end = (block * found.config.B_c for block in (wrong.block, wrong.block + 1))
        when = f"in KV block {wrong.block} (keys {begin} to {end - 1}, visit {wrong.step + 1})"
    lane = "" if first.lane is None else f" lane {first.lane}"
    column = "" if first.column is None else f", column {first.column}"
    holder = f"CTA ({x}, {y}, {z}) warp {first.warp}{lane}, row {first.row}{column}"
    numbers = f"found {first.found:.7g}, expected {first.expected:.7g}, off by {off:.1e}, allowed {first.allowed:.1e}"
    ctas, rows, columns = (sorted(set(axis.tolist())) for axis in wrong.beyond.nonzero(as_tuple=True))
    extent = f"{wrong.n_beyond} of {wrong.beyond.numel()} differ, in {len(ctas)} of {len(found.ctas)} CTAs"
    inside = "lanes of the quad" if wrong.name in STATISTICS else "columns"
    lines += [
        f"first difference: {wrong.name} {when}, {holder} (query {first.query}, head {y}, sample {z}): {numbers}",
        f"{wrong.name} is {what}; {extent}, rows {ranges(rows)}, {inside} {ranges(columns)}",
    ]
    if first.maker is not None:
        lines.append(f"made by {first.maker.place}")
    if same := lookalike(found, wrong):
        lines.append(same)
    return [*lines, suspects]


def ranges(numbers: Iterable[int]) -> str:
    """Sorted numbers as ranges, ``0-7, 16-23``, at most `MOST_RANGES` of them."""
    words = []
    for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):  # equal within a range
        span = [number for _, number in group]
        words.append(f"{span[0]}-{span[-1]}" if len(span) > 1 else str(span[0]))
    more = f" and {len(words) - MOST_RANGES} more" if len(words) > MOST_RANGES else ""
    return ", ".join(words[:MOST_RANGES]) + more


def values(found: Trace, chosen: Comparison, row: int, column: int) -> str:
    """The kernel's and the expected values of the first wrong CTA, from (row, column) on."""
    cta = 0 if chosen.first is None else found.ctas.index(chosen.first.cta)
    _, n_rows, n_columns = chosen.held.shape
    rows = range(row, min(row + WINDOW, n_rows))
    columns = range(column, min(column + WINDOW, n_columns))
    across = "lane" if chosen.name in STATISTICS else "column"
    parts = []
    for title, numbers in (("kernel", chosen.held), ("expected", chosen.expected.numpy())):
        cells = [[f"row \\ {across}", *map(str, columns)]]
        cells += [[str(one), *(f"{float(numbers[cta, one, other]):.6g}" for other in columns)] for one in rows]
        block = "after the last KV block" if chosen.block is None else f"KV block {chosen.block}"
        parts.append(f"{chosen.name} of CTA {found.ctas[cta]}, {block}, {title}")
        parts += table(cells, None, right=range(len(cells[0])))
    return "\n".join(parts)


def as_json(found: Trace, contents: str, seed: int) -> str:
    """All comparisons and the verdict."""
    wrong = found.first
    facts = {
        "schema_version": SCHEMA_VERSION,
        "iteration": found.iteration.description,
        "config": found.config.short_form(),
        "shape": found.shape.model_dump(),
        "input": contents,
        "seed": seed,
        "ptx": relative(ptx_for(found.iteration, found.config).ptx),
        "kv_blocks": {"visited": len(found.steps), "expected": found.n_expected, "backward": found.backward},
        "right": found.passed,
        "verdict": verdict(found),
        "first_difference": None if wrong is None else _facts(wrong),
        "comparisons": [_facts(one) for one in found.comparisons],
    }
    return dump_json(facts).rstrip()


def _facts(one: Comparison) -> dict[str, object]:
    errors = {"max_error": one.max_error, "rms_error": one.rms, "of_allowed": one.share, "from_fp64": one.drift}
    return {
        "visit": one.step,
        "block": one.block,
        "what": one.name,
        **{name: _number(value) for name, value in errors.items()},
        "elements": one.beyond.numel(),
        "beyond": one.n_beyond,
        "worst": _place(one.worst),
        "first": None if one.first is None else _place(one.first),
    }


def _place(where: Where) -> dict[str, object]:
    facts = {name: _number(one) if isinstance(one, float) else one for name, one in vars(where).items()}
    del facts["maker"]
    maker, source = where.maker, where.maker and where.maker.source
    made = {"instruction": maker and str(maker), "ptx_line": maker and maker.line, "source": source and source.chain}
    return {**facts, **made}


def _number(value: float) -> float | None:
    """A number as JSON, which has neither NaN nor infinity."""
    return value if math.isfinite(value) else None


_AT = re.compile(r"(\d{1,9}),(\d{1,9})", re.ASCII)


@dataclass(frozen=True)
class Options(LaunchOptions):
    """The options of ``invoke trace``; tasks.py explains each."""

    input: str = "normal"
    show: str | None = None
    block: str | None = None
    at: str | None = None
    seed: int = 0
    sanitize: bool = False
    json: bool = False


def traced(options: Options) -> tuple[str, bool]:
    """The text to print for an iteration, and whether all errors are within rounding; errors as of `trace`."""
    iteration = load_description(options.iteration)
    iteration.family.require_alike("trace")
    shape, seed = options.shape, within("seed", options.seed, least=0)
    config = one_config(iteration, options.config, options.dtype or "")
    require_fits(iteration, config, shape)
    row, column = _first_shown(options, shape, config)
    from flashladder.trace.compare import trace  # slow to import: it brings torch

    found = trace(iteration, config, shape, contents=options.input, seed=seed)
    if options.json:
        return as_json(found, options.input, seed), found.passed
    text = render(found)
    if options.show:
        chosen = _chosen(found, options)
        if chosen.first is not None and not options.at:
            row, column = (place // WINDOW * WINDOW for place in (chosen.first.row, chosen.first.column or 0))
        text += f"\n\n{values(found, chosen, row, column)}"
    return text, found.passed


def _first_shown(options: Options, shape: Problem, config: KernelConfig) -> tuple[int, int]:
    """``--at``: the first row and column to show. Raises `FlashladderError`: it or ``--block`` is out of range."""
    for name in ("at", "block"):
        if getattr(options, name) and not options.show:
            raise FlashladderError(f"--{name} belongs to --show", hint="name an intermediate: --show S")
    if options.show and options.json:
        raise FlashladderError("--show does not go with --json", hint="leave --show out: JSON tells every intermediate")
    match = _AT.fullmatch(options.at or "0,0")
    if match is None:
        raise FlashladderError("bad --at", expected="ROW,COLUMN such as 16,8", found=repr(options.at))
    row, column, show = int(match[1]), int(match[2]), options.show
    n_columns = QUAD if show in STATISTICS else config.d_head if show in OUTPUTS else config.B_c
    if row >= config.B_r or column >= n_columns:
        expected = f"at most {config.B_r - 1},{n_columns - 1}"
        raise FlashladderError(f"bad --at for {show}", expected=expected, found=f"{row},{column}")
    if options.block and show == OUTPUTS[-1]:
        raise FlashladderError(f"{show} has no KV block: it is stored once", hint="leave --block out")
    if options.block:
        within("block", options.block, least=0, most=shape.seq_len // config.B_c - 1)
    return row, column


def _chosen(found: Trace, options: Options) -> Comparison:
    """The intermediate of ``--show`` in the KV block of ``--block``, or else in the first wrong one."""
    mine = [one for one in found.comparisons if one.name == options.show]
    if not mine:
        names = dict.fromkeys(one.name for one in found.comparisons)
        what = f"iteration {found.iteration.description} has no {options.show}"
        raise FlashladderError(what, expected=" or ".join(names))
    if not options.block:
        return next((one for one in mine if one.first is not None), mine[0])
    by_block = {one.block: one for one in mine}
    block = within("block", options.block, least=0)
    if block not in by_block:
        expected = f"one of {', '.join(map(str, by_block))}, which the kernel visits"
        raise FlashladderError(f"no such KV block of {options.show}", expected=expected, found=block)
    return by_block[block]


def run(options: Options) -> int:
    """Traces and prints; the exit code is 1 if an intermediate is wrong.

    Raises `FlashladderError` for bad options and kernels that trace cannot read, `CheckFailed` if the kernel does
    something forbidden or a tool of ``--sanitize`` reports an error.
    """
    if options.sanitize:  # checked before anything slow
        from flashladder.gpu.doctor import require_gpu

        if options.json or not options.iteration.isdecimal():
            found = "--json" if options.json else repr(options.iteration)
            what, expected = "--sanitize runs an iteration's build", "its number, no --json"
            raise FlashladderError(what, expected=expected, found=found)
        require_gpu("`invoke emulate N --hazards` looks for races on this CPU")
    with judged(options.iteration), told_on_terminal(f"tracing iteration {options.iteration} on this CPU ..."):
        text, passed = traced(options)
    print(text)
    if options.sanitize:
        from flashladder.gpu import sanitize

        sanitize.main([options.iteration, *(["--configs", options.config] if options.config else [])])
    return 0 if passed else 1
