"""Launches and references of ``libraries.cu``."""

from __future__ import annotations

import numpy as np
from tests.cuda_programs.program import Program

_rng = np.random.default_rng(6)


def _radix_sort() -> Program:
    keys = _rng.integers(-(1 << 31), 1 << 31, (2, 512), dtype=np.int32)
    before = np.cumsum(keys, axis=1, dtype=np.int32) - keys
    return Program("radix_sort", (2,), (128,), (keys, np.zeros_like(keys)), {0: np.sort(keys, axis=1), 1: before})


def _group_copy() -> Program:
    values = _rng.integers(0, 99, (2, 256), dtype=np.int32)
    return Program("group_copy", (2,), (256,), (values, np.zeros_like(values)), {1: values[:, ::-1].copy()})


def _thread_pipeline() -> Program:
    rows = _rng.standard_normal((4, 64), np.float32)
    return Program("thread_pipeline", (1,), (64,), (rows, np.zeros_like(rows), 4), {1: 2 * rows})


def _group_reduce() -> Program:
    values = _rng.integers(1, 99, (4, 16), dtype=np.int32)
    expected = values.sum(axis=1, keepdims=True, dtype=np.int32) + np.maximum.accumulate(values, axis=1)
    total = np.array([values.sum()], np.int32)  # more than any thread's index, from the first warp on
    arguments = (values, np.zeros_like(values), np.zeros(1, np.int32))
    return Program("group_reduce", (1,), (64,), arguments, {1: expected, 2: total})


PROGRAMS = [_radix_sort(), _group_copy(), _thread_pipeline(), _group_reduce()]
