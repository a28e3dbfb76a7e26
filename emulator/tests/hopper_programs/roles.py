"""Launches of ``kernels/roles.cu``: warps that do different things."""

from __future__ import annotations

import numpy as np
from tests.hopper_programs.layouts import small
from tests.hopper_programs.program import Program, Run


def _registers() -> Run:
    out, given = np.zeros(256, np.float32), small(np.random.default_rng(51), 7, 256).astype(np.float32)
    return Run((out, given, 7), ((out, given.sum(0)),))


def _turns() -> Run:
    out, value = np.zeros(128, np.int32), np.arange(128)
    for _ in range(5):
        value = np.roll(value, -1) * 2 % 10007 + 1
    return Run((out, 5), ((out, value.astype(np.int32)),))


def _votes() -> Run:
    out = np.zeros((2, 64), np.int32)
    counts = [sum((i + turn) % 3 != 0 for i in range(64)) for turn in range(2)]
    wanted = np.repeat(np.array([[counts[0] + 100], [counts[1] + 1000]], np.int32), 64, axis=1)
    return Run((out,), ((out, wanted),))


def _early_exit() -> Run:
    out, square = np.zeros(32, np.int32), np.arange(96, dtype=np.int32) ** 2
    return Run((out,), ((out, square.reshape(3, 32).sum(0).astype(np.int32)[::-1].copy()),))


def _elected() -> Run:
    out = np.zeros(8, np.int32)
    return Run((out,), ((out, np.ones(8, np.int32)),))


def _dependents() -> Run:
    out, given = np.zeros(256, np.int32), np.arange(256, dtype=np.int32)
    return Run((out, given), ((out, given + 1),))


def _matrices() -> Run:
    lane, out = np.arange(32, dtype=np.uint32), np.zeros((8, 32), np.uint32)
    parts = np.stack([1000 * i + 2 * lane + ((1000 * i + 2 * lane + 1) << 16) for i in range(4)]).astype(np.uint32)
    cells = parts.view(np.uint16).reshape(4, 8, 8)  # lane l holds row l / 4, columns 2 (l % 4) and the next
    turned = np.ascontiguousarray(cells.transpose(0, 2, 1)).view(np.uint32).reshape(4, 32)
    total = int((lane.astype(np.int64) ** 2).sum()) + int((lane ^ 21).max())
    wanted = np.concatenate([parts, turned[:2], turned[2:3], np.full((1, 32), total, np.uint32)])
    return Run((out,), ((out, wanted.astype(np.uint32)),))


PROGRAMS = (
    Program("roles", "registers", _registers, threads=384),
    Program("roles", "turns", _turns, threads=256),
    Program("roles", "votes", _votes, threads=64),
    Program("roles", "early_exit", _early_exit),
    Program("roles", "elected", _elected),
    Program("roles", "dependents", _dependents, grid=(2, 1, 1)),
    Program("roles", "matrices", _matrices, threads=32),
)
