"""The control flow of a kernel's machine code: basic blocks, edges, dominators, loops, and what each block is for.

What stands inside the loop over KV blocks runs hundreds of times, what stands outside once. ``nvdisasm -cfg`` draws
such a graph for people; here it is data. A loop is not a range of addresses, since the assembler moves rare code behind
the end. A block dominates another one if the other cannot be reached without it.

Edges: a branch that is taken only where the threads of a warp have parted (``BRA.DIV``, ``BRA.CONV``) has a kind of its
own. BSSY, BSYNC and WARPSYNC are no edges. ptxas writes some branches as ``CALL.REL.NOINC``; in a kernel without RET no
call comes back, so they are branches.

Regions: a tensor instruction outside of the main loop belongs to a peeled KV block. Before the loop, that block begins
where its first tile has landed: at the barrier before its first tensor instruction, or the wait for copies before that.
After the loop, the last block ends behind its last tensor instruction.

Run: ``invoke cfg 8``. Or ``regions_of(disassemble(cubin)).of(PEELED)``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Literal

from flashladder.errors import FlashladderError
from flashladder.machine_code.sass import INDIRECT, TENSOR, Instruction, Sass, count, never_falls_through

Neighbours = Sequence[Sequence[int]]
"""For each node those that its edges lead to, or come from."""


@dataclass(frozen=True)
class Loop:
    """A natural loop: the nodes that reach one of its back edges without leaving through its header."""

    header: int  # the only node through which it is entered
    nodes: frozenset[int]  # all of it, header included
    latches: tuple[int, ...]  # nodes whose edge back to the header closes it
    parent: int | None = None  # header of the next larger loop around it; None for an outermost one
    depth: int = 1  # 1 for an outermost one


def backward(successors: Neighbours) -> tuple[tuple[int, ...], ...]:
    """The same edges from their targets: the predecessors of each node."""
    found: list[list[int]] = [[] for _ in successors]
    for source, targets in enumerate(successors):
        for target in targets:
            found[target].append(source)
    return tuple(map(tuple, found))


def reached(starts: Iterable[int], neighbours: Neighbours, wall: frozenset[int] = frozenset()) -> frozenset[int]:
    """The nodes that edges lead to from `starts`, these included; none beyond the nodes of a `wall`."""
    seen = set(starts)
    todo = list(seen)
    while todo:
        node = todo.pop()
        fresh = [n for n in neighbours[node] if n not in seen] if node not in wall else []
        seen.update(fresh)
        todo.extend(fresh)
    return frozenset(seen)


def immediate_dominators(successors: Neighbours) -> tuple[int | None, ...]:
    """For each node the last one that all paths from node 0 pass before it; None for node 0 and what is not reached."""
    alive = reached([0], successors)
    behind = {node: alive - reached([0], successors, frozenset({node})) for node in alive}  # lost without the node
    found: list[int | None] = [None] * len(successors)
    for node in sorted(alive, key=lambda one: len(behind[one]), reverse=True):  # the nearest one last
        for other in behind[node]:
            found[other] = node
    return tuple(found)


def dominates(immediate: Sequence[int | None], first: int, second: int) -> bool:
    """Whether every path from node 0 to `second`, which can be reached, passes `first`; a node dominates itself."""
    node: int | None = second
    while node is not None and node != first:
        node = immediate[node]
    return node == first


def natural_loops(successors: Neighbours, immediate: Sequence[int | None]) -> tuple[Loop, ...]:
    """Every natural loop, in order of its header; back edges to one header make one loop."""
    alive = reached([0], successors)
    latches: dict[int, list[int]] = {}
    for source in sorted(alive):
        for target in successors[source]:
            if dominates(immediate, target, source):
                latches.setdefault(target, []).append(source)
    predecessors = [tuple(p for p in some if p in alive) for some in backward(successors)]
    bodies = {header: reached([header, *own], predecessors, frozenset({header})) for header, own in latches.items()}
    loops = []
    for header in sorted(bodies):
        around = [other for other, body in bodies.items() if other != header and header in body]
        parent = min(around, key=lambda other: len(bodies[other]), default=None)
        loops.append(Loop(header, bodies[header], tuple(sorted(latches[header])), parent, 1 + len(around)))
    return tuple(loops)


def is_reducible(successors: Neighbours, immediate: Sequence[int | None]) -> bool:
    """Whether natural loops are all the loops there are: without back edges, no node can be reached from itself."""
    forward = {
        source: [target for target in successors[source] if not dominates(immediate, target, source)]
        for source in reached([0], successors)
    }
    try:
        TopologicalSorter(forward).prepare()
    except CycleError:
        return False
    return True


Kind = Literal["falls", "jumps", "branches", "diverges", "calls"]
"""How control goes along an edge: to the next instruction, always elsewhere, elsewhere if a predicate says so,
elsewhere where threads of a warp have parted, into a function that comes back."""

_DIVERGENT = ("BRA.DIV", "BRA.CONV")
_MUST_LEAD = INDIRECT | {"BRA", "JMP"}  # to instructions of this kernel


@dataclass(frozen=True)
class Block:
    """Instructions that run one after the other."""

    index: int  # of the block, in order of address
    begin: int  # of its instructions in `Sass.instructions`; `end` is behind its last one
    end: int
    label: str = ""  # where branches to it go; empty where there are none

    @property
    def size(self) -> int:
        """Instructions."""
        return self.end - self.begin


@dataclass(frozen=True)
class Edge:
    """Where control goes after the last instruction of a block; blocks by their index."""

    source: int
    target: int
    kind: Kind


@dataclass(frozen=True)
class Flow:
    """The control-flow graph of one kernel; block 0 is where it is entered."""

    sass: Sass
    blocks: tuple[Block, ...]
    edges: tuple[Edge, ...]

    def code(self, block: int) -> tuple[Instruction, ...]:
        """The instructions of a block."""
        found = self.blocks[block]
        return self.sass.instructions[found.begin : found.end]

    def edges_of(self, block: int) -> tuple[Edge, ...]:
        """The edges that leave a block."""
        return self._leaving[block]

    @cached_property
    def _leaving(self) -> tuple[tuple[Edge, ...], ...]:
        found: list[list[Edge]] = [[] for _ in self.blocks]
        for edge in self.edges:
            found[edge.source].append(edge)
        return tuple(map(tuple, found))

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """For each block those that may run next."""
        return tuple(tuple(dict.fromkeys(edge.target for edge in some)) for some in self._leaving)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """For each block those that may have run before."""
        return backward(self.successors)

    @cached_property
    def reachable(self) -> frozenset[int]:
        """Blocks that can run; the trap and the padding behind the last instruction cannot."""
        return reached([0], self.successors)

    @cached_property
    def dominators(self) -> tuple[int | None, ...]:
        """For each block its immediate dominator: the last block that must have run; None for the first."""
        return immediate_dominators(self.successors)

    def dominates(self, first: int, second: int) -> bool:
        """Whether `second` runs only after `first`; a block dominates itself."""
        return dominates(self.dominators, first, second)

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """Natural loops, in order of their header's address."""
        return natural_loops(self.successors, self.dominators)

    @cached_property
    def is_reducible(self) -> bool:
        """Whether `loops` are all the loops that there are."""
        return is_reducible(self.successors, self.dominators)

    def innermost(self, block: int) -> Loop | None:
        """The smallest loop around a block."""
        return max((loop for loop in self.loops if block in loop.nodes), key=lambda loop: loop.depth, default=None)

    @cached_property
    def main_loop(self) -> Loop | None:
        """The loop over KV blocks: the one with the most tensor instructions that are in no loop within it.

        Among equals an inner one (a loop over tiles around it may have a peeled block), then the longest.
        """

        def weight(loop: Loop) -> tuple[int, int, int]:
            own = [block for block in loop.nodes if self.innermost(block) == loop]
            return sum(map(self.tensor, own)), loop.depth, sum(self.blocks[block].size for block in own)

        return max(self.loops, key=weight, default=None)

    @property
    def indices(self) -> range:
        """Of all blocks."""
        return range(len(self.blocks))

    def tensor(self, block: int) -> int:
        """Tensor-core instructions in a block."""
        return len(self.tensor_places(block))

    def tensor_places(self, block: int) -> list[int]:
        """Where they are among `Sass.instructions`."""
        own = self.blocks[block]
        return [i for i in range(own.begin, own.end) if self.sass.instructions[i].opcode_class in TENSOR]

    def counts(self, blocks: Collection[int]) -> dict[str, int]:
        """Instructions per opcode class in some blocks, and ``total``, as `flashladder.machine_code.sass.count`."""
        return count(one for block in blocks for one in self.code(block))


