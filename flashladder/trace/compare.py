"""A kernel on the emulator beside the reference, KV block by KV block: which intermediate is wrong first, and where.

Each intermediate is compared with what the kernel's own values before it give: P with the kernel's S and m, O with the
kernel's O, P and V. So a mistake is wrong once, where it is made, and the bounds are those of one step's rounding. The
drift is the distance from fp64 throughout. `lookalike` asks whether a wrong row is another one's: an index that is off
gives right numbers in the wrong place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
import math

import numpy as np
import torch

from flashladder.emulate.kernel import forward, kernel_of, make_tensors
from flashladder.errors import FlashladderError
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import Iteration
from flashladder.problem import Shape
from flashladder.trace import reference as ref
from flashladder.trace.recorder import SCALED, STALE, STATISTICS, Geometry, Held, KvStep, Recorder
import ptxemu
from ptxemu import Array, Instruction


@dataclass(frozen=True)
class Where:
    """One element, who holds it, and what it is."""

    cta: tuple[int, int, int]  # ``blockIdx`` (x, y, z)
    # of the CTA, of the warp; None in what is stored
    warp: int | None
    lane: int | None
    row: int  # of the CTA's tile; `query` the same over the sequence
    query: int
    column: int | None  # of the matrix (a key of the block, or of d_head); None of row statistics
    # the kernel's value, the reference's, and how far they may be apart
    found: float
    expected: float
    allowed: float
    maker: Instruction | None  # the instruction that made it


@dataclass(frozen=True)
class Comparison:
    """One intermediate of one KV block."""

    step: int  # how many KV blocks were visited before
    block: int | None  # which it is, from key 0 on; None for what is stored
    name: str  # of `INTERMEDIATES`
    held: Array  # the kernel's values, (CTAs, rows, columns)
    expected: torch.Tensor  # what they should be by the values before them, fp64
    max_error: float  # largest absolute error; NaN where the kernel holds one
    rms: float  # root mean square of the error, over all CTAs
    share: float  # the largest error in units of what is allowed there: more than 1 is a difference
    drift: float  # largest distance from the fp64 reference that starts from Q, K and V
    beyond: torch.Tensor  # for each element whether it is further off than allowed, (CTAs, rows, columns)
    worst: Where  # where that is
    first: Where | None  # the first element beyond, by CTA, row and column; None: all are within

    @property
    def n_beyond(self) -> int:
        """Elements that are further off than allowed."""
        return int(self.beyond.sum())


@dataclass(frozen=True)
class Trace:
    """All comparisons of a launch, in the order in which a kernel computes."""

    iteration: Iteration
    config: KernelConfig
    shape: Shape
    tensors: tuple[Array, Array, Array, Array]  # Q, K, V and O, (batch, seq_len, n_heads, d_head)
    ctas: tuple[tuple[int, int, int], ...]  # ``blockIdx`` in the order of the arrays
    steps: tuple[KvStep, ...]  # what the kernel held, a step a KV block, all CTAs
    backward: bool  # from the last KV block to the first
    comparisons: tuple[Comparison, ...]

    @property
    def n_expected(self) -> int:
        """KV blocks that the shape has."""
        return self.shape.seq_len // self.config.B_c

    @property
    def first(self) -> Comparison | None:
        """The first that has an element beyond what is allowed."""
        return next((one for one in self.comparisons if one.first is not None), None)

    @property
    def passed(self) -> bool:
        """All within bounds, and as many KV blocks as there are."""
        return self.first is None and len(self.steps) == self.n_expected


def of_ctas(found: Trace, tensor: Array, *, rows: bool = False) -> torch.Tensor:
    """Each CTA's head of a tensor in fp64, (CTAs, seq_len, d_head); with `rows` its own B_r rows of it."""
    size = found.config.B_r
    pieces = [tensor[z, x * size : (x + 1) * size, y] if rows else tensor[z, :, y] for x, y, z in found.ctas]
    return torch.from_numpy(np.stack(pieces).astype(np.float64))


def exact(array: Array) -> torch.Tensor:
    """In fp64."""
    return torch.from_numpy(array.astype(np.float64))


ALL_AT_ONCE = 1 << 62  # bytes: the grid is one slice, of which all KV blocks are kept anyway
LARGEST = 1 << 22  # scores of all heads together: the trace keeps S and P, and what they should be in fp64


def trace(
    iteration: Iteration,
    config: KernelConfig,
    shape: Shape,
    *,
    contents: str = "normal",
    seed: int = 0,
    kernel: ptxemu.Kernel | None = None,
) -> Trace:
    """Runs a kernel and compares all its intermediates.

    Args:
        iteration: whose kernel.
        config: its configuration, which decides the dtype.
        shape: of Q, K, V and O.
        contents: a name of `reference.fill`.
        seed: of what is drawn.
        kernel: another kernel with the same parameters, instead of the iteration's own.

    Raises:
        FlashladderError: a shape that the kernel cannot take, or a form of kernel that cannot be read.
        EmulationError: the kernel does something it may not.
    """
    scores = shape.batch * shape.n_heads * shape.seq_len**2
    if scores > LARGEST:
        raise FlashladderError("too large to trace", expected=f"at most {LARGEST:,} scores", found=f"{scores:,}")
    tensors = make_tensors(iteration, config, shape, seed)
    ref.fill(contents, *tensors[:3])
    dtype = "f16" if config.dtype == "fp16" else "bf16"
    recorder = Recorder(geometry=Geometry.of(config), dtype=dtype, softmax=iteration.parts.softmax)
    launched = kernel or kernel_of(iteration, config)
    forward(iteration, config, tensors, kernel=launched, observers=(recorder,), memory_budget=ALL_AT_ONCE)
    ctas, steps = tuple(recorder.ctas), tuple(recorder.steps)
    subject = Trace(iteration, config, shape, tensors, ctas, steps, recorder.backward, ())
    return replace(subject, comparisons=tuple(_compared(subject)))


