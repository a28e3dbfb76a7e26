"""``invoke cfg N``: the control flow of a kernel's machine code as an outline, counts, DOT, SVG or JSON.

The launch decides how often a block runs (`flashladder.emulate.kernel.executed`). For a kernel of a file, or one whose
warps have roles, runs are not counted. Run: ``invoke cfg 16``, ``invoke cfg 16 --svg > cfg.svg``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
import io
from itertools import groupby
import json
import textwrap
from typing import Any

from flashladder.arguments import within
from flashladder.build.compile import cubin_for
from flashladder.columns import table, terminal_width
from flashladder.errors import FlashladderError
from flashladder.files import relative
from flashladder.ladder.ablation import load_description
from flashladder.machine_code.executions import Executions
from flashladder.machine_code.flow import LOOP, REGIONS, UNREACHED, Regions, regions_of
from flashladder.machine_code.opcodes import KINDS, by_kind, kind_of
from flashladder.machine_code.sass import BYTES, count, disassemble, opcode_class
from flashladder.names import HEADLINE_LENGTH
from flashladder.problem import Problem
from flashladder.view.binary import Wanted, file_named, sass_of
from flashladder.view.command import config_of

Counts = Mapping[str, float]
PER_KV_BLOCK = "per KV block"
VOTED = "The warp votes on data: runs are counted as if no lane asked for what stands behind a vote."
SHOWN = {"tensor": "tens", "fp32": "fp32", "integer": "int", "moves": "move", "mufu": "mufu", "ldsm": "ldsm",
         "copies": "copy"}  # fmt: skip
"""The heading of each kind of instruction that has a column in the outline."""
Picture = Mapping[str, Any]
"""A kernel's control flow as ``--json`` prints it (`picture_of`)."""


def by_class(opcodes: Counts) -> Counter[str]:
    """Sums counts of full opcodes by opcode class."""
    found = Counter[str]()
    for opcode, n in opcodes.items():
        found[opcode_class(opcode)] += int(n)
    return found


def picture_of(title: str, regions: Regions, warp: Executions | None = None) -> Picture:
    """The picture of a kernel; without `warp`, runs are unknown and opcode counts are those of the listing.

    Returns:
        ``blocks`` by region, then by address, without those that never run: name, label in the listing, region,
        addresses, numbers of instructions and runs, immediate ``dominator``, instructions by kind, and ``ways``:
        target, kind of edge, and the predicate that decides it. ``loops``, outermost first. ``rounds`` of the main
        loop. ``opcodes`` of one warp by region, ``per_kv_block`` by class. ``unreached``: instructions that never run.
    """
    flow, blocks = regions.flow, []
    shown = (block for block, name in enumerate(regions.names) if name != UNREACHED)
    for block in sorted(shown, key=lambda block: (REGIONS.index(regions.names[block]), block)):
        code, above = flow.code(block), flow.dominators[block]
        blocks.append({
            "name": _name(block),
            "label": flow.blocks[block].label,
            "region": regions.names[block],
            "address": code[0].address,
            "end": code[-1].address + BYTES,
            "instructions": len(code),
            "runs": None if warp is None else warp.blocks[block],
            "dominator": "" if above is None else _name(above),
            "kinds": {kind: int(n) for kind, n in by_kind(count(code)).items() if n},
            "ways": list(_ways(regions, block)),
        })  # fmt: skip
    loops = [
        {
            "header": _name(loop.header),
            "blocks": [_name(block) for block in sorted(loop.nodes)],
            "latches": [_name(block) for block in loop.latches],
            "parent": None if loop.parent is None else _name(loop.parent),
            "depth": loop.depth,
            "trips": None if warp is None else float(warp.trips(loop)),
        }
        for loop in sorted(flow.loops, key=lambda loop: (loop.depth, loop.header))
    ]
    opcodes = {
        region: warp.counts(regions.blocks(region)) if warp else Counter(one.opcode for one in regions.code(region))
        for region in regions.present
        if region != UNREACHED
    }
    rounds = warp.blocks[flow.main_loop.header] if warp is not None and flow.main_loop is not None else 0
    each = {name: n / rounds for name, n in by_class(opcodes[LOOP]).items() if n} if rounds else None
    return {
        "title": title,
        "blocks": blocks,
        "loops": loops,
        "reducible": flow.is_reducible,
        "rounds": rounds or None,
        "votes": [f"{flow.sass.instructions[place].address:x}" for place in sorted(warp.votes)] if warp else None,
        "opcodes": opcodes,
        "per_kv_block": each,
        "unreached": len(regions.code(UNREACHED)),
    }


