"""From tensors to the launch of a Hopper kernel: the grid, four tensor maps, and `HopperArgs` of hopper/args.cuh."""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

from flashladder.ladder.families.hopper.config import HopperConfig
from flashladder.ladder.family import Launch, TensorBox

CHUNK = 64  # elements of d_head in a row of a box: the 128 bytes within which it is swizzled
ELEMENT = 2  # bytes
WARP_ROWS = 16  # query rows of a warp
MOST_PARTS = 8  # CTAs of a cluster, the most that every GPU with clusters takes
LEAST_BLOCKS = 2  # KV blocks of a part
LEAST_SAVED = 4  # KV blocks that no part has of a tile's: a cluster and its merging cost about three
OF_A_GPC = 16  # multiprocessors of a whole one


def blocks(length: int, size: int) -> int:
    """Blocks of `size` rows that `length` positions need, the last of them perhaps ragged."""
    return -(-length // size)


def grid_of(config: HopperConfig, shape: tuple[int, int, int, int]) -> tuple[int, int, int]:
    """A CTA per row block, head and sample of tensors of `shape`, (batch, seq_len, n_heads, d_head).

    Of a persistent kernel they are tiles, in x alone.
    """
    batch, seq_len, heads, _ = shape
    of_head = blocks(seq_len, config.B_r)
    return (of_head * heads * batch, 1, 1) if config.persistent else (of_head, heads, batch)


def store_rows(config: HopperConfig) -> int:
    """Rows of a box of O: those of a warpgroup, or of a warp where each sends its own."""
    return WARP_ROWS if config.persistent else config.rows


def map_of(tensor: Any, dtype: str, rows: int) -> TensorBox:
    """The map of a tensor (batch, seq_len, n_heads, d_head), strides in bytes, whose box is `rows` rows of one head.

    Axes, innermost first: 64 elements, positions, the two halves of a head, heads, samples. A box lies in shared memory
    as two tiles of `rows` times 128 bytes, each swizzled.
    """
    batch, seq_len, heads, d_head = tensor.shape
    sizes = (seq_len, d_head // CHUNK, heads, batch)
    strides = (tensor.strides[1], CHUNK * ELEMENT, tensor.strides[2], tensor.strides[0])
    return TensorBox(
        tensor,
        dtype,
        dims=(CHUNK, *sizes),
        strides=tuple(CHUNK * ELEMENT if size == 1 else stride for size, stride in zip(sizes, strides, strict=True)),
        box=(CHUNK, rows, d_head // CHUNK, 1, 1),
        swizzle=CHUNK * ELEMENT,
    )


def clusters_at_once(parts: int, multiprocessors: int) -> int:
    """Clusters of so many CTAs, one a multiprocessor, that a GPU may run at once; a launch on one asks its driver.

    A cluster lies in one GPC, the two multiprocessors of a TPC are never apart, and one GPC's worth is lost where GPCs
    are not all whole.
    """
    return multiprocessors // 2 if parts == 2 else (multiprocessors // OF_A_GPC - 1) * (OF_A_GPC // parts)


def parts_of(tiles: int, kv_blocks: int, multiprocessors: int) -> int:
    """CTAs that share a tile's KV blocks: of numbers that pay and run at once the least with the shortest parts."""
    best = 1
    for parts in range(2, MOST_PARTS + 1):
        longest = blocks(kv_blocks, parts)
        pays = kv_blocks >= LEAST_BLOCKS * parts and kv_blocks - longest >= LEAST_SAVED
        fits = tiles * parts <= multiprocessors and tiles <= clusters_at_once(parts, multiprocessors)
        if pays and fits and longest < blocks(kv_blocks, best):
            best = parts
    return best


def launch_of(config: HopperConfig, tensors: Sequence[Any], multiprocessors: int) -> Launch:
    """Four tensor maps, the scale of scores for powers of two, and the numbers of positions, blocks, heads and samples.

    Args:
        config: of the kernel.
        tensors: Q, K, V and O: arrays (batch, seq_len, n_heads, d_head).
        multiprocessors: of the GPU.
    """
    import numpy as np  # which a build, where nothing is launched, does without

    batch, seq_len, heads, d_head = tensors[0].shape
    box_rows = (config.rows, config.B_c, config.B_c, store_rows(config))
    maps = [map_of(tensor, config.dtype, rows) for tensor, rows in zip(tensors, box_rows, strict=True)]
    counts = (seq_len, blocks(seq_len, config.B_c), blocks(seq_len, config.B_r), heads, batch)
    scale = np.float32(math.log2(math.e) / math.sqrt(d_head))
    grid = grid_of(config, tensors[0].shape)
    parts = parts_of(grid[0], counts[1], multiprocessors) if config.split else 1
    return Launch(
        grid=(grid[0] * parts, *grid[1:]),
        block=(config.n_threads,),
        arguments=((*maps, scale, *map(np.int32, counts)),),
        shared_bytes=config.smem_bytes,
        cluster=(parts, 1, 1),
        resident=config.persistent and parts == 1,
    )
