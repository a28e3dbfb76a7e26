"""The control-flow graph of a kernel: basic blocks of machine code, the edges between them, dominators and loops.

Why: what stands inside the loop over KV blocks runs hundreds of times, what stands outside once. ``nvdisasm -cfg``
draws such a graph for people; here it is data, made of the instructions that `flashladder.machine_code.sass` read.

A branch that is taken only where the threads of a warp have parted (``BRA.DIV``, ``BRA.CONV``) is an edge of its own
kind: a warp that runs together never takes it. BSSY, BSYNC and WARPSYNC wait and move nobody: they are no edges. ptxas
writes some branches as ``CALL.REL.NOINC``; in a kernel without RET no call comes back, and they are what they seem.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from flashladder.errors import FlashladderError
from flashladder.machine_code.flow import dominance
from flashladder.machine_code.flow.dominance import Loop
from flashladder.machine_code.sass import BYTES, INDIRECT, TENSOR, Instruction, Sass, never_falls_through

Kind = Literal["falls", "jumps", "branches", "diverges", "calls"]
"""How control goes along an edge: to the next instruction, always elsewhere, elsewhere if a predicate says so,
elsewhere where threads of a warp have parted, into a function that comes back."""

_DIVERGENT = ("BRA.DIV", "BRA.CONV")
_MUST_LEAD = INDIRECT | {"BRA", "JMP"}  # to instructions of this kernel


@dataclass(frozen=True)
class Block:
    """Instructions that run one after the other.

    Attributes:
        index: of the block, in order of address.
        begin: of its instructions in `Sass.instructions`; `end` is behind its last one.
        label: where branches to it go; empty where there are none.
    """

    index: int
    begin: int
    end: int
    label: str = ""

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
        return dominance.backward(self.successors)

    @cached_property
    def reachable(self) -> frozenset[int]:
        """Blocks that can run; the trap and the padding behind the last instruction cannot."""
        return dominance.reached([0], self.successors)

    @cached_property
    def dominators(self) -> tuple[int | None, ...]:
        """For each block its immediate dominator: the last block that must have run; None for the first."""
        return dominance.immediate_dominators(self.successors)

    def dominates(self, first: int, second: int) -> bool:
        """Whether `second` runs only after `first`; a block dominates itself."""
        return dominance.dominates(self.dominators, first, second)

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """Natural loops, in order of their header's address."""
        return dominance.natural_loops(self.successors, self.dominators)

    @cached_property
    def is_reducible(self) -> bool:
        """Whether `loops` are all the loops that there are."""
        return dominance.is_reducible(self.successors, self.dominators)

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
        found = Counter(one.opcode_class for block in blocks for one in self.code(block))
        return {"total": sum(found.values()), **dict(sorted(found.items()))}


def graph_of(sass: Sass, cuts: Collection[int] = ()) -> Flow:
    """The graph of a kernel, its blocks as large as can be.

    Args:
        sass: the kernel.
        cuts: indices of instructions at which a block begins in any case.

    Raises:
        FlashladderError: instructions are missing, a branch goes where there are none, or an indirect one does not say
            where it may go.
    """
    _require_no_gap(sass)
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


def _require_no_gap(sass: Sass) -> None:
    first = sass.instructions[0].address if sass.instructions else 0
    for place, instruction in enumerate(sass.instructions):
        if instruction.address != (expected := first + place * BYTES):
            raise FlashladderError(
                "instructions are missing", expected=f"one at address {expected:#x}", found=f"{instruction.address:#x}"
            )


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
