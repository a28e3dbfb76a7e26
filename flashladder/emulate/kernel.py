"""An iteration's kernel on the CPU: the emulator runs its PTX on NumPy tensors.

`forward` computes O, counts bank conflicts and looks for races on a machine without a GPU. `executed` says how often a
launch runs each machine instruction: the launch's parameters decide all branches, so it needs no data. Tensors are
(batch, seq_len, n_heads, d_head) of 16-bit elements: ``float16``, or bfloat16 as ``ml_dtypes.bfloat16`` or as its bits
in ``uint16``. They may be strided views of one contiguous array, as on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.lib.stride_tricks import as_strided

from flashladder.build.compile import cubin_for, ptx_for
from flashladder.errors import FlashladderError
from flashladder.files import files_in, relative, sha256
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.family import Launch, TensorBox
from flashladder.ladder.iteration import Iteration
from flashladder.machine_code.cubin import Cubin, read_cubin
from flashladder.machine_code.executions import Constants, Executions, run
from flashladder.machine_code.flow import Regions, regions_of
from flashladder.machine_code.sass import Sass, disassemble
from flashladder.names import KERNEL
from flashladder.paths import KERNELS
from flashladder.problem import Mask, Problem
import ptxemu
from ptxemu import MEMORY_BUDGET, Access, Array, Machine, Observer, Step, pack

ELEMENT = 2  # bytes
ADDRESSES = (0, (1 << 64) - 16)  # two addresses for every tensor: parameters that differ between them are unknown
VECTOR = 8  # elements of one 16-byte cp.async
MULTIPROCESSORS = 132  # of an H100 (SXM) or an H200: a persistent kernel has as many CTAs at most
FEW = 2  # multiprocessors of a GPU on which a persistent CTA computes several tiles even of small tensors
MAP_DTYPES = {"fp16": "f16", "bf16": "bf16"}
NUMPY_DTYPES = {"fp16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}


@lru_cache(maxsize=32)
def kernel_of(iteration: Iteration, config: KernelConfig, kernels: Path = KERNELS) -> ptxemu.Kernel:
    """The kernel of one configuration, from the store's PTX; the first use compiles the sources in `kernels`."""
    path = ptx_for(iteration, config, kernels).ptx
    return ptxemu.load(path, path=relative(path)).kernel(KERNEL)


def make_inputs(
    q_shape: tuple[int, int, int, int], kv_shape: tuple[int, int, int, int], dtype: str, seed: int = 0
) -> tuple[Array, Array, Array]:
    """Q, K and V drawn from N(0, 1)."""
    rng, shapes = np.random.default_rng(seed), (q_shape, kv_shape, kv_shape)
    q, k, v = (rng.standard_normal(shape, dtype=np.float32).astype(NUMPY_DTYPES[dtype]) for shape in shapes)
    return q, k, v


def make_tensors(
    iteration: Iteration, config: KernelConfig, shape: Problem, seed: int = 0
) -> tuple[Array, Array, Array, Array]:
    """Q, K, V drawn from N(0, 1) and an O full of NaN; for a fixed row stride, the first heads of wider tensors."""
    q_full, kv_full = _allocated(iteration, shape.q_shape), _allocated(iteration, shape.kv_shape)
    q, k, v = make_inputs(q_full, kv_full, config.dtype, seed)
    out = np.full(q_full, np.nan, dtype=q.dtype)
    q_heads, kv_heads = ((..., slice(0, heads), slice(None)) for heads in (shape.n_heads, shape.n_kv_heads))
    return q[q_heads], k[kv_heads], v[kv_heads], out[q_heads]


def bounds_of(shape: Problem) -> list[Array]:
    """Of packed sequences, the rows of Q and of K at which each begins, and the end; else nothing."""
    return [np.array(one, np.int32) for one in shape.bounds] if shape.is_packed else []


