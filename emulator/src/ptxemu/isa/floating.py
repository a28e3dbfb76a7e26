"""f32 and f64 arithmetic: add, sub, mul, fma, mad, div, rcp, sqrt, min, max, neg, abs, copysign, testp.

These decide the numbers of every kernel, so they are exact to the bit: one rounding in the asked direction, `.ftz` on
operands and results, `.sat`, canonical NaN. The usual case (nearest rounding, no subnormal number in sight) is one
ufunc and a cheap question whether there is anything to repair; the rest may cost more. ``mad`` is ``fma`` since sm_20.
``add``, ``sub`` and ``mul`` without a rounding mode round to nearest, too; ptxas may fuse those into an fma, which the
emulator does not imitate. Source: PTX ISA 9.0, 9.7.3.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
import itertools

import numpy as np

from ptxemu import arithmetic
from ptxemu.arithmetic import MIN_NORMAL, MODES, Function, canonical, clean, ftz, operation_f32
from ptxemu.table import lane
from ptxemu.values import Array

WORDS = {"rn": "to nearest even", "rz": "towards zero", "rm": "down", "rp": "up"}


def _extreme(a: Array, b: Array, largest: bool, nan: bool) -> Array:
    """Min or max with -0 < +0. `nan`: NaN when either operand is; otherwise NaN only when both are."""
    if nan:
        result: Array = np.maximum(a, b) if largest else np.minimum(a, b)
    else:
        result = np.fmax(a * 1, b * 1) if largest else np.fmin(a * 1, b * 1)  # quiet: a signalling NaN may win
    zeros = (a == 0) & (b == 0) if (result == 0).any() else None
    if zeros is None or not zeros.any():
        return result
    bits = [x.view(f"u{x.dtype.itemsize}") for x in (a, b)]
    sign = (bits[0] & bits[1] if largest else bits[0] | bits[1]).view(result.dtype)
    return np.where(zeros, sign, result)


def extreme_f32(largest: bool, nan: bool, flush: bool) -> Function:
    """Min or max of f32."""

    def function(a: Array, b: Array) -> Array:
        if not nan:  # without zero, subnormal or NaN among the results there was none that mattered
            result: Array = np.fmax(a, b) if largest else np.fmin(a, b)
            if clean(result):
                return result
        if flush:
            a, b = ftz(a), ftz(b)
        return canonical(_extreme(a, b, largest, nan))

    return function


def xorsign(magnitude: Function) -> Function:
    """``.xorsign.abs``: the operation on magnitudes, with the product's sign unless the result is NaN."""

    def function(a: Array, b: Array) -> Array:
        result = magnitude(np.abs(a), np.abs(b))
        return np.where((np.signbit(a) != np.signbit(b)) & ~np.isnan(result), -result, result)

    return function


def copysign(a: Array, b: Array) -> Array:
    """`b` with the sign of `a` (PTX's order), NaN included."""
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    sign = unsigned.type(1 << (8 * unsigned.itemsize - 1))
    return np.asarray(((a.view(unsigned) & sign) | (b.view(unsigned) & ~sign)).view(a.dtype))


def _subnormal(a: Array) -> Array:
    least = MIN_NORMAL if a.dtype == np.float32 else np.float64(2.0**-1022)
    return np.asarray((np.abs(a) < least) & (a != 0))


TESTS: dict[str, tuple[Function, str]] = {
    "finite": (np.isfinite, "neither infinite nor NaN"),
    "infinite": (np.isinf, "infinite"),
    "number": (lambda a: ~np.isnan(a), "not NaN"),
    "notanumber": (np.isnan, "NaN"),
    "normal": (lambda a: np.isfinite(a) & ~_subnormal(a), "finite and not subnormal; zero counts as normal"),
    "subnormal": (_subnormal, "subnormal"),
}


def _suffix(flush: bool, clamp: bool = False) -> str:
    return (".ftz" if flush else "") + (".sat" if clamp else "")


