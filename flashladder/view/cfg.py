"""``invoke cfg N``: the control flow of a kernel's machine code as an outline, counts, DOT, SVG or JSON.

How often a block runs follows from the launch (`flashladder.emulate.kernel.executed`). A kernel of a file, or one whose
warps have different roles, is drawn without counts of runs.

Run:
    invoke cfg 16                                 # an outline: regions, blocks, loops; below, kinds of instructions
    invoke cfg 16 --counts                        # opcodes by region; those of the main loop per KV block
    invoke cfg 16 --svg > cfg.svg                 # a drawing; needs no other program
    invoke cfg 16 --dot | dot -Tpdf > cfg.pdf     # laid out by Graphviz
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from itertools import groupby
import json
from pathlib import Path
import textwrap

from flashladder.arguments import parser_of, whole
from flashladder.columns import table, terminal_width
from flashladder.commands import COMMANDS
from flashladder.errors import FlashladderError, one_line_errors
from flashladder.files import relative
from flashladder.machine_code.executions import Executions
from flashladder.machine_code.flow import (
    EPILOGUE,
    LAST,
    LOOP,
    PEELED,
    PROLOGUE,
    REGIONS,
    UNREACHED,
    Kind,
    Loop,
    Regions,
    regions_of,
)
from flashladder.machine_code.opcodes import KINDS, by_kind, kind_of
from flashladder.machine_code.sass import BYTES, Instruction, opcode_class
from flashladder.view.binary import is_file, refuse_config, refuse_of_files, sass_of

Counts = Mapping[str, float]
FORMS = ("counts", "dot", "svg", "json")
PER_KV_BLOCK = "per KV block"
VOTED = "The warp votes on data: runs are counted as if no lane asked for what stands behind a vote."
SHOWN = {"tensor": "tens", "fp32": "fp32", "integer": "int", "moves": "move", "mufu": "mufu", "ldsm": "ldsm",
         "copies": "copy"}  # fmt: skip
"""Kinds of instructions with a column of their own in the outline, and its heading."""


@dataclass(frozen=True)
class Way:
    """Where a block leads: the name of the next one, how control gets there, and the predicate that decides it."""

    target: str
    kind: Kind
    when: str


@dataclass(frozen=True)
class Node:
    """One block."""

    name: str  # ``B7``
    index: int  # of the block in its graph
    label: str  # of the listing; empty where nothing branches to it
    region: str  # prologue, peeled block, main loop,
    address: int  # of its first instruction; `end` behind its last
    end: int
    instructions: int  # how many
    runs: int | None  # how often a warp runs it; None where that is not known
    dominator: str  # name of the last block that must have run before it; empty for the first
    kinds: Counts  # its instructions by kind
    ways: tuple[Way, ...]  # where it leads; none at an end

    @property
    def most(self) -> str:
        """The four kinds that it has most of, with their counts."""
        found = sorted((kind for kind in self.kinds if self.kinds[kind]), key=lambda kind: (-self.kinds[kind], kind))
        return ", ".join(f"{self.kinds[kind]:.0f} {kind}" for kind in found[:4])


@dataclass(frozen=True)
class Picture:
    """A kernel's control flow: its blocks by region, then by address, without what never runs.

    `warp` says how often a warp runs each block; None where that is not known.
    """

    title: str
    regions: Regions
    warp: Executions | None
    nodes: tuple[Node, ...]

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The graph's, outermost first."""
        return tuple(sorted(self.regions.flow.loops, key=lambda loop: (loop.depth, loop.header)))

    @property
    def row(self) -> Mapping[str, int]:
        """Place of each node from the top, by its name."""
        return {node.name: place for place, node in enumerate(self.nodes)}

    @property
    def rounds(self) -> int:
        """How often a warp runs the main loop's header; 0 where that is not known, or there is no loop."""
        loop = self.regions.flow.main_loop
        return self.warp.blocks[loop.header] if self.warp is not None and loop is not None else 0

    def opcodes(self, region: str) -> Counts:
        """Instructions of a region by full opcode: those that a warp runs, or those that there are."""
        if self.warp is None:
            return Counter(instruction.opcode for instruction in self.regions.code(region))
        return self.warp.counts(self.regions.blocks(region))

    def per_kv_block(self) -> dict[str, float] | None:
        """Instructions that a round of the main loop costs a warp, by class; None where no rounds are known."""
        counts = by_class(self.opcodes(LOOP)) if self.rounds else {}
        return {name: n / self.rounds for name, n in counts.items() if n} if self.rounds else None

    def by_region(self) -> dict[str, Counts]:
        """Instructions per opcode class of each region that can run, and of ``all``; of the main loop one round."""
        each, found, everything = self.per_kv_block(), dict[str, Counts](), dict[str, float]()
        for region in self.regions.present:
            if region != UNREACHED:
                counts = by_class(self.opcodes(region))
                found |= {PER_KV_BLOCK: each} if region == LOOP and each is not None else {region: counts}
                for name, count in counts.items():
                    everything[name] = everything.get(name, 0) + count
        return {**found, "all": everything}


