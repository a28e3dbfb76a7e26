"""Launches of ``kernels/clusters.cu``: blocks that reach into one another's shared memory."""

from __future__ import annotations

import numpy as np
from tests.hopper_programs.layouts import box_image, small
from tests.hopper_programs.program import Program, Run

from ptxemu.machine.tensor_map import TensorMap
from ptxemu.values import Array


def _ranks() -> Run:
    out = np.zeros((8, 4, 14), np.uint32)
    wanted = np.zeros_like(out)
    for y in range(8):
        for x in range(4):
            inner, outer = (x % 2, y % 4), (x // 2, y // 4)
            wanted[y, x] = [inner[0] + 2 * inner[1], 8, *inner, 0, 2, 4, 1, *outer, 2, 2, 1, 7]
    return Run((out,), ((out, wanted),))


def _blocks(count: int) -> Array:
    """1000 * block + thread, of 64 threads."""
    return (1000 * np.arange(count)[:, None] + np.arange(64)).astype(np.uint32)


def _next(size: int, count: int) -> Array:
    return np.arange(count) // size * size + (np.arange(count) + 1) % size


def _read_next(size: int) -> Run:
    out = np.zeros((32, 64), np.uint32)
    return Run((out, size), ((out, _blocks(32)[_next(size, 32), ::-1].copy()),))


def _write_next() -> Run:
    out, wanted = np.zeros((8, 64), np.uint32), np.zeros((8, 64), np.uint32)
    wanted[_next(4, 8)] = _blocks(8)
    return Run((out, 4), ((out, wanted + np.arange(64, dtype=np.uint32) ** 2),))


def _histogram() -> Run:
    given = np.random.default_rng(61).integers(0, 1000, 8 * 64).astype(np.uint32)
    out = np.zeros(65, np.uint32)
    wanted = np.zeros_like(out)
    for part in range(2):
        wanted[32 * part : 32 * part + 32] = np.bincount(given[256 * part : 256 * part + 256] % 32, minlength=32)
    wanted[64] = 2 * sum(range(256))
    return Run((out, given), ((out, wanted),))


def _remote_arrivals() -> Run:
    out = np.zeros((8, 8), np.uint32)
    wanted = 100 * np.arange(8, dtype=np.uint32)[None, :] + np.arange(8, dtype=np.uint32)[:, None]
    return Run((out, 8), ((out, wanted.astype(np.uint32)),))


def _hand_over() -> Run:
    given = small(np.random.default_rng(62), 8, 256, most=99).astype(np.float32)
    out, wanted = np.zeros_like(given), np.zeros_like(given)
    wanted[_next(4, 8)] = 2 * given[:, ::-1]
    return Run((out, given, 4), ((out, wanted),))


def _multicast_halves() -> Run:
    array = (np.arange(64 * 128) % 2039).astype(np.float16).reshape(64, 128)
    given = TensorMap(array, "f16", (128, 64), (256,), (64, 32), swizzle="128B")
    out = np.zeros((4, 2, 4096), np.uint8)
    wanted = np.stack([[box_image(given, (64 * half, block // 2 * 32)) for half in range(2)] for block in range(4)])
    return Run((out, given), ((out, wanted),))


def _multicast_odd() -> Run:
    given = np.arange(1024, dtype=np.float32)
    out, wanted = np.zeros((8, 256), np.float32), np.full((8, 256), -1, np.float32)
    for block in (1, 3, 5, 7):
        first = block // 4 * 4 * 64
        wanted[block] = given[first : first + 256]
    return Run((out, given, 0b1010), ((out, wanted),))


def _multicast_ring() -> Run:
    array = small(np.random.default_rng(63), 9, 64).astype(np.float32)
    given = TensorMap(array, "f32", (64, 9), (256,), (32, 1))
    out = np.zeros((4, 64), np.float32)
    total = np.zeros((4, 64), np.float32)
    for row in array:
        total = 2 * total + row * np.array([1, 2, 1, 2], np.float32)[:, None]
    return Run((out, given, 9), ((out, total),))


def _announced() -> Run:
    out = np.zeros((2, 64), np.float32)
    wanted = (10 * np.array([1, 0])[:, None] + np.arange(64)).astype(np.float32)
    return Run((out,), ((out, wanted),))


PROGRAMS = (
    Program("clusters", "ranks", _ranks, threads=32, grid=(4, 8, 1), cluster=(2, 4, 1)),
    Program("clusters", "read_next", lambda: _read_next(2), threads=64, grid=(32, 1, 1), cluster=(2, 1, 1)),
    Program(
        *("clusters", "read_next", lambda: _read_next(8)),
        threads=64,
        grid=(32, 1, 1),
        cluster=(8, 1, 1),
        name="read_next_8",
    ),
    Program(
        *("clusters", "read_next", lambda: _read_next(16)),
        threads=64,
        grid=(32, 1, 1),
        cluster=(16, 1, 1),
        name="read_next_16",
    ),
    Program("clusters", "write_next", _write_next, threads=64, grid=(8, 1, 1), cluster=(4, 1, 1)),
    Program("clusters", "histogram", _histogram, threads=64, grid=(8, 1, 1), cluster=(4, 1, 1)),
    Program("clusters", "remote_arrivals", _remote_arrivals, threads=32, grid=(8, 1, 1), cluster=(8, 1, 1)),
    Program("clusters", "hand_over", _hand_over, threads=256, grid=(8, 1, 1), cluster=(4, 1, 1)),
    Program("clusters", "multicast_halves", _multicast_halves, grid=(4, 1, 1), cluster=(2, 1, 1)),
    Program("clusters", "multicast_odd", _multicast_odd, threads=256, grid=(8, 1, 1), cluster=(4, 1, 1)),
    Program("clusters", "multicast_ring", _multicast_ring, threads=96, grid=(4, 1, 1), cluster=(2, 1, 1)),
    Program("clusters", "announced", _announced, threads=64, grid=(2, 1, 1), cluster=(2, 1, 1)),
)
