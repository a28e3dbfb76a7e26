"""How often each block of a kernel runs in a warp, from the kernel's parameters alone.

Why: counts of a listing say what a step changed, counts of what runs say what that is worth. Branches of a kernel whose
loops are counted by its parameters follow from a few integer instructions (`flashladder.machine_code.flow.uniform`), so
that no trip count has to be believed: the kernel is walked through, block by block. Threads of a warp are taken to stay
together.

A vote of the warp on data (`VOTE.ANY`) is the one thing that the parameters do not decide and a kernel branches on: to
leave out what no lane needs. It is taken to be left out in every block; with `asked` it is done in every block. A
launch lies between the two, which the emulator can tell (tests/nvcc/test_executions.py), and this cannot.

Try ``run(regions_of(sass).flow, {0x1e0: 64}).counts()``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from flashladder.errors import FlashladderError
from flashladder.machine_code.flow.dominance import Loop
from flashladder.machine_code.flow.formulas import is_vote
from flashladder.machine_code.flow.graph import Flow
from flashladder.machine_code.flow.uniform import Step, deciding, step_of
from flashladder.machine_code.flow.values import (
    Constants,
    Reader,
    Reading,
    Values,
    operands,
)
from flashladder.machine_code.sass import Instruction

LIMIT = 1_000_000  # blocks; a kernel of the ladder runs a few hundred


@dataclass(frozen=True)
class Executions:
    """What one warp of a kernel runs.

    Attributes:
        flow: the kernel.
        blocks: how often each block runs.
        edges: how often control goes from one block to another.
        off: how often each instruction is passed with a predicate that is false, by its place in `Sass.instructions`.
        unknown: places of instructions whose predicate is not known; they are taken to run.
        votes: places of votes that were passed: what they say was taken for granted.
    """

    flow: Flow
    blocks: tuple[int, ...]
    edges: Mapping[tuple[int, int], int]
    off: Mapping[int, int]
    unknown: frozenset[int]
    votes: frozenset[int] = frozenset()

    def of(self, block: int) -> Iterator[tuple[Instruction, int]]:
        """Each instruction of a block with how often it takes effect."""
        begin = self.flow.blocks[block].begin
        for place, instruction in enumerate(self.flow.code(block), begin):
            yield instruction, self.blocks[block] - self.off.get(place, 0)

    def counts(self, blocks: Collection[int] | None = None) -> Counter[str]:
        """Executed instructions by their full opcode, without those that their predicate switches off."""
        found: Counter[str] = Counter()
        for block in self.flow.indices if blocks is None else blocks:
            for instruction, times in self.of(block):
                found[instruction.opcode] += times
        return found

    def trips(self, loop: Loop) -> Fraction:
        """Rounds of a loop for each time that it is entered; 0 where it never is."""
        rounds = self.blocks[loop.header]
        entries = rounds - sum(self.edges.get((latch, loop.header), 0) for latch in loop.latches)
        return Fraction(rounds, entries) if entries else Fraction(0)


def run(flow: Flow, constants: Constants, limit: int = LIMIT, *, asked: bool = False) -> Executions:
    """Walks through a kernel as one warp does.

    Args:
        flow: the kernel.
        constants: the kernel's parameters, as 32-bit words of constant bank 0 by their offset there.
        limit: blocks after which it is taken never to end.
        asked: whether some lane asks for the exception in every vote on data; else none ever does.

    Raises:
        FlashladderError: a branch depends on what `constants` do not decide, or the kernel does not end.
    """
    walk = _Walk(flow, constants, asked=asked)
    for _ in walk.blocks(limit):
        pass
    blocks = tuple(walk.visits[index] for index in flow.indices)
    return Executions(flow, blocks, walk.passed, walk.off, frozenset(walk.unknown), frozenset(walk.votes(blocks)))


def path(flow: Flow, constants: Constants, limit: int = LIMIT, *, asked: bool = False) -> Iterator[int]:
    """The blocks of a kernel in the order in which a warp runs them; arguments and errors as of `run`."""
    yield from _Walk(flow, constants, asked=asked).blocks(limit)


class _Walk:
    """A warp on its way: what is known to it, and where it has been."""

    def __init__(self, flow: Flow, constants: Constants, *, asked: bool) -> None:
        self.flow, self.constants = flow, constants
        self.values: Values = {}
        self.visits: Counter[int] = Counter()
        self.passed: Counter[tuple[int, int]] = Counter()
        self.off: Counter[int] = Counter()
        self.unknown: set[int] = set()
        self.steps = {
            place: step
            for place, one in enumerate(flow.sass.instructions)
            if (step := step_of(one, constants, asked=asked))
        }
        predicates = (
            f"{one.predicate} {one.operands if one.opcode_class == 'BRA' else ''}" for one in flow.sass.instructions
        )
        self.needed = deciding(list(self.steps.values()), predicates)
        self._read: dict[int, list[tuple[int, Reading | None, Step | None]]] = {}

    def blocks(self, limit: int) -> Iterator[int]:
        """Runs the kernel; its blocks in order."""
        block: int | None = 0
        for _ in range(limit):
            if block is None:
                return
            yield block
            block = self.through(block)
        raise FlashladderError("the kernel does not end", expected=f"an end within {limit:,} blocks")

    def votes(self, visits: Sequence[int]) -> Iterator[int]:
        """Places of votes, in blocks that run."""
        for block in self.flow.indices:
            for place, one in enumerate(self.flow.code(block), self.flow.blocks[block].begin):
                if visits[block] and is_vote(one, operands(one)):
                    yield place

    def through(self, block: int) -> int | None:
        """Runs a block; the next one, None at the end."""
        self.visits[block] += 1
        if block not in self._read:
            self._read[block] = list(self._steps(block))
        for place, guard, step in self._read[block]:
            if guard is not None and (runs := guard(self.values)) != 1:
                self.off[place] += runs == 0
                if runs is None:
                    self.unknown.add(place)
            if step is not None:
                step(self.values)
        target = self._next(block)
        if target is not None:
            self.passed[block, target] += 1
        return target

    def _steps(self, block: int) -> Iterator[tuple[int, Reading | None, Step | None]]:
        """What a block's instructions do to what decides a predicate, those that do nothing left out."""
        reader = Reader(self.constants)
        for place, instruction in enumerate(self.flow.code(block), self.flow.blocks[block].begin):
            guard = reader.value(instruction.predicate.removeprefix("@")) if instruction.predicate else None
            step = self.steps.get(place)
            if step is not None and step.written is not None and self.needed.isdisjoint(step.written):
                step = None
            if guard is not None or step is not None:
                yield place, guard, step

    def _next(self, block: int) -> int | None:
        """Where control goes behind a block; None where it ends."""
        leaving = {edge.kind: edge.target for edge in self.flow.edges_of(block)}
        last = self.flow.code(block)[-1]
        behind = leaving.get("falls")
        away = leaving.get("jumps", leaving.get("branches"))
        if not self.flow.sass.moves_control(last) or "diverges" in leaving:
            return behind
        if "calls" in leaving or len(self.flow.edges_of(block)) > 2:
            raise self._lost(last, "a call, or a branch to one of many places")
        reader = Reader(self.constants)
        texts = [last.predicate.removeprefix("@"), *operands(last)[:-1]]
        known = [reader.value(text)(self.values) for text in texts if text]
        if 0 in known:
            return behind
        if None in known:
            raise self._lost(last, "a predicate that the kernel's parameters do not decide")
        return away

    @staticmethod
    def _lost(branch: Instruction, found: str) -> FlashladderError:
        where = f"address {branch.address:#x}, {branch}"
        return FlashladderError(
            "which way a branch goes is not known", where=where, expected="one that all threads take alike", found=found
        )
