"""Cases of f32 and f64 arithmetic: every form, on edge values and on numbers built to be ties.

The expectations come from exact fractions, `reference_float`.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
import math

import numpy as np
from tests.cases import reference_float as reference
from tests.cases.harness import Case, edge, pairs, triples

from ptxemu.values import Array

MODES = ("rn", "rz", "rm", "rp")
NAMES = "abc"
Operands = tuple[Array, ...]
DTYPE = {"f32": np.float32, "f64": np.float64}


def _scales(kind: str) -> tuple[float, float, list[float]]:
    """Unit of the last place of 1, the smallest normal number, and scales from the least normal to the largest."""
    if kind == "f32":
        return 2.0**-23, 2.0**-126, [1.0, 2.0**-125, 2.0**-140, 2.0**127, 3.0, 2.0**-100]
    return 2.0**-52, 2.0**-1022, [1.0, 2.0**-1021, 2.0**-1040, 2.0**1023, 3.0, 2.0**-960]


def _fma_ties(kind: str) -> list[tuple[float, float, float]]:
    """Sums beside a tie, by so little that the sum of the rounded product (or of a float64 one) is the tie itself."""
    ulp, normal, scales = _scales(kind)
    root = 2.0**-12 if kind == "f32" else 2.0**-26
    products = [(1 + ulp, 1 - ulp), (1 + root, 1 - root + root * root), (1.0, 1.0)]  # below 1, above 1, 1
    found = []
    for scale in scales:
        for significand in (1.0, 1 + ulp, 1 + 2.0**-9, 1.5, 2 - ulp):
            for x, y in products:
                half = max(scale * ulp, ulp * normal) / 2  # half a unit of the last place of the term
                up = 2.0**60 if scale < 1 else 1.0  # both factors normal
                found += [(sign * x / up, y * half * up, significand * scale) for sign in (1, -1)]
    found += [(x, y, 0.0) for x, y in _nearly_normal(kind)] + [(-x, y, -0.0) for x, y in _nearly_normal(kind)]
    tiny = [
        normal * ulp / 2**k * e for k in (1, 2, 23) for e in (1.0, 1.25, 1.5)
    ]  # sums just below the smallest normal
    found += [(sign * 2.0**-40, x * 2.0**40, -sign * normal) for x in tiny for sign in (1, -1)]
    found = [item for item in found if all(abs(x) < math.inf for x in item)]
    return [*found, (scales[3], 2.0, -math.inf), (scales[3], -2.0, math.inf)]  # the product alone would overflow


def _nearly_normal(kind: str) -> list[tuple[float, float]]:
    """Factors with a product below the smallest normal number by less than a unit of the last place."""
    ulp, normal, _ = _scales(kind)
    down, up = 2.0**-60, normal * 2.0**60
    steps = (1, 1500, 2900) if kind == "f32" else (1, 40000000, 60000000)
    found = [((1 + i * ulp) * down, (1 - i * ulp) * up) for i in steps] + [(down, (1 - ulp / 2) * up)]
    return found + [(-x, y) for x, y in found]


def _two_ties(kind: str) -> list[tuple[float, float]]:
    """Sums, products and quotients at or beside ties, at the threshold of overflow and of the subnormal numbers."""
    ulp, normal, scales = _scales(kind)
    large = scales[3]
    largest = (2 - ulp) * large
    found = [(significand * scale, sign * scale * ulp / 2 * (1 + e * ulp)) for scale in scales[:1] + scales[4:]
             for significand in (1.0, 1 + ulp, 1.5, 2 - ulp) for sign in (1, -1) for e in (0, 1, -1)]  # fmt: skip
    found += [(largest, large * ulp / 2), (largest, large * ulp / 4), (-largest, -large * ulp / 2), (largest, largest)]
    found += [(largest, -normal * ulp), (1.0, normal * ulp), (1.0, -normal * ulp), (normal, -normal * ulp)]
    found += [(1 + ulp, 1 + ulp * 2**11), (1 + ulp, 1.5), (1 + ulp, (1 - ulp) * normal), (normal, 0.5), (normal, -0.5)]
    found += [(normal * (1 + ulp), 0.5), (normal * (1 + 3 * ulp), 0.5), (normal * ulp, 0.5), (normal * ulp, 0.75)]
    found += [(math.sqrt(normal), math.sqrt(normal) * ulp), (normal * ulp, normal * ulp), (normal, largest)]
    found += _nearly_normal(kind)
    found += [(sign * (2 - i * ulp) * normal * 64, (2 - ulp) * 64) for i in (2, 3, 4) for sign in (1, -1)]
    found += [(x, -x) for x in (1.0, largest, normal, normal * ulp)]
    return found


@functools.cache
def _binary(kind: str) -> Operands:
    a, b = pairs(kind, limit=200)
    extra = np.array(_two_ties(kind)).astype(a.dtype)
    return np.concatenate([a, extra[:, 0]]), np.concatenate([b, extra[:, 1]])


@functools.cache
def _ternary(kind: str) -> Operands:
    columns = triples(kind, limit=240)
    extra = np.array(_fma_ties(kind)).astype(columns[0].dtype)
    return tuple(np.concatenate([column, extra[:, i]]) for i, column in enumerate(columns))


@functools.cache
def _unary(kind: str) -> Operands:
    ulp, normal, _ = _scales(kind)
    squares = [x * x for x in (1 + 2.0**-11, 1 + 2.0**-10, 3.0, 1.5)]
    near = [sign * x * scale for x in (1 + ulp, 1 - ulp / 2, 2 - ulp, *squares, 2 / 3, 3.0) for sign in (1, -1)
            for scale in (1.0, normal, normal * 4, 1 / normal)]  # fmt: skip
    with np.errstate(over="ignore"):
        return (np.concatenate([edge(kind, 160), np.array(near).astype(DTYPE[kind])]),)


def _operands(name: str, kind: str) -> Operands:
    if name in {"fma", "mad"}:
        return _ternary(kind)
    return _unary(kind) if name in {"rcp", "sqrt"} else _binary(kind)


def _case(opcode: str, kind: str, operands: Operands, expected: Array, output: str = "", target: str = "sm_80") -> Case:
    """The case of an opcode whose sources all have type `kind`."""
    inputs = {NAMES[i]: (kind, operand) for i, operand in enumerate(operands)}
    text = f"{opcode} d, {', '.join(inputs)};"
    return Case(opcode, text, inputs, {"d": output or kind}, {"d": expected}, target=target)


def _rounded() -> list[Case]:
    found = []
    for name in reference.OPERATIONS:
        sat = name in {"add", "sub", "mul", "fma", "mad"}
        for kind in ("f32", "f64"):
            operands = _operands(name, kind)
            for mode in MODES:
                flags = [(ftz, clamp) for ftz in (False, True) for clamp in (False, True)[: 1 + sat]]
                for ftz, clamp in flags if kind == "f32" else [(False, False)]:
                    expected = reference.compute(name, kind, mode, operands, ftz=ftz, sat=clamp)
                    tail = f"{'.ftz' if ftz else ''}{'.sat' if clamp else ''}.{kind}"
                    found.append(_case(f"{name}.{mode}{tail}", kind, operands, expected))
                    if mode == "rn" and name in {"add", "sub", "mul"}:
                        found.append(_case(f"{name}{tail}", kind, operands, expected))
    return found


def _mapped(function: Callable[..., float], operands: Operands) -> Array:
    lanes = zip(*(operand.tolist() for operand in operands), strict=True)
    return np.array([function(*lane) for lane in lanes]).astype(operands[0].dtype)


def _extremes() -> list[Case]:
    found = []
    for name in ("min", "max"):
        for ftz in (False, True):
            for nan in (False, True):
                for xorsign in (False, True):
                    function = functools.partial(reference.extreme, name, nan=nan, ftz=ftz, xorsign=xorsign)
                    tail = f"{'.ftz' * ftz}{'.NaN' * nan}{'.xorsign.abs' * xorsign}.f32"
                    operands = _binary("f32")
                    target = "sm_86" if xorsign else "sm_80"
                    found.append(_case(name + tail, "f32", operands, _mapped(function, operands), target=target))
        double = functools.partial(reference.extreme, name, nan=False, ftz=False)
        found.append(_case(f"{name}.f64", "f64", _binary("f64"), _mapped(double, _binary("f64"))))
    return found


def _normal(least: float, x: float) -> bool:
    return x == 0 or least <= abs(x) < math.inf


def _subnormal(least: float, x: float) -> bool:
    return 0 < abs(x) < least


def _signs() -> list[Case]:
    found = []
    for kind in ("f32", "f64"):
        (a,), pair = _unary(kind), _binary(kind)
        least = _scales(kind)[1]
        found += [_case(f"neg.{kind}", kind, (a,), -a), _case(f"abs.{kind}", kind, (a,), np.abs(a))]
        found.append(_case(f"copysign.{kind}", kind, pair, np.copysign(pair[1], pair[0])))
        tests: dict[str, Callable[[float], bool]] = {
            "finite": math.isfinite,
            "infinite": math.isinf,
            "number": lambda x: not math.isnan(x),
            "notanumber": math.isnan,
            "normal": functools.partial(_normal, least),
            "subnormal": functools.partial(_subnormal, least),
        }
        for name, test in tests.items():
            expected = np.array([test(x) for x in a.tolist()])
            found.append(_case(f"testp.{name}.{kind}", kind, (a,), expected, "pred"))
    (a,) = _unary("f32")
    flushed = _mapped(reference.flush, (a,))
    found += [_case("neg.ftz.f32", "f32", (a,), -flushed), _case("abs.ftz.f32", "f32", (a,), np.abs(flushed))]
    return found


CASES = [*_rounded(), *_extremes(), *_signs()]
