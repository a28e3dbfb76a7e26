"""Cases of `isa.bits`: amounts and positions beyond the width, all 256 tables of lop3, signs of prmt.

Amounts, selectors and fields appear twice: from registers that differ by lane, and as constants in the text, because
the emulator treats constants apart.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tests.cases import reference_int as ref
from tests.cases.harness import Case, edge, pairs, sample, triples
from tests.cases.reference_int import AMOUNTS, bits_of, case, column, crossed, lanes, raw

from ptxemu.values import DTYPES, Array

CASES: list[Case] = []
POSITIONS = (0, 1, 5, 15, 16, 30, 31, 32, 33, 48, 62, 63, 64, 65, 128, 255, 256, 259, (1 << 32) - 1)
CONSTANT_FIELDS = ((0, 0), (0, 8), (16, 16), (8, 0), (31, 1), (28, 9), (0, 32), (32, 4), (40, 64), (5, 255))
SELECTORS = (0x3210, 0x5410, 0x7632, 0x0123, 0x7654, 0x1054, 0x7777, 0x3333, 0xBA98, 0xFEDC, 0x8888, 0xB210, 0xDEAD5410)


def _constants(
    opcode: str, text: str, inputs: dict[str, tuple[str, Array]], result: str, functions: list[Callable[..., int]]
) -> None:
    """One statement per function; `text` holds ``{d}`` and the constants that the caller formats into its lines."""
    expected = {
        f"d{place}": lanes(function, result, *(array for _, array in inputs.values()))
        for place, function in enumerate(functions)
    }
    CASES.append(Case(opcode, text, inputs, dict.fromkeys(expected, result), expected))


# --- logic and shifts -------------------------------------------------------------------------------------------------


def _logic() -> None:
    operations: dict[str, Callable[..., int]] = {
        "and": lambda a, b: a & b,
        "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b,
    }
    for name, function in operations.items():
        for t in ("b16", "b32", "b64"):
            a, b = pairs(t, limit=640)
            CASES.append(case(f"{name}.{t}", {"a": (t, a), "b": (t, b)}, t, function))
        a, b = np.array([False, False, True, True]), np.array([False, True, False, True])
        CASES.append(case(f"{name}.pred", {"a": ("pred", a), "b": ("pred", b)}, "pred", function))
    for t in ("b16", "b32", "b64"):
        CASES.append(case(f"not.{t}", {"a": (t, edge(t))}, t, lambda a: ~a))
        CASES.append(case(f"cnot.{t}", {"a": (t, edge(t))}, t, lambda a: int(a == 0)))
    CASES.append(case("not.pred", {"a": ("pred", np.array([False, True]))}, "pred", lambda a: not a))


def _shifts() -> None:
    for t in (f"{kind}{bits}" for kind in "bus" for bits in (16, 32, 64)):
        a, b = crossed(edge(t)[:40], AMOUNTS)
        inputs = {"a": (t, column(a, t)), "b": ("u32", column(b, "u32"))}
        _shift(f"shr.{t}", t, inputs, ref.shift_right)
        if t[0] == "b":
            _shift(f"shl.{t}", t, inputs, lambda a, b, t=t: ref.shift_left(a, b, t))


def _shift(opcode: str, t: str, inputs: dict[str, tuple[str, Array]], function: Callable[..., int]) -> None:
    CASES.append(case(opcode, inputs, t, function))
    amounts = [amount for amount in AMOUNTS if bits_of(t) > 16 or amount < 1 << 16]  # ptxas cuts constants to 16 bits
    text = "\n".join(f"{opcode} d{place}, a, {amount};" for place, amount in enumerate(amounts))
    functions: list[Callable[..., int]] = [lambda a, amount=amount: function(a, amount) for amount in amounts]
    _constants(opcode, text, {"a": (t, edge(t, 64))}, t, functions)


def _funnels() -> None:
    numbers = edge("b32")[:12]
    columns = crossed(numbers, numbers[::-1], AMOUNTS)
    inputs = {name: (t, column(each, t)) for name, t, each in zip("abc", ("b32", "b32", "u32"), columns, strict=True)}
    for left, clamp in ((True, True), (True, False), (False, True), (False, False)):
        opcode = f"shf.{'l' if left else 'r'}.{'clamp' if clamp else 'wrap'}.b32"
        CASES.append(case(opcode, inputs, "b32", lambda *each, left=left, clamp=clamp: ref.funnel(left, clamp, *each)))


def _lop3() -> None:
    """Every table, 32 of them in a case; all eight combinations of three bits are in every lane of the first three."""
    a, b, c = triples("b32", limit=64)
    a[:3], b[:3], c[:3] = 0xF0F0F0F0, 0xCCCCCCCC, 0xAAAAAAAA
    inputs = {"a": ("b32", a), "b": ("b32", b), "c": ("b32", c)}
    for start in range(0, 256, 32):
        tables = range(start, start + 32)
        text = "\n".join(f"lop3.b32 d{place}, a, b, c, {table};" for place, table in enumerate(tables))
        functions: list[Callable[..., int]] = [
            lambda a, b, c, table=table: ref.ternary(a, b, c, table) for table in tables
        ]
        _constants("lop3.b32", text, inputs, "b32", functions)


def _lop3_predicate() -> None:
    a, b, c = triples("b32", limit=128)
    q = sample("pred", len(a), "q")
    inputs = {"a": ("b32", a), "b": ("b32", b), "c": ("b32", c), "q": ("pred", q)}
    for name in ("and", "or"):
        value = lanes(lambda a, b, c, _: ref.ternary(a, b, c, 0x80), "b32", a, b, c, q)
        flag = (value != 0) & q if name == "and" else (value != 0) | q
        text = f"lop3.{name}.b32 d|p, a, b, c, 0x80, q;"
        expected = {"d": value, "p": flag}
        CASES.append(Case(f"lop3.{name}.b32", text, inputs, {"d": "b32", "p": "pred"}, expected))


# --- counts and fields ------------------------------------------------------------------------------------------------


def _counts() -> None:
    for bits in (32, 64):
        t = f"b{bits}"
        inputs = {"a": (t, edge(t, 512))}
        CASES.append(case(f"popc.{t}", inputs, "u32", lambda a: f"{a:b}".count("1")))
        CASES.append(case(f"clz.{t}", inputs, "u32", lambda a, bits=bits: bits - a.bit_length()))
        CASES.append(case(f"brev.{t}", inputs, t, lambda a, bits=bits: int(f"{a:0{bits}b}"[::-1], 2)))
        for kind in "us":
            typed = {"a": (f"{kind}{bits}", edge(f"{kind}{bits}", 512))}
            for infix, amount in (("", False), (".shiftamt", True)):
                function: Callable[..., int] = lambda a, bits=bits, amount=amount: ref.find_highest(a, bits, amount)  # noqa: E731 - bound here
                CASES.append(case(f"bfind{infix}.{kind}{bits}", typed, "u32", function))


def _positions(bits: int) -> tuple[int, ...]:
    """The ISA restricts positions and lengths to 0..255; GPUs do so at 32 bits and leave it out at 64."""
    return POSITIONS if bits == 32 else tuple(position for position in POSITIONS if position < 256)


def _bit_fields() -> None:
    for t in ("u32", "s32", "u64", "s64"):
        bits, signed = bits_of(t), t[0] == "s"
        columns = crossed(edge(t)[:24], _positions(bits), _positions(bits))

        def extract(a: int, b: int, c: int, t: str = t, bits: int = bits, signed: bool = signed) -> int:
            return ref.extract(raw(a, t), b, c, bits, signed)

        inputs = {name: (u, column(each, u)) for name, u, each in zip("abc", (t, "u32", "u32"), columns, strict=True)}
        CASES.append(case(f"bfe.{t}", inputs, t, extract))
        fields = [(b, c) for b, c in CONSTANT_FIELDS if b < bits]  # ptxas folds constants beyond the width otherwise
        text = "\n".join(f"bfe.{t} d{n}, a, {b}, {c};" for n, (b, c) in enumerate(fields))
        functions: list[Callable[..., int]] = [lambda a, b=b, c=c: extract(a, b, c) for b, c in fields]
        _constants(f"bfe.{t}", text, {"a": (t, edge(t, 64))}, t, functions)


def _insertions() -> None:
    for t in ("b32", "b64"):
        bits = bits_of(t)
        numbers, starts, lengths = crossed(edge(t)[:24], _positions(bits), _positions(bits))
        a = column(numbers, t)
        b = np.roll(a, 5) ^ DTYPES[t].type(0x5A5A5A5A)
        inputs = {"a": (t, a), "b": (t, b), "c": ("u32", column(starts, "u32")), "e": ("u32", column(lengths, "u32"))}
        CASES.append(case(f"bfi.{t}", inputs, t, lambda a, b, c, d, bits=bits: ref.insert(a, b, c, d, bits)))
        text = "\n".join(f"bfi.{t} d{n}, a, b, {c}, {d};" for n, (c, d) in enumerate(CONSTANT_FIELDS))
        functions: list[Callable[..., int]] = [
            lambda a, b, c=c, d=d, n=bits: ref.insert(a, b, c, d, n) for c, d in CONSTANT_FIELDS
        ]
        a, b = pairs(t, limit=64)
        _constants(f"bfi.{t}", text, {"a": (t, a), "b": (t, b)}, t, functions)


def _masks() -> None:
    a, b = (column(each, "u32") for each in crossed(AMOUNTS, AMOUNTS))
    for clamp in (True, False):
        mode = "clamp" if clamp else "wrap"
        inputs = {"a": ("u32", a), "b": ("u32", b)}
        CASES.append(case(f"bmsk.{mode}.b32", inputs, "b32", lambda a, b, clamp=clamp: ref.make_mask(clamp, a, b)))
        for t in ("u32", "s32"):
            numbers, lengths = crossed(edge(t)[:40], AMOUNTS)

            inputs = {"a": (t, column(numbers, t)), "b": ("u32", column(lengths, "u32"))}

            def extend(a: int, b: int, clamp: bool = clamp, t: str = t) -> int:
                return ref.extend(clamp, t == "s32", raw(a, t), b)

            CASES.append(case(f"szext.{mode}.{t}", inputs, t, extend))


def _find_nth() -> None:
    offsets = (0, 1, -1, 2, -2, 5, -5, 31, -31, 32, -32, 33)
    columns = crossed(edge("b32")[:40], range(32), offsets, limit=2048)
    types = ("b32", "u32", "s32")
    inputs = {name: (t, column(each, t)) for name, t, each in zip("abc", types, columns, strict=True)}
    CASES.append(case("fns.b32", inputs, "b32", ref.find_nth))


def _permutations() -> None:
    a, b = pairs("b32", limit=512)
    c = np.concatenate([column(list(SELECTORS), "b32"), sample("b32", len(a), "selector")])[: len(a)]
    CASES.append(case("prmt.b32", {"a": ("b32", a), "b": ("b32", b), "c": ("b32", c)}, "b32", ref.permute))
    text = "\n".join(f"prmt.b32 d{place}, a, b, {selector};" for place, selector in enumerate(SELECTORS))
    functions: list[Callable[..., int]] = [lambda a, b, c=c: ref.permute(a, b, c) for c in SELECTORS]
    _constants("prmt.b32", text, {"a": ("b32", a[:64]), "b": ("b32", b[:64])}, "b32", functions)
    low = np.concatenate([np.arange(8, dtype=np.uint32), c[8:]])
    for mode in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        inputs = {"a": ("b32", a), "b": ("b32", b), "c": ("b32", low)}
        opcode = f"prmt.b32.{mode}"
        CASES.append(case(opcode, inputs, "b32", lambda *each, mode=mode: ref.permute_mode(mode, *each)))
        text = "\n".join(f"{opcode} d{place}, a, b, {place};" for place in range(4))
        functions = [lambda a, b, c=c, mode=mode: ref.permute_mode(mode, a, b, c) for c in range(4)]
        _constants(opcode, text, {"a": ("b32", a[:64]), "b": ("b32", b[:64])}, "b32", functions)


_logic()
_shifts()
_funnels()
_lop3()
_lop3_predicate()
_counts()
_bit_fields()
_insertions()
_masks()
_find_nth()
_permutations()
