"""Cases of ldmatrix, stmatrix, movmatrix, mma: fragments filled and read element by element after the ISA's tables.

The emulator moves whole tiles; here every element of every lane is placed by the formulas of PTX ISA, "Matrix Fragments
for mma.m16n8k...", so that a wrong tile cannot be wrong twice. Products are summed in float64.

Tolerance of sums: exact for small integers. Otherwise the hardware adds in an order of its own and cuts low bits, and
the emulator rounds each float32 addition: 2**-18 of the largest magnitude in the sum covers both for K <= 16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product as every
from typing import Any

import ml_dtypes
import numpy as np
from tests.cases.harness import Case, Typed, given, named, plain, sample, text_of

from ptxemu.values import Array

WARP = 32
WARPS = 4
N = WARP * WARPS
KINDS: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "s8": np.int8, "u8": np.uint8,
    "f32": np.float32, "s32": np.int32,
}  # fmt: skip
Place = tuple[int, int]


def place_a(i: int, g: int, t: int, kind: str, depth: int) -> Place:
    """Row and column of A's element a_i in lane 4 g + t."""
    if kind == "tf32":
        return g + 8 * (i % 2), t + 4 * (i // 2)
    if kind in {"s8", "u8"}:
        if depth == 16:
            return (g if i < 4 else g + 8), t * 4 + (i & 3)
        return (g if i < 4 or 8 <= i < 12 else g + 8), t * 4 + (i & 3) + (0 if i < 8 else 16)
    if depth == 8:
        return (g if i < 2 else g + 8), t * 2 + (i & 1)
    return (g if i < 2 or 4 <= i < 6 else g + 8), t * 2 + (i & 1) + (0 if i < 4 else 8)


def place_b(i: int, g: int, t: int, kind: str, _: int) -> Place:
    """Row and column of B's element b_i."""
    if kind == "tf32":
        return t + 4 * i, g
    if kind in {"s8", "u8"}:
        return t * 4 + (i & 3) + (0 if i < 4 else 16), g
    return t * 2 + (i & 1) + (0 if i < 2 else 8), g


def place_c(i: int, g: int, t: int, _: str = "", __: int = 0) -> Place:
    """Row and column of C's and D's element i."""
    return (g if i < 2 else g + 8), t * 2 + (i & 1)


def registers(matrices: Array, kind: str, depth: int, place: Callable[[int, int, int, str, int], Place]) -> list[Array]:
    """The registers, n threads long each, that hold (warps, rows, columns) matrices."""
    elements = matrices[0].size // WARP
    held = np.zeros((N, elements), np.dtype(KINDS[kind]))
    for thread, i in every(range(N), range(elements)):
        warp, lane = divmod(thread, WARP)
        held[thread, i] = matrices[(warp, *place(i, lane >> 2, lane & 3, kind, depth))]
    return [np.ascontiguousarray(column) for column in held.view(np.uint32).T]


def mma(opcode: str, a: Array, b: Array, c: Array, tolerance: float = 0.0, absolute: float = 0.0) -> Case:
    """A case from (warps, 16, K), (warps, K, 8) and (warps, 16, 8): A B + C, exactly for integers, else in float64."""
    result, a_kind, b_kind = opcode.split(".")[-4:-1]
    depth, wide = a.shape[2], np.int64 if result == "s32" else np.float64
    total: Array = c.astype(wide)
    for k in range(depth):
        with np.errstate(all="ignore"):
            total = total + a[:, :, k : k + 1].astype(wide) * b[:, k : k + 1, :].astype(wide)
    if "satfinite" in opcode:
        total = np.clip(total, -(1 << 31), (1 << 31) - 1)
    with np.errstate(all="ignore"):
        d = total.astype(KINDS[result])
    kind = {"f16": "f16x2", "f32": "f32", "s32": "b32"}[result]
    held = {
        "d": registers(d, result, depth, place_c),
        "a": registers(a, a_kind, depth, place_a),
        "b": registers(b, b_kind, depth, place_b),
        "c": registers(c, result, depth, place_c),
    }
    typed: dict[str, Typed] = {}
    for name, each in held.items():
        ptx_type = kind if name in "cd" else "b32"
        typed[name] = {f"{name}{r}": (ptx_type, x.view("f4") if ptx_type == "f32" else x) for r, x in enumerate(each)}
    text = f"{opcode} " + ", ".join(f"{{{', '.join(names)}}}" for names in typed.values()) + ";"
    note = "float32 sums in an order and rounding of the machine's own" if tolerance else "exact"
    loose: dict[str, Any] = {"tolerance": tolerance, "absolute": absolute, "note": note}
    return given(opcode, text, {**typed["a"], **typed["b"], **typed["c"]}, typed["d"], **loose)


def random(kind: str, shape: tuple[int, ...], seed: int, *, integers: bool = True) -> Array:
    generator = np.random.default_rng(seed)
    if kind in {"s8", "u8"}:
        info = np.iinfo(KINDS[kind])
        return generator.integers(info.min, info.max, shape, endpoint=True).astype(KINDS[kind])
    if integers:
        return generator.integers(-8, 9, shape).astype(KINDS[kind])
    values = generator.standard_normal(shape).astype(KINDS[kind])
    return (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) if kind == "tf32" else values


def special(a: Array, b: Array, c: Array) -> None:
    """Puts infinities, NaN and zeros where they meet: rows 0 to 5 of A, columns 0 to 2 of B, row 9 of C."""
    a[:, 0, 1], a[:, 1, 2], a[:, 2, 3] = np.inf, -np.inf, np.nan
    a[:, 3, 0], a[:, 3, 2] = np.inf, -np.inf
    a[:, 4, :], a[:, 5, :] = 0, -0.0
    b[:, :, 0], b[:, 1, 1], b[:, 3, 2] = 0, np.inf, np.nan
    c[:, 9, 0], c[:, 9, 3], c[:, 9, 4] = np.nan, np.inf, -np.inf


def floats(opcode: str, depth: int, kind: str, result: str) -> Iterator[Case]:
    def operands(seed: int, *, integers: bool = True) -> tuple[Array, Array, Array]:
        a = random(kind, (WARPS, 16, depth), seed, integers=integers)
        b = random(kind, (WARPS, depth, 8), seed + 1, integers=integers)
        return a, b, random(result, (WARPS, 16, 8), seed + 2, integers=integers)

    yield mma(opcode, *operands(10))
    a, b, c = operands(20)
    special(a, b, c)
    yield mma(opcode, a, b, c)
    step = 2.0**-10 if result == "f16" else 2.0**-22
    yield mma(opcode, *operands(30, integers=False), tolerance=2 * step, absolute=32 * step)
    if kind == "f16" and result == "f32":
        a, b, c = operands(40)
        a, b = np.ldexp(a.astype(np.float64), -24).astype(np.float16), np.ldexp(b, 10).astype(np.float16)  # denormals
        yield mma(opcode, a, b, np.ldexp(c, -14))
        yield mma(opcode, np.full_like(a, 65504), np.sign(b).astype(np.float16), np.ldexp(c, 5))


def integers(opcode: str, depth: int, a_kind: str, b_kind: str) -> Iterator[Case]:
    a, b = random(a_kind, (WARPS, 16, depth), 50), random(b_kind, (WARPS, depth, 8), 51)
    c = sample("s32", WARPS * 128, "mma").reshape(WARPS, 16, 8)
    c[:, 0], c[:, 8] = (1 << 31) - 1, -(1 << 31)  # sums beyond the range
    yield mma(opcode, a, b, c)
    yield mma(opcode, np.full_like(a, np.iinfo(a.dtype).min), np.full_like(b, np.iinfo(b.dtype).max), c)


def products() -> Iterator[Case]:
    head = "mma.sync.aligned.m16n8k"
    for depth, (kind, result) in every((8, 16), (("f16", "f32"), ("bf16", "f32"), ("f16", "f16"))):
        yield from floats(f"{head}{depth}.row.col.{result}.{kind}.{kind}.{result}", depth, kind, result)
    for depth in (4, 8):
        yield from floats(f"{head}{depth}.row.col.f32.tf32.tf32.f32", depth, "tf32", "f32")
    kinds = ("s8", "s8"), ("u8", "u8"), ("s8", "u8"), ("u8", "s8")
    for depth, clamp, (a, b) in every((16, 32), ("", ".satfinite"), kinds):
        yield from integers(f"{head}{depth}.row.col{clamp}.s32.{a}.{b}.s32", depth, a, b)


PROLOGUE = text_of("rows", words="WORDS")
FORMS = [(n, trans, space) for n in (1, 2, 4) for trans in ("", ".trans") for space in ("shared", "shared::cta")]


def pairs(matrices: int, trans: str, row: Array) -> Iterator[tuple[int, int, int, int, int]]:
    """(thread, matrix, low or high half, row of the block's 32 whose address is named, column) of 3 warps."""
    for thread, j, i in every(range(3 * WARP), range(matrices), range(2)):
        warp, lane = divmod(thread, WARP)
        r, k = (2 * (lane & 3) + i, lane >> 2) if trans else (lane >> 2, 2 * (lane & 3) + i)
        yield thread, j, i, warp * WARP + int(row[warp * WARP + 8 * j + r]), k


def loads() -> Iterator[Case]:
    """Each warp is a CTA of its own; thread i writes row i, and the addresses name the rows in any order."""
    count = 3 * WARP
    words = [sample("b32", count, f"ldmatrix {w}") for w in range(4)]
    halves = np.stack(words, axis=-1).view(np.uint16)  # (threads, 8): one row each
    row = np.concatenate([np.random.default_rng(seed).integers(0, WARP, WARP) for seed in range(3)]).astype(np.uint32)
    inputs: Typed = {**{f"w{w}": ("b32", word) for w, word in enumerate(words)}, "row": ("u32", row)}
    prologue = PROLOGUE.replace("WORDS", "w0, w1, w2, w3") + "shl.b32 %place, row, 4;\nadd.u32 %place, %base, %place;\n"
    for matrices, trans, space in FORMS:
        opcode = f"ldmatrix.sync.aligned.m8n8.x{matrices}{trans}.{space}.b16"
        found = np.zeros((matrices, count, 2), np.uint16)
        for thread, j, i, at, k in pairs(matrices, trans, row):
            found[j, thread, i] = halves[at, k]
        results: Typed = {f"d{j}": ("b32", found[j].view(np.uint32)[:, 0].copy()) for j in range(matrices)}
        yield given(opcode, f"{prologue}{opcode} {{{', '.join(results)}}}, [%place];", inputs, results)


def stores() -> Iterator[Case]:
    """Each warp is a CTA of its own: the lanes name the rows in any order, then thread i reads row i."""
    count = 3 * WARP
    order = np.concatenate([np.random.default_rng(seed).permutation(WARP) for seed in range(3)]).astype(np.uint32)
    words = [sample("b32", count, f"stmatrix {w}") for w in range(4)]
    old = sample("b32", count, "stmatrix old")
    inputs: Typed = {f"r{w}": ("b32", word) for w, word in enumerate(words)}
    inputs |= {"row": ("u32", order), "old": ("b32", old)}
    for matrices, trans, space in FORMS:
        opcode = f"stmatrix.sync.aligned.m8n8.x{matrices}{trans}.{space}.b16"
        rows = np.repeat(old[:, None], 4, axis=1).view(np.uint16)  # what is not overwritten stays
        for thread, j, i, at, k in pairs(matrices, trans, order):
            rows[at, k] = int(words[j][thread]) >> 16 * i & 0xFFFF
        names = ", ".join(f"r{j}" for j in range(matrices))
        text = f"""{PROLOGUE.replace("WORDS", "old, old, old, old")}shl.b32 row, row, 4;
add.u32 row, %base, row;
{opcode} [row], {{{names}}};
bar.sync 0;
ld.shared.v4.b32 {{d0, d1, d2, d3}}, [%place];"""
        results: Typed = {f"d{w}": ("b32", np.ascontiguousarray(rows.view(np.uint32)[:, w])) for w in range(4)}
        yield given(opcode, text, inputs, results, target="sm_90")


def transposed() -> Case:
    a = sample("b32", N, "movmatrix")
    halves = a.view(np.uint16).reshape(WARPS, 8, 8)  # lane 4 g + t holds row g, columns 2 t and 2 t + 1
    d = np.ascontiguousarray(halves.transpose(0, 2, 1)).view(np.uint32).reshape(-1)
    return plain("movmatrix.sync.aligned.m8n8.trans.b16", named("b32", a), "b32", d)


CASES = [*products(), *loads(), *stores(), transposed()]
