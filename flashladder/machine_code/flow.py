"""The control flow of a kernel's machine code: basic blocks, edges, dominators, loops, and the region of each block.

Code inside the loop over KV blocks runs hundreds of times, code outside runs once. A loop is not a range of addresses,
because the assembler moves rare code behind the end. A block dominates another one if every path to that one passes it.

Edges: a branch that is taken only if the threads of a warp have diverged (``BRA.DIV``, ``BRA.CONV``) has a kind of its
own. BSSY, BSYNC and WARPSYNC are no edges. ptxas writes some branches as ``CALL.REL.NOINC``; in a kernel without RET no
call returns, so they are branches.

Regions: a tensor instruction outside the main loop belongs to a peeled KV block. Before the loop, that block begins
where its first tile has arrived: at the barrier before its first tensor instruction, or at the wait for copies before
that barrier. After the loop, the last block ends with its last tensor instruction.

Run: ``invoke cfg 8``. Or ``regions_of(disassemble(cubin)).code(PEELED)``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Literal, NamedTuple

from flashladder.errors import FlashladderError
from flashladder.machine_code.sass import INDIRECT, TENSOR, Instruction, Sass, never_falls_through

Neighbours = Sequence[Sequence[int]]
"""For each node its successors, or its predecessors."""


@dataclass(frozen=True)
class Loop:
    """A natural loop: the nodes that reach one of its back edges without leaving through its header."""

    header: int  # the only node through which it is entered
    nodes: frozenset[int]  # all of it, header included
    latches: tuple[int, ...]  # nodes whose edge back to the header closes it
    parent: int | None = None  # header of the next larger loop around it; None for an outermost one
    depth: int = 1  # 1 for an outermost one


def reached(starts: Iterable[int], neighbours: Neighbours, wall: frozenset[int] = frozenset()) -> frozenset[int]:
    """`starts` and the nodes that paths from them reach; a path ends at a node of the `wall`."""
    seen = set(starts)
    todo = list(seen)
    while todo:
        node = todo.pop()
        fresh = [n for n in neighbours[node] if n not in seen] if node not in wall else []
        seen.update(fresh)
        todo.extend(fresh)
    return frozenset(seen)


@dataclass(frozen=True)
class Graph:
    """Nodes and their edges; the entry is node 0."""

    successors: Neighbours

    @cached_property
    def predecessors(self) -> Neighbours:
        """For each node the nodes that have an edge to it."""
        found: list[list[int]] = [[] for _ in self.successors]
        for source, targets in enumerate(self.successors):
            for target in targets:
                found[target].append(source)
        return found

    @cached_property
    def reachable(self) -> frozenset[int]:
        """Nodes that can run; the trap and the padding after a kernel's last instruction cannot."""
        return reached([0], self.successors)

    @cached_property
    def dominators(self) -> tuple[int | None, ...]:
        """The immediate dominator of each node; None for node 0 and for nodes that are not reachable."""
        alive = self.reachable
        dominated = {node: alive - reached([0], self.successors, frozenset({node})) for node in alive}
        found: list[int | None] = [None] * len(self.successors)
        for node in sorted(alive, key=lambda one: len(dominated[one]), reverse=True):  # the nearest dominator last
            for other in dominated[node]:
                found[other] = node
        return tuple(found)

    def dominates(self, first: int, second: int) -> bool:
        """Whether every path from node 0 to `second` passes `first`; a node dominates itself."""
        node: int | None = second
        while node is not None and node != first:
            node = self.dominators[node]
        return node == first

    @cached_property
    def forward(self) -> Neighbours:
        """`successors` without back edges, which close loops: their target dominates their source."""
        return [
            [target for target in targets if not self.dominates(target, source)]
            for source, targets in enumerate(self.successors)
        ]

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """Every natural loop, in order of its header; all back edges to one header make one loop."""
        latches: dict[int, list[int]] = {}
        for source in sorted(self.reachable):
            for target in set(self.successors[source]) - set(self.forward[source]):
                latches.setdefault(target, []).append(source)
        before = [[one for one in some if one in self.reachable] for some in self.predecessors]
        bodies = {header: reached([header, *own], before, frozenset({header})) for header, own in latches.items()}
        loops = []
        for header in sorted(bodies):
            around = [other for other, body in bodies.items() if other != header and header in body]
            parent = min(around, key=lambda other: len(bodies[other]), default=None)
            loops.append(Loop(header, bodies[header], tuple(latches[header]), parent, 1 + len(around)))
        return tuple(loops)

    @cached_property
    def is_reducible(self) -> bool:
        """Whether `loops` holds every cycle: without back edges, the reachable graph has none."""
        try:
            TopologicalSorter({source: self.forward[source] for source in self.reachable}).prepare()
        except CycleError:
            return False
        return True


