"""Cases of `ptxemu.isa.loads`: what a thread stores it loads, at every width, in every space.

Each thread has 16 bytes of its own; loads begin inside them, so that the order of bytes shows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from tests.cases.harness import Case, edge, given, named

from ptxemu.values import DTYPES, Array

N = 256  # two CTAs of 128 threads
# Leaves the address of the thread's 16 bytes in mine: in its own space, or generic.
PLACES = {
    "shared": """.shared .align 16 .b8 box[2048]; .reg .b32 mine, turn;
        mov.u32 turn, %tid.x; mov.u32 mine, box; mad.lo.u32 mine, turn, 16, mine;""",
    "local": ".local .align 16 .b8 box[32]; .reg .b64 mine; mov.u64 mine, box; add.u64 mine, mine, 16;",
    "": """.shared .align 16 .b8 box[2048]; .reg .b64 mine; .reg .b32 turn, low;
        mov.u32 turn, %tid.x; mov.u32 low, box; mad.lo.u32 low, turn, 16, low;
        cvt.u64.u32 mine, low; cvta.shared.u64 mine, mine;""",
    "generic local": ".local .align 16 .b8 box[16]; .reg .b64 mine; mov.u64 mine, box; cvta.local.u64 mine, mine;",
}
WORDS = [np.roll(edge("u32", N), 37 * place) for place in range(4)]  # four 32-bit words per thread
SCALARS = {("u8", 5): "s32", ("s8", 7): "s32", ("s8", 0): "s32", ("u16", 6): "u16", ("s16", 10): "s32",
           ("u32", 12): "u32", ("s64", 8): "s64", ("f32", 4): "f32", ("f64", 0): "f64"}  # fmt: skip
VECTORS = (("u16", 4, 8), ("s16", 2, 4), ("u32", 2, 8), ("b32", 4, 0), ("b64", 2, 0), ("f32", 2, 0), ("f64", 2, 0))


def number(start: int, kind: str) -> Array:
    """The number of a type at byte `start` of each thread's words, by Python's own reading of bytes."""
    size = DTYPES[kind].itemsize
    whole = (b"".join(int(word).to_bytes(4, "little") for word in row) for row in zip(*WORDS, strict=True))
    raw = [each[start : start + size] for each in whole]
    if kind[0] == "f":
        return np.frombuffer(b"".join(raw), DTYPES[kind])
    return np.array([int.from_bytes(piece, "little", signed=kind[0] == "s") for piece in raw], DTYPES[kind])


def cases() -> Iterator[Case]:
    for place, prologue in PLACES.items():
        space = f".{place}" if place in {"shared", "local"} else ""
        for (kind, start), register in SCALARS.items():
            text = f"{prologue}\nst{space}.v4.u32 [mine], {{a, b, c, d}};\nld{space}.{kind} x, [mine+{start}];"
            wanted = number(start, kind).astype(DTYPES[register])
            results = {"x": (register, wanted)}
            yield given(f"ld{space}.{kind}", text, named("u32", *WORDS), results, note=place or "generic")
    store = "st.shared.v2.u32 [mine+8], {c, d};\nst.shared.v2.u32 [mine], {a, b};"
    for kind, count, start in VECTORS:
        results = {f"x{i}": (kind, number(start + i * DTYPES[kind].itemsize, kind)) for i in range(count)}
        opcode = f"ld.shared.v{count}.{kind}"
        text = f"{PLACES['shared']}\n{store}\n{opcode} {{{', '.join(results)}}}, [mine+{start}];"
        yield given(opcode, text, named("u32", *WORDS), results)
    first, value = edge("u32", N), np.roll(edge("u32", N), 91)
    for kind, start in (
        ("u8", 1),
        ("s8", 3),
        ("b16", 2),
        ("u16", 0),
    ):  # takes the low bits, leaves its neighbours alone
        left = first.copy()
        size = DTYPES[kind].itemsize
        left.view(np.uint8).reshape(N, 4)[:, start : start + size] = value.view(np.uint8).reshape(N, 4)[:, :size]
        text = f"\nst.shared.u32 [mine], a;\nst.shared.{kind} [mine+{start}], b;\nld.shared.u32 x, [mine];"
        inputs, results = named("u32", first, value), {"x": ("u32", left)}
        yield given(f"st.shared.{kind}", PLACES["shared"] + text, inputs, results)


CASES = list(cases())
