"""Straight-line statements of random programs: PTX text and what it does in plain Python, for `fuzz_programs`.

Why a table of its own: the expected results must not come from the emulator's rows. Registers by kind: ``r`` (32 bits),
``d`` (64), ``h`` (16), ``f`` (f32, never NaN: its bits are open), ``p`` (predicate). In the text ``{0}`` and up are the
operands, destinations first; ``@`` stands where the guard goes, on every instruction with a lasting effect.
"""

from __future__ import annotations

from collections.abc import Callable
import ctypes
from dataclasses import dataclass
import math
import struct
from typing import Any

M16, M32, M64 = (1 << 16) - 1, (1 << 32) - 1, (1 << 64) - 1
TABLE_BYTES = 64
LOCAL_BYTES = 32
N_COUNTERS = 8
TABLE = bytes((37 * i * i + 11 * i + 200) % 256 for i in range(TABLE_BYTES))


class Thread:
    """One thread's state: register values (integers without sign, floats, bools), local memory, the global one."""

    def __init__(self, counters: list[int], stores: dict[int, int]) -> None:
        self.registers: dict[str, Any] = {}
        self.local = bytearray(LOCAL_BYTES)
        self.counters = counters  # shared by all threads
        self.stores = stores  # slot -> word, of this thread


Rule = Callable[..., Any]


@dataclass(frozen=True)
class Operation:
    """A statement's form: `kinds` of destinations and sources; `rule` takes the thread and the sources' values.

    It returns the results, one for each destination (a single one bare).
    """

    text: str
    to: str
    sources: str
    rule: Rule


def signed(value: int, bits: int) -> int:
    """The two's complement number in the low bits."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def f32(value: float) -> float:
    """The nearest f32; NaN becomes 0.5, as the emitted text makes it."""
    rounded = ctypes.c_float(value).value
    return 0.5 if math.isnan(rounded) else rounded


def float_bits(value: float) -> int:
    """The bits of an f32."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def bits_float(bits: int) -> float:
    """An f32 by its bits; NaN becomes 0.5."""
    return f32(struct.unpack("<f", struct.pack("<I", bits))[0])


def to_s32(value: float) -> int:
    """``cvt.rzi.s32.f32``."""
    return (
        max(-(1 << 31), min((1 << 31) - 1, int(value) if math.isfinite(value) else int(math.copysign(1 << 40, value))))
        & M32
    )


NO_NAN = " @setp.num.f32 %num, {0}, {0}; @selp.f32 {0}, {0}, 0f3F000000, %num;"


