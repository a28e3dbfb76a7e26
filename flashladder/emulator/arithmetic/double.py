"""f64 arithmetic that NumPy lacks: fused multiply-add and the directed roundings of add, mul, div and sqrt.

Why: PTX has ``.rz``, ``.rm`` and ``.rp`` for every f64 operation and a fused multiply-add, which must be right to the
last bit. The usual lanes take error-free transformations over whole arrays; the few whose exponents are so extreme that
an error term would underflow or overflow are computed with `fractions.Fraction`, one by one.

All functions take and return f64 arrays of broadcastable shapes, and a mode of `rounding.MODES`.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from flashladder.emulator.arithmetic.rounding import (
    directed,
    odd_sum,
    round_fraction,
    two_product,
    two_sum,
    zero_down,
)
from flashladder.emulator.values import Array, BoolArray

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
    doubtful = _lost(product) & (a != 0) & (b != 0) & np.isfinite(a) & np.isfinite(b)
    return _patched(
        directed(product, residual, mode),
        doubtful,
        lambda x, y: round_fraction(Fraction(x) * Fraction(y), mode),
        a,
        b,
    )


def div(a: Array, b: Array, mode: str) -> Array:
    """``a / b``."""
    quotient = a / b
    if mode == "rn":
        return quotient
    numerator, denominator = np.frexp(a)[0], np.frexp(b)[0]
    scaled = numerator / denominator
    high, low = two_product(scaled, denominator)
    residual = ((numerator - high) - low) * np.sign(denominator)
    doubtful = _lost(quotient) & (a != 0) & (b != 0) & np.isfinite(a) & np.isfinite(b)
    return _patched(
        directed(quotient, residual, mode),
        doubtful,
        lambda x, y: round_fraction(Fraction(x) / Fraction(y), mode),
        a,
        b,
    )


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
    return _patched(result, (_extreme(a) | _extreme(b) | _extreme(c)) & finite, _fma_one(mode), a, b, c)


def _fma_one(mode: str) -> Callable[[float, float, float], float]:
    def one(a: float, b: float, c: float) -> float:
        minus = bool(np.signbit(a) != np.signbit(b)), bool(np.signbit(c))
        zero = -0.0 if (any(minus) if mode == "rm" else all(minus)) else 0.0
        return round_fraction(Fraction(a) * Fraction(b) + Fraction(c), mode, zero)

    return one


def _lost(result: Array) -> BoolArray:
    """Lanes whose result lies where rounding differs from that of the scaled operands: subnormal or overflowed."""
    lost: BoolArray = (np.abs(result) < NORMAL) | np.isinf(result)
    return lost


def _extreme(x: Array) -> BoolArray:
    size = np.abs(x)
    extreme: BoolArray = (size > SAFE) | ((size < 1 / SAFE) & (size > 0))
    return extreme


def _patched(result: Array, where: BoolArray, exact: Callable[..., float], *operands: Array) -> Array:
    """`result` with the lanes of `where` recomputed, one at a time."""
    if not where.any():
        return result
    where = np.broadcast_to(where, result.shape)
    patched = result.copy()
    lanes = [np.broadcast_to(operand, result.shape)[where].tolist() for operand in operands]
    patched[where] = [exact(*lane) for lane in zip(*lanes, strict=True)]
    return patched
