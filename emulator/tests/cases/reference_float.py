"""What f32 and f64 arithmetic must give: every finite number is a `Fraction`, rounded once by integer division.

Source: IEEE 754-2019, PTX ISA 9.0 section 9.7.3.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
import math

import numpy as np

from ptxemu.values import DTYPES, Array

# Bits of precision, exponents of the least number and of overflow. Hardware decides about ``.ftz`` of a result after it
# rounded to 24 bits as if there were no least number (seen on an H200), hence a format of its own.
FORMATS = {
    "f16": (11, -24, 16),
    "bf16": (8, -133, 128),
    "tf32": (11, -136, 128),
    "f32": (24, -149, 128),
    "f32.ftz": (24, -100000, 128),
    "f16.ftz": (11, -100000, 16),
    "f64": (53, -1074, 1024),
}
NAN = math.nan


def round_exact(value: Fraction, kind: str, mode: str) -> float:
    """A nonzero rational number in the format `kind`, rounded in `mode` (rn, rna, rz, rm, rp)."""
    precision, least, overflow = FORMATS[kind]
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    while Fraction(2) ** exponent > size:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= size:
        exponent += 1
    quantum = Fraction(2) ** max(exponent - precision + 1, least)
    whole, rest = divmod(size, quantum)
    away = {
        "rn": rest * 2 > quantum or (rest * 2 == quantum and whole % 2 == 1),
        "rna": rest * 2 >= quantum,
        "rz": False,
        "rm": value < 0 and rest > 0,
        "rp": value > 0 and rest > 0,
    }[mode]
    rounded = (whole + away) * quantum
    if rounded >= Fraction(2) ** overflow:
        largest = (2 - Fraction(2) ** (1 - precision)) * Fraction(2) ** (overflow - 1)
        outwards = mode in {"rn", "rna"} or (mode == "rm" and value < 0) or (mode == "rp" and value > 0)
        rounded_float = math.inf if outwards else float(largest)
    else:
        rounded_float = float(rounded)
    return -rounded_float if value < 0 else rounded_float


def flush(x: float, kind: str = "f32") -> float:
    precision, least, _ = FORMATS[kind]
    return math.copysign(0.0, x) if abs(x) < 2.0 ** (least + precision - 1) else x


def saturate(x: float) -> float:
    return 0.0 if math.isnan(x) or x <= 0 else min(x, 1.0)


def negative(x: float) -> bool:
    return math.copysign(1.0, x) < 0


def mul(kind: str, mode: str, a: float, b: float) -> float:
    if any(map(math.isnan, (a, b))) or {0.0, math.inf} <= {abs(a), abs(b)}:
        return NAN
    sign = -1.0 if negative(a) != negative(b) else 1.0
    if math.isinf(a) or math.isinf(b) or a == 0 or b == 0:
        return math.copysign(abs(a) * abs(b), sign)
    return round_exact(Fraction(a) * Fraction(b), kind, mode)


def fma(kind: str, mode: str, a: float, b: float, c: float) -> float:
    if any(map(math.isnan, (a, b, c))) or {0.0, math.inf} <= {abs(a), abs(b)}:
        return NAN
    minus = negative(a) != negative(b)
    if math.isinf(a) or math.isinf(b):
        return NAN if math.isinf(c) and negative(c) != minus else (-math.inf if minus else math.inf)
    if math.isinf(c):
        return c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact:
        return round_exact(exact, kind, mode)
    if minus == negative(c):
        return -0.0 if minus else 0.0
    return -0.0 if mode == "rm" else 0.0


def div(kind: str, mode: str, a: float, b: float) -> float:
    if math.isnan(a) or math.isnan(b) or (a == 0 and b == 0) or (math.isinf(a) and math.isinf(b)):
        return NAN
    sign = -1.0 if negative(a) != negative(b) else 1.0
    if math.isinf(a) or b == 0:
        return sign * math.inf
    if math.isinf(b) or a == 0:
        return sign * 0.0
    return round_exact(Fraction(a) / Fraction(b), kind, mode)


def sqrt(kind: str, mode: str, a: float) -> float:
    """The square root: 64 bits of it by an integer root, and half a unit more where that is not all."""
    if math.isnan(a) or a < 0:
        return NAN
    if a == 0 or math.isinf(a):
        return a
    exact = Fraction(a)
    shift = 2 * (70 + exact.denominator.bit_length())
    scaled = exact * 2**shift
    assert scaled.denominator == 1
    root = math.isqrt(scaled.numerator)
    inexact = root * root != scaled.numerator
    return round_exact((Fraction(root) + Fraction(int(inexact), 2)) / 2 ** (shift // 2), kind, mode)


OPERATIONS: dict[str, Callable[..., float]] = {
    "add": lambda kind, mode, a, b: fma(kind, mode, a, 1.0, b),
    "sub": lambda kind, mode, a, b: fma(kind, mode, b, -1.0, a),
    "mul": mul, "fma": fma, "mad": fma, "div": div, "rcp": lambda kind, mode, a: div(kind, mode, 1.0, a), "sqrt": sqrt,
}  # fmt: skip


def compute(
    name: str, kind: str, mode: str, operands: Sequence[Array], *, ftz: bool = False, sat: bool = False
) -> Array:
    """`OPERATIONS` element by element, with ``.ftz`` and ``.sat``."""
    results = []
    for lane in zip(*(operand.tolist() for operand in operands), strict=True):
        result = OPERATIONS[name](f"{kind}{'.ftz' * ftz}", mode, *(map(flush, lane) if ftz else lane))
        result = flush(result) if ftz else result
        results.append(saturate(result) if sat else result)
    return np.array(results).astype(DTYPES[kind])


def extreme(name: str, a: float, b: float, *, nan: bool, ftz: bool, xorsign: bool = False) -> float:
    if ftz:
        a, b = flush(a), flush(b)
    minus = negative(a) != negative(b)
    if xorsign:
        a, b = abs(a), abs(b)
    if math.isnan(a) or math.isnan(b):
        result = NAN if nan or (math.isnan(a) and math.isnan(b)) else (b if math.isnan(a) else a)
    else:
        key: Callable[[float], tuple[float, bool]] = lambda x: (x, not negative(x))  # noqa: E731 - a name for min and max
        result = max(a, b, key=key) if name == "max" else min(a, b, key=key)
    if xorsign and not math.isnan(result):
        result = -abs(result) if minus else abs(result)
    return result
