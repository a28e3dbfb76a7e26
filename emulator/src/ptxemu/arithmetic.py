"""Arithmetic that NumPy lacks: rounding modes, fused multiply-add, flush to zero, for f32 and f64.

NumPy rounds to nearest only and has no fused multiply-add. A result that was first rounded to float64 and then to a
narrower type can be wrong by one unit (double rounding), unless the first rounding was *to odd*: an inexact result
takes the neighbour whose last bit is 1, so that it never looks like a tie or like an exact value of the narrower type.

Modes are PTX's: ``rn`` nearest, ties to even; ``rz`` towards zero; ``rm`` down; ``rp`` up. All functions work on
arrays of broadcastable shapes, return new arrays and expect to run under ``np.errstate(all="ignore")``.

**f32**: rounding to nearest is one NumPy ufunc, since most of a kernel's arithmetic is that; everything else goes by
way of float64, where sums are rounded to odd and products are exact. **f64**: the usual lanes take error-free
transformations over whole arrays; the few whose exponents are so extreme that an error term would underflow or
overflow are computed with `fractions.Fraction`, one by one.

Sources: Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd"
(2008); Dekker (1971) and Knuth for the error-free transformations; PTX ISA 9.0, 9.7.3 (.ftz, .sat, NaN).
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
import math
from typing import Any, TypeAlias

import numpy as np

from ptxemu.values import BFLOAT16, Array, BoolArray

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
    high_a, high_b = (scaled - (scaled - each) for each, scaled in ((a, a * SPLITTER), (b, b * SPLITTER)))
    low_a, low_b = a - high_a, b - high_b
    return total, ((high_a * high_b - total) + high_a * low_b + low_a * high_b) + low_a * low_b


def _bits(x: Array) -> Array:
    return x.view(f"i{x.dtype.itemsize}")


def to_odd(rounded: Array, error: Array) -> Array:
    """The exact value ``rounded + error`` rounded to odd; `rounded` is its nearest value, `error` may be rounded."""
    bits = _bits(rounded)
    inexact = (np.abs(error) > 0) & ((bits & 1) == 0)  # a NaN error (an infinite sum) counts as exact
    outwards = np.signbit(error) == np.signbit(rounded)
    step = np.where(outwards, inexact, -inexact.astype(np.int8)).astype(bits.dtype)
    return np.asarray((bits + step).view(rounded.dtype))


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
    return np.asarray((bits + step).view(nearest.dtype))


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
    return np.where(np.abs(x) < MIN_NORMAL, np.copysign(np.float32(0), x), x)  # a signalling NaN stays one


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
    clamped: Array = np.fmax(np.minimum(x, x.dtype.type(1)) + zero, zero)  # the sum makes -0 +0 and NaN quiet
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


Function: TypeAlias = Callable[..., Array]

# A sum this large is the same with subnormal operands flushed: they are less than 2^-3 of a unit of its last place.
NO_LOSS = np.float32(2.0**-99)
LOW_BITS = np.uint64(0x1FFFFFFF)  # bits of a float64 below the last bit of an f32
TIE = np.uint64(0x10000000)


def _wide(operation: Callable[..., Array]) -> Function:
    """An operation on f32 arrays, computed in float64."""
    return lambda *operands: operation(*(operand.astype(np.float64) for operand in operands))


# f32 arrays -> float64 that is exact or rounded to odd, so that one more rounding in any mode gives the right f32. A
# quotient or root rounded to nearest serves, too: it is an f32 number or a tie only if the exact one is (53 >= 2*24+2).
WIDE: dict[str, Function] = {
    "add": _wide(odd_sum),
    "sub": _wide(lambda a, b: odd_sum(a, -b)),
    "mul": _wide(np.multiply),
    "fma": _wide(lambda a, b, c: odd_sum(a * b, c)),
    "div": _wide(np.divide),
    "rcp": _wide(np.reciprocal),
    "sqrt": _wide(np.sqrt),
}
# The terms whose signs decide the sign of an exact zero in mode rm.
TERMS: dict[str, Callable[..., tuple[Array, Array]]] = {
    "add": lambda a, b: (a, b),
    "sub": lambda a, b: (a, -b),
    "fma": lambda a, b, c: (a.astype(np.float64) * b.astype(np.float64), c),
}


def fma_nearest(a: Array, b: Array, c: Array) -> Array:
    """``a * b + c`` of f32, rounded once to nearest: by way of float64, and to odd where that is a tie."""
    total = a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)  # the product is exact
    result: Array = total.astype(np.float32)
    uncertain = (total.view(np.uint64) & LOW_BITS) == TIE  # rounding twice goes wrong at a tie of the second one
    if not clean(result):
        uncertain |= (np.abs(total) < MIN_NORMAL) & (total != 0)  # fewer bits remain there: ties lie elsewhere
    if uncertain.any():
        x, y, z = (np.broadcast_to(operand, total.shape)[uncertain] for operand in (a, b, c))
        result[uncertain] = to_f32(WIDE["fma"](x, y, z))
    return result


NEAREST: dict[str, Function] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "fma": fma_nearest,
    "div": np.divide,
    "rcp": np.reciprocal,
    "sqrt": np.sqrt,
}


def rounded_f32(name: str, mode: str) -> Function:
    """An operation of `WIDE` rounded once in `mode`, subnormal numbers kept."""
    if mode == "rn":
        return NEAREST[name]
    wide, terms = WIDE[name], TERMS.get(name)

    def function(*operands: Array) -> Array:
        exact = wide(*operands)
        return to_f32(zero_down(exact, *terms(*operands)) if terms and mode == "rm" else exact, mode)

    return function


def flushed_f32(name: str, mode: str) -> Function:
    """The same with ``.ftz``: operands and result flushed, see `vanishes`."""
    kept, wide = rounded_f32(name, mode), WIDE[name]

    def function(*operands: Array) -> Array:
        operands = tuple(map(ftz, operands))
        result = kept(*operands)
        if clean(result):
            return result
        result = canonical(ftz(result))
        least = np.abs(result) == MIN_NORMAL
        if not least.any():
            return result
        return np.where(least & vanishes(wide(*operands), mode), np.copysign(np.float32(0), result), result)

    return function


def _flushed_sum(name: str) -> Function:
    """``add.ftz`` and ``sub.ftz`` to nearest: operands need no look unless the sum is small; small sums are exact."""
    ufunc = NEAREST[name]

    def function(a: Array, b: Array) -> Array:
        result = ufunc(a, b)
        if np.minimum.reduce(np.abs(result), axis=None) >= NO_LOSS:
            return result
        return settled(ufunc(ftz(a), ftz(b)), flush=True)

    return function


def operation_f32(name: str, mode: str, flush: bool, clamp: bool) -> Function:
    """The function of one row, ``.ftz`` and ``.sat`` included."""
    if not flush:
        exact = rounded_f32(name, mode)
        return (lambda *x: saturate(exact(*x))) if clamp else (lambda *x: canonical(exact(*x)))
    flat = _flushed_sum(name) if mode == "rn" and name in {"add", "sub"} else flushed_f32(name, mode)
    return (lambda *x: saturate(flat(*x))) if clamp else flat


NORMAL = 2.0**-1021  # twice the smallest normal number: smaller results may have lost bits
SAFE = 2.0**400  # factors and terms of 2^-400 ... 2^400 keep every error term of `fma` representable


def add(a: Array, b: Array, mode: str) -> Array:
    """``a + b``; overflow in ``rz`` (and towards the finite side) gives the largest finite number."""
    total = a + b
    if mode == "rn":
        return total
    swap = np.abs(a) < np.abs(b)
    large, small = np.where(swap, b, a), np.where(swap, a, b)
    error = small - (total - large)  # exact for |large| >= |small|; an overflow leaves the opposite infinity
    result = directed(total, error, mode)
    return zero_down(result, a, b) if mode == "rm" else result


def mul(a: Array, b: Array, mode: str) -> Array:
    """``a * b``."""
    product = a * b
    if mode == "rn":
        return product
    residual = two_product(np.frexp(a)[0], np.frexp(b)[0])[1]
    return _repaired(product, residual, mode, lambda x, y: Fraction(x) * Fraction(y), a, b)


def div(a: Array, b: Array, mode: str) -> Array:
    """``a / b``."""
    quotient = a / b
    if mode == "rn":
        return quotient
    numerator, denominator = np.frexp(a)[0], np.frexp(b)[0]
    high, low = two_product(numerator / denominator, denominator)
    residual = ((numerator - high) - low) * np.sign(denominator)
    return _repaired(quotient, residual, mode, lambda x, y: Fraction(x) / Fraction(y), a, b)


def _repaired(
    nearest: Array, residual: Array, mode: str, exact: Callable[[float, float], Fraction], a: Array, b: Array
) -> Array:
    """A product or quotient in `mode`; where it is subnormal or overflows, it is computed exactly."""
    lost = (np.abs(nearest) < NORMAL) | np.isinf(nearest)
    lost = lost & (a != 0) & (b != 0) & np.isfinite(a) & np.isfinite(b)
    return _patched(directed(nearest, residual, mode), lost, lambda x, y: round_fraction(exact(x, y), mode), a, b)


def sqrt(a: Array, mode: str) -> Array:
    """The square root; NaN below -0."""
    root = np.sqrt(a)
    if mode == "rn":
        return root
    fraction, exponent = np.frexp(a)
    fraction = np.where(exponent % 2 == 0, fraction, fraction * 2)
    high, low = two_product(np.sqrt(fraction), np.sqrt(fraction))
    return directed(root, (fraction - high) - low, mode)


def fma(a: Array, b: Array, c: Array, mode: str) -> Array:
    """``a * b + c`` rounded once (Boldo and Melquiond 2008: the low parts are summed to odd)."""

    def one(a: float, b: float, c: float) -> float:
        minus = bool(np.signbit(a) != np.signbit(b)), bool(np.signbit(c))
        zero = -0.0 if (any(minus) if mode == "rm" else all(minus)) else 0.0
        return round_fraction(Fraction(a) * Fraction(b) + Fraction(c), mode, zero)

    plain = a * b + c
    product, error = two_product(a, b)
    upper, low = two_sum(c, error)
    high, middle = two_sum(product, upper)
    total, residual = two_sum(high, odd_sum(middle, low))
    result = directed(total, residual, mode)
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    plain = np.where(np.isinf(c) & np.isfinite(a) & np.isfinite(b), c, plain)  # whatever the product overflows to
    result = np.where(finite & (total != 0), result, plain)  # `plain` has the sign of an exact zero, infinities and NaN
    if mode == "rm":
        result = zero_down(result, a * b, c)
    return _patched(result, (_extreme(a) | _extreme(b) | _extreme(c)) & finite, one, a, b, c)


def _extreme(x: Array) -> BoolArray:
    size = np.abs(x)
    return np.asarray((size > SAFE) | ((size < 1 / SAFE) & (size > 0)))


def _patched(result: Array, where: BoolArray, exact: Callable[..., float], *operands: Array) -> Array:
    """`result` with the lanes of `where` recomputed, one at a time."""
    if not where.any():
        return result
    where = np.broadcast_to(where, result.shape)
    patched = result.copy()
    lanes = [np.broadcast_to(operand, result.shape)[where].tolist() for operand in operands]
    patched[where] = [exact(*lane) for lane in zip(*lanes, strict=True)]
    return patched
