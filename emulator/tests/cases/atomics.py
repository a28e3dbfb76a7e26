"""Cases of `ptxemu.isa.atomics`: what one thread finds and leaves at an address that nobody else uses.

How threads that meet at one address take turns is left open by PTX, and tested on the emulator alone; sums over a
whole CTA are the same in any order. The harness leaves the global address of the thread's element of the last input in
%at2.
"""

from __future__ import annotations

from collections.abc import Callable
import math
from typing import Any

import numpy as np
from tests.cases.harness import Case, edge, pairs, triples

from ptxemu.values import DTYPES, Array, halves, pack_halves

CASES: list[Case] = []
SHARED = """.shared .align 16 .b8 box[1024]; .reg .b32 mine, turn;
    mov.u32 turn, %tid.x; mov.u32 mine, box; mad.lo.u32 mine, turn, 8, mine;"""
INTEGER_RULES: dict[str, Callable[[int, int], int]] = {
    "add": lambda old, b: old + b,
    "min": min,
    "max": max,
    "and": lambda old, b: old & b,
    "or": lambda old, b: old | b,
    "xor": lambda old, b: old ^ b,
    "exch": lambda _, b: b,
    "inc": lambda old, b: 0 if old >= b else old + 1,
    "dec": lambda old, b: b if old == 0 or old > b else old - 1,
}
INTEGERS = {"add": "u32 s32 u64", "min": "u32 s32 u64 s64", "max": "u32 s32 u64 s64", "inc": "u32", "dec": "u32"}
BITS = {"and": "b32 b64", "or": "b32 b64", "xor": "b32 b64", "exch": "b32 b64"}


def _wrapped(numbers: list[int], kind: str) -> Array:
    dtype = DTYPES[kind]
    return np.array([n % 2 ** (8 * dtype.itemsize) for n in numbers], f"u{dtype.itemsize}").view(dtype)


def _case(operation: str, kind: str, space: str, operands: dict[str, Array], left: Array, returns: bool = True) -> None:
    """`operands` are b (and c), then m, what memory holds; `left` is what it holds afterwards."""
    names = ", ".join(name for name in operands if name != "m")
    plain = kind.replace("f16x2", "b32").replace("f16", "b16")
    opcode = f"{'atom' if returns else 'red'}.{space}.{operation}.{kind}"
    at = "mine" if space == "shared" else "%at2"
    begin = f"{SHARED}\nst.shared.{plain} [mine], m;\n" if space == "shared" else ""
    text = f"{begin}{opcode} {'old, ' if returns else ''}[{at}], {names};\nld.{space}.{plain} new, [{at}];"
    inputs = {name: (kind, value) for name, value in operands.items()}
    expected = {"old": operands["m"], "new": left} if returns else {"new": left}
    CASES.append(Case(opcode, text, inputs, dict.fromkeys(expected, kind), expected))


def _integers() -> None:
    for name, kinds in (INTEGERS | BITS).items():
        for kind in kinds.split():
            m, b = pairs(kind, limit=512)
            left = _wrapped([INTEGER_RULES[name](int(x), int(y)) for x, y in zip(m, b, strict=True)], kind)
            for space in ("shared", "global"):
                _case(name, kind, space, {"b": b, "m": m}, left)
            if name != "exch":
                _case(name, kind, "global", {"b": b, "m": m}, left, returns=False)
    for kind in ("b16", "b32", "b64"):
        m, b, c = triples(kind, limit=512)
        b = np.where(np.arange(len(b)) % 3 == 0, m, b)
        left = np.array([z if x == y else x for x, y, z in zip(m, b, c, strict=True)], DTYPES[kind])
        for space in ("shared", "global"):
            _case("cas", kind, space, {"b": b, "c": c, "m": m}, left)


def _flushed(value: Any) -> Any:
    number = float(value)
    return np.float32(math.copysign(0.0, number)) if 0.0 < abs(number) < 2.0**-126 else value


def _floats() -> None:
    for kind in ("f32", "f64", "f16"):
        m, b = pairs(kind, limit=512)
        operation = "add.noftz" if kind == "f16" else "add"
        with np.errstate(all="ignore"):
            plain = np.array([x + y for x, y in zip(m, b, strict=True)], DTYPES[kind])
            flushed = [_flushed(_flushed(x) + _flushed(y)) for x, y in zip(m, b, strict=True)]
        _case(operation, kind, "shared", {"b": b, "m": m}, plain)
        _case(operation, kind, "global", {"b": b, "m": m}, np.array(flushed, np.float32) if kind == "f32" else plain)
    m, b = pairs("f16x2", limit=512)
    with np.errstate(all="ignore"):
        left = pack_halves(halves(m, "f16x2") + halves(b, "f16x2"))
    for space in ("shared", "global"):
        _case("add.noftz", "f16x2", space, {"b": b, "m": m}, left)


def _whole_cta() -> None:
    """Every thread of a CTA of 128 adds to one word, which all read after a barrier."""
    a = edge("u32", 256)
    totals = [sum(int(x) for x in a[first : first + 128]) % 2**32 for first in (0, 128)]
    text = """.shared .align 4 .b32 sum; .reg .b32 turn; .reg .pred first;
        mov.u32 turn, %tid.x; setp.eq.u32 first, turn, 0;
        @first st.shared.u32 [sum], 0;
        bar.sync 0;
        red.shared.add.u32 [sum], a;
        bar.sync 0;
        ld.shared.u32 total, [sum];"""
    expected = np.repeat(np.array(totals, np.uint32), 128)
    CASES.append(Case("red.shared.add.u32", text, {"a": ("u32", a)}, {"total": "u32"}, {"total": expected}))


_integers()
_floats()
_whole_cta()
