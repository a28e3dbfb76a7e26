"""Launches of ``kernels/bulk.cu``: bulk copies that need no tensor map."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
from tests.hopper_programs.layouts import small
from tests.hopper_programs.program import Program, Run

from ptxemu.values import Array

BF16 = np.dtype(ml_dtypes.bfloat16)


def floats(*shape: int) -> Array:
    """0, 1, 2, ... as floats."""
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


def _load() -> Run:
    out, given = np.zeros(1024, np.float32), floats(1024)
    return Run((out, given), ((out, given[::-1].copy()),))


def _pieces() -> Run:
    out, given = np.zeros(1024, np.float32), floats(1024)
    return Run((out, given), ((out, 2 * given),))


def _store() -> Run:
    out, given = np.zeros((3, 512), np.float32), floats(512)
    return Run((out, given), ((out, np.tile(given + 1, (3, 1))),))


def _store_in_turn() -> Run:
    out, given = np.zeros((11, 128), np.float32), floats(11, 128)
    return Run((out, given, 11), ((out, given * np.arange(11, dtype=np.float32)[:, None]),))


def _hints() -> Run:
    out, given = np.zeros(256, np.float32), floats(256)
    return Run((out, given), ((out, given + 3),))


def _ring() -> Run:
    out, given = np.zeros(96, np.float32), small(np.random.default_rng(1), 8, 96).astype(np.float32)
    total = np.zeros(96, np.float32)
    for tile in given:
        total = 2 * total + tile[::-1]
    return Run((out, given, 8), ((out, total),))


def _in_place() -> Run:
    data = small(np.random.default_rng(2), 5, 256, most=50).astype(np.float32)
    return Run((data, 5), ((data, data * data),))


def _reduction(kernel: str, dtype: object, combine: Callable[[Array], Array], seed: int) -> Program:
    """Four tiles of 256 combined with what was there."""

    def make() -> Run:
        rng = np.random.default_rng(seed)
        rows = rng.integers(-100, 100, (5, 256)).astype(np.int64)
        if np.dtype(dtype).kind == "u":  # type: ignore[call-overload]  # any NumPy type
            rows = rows % 97 << 20
        wanted = combine(rows).astype(dtype)  # type: ignore[call-overload]  # as above
        typed = rows.astype(dtype)  # type: ignore[call-overload]  # as above
        out, given = typed[0].copy(), typed[1:].copy()
        return Run((out, given), ((out, wanted),))

    return Program("bulk", kernel, make, threads=256, grid=(4, 1, 1))


PROGRAMS = (
    Program("bulk", "load", _load),
    Program("bulk", "pieces", _pieces),
    Program("bulk", "store", _store, grid=(3, 1, 1)),
    Program("bulk", "store_in_turn", _store_in_turn),
    _reduction("add_f32", np.float32, lambda rows: rows.sum(0), 3),
    _reduction("add_u64", np.uint64, lambda rows: rows.sum(0), 4),
    _reduction("min_s32", np.int32, lambda rows: rows.min(0), 5),
    _reduction("xor_b32", np.uint32, np.bitwise_xor.reduce, 6),
    _reduction("add_f16", np.float16, lambda rows: rows.sum(0), 7),
    _reduction("max_bf16", BF16, lambda rows: rows.max(0), 8),
    Program("bulk", "ring", _ring),
    Program("bulk", "in_place", _in_place, threads=256),
    Program("bulk", "hints", _hints, threads=256),
)
