"""Cases of mbarriers: every spelling of arrivals and waits, counts, bytes, phases, states.

Each block initialises one, its threads leave a word each in shared memory, meet there, and read what a thread of
another warp left: a wait that does not wait reads an old word. Expectations are permutations and small sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

import numpy as np
from tests.cases.harness import Case, Typed, given, named, sample, text_of

hopper = partial(given, target="sm_90a", version="8.6")
N = 128
HEAD = text_of("mbarrier")
BEGIN = f"{HEAD}@%first mbarrier.init.shared::cta.b64 [%bar], {N};\nbar.sync 0;\n"
SPACES = ("", ".shared", ".shared::cta")
RELEASES = ("", ".release.cta", ".release.cluster", ".relaxed.cta", ".relaxed.cluster")
ACQUIRES = ("", ".acquire.cta", ".acquire.cluster", ".relaxed.cta", ".relaxed.cluster")
ARRIVE, WAIT = "mbarrier.arrive.shared::cta.b64", "mbarrier.try_wait.parity.shared::cta.b64"
COMPLETE = "mbarrier.complete_tx.relaxed.cta.shared::cta.b64"


def at(opcode: str) -> str:
    """The mbarrier's address as an opcode takes it: generic where it names no state space."""
    return "%bar" if ".shared" in opcode else "%gbar"


def waiting(opcode: str, phase: str, label: str = "again", more: str = "") -> str:
    """A loop until the phase (a parity, or the register of a state) is complete."""
    return f"{label}:\n{opcode} %done, [{at(opcode)}], {phase}{more};\n@!%done bra {label};\n"


def exchange(opcode: str, arrive: str, wait: str, phase: str = "0", more: str = "") -> Case:
    """Threads swap words across the block, t reads that of 127 - t; a relaxed operation orders nothing by itself."""
    a = sample("b32", N, opcode)
    fence = "fence.acq_rel.cta;\n" if ".relaxed" in opcode else ""
    text = f"{BEGIN}st.shared.b32 [%place], a;\n{fence}{arrive}\n{waiting(wait, phase, more=more)}{fence}"
    return hopper(opcode, f"{text}ld.shared.b32 d, [%other];", named("b32", a), {"d": ("b32", a[::-1].copy())})


def arrivals() -> Iterator[Case]:
    for sem, space in product(RELEASES, SPACES):
        opcode = f"mbarrier.arrive{sem}{space}.b64"
        yield exchange(opcode, f"{opcode} _, [{at(opcode)}];", WAIT)
        yield exchange(opcode, f"{opcode} %state, [{at(opcode)}];", "mbarrier.test_wait.shared::cta.b64", "%state")
        opcode = f"mbarrier.arrive.expect_tx{sem}{space}.b64"
        yield exchange(opcode, f"{opcode} _, [{at(opcode)}], 12;\n{COMPLETE} [%bar], 12;", WAIT)


def waits() -> Iterator[Case]:
    """Every spelling of a wait, by parity and by state."""
    for kind, sem, space in product(("try_wait", "test_wait"), ACQUIRES, SPACES):
        opcode = f"mbarrier.{kind}.parity{sem}{space}.b64"
        yield exchange(opcode, f"{ARRIVE} _, [%bar];", opcode)
        opcode = f"mbarrier.{kind}{sem}{space}.b64"
        yield exchange(opcode, f"{ARRIVE} %state, [%bar];", opcode, "%state")
    hint = "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64"
    yield exchange(hint, f"{ARRIVE} _, [%bar];", hint, more=", 1000")


def phases() -> Case:
    """Several phases of one mbarrier: words wander around the block, by eight threads per phase."""
    a = sample("b32", N, "phases")
    text = text_of("phases", begin=BEGIN, wait=waiting(WAIT, "%phase"))
    return hopper(WAIT, text, named("b32", a), {"d": ("b32", np.roll(a, -40))})


def dropped(sem: str) -> Case:
    """The first two warps leave after a phase: later ones take half as many arrivals."""
    a, opcode = sample("b32", N, "drop"), f"mbarrier.arrive_drop{sem}.shared::cta.b64"
    waits_ = {"first": waiting(WAIT, "0"), "second": waiting(WAIT, "1", "once_more")}
    text = text_of("dropped", begin=BEGIN, opcode=opcode, arrive=ARRIVE, **waits_)
    return hopper(opcode, text, named("b32", a), {"d": ("b32", np.where(np.arange(N) < 64, a, a[::-1]))})


def alone(opcode: str, body: str, *answers: int) -> Case:
    """One thread uses an mbarrier of ten arrivals; its answers are d, e, f, those of the others 0."""
    number, names = named("b32", sample("b32", 32, "looks")), "def"[: len(answers)]
    begin = "\n".join(f"mov.u32 {name}, 0;" for name in names)
    text = f"{begin}\n{HEAD}@!%first bra end;\nmbarrier.init.shared::cta.b64 [%bar], 10;\n\n{body}\nend:"
    first = np.arange(32) == 0
    results: Typed = {
        name: ("b32", (first * answer).astype(np.uint32)) for name, answer in zip(names, answers, strict=True)
    }
    return hopper(opcode, text, number, results)


def looks() -> Iterator[Case]:
    """Looks before and after the last arrival; counts of states; bytes before they are announced."""

    def look(opcode: str, phase: int, name: str) -> str:
        return f"{opcode} %done, [%bar], {phase};\nselp.u32 {name}, 1, 0, %done;"

    for kind in ("try_wait", "test_wait"):
        opcode = f"mbarrier.{kind}.parity.shared::cta.b64"
        first, last = f"{look(opcode, 0, 'd')}\n{look(opcode, 1, 'e')}", look(opcode, 0, "f")
        yield alone(opcode, f"{ARRIVE} _, [%bar], 9;\n{first}\n{ARRIVE} _, [%bar];\n{last}", 0, 1, 1)
    count = "mbarrier.pending_count.b64"
    counts = f"""{ARRIVE} %state, [%bar], 3;
{count} d, %state;
mbarrier.arrive.noComplete.shared::cta.b64 %state, [%bar], 2;
{count} e, %state;
{ARRIVE} %state, [%bar];
{count} f, %state;
mbarrier.inval.shared::cta.b64 [%bar];"""
    yield alone(count, counts, 10, 7, 5)
    expect = "mbarrier.expect_tx.relaxed.cta.shared::cta.b64"
    text = f"""{COMPLETE} [%bar], 64;
{ARRIVE} _, [%bar], 9;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 96;
{look(WAIT, 0, "d")}
{expect} [%bar], 8;
{COMPLETE} [%bar], 40;
{look(WAIT, 0, "e")}"""
    yield alone(expect, text, 0, 1)


CASES = [*arrivals(), *waits(), phases(), *map(dropped, RELEASES), *looks()]
