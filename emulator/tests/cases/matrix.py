"""Cases of ldmatrix, stmatrix, movmatrix, mma: fragments filled and read element by element after the ISA's tables.

Why loops: the emulator moves whole tiles; here every element of every lane is placed by the formulas of PTX ISA,
"Matrix Fragments for mma.m16n8k...", so that a wrong tile cannot be wrong twice. Products are summed in float64.

Tolerance of sums: exact for small integers. Otherwise the hardware adds in an order of its own and cuts low bits, and
the emulator rounds each float32 addition: 2**-18 of the largest magnitude in the sum covers both for K <= 16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
from tests.cases.harness import Case, sample

from ptxemu.values import Array

WARP = 32
WARPS = 4
N = WARP * WARPS
KINDS: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "s8": np.int8,
    "u8": np.uint8,
    "f32": np.float32,
    "s32": np.int32,
}
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


def place_c(i: int, g: int, t: int, _: str, __: int) -> Place:
    """Row and column of C's and D's element i."""
    return (g if i < 2 else g + 8), t * 2 + (i & 1)


def registers(matrices: Array, kind: str, depth: int, place: Callable[[int, int, int, str, int], Place]) -> list[Array]:
    """The registers, n threads long each, that hold (warps, rows, columns) matrices."""
    dtype = np.dtype(KINDS[kind])
    elements = matrices[0].size // WARP
    held = np.zeros((N, elements), dtype)
    for thread in range(N):
        warp, lane = divmod(thread, WARP)
        for i in range(elements):
            held[thread, i] = matrices[(warp, *place(i, lane >> 2, lane & 3, kind, depth))]
    words = np.ascontiguousarray(held).view(np.uint32)
    return [np.ascontiguousarray(words[:, r]) for r in range(words.shape[1])]


def product(a: Array, b: Array, c: Array, kind: str) -> Array:
    """A B + C, exactly for integers, else in float64."""
    wide: Any = object if kind in {"s8", "u8"} else np.float64
    total = c.astype(wide)
    for k in range(a.shape[2]):
        with np.errstate(all="ignore"):
            total = total + a[:, :, k : k + 1].astype(wide) * b[:, k : k + 1, :].astype(wide)
    return np.asarray(total)


def mma(opcode: str, a: Array, b: Array, c: Array, *, tolerance: float = 0.0, absolute: float = 0.0) -> Case:
    """A case from (warps, 16, K), (warps, K, 8) and (warps, 16, 8)."""
    parts = opcode.split(".")
    result, a_kind, b_kind = parts[-4:-1]
    depth = a.shape[2]
    total = product(a, b, c, a_kind)
    if "satfinite" in parts:
        total = np.clip(total, -(1 << 31), (1 << 31) - 1)
    elif result == "s32":
        total = (total + (1 << 31)) % (1 << 32) - (1 << 31)
    with np.errstate(all="ignore"):
        d = total.astype(KINDS[result])
    operands = {
        "a": registers(a, a_kind, depth, place_a),
        "b": registers(b, b_kind, depth, place_b),
        "c": registers(c, result, depth, place_c),
    }
    ptx_type = {"f16": "f16x2", "f32": "f32", "s32": "b32"}[result]
    wanted = registers(d, result, depth, place_c)
    if result == "f32":
        operands["c"], wanted = ([word.view(np.float32) for word in words] for words in (operands["c"], wanted))
    inputs = {
        f"{name}{r}": (ptx_type if name == "c" else "b32", word)
        for name, words in operands.items()
        for r, word in enumerate(words)
    }
    lists = [", ".join(f"{name}{r}" for r in range(len(words))) for name, words in {"d": wanted, **operands}.items()]
    return Case(
        opcode,
        f"{opcode} " + ", ".join(f"{{{names}}}" for names in lists) + ";",
        inputs,
        {f"d{r}": ptx_type for r in range(len(wanted))},
        {f"d{r}": word for r, word in enumerate(wanted)},
        tolerance=tolerance,
        absolute=absolute,
        note="float32 sums in an order and rounding of the machine's own" if tolerance else "exact",
    )


def random(*, integers: bool, kind: str, shape: tuple[int, ...], seed: int) -> Array:
    generator = np.random.default_rng(seed)
    if kind in {"s8", "u8"}:
        info = np.iinfo(KINDS[kind])
        return generator.integers(info.min, info.max, shape, endpoint=True).astype(KINDS[kind])
    if integers:
        return generator.integers(-8, 9, shape).astype(KINDS[kind])
    values = generator.standard_normal(shape).astype(KINDS[kind])
    if kind == "tf32":
        values = (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return values


def special(a: Array, b: Array, c: Array) -> None:
    """Puts infinities, NaN and zeros where they meet: rows 0 to 5 of A, columns 0 to 2 of B, row 9 of C."""
    a[:, 0, 1], a[:, 1, 2], a[:, 2, 3] = np.inf, -np.inf, np.nan
    a[:, 3, 0], a[:, 3, 2] = np.inf, -np.inf
    a[:, 4, :], a[:, 5, :] = 0, -0.0
    b[:, :, 0], b[:, 1, 1], b[:, 3, 2] = 0, np.inf, np.nan
    c[:, 9, 0], c[:, 9, 3], c[:, 9, 4] = np.nan, np.inf, -np.inf


def floats(opcode: str, depth: int, kind: str, result: str) -> list[Case]:
    shapes = ((WARPS, 16, depth), (WARPS, depth, 8), (WARPS, 16, 8))
    kinds = (kind, kind, result)

    def operands(seed: int, *, integers: bool) -> Iterator[Array]:
        for index, (name, shape) in enumerate(zip(kinds, shapes, strict=True)):
            yield random(integers=integers, kind=name, shape=shape, seed=seed + index)

    found = [mma(opcode, *operands(10, integers=True))]
    a, b, c = operands(20, integers=True)
    special(a, b, c)
    found.append(mma(opcode, a, b, c))
    step = 2.0**-10 if result == "f16" else 2.0**-22
    found.append(mma(opcode, *operands(30, integers=False), tolerance=2 * step, absolute=32 * step))
    if kind == "f16" and result == "f32":
        a, b, c = operands(40, integers=True)
        a, b = np.ldexp(a.astype(np.float64), -24).astype(np.float16), np.ldexp(b, 10).astype(np.float16)  # denormals
        found.append(mma(opcode, a, b, np.ldexp(c, -14)))
        largest = np.full_like(a, 65504)
        found.append(mma(opcode, largest, np.sign(b).astype(np.float16), np.ldexp(c, 5)))
    return found


def integers(opcode: str, depth: int, a_kind: str, b_kind: str) -> list[Case]:
    a = random(integers=True, kind=a_kind, shape=(WARPS, 16, depth), seed=50)
    b = random(integers=True, kind=b_kind, shape=(WARPS, depth, 8), seed=51)
    c = sample("s32", WARPS * 128, "mma").reshape(WARPS, 16, 8)
    c[:, 0], c[:, 8] = (1 << 31) - 1, -(1 << 31)  # sums beyond the range
    low, high = np.full_like(a, np.iinfo(KINDS[a_kind]).min), np.full_like(b, np.iinfo(KINDS[b_kind]).max)
    return [mma(opcode, a, b, c), mma(opcode, low, high, c)]


def products() -> Iterator[Case]:
    for depth in (8, 16):
        for kind, result in (("f16", "f32"), ("bf16", "f32"), ("f16", "f16")):
            opcode = f"mma.sync.aligned.m16n8k{depth}.row.col.{result}.{kind}.{kind}.{result}"
            yield from floats(opcode, depth, kind, result)
    for depth in (4, 8):
        yield from floats(f"mma.sync.aligned.m16n8k{depth}.row.col.f32.tf32.tf32.f32", depth, "tf32", "f32")
    for depth in (16, 32):
        for clamp in ("", ".satfinite"):
            for a, b in (("s8", "s8"), ("u8", "u8"), ("s8", "u8"), ("u8", "s8")):
                yield from integers(f"mma.sync.aligned.m16n8k{depth}.row.col{clamp}.s32.{a}.{b}.s32", depth, a, b)


def loads() -> Iterator[Case]:
    """Each warp is a CTA of its own; thread i writes row i, and the addresses name the rows in any order."""
    count = 3 * WARP
    words = [sample("b32", count, f"ldmatrix {w}") for w in range(4)]
    halves = np.stack(words, axis=-1).view(np.uint16)  # (threads, 8): one row each
    row = np.concatenate([np.random.default_rng(seed).integers(0, WARP, WARP) for seed in range(3)]).astype(np.uint32)
    inputs = {**{f"w{w}": ("b32", word) for w, word in enumerate(words)}, "row": ("u32", row)}
    prologue = """.shared .align 16 .b8 rows[512];
