"""Cases of mbarriers: every spelling of arrivals and waits, counts, bytes, phases, states.

Each block initialises one, its threads leave a word each in shared memory, meet there, and read what a thread of
another warp left: a wait that does not wait reads an old word. Expectations are permutations and small sums.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from tests.cases.harness import Case, sample

from ptxemu.values import Array

Typed: TypeAlias = dict[str, tuple[str, Array]]  # operand name -> (PTX type, values)
N = 128
T = np.arange(N)
HEAD = """.shared .align 8 .b64 bar;
.shared .align 4 .b32 words[128];
.reg .b32 %t, %bar, %place, %other, %word, %phase, %n;
.reg .b64 %gbar, %state;
.reg .pred %first, %done;
mov.u32 %t, %tid.x;
mov.u32 %bar, bar;
cvt.u64.u32 %gbar, %bar;
cvta.shared.u64 %gbar, %gbar;
setp.eq.u32 %first, %t, 0;
mov.u32 %place, words;
mad.lo.u32 %other, %t, -4, %place;
add.u32 %other, %other, 508;
mad.lo.u32 %place, %t, 4, %place;
"""
SPACES = ("", ".shared", ".shared::cta")
RELEASES = ("", ".release.cta", ".release.cluster", ".relaxed.cta", ".relaxed.cluster")
ACQUIRES = ("", ".acquire.cta", ".acquire.cluster", ".relaxed.cta", ".relaxed.cluster")
ARRIVE, WAIT = "mbarrier.arrive.shared::cta.b64", "mbarrier.try_wait.parity.shared::cta.b64"


def begin(count: int) -> str:
    """The head, and thread 0 initialises the mbarrier."""
    return f"{HEAD}@%first mbarrier.init.shared::cta.b64 [%bar], {count};\nbar.sync 0;\n"


def at(opcode: str) -> str:
    """The mbarrier's address as an opcode takes it: generic where it names no state space."""
    return "%bar" if ".shared" in opcode else "%gbar"


def waiting(opcode: str, phase: str, label: str = "again", more: str = "") -> str:
    """A loop until the phase (a parity, or the register of a state) is complete."""
    return f"{label}:\n{opcode} %done, [{at(opcode)}], {phase}{more};\n@!%done bra {label};\n"


def exchange(opcode: str, arrive: str, wait: str, phase: str = "0", *, fenced: bool = False, more: str = "") -> Case:
    """Threads swap words across the block: thread t reads that of 127 - t."""
    a = sample("b32", N, opcode)
    fence = "fence.acq_rel.cta;\n" if fenced else ""
    text = f"{begin(N)}st.shared.b32 [%place], a;\n{fence}{arrive}\n{waiting(wait, phase, more=more)}{fence}"
    text += "ld.shared.b32 d, [%other];"
    return hopper(opcode, text, {"a": ("b32", a)}, {"d": ("b32", a[::-1].copy())})


def hopper(opcode: str, text: str, inputs: Typed, expected: Typed, cluster: int = 1) -> Case:
    """A case for sm_90a; outputs by name with type and expectation."""
    kinds = {name: kind for name, (kind, _) in expected.items()}
    wanted = {name: array for name, (_, array) in expected.items()}
    return Case(opcode, text, inputs, kinds, wanted, target="sm_90a", version="8.6", cluster=cluster)


def arrivals() -> list[Case]:
    """Every spelling of an arrival; a relaxed one orders nothing by itself."""
    found = []
    for sem in RELEASES:
        for space in SPACES:
            opcode = f"mbarrier.arrive{sem}{space}.b64"
            fenced = ".relaxed" in sem
            found.append(exchange(opcode, f"{opcode} _, [{at(opcode)}];", WAIT, fenced=fenced))
            state = f"{opcode} %state, [{at(opcode)}];"
            wait = "mbarrier.test_wait.shared::cta.b64"
            found.append(exchange(opcode, state, wait, "%state", fenced=fenced))
            opcode = f"mbarrier.arrive.expect_tx{sem}{space}.b64"
            text = f"{opcode} _, [{at(opcode)}], 12;\nmbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%bar], 12;"
            found.append(exchange(opcode, text, WAIT, fenced=fenced))
    return found


def waits() -> list[Case]:
    """Every spelling of a wait, by parity and by state."""
    found = []
    for kind in ("try_wait", "test_wait"):
        for sem in ACQUIRES:
            for space in SPACES:
                opcode = f"mbarrier.{kind}.parity{sem}{space}.b64"
                found.append(exchange(opcode, f"{ARRIVE} _, [%bar];", opcode, fenced=".relaxed" in sem))
                opcode = f"mbarrier.{kind}{sem}{space}.b64"
                arrive = f"{ARRIVE} %state, [%bar];"
                found.append(exchange(opcode, arrive, opcode, "%state", fenced=".relaxed" in sem))
    hint = "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64"
    found.append(exchange(hint, f"{ARRIVE} _, [%bar];", hint, more=", 1000"))
    return found


