"""Cases of mbarriers and clusters: every spelling of arrivals and waits, counts, bytes, phases, states.

Each block initialises one, its threads leave a word each in shared memory, meet there, and read what a thread of
another warp left: a wait that does not wait reads an old word. In clusters of two or four blocks the partner of a block
is the next one. Expectations are permutations and sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

import numpy as np
from tests.cases.atomics import RULES
from tests.cases.harness import Case, Typed, given, named, sample, text_of
from tests.cases.reference_int import column

from ptxemu.values import DTYPES, Array

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


THREADS = 128
MEET = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
TRY = "again:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %done, [%bar], 0;\n@!%done bra again;\n"
SHOW = "ld.shared.b32 d, [%place];"


def case(opcode: str, text: str, a: Array, size: int, kind: str = "b32", **results: Array) -> Case:
    """A case in clusters of `size` blocks, behind the addresses of a word here (%place) and in the next one (%peer)."""
    typed = {name: (kind, array) for name, array in results.items()}
    return hopper(opcode, text_of("clusters", size=size) + text, named(kind, a), typed, cluster=size)


def turned(a: Array, size: int, by: int) -> Array:
    """Each block's part replaced by that of the block `by` ranks on."""
    return np.roll(a.reshape(-1, size, THREADS), -by, axis=1).reshape(-1).copy()


def remote(size: int) -> Iterator[Case]:
    """The next block's words: loads, stores and atomics by 32-bit and by generic addresses; arrivals there."""
    n = 4 * THREADS
    a = sample("b32", n, f"remote {size}")
    before, after = turned(a, size, 1), turned(a, size, -1)
    for opcode in ("ld.shared::cluster.b32", "ld.relaxed.cluster.shared::cluster.b32",
                   "ld.volatile.shared::cluster.b32", "ld.b32", "ld.acquire.cluster.b32"):  # fmt: skip
        where = "%peer" if "shared" in opcode else "%gpeer"
        yield case(opcode, f"st.shared.b32 [%place], a;\n{MEET}{opcode} d, [{where}];\n{MEET}", a, size, d=before)
    for opcode in ("st.shared::cluster.b32", "st.relaxed.cluster.shared::cluster.b32", "st.b32",
                   "st.release.cluster.b32"):  # fmt: skip
        where = "%peer" if "shared" in opcode else "%gpeer"
        yield case(opcode, f"{MEET}{opcode} [{where}], a;\n{MEET}{SHOW}", a, size, d=after)
    wide = f"{MEET}st.shared::cluster.v4.b32 [%peer], {{a, a, %t, a}};\n{MEET}"
    wide += "ld.shared.b32 d, [%place+4];\nld.shared.b32 e, [%place+8];"
    threads = np.tile(np.arange(THREADS, dtype=np.uint32), 4)
    yield case("st.shared::cluster.v4.b32", wide, a, size, d=after, e=threads)
    small = (a >> np.uint32(8)).astype(np.uint32)
    sums = np.repeat(small.reshape(-1, THREADS).astype(np.uint64).sum(axis=1), THREADS)
    total = turned(sums, size, -1).astype(np.uint32)
    one = "mov.u32 %peer, words;\nmapa.shared::cluster.u32 %peer, %peer, %next;\n"
    for opcode in ("red.shared::cluster.add.u32", "red.relaxed.cluster.shared::cluster.add.u32"):
        text = f"mov.u32 d, 0;\nst.shared.b32 [%place], d;\n{one}{MEET}{opcode} [%peer], a;\n{MEET}"
        yield case(opcode, f"{text}mov.u32 %place, words;\n{SHOW}", small, size, "u32", d=total)
    five = np.full(n, 5, np.uint32)
    for opcode in ("atom.shared::cluster.exch.b32", "atom.acq_rel.cluster.shared::cluster.exch.b32"):
        text = f"st.shared.b32 [%place], a;\n{MEET}{opcode} d, [%peer], 5;\n{MEET}ld.shared.b32 e, [%place];"
        yield case(opcode, text, a, size, d=before, e=five)
    fence = "fence.acq_rel.cluster;\n"
    for sem, expects in product(("", ".release.cluster", ".relaxed.cluster"), ("", ".expect_tx")):
        opcode = f"mbarrier.arrive{expects}{sem}.shared::cluster.b64"
        told = "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%far], 4;\n" if expects else ""
        begin = f"@%first mbarrier.init.shared::cta.b64 [%bar], {THREADS};\nfence.mbarrier_init.release.cluster;\n"
        text = (
            f"{begin}{MEET}st.shared::cluster.b32 [%peer], a;\n{fence}{opcode} _, [%far]{', 4' if expects else ''};\n"
        )
        yield case(opcode, f"{text}{told}{TRY}{fence}{SHOW}\n{MEET}", a, size, d=after)


