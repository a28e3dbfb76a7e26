"""Cases of `isa.convert_small`: bf16 and tf32 against exact rational arithmetic, 8-bit floats number by number.

The 256 8-bit floats are few enough to be listed: the nearest one is looked for among all of them, ties go to the even
one, so that no rounding code is shared with the rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
import math

import numpy as np
from tests.cases.convert import single
from tests.cases.harness import Case, edge, sample

from ptxemu.table import ROWS, Row
from ptxemu.targets import lacks
from ptxemu.values import Array

EIGHT_BITS = {"e4m3": (4, 3, 7), "e5m2": (5, 2, 15)}  # bits of exponent and fraction, bias


def number(bits: int, kind: str) -> float:
    """The value of an 8-bit float (PTX ISA, alternate floating-point formats)."""
    exponents, fractions, bias = EIGHT_BITS[kind]
    sign = -1.0 if bits & 0x80 else 1.0
    exponent, fraction = (bits & 0x7F) >> fractions, bits & ((1 << fractions) - 1)
    if kind == "e4m3" and bits & 0x7F == 0x7F:
        return math.nan
    if kind == "e5m2" and exponent == (1 << exponents) - 1:
        return math.nan if fraction else sign * math.inf
    if exponent == 0:
        return sign * float(np.ldexp(fraction, 1 - bias - fractions))
    return sign * float(np.ldexp((1 << fractions) + fraction, exponent - bias - fractions))


@cache
def finite(kind: str) -> tuple[list[float], list[int]]:
    """The finite numbers from 0 up, with their bits."""
    found = [(number(bits, kind), bits) for bits in range(0x80) if math.isfinite(number(bits, kind))]
    values, bits = zip(*found, strict=True)
    return list(values), list(bits)


def nearest(value: float, kind: str) -> int:
    """The bits of the nearest finite number, ties to the even one; NaN is 0x7f."""
    if math.isnan(value):
        return 0x7F
    values, bits = finite(kind)
    size = min(abs(value), values[-1])
    above = bisect_left(values, size)
    choices = [index for index in (above - 1, above) if 0 <= index < len(values)]
    best = min(choices, key=lambda index: (abs(values[index] - size), bits[index] & 1))
    return bits[best] | (0x80 if math.copysign(1.0, value) < 0 else 0)


def hard(kind: str) -> Array:
    """f32 numbers: edges, every finite number of the kind, what lies half-way between neighbours and beside."""
    values = np.array(finite(kind)[0], np.float32)
    middle = (values[1:] + values[:-1]) / 2
    beside = np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(np.inf))
    found = np.concatenate([values, -values, middle, -middle, *beside, edge("f32", 128)])
    return np.concatenate([found, sample("f32", -len(found) % 32, kind)])


def eight_bits(row: Row) -> Case:
    words = row.form.split(".")
    relu = "relu" in words
    result, source = words[-2].removesuffix("x2"), words[-1].removesuffix("x2")

    def low(value: float) -> float:
        return value if not relu or value > 0 or math.isnan(value) else 0.0

    if source in EIGHT_BITS:
        a: Array = np.arange(65536, dtype=np.uint32)[:: 65536 // 512 + 1].astype(np.uint16)
        a = np.concatenate([a, np.arange(256, dtype=np.uint16) * 257])
        a = np.concatenate([a, sample("u16", -len(a) % 32, "cvt")])
        with np.errstate(all="ignore"):
            wide = [[low(number(int(pair) >> shift & 0xFF, source)) for pair in a] for shift in (0, 8)]
            parts = [np.array(column, np.float64).astype(np.float16).view(np.uint16) for column in wide]
        wanted = parts[0].astype(np.uint32) | (parts[1].astype(np.uint32) << 16)
        return Case(row.form, f"{row.form} d, a;", {"a": ("b16", a)}, {"d": "f16x2"}, {"d": wanted}, target="sm_90")
    if source == "f32":
        a = hard(result)
        b = np.roll(a, 31)
        inputs: dict[str, tuple[str, Array]] = {"a": ("f32", a), "b": ("f32", b)}
    else:
        with np.errstate(all="ignore"):
            b = np.concatenate([edge("f16", 256), hard(result).astype(np.float16)])
        b = np.concatenate([b, sample("f16", -len(b) % 32, "cvt")])
        a = np.roll(b, 31)
        inputs = {"a": ("f16x2", b.view(np.uint16).astype(np.uint32) | (a.view(np.uint16).astype(np.uint32) << 16))}
    high, least = ([nearest(low(float(value)), result) for value in column] for column in (a, b))
    both = (np.array(high, np.uint16) << np.uint16(8)) | np.array(least, np.uint16)
    return Case(row.form, f"{row.form} d, {', '.join(inputs)};", inputs, {"d": "b16"}, {"d": both}, target="sm_90")


def cases() -> Iterator[Case]:
    for row in ROWS.values():
        if row.group != "convert" or lacks("sm_80", row.form) is None:
            continue
        if any(f"{kind}x2" in row.form for kind in EIGHT_BITS):
            yield eight_bits(row)
        else:
            yield replace(single(row), target="sm_90")


CASES = list(cases())
