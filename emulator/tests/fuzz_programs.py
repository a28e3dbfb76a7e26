"""Random structured programs: what they are made of, and how one is drawn from a `random.Random`.

A program is a list of phases. Within a phase every thread runs on its own (`Statement`s, which may diverge); between
phases threads meet: they exchange words through shared memory at barriers, vote, or repeat phases a number of rounds
that the block chooses. `fuzz_ptx` writes a program as PTX, `fuzz_threads` runs it thread by thread in plain Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TypeAlias, Union

from tests.fuzz_operations import M32, OPERATIONS, Operation

REGISTERS = {
    "r": [f"%a{i}" for i in range(6)],
    "d": [f"%b{i}" for i in range(3)],
    "f": [f"%c{i}" for i in range(3)],
    "p": [f"%q{i}" for i in range(4)],
    "h": [f"%h{i}" for i in range(2)],
}
STARTS = ("tid", "block", "constant", "mixed", "lane")  # where a 32-bit register begins
NUMBERS = (0, 1, 2, 3, 7, 31, 32, 33, 63, 255, 0x7FFFFFFF, 0x80000000, M32)
LOOPS = ("while", "do", "rotated", "middle")
SLOTS = 3  # words that a thread may store while it runs
MEETINGS = ("exchange", "ballot", "first lane", "sum", "count")


@dataclass(frozen=True)
class Test:
    """A predicate register, or its complement."""

    register: str
    negated: bool


@dataclass(frozen=True)
class Do:
    """An operation, for the threads whose guard holds."""

    operation: Operation
    to: tuple[str, ...]
    sources: tuple[str | int, ...]
    guard: Test | None


@dataclass(frozen=True)
class Store:
    """A word for the host."""

    slot: int
    source: str
    guard: Test | None


@dataclass(frozen=True)
class If:
    """Two ways."""

    test: Test
    then: tuple[Statement, ...]
    other: tuple[Statement, ...]


@dataclass(frozen=True)
class Loop:
    """A body that a thread runs `source` & `mask` times (a ``do`` loop at least once)."""

    style: str
    source: str
    mask: int
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Leave:
    """Ends a round (``continue``), a loop (``break``) or the thread (``ret``, ``exit``), where the guard holds."""

    how: str
    guard: Test | None


@dataclass(frozen=True)
class Web:
    """Blocks that jump to each other anywhere, entered at two places, until the fuel is spent: irreducible loops.

    `nodes`: (statements, test, node where it holds, node where it does not); the first one is the entry's way.
    """

    fuel: int
    nodes: tuple[tuple[tuple[Statement, ...], Test, int, int], ...]


Statement: TypeAlias = Union[Do, Store, If, Loop, Leave, Web]  # noqa: UP007 - evaluated at run time


@dataclass(frozen=True)
class Meeting:
    """Threads of a block or a warp meet: one of `MEETINGS`, from register to register."""

    kind: str
    to: str
    source: str
    shift: int


@dataclass(frozen=True)
class Rounds:
    """Phases repeated `least` times, plus the block's number modulo `spread`; `tail` may begin the next round early."""

    least: int
    spread: int
    phases: tuple[Phase, ...]
    tail: tuple[Statement, ...]


Phase: TypeAlias = Union[tuple[Statement, ...], Meeting, Rounds]  # noqa: UP007 - evaluated at run time


