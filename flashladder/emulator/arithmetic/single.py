"""f32 arithmetic with one rounding: any mode, with or without ``.ftz`` and ``.sat``; the fused multiply-add.

Why: rounding to nearest is one NumPy ufunc and must stay nearly as cheap, since most of a kernel's arithmetic is that;
everything else goes by way of float64, where sums are rounded to odd (see `rounding`) and products are exact.
Functions take and return f32 arrays of broadcastable shapes. Source: PTX ISA 9.0, section 9.7.3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from flashladder.emulator.arithmetic.rounding import (
    MIN_NORMAL,
    canonical,
    clean,
    ftz,
    odd_sum,
    saturate,
    settled,
    to_f32,
    vanishes,
    zero_down,
)
from flashladder.emulator.values import Array

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
TERMS: dict[
    str, Callable[..., tuple[Array, Array]]
] = {  # the terms whose signs decide the sign of an exact zero in mode rm
    "add": lambda a, b: (a, b),
    "sub": lambda a, b: (a, -b),
    "fma": lambda a, b, c: (_product(a, b), c),
}


def _product(a: Array, b: Array) -> Array:
    """The exact product of f32 numbers, in float64."""
    product: Array = a.astype(np.float64) * b.astype(np.float64)
    return product


def fma_nearest(a: Array, b: Array, c: Array) -> Array:
    """``a * b + c`` of f32, rounded once to nearest: by way of float64, and to odd where that is a tie."""
    total = _product(a, b) + c.astype(np.float64)
    result: Array = total.astype(np.float32)
    doubtful = (total.view(np.uint64) & LOW_BITS) == TIE  # rounding twice goes wrong at a tie of the second one
    if not clean(result):
        doubtful |= (np.abs(total) < MIN_NORMAL) & (total != 0)  # fewer bits remain there: ties lie elsewhere
    if doubtful.any():
        x, y, z = (np.broadcast_to(operand, total.shape)[doubtful] for operand in (a, b, c))
        result[doubtful] = to_f32(WIDE["fma"](x, y, z))
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
    """The same with ``.ftz``: operands and result flushed, see `rounding.vanishes`."""
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