def _compared(found: Trace) -> Iterator[Comparison]:
    config, scale, softmax = found.config, 1 / math.sqrt(found.config.d_head), found.iteration.parts.softmax
    q, k, v = (of_ctas(found, tensor, rows=tensor is found.tensors[0]) for tensor in found.tensors[:3])
    before = truth = ref.State.empty(len(found.ctas), config.B_r, config.d_head)
    for number, step in enumerate(found.steps):
        visited = min(number, found.n_expected - 1)  # steps beyond the last repeat it
        block = found.n_expected - 1 - visited if found.backward else visited
        rows = slice(block * config.B_c, (block + 1) * config.B_c)
        inputs, values = (q, k[:, rows], v[:, rows]), {name: exact(one.array) for name, one in step.items()}
        progress = ref.Progress(number * config.B_c, found.shape.seq_len) if softmax == STALE else None
        form = partial(ref.kv_block, scale=scale, dtype=config.dtype, progress=progress, scaled=softmax == SCALED)
        expected, throughout = form(before, inputs, kernel=values), form(truth, inputs)
        for name, bounded in expected.items():
            yield comparison(found, name, step[name], bounded, throughout[name][0], number, block)
        before, truth = ref.State.behind(values), ref.State.behind({n: value for n, (value, _) in throughout.items()})
    stored = Held(of_ctas(found, found.tensors[3], rows=True).numpy(), {})
    ideal, _ = ref.normalised(truth, config.dtype)
    yield comparison(found, "out", stored, ref.normalised(before, config.dtype), ideal, len(found.steps), None)


def comparison(
    found: Trace,
    name: str,
    held: Held,
    bounded: ref.Bounded,
    throughout: torch.Tensor,
    step: int,
    block: int | None,
) -> Comparison:
    """One intermediate against what it should be by the values before it, and by Q, K and V alone (`throughout`)."""
    value, (expected, allowed) = exact(held.array), bounded
    error = _distance(value, expected)
    beyond = ~(error <= allowed)
    ratio = torch.nan_to_num(error / allowed, nan=math.inf)

    def where(scores: torch.Tensor) -> Where:
        """The element with the largest score, the first of equal ones."""
        at = cta, row, column = tuple(int(axis) for axis in np.unravel_index(int(scores.argmax()), held.array.shape))
        statistic, (x, _, _) = name in STATISTICS, found.ctas[cta]
        place = Geometry.of(found.config).place(row, column, statistic=statistic)
        return Where(
            cta=found.ctas[cta],
            warp=place.warp,
            lane=place.lane if held.makers else None,
            row=row,
            query=x * found.config.B_r + row,
            column=None if statistic else column,
            found=float(value[at]),
            expected=float(expected[at]),
            allowed=float(allowed[at]),
            maker=held.makers.get(place[2:]),
        )

    return Comparison(
        step,
        block,
        name,
        held.array,
        expected,
        max_error=float(error.max()),
        rms=float(error.square().mean().sqrt()),
        share=float(ratio.max()),
        drift=float(_distance(value, throughout).max()),
        beyond=beyond,
        worst=where(ratio),
        first=where(beyond.int()) if bool(beyond.any()) else None,
    )


def _distance(value: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Absolute difference; nothing between equal infinities, NaN where either is one."""
    return torch.where(value == expected, 0.0, (value - expected).abs())


ANOTHER_ROW = 4.0  # times what is allowed: another row's bound is of the same size, not the same


def lookalike(found: Trace, wrong: Comparison) -> str | None:
    """What the first wrong row of S, or column of O, holds instead, in words; None where nothing fits."""
    first, block, keys = wrong.first, wrong.block, found.config.B_c
    if first is None or block is None or wrong.name not in ("S", "O"):
        return None
    cta, step = found.ctas.index(first.cta), found.steps[wrong.step]
    q, k, v = (of_ctas(found, tensor)[cta] for tensor in found.tensors[:3])
    here, p = slice(block * keys, (block + 1) * keys), exact(step["P16"].array)[cta]
    if wrong.name == "S":
        wanted = exact(wrong.held)[cta, first.row]
        of_blocks = (q[first.query] @ k.T).reshape(-1, keys)
        candidates = {"the row is that of query {0}": q @ k[here].T, "the row is that of keys {1} to {2}": of_blocks}
    else:
        wanted = (exact(step["O"].array) - exact(step["O_rescaled"].array))[cta, :, first.column]
        of_blocks = torch.stack([p @ part[:, first.column] for part in v.reshape(-1, keys, v.shape[-1])])
        added = "what was added is P V of V's"
        candidates = {f"{added} column {{0}}": (p @ v[here]).T, f"{added} rows {{1}} to {{2}}": of_blocks}
    for words, rows in candidates.items():
        near = ((rows - wanted).abs() <= ANOTHER_ROW * first.allowed).all(dim=-1)
        if bool(near.any()) and not bool(near.all()):  # equal inputs tell nothing
            place = int(near.int().argmax())
            return words.format(place, place * keys, (place + 1) * keys - 1)
    return None
