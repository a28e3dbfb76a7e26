"""Arithmetic and comparisons of 16-bit floats: ``f16``, ``bf16`` and their packed pairs ``f16x2``, ``bf16x2``.

A packed instruction is the scalar one on an array with one axis more. Sums and products are computed in f32, where one
rounding after another does no harm (24 bits are more than twice 11 bits and two); ``fma`` is computed in f64, exactly
for f16, rounded to odd for bf16, and then rounded once. On sm_80 nvcc emits ``fma.rn.bf16`` with constants for sums
and products of bf16; ``add``, ``sub``, ``mul``, ``setp`` and ``set`` of bf16 themselves are sm_90's.

Source: PTX ISA 9.0, 9.7.4 (half precision arithmetic) and 9.7.8 (half precision comparison).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ptxemu.arithmetic import narrow, odd_sum, saturate
from ptxemu.isa.convert import CANONICAL, canonical16, relu
from ptxemu.isa.logic import COMBINE, Compare, comparisons
from ptxemu.table import lane
from ptxemu.values import DTYPES, Array, BoolArray, halves, pack_halves

Function = Callable[..., Array]

VANISHING = np.float32(2.0**-14 * (1 - 2.0**-12))  # less than this rounds to less than 2^-14 at 11 bits
SIGN, MAGNITUDE = np.uint16(0x8000), np.uint16(0x7FFF)
INFINITY = {"f16": np.uint16(0x7C00), "bf16": np.uint16(0x7F80)}
KINDS = ("f16", "bf16")
ONE = {"f16": 0x3C00, "bf16": 0x3F80}


def bits(value: Array) -> Array:
    """A 16-bit float's bits as ``u16``."""
    return value.view(np.uint16)


def flush16(value: Array) -> Array:
    """``.ftz`` of f16: subnormal numbers become zero of the same sign."""
    raw = bits(value)
    return np.where((raw & np.uint16(0x7C00)) == 0, raw & SIGN, raw).view(np.float16)


def is_nan(value: Array, kind: str) -> BoolArray:
    """Which elements are NaN."""
    return np.asarray((bits(value) & MAGNITUDE) > INFINITY[kind])


def rounded(wide: Array, kind: str) -> Array:
    """An f32 or f64 (exact, or rounded to odd) rounded to nearest; NaN becomes 0x7fff."""
    dtype = DTYPES[kind]
    return canonical16(wide.astype(dtype) if wide.dtype == np.float32 else narrow(wide, dtype), wide)


def fused(a: Array, b: Array, c: Array) -> Array:
    """``a * b + c`` in f64: the product of two 16-bit floats is exact there, the sum exact or rounded to odd."""
    product, term = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    return product + term if a.dtype == np.float16 else odd_sum(product, term)


def computed(function: Function, kind: str, *, flush: bool, clamp: Callable[[Array], Array] | None) -> Function:
    """An operation that gives f32 or f64 as one of 16-bit floats: rounded once, clamped (``.sat``, ``.relu``).

    With `flush` (f16 only) subnormal inputs become zero, and results that are below 2^-14 after they were rounded to
    11 bits as if the exponent had no lower end: so does an H200, and the ISA leaves it open.
    """

    def run(*sources: Array) -> Array:
        wide = function(*map(flush16, sources)) if flush else function(*sources)
        if flush:
            wide = wide * ~(np.abs(wide) < VANISHING)
        return rounded(wide, kind) if clamp is None else clamp(rounded(wide, kind))

    return run


def magnitude(a: Array) -> Array:
    """The bits without the sign."""
    return (bits(a) & MAGNITUDE).view(a.dtype)


def ordered(value: Array) -> Array:
    """Bits as ``s16`` numbers in the order of the floats, -0 below +0."""
    raw = value.view(np.int16)
    return raw ^ ((raw >> np.int16(15)) & np.int16(0x7FFF))


def extreme(a: Array, b: Array, *, kind: str, greatest: bool, nan: bool, xorsign: bool) -> Array:
    """``min`` and ``max``: a number beats NaN, but with ``.NaN`` any NaN wins; ``.xorsign.abs`` compares magnitudes."""
    sign = (bits(a) ^ bits(b)) & SIGN
    if xorsign:
        a, b = magnitude(a), magnitude(b)
    first = ordered(a) >= ordered(b) if greatest else ordered(a) <= ordered(b)
    nan_a, nan_b = is_nan(a, kind), is_nan(b, kind)
    chosen = np.where((first & ~nan_a) | nan_b, bits(a), bits(b))
    if xorsign:
        chosen |= sign
    lost = (nan_a | nan_b) if nan else (nan_a & nan_b)
    return np.where(lost, CANONICAL, chosen).view(a.dtype)


def approximate(function: Callable[[Array], Array], kind: str) -> Function:
    """``ex2.approx``, ``tanh.approx``: in f32, rounded to nearest, which is better than the ISA asks for."""
    return lambda a: rounded(function(a.astype(np.float32)), kind)


def compared(compare: Compare, join: str, *, flush: bool) -> Function:
    """Comparison of 16-bit floats in f32; `join` (``and``, ``or``, ``xor`` or nothing) adds a predicate.

    `logic` has the operators and ``setp`` of single f16 and bf16 values.
    """

    def run(a: Array, b: Array, *c: Array) -> Array:
        if flush:
            a, b = flush16(a), flush16(b)
        result = compare(a.astype(np.float32), b.astype(np.float32))
        return COMBINE[join](result, c[0][..., None]) if join else result  # both halves share the predicate

    return run


def both(function: Function, kind: str) -> Callable[..., tuple[Array, Array]]:
    """A comparison of packed pairs: predicates of the lower and of the upper half."""

    def run(a: Array, b: Array, *c: Array) -> tuple[Array, Array]:
        result = function(halves(a, f"{kind}x2"), halves(b, f"{kind}x2"), *c)
        return result[..., 0], result[..., 1]

    return run


