"""What ``cvt`` and the 16-bit float instructions must give, one number at a time, in exact rational arithmetic.

It reads the opcode's own words. Every f16, bf16, f32 and f64 is a Python float exactly.
"""

from fractions import Fraction
import math

from tests.cases.reference_float import FORMATS, OPERATIONS, extreme, flush, round_exact, saturate
from tests.cases.reference_int import wrap


def limits(kind: str) -> tuple[int, int]:
    bits = int(kind[1:])
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)


def largest(kind: str) -> float:
    precision, _, overflow = FORMATS[kind]
    return float((1 - Fraction(2) ** -precision) * 2**overflow)


def relu(value: float) -> float:
    return value if value > 0 or math.isnan(value) else 0.0


def integral(value: float, mode: str) -> int:
    """A finite float as an integer by ``rni``, ``rzi``, ``rmi`` or ``rpi``."""
    exact = Fraction(value)
    below = math.floor(exact)
    up = {"rni": round(exact) > below, "rzi": value < 0, "rmi": False, "rpi": True}[mode]
    return below + (up and exact != below)


def to_integer(value: float, source: str, result: str, mode: str) -> int:
    """Float to integer: clamped; NaN is 0, or the highest bit where the source is f64 or the result has 64 bits."""
    low, high = limits(result)
    if math.isnan(value):
        highest = low if result[0] == "s" else 1 << (int(result[1:]) - 1)
        return highest if source == "f64" or result in {"s64", "u64"} else 0
    if math.isinf(value):
        return high if value > 0 else low
    return min(max(integral(value, mode), low), high)


def to_float(value: float, result: str, words: list[str]) -> float:
    """A number (int or float) to a float format by the words of an opcode (rounding, ``sat``, ``relu``, ...)."""
    if "satfinite" in words and not math.isnan(value):
        value = min(max(value, -largest(result)), largest(result))
    inward = next((word for word in words if word in {"rni", "rzi", "rmi", "rpi"}), None)
    mode = next((word for word in words if word in {"rn", "rz", "rm", "rp", "rna"}), "rn")
    if isinstance(value, float) and not math.isfinite(value):
        rounded = value
    elif inward:
        rounded = math.copysign(float(abs(integral(value, inward))), value)
    else:
        kind = "f32.ftz" if "ftz" in words and result == "f32" else result
        rounded = round_exact(Fraction(value), kind, mode) if value else math.copysign(0.0, value)
        if kind != result:
            rounded = flush(rounded)
    if "sat" in words:
        return saturate(rounded)
    return relu(rounded) if "relu" in words else rounded


def convert(opcode: str, value: float) -> float:
    """``cvt`` of one number; opcodes of pairs (``f16x2``) convert one element as their element type."""
    *words, result, source = opcode.removeprefix("cvt.").split(".")
    result = result.removesuffix("x2")
    if source[0] in "us":
        value = wrap(int(value), source)
        if result[0] in "us":
            low, high = limits(result)
            return min(max(value, low), high) if "sat" in words else wrap(value, result)
    elif source == "f32" and "ftz" in words:
        value = flush(value)
    if result[0] in "us":
        mode = next(word for word in words if word.endswith("i"))
        return to_integer(value, source, result, mode)
    return to_float(value, result, words)


def compare(operator: str, a: float, b: float) -> bool:
    """``eq`` ... ``ge`` are false for NaN, ``equ`` ... ``geu`` true; ``num`` and ``nan`` ask for it."""
    unordered = math.isnan(a) or math.isnan(b)
    if operator in {"num", "nan"}:
        return unordered == (operator == "nan")
    if unordered:
        return operator.endswith("u")
    table = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
    return table[operator.removesuffix("u")]


def arithmetic(name: str, kind: str, words: list[str], *numbers: float) -> float:
    """``add``, ``sub``, ``mul``, ``fma``, ``min``, ``max`` of f16 or bf16: rounded once, then flushed and clamped."""
    if "ftz" in words:
        numbers = tuple(flush(number, kind) for number in numbers)
    if name in {"min", "max"}:
        return extreme(name, *numbers, nan="NaN" in words, ftz=False, xorsign="xorsign" in words)
    result = OPERATIONS[name](f"{kind}.ftz" if "ftz" in words else kind, "rn", *numbers)
    if "ftz" in words:
        result = flush(result, kind)
    if "sat" in words:
        return saturate(result)
    return relu(result) if "relu" in words else result
