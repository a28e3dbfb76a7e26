"""Cases of `ptxemu.isa.copies`: runs of bytes between global and shared memory, and reductions.

Each CTA of 128 threads has 512 bytes of every input; one of its threads (or several) copies parts of them.
"""

from __future__ import annotations

from collections.abc import Callable
import math
from typing import Any

import numpy as np
from tests.cases.harness import CTA, FLOATS, Case, edge

from ptxemu.values import DTYPES, Array, width

CASES: list[Case] = []
CTAS = 3
N = CTAS * CTA
BYTES = 4 * CTA
TX = "mbarrier::complete_tx::bytes"

# The CTA's first thread is `one`; `here` is the CTA's part of the last input in global memory, `at` shared memory.
SETUP = """.shared .align 128 .b8 box[1024]; .shared .align 8 .b64 bar;
.reg .b32 at, to, mb, turn, some, next, bell; .reg .b64 here, far; .reg .pred one, ok;
mov.u32 at, box; mov.u32 mb, bar; mov.u32 turn, %tid.x; setp.eq.u32 one, turn, 0; mad.lo.u32 to, turn, 4, at;
mul.wide.u32 here, turn, 4; sub.s64 here, %at2, here;
@one mbarrier.init.shared::cta.b64 [mb], {arrivals};
@one fence.mbarrier_init.release.cluster;
"""
FENCE = "fence.proxy.async;\nbar.sync 0;\n"
WAIT = "again: mbarrier.try_wait.parity.shared::cta.b64 ok, [mb], 0;\n@!ok bra again;\n"
TO_NEXT = f"""mov.u32 next, %cluster_ctarank; add.u32 next, next, 1; setp.eq.u32 ok, next, {CTAS};
selp.u32 next, 0, next, ok;
mapa.shared::cluster.u32 some, at, next; mapa.shared::cluster.u32 bell, mb, next;
"""
MEET = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
COMMIT = "@one cp.async.bulk.commit_group;\n@one cp.async.bulk.wait_group 0;\nbar.sync 0;\n"


def _words(seed: int = 0) -> Array:
    return np.roll(edge("u32", N), 17 * seed)


def _add(
    opcode: str, text: str, inputs: dict[str, Any], expected: dict[str, Array], note: str, cluster: int = 1
) -> None:
    outputs = dict.fromkeys(expected, "u32")
    case = Case(opcode, text, inputs, outputs, expected, note=note, target="sm_90", version="8.6", cluster=cluster)
    CASES.append(case)


def _send(opcode: str, size: int, to: int, before: str) -> str:
    """Each CTA's first `size` bytes go to byte `to` of the next one of the cluster, whose mbarrier counts them."""
    return (
        f"{SETUP.format(arrivals=1)}{before}{FENCE}@one mbarrier.arrive.expect_tx.shared::cta.b64 _, [mb], {size};\n"
        f"{TO_NEXT}{MEET}add.u32 some, some, {to};\n@one {opcode} [some], [at], {size}, [bell];\n"
        f"{WAIT}ld.shared.u32 d, [to+512];\n{MEET}"
    )


