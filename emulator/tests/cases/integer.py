"""Cases of `isa.integer`: edges of every type, carry chains against whole numbers of several words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from tests.cases.harness import Case, Typed, edge, given, named, pairs, triples
from tests.cases.reference_int import INTEGERS, bits_of, case, column, lanes, quotient, raw, saturate, wrap

from ptxemu.values import DTYPES, Array

Rule = Callable[..., int]


def inputs(t: str, count: int, last: str = "", limit: int = 640) -> Typed:
    """Two or three operands; the last may have another type."""
    if count == 1:
        return named(t, edge(t))
    if count == 2:
        return named(t, *pairs(t, limit=limit))
    a, b, c = triples(t, t, last or t, limit=limit)
    return named(t, a, b) | {"c": (last or t, c)}


def every_width(t: str) -> Iterator[Case]:
    bits, wide = bits_of(t), f"{t[0]}{2 * bits_of(t)}"
    table: dict[str, tuple[int, Rule]] = {
        "add": (2, lambda a, b: a + b), "sub": (2, lambda a, b: a - b), "mul.lo": (2, lambda a, b: a * b),
        "mul.hi": (2, lambda a, b: a * b >> bits), "min": (2, min), "max": (2, max),
        "mad.lo": (3, lambda a, b, c: a * b + c), "mad.hi": (3, lambda a, b, c: (a * b >> bits) + c),
        "sad": (3, lambda a, b, c: abs(a - b) + c),
    }  # fmt: skip
    for name, (count, rule) in table.items():
        yield case(f"{name}.{t}", inputs(t, count), t, rule)
    a, b = pairs(t, limit=640)
    divided = named(t, a[b != 0], b[b != 0])  # what a division by 0 gives is unspecified
    yield case(f"div.{t}", divided, t, quotient)
    yield case(f"rem.{t}", divided, t, lambda a, b: a - b * quotient(a, b))
    if t[0] == "s":
        yield case(f"abs.{t}", inputs(t, 1), t, abs)
        yield case(f"neg.{t}", inputs(t, 1), t, lambda a: -a)
    if bits < 64:
        yield case(f"mul.wide.{t}", inputs(t, 2), wide, lambda a, b: a * b)
        yield case(f"mad.wide.{t}", inputs(t, 3, wide), wide, lambda a, b, c: a * b + c)


def product24(a: int, b: int, t: str) -> int:
    """The product of the low 24 bits, read with the type's signedness."""
    low = [each % (1 << 24) - ((each >> 23 & 1) << 24 if t[0] == "s" else 0) for each in (a, b)]
    return low[0] * low[1]


def products24(t: str) -> Iterator[Case]:
    yield case(f"mul24.lo.{t}", inputs(t, 2), t, lambda a, b: product24(a, b, t))
    yield case(f"mul24.hi.{t}", inputs(t, 2), t, lambda a, b: product24(a, b, t) >> 16)
    yield case(f"mad24.lo.{t}", inputs(t, 3), t, lambda a, b, c: product24(a, b, t) + c)
    yield case(f"mad24.hi.{t}", inputs(t, 3), t, lambda a, b, c: (product24(a, b, t) >> 16) + c)


def parts(value: int, kind: str, bits: int) -> list[int]:
    return [wrap(value >> start, f"{kind}{bits}") for start in range(0, 32, bits)]


def dots(a_type: str, b_type: str) -> Iterator[Case]:
    t = "u32" if a_type == b_type == "u32" else "s32"
    operands = inputs("b32", 3, t)

    def dot(width: int, first: int) -> Rule:
        def rule(a: int, b: int, c: int) -> int:
            both = zip(parts(a, a_type[0], width), parts(b, b_type[0], 8)[first:], strict=False)
            return c + sum(x * y for x, y in both)

        return rule

    for name, width, first in (("dp4a", 8, 0), ("dp2a.lo", 16, 0), ("dp2a.hi", 16, 2)):
        yield case(f"{name}.{a_type}.{b_type}", operands, t, dot(width, first))


def saturating() -> Iterator[Case]:
    t = "s32"
    yield case("add.sat.s32", inputs(t, 2), t, lambda a, b: saturate(a + b))
    yield case("sub.sat.s32", inputs(t, 2), t, lambda a, b: saturate(a - b))
    yield case("mad.hi.sat.s32", inputs(t, 3), t, lambda a, b, c: saturate((a * b >> 32) + c))
    yield case("mad24.hi.sat.s32", inputs(t, 3), t, lambda a, b, c: saturate((product24(a, b, t) >> 16) + c))


def packed() -> Iterator[Case]:
    relu: dict[str, Rule] = {"min": lambda a, b: max(0, min(a, b)), "max": lambda a, b: max(0, a, b)}

    def both(opcode: str, rule: Rule) -> Case:
        def halves(a: int, b: int) -> int:
            low, high = (rule(*each) for each in zip(parts(a, kind, 16), parts(b, kind, 16), strict=True))
            return raw(low, "u16") | raw(high, "u16") << 16

        kind = opcode[-5]
        return case(opcode, inputs("b32", 2), "b32", halves, target="sm_90")

    for kind in "us":
        yield both(f"add.{kind}16x2", lambda a, b: a + b)
        yield both(f"min.{kind}16x2", min)
        yield both(f"max.{kind}16x2", max)
    for name, rule in relu.items():
        yield both(f"{name}.relu.s16x2", rule)
    for name, rule in relu.items():
        yield case(f"{name}.relu.s32", inputs("s32", 2), "s32", rule, target="sm_90")


