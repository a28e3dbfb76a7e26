"""Cases of `isa.integer`: edges of every type, carry chains against whole numbers of several words."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tests.cases.harness import Case, edge, pairs, triples
from tests.cases.reference_int import INTEGERS, bits_of, case, column, lanes, quotient, raw, saturate, wrap

from ptxemu.values import DTYPES, Array

CASES: list[Case] = []


def _two(
    opcode: str, ptx_type: str, function: Callable[..., int], result: str | None = None, target: str = "sm_80"
) -> None:
    a, b = pairs(ptx_type, limit=640)
    CASES.append(case(opcode, {"a": (ptx_type, a), "b": (ptx_type, b)}, result or ptx_type, function, target=target))


def _three(opcode: str, ptx_type: str, function: Callable[..., int], third: str | None = None) -> None:
    last = third or ptx_type
    a, b, c = triples(ptx_type, ptx_type, last, limit=640)
    CASES.append(case(opcode, {"a": (ptx_type, a), "b": (ptx_type, b), "c": (last, c)}, last, function))


def _division(opcode: str, ptx_type: str, function: Callable[..., int]) -> None:
    """Divisors are not 0: what comes out then is unspecified."""
    a, b = pairs(ptx_type, limit=640)
    keep = b != 0
    CASES.append(case(opcode, {"a": (ptx_type, a[keep]), "b": (ptx_type, b[keep])}, ptx_type, function))


def _every_width(t: str) -> None:
    bits = bits_of(t)
    _two(f"add.{t}", t, lambda a, b: a + b)
    _two(f"sub.{t}", t, lambda a, b: a - b)
    _two(f"mul.lo.{t}", t, lambda a, b: a * b)
    _two(f"mul.hi.{t}", t, lambda a, b: a * b >> bits)
    _two(f"min.{t}", t, min)
    _two(f"max.{t}", t, max)
    _three(f"mad.lo.{t}", t, lambda a, b, c: a * b + c)
    _three(f"mad.hi.{t}", t, lambda a, b, c: (a * b >> bits) + c)
    _three(f"sad.{t}", t, lambda a, b, c: abs(a - b) + c)
    _division(f"div.{t}", t, quotient)
    _division(f"rem.{t}", t, lambda a, b: a - b * quotient(a, b))
    if t[0] == "s":
        CASES.append(case(f"abs.{t}", {"a": (t, edge(t))}, t, abs))
        CASES.append(case(f"neg.{t}", {"a": (t, edge(t))}, t, lambda a: -a))
    if bits < 64:
        wide = f"{t[0]}{2 * bits}"
        _two(f"mul.wide.{t}", t, lambda a, b: a * b, wide)
        _three(f"mad.wide.{t}", t, lambda a, b, c: a * b + c, wide)


# --- 32 bits only -----------------------------------------------------------------------------------------------------


def _low24(value: int, ptx_type: str) -> int:
    """The low 24 bits as a number of the type's signedness."""
    low = value % (1 << 24)
    return low - (1 << 24) if ptx_type[0] == "s" and low >> 23 else low


def _products24(t: str) -> None:
    def product(a: int, b: int) -> int:
        return _low24(a, t) * _low24(b, t)

    _two(f"mul24.lo.{t}", t, product)
    _two(f"mul24.hi.{t}", t, lambda a, b: product(a, b) >> 16)
    _three(f"mad24.lo.{t}", t, lambda a, b, c: product(a, b) + c)
    _three(f"mad24.hi.{t}", t, lambda a, b, c: (product(a, b) >> 16) + c)


def _saturating() -> None:
    _two("add.sat.s32", "s32", lambda a, b: saturate(a + b))
    _two("sub.sat.s32", "s32", lambda a, b: saturate(a - b))
    _three("mad.hi.sat.s32", "s32", lambda a, b, c: saturate((a * b >> 32) + c))
    _three("mad24.hi.sat.s32", "s32", lambda a, b, c: saturate((_low24(a, "s32") * _low24(b, "s32") >> 16) + c))


