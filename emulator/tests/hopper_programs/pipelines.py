"""Launches of ``kernels/pipelines.cu``: matrix products and attention as Hopper kernels are built."""

from __future__ import annotations

import math

import numpy as np
from tests.hopper_programs.products import TILE_BYTES, halves, product
from tests.hopper_programs.program import Program, Run

from ptxemu.machine.tensor_map import TensorMap
from ptxemu.values import Array

RING_BYTES = 9 * TILE_BYTES + 6 * 8
ATTENTION_BYTES = 6 * TILE_BYTES + 9 * 8


def rows(array: Array, count: int = 64) -> TensorMap:
    """A matrix in boxes of 64 columns, swizzled."""
    return TensorMap(array, "f16", array.shape[::-1], array.strides[:1], (64, count), swizzle="128B")


def _one_stage() -> Run:
    a, b = halves(71, 128, 192), halves(72, 192, 192)
    out = np.zeros((128, 192), np.float32)
    return Run((out, rows(a), rows(b), 3), ((out, product(a, b)),))


def _ring() -> Run:
    a, b = halves(73, 256, 448), halves(74, 128, 448)
    out = np.zeros((256, 128), np.float32)
    return Run((out, rows(a), rows(b), 7), ((out, product(a, b)),))


def _stored_by_tma() -> Run:
    a, b = halves(75, 100, 64), halves(76, 120, 64)
    out = np.zeros((100, 120), np.float16)
    return Run((rows(a), rows(b), rows(out, 16)), ((out, product(a, b).astype(np.float16)),))


def _shared_b() -> Run:
    a, b = halves(77, 256, 320), halves(78, 64, 320)
    out = np.zeros((256, 64), np.float32)
    return Run((out, rows(a), rows(b, 32), 5), ((out, product(a, b)),))


def _attention() -> Run:
    rng = np.random.default_rng(79)
    q, k, v = (rng.standard_normal(shape).astype(np.float16) for shape in ((128, 64), (320, 64), (320, 64)))
    scores = q.astype(np.float64) @ k.astype(np.float64).T / 8
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    wanted = weights / weights.sum(axis=1, keepdims=True) @ v.astype(np.float64)
    out = np.zeros((128, 64), np.float32)
    scale = np.float32(math.log2(math.e) / 8)
    return Run((out, rows(q), rows(k), rows(v), 5, scale), ((out, wanted.astype(np.float32)),))


PROGRAMS = (
    Program("pipelines", "one_stage", _one_stage, grid=(3, 2, 1)),
    Program("pipelines", "ring", _ring, threads=384, grid=(2, 2, 1), shared_bytes=RING_BYTES),
    Program("pipelines", "stored_by_tma", _stored_by_tma, grid=(2, 2, 1)),
    Program("pipelines", "shared_b", _shared_b, threads=160, grid=(4, 1, 1), cluster=(2, 1, 1)),
    Program("pipelines", "attention", _attention, threads=384, shared_bytes=ATTENTION_BYTES, tolerance=2e-3),
)