def by_class(opcodes: Counts) -> Counts:
    """Counts by full opcode, summed by class."""
    found: dict[str, float] = {}
    for opcode, count in opcodes.items():
        found[opcode_class(opcode)] = found.get(opcode_class(opcode), 0) + count
    return found


def picture_of(title: str, regions: Regions, warp: Executions | None = None) -> Picture:
    """The picture of a kernel; without `warp` nobody knows how often its blocks run."""
    flow, nodes = regions.flow, []
    shown = (block for block in flow.indices if regions.names[block] != UNREACHED)
    for block in sorted(shown, key=lambda block: (REGIONS.index(regions.names[block]), block)):
        code, above = flow.code(block), flow.dominators[block]
        nodes.append(
            Node(
                name=_name(block),
                index=block,
                label=flow.blocks[block].label,
                region=regions.names[block],
                address=code[0].address,
                end=code[-1].address + BYTES,
                instructions=len(code),
                runs=None if warp is None else warp.blocks[block],
                dominator="" if above is None else _name(above),
                kinds=by_kind(flow.counts([block])),
                ways=tuple(_ways(regions, block)),
            )
        )
    return Picture(title, regions, warp, tuple(nodes))


def _name(block: int) -> str:
    return f"B{block}"


def _ways(regions: Regions, block: int) -> Iterator[Way]:
    edges, last = regions.flow.edges_of(block), regions.flow.code(block)[-1]
    taken = _condition(last) if len(edges) > 1 or last.opcode_class == "EXIT" else ""
    opposite = f"not ({taken})" if " " in taken else taken.removeprefix("!") if taken.startswith("!") else f"!{taken}"
    for edge in edges:
        yield Way(_name(edge.target), edge.kind, opposite if taken and edge.kind == "falls" else taken)


def _condition(branch: Instruction) -> str:
    """The predicates on which a branch is taken: before it, and before its target."""
    own = [part.strip() for part in branch.operands.rpartition(",")[0].split(",")]
    return " and ".join(part for part in [branch.predicate.removeprefix("@"), *own] if part)


def outline(picture: Picture, limit: int = 80) -> str:
    """A line for each block with the loops drawn beside them, then kinds of instructions by region.

    A loop begins at ``.>`` and ends at ``'-``; ``@>`` is a loop of one block.
    """
    head = ["", "block", "from", "instr", "runs", "dom", *SHOWN.values(), "then"]
    rows = [[strokes, *_cells(node)] for strokes, node in zip(_loops_beside(picture), picture.nodes, strict=True)]
    first, *lines = table([head, *rows], limit, right=range(2, len(head) - 1))
    out = [*textwrap.wrap(picture.title, limit), *textwrap.wrap(_summary(picture), limit), "", first]
    for region, of_region in groupby(zip(picture.nodes, lines, strict=True), key=lambda pair: pair[0].region):
        pairs = list(of_region)
        rounds = f", {picture.rounds} rounds" if region == LOOP and picture.rounds else ""
        out.append(f"{region}: {sum(node.instructions for node, _ in pairs)} instructions{rounds}")
        out += [line for _, line in pairs]
    note = "Instructions that a warp runs and no predicate switches off" if picture.warp else "Instructions"
    return "\n".join([*out, "", f"{note}, by kind:", *_counts(picture, "kind", classes=False)])