.reg .b32 %base, %place;
mov.u32 %base, rows;
mov.u32 %place, %tid.x;
shl.b32 %place, %place, 4;
add.u32 %place, %base, %place;
st.shared.v4.b32 [%place], {w0, w1, w2, w3};
bar.sync 0;
shl.b32 %place, row, 4;
add.u32 %place, %base, %place;
"""
    for matrices in (1, 2, 4):
        for trans in ("", ".trans"):
            for space in ("shared", "shared::cta"):
                opcode = f"ldmatrix.sync.aligned.m8n8.x{matrices}{trans}.{space}.b16"
                names = [f"d{j}" for j in range(matrices)]
                expected = {name: np.zeros(count, np.uint32) for name in names}
                for thread in range(count):
                    warp, lane = divmod(thread, WARP)
                    for j, name in enumerate(names):
                        pair = []
                        for column in (2 * (lane & 3), 2 * (lane & 3) + 1):
                            r, k = (column, lane >> 2) if trans else (lane >> 2, column)
                            pair.append(int(halves[warp * WARP + row[warp * WARP + 8 * j + r], k]))
                        expected[name][thread] = pair[0] | pair[1] << 16
                text = f"{prologue}{opcode} {{{', '.join(names)}}}, [%place];"
                yield Case(opcode, text, inputs, dict.fromkeys(names, "b32"), expected)


def stores() -> Iterator[Case]:
    """Each warp is a CTA of its own: the lanes name the rows in any order, then thread i reads row i."""
    count = 3 * WARP
    order = np.concatenate([np.random.default_rng(seed).permutation(WARP) for seed in range(3)]).astype(np.uint32)
    words = [sample("b32", count, f"stmatrix {w}") for w in range(4)]
    old = sample("b32", count, "stmatrix old")
    inputs = {**{f"r{w}": ("b32", word) for w, word in enumerate(words)}, "row": ("u32", order), "old": ("b32", old)}
    for matrices in (1, 2, 4):
        for trans in ("", ".trans"):
            for space in ("shared", "shared::cta"):
                opcode = f"stmatrix.sync.aligned.m8n8.x{matrices}{trans}.{space}.b16"
                rows = np.repeat(old[:, None], 4, axis=1).view(np.uint16)  # what is not overwritten stays
                for thread in range(count):
                    warp, lane = divmod(thread, WARP)
                    for j in range(matrices):
                        for i, column in enumerate((2 * (lane & 3), 2 * (lane & 3) + 1)):
                            r, k = (column, lane >> 2) if trans else (lane >> 2, column)
                            half = int(words[j][thread]) >> 16 * i & 0xFFFF
                            rows[warp * WARP + order[warp * WARP + 8 * j + r], k] = half
                wanted = rows.view(np.uint32)
                registers = ", ".join(f"r{j}" for j in range(matrices))
                text = f""".shared .align 16 .b8 rows[512];
