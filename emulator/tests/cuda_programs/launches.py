"""Launches and references: a function of the name of each ``.cu`` file."""

from collections.abc import Iterator, Sequence
import math

import ml_dtypes
import numpy as np
from tests.cases.reference_int import parts, permute, quotient, wrap
from tests.cuda_programs.program import Program, one

from ptxemu.values import Array

F32, I32, U32 = np.float32, np.int32, np.uint32
BF16 = ml_dtypes.bfloat16
WORD, WIDE = (1 << 32) - 1, (1 << 64) - 1
ERF, LGAMMA = np.vectorize(math.erf), np.vectorize(math.lgamma)


def reductions() -> Iterator[Program]:
    rng = np.random.default_rng(1)
    n = 3 * 128 - 37
    values: Array = rng.standard_normal(n, F32)
    sums = np.concatenate([values, np.zeros(37, F32)]).reshape(-1, 32)
    for offset in (16, 8, 4, 2, 1):  # in the order of __shfl_down_sync
        sums = sums[:, :offset] + sums[:, offset : 2 * offset]
    yield one("warp_sum", 3, 128, (values, ..., n), sums.reshape(-1))
    values = rng.integers(-(1 << 60), 1 << 60, 128)
    yield one("warp_scan", 2, 64, (values, ...), np.cumsum(values.reshape(-1, 32), axis=1).reshape(128))
    values = rng.integers(-1000, 1000, 2000).astype(np.float64)  # whole numbers: their sum is exact in any order
    yield one("block_sum", 3, 256, (values, ..., values.size), values.sum(keepdims=True))
    values = rng.integers(-(1 << 31), 1 << 31, 192, dtype=I32)
    yield one("volatile_max", 3, 64, (values, ...), values.reshape(3, 64).max(axis=1))
    values = rng.integers(0, 1 << 32, 256, dtype=U32)
    before = np.cumsum(values, dtype=U32) - values
    yield one("block_scan", 1, 128, (values, ..., 256), before, shared_bytes=1024)
    values = np.minimum(rng.geometric(0.03, 3000), 255).astype(np.uint8)
    yield one("histogram", 4, 96, (values, ..., values.size), np.bincount(values, minlength=256).astype(U32))
    values, start = rng.standard_normal(300, F32), np.full(1, -np.inf, F32)
    yield one("maximum", 3, 128, (values, start, 300), after={1: values.max(keepdims=True)})
    values = rng.integers(0, 1 << 24, 256, dtype=I32)
    start = np.array([1 << 30, -5, -1, 0, 77, 9, 900], I32)
    bits = np.bitwise_and.reduce(values | 0xF0F0), np.bitwise_or.reduce(values & 0x0F0F)
    last = np.bitwise_xor.reduce(values) ^ 77, 9 - values.astype(np.int64).sum(), (900 + 256) % 1001
    left = np.array([values.min(), values.max(), *bits, *last], np.int64).astype(I32)
    wide = np.array([values[k::3].astype(np.uint64).sum() << np.uint64(8) for k in range(3)])
    yield one("atomics", 4, 64, (values, start, ...), wide, after={1: left})
    yield from _cooperating(rng)


