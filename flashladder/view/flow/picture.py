"""What every drawing of a kernel's control flow shows: blocks in reading order, where each leads, how often it runs.

Why: outline, DOT and SVG differ in their looks only. Blocks stand by region (prologue, peeled block, main loop,
epilogue), within a region by address.

Try ``picture_of("iteration 16", regions, executions)``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from flashladder.machine_code.executions import Executions
from flashladder.machine_code.flow import LOOP, REGIONS, UNREACHED, Kind, Loop, Regions
from flashladder.machine_code.opcodes import by_kind
from flashladder.machine_code.sass import BYTES, Instruction, opcode_class

Counts = Mapping[str, float]
PER_KV_BLOCK = "per KV block"


@dataclass(frozen=True)
class Way:
    """Where a block leads: the name of the next one, how control gets there, and the predicate that decides it."""

    target: str
    kind: Kind
    when: str


@dataclass(frozen=True)
class Node:
    """One block as it is drawn.

    Attributes:
        index: of the block in its graph; `name` is made of it.
        label: of the listing, empty where nothing branches to it.
        region: what it is for.
        address: of its first instruction.
        end: address behind its last one.
        instructions: how many.
        runs: how often a warp runs it; None where that is not known.
        dominator: name of the last block that must have run before it; empty for the first.
        kinds: its instructions by kind.
        ways: where it leads; none at an end.
    """

    index: int
    label: str
    region: str
    address: int
    end: int
    instructions: int
    runs: int | None
    dominator: str
    kinds: Counts
    ways: tuple[Way, ...]

    @property
    def name(self) -> str:
        """``B7``."""
        return name_of(self.index)


@dataclass(frozen=True)
class Picture:
    """A kernel's control flow as it is drawn: its nodes from top to bottom, without what never runs."""

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

    def region_opcodes(self, region: str) -> Counts:
        """Instructions by full opcode: what a warp runs of a region, or what there is where that is not known."""
        if self.warp is None:
            return Counter(instruction.opcode for instruction in self.regions.code(region))
        return self.warp.counts(self.regions.blocks(region))

    def region_counts(self, region: str) -> Counts:
        """The same by opcode class."""
        return by_class(self.region_opcodes(region))

    @property
    def rounds(self) -> int:
        """How often a warp runs the main loop's header; 0 where that is not known, or there is no loop."""
        loop = self.regions.flow.main_loop
        return self.warp.blocks[loop.header] if self.warp is not None and loop is not None else 0


def name_of(block: int) -> str:
    """The name of a block by its index."""
    return f"B{block}"


def by_class(opcodes: Counts) -> dict[str, float]:
    """Counts by full opcode, summed by class."""
    found: dict[str, float] = {}
    for opcode, count in opcodes.items():
        found[opcode_class(opcode)] = found.get(opcode_class(opcode), 0) + count
    return found


def by_region(picture: Picture) -> dict[str, Counts]:
    """Instructions per opcode class of each region that can run, and of ``all``; the main loop's are of one round.

    Where nobody knows what runs, those that there are.
    """
    each, found, everything = per_kv_block(picture), dict[str, Counts](), dict[str, float]()
    for region in picture.regions.present:
        if region != UNREACHED:
            counts = picture.region_counts(region)
            found |= {PER_KV_BLOCK: each} if region == LOOP and each is not None else {region: counts}
            for name, count in counts.items():
                everything[name] = everything.get(name, 0) + count
    return {**found, "all": everything}


def per_kv_block(picture: Picture) -> dict[str, float] | None:
    """Instructions that a round of the main loop costs a warp, by opcode class; None where no rounds are known."""
    rounds = picture.rounds
    return {name: n / rounds for name, n in picture.region_counts(LOOP).items() if n} if rounds else None


def picture_of(title: str, regions: Regions, warp: Executions | None = None) -> Picture:
    """The drawing of a kernel; `warp` says how often its blocks run, None that nobody knows."""
    flow = regions.flow
    shown = sorted(
        (block for block in flow.indices if regions.names[block] != UNREACHED),
        key=lambda block: (REGIONS.index(regions.names[block]), block),
    )
    nodes = []
    for block in shown:
        code, above = flow.code(block), flow.dominators[block]
        nodes.append(
            Node(
                block,
                flow.blocks[block].label,
                regions.names[block],
                code[0].address,
                code[-1].address + BYTES,
                len(code),
                None if warp is None else warp.blocks[block],
                "" if above is None else name_of(above),
                by_kind(flow.counts([block])),
                _ways(regions, block),
            )
        )
    return Picture(title, regions, warp, tuple(nodes))


def _ways(regions: Regions, block: int) -> tuple[Way, ...]:
    edges, last = regions.flow.edges_of(block), regions.flow.code(block)[-1]
    condition = _condition(last) if len(edges) > 1 or last.opcode_class == "EXIT" else ""
    return tuple(
        Way(name_of(edge.target), edge.kind, _opposite(condition) if edge.kind == "falls" else condition)
        for edge in edges
    )


def _condition(branch: Instruction) -> str:
    """The predicates on which a branch is taken: before it, and before its target."""
    own = [part.strip() for part in branch.operands.rpartition(",")[0].split(",")]
    return " and ".join(part for part in [branch.predicate.removeprefix("@"), *own] if part)


def _opposite(condition: str) -> str:
    if not condition or " " in condition:
        return f"not ({condition})" if condition else ""
    return condition.removeprefix("!") if condition.startswith("!") else f"!{condition}"