@dataclass(frozen=True)
class Program:
    """`starts`: how each register begins; `phases`; `last`: statements with early exits; `kept`: registers stored."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    starts: dict[str, tuple[str, int]]
    phases: tuple[Phase, ...]
    last: tuple[Statement, ...]
    kept: tuple[str, ...]

    @property
    def threads(self) -> int:
        """Threads of a block."""
        x, y, z = self.block
        return x * y * z

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        x, y, z = self.grid
        return x * y * z


class Author:
    """Writes random programs."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.room = random.choice((4, 8, 16, 30))  # statements left
        self.depth = 0

    def program(self) -> Program:
        """One program with its launch."""
        choose = self.random.choice
        block = choose(((32, 1, 1), (40, 1, 1), (8, 3, 2), (64, 1, 1), (5, 1, 1), (16, 2, 3), (33, 2, 1)))
        starts = {
            name: (choose(STARTS), choose((*NUMBERS, self.random.getrandbits(32))))
            for names in REGISTERS.values()
            for name in names
        }
        phases = self._phases(self.random.randint(0, 4))
        last = self._statements(frozenset({"ret", "exit"}), least=2)
        kept = [name for names in REGISTERS.values() for name in names if self.random.random() < 0.6]
        grid = choose(((1, 1, 1), (2, 1, 1), (3, 1, 1), (1, 2, 2)))
        return Program(grid, block, starts, phases, last, tuple(kept))

    def _phases(self, count: int) -> tuple[Phase, ...]:
        phases: list[Phase] = []
        for _ in range(count):
            what = self.random.random()
            if what < 0.35:
                shift = self.random.choice((1, 31, 32, 5))
                phases.append(Meeting(self.random.choice(MEETINGS), self._register("r"), self._register("r"), shift))
            elif what < 0.55 and self.depth < 2:
                self.depth += 1
                inner = self._phases(self.random.randint(1, 3))
                tail = self._statements(frozenset({"continue"}))
                self.depth -= 1
                phases.append(Rounds(self.random.randint(1, 2), self.random.randint(1, 3), inner, tail))
            else:
                phases.append(self._statements(frozenset()))
        return tuple(phases)

    def _register(self, kind: str) -> str:
        return self.random.choice(REGISTERS[kind])

    def _test(self) -> Test:
        return Test(self._register("p"), self.random.random() < 0.5)

    def _guard(self) -> Test | None:
        return self._test() if self.random.random() < 0.3 else None

    def _statements(self, ways: frozenset[str], least: int = 1) -> tuple[Statement, ...]:
        """Statements among which a `Leave` of these ways may stand."""
        found: list[Statement] = []
        for _ in range(self.random.randint(least, 6)):
            self.room -= 1
            what = self.random.random() if self.room > 0 and self.depth < 4 else 1.0
            self.depth += 1
            if what < 0.12:
                other = self._statements(ways) if self.random.random() < 0.6 else ()
                found.append(If(self._test(), self._statements(ways), other))
            elif what < 0.22:
                body = self._statements(ways | {"break", "continue"})
                mask = self.random.choice((1, 3, 3, 7))
                found.append(Loop(self.random.choice(LOOPS), self._register("r"), mask, body))
            elif what < 0.27:
                found.append(self._web())
            elif what < 0.37 and ways:
                found.append(
                    Leave(self.random.choice(sorted(ways)), self._test() if self.random.random() < 0.9 else None)
                )
            elif what < 0.42:
                found.append(Store(self.random.randrange(SLOTS), self._register("r"), self._guard()))
            else:
                found.append(self._do())
            self.depth -= 1
        return tuple(found)

    def _web(self) -> Web:
        count = self.random.randint(2, 4)
        nodes = tuple(
            (
                tuple(self._do() for _ in range(self.random.randint(0, 2))),
                self._test(),
                self.random.randrange(count),
                self.random.randrange(count),
            )
            for _ in range(count)
        )
        return Web(self.random.randint(1, 9), nodes)

    def _do(self) -> Do:
        operation = self.random.choice(OPERATIONS)
        to: list[str] = []
        for kind in operation.to:
            to.append(self.random.choice([name for name in REGISTERS[kind] if name not in to]))
        sources = tuple(
            self.random.choice(NUMBERS) if kind == "r" and self.random.random() < 0.2 else self._register(kind)
            for kind in operation.sources
        )
        return Do(operation, tuple(to), sources, self._guard())
