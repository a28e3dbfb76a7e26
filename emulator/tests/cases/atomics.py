"""Cases of `ptxemu.isa.atomics`: what one thread finds and leaves at an address that nobody else uses.

How threads that meet at one address take turns is left open by PTX, and tested on the emulator alone; sums over a
whole CTA are the same in any order. The harness leaves the global address of the thread's element of the last input in
%at2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from tests.cases.harness import Case, edge, given, named, pairs, triples
from tests.cases.reference_float import flush
from tests.cases.reference_int import column

from ptxemu.values import DTYPES, Array

SHARED = """.shared .align 16 .b8 box[1024]; .reg .b32 mine, turn;
    mov.u32 turn, %tid.x; mov.u32 mine, box; mad.lo.u32 mine, turn, 8, mine;"""
RULES: dict[str, Callable[[int, int], int]] = {
    "add": lambda old, b: old + b,
    "min": min,
    "max": max,
    "and": lambda old, b: old & b,
    "or": lambda old, b: old | b,
    "xor": lambda old, b: old ^ b,
    "exch": lambda _, b: b,
    "inc": lambda old, b: 0 if old >= b else old + 1,
    "dec": lambda old, b: b if old == 0 or old > b else old - 1,
}  # also of reductions by bulk copies and of ``red.async``
KINDS = {"add": "u32 s32 u64", "min": "u32 s32 u64 s64", "max": "u32 s32 u64 s64", "inc": "u32", "dec": "u32",
         "and": "b32 b64", "or": "b32 b64", "xor": "b32 b64", "exch": "b32 b64"}  # fmt: skip


def case(operation: str, kind: str, space: str, left: Array, m: Array, *operands: Array, returns: bool = True) -> Case:
    """`operands` are b (and c), `m` is what memory holds; `left` is what it holds afterwards."""
    inputs = {name: (kind, array) for name, array in zip("bc", operands, strict=False)}
    register = kind.replace("f16x2", "b32").replace("f16", "b16")
    opcode = f"{'atom' if returns else 'red'}.{space}.{operation}.{kind}"
    at = "mine" if space == "shared" else "%at2"
    begin = f"{SHARED}\nst.shared.{register} [mine], m;\n" if space == "shared" else ""
    text = f"{begin}{opcode} {'old, ' * returns}[{at}], {', '.join(inputs)};\nld.{space}.{register} new, [{at}];"
    results = {"old": (kind, m), "new": (kind, left)} if returns else {"new": (kind, left)}
    return given(opcode, text, inputs | {"m": (kind, m)}, results)


def integers() -> Iterator[Case]:
    for name, kinds in KINDS.items():
        for kind in kinds.split():
            m, b = pairs(kind, limit=512)
            left = column([RULES[name](int(x), int(y)) for x, y in zip(m, b, strict=True)], kind)
            yield case(name, kind, "shared", left, m, b)
            yield case(name, kind, "global", left, m, b)
            if name != "exch":
                yield case(name, kind, "global", left, m, b, returns=False)
    for kind in ("b16", "b32", "b64"):
        m, b, c = triples(kind, limit=512)
        b = np.where(np.arange(len(b)) % 3 == 0, m, b)
        for space in ("shared", "global"):
            yield case("cas", kind, space, np.where(m == b, c, m), m, b, c)


def added(kind: str, m: Any, b: Any) -> Array:
    with np.errstate(all="ignore"):
        return np.array([x + y for x, y in zip(m, b, strict=True)], DTYPES[kind])


def floats() -> Iterator[Case]:
    for kind in ("f32", "f64", "f16"):
        m, b = pairs(kind, limit=512)
        operation = "add.noftz" if kind == "f16" else "add"
        sums = added(kind, m, b)
        yield case(operation, kind, "shared", sums, m, b)
        if kind == "f32":  # in global memory subnormal numbers are flushed
            flat = [np.array([flush(x) for x in each.tolist()], np.float32) for each in (m, b)]
            sums = np.array([flush(x) for x in added(kind, *flat).tolist()], np.float32)
        yield case(operation, kind, "global", sums, m, b)
    m, b = pairs("f16x2", limit=512)
    sums = added("f16", m.view(np.float16), b.view(np.float16)).view(np.uint32)
    for space in ("shared", "global"):
        yield case("add.noftz", "f16x2", space, sums, m, b)


def whole_cta() -> Case:
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
    results = {"total": ("u32", np.repeat(np.array(totals, np.uint32), 128))}
    return given("red.shared.add.u32", text, named("u32", a), results)


CASES = [*integers(), *floats(), whole_cta()]
