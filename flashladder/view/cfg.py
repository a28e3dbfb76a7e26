"""``invoke cfg N``: the control flow of a kernel's machine code as an outline, counts, DOT, SVG or JSON.

How often a block runs follows from the launch (`flashladder.emulate.kernel.executed`). A kernel of a file, or one whose
warps have different roles, is drawn without counts of runs.

Run:
    invoke cfg 16                                 # an outline: regions, blocks, loops; below, kinds of instructions
    invoke cfg 16 --counts                        # opcodes by region; those of the main loop per KV block
    invoke cfg 16 --svg > cfg.svg                 # a drawing
    invoke cfg 16 --dot                           # the text that Graphviz reads, or an editor
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
import io
from itertools import groupby
import json
import textwrap

from flashladder.arguments import within
from flashladder.columns import table, terminal_width
from flashladder.errors import FlashladderError
from flashladder.machine_code.executions import Executions
from flashladder.machine_code.flow import LOOP, REGIONS, UNREACHED, Kind, Loop, Regions, regions_of
from flashladder.machine_code.opcodes import KINDS, by_kind, kind_of
from flashladder.machine_code.sass import BYTES, Instruction, opcode_class
from flashladder.view.binary import Wanted, file_named, sass_of

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


LINES = {"diverges": "dashed", "calls": "dotted"}


def _shares(picture: Picture) -> Mapping[str, float]:
    """Name of each block to its share of the executed instructions; of the listing, where nobody knows what runs."""
    weights = {node.name: node.instructions * (1 if node.runs is None else node.runs) for node in picture.nodes}
    whole = sum(weights.values()) or 1
    return {name: weight / whole for name, weight in weights.items()}


def _facts(node: Node) -> tuple[str, str, str]:
    """Name; address, instructions and runs; kinds of instructions: the lines of a drawn block."""
    runs = "" if node.runs is None else f" x {node.runs}"
    return f"{node.name} {node.label}".rstrip(), f"{node.address:#06x}: {node.instructions}{runs}", node.most


def dot(picture: Picture) -> str:
    """The graph in the DOT language: regions are clusters, conditions stand at their edges.

    The deeper the colour, the larger a block's share of the executed instructions (of the listing, without `warp`).
    """
    share = _shares(picture)
    lines = [
        f"digraph {_quoted(picture.title)} {{",
        f"  label={_quoted(picture.title)}; labelloc=t;",
        '  node [shape=box, style=filled, fontname="monospace", fontsize=10]; edge [fontname="monospace", fontsize=9];',
    ]
    for number, (region, nodes) in enumerate(groupby(picture.nodes, key=lambda node: node.region)):
        lines.append(f"  subgraph cluster_{number} {{ label={_quoted(region)};")
        for node in nodes:
            label = "\n".join(_facts(node))
            colour = f'"0.08 {share[node.name]:.3f} 1.0"'  # hue of orange, saturation, brightness
            lines.append(f"    {node.name} [label={_quoted(label)}, fillcolor={colour}];")
        lines.append("  }")
    for node in picture.nodes:
        for way in node.ways:
            back = "constraint=false" if picture.row[way.target] <= picture.row[node.name] else ""
            label = f"label={_quoted(way.when)}" if way.when else ""
            style = f"style={LINES[way.kind]}" if way.kind in LINES else ""
            attributes = ", ".join(filter(None, (style, label, back)))
            lines.append(f"  {node.name} -> {way.target}{f' [{attributes}]' if attributes else ''};")
    return "\n".join([*lines, "}"])


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def svg(picture: Picture) -> str:
    """The blocks in a column, by matplotlib: edges that skip blocks are arcs on the right, back edges on the left.

    The deeper the colour, the larger a block's share of the executed instructions (of the listing, without `warp`).
    """
    import matplotlib as mpl
    from matplotlib.colors import hsv_to_rgb
    from matplotlib.figure import Figure

    nodes, share = picture.nodes, _shares(picture)
    figure = Figure(figsize=(8, 1.2 + 0.6 * len(nodes)))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(-4, 4), ylim=(len(nodes) - 0.4, -1.6))
    axes.axis("off")
    said = partial(axes.text, va="center", family="monospace", size=8, parse_math=False)
    said(-3.9, -1.1, "\n".join(textwrap.wrap(picture.title, 100)))
    for place, node in enumerate(nodes):
        box = {"boxstyle": "round", "facecolor": hsv_to_rgb((0.08, share[node.name], 1.0)), "edgecolor": "gray"}
        said(0, place, "\n".join(_facts(node)[1:]), ha="center", bbox=box)
        begins = not place or nodes[place - 1].region != node.region
        said(-3.9, place, f"{node.name} {node.region}" if begins else node.name)
        for way in node.ways:
            target = picture.row[way.target]
            span = target - place
            side, ends = (0.0, 0.25) if span == 1 else (1.5 if span > 1 else -1.5, 0.0 if span else 0.25)
            bend = f"arc3,rad={0 if span == 1 else -0.4 * min(1, 7 / (1 + abs(span))):.3f}"
            arrow = {"arrowstyle": "->", "connectionstyle": bend, "linestyle": LINES.get(way.kind, "solid")}
            axes.annotate("", (side, target - ends), (side, place + ends), arrowprops=arrow)
            said(side + 0.1, place + (0.5 if span == 1 else -0.1), way.when)
    out = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "cfg"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


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


def drawn(named: str, config: str | None, arch: str, seq_len: int, kernel: str) -> Picture:
    """The picture of an iteration's kernel in a launch of `seq_len` positions, or of a kernel in a file.

    Raises:
        FlashladderError: no such iteration, configuration or file, or a length that the tiles do not divide.
    """
    if path := file_named(named, Wanted(config=config, kernel=kernel)):
        title, sass = sass_of(path, kernel, arch)
        return picture_of(title, regions_of(sass))
    from flashladder.build.compile import cubin_for
    from flashladder.emulate.kernel import executed
    from flashladder.ladder.ablation import load_description
    from flashladder.ladder.selection import one_config
    from flashladder.machine_code.sass import disassemble
    from flashladder.problem import Shape

    within("seq-len", seq_len)
    iteration = load_description(named)
    chosen = one_config(iteration, config)
    arch = arch or iteration.shown_arch
    title = f"iteration {iteration.description}, {arch}"
    if not iteration.family.warps_alike:
        regions = regions_of(disassemble(cubin_for(iteration, chosen, arch).cubin, lines=False))
        return picture_of(f"{title}: {chosen.short_form()}; warps have roles: runs not counted", regions)
    shape = Shape(batch=1, seq_len=seq_len, n_heads=1, d_head=chosen.d_head)
    found = executed(iteration, chosen, arch, shape)
    return picture_of(f"{title}, S = {shape.seq_len}: {chosen.short_form()}", found.regions, found.warp)


def show_cfg(named: str, config: str | None, arch: str, seq_len: int, kernel: str, forms: Sequence[str] = ()) -> None:
    """Prints the control flow of an iteration, or of a kernel in a file, in the one form that `forms` names.

    Raises:
        FlashladderError: several forms, or as `drawn`.
    """
    if len(forms) > 1:
        expected = f"one of {', '.join(f'--{name}' for name in FORMS)}"
        raise FlashladderError("one form at a time", expected=expected, found=" and ".join(forms))
    form = forms[0] if forms else "outline"
    picture = drawn(named, config, arch, seq_len, kernel)
    made: dict[str, Callable[[], str]] = {
        "outline": lambda: outline(picture, terminal_width()),
        "counts": lambda: per_block(picture, terminal_width()),
        "dot": lambda: dot(picture),
        "svg": lambda: svg(picture),
        "json": lambda: json.dumps(as_data(picture), indent=2),
    }
    print(made[form]())
