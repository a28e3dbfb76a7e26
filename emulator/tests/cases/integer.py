"""Cases of integers, bits and comparisons: edges of every type, amounts beyond the width, NaN, denormals, carries.

Amounts, selectors and fields appear twice: from registers that differ by lane, and as constants in the text, because
the emulator treats constants apart. Comparisons are of Python numbers, after an explicit look at NaN and, for ``.ftz``,
at denormals.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
import operator
from typing import Any

import numpy as np
from tests.cases import reference_int as ref
from tests.cases.harness import FLOATS, Case, Typed, edge, given, named, pairs, plain, sample, text_of, triples
from tests.cases.reference_convert import compare
from tests.cases.reference_int import AMOUNTS, INTEGERS, bits_of, case, column, lanes, raw

from ptxemu.values import DTYPES, Array

Rule = Callable[..., int]


def inputs(t: str, count: int, last: str = "", limit: int = 640) -> Typed:
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
    yield case(f"div.{t}", divided, t, ref.quotient)
    yield case(f"rem.{t}", divided, t, lambda a, b: a - b * ref.quotient(a, b))
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


def dots(a_type: str, b_type: str) -> Iterator[Case]:
    t = "u32" if a_type == b_type == "u32" else "s32"
    operands = inputs("b32", 3, t)

    def dot(width: int, first: int) -> Rule:
        def rule(a: int, b: int, c: int) -> int:
            both = zip(ref.parts(a, a_type[0], width), ref.parts(b, b_type[0], 8)[first:], strict=False)
            return c + sum(x * y for x, y in both)

        return rule

    for name, width, first in (("dp4a", 8, 0), ("dp2a.lo", 16, 0), ("dp2a.hi", 16, 2)):
        yield case(f"{name}.{a_type}.{b_type}", operands, t, dot(width, first))


def saturating() -> Iterator[Case]:
    t = "s32"
    yield case("add.sat.s32", inputs(t, 2), t, lambda a, b: ref.saturate(a + b))
    yield case("sub.sat.s32", inputs(t, 2), t, lambda a, b: ref.saturate(a - b))
    yield case("mad.hi.sat.s32", inputs(t, 3), t, lambda a, b, c: ref.saturate((a * b >> 32) + c))
    yield case("mad24.hi.sat.s32", inputs(t, 3), t, lambda a, b, c: ref.saturate((product24(a, b, t) >> 16) + c))


def packed() -> Iterator[Case]:
    relu: dict[str, Rule] = {"min": lambda a, b: max(0, min(a, b)), "max": lambda a, b: max(0, a, b)}

    def both(opcode: str, rule: Rule) -> Case:
        def halves(a: int, b: int) -> int:
            low, high = (rule(*each) for each in zip(ref.parts(a, kind, 16), ref.parts(b, kind, 16), strict=True))
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
    text = text_of("long_product", type=t)

    def word(place: int) -> Rule:
        return lambda a0, b0, a1, b1: (a0 + (a1 << bits)) * (b0 + (b1 << bits)) >> place * bits

    wanted = results(t, map(word, range(4)), *(array for _, array in both.values()))
    return given(f"madc.hi.cc.{t}", text, both, wanted)


def integers() -> Iterator[Case]:
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


POSITIONS = (0, 1, 5, 15, 16, 30, 31, 32, 33, 48, 62, 63, 64, 65, 128, 255, 256, 259, (1 << 32) - 1)
CONSTANT_FIELDS = ((0, 0), (0, 8), (16, 16), (8, 0), (31, 1), (28, 9), (0, 32), (32, 4), (40, 64), (5, 255))
SELECTORS = (0x3210, 0x5410, 0x7632, 0x0123, 0x7654, 0x1054, 0x7777, 0x3333, 0xBA98, 0xFEDC, 0x8888, 0xB210, 0xDEAD5410)


def constants(opcode: str, inputs: Typed, result: str, choices: Sequence[Any], rule: Rule) -> Case:
    """A statement for each choice of constants, which are the last operands."""
    names, arrays = ", ".join(inputs), [array for _, array in inputs.values()]
    each = [choice if isinstance(choice, tuple) else (choice,) for choice in choices]
    text = "\n".join(f"{opcode} d{n}, {names}, {', '.join(map(str, numbers))};" for n, numbers in enumerate(each))
    wanted = (lanes(lambda *a, last=numbers: rule(*a, *last), result, *arrays) for numbers in each)
    return given(opcode, text, inputs, {f"d{n}": (result, array) for n, array in enumerate(wanted)})


def columns(types: str, *axes: Any, limit: int = 1024) -> Typed:
    """All combinations of some lists, thinned to a limit, as a, b, c of these types."""
    listed = zip("abc", types.split(), ref.crossed(*axes, limit=limit), strict=False)
    return {name: (t, column(each, t)) for name, t, each in listed}


def logic() -> Iterator[Case]:
    rules: dict[str, Rule] = {"and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b}
    flags = named("pred", np.array([False, False, True, True]), np.array([False, True, False, True]))
    for name, rule in rules.items():
        for t in ("b16", "b32", "b64"):
            yield case(f"{name}.{t}", named(t, *pairs(t, limit=640)), t, rule)
        yield case(f"{name}.pred", flags, "pred", rule)
    for t in ("b16", "b32", "b64"):
        yield case(f"not.{t}", named(t, edge(t)), t, lambda a: ~a)
        yield case(f"cnot.{t}", named(t, edge(t)), t, lambda a: int(a == 0))
    yield case("not.pred", named("pred", np.array([False, True])), "pred", lambda a: not a)


def shifts() -> Iterator[Case]:
    for t in (f"{kind}{bits}" for kind in "bus" for bits in (16, 32, 64)):
        inputs = columns(f"{t} u32", edge(t)[:40], AMOUNTS)
        amounts = [amount for amount in AMOUNTS if bits_of(t) > 16 or amount < 1 << 16]  # ptxas cuts to 16 bits
        rules: dict[str, Rule] = {"shr": ref.shift_right, "shl": partial(ref.shift_left, ptx_type=t)}
        for name in ("shr", "shl") if t[0] == "b" else ("shr",):
            yield case(f"{name}.{t}", inputs, t, rules[name])
            yield constants(f"{name}.{t}", named(t, edge(t, 64)), t, amounts, rules[name])


def funnels() -> Iterator[Case]:
    numbers = edge("b32")[:12]
    inputs = columns("b32 b32 u32", numbers, numbers[::-1], AMOUNTS)
    for left, clamp in ((True, True), (True, False), (False, True), (False, False)):
        opcode = f"shf.{'l' if left else 'r'}.{'clamp' if clamp else 'wrap'}.b32"
        yield case(opcode, inputs, "b32", partial(ref.funnel, left, clamp))


def lop3() -> Iterator[Case]:
    """Every table, 32 of them in a case; all eight combinations of three bits are in every lane of the first three."""
    a, b, c = triples("b32", limit=64)
    a[:3], b[:3], c[:3] = 0xF0F0F0F0, 0xCCCCCCCC, 0xAAAAAAAA
    for start in range(0, 256, 32):
        yield constants("lop3.b32", named("b32", a, b, c), "b32", range(start, start + 32), ref.ternary)
    a, b, c = triples("b32", limit=128)
    q = sample("pred", len(a), "q")
    value = lanes(lambda a, b, c: ref.ternary(a, b, c, 0x80), "b32", a, b, c)
    for name, flag in (("and", (value != 0) & q), ("or", (value != 0) | q)):
        inputs, wanted = named("b32", a, b, c) | {"q": ("pred", q)}, {"d": ("b32", value), "p": ("pred", flag)}
        yield given(f"lop3.{name}.b32", f"lop3.{name}.b32 d|p, a, b, c, 0x80, q;", inputs, wanted)


def counts() -> Iterator[Case]:
    for bits in (32, 64):
        t = f"b{bits}"
        inputs = named(t, edge(t, 512))
        yield case(f"popc.{t}", inputs, "u32", lambda a: f"{a:b}".count("1"))
        yield case(f"clz.{t}", inputs, "u32", lambda a, bits=bits: bits - a.bit_length())
        yield case(f"brev.{t}", inputs, t, lambda a, bits=bits: int(f"{a:0{bits}b}"[::-1], 2))
        for t in (f"u{bits}", f"s{bits}"):
            for infix, amount in (("", False), (".shiftamt", True)):
                highest = partial(ref.find_highest, bits=bits, shift_amount=amount)
                yield case(f"bfind{infix}.{t}", named(t, edge(t, 512)), "u32", highest)


def positions(bits: int) -> tuple[int, ...]:
    """The ISA restricts positions and lengths to 0..255; GPUs do so at 32 bits and leave it out at 64."""
    return POSITIONS if bits == 32 else tuple(position for position in POSITIONS if position < 256)


def bit_fields() -> Iterator[Case]:
    for t in ("u32", "s32", "u64", "s64"):
        bits = bits_of(t)

        def extract(a: int, b: int, c: int, t: str = t, bits: int = bits) -> int:
            return ref.extract(raw(a, t), b, c, bits, t[0] == "s")

        inputs = columns(f"{t} u32 u32", edge(t)[:24], positions(bits), positions(bits))
        yield case(f"bfe.{t}", inputs, t, extract)
        fields = [
            each for each in CONSTANT_FIELDS if each[0] < bits
        ]  # ptxas folds constants beyond the width otherwise
        yield constants(f"bfe.{t}", named(t, edge(t, 64)), t, fields, extract)
    for t in ("b32", "b64"):
        rule = partial(ref.insert, bits=bits_of(t))
        numbers, starts, lengths = ref.crossed(edge(t)[:24], positions(bits_of(t)), positions(bits_of(t)))
        a = column(numbers, t)
        inputs = named(t, a, np.roll(a, 5) ^ DTYPES[t].type(0x5A5A5A5A))
        inputs |= {"c": ("u32", column(starts, "u32")), "e": ("u32", column(lengths, "u32"))}
        yield case(f"bfi.{t}", inputs, t, rule)
        yield constants(f"bfi.{t}", named(t, *pairs(t, limit=64)), t, CONSTANT_FIELDS, rule)


def masks() -> Iterator[Case]:
    for mode, clamp in (("clamp", True), ("wrap", False)):
        yield case(f"bmsk.{mode}.b32", columns("u32 u32", AMOUNTS, AMOUNTS), "b32", partial(ref.make_mask, clamp))
        for t in ("u32", "s32"):

            def extend(a: int, b: int, clamp: bool = clamp, t: str = t) -> int:
                return ref.extend(clamp, t == "s32", raw(a, t), b)

            yield case(f"szext.{mode}.{t}", columns(f"{t} u32", edge(t)[:40], AMOUNTS), t, extend)
    offsets = (0, 1, -1, 2, -2, 5, -5, 31, -31, 32, -32, 33)
    inputs = columns("b32 u32 s32", edge("b32")[:40], range(32), offsets, limit=2048)
    yield case("fns.b32", inputs, "b32", ref.find_nth)


def permutations() -> Iterator[Case]:
    a, b = pairs("b32", limit=512)
    c = np.concatenate([column(list(SELECTORS), "b32"), sample("b32", len(a), "selector")])[: len(a)]
    yield case("prmt.b32", named("b32", a, b, c), "b32", ref.permute)
    yield constants("prmt.b32", named("b32", a[:64], b[:64]), "b32", SELECTORS, ref.permute)
    low = np.concatenate([np.arange(8, dtype=np.uint32), c[8:]])
    for mode in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        rule = partial(ref.permute_mode, mode)
        yield case(f"prmt.b32.{mode}", named("b32", a, b, low), "b32", rule)
        yield constants(f"prmt.b32.{mode}", named("b32", a[:64], b[:64]), "b32", range(4), rule)


def absolute_differences() -> Iterator[Case]:
    inputs = named("u32", *triples("u32", limit=640))
    for count in (2, 4):

        def fields(a: int, b: int, bits: int = 32 // count) -> list[int]:
            each = ([value >> start & (1 << bits) - 1 for start in range(0, 32, bits)] for value in (a, b))
            return [abs(x - y) for x, y in zip(*each, strict=True)]

        def joined(a: int, b: int, _: int, bits: int = 32 // count, fields: Any = fields) -> int:
            return sum(each << bits * place for place, each in enumerate(fields(a, b)))

        form = f"vabsdiff{count}.u32.u32.u32"
        yield case(form, inputs, "u32", joined)
        yield case(f"{form}.add", inputs, "u32", lambda a, b, c, fields=fields: c + sum(fields(a, b)))


GROUPS = (logic, shifts, funnels, lop3, counts, bit_fields, masks, permutations)


TYPES = tuple(f"{kind}{bits}" for kind in "bus" for bits in (16, 32, 64))
SMALLEST_NORMAL = {"f16": 2.0**-14, "f32": 2.0**-126}
RELATIONS = ("eq", "ne", "lt", "le", "gt", "ge")
UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
JOIN: dict[str, Callable[..., Array]] = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}


def operators(ptx_type: str) -> list[str]:
    if ptx_type in FLOATS:
        return [*RELATIONS, *(f"{name}u" for name in RELATIONS), "num", "nan"]
    return [*RELATIONS[: 2 if ptx_type[0] == "b" else 6], *(UNSIGNED if ptx_type[0] == "u" else ())]


def numbers(array: Array, ptx_type: str, flush: str) -> list[float]:
    least = SMALLEST_NORMAL[ptx_type] if flush else 0.0
    listed = (array.astype(np.float64) if ptx_type in FLOATS else array).tolist()
    return [0.0 if abs(number) < least else number for number in listed]


def comparisons(t: str, name: str, flush: str, a: Array, b: Array, c: Array) -> Iterator[Case]:
    """`setp` alone and with each Boolean operation, of c and of !c; `set` to each type of result."""
    both = zip(numbers(a, t, flush), numbers(b, t, flush), strict=True)
    truth = np.array([compare(UNSIGNED.get(name, name), x, y) for x, y in both])
    target = "sm_90" if t == "bf16" else "sm_80"
    single = t in {"f16", "bf16"}  # the ISA gives these no second destination
    first, second = ("p", "r") if single else ("p|q", "r|s")
    opcode, inputs = f"setp.{name}{flush}.{t}", named(t, a, b)
    results = {each: ("pred", value) for each, value in (("p", truth), ("q", ~truth)) if each in first}
    yield given(opcode, f"{opcode} {first}, a, b;", inputs, results, target=target)
    for join, rule in JOIN.items():
        opcode = f"setp.{name}.{join}{flush}.{t}"
        text = f"{opcode} {first}, a, b, c;\n{opcode} {second}, a, b, !c;"
        joined = {"p": rule(truth, c), "q": rule(~truth, c), "r": rule(truth, ~c), "s": rule(~truth, ~c)}
        results = {each: ("pred", value) for each, value in joined.items() if each in first + second}
        yield given(opcode, text, inputs | {"c": ("pred", c)}, results, target=target)
    for result, yes in (("u32", -1), ("s32", -1), ("f32", 1.0)) if not single else ():
        wanted = column([yes if each else 0 for each in truth], result)
        yield plain(f"set.{name}{flush}.{result}.{t}", inputs, result, wanted)


def selections(t: str) -> Iterator[Case]:
    a, b = pairs(t, limit=128)
    c = sample("pred", len(a), "selp")
    yield plain(f"selp.{t}", named(t, a, b) | {"c": ("pred", c)}, t, np.where(c, a, b))
    for kind, flush in (("s32", ""), ("f32", ""), ("f32", ".ftz")):
        a, b, sign = triples(t, t, kind, limit=256)
        sign[: len(edge(kind, 0))] = edge(kind, 0)[:256]
        picked = np.array([s >= 0 for s in numbers(sign, kind, flush)])
        yield plain(f"slct{flush}.{t}.{kind}", named(t, a, b) | {"c": (kind, sign)}, t, np.where(picked, a, b))


def relations() -> Iterator[Case]:
    for t in (*TYPES, *FLOATS):
        a, b = pairs(t, limit=256 if t in FLOATS else 128)
        for name in operators(t):
            for flush in ("", ".ftz") if t in SMALLEST_NORMAL else ("",):
                yield from comparisons(t, name, flush, a, b, sample("pred", len(a), "c"))
    for t in (*TYPES, "f32", "f64"):
        yield from selections(t)


CASES = {
    "integer": [*integers()],
    "bits": [each for group in GROUPS for each in group()],
    "simd": [*absolute_differences()],
    "logic": [*relations()],
}