def _loads() -> None:
    """`size` bytes from byte `start` of the CTA's part to byte `to` of shared memory, which was 9 before."""
    words = _words()
    for destination, hint, start, to, size in (
        ("shared::cluster", "", 0, 0, 512),
        ("shared::cluster", "", 16, 0, 496),
        ("shared::cluster", "", 0, 256, 16),
        ("shared::cta", "", 128, 48, 160),
        ("shared::cluster", ".L2::cache_hint", 0, 0, 512),
        ("shared::cta", ".L2::cache_hint", 480, 16, 32),
        ("shared::cluster", ".multicast::cluster", 0, 0, 512),
    ):
        opcode = f"cp.async.bulk.{destination}.global.{TX}{hint}"
        policy = {"": "", ".L2::cache_hint": ", far", ".multicast::cluster": ", 1"}[hint]  # of a cluster of one CTA
        text = (
            f"{SETUP.format(arrivals=1)}createpolicy.fractional.L2::evict_last.b64 far;\n"
            f"st.shared.u32 [to], 9;\n{FENCE}"
            f"@one mbarrier.arrive.expect_tx.shared::cta.b64 _, [mb], {size};\nadd.s64 here, here, {start};\n"
            f"add.u32 some, at, {to};\n@one {opcode} [some], [here], {size}, [mb]{policy};\n"
            f"{WAIT}ld.shared.u32 d, [to];"
        )
        expected = np.full((CTAS, CTA), 9, dtype=np.uint32)
        expected[:, to // 4 : (to + size) // 4] = words.reshape(CTAS, CTA)[:, start // 4 : (start + size) // 4]
        note = f"{size} bytes from {start} to {to}"
        _add(opcode, text, {"words": ("u32", words)}, {"d": expected.reshape(-1)}, note)


def _many() -> None:
    """Every thread of four copies 128 bytes of its own; all tell one mbarrier, which one thread or each one feeds."""
    words = _words(1)
    opcode = f"cp.async.bulk.shared::cluster.global.{TX}"
    copy = (
        "setp.lt.u32 ok, turn, 4;\nmul.wide.u32 far, turn, 128;\nadd.s64 here, here, far;\n"
        f"mad.lo.u32 some, turn, 128, at;\n@ok {opcode} [some], [here], 128, [mb];\n"
    )
    expect = "@one mbarrier.arrive.expect_tx.shared::cta.b64 _, [mb], 512;\n"
    each = "setp.lt.u32 ok, turn, 4;\n@ok mbarrier.arrive.expect_tx.shared::cta.b64 _, [mb], 128;\n"
    for arrivals, text, note in (
        (1, expect + copy, "announced together, then copied by four threads"),
        (1, copy + expect, "announced after the copies: the bytes may land first"),
        (4, each + copy, "each thread announces its own"),
    ):
        body = f"{SETUP.format(arrivals=arrivals)}{FENCE}{text}{WAIT}ld.shared.u32 d, [to];"
        _add(opcode, body, {"words": ("u32", words)}, {"d": words}, note)


def _sends() -> None:
    """From shared memory to that of another CTA; an H200 stops at an address that is not of a cluster's window."""
    words = _words(2)
    opcode = f"cp.async.bulk.shared::cluster.shared::cta.{TX}"
    for size, to in ((512, 512), (64, 768)):
        text = _send(opcode, size, to, "st.shared.u32 [to], words;\nst.shared.u32 [to+512], 3;\n")
        expected = np.full((CTAS, CTA), 3, dtype=np.uint32)
        first = (to - 512) // 4
        expected[:, first : first + size // 4] = np.roll(words.reshape(CTAS, CTA)[:, : size // 4], 1, axis=0)
        note = f"{size} bytes to {to}"
        _add(opcode, text, {"words": ("u32", words)}, {"d": expected.reshape(-1)}, note, cluster=CTAS)


def _stores() -> None:
    """Shared memory replaces a part of the last input."""
    words, new = _words(3), _words(4)
    for hint, start, size in (("", 0, 512), ("", 16, 16), (".L2::cache_hint", 256, 128)):
        opcode = f"cp.async.bulk.global.shared::cta.bulk_group{hint}"
        policy = ", far" if hint else ""
        text = (
            f"{SETUP.format(arrivals=1)}createpolicy.fractional.L2::evict_first.b64 far, 0.5;\n"
            f"st.shared.u32 [to], new;\n{FENCE}add.s64 here, here, {start};\n"
            f"@one {opcode} [here], [at], {size}{policy};\n{COMMIT}ld.global.u32 d, [%at2];"
        )
        expected = words.reshape(CTAS, CTA).copy()
        expected[:, start // 4 : (start + size) // 4] = new.reshape(CTAS, CTA)[:, : size // 4]
        inputs = {"new": ("u32", new), "words": ("u32", words)}
        _add(opcode, text, inputs, {"d": expected.reshape(-1)}, f"{size} bytes to {start}")


def _integer(name: str, bits: int, *, signed: bool) -> Callable[[int, int], int]:
    """What a reduction makes of memory's number and the copy's, both unsigned; in Python's integers."""

    def number(value: int) -> int:
        return value - (1 << bits) if signed and value >> (bits - 1) else value

    rules: dict[str, Callable[[int, int], int]] = {
        "add": lambda a, b: a + b,
        "min": lambda a, b: min(number(a), number(b)),
        "max": lambda a, b: max(number(a), number(b)),
        "and": lambda a, b: a & b,
        "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b,
        "inc": lambda a, b: 0 if a >= b else a + 1,
        "dec": lambda a, b: b if a == 0 or a > b else a - 1,
    }
    return lambda a, b: rules[name](a, b) % (1 << bits)


def _numbers(kind: str, seed: int) -> Array:
    """Elements that fill N words: edge values, of floating-point types small whole numbers, whose sums are exact."""
    count = 4 * N // width(kind)
    if kind in FLOATS:
        return ((np.arange(count) * (7 + seed) + seed) % 61 - 30).astype(DTYPES[kind])
    return np.roll(np.resize(edge(kind.replace("b", "u"), min(count, 512)), count), 31 * seed)


def _reduced(name: str, kind: str, old: Array, new: Array) -> Array:
    if kind not in FLOATS:
        rule = _integer(name, 8 * width(kind), signed=kind[0] == "s")
        pairs = zip(old.view(f"u{width(kind)}").tolist(), new.view(f"u{width(kind)}").tolist(), strict=True)
        return np.array([rule(a, b) for a, b in pairs], dtype=f"u{width(kind)}")
    rules: dict[str, Callable[[list[float]], float]] = {"add": math.fsum, "min": min, "max": max}
    values = [rules[name]([float(a), float(b)]) for a, b in zip(old, new, strict=True)]
    return np.array(values).astype(DTYPES[kind])


GLOBAL = {
    "u32": ("add", "min", "max", "inc", "dec"),
    "s32": ("add", "min", "max"),
    "u64": ("add", "min", "max"),
    "s64": ("min", "max"),
    "b32": ("and", "or", "xor"),
    "b64": ("and", "or", "xor"),
    "f16": ("add", "min", "max"),
    "bf16": ("add", "min", "max"),
    "f32": ("add",),
    "f64": ("add",),
}
SHARED = {"u32": ("add", "min", "max", "inc", "dec"), "s32": ("add", "min", "max"), "u64": ("add",)}
SHARED |= {"b32": ("and", "or", "xor")}


def _reductions() -> None:
    for kind, names in GLOBAL.items():
        for name in names:
            old, new = _numbers(kind, 0), _numbers(kind, 1)
            spelled = f"{name}.noftz" if name == "add" and kind in {"f16", "bf16"} else name
            opcode = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{spelled}.{kind}"
            text = (
                f"{SETUP.format(arrivals=1)}st.shared.u32 [to], new;\n{FENCE}@one {opcode} [here], [at], {BYTES};\n"
                f"{COMMIT}ld.global.u32 d, [%at2];"
            )
            inputs = {"new": ("u32", new.view(np.uint32)), "words": ("u32", old.view(np.uint32))}
            _add(opcode, text, inputs, {"d": _reduced(name, kind, old, new).view(np.uint32)}, "global")
    for kind, names in SHARED.items():
        for name in names:
            old, new = _numbers(kind, 2), _numbers(kind, 3)
            opcode = f"cp.reduce.async.bulk.shared::cluster.shared::cta.{TX}.{name}.{kind}"
            text = _send(opcode, BYTES, 512, "st.shared.u32 [to], new;\nst.shared.u32 [to+512], words;\n")
            inputs = {"new": ("u32", new.view(np.uint32)), "words": ("u32", old.view(np.uint32))}
            from_last = np.roll(new.reshape(CTAS, -1), 1, axis=0).reshape(-1)
            expected = {"d": _reduced(name, kind, old, from_last).view(np.uint32)}
            _add(opcode, text, inputs, expected, "shared", cluster=CTAS)


def _groups() -> None:
    """Two groups: a wait for all but one shows the first; after ``.read`` the source may be written over."""
    words, new = _words(5), _words(6)
    copy = "cp.async.bulk.global.shared::cta.bulk_group"
    halves = (
        f"@one {copy} [here], [at], 256;\n@one cp.async.bulk.commit_group;\nadd.s64 far, here, 256;\n"
        f"add.u32 some, at, 256;\n@one {copy} [far], [some], 256;\n@one cp.async.bulk.commit_group;\n"
    )
    inputs = {"new": ("u32", new), "words": ("u32", words)}
    setup = f"{SETUP.format(arrivals=1)}st.shared.u32 [to], new;\n{FENCE}{halves}"
    first = f"{setup}@one cp.async.bulk.wait_group 1;\nbar.sync 0;\nmov.u32 d, 0;\nsetp.lt.u32 ok, turn, 64;\n"
    first += "@ok ld.global.u32 d, [%at2];\n@one cp.async.bulk.wait_group 0;"
    seen = new.reshape(CTAS, CTA).copy()
    seen[:, 64:] = 0
    _add("cp.async.bulk.wait_group", first, inputs, {"d": seen.reshape(-1)}, "the first of two groups")
    read = f"{setup}@one cp.async.bulk.wait_group.read 0;\nbar.sync 0;\nst.shared.u32 [to], 77;\n"
    read += "@one cp.async.bulk.wait_group 0;\nbar.sync 0;\nld.global.u32 d, [%at2];"
    _add("cp.async.bulk.wait_group.read", read, inputs, {"d": new}, "the source is written over after it was read")
    empty = f"{setup}@one cp.async.bulk.commit_group;\n@one cp.async.bulk.wait_group 1;\nbar.sync 0;\n"
    _add("cp.async.bulk.commit_group", f"{empty}ld.global.u32 d, [%at2];", inputs, {"d": new}, "an empty group counts")


def _hints() -> None:
    """What changes nothing."""
    words = _words(7)
    for hint in ("", ".L2::cache_hint"):
        opcode = f"cp.async.bulk.prefetch.L2.global{hint}"
        policy = ", far" if hint else ""
        text = f"{SETUP.format(arrivals=1)}createpolicy.fractional.L2::evict_normal.b64 far;\n"
        text += f"@one {opcode} [here], 512{policy};\nld.global.u32 d, [%at2];"
        _add(opcode, text, {"words": ("u32", words)}, {"d": words}, "prefetch")


_loads()
_many()
_sends()
_stores()
_reductions()
_groups()
_hints()
