"""Cases of the approximate units: the ISA's tables of special values to the bit, everything else within its error.

The references are `math` in float64, which is nearer to the exact value than any of these bounds by a factor of 2^20.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math

import numpy as np
from tests.cases.harness import Case, edge, pairs, sample

from ptxemu.values import Array

INF, NAN = math.inf, math.nan
LEAST, NORMAL, LARGEST = 2.0**-149, 2.0**-126, (2 - 2.0**-23) * 2.0**127
ULP = 2.0**-23  # the greatest relative size of a unit in the last place
SUBNORMAL = NORMAL - LEAST

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


def _ex2(x: float) -> float:
    return 2.0**x if -1000 < x < 1000 else (0.0 if x < 0 else INF)


FUNCTIONS: dict[str, Callable[[float], float]] = {
    "ex2": _ex2, "lg2": math.log2, "sin": math.sin, "cos": math.cos, "tanh": math.tanh, "rcp": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / math.sqrt(x), "sqrt": math.sqrt,
}  # fmt: skip

# name -> relative error, absolute error, the ISA's words
ERRORS: dict[str, tuple[float, float, str]] = {
    "ex2": (2 * ULP, 2 * LEAST, "max 2 ulp"),
    "lg2": (2.0**-22, 0.0, "max relative error 2^-22 outside (0.5, 2)"),
    "sin": (2.0**-30, 2.0**-20.5, "max absolute error 2^-20.5 in [-2 pi, 2 pi]"),
    "cos": (2.0**-30, 2.0**-20.5, "max absolute error 2^-20.5 in [-2 pi, 2 pi]"),
    "tanh": (2.0**-11, 0.0, "max relative error 2^-11"),
    "rcp": (ULP, LEAST, "max 1 ulp"),
    "rsqrt": (2.0**-22.9, 0.0, "max relative error 2^-22.9"),
    "sqrt": (2.0**-23, 0.0, "max relative error 2^-23"),
}


def _f32(values: Sequence[float] | Array) -> Array:
    with np.errstate(all="ignore"):
        return np.array(values).astype(np.float32)


def _single(value: float) -> float:
    """The value as f32 arithmetic can hold it: overflow is infinite."""
    return value if abs(value) < 2.0**128 else math.copysign(INF, value)


def _case(opcode: str, operands: Sequence[Array], expected: Array, *, error: tuple[float, float, str] | None = None,
          kind: str = "f32") -> Case:  # fmt: skip
    tolerance, absolute, note = error or (0.0, 0.0, "special values")
    inputs = {"ab"[i]: (kind, operand) for i, operand in enumerate(operands)}
    text = f"{opcode} d, {', '.join(inputs)};"
    return Case(opcode, text, inputs, {"d": kind}, {"d": expected}, tolerance, note, absolute)


def _numbers(name: str) -> Array:
    """Finite operands on which the error bound of the function holds."""
    numbers = np.concatenate([edge("f32"), sample("f32", 256, name)])
    numbers = numbers[np.isfinite(numbers) & (numbers != 0)]
    if name in {"lg2", "rsqrt", "sqrt"}:
        numbers = np.abs(numbers)
    if name == "lg2":
        numbers = numbers[(numbers <= 0.5) | (numbers >= 2)]
    if name in {"sin", "cos"}:
        numbers = np.concatenate(
            [numbers[np.abs(numbers) <= 2 * np.pi], np.linspace(-6.28, 6.28, 200, dtype=np.float32)]
        )
    if name == "ex2":
        numbers = np.concatenate([numbers, np.linspace(-151, 127.9, 300, dtype=np.float32)])
    if name == "tanh":
        numbers = np.concatenate([numbers, np.linspace(-10, 10, 200, dtype=np.float32)])
    return numbers


def _unary() -> list[Case]:
    found = []
    for name, function in FUNCTIONS.items():
        for ftz in (False, True) if name != "tanh" else (False,):
            opcode = f"{name}.approx{'.ftz' * ftz}.f32"
            relative, absolute, words = ERRORS[name]
            table = [(row[0], row[-1 if ftz else 1]) for row in SPECIAL[name]]
            exact = [row for row in table if row[1] in {0.0, 1.0, -1.0} or not math.isfinite(row[1])]
            found.append(_case(opcode, [_f32([row[0] for row in exact])], _f32([row[1] for row in exact])))
            near = [row for row in table if row not in exact]
            numbers = _numbers(name)
            if ftz:  # a result beside the smallest normal number may be flushed or not
                absolute = max(absolute, NORMAL)
                numbers = numbers[np.abs(numbers) >= NORMAL]
            a = np.concatenate([_f32([row[0] for row in near]), numbers])
            expected = [_single(function(x)) for x in a.tolist()]
            error = relative, absolute, words
            found.append(_case(opcode, [a], np.array(expected), error=error))
    return found


def _logarithms_near_one() -> list[Case]:
    a = _f32(np.concatenate([np.linspace(0.5001, 1.9999, 300), 1 + np.arange(-20, 21) * 2.0**-22]))
    expected = np.array([math.log2(x) for x in a.tolist()])
    error = 2.0**-40, 2.0**-22, "max absolute error 2^-22 in (0.5, 2)"
    return [_case(f"lg2.approx{ftz}.f32", [a], expected, error=error) for ftz in ("", ".ftz")]


def _angles() -> list[Case]:
    a = _f32(np.linspace(-314, 314, 500))
    error = 2.0**-30, 2.0**-14.7, "max absolute error 2^-14.7 in [-100 pi, 100 pi]"
    return [
        _case(f"{name}.approx{ftz}.f32", [a], np.array([FUNCTIONS[name](x) for x in a.tolist()]), error=error)
        for name in ("sin", "cos")
        for ftz in ("", ".ftz")
    ]


# a, b, a / b by div.approx, under .ftz
QUOTIENTS: list[tuple[float, float, float, float]] = [
    (0.0, 0.0, NAN, NAN), (INF, INF, NAN, NAN), (NAN, 1.0, NAN, NAN), (1.0, NAN, NAN, NAN), (1.0, 0.0, INF, INF),
    (-1.0, 0.0, -INF, -INF), (1.0, -0.0, -INF, -INF), (INF, 2.0, INF, INF), (INF, -2.0, -INF, -INF),
    (1.0, INF, 0.0, 0.0), (-1.0, INF, -0.0, -0.0), (0.0, -3.0, -0.0, -0.0), (LARGEST, 2.0**-20, INF, INF),
    (1.0, 2.0**127, 0.0, 0.0), (-LARGEST, 2.0**127, -0.0, -0.0), (LARGEST, -LARGEST, -0.0, -0.0),
    (INF, 2.0**127, NAN, NAN), (-INF, LARGEST, NAN, NAN), (0.0, 2.0**127, 0.0, 0.0),
]  # fmt: skip
FLUSHED: list[tuple[float, float, float]] = [
    (1.0, LEAST, INF), (-1.0, SUBNORMAL, -INF), (LEAST, LEAST, NAN), (-SUBNORMAL, 1.0, -0.0), (SUBNORMAL, INF, 0.0),
]  # fmt: skip


def _quotients() -> list[Case]:
    found = []
    a, b = pairs("f32", limit=800)
    a, b = np.concatenate([a, sample("f32", 400, "numerator")]), np.concatenate([b, sample("f32", 400, "denominator")])
    for name in ("approx", "full"):
        for ftz in (False, True):
            rows: list[tuple[float, ...]] = [(x, y, flat) if ftz else (x, y, kept) for x, y, kept, flat in QUOTIENTS]
            if name == "full":
                rows = [row for row in rows if not 2.0**126 < abs(row[1]) < INF]
            rows += FLUSHED if ftz else []
            columns = [_f32(column) for column in zip(*rows, strict=True)]
            opcode = f"div.{name}{'.ftz' * ftz}.f32"
            found.append(_case(opcode, columns[:2], columns[2]))
            good = np.isfinite(a) & np.isfinite(b) & (np.abs(b) >= NORMAL)
            good &= np.abs(b) <= (2.0**126 if name == "approx" else INF)
            if ftz:
                good &= (np.abs(a) >= NORMAL) | (a == 0)
            operands = a[good], b[good]
            expected = np.array([_single(x / y) for x, y in zip(*(o.tolist() for o in operands), strict=True)])
            error = (
                2 * ULP,
                NORMAL if ftz else 2 * LEAST,
                "max 2 ulp" + " for |b| in [2^-126, 2^126]" * (name == "approx"),
            )
            found.append(_case(opcode, operands, expected, error=error))
    return found


def _upper(x: float) -> float:
    """The upper word of a float64, subnormal numbers flushed."""
    bits = np.array([x]).view(np.uint64) & np.uint64(0xFFFFFFFF00000000)
    value = float(bits.view(np.float64)[0])
    return math.copysign(0.0, value) if abs(value) < 2.0**-1022 else value


def _doubles() -> list[Case]:
    special = [-INF, -0.0, 0.0, INF, NAN, 2.0**-1074, -(2.0**-1040)]
    tables = {
        "rcp.approx.ftz.f64": [-0.0, -INF, INF, 0.0, NAN, INF, -INF],
        "rsqrt.approx.ftz.f64": [NAN, -INF, INF, 0.0, NAN, INF, -INF],
        "rsqrt.approx.f64": [NAN, -INF, INF, 0.0, NAN, 2.0**537, NAN],
    }
    numbers = np.concatenate([edge("f64"), sample("f64", 200, "gross")])
    numbers = numbers[np.isfinite(numbers) & (np.abs(numbers) >= 2.0**-1021) & (np.abs(numbers) < 2.0**1021)]
    positive = np.abs(numbers)
    found = [_case(opcode, [np.array(special)], np.array(row), kind="f64") for opcode, row in tables.items()]
    gross = 2.0**-19, 0.0, "gross: 20 bits of mantissa; the ISA states no error"
    reciprocals = np.array([1 / _upper(x) for x in numbers.tolist()])
    roots = np.array([1 / math.sqrt(_upper(x)) for x in positive.tolist()])
    found.append(_case("rcp.approx.ftz.f64", [numbers], reciprocals, error=gross, kind="f64"))
    found.append(_case("rsqrt.approx.ftz.f64", [positive], roots, error=gross, kind="f64"))
    fine = 2.0**-51, 0.0, "the ISA states no error"
    exact = np.array([1 / math.sqrt(x) for x in positive.tolist()])
    found.append(_case("rsqrt.approx.f64", [positive], exact, error=fine, kind="f64"))
    return found


def _lower_words() -> list[Case]:
    """The lower 32 bits of the gross f64 results are zero: checked as bits."""
    a = np.abs(sample("f64", 64, "lower"))
    a = a[np.isfinite(a)]
    inputs, zeros = {"a": ("f64", a)}, {"d": np.zeros(len(a), np.uint32)}
    found = []
    for opcode in ("rcp.approx.ftz.f64", "rsqrt.approx.ftz.f64"):
        text = f".reg .f64 t;\n.reg .b32 u;\n{opcode} t, a;\nmov.b64 {{d, u}}, t;"
        found.append(Case(opcode, text, inputs, {"d": "b32"}, zeros, note="lower word"))
    return found


CASES = [*_unary(), *_logarithms_near_one(), *_angles(), *_quotients(), *_doubles(), *_lower_words()]