def _parts(value: int, kind: str, bits: int) -> list[int]:
    """The fields of 32 bits, lowest first."""
    return [wrap(value >> start, f"{kind}{bits}") for start in range(0, 32, bits)]


def _dots(a_type: str, b_type: str) -> None:
    t = "u32" if a_type == b_type == "u32" else "s32"
    a, b, c = triples("b32", "b32", t, limit=640)
    inputs = {"a": ("b32", a), "b": ("b32", b), "c": (t, c)}

    def dot(width: int, first: int, a: int, b: int, c: int) -> int:
        left, right = _parts(a, a_type[0], width), _parts(b, b_type[0], 8)[first:]
        return c + sum(x * y for x, y in zip(left, right, strict=False))

    CASES.append(case(f"dp4a.{a_type}.{b_type}", inputs, t, lambda a, b, c: dot(8, 0, a, b, c)))
    for mode, first in (("lo", 0), ("hi", 2)):
        function: Callable[..., int] = lambda a, b, c, first=first: dot(16, first, a, b, c)  # noqa: E731 - bound here
        CASES.append(case(f"dp2a.{mode}.{a_type}.{b_type}", inputs, t, function))


def _packed(opcode: str, kind: str, function: Callable[..., int]) -> None:
    """Two 16-bit numbers in 32 bits."""

    def both(a: int, b: int) -> int:
        results = [function(x, y) for x, y in zip(_parts(a, kind, 16), _parts(b, kind, 16), strict=True)]
        return raw(results[0], "u16") | raw(results[1], "u16") << 16

    _two(opcode, "b32", both, target="sm_90")


def _pairs() -> None:
    for kind in "us":
        _packed(f"add.{kind}16x2", kind, lambda a, b: a + b)
        _packed(f"min.{kind}16x2", kind, min)
        _packed(f"max.{kind}16x2", kind, max)
    _packed("min.relu.s16x2", "s", lambda a, b: max(0, min(a, b)))
    _packed("max.relu.s16x2", "s", lambda a, b: max(0, a, b))
    _two("min.relu.s32", "s32", lambda a, b: max(0, min(a, b)), target="sm_90")
    _two("max.relu.s32", "s32", lambda a, b: max(0, a, b), target="sm_90")


# --- carries ----------------------------------------------------------------------------------------------------------


def _words(t: str) -> dict[str, tuple[str, Array]]:
    """Two-word numbers a1:a0 and b1:b0; in every third the upper words add up to all ones (or are equal)."""
    a0, b0 = pairs(t, limit=480)
    a1, b1 = np.roll(a0, 7), np.roll(b0, 3)
    place = np.arange(len(a1)) % 3
    b1 = np.where(place == 0, ~a1, np.where(place == 1, a1, b1)).astype(DTYPES[t])
    return {"a0": (t, a0), "b0": (t, b0), "a1": (t, a1), "b1": (t, b1)}


def _chain(t: str, operation: str, sign: int) -> None:
    """op.cc, then opc.cc, then opc of zeros: three words of the sum (difference) of two-word numbers."""
    bits, words = bits_of(t), _words(t)

    def word(place: int) -> Callable[..., int]:
        def value(a0: int, b0: int, a1: int, b1: int) -> int:
            a, b = (raw(low, t) + (raw(high, t) << bits) for low, high in ((a0, a1), (b0, b1)))
            return a + sign * b >> place * bits

        return value

    arrays = [array for _, array in words.values()]
    expected = {f"d{place}": lanes(word(place), t, *arrays) for place in range(3)}
    first, last = f"{operation}.cc.{t} d0, a0, b0;", f"{operation}c.{t} d2, 0, 0;"
    CASES.extend(
        [
            Case(f"{operation}c.cc.{t}", f"{first}\n{operation}c.cc.{t} d1, a1, b1;\n{last}", words,
                 dict.fromkeys(expected, t), expected),
            Case(f"{operation}c.{t}", f"{first}\n{operation}c.{t} d1, a1, b1;", words,
                 {"d0": t, "d1": t}, {"d0": expected["d0"], "d1": expected["d1"]}),
            _carry_flag(t, operation, sign),
        ]
    )  # fmt: skip


