"""The approximate units: ex2, lg2, sin, cos, tanh, rcp, rsqrt, sqrt, div.approx and div.full, rcp/rsqrt.approx.ftz.f64.

Their results are not specified to the bit, only by an error bound and a table of special values. Each row computes the
function with NumPy, which is nearer to the exact value than the ISA asks, and gives the special values exactly; so a
kernel's numbers differ from the hardware's by no more than twice the bound in the row's summary.

Source: PTX ISA 9.0, 9.7.3.8 and 9.7.3.13 to 9.7.3.22.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxemu.arithmetic import canonical, ftz, settled
from ptxemu.table import lane
from ptxemu.values import Array

FLUSHED = "; subnormal numbers flushed to zero"
UPPER = np.uint64(0xFFFFFFFF00000000)  # the 1.11.20 format: sign, exponent and 20 bits of a float64
CANONICAL = np.array(0x7FFFFFFF00000000, dtype=np.uint64).view(np.float64)[()]
GREAT = np.float32(2.0**126)  # above it 1/b is subnormal, which div.approx takes for 0


def rsqrt(a: Array) -> Array:
    """``1 / sqrt(a)`` in the type of `a`: two roundings, a relative error of at most 2^-23 in f32."""
    return np.asarray(a.dtype.type(1) / np.sqrt(a))


def reciprocal(a: Array) -> Array:
    """``1 / a`` in the type of `a`, rounded to nearest."""
    return np.asarray(a.dtype.type(1) / a)


def divide_approximately(a: Array, b: Array) -> Array:
    """``div.approx``: a / b, but for 2^126 < |b| < 2^128 zero of the quotient's sign, or NaN where `a` is infinite."""
    quotient: Array = a / b
    size = np.abs(b)
    great = (size > GREAT) & (size < np.inf)
    return np.where(great, a * np.copysign(np.float32(0), b), quotient) if great.any() else quotient


def _upper_word(compute: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A function on the upper words of float64 numbers: operand cut to 20 bits of mantissa, result rounded to them."""

    def function(a: Array) -> Array:
        exact = compute(_flush_double((a.view(np.uint64) & UPPER).view(np.float64)))
        half = np.uint64(0x80000000)
        rounded = ((exact.view(np.uint64) + half) & UPPER).view(np.float64)
        return np.where(np.isnan(exact), CANONICAL, _flush_double(rounded))

    return function


def _flush_double(x: Array) -> Array:
    return np.asarray(x * ~(np.abs(x) < 2.0**-1022))


def _plain(compute: Callable[..., Array]) -> Callable[..., Array]:
    def function(*operands: Array) -> Array:
        return canonical(compute(*operands))

    return function


def _flushing(compute: Callable[..., Array]) -> Callable[..., Array]:
    def function(*operands: Array) -> Array:
        return settled(compute(*map(ftz, operands)), flush=True)

    return function


def exp2(a: Array) -> Array:
    """``2**a`` of f32 by way of float64: NumPy's own f32 function is off by up to 2.9 ulp, the ISA allows 2."""
    return np.asarray(np.exp2(a.astype(np.float64)).astype(np.float32))


ROWS: list[tuple[str, Callable[..., Array], int, str]] = [
    ("lg2.approx", np.log2, 1, "log2(a); absolute error 2^-22 for a in (0.5, 2), else relative error 2^-22"),
    ("sin.approx", np.sin, 1, "sin(a); absolute error 2^-20.5 for |a| <= 2 pi, 2^-14.7 for |a| <= 100 pi"),
    ("cos.approx", np.cos, 1, "cos(a); absolute error 2^-20.5 for |a| <= 2 pi, 2^-14.7 for |a| <= 100 pi"),
    ("rcp.approx", reciprocal, 1, "1 / a; error 1 ulp"),
    ("rsqrt.approx", rsqrt, 1, "1 / sqrt(a); relative error 2^-22.9"),
    ("sqrt.approx", np.sqrt, 1, "square root of a; relative error 2^-23"),
    (
        "div.approx",
        divide_approximately,
        2,
        "a / b; error 2 ulp for |b| in [2^-126, 2^126], 0 for |b| in (2^126, 2^128)",
    ),
    ("div.full", np.divide, 2, "a / b; error 2 ulp"),
]


def _rows() -> None:
    for name, compute, count, summary in ROWS:
        sources = " ".join(["f32"] * count)
        lane(f"{name}.f32", "f32", sources, _plain(compute), summary)
        lane(f"{name}.ftz.f32", "f32", sources, _flushing(compute), summary + FLUSHED)
    lane("ex2.approx.f32", "f32", "f32", _plain(exp2), "2^a; error 2 ulp")
    # A subnormal operand gives 1 anyway, so that only the result needs a look.
    lane("ex2.approx.ftz.f32", "f32", "f32", lambda a: settled(exp2(a), flush=True), "2^a; error 2 ulp" + FLUSHED)
    lane("tanh.approx.f32", "f32", "f32", _plain(np.tanh), "tanh(a); relative error 2^-11")
    lane("rsqrt.approx.f64", "f64", "f64", rsqrt, "1 / sqrt(a) of f64; the ISA states no error, here 1 ulp")
    gross = "of the upper 32 bits of f64 a; the lower 32 bits of the result are 0; the ISA states no error, here 2^-21"
    lane("rcp.approx.ftz.f64", "f64", "f64", _upper_word(reciprocal), f"1 / a {gross}")
    lane("rsqrt.approx.ftz.f64", "f64", "f64", _upper_word(rsqrt), f"1 / sqrt(a) {gross}")


_rows()
