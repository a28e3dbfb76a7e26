"""From tensors to the launch of an Ampere kernel: the grid, and `FlashFwdArgs` of kernels/host/args.cuh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flashladder.ladder.families.ampere.config import AmpereConfig
from flashladder.ladder.family import Launch


def grid_of(config: AmpereConfig, shape: tuple[int, int, int, int]) -> tuple[int, int, int]:
    """A CTA per row block, head and sample of tensors of `shape`, (batch, seq_len, n_heads, d_head)."""
    batch, seq_len, heads, _ = shape
    return (seq_len // config.B_r, heads, batch)


def launch_of(config: AmpereConfig, tensors: Sequence[Any]) -> Launch:
    """Four pointers, their strides of samples, heads and positions in bytes, and the number of KV blocks.

    Args:
        config: of the kernel.
        tensors: Q, K, V and O: arrays (batch, seq_len, n_heads, d_head).
    """
    import numpy as np  # which a build, where nothing is launched, does without

    seq_len = tensors[0].shape[1]
    strides = tuple(
        (np.int64(tensor.strides[0]), np.int64(tensor.strides[2]), np.int32(tensor.strides[1])) for tensor in tensors
    )
    return Launch(
        grid=grid_of(config, tensors[0].shape),
        block=(config.n_threads,),
        arguments=((*tensors, *strides, np.int32(seq_len // config.B_c)),),
        shared_bytes=config.smem_bytes,
    )
