"""Launches of ``kernels/barriers.cu``: what mbarriers do, with no bulk copy about."""

from __future__ import annotations

import numpy as np
from tests.hopper_programs.layouts import small
from tests.hopper_programs.program import Program, Run


def _states() -> Run:
    out, value = np.zeros(128, np.int32), np.arange(128, dtype=np.int32)
    for _ in range(6):
        value = np.roll(value, -33) + 1
    return Run((out, 6), ((out, value.astype(np.int32)),))


def _ping_pong() -> Run:
    out, total = np.zeros(64, np.int32), np.zeros(64)
    for turn in range(5):
        total = 3 * total + 100 * turn + np.arange(63, -1, -1, dtype=np.int32)
    return Run((out, 5), ((out, total.astype(np.int32)),))


def _counts() -> Run:
    out = np.zeros(128, np.int32)
    return Run((out,), ((out, 7 * np.arange(127, -1, -1, dtype=np.int32)),))


def _pending() -> Run:
    out = np.zeros(8, np.uint32)
    return Run((out,), ((out, np.array([10, 7, 6, 1, 4, 1, 10, 1], np.uint32)),))


def _leavers() -> Run:
    out, wanted = np.zeros((4, 128), np.int32), np.zeros((4, 128), np.int32)
    for turn in range(4):
        wanted[turn, 32 * (turn + 1) :] = 128 - 32 * turn
    return Run((out, 4), ((out, wanted),))


def _transactions() -> Run:
    out = np.zeros(64, np.int32)
    return Run((out, 17), ((out, np.full(64, 17, np.int32)),))


def _place_again() -> Run:
    out = np.zeros(64, np.int32)
    value = 1000 + np.arange(63, -1, -1, dtype=np.int32)
    value[:32] = value[32:]
    return Run((out,), ((out, value),))


def _small_copies() -> Run:
    out, given = np.zeros(64, np.float32), small(np.random.default_rng(41), 5, 256).astype(np.float32)
    total = np.zeros(64, np.float32)
    for tile in given:
        total = 2 * total + tile[255 - np.arange(64)]
    return Run((out, given, 5), ((out, total),))


def _patience() -> Run:
    out = np.zeros(128, np.int32)
    return Run((out, 5), ((out, np.full(128, 5, np.int32)),))


PROGRAMS = (
    Program("barriers", "states", _states),
    Program("barriers", "ping_pong", _ping_pong),
    Program("barriers", "counts", _counts),
    Program("barriers", "pending", _pending, threads=32),
    Program("barriers", "leavers", _leavers),
    Program("barriers", "transactions", _transactions, threads=64),
    Program("barriers", "place_again", _place_again, threads=64),
    Program("barriers", "small_copies", _small_copies, threads=64),
    Program("barriers", "patience", _patience),
)
