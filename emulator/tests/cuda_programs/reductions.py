"""Launches and references of ``reductions.cu``."""

from __future__ import annotations

import numpy as np
from tests.cuda_programs.program import Program

from ptxemu.values import Array

_rng = np.random.default_rng(1)


def _sums(values: Array) -> Array:
    """Warp sums in the order of __shfl_down_sync: pairs 16 apart, then 8, ..."""
    rows = values.reshape(-1, 32)
    for offset in (16, 8, 4, 2, 1):
        rows = rows[:, :offset] + rows[:, offset : 2 * offset]
    return rows.reshape(-1)


def _warp_sum() -> Program:
    n = 3 * 128 - 37
    values = _rng.standard_normal(n, np.float32)
    padded = np.concatenate([values, np.zeros(37, np.float32)])
    return Program("warp_sum", (3,), (128,), (values, np.zeros(12, np.float32), n), {1: _sums(padded)})


def _warp_scan() -> Program:
    values = _rng.integers(-(1 << 60), 1 << 60, 128)
    scanned = np.cumsum(values.reshape(-1, 32), axis=1)
    return Program("warp_scan", (2,), (64,), (values, np.zeros_like(values)), {1: scanned})


def _block_sum() -> Program:
    values = _rng.integers(-1000, 1000, 2000).astype(np.float64)  # whole numbers: their sum is exact in any order
    total = np.array([values.sum()])
    return Program("block_sum", (3,), (256,), (values, np.zeros(1), values.size), {1: total})


def _volatile_max() -> Program:
    values = _rng.integers(-(1 << 31), 1 << 31, 192, dtype=np.int32)
    best = values.reshape(3, 64).max(axis=1)
    return Program("volatile_max", (3,), (64,), (values, np.zeros(3, np.int32)), {1: best})


def _block_scan() -> Program:
    values = _rng.integers(0, 1 << 32, 256, dtype=np.uint32)
    before = np.cumsum(values, dtype=np.uint32) - values
    arguments = (values, np.zeros_like(values), 256)
    return Program("block_scan", (1,), (128,), arguments, {1: before}, shared_bytes=1024)


def _histogram() -> Program:
    values = np.minimum(_rng.geometric(0.03, 3000), 255).astype(np.uint8)
    bins = np.bincount(values, minlength=256).astype(np.uint32)
    return Program("histogram", (4,), (96,), (values, np.zeros(256, np.uint32), values.size), {1: bins})


def _maximum() -> Program:
    values = _rng.standard_normal(300, np.float32)
    start = np.full(1, -np.inf, np.float32)
    return Program("maximum", (3,), (128,), (values, start, 300), {1: values.max(keepdims=True)})


def _atomics() -> Program:
    values = _rng.integers(0, 1 << 24, 256, dtype=np.int32)
    start = np.array([1 << 30, -5, -1, 0, 77, 9, 900], np.int32)
    expected = np.array(
        [
            values.min(),
            values.max(),
            np.bitwise_and.reduce(values | 0xF0F0),
            np.bitwise_or.reduce(values & 0x0F0F),
            np.bitwise_xor.reduce(values) ^ 77,
            9 - values.astype(np.int64).sum(),
            (900 + 256) % 1001,
        ],
        np.int64,
    ).astype(np.int32)
    wide = np.array([values[k::3].astype(np.uint64).sum() << np.uint64(8) for k in range(3)])
    return Program("atomics", (4,), (64,), (values, start, np.zeros(3, np.uint64)), {1: expected, 2: wide})


def _votes() -> Program:
    values = _rng.integers(-90, 90, 96, dtype=np.int32)
    rows = np.zeros((96, 8), np.int32)
    for warp in range(3):
        mine = values[32 * warp : 32 * warp + 32]
        for lane in range(32):
            same = mine & 3 == mine[lane] & 3
            bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
            rows[32 * warp + lane] = [
                (values > 0).sum(),
                1,
                0,
                bits[mine & 1 == 1].sum().astype(np.uint32).view(np.int32),
                bits[same].sum().astype(np.uint32).view(np.int32),
                mine[np.flatnonzero(same)[0]],
                mine.sum() + (mine == 7).any(),
                32,
            ]
    return Program("votes", (1,), (96,), (values, np.zeros_like(rows)), {1: rows})


def _tiles() -> Program:
    values = _rng.integers(-100, 100, 128, dtype=np.int32)
    sums = values.reshape(-1, 8).sum(axis=1).astype(np.int32)
    count = np.array([(values > 0).sum()], np.int32)
    arguments = (values, np.zeros_like(sums), np.zeros(1, np.int32))
    return Program("tiles", (2,), (64,), arguments, {1: sums, 2: count})


def _named_barriers() -> Program:
    values = _rng.integers(-100, 100, 64, dtype=np.int32)
    return Program("named_barriers", (1,), (128,), (values, np.zeros_like(values)), {1: 3 * values[::-1]})


def _block_reduction() -> Program:
    values = _rng.integers(-99, 99, (3, 256)).astype(np.float32)  # sums are exact
    sums = values.sum(axis=1, dtype=np.float32)
    return Program("block_reduction", (3,), (256,), (values, np.zeros(3, np.float32)), {1: sums})


def _block_maximum() -> Program:
    values = _rng.permutation(256).astype(np.int32)
    best = np.array([255, values.argmax()], np.int32)
    return Program("block_maximum", (1,), (256,), (values, np.zeros(2, np.int32)), {1: best})


PROGRAMS = [
    _warp_sum(),
    _warp_scan(),
    _block_sum(),
    _volatile_max(),
    _block_scan(),
    _histogram(),
    _maximum(),
    _atomics(),
    _votes(),
    _tiles(),
    _named_barriers(),
    _block_reduction(),
    _block_maximum(),
]