Kind = Literal["falls", "jumps", "branches", "diverges", "calls"]
"""Where an edge leads: to the next instruction, always elsewhere, elsewhere if a predicate holds, elsewhere if the
threads of a warp have diverged, into a function that returns."""

_DIVERGENT = ("BRA.DIV", "BRA.CONV")
_MUST_LEAD = INDIRECT | {"BRA", "JMP"}  # these need a target in this kernel


class Block(NamedTuple):
    """Instructions that run one after the other: a range of places in `Sass.instructions`, without `end`."""

    begin: int
    end: int
    label: str = ""  # the target of branches to it; empty if there are none


class Edge(NamedTuple):
    """Where control goes after a block; `target` is the index of a block in order of address."""

    target: int
    kind: Kind


@dataclass(frozen=True)
class Flow(Graph):
    """The control-flow graph of one kernel; block 0 is its entry."""

    sass: Sass
    blocks: tuple[Block, ...]
    edges: tuple[tuple[Edge, ...], ...]  # the edges that leave each block

    def code(self, block: int) -> tuple[Instruction, ...]:
        """The instructions of a block."""
        return self.sass.instructions[self.blocks[block].begin : self.blocks[block].end]

    def innermost(self, block: int) -> Loop | None:
        """The smallest loop around a block."""
        return max((loop for loop in self.loops if block in loop.nodes), key=lambda loop: loop.depth, default=None)

    @cached_property
    def main_loop(self) -> Loop | None:
        """The loop over KV blocks: the loop with the most tensor instructions outside of its inner loops.

        Among equals it is the innermost (a loop over tiles may hold a peeled block), then the longest.
        """

        def weight(loop: Loop) -> tuple[int, int, int]:
            own = [block for block in loop.nodes if self.innermost(block) == loop]
            return sum(len(self.tensor(block)) for block in own), loop.depth, sum(len(self.code(one)) for one in own)

        return max(self.loops, key=weight, default=None)

    def tensor(self, block: int) -> list[int]:
        """Places in `Sass.instructions` of the tensor-core instructions of a block."""
        begin = self.blocks[block].begin
        return [place for place, one in enumerate(self.code(block), begin) if one.opcode_class in TENSOR]


def graph_of(sass: Sass, cuts: Collection[int] = ()) -> Flow:
    """The graph of a kernel, with the largest possible blocks; a block also begins at each place of `cuts`.

    A branch without a target in the kernel, and an indirect one that does not list its targets, are errors.
    """
    returns = any(instruction.opcode_class == "RET" for instruction in sass.instructions)
    leaving = [list(_exits(sass, i, returns=returns)) for i in range(len(sass.instructions))]
    targets = (target for own in leaving for target, kind in own if kind != "falls")
    after_branches = (i + 1 for i, one in enumerate(sass.instructions[:-1]) if sass.moves_control(one))
    starts = sorted({0, *cuts, *targets, *after_branches})
    names = {address: label for label, address in sorted(sass.labels.items(), reverse=True)}
    blocks = tuple(
        Block(begin, end, names.get(sass.instructions[begin].address, ""))
        for begin, end in zip(starts, [*starts[1:], len(sass.instructions)], strict=True)
    )
    at = {begin: index for index, begin in enumerate(starts)}
    edges = tuple(tuple(Edge(at[target], kind) for target, kind in leaving[block.end - 1]) for block in blocks)
    return Flow([[*dict.fromkeys(edge.target for edge in own)] for own in edges], sass, blocks, edges)


def main_loop(sass: Sass) -> tuple[Instruction, ...]:
    """The instructions of a kernel's loop over KV blocks, in address order.

    Empty if the kernel has no loop, or an indirect branch does not list its targets.
    """
    try:
        flow = graph_of(sass)
    except FlashladderError:
        return ()
    blocks = sorted(flow.main_loop.nodes) if flow.main_loop else []
    return tuple(one for block in blocks for one in flow.code(block))