def asynchronous() -> Iterator[Case]:
    """Stores and reductions that tell the mbarrier of the block that they go to."""
    a = sample("b32", 2 * THREADS, "st.async")
    other = turned(a, 2, -1)
    path = "shared::cluster.mbarrier::complete_tx::bytes"

    def told(opcode: str, source: str, nbytes: int, kind: str = "b32", expected: Array = other) -> Case:
        names = {"opcode": opcode, "source": source, "kind": kind, "again": TRY}
        text = text_of("asynchronous", meet=MEET, bytes=THREADS * nbytes, last=nbytes - 4, **names)
        return case(opcode, text, a.view(DTYPES[kind]), 2, kind, d=expected)

    for suffix, source, nbytes in (
        ("b32", "a", 4), ("u32", "a", 4), ("b64", "%wide", 8), ("v2.b32", "{%t, a}", 8),
        ("v2.u64", "{%wide, %wide}", 16), ("v4.s32", "{%t, %t, %t, a}", 16),
    ):  # fmt: skip
        yield told(f"st.async.weak.{path}.{suffix}", source, nbytes)
    for suffix in ("add.u32", "add.s32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32", "inc.u32", "dec.u32"):
        name, kind = suffix.split(".")
        expected = column([RULES[name](100, each) for each in other.view(DTYPES[kind]).tolist()], kind)
        yield told(f"red.async.relaxed.cluster.{path}.{suffix}", "a", 4, kind, expected)


def ranks(size: int) -> Iterator[Case]:
    block, a = np.arange(4 * THREADS, dtype=np.uint32) // THREADS, sample("b32", 4 * THREADS, "ranks")
    registers: dict[str, Array | int] = {
        "cluster_ctarank": block % size, "cluster_ctaid.x": block % size, "cluster_nctarank": size,
        "cluster_nctaid.x": size, "cluster_nctaid.y": 1, "clusterid.x": block // size, "nclusterid.x": 4 // size,
        "clusterid.z": 0,
    }  # fmt: skip
    for name, value in registers.items():
        wanted = np.broadcast_to(value, len(block)).astype(np.uint32)
        yield hopper("mov.u32", f"mov.u32 d, %{name};", named("b32", a), {"d": ("b32", wanted)}, cluster=size)
    text = "getctarank.shared::cluster.u32 d, %peer;\ngetctarank.u64 e, %gpeer;\n"
    text += "getctarank.shared::cluster.u32 f, %place;"
    after = ((block + 1) % size).astype(np.uint32)
    yield case("getctarank.shared::cluster.u32", text, a, size, d=after, e=after, f=(block % size).astype(np.uint32))


def barriers() -> Iterator[Case]:
    """Every spelling of the cluster's barrier, with work between arrival and wait."""
    a = sample("b32", 2 * THREADS, "cluster barrier")
    threads = np.arange(2 * THREADS, dtype=np.uint32) % THREADS
    for sem, acquire, aligned in product(("", ".release", ".relaxed"), ("", ".acquire"), ("", ".aligned")):
        arrive, wait = f"barrier.cluster.arrive{sem}{aligned}", f"barrier.cluster.wait{acquire}{aligned}"
        fence = "fence.acq_rel.cluster;\n" if sem == ".relaxed" else ""
        text = f"st.shared.b32 [%place], a;\n{fence}{arrive};\nmov.u32 e, %t;\n{wait};\n"
        text += f"{fence}ld.shared::cluster.b32 d, [%peer];\n{arrive};\n{wait};"
        yield case(arrive, text, a, 2, d=turned(a, 2, 1), e=threads)


def roles() -> Iterator[Case]:
    """One elected lane per warp, of all lanes and of some; what dependent launches wait for."""
    lane, a = np.arange(256) % 32, sample("b32", 256, "elect")
    for mask in ("0xffffffff", "0x0000fff0"):
        inside = np.array([int(mask, 0) >> int(i) & 1 for i in lane], np.uint32)
        text = text_of("elect", mask=mask)
        results = {"d": ("b32", inside), "e": ("b32", inside * np.uint32(0))}
        yield hopper("elect.sync", text, named("b32", a), results)
    text = "griddepcontrol.wait;\nmov.b32 d, a;\ngriddepcontrol.launch_dependents;"
    yield hopper("griddepcontrol.wait", text, named("b32", a), {"d": ("b32", a)})


CLUSTERS = [*remote(2), *remote(4), *ranks(2), *ranks(4), *barriers(), *asynchronous(), *roles()]
CASES = {"mbarrier": [*arrivals(), *waits(), phases(), *map(dropped, RELEASES), *looks()], "clusters": CLUSTERS}
