"""Cases of `isa.convert`: each form on edges, ties and limits, against exact rational arithmetic."""

from __future__ import annotations

from functools import cache

import numpy as np
from tests.cases.harness import Case, edge, sample
from tests.cases.reference_convert import convert, limits, wrap
from tests.cases.reference_float import FORMATS

from ptxemu.table import ROWS, Row
from ptxemu.targets import lacks
from ptxemu.values import DTYPES, Array

COUNT = 128
TF32_NAN = [0x7FFFFFFF, 0xFFC00000, 0x7F800001, 0x7FBFFFFF, 0x7F801FFF, 0xFFFFFFFF, 0x7FFFE000, 0x7FFFF000]
HOLDS = {"u8": "u16", "s8": "s16", "tf32": "b32"}  # registers of 8-bit values are wider: extension is seen too


def column(values: list[float], kind: str) -> Array:
    """Python numbers, all of which the type holds exactly, as an array."""
    dtype = DTYPES[kind]
    if dtype.kind in "iu":
        whole = 1 << (8 * dtype.itemsize)
        return np.array([int(value) % whole for value in values], f"u{dtype.itemsize}").view(dtype)
    with np.errstate(all="ignore"):
        return np.array(values, np.float64).astype(dtype)


def _ties(result: str) -> list[float]:
    """Numbers half-way between neighbours of a float format, and float64 numbers beside them."""
    found = []
    for number in edge("f16" if result == "tf32" else result, 64)[:40].astype(np.float64).tolist():
        if np.isfinite(number) and number:
            precision, least, _ = FORMATS[result]
            step = 2.0 ** (max(int(np.frexp(abs(number))[1]) - precision, least) - 1)
            found += [number + step, (number + step) * (1 + 2.0**-22), (number + step) * (1 - 2.0**-22), number - step]
            found += [number * (1 + side * 2.0**-power) for power in (24, 25, 26, 40) for side in (-1, 1)]
    return found


def _borders(result: str) -> list[float]:
    """Ends of an integer type, halves around them, and halves around 0."""
    low, high = limits(result)
    around = [k + half for k in (-2, -1, 0, 1, 2) for half in (-0.5, -0.25, 0.25, 0.5)]
    return [end + step for end in (low, high + 1) for step in (-2, -1, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 1)] + around


def _large(result: str) -> list[int]:
    """Integers that a float format must round: ties, and numbers beside them, at several sizes."""
    precision = FORMATS[result][0]
    return [
        sign * (1 << size) + (odd << max(size - precision, 0)) + beside
        for size in (precision, precision + 1, precision + 5, 31, 62, 63)
        for odd in (0, 1, 3)
        for beside in (-1, 0, 1)
        for sign in (1, -1)
    ]


@cache
def inputs(source: str, result: str) -> Array:
    """Edge values of the source, and those that are hard for this result."""
    base = edge(source, COUNT // 2)
    if result in FORMATS and source in FORMATS:
        hard: list[float] = _ties(result) if FORMATS[result][0] < FORMATS[source][0] else [*_borders("u8"), 2.0**-24]
    elif result in FORMATS:
        hard = [number for number in _large(result) if limits(source)[0] <= number <= limits(source)[1]]
    else:
        hard = _borders(result) if source in FORMATS else [*limits(result), *(end + 1 for end in limits(result))]
    if source in FORMATS:
        with np.errstate(all="ignore"):
            extra = np.array(hard, np.float64).astype(DTYPES[source])
    else:
        extra = column([wrap(int(number), source) for number in hard], source)
    both = np.concatenate([base, extra])
    both = np.concatenate([both, sample(source, -len(both) % 32, "convert")])
    if result == "tf32":
        both[-8:] = np.array(TF32_NAN, np.uint32).view(np.float32)
    return both


def single(row: Row) -> Case:
    result, source = row.results[0], row.sources[0]
    format_name = "tf32" if ".tf32." in row.form else result
    values = inputs(source, format_name)
    register = source
    if source in {"u8", "s8"}:  # a wider register whose upper half is not the extension of the lower
        register = HOLDS[source]
        dirt = sample("u16", len(values), row.form) & np.uint16(0xFF00)
        values = (values.view(np.uint8) | dirt).view(DTYPES[register])
    expected = [convert(row.form, number) for number in values.tolist()]
    kind = HOLDS.get(result, result)
    wanted = column(expected, "f32").view(np.uint32) if format_name == "tf32" else column(expected, kind)
    if format_name == "tf32":  # on an H200 NaN loses its low bits, and is always the same in the roundings of sm_90
        nan = values.view(np.uint32) & ~np.uint32(0x1FFF) if ".rna." in row.form else np.uint32(0x7FFFE000)
        wanted = np.where(np.isnan(values), nan, wanted)
    return Case(row.form, f"{row.form} d, a;", {"a": (register, values)}, {"d": kind}, {"d": wanted})


def _pair(row: Row) -> Case:
    kind = row.results[0].removesuffix("x2")
    a = inputs("f32", kind)
    b = np.roll(a, 17)
    upper, lower = (column([convert(row.form, number) for number in x.tolist()], kind).view(np.uint16) for x in (a, b))
    wanted = (upper.astype(np.uint32) << 16) | lower
    names = {"a": ("f32", a), "b": ("f32", b)}
    return Case(row.form, f"{row.form} d, a, b;", names, {"d": row.results[0]}, {"d": wanted})


def _packing(row: Row) -> Case:
    kind = row.form.split(".")[3]
    low, high = limits(kind)
    size = int(kind[1:])
    a = np.concatenate([edge("s32", 80), column([low, low - 1, low + 1, high, high + 1, high - 1], "s32")])
    b, c = np.roll(a, 31), sample("b32", len(a), row.form)
    clamp = [[min(max(number, low), high) % (1 << size) for number in x.tolist()] for x in (a, b)]
    wanted = [(x << size) | y for x, y in zip(*clamp, strict=True)]
    names = {"a": ("s32", a), "b": ("s32", b)}
    if len(row.sources) == 3:
        names["c"] = ("b32", c)
        wanted = [number | (int(rest) << (2 * size)) for number, rest in zip(wanted, c, strict=True)]
    return Case(row.form, f"{row.form} d, {', '.join(names)};", names, {"d": "b32"}, {"d": column(wanted, "b32")})


def _case(row: Row) -> Case:
    if row.form.startswith("cvt.pack"):
        return _packing(row)
    return _pair(row) if len(row.sources) == 2 else single(row)


CASES = [_case(row) for row in ROWS.values() if row.group == "convert" and lacks("sm_80", row.form) is None]
