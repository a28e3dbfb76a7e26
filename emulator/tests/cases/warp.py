"""Cases of shfl, vote, match, redux, activemask and bar.warp.sync: whole warps, parts of warps, several groups at once.

Expectations are loops over single lanes, written after the ISA's pseudocode with Python's integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
import operator

import numpy as np
from tests.cases.harness import Case, Typed, given, named, sample, text_of

from ptxemu.values import Array

N = 128
WARP = 32
FULL, EVEN = 0xFFFFFFFF, 0x55555555
HALVES = np.where(np.arange(N) % WARP < 16, 0x0000FFFF, 0xFFFF0000).astype(np.uint32)
EVENS = np.arange(N) % 2 == 0
Rule = Callable[[int, list[int]], int]


def source_lane(mode: str, lane: int, b: int, c: int) -> tuple[int, bool]:
    """PTX ISA, shfl.sync, semantics: the lane that a lane reads, and whether it is inside."""
    bval, cval, segmask = b & 31, c & 31, (c >> 8) & 31
    max_lane = (lane & segmask) | (cval & ~segmask & 31)
    min_lane = lane & segmask
    j = {"up": lane - bval, "down": lane + bval, "bfly": lane ^ bval, "idx": min_lane | (bval & ~segmask & 31)}[mode]
    inside = j >= max_lane if mode == "up" else j <= max_lane
    return (j if inside else lane), inside


def shuffled(mode: str, a: Array, b: Array | int, c: Array | int) -> Typed:
    bs, cs = (np.broadcast_to(each, N) for each in (b, c))
    found = [source_lane(mode, i % WARP, int(bs[i]), int(cs[i])) for i in range(N)]
    d = [a[i - i % WARP + j] for i, (j, _) in enumerate(found)]
    return {"d": ("b32", np.array(d, np.uint32)), "p": ("pred", np.array([inside for _, inside in found]))}


def shuffles(mode: str) -> Iterator[Case]:
    opcode, a = f"shfl.sync.{mode}.b32", sample("b32", N, "shfl")
    # the clamp of up counts from below; 0x1c00 and 0x1800: segments of 4 and 8 lanes; the odd ones are defined too
    clamps = (0x0000, 0x1C00, 0x1800, 0x0005) if mode == "up" else (0x001F, 0x1C1F, 0x181F, 0x0013, 0x0A15)
    for c in clamps:
        for b in (0, 1, 2, 4, 7, 16, 31, 34):
            yield given(opcode, f"{opcode} d|p, a, {b}, {c:#x}, -1;", named("b32", a), shuffled(mode, a, b, c))
    bs, cs = sample("b32", N, "shfl b") >> 3, np.array(clamps, np.uint32)[np.arange(N) // 8 % len(clamps)]
    yield given(opcode, f"{opcode} d|p, a, b, c, 0xffffffff;", named("b32", a, bs, cs), shuffled(mode, a, bs, cs))
    text = f".reg .b32 %three, %clamp, %all;\nmov.u32 %three, 3;\nmov.u32 %clamp, {clamps[0]};\nmov.u32 %all, -1;\n"
    text += f"{opcode} d, a, %three, %clamp, %all;"
    yield given(opcode, text, named("b32", a), {"d": shuffled(mode, a, 3, clamps[0])["d"]})


def grouped_shuffles() -> Iterator[Case]:
    """Even lanes alone; two halves of a warp that do not know of each other."""
    opcode, a = "shfl.sync.bfly.b32", sample("b32", N, "shfl groups")
    wanted, inputs = shuffled("bfly", a, 2, 0x1F), named("b32", a)
    text = f"mov.b32 d, a;\n@q {opcode} d, a, 2, 0x1f, {EVEN:#x};"
    alone: Typed = {"d": ("b32", np.where(EVENS, wanted["d"][1], a))}
    yield given(opcode, text, inputs | {"q": ("pred", EVENS)}, alone)
    yield given(opcode, f"{opcode} d|p, a, 2, 0x1f, m;", inputs | {"m": ("b32", HALVES)}, wanted)


def members(i: int, mask: int) -> list[int]:
    return [i - i % WARP + lane for lane in range(WARP) if mask >> lane & 1]


def lane_set(threads: Iterable[int]) -> int:
    return sum(1 << (thread % WARP) for thread in threads)


def three(opcode: str, ptx_type: str, a: Array, kind: str, rule: Rule, pair: Rule | None = None) -> Iterator[Case]:
    """An instruction `opcode d, a, mask` for whole warps, for two halves at once, and for the even lanes alone."""
    names, rules = ("d|p", {"d": (kind, rule), "p": ("pred", pair)}) if pair else ("d", {"d": (kind, rule)})

    def expected(masks: Array | int, lanes: Array | bool = True) -> Typed:
        each = [members(i, int(mask)) for i, mask in enumerate(np.broadcast_to(masks, N))]
        found: Typed = {}
        for name, (result, function) in rules.items():
            assert function is not None
            values = np.array([function(i, group) % (1 << 32) for i, group in enumerate(each)])
            found[name] = (result, np.where(lanes, values, 0).astype(np.bool_ if result == "pred" else np.uint32))
        return found

    inputs = {"a": (ptx_type, a)}
    yield given(opcode, f"{opcode} {names}, a, -1;", inputs, expected(FULL))
    yield given(opcode, f"{opcode} {names}, a, m;", inputs | {"m": ("b32", HALVES)}, expected(HALVES))
    start = "setp.ne.u32 d, 0, 0;" if kind == "pred" else "mov.b32 d, 0;"
    text = f"{start}{chr(10) + 'setp.ne.u32 p, 0, 0;' if pair else ''}\n@q {opcode} {names}, a, {EVEN:#x};"
    yield given(opcode, text, inputs | {"q": ("pred", EVENS)}, expected(EVEN, EVENS))


def votes() -> Iterator[Case]:
    warp, lane = np.arange(N) // WARP, np.arange(N) % WARP
    # predicates: random; warps that agree on true and on false; one lane that differs
    flags = [sample("pred", N, "vote"), warp % 2 == 0, (lane != 6) ^ (warp > 1), (lane < 16) | (warp == 3)]
    for a in flags:
        rules: dict[str, Callable[[list[int], list[int]], int]] = {
            "all": lambda true, group: int(true == group),
            "any": lambda true, _: int(true != []),
            "uni": lambda true, group: int(true in ([], group)),
            "ballot": lambda true, _: lane_set(true),
        }
        for mode, rule in rules.items():

            def asked(_: int, group: list[int], rule: Callable[..., int] = rule, a: Array = a) -> int:
                return rule([j for j in group if a[j]], group)

            kind = "b32" if mode == "ballot" else "pred"
            yield from three(f"vote.sync.{mode}.{kind}", "pred", a, kind, asked)
    inverse = [lane_set(j for j in members(i, FULL) if not flags[0][j]) for i in range(N)]
    opcode, results = "vote.sync.ballot.b32", {"d": ("b32", np.array(inverse, np.uint32))}
    yield given(opcode, f"{opcode} d, !a, -1;", named("pred", flags[0]), results)


def matches() -> Iterator[Case]:
    for bits in (32, 64):
        few = (sample("u32", N, "match") % 5).astype(f"u{bits // 8}") << (bits - 3)  # differ in the top bits only
        even_alike, by_warp = np.where(EVENS, 7, few), np.arange(N) // WARP
        for a in (few, even_alike.astype(few.dtype), by_warp.astype(few.dtype)):

            def alike(i: int, group: list[int], a: Array = a) -> int:
                return lane_set(j for j in group if a[j] == a[i])

            def unanimous(_: int, group: list[int], a: Array = a) -> int:
                return int(len({int(a[j]) for j in group}) == 1)

            def everyone(i: int, group: list[int], agree: Rule = unanimous) -> int:
                return lane_set(group) if agree(i, group) else 0

            yield from three(f"match.any.sync.b{bits}", f"b{bits}", a, "b32", alike)
            yield from three(f"match.all.sync.b{bits}", f"b{bits}", a, "b32", everyone, unanimous)


def reductions() -> Iterator[Case]:
    rules: dict[str, Callable[[int, int], int]] = {
        "add": operator.add, "min": min, "max": max, "and": operator.and_, "or": operator.or_, "xor": operator.xor,
    }  # fmt: skip
    for name, rule in rules.items():
        for kind in ("b32",) if name in {"and", "or", "xor"} else ("u32", "s32"):
            a = sample(kind, N, "redux")
            if name in {"and", "or"}:  # random bits would leave nothing
                a = a | np.uint32(0xF0F0F0F0) if name == "and" else a & np.uint32(1) << (np.arange(N) % 32).astype("u4")

            def folded(_: int, group: list[int], a: Array = a, rule: Callable[[int, int], int] = rule) -> int:
                return reduce(rule, [int(a[j]) for j in group])

            yield from three(f"redux.sync.{name}.{kind}", kind, a, "b32", folded)


def others() -> Iterator[Case]:
    a = sample("b32", N, "bar")
    shared = text_of("neighbours")
    neighbour = text_of("neighbour")
    swapped: Typed = {"d": ("b32", a.reshape(-1, 2)[:, ::-1].reshape(-1).copy())}
    inputs, opcode, even = named("b32", a), "activemask.b32", np.where(EVENS, EVEN, 0).astype(np.uint32)
    yield given(opcode, f"{opcode} d;", inputs, {"d": ("b32", np.full(N, FULL, np.uint32))})
    yield given(opcode, f"mov.b32 d, 0;\n@q {opcode} d;", {"q": ("pred", EVENS)}, {"d": ("b32", even)})
    yield given("bar.warp.sync", f"{shared}bar.warp.sync -1;{neighbour}", inputs, swapped)
    yield given("bar.warp.sync", f"{shared}bar.warp.sync m;{neighbour}", inputs | {"m": ("b32", HALVES)}, swapped)


CASES = [
    *(case for mode in ("up", "down", "bfly", "idx") for case in shuffles(mode)),
    *(case for group in (grouped_shuffles, votes, matches, reductions, others) for case in group()),
]
