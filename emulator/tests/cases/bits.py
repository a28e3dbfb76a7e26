"""Cases of `isa.bits`: amounts and positions beyond the width, all 256 tables of lop3, signs of prmt, fields of words.

Amounts, selectors and fields appear twice: from registers that differ by lane, and as constants in the text, because
the emulator treats constants apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from tests.cases import reference_int as ref
from tests.cases.harness import Case, Typed, edge, given, named, pairs, sample, triples
from tests.cases.reference_int import AMOUNTS, bits_of, case, column, crossed, lanes, raw

from ptxemu.values import DTYPES

Rule = Callable[..., int]
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
    listed = zip("abc", types.split(), crossed(*axes, limit=limit), strict=False)
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
        numbers, starts, lengths = crossed(edge(t)[:24], positions(bits_of(t)), positions(bits_of(t)))
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
CASES = {"bits": [each for group in GROUPS for each in group()], "simd": [*absolute_differences()]}
