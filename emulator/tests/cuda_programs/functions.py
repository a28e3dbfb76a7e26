"""Launches and references of ``functions.cu``."""

from __future__ import annotations

import math

import numpy as np
from tests.cuda_programs.program import Program

from ptxemu.values import Array

_rng = np.random.default_rng(3)
_erf, _lgamma = np.vectorize(math.erf), np.vectorize(math.lgamma)


def _softmax() -> Program:
    rows = 4 * _rng.standard_normal((3, 200), np.float32)
    wide = np.exp(rows.astype(np.float64) - rows.max(axis=1, keepdims=True))
    expected = (wide / wide.sum(axis=1, keepdims=True)).astype(np.float32)
    return Program("softmax", (3,), (96,), (rows, np.zeros_like(rows), 200), {1: expected}, 2e-6, 1e-5)


def _layernorm() -> Program:
    rows, scale = _rng.standard_normal((8, 128), np.float32), _rng.standard_normal(128, np.float32)
    wide = rows.astype(np.float64)
    centred = wide - wide.mean(axis=1, keepdims=True)
    expected = (centred / np.sqrt(wide.var(axis=1, keepdims=True) + 1e-5) * scale).astype(np.float32)
    arguments = (rows, scale, np.zeros_like(rows), 1e-5)
    return Program("layernorm", (2,), (32, 4), arguments, {2: expected}, 1e-5)


def _single(x: Array) -> Array:
    a = np.abs(x) + 0.125
    rounded = np.floor(x) + np.ceil(x) - np.trunc(x) + np.rint(x) + np.trunc(x + np.copysign(0.5, x))
    table = [
        np.exp(x), np.exp2(x), np.log(a), np.log2(a), np.log1p(a), np.sin(x), np.cos(x), np.tan(x), np.tanh(x),
        _erf(x), np.arctan2(x, a), np.arcsin(x / 8), a**x, np.sqrt(a), 1 / np.sqrt(a), np.cbrt(x), 1 / a, x / a,
        np.fmod(x, 0.75), rounded, x * a + 1 + np.copysign(a, x) + np.minimum(x, a), 8 * x + a / 4, np.hypot(x, a),
        _lgamma(a),
    ]  # fmt: skip
    return np.array(table)


def _double(x: Array) -> Array:
    a = np.abs(x) + 0.125
    rounded = np.floor(x) + np.ceil(x) - np.trunc(x) + np.rint(x) + np.trunc(x + np.copysign(0.5, x))
    converted = x.astype(np.float32).astype(np.float64) + np.trunc(x) + np.trunc(x * 1e9)
    table = [
        np.exp(x), np.log(a), np.sin(x), np.cos(x), np.tanh(x), _erf(x), a**x, np.sqrt(a), 1 / np.sqrt(a), 1 / a,
        x / a, np.fmod(x, 0.75), rounded, converted,
    ]  # fmt: skip
    return np.array(table)


def _functions() -> list[Program]:
    n = 90
    x = _rng.uniform(-4, 4, n)
    single, double = x.astype(np.float32), x
    wanted = _single(single.astype(np.float64)).astype(np.float32)
    return [
        Program("functions_f32", (3,), (32,), (single, np.zeros_like(wanted), n), {1: wanted}, 2e-6, 1e-4),
        Program("functions_f64", (3,), (32,), (double, np.zeros((14, n)), n), {1: _double(double)}, 1e-14),
    ]


def _angles() -> Program:
    x = (_rng.uniform(-1, 1, 32) * 10.0 ** _rng.integers(-2, 30, 32)).astype(np.float32)
    exact = x.astype(np.float64)
    expected = np.stack([np.sin(exact), np.cos(exact)], axis=1).astype(np.float32)
    # Fast math has no reduction: any result between -1 and 1 will do there.
    return Program("large_angles", (1,), (32,), (x, np.zeros_like(expected)), {1: expected}, 1e-6, 2.0)


def _mandelbrot() -> Program:
    width, height, most = 24, 20, 60
    f = np.float32
    cr = f(-2) + f(3) * np.arange(width, dtype=f)[None, :] / f(width) + np.zeros((height, 1), f)
    ci = f(-1.5) + f(3) * np.arange(height, dtype=f)[:, None] / f(height) + np.zeros((1, width), f)
    zr, zi, count = np.zeros_like(cr), np.zeros_like(cr), np.zeros(cr.shape, np.uint16)
    for _ in range(most):
        inside = zr * zr + zi * zi < 4
        count += inside
        zr, zi = np.where(inside, zr * zr - zi * zi + cr, zr), np.where(inside, 2 * zr * zi + ci, zi)
    return Program("mandelbrot", (2, 3), (16, 8), (np.zeros_like(count), width, height, most), {0: count})


def _nbody() -> Program:
    bodies = _rng.uniform(-1, 1, (128, 4)).astype(np.float32)
    wide = bodies.astype(np.float64)
    away = wide[None, :, :3] - wide[:, None, :3]
    distance = (away**2).sum(axis=2, keepdims=True) + 0.01
    expected = (away * wide[None, :, 3:] / distance**1.5).sum(axis=1).astype(np.float32)
    return Program("nbody", (2,), (64,), (bodies, np.zeros_like(expected), 128), {1: expected}, 2e-4)


PROGRAMS = [_softmax(), _layernorm(), *_functions(), _angles(), _mandelbrot(), _nbody()]