def graph_of(sass: Sass, cuts: Collection[int] = ()) -> Flow:
    """The graph of a kernel, its blocks as large as can be.

    Args:
        sass: the kernel.
        cuts: indices of instructions at which a block begins in any case.

    Raises:
        FlashladderError: a branch goes where no instructions are, or an indirect one does not say where it may go.
    """
    returns = any(instruction.opcode_class == "RET" for instruction in sass.instructions)
    leaving = [list(_exits(sass, i, returns=returns)) for i in range(len(sass.instructions))]
    begins = {0, *cuts, *(target for targets in leaving for target, kind in targets if kind != "falls")}
    for i, instruction in enumerate(sass.instructions[:-1]):
        if sass.moves_control(instruction):
            begins.add(i + 1)
    starts = sorted(begins)
    names = {address: label for label, address in sorted(sass.labels.items(), reverse=True)}
    blocks = tuple(
        Block(index, begin, end, names.get(sass.instructions[begin].address, ""))
        for index, (begin, end) in enumerate(zip(starts, [*starts[1:], len(sass.instructions)], strict=True))
    )
    at = {block.begin: block.index for block in blocks}
    edges = tuple(Edge(block.index, at[target], kind) for block in blocks for target, kind in leaving[block.end - 1])
    return Flow(sass, blocks, edges)


