"""Cases of f32 and f64 arithmetic: every form, on edge values and on numbers built to be ties.

The expectations come from exact fractions, `reference_float`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import product
import math

import numpy as np
from tests.cases import reference_float as reference
from tests.cases.harness import Case, edge, named, pairs, plain, triples

from ptxemu.values import DTYPES, Array

# Unit of the last place of 1, smallest normal number, scales from the least normal to the largest.
SCALES = {
    "f32": (2.0**-23, 2.0**-126, [1.0, 2.0**-125, 2.0**-140, 2.0**127, 3.0, 2.0**-100]),
    "f64": (2.0**-52, 2.0**-1022, [1.0, 2.0**-1021, 2.0**-1040, 2.0**1023, 3.0, 2.0**-960]),
}
SIGNS = (1, -1)


def three_ties(kind: str) -> list[tuple[float, ...]]:
    """Sums beside a tie, by so little that the sum of the rounded product (or of a float64 one) is the tie itself."""
    ulp, normal, scales = SCALES[kind]
    root = 2.0**-12 if kind == "f32" else 2.0**-26
    products = [(1 + ulp, 1 - ulp), (1 + root, 1 - root + root * root), (1.0, 1.0)]  # below 1, above 1, 1
    found: list[tuple[float, ...]] = []
    for scale, significand, (x, y) in product(scales, (1.0, 1 + ulp, 1 + 2.0**-9, 1.5, 2 - ulp), products):
        half = max(scale * ulp, ulp * normal) / 2  # half a unit of the last place of the term
        up = 2.0**60 if scale < 1 else 1.0  # both factors normal
        found += [(sign * x / up, y * half * up, significand * scale) for sign in SIGNS]
    found += [(x, y, 0.0) for x, y in nearly_normal(kind)] + [(-x, y, -0.0) for x, y in nearly_normal(kind)]
    tiny = [normal * ulp / 2**k * e for k in (1, 2, 23) for e in (1.0, 1.25, 1.5)]  # sums just below the least normal
    found += [(sign * 2.0**-40, x * 2.0**40, -sign * normal) for x in tiny for sign in SIGNS]
    found = [item for item in found if all(abs(x) < math.inf for x in item)]
    return [*found, (scales[3], 2.0, -math.inf), (scales[3], -2.0, math.inf)]  # the product alone would overflow


def nearly_normal(kind: str) -> list[tuple[float, float]]:
    """Factors with a product below the smallest normal number by less than a unit of the last place."""
    ulp, normal, _ = SCALES[kind]
    down, up = 2.0**-60, normal * 2.0**60
    steps = (1, 1500, 2900) if kind == "f32" else (1, 40000000, 60000000)
    found = [((1 + i * ulp) * down, (1 - i * ulp) * up) for i in steps] + [(down, (1 - ulp / 2) * up)]
    return found + [(-x, y) for x, y in found]


def two_ties(kind: str) -> list[tuple[float, float]]:
    """Sums, products and quotients at or beside ties, at the threshold of overflow and of the subnormal numbers."""
    ulp, normal, scales = SCALES[kind]
    large, significands = scales[3], (1.0, 1 + ulp, 1.5, 2 - ulp)
    largest, least, root = (2 - ulp) * large, normal * ulp, math.sqrt(normal)
    grid = product(scales[:1] + scales[4:], significands, SIGNS, (0, 1, -1))
    return [
        *((x * scale, sign * scale * ulp / 2 * (1 + e * ulp)) for scale, x, sign, e in grid),
        (largest, large * ulp / 2), (largest, large * ulp / 4), (-largest, -large * ulp / 2), (largest, largest),
        (largest, -least), (1.0, least), (1.0, -least), (normal, -least), (1 + ulp, 1 + ulp * 2**11), (1 + ulp, 1.5),
        (1 + ulp, (1 - ulp) * normal), (normal, 0.5), (normal, -0.5), (normal * (1 + ulp), 0.5),
        (normal * (1 + 3 * ulp), 0.5), (least, 0.5), (least, 0.75), (root, root * ulp), (least, least),
        (normal, largest), *nearly_normal(kind),
        *((sign * (2 - i * ulp) * normal * 64, (2 - ulp) * 64) for i in (2, 3, 4) for sign in SIGNS),
        *((x, -x) for x in (1.0, largest, normal, least)),
    ]  # fmt: skip


@cache
def operands(kind: str, count: int) -> tuple[Array, ...]:
    """Edge values and what is hard for one, two or three operands."""
    if count > 1:
        columns = pairs(kind, limit=200) if count == 2 else triples(kind, limit=240)
        extra = np.array(two_ties(kind) if count == 2 else three_ties(kind)).astype(DTYPES[kind])
        return tuple(np.concatenate([column, extra[:, i]]) for i, column in enumerate(columns))
    ulp, normal, _ = SCALES[kind]
    numbers = (1 + ulp, 1 - ulp / 2, 2 - ulp, (1 + 2.0**-11) ** 2, (1 + 2.0**-10) ** 2, 9.0, 2.25, 2 / 3, 3.0)
    near = [sign * x * scale for x, sign, scale in product(numbers, SIGNS, (1.0, normal, normal * 4, 1 / normal))]
    with np.errstate(over="ignore"):
        return (np.concatenate([edge(kind, 160), np.array(near).astype(DTYPES[kind])]),)


def rounded() -> Iterator[Case]:
    for name, kind, mode in product(reference.OPERATIONS, ("f32", "f64"), ("rn", "rz", "rm", "rp")):
        arrays = operands(kind, 3 if name in {"fma", "mad"} else 1 if name in {"rcp", "sqrt"} else 2)
        flags = product((False, True), (False, True) if name in {"add", "sub", "mul", "fma", "mad"} else (False,))
        for ftz, clamp in flags if kind == "f32" else [(False, False)]:
            expected = reference.compute(name, kind, mode, arrays, ftz=ftz, sat=clamp)
            tail = f"{'.ftz' * ftz}{'.sat' * clamp}.{kind}"
            yield plain(f"{name}.{mode}{tail}", named(kind, *arrays), kind, expected)
            if mode == "rn" and name in {"add", "sub", "mul"}:
                yield plain(f"{name}{tail}", named(kind, *arrays), kind, expected)


def mapped(function: Callable[..., float], arrays: tuple[Array, ...]) -> Array:
    lanes = zip(*(array.tolist() for array in arrays), strict=True)
    return np.array([function(*lane) for lane in lanes]).astype(arrays[0].dtype)


def extremes() -> Iterator[Case]:
    for name in ("min", "max"):
        for ftz, nan, xorsign in product((False, True), repeat=3):
            rule = partial(reference.extreme, name, nan=nan, ftz=ftz, xorsign=xorsign)
            opcode = f"{name}{'.ftz' * ftz}{'.NaN' * nan}{'.xorsign.abs' * xorsign}.f32"
            arrays, target = operands("f32", 2), "sm_86" if xorsign else "sm_80"
            yield plain(opcode, named("f32", *arrays), "f32", mapped(rule, arrays), target=target)
        arrays, rule = operands("f64", 2), partial(reference.extreme, name, nan=False, ftz=False)
        yield plain(f"{name}.f64", named("f64", *arrays), "f64", mapped(rule, arrays))


def signs() -> Iterator[Case]:
    for kind in ("f32", "f64"):
        (a,), (x, y), least = operands(kind, 1), operands(kind, 2), SCALES[kind][1]
        yield plain(f"neg.{kind}", named(kind, a), kind, -a)
        yield plain(f"abs.{kind}", named(kind, a), kind, np.abs(a))
        yield plain(f"copysign.{kind}", named(kind, x, y), kind, np.copysign(y, x))
        size = np.abs(a)
        tests = {
            "finite": np.isfinite(a), "infinite": np.isinf(a), "number": ~np.isnan(a), "notanumber": np.isnan(a),
            "normal": (a == 0) | (size >= least) & (size < np.inf), "subnormal": (size > 0) & (size < least),
        }  # fmt: skip
        for name, expected in tests.items():
            yield plain(f"testp.{name}.{kind}", named(kind, a), "pred", expected)
    (a,) = operands("f32", 1)
    flushed = mapped(reference.flush, (a,))
    yield plain("neg.ftz.f32", named("f32", a), "f32", -flushed)
    yield plain("abs.ftz.f32", named("f32", a), "f32", np.abs(flushed))


CASES = [*rounded(), *extremes(), *signs()]
