"""Cases of ldmatrix, stmatrix, movmatrix, mma, wgmma: elements placed one by one after the ISA's tables.

The emulator moves whole tiles; here every element of every lane is placed by the formulas of PTX ISA, "Matrix Fragments
for mma.m16n8k...", so that a wrong tile cannot be wrong twice. Where wgmma's elements lie in shared memory follows from
the canonical layouts as CUTLASS writes them (`cute`'s shapes and strides in units of 16 bytes, then
``Swizzle<B, 4, 3>``), which share no formula with the emulator's descriptors. Between elements lie other numbers.

Products are summed in float64; those of small integers are exact on every machine. Otherwise the hardware adds in an
order of its own and cuts low bits: 2**-18 of the largest magnitude in the sum covers mma's, 2**-20 (2**-10 for 8-bit
factors, whose products keep some 13 bits) one wgmma's. Wide results are folded into eight sums with weights.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product as every
from typing import Any

import ml_dtypes
import numpy as np
from tests.cases.harness import Case, Typed, given, named, plain, sample, text_of

from ptxemu.values import Array

THREADS = 128
KINDS: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2, "s8": np.int8, "u8": np.uint8, "b1": np.uint8, "f32": np.float32, "s32": np.int32,
}  # fmt: skip
SPANS = {"none": 1, "128B": 8, "64B": 4, "32B": 2}  # chunks of 16 bytes in a row of the pattern
CODES = {"none": 0, "128B": 1, "64B": 2, "32B": 3}
FOLDS = 8  # sums that a wide result is folded into
FEW = 32  # columns up to which every number is an output
INTEGERS = ("s8", "u8")
Mode = tuple[tuple[int | None, int], ...]
Kinds = tuple[str, str, str]  # of D, A and B


@dataclass(frozen=True)
class Layout:
    """How a matrix lies in shared memory: a descriptor without the start address."""

    swizzle: str  # of `SPANS`
    k_major: bool  # whether K is contiguous
    leading: int  # bytes (LBO)
    stride: int  # bytes (SBO)
    start: int = 0  # bytes from a multiple of 1024
    base: int = 0  # base offset, in rows of 128 bytes
    step: int = 0  # bytes from one instruction's part along K to the next one's

    def at(self, row: int, k: int, width: int, part: int = 0) -> int:
        """The byte at which element (row, k) of a matrix of `width`-byte numbers begins."""
        span = SPANS[self.swizzle]
        unit, rest = divmod(k * width, 16) if self.k_major else divmod(row * width, 16)
        other = row if self.k_major else k
        offset = cute(self._canonical(span), (other, unit) if self.k_major else (unit, other))
        address = self.start + part * self.step + 16 * offset + rest
        turned = address - 128 * self.base  # counted from where the pattern begins
        return address ^ ((turned >> 7 & span - 1) << 4)

    def _canonical(self, span: int) -> tuple[Mode, Mode]:
        """Extents and strides of the two modes, in chunks; an extent of None: as many as there are."""
        leading, stride = self.leading // 16, self.stride // 16
        if self.k_major:  # Swizzle o ((8, n), 2) : ((T, SBO), 1), without swizzling LBO for the last
            return ((8, span), (None, stride)), ((None, 1 if span > 1 else leading),)
        if span == 1:  # ((1, n), (8, k)) : ((X, SBO), (1, LBO))
            return ((None, stride),), ((8, 1), (None, leading))
        return ((span, 1), (None, leading)), ((8, span), (None, stride))  # ((T, n), (8, k)) : ((1, LBO), (T, SBO))

    @property
    def bits(self) -> int:
        fields = self.leading // 16 << 16 | self.stride // 16 << 32 | self.base << 49
        return fields | CODES[self.swizzle] << 62


def cute(modes: tuple[Mode, Mode], coordinates: tuple[int, int]) -> int:
    """A layout's offset of a coordinate: each mode splits its own from the fastest extent on."""
    offset = 0
    for mode, coordinate in zip(modes, coordinates, strict=True):
        rest = coordinate
        for extent, stride in mode:
            rest, digit = (0, rest) if extent is None else divmod(rest, extent)
            offset += digit * stride
    return offset