def _name(block: int) -> str:
    return f"B{block}"


def _ways(regions: Regions, block: int) -> Iterator[dict[str, str]]:
    """Where a block leads: a branch is taken if its guard and the predicates before its target hold."""
    edges, last = regions.flow.edges[block], regions.flow.code(block)[-1]
    guards = [last.predicate.removeprefix("@"), *map(str.strip, last.operands.rpartition(",")[0].split(","))]
    taken = " and ".join(filter(None, guards)) if len(edges) > 1 or last.opcode_class == "EXIT" else ""
    opposite = f"not ({taken})" if " " in taken else taken.removeprefix("!") if taken.startswith("!") else f"!{taken}"
    for edge in edges:
        when = opposite if taken and edge.kind == "falls" else taken
        yield {"target": _name(edge.target), "kind": edge.kind, "when": when}


def outline(picture: Picture, limit: int = 80) -> str:
    """A line for each block beside strokes for the loops around it, then kinds of instructions by region.

    A loop begins at ``.>`` and ends at ``'-``; ``@>`` is a loop of one block.
    """
    blocks, head = picture["blocks"], ["", "block", "from", "instr", "runs", "dom", *SHOWN.values(), "then"]
    rows = [head]
    for strokes, one in zip(_loops_beside(picture), blocks, strict=True):
        numbers = [str(one["kinds"].get(kind, ".")) for kind in SHOWN]
        ordered = sorted(one["ways"], key=lambda way: way["kind"] == "falls")  # the branch with its condition first
        runs, then = "-" if one["runs"] is None else str(one["runs"]), ", ".join(map(_way, ordered)) or "end"
        size = str(one["instructions"])
        rows.append([strokes, one["name"], f"{one['address']:x}", size, runs, one["dominator"], *numbers, then])
    first, *lines = table(rows, limit, right=range(2, len(head) - 1))
    n_loops, more = len(picture["loops"]), "" if picture["reducible"] else ", and loops with several entries, not drawn"
    summary = f"{sum(one['instructions'] for one in blocks)} instructions in {len(blocks)} blocks, "
    summary += f"{n_loops} loop{'s' * (n_loops != 1)}{more}; {picture['unreached']} more never run (trap, padding)."
    summary += f" {VOTED}" if picture["votes"] else ""
    out = [*textwrap.wrap(picture["title"], limit), *textwrap.wrap(summary, limit), "", first]
    for region, pairs in groupby(zip(blocks, lines, strict=True), key=lambda pair: pair[0]["region"]):
        of_region, lines_of_region = zip(*pairs, strict=True)
        rounds = f", {picture['rounds']} rounds" if region == LOOP and picture["rounds"] else ""
        size = sum(one["instructions"] for one in of_region)
        out += [f"{region}: {size} instructions{rounds}", *lines_of_region]
    known = picture["votes"] is not None
    note = "Instructions that a warp runs and no predicate switches off" if known else "Instructions"
    return "\n".join([*out, "", f"{note}, by kind:", *_counts(picture, classes=False)])


def _way(way: Mapping[str, str]) -> str:
    if way["kind"] in ("diverges", "calls"):
        return f"{way['kind'][:4]} {way['target']}"
    return f"{way['when']} {way['target']}" if way["when"] and way["kind"] == "branches" else way["target"]


def _loops_beside(picture: Picture) -> list[str]:
    """For each block the strokes of the loops around it, outermost first; disjoint loops share a column."""
    columns, places = list[list[str]](), _places(picture)
    for loop in picture["loops"]:
        rows = sorted(places[name] for name in loop["blocks"])
        first, last = rows[0], rows[-1]
        strokes = ["@>"] if first == last else [".>", *["| "] * (last - first - 1), "'-"]
        free = (one for one in columns[loop["depth"] - 1 :] if not any(map(str.strip, one[first : last + 1])))
        if (column := next(free, None)) is None:
            column = ["  "] * len(places)
            columns.append(column)
        column[first : last + 1] = strokes
    return ["".join(column[place] for column in columns) for place in range(len(places))]


