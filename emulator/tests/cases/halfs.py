"""Cases of `ptxemu.isa.halfs`: 16-bit floats against exact rational arithmetic, pairs half by half."""

from __future__ import annotations

from functools import cache
import math

import numpy as np
from tests.cases.convert import column
from tests.cases.harness import Case, edge, pairs, sample, triples
from tests.cases.reference_convert import arithmetic, compare, flush

from ptxemu.table import ROWS, Row
from ptxemu.values import DTYPES, Array

COUNT = 192
ARITHMETIC = {"add", "sub", "mul", "fma", "min", "max"}
# Factors of f16 products just below 2^-14, to which subnormal numbers would round all of them; `.ftz` rounds otherwise.
TIE, BELOW_TIE = (63 * 2.0**-6, 65 * 2.0**-20), (2047 * 2.0**-12, 2.0**-13)
BELOW_NORMAL = np.array([TIE, BELOW_TIE, BELOW_TIE[::-1]] * 4)
HOPPER = {"add", "sub", "mul", "setp", "set", "ex2", "tanh"}  # with bf16 these need sm_90
TRUE = {"f16": 0x3C00, "bf16": 0x3F80, "u16": 0xFFFF, "s16": 0xFFFF, "u32": 0xFFFFFFFF, "s32": 0xFFFFFFFF}


@cache
def inputs(kind: str, count: int) -> tuple[Array, ...]:
    """Edge values of a 16-bit type in all combinations; for three sources also sums that are ties but for a bit."""
    if count == 1:
        return (edge(kind, COUNT),)
    if count == 2:
        a, b = pairs(kind, limit=COUNT - len(BELOW_NORMAL))
        return tuple(np.concatenate([x, y.astype(DTYPES[kind])]) for x, y in zip((a, b), BELOW_NORMAL.T, strict=True))
    a, b, c = triples(kind, limit=3 * COUNT - 32)
    dtype, half = DTYPES[kind], 5 if kind == "f16" else 4
    step = 2.0**-10 if kind == "f16" else 2.0**-7
    tie = np.array([1 + step, 1 + 2.0**-half, 3.0, 255.0], dtype)  # times `factor`: half-way between two numbers
    factor = np.array([1.5, 1 + step * 2.0 ** (half - 1), 1 + step, 257 / 256], np.float32).astype(dtype)
    tiny = (2.0**-24, -(2.0**-24), 0.0, 2.0**-10) if kind == "f16" else (2.0**-133, -(2.0**-133), 0.0, -(2.0**-100))
    term = np.repeat(np.array(tiny * 2, dtype), 4)
    a[-len(BELOW_NORMAL) :], b[-len(BELOW_NORMAL) :] = BELOW_NORMAL.T.astype(dtype)
    c[-len(BELOW_NORMAL) :] = 0
    return tuple(np.concatenate(both) for both in ((a, np.tile(tie, 8)), (b, np.tile(factor, 8)), (c, term)))


def _split(opcode: str) -> tuple[str, list[str], str]:
    """Name, modifiers and the type of the sources."""
    name, *words, kind = opcode.split(".")
    return name, words, kind


def _number(name: str, words: list[str], kind: str, numbers: list[float]) -> float:
    """One result of an instruction whose result has the type of its sources."""
    if name in ARITHMETIC:
        return arithmetic(name, kind, words, *numbers)
    number = flush(numbers[0], kind) if "ftz" in words else numbers[0]
    if name in {"neg", "abs"}:
        return -number if name == "neg" else abs(number)
    if math.isnan(number):
        return number
    return math.tanh(number) if name == "tanh" else _power(number, words)


def _power(number: float, words: list[str]) -> float:
    try:
        result = 2.0**number
    except OverflowError:
        result = math.inf
    return flush(result) if "ftz" in words else result


