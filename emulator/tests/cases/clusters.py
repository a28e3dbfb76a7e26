"""Cases of clusters: remote loads, stores, atomics and arrivals, the cluster's barrier, ranks and special registers.

Two or four blocks of 128 threads; the partner of a block is the next one of its cluster. Expectations are permutations
of blocks and sums.
"""

from __future__ import annotations

import numpy as np
from tests.cases.harness import Case, sample
from tests.cases.mbarrier import hopper

from ptxemu.values import DTYPES, Array

THREADS = 128
MEET = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"


def head(size: int) -> str:
    """Each thread's word of its own block (%place) and of the next one (%peer), the block's mbarrier and its peer's."""
    return f""".shared .align 16 .b32 words[512];
.shared .align 8 .b64 bar;
.reg .b32 %t, %rank, %next, %place, %peer, %bar, %far;
.reg .b64 %gplace, %gpeer;
.reg .pred %first, %done;
mov.u32 %t, %tid.x;
mov.u32 %rank, %cluster_ctarank;
add.u32 %next, %rank, 1;
rem.u32 %next, %next, {size};
mov.u32 %place, words;
mad.lo.u32 %place, %t, 16, %place;
mapa.shared::cluster.u32 %peer, %place, %next;
mov.u32 %bar, bar;
mapa.shared::cluster.u32 %far, %bar, %next;
cvt.u64.u32 %gplace, %place;
cvta.shared.u64 %gplace, %gplace;
mapa.u64 %gpeer, %gplace, %next;
setp.eq.u32 %first, %t, 0;
"""


def turned(a: Array, size: int, by: int) -> Array:
    """Each block's part replaced by that of the block `by` ranks on."""
    blocks = a.reshape(-1, size, THREADS)
    return np.roll(blocks, -by, axis=1).reshape(-1).copy()


