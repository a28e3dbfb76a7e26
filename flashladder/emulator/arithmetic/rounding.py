"""Correct rounding: exact sums and products in float64, one final rounding in any direction, flush to zero.

Why: NumPy rounds to nearest only and has no fused multiply-add. A result that was first rounded to float64 and then to
a narrower type can be wrong by one unit (double rounding), unless the first rounding was *to odd*: an inexact result
takes the neighbour whose last bit is 1, so that it never looks like a tie or like an exact value of the narrower type.
Sources: Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd"
(2008); Dekker (1971) and Knuth for the error-free transformations; PTX ISA 9.0, section 9.7.3 (.ftz, .sat, NaN).

Modes are PTX's: ``rn`` nearest, ties to even; ``rz`` towards zero; ``rm`` down; ``rp`` up. All functions work on arrays
of any shape, return new arrays and expect to run under ``np.errstate(all="ignore")``.
"""

from __future__ import annotations

from fractions import Fraction
import math
from typing import Any

import numpy as np

from flashladder.emulator.values import BFLOAT16, Array, BoolArray

MODES = ("rn", "rz", "rm", "rp")
MIN_NORMAL = np.float32(2.0**-126)  # the smallest f32 that .ftz keeps
MIN_NORMAL_BITS = 0x00800000
NAN = np.array(0x7FFFFFFF, dtype=np.uint32).view(np.float32)[()]  # the NaN that f32 arithmetic returns
SPLITTER = 134217729.0  # 2^27 + 1: cuts a float64 into two halves of 26 bits


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """``a + b`` rounded to nearest and its error: their sum is exact unless the rounded sum overflows (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """``a * b`` of float64 and its error; exact while no partial product leaves 2^-1022 ... 2^996 (Dekker)."""
    total = a * b
    high_a, high_b = _upper(a), _upper(b)
    low_a, low_b = a - high_a, b - high_b
    return total, ((high_a * high_b - total) + high_a * low_b + low_a * high_b) + low_a * low_b


def _upper(a: Array) -> Array:
    scaled = a * SPLITTER
    return scaled - (scaled - a)


def _bits(x: Array) -> Array:
    return x.view(f"i{x.dtype.itemsize}")


def to_odd(rounded: Array, error: Array) -> Array:
    """The exact value ``rounded + error`` rounded to odd; `rounded` is its nearest value, `error` may be rounded."""
    bits = _bits(rounded)
    inexact = (np.abs(error) > 0) & ((bits & 1) == 0)  # a NaN error (an infinite sum) counts as exact
    outwards = np.signbit(error) == np.signbit(rounded)
    step = np.where(outwards, inexact, -inexact.astype(np.int8)).astype(bits.dtype)
    odd: Array = (bits + step).view(rounded.dtype)
    return odd


def odd_sum(a: Array, b: Array) -> Array:
    """``a + b`` in float64, rounded to odd: ready for one more rounding to f32, f16 or bf16 in any mode."""
    return to_odd(*two_sum(a, b))


def directed(nearest: Array, residual: Array, mode: str) -> Array:
    """Turns a value rounded to nearest into the one rounded in `mode`.

    `residual` has the sign of (exact - nearest); 0 or NaN where `nearest` is exact, infinite by right, or NaN.
    """
    if mode == "rn":
        return nearest
    bits = _bits(nearest)
    negative = np.signbit(nearest)
    if mode == "rz":
        step = -(((residual > 0) == negative) & (np.abs(residual) > 0)).astype(bits.dtype)
    else:
        wrong = residual < 0 if mode == "rm" else residual > 0
        step = np.where(negative == (mode == "rm"), wrong, -wrong.astype(np.int8)).astype(bits.dtype)
    stepped: Array = (bits + step).view(nearest.dtype)
    return stepped


def narrow(x: Array, dtype: np.dtype[Any], mode: str = "rn") -> Array:
    """A float64 that is exact or rounded to odd, rounded once to f32, f16 or bf16; NaN payloads are not kept.

    Overflow follows the mode: ``rz`` stops at the largest finite value.
    """
    if dtype == BFLOAT16:  # by way of f32, again to odd: ml_dtypes itself would round twice
        single = x.astype(np.float32)
        nearest = to_odd(single, x - single).astype(dtype)
    else:
        nearest = x.astype(dtype)
    return nearest if mode == "rn" else directed(nearest, x - nearest.astype(np.float64), mode)


def to_f32(x: Array, mode: str = "rn") -> Array:
    """`narrow` to f32."""
    return narrow(x, np.dtype(np.float32), mode)


def zero_down(total: Array, a: Array, b: Array) -> Array:
    """The sum ``a + b`` in mode ``rm``, where an exact zero is -0 unless both terms are +0."""
    return np.where((total == 0) & (np.signbit(a) | np.signbit(b)), -np.abs(total), total)


def ftz(x: Array) -> Array:
    """f32 with subnormal numbers replaced by zero of the same sign; the array itself where there is none."""
    twice = x.view(np.uint32)
    twice = twice + twice  # without the sign; 0 wraps round to the largest key
    twice -= np.uint32(1)
    if np.minimum.reduce(twice, axis=None) >= 2 * MIN_NORMAL_BITS - 1:
        return x
    flushed: Array = x * ~(np.abs(x) < MIN_NORMAL)
    return flushed


def canonical(x: Array) -> Array:
    """f32 with every NaN replaced by 0x7fffffff; the array itself where there is none."""
    return np.where(np.isnan(x), NAN, x) if np.isnan(np.maximum.reduce(x, axis=None)) else x


def clean(x: Array) -> bool:
    """Whether no element is zero, subnormal or NaN (or the smallest normal): one cheap question that spares repairs."""
    return bool(np.minimum.reduce(np.abs(x), axis=None) > MIN_NORMAL)


def settled(x: Array, flush: bool) -> Array:
    """An f32 result made ready: NaN canonical and, with `flush`, subnormal numbers flushed."""
    if clean(x):
        return x
    return canonical(ftz(x) if flush else x)


def vanishes(x: Array, mode: str) -> BoolArray:
    """Lanes whose exact value (float64, exact or rounded to odd) ``.ftz`` flushes as a result.

    The hardware rounds to 24 bits first, as if the exponent had no lower end, and flushes what is then below 2^-126:
    a value that the coarser grid of subnormal numbers would round up to 2^-126 may vanish (H200; the ISA is silent).
    """
    below = 1 - 2.0**-24  # the number before 1 at 24 bits; nearest rounding goes up from half way, `rz` never
    away = np.abs(x) <= MIN_NORMAL * np.float64(below)
    small: BoolArray
    if mode == "rn":
        small = np.abs(x) < MIN_NORMAL * np.float64((1 + below) / 2)
    elif mode == "rz":
        small = np.abs(x) < MIN_NORMAL
    else:
        small = np.where(np.signbit(x) == (mode == "rm"), away, np.abs(x) < MIN_NORMAL)
    return small


def saturate(x: Array) -> Array:
    """``.sat``: clamped to [+0, 1]; NaN and -0 become +0."""
    zero = x.dtype.type(0)
    clamped: Array = np.fmax(np.minimum(x, x.dtype.type(1)), zero) + zero  # the sum makes -0 +0
    return clamped


def round_fraction(value: Fraction, mode: str, zero: float = 0.0) -> float:
    """An exact rational number as float64, rounded once; `zero` (0.0 or -0.0) is returned for 0."""
    if not value:
        return zero
    try:
        nearest = value.numerator / value.denominator  # Python rounds the quotient of two ints correctly
    except OverflowError:
        nearest = -math.inf if value < 0 else math.inf
    above = nearest < 0 if math.isinf(nearest) else value > Fraction(nearest)
    below = nearest > 0 if math.isinf(nearest) else value < Fraction(nearest)
    residual = np.array([float(above) - float(below)])
    return float(directed(np.array([nearest]), residual, mode)[0])