def main_loop(sass: Sass) -> tuple[Instruction, ...]:
    """The instructions of a kernel's loop over KV blocks, in address order.

    Empty where nothing loops, or an indirect branch does not say where it goes.
    """
    try:
        flow = graph_of(sass)
    except FlashladderError:
        return ()
    blocks = sorted(flow.main_loop.nodes) if flow.main_loop else []
    return tuple(one for block in blocks for one in flow.code(block))


def _exits(sass: Sass, index: int, *, returns: bool) -> Iterator[tuple[int, Kind]]:
    """Where control goes after an instruction, and how: the next one first."""
    instruction = sass.instructions[index]
    targets = sass.targets(instruction)
    kind = _kind(instruction, returns=returns)
    if instruction.opcode_class in _MUST_LEAD and not (targets and sass.index.keys() >= set(targets)):
        what = "an indirect branch does not say" if instruction.opcode_class in INDIRECT else "the code does not have"
        raise FlashladderError(f"{what} where it goes", where=f"address {instruction.address:#x}", found=instruction)
    if (
        index + 1 < len(sass.instructions)
        and not never_falls_through(instruction)
        and not (targets and kind == "jumps")
    ):
        yield index + 1, "falls"
    yield from ((sass.index[target], kind) for target in targets if target in sass.index)


def _kind(branch: Instruction, *, returns: bool) -> Kind:
    """What a branch's edge is; `returns`: whether a call may come back."""
    if branch.opcode_class == "CALL":
        return "calls" if returns else "branches" if branch.predicate else "jumps"
    if branch.opcode.startswith(_DIVERGENT):
        return "diverges"
    return "jumps" if never_falls_through(branch) and branch.opcode_class not in INDIRECT else "branches"


PROLOGUE, PEELED, LOOP, LAST, EPILOGUE = "prologue", "peeled block", "main loop", "last block", "epilogue"
UNREACHED = "unreached"
REGIONS = (PROLOGUE, PEELED, LOOP, LAST, EPILOGUE, UNREACHED)
"""In the order in which they run; `UNREACHED` never does."""


@dataclass(frozen=True)
class Regions:
    """A kernel's graph with the region of each of its blocks; a block begins where a region does."""

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
    """A kernel's graph and regions. Without a loop, all that can run is prologue.

    Raises:
        FlashladderError: as `graph_of`.
    """
    flow = graph_of(sass)
    loop = flow.main_loop
    if loop is None:
        return Regions(flow, tuple(PROLOGUE if block in flow.reachable else UNREACHED for block in flow.indices))
    before, after = _sides(flow, loop)
    peeled = next((block for block in sorted(before) if flow.tensor(block)), None)
    start = None if peeled is None else _first_of(flow, peeled)
    ends = [1 + max(flow.tensor_places(block)) for block in after if flow.tensor(block)]
    cuts = [cut for cut in ends if cut < len(sass.instructions)] + ([] if start is None else [start])
    flow = graph_of(sass, cuts) if cuts else flow
    return Regions(flow, tuple(_names(flow, start)))


def _sides(flow: Flow, loop: Loop) -> tuple[frozenset[int], frozenset[int]]:
    """Blocks before a loop and after it, within one round of the loops around it; neither holds the loop's own."""
    forward = [
        tuple(target for target in targets if not (source in flow.reachable and flow.dominates(target, source)))
        for source, targets in enumerate(flow.successors)
    ]
    after = reached(loop.nodes, forward) - loop.nodes
    return flow.reachable - after - loop.nodes, after


def _names(flow: Flow, start: int | None) -> Iterable[str]:
    """The region of each block; `start` is the instruction with which the peeled block begins."""
    loop = flow.main_loop
    assert loop is not None  # cutting a block in two loses no loop
    before, after = _sides(flow, loop)
    peeled = next((block.index for block in flow.blocks if block.begin == start), None)
    last = reached((block for block in after if flow.tensor(block)), flow.predecessors) & after
    for block in flow.indices:
        if block in before:
            yield PEELED if peeled is not None and flow.dominates(peeled, block) else PROLOGUE
        elif block in after:
            yield LAST if block in last else EPILOGUE
        else:
            yield LOOP if block in loop.nodes else UNREACHED


def _first_of(flow: Flow, block: int) -> int:
    """Where the KV block begins whose first tensor instructions stand in `block`: see the head of this file."""
    place, at = min(flow.tensor_places(block)), block
    while True:
        begin = flow.blocks[at].begin
        if (barrier := _last(flow, "BAR", begin, place)) is not None:
            wait = _last(flow, "DEPBAR", begin, barrier)
            return barrier if wait is None or _last(flow, "BAR", wait, barrier) is not None else wait
        above = flow.dominators[at]
        if above is None:
            return flow.blocks[block].begin
        place, at = flow.blocks[above].end, above


def _last(flow: Flow, opcode: str, begin: int, end: int) -> int | None:
    """The last instruction of a class from `begin` to before `end`."""
    code = flow.sass.instructions
    return next((i for i in range(end - 1, begin - 1, -1) if code[i].opcode_class == opcode), None)
