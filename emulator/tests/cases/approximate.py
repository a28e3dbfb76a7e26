"""Cases of the approximate units: the ISA's tables of special values to the bit, everything else within its error.

The references are `math` in float64, which is nearer to the exact value than any of these bounds by a factor of 2^20.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import math

import numpy as np
from tests.cases.harness import Case, edge, given, named, pairs, plain, sample

from ptxemu.values import Array

INF, NAN = math.inf, math.nan
LEAST, NORMAL, LARGEST = 2.0**-149, 2.0**-126, (2 - 2.0**-23) * 2.0**127
ULP = 2.0**-23  # the greatest relative size of a unit in the last place
SUBNORMAL = NORMAL - LEAST
Error = tuple[float, float, str]  # relative, absolute, the ISA's words
EXACT: Error = (0.0, 0.0, "special values")

# name -> operand, result, and result under .ftz where that differs: the ISA's tables, with subnormal operands added
SPECIAL: dict[str, list[tuple[float, ...]]] = {
    "ex2": [(-INF, 0.0), (-0.0, 1.0), (0.0, 1.0), (INF, INF), (NAN, NAN), (LEAST, 1.0), (-SUBNORMAL, 1.0),
            (1000.0, INF), (-1000.0, 0.0), (128.0, INF), (-130.5, 2.0**-130.5, 0.0)],
    "lg2": [(-INF, NAN), (-1.5, NAN), (-0.0, -INF), (0.0, -INF), (INF, INF), (NAN, NAN), (-LEAST, NAN, -INF),
            (LEAST, -149.0, -INF), (2.0**-127, -127.0, -INF), (1.0, 0.0)],
    "sin": [(-INF, NAN), (-0.0, -0.0), (0.0, 0.0), (INF, NAN), (NAN, NAN)],
    "cos": [(-INF, NAN), (-0.0, 1.0), (0.0, 1.0), (INF, NAN), (NAN, NAN), (LEAST, 1.0), (-SUBNORMAL, 1.0)],
    "tanh": [(-INF, -1.0), (-0.0, -0.0), (0.0, 0.0), (INF, 1.0), (NAN, NAN), (100.0, 1.0), (-100.0, -1.0)],
    "rcp": [(-INF, -0.0), (-0.0, -INF), (0.0, INF), (INF, 0.0), (NAN, NAN), (LEAST, INF), (-LEAST, -INF),
            (2.0**-127, 2.0**127, INF), (-(2.0**-127), -(2.0**127), -INF), (2.0**127, 2.0**-127, 0.0),
            (-(2.0**127), -(2.0**-127), -0.0), (-LARGEST, -1 / LARGEST, -0.0)],
    "rsqrt": [(-INF, NAN), (-1.5, NAN), (-0.0, -INF), (0.0, INF), (INF, 0.0), (NAN, NAN), (-LEAST, NAN, -INF),
              (LEAST, 2.0**74.5, INF), (2.0**-128, 2.0**64, INF)],
    "sqrt": [(-INF, NAN), (-1.5, NAN), (-0.0, -0.0), (0.0, 0.0), (INF, INF), (NAN, NAN), (-LEAST, NAN, -0.0),
             (LEAST, 2.0**-74.5, 0.0), (2.0**-128, 2.0**-64, 0.0)],
}  # fmt: skip
FUNCTIONS: dict[str, tuple[Callable[[float], float], Error]] = {
    "ex2": (lambda x: 2.0**x if -1000 < x < 1000 else (0.0 if x < 0 else INF), (2 * ULP, 2 * LEAST, "max 2 ulp")),
    "lg2": (math.log2, (2.0**-22, 0.0, "max relative error 2^-22 outside (0.5, 2)")),
    "sin": (math.sin, (2.0**-30, 2.0**-20.5, "max absolute error 2^-20.5 in [-2 pi, 2 pi]")),
    "cos": (math.cos, (2.0**-30, 2.0**-20.5, "max absolute error 2^-20.5 in [-2 pi, 2 pi]")),
    "tanh": (math.tanh, (2.0**-11, 0.0, "max relative error 2^-11")),
    "rcp": (lambda x: 1 / x, (ULP, LEAST, "max 1 ulp")),
    "rsqrt": (lambda x: 1 / math.sqrt(x), (2.0**-22.9, 0.0, "max relative error 2^-22.9")),
    "sqrt": (math.sqrt, (2.0**-23, 0.0, "max relative error 2^-23")),
}


def f32(values: Sequence[float] | Array) -> Array:
    with np.errstate(all="ignore"):
        return np.array(values).astype(np.float32)


def single(value: float) -> float:
    """The value as f32 arithmetic can hold it: overflow is infinite."""
    return value if abs(value) < 2.0**128 else math.copysign(INF, value)


def case(opcode: str, operands: Sequence[Array], expected: Array, error: Error = EXACT, kind: str = "f32") -> Case:
    loose = {"tolerance": error[0], "absolute": error[1], "note": error[2]}
    return plain(opcode, named(kind, *operands), kind, expected, **loose)


def finite(name: str) -> Array:
    """Finite operands on which the error bound of the function holds."""
    numbers = np.concatenate([edge("f32"), sample("f32", 256, name)])
    numbers = numbers[np.isfinite(numbers) & (numbers != 0)]
    if name in {"lg2", "rsqrt", "sqrt"}:
        numbers = np.abs(numbers)
    if name == "lg2":
        numbers = numbers[(numbers <= 0.5) | (numbers >= 2)]
    if name in {"sin", "cos"}:
        numbers = numbers[np.abs(numbers) <= 2 * np.pi]
    dense = {"sin": (-6.28, 6.28, 200), "cos": (-6.28, 6.28, 200), "ex2": (-151, 127.9, 300), "tanh": (-10, 10, 200)}
    return np.concatenate([numbers, np.linspace(*dense.get(name, (0, 0, 0)), dtype=np.float32)])


def unary() -> Iterator[Case]:
    for name, (function, (relative, absolute, words)) in FUNCTIONS.items():
        for ftz in (False, True) if name != "tanh" else (False,):
            opcode = f"{name}.approx{'.ftz' * ftz}.f32"
            table = [(row[0], row[-1 if ftz else 1]) for row in SPECIAL[name]]
            exact = [row for row in table if row[1] in {0.0, 1.0, -1.0} or not math.isfinite(row[1])]
            yield case(opcode, [f32([row[0] for row in exact])], f32([row[1] for row in exact]))
            near, numbers = [row[0] for row in table if row not in exact], finite(name)
            if ftz:  # a result beside the smallest normal number may be flushed or not
                absolute = max(absolute, NORMAL)  # noqa: PLW2901 - of this form
                numbers = numbers[np.abs(numbers) >= NORMAL]
            a = np.concatenate([f32(near), numbers])
            expected = np.array([single(function(x)) for x in a.tolist()])
            yield case(opcode, [a], expected, (relative, absolute, words))


def ranges() -> Iterator[Case]:
    """Logarithms near 1 and large angles, which have bounds of their own."""
    ones = f32(np.concatenate([np.linspace(0.5001, 1.9999, 300), 1 + np.arange(-20, 21) * 2.0**-22]))
    angles = f32(np.linspace(-314, 314, 500))
    wide = 2.0**-30, 2.0**-14.7, "max absolute error 2^-14.7 in [-100 pi, 100 pi]"
    near_one = 2.0**-40, 2.0**-22, "max absolute error 2^-22 in (0.5, 2)"
    for name, a, error in (("lg2", ones, near_one), ("sin", angles, wide), ("cos", angles, wide)):
        expected = np.array([FUNCTIONS[name][0](x) for x in a.tolist()])
        for ftz in ("", ".ftz"):
            yield case(f"{name}.approx{ftz}.f32", [a], expected, error)


# a, b, a / b by div.approx, under .ftz
QUOTIENTS: list[tuple[float, float, float, float]] = [
    (0.0, 0.0, NAN, NAN), (INF, INF, NAN, NAN), (NAN, 1.0, NAN, NAN), (1.0, NAN, NAN, NAN), (1.0, 0.0, INF, INF),
    (-1.0, 0.0, -INF, -INF), (1.0, -0.0, -INF, -INF), (INF, 2.0, INF, INF), (INF, -2.0, -INF, -INF),
    (1.0, INF, 0.0, 0.0), (-1.0, INF, -0.0, -0.0), (0.0, -3.0, -0.0, -0.0), (LARGEST, 2.0**-20, INF, INF),
    (1.0, 2.0**127, 0.0, 0.0), (-LARGEST, 2.0**127, -0.0, -0.0), (LARGEST, -LARGEST, -0.0, -0.0),
    (INF, 2.0**127, NAN, NAN), (-INF, LARGEST, NAN, NAN), (0.0, 2.0**127, 0.0, 0.0),
]  # fmt: skip
FLUSHED: list[tuple[float, ...]] = [
    (1.0, LEAST, INF), (-1.0, SUBNORMAL, -INF), (LEAST, LEAST, NAN), (-SUBNORMAL, 1.0, -0.0), (SUBNORMAL, INF, 0.0),
]  # fmt: skip


def quotients() -> Iterator[Case]:
    a, b = pairs("f32", limit=800)
    a, b = np.concatenate([a, sample("f32", 400, "numerator")]), np.concatenate([b, sample("f32", 400, "denominator")])
    finite_ones = np.isfinite(a) & np.isfinite(b) & (np.abs(b) >= NORMAL)
    for name, most in (("approx", 2.0**126), ("full", INF)):
        for ftz in (False, True):
            rows: list[tuple[float, ...]] = [(x, y, flat if ftz else kept) for x, y, kept, flat in QUOTIENTS]
            rows = [row for row in rows if name == "approx" or not 2.0**126 < abs(row[1]) < INF]
            *operands, expected = (f32(column) for column in zip(*rows, *FLUSHED[: 5 * ftz], strict=True))
            opcode = f"div.{name}{'.ftz' * ftz}.f32"
            yield case(opcode, operands, expected)
            good = finite_ones & (np.abs(b) <= most) & ((np.abs(a) >= NORMAL) | (a == 0) | (not ftz))
            pairs_of = zip(a[good].tolist(), b[good].tolist(), strict=True)
            words = "max 2 ulp" + " for |b| in [2^-126, 2^126]" * (name == "approx")
            error = 2 * ULP, NORMAL if ftz else 2 * LEAST, words
            yield case(opcode, [a[good], b[good]], np.array([single(x / y) for x, y in pairs_of]), error)


def upper(x: float) -> float:
    """The upper word of a float64, subnormal numbers flushed."""
    bits = np.array([x]).view(np.uint64) & np.uint64(0xFFFFFFFF00000000)
    value = float(bits.view(np.float64)[0])
    return math.copysign(0.0, value) if abs(value) < 2.0**-1022 else value


def doubles() -> Iterator[Case]:
    special = np.array([-INF, -0.0, 0.0, INF, NAN, 2.0**-1074, -(2.0**-1040)])
    reciprocal, root, fine = "rcp.approx.ftz.f64", "rsqrt.approx.ftz.f64", "rsqrt.approx.f64"
    yield case(reciprocal, [special], np.array([-0.0, -INF, INF, 0.0, NAN, INF, -INF]), kind="f64")
    yield case(root, [special], np.array([NAN, -INF, INF, 0.0, NAN, INF, -INF]), kind="f64")
    yield case(fine, [special], np.array([NAN, -INF, INF, 0.0, NAN, 2.0**537, NAN]), kind="f64")
    numbers = np.concatenate([edge("f64"), sample("f64", 200, "gross")])
    numbers = numbers[np.isfinite(numbers) & (np.abs(numbers) >= 2.0**-1021) & (np.abs(numbers) < 2.0**1021)]
    gross, stated = (2.0**-19, 0.0, "gross: 20 bits of mantissa; the ISA states no error"), "the ISA states no error"
    yield case(reciprocal, [numbers], np.array([1 / upper(x) for x in numbers.tolist()]), gross, "f64")
    numbers = np.abs(numbers)
    yield case(root, [numbers], np.array([1 / math.sqrt(upper(x)) for x in numbers.tolist()]), gross, "f64")
    yield case(fine, [numbers], np.array([1 / math.sqrt(x) for x in numbers.tolist()]), (2.0**-51, 0.0, stated), "f64")
    a = np.abs(sample("f64", 64, "lower"))
    a = a[np.isfinite(a)]
    for opcode in (reciprocal, root):  # the lower 32 bits of the gross results are zero: checked as bits
        text = f".reg .f64 t;\n.reg .b32 u;\n{opcode} t, a;\nmov.b64 {{d, u}}, t;"
        yield given(opcode, text, named("f64", a), {"d": ("b32", np.zeros(len(a), np.uint32))}, note="lower word")


CASES = [*unary(), *ranges(), *quotients(), *doubles()]
