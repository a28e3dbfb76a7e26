"""Cases of `ptxemu.isa.logic`: every comparison of every type, with NaN, infinities and denormals.

The reference compares Python numbers, after an explicit look at NaN and, for ``.ftz``, at denormals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import operator

import numpy as np
from tests.cases.harness import FLOATS, Case, edge, given, named, pairs, plain, sample, triples
from tests.cases.reference_convert import compare
from tests.cases.reference_int import column

from ptxemu.values import Array

TYPES = tuple(f"{kind}{bits}" for kind in "bus" for bits in (16, 32, 64))
SMALLEST_NORMAL = {"f16": 2.0**-14, "f32": 2.0**-126}
RELATIONS = ("eq", "ne", "lt", "le", "gt", "ge")
UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
JOIN: dict[str, Callable[..., Array]] = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}


def operators(ptx_type: str) -> list[str]:
    """The comparisons that the ISA lists for a type."""
    if ptx_type in FLOATS:
        return [*RELATIONS, *(f"{name}u" for name in RELATIONS), "num", "nan"]
    return [*RELATIONS[: 2 if ptx_type[0] == "b" else 6], *(UNSIGNED if ptx_type[0] == "u" else ())]


def numbers(array: Array, ptx_type: str, flush: str) -> list[float]:
    """Python numbers; denormals as zero under ``.ftz``."""
    least = SMALLEST_NORMAL[ptx_type] if flush else 0.0
    listed = (array.astype(np.float64) if ptx_type in FLOATS else array).tolist()
    return [0.0 if abs(number) < least else number for number in listed]


def comparisons(t: str, name: str, flush: str, a: Array, b: Array, c: Array) -> Iterator[Case]:
    """`setp` alone and with each Boolean operation, of c and of !c; `set` to each type of result."""
    both = zip(numbers(a, t, flush), numbers(b, t, flush), strict=True)
    truth = np.array([compare(UNSIGNED.get(name, name), x, y) for x, y in both])
    target = "sm_90" if t == "bf16" else "sm_80"
    single = t in {"f16", "bf16"}  # the ISA gives these no second destination
    first, second = ("p", "r") if single else ("p|q", "r|s")
    opcode, inputs = f"setp.{name}{flush}.{t}", named(t, a, b)
    results = {each: ("pred", value) for each, value in (("p", truth), ("q", ~truth)) if each in first}
    yield given(opcode, f"{opcode} {first}, a, b;", inputs, results, target=target)
    for join, rule in JOIN.items():
        opcode = f"setp.{name}.{join}{flush}.{t}"
        text = f"{opcode} {first}, a, b, c;\n{opcode} {second}, a, b, !c;"
        joined = {"p": rule(truth, c), "q": rule(~truth, c), "r": rule(truth, ~c), "s": rule(~truth, ~c)}
        results = {each: ("pred", value) for each, value in joined.items() if each in first + second}
        yield given(opcode, text, inputs | {"c": ("pred", c)}, results, target=target)
    for result, yes in (("u32", -1), ("s32", -1), ("f32", 1.0)) if not single else ():
        wanted = column([yes if each else 0 for each in truth], result)
        yield plain(f"set.{name}{flush}.{result}.{t}", inputs, result, wanted)


def selections(t: str) -> Iterator[Case]:
    a, b = pairs(t, limit=128)
    c = sample("pred", len(a), "selp")
    yield plain(f"selp.{t}", named(t, a, b) | {"c": ("pred", c)}, t, np.where(c, a, b))
    for kind, flush in (("s32", ""), ("f32", ""), ("f32", ".ftz")):
        a, b, sign = triples(t, t, kind, limit=256)
        sign[: len(edge(kind, 0))] = edge(kind, 0)[:256]
        picked = np.array([s >= 0 for s in numbers(sign, kind, flush)])
        yield plain(f"slct{flush}.{t}.{kind}", named(t, a, b) | {"c": (kind, sign)}, t, np.where(picked, a, b))


def cases() -> Iterator[Case]:
    for t in (*TYPES, *FLOATS):
        a, b = pairs(t, limit=256 if t in FLOATS else 128)
        for name in operators(t):
            for flush in ("", ".ftz") if t in SMALLEST_NORMAL else ("",):
                yield from comparisons(t, name, flush, a, b, sample("pred", len(a), "c"))
    for t in (*TYPES, "f32", "f64"):
        yield from selections(t)


CASES = list(cases())
