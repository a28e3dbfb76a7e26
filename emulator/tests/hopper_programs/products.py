"""Launches of ``kernels/{tiles,products,pipelines}.cu``: products of tiles, alone and in whole kernels."""

from functools import partial
import math
from typing import Any
import zlib

import ml_dtypes
import numpy as np
from tests.hopper_programs.layouts import k_major, mn_major, small
from tests.hopper_programs.program import Run, giving, launches

from ptxemu.machine.tensor_map import TensorMap
from ptxemu.values import Array

F16, F32, S32 = (np.dtype(each) for each in (np.float16, np.float32, np.int32))
BF16, E4M3, S8 = (np.dtype(each) for each in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.int8))
TILE_BYTES = 64 * 64 * 2


def tile(
    kernel: str,
    dtype: np.dtype[Any],
    swizzles: tuple[str, str] = ("128B", "128B"),
    mn: str = "",
    *,
    sign: int = 1,
    add: bool = False,
    out: np.dtype[Any] = F32,
    name: str = "",
) -> None:
    """A product of 64 rows with as many columns as the kernel's name says; `mn`: of A (a) or B (b) is MN contiguous."""
    columns = int(kernel[1:].partition("_")[0])
    k = (2 if columns == 256 else 4) * 32 // dtype.itemsize

    def make() -> Run:
        rng = np.random.default_rng(zlib.crc32(f"{kernel} {name}".encode()))
        a, b = small(rng, 64, k), small(rng, columns, k)
        layouts = [mn_major if letter in mn else k_major for letter in "ab"]
        first, second = (
            layout(matrix.astype(dtype), swizzle)
            for layout, matrix, swizzle in zip(layouts, (a, b), swizzles, strict=True)
        )
        steps = ((*each.steps, 0, 0, 0, 0)[:4] for each in (first, second))
        given = (first.image, second.image, first.image.nbytes, second.image.nbytes,
                 np.uint64(first.bits), np.uint64(second.bits), *steps)  # fmt: skip
        wanted = (sign * (a @ b.T) + add).astype(out)
        return giving(_pairs(wanted) if out == F16 else wanted, given, int(add and out != F16))

    launches("tiles", kernel=kernel, name=name)(make)