def _carry_flag(t: str, operation: str, sign: int) -> Case:
    """op.cc, then the flag alone: 1 or 0, or 0 - borrow."""
    words = {name: operand for name, operand in _words(t).items() if name.endswith("0")}
    arrays = [array for _, array in words.values()]
    expected = {
        "d0": lanes(lambda a, b: a + sign * b, t, *arrays),
        "d1": lanes(lambda a, b: raw(a, t) + sign * raw(b, t) >> bits_of(t), t, *arrays),
    }
    text = f"{operation}.cc.{t} d0, a0, b0;\n{operation}c.{t} d1, 0, 0;"
    return Case(f"{operation}.cc.{t}", text, words, {"d0": t, "d1": t}, expected)


def _multiply_chain(t: str, half: str) -> None:
    """mad.half.cc and, after a carry made by p + q, madc.half and madc.half.cc."""
    bits = bits_of(t)
    a, b, c = triples(t, limit=480)
    flags = np.arange(len(a)) % 2
    p, q = column([-1] * len(a), t), column(flags.tolist(), t)

    def total(a: int, b: int, c: int, carry: int) -> int:
        product = a * b >> bits if half == "hi" else a * b
        return raw(product, t) + raw(c, t) + carry

    plain = {"a": (t, a), "b": (t, b), "c": (t, c)}
    carried = {**plain, "p": (t, p), "q": (t, q)}
    none, low, flag = np.zeros_like(flags), total, lambda *each: total(*each) >> bits
    both = {"d0": t, "d1": t}
    start, end = f"add.cc.{t} p, p, q;\n", f"\naddc.{t} d1, 0, 0;"
    expected = {"d0": lanes(low, t, a, b, c, none), "d1": lanes(flag, t, a, b, c, none)}
    CASES.append(Case(f"mad.{half}.cc.{t}", f"mad.{half}.cc.{t} d0, a, b, c;{end}", plain, both, expected))
    expected = {"d0": lanes(low, t, a, b, c, flags), "d1": lanes(flag, t, a, b, c, flags)}
    text = f"{start}madc.{half}.cc.{t} d0, a, b, c;{end}"
    CASES.append(Case(f"madc.{half}.cc.{t}", text, carried, both, expected))
    text = f"{start}madc.{half}.{t} d0, a, b, c;"
    CASES.append(Case(f"madc.{half}.{t}", text, carried, {"d0": t}, {"d0": expected["d0"]}))


def _long_product(t: str) -> None:
    """A whole product of two-word numbers, four words, by eight multiply-adds."""
    bits, words = bits_of(t), _words(t)
    text = f"""mul.lo.{t} d0, a0, b0;
        mul.hi.{t} d1, a0, b0;
        mad.lo.cc.{t} d1, a1, b0, d1;
        madc.hi.{t} d2, a1, b0, 0;
        mad.lo.cc.{t} d1, a0, b1, d1;
        madc.hi.cc.{t} d2, a0, b1, d2;
        addc.{t} d3, 0, 0;
        mad.lo.cc.{t} d2, a1, b1, d2;
        madc.hi.{t} d3, a1, b1, d3;"""

    def word(place: int) -> Callable[..., int]:
        return lambda a0, b0, a1, b1: (a0 + (a1 << bits)) * (b0 + (b1 << bits)) >> place * bits

    expected = {f"d{place}": lanes(word(place), t, *(array for _, array in words.values())) for place in range(4)}
    CASES.append(Case(f"madc.hi.cc.{t}", text, words, dict.fromkeys(expected, t), expected))


for _type in INTEGERS:
    _every_width(_type)
for _type in ("u32", "s32", "u64", "s64"):
    _chain(_type, "add", 1)
    _chain(_type, "sub", -1)
    _multiply_chain(_type, "lo")
    _multiply_chain(_type, "hi")
for _type in ("u32", "s32"):
    _products24(_type)
    _dots(_type, "u32")
    _dots(_type, "s32")
for _type in ("u32", "u64"):
    _long_product(_type)
_saturating()
_pairs()