def _arithmetic() -> list[Operation]:
    def op(name: str, to: str, sources: str, rule: Rule, mask: int | None = None) -> Operation:
        places = ", ".join(f"{{{i}}}" for i in range(1 + len(sources)))
        fit = rule if mask is None else lambda _, *v: rule(*v) & mask
        return Operation(f"@{name} {places};", to, sources, fit)

    return [
        op("add.u32", "r", "rr", lambda a, b: a + b, M32),
        op("sub.s32", "r", "rr", lambda a, b: a - b, M32),
        op("mul.lo.u32", "r", "rr", lambda a, b: a * b, M32),
        op("mad.lo.s32", "r", "rrr", lambda a, b, c: a * b + c, M32),
        op("and.b32", "r", "rr", lambda a, b: a & b, M32),
        op("xor.b32", "r", "rr", lambda a, b: a ^ b, M32),
        op("not.b32", "r", "r", lambda a: ~a, M32),
        op("shl.b32", "r", "rr", lambda a, b: a << b if b < 32 else 0, M32),
        op("shr.u32", "r", "rr", lambda a, b: a >> min(b, 32), M32),
        op("shr.s32", "r", "rr", lambda a, b: signed(a, 32) >> min(b, 31), M32),
        op("min.s32", "r", "rr", lambda a, b: min(signed(a, 32), signed(b, 32)), M32),
        op("max.u32", "r", "rr", max, M32),
        op("mul.wide.u32", "d", "rr", lambda a, b: a * b, M64),
        op("mul.wide.s32", "d", "rr", lambda a, b: signed(a, 32) * signed(b, 32), M64),
        op("add.u64", "d", "dd", lambda a, b: a + b, M64),
        op("sub.s64", "d", "dd", lambda a, b: a - b, M64),
        op("xor.b64", "d", "dd", lambda a, b: a ^ b, M64),
        op("shl.b64", "d", "dr", lambda a, b: a << b if b < 64 else 0, M64),
        op("shr.s64", "d", "dr", lambda a, b: signed(a, 64) >> min(b, 63), M64),
        op("cvt.u32.u64", "r", "d", lambda a: a, M32),
        op("cvt.u64.u32", "d", "r", lambda a: a, M64),
        op("cvt.s64.s32", "d", "r", lambda a: signed(a, 32), M64),
        op("cvt.u16.u32", "h", "r", lambda a: a, M16),
        op("cvt.s32.s16", "r", "h", lambda a: signed(a, 16), M32),
        op("cvt.s32.s8", "r", "r", lambda a: signed(a, 8), M32),
        op("cvt.s8.s32", "r", "r", lambda a: signed(a, 8), M32),
        op("add.u16", "h", "hh", lambda a, b: a + b, M16),
        op("mov.u32", "r", "r", lambda a: a, M32),
        op("mov.b32", "r", "r", lambda a: a, M32),
        op("mov.u64", "d", "d", lambda a: a, M64),
        op("mov.b32", "r", "f", lambda _, a: float_bits(a)),
        op("selp.b32", "r", "rrp", lambda _, a, b, p: a if p else b),
        op("selp.u64", "d", "ddp", lambda _, a, b, p: a if p else b),
        op("selp.f32", "f", "ffp", lambda _, a, b, p: a if p else b),
        op("and.pred", "p", "pp", lambda _, p, q: p and q),
        op("xor.pred", "p", "pp", lambda _, p, q: p != q),
        op("not.pred", "p", "p", lambda _, p: not p),
        op("neg.f32", "f", "f", lambda _, a: -a),
        op("min.f32", "f", "ff", lambda _, a, b: min(a, b, key=lambda x: (x, math.copysign(1, x)))),
        op("cvt.rn.f32.s32", "f", "r", lambda _, a: f32(signed(a, 32))),
        op("cvt.rzi.s32.f32", "r", "f", lambda _, a: to_s32(a)),
        *(
            Operation(f"@{name} {{0}}, {{1}}, {{2}};{NO_NAN}", "f", "ff", rule)
            for name, rule in (
                ("add.f32", lambda _, a, b: f32(a + b)),
                ("sub.f32", lambda _, a, b: f32(a - b)),
                ("mul.f32", lambda _, a, b: f32(a * b)),
            )
        ),
        Operation(f"@mov.b32 {{0}}, {{1}};{NO_NAN}", "f", "r", lambda _, a: bits_float(a)),
    ]


def _several() -> list[Operation]:
    """Vectors, pairs, sinks and the carry."""
    return [
        Operation("@mov.b64 {0}, {{{1}, {2}}};", "d", "rr", lambda _, a, b: a | b << 32),
        Operation("@mov.b64 {{{0}, {1}}}, {2};", "rr", "d", lambda _, a: (a & M32, a >> 32)),
        Operation("@mov.b64 {{_, {0}}}, {1};", "r", "d", lambda _, a: a >> 32),
        Operation("@mov.b32 {{{0}, {1}}}, {2};", "hh", "r", lambda _, a: (a & M16, a >> 16)),
        Operation(
            "@add.cc.u32 %t1, {2}, {3}; @addc.u32 {0}, {4}, {5}; @mov.u32 {1}, %t1;",
            "rr",
            "rrrr",
            lambda _, a, b, c, d: ((c + d + (a + b > M32)) & M32, (a + b) & M32),
        ),
        Operation(
            "@sub.cc.u32 %t1, {2}, {3}; @subc.u32 {0}, {4}, {5}; @mov.u32 {1}, %t1;",
            "rr",
            "rrrr",
            lambda _, a, b, c, d: ((c - d - (a < b)) & M32, (a - b) & M32),
        ),
        Operation("@setp.lt.s32 {0}, {1}, {2};", "p", "rr", lambda _, a, b: signed(a, 32) < signed(b, 32)),
        Operation("@setp.eq.u32 {0}|{1}, {2}, {3};", "pp", "rr", lambda _, a, b: (a == b, a != b)),
        Operation("@setp.ge.u64 _|{0}, {1}, {2};", "p", "dd", lambda _, a, b: a < b),
        Operation("@setp.gt.f32 {0}, {1}, {2};", "p", "ff", lambda _, a, b: a > b),
        Operation(
            "@setp.hi.and.u32 {0}|{1}, {2}, {3}, {4};", "pp", "rrp", lambda _, a, b, p: (a > b and p, a <= b and p)
        ),
        Operation("@setp.ne.or.s32 {0}, {1}, {2}, !{3};", "p", "rrp", lambda _, a, b, p: a != b or not p),
    ]