.reg .b32 %base, %place;
mov.u32 %base, rows;
mov.u32 %place, %tid.x;
shl.b32 %place, %place, 4;
add.u32 %place, %base, %place;
st.shared.v4.b32 [%place], {{old, old, old, old}};
bar.sync 0;
shl.b32 row, row, 4;
add.u32 row, %base, row;
{opcode} [row], {{{registers}}};
bar.sync 0;
ld.shared.v4.b32 {{d0, d1, d2, d3}}, [%place];"""
                outputs = {f"d{w}": np.ascontiguousarray(wanted[:, w]) for w in range(4)}
                yield Case(opcode, text, inputs, dict.fromkeys(outputs, "b32"), outputs, target="sm_90")


def transposed() -> Case:
    a = sample("b32", N, "movmatrix")
    halves = a.view(np.uint16).reshape(WARPS, 8, 8)  # lane 4 g + t holds row g, columns 2 t and 2 t + 1
    d = np.zeros(N, np.uint32)
    for thread in range(N):
        warp, lane = divmod(thread, WARP)
        g, t = lane >> 2, lane & 3
        d[thread] = int(halves[warp, 2 * t, g]) | int(halves[warp, 2 * t + 1, g]) << 16
    opcode = "movmatrix.sync.aligned.m8n8.trans.b16"
    return Case(opcode, f"{opcode} d, a;", {"a": ("b32", a)}, {"d": "b32"}, {"d": d})


CASES = [*products(), *loads(), *stores(), transposed()]