def chosen(function: Function, result: str) -> Function:
    """``set``: 1.0 or all bits where the comparison holds, else 0."""
    dtype = DTYPES[result]
    true = np.uint16(ONE[result]) if result in ONE else np.array(-1).astype(dtype)
    zero = true.dtype.type(0)
    return lambda *sources: np.where(function(*sources), true, zero).view(dtype)


def chosen_pair(function: Function, kind: str, result: str) -> Function:
    """``set`` on packed pairs: 1.0 or 0xffff in each half where its comparison holds."""
    true = np.uint16(ONE[kind] if result.endswith("x2") else 0xFFFF)

    def run(a: Array, b: Array, *c: Array) -> Array:
        holds = function(halves(a, f"{kind}x2"), halves(b, f"{kind}x2"), *c)
        return pack_halves(np.where(holds, true, np.uint16(0))).view(DTYPES[result])

    return run


def flushed(function: Function) -> Function:
    """``.ftz``: subnormal f16 inputs and results become zero of the same sign."""
    return lambda *sources: flush16(function(*map(flush16, sources)))


def on_pairs(function: Function, kind: str) -> Function:
    """A function of 16-bit floats on packed pairs."""
    return lambda *sources: pack_halves(function(*(halves(source, f"{kind}x2") for source in sources)))


def _add(form: str, kind: str, count: int, function: Function, summary: str) -> None:
    """The scalar and the packed form of one operation; `form` ends before the type."""
    lane(f"{form}.{kind}", kind, " ".join([kind] * count), function, summary)
    pair = f"{kind}x2"
    lane(f"{form}.{pair}", pair, " ".join([pair] * count), on_pairs(function, kind), f"{summary}, both halves")


def _arithmetic_rows(kind: str) -> None:
    operations = (("add", np.add), ("sub", np.subtract), ("mul", np.multiply))
    rows: list[tuple[str, int, Function, str]] = []
    for name, ufunc in operations:

        def in_f32(a: Array, b: Array, ufunc: Function = ufunc) -> Array:
            return ufunc(a.astype(np.float32), b.astype(np.float32))

        rows.append((f"{name}{{,.rn}}", 2, in_f32, name))
    rows.append(("fma.rn", 3, fused, "a * b + c, rounded once"))
    for form, count, function, summary in rows:
        clamps = {"": None, ".sat": saturate, ".relu": relu}
        if kind == "bf16":
            del clamps[".sat"]
        if count == 2:
            del clamps[".relu"]
        for flush in ("", ".ftz") if kind == "f16" else ("",):
            for modifier, clamp in clamps.items():
                finished = computed(function, kind, flush=bool(flush), clamp=clamp)
                _add(f"{form}{flush}{modifier}", kind, count, finished, f"{summary}{flush}{modifier}")


def _sign_rows(kind: str) -> None:
    def negated(a: Array) -> Array:  # NaN becomes 0x7fff, as on an H200
        return canonical16((bits(a) ^ SIGN).view(a.dtype), a)

    def absolute(a: Array) -> Array:
        return canonical16(magnitude(a), a)

    def power_flushed(a: Array) -> Array:  # ex2.approx.ftz.bf16: results below 2^-126 flushed to +0
        return np.where(np.exp2(a) < np.float32(2.0**-126), np.float32(0), np.exp2(a))

    form, power = ("ex2.approx", np.exp2) if kind == "f16" else ("ex2.approx.ftz", power_flushed)
    _add(form, kind, 1, approximate(power, kind), "2 to the power of a")
    _add("tanh.approx", kind, 1, approximate(np.tanh, kind), "hyperbolic tangent")
    for name, function in (("neg", negated), ("abs", absolute)):
        _add(name, kind, 1, function, "the sign bit turned" if name == "neg" else "the sign bit cleared")
        if kind == "f16":
            _add(f"{name}.ftz", kind, 1, flushed(function), f"{name}, flushed")
    for name in ("min", "max"):
        for nan in ("", ".NaN"):
            for xorsign in ("", ".xorsign.abs"):
                function = partial(extreme, kind=kind, greatest=name == "max", nan=bool(nan), xorsign=bool(xorsign))
                _add(f"{name}{nan}{xorsign}", kind, 2, function, f"{name}, -0 below +0")
                if kind == "f16":
                    _add(f"{name}.ftz{nan}{xorsign}", kind, 2, flushed(function), f"{name}, flushed")


def _comparison_rows(kind: str) -> None:
    pair = f"{kind}x2"
    for name, compare in comparisons(kind).items():
        for flush in ("", ".ftz") if kind == "f16" else ("",):
            for join in ("", *COMBINE):
                function = both(compared(compare, join, flush=bool(flush)), kind)
                form, sources = f"setp.{name}{join and '.'}{join}{flush}", f"{pair} {pair}{' pred' if join else ''}"
                lane(f"{form}.{pair}", "pred pred", sources, function, f"a {name} b, of each half")
            form, holds = f"set.{name}{flush}", compared(compare, "", flush=bool(flush))
            for result in (kind, "u16", "s16", "u32", "s32"):
                summary = "1.0 or all bits where the comparison holds"
                lane(f"{form}.{result}.{kind}", result, f"{kind} {kind}", chosen(holds, result), summary)
            for result in (pair, "u32", "s32"):
                summary = "in each half 1.0 or 0xffff where the comparison holds"
                lane(f"{form}.{result}.{pair}", result, f"{pair} {pair}", chosen_pair(holds, kind, result), summary)


for _kind in KINDS:
    _arithmetic_rows(_kind)
    _sign_rows(_kind)
    _comparison_rows(_kind)