def _cells(node: Node) -> list[str]:
    numbers = [f"{node.kinds[kind]:.0f}" if node.kinds[kind] else "." for kind in SHOWN]
    ordered = sorted(node.ways, key=lambda way: way.kind == "falls")  # the branch with its condition first
    then = ", ".join(_way(way) for way in ordered) or "end"
    runs = "-" if node.runs is None else f"{node.runs}"
    return [node.name, f"{node.address:x}", str(node.instructions), runs, node.dominator, *numbers, then]


def _way(way: Way) -> str:
    if way.kind in ("diverges", "calls"):
        return f"{way.kind[:4]} {way.target}"
    return f"{way.when} {way.target}" if way.when and way.kind == "branches" else way.target


def _loops_beside(picture: Picture) -> list[str]:
    """For each node the strokes of the loops around it, outermost first; loops that do not meet share a column."""
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


def _summary(picture: Picture) -> str:
    flow = picture.regions.flow
    size, idle = sum(node.instructions for node in picture.nodes), len(picture.regions.code(UNREACHED))
    loops = f"{len(flow.loops)} loop{'s' * (len(flow.loops) != 1)}"
    more = "" if flow.is_reducible else ", and loops with several entries, which are not drawn"
    told = f"{size} instructions in {len(picture.nodes)} blocks, {loops}{more}; {idle} more never run (trap, padding)."
    return f"{told} {VOTED}" if picture.warp and picture.warp.votes else told


def per_block(picture: Picture, limit: int = 80) -> str:
    """Opcode classes by region under the sum of each kind, the most frequent first; of the main loop one round."""
    return "\n".join([*textwrap.wrap(picture.title, limit), *_counts(picture, "", classes=True)])


def _counts(picture: Picture, head: str, *, classes: bool) -> list[str]:
    columns = picture.by_region()
    kinds = [by_kind(counts) for counts in columns.values()]
    rows = [[head, *columns], ["total", *(_number(sum(counts.values())) for counts in columns.values())]]
    present = sorted({name for counts in columns.values() for name in counts if counts[name]})
    for kind in KINDS:
        names = [name for name in present if kind_of(name) == kind]
        if names:
            rows.append([kind, *(_number(found[kind]) for found in kinds)])
        if classes:
            names.sort(key=lambda name: -columns["all"].get(name, 0))
            rows += [[f"  {name}", *(_number(counts.get(name, 0)) for counts in columns.values())] for name in names]
    return table(rows, None, right=range(1, len(rows[0])))


def _number(count: float) -> str:
    """A count, with one decimal where it is a mean."""
    return f"{count:,.0f}" if count == int(count) else f"{count:,.1f}"


STYLES = {"diverges": "style=dashed", "calls": "style=dotted"}


def dot(picture: Picture) -> str:
    """The graph in the DOT language: regions are clusters, conditions stand at their edges."""
    lines = [
        f"digraph {_quoted(picture.title)} {{",
        f"  label={_quoted(picture.title)}; labelloc=t;",
        '  node [shape=box, fontname="monospace", fontsize=10]; edge [fontname="monospace", fontsize=9];',
    ]
    for number, (region, nodes) in enumerate(groupby(picture.nodes, key=lambda node: node.region)):
        lines.append(f"  subgraph cluster_{number} {{ label={_quoted(region)};")
        for node in nodes:
            runs = "" if node.runs is None else f" x {node.runs}"
            facts = f"{node.name} {node.label}".rstrip(), f"{node.address:#06x}: {node.instructions}{runs}", node.most
            label = "\n".join(facts)
            lines.append(f"    {node.name} [label={_quoted(label)}];")
        lines.append("  }")
    for node in picture.nodes:
        for way in node.ways:
            back = "constraint=false" if picture.row[way.target] <= picture.row[node.name] else ""
            label = f"label={_quoted(way.when)}" if way.when else ""
            attributes = ", ".join(filter(None, (STYLES.get(way.kind), label, back)))
            lines.append(f"  {node.name} -> {way.target}{f' [{attributes}]' if attributes else ''};")
    return "\n".join([*lines, "}"])


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