def _allocated(iteration: Iteration, shape: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """The shape of a tensor in memory, which is wider than `shape` for an iteration with a fixed row stride."""
    batch, rows, heads, d_head = shape
    return batch, rows, max(iteration.row_stride // d_head, heads), d_head


def attention_fp64(q: Array, k: Array, v: Array, *, mask: Mask = "none", first: int = 0, queries: int = 0) -> Array:
    """``softmax(q k^T / sqrt(D)) v`` in fp64, (batch, seq_len, n_heads, d_head).

    Under a causal mask, `q` are rows `first` and following of so many `queries`; 0: `q` are all. A row that sees no key
    gives 0.
    """
    q64, k64, v64 = (tensor.astype(np.float64).transpose(0, 2, 1, 3) for tensor in (q, k, v))
    scores = q64 @ k64.swapaxes(2, 3) / np.sqrt(q.shape[-1])
    if mask == "causal":
        seen = first + np.arange(q.shape[1]) + k.shape[1] - (queries or q.shape[1]) + 1  # keys of each row
        scores = np.where(np.arange(k.shape[1]) < seen[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=np.finfo(np.float64).min))
    sums = weights.sum(axis=-1, keepdims=True)
    output: Array = (weights / np.where(sums > 0, sums, 1)) @ v64
    return output.transpose(0, 2, 1, 3)


def forward(
    iteration: Iteration,
    config: KernelConfig,
    tensors: tuple[Array, Array, Array, Array],
    *,
    lse: Array | None = None,
    bounds: Sequence[Array] = (),
    kernel: ptxemu.Kernel | None = None,
    observers: Sequence[Observer] = (),
    memory_budget: int = MEMORY_BUDGET,
    progress: Callable[[int], None] | None = None,
    multiprocessors: int = MULTIPROCESSORS,
    first: int | None = None,
    schedule: str | int = "together",
) -> ptxemu.Result:
    """Runs one forward pass; it writes O in place, and so does a wrong kernel with an input.

    Args:
        iteration: whose kernel runs.
        config: one of its configurations; decides the dtype.
        tensors: Q, K, V and O; all of one shape, except for kernels of general problems.
        lse: where these write the log-sum-exp, fp32 (batch, n_heads, seq_len); None: nowhere.
        bounds: of packed sequences, the rows of Q and of K at which each begins, and the end, int32.
        kernel: another kernel with the same parameters (a mutant), instead of the iteration's own.
        observers: counters, race detector.
        memory_budget: bytes of a slice, see `ptxemu.Kernel.launch`.
        progress: called with the number of warp instructions now and then.
        multiprocessors: of the emulated GPU: the most CTAs of a persistent kernel, which splits tiles if they are few.
        first: run only so many CTAs or clusters; the others write nothing to O.
        schedule: the order of warps, see `ptxemu.Kernel.launch`.

    Raises:
        FlashladderError: a tensor violates the kernel's contract.
        EmulationError: the kernel does something it may not.
    """
    require(iteration, config, tensors)
    launch = iteration.family.launch(config, tensors, multiprocessors, lse, bounds)
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
        target=iteration.family.targets.arches[-1],  # the largest: other code checks whether it fits a given GPU
    )


def arguments_of(launch: Launch) -> tuple[Any, ...]:
    """A launch's arguments for the emulator: a `TensorBox` becomes its tensor map."""
    return tuple(map(_argument, launch.arguments))


def _argument(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_argument, value))
    if isinstance(value, TensorBox):
        return ptxemu.TensorMap(
            value.tensor, MAP_DTYPES[value.dtype], value.dims, value.strides, value.box, swizzle=f"{value.swizzle}B",
            wraps=value.wraps,
        )  # fmt: skip
    return value


def require_length(config: KernelConfig, seq_len: int) -> None:
    """Raises `FlashladderError` for a length that is no multiple of the tiles."""
    for tile, size in config.multiples.items():
        if seq_len % size or seq_len < size:
            raise FlashladderError(
                "seq_len does not fit the tiles", expected=f"a multiple of {tile} = {size}", found=seq_len
            )


