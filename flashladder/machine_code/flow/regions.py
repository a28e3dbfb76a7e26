"""What a kernel's blocks are for: prologue, peeled first KV block, main loop, last block, epilogue.

Why: a step that peels the first KV block doubles the code and shortens the loop; counts of the whole kernel cannot tell
the two apart. The loop is `Flow.main_loop`; what runs before and after it is told apart by tensor instructions: a block
of S = Q K^T and O += P V outside of the loop is a peeled KV block.

In a straight line of code the peeled block begins where its first tile has landed: at the barrier before its first
tensor instruction, and the wait for copies before that. Where tensor instructions follow the loop, the last block ends
behind them.

Try ``regions_of(disassemble(cubin)).of(PEELED)``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flashladder.machine_code.flow.dominance import Loop, reached
from flashladder.machine_code.flow.graph import Flow, graph_of
from flashladder.machine_code.sass import Instruction, Sass

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