def _exits(sass: Sass, index: int, *, returns: bool) -> Iterator[tuple[int, Kind]]:
    """Where control goes after an instruction, and how, the next instruction first; `returns`: a call may return."""
    instruction = sass.instructions[index]
    targets, indirect = sass.targets(instruction), instruction.opcode_class in INDIRECT
    if instruction.opcode_class in _MUST_LEAD and not (targets and sass.index.keys() >= set(targets)):
        what = "an indirect branch does not say" if indirect else "the code does not have"
        raise FlashladderError(f"{what} where it goes", where=f"address {instruction.address:#x}", found=instruction)
    kind: Kind = "jumps" if never_falls_through(instruction) and not indirect else "branches"
    if instruction.opcode_class == "CALL":
        kind = "calls" if returns else "branches" if instruction.predicate else "jumps"
    elif instruction.opcode.startswith(_DIVERGENT):
        kind = "diverges"
    always_leaves = never_falls_through(instruction) or (targets and kind == "jumps")
    if index + 1 < len(sass.instructions) and not always_leaves:
        yield index + 1, "falls"
    yield from ((sass.index[target], kind) for target in targets if target in sass.index)


PROLOGUE, PEELED, LOOP, LAST, EPILOGUE = "prologue", "peeled block", "main loop", "last block", "epilogue"
UNREACHED = "unreached"
REGIONS = (PROLOGUE, PEELED, LOOP, LAST, EPILOGUE, UNREACHED)
"""The regions in the order in which they run; `UNREACHED` never does."""


@dataclass(frozen=True)
class Regions:
    """A kernel's graph with the name of each block's region; a block begins at each begin of a region."""

    flow: Flow
    names: tuple[str, ...]

    def blocks(self, region: str) -> tuple[int, ...]:
        """Blocks of a region, in order of address."""
        return tuple(block for block, name in enumerate(self.names) if name == region)

    def code(self, region: str) -> tuple[Instruction, ...]:
        """Instructions of a region, in order of address."""
        return tuple(one for block in self.blocks(region) for one in self.flow.code(block))

    @property
    def present(self) -> tuple[str, ...]:
        """Regions that this kernel has."""
        return tuple(region for region in REGIONS if region in self.names)


def regions_of(sass: Sass) -> Regions:
    """A kernel's graph and regions; without a loop, all reachable blocks are prologue. Errors as of `graph_of`."""
    flow, start = graph_of(sass), None
    if flow.main_loop is not None:
        loop = flow.main_loop.nodes
        after = reached(loop, flow.forward) - loop  # in the same round of an outer loop
        before = [block for block in sorted(flow.reachable - after - loop) if flow.tensor(block)]
        start = _first_of(flow, before[0]) if before else None
        ends = {1 + max(flow.tensor(block)) for block in after if flow.tensor(block)} - {len(sass.instructions)}
        flow = graph_of(sass, ends if start is None else {start, *ends})
    return Regions(flow, tuple(_names(flow, start)))


def _names(flow: Flow, start: int | None) -> Iterable[str]:
    """The region of each block; the peeled block begins at the instruction at place `start`."""
    loop = flow.main_loop.nodes if flow.main_loop else frozenset()
    after = reached(loop, flow.forward) - loop
    last = reached((block for block in after if flow.tensor(block)), flow.predecessors) & after
    peeled = next((index for index, block in enumerate(flow.blocks) if block.begin == start), None)
    for block in range(len(flow.blocks)):
        if block in loop:
            yield LOOP
        elif block in after:
            yield LAST if block in last else EPILOGUE
        elif block not in flow.reachable:
            yield UNREACHED
        else:
            yield PEELED if peeled is not None and flow.dominates(peeled, block) else PROLOGUE


def _first_of(flow: Flow, block: int) -> int:
    """Where the KV block with its first tensor instruction in `block` begins: see the head of this file."""

    def last(opcode: str, begin: int, end: int) -> int | None:
        code = flow.sass.instructions
        return next((i for i in range(end - 1, begin - 1, -1) if code[i].opcode_class == opcode), None)

    place, at = min(flow.tensor(block)), block
    while True:
        begin = flow.blocks[at].begin
        if (barrier := last("BAR", begin, place)) is not None:
            wait = last("DEPBAR", begin, barrier)
            return barrier if wait is None or last("BAR", wait, barrier) is not None else wait
        above = flow.dominators[at]
        if above is None:
            return flow.blocks[block].begin
        place, at = flow.blocks[above].end, above