WIDTH, HEIGHT, GAP, HEAD, MARGIN = 420, 38, 18, 24, 16  # pixels
TINTS = {PROLOGUE: "#f1f3f5", PEELED: "#fff3d6", LOOP: "#e3f1e5", LAST: "#fff3d6", EPILOGUE: "#e8eaf6"}
DASHES = {"diverges": ' stroke-dasharray="5 3"', "calls": ' stroke-dasharray="1 3"'}
STYLE = """\
text{font:11px ui-monospace,Menlo,Consolas,monospace;fill:#1b1f24}.small{font-size:10px;fill:#57606a}
.box{stroke:#57606a}path{fill:none;stroke:#57606a;stroke-width:1.2}.back{stroke:#1a7f37;stroke-width:1.8}"""
ARROW = """\
<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"
markerUnits="userSpaceOnUse"><path d="M0 0L8 4L0 8z" style="fill:#57606a;stroke:none"/></marker></defs>"""


def svg(picture: Picture) -> str:
    """The drawing: blocks in a column, edges that skip blocks as arcs on the right, back edges as arcs on the left.

    The deeper the colour, the larger a block's share of the executed instructions (of the listing, without `warp`).
    """
    tops, y = [], MARGIN + HEAD
    for place, node in enumerate(picture.nodes):
        y += HEAD if not place or node.region != picture.nodes[place - 1].region else 0
        tops.append(y)
        y += HEIGHT + GAP
    row = picture.row
    edges = [(place, row[way.target], way) for place, node in enumerate(picture.nodes) for way in node.ways]
    spans = [target - place for place, target, _ in edges if target != place + 1]
    left, right = (max((_reach(span) for span in spans if (span <= 0) == back), default=0) for back in (True, False))
    x = MARGIN + left + 10
    width, height = x + WIDTH + right + MARGIN + 10, y - GAP + MARGIN
    size = f'width="{width}" height="{height}"'
    weights = [node.instructions * (1 if node.runs is None else node.runs) for node in picture.nodes]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width} {height}" role="img">',
        f'<title>{escape(picture.title)}</title><style>{STYLE}</style>{ARROW}<rect {size} fill="#fff"/>',
    ]
    head, _, rest = picture.title.partition(": ")
    for text, at in ((head, MARGIN + 2), (rest, MARGIN + 16)):
        room = f' textLength="{width - 2 * MARGIN}" lengthAdjust="spacingAndGlyphs"' if len(text) * 6.6 > width else ""
        parts.append(f'<text x="{MARGIN}" y="{at}"{room}>{escape(text)}</text>')
    for region, places in groupby(range(len(tops)), key=lambda place: picture.nodes[place].region):
        rows = list(places)
        top, bottom = tops[rows[0]] - HEAD + 3, tops[rows[-1]] + HEIGHT + GAP // 2 - 2
        total, band = sum(picture.nodes[place].instructions for place in rows), f'height="{bottom - top}" rx="4"'
        parts.append(f'<rect x="4" y="{top}" width="{width - 8}" {band} fill="{TINTS[region]}"/>')
        parts.append(f'<text x="12" y="{top + 14}">{region}: {total} instructions</text>')
    for node, top, weight in zip(picture.nodes, tops, weights, strict=True):
        parts += _box(node, x, top, weight / (sum(weights) or 1))
    parts += [_edge(tops[place], tops[target], target - place, way, x) for place, target, way in edges]
    return "\n".join([*parts, "</svg>"])


def _box(node: Node, x: int, top: int, share: float) -> Iterator[str]:
    red, green, blue = (round(255 - share * (255 - end)) for end in (247, 147, 60))  # white to orange
    end, runs = x + WIDTH - 8, "" if node.runs is None else f" × {node.runs}"
    facts = f"{node.address:#06x} · {node.instructions}{runs}"
    away = ", ".join(f"{way.when} → {way.target}" for way in node.ways if way.when and way.kind != "falls")
    fill = f"#{red:02x}{green:02x}{blue:02x}"
    yield f'<rect class="box" x="{x}" y="{top}" width="{WIDTH}" height="{HEIGHT}" rx="3" fill="{fill}"/>'
    yield f'<text x="{x + 8}" y="{top + 15}">{node.name} {escape(node.label)}</text>'
    yield f'<text x="{end}" y="{top + 15}" text-anchor="end">{facts}</text>'
    yield f'<text class="small" x="{x + 8}" y="{top + 30}">{node.most}</text>'
    yield f'<text class="small" x="{end}" y="{top + 30}" text-anchor="end">{escape(away)}</text>'


def _reach(span: int) -> int:
    """How far an arc over so many rows stands out, in pixels."""
    return 14 + 6 * min(abs(span), 30)