def _places(picture: Picture) -> dict[str, int]:
    return {block["name"]: place for place, block in enumerate(picture["blocks"])}


def per_block(picture: Picture, limit: int = 80) -> str:
    """Opcode counts by kind, class and region, the most frequent class first; for the main loop, of one round."""
    return "\n".join([*textwrap.wrap(picture["title"], limit), *_counts(picture, classes=True)])


def _counts(picture: Picture, *, classes: bool) -> list[str]:
    counted = {region: by_class(counts) for region, counts in picture["opcodes"].items()}
    everything = sum(counted.values(), Counter[str]())
    columns: dict[str, Counts] = {**counted, "all": everything}
    if each := picture["per_kv_block"]:
        columns = {PER_KV_BLOCK if name == LOOP else name: one for name, one in {**columns, LOOP: each}.items()}
    kinds = [by_kind(counts) for counts in columns.values()]
    rows = [["" if classes else "kind", *columns], ["total", *(_number(sum(one.values())) for one in columns.values())]]
    for kind in KINDS:
        names = sorted(name for name in everything if kind_of(name) == kind)
        if names:
            rows.append([kind, *(_number(found[kind]) for found in kinds)])
        if classes:
            names.sort(key=lambda name: -everything[name])
            rows += [[f"  {name}", *(_number(counts.get(name, 0)) for counts in columns.values())] for name in names]
    return table(rows, None, right=range(1, len(rows[0])))


def _number(count: float) -> str:
    return f"{count:,.0f}" if count == int(count) else f"{count:,.1f}"


LINES = {"diverges": "dashed", "calls": "dotted"}


def _shares(picture: Picture) -> list[float]:
    """The share of each block in the executed instructions, or in the listing if runs are unknown."""
    weights = [one["instructions"] * (1 if one["runs"] is None else one["runs"]) for one in picture["blocks"]]
    return [weight / (sum(weights) or 1) for weight in weights]


def _facts(block: Picture) -> tuple[str, str, str]:
    """The lines of a drawn block: name; address, instructions and runs; its four most frequent kinds."""
    runs = "" if block["runs"] is None else f" x {block['runs']}"
    most = sorted(block["kinds"].items(), key=lambda item: (-item[1], item[0]))[:4]
    place = f"{block['address']:#06x}: {block['instructions']}{runs}"
    return f"{block['name']} {block['label']}".rstrip(), place, ", ".join(f"{n} {kind}" for kind, n in most)


def dot(picture: Picture) -> str:
    """The graph in the DOT language: regions are clusters, conditions label edges, colours show `_shares`."""
    places, drawn = _places(picture), zip(picture["blocks"], _shares(picture), strict=True)
    lines = [
        f"digraph {json.dumps(picture['title'])} {{",
        f"  label={json.dumps(picture['title'])}; labelloc=t;",
        '  node [shape=box, style=filled, fontname="monospace", fontsize=10]; edge [fontname="monospace", fontsize=9];',
    ]
    for number, (region, own) in enumerate(groupby(drawn, key=lambda pair: pair[0]["region"])):
        lines.append(f"  subgraph cluster_{number} {{ label={json.dumps(region)};")
        for block, share in own:
            colour = f'"0.08 {share:.3f} 1.0"'  # hue of orange, saturation, brightness
            label = json.dumps("\n".join(_facts(block)))
            lines.append(f"    {block['name']} [label={label}, fillcolor={colour}];")
        lines.append("  }")
    for block in picture["blocks"]:
        for way in block["ways"]:
            back = "constraint=false" if places[way["target"]] <= places[block["name"]] else ""
            label = f"label={json.dumps(way['when'])}" if way["when"] else ""
            style = f"style={LINES[way['kind']]}" if way["kind"] in LINES else ""
            attributes = ", ".join(filter(None, (style, label, back)))
            lines.append(f"  {block['name']} -> {way['target']}{f' [{attributes}]' if attributes else ''};")
    return "\n".join([*lines, "}"])


