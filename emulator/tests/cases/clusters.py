"""Cases of clusters: remote loads, stores, atomics and arrivals, the cluster's barrier, ranks and special registers.

Two or four blocks of 128 threads; the partner of a block is the next one of its cluster. Expectations are permutations
of blocks and sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
from tests.cases.atomics import RULES
from tests.cases.harness import Case, named, sample, text_of
from tests.cases.mbarrier import hopper
from tests.cases.reference_int import column

from ptxemu.values import DTYPES, Array

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


CASES = [*remote(2), *remote(4), *ranks(2), *ranks(4), *barriers(), *asynchronous(), *roles()]
