"""Cases of `ptxemu.isa.copies`: runs of bytes between global and shared memory, and reductions.

Each CTA of 128 threads has 512 bytes of every input; one of its threads (or several) copies parts of them.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from tests.cases.harness import CTA, FLOATS, Case, Typed, edge, given, text_of
from tests.cases.memory import RULES
from tests.cases.reference_int import column

from ptxemu.values import DTYPES, Array, width

CTAS = 3
N = CTAS * CTA
TX = "mbarrier::complete_tx::bytes"
HINT = ".L2::cache_hint"

# The CTA's first thread is `one`; `here` is the CTA's part of the last input in global memory, `at` shared memory.
ONE = text_of("bulk", arrivals=1) + "\n"
FENCE = "fence.proxy.async;\nbar.sync 0;\n"
WAIT = "again: mbarrier.try_wait.parity.shared::cta.b64 ok, [mb], 0;\n@!ok bra again;\n"
EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [mb]"
TO_NEXT = f"""mov.u32 next, %cluster_ctarank; add.u32 next, next, 1; setp.eq.u32 ok, next, {CTAS};
selp.u32 next, 0, next, ok;
mapa.shared::cluster.u32 some, at, next; mapa.shared::cluster.u32 bell, mb, next;
"""
MEET = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
COMMIT = "@one cp.async.bulk.commit_group;\n"
DONE = f"{COMMIT}@one cp.async.bulk.wait_group 0;\nbar.sync 0;\n"
SHOW = "ld.global.u32 d, [%at2];"


def words(seed: int = 0) -> Array:
    return np.roll(edge("u32", N), 17 * seed)


def case(opcode: str, text: str, expected: Array, note: str, cluster: int = 1, **inputs: Array) -> Case:
    typed: Typed = {name: ("u32", array) for name, array in inputs.items()}
    fields: dict[str, Any] = {"note": note, "target": "sm_90", "version": "8.6", "cluster": cluster}
    return given(opcode, text, typed, {"d": ("u32", expected.reshape(-1))}, **fields)


def send(opcode: str, size: int, to: int, before: str) -> str:
    """Each CTA's first `size` bytes go to byte `to` of the next one of the cluster, whose mbarrier counts them."""
    return (
        f"{ONE}{before}{FENCE}@one {EXPECT}, {size};\n{TO_NEXT}{MEET}add.u32 some, some, {to};\n"
        f"@one {opcode} [some], [at], {size}, [bell];\n{WAIT}ld.shared.u32 d, [to+512];\n{MEET}"
    )


