"""Cases of `ptxemu.isa.halfs`: 16-bit floats against exact rational arithmetic, pairs half by half."""

from __future__ import annotations

from functools import cache
import math

import numpy as np
from tests.cases.harness import Case, edge, given, named, pairs, plain, sample, triples
from tests.cases.reference_convert import arithmetic, compare, flush
from tests.cases.reference_int import column

from ptxemu.table import ROWS, Row
from ptxemu.values import DTYPES, Array

COUNT = 192
# Factors of f16 products just below 2^-14, to which subnormal numbers would round all of them; `.ftz` rounds otherwise.
TIE, BELOW_TIE = (63 * 2.0**-6, 65 * 2.0**-20), (2047 * 2.0**-12, 2.0**-13)
BELOW_NORMAL = np.array([TIE, BELOW_TIE, BELOW_TIE[::-1]] * 4)
HOPPER = {"add", "sub", "mul", "setp", "set", "ex2", "tanh"}  # with bf16 these need sm_90
TRUE = {"f16": 0x3C00, "bf16": 0x3F80, "u16": 0xFFFF, "s16": 0xFFFF, "u32": 0xFFFFFFFF, "s32": 0xFFFFFFFF}


@cache
def inputs(kind: str, count: int) -> tuple[Array, ...]:
    """Edge values of a 16-bit type in all combinations; for three sources also sums that are ties but for a bit."""
    dtype, step, half = DTYPES[kind], 2.0**-10 if kind == "f16" else 2.0**-7, 5 if kind == "f16" else 4
    below = BELOW_NORMAL.T.astype(dtype)
    if count == 1:
        return (edge(kind, COUNT),)
    if count == 2:
        return tuple(map(np.concatenate, zip(pairs(kind, limit=COUNT - len(BELOW_NORMAL)), below, strict=True)))
    a, b, c = triples(kind, limit=3 * COUNT - 32)
    tie = np.array([1 + step, 1 + 2.0**-half, 3.0, 255.0], dtype)  # times `factor`: half-way between two numbers
    factor = np.array([1.5, 1 + step * 2.0 ** (half - 1), 1 + step, 257 / 256], np.float32).astype(dtype)
    tiny = (2.0**-24, -(2.0**-24), 0.0, 2.0**-10) if kind == "f16" else (2.0**-133, -(2.0**-133), 0.0, -(2.0**-100))
    term = np.repeat(np.array(tiny * 2, dtype), 4)
    last = slice(-len(BELOW_NORMAL), None)
    a[last], b[last], c[last] = *below, 0
    return tuple(np.concatenate(both) for both in ((a, np.tile(tie, 8)), (b, np.tile(factor, 8)), (c, term)))


def number(name: str, words: list[str], kind: str, numbers: list[float]) -> float:
    """One result of an instruction whose result has the type of its sources."""
    if name in {"add", "sub", "mul", "fma", "min", "max"}:
        return arithmetic(name, kind, words, *numbers)
    x = flush(numbers[0], kind) if "ftz" in words else numbers[0]
    if name in {"neg", "abs"}:
        return -x if name == "neg" else abs(x)
    if math.isnan(x):
        return x
    if name == "tanh":
        return math.tanh(x)
    power = 2.0**x if x < 1024 else math.inf
    return flush(power) if "ftz" in words else power


def computed(row: Row) -> Case:
    """Arithmetic, signs, extremes and approximations; pairs get the scalar inputs in both halves, shifted."""
    name, *words, typed = row.form.split(".")
    kind, approximate = typed.removesuffix("x2"), "approx" in words
    names = inputs(kind, len(row.sources))
    lists = zip(*(array.astype(np.float64).tolist() for array in names), strict=True)
    with np.errstate(all="ignore"):
        exact = [number(name, words, kind, list(numbers)) for numbers in lists]
        wanted = np.array(exact).astype(np.float32).astype(DTYPES[kind]) if approximate else column(exact, kind)
    if typed != kind:
        names, wanted = tuple(map(doubled, names)), doubled(wanted)
    tolerance, absolute, note = errors(name, kind) if approximate else (0.0, 0.0, "")
    target = "sm_90" if kind == "bf16" and name in HOPPER else "sm_86" if "xorsign" in words else "sm_80"
    loose = {"tolerance": tolerance, "absolute": absolute, "note": note}
    return plain(row.form, named(typed, *names), typed, wanted, target=target, **loose)


def errors(name: str, kind: str) -> tuple[float, float, str]:
    """The ISA's stated errors, plus one rounding of the expectation: relative, absolute, source."""
    unit = 2.0**-11 if kind == "f16" else 2.0**-8
    if name == "ex2":
        stated = 2.0**-9.9 if kind == "f16" else 2.0**-7
        return stated + unit, 2.0**-24 if kind == "f16" else 0.0, f"stated: {stated:.2e} relative"
    stated = 2.0**-10.987 if kind == "f16" else 2.0**-8
    return unit, stated + unit, f"stated: {stated:.2e} absolute"


def doubled(array: Array) -> Array:
    """Packed pairs: the array below, itself shifted above."""
    raw = array.view(np.uint16).astype(np.uint32)
    return (np.roll(raw, 5) << np.uint32(16)) | raw


def comparison(row: Row) -> Case:
    name, *words, typed = row.form.split(".")
    kind, pair = typed.removesuffix("x2"), typed.endswith("x2")
    a, b = inputs(kind, 2)
    flags = sample("pred", len(a), row.form)
    lists = ([flush(x, kind) if "ftz" in words else x for x in array.astype(np.float64).tolist()] for array in (a, b))
    holds = np.array([compare(words[0], x, y) for x, y in zip(*lists, strict=True)])
    joined = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
    join = next((joined[word] for word in words if word in joined), lambda half, _: half)
    low, high = (join(half, flags) for half in (holds, np.roll(holds, 5)))
    operands = named(typed, *(map(doubled, (a, b)) if pair else (a, b)))
    if len(row.sources) == 3:
        operands["c"] = ("pred", flags)
    target = "sm_90" if kind == "bf16" else "sm_80"
    if name == "setp":
        results = {"p": ("pred", low), "q": ("pred", high)}
        return given(row.form, f"{row.form} p|q, {', '.join(operands)};", operands, results, target=target)
    result = row.results[0]
    if not pair:
        wanted = (low * np.uint32(TRUE[result])).astype(f"u{DTYPES[result].itemsize}")
    else:
        true = np.uint32(TRUE[kind] if result == typed else 0xFFFF)
        wanted = low * true | high * (true << np.uint32(16))
    return plain(row.form, operands, result, wanted.view(DTYPES[result]), target=target)


ROWS_HERE = [row for row in ROWS.values() if row.group == "halfs"]
CASES = [comparison(row) if row.form.startswith("set") else computed(row) for row in ROWS_HERE]
