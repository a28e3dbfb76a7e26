"""Cases of `ptxemu.isa.loads`: what a thread stores it loads, at every width, in every space.

Each thread has 16 bytes of its own; loads begin inside them, so that the order of bytes shows.
"""

from __future__ import annotations

import numpy as np
from tests.cases.harness import Case, edge

from ptxemu.values import DTYPES, Array

CASES: list[Case] = []
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


def _words() -> list[Array]:
    """Four 32-bit words per thread."""
    return [np.roll(edge("u32", N), 37 * place) for place in range(4)]


def _numbers(words: list[Array], start: int, kind: str) -> Array:
    """The number of a type at byte `start` of each thread's words, by Python's own reading of bytes."""
    size = DTYPES[kind].itemsize
    raw = [
        b"".join(int(word).to_bytes(4, "little") for word in row)[start : start + size]
        for row in zip(*words, strict=True)
    ]
    if kind[0] == "f":
        return np.frombuffer(b"".join(raw), DTYPES[kind])
    return np.array([int.from_bytes(piece, "little", signed=kind[0] == "s") for piece in raw], DTYPES[kind])


def _loads() -> None:
    words = _words()
    inputs = {name: ("u32", word) for name, word in zip("abcd", words, strict=True)}
    for place, prologue in PLACES.items():
        space = f".{place}" if place in {"shared", "local"} else ""
        store = f"st{space}.v4.u32 [mine], {{a, b, c, d}};"
        for kind, start in (
            ("u8", 5),
            ("s8", 7),
            ("s8", 0),
            ("u16", 6),
            ("s16", 10),
            ("u32", 12),
            ("s64", 8),
            ("f32", 4),
            ("f64", 0),
        ):
            expected = _numbers(words, start, kind)
            if kind in {"u8", "s8", "s16"}:  # into a wider register
                expected = expected.astype(np.int32)
            output = {"i": "s32", "u": "u32"}.get(expected.dtype.kind, kind) if expected.dtype.itemsize == 4 else kind
            output = "f32" if kind == "f32" else output
            text = f"{prologue}\n{store}\nld{space}.{kind} x, [mine+{start}];"
            expected = expected.view(DTYPES[output])
            CASES.append(
                Case(f"ld{space}.{kind}", text, inputs, {"x": output}, {"x": expected}, note=place or "generic")
            )


def _vectors() -> None:
    words = _words()
    inputs = {name: ("u32", word) for name, word in zip("abcd", words, strict=True)}
    for kind, count, start in (
        ("u16", 4, 8),
        ("s16", 2, 4),
        ("u32", 2, 8),
        ("b32", 4, 0),
        ("b64", 2, 0),
        ("f32", 2, 0),
        ("f64", 2, 0),
    ):
        size = DTYPES[kind].itemsize
        names = [f"x{index}" for index in range(count)]
        expected = {name: _numbers(words, start + index * size, kind) for index, name in enumerate(names)}
        opcode = f"ld.shared.v{count}.{kind}"
        store = "st.shared.v2.u32 [mine+8], {c, d};\nst.shared.v2.u32 [mine], {a, b};"
        text = f"{PLACES['shared']}\n{store}\n{opcode} {{{', '.join(names)}}}, [mine+{start}];"
        CASES.append(Case(opcode, text, inputs, dict.fromkeys(names, kind), expected))


def _stores() -> None:
    """A store of a narrow type takes the low bits and leaves its neighbours alone."""
    first, value = edge("u32", N), np.roll(edge("u32", N), 91)
    for kind, start in (("u8", 1), ("s8", 3), ("b16", 2), ("u16", 0)):
        size = DTYPES[kind].itemsize
        expected = []
        for old, new in zip(first, value, strict=True):
            kept = bytearray(int(old).to_bytes(4, "little"))
            kept[start : start + size] = int(new).to_bytes(4, "little")[:size]
            expected.append(int.from_bytes(kept, "little"))
        opcode = f"st.shared.{kind}"
        text = f"{PLACES['shared']}\nst.shared.u32 [mine], a;\n{opcode} [mine+{start}], b;\nld.shared.u32 x, [mine];"
        inputs = {"a": ("u32", first), "b": ("u32", value)}
        CASES.append(Case(opcode, text, inputs, {"x": "u32"}, {"x": np.array(expected, np.uint32)}))


_loads()
_vectors()
_stores()
