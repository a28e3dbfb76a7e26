"""Cases of `isa.convert`: each form on edges, ties and limits, against exact rational arithmetic.

The nearest 8-bit float is looked for among all 256. Forms that need sm_90 are the group ``convert_small``.
"""

from bisect import bisect_left
from dataclasses import replace
from functools import cache
from itertools import product
import math

import numpy as np
from tests.cases.harness import Case, Typed, edge, named, plain, sample
from tests.cases.reference_convert import convert, limits, relu
from tests.cases.reference_float import FORMATS
from tests.cases.reference_int import column, wrap

from ptxemu.table import ROWS, Row
from ptxemu.targets import lacks
from ptxemu.values import DTYPES, Array

COUNT = 128
TF32_NAN = [0x7FFFFFFF, 0xFFC00000, 0x7F800001, 0x7FBFFFFF, 0x7F801FFF, 0xFFFFFFFF, 0x7FFFE000, 0x7FFFF000]
HOLDS = {"u8": "u16", "s8": "s16", "tf32": "b32"}  # registers of 8-bit values are wider: extension is seen too
EIGHT_BITS = {"e4m3": (4, 3, 7), "e5m2": (5, 2, 15)}  # bits of exponent and fraction, bias


def ties(result: str) -> list[float]:
    """Numbers half-way between neighbours of a float format, and float64 numbers beside them."""
    found = []
    for number in edge("f16" if result == "tf32" else result, 64)[:40].astype(np.float64).tolist():
        if np.isfinite(number) and number:
            precision, least, _ = FORMATS[result]
            step = 2.0 ** (max(int(np.frexp(abs(number))[1]) - precision, least) - 1)
            found += [number + step, (number + step) * (1 + 2.0**-22), (number + step) * (1 - 2.0**-22), number - step]
            found += [number * (1 + side * 2.0**-power) for power in (24, 25, 26, 40) for side in (-1, 1)]
    return found


def borders(result: str) -> list[float]:
    """Ends of an integer type, halves around them, and halves around 0."""
    low, high = limits(result)
    around = [k + half for k in (-2, -1, 0, 1, 2) for half in (-0.5, -0.25, 0.25, 0.5)]
    return [end + step for end in (low, high + 1) for step in (-2, -1, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 1)] + around


def large(result: str) -> list[int]:
    """Integers that a float format must round: ties, and numbers beside them, at several sizes."""
    precision = FORMATS[result][0]
    sizes = (precision, precision + 1, precision + 5, 31, 62, 63)
    grid = product(sizes, (0, 1, 3), (-1, 0, 1), (1, -1))
    return [sign * (1 << size) + (odd << max(size - precision, 0)) + beside for size, odd, beside, sign in grid]