def remote(size: int) -> list[Case]:
    """Loads of the next block's words, stores into them; by 32-bit and by generic addresses."""
    n = 2 * size * THREADS if size == 2 else size * THREADS
    a = sample("b32", n, f"remote {size}")
    found = []
    for opcode, where in (
        ("ld.shared::cluster.b32", "%peer"),
        ("ld.relaxed.cluster.shared::cluster.b32", "%peer"),
        ("ld.volatile.shared::cluster.b32", "%peer"),
        ("ld.b32", "%gpeer"),
        ("ld.acquire.cluster.b32", "%gpeer"),
    ):
        text = f"{head(size)}st.shared.b32 [%place], a;\n{MEET}{opcode} d, [{where}];\n{MEET}"
        found.append(hopper(opcode, text, {"a": ("b32", a)}, {"d": ("b32", turned(a, size, 1))}, size))
    for opcode, where in (
        ("st.shared::cluster.b32", "%peer"),
        ("st.relaxed.cluster.shared::cluster.b32", "%peer"),
        ("st.b32", "%gpeer"),
        ("st.release.cluster.b32", "%gpeer"),
    ):
        text = f"{head(size)}{MEET}{opcode} [{where}], a;\n{MEET}ld.shared.b32 d, [%place];"
        found.append(hopper(opcode, text, {"a": ("b32", a)}, {"d": ("b32", turned(a, size, -1))}, size))
    wide = f"{head(size)}{MEET}st.shared::cluster.v4.b32 [%peer], {{a, a, %t, a}};\n{MEET}"
    wide += "ld.shared.b32 d, [%place+4];\nld.shared.b32 e, [%place+8];"
    both = {"d": ("b32", turned(a, size, -1)), "e": ("b32", np.tile(np.arange(THREADS, dtype=np.uint32), n // THREADS))}
    found.append(hopper("st.shared::cluster.v4.b32", wide, {"a": ("b32", a)}, both, size))
    return [*found, *atomics(a, size), *arrivals(a, size)]


def atomics(a: Array, size: int) -> list[Case]:
    """All threads of the block add to one word of the next block, or to the same thread's word."""
    wrapped = (a >> np.uint32(8)).astype(np.uint32)
    sums = wrapped.reshape(-1, THREADS).astype(np.uint64).sum(axis=1)
    total = turned(np.repeat(sums, THREADS), size, -1).astype(np.uint32)
    one = "mov.u32 %peer, words;\nmapa.shared::cluster.u32 %peer, %peer, %next;\n"
    zero = "mov.u32 d, 0;\nst.shared.b32 [%place], d;\n"
    read = "mov.u32 %place, words;\nld.shared.b32 d, [%place];"
    inputs = {"a": ("u32", wrapped)}
    found = []
    for opcode in ("red.shared::cluster.add.u32", "red.relaxed.cluster.shared::cluster.add.u32"):
        text = f"{head(size)}{zero}{one}{MEET}{opcode} [%peer], a;\n{MEET}{read}"
        found.append(hopper(opcode, text, inputs, {"d": ("u32", total)}, size))
    for opcode in ("atom.shared::cluster.exch.b32", "atom.acq_rel.cluster.shared::cluster.exch.b32"):
        text = (
            f"{head(size)}st.shared.b32 [%place], a;\n{MEET}{opcode} d, [%peer], 5;\n{MEET}ld.shared.b32 e, [%place];"
        )
        after = {"d": ("b32", turned(a, size, 1)), "e": ("b32", np.full(a.size, 5, np.uint32))}
        found.append(hopper(opcode, text, {"a": ("b32", a)}, after, size))
    return found


def arrivals(a: Array, size: int) -> list[Case]:
    """Threads store into the next block and arrive there; each block waits for its own mbarrier."""
    found = []
    for sem in ("", ".release.cluster", ".relaxed.cluster"):
        for expects in ("", ".expect_tx"):
            opcode = f"mbarrier.arrive{expects}{sem}.shared::cluster.b64"
            fence = "fence.acq_rel.cluster;\n"
            bytes_of = ", 4" if expects else ""
            told = "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%far], 4;\n" if expects else ""
            text = f"""{head(size)}@%first mbarrier.init.shared::cta.b64 [%bar], {THREADS};
fence.mbarrier_init.release.cluster;
{MEET}st.shared::cluster.b32 [%peer], a;
{fence}{opcode} _, [%far]{bytes_of};
{told}again:
mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %done, [%bar], 0;
@!%done bra again;
{fence}ld.shared.b32 d, [%place];
{MEET}"""
            found.append(hopper(opcode, text, {"a": ("b32", a)}, {"d": ("b32", turned(a, size, -1))}, size))
    return found


def asynchronous() -> list[Case]:
    """Stores and reductions that tell the mbarrier of the block that they go to."""
    size, n = 2, 2 * THREADS
    a = sample("b32", n, "st.async")
    other = turned(a, size, -1)
    path = "shared::cluster.mbarrier::complete_tx::bytes"
    found = []

    def case(opcode: str, source: str, nbytes: int, kind: str = "b32", expected: Array = other) -> Case:
        text = f"""{head(size)}.reg .b64 %wide;
mov.u32 d, 100;
st.shared.v4.b32 [%place], {{d, d, d, d}};
mov.b64 %wide, {{a, a}};
@%first mbarrier.init.shared::cta.b64 [%bar], 1;
fence.mbarrier_init.release.cluster;
{MEET}@%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], {THREADS * nbytes};
{opcode} [%peer], {source}, [%far];
again:
mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %done, [%bar], 0;
@!%done bra again;
ld.shared.{kind} d, [%place+{nbytes - 4}];
{MEET}"""
        return hopper(opcode, text, {"a": (kind, a.view(DTYPES[kind]))}, {"d": (kind, expected)}, size)

    for suffix, source, nbytes in (
        ("b32", "a", 4),
        ("u32", "a", 4),
        ("b64", "%wide", 8),
        ("v2.b32", "{%t, a}", 8),
        ("v2.u64", "{%wide, %wide}", 16),
        ("v4.s32", "{%t, %t, %t, a}", 16),
    ):
        found.append(case(f"st.async.weak.{path}.{suffix}", source, nbytes))
    number = np.full(n, 100, np.uint32)
    signed = other.view(np.int32)
    for suffix, kind, expected in (
        ("add.u32", "u32", other + number),
        ("add.s32", "s32", signed + number.view(np.int32)),
        ("min.s32", "s32", np.minimum(signed, np.int32(100))),
        ("max.u32", "u32", np.maximum(other, number)),
        ("and.b32", "b32", other & number),
        ("or.b32", "b32", other | number),
        ("xor.b32", "b32", other ^ number),
        ("inc.u32", "u32", np.where(number >= other, 0, number + 1).astype(np.uint32)),
        ("dec.u32", "u32", np.where(number > other, other, number - 1).astype(np.uint32)),
    ):
        found.append(case(f"red.async.relaxed.cluster.{path}.{suffix}", "a", 4, kind, expected))
    return found


def ranks(size: int) -> list[Case]:
    """Ranks, sizes and places in the grid."""
    n = 4 * THREADS
    block, zero = np.arange(n) // THREADS, np.zeros(n, np.uint32)
    number = {"a": ("b32", sample("b32", n, "ranks"))}

    def words(values: Array) -> tuple[str, Array]:
        return "b32", values.astype(np.uint32)

    found = []
    for name, values in (
        ("%cluster_ctarank", block % size),
        ("%cluster_ctaid.x", block % size),
        ("%cluster_nctarank", zero + size),
        ("%cluster_nctaid.x", zero + size),
        ("%cluster_nctaid.y", zero + 1),
        ("%clusterid.x", block // size),
        ("%nclusterid.x", zero + 4 // size),
        ("%clusterid.z", zero),
    ):
        found.append(hopper("mov.u32", f"mov.u32 d, {name};", number, {"d": words(values)}, size))
    text = f"{head(size)}getctarank.shared::cluster.u32 d, %peer;\ngetctarank.u64 e, %gpeer;\n"
    text += "getctarank.shared::cluster.u32 f, %place;"
    asked = {"d": words((block + 1) % size), "e": words((block + 1) % size), "f": words(block % size)}
    found.append(hopper("getctarank.shared::cluster.u32", text, number, asked, size))
    return found


def barriers() -> list[Case]:
    """Every spelling of the cluster's barrier, with work between arrival and wait."""
    size, n = 2, 2 * THREADS
    a = sample("b32", n, "cluster barrier")
    found = []
    for sem in ("", ".release", ".relaxed"):
        for acquire in ("", ".acquire"):
            for aligned in ("", ".aligned"):
                arrive, wait = f"barrier.cluster.arrive{sem}{aligned}", f"barrier.cluster.wait{acquire}{aligned}"
                fence = "fence.acq_rel.cluster;\n" if sem == ".relaxed" else ""
                text = f"{head(size)}st.shared.b32 [%place], a;\n{fence}{arrive};\nmov.u32 e, %t;\n{wait};\n"
                text += f"{fence}ld.shared::cluster.b32 d, [%peer];\n{arrive};\n{wait};"
                after = {"d": ("b32", turned(a, size, 1)), "e": ("b32", np.arange(n, dtype=np.uint32) % THREADS)}
                found.append(hopper(arrive, text, {"a": ("b32", a)}, after, size))
    return found


def roles() -> list[Case]:
    """One elected lane per warp, of all lanes and of some; what dependent launches wait for."""
    n = 256
    lane = np.arange(n) % 32
    number = {"a": ("b32", sample("b32", n, "elect"))}
    count = """.reg .pred %mine;
.reg .b32 %leader, %ballot;
elect.sync %leader|%mine, {mask};
vote.sync.ballot.b32 %ballot, %mine, {mask};
popc.b32 d, %ballot;
bfind.u32 e, %ballot;
sub.u32 e, e, %leader;"""
    found = []
    for mask in ("0xffffffff", "0x0000fff0"):
        inside = np.array([int(mask, 0) >> int(i) & 1 for i in lane], np.bool_)
        text = ".reg .pred %in;\n.reg .b32 %l;\nmov.u32 d, 0;\nmov.u32 e, 0;\nmov.u32 %l, %laneid;\n"
        text += f"shr.u32 %l, {mask}, %l;\nand.b32 %l, %l, 1;\nsetp.eq.u32 %in, %l, 1;\n@!%in bra out;\n"
        text += count.replace("{mask}", mask) + "\nout:"
        wanted = {"d": ("b32", inside.astype(np.uint32)), "e": ("b32", np.zeros(n, np.uint32))}
        found.append(hopper("elect.sync", text, number, wanted))
    text = "griddepcontrol.wait;\nmov.b32 d, a;\ngriddepcontrol.launch_dependents;"
    found.append(hopper("griddepcontrol.wait", text, number, {"d": number["a"]}))
    return found


CASES = [*remote(2), *remote(4), *ranks(2), *ranks(4), *barriers(), *asynchronous(), *roles()]