def _at(mask: int, base: str) -> str:
    """Text that puts base + (the last source & mask) into %u0; where the guard does not hold the address is garbage."""
    address = f"and.b32 %t0, {{LAST}}, {mask}; cvt.u64.u32 %u0, %t0; add.u64 %u0, %u0, {base}; "
    return address + "^mov.u64 %u0, 0x7777777777777777; "


def _memory() -> list[Operation]:
    def load(kind: str, to: str, mask: int) -> Operation:
        nbytes, bits = int(kind[1:]) // 8, {"r": 32, "d": 64, "h": 16}[to]

        def rule(_: Thread, index: int) -> int:
            at = index & mask
            raw = int.from_bytes(TABLE[at : at + nbytes], "little", signed=kind[0] == "s")
            return raw & ((1 << bits) - 1)

        return Operation(_at(mask, "%table") + f"@ld.global.{kind} {{0}}, [%u0];", to, "r", rule)

    def pair(_: Thread, index: int) -> tuple[int, int]:
        at = index & 56
        return int.from_bytes(TABLE[at : at + 4], "little"), int.from_bytes(TABLE[at + 4 : at + 8], "little")

    def bytes_of(_: Thread, index: int) -> tuple[int, int, int]:
        at = index & 60
        return TABLE[at], TABLE[at + 1], TABLE[at + 3]

    def put(nbytes: int) -> Rule:
        def rule(thread: Thread, value: int, index: int) -> tuple[()]:
            at = index & (LOCAL_BYTES - nbytes)
            thread.local[at : at + nbytes] = (value & ((1 << (8 * nbytes)) - 1)).to_bytes(nbytes, "little")
            return ()

        return rule

    def count(thread: Thread, value: int, index: int) -> tuple[()]:
        thread.counters[index & 7] = (thread.counters[index & 7] + value) & M32
        return ()

    def get(thread: Thread, index: int) -> int:
        at = index & 30
        return int.from_bytes(thread.local[at : at + 2], "little", signed=True) & M32

    def get_word(thread: Thread, index: int) -> int:
        at = index & 28
        return int.from_bytes(thread.local[at : at + 4], "little")

    return [
        load("u8", "r", 63),
        load("s8", "d", 63),
        load("s8", "h", 63),
        load("s16", "r", 62),
        load("u32", "d", 60),
        load("u32", "r", 60),
        load("u64", "d", 56),
        Operation(_at(56, "%table") + "@ld.global.v2.u32 {{{0}, {1}}}, [%u0];", "rr", "r", pair),
        Operation(_at(60, "%table") + "@ld.global.v4.u8 {{{0}, {1}, _, {2}}}, [%u0];", "rrr", "r", bytes_of),
        Operation(_at(28, "%depot") + "@st.local.u32 [%u0], {0};", "", "rr", put(4)),
        Operation(_at(31, "%stack") + "@st.u8 [%u0], {0};", "", "rr", put(1)),
        Operation(_at(24, "%stack") + "@st.u64 [%u0], {0};", "", "dr", put(8)),
        Operation(_at(30, "%depot") + "@ld.local.s16 {0}, [%u0];", "r", "r", get),
        Operation(_at(28, "%stack") + "@ld.u32 {0}, [%u0];", "r", "r", get_word),
        Operation(
            "and.b32 %t0, {1}, 7; mul.wide.u32 %u0, %t0, 4; add.u64 %u0, %u0, %counters; "
            "@red.global.add.u32 [%u0], {0};",
            "",
            "rr",
            count,
        ),
    ]


OPERATIONS = (*_arithmetic(), *_several(), *_memory())