def require(iteration: Iteration, config: KernelConfig, tensors: Sequence[Array]) -> None:
    """Checks the kernel's contract like the launcher on a GPU; `FlashladderError` names the first wrong tensor."""
    q = tensors[0]
    for name, tensor in zip(("q", "k", "v", "out"), tensors, strict=True):
        _require(tensor.ndim == 4, name, "4 dimensions (batch, seq_len, n_heads, d_head)", tensor.ndim)
        free = config.is_general and name in ("k", "v")
        expected = (q.shape[0], *tensors[1].shape[1:]) if free else q.shape
        _require(tensor.shape == expected, name, f"the shape {expected}", tensor.shape)
        _require(tensor.dtype.itemsize == ELEMENT, name, "16-bit elements", tensor.dtype)
        _require(tensor.shape[3] == config.d_head, name, f"d_head {config.d_head}", tensor.shape[3])
        *strides, last = (stride // ELEMENT for stride in tensor.strides)
        _require(last == 1, name, "a contiguous last dimension", f"stride {last}")
        used = [stride for stride, size in zip(strides, tensor.shape, strict=False) if size > 1]
        _require(not any(one % VECTOR for one in used), name, "strides that are multiples of 8 elements", used)
        row, wanted = strides[1], iteration.row_stride
        _require(wanted in (0, row), name, f"a row stride of {wanted} elements (it is compiled in)", row)
    heads, kv_heads = q.shape[2], tensors[1].shape[2]
    _require(heads % kv_heads == 0, "k", f"a number of heads that divides {heads}", kv_heads)
    require_length(config, q.shape[1])


def _require(holds: bool, name: str, expected: object, found: object) -> None:
    if not holds:
        raise FlashladderError(name, expected=expected, found=found)


def version(*more: Path) -> str:
    """A digest of the emulator's code, this file and `more`: with the PTX they decide a reading."""
    folder = Path(ptxemu.__file__).parent
    files = [*files_in(folder, "**/*.py"), Path(__file__), *more]
    return sha256("".join(sha256(path.read_bytes()) for path in files) + np.__version__)


def executed(iteration: Iteration, config: KernelConfig, arch: str, shape: Problem) -> tuple[Regions, Executions]:
    """The control flow of a kernel, and how often each of its (equal) warps runs each block on tensors of `shape`.

    Raises:
        FlashladderError: the shape does not fit the configuration, the kernel does not compile, or its branches depend
            on more than the launch.
    """
    _, sass, constants = machine_code(iteration, config, arch, shape)
    regions = regions_of(sass)
    return regions, run(regions.flow, constants)


def machine_code(
    iteration: Iteration, config: KernelConfig, arch: str, shape: Problem
) -> tuple[Cubin, Sass, Constants]:
    """A kernel's cubin and instructions, and the known parameters of a launch on tensors of `shape`.

    Raises:
        FlashladderError: the shape does not fit the configuration, or the kernel does not compile.
    """
    launch = launch_of(iteration, config, shape)
    path = cubin_for(iteration, config, arch).cubin
    cubin = read_cubin(path)
    if cubin.parameters_at is None:
        raise FlashladderError("the cubin does not say where the kernel's parameters lie", where=relative(path))
    constants = constants_of(iteration, config, launch, cubin.parameters_at)
    return cubin, disassemble(path, lines=False), constants


def launch_of(
    iteration: Iteration, config: KernelConfig, shape: Problem, multiprocessors: int = MULTIPROCESSORS
) -> Launch:
    """The launch on tensors of `shape` without contents; for a fixed row stride, the first heads of wider tensors.

    Raises:
        FlashladderError: the length is no multiple of the tiles.
    """
    require_length(config, shape.seq_len)
    one = np.zeros(1, NUMPY_DTYPES[config.dtype])

    def tensor(own: tuple[int, int, int, int]) -> Array:
        """A tensor without memory of its own."""
        full = _allocated(iteration, own)
        strides = [ELEMENT * math.prod(full[i + 1 :]) for i in range(4)]
        return as_strided(one, full, strides, writeable=False)[:, :, : own[2]]

    q, k = tensor(shape.q_shape), tensor(shape.kv_shape)
    return iteration.family.launch(config, [q, k, k, q], multiprocessors)


def constants_of(iteration: Iteration, config: KernelConfig, launch: Launch, place: int) -> Constants:
    """The words of a launch's parameters in constant bank 0, from offset `place` on, without addresses of tensors."""
    function, arguments = kernel_of(iteration, config).function, arguments_of(launch)

    def packed(address: int) -> Array:
        return np.frombuffer(pack(function, arguments, lambda _: address), np.uint32)

    first, second = map(packed, ADDRESSES)
    return {place + 4 * i: int(word) for i, word in enumerate(first) if word == second[i]}


@dataclass
class CopyOrder(Observer):
    """Counts, per warp, executions of a ``cp.async`` at a higher (`upward`) or lower address than its previous one.

    No other counter shows whether a kernel visits the KV blocks in reverse. Read it after the launch; slices of the
    grid, and several launches, add up.
    """

    upward: int = 0
    downward: int = 0
    _warps: tuple[int, int, int] = (0, 0, 1)
    _last: dict[int, Array] = field(default_factory=dict, repr=False)

    def start(self, machine: Machine) -> None:
        """Forgets the addresses of the previous slice, which had other CTAs."""
        self._warps = (*machine.shape[:2], 1)
        self._last.clear()

    def access(self, step: Step, access: Access) -> None:
        """Compares the lowest address of each warp with that of the same instruction's previous execution."""
        if (access.space, access.kind) != ("global", "cp.async"):
            return
        mask = np.array(True) if access.mask is None else access.mask
        active = np.broadcast_to(mask, np.broadcast_shapes(self._warps, access.address.shape, mask.shape))
        lowest = np.where(active, access.address.astype(np.int64), np.iinfo(np.int64).max).min(axis=2)
        lowest = np.where(active.any(axis=2), lowest, -1)  # -1: no lane copies
        before = self._last.get(id(step.instruction), np.full_like(lowest, -1))
        both = (lowest != -1) & (before != -1)
        self.upward += int(np.count_nonzero(both & (lowest > before)))
        self.downward += int(np.count_nonzero(both & (lowest < before)))
        self._last[id(step.instruction)] = np.where(lowest == -1, before, lowest)

    def as_dict(self) -> dict[str, int]:
        """The two counts, by the names that claims use."""
        return {"copies_upward": self.upward, "copies_downward": self.downward}
