"""Cases of wgmma: every type, width, layout and major, with matrices placed element by element.

Where an element lies in shared memory follows from the canonical layouts as CUTLASS writes them (`cute`'s shapes and
strides in units of 16 bytes, then ``Swizzle<B, 4, 3>``), which share no formula with the emulator's descriptors; where
it lies in registers from the ISA's tables. Bytes between elements hold other numbers, so that a wrong stride shows.

Products of small integers are exact on every machine. Wide results are folded into eight sums with weights, so that a
case has few outputs; the weights tell each register from its neighbours.

Tolerance of sums that are not exact: the hardware aligns products to the largest one and cuts what is below some 13
(8-bit factors) to 24 bits; 2**-20 of the largest magnitude, 2**-10 for 8-bit factors, covers it for one instruction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from tests.cases.harness import Case
from tests.cases.matrix import place_a, place_c

from ptxemu.values import Array

THREADS = 128
WARPS = 4
KINDS: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "s8": np.int8,
    "u8": np.uint8,
    "b1": np.uint8,
    "f32": np.float32,
    "s32": np.int32,
}
SPANS = {"none": 1, "128B": 8, "64B": 4, "32B": 2}  # chunks of 16 bytes in a row of the pattern
CODES = {"none": 0, "128B": 1, "64B": 2, "32B": 3}
FOLDS = 8  # sums that a wide result is folded into
FEW = 32  # columns up to which every number is an output
INTEGERS = ("s8", "u8")


@dataclass(frozen=True)
class Layout:
    """How a matrix lies in shared memory: a descriptor without the start address.

    Attributes:
        swizzle: ``none``, ``128B``, ``64B``, ``32B``.
        k_major: whether K is contiguous.
        leading, stride: bytes (LBO, SBO).
        start: bytes from a multiple of 1024.
        base: base offset, in rows of 128 bytes.
        step: bytes from one instruction's part along K to the next one's.
    """

    swizzle: str
    k_major: bool
    leading: int
    stride: int
    start: int = 0
    base: int = 0
    step: int = 0

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
        """The descriptor without its start address."""
        fields = self.leading // 16 << 16 | self.stride // 16 << 32 | self.base << 49
        return fields | CODES[self.swizzle] << 62


Mode = tuple[tuple[int | None, int], ...]


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
    """Bytes up to the end of the matrix, in whole kilobytes."""
    corners = [
        layout.at(row, k, width, part)
        for part in range(parts)
        for row in {0, rows - 1, *range(0, rows, 8)}
        for k in {0, depth - 1, *range(0, depth, 8)}
    ]
    return (max(corners) // 1024 + 1) * 1024


def small(kind: str, shape: tuple[int, ...], seed: int) -> Array:
    """Integers that every machine multiplies and sums exactly."""
    generator = np.random.default_rng(seed)
    if kind == "b1":
        return generator.integers(0, 256, shape).astype(np.uint8)
    if kind in INTEGERS:
        info = np.iinfo(KINDS[kind])
        return generator.integers(info.min, info.max, shape, endpoint=True).astype(KINDS[kind])
    return generator.integers(-6, 7, shape).astype(KINDS[kind])


def product(a: Array, b: Array, kind: str) -> Array:
    """A B from (M, K) and (N, K), in float64, or exact integers as float64."""
    if kind == "b1":
        a, b = np.unpackbits(a, axis=1), np.unpackbits(b, axis=1)
    with np.errstate(all="ignore"):
        return np.asarray(a.astype(np.float64) @ b.astype(np.float64).T)


@dataclass(frozen=True)
class Trial:
    """What one case multiplies; `operands` are the numbers behind the descriptors."""

    opcode: str
    a: Array  # (parts, 64, K)
    b: Array  # (parts, N, K)
    c: Array  # (64, N), in every lane one of four numbers
    left: Layout | None  # None: in registers
    right: Layout
    keep: bool = True
    signs: tuple[int, int] = (1, 1)
    tolerance: float = 0.0
    absolute: float = 0.0

    @property
    def kinds(self) -> tuple[str, str, str]:
        """Types of D, A and B."""
        d, a, b = [part for part in self.opcode.split(".") if part not in {"and", "popc"}][-3:]
        return d, a, b

    @property
    def n(self) -> int:
        """Columns."""
        return int(self.b.shape[1])


def addends(kind: str, n: int, seed: int) -> tuple[list[Array], Array]:
    """C: four registers per thread, used in turn, and the (64, N) matrix that this makes."""
    generator = np.random.default_rng(seed)
    numbers = generator.integers(-8, 9, (THREADS, 4, 2 if kind == "f16" else 1)).astype(KINDS[kind])
    matrix = np.zeros((64, n), KINDS[kind])
    rows, columns = right_places()
    for tile in range(n // 8):
        for i in range(4):
            register, half = (2 * tile + i // 2, i % 2) if kind == "f16" else (i, 0)
            matrix[rows[:, i], 8 * tile + columns[:, i]] = numbers[:, register % 4, half]
    words = np.ascontiguousarray(numbers).view(np.uint32).reshape(THREADS, 4)
    return [np.ascontiguousarray(words[:, r]) for r in range(4)], matrix


def held(matrix: Array, kind: str) -> Array:
    """(threads, registers) of u32 that hold a (64, N) matrix as D."""
    rows, columns = right_places()
    tiles = np.arange(0, matrix.shape[1], 8)[None, :, None]
    found = matrix[rows[:, None, :], columns[:, None, :] + tiles].astype(KINDS[kind])
    return np.ascontiguousarray(found).view(np.uint32).reshape(THREADS, -1)


@cache
def left_places(kind: str, depth: int) -> tuple[Array, Array]:
    """Row and column of A's elements, (threads, elements of a thread)."""
    width = {"s8": 1, "u8": 1, "tf32": 4}.get(kind, 2)
    places = np.array(
        [
            [place_a(i, thread % 32 >> 2, thread & 3, kind, depth) for i in range(16 // width)]
            for thread in range(THREADS)
        ]
    )
    return places[..., 0] + 16 * (np.arange(THREADS) // 32)[:, None], places[..., 1]


@cache
def right_places() -> tuple[Array, Array]:
    """Row and column, within eight columns, of a thread's four elements of D: (threads, 4)."""
    places = np.array(
        [[place_c(i, thread % 32 >> 2, thread & 3, "", 0) for i in range(4)] for thread in range(THREADS)]
    )
    return places[..., 0] + 16 * (np.arange(THREADS) // 32)[:, None], places[..., 1]


def left_registers(a: Array, kind: str) -> list[Array]:
    """A's four registers: each warp holds 16 rows as for ``mma``."""
    depth = a.shape[1]
    rows, columns = left_places({"e4m3": "s8", "e5m2": "s8", "b1": "s8"}.get(kind, kind), depth)
    words = np.ascontiguousarray(a[rows, columns]).view(np.uint32)
    return [np.ascontiguousarray(words[:, r]) for r in range(4)]


def case(trial: Trial, seed: int = 1) -> Case:
    """The case: images and registers as inputs, D or its folds as outputs."""
    d_kind, a_kind, _ = trial.kinds
    parts = len(trial.b)
    inputs: dict[str, tuple[str, Array]] = {}
    words, c = addends(d_kind, trial.n, seed)
    inputs.update({f"c{r}": ("b32", word) for r, word in enumerate(words)})
    total = c.astype(np.float64) if trial.keep else np.zeros(c.shape)
    for part in range(parts):
        with np.errstate(all="ignore"):
            sums = product(trial.a[part], trial.b[part], a_kind) * (trial.signs[0] * trial.signs[1])
            total = total + sums
    image, starts = images(trial)
    for word in range(len(image) // (4 * THREADS)):
        chunk, place = divmod(word, 4)
        column = image.view(np.uint32).reshape(-1, THREADS, 4)[chunk, :, place]
        inputs[f"w{word}"] = ("b32", np.ascontiguousarray(column))
    if trial.left is None:
        for part in range(parts):
            for r, register in enumerate(left_registers(trial.a[part], a_kind)):
                inputs[f"a{4 * part + r}"] = ("b32", register)
    with np.errstate(all="ignore"):
        if d_kind == "s32":
            exact = np.clip(total, -(2**31), 2**31 - 1) if "satfinite" in trial.opcode else total
            wanted = held(exact.astype(np.int64).astype(np.int32), d_kind)
        else:
            wanted = held(total.astype(KINDS[d_kind]), d_kind)
    text, outputs, expected = written(trial, len(image), starts, wanted)
    return Case(
        trial.opcode,
        text,
        inputs,
        outputs,
        expected,
        tolerance=trial.tolerance,
        absolute=trial.absolute,
        note="sums in an order and rounding of the machine's own" if trial.tolerance else "exact",
        target="sm_90a",
        version="8.6",
    )


def images(trial: Trial) -> tuple[Array, tuple[int, int]]:
    """Shared memory with A (unless it is in registers) and B, and where their layouts count from."""
    _, a_kind, b_kind = trial.kinds
    parts, _, depth = trial.b.shape
    width = np.dtype(KINDS[b_kind]).itemsize
    first = 0 if trial.left is None else end_of(trial.left, 64, depth, width, parts)
    size = -(-(first + end_of(trial.right, trial.n, depth, width, parts)) // (16 * THREADS)) * 16 * THREADS
    between = small(a_kind, (size // width,), 99)
    image = between.view(np.uint8).copy()
    for part in range(parts):
        if trial.left is not None:
            put(image, trial.a[part], trial.left, 0, part)
        put(image, trial.b[part], trial.right, first, part)
    return image, (0, first)


def written(
    trial: Trial, size: int, starts: tuple[int, int], wanted: Array
) -> tuple[str, dict[str, str], dict[str, Array]]:
    """The text, the outputs and what they must be."""
    d_kind = trial.kinds[0]
    count = wanted.shape[1]
    register = "f32" if d_kind == "f32" else "b32"
    lines = [
        f".shared .align 1024 .b8 image[{size}];",
        f".reg .b32 %s<4>; .reg .b64 %m<2>; .reg .pred %keep; .reg .{register} %d<{count}>;",
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
        lines += instruction(trial, part, starts, count)
    lines += ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"]
    if trial.n > FEW:
        folding, outputs, expected = folded(d_kind, wanted)
        return "\n".join([*lines, *folding]), outputs, expected
    kind = {"f16": "f16x2", "f32": "f32", "s32": "s32"}[d_kind]
    dtype = {"f16": np.uint32, "f32": np.float32, "s32": np.int32}[d_kind]
    lines += [f"mov.b32 o{r}, %d{r};" for r in range(count)]
    columns = {f"o{r}": np.ascontiguousarray(wanted[:, r]).view(dtype) for r in range(count)}
    return "\n".join(lines), dict.fromkeys(columns, kind), columns


def instruction(trial: Trial, part: int, starts: tuple[int, int], count: int) -> list[str]:
    """Descriptors and the wgmma of one part along K."""
    lines = []
    for index, layout in enumerate((trial.left, trial.right)):
        if layout is not None:
            lines.append(
                f"add.u32 %s2, %s0, {starts[index] + layout.start + part * layout.step}; and.b32 %s2, %s2, 0x3ffff; "
                f"shr.u32 %s2, %s2, 4; cvt.u64.u32 %m{index}, %s2; or.b64 %m{index}, %m{index}, {layout.bits:#x};"
            )
    d = ", ".join(f"%d{r}" for r in range(count))
    a = "%m0" if trial.left else "{" + ", ".join(f"a{4 * part + r}" for r in range(4)) + "}"
    operands = [f"{{{d}}}", a, "%m1", "%keep"]
    if trial.kinds[0] != "s32":
        operands += [str(sign) for sign in trial.signs]
    if trial.kinds[1] in {"f16", "bf16"}:
        operands += [str(int(not layout.k_major)) for layout in (trial.left, trial.right) if layout is not None]
    return [*lines, f"{trial.opcode} {', '.join(operands)};"]


def folded(kind: str, wanted: Array) -> tuple[list[str], dict[str, str], dict[str, Array]]:
    """Eight weighted sums of D's registers (of f16: of both halves), exact in f32 or modulo 2**32."""
    lines = ["mov.b32 o%d, 0;" % fold for fold in range(FOLDS)]  # noqa: UP031 - braces are many here
    if kind == "f16":
        lines = [".reg .b16 %h<2>; .reg .f32 %g<2>;", *lines]
        numbers = wanted.view(np.float16)
        for i in range(numbers.shape[1]):
            lines += [f"mov.b32 {{%h0, %h1}}, %d{i // 2}; cvt.f32.f16 %g0, %h{i % 2};"]
            lines += [f"fma.rn.f32 o{i % FOLDS}, %g0, {weight(i)}.0, o{i % FOLDS};"]
    elif kind == "f32":
        numbers = wanted.view(np.float32)
        lines += [f"fma.rn.f32 o{i % FOLDS}, %d{i}, {weight(i)}.0, o{i % FOLDS};" for i in range(wanted.shape[1])]
    else:
        numbers = wanted.view(np.int32)
        lines += [f"mad.lo.s32 o{i % FOLDS}, %d{i}, {weight(i)}, o{i % FOLDS};" for i in range(wanted.shape[1])]
    integers = numbers.astype(np.int64) * np.array([weight(i) for i in range(numbers.shape[1])])
    sums = [integers[:, fold::FOLDS].sum(axis=1) for fold in range(FOLDS)]
    if kind == "s32":
        expected = {f"o{fold}": each.astype(np.uint32).view(np.int32) for fold, each in enumerate(sums)}
        return lines, dict.fromkeys(expected, "s32"), expected
    floats = {f"o{fold}": each.astype(np.float32) for fold, each in enumerate(sums)}
    return lines, dict.fromkeys(floats, "f32"), floats


def weight(register: int) -> int:
    """Weights that tell neighbours apart."""
    return register * 7 % 23 + 1


# --- which cases ----------------------------------------------------------------------------------------------------


def opcode_of(n: int, d: str, a: str, b: str = "", *, clamp: str = "") -> str:
    depth = {"f16": 16, "bf16": 16, "tf32": 8, "b1": 256}.get(a, 32)
    tail = ".and.popc" if a == "b1" else ""
    return f"wgmma.mma_async.sync.aligned.m64n{n}k{depth}{clamp}.{d}.{a}.{b or a}{tail}"


def trial(
    n: int,
    kinds: tuple[str, str, str],
    left: Layout | None,
    right: Layout,
    *,
    parts: int = 1,
    seed: int = 5,
    clamp: str = "",
) -> Trial:
    d, a, b = kinds
    depth = 32 // np.dtype(KINDS[a]).itemsize
    numbers = small(a, (parts, 64, depth), seed), small(b, (parts, n, depth), seed + 1)
    return Trial(opcode_of(n, d, a, b, clamp=clamp), *numbers, np.zeros((64, n)), left, right)


def layouts() -> Iterator[Trial]:
    """Every swizzle and major of both matrices, close and apart."""
    for kind in ("f16", "bf16"):
        for pad in (0, 128) if kind == "f16" else (0,):
            for swizzle in SPANS:
                for a_major in (True, False):
                    for b_major in (True, False):
                        left = tight(swizzle, 64, k_major=a_major, pad=pad)
                        yield trial(24, ("f32", kind, kind), left, tight(swizzle, 24, k_major=b_major, pad=pad))
                for b_major in (True, False):
                    yield trial(32, ("f32", kind, kind), None, tight(swizzle, 32, k_major=b_major, pad=pad))
    for first, second in (("128B", "none"), ("64B", "32B"), ("none", "128B")):
        left, right = tight(first, 64, k_major=True), tight(second, 16, k_major=False)
        yield trial(16, ("f32", "f16", "f16"), left, right)


def steps() -> Iterator[Trial]:
    """Chains along K: descriptors that begin within a swizzle's pattern, or one pattern further."""
    for swizzle in ("128B", "64B", "32B"):
        within = SPANS[swizzle] // 2
        left, right = (replace(tight(swizzle, rows, k_major=True), step=32) for rows in (64, 16))
        yield trial(16, ("f32", "f16", "f16"), left, right, parts=within)
        apart = replace(tight(swizzle, 64, k_major=False), leading=8192, step=2 * 128 * SPANS[swizzle])
        wide = tight(swizzle, 64, k_major=False)
        wide = replace(wide, leading=4 * wide.stride, step=2 * wide.stride)
        yield trial(64, ("f32", "f16", "f16"), None, wide, parts=2)
        yield trial(16, ("f32", "bf16", "bf16"), replace(apart, leading=4 * apart.stride), right, parts=min(within, 2))
    plain = tight("none", 16, k_major=True)
    yield trial(16, ("f32", "f16", "f16"), None, replace(plain, stride=512, step=256), parts=2)


def starts() -> Iterator[Trial]:
    """Patterns that begin, or are entered, at an address that is not a multiple of their size."""
    for swizzle, rows in (("128B", (1, 3, 6)), ("64B", (1, 3)), ("32B", (1,))):
        for row in rows:
            right = tight(swizzle, 16, k_major=True)
            yield trial(16, ("f32", "f16", "f16"), None, replace(right, start=128 * row))
            yield trial(16, ("f32", "f16", "f16"), None, replace(right, start=128 * row, base=row))


def types() -> Iterator[Trial]:
    """Every pair of types, from registers and from memory, under every swizzle."""
    eight = ("e4m3", "e5m2")
    kinds = [(d, a, b) for d in ("f32", "f16") for a in eight for b in eight]
    kinds += [("s32", a, b) for a in INTEGERS for b in INTEGERS] + [("s32", "b1", "b1")]
    for index, each in enumerate([("f16", "f16", "f16"), ("f32", "tf32", "tf32"), *kinds]):
        for turn, swizzle in enumerate(SPANS):
            left = None if (index + turn) % 2 else tight(swizzle, 64, k_major=True)
            yield trial(16, each, left, tight(swizzle, 16, k_major=True), seed=index)
    for a in INTEGERS:
        for b in INTEGERS:
            left, right = tight("32B", 64, k_major=True), tight("32B", 24, k_major=True)
            yield trial(24, ("s32", a, b), left, right, clamp=".satfinite")


def modifiers() -> Iterator[Trial]:
    """Signs of A and B, sums that begin anew."""
    for kinds in (("f32", "f16", "f16"), ("f16", "f16", "f16"), ("f32", "tf32", "tf32"), ("f32", "e4m3", "e5m2")):
        left, right = tight("64B", 64, k_major=True), tight("64B", 16, k_major=True)
        for signs in ((-1, 1), (1, -1), (-1, -1)):
            yield replace(trial(16, kinds, left, right), signs=signs)
        yield replace(trial(16, kinds, None, right), keep=False)
    for kind in ("s8", "b1"):
        yield replace(trial(16, ("s32", kind, kind), None, tight("none", 16, k_major=True)), keep=False)


def widths() -> Iterator[Trial]:
    """Every N."""
    for n in range(8, 257, 8):
        swizzle = list(SPANS)[n // 8 % 4]
        close = tight("32B", n, k_major=True)
        a = tight(swizzle, 64, k_major=True)
        yield trial(n, ("f32", "f16", "f16"), a, close, seed=n)
        yield trial(n, ("f32", "bf16", "bf16"), None, tight("none", n, k_major=False), seed=n)
        yield trial(n, ("f16", "f16", "f16"), None, close, seed=n)
        if n % 16 == 0:
            yield trial(n, ("f32", "tf32", "tf32"), a, close, seed=n)
            yield trial(n, ("f32", "e4m3", "e4m3"), None, close, seed=n)
            yield trial(n, ("s32", "s8", "u8"), a, close, seed=n)


def specials() -> Iterator[Trial]:
    """Infinities, NaN, zeros and numbers whose sums are not exact."""
    both: list[tuple[str, str, str]] = [("f32", kind, kind) for kind in ("f16", "bf16", "tf32")]
    for kinds in (*both, ("f16", "f16", "f16")):
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
    tiny = trial(16, ("f32", "f16", "f16"), None, tight("none", 16, k_major=True))
    a = np.ldexp(tiny.a.astype(np.float64), -24).astype(np.float16)  # denormals
    yield replace(tiny, a=a, b=np.ldexp(tiny.b, 10).astype(np.float16), keep=False)
    for kind in ("e4m3", "e5m2"):
        base = trial(16, ("f32", kind, kind), None, tight("none", 16, k_major=True))
        a, b = (np.random.default_rng(3).standard_normal(x.shape).astype(x.dtype) for x in (base.a, base.b))
        yield replace(base, a=a, b=b, tolerance=2.0**-9, absolute=2.0**-6)


CASES = [case(each) for make in (layouts, steps, starts, types, modifiers, widths, specials) for each in make()]