@cache
def inputs(source: str, result: str) -> Array:
    """Edge values of the source, and those that are hard for this result."""
    hard: list[float]
    if result in FORMATS and source in FORMATS:
        hard = ties(result) if FORMATS[result][0] < FORMATS[source][0] else [*borders("u8"), 2.0**-24]
    elif result in FORMATS:
        hard = [number for number in large(result) if limits(source)[0] <= number <= limits(source)[1]]
    else:
        hard = borders(result) if source in FORMATS else [*limits(result), *(end + 1 for end in limits(result))]
    if source not in FORMATS:
        hard = [wrap(int(number), source) for number in hard]
    both = filled(source, "convert", edge(source, COUNT // 2), column(hard, source))
    if result == "tf32":
        both[-8:] = np.array(TF32_NAN, np.uint32).view(np.float32)
    return both


def filled(kind: str, use: str, *parts: Array) -> Array:
    whole = np.concatenate(parts)
    return np.concatenate([whole, sample(kind, -len(whole) % 32, use)])


def single(row: Row) -> Case:
    result, source = row.results[0], row.sources[0]
    to_tf32 = ".tf32." in row.form
    values, register = inputs(source, "tf32" if to_tf32 else result), HOLDS.get(source, source)
    if register != source:  # a wider register whose upper half is not the extension of the lower
        dirt = sample("u16", len(values), row.form) & np.uint16(0xFF00)
        values = (values.view(np.uint8) | dirt).view(DTYPES[register])
    expected = [convert(row.form, number) for number in values.tolist()]
    kind = HOLDS.get(result, result)
    wanted = column(expected, "f32" if to_tf32 else kind)
    if to_tf32:  # on an H200 NaN loses its low bits, and is always the same in the roundings of sm_90
        nan = values.view(np.uint32) & ~np.uint32(0x1FFF) if ".rna." in row.form else np.uint32(0x7FFFE000)
        wanted = np.where(np.isnan(values), nan, wanted.view(np.uint32))
    return plain(row.form, named(register, values), kind, wanted)


def pair(row: Row) -> Case:
    kind = row.results[0].removesuffix("x2")
    a = inputs("f32", kind)
    both = a, np.roll(a, 17)
    high, low = (column([convert(row.form, number) for number in x.tolist()], kind).view(np.uint16) for x in both)
    return plain(row.form, named("f32", *both), row.results[0], (high.astype(np.uint32) << 16) | low)


def packing(row: Row) -> Case:
    kind = row.form.split(".")[3]
    (low, high), size = limits(kind), int(kind[1:])
    a = np.concatenate([edge("s32", 80), column([low, low - 1, low + 1, high, high + 1, high - 1], "s32")])
    b, c = np.roll(a, 31), sample("b32", len(a), row.form)
    clamp = [[min(max(number, low), high) % (1 << size) for number in x.tolist()] for x in (a, b)]
    wanted, operands = [(x << size) | y for x, y in zip(*clamp, strict=True)], named("s32", a, b)
    if len(row.sources) == 3:
        operands["c"] = ("b32", c)
        wanted = [number | (int(rest) << (2 * size)) for number, rest in zip(wanted, c, strict=True)]
    return plain(row.form, operands, "b32", column(wanted, "b32"))


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
def finite(kind: str) -> list[float]:
    return [each for bits in range(0x80) if math.isfinite(each := number(bits, kind))]


def nearest(value: float, kind: str) -> int:
    """The bits of the nearest finite number, ties to the even one; NaN is 0x7f."""
    if math.isnan(value):
        return 0x7F
    values = finite(kind)
    size = min(abs(value), values[-1])
    above = bisect_left(values, size)
    choices = [index for index in (above - 1, above) if 0 <= index < len(values)]
    best = min(choices, key=lambda index: (abs(values[index] - size), index & 1))
    return best | (0x80 if math.copysign(1.0, value) < 0 else 0)


def hard(kind: str) -> Array:
    """f32 numbers: edges, every finite number of the kind, what lies half-way between neighbours and beside."""
    values = np.array(finite(kind), np.float32)
    middle = (values[1:] + values[:-1]) / 2
    beside = np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(np.inf))
    return filled("f32", kind, values, -values, middle, -middle, *beside, edge("f32", 128))


def halves(high: Array, low: Array) -> Array:
    return (high.view(np.uint16).astype(np.uint32) << 16) | low.view(np.uint16)


def eight_bits(row: Row) -> Case:
    words = row.form.split(".")
    result, source = words[-2].removesuffix("x2"), words[-1].removesuffix("x2")
    low = relu if "relu" in words else float
    if source in EIGHT_BITS:
        few = np.arange(65536, dtype=np.uint32)[:: 65536 // 512 + 1].astype(np.uint16)
        a = filled("u16", "cvt", few, np.arange(256, dtype=np.uint16) * 257)
        parts = (column([low(number(int(each) >> shift & 0xFF, source)) for each in a], "f16") for shift in (8, 0))
        return plain(row.form, named("b16", a), "f16x2", halves(*parts), target="sm_90")
    if source == "f32":
        b = hard(result)
        a, b = b, np.roll(b, 31)
        operands: Typed = named("f32", a, b)
    else:
        with np.errstate(all="ignore"):
            b = filled("f16", "cvt", edge("f16", 256), hard(result).astype(np.float16))
        a = np.roll(b, 31)
        operands = named("f16x2", halves(a, b))
    high, least = (np.array([nearest(low(float(each)), result) for each in x], np.uint16) for x in (a, b))
    return plain(row.form, operands, "b16", (high << np.uint16(8)) | least, target="sm_90")


def case(row: Row) -> Case:
    if row.form.startswith("cvt.pack"):
        return packing(row)
    return pair(row) if len(row.sources) == 2 else single(row)


def small(row: Row) -> Case:
    is_eight = any(f"{kind}x2" in row.form for kind in EIGHT_BITS)
    return eight_bits(row) if is_eight else replace(single(row), target="sm_90")


ROWS_HERE = [(row, lacks("sm_80", row.form) is None) for row in ROWS.values() if row.group == "convert"]
CASES = {
    "convert": [case(row) for row, everywhere in ROWS_HERE if everywhere],
    "convert_small": [small(row) for row, everywhere in ROWS_HERE if not everywhere],
}