def tight(swizzle: str, rows: int, *, k_major: bool, pad: int = 0) -> Layout:
    """The layout whose parts follow each other closely, or `pad` bytes (of a pattern: patterns) apart."""
    span = SPANS[swizzle]
    if span == 1:
        core = 128 + pad
        return Layout(swizzle, k_major, core, 2 * core) if k_major else Layout(swizzle, k_major, core * rows // 8, core)
    atom = 128 * span * (1 + (pad > 0))
    return Layout(swizzle, k_major, 16, atom) if k_major else Layout(swizzle, k_major, 2 * atom, atom)


def put(image: Array, matrix: Array, layout: Layout, first: int, part: int) -> None:
    """Writes a (rows, K) matrix's bytes into the image, whose byte `first` the layout counts from."""
    width = matrix.dtype.itemsize
    side = matrix if layout.k_major else matrix.T  # its last axis is contiguous, in chunks of 16 bytes
    outer, inner = range(side.shape[0]), range(0, side.shape[1], 16 // width)
    at = [[layout.at(*((i, j) if layout.k_major else (j, i)), width, part) for j in inner] for i in outer]
    places = np.array(at)[..., None] + np.arange(16) + first
    image[places] = np.ascontiguousarray(side).view(np.uint8).reshape(places.shape)


def end_of(layout: Layout, rows: int, depth: int, width: int, parts: int) -> int:
    corners = every({0, rows - 1, *range(0, rows, 8)}, {0, depth - 1, *range(0, depth, 8)}, range(parts))
    return (max(layout.at(row, k, width, part) for row, k, part in corners) // 1024 + 1) * 1024


def small(kind: str, shape: tuple[int, ...], seed: int, most: int = 6) -> Array:
    generator = np.random.default_rng(seed)
    if kind == "b1":
        return generator.integers(0, 256, shape).astype(np.uint8)
    if kind in INTEGERS:
        info = np.iinfo(KINDS[kind])
        return generator.integers(info.min, info.max, shape, endpoint=True).astype(KINDS[kind])
    return generator.integers(-most, most + 1, shape).astype(KINDS[kind])


def product(a: Array, b: Array, kind: str) -> Array:
    """A B from (M, K) and (N, K), in float64, or exact integers as float64."""
    if kind == "b1":
        a, b = np.unpackbits(a, axis=1), np.unpackbits(b, axis=1)
    with np.errstate(all="ignore"):
        return np.asarray(a.astype(np.float64) @ b.astype(np.float64).T)


@dataclass(frozen=True)
class Trial:
    """What one case multiplies: a is (parts, 64, K), b is (parts, N, K); C is added unless not `keep`."""

    opcode: str
    kinds: Kinds
    a: Array
    b: Array
    left: Layout | None  # None: in registers
    right: Layout
    keep: bool = True
    signs: tuple[int, int] = (1, 1)
    tolerance: float = 0.0
    absolute: float = 0.0

    @property
    def n(self) -> int:
        return int(self.b.shape[1])


def addends(kind: str, n: int) -> tuple[list[Array], Array]:
    """C: four registers per thread, used in turn, and the (64, N) matrix that this makes."""
    generator = np.random.default_rng(1)
    numbers = generator.integers(-8, 9, (THREADS, 4, 2 if kind == "f16" else 1)).astype(KINDS[kind])
    matrix = np.zeros((64, n), KINDS[kind])
    rows, columns = right_places()
    for tile, i in every(range(n // 8), range(4)):
        register, half = (2 * tile + i // 2, i % 2) if kind == "f16" else (i, 0)
        matrix[rows[:, i], 8 * tile + columns[:, i]] = numbers[:, register % 4, half]
    return [np.ascontiguousarray(column) for column in numbers.view(np.uint32).reshape(THREADS, 4).T], matrix


def held(matrix: Array, kind: str) -> Array:
    rows, columns = right_places()
    tiles = np.arange(0, matrix.shape[1], 8)[None, :, None]
    found = matrix[rows[:, None, :], columns[:, None, :] + tiles].astype(KINDS[kind])
    return np.ascontiguousarray(found).view(np.uint32).reshape(THREADS, -1)


def of_threads(places: Any) -> tuple[Array, Array]:
    """Rows and columns, (threads, elements), of places in each warp's 16 rows by (thread's group, thread in it)."""
    found = np.array([places(thread % 32 >> 2, thread & 3) for thread in range(THREADS)])
    return found[..., 0] + 16 * (np.arange(THREADS) // 32)[:, None], found[..., 1]


@cache
def left_places(size: int) -> tuple[Array, Array]:
    """Row and column of A's elements of `size` bytes: each warp holds 16 rows as for ``mma``."""
    return of_threads(lambda g, t: [place_a(i, g, t, 4 // size) for i in range(16 // size)])


@cache
def right_places() -> tuple[Array, Array]:
    """Row and column, within eight columns, of a thread's four elements of D."""
    return of_threads(lambda g, t: [place_c(i, g, t) for i in range(4)])


def case(trial: Trial) -> Case:
    """The case: images and registers as inputs, D or its folds as outputs."""
    d_kind, a_kind, _ = trial.kinds
    words, c = addends(d_kind, trial.n)
    inputs: Typed = {f"c{r}": ("b32", word) for r, word in enumerate(words)}
    total = c.astype(np.float64) if trial.keep else np.zeros(c.shape)
    for a, b in zip(trial.a, trial.b, strict=True):
        with np.errstate(all="ignore"):
            total = total + product(a, b, a_kind) * (trial.signs[0] * trial.signs[1])
    image, first = images(trial)
    columns = image.view(np.uint32).reshape(-1, THREADS, 4).transpose(0, 2, 1).reshape(-1, THREADS)
    for word, column in enumerate(columns):
        inputs[f"w{word}"] = ("b32", np.ascontiguousarray(column))
    for part, a in enumerate(trial.a if trial.left is None else ()):
        registers = np.ascontiguousarray(a[left_places(a.itemsize)]).view(np.uint32)
        inputs |= {f"a{4 * part + r}": ("b32", registers[:, r].copy()) for r in range(4)}
    with np.errstate(all="ignore"):
        if d_kind == "s32":
            exact = np.clip(total, -(2**31), 2**31 - 1) if "satfinite" in trial.opcode else total
            total = exact.astype(np.int64).astype(np.int32)
        wanted = held(total.astype(KINDS[d_kind]), d_kind)
    lines, results = written(trial, len(image), first, wanted)
    note = "sums in an order and rounding of the machine's own" if trial.tolerance else "exact"
    fields: dict[str, Any] = {"tolerance": trial.tolerance, "absolute": trial.absolute, "note": note}
    return given(trial.opcode, "\n".join(lines), inputs, results, target="sm_90a", version="8.6", **fields)


def images(trial: Trial) -> tuple[Array, int]:
    """Shared memory with A (unless it is in registers) and B, and where B's layout counts from."""
    _, a_kind, b_kind = trial.kinds
    parts, _, depth = trial.b.shape
    width = np.dtype(KINDS[b_kind]).itemsize
    first = end_of(trial.left, 64, depth, width, parts) if trial.left else 0
    size = -(-(first + end_of(trial.right, trial.n, depth, width, parts)) // (16 * THREADS)) * 16 * THREADS
    image = small(a_kind, (size // width,), 99).view(np.uint8).copy()  # between the elements lie other numbers
    for part in range(parts):
        if trial.left:
            put(image, trial.a[part], trial.left, 0, part)
        put(image, trial.b[part], trial.right, first, part)
    return image, first


def written(trial: Trial, size: int, first: int, wanted: Array) -> tuple[list[str], Typed]:
    d_kind, count = trial.kinds[0], wanted.shape[1]
    lines = [
        f".shared .align 1024 .b8 image[{size}];",
        f".reg .b32 %s<4>; .reg .b64 %m<2>; .reg .pred %keep; .reg .{'f32' if d_kind == 'f32' else 'b32'} %d<{count}>;",
        "mov.u32 %s0, image; mov.u32 %s1, %tid.x; shl.b32 %s1, %s1, 4; add.u32 %s1, %s0, %s1;",
    ]
    for chunk in range(size // (16 * THREADS)):
        names = ", ".join(f"w{4 * chunk + word}" for word in range(4))
        lines.append(f"st.shared.v4.b32 [%s1+{16 * THREADS * chunk}], {{{names}}};")
    lines.append("fence.proxy.async.shared::cta; bar.sync 0;")
    lines += [f"mov.b32 %d{r}, c{r % 4};" for r in range(count)]
    lines.append(f"setp.eq.u32 %keep, %s0, {'%s0' if trial.keep else '0xffffffff'};")
    lines.append("wgmma.fence.sync.aligned;")
    for part in range(len(trial.b)):
        lines += instruction(trial, part, first, count)
    lines += ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"]
    if trial.n > FEW:
        folding, results = folded(d_kind, wanted)
        return lines + folding, results
    kind, dtype = {"f16": ("f16x2", "u4"), "f32": ("f32", "f4"), "s32": ("s32", "i4")}[d_kind]
    lines += [f"mov.b32 o{r}, %d{r};" for r in range(count)]
    return lines, {f"o{r}": (kind, np.ascontiguousarray(wanted[:, r]).view(dtype)) for r in range(count)}


def instruction(trial: Trial, part: int, first: int, count: int) -> list[str]:
    lines = [
        f"add.u32 %s2, %s0, {start + layout.start + part * layout.step}; and.b32 %s2, %s2, 0x3ffff; "
        f"shr.u32 %s2, %s2, 4; cvt.u64.u32 %m{index}, %s2; or.b64 %m{index}, %m{index}, {layout.bits:#x};"
        for index, (start, layout) in enumerate(((0, trial.left), (first, trial.right)))
        if layout
    ]
    d = ", ".join(f"%d{r}" for r in range(count))
    a = "%m0" if trial.left else "{" + ", ".join(f"a{4 * part + r}" for r in range(4)) + "}"
    operands = [f"{{{d}}}", a, "%m1", "%keep", *(map(str, trial.signs) if trial.kinds[0] != "s32" else ())]
    if trial.kinds[1] in {"f16", "bf16"}:
        operands += [str(int(not layout.k_major)) for layout in (trial.left, trial.right) if layout]
    return [*lines, f"{trial.opcode} {', '.join(operands)};"]


def folded(kind: str, wanted: Array) -> tuple[list[str], Typed]:
    """Eight weighted sums of D's registers (of f16: of both halves), exact in f32 or modulo 2**32."""
    lines = [".reg .b16 %h<2>; .reg .f32 %g<2>;"] if kind == "f16" else []
    lines += [f"mov.b32 o{fold}, 0;" for fold in range(FOLDS)]
    numbers = wanted.view({"f16": np.float16, "f32": np.float32, "s32": np.int32}[kind])
    weights = [i * 7 % 23 + 1 for i in range(numbers.shape[1])]  # they tell neighbours apart
    for i, weight in enumerate(weights):
        o = f"o{i % FOLDS}"
        if kind == "f16":
            lines.append(f"mov.b32 {{%h0, %h1}}, %d{i // 2}; cvt.f32.f16 %g0, %h{i % 2};")
        register = "%g0" if kind == "f16" else f"%d{i}"
        lines.append(f"mad.lo.s32 {o}, %d{i}, {weight}, {o};" if kind == "s32" else
                     f"fma.rn.f32 {o}, {register}, {weight}.0, {o};")  # fmt: skip
    products = numbers.astype(np.int64) * np.array(weights)
    sums = [products[:, fold::FOLDS].sum(axis=1) for fold in range(FOLDS)]
    if kind == "s32":
        return lines, {f"o{fold}": ("s32", each.astype(np.uint32).view(np.int32)) for fold, each in enumerate(sums)}
    return lines, {f"o{fold}": ("f32", each.astype(np.float32)) for fold, each in enumerate(sums)}


F16, HALF, BF16, TF32 = ("f32", "f16", "f16"), ("f16", "f16", "f16"), ("f32", "bf16", "bf16"), ("f32", "tf32", "tf32")


def trial(
    n: int, kinds: Kinds, left: Layout | None, right: Layout, parts: int = 1, seed: int = 5, clamp: str = ""
) -> Trial:
    d, a, b = kinds
    depth = 32 // np.dtype(KINDS[a]).itemsize
    k = {"f16": 16, "bf16": 16, "tf32": 8, "b1": 256}.get(a, 32)
    opcode = f"wgmma.mma_async.sync.aligned.m64n{n}k{k}{clamp}.{d}.{a}.{b}{'.and.popc' * (a == 'b1')}"
    return Trial(opcode, kinds, small(a, (parts, 64, depth), seed), small(b, (parts, n, depth), seed + 1), left, right)


def layouts() -> Iterator[Trial]:
    for kinds, pad in ((F16, 0), (F16, 128), (BF16, 0)):
        for swizzle in SPANS:
            for a_major, b_major in every((True, False), repeat=2):
                left = tight(swizzle, 64, k_major=a_major, pad=pad)
                yield trial(24, kinds, left, tight(swizzle, 24, k_major=b_major, pad=pad))
            for b_major in (True, False):
                yield trial(32, kinds, None, tight(swizzle, 32, k_major=b_major, pad=pad))
    for first, second in (("128B", "none"), ("64B", "32B"), ("none", "128B")):
        yield trial(16, F16, tight(first, 64, k_major=True), tight(second, 16, k_major=False))


def steps() -> Iterator[Trial]:
    """Chains along K: descriptors that begin within a swizzle's pattern, or one pattern further."""
    for swizzle in ("128B", "64B", "32B"):
        within = SPANS[swizzle] // 2
        left, right = (replace(tight(swizzle, rows, k_major=True), step=32) for rows in (64, 16))
        yield trial(16, F16, left, right, within)
        wide = tight(swizzle, 64, k_major=False)
        wide = replace(wide, leading=4 * wide.stride, step=2 * wide.stride)
        yield trial(64, F16, None, wide, 2)
        yield trial(16, BF16, replace(wide, step=2 * 128 * SPANS[swizzle]), right, min(within, 2))
    yield trial(16, F16, None, replace(tight("none", 16, k_major=True), stride=512, step=256), 2)


def starts() -> Iterator[Trial]:
    """Patterns that begin, or are entered, at an address that is not a multiple of their size."""
    for swizzle, rows in (("128B", (1, 3, 6)), ("64B", (1, 3)), ("32B", (1,))):
        for row in rows:
            right = replace(tight(swizzle, 16, k_major=True), start=128 * row)
            yield trial(16, F16, None, right)
            yield trial(16, F16, None, replace(right, base=row))


def types() -> Iterator[Trial]:
    """Every pair of types, from registers and from memory, under every swizzle."""
    eight = ("e4m3", "e5m2")
    kinds: list[Kinds] = [HALF, TF32, *every(("f32", "f16"), eight, eight), *every(("s32",), INTEGERS, INTEGERS)]
    for index, each in enumerate([*kinds, ("s32", "b1", "b1")]):
        for turn, swizzle in enumerate(SPANS):
            left = None if (index + turn) % 2 else tight(swizzle, 64, k_major=True)
            yield trial(16, each, left, tight(swizzle, 16, k_major=True), seed=index)
    for a, b in every(INTEGERS, repeat=2):
        left, right = tight("32B", 64, k_major=True), tight("32B", 24, k_major=True)
        yield trial(24, ("s32", a, b), left, right, clamp=".satfinite")


def modifiers() -> Iterator[Trial]:
    left, right = tight("64B", 64, k_major=True), tight("64B", 16, k_major=True)
    for kinds in (F16, HALF, TF32, ("f32", "e4m3", "e5m2")):
        for signs in ((-1, 1), (1, -1), (-1, -1)):
            yield replace(trial(16, kinds, left, right), signs=signs)
        yield replace(trial(16, kinds, None, right), keep=False)
    for kind in ("s8", "b1"):
        yield replace(trial(16, ("s32", kind, kind), None, tight("none", 16, k_major=True)), keep=False)


def widths() -> Iterator[Trial]:
    for n in range(8, 257, 8):
        close, a = tight("32B", n, k_major=True), tight(list(SPANS)[n // 8 % 4], 64, k_major=True)
        yield trial(n, F16, a, close, seed=n)
        yield trial(n, BF16, None, tight("none", n, k_major=False), seed=n)
        yield trial(n, HALF, None, close, seed=n)
        if n % 16 == 0:
            yield trial(n, TF32, a, close, seed=n)
            yield trial(n, ("f32", "e4m3", "e4m3"), None, close, seed=n)
            yield trial(n, ("s32", "s8", "u8"), a, close, seed=n)


def specials() -> Iterator[Trial]:
    for kinds in (F16, BF16, TF32, HALF):
        base = trial(16, kinds, tight("128B", 64, k_major=True), tight("128B", 16, k_major=True))
        a, b = base.a.copy(), base.b.copy()
        a[0, 0, 1], a[0, 17, 2], a[0, 34, 3] = np.inf, -np.inf, np.nan
        a[0, 51, :], a[0, 3, 0], a[0, 3, 2] = 0, np.inf, -np.inf
        b[0, 0, :], b[0, 1, 1], b[0, 2, 3] = 0, np.inf, np.nan
        yield replace(base, a=a, b=b)
        generator = np.random.default_rng(17)
        a, b = (generator.standard_normal(x.shape).astype(x.dtype) for x in (a, b))
        if kinds[1] == "tf32":
            a, b = ((x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in (a, b))
        rough = 2.0**-9 if kinds[0] == "f16" else 2.0**-20
        yield replace(base, a=a, b=b, tolerance=rough, absolute=32 * rough)
    plain = tight("none", 16, k_major=True)
    tiny = trial(16, F16, None, plain)
    a = np.ldexp(tiny.a.astype(np.float64), -24).astype(np.float16)  # denormals
    yield replace(tiny, a=a, b=np.ldexp(tiny.b, 10).astype(np.float16), keep=False)
    for kind in ("e4m3", "e5m2"):
        base = trial(16, ("f32", kind, kind), None, plain)
        a, b = (np.random.default_rng(3).standard_normal(x.shape).astype(x.dtype) for x in (base.a, base.b))
        yield replace(base, a=a, b=b, tolerance=2.0**-9, absolute=2.0**-6)


WARP = 32
WARPS = 4
N = WARP * WARPS
Place = tuple[int, int]
Operands = tuple[Array, Array, Array]


def place_a(i: int, g: int, t: int, each: int) -> Place:
    """Row and column of A's element a_i in lane 4 g + t, with so many elements in each register."""
    return g + 8 * (i // each % 2), t * each + i % each + 4 * each * (i // (2 * each))


def place_b(i: int, g: int, t: int, each: int) -> Place:
    """Row and column of B's element b_i."""
    return t * each + i % each + 4 * each * (i // each), g


def place_c(i: int, g: int, t: int, _: int = 0) -> Place:
    """Row and column of C's and D's element i."""
    return (g if i < 2 else g + 8), t * 2 + (i & 1)


def registers(matrices: Array, place: Callable[[int, int, int, int], Place]) -> list[Array]:
    """The registers, n threads long each, that hold (warps, rows, columns) matrices."""
    held = np.zeros((N, matrices[0].size // WARP), matrices.dtype)
    for thread, i in np.ndindex(held.shape):
        warp, lane = divmod(thread, WARP)
        held[thread, i] = matrices[(warp, *place(i, lane >> 2, lane & 3, 4 // matrices.itemsize))]
    return [np.ascontiguousarray(column) for column in held.view(np.uint32).T]


def mma(opcode: str, a: Array, b: Array, c: Array, tolerance: float = 0.0, absolute: float = 0.0) -> Case:
    """A case from (warps, 16, K), (warps, K, 8) and (warps, 16, 8): A B + C, exactly for integers, else in float64."""
    result = opcode.split(".")[-4]
    wide = np.int64 if result == "s32" else np.float64
    total: Array = c.astype(wide)
    for k in range(a.shape[2]):
        with np.errstate(all="ignore"):
            total = total + a[:, :, k : k + 1].astype(wide) * b[:, k : k + 1, :].astype(wide)
    if "satfinite" in opcode:
        total = np.clip(total, -(1 << 31), (1 << 31) - 1)
    with np.errstate(all="ignore"):
        d = total.astype(KINDS[result])
    kind = {"f16": "f16x2", "f32": "f32", "s32": "b32"}[result]
    typed: dict[str, Typed] = {}
    for name, matrices, place in (("d", d, place_c), ("a", a, place_a), ("b", b, place_b), ("c", c, place_c)):
        ptx_type, each = kind if name in "cd" else "b32", registers(matrices, place)
        typed[name] = {f"{name}{r}": (ptx_type, x.view("f4") if ptx_type == "f32" else x) for r, x in enumerate(each)}
    text = f"{opcode} " + ", ".join(f"{{{', '.join(names)}}}" for names in typed.values()) + ";"
    note = "float32 sums in an order and rounding of the machine's own" if tolerance else "exact"
    loose: dict[str, Any] = {"tolerance": tolerance, "absolute": absolute, "note": note}
    return given(opcode, text, {**typed["a"], **typed["b"], **typed["c"]}, typed["d"], **loose)


whole = partial(small, most=8)


def normal(kind: str, shape: tuple[int, ...], seed: int) -> Array:
    values = np.random.default_rng(seed).standard_normal(shape).astype(KINDS[kind])
    return (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) if kind == "tf32" else values


def special(a: Array, b: Array, c: Array) -> None:
    """Puts infinities, NaN and zeros where they meet: rows 0 to 5 of A, columns 0 to 2 of B, row 9 of C."""
    a[:, 0, 1], a[:, 1, 2], a[:, 2, 3] = np.inf, -np.inf, np.nan
    a[:, 3, 0], a[:, 3, 2] = np.inf, -np.inf
    a[:, 4, :], a[:, 5, :] = 0, -0.0
    b[:, :, 0], b[:, 1, 1], b[:, 3, 2] = 0, np.inf, np.nan
    c[:, 9, 0], c[:, 9, 3], c[:, 9, 4] = np.nan, np.inf, -np.inf


def floats(opcode: str, depth: int, kind: str, result: str) -> Iterator[Case]:
    def operands(seed: int, make: Callable[[str, tuple[int, ...], int], Array] = whole) -> Operands:
        a, b = make(kind, (WARPS, 16, depth), seed), make(kind, (WARPS, depth, 8), seed + 1)
        return a, b, make(result, (WARPS, 16, 8), seed + 2)

    yield mma(opcode, *operands(10))
    a, b, c = operands(20)
    special(a, b, c)
    yield mma(opcode, a, b, c)
    step = 2.0**-10 if result == "f16" else 2.0**-22
    yield mma(opcode, *operands(30, normal), tolerance=2 * step, absolute=32 * step)
    if kind == "f16" and result == "f32":
        a, b, c = operands(40)
        a, b = np.ldexp(a.astype(np.float64), -24).astype(np.float16), np.ldexp(b, 10).astype(np.float16)  # denormals
        yield mma(opcode, a, b, np.ldexp(c, -14))
        yield mma(opcode, np.full_like(a, 65504), np.sign(b).astype(np.float16), np.ldexp(c, 5))


def integers(opcode: str, depth: int, a_kind: str, b_kind: str) -> Iterator[Case]:
    a, b = small(a_kind, (WARPS, 16, depth), 50), small(b_kind, (WARPS, depth, 8), 51)
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


MAKERS = (layouts, steps, starts, types, modifiers, widths, specials)
CASES = {
    "matrix": [*products(), *loads(), *stores(), transposed()],
    "wgmma": [case(each) for make in MAKERS for each in make()],
}
