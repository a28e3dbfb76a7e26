"""Cases of shfl, vote, match, redux, activemask and bar.warp.sync: whole warps, parts of warps, several groups at once.

Expectations are loops over single lanes, written after the ISA's pseudocode with Python's integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
import operator

import numpy as np
from tests.cases.harness import Case, sample

from ptxemu.values import Array

N = 128
WARP = 32
FULL = 0xFFFFFFFF
EVEN = 0x55555555
HALVES = np.where(np.arange(N) % WARP < 16, 0x0000FFFF, 0xFFFF0000).astype(np.uint32)
LANES = range(N)


def u32(values: Iterable[int]) -> Array:
    return np.array([int(value) % (1 << 32) for value in values], np.uint32)


# --- shfl -------------------------------------------------------------------------------------------------------------


def source_lane(mode: str, lane: int, b: int, c: int) -> tuple[int, bool]:
    """PTX ISA, shfl.sync, semantics."""
    bval, cval, segmask = b & 31, c & 31, (c >> 8) & 31
    max_lane = (lane & segmask) | (cval & ~segmask & 31)
    min_lane = lane & segmask
    if mode == "up":
        j = lane - bval
        inside = j >= max_lane
    elif mode == "down":
        j = lane + bval
        inside = j <= max_lane
    elif mode == "bfly":
        j = lane ^ bval
        inside = j <= max_lane
    else:
        j = min_lane | (bval & ~segmask & 31)
        inside = j <= max_lane
    return (j if inside else lane), inside


def shuffled(mode: str, a: Array, b: Array, c: Array) -> dict[str, Array]:
    d, p = np.zeros(N, np.uint32), np.zeros(N, np.bool_)
    for i in LANES:
        j, p[i] = source_lane(mode, i % WARP, int(b[i]), int(c[i]))
        d[i] = a[i - i % WARP + j]
    return {"d": d, "p": p}


def shuffles(mode: str) -> list[Case]:
    opcode = f"shfl.sync.{mode}.b32"
    a = sample("b32", N, "shfl")
    # the clamp of up counts from below; 0x1c00 and 0x1800: segments of 4 and 8 lanes; the odd ones are defined too
    clamps = (0x0000, 0x1C00, 0x1800, 0x0005) if mode == "up" else (0x001F, 0x1C1F, 0x181F, 0x0013, 0x0A15)
    found = [
        Case(
            opcode,
            f"{opcode} d|p, a, {b}, {c:#x}, -1;",
            {"a": ("b32", a)},
            {"d": "b32", "p": "pred"},
            shuffled(mode, a, np.full(N, b), np.full(N, c)),
        )
        for c in clamps
        for b in (0, 1, 2, 4, 7, 16, 31, 34)
    ]
    b, c = sample("b32", N, "shfl b") >> 3, np.array(clamps, np.uint32)[np.arange(N) // 8 % len(clamps)]
    lanes = {"a": ("b32", a), "b": ("b32", b), "c": ("b32", c)}
    outputs = {"d": "b32", "p": "pred"}
    found.append(Case(opcode, f"{opcode} d|p, a, b, c, 0xffffffff;", lanes, outputs, shuffled(mode, a, b, c)))
    alone = {"d": shuffled(mode, a, np.full(N, 3), np.full(N, clamps[0]))["d"]}
    text = f".reg .b32 %three, %clamp, %all;\nmov.u32 %three, 3;\nmov.u32 %clamp, {clamps[0]};\nmov.u32 %all, -1;\n"
    text += f"{opcode} d, a, %three, %clamp, %all;"
    found.append(Case(opcode, text, {"a": ("b32", a)}, {"d": "b32"}, alone))
    return found


def grouped_shuffles() -> list[Case]:
    """Even lanes alone; two halves of a warp that do not know of each other."""
    opcode = "shfl.sync.bfly.b32"
    a = sample("b32", N, "shfl groups")
    wanted = shuffled("bfly", a, np.full(N, 2), np.full(N, 0x1F))
    even = np.arange(N) % 2 == 0
    text = f"mov.b32 d, a;\n@q {opcode} d, a, 2, 0x1f, {EVEN:#x};"
    inputs = {"a": ("b32", a), "q": ("pred", even)}
    found = [Case(opcode, text, inputs, {"d": "b32"}, {"d": np.where(even, wanted["d"], a)})]
    lanes = {"a": ("b32", a), "m": ("b32", HALVES)}
    text = f"{opcode} d|p, a, 2, 0x1f, m;"
    return [*found, Case(opcode, text, lanes, {"d": "b32", "p": "pred"}, wanted)]


# --- vote, match, redux -----------------------------------------------------------------------------------------------


def members(i: int, masks: Array) -> list[int]:
    """The threads that thread i meets, itself among them."""
    first = i - i % WARP
    return [first + lane for lane in range(WARP) if int(masks[i]) >> lane & 1]


def lane_set(threads: Iterable[int]) -> int:
    return sum(1 << (thread % WARP) for thread in threads)


Rule = Callable[[int, list[int]], int]


def three(opcode: str, ptx_type: str, a: Array, kind: str, rule: Rule, pair: Rule | None = None) -> list[Case]:
    """An instruction `opcode d, a, mask` for whole warps, for two halves at once, and for the even lanes alone."""
    dtype = np.bool_ if kind == "pred" else np.uint32
    outputs, names = {"d": kind}, "d"
    if pair:
        outputs, names = {"d": kind, "p": "pred"}, "d|p"

    def expected(masks: Array) -> dict[str, Array]:
        rules = {"d": (rule, dtype)} | ({"p": (pair, np.bool_)} if pair else {})
        return {
            name: np.array([function(i, members(i, masks)) % (1 << 32) for i in LANES]).astype(kind)
            for name, (function, kind) in rules.items()
        }

    inputs = {"a": (ptx_type, a)}
    whole = Case(opcode, f"{opcode} {names}, a, -1;", inputs, outputs, expected(np.full(N, FULL)))
    halves = Case(opcode, f"{opcode} {names}, a, m;", {**inputs, "m": ("b32", HALVES)}, outputs, expected(HALVES))
    even = np.arange(N) % 2 == 0
    start = "setp.ne.u32 d, 0, 0;" if kind == "pred" else "mov.b32 d, 0;"
    start += "\nsetp.ne.u32 p, 0, 0;" if pair else ""
    alone = {
        name: np.where(even, values, 0).astype(values.dtype) for name, values in expected(np.full(N, EVEN)).items()
    }
    text = f"{start}\n@q {opcode} {names}, a, {EVEN:#x};"
    return [whole, halves, Case(opcode, text, {**inputs, "q": ("pred", even)}, outputs, alone)]


def flags() -> list[Array]:
    """Predicates: random; warps that agree on true and on false; one lane that differs."""
    warp, lane = np.arange(N) // WARP, np.arange(N) % WARP
    return [sample("pred", N, "vote"), warp % 2 == 0, (lane != 6) ^ (warp > 1), (lane < 16) | (warp == 3)]


def votes() -> list[Case]:
    found = []
    for a in flags():

        def true(group: list[int], a: Array = a) -> list[int]:
            return [j for j in group if a[j]]

        rules: dict[str, Rule] = {
            "all": lambda _, group, true=true: int(true(group) == group),  # type: ignore[misc]  # mypy cannot type a default
            "any": lambda _, group, true=true: int(true(group) != []),  # type: ignore[misc]  # mypy cannot type a default
            "uni": lambda _, group, true=true: int(true(group) in ([], group)),  # type: ignore[misc]  # mypy cannot type a default
        }
        for mode, rule in rules.items():
            found += three(f"vote.sync.{mode}.pred", "pred", a, "pred", rule)

        def ballot(_: int, group: list[int], true: Callable[[list[int]], list[int]] = true) -> int:
            return lane_set(true(group))

        found += three("vote.sync.ballot.b32", "pred", a, "b32", ballot)
    a = flags()[0]
    inverse = u32(lane_set(j for j in members(i, np.full(N, FULL)) if not a[j]) for i in LANES)
    text = "vote.sync.ballot.b32 d, !a, -1;"
    return [*found, Case("vote.sync.ballot.b32", text, {"a": ("pred", a)}, {"d": "b32"}, {"d": inverse})]


def matches() -> list[Case]:
    found = []
    for bits in (32, 64):
        few = (sample("u32", N, "match") % 5).astype(f"u{bits // 8}") << (bits - 3)  # differ in the top bits only
        even_alike = np.where(np.arange(N) % 2 == 0, 7, few).astype(f"u{bits // 8}")
        by_warp = (np.arange(N) // WARP).astype(f"u{bits // 8}")
        for a in (few, even_alike, by_warp):

            def alike(i: int, group: list[int], a: Array = a) -> int:
                return lane_set(j for j in group if a[j] == a[i])

            def unanimous(_: int, group: list[int], a: Array = a) -> int:
                return int(len({int(a[j]) for j in group}) == 1)

            def everyone(i: int, group: list[int], agree: Rule = unanimous) -> int:
                return lane_set(group) if agree(i, group) else 0

            found += three(f"match.any.sync.b{bits}", f"b{bits}", a, "b32", alike)
            found += three(f"match.all.sync.b{bits}", f"b{bits}", a, "b32", everyone, unanimous)
    return found


def reductions() -> list[Case]:
    operations: dict[str, Callable[[int, int], int]] = {
        "add": operator.add,
        "min": min,
        "max": max,
        "and": operator.and_,
        "or": operator.or_,
        "xor": operator.xor,
    }
    found = []
    for name, function in operations.items():
        for kind in ("b32",) if name in {"and", "or", "xor"} else ("u32", "s32"):
            a = sample(kind, N, "redux")
            if name in {"and", "or"}:  # random bits would leave nothing
                a = a | np.uint32(0xF0F0F0F0) if name == "and" else a & np.uint32(1) << (np.arange(N) % 32).astype("u4")

            def rule(_: int, group: list[int], a: Array = a, function: Callable[[int, int], int] = function) -> int:
                return reduce(function, [int(a[j]) for j in group])

            found += three(f"redux.sync.{name}.{kind}", kind, a, "b32", rule)
    return found


# --- activemask, bar.warp.sync ----------------------------------------------------------------------------------------


def others() -> list[Case]:
    a = sample("b32", N, "bar")
    even = np.arange(N) % 2 == 0
    shared = """.shared .align 4 .b32 words[128];
