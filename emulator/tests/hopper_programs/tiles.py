"""Launches of ``kernels/tiles.cu``: shapes, types, layouts, majors, signs of a tile product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
import zlib

import ml_dtypes
import numpy as np
from tests.hopper_programs.layouts import Operand, k_major, mn_major, small
from tests.hopper_programs.program import Program, Run

from ptxemu.values import Array

Layout = Callable[[Array, str], Operand]
F16, BF16, E4M3 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn)
F32 = np.dtype(np.float32)


def _four(steps: tuple[int, ...]) -> tuple[int, ...]:
    return (*steps, 0, 0, 0, 0)[:4]


def tile(
    kernel: str,
    columns: int,
    dtype: np.dtype[Any],
    swizzles: tuple[str, str] = ("128B", "128B"),
    majors: tuple[Layout, Layout] = (k_major, k_major),
    *,
    sign: int = 1,
    add: bool = False,
    out_dtype: np.dtype[Any] = F32,
    name: str = "",
) -> Program:
    """A product of 64 rows with `columns` columns over as many k-steps as the kernel has (4, of 256 columns 2).

    Args: `sign` of the product; `add`: to ones.
    """
    steps = 2 if columns == 256 else 4
    k = steps * 32 // dtype.itemsize

    def make() -> Run:
        rng = np.random.default_rng(zlib.crc32(f"{kernel} {name}".encode()))
        a, b = small(rng, 64, k), small(rng, columns, k)
        first, second = (
            major(matrix.astype(dtype), swizzle)
            for major, matrix, swizzle in zip(majors, (a, b), swizzles, strict=True)
        )
        wanted = sign * (a @ b.T) + add
        out = np.zeros((64, columns), out_dtype)
        given = (
            *(first.image, second.image, first.image.nbytes, second.image.nbytes),
            *(np.uint64(first.bits), np.uint64(second.bits), _four(first.steps), _four(second.steps)),
        )
        shown = wanted.astype(out_dtype)
        if out_dtype == F16:  # pairs of columns in the kernel's own order: a row of 32-bit words
            return Run((out, given, 0), ((out, _pairs(shown)),))
        return Run((out, given, int(add)), ((out, shown),))

    return Program("tiles", kernel, make, name=name)


def _pairs(tile_: Array) -> Array:
    """A tile of halves as `write_tile` writes its 16 registers of pairs: as if they were 32 columns of words.

    Register 2 j holds the pair of columns (8 j + 2 q, + 1) of row g, register 2 j + 1 that of row g + 8.
    """
    out = np.zeros((64, 32), np.uint32)
    words = np.ascontiguousarray(tile_).view(np.uint32)  # (64, 32) pairs
    for warp in range(4):
        for lane in range(32):
            g, q = divmod(lane, 4)
            for i in range(16):
                value = words[16 * warp + g + i % 2 * 8, i // 2 * 4 + q]
                out[16 * warp + g + i // 2 % 2 * 8, i // 4 * 8 + 2 * q + i % 2] = value
    return out.view(np.float16)


SWIZZLES = ("none", "32B", "64B", "128B")
LAYOUTS = tuple(tile("n64_f16", 64, F16, (each, each), name=f"k_major_{each}") for each in SWIZZLES)
MIXED = (
    tile("n64_f16", 64, F16, ("64B", "none"), name="mixed_64B_none"),
    tile("n64_f16", 64, F16, ("32B", "128B"), name="mixed_32B_128B"),
)
ACROSS_B = tuple(
    tile("n64_f16_tb", 64, F16, ("128B", swizzle), (k_major, mn_major), name=f"b_mn_major_{swizzle}")
    for swizzle in SWIZZLES
)
ACROSS_A = tuple(
    tile("n64_f16_ta", 64, F16, (swizzle, "64B"), (mn_major, k_major), name=f"a_mn_major_{swizzle}")
    for swizzle in SWIZZLES
)
PROGRAMS = (
    tile("n8_f16", 8, F16),
    tile("n24_bf16", 24, BF16, ("64B", "32B")),
    tile("n32_f16", 32, F16, ("none", "128B"), add=True),
    *LAYOUTS,
    *MIXED,
    *ACROSS_B,
    *ACROSS_A,
    tile("n64_bf16_tt", 64, BF16, ("128B", "128B"), (mn_major, mn_major)),
    tile("n64_bf16_tt", 64, BF16, ("32B", "none"), (mn_major, mn_major), name="tt_32B_none", add=True),
    tile("n64_minus_a", 64, F16, sign=-1, add=True),
    tile("n64_minus_b", 64, BF16, sign=-1),
    tile("n128_f16", 128, F16, ("128B", "64B"), add=True),
    tile("n256_bf16", 256, BF16, ("64B", "64B")),
    tile("n64_halves", 64, F16, out_dtype=F16),
    tile("n64_tf32", 64, F32),
    tile("n64_e4m3", 64, E4M3, ("64B", "128B"), add=True),
    tile("n64_s8", 64, np.dtype(np.int8), ("128B", "32B"), out_dtype=np.dtype(np.int32)),
)
