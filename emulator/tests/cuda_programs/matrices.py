"""Launches and references of ``matrices.cu``."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from tests.cuda_programs.program import Program

from ptxemu.values import Array

_rng = np.random.default_rng(2)


def _transpose(kernel: str, conflicts: int) -> Program:
    matrix = _rng.standard_normal((64, 64), np.float32)
    arguments = (matrix, np.zeros_like(matrix), 64)
    return Program(kernel, (2, 2), (32, 8), arguments, {1: matrix.T.copy()}, conflicts=conflicts)


def _product(kernel: str, dtype: type[np.floating], tolerance: float) -> Program:
    m, n, k = 40, 24, 37
    a = _rng.standard_normal((m, k)).astype(dtype)
    b = _rng.standard_normal((k, n)).astype(dtype)
    arguments = (a, b, np.zeros((m, n), dtype), m, n, k)
    expected = (a.astype(np.float64) @ b.astype(np.float64)).astype(dtype)
    return Program(kernel, (2, 3), (16, 16), arguments, {2: expected}, tolerance)


def _half2() -> Program:
    a = _rng.standard_normal((16, 24)).astype(np.float16)
    b = _rng.standard_normal((24, 32)).astype(np.float16)
    total: Array = np.zeros((16, 32), np.float16)
    for i in range(24):  # a fused multiply-add per step: one rounding, exact in fp64
        total = (a[:, i, None].astype(np.float64) * b[i].astype(np.float64) + total).astype(np.float16)
    arguments = (a, b, np.zeros_like(total), 32, 24)
    return Program("gemm_half2", (2, 2), (8, 8), arguments, {2: total})


def _mma() -> Program:
    a = _rng.standard_normal((16, 16)).astype(ml_dtypes.bfloat16)
    b = _rng.standard_normal((16, 8)).astype(ml_dtypes.bfloat16)
    expected = a.astype(np.float32) @ b.astype(np.float32)
    return Program("mma_bf16", (1,), (32,), (a, b, np.zeros((16, 8), np.float32)), {2: expected}, 1e-5)


def _pipeline() -> Program:
    matrix = _rng.integers(-50, 50, (5, 128)).astype(np.float32)
    sums = matrix.sum(axis=1)
    return Program("pipeline_sum", (1,), (32,), (matrix, np.zeros(5, np.float32), 5), {1: sums})


def _stencil() -> Program:
    cube = _rng.standard_normal((5, 6, 9), np.float32)
    edge = np.pad(cube, 1, mode="edge")
    z, y, x = (slice(1, -1),) * 3
    total: Array = edge[z, y, :-2] + edge[z, y, 2:]
    total = total + (edge[z, :-2, x] + edge[z, 2:, x])
    total = total + (edge[:-2, y, x] + edge[2:, y, x])
    arguments = (cube, np.zeros_like(cube), 9, 6, 5)
    return Program("stencil", (3, 2, 2), (4, 4, 4), arguments, {1: total / np.float32(6)}, 1e-6)


PROGRAMS = [
    _transpose("transpose_plain", 31 * 32 * 4),  # each of 32 rows of a tile is read by one warp from one bank
    _transpose("transpose_padded", 0),
    _product("gemm_f32", np.float32, 1e-5),
    _product("gemm_f64", np.float64, 1e-13),
    _half2(),
    _mma(),
    _pipeline(),
    _stencil(),
]