.reg .b32 %t, %place, %base;
mov.u32 %t, %tid.x;
mov.u32 %base, words;
shl.b32 %place, %t, 2;
add.u32 %place, %base, %place;
st.shared.b32 [%place], a;
"""
    neighbour = """
xor.b32 %place, %t, 1;
shl.b32 %place, %place, 2;
add.u32 %place, %base, %place;
ld.shared.b32 d, [%place];"""
    swapped = a.reshape(-1, 2)[:, ::-1].reshape(-1).copy()
    inputs = {"a": ("b32", a)}
    return [
        Case("activemask.b32", "activemask.b32 d;", inputs, {"d": "b32"}, {"d": np.full(N, FULL, np.uint32)}),
        Case(
            "activemask.b32",
            "mov.b32 d, 0;\n@q activemask.b32 d;",
            {"q": ("pred", even)},
            {"d": "b32"},
            {"d": np.where(even, EVEN, 0).astype(np.uint32)},
        ),
        Case("bar.warp.sync", f"{shared}bar.warp.sync -1;{neighbour}", inputs, {"d": "b32"}, {"d": swapped}),
        Case(
            "bar.warp.sync",
            f"{shared}bar.warp.sync m;{neighbour}",
            {**inputs, "m": ("b32", HALVES)},
            {"d": "b32"},
            {"d": swapped},
        ),
    ]


CASES = [
    *(case for mode in ("up", "down", "bfly", "idx") for case in shuffles(mode)),
    *grouped_shuffles(),
    *votes(),
    *matches(),
    *reductions(),
    *others(),
]