def _edge(source: int, target: int, span: int, way: Way, x: int) -> str:
    """An arrow to the next block, or an arc from the lower half of a block to the upper half of another."""
    dashes = DASHES.get(way.kind, "")
    if span == 1:
        return f'<path d="M{x + WIDTH // 2} {source + HEIGHT}V{target}" marker-end="url(#arrow)"{dashes}/>'
    back = span <= 0
    side, reach = (x, -_reach(span)) if back else (x + WIDTH, _reach(span))
    bend = side + reach * 4 // 3  # a cubic Bézier curve goes three quarters of the way to its control points
    curve = f"M{side} {source + 27}C{bend} {source + 27} {bend} {target + 11} {side} {target + 11}"
    kind = ' class="back"' if back else ""
    return f'<path{kind} d="{curve}" marker-end="url(#arrow)"{dashes}/>'


def as_data(picture: Picture) -> dict[str, object]:
    """All of a picture as JSON can hold it; counts are of one warp, by opcode and region, and for a round by class."""
    flow, warp = picture.regions.flow, picture.warp
    return {
        "title": picture.title,
        "blocks": [
            {**asdict(node), "kinds": {kind: int(count) for kind, count in node.kinds.items() if count}}
            for node in picture.nodes
        ],
        "loops": [
            {
                "header": _name(loop.header),
                "blocks": [_name(block) for block in sorted(loop.nodes)],
                "latches": [_name(block) for block in loop.latches],
                "parent": None if loop.parent is None else _name(loop.parent),
                "depth": loop.depth,
                "trips": None if warp is None else float(warp.trips(loop)),
            }
            for loop in picture.loops
        ],
        "reducible": flow.is_reducible,
        "rounds": picture.rounds or None,
        "votes": [f"{flow.sass.instructions[place].address:x}" for place in sorted(warp.votes)] if warp else None,
        "opcodes": {name: picture.opcodes(name) for name in picture.regions.present if name != UNREACHED},
        "per_kv_block": picture.per_kv_block(),
    }


def drawn(options: argparse.Namespace) -> Picture:
    """The picture that the options ask for.

    Raises:
        FlashladderError: no such iteration, configuration or file, or a length that the tiles do not divide.
    """
    if is_file(options.iteration):
        path = Path(options.iteration)
        refuse_config(options.config, path)
        title, sass = sass_of(path, options.kernel, options.arch)
        return picture_of(f"{relative(path)}: {title}", regions_of(sass))
    refuse_of_files(options.iteration, vars(options))
    from flashladder.build.compile import cubin_for
    from flashladder.emulate.kernel import executed
    from flashladder.ladder.ablation import load_description
    from flashladder.ladder.selection import one_config
    from flashladder.machine_code.sass import disassemble
    from flashladder.problem import Shape

    if options.seq_len < 1:
        raise FlashladderError("sequence length", expected="1 or more", found=options.seq_len)
    iteration = load_description(options.iteration)
    config = one_config(iteration, options.config)
    arch = options.arch or iteration.shown_arch
    title = f"iteration {iteration.description}, {arch}"
    if not iteration.family.warps_alike:
        regions = regions_of(disassemble(cubin_for(iteration, config, arch).cubin, lines=False))
        return picture_of(f"{title}: {config.short_form()}; warps have roles: runs not counted", regions)
    shape = Shape(batch=1, seq_len=options.seq_len, n_heads=1, d_head=config.d_head)
    found = executed(iteration, config, arch, shape)
    return picture_of(f"{title}, S = {shape.seq_len}: {config.short_form()}", found.regions, found.warp)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the control flow in one of its forms; returns the exit code 0."""
    options = parser_of(COMMANDS["cfg"], "view.cfg", "16 --svg", seq_len={"type": whole}).parse_args(argv)
    with one_line_errors():
        forms = [name for name in FORMS if getattr(options, name)]
        if len(forms) > 1:
            expected = f"one of {', '.join(f'--{name}' for name in FORMS)}"
            raise FlashladderError("one form at a time", expected=expected, found=" and ".join(forms))
        picture = drawn(options)
        if options.json:
            print(json.dumps(as_data(picture), indent=2))
        elif options.dot or options.svg:
            print(dot(picture) if options.dot else svg(picture))
        else:
            print((per_block if options.counts else outline)(picture, terminal_width()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
