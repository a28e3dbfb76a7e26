"""The emulator behind the numerical check: its cases, and an iteration as an operator on torch's CPU tensors.

The rule is the GPU's. The emulator gets NumPy views of torch's CPU tensors with their real strides, so that packed,
transposed and sliced tensors, the NaN around O and the refusals are tested as on a GPU. Shapes are small. Strides that
pass 2^32 bytes cost address space and no memory. A kernel without a barrier may give right numbers in the emulator's
order of threads: each kernel's first launch is watched for races and missing waits, and one that is found fails the
case.

Run:
    python -m flashladder.check 7 --backend emulator           # its A100 configuration, fp16 and bf16
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod
from pathlib import Path
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from flashladder.cases.inputs import (
    BESIDE,
    CONSTANT,
    EDGES,
    ENDING,
    FULL_HEADS,
    HEAVY,
    LARGE_LOGITS,
    LOGITS,
    LONE,
    Case,
    View,
    far_stride,
)
from flashladder.cases.reference import Run
from flashladder.emulate.kernel import FEW, MULTIPROCESSORS, forward, kernel_of, require
from flashladder.errors import FlashladderError, failures
from flashladder.ladder.config import D_HEAD, KernelConfig
from flashladder.ladder.iteration import Iteration
from flashladder.names import PUBLISHED_GPU
from flashladder.paths import KERNELS
from flashladder.problem import Shape
import ptxemu
from ptxemu import MEMORY_BUDGET, Array

if TYPE_CHECKING:
    import torch

MOST_TILES = 3  # of a CTA of a persistent kernel: more make a launch longer; tests/nvcc/test_hopper_tiles.py has eight
REPEATS = 2  # runs of the first case that must agree bit for bit; the second proves that no state is left over
CONFIGS = (PUBLISHED_GPU,)  # whose configurations are checked unless others are asked for
FAR_ROW = (1 << 29) + (1 << 20)  # bytes from row to row: four of them pass 2^31 bytes, eight 2^32; address space only
RAGGED = ((1, 201, 2), (2, 384, 1), (1, 1, 2), (2, 17, 1), (1, 129, 3), (1, 1000, 1))  # batch, length, heads
QUICK_RAGGED = 2
ELEMENT = np.dtype(np.uint16)  # bits of either dtype: the kernel's configuration says which it is


def cases_for(config: KernelConfig, row_stride: int = 0, *, quick: bool = False) -> tuple[Case, ...]:
    """The emulator's cases of a configuration: small shapes, odd counts, views of all kinds, logits of all kinds.

    Args:
        config: whose tiles the lengths are multiples of.
        row_stride: the only one that the kernel takes, in elements (0: any). Such a kernel gets its heads as slices of
            tensors with that row stride, and the other layouts to refuse.
        quick: one length and one refusal; of a kernel that takes any length, one that no block divides and one that
            only some do.
    """
    tile = max(config.B_r, config.B_c)
    fixed = row_stride == FULL_HEADS * D_HEAD
    own: View = "head_slice" if fixed else "contiguous"

    def case(name: str, shape: tuple[int, int, int], view: View = own, repeats: int = 1, **other: Any) -> Case:
        batch, length, heads = shape
        text = f"{name} {batch}x{length}x{heads}"
        size = Shape(batch=batch, seq_len=length, n_heads=heads, d_head=D_HEAD)
        return Case(text, size, view, seed=length + heads, repeats=repeats, **other)

    main = case("small", (2, 256, 2), repeats=REPEATS)
    ragged = [] if config.multiples else [case("ragged", shape) for shape in RAGGED]
    slices = -(-len(LOGITS) // 2)
    few = [case("few tiles", shape) for shape in config.few_tiles]
    halves = (LOGITS[:slices], LOGITS[slices:]) if few else ()
    spread = [
        case(f"few tiles of extreme logits {turn}", (1, tile * 8 - 1, slices), contents=half)
        for turn, half in enumerate(halves)
    ]
    apart = [case("ragged extreme logits", (2, tile * 2 - 1, slices), contents=LOGITS)] if ragged else []
    ending = [case("heavy last key", (1, tile * 5 + 1, len(ENDING)), contents=ENDING)] if ragged else []
    if quick:
        return (main, case("transposed", (1, tile, 2), "transposed"), *few[:1], *ragged[:QUICK_RAGGED])
    return (
        main,
        *few,
        *ragged,
        case("long", (1, 1024, 1)),
        case("one block", (1, tile, 1)),
        case("odd", (3, tile * 3, 1)),
        case("odd", (1, tile * 2, 3)),
        case("many heads", (1, tile, 9)),
        case("many samples", (9, tile, 1)),
        case("samples of heads", (3, tile, 3)),
        case("expanded", (3, tile, 2), expanded=True),
        case("head slice", (2, tile, 3), "head_slice"),
        case("qkv packed", (2, tile * 2, 2), "packed"),
        case("transposed", (2, tile * 2, 2), "transposed"),
        case("sliced", (2, tile * 2, 2), "sliced"),
        *(case(f"mixed {turn}", (2, tile * 2, 2), "mixed", turn=turn) for turn in (0, 2)),
        *(case(f"mixed rows of 2048 {turn}", (2, tile * 2, 2), "mixed_slots", turn=turn) for turn in (0, 2) if fixed),
        *(case(f"other row stride {turn}", (1, tile, 2), "one_off", turn=turn) for turn in range(4) if fixed),
        case("far rows", (1, tile * 2, 1), "far_rows", far_bytes=FAR_ROW),
        case("far heads", (1, tile, 2), "far_heads", far_bytes=far_stride(2)),
        case("far samples", (2, tile, 1), "far_samples", far_bytes=far_stride(2)),
        case("large logits", (1, tile * 2, 1), scale=LARGE_LOGITS),
        case("extreme logits", (2, max(192, tile * 2), slices), contents=LOGITS),
        *spread,
        *apart,  # one row short of a block, which counts neither as a key nor in the maximum
        case("edge logits", (1, max(192, tile * 2), len(EDGES)), contents=EDGES),
        case("constant V", (1, tile * 2, 2), contents=CONSTANT),
        *(case("heavy rows", (1, length, len(HEAVY)), contents=HEAVY) for length in (max(256, tile * 2), 512)),
        case("lone weights", (1, tile * 5, len(LONE)), contents=LONE),
        case("heavy rows beside flat ones", (1, 512, len(BESIDE)), contents=BESIDE),
        *ending,
    )


def as_array(tensor: torch.Tensor, storages: dict[int, Array]) -> Array:
    """A view of a CPU tensor of 16-bit elements as their bits, with its shape, strides and the memory around it.

    Args:
        tensor: any strided view.
        storages: the whole of each storage by its address; filled here, so that views of one storage share it.
    """
    import torch

    storage = tensor.untyped_storage()
    if storage.data_ptr() not in storages:
        flat = torch.empty(0, dtype=torch.int16).set_(storage)
        storages[storage.data_ptr()] = flat.numpy().view(ELEMENT)
    base = storages[storage.data_ptr()]
    while isinstance(base.base, np.ndarray):
        base = base.base
    size = ELEMENT.itemsize
    strides = tuple(stride * size for stride in tensor.stride())
    return np.ndarray(tuple(tensor.shape), ELEMENT, base, tensor.storage_offset() * size, strides)


def emulated_run(
    iteration: Iteration,
    *,
    memory_budget: int = MEMORY_BUDGET,
    kernels: Path = KERNELS,
    watched: Collection[str] = (),
) -> Run:
    """The iteration as an operator on CPU tensors, ``run(q, k, v, out, short_form)``, as its wheel has one on a GPU.

    The first launch of each configuration is watched for races, and any of more blocks of keys after it, those whose
    tiles an H200 splits for themselves, but of those in `watched` (short forms). `kernels` is the folder of the CUDA
    sources, so that a changed copy of it meets the same check.

    The operator raises `ValueError` for a tensor outside of the kernel's contract and `RuntimeError` for a program that
    races or does what it may not; `FlashladderError` when there is no PTX, because nothing can compile it.
    """
    longest = dict[tuple[str, int], int]()  # watched, in blocks of keys, for each number of CTAs that share a tile

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, short_form: str) -> None:
        config = KernelConfig.parse(short_form)
        kernel = kernel_of(iteration, config, kernels)
        storages: dict[int, Array] = {}
        arrays = tuple(as_array(tensor, storages) for tensor in (q, k, v, out))
        tensors = (arrays[0], arrays[1], arrays[2], arrays[3])
        try:
            require(iteration, config, tensors)
        except FlashladderError as error:
            raise ValueError(str(error)) from error
        hazards = ptxemu.Hazards()
        parts = prod(iteration.family.launch(config, tensors, MULTIPROCESSORS).cluster)
        blocks, tiles = -(-q.shape[1] // config.B_c), q.shape[0] * q.shape[2] * -(-q.shape[1] // config.B_r)
        known = sys.maxsize if short_form in watched else longest.get((short_form, parts), 0)
        observers = (hazards,) if blocks > known else ()
        longest[short_form, parts] = max(blocks, known)
        try:
            forward(
                iteration,
                config,
                tensors,
                kernel=kernel,
                observers=observers,
                memory_budget=memory_budget,
                multiprocessors=max(FEW, -(-tiles // MOST_TILES)) if parts == 1 else MULTIPROCESSORS,
            )
        except failures() as error:
            raise RuntimeError(str(error)) from error
        if hazards.reports:
            more = f" ({len(hazards.reports) - 1 + hazards.dropped} more)" if len(hazards.reports) > 1 else ""
            raise RuntimeError(f"{hazards.reports[0].render()}{more}")

    return run
