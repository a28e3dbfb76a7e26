"""Cases of `ptxemu.isa.logic`: every comparison of every type, with NaN, infinities and denormals.

The reference compares Python numbers, after an explicit look at NaN and, for ``.ftz``, at denormals.
"""

from __future__ import annotations

from collections.abc import Callable
import math

import numpy as np
from tests.cases.harness import Case, edge, pairs, sample, triples

from ptxemu.values import Array

CASES: list[Case] = []
TYPES = tuple(f"{kind}{bits}" for kind in "bus" for bits in (16, 32, 64))
FLOATS = ("f16", "bf16", "f32", "f64")
SMALLEST_NORMAL = {"f16": 2.0**-14, "f32": 2.0**-126}

_RELATIONS: dict[str, Callable[[float, float], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_JOIN: dict[str, Callable[[bool, bool], bool]] = {
    "and": lambda t, c: t and c,
    "or": lambda t, c: t or c,
    "xor": lambda t, c: t is not c,
}


def _operators(ptx_type: str) -> list[str]:
    """The comparisons that the ISA lists for a type."""
    if ptx_type in FLOATS:
        return [*_RELATIONS, *(f"{name}u" for name in _RELATIONS), "num", "nan"]
    if ptx_type[0] == "b":
        return ["eq", "ne"]
    return [*_RELATIONS, *(_UNSIGNED if ptx_type[0] == "u" else ())]


def _holds(operator: str, a: float, b: float) -> bool:
    """One comparison of Python numbers."""
    unordered = math.isnan(a) or math.isnan(b)
    if operator in {"num", "nan"}:
        return unordered == (operator == "nan")
    if unordered:
        return operator.endswith("u")
    return _RELATIONS[_UNSIGNED.get(operator, operator.removesuffix("u"))](a, b)


def _numbers(array: Array, ptx_type: str, flush: bool) -> list[float]:
    """Python numbers; denormals as zero under ``.ftz``."""
    if ptx_type not in FLOATS:
        return list(array.tolist())
    least = SMALLEST_NORMAL[ptx_type] if flush else 0.0
    return [0.0 if abs(number) < least else number for number in array.astype(np.float64).tolist()]


def _truths(operator: str, ptx_type: str, flush: bool, a: Array, b: Array) -> list[bool]:
    both = zip(_numbers(a, ptx_type, flush), _numbers(b, ptx_type, flush), strict=True)
    return [_holds(operator, x, y) for x, y in both]


def _compare(t: str, operator: str, flush: str, a: Array, b: Array, c: Array) -> None:
    """`setp` alone and with each Boolean operation, of c and of !c; `set` to each type of result."""
    truths = _truths(operator, t, bool(flush), a, b)
    inputs = {"a": (t, a), "b": (t, b)}
    target = "sm_90" if t == "bf16" else "sm_80"
    single = t in {"f16", "bf16"}  # the ISA gives these no second destination
    results = ("p",) if single else ("p", "q")
    pair = "|".join(results)
    expected = {"p": np.array(truths), "q": ~np.array(truths)}
    opcode = f"setp.{operator}{flush}.{t}"
    _add(opcode, f"{opcode} {pair}, a, b;", inputs, results, expected, target)
    for join, combine in _JOIN.items():
        opcode = f"setp.{operator}.{join}{flush}.{t}"
        expected = {}
        for name, sign, negated in (("p", True, False), ("q", False, False), ("r", True, True), ("s", False, True)):
            columns = zip(truths, c.tolist(), strict=True)
            expected[name] = np.array([combine(truth is sign, flag is not negated) for truth, flag in columns])
        other = ("r",) if single else ("r", "s")
        text = f"{opcode} {pair}, a, b, c;\n{opcode} {'|'.join(other)}, a, b, !c;"
        _add(opcode, text, {**inputs, "c": ("pred", c)}, (*results, *other), expected, target)
    if not single:
        _set(t, operator, flush, inputs, truths)


def _add(
    opcode: str,
    text: str,
    inputs: dict[str, tuple[str, Array]],
    names: tuple[str, ...],
    expected: dict[str, Array],
    target: str,
) -> None:
    wanted = {name: expected[name] for name in names}
    CASES.append(Case(opcode, text, inputs, dict.fromkeys(names, "pred"), wanted, target=target))


def _set(t: str, operator: str, flush: str, inputs: dict[str, tuple[str, Array]], truths: list[bool]) -> None:
    for result, yes in (("u32", 0xFFFFFFFF), ("s32", -1), ("f32", 1.0)):
        opcode = f"set.{operator}{flush}.{result}.{t}"
        dtype = np.float32 if result == "f32" else np.int32 if result == "s32" else np.uint32
        expected = np.array([yes if truth else 0 for truth in truths], dtype=dtype)
        CASES.append(Case(opcode, f"{opcode} d, a, b;", inputs, {"d": result}, {"d": expected}))


def _comparisons() -> None:
    for t in (*TYPES, *FLOATS):
        a, b = pairs(t, limit=256 if t in FLOATS else 128)
        c = sample("pred", len(a), "c")
        for operator in _operators(t):
            for flush in ("", ".ftz") if t in SMALLEST_NORMAL else ("",):
                _compare(t, operator, flush, a, b, c)


def _selections() -> None:
    for t in (*TYPES, "f32", "f64"):
        a, b = pairs(t, limit=128)
        c = sample("pred", len(a), "selp")
        chosen = {"d": np.array([x if flag else y for x, y, flag in zip(a, b, c, strict=True)], dtype=a.dtype)}
        inputs = {"a": (t, a), "b": (t, b)}
        CASES.append(Case(f"selp.{t}", f"selp.{t} d, a, b, c;", {**inputs, "c": ("pred", c)}, {"d": t}, chosen))
        for kind, flush in (("s32", ""), ("f32", ""), ("f32", ".ftz")):
            a, b, sign = triples(t, t, kind, limit=256)
            sign[: len(edge(kind, 0))] = edge(kind, 0)[:256]
            least = SMALLEST_NORMAL["f32"] if flush else 0.0
            rows = zip(a, b, sign.tolist(), strict=True)
            picked = [x if s >= 0 or abs(s) < least else y for x, y, s in rows]
            opcode = f"slct{flush}.{t}.{kind}"
            inputs = {"a": (t, a), "b": (t, b), "c": (kind, sign)}
            expected = {"d": np.array(picked, dtype=a.dtype)}
            CASES.append(Case(opcode, f"{opcode} d, a, b, c;", inputs, {"d": t}, expected))


_comparisons()
_selections()
