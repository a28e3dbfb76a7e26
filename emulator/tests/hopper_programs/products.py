"""Launches of ``kernels/products.cu``: chains and groups of tile products."""

from __future__ import annotations

import numpy as np
from tests.hopper_programs.layouts import k_major, small
from tests.hopper_programs.program import Program, Run

from ptxemu.values import Array

TILE_BYTES = 64 * 64 * 2


def halves(seed: int, *shape: int, most: int = 4) -> Array:
    """Whole numbers as halves."""
    return small(np.random.default_rng(seed), *shape, most=most).astype(np.float16)


def images(*tiles: Array) -> Array:
    """Tiles of 64 columns as swizzled images, one behind the other."""
    return np.concatenate([k_major(tile, "128B").image for tile in tiles])


def product(a: Array, b: Array) -> Array:
    """A B^T, exactly."""
    return np.asarray(a.astype(np.float64) @ b.astype(np.float64).T, np.float32)


def _a_in_registers() -> Run:
    a, b, out = halves(21, 64, 64), halves(22, 64, 64), np.zeros((64, 64), np.float32)
    return Run((out, a, images(b)), ((out, product(a, b)),))


def _registers_again() -> Run:
    b, out = halves(23, 64, 64), np.zeros((64, 64), np.float32)
    sums = b[:, :16].sum(axis=1, dtype=np.float32)
    column = np.arange(16) % 8 // 2 % 2  # of the thread that holds a column of A
    later = (b[:, 16:32] * (1 + column)).sum(axis=1, dtype=np.float32)
    return Run((out, images(b)), ((out, np.tile(sums + later, (64, 1))),))


def _two_in_flight() -> Run:
    a, b, out = halves(24, 64, 64), halves(25, 128, 64), np.zeros((2, 64, 64), np.float32)
    wanted = np.stack([product(a, b[:64]), product(a, b[64:])])
    return Run((out, images(a), images(b[:64], b[64:])), ((out, wanted),))


def _two_warpgroups() -> Run:
    a, b, out = halves(26, 128, 64), halves(27, 64, 64), np.zeros((128, 64), np.float32)
    return Run((out, images(a[:64], a[64:]), images(b)), ((out, product(a, b)),))


def _operand_again() -> Run:
    a, b, out = halves(28, 64, 64), halves(29, 3, 64, 64), np.zeros((64, 64), np.float32)
    wanted = np.sum([product(a, each) for each in b], axis=0)
    return Run((out, images(a), images(*b), 3), ((out, wanted),))


def _chained() -> Run:
    a, b, out = halves(30, 64, 64, most=1), halves(31, 64, 64, most=1), np.zeros((64, 64), np.float32)
    s = product(a, b).astype(np.float16)
    return Run((out, images(a), images(b)), ((out, product(s, b.T)),))


PROGRAMS = (
    Program("products", "a_in_registers", _a_in_registers),
    Program("products", "registers_again", _registers_again),
    Program("products", "two_in_flight", _two_in_flight),
    Program("products", "two_warpgroups", _two_warpgroups, threads=256, shared_bytes=3 * TILE_BYTES),
    Program("products", "operand_again", _operand_again),
    Program("products", "chained", _chained),
)