def _cooperating(rng: np.random.Generator) -> Iterator[Program]:
    values = rng.integers(-90, 90, 96, dtype=I32)
    rows, bits = np.zeros((96, 8), I32), np.uint32(1) << np.arange(32, dtype=U32)
    for thread in range(96):
        mine, lane = values[thread // 32 * 32 :][:32], thread % 32
        same = mine & 3 == mine[lane] & 3
        ballots = (bits[chosen].sum().astype(U32).view(I32) for chosen in (mine & 1 == 1, same))
        last = mine[np.flatnonzero(same)[0]], mine.sum() + (mine == 7).any(), 32
        rows[thread] = [(values > 0).sum(), 1, 0, *ballots, *last]
    yield one("votes", 1, 96, (values, ...), rows)
    values = rng.integers(-100, 100, 128, dtype=I32)
    sums, count = values.reshape(-1, 8).sum(axis=1).astype(I32), np.array([(values > 0).sum()], I32)
    yield one("tiles", 2, 64, (values, ..., ...), sums, count)
    values = rng.integers(-100, 100, 64, dtype=I32)
    yield one("named_barriers", 1, 128, (values, ...), 3 * values[::-1])
    values = rng.integers(-99, 99, (3, 256)).astype(F32)  # sums are exact
    yield one("block_reduction", 3, 256, (values, ...), values.sum(axis=1, dtype=F32))
    values = rng.permutation(256).astype(I32)
    yield one("block_maximum", 1, 256, (values, ...), np.array([255, values.argmax()], I32))


def matrices() -> Iterator[Program]:
    rng = np.random.default_rng(2)
    for kernel, conflicts in (("transpose_plain", 31 * 32 * 4), ("transpose_padded", 0)):
        matrix = rng.standard_normal((64, 64), F32)  # plain: each of 32 rows of a tile is read by a warp from one bank
        yield one(kernel, (2, 2), (32, 8), (matrix, ..., 64), matrix.T.copy(), conflicts=conflicts)
    m, n, k = 40, 24, 37
    for kernel, dtype, tolerance in (("gemm_f32", F32, 1e-5), ("gemm_f64", np.float64, 1e-13)):
        a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
        wanted = (a.astype(np.float64) @ b.astype(np.float64)).astype(dtype)
        yield one(kernel, (2, 3), (16, 16), (a, b, ..., m, n, k), wanted, tolerance=tolerance)
    a, b = rng.standard_normal((16, 24)).astype(np.float16), rng.standard_normal((24, 32)).astype(np.float16)
    total: Array = np.zeros((16, 32), np.float16)
    for i in range(24):  # a fused multiply-add per step: one rounding, exact in fp64
        total = (a[:, i, None].astype(np.float64) * b[i].astype(np.float64) + total).astype(np.float16)
    yield one("gemm_half2", (2, 2), (8, 8), (a, b, ..., 32, 24), total)
    a, b = rng.standard_normal((16, 16)).astype(BF16), rng.standard_normal((16, 8)).astype(BF16)
    yield one("mma_bf16", 1, 32, (a, b, ...), a.astype(F32) @ b.astype(F32), tolerance=1e-5)
    matrix = rng.integers(-50, 50, (5, 128)).astype(F32)
    yield one("pipeline_sum", 1, 32, (matrix, ..., 5), matrix.sum(axis=1))
    cube = rng.standard_normal((5, 6, 9), F32)
    edge, x, y, z = np.pad(cube, 1, mode="edge"), *(slice(1, -1),) * 3
    total = edge[z, y, :-2] + edge[z, y, 2:]
    total = total + (edge[z, :-2, x] + edge[z, 2:, x])
    total = total + (edge[:-2, y, x] + edge[2:, y, x])
    yield one("stencil", (3, 2, 2), (4, 4, 4), (cube, ..., 9, 6, 5), total / F32(6), tolerance=1e-6)


def _table(x: Array, *, double: bool) -> Array:
    a = np.abs(x) + 0.125
    rounded = np.floor(x) + np.ceil(x) - np.trunc(x) + np.rint(x) + np.trunc(x + np.copysign(0.5, x))
    roots = [np.sqrt(a), 1 / np.sqrt(a)]
    if double:
        converted = x.astype(F32).astype(np.float64) + np.trunc(x) + np.trunc(x * 1e9)
        return np.array([np.exp(x), np.log(a), np.sin(x), np.cos(x), np.tanh(x), ERF(x), a**x, *roots, 1 / a, x / a,
                         np.fmod(x, 0.75), rounded, converted])  # fmt: skip
    return np.array([
        np.exp(x), np.exp2(x), np.log(a), np.log2(a), np.log1p(a), np.sin(x), np.cos(x), np.tan(x), np.tanh(x),
        ERF(x), np.arctan2(x, a), np.arcsin(x / 8), a**x, *roots, np.cbrt(x), 1 / a, x / a, np.fmod(x, 0.75), rounded,
        x * a + 1 + np.copysign(a, x) + np.minimum(x, a), 8 * x + a / 4, np.hypot(x, a), LGAMMA(a),
    ])  # fmt: skip


def functions() -> Iterator[Program]:
    rng = np.random.default_rng(3)
    rows = 4 * rng.standard_normal((3, 200), F32)
    wide = np.exp(rows.astype(np.float64) - rows.max(axis=1, keepdims=True))
    wanted = (wide / wide.sum(axis=1, keepdims=True)).astype(F32)
    yield one("softmax", 3, 96, (rows, ..., 200), wanted, tolerance=2e-6, fast=1e-5)
    rows, scale = rng.standard_normal((8, 128), F32), rng.standard_normal(128, F32)
    wide = rows.astype(np.float64)
    centred = wide - wide.mean(axis=1, keepdims=True)
    wanted = (centred / np.sqrt(wide.var(axis=1, keepdims=True) + 1e-5) * scale).astype(F32)
    yield one("layernorm", 2, (32, 4), (rows, scale, ..., 1e-5), wanted, tolerance=1e-5)
    double = rng.uniform(-4, 4, 90)
    single = double.astype(F32)
    wanted = _table(single.astype(np.float64), double=False).astype(F32)
    yield one("functions_f32", 3, 32, (single, ..., 90), wanted, tolerance=2e-6, fast=1e-4)
    yield one("functions_f64", 3, 32, (double, ..., 90), _table(double, double=True), tolerance=1e-14)
    x = (rng.uniform(-1, 1, 32) * 10.0 ** rng.integers(-2, 30, 32)).astype(F32)
    wanted = np.stack([np.sin(x.astype(np.float64)), np.cos(x.astype(np.float64))], axis=1).astype(F32)
    # Fast math has no reduction: any result between -1 and 1 will do there.
    yield one("large_angles", 1, 32, (x, ...), wanted, tolerance=1e-6, fast=2.0)
    width, height, most = 24, 20, 60
    cr = F32(-2) + F32(3) * np.arange(width, dtype=F32)[None, :] / F32(width) + np.zeros((height, 1), F32)
    ci = F32(-1.5) + F32(3) * np.arange(height, dtype=F32)[:, None] / F32(height) + np.zeros((1, width), F32)
    zr, zi, count = np.zeros_like(cr), np.zeros_like(cr), np.zeros(cr.shape, np.uint16)
    for _ in range(most):
        inside = zr * zr + zi * zi < 4
        count += inside
        zr, zi = np.where(inside, zr * zr - zi * zi + cr, zr), np.where(inside, 2 * zr * zi + ci, zi)
    yield one("mandelbrot", (2, 3), (16, 8), (..., width, height, most), count)
    bodies = rng.uniform(-1, 1, (128, 4)).astype(F32)
    wide = bodies.astype(np.float64)
    away = wide[None, :, :3] - wide[:, None, :3]
    distance = (away**2).sum(axis=2, keepdims=True) + 0.01
    wanted = (away * wide[None, :, 3:] / distance**1.5).sum(axis=1).astype(F32)
    yield one("nbody", 2, 64, (bodies, ..., 128), wanted, tolerance=2e-4)


def structs() -> Iterator[Program]:
    rng = np.random.default_rng(5)
    weights, bias, steps = np.array([3, -1, 4, -1, 5], I32), np.array([0.5, -2.0, 8.0], F32), 5
    members = (np.int8(-3), np.int16(-7), np.zeros(70, F32), np.uint8(steps), np.float64(0.25))
    i = np.arange(70)
    value = 0.25 * (i - 7) + weights[i % 5] - 3
    value += sum(bias[0] if step % 2 else bias[1] if step % 3 else bias[2] for step in range(steps))
    yield one("structure", 3, 32, ((*members, *weights, tuple(bias)), 70), after={0: value.astype(F32)})
    x, i = (rng.integers(-64, 64, 32) / 8).astype(F32), np.arange(32)  # every product is exact
    table, offsets = np.array([[1, 2, 3], [-4, 5, 0]]), np.array([10, 20, 30, 40])
    letters = np.frombuffer(b"ptx", np.uint8).astype(int)
    value = ((3 * x + 0.25) * x - 0.5) * x + 1 + table[i & 1, i % 3] + offsets[i & 3] + letters[i % 3] + 20
    yield one("globals", 1, 32, (x, ..., ...), value.astype(F32), np.array([8], U32), tolerance=1e-6)
    a, b = rng.integers(-128, 128, (32, 4), dtype=np.int8), rng.integers(-1000, 1000, (32, 2), dtype=np.int16)
    c, d = rng.integers(-100, 100, (32, 4)).astype(F32), rng.integers(-100, 100, (32, 2)).astype(np.float64)
    wide, unsigned = a.astype(int), a[:, 3].view(np.uint8)
    first, second = wide[:, 0] + b[:, 0] + c[:, 0] + d[:, 0], wide[:, 1] * c[:, 1] + d[:, 1]
    columns = [first, second, wide[:, 2] - b[:, 1] + c[:, 2], unsigned + c[:, 3]]
    yield one("vectors", 1, 32, (a, b, c, d, ...), np.stack(columns, axis=1).astype(F32))
    numbers = rng.standard_normal(32) * 10.0 ** rng.integers(-30, 30, 32)
    bits = numbers.copy()
    bits.view(np.uint16).reshape(32, 4)[i, i % 4] ^= 0x8001
    words = bits.view(U32).reshape(32, 2)
    exponent = (numbers.astype(F32).view(U32) >> 23) & 0xFF
    fields = (words[:, 1] >> 31) + exponent * 3 + (words[:, 0] & 0x7FFFFF)
    yield one("punning", 1, 32, (numbers, ...), np.stack([words[:, 0] ^ words[:, 1], fields], axis=1))
    yield from _small_floats(rng)
    x, sums = rng.uniform(0, 8, 64).astype(F32), []
    for start in x:
        total = F32(start)
        for step in (*range(2), *range(int(start) & 3)):
            first_, second_ = (1.5, 0) if step == 0 else (float(step - 1) * 1.5, int(total))
            total = F32(total + F32(F32(first_) + F32(second_) + F32(0.5)))
        sums.append(total)
    yield one("calls", 1, 64, (x, ...), np.array(sums, F32), tolerance=1e-6)
    values, j = rng.integers(0, 100, 32, dtype=I32), np.arange(64, dtype=I32)
    yield one("asserted", 1, 32, (values, ...), 2 * values)
    yield one("pointers", 1, 64, (...,), np.stack([np.where(j & 1, j * j, 2 * j), np.where(j % 3, j, j * j)], axis=1))
    four = (np.int32(4), np.int32(-3), np.int32(2), np.int32(-1))
    yield one("grid_constant", 1, 32, (four, ...), np.tile(np.array(four), 8))


def _small_floats(rng: np.random.Generator) -> Iterator[Program]:
    """Half precision and bfloat16: fp64 with one rounding per instruction."""
    a, b = rng.standard_normal(32).astype(np.float16), rng.standard_normal((32, 2)).astype(np.float16)
    x, y = b.astype(np.float64), a.astype(np.float64)[:, None]
    z = np.maximum((x * y + np.array([0.5, -2.0])).astype(np.float16).astype(np.float64), -x)
    z = np.maximum((z * y + x).astype(np.float16).astype(np.float64), 0)
    swap = z[:, 0] > z[:, 1]
    z[swap] = z[swap, ::-1]
    square = (y * y).astype(np.float16).astype(np.float64)
    wanted = (z + np.concatenate([square, np.rint(y)], axis=1)).astype(np.float16)
    yield one("half_arithmetic", 1, 32, (a, b, ...), wanted, tolerance=2e-3)
    a, b = (rng.standard_normal((32, 2)).astype(BF16) for _ in range(2))
    x, y = a.astype(np.float64), b.astype(np.float64)
    z = np.minimum((x * y + x).astype(BF16).astype(np.float64), (x + y).astype(BF16).astype(np.float64))
    z = (z * (y - x).astype(BF16).astype(np.float64)).astype(BF16).astype(F32)
    wide = np.stack([z[:, 0] * F32(0.3), z[:, 1] - z[:, 0]], axis=1).astype(BF16)
    signs = np.where((x > y).all(axis=1, keepdims=True), 1, -1).astype(F32)
    yield one("bfloat_arithmetic", 1, 32, (a, b, ...), (signs * wide.astype(F32)).astype(BF16))


def libraries() -> Iterator[Program]:
    rng = np.random.default_rng(6)
    keys = rng.integers(-(1 << 31), 1 << 31, (2, 512), dtype=I32)
    before = np.cumsum(keys, axis=1, dtype=I32) - keys
    yield one("radix_sort", 2, 128, (keys, np.zeros_like(keys)), after={0: np.sort(keys, axis=1), 1: before})
    values = rng.integers(0, 99, (2, 256), dtype=I32)
    yield one("group_copy", 2, 256, (values, ...), values[:, ::-1].copy())
    rows = rng.standard_normal((4, 64), F32)
    yield one("thread_pipeline", 1, 64, (rows, ..., 4), 2 * rows)
    values = rng.integers(1, 99, (4, 16), dtype=I32)
    wanted = values.sum(axis=1, keepdims=True, dtype=I32) + np.maximum.accumulate(values, axis=1)
    total = np.array([values.sum()], I32)  # more than any thread's index, from the first warp on
    yield one("group_reduce", 1, 64, (values, ..., ...), wanted, total)


def _signed(value: int, bits: int = 32) -> int:
    return wrap(value, f"s{bits}")


def _quotients(a: int, b: int) -> list[int]:
    ua, ub, low, divisor = a & WIDE, b & WIDE, _signed(a), _signed(b) | 1
    small = quotient(low, 7) + _signed((a & WORD) % 10 + quotient(low, divisor))
    rows = [quotient(a, b), a - b * quotient(a, b), ua // ub, ua % ub, ua * ub >> 64, a * b >> 64, ua * ub + ua >> 40]
    return [*rows, small]


def _joined(parts: Sequence[int], bits: int) -> int:
    return sum((part & ((1 << bits) - 1)) << bits * place for place, part in enumerate(parts))


def _tricks(x: int, y: int) -> list[int]:
    both, other, sx, sy, shift = x << 32 | y, y << 32 | x, _signed(x), _signed(y), y & 31
    pairs8 = list(zip(parts(x, "u", 8), parts(y, "u", 8), strict=True))
    signed8 = zip(parts(x, "s", 8), parts(y, "s", 8), strict=True)
    signed16 = zip(parts(x, "s", 16), parts(y, "s", 16), strict=True)
    return [
        x.bit_count() + 100 * both.bit_count(), 32 - x.bit_length() + 100 * (64 - both.bit_length()),
        (x & -x).bit_length() + 100 * (both & -both).bit_length(),
        int(f"{x:032b}"[::-1], 2) ^ int(f"{both:064b}"[::-1], 2),
        permute(x, y, 0x5140), permute(x, y, y & 0x7777), other << 13 >> 32, other >> shift,
        other << min(y, 32) >> 32, x * y >> 32, sx * sy >> 32, _signed(x, 24) * _signed(y, 24), abs(sx - sy) + 5,
        (x + y) // 2, (sx + sy + 1) // 2, 9 + sum(a * b for a, b in signed8), _joined([a + b for a, b in pairs8], 8),
        _joined([abs(a - b) for a, b in pairs8], 8), _joined([max(a, b) for a, b in signed16], 16), abs(x - y) + 1,
        x >> shift | sx >> (y & 15), x << shift | (x & 255) * _signed(y, 8),
    ]  # fmt: skip


def _steps(program: bytes, start: int, thread: int) -> int:
    stack, pc = [start], 0
    while pc < len(program):
        code, a, b = program[pc], stack[-1], stack[-2] if len(stack) > 1 else 0
        assert len(stack) > 1 or code not in {2, 3, 4, 5, 6, 10}, "the kernel would leave its stack"
        binary = {2: a + b, 3: a - b, 4: a * b, 5: a ^ b, 6: quotient(a, b) if b else -1}
        unary = {7: -a, 8: (a & WORD).bit_count(), 9: a >> 3}
        if code in {0, 1}:
            stack.append(thread if code == 0 else a)
        elif code in binary:
            stack[-2:] = [_signed(binary[code])]
        elif code == 10:
            stack[-2:] = [a, b]
        elif code == 11:
            pc += a & 1
        else:
            stack[-1] = _signed(unary.get(code, code))
        pc += 1
    return stack[-1]


def _collatz(n: int) -> int:
    count = 0
    while n > 1:
        n, count = (n // 2 if n % 2 == 0 else 3 * n + 1), count + 1
    return count


def _raised(record: bytes) -> tuple[bytes, int, int]:
    text, start, digest = bytearray(record), True, 2166136261
    for place, byte in enumerate(text):
        if start and 97 <= byte <= 122:
            text[place] -= 32
        start = text[place] == 32 or text[place] >= 128
        digest = (digest ^ text[place]) * 16777619 & WORD
    return bytes(text), digest, len(text)


def integers() -> Iterator[Program]:
    rng = np.random.default_rng(4)
    a: Array = rng.integers(-(1 << 63), 1 << 63, 70) >> rng.integers(0, 60, 70)
    b: Array = rng.integers(-(1 << 63), 1 << 63, 70) >> rng.integers(0, 62, 70)
    b[b == 0] = 3
    rows = [[_signed(value, 64) for value in _quotients(int(x), int(y))] for x, y in zip(a, b, strict=True)]
    yield one("wide_division", 3, 32, (a, b, ..., 70), np.array(rows, np.int64).T.copy())
    a, b = (rng.integers(0, 1 << 32, 80, dtype=np.uint32) >> rng.integers(0, 32, 80, dtype=np.uint32) for _ in range(2))
    a[:3], b[:4] = (0, WORD, 1 << 31), (0, 1 << 31, WORD, 0)
    rows = [[value & WORD for value in _tricks(int(x), int(y))] for x, y in zip(a, b, strict=True)]
    yield one("bit_tricks", 3, 32, (a, b, ..., 80), np.array(rows, np.uint32).T.copy())
    keys = rng.permutation(256).astype(np.int32) * 7 - 900
    values = rng.integers(0, 256, 256, dtype=np.uint8)
    order = np.argsort(keys.reshape(2, 128), axis=1)
    taken = [np.take_along_axis(array.reshape(2, 128), order, axis=1) for array in (keys, values)]
    yield one("bitonic_sort", 2, 128, (keys, values), after=dict(enumerate(taken)))
    numbers = np.sort(rng.integers(0, 1000, 300, dtype=np.int32))
    ends, wanted = rng.integers(0, 301, 100, dtype=np.int32), rng.integers(-5, 1005, 100, dtype=np.int32)
    places = np.array([np.searchsorted(numbers[:end], x) for end, x in zip(ends, wanted, strict=True)], np.int32)
    yield one("binary_search", 2, 64, (numbers, ends, wanted, ..., 100), places)
    starts = np.arange(64, dtype=np.uint32)
    yield one("collatz", 2, 32, (starts, ...), np.array(list(map(_collatz, starts.tolist())), np.int32))
    words = [b"the quick brown", b"", b"fox", b"jumps over the!!", b"a\xe9b c z", b"  two", b"Q"]
    records = np.array(words * 6, "S16")
    texts, hashes, lengths = zip(*map(_raised, records.tolist()), strict=True)
    results = np.array(texts, "S16").view(np.int8), np.array(hashes, np.uint32), np.array(lengths, np.int16)
    yield one("text", 1, 64, (records.view(np.int8), ..., ..., ..., len(records), 16), *results)
    program = bytes([1, 0, 2, 1, 4, 0, 11, 7, 5, 1, 9, 3, 0, 10, 6, 11, 8, 0, 1, 77, 4, 2, 11, 11, 9, 0, 3])
    starts = rng.integers(-1000, 1000, 64, dtype=np.int32)
    ends = np.array([_steps(program, int(start), i) for i, start in enumerate(starts)], np.int32)
    yield one("stack_machine", 2, 32, (np.frombuffer(program, np.uint8), len(program), starts, ...), ends)