def _numbers(row: Row) -> Case:
    """Arithmetic, signs, extremes and approximations; pairs get the scalar inputs in both halves, shifted."""
    name, words, typed = _split(row.form)
    kind = typed.removesuffix("x2")
    single = inputs(kind, len(row.sources))
    lists = [array.astype(np.float64).tolist() for array in single]
    with np.errstate(all="ignore"):
        exact = np.array([_number(name, words, kind, list(numbers)) for numbers in zip(*lists, strict=True)])
        wanted = exact.astype(np.float32).astype(DTYPES[kind]) if "approx" in words else column(exact.tolist(), kind)
    names = dict(zip("abc", single, strict=False))
    if typed != kind:
        names = {key: _doubled(array) for key, array in names.items()}
        wanted = _doubled(wanted)
    tolerance, absolute, note = _tolerance(name, words, kind)
    return Case(
        row.form,
        f"{row.form} d, {', '.join(names)};",
        {key: (typed, array) for key, array in names.items()},
        {"d": typed},
        {"d": wanted},
        tolerance=tolerance,
        absolute=absolute,
        note=note,
        target="sm_90" if kind == "bf16" and name in HOPPER else "sm_86" if "xorsign" in words else "sm_80",
    )


def _tolerance(name: str, words: list[str], kind: str) -> tuple[float, float, str]:
    """The ISA's stated errors, plus one rounding of the expectation: relative, absolute, source."""
    if "approx" not in words:
        return 0.0, 0.0, ""
    unit = 2.0**-11 if kind == "f16" else 2.0**-8
    if name == "ex2":
        stated = 2.0**-9.9 if kind == "f16" else 2.0**-7
        return stated + unit, 2.0**-24 if kind == "f16" else 0.0, f"stated: {stated:.2e} relative"
    stated = 2.0**-10.987 if kind == "f16" else 2.0**-8
    return unit, stated + unit, f"stated: {stated:.2e} absolute"


def _doubled(array: Array) -> Array:
    """Packed pairs: the array below, itself shifted above."""
    raw = array.view(np.uint16).astype(np.uint32)
    return (np.roll(raw, 5) << np.uint32(16)) | raw


def _combined(words: list[str], holds: Array, predicate: Array) -> Array:
    if "and" in words:
        return holds & predicate
    if "or" in words:
        return holds | predicate
    return holds != predicate if "xor" in words else holds


def _comparison(row: Row) -> Case:
    name, words, typed = _split(row.form)
    kind = typed.removesuffix("x2")
    a, b = inputs(kind, 2)
    flags = sample("pred", len(a), row.form)
    lists = [[flush(x, kind) if "ftz" in words else x for x in array.astype(np.float64).tolist()] for array in (a, b)]
    holds = np.array([compare(words[0], x, y) for x, y in zip(*lists, strict=True)])
    upper = np.roll(holds, 5)
    combined = [_combined(words, half, flags) for half in (holds, upper)]
    names = {"a": (typed, a), "b": (typed, b)}
    if typed != kind:
        names = {"a": (typed, _doubled(a)), "b": (typed, _doubled(b))}
    text = f"{', '.join(names)}"
    if len(row.sources) == 3:
        names["c"] = ("pred", flags)
        text += ", c"
    target = "sm_90" if kind == "bf16" else "sm_80"
    if name == "setp":
        outputs, expected = {"p": "pred", "q": "pred"}, dict(zip("pq", combined, strict=True))
        return Case(row.form, f"{row.form} p|q, {text};", names, outputs, expected, target=target)
    result = row.results[0]
    if typed == kind:
        wanted = np.where(combined[0], np.uint32(TRUE[result]), np.uint32(0)).astype(f"u{DTYPES[result].itemsize}")
    else:
        true = np.uint32(TRUE[kind] if result == typed else 0xFFFF)
        wanted = np.where(combined[0], true, np.uint32(0)) | np.where(combined[1], true << np.uint32(16), np.uint32(0))
    expected = {"d": wanted.view(DTYPES[result])}
    return Case(row.form, f"{row.form} d, {text};", names, {"d": result}, expected, target=target)


CASES = [
    _comparison(row) if row.form.startswith("set") else _numbers(row) for row in ROWS.values() if row.group == "halfs"
]
