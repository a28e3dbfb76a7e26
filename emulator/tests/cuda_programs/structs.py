"""Launches and references of ``structs.cu``."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from tests.cuda_programs.program import Program

from ptxemu.values import Array

_rng = np.random.default_rng(5)
BF16 = ml_dtypes.bfloat16


def _structure() -> Program:
    n, steps = 70, 5
    weights, bias = np.array([3, -1, 4, -1, 5], np.int32), np.array([0.5, -2.0, 8.0], np.float32)
    members = (np.int8(-3), np.int16(-7), np.zeros(n, np.float32), np.uint8(steps), np.float64(0.25))
    i = np.arange(n)
    value = 0.25 * (i - 7) + weights[i % 5] - 3
    value += sum(bias[0] if step % 2 else bias[1] if step % 3 else bias[2] for step in range(steps))
    structure = (*members, *weights, tuple(bias))
    return Program("structure", (3,), (32,), (structure, n), {0: value.astype(np.float32)})


def _globals() -> Program:
    x = (_rng.integers(-64, 64, 32) / 8).astype(np.float32)  # every product is exact
    i = np.arange(32)
    table, offsets = np.array([[1, 2, 3], [-4, 5, 0]]), np.array([10, 20, 30, 40])
    letters = np.frombuffer(b"ptx", np.uint8).astype(int)
    value = ((3 * x + 0.25) * x - 0.5) * x + 1 + table[i & 1, i % 3] + offsets[i & 3] + letters[i % 3] + 20
    arguments = (x, np.zeros_like(x), np.zeros(1, np.uint32))
    return Program("globals", (1,), (32,), arguments, {1: value.astype(np.float32), 2: np.array([8], np.uint32)}, 1e-6)


def _vectors() -> Program:
    a = _rng.integers(-128, 128, (32, 4), dtype=np.int8)
    b = _rng.integers(-1000, 1000, (32, 2), dtype=np.int16)
    c = _rng.integers(-100, 100, (32, 4)).astype(np.float32)
    d = _rng.integers(-100, 100, (32, 2)).astype(np.float64)
    wide = a.astype(int)
    columns = [
        wide[:, 0] + b[:, 0] + c[:, 0] + d[:, 0],
        wide[:, 1] * c[:, 1] + d[:, 1],
        wide[:, 2] - b[:, 1] + c[:, 2],
        a[:, 3].view(np.uint8) + c[:, 3],
    ]
    expected = np.stack(columns, axis=1).astype(np.float32)
    return Program("vectors", (1,), (32,), (a, b, c, d, np.zeros_like(expected)), {4: expected})


def _punning() -> Program:
    numbers = _rng.standard_normal(32) * 10.0 ** _rng.integers(-30, 30, 32)
    bits = numbers.copy()
    lanes = np.arange(32)
    bits.view(np.uint16).reshape(32, 4)[lanes, lanes % 4] ^= 0x8001
    words = bits.view(np.uint32).reshape(32, 2)
    exponent = (numbers.astype(np.float32).view(np.uint32) >> 23) & 0xFF
    fields = (words[:, 1] >> 31) + exponent * 3 + (words[:, 0] & 0x7FFFFF)
    expected = np.stack([words[:, 0] ^ words[:, 1], fields], axis=1)
    return Program("punning", (1,), (32,), (numbers, np.zeros_like(expected)), {1: expected})


def _rounded(value: Array, dtype: type) -> Array:
    """One rounding of an exact fp64 result, back in fp64."""
    return value.astype(dtype).astype(np.float64)


def _half() -> Program:
    a = _rng.standard_normal(32).astype(np.float16)
    b = _rng.standard_normal((32, 2)).astype(np.float16)
    x, y = b.astype(np.float64), a.astype(np.float64)[:, None]
    z = _rounded(x * y + np.array([0.5, -2.0]), np.float16)
    z = np.maximum(z, -x)
    z = np.maximum(_rounded(z * y + x, np.float16), 0)
    swap = z[:, 0] > z[:, 1]
    z[swap] = z[swap, ::-1]
    square = _rounded(y * y, np.float16)
    z = _rounded(z + np.concatenate([square, np.rint(y)], axis=1), np.float16)
    arguments = (a, b, np.zeros((32, 2), np.float16))
    return Program("half_arithmetic", (1,), (32,), arguments, {2: z.astype(np.float16)}, 2e-3)


def _bfloat() -> Program:
    a, b = (_rng.standard_normal((32, 2)).astype(BF16) for _ in range(2))
    x, y = a.astype(np.float64), b.astype(np.float64)
    z = np.minimum(_rounded(x * y + x, BF16), _rounded(x + y, BF16))
    z = _rounded(z * _rounded(y - x, BF16), BF16).astype(np.float32)
    wide = np.stack([z[:, 0] * np.float32(0.3), z[:, 1] - z[:, 0]], axis=1).astype(BF16)
    greater = (x > y).all(axis=1, keepdims=True)
    signs = np.where(greater, 1, -1).astype(np.float32)
    expected = (signs * wide.astype(np.float32)).astype(BF16)
    return Program("bfloat_arithmetic", (1,), (32,), (a, b, np.zeros_like(a)), {2: expected})


def _calls() -> Program:
    x = _rng.uniform(0, 8, 64).astype(np.float32)
    expected = []
    for start in x:
        total = np.float32(start)
        for rounds in (2, int(start) & 3):
            for i in range(rounds):
                first, second = (1.5, 0) if i == 0 else (float(i - 1) * 1.5, int(total))
                total = np.float32(total + np.float32(np.float32(first) + np.float32(second) + np.float32(0.5)))
        expected.append(total)
    return Program("calls", (1,), (64,), (x, np.zeros_like(x)), {1: np.array(expected, np.float32)}, 1e-6)


def _asserted() -> Program:
    values = _rng.integers(0, 100, 32, dtype=np.int32)
    return Program("asserted", (1,), (32,), (values, np.zeros_like(values)), {1: 2 * values})


def _pointers() -> Program:
    i = np.arange(64, dtype=np.int32)
    expected = np.stack([np.where(i & 1, i * i, 2 * i), np.where(i % 3, i, i * i)], axis=1)
    return Program("pointers", (1,), (64,), (np.zeros_like(expected),), {0: expected})


def _grid_constant() -> Program:
    four = (np.int32(4), np.int32(-3), np.int32(2), np.int32(-1))
    return Program("grid_constant", (1,), (32,), (four, np.zeros(32, np.int32)), {1: np.tile(np.array(four), 8)})


PROGRAMS = [
    _structure(),
    _globals(),
    _vectors(),
    _punning(),
    _half(),
    _bfloat(),
    _calls(),
    _asserted(),
    _pointers(),
    _grid_constant(),
]
