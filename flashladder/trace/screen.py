"""What ``invoke trace`` prints: a table by KV block and intermediate, the first difference in a sentence, or JSON.

Nothing to run here; `flashladder.trace.command` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import math

import torch

from flashladder.build.compile import ptx_for
from flashladder.columns import table, terminal_width
from flashladder.files import dump_json, relative
from flashladder.names import INTERMEDIATES
from flashladder.trace.findings import Comparison, Trace, Where
from flashladder.trace.lookalike import lookalike
from flashladder.trace.meaning import STATISTICS, meaning

SCHEMA_VERSION = 1
MOST_BLOCKS = 6  # KV blocks whose rows are all shown
MOST_RANGES = 4
WINDOW = 8  # rows and columns of values that are shown
HEAD = ("KV block", "", "max error", "RMS error", "of allowed", "from fp64", "beyond", "warp", "row", "column")


def render(found: Trace) -> str:
    """The screen: head, table, verdict."""
    return "\n\n".join([_head(found), "\n".join(_table(found)), "\n".join(verdict(found))])


def _head(found: Trace) -> str:
    shape = found.shape
    order = "last to first" if found.backward else "first to last"
    size = f"batch {shape.batch}, seq_len {shape.seq_len}, heads {shape.n_heads}, d_head {shape.d_head}"
    return "\n".join(
        (
            f"iteration {found.iteration.description}: {found.iteration.title}",
            found.config.short_form(),
            f"{size}: {len(found.ctas)} CTAs, {len(found.steps)} KV blocks of {found.config.B_c} keys, {order}",
            relative(ptx_for(found.iteration, found.config).ptx),
        )
    )


def _table(found: Trace) -> list[str]:
    """A row per KV block and intermediate; of many KV blocks those with a difference, the first and the last."""
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
    """Name, errors, how many elements are beyond what is allowed, and where the error is largest against that."""
    where = one.worst
    first = one.name == INTERMEDIATES[0]  # of its KV block
    block = "end" if one.block is None else str(one.block) if first else ""
    errors = f"{one.max_error:.1e}", f"{one.rms:.1e}", f"{one.share:.2g}", f"{one.drift:.1e}"
    column = "" if where.column is None else str(where.column)
    return (
        block, one.name, *errors, str(one.n_beyond or "-"), str(where.warp),
        str(where.row), column,
    )  # fmt: skip


def verdict(found: Trace) -> list[str]:
    """What was found, for somebody who is going to mend it: the first difference, then what is known of it."""
    counted = len(found.steps) == found.n_expected
    lines = [] if counted else [f"{len(found.steps)} KV blocks are visited, and there are {found.n_expected}"]
    if found.first is None:
        return [*lines, "no difference beyond rounding" if counted else "no other difference"]
    return [*lines, *_told(found, found.first)]


def _told(found: Trace, wrong: Comparison) -> list[str]:
    """Where the first wrong element is and how far off; what it is; how many are; made by whom; where to look."""
    first = wrong.first
    assert first is not None
    what, suspects = meaning(found.iteration, wrong.name)
    off = abs(first.found - first.expected)
    numbers = f"found {first.found:.7g}, expected {first.expected:.7g}, off by {off:.1e}, allowed {first.allowed:.1e}"
    lines = [
        f"first difference: {wrong.name} {_when(found, wrong)}, {_holder(first)}: {numbers}",
        f"{wrong.name} is {what}; {_extent(found, wrong)}",
    ]
    if first.maker is not None:
        lines.append(f"made by {first.maker.place}")
    if same := lookalike(found, wrong):
        lines.append(same)
    return [*lines, suspects]


def _when(found: Trace, wrong: Comparison) -> str:
    if wrong.block is None:
        return "after the last KV block"
    keys = found.config.B_c
    first = wrong.block * keys
    return f"in KV block {wrong.block} (keys {first} to {first + keys - 1}, visit {wrong.step + 1})"


def _holder(where: Where) -> str:
    x, y, z = where.cta
    lane = "" if where.lane is None else f" lane {where.lane}"
    column = "" if where.column is None else f", column {where.column}"
    meant = f"query {where.query}, head {y}, sample {z}"
    return f"CTA ({x}, {y}, {z}) warp {where.warp}{lane}, row {where.row}{column} ({meant})"


def _extent(found: Trace, wrong: Comparison) -> str:
    """How many elements differ, and in which rows and columns of the tile."""
    beyond, total = wrong.beyond, wrong.beyond.numel()
    ctas, rows, columns = (
        torch.nonzero(beyond.flatten(1).any(1)).flatten().tolist(),
        torch.nonzero(beyond.any(2).any(0)).flatten().tolist(),
        torch.nonzero(beyond.any(1).any(0)).flatten().tolist(),
    )
    where = f"{wrong.n_beyond} of {total} differ, in {len(ctas)} of {len(found.ctas)} CTAs, rows {ranges(rows)}"
    inside = "lanes of the quad" if wrong.name in STATISTICS else "columns"
    return f"{where}, {inside} {ranges(columns)}"


def ranges(numbers: Iterable[int]) -> str:
    """Sorted numbers as ranges, ``0-7, 16-23``; the first few of many."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    words = [str(first) if first == last else f"{first}-{last}" for first, last in spans]
    return ", ".join(words[:MOST_RANGES]) + (
        f" and {len(words) - MOST_RANGES} more" if len(words) > MOST_RANGES else ""
    )


def values(found: Trace, chosen: Comparison, row: int, column: int) -> str:
    """Some of the kernel's values and what they should be, from (row, column) of the first CTA that differs on."""
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
    return {
        "visit": one.step,
        "block": one.block,
        "what": one.name,
        "max_error": _number(one.max_error),
        "rms_error": _number(one.rms),
        "of_allowed": _number(one.share),
        "from_fp64": _number(one.drift),
        "elements": one.beyond.numel(),
        "beyond": one.n_beyond,
        "worst": _place(one.worst),
        "first": None if one.first is None else _place(one.first),
    }


def _place(where: Where) -> dict[str, object]:
    maker = where.maker
    return {
        "cta": list(where.cta),
        "warp": where.warp,
        "lane": where.lane,
        "row": where.row,
        "query": where.query,
        "column": where.column,
        "found": _number(where.found),
        "expected": _number(where.expected),
        "allowed": _number(where.allowed),
        "instruction": None if maker is None else str(maker),
        "ptx_line": None if maker is None else maker.line,
        "source": None if maker is None or maker.source is None else maker.source.chain,
    }


def _number(value: float) -> float | None:
    """JSON has neither NaN nor infinity."""
    return value if math.isfinite(value) else None