def svg(picture: Picture) -> str:
    """The blocks in a column: edges that skip blocks are arcs on the right, back edges on the left, as in `dot`."""
    import matplotlib as mpl
    from matplotlib.colors import hsv_to_rgb
    from matplotlib.figure import Figure

    blocks, places = picture["blocks"], _places(picture)
    figure = Figure(figsize=(8, 1.2 + 0.6 * len(blocks)))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(-4, 4), ylim=(len(blocks) - 0.4, -1.6))
    axes.axis("off")
    write = partial(axes.text, va="center", family="monospace", size=8, parse_math=False)
    write(-3.9, -1.1, "\n".join(textwrap.wrap(picture["title"], 100)))
    for place, (block, share) in enumerate(zip(blocks, _shares(picture), strict=True)):
        box = {"boxstyle": "round", "facecolor": hsv_to_rgb((0.08, share, 1.0)), "edgecolor": "gray"}
        write(0, place, "\n".join(_facts(block)[1:]), ha="center", bbox=box)
        begins = not place or blocks[place - 1]["region"] != block["region"]
        write(-3.9, place, f"{block['name']} {block['region']}" if begins else block["name"])
        for way in block["ways"]:
            target = places[way["target"]]
            span = target - place
            side, ends = (0.0, 0.25) if span == 1 else (1.5 if span > 1 else -1.5, 0.0 if span else 0.25)
            bend = f"arc3,rad={0 if span == 1 else -0.4 * min(1, 7 / (1 + abs(span))):.3f}"
            arrow = {"arrowstyle": "->", "connectionstyle": bend, "linestyle": LINES.get(way["kind"], "solid")}
            axes.annotate("", (side, target - ends), (side, place + ends), arrowprops=arrow)
            write(side + 0.1, place + (0.5 if span == 1 else -0.1), way["when"])
    out = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "cfg"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def drawn(named: str, wanted: Wanted, seq_len: int) -> Picture:
    """The picture of an iteration's kernel in a launch of `seq_len` positions, or of a kernel in a file.

    Raises `FlashladderError` if there is none, and for a length for a file or one that the tiles do not divide.
    """
    if path := file_named(named, wanted):
        if seq_len != HEADLINE_LENGTH:
            raise FlashladderError("--seq-len is for iterations", found=relative(path))
        title, sass = sass_of(path, wanted.kernel, wanted.arch)
        return picture_of(title, regions_of(sass))
    from flashladder.emulate.kernel import executed  # slow to import: it brings the emulator

    within("seq-len", seq_len)
    iteration = load_description(named)
    chosen = config_of(iteration, wanted.config, causal=wanted.causal)
    arch = wanted.arch or iteration.shown_arch
    title = f"iteration {iteration.description}, {arch}"
    if not iteration.family.warps_alike:
        regions = regions_of(disassemble(cubin_for(iteration, chosen, arch).cubin, lines=False))
        return picture_of(f"{title}: {chosen.short_form()}; warps have roles: runs not counted", regions)
    shape = Problem(batch=1, seq_len=seq_len, n_heads=1, d_head=chosen.d_head)
    return picture_of(f"{title}, S = {seq_len}: {chosen.short_form()}", *executed(iteration, chosen, arch, shape))


def show_cfg(named: str, wanted: Wanted, seq_len: int, forms: Sequence[str]) -> None:
    """Prints the control flow of an iteration, or of a kernel in a file, in the form of `forms`, at most one."""
    by_width = partial(per_block, limit=terminal_width())
    as_json = partial(json.dumps, indent=2)
    renderers: dict[str, Callable[[Picture], str]] = {"counts": by_width, "dot": dot, "svg": svg, "json": as_json}
    if len(forms) > 1:
        expected = f"one of {', '.join(f'--{name}' for name in renderers)}"
        raise FlashladderError("one form at a time", expected=expected, found=" and ".join(forms))
    picture = drawn(named, wanted, seq_len)
    print(renderers[forms[0]](picture) if forms else outline(picture, terminal_width()))
