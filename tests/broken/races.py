"""Kernels that run to their end and are reported: the two accesses, their threads, and the twin's numbers."""

from __future__ import annotations

import numpy as np

from tests.broken.harness import Launch, Race, floats, ramp, zeros

RACES = (
    Race(
        Launch("races.cu", "read_too_early", lambda: (floats(64), ramp(64)), ramp(64)[::-1]),
        *("RAW", "shared", "st.shared", "ld.shared"),
        threads=(63, 0),
        address=252,
    ),
    Race(
        Launch(
            "races.cu",
            "overwritten_too_early",
            lambda: (floats(64), ramp(192), 3),
            ramp(192).reshape(3, 64).sum(0)[::-1],
        ),
        *("WAR", "shared", "ld.shared", "st.shared"),
        threads=(63, 0),
        address=0,
    ),
    Race(
        Launch("races.cu", "two_writers", lambda: (zeros(64),), np.full(64, 11)),
        *("WAW", "shared", "st.shared", "st.shared"),
        threads=(0, 32),
        address=0,
    ),
    Race(
        Launch("races.cu", "no_syncwarp", lambda: (floats(32), ramp(32)), ramp(32).reshape(-1, 2)[:, ::-1].ravel(), 32),
        *("RAW", "shared", "st.shared", "ld.shared"),
        threads=(1, 0),
        address=4,
    ),
    Race(
        Launch("fences.cu", "shuffle_as_fence", lambda: (floats(32), ramp(32)), 2 * (np.arange(32) ^ 1), 32),
        *("RAW", "shared", "st.shared", "ld.shared"),
        threads=(1, 0),
        address=4,
    ),
    Race(
        Launch("fences.cu", "vote_as_fence", lambda: (floats(32), ramp(32)), 32 + (np.arange(32) ^ 1), 32),
        *("RAW", "shared", "st.shared", "ld.shared"),
        threads=(1, 0),
        address=4,
    ),
    Race(
        Launch("fences.cu", "matrix_of_others", lambda: (zeros(32), np.arange(32, dtype=np.int32)), np.arange(32), 32),
        *("RAW", "shared", "st.shared", "ldmatrix"),
        threads=(1, 0),
        address=4,
    ),
    Race(
        Launch(
            "fences.cu",
            "matrix_overwritten",
            lambda: (zeros(32), np.arange(32, dtype=np.int32)),
            np.arange(32) + 1,
            32,
        ),
        *("WAR", "shared", "ldmatrix", "st.shared"),
        threads=(0, 1),
        address=4,
    ),
    Race(
        Launch("races.cu", "lanes_collide", lambda: (zeros(32), np.arange(32, dtype=np.int32)), np.full(32, 3), 32),
        *("same-instruction write", "shared", "st.shared", "st.shared"),
        threads=(3, 4),
        address=0,
        numbers_right=False,
    ),
    Race(
        Launch("copies.cu", "stale_tile", lambda: (floats(64), ramp(256)), ramp(256)[:191:-1]),
        *("in-flight read", "shared", "cp.async", "ld.shared"),
        threads=(63, 0),
        address=1020,
        numbers_right=False,
    ),
    Race(
        Launch("copies.cu", "wait_without_barrier", lambda: (floats(64), ramp(256)), ramp(256)[:191:-1]),
        *("RAW", "shared", "cp.async", "ld.shared"),
        threads=(63, 0),
        address=1020,
    ),
    Race(
        Launch(
            "copies.cu",
            "prefetch_too_early",
            lambda: (floats(64), ramp(768), 3),
            ramp(768).reshape(3, 256).sum(0)[:191:-1],
        ),
        *("WAR", "shared", "ld.shared", "cp.async"),
        threads=(63, 48),
        address=768,
    ),
    Race(
        Launch("blocks.cu", "lost_update", lambda: (zeros(1),), np.array([10]), threads=32, blocks=4),
        *("WAW", "global", "st.global", "st.global"),
        threads=(0, 0),
        address=0,
        blocks=(3, 0),
        numbers_right=False,
    ),
    Race(
        Launch("blocks.cu", "neighbours_result", lambda: (zeros(64), zeros(64)), 2 * (np.arange(64) ^ 32), 32, 2),
        *("RAW", "global", "st.global", "ld.global"),
        threads=(0, 0),
        address=0,
        blocks=(1, 0),
    ),
)