def _says(flush: bool, clamp: bool = False) -> str:
    return ("; subnormal numbers flushed to zero" if flush else "") + ("; clamped to [0, 1], NaN to 0" if clamp else "")


MEANINGS = {
    "add": (2, "a + b"),
    "sub": (2, "a - b"),
    "mul": (2, "a * b"),
    "fma": (3, "a * b + c, rounded once"),
    "mad": (3, "the same as fma"),
    "div": (2, "a / b"),
    "rcp": (1, "1 / a"),
    "sqrt": (1, "square root of a"),
}
CLAMPS = {"add", "sub", "mul", "fma", "mad"}  # may have .sat


def _mode(name: str, mode: str) -> str:
    """The rounding mode in a form; nearest may be left out where the ISA has a default."""
    return "{,.rn}" if name in {"add", "sub", "mul"} and mode == "rn" else f".{mode}"


DOUBLE: dict[str, Callable[..., Array]] = {
    "add": arithmetic.add,
    "sub": lambda a, b, mode: arithmetic.add(a, -b, mode),
    "mul": arithmetic.mul,
    "fma": arithmetic.fma,
    "mad": arithmetic.fma,
    "div": arithmetic.div,
    "rcp": lambda a, mode: arithmetic.div(np.ones((1,) * a.ndim), a, mode),
    "sqrt": arithmetic.sqrt,
}


def _arithmetic_rows() -> None:
    for (name, (count, what)), mode, flush in itertools.product(MEANINGS.items(), MODES, (False, True)):
        for clamp in (False, True) if name in CLAMPS else (False,):
            function = operation_f32("fma" if name == "mad" else name, mode, flush, clamp)
            form = f"{name}{_mode(name, mode)}{_suffix(flush, clamp)}.f32"
            summary = f"{what}, rounded {WORDS[mode]}{_says(flush, clamp)}"
            lane(form, "f32", " ".join(["f32"] * count), function, summary)
    for (name, (count, what)), mode in itertools.product(MEANINGS.items(), MODES):
        double, summary = functools.partial(DOUBLE[name], mode=mode), f"{what}, rounded {WORDS[mode]}"
        lane(f"{name}{_mode(name, mode)}.f64", "f64", " ".join(["f64"] * count), double, summary)


def _extreme_rows() -> None:
    for name in ("min", "max"):
        for flush in (False, True):
            for nan in (False, True):
                function = extreme_f32(name == "max", nan, flush)
                form = f"{name}{_suffix(flush)}{'.NaN' if nan else ''}"
                rule = "NaN if either is NaN" if nan else "the other if one is NaN"
                summary = f"{name} of a and b, -0 < +0, {rule}{_says(flush)}"
                lane(f"{form}.f32", "f32", "f32 f32", function, summary)
                summary = f"|a|, |b| with a * b's sign: {summary}"
                lane(f"{form}.xorsign.abs.f32", "f32", "f32 f32", xorsign(function), summary)
        function = functools.partial(_extreme, largest=name == "max", nan=False)
        lane(f"{name}.f64", "f64", "f64 f64", function, f"{name} of a and b, -0 < +0, the other if one is NaN")


def _sign_rows() -> None:
    lane("neg.f32", "f32", "f32", np.negative, "-a")
    lane("neg.ftz.f32", "f32", "f32", lambda a: -ftz(a), f"-a{_says(True)}")
    lane("neg.f64", "f64", "f64", np.negative, "-a")
    lane("abs.f32", "f32", "f32", np.abs, "|a|")
    lane("abs.ftz.f32", "f32", "f32", lambda a: np.abs(ftz(a)), f"|a|{_says(True)}")
    lane("abs.f64", "f64", "f64", np.abs, "|a|")
    for kind in ("f32", "f64"):
        lane(f"copysign.{kind}", kind, f"{kind} {kind}", copysign, "b with the sign of a")
        for name, (function, what) in TESTS.items():
            lane(f"testp.{name}.{kind}", "pred", kind, function, f"whether a is {what}")


_arithmetic_rows()
_extreme_rows()
_sign_rows()