def words(t: str) -> Typed:
    """Two-word numbers a1:a0 and b1:b0; in every third the upper words add up to all ones (or are equal)."""
    a0, b0 = pairs(t, limit=480)
    a1, b1 = np.roll(a0, 7), np.roll(b0, 3)
    place = np.arange(len(a1)) % 3
    b1 = np.where(place == 0, ~a1, np.where(place == 1, a1, b1)).astype(DTYPES[t])
    return {"a0": (t, a0), "b0": (t, b0), "a1": (t, a1), "b1": (t, b1)}


def results(t: str, rules: Any, *arrays: Array) -> Typed:
    return {f"d{place}": (t, lanes(rule, t, *arrays)) for place, rule in enumerate(rules)}


def chain(t: str, operation: str, sign: int) -> Iterator[Case]:
    """op.cc, then opc.cc, then opc of zeros: three words of the sum (difference) of two-word numbers."""
    bits, both = bits_of(t), words(t)

    def word(place: int) -> Rule:
        def value(a0: int, b0: int, a1: int, b1: int) -> int:
            a, b = (raw(low, t) + (raw(high, t) << bits) for low, high in ((a0, a1), (b0, b1)))
            return a + sign * b >> place * bits

        return value

    sums = results(t, map(word, range(3)), *(array for _, array in both.values()))
    first, last = f"{operation}.cc.{t} d0, a0, b0;", f"{operation}c.{t} d2, 0, 0;"
    yield given(f"{operation}c.cc.{t}", f"{first}\n{operation}c.cc.{t} d1, a1, b1;\n{last}", both, sums)
    two = {name: sums[name] for name in ("d0", "d1")}
    yield given(f"{operation}c.{t}", f"{first}\n{operation}c.{t} d1, a1, b1;", both, two)
    low = {name: both[name] for name in ("a0", "b0")}  # the flag alone: 1 or 0, or 0 - borrow
    rules = (lambda a, b: a + sign * b), (lambda a, b: raw(a, t) + sign * raw(b, t) >> bits)
    wanted = results(t, rules, *(array for _, array in low.values()))
    yield given(f"{operation}.cc.{t}", f"{first}\n{operation}c.{t} d1, 0, 0;", low, wanted)


def multiply_chain(t: str, half: str) -> Iterator[Case]:
    """mad.half.cc and, after a carry made by p + q, madc.half and madc.half.cc."""
    bits, plain = bits_of(t), inputs(t, 3, limit=480)
    arrays = [array for _, array in plain.values()]
    flags = np.arange(len(arrays[0])) % 2
    carried = plain | {"p": (t, column([-1] * len(flags), t)), "q": (t, column(flags.tolist(), t))}

    def total(a: int, b: int, c: int, carry: int) -> int:
        return raw(a * b >> bits if half == "hi" else a * b, t) + raw(c, t) + carry

    rules = total, (lambda *each: total(*each) >> bits)
    start, end = f"add.cc.{t} p, p, q;\n", f"\naddc.{t} d1, 0, 0;"
    without, with_carry = (results(t, rules, *arrays, each) for each in (np.zeros_like(flags), flags))
    yield given(f"mad.{half}.cc.{t}", f"mad.{half}.cc.{t} d0, a, b, c;{end}", plain, without)
    yield given(f"madc.{half}.cc.{t}", f"{start}madc.{half}.cc.{t} d0, a, b, c;{end}", carried, with_carry)
    yield given(f"madc.{half}.{t}", f"{start}madc.{half}.{t} d0, a, b, c;", carried, {"d0": with_carry["d0"]})


def long_product(t: str) -> Case:
    """A whole product of two-word numbers, four words, by eight multiply-adds."""
    bits, both = bits_of(t), words(t)
    text = f"""mul.lo.{t} d0, a0, b0;
        mul.hi.{t} d1, a0, b0;
        mad.lo.cc.{t} d1, a1, b0, d1;
        madc.hi.{t} d2, a1, b0, 0;
        mad.lo.cc.{t} d1, a0, b1, d1;
        madc.hi.cc.{t} d2, a0, b1, d2;
        addc.{t} d3, 0, 0;
        mad.lo.cc.{t} d2, a1, b1, d2;
        madc.hi.{t} d3, a1, b1, d3;"""

    def word(place: int) -> Rule:
        return lambda a0, b0, a1, b1: (a0 + (a1 << bits)) * (b0 + (b1 << bits)) >> place * bits

    wanted = results(t, map(word, range(4)), *(array for _, array in both.values()))
    return given(f"madc.hi.cc.{t}", text, both, wanted)


def cases() -> Iterator[Case]:
    for t in INTEGERS:
        yield from every_width(t)
    for t in ("u32", "s32", "u64", "s64"):
        yield from chain(t, "add", 1)
        yield from chain(t, "sub", -1)
        yield from multiply_chain(t, "lo")
        yield from multiply_chain(t, "hi")
    for t in ("u32", "s32"):
        yield from products24(t)
        yield from dots(t, "u32")
        yield from dots(t, "s32")
    yield from map(long_product, ("u32", "u64"))
    yield from saturating()
    yield from packed()


CASES = list(cases())