def phases() -> list[Case]:
    """Several phases of one mbarrier: words wander around the block, by eight threads per phase."""
    a = sample("b32", N, "phases")
    text = (
        begin(N)
        + """
mov.b32 d, a;
mov.u32 %phase, 0;
mov.u32 %n, 0;
round:
st.shared.b32 [%place], d;
bar.sync 0;
mbarrier.arrive.shared::cta.b64 _, [%bar];
"""
    )
    text += waiting(WAIT, "%phase")
    text += """
add.u32 %other, %t, 8;
and.b32 %other, %other, 127;
shl.b32 %other, %other, 2;
mov.u32 %word, words;
add.u32 %other, %other, %word;
ld.shared.b32 d, [%other];
xor.b32 %phase, %phase, 1;
bar.sync 1;
add.u32 %n, %n, 1;
setp.lt.u32 %done, %n, 5;
@%done bra round;"""
    wandered = hopper(WAIT, text, {"a": ("b32", a)}, {"d": ("b32", np.roll(a, -40))})
    return [wandered, *dropped(), *looks()]


def dropped() -> list[Case]:
    """The first two warps leave after a phase: later ones take half as many arrivals."""
    found = []
    a = sample("b32", N, "drop")
    half = np.where(T < 64, a, a[::-1])
    for sem in RELEASES:
        opcode = f"mbarrier.arrive_drop{sem}.shared::cta.b64"
        text = (
            begin(N)
            + f"""
.reg .pred %early;
setp.lt.u32 %early, %t, 64;
mov.b32 d, a;
st.shared.b32 [%place], a;
fence.acq_rel.cta;
@%early {opcode} _, [%bar];
@%early bra gone;
{ARRIVE} _, [%bar];
{waiting(WAIT, "0")}
{ARRIVE} _, [%bar];
{waiting(WAIT, "1", "once_more")}
fence.acq_rel.cta;
ld.shared.b32 d, [%other];
gone:"""
        )
        found.append(hopper(opcode, text, {"a": ("b32", a)}, {"d": ("b32", half)}))
    return found


def looks() -> list[Case]:
    """One thread looks before and after the last arrival; counts of states; bytes before they are announced."""
    one, zero = np.ones(32, np.uint32), np.zeros(32, np.uint32)
    number = {"a": ("b32", sample("b32", 32, "looks"))}
    alone = HEAD + "@!%first bra end;\nmbarrier.init.shared::cta.b64 [%bar], 10;\n"
    first = np.arange(32) == 0
    found = []
    for kind in ("try_wait", "test_wait"):
        opcode = f"mbarrier.{kind}.parity.shared::cta.b64"
        text = f"""mov.u32 d, 0;\nmov.u32 e, 0;\nmov.u32 f, 0;\n{alone}
mbarrier.arrive.shared::cta.b64 _, [%bar], 9;
{opcode} %done, [%bar], 0;
selp.u32 d, 1, 0, %done;
{opcode} %done, [%bar], 1;
selp.u32 e, 1, 0, %done;
mbarrier.arrive.shared::cta.b64 _, [%bar];
{opcode} %done, [%bar], 0;
selp.u32 f, 1, 0, %done;
end:"""
        before = {"d": ("b32", zero), "e": ("b32", one * first), "f": ("b32", one * first)}
        found.append(hopper(opcode, text, number, before))
    found.append(counted(alone, number, first))
    text = f"""mov.u32 d, 0;\nmov.u32 e, 0;\n{alone}
mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%bar], 64;
mbarrier.arrive.shared::cta.b64 _, [%bar], 9;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 96;
{WAIT} %done, [%bar], 0;
selp.u32 d, 1, 0, %done;
mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%bar], 8;
mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%bar], 40;
{WAIT} %done, [%bar], 0;
selp.u32 e, 1, 0, %done;
end:"""
    after = {"d": ("b32", zero), "e": ("b32", one * first)}
    found.append(hopper("mbarrier.expect_tx.relaxed.cta.shared::cta.b64", text, number, after))
    return found


def counted(alone: str, number: Typed, first: Array) -> Case:
    """The pending counts of the states that three arrivals find."""
    text = f"""mov.u32 d, 0;\nmov.u32 e, 0;\nmov.u32 f, 0;\n{alone}
mbarrier.arrive.shared::cta.b64 %state, [%bar], 3;
mbarrier.pending_count.b64 d, %state;
mbarrier.arrive.noComplete.shared::cta.b64 %state, [%bar], 2;
mbarrier.pending_count.b64 e, %state;
mbarrier.arrive.shared::cta.b64 %state, [%bar];
mbarrier.pending_count.b64 f, %state;
mbarrier.inval.shared::cta.b64 [%bar];
end:"""
    counts = {
        name: ("b32", np.where(first, count, 0).astype(np.uint32))
        for name, count in zip("def", (10, 7, 5), strict=True)
    }
    return hopper("mbarrier.pending_count.b64", text, number, counts)


CASES = [*arrivals(), *waits(), *phases()]
