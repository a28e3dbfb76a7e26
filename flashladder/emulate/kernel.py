"""An iteration's kernel on the CPU: the PTX that ships, run by the emulator on NumPy tensors.

Why: the same call proves a kernel right, counts its bank conflicts and looks for races on a machine without a GPU.
Tensors are (batch, seq_len, n_heads, d_head) of 16-bit elements: ``float16``, or bfloat16 as ``ml_dtypes.bfloat16`` or
as its bits in ``uint16``; they may be strided views of one contiguous array, as a kernel meets them on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from flashladder.build.compile import ptx_for
from flashladder.errors import FlashladderError
from flashladder.files import relative
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.family import Launch, TensorBox
from flashladder.ladder.iteration import Iteration
from flashladder.names import KERNEL
from flashladder.paths import KERNELS
from flashladder.results.schema import Shape
import ptxemu
from ptxemu import MEMORY_BUDGET, Array, Observer

ELEMENT = 2  # bytes
VECTOR = 8  # elements of one 16-byte cp.async
MULTIPROCESSORS = 132  # of an H100 (SXM) or an H200: a persistent kernel has as many CTAs at most
FEW = 2  # multiprocessors of a GPU on which a CTA of such a kernel has several tiles even of small tensors
MAP_DTYPES = {"fp16": "f16", "bf16": "bf16"}
NUMPY_DTYPES = {"fp16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}


@lru_cache(maxsize=32)
def kernel_of(iteration: Iteration, config: KernelConfig, kernels: Path = KERNELS) -> ptxemu.Kernel:
    """The kernel of one configuration, from the store's PTX (compiled at first use from the sources in `kernels`)."""
    path = ptx_for(iteration, config, kernels=kernels).ptx
    return ptxemu.load(path, path=relative(path)).kernel(KERNEL)


def make_inputs(
    shape: tuple[int, int, int, int], dtype: str, seed: int = 0, scale: float = 1.0
) -> tuple[Array, Array, Array]:
    """Q, K and V drawn from N(0, 1), Q times `scale`; (batch, seq_len, n_heads, d_head) each."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal(shape, dtype=np.float32).astype(NUMPY_DTYPES[dtype]) for _ in range(3))
    return (q * NUMPY_DTYPES[dtype].type(scale)), k, v


def make_tensors(
    iteration: Iteration, config: KernelConfig, shape: Shape, seed: int = 0
) -> tuple[Array, Array, Array, Array]:
    """Q, K, V drawn from N(0, 1) and an O full of NaN; with a fixed row stride, the first heads of wider tensors."""
    row_stride = iteration.row_stride
    full = (shape.batch, shape.seq_len, row_stride // shape.d_head if row_stride else shape.n_heads, shape.d_head)
    q, k, v = make_inputs(full, config.dtype, seed)
    out = np.full(full, np.nan, dtype=q.dtype)
    chosen = (slice(None), slice(None), slice(0, shape.n_heads))
    return q[chosen], k[chosen], v[chosen], out[chosen]


def attention_fp64(q: Array, k: Array, v: Array) -> Array:
    """``softmax(q k^T / sqrt(D)) v`` in fp64, (batch, seq_len, n_heads, d_head)."""
    q64, k64, v64 = (tensor.astype(np.float64).transpose(0, 2, 1, 3) for tensor in (q, k, v))
    scores = q64 @ k64.swapaxes(2, 3) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    output: Array = (weights / weights.sum(axis=-1, keepdims=True)) @ v64
    return output.transpose(0, 2, 1, 3)


def forward(
    iteration: Iteration,
    config: KernelConfig,
    tensors: tuple[Array, Array, Array, Array],
    *,
    kernel: ptxemu.Kernel | None = None,
    observers: Sequence[Observer] = (),
    memory_budget: int = MEMORY_BUDGET,
    progress: Callable[[int], None] | None = None,
    multiprocessors: int = MULTIPROCESSORS,
    first: int | None = None,
    schedule: str | int = "together",
) -> ptxemu.Result:
    """Runs one forward pass; O is written in place, and so is an input that a wrong kernel writes to.

    Args:
        iteration: whose kernel.
        config: which of its configurations; decides the dtype.
        tensors: Q, K, V and O, all of one shape.
        kernel: another kernel with the same parameters (a mutant), instead of the iteration's own.
        observers: counters, race detector.
        memory_budget: bytes of a slice, see `ptxemu.Kernel.launch`.
        progress: told the number of warp instructions now and then.
        multiprocessors: of the GPU that is stood for: a persistent kernel has no more CTAs, and few tiles are split.
        first: how many CTAs, or clusters, run of all; they alone write their part of O.
        schedule: the order of warps, see `ptxemu.Kernel.launch`.

    Raises:
        FlashladderError: a tensor violates the kernel's contract.
        EmulationError: the kernel does something it may not.
    """
    require(iteration, config, tensors)
    launch = iteration.family.launch(config, tensors, multiprocessors)
    return (kernel or kernel_of(iteration, config)).launch(
        launch.ctas(multiprocessors),
        launch.block,
        arguments_of(launch),
        shared_bytes=launch.shared_bytes,
        observers=observers,
        memory_budget=memory_budget,
        progress=progress,
        schedule=schedule,
        first=first,
        cluster=launch.cluster if math.prod(launch.cluster) > 1 else None,
        target=iteration.family.targets.arches[-1],  # whether it fits a GPU is seen where its key is known
    )


def arguments_of(launch: Launch) -> tuple[Any, ...]:
    """A launch's arguments as the emulator takes them: a `TensorBox` becomes its tensor map."""
    return tuple(map(_argument, launch.arguments))


def _argument(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_argument, value))
    if isinstance(value, TensorBox):
        return ptxemu.TensorMap(
            value.tensor, MAP_DTYPES[value.dtype], value.dims, value.strides, value.box, swizzle=f"{value.swizzle}B"
        )
    return value


def require(iteration: Iteration, config: KernelConfig, tensors: Sequence[Array]) -> None:
    """Checks the kernel's contract as the launcher on a GPU does, before anything runs.

    Raises:
        FlashladderError: the first violated condition, with the tensor's name.
    """
    q = tensors[0]
    for name, tensor in zip(("q", "k", "v", "out"), tensors, strict=True):
        _require(tensor.ndim == 4, name, "4 dimensions (batch, seq_len, n_heads, d_head)", tensor.ndim)
        _require(tensor.shape == q.shape, name, f"q's shape {q.shape}", tensor.shape)
        _require(tensor.dtype.itemsize == ELEMENT, name, "16-bit elements", tensor.dtype)
        _require(tensor.shape[3] == config.d_head, name, f"d_head {config.d_head}", tensor.shape[3])
        _require(tensor.strides[3] == ELEMENT, name, "a contiguous last dimension", f"{tensor.strides[3]} bytes")
        strides = [
            stride // ELEMENT for stride, size in zip(tensor.strides[:3], tensor.shape, strict=False) if size > 1
        ]
        _require(not any(s % VECTOR for s in strides), name, "strides that are multiples of 8 elements", strides)
        row = tensor.strides[1] // ELEMENT
        wanted = iteration.row_stride
        _require(wanted in (0, row), name, f"a row stride of {wanted} elements (it is compiled in)", row)
    for tile, size in config.multiples.items():
        _require(q.shape[1] % size == 0 and q.shape[1] > 0, "q", f"seq_len divisible by {tile} = {size}", q.shape[1])


def _require(holds: bool, name: str, expected: object, found: object) -> None:
    if not holds:
        raise FlashladderError(name, expected=expected, found=found)