def _pairs(tile_: Array) -> Array:
    """A tile of halves as `write_tile` writes its 16 registers of pairs: as if they were 32 columns of words.

    Register 2 j holds the pair of columns (8 j + 2 q, + 1) of row g, register 2 j + 1 that of row g + 8.
    """
    out, words = np.zeros((64, 32), np.uint32), np.ascontiguousarray(tile_).view(np.uint32)
    warp, g, q, i = np.indices((4, 8, 4, 16))
    out[16 * warp + g + i // 2 % 2 * 8, i // 4 * 8 + 2 * q + i % 2] = words[16 * warp + g + i % 2 * 8, i // 2 * 4 + q]
    return out.view(np.float16).reshape(64, 64)


tile("n8_f16", F16)
tile("n24_bf16", BF16, ("64B", "32B"))
tile("n32_f16", F16, ("none", "128B"), add=True)
for _swizzle in ("none", "32B", "64B", "128B"):
    tile("n64_f16", F16, (_swizzle, _swizzle), name=f"k_major_{_swizzle}")
    tile("n64_f16_tb", F16, ("128B", _swizzle), "b", name=f"b_mn_major_{_swizzle}")
    tile("n64_f16_ta", F16, (_swizzle, "64B"), "a", name=f"a_mn_major_{_swizzle}")
tile("n64_f16", F16, ("64B", "none"), name="mixed_64B_none")
tile("n64_f16", F16, ("32B", "128B"), name="mixed_32B_128B")
tile("n64_bf16_tt", BF16, mn="ab")
tile("n64_bf16_tt", BF16, ("32B", "none"), "ab", name="tt_32B_none", add=True)
tile("n64_minus_a", F16, sign=-1, add=True)
tile("n64_minus_b", BF16, sign=-1)
tile("n128_f16", F16, ("128B", "64B"), add=True)
tile("n256_bf16", BF16, ("64B", "64B"))
tile("n64_halves", F16, out=F16)
tile("n64_tf32", F32)
tile("n64_e4m3", E4M3, ("64B", "128B"), add=True)
tile("n64_s8", S8, ("128B", "32B"), out=S32)


def halves(seed: int, *shape: int, most: int = 4) -> Array:
    return small(np.random.default_rng(seed), *shape, most=most).astype(np.float16)


def images(*tiles: Array) -> Array:
    return np.concatenate([k_major(tile, "128B").image for tile in tiles])


def product(a: Array, b: Array) -> Array:
    return np.asarray(a.astype(np.float64) @ b.astype(np.float64).T, np.float32)


@launches("products")
def a_in_registers() -> Run:
    a, b = halves(21, 64, 64), halves(22, 64, 64)
    return giving(product(a, b), a, images(b))


@launches("products")
def registers_again() -> Run:
    b = halves(23, 64, 64)
    column = np.arange(16) % 8 // 2 % 2  # of the thread that holds a column of A
    later = (b[:, 16:32] * (1 + column)).sum(axis=1, dtype=np.float32)
    return giving(np.tile(b[:, :16].sum(axis=1, dtype=np.float32) + later, (64, 1)), images(b))


@launches("products")
def two_in_flight() -> Run:
    a, b = halves(24, 64, 64), halves(25, 128, 64)
    return giving(np.stack([product(a, b[:64]), product(a, b[64:])]), images(a), images(b[:64], b[64:]))


@launches("products", 256, shared_bytes=3 * TILE_BYTES)
def two_warpgroups() -> Run:
    a, b = halves(26, 128, 64), halves(27, 64, 64)
    return giving(product(a, b), images(a[:64], a[64:]), images(b))


@launches("products")
def operand_again() -> Run:
    a, b = halves(28, 64, 64), halves(29, 3, 64, 64)
    return giving(np.asarray(np.sum([product(a, each) for each in b], axis=0)), images(a), images(*b), 3)


@launches("products")
def chained() -> Run:
    a, b = halves(30, 64, 64, most=1), halves(31, 64, 64, most=1)
    return giving(product(product(a, b).astype(np.float16), b.T), images(a), images(b))


def rows(array: Array, count: int = 64) -> TensorMap:
    return TensorMap(array, "f16", array.shape[::-1], array.strides[:1], (64, count), swizzle="128B")


def _gemm(seed: int, m: int, n: int, k: int, box: int = 64) -> Run:
    a, b = halves(seed, m, k), halves(seed + 1, n, k)
    return giving(product(a, b), rows(a), rows(b, box), k // 64)


launches("pipelines", grid=(3, 2, 1), kernel="one_stage")(partial(_gemm, 71, 128, 192, 192))
launches("pipelines", 384, (2, 2, 1), kernel="ring", shared_bytes=9 * TILE_BYTES + 6 * 8)(
    partial(_gemm, 73, 256, 128, 448)
)


@launches("pipelines", grid=(2, 2, 1))
def stored_by_tma() -> Run:
    a, b, out = halves(75, 100, 64), halves(76, 120, 64), np.zeros((100, 120), np.float16)
    return Run((rows(a), rows(b), rows(out, 16)), ((out, product(a, b).astype(np.float16)),))


launches("pipelines", 160, 4, 2, kernel="shared_b")(partial(_gemm, 77, 256, 64, 320, 32))


@launches("pipelines", 384, shared_bytes=6 * TILE_BYTES + 9 * 8, tolerance=2e-3)
def attention() -> Run:
    rng = np.random.default_rng(79)
    q, k, v = (rng.standard_normal(shape).astype(np.float16) for shape in ((128, 64), (320, 64), (320, 64)))
    wanted = attended(q, k, v).astype(np.float32)
    return giving(wanted, rows(q), rows(k), rows(v), 5, np.float32(math.log2(math.e) / 8))


def attended(q: Array, k: Array, v: Array) -> Array:
    weights = np.exp((scores := q.astype(np.float64) @ k.astype(np.float64).T / 8) - scores.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True) @ v.astype(np.float64))
