"""The control flow of a kernel in a terminal of 80 columns: a line for each block, loops drawn beside them.

Why: prologue, peeled block, main loop and epilogue are seen at a glance, with how often each block runs and what it
does; below, the kinds of instructions that one KV block costs. A loop begins at ``.>`` and ends at ``'-``.
"""

from __future__ import annotations

from collections.abc import Sequence
import textwrap

from flashladder.columns import table
from flashladder.machine_code.flow import LOOP, UNREACHED
from flashladder.machine_code.opcodes import KINDS, by_kind
from flashladder.view.flow.picture import Node, Picture, Way, by_region

SHOWN = ("tensor", "fp32", "integer", "moves", "mufu", "ldsm", "copies")
VOTED = "The warp votes on data: runs are counted as if no lane asked for what stands behind a vote."
HEADS = ("tens", "fp32", "int", "move", "mufu", "ldsm", "copy")


def outline(picture: Picture, limit: int = 80) -> str:
    """The outline; lines have at most `limit` columns, 80 or more, but where blocks have names of three digits."""
    head = ["", "block", "from", "instr", "runs", "dom", *HEADS, "then"]
    gutters = _gutters(picture)
    rows = [[gutter, *_cells(node)] for gutter, node in zip(gutters, picture.nodes, strict=True)]
    lines = table([head, *rows], limit, right=range(2, len(head) - 1))
    out = [*textwrap.wrap(picture.title, limit), *textwrap.wrap(_summary(picture), limit), "", lines[0]]
    region = ""
    for node, line in zip(picture.nodes, lines[1:], strict=True):
        if node.region != region:
            region = node.region
            out.append(_heading(picture, region))
        out.append(line)
    return "\n".join([*out, "", *kinds_table(picture)])


def _cells(node: Node) -> list[str]:
    numbers = [f"{node.kinds[kind]:.0f}" if node.kinds[kind] else "." for kind in SHOWN]
    runs = "-" if node.runs is None else f"{node.runs}"
    return [node.name, f"{node.address:x}", str(node.instructions), runs, node.dominator, *numbers, _then(node.ways)]


def _then(ways: Sequence[Way]) -> str:
    """Where a block leads: the branch with its condition first."""
    if not ways:
        return "end"
    ordered = sorted(ways, key=lambda way: way.kind == "falls")
    return ", ".join(_way(way) for way in ordered)


def _way(way: Way) -> str:
    if way.kind in ("diverges", "calls"):
        return f"{way.kind[:4]} {way.target}"
    return f"{way.when} {way.target}" if way.when and way.kind == "branches" else way.target


def _gutters(picture: Picture) -> list[str]:
    """For each node the strokes of the loops around it, outermost first; loops apart share a column."""
    columns: list[list[str]] = []
    for loop in picture.loops:
        rows = [place for place, node in enumerate(picture.nodes) if node.index in loop.nodes]
        first, last = rows[0], rows[-1]
        strokes = ["@>"] if first == last else [".>", *["| "] * (last - first - 1), "'-"]
        free = (column for column in columns[loop.depth - 1 :] if not any(map(str.strip, column[first : last + 1])))
        if (column := next(free, None)) is None:
            column = ["  "] * len(picture.nodes)
            columns.append(column)
        column[first : last + 1] = strokes
    return ["".join(column[place] for column in columns) for place in range(len(picture.nodes))]


def _heading(picture: Picture, region: str) -> str:
    size = sum(node.instructions for node in picture.nodes if node.region == region)
    rounds = f", {picture.rounds} rounds" if region == LOOP and picture.rounds else ""
    return f"{region}: {size} instructions{rounds}"


def _summary(picture: Picture) -> str:
    flow = picture.regions.flow
    size = sum(node.instructions for node in picture.nodes)
    idle = len(picture.regions.code(UNREACHED))
    loops = f"{len(flow.loops)} loop{'s' * (len(flow.loops) != 1)}"
    more = "" if flow.is_reducible else ", and loops with several entries, which are not drawn"
    told = f"{size} instructions in {len(picture.nodes)} blocks, {loops}{more}; {idle} more never run (trap, padding)."
    votes = picture.warp.votes if picture.warp else ()
    return told + (f" {VOTED}" if votes else "")


def kinds_table(picture: Picture) -> list[str]:
    """Kinds of instructions by region: what a warp runs, and the main loop's share of it for one round."""
    columns = by_region(picture)
    kinds = {name: by_kind(counts) for name, counts in columns.items()}
    present = [kind for kind in KINDS if any(found[kind] for found in kinds.values())]
    rows = [["kind", *columns]]
    rows.append(["total", *(number(sum(found.values())) for found in kinds.values())])
    rows += [[kind, *(number(found[kind]) for found in kinds.values())] for kind in present]
    note = "Instructions that a warp runs and no predicate switches off" if picture.warp else "Instructions"
    return [f"{note}, by kind:", *table(rows, None, right=range(1, len(rows[0])))]


def number(count: float) -> str:
    """A count, with one decimal where it is a mean."""
    return f"{count:,.0f}" if count == int(count) else f"{count:,.1f}"