def loads() -> Iterator[Case]:
    """`size` bytes from byte `start` of the CTA's part to byte `to` of shared memory, which was 9 before."""
    policies = {"": "", HINT: ", far", ".multicast::cluster": ", 1"}  # of a cluster of one CTA
    for space, hint, start, to, size in (
        ("cluster", "", 0, 0, 512), ("cluster", "", 16, 0, 496), ("cluster", "", 0, 256, 16), ("cta", "", 128, 48, 160),
        ("cluster", HINT, 0, 0, 512), ("cta", HINT, 480, 16, 32), ("cluster", ".multicast::cluster", 0, 0, 512),
    ):  # fmt: skip
        opcode = f"cp.async.bulk.shared::{space}.global.{TX}{hint}"
        text = (
            f"{ONE}createpolicy.fractional.L2::evict_last.b64 far;\nst.shared.u32 [to], 9;\n{FENCE}"
            f"@one {EXPECT}, {size};\nadd.s64 here, here, {start};\nadd.u32 some, at, {to};\n"
            f"@one {opcode} [some], [here], {size}, [mb]{policies[hint]};\n{WAIT}ld.shared.u32 d, [to];"
        )
        wanted = np.full((CTAS, CTA), 9, dtype=np.uint32)
        wanted[:, to // 4 : (to + size) // 4] = words().reshape(CTAS, CTA)[:, start // 4 : (start + size) // 4]
        yield case(opcode, text, wanted, f"{size} bytes from {start} to {to}", words=words())


def many() -> Iterator[Case]:
    """Every thread of four copies 128 bytes of its own; all tell one mbarrier, which one thread or each one feeds."""
    opcode = f"cp.async.bulk.shared::cluster.global.{TX}"
    copy = (
        "setp.lt.u32 ok, turn, 4;\nmul.wide.u32 far, turn, 128;\nadd.s64 here, here, far;\n"
        f"mad.lo.u32 some, turn, 128, at;\n@ok {opcode} [some], [here], 128, [mb];\n"
    )
    expect, each = f"@one {EXPECT}, 512;\n", f"setp.lt.u32 ok, turn, 4;\n@ok {EXPECT}, 128;\n"
    for arrivals, body, note in (
        (1, expect + copy, "announced together, then copied by four threads"),
        (1, copy + expect, "announced after the copies: the bytes may land first"),
        (4, each + copy, "each thread announces its own"),
    ):
        text = f"{text_of('bulk', arrivals=arrivals)}\n{FENCE}{body}{WAIT}ld.shared.u32 d, [to];"
        yield case(opcode, text, words(1), note, words=words(1))


def sends() -> Iterator[Case]:
    """From shared memory to that of another CTA; an H200 stops at an address that is not of a cluster's window."""
    opcode = f"cp.async.bulk.shared::cluster.shared::cta.{TX}"
    for size, to in ((512, 512), (64, 768)):
        text = send(opcode, size, to, "st.shared.u32 [to], words;\nst.shared.u32 [to+512], 3;\n")
        wanted, first = np.full((CTAS, CTA), 3, dtype=np.uint32), (to - 512) // 4
        wanted[:, first : first + size // 4] = np.roll(words(2).reshape(CTAS, CTA)[:, : size // 4], 1, axis=0)
        yield case(opcode, text, wanted, f"{size} bytes to {to}", CTAS, words=words(2))


def stores() -> Iterator[Case]:
    for hint, start, size in (("", 0, 512), ("", 16, 16), (HINT, 256, 128)):
        opcode = f"cp.async.bulk.global.shared::cta.bulk_group{hint}"
        text = (
            f"{ONE}createpolicy.fractional.L2::evict_first.b64 far, 0.5;\nst.shared.u32 [to], new;\n{FENCE}"
            f"add.s64 here, here, {start};\n@one {opcode} [here], [at], {size}{', far' if hint else ''};\n{DONE}{SHOW}"
        )
        wanted = words(3).reshape(CTAS, CTA).copy()
        wanted[:, start // 4 : (start + size) // 4] = words(4).reshape(CTAS, CTA)[:, : size // 4]
        yield case(opcode, text, wanted, f"{size} bytes to {start}", new=words(4), words=words(3))


def numbers(kind: str, seed: int) -> Array:
    """Elements that fill N words: edge values, of floating-point types small whole numbers, whose sums are exact."""
    count = 4 * N // width(kind)
    if kind in FLOATS:
        return ((np.arange(count) * (7 + seed) + seed) % 61 - 30).astype(DTYPES[kind])
    return np.roll(np.resize(edge(kind.replace("b", "u"), min(count, 512)), count), 31 * seed)


def reduced(name: str, kind: str, old: Array, new: Array) -> Array:
    if kind in FLOATS:
        old, new = old.astype(np.float64), new.astype(np.float64)
    elif kind[0] == "b":
        old, new = (each.view(f"u{each.itemsize}") for each in (old, new))
    found = [RULES[name](a, b) for a, b in zip(old.tolist(), new.tolist(), strict=True)]
    return column(found, kind).view(np.uint32)


GLOBAL = {"u32": "add min max inc dec", "s32": "add min max", "u64": "add min max", "s64": "min max",
          "b32": "and or xor", "b64": "and or xor", "f16": "add min max", "bf16": "add min max",
          "f32": "add", "f64": "add"}  # fmt: skip
SHARED = {"u32": "add min max inc dec", "s32": "add min max", "u64": "add", "b32": "and or xor"}


def reductions() -> Iterator[Case]:
    for kind, name in ((kind, name) for kind, names in GLOBAL.items() for name in names.split()):
        old, new = numbers(kind, 0), numbers(kind, 1)
        spelled = f"{name}.noftz" if name == "add" and kind in {"f16", "bf16"} else name
        opcode = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{spelled}.{kind}"
        text = f"{ONE}st.shared.u32 [to], new;\n{FENCE}@one {opcode} [here], [at], 512;\n{DONE}{SHOW}"
        wanted = reduced(name, kind, old, new)
        yield case(opcode, text, wanted, "global", new=new.view(np.uint32), words=old.view(np.uint32))
    for kind, name in ((kind, name) for kind, names in SHARED.items() for name in names.split()):
        old, new = numbers(kind, 2), numbers(kind, 3)
        opcode = f"cp.reduce.async.bulk.shared::cluster.shared::cta.{TX}.{name}.{kind}"
        text = send(opcode, 512, 512, "st.shared.u32 [to], new;\nst.shared.u32 [to+512], words;\n")
        wanted = reduced(name, kind, old, np.roll(new.reshape(CTAS, -1), 1, axis=0).reshape(-1))
        yield case(opcode, text, wanted, "shared", CTAS, new=new.view(np.uint32), words=old.view(np.uint32))


def groups() -> Iterator[Case]:
    """Two groups: a wait for all but one shows the first; after ``.read`` the source may be written over."""
    old, new = words(5), words(6)
    copy, wait = "cp.async.bulk.global.shared::cta.bulk_group", "cp.async.bulk.wait_group"
    setup = (
        f"{ONE}st.shared.u32 [to], new;\n{FENCE}@one {copy} [here], [at], 256;\n{COMMIT}add.s64 far, here, 256;\n"
        f"add.u32 some, at, 256;\n@one {copy} [far], [some], 256;\n{COMMIT}"
    )
    seen = new.reshape(CTAS, CTA).copy()
    seen[:, 64:] = 0
    first = f"{setup}@one {wait} 1;\nbar.sync 0;\nmov.u32 d, 0;\nsetp.lt.u32 ok, turn, 64;\n@ok {SHOW}\n@one {wait} 0;"
    yield case(wait, first, seen, "the first of two groups", new=new, words=old)
    read = f"{setup}@one {wait}.read 0;\nbar.sync 0;\nst.shared.u32 [to], 77;\n@one {wait} 0;\nbar.sync 0;\n{SHOW}"
    yield case(f"{wait}.read", read, new, "the source is written over after it was read", new=new, words=old)
    empty = f"{setup}{COMMIT}@one {wait} 1;\nbar.sync 0;\n{SHOW}"
    yield case("cp.async.bulk.commit_group", empty, new, "an empty group counts", new=new, words=old)


def hints() -> Iterator[Case]:
    for hint, policy in (("", ""), (HINT, ", far")):
        opcode = f"cp.async.bulk.prefetch.L2.global{hint}"
        text = f"{ONE}createpolicy.fractional.L2::evict_normal.b64 far;\n@one {opcode} [here], 512{policy};\n{SHOW}"
        yield case(opcode, text, words(7), "prefetch", words=words(7))


CASES = [*loads(), *many(), *sends(), *stores(), *reductions(), *groups(), *hints()]
