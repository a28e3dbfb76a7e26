"""Compares a kernel on the emulator with the online softmax in PyTorch and fp64, to find the first wrong intermediate.

`fill` gives Q, K and V contents with readable intermediates. `kv_block` is one round of algorithm 1 of FlashAttention-2
(Dao 2023, arXiv:2307.08691) on a CTA's rows, with an error bound for each value. The bounds are worst cases of
rounding: relative 2^-24 in fp32; n times that of the terms' sizes for a sum of n terms; ``ex2.approx.ftz`` 2^-22,
``rsqrt.approx.ftz`` 2^-22.9, ``rcp.approx.ftz`` 2^-23, ``div.approx.ftz`` 2^-22 (PTX ISA 9.0, 9.7.3). Numbers below
2^-126 are flushed to zero.

Each intermediate is compared with a result of the kernel's own earlier values: P with the kernel's S and m, O with the
kernel's O, P and V. So a mistake shows once, where it is made, and a bound covers the rounding of one step. The drift
is the distance from fp64 throughout. `lookalike` finds a wrong row that belongs elsewhere, as a wrong index gives right
numbers in the wrong place.

Tensors are (CTAs, B_r, columns), fp64. Row statistics have a column for each of the four lanes that share a row: each
has a copy of m, and the part of l that sums its columns (c % 8 // 2 is the lane of column c).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
import math

import numpy as np
import torch
from torch import Tensor

from flashladder.cases.reference import UNIT_ROUNDOFF
from flashladder.emulate.kernel import forward, kernel_of, make_tensors
from flashladder.errors import FlashladderError
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import Iteration
from flashladder.problem import Problem
from flashladder.trace.recorder import QUAD, SCALED, STALE, STATISTICS, TILE_K, TILE_N, Geometry, Held, KvStep, Recorder
import ptxemu
from ptxemu import Array, Instruction

DIGIT = 256  # bf16 holds whole numbers up to here
ROW = 1000  # S of `range` is ROW x row + column, exact in fp32 up to row 16,777
ONE_HOT = 64  # positions that one half of d_head tells apart, in `identity`
STRENGTH = 32  # of a one-hot: 1024 x 1 / sqrt(128) apart, exp(-90) counts as nothing


def fill(name: str, q: Array, k: Array, v: Array) -> None:
    """Overwrites N(0, 1) draws, (batch, seq_len, n_heads, d_head), with the contents `name`.

    ``range``: S[i, j] = 1000 i + j, so m[i] is the last column so far; V[j, c] = c, so rows of O / l count up.
    ``identity``: S[i, j] = 2048 for i = j, else at most 1024, so O[i] = V[i]; V[j, c] = j, or c in odd columns.
    ``ones``: V = 1, so O is l up to the rounding of P. ``normal``: unchanged.
    """
    position = np.arange(q.shape[1])
    if name in ("range", "identity"):
        q[...], k[...], v[...] = 0, 0, np.arange(v.shape[3])
    if name == "range":
        high, low = np.divmod(position.reshape(-1, 1), DIGIT)
        q[..., 0], q[..., 1], q[..., 2:4] = low, 16 * high, 1
        k[..., 0], k[..., 1], k[..., 2], k[..., 3] = ROW, ROW * DIGIT // 16, low, DIGIT * high
    elif name == "identity":
        for tensor in (q, k):
            tensor[:, position, :, position % ONE_HOT] = STRENGTH
            tensor[:, position, :, ONE_HOT + position // ONE_HOT % ONE_HOT] = STRENGTH
        v[..., ::2] = position.reshape(-1, 1, 1)
    elif name == "ones":
        v[...] = 1


EPSILON = 2.0**-24  # unit roundoff of fp32
EX2 = 2.0**-22  # relative errors of approximate instructions
RSQRT = 2.0**-22.9
DIVISION = 2.0**-22  # div.approx; rcp with a multiplication has less
FLUSHED = 2.0**-126  # the smallest number that .ftz keeps
SCALE = RSQRT + 2 * EPSILON  # the scale: a reciprocal root times log2(e)
LEAST = {"fp16": 2.0**-25, "bf16": 2.0**-134}  # half the smallest subnormal: error of numbers below it

# Constants of softmax/exp2_stale.cuh
SLACK = 2.0  # `slack`: powers of two by which a score may exceed the m in use
WEIGHTS = ((1024, 2.0), (512, 1.25), (0, 1.5))  # `weight`, from a number of keys on
LIGHT = range(512, 1024)  # `starts_light`: row lengths for which the first block leaves rows light,
APART = 4.0  # `apart`: unless the maxima of their lanes differ by more powers of two than this
MARKED = 1024.0  # `marks`: from this size of m on, every row is light and the last bit of m is no mark
HEAVY_ERROR = 2.0**-17  # rounding of a row's sum, in units of its largest P, by two sums and two exponentials
TOGETHER = 8  # rows that update their maximum together: a warp's rows in one half of an m-tile

Bounded = tuple[Tensor, Tensor]
"""A value, and its error bound for a right kernel."""


@dataclass(frozen=True)
class State:
    """The output of a KV block for the next: m and l (CTAs, B_r, 4), O (CTAs, B_r, d_head) not yet divided by l."""

    m: Tensor
    l: Tensor  # noqa: E741 - the paper's name
    o: Tensor

    @classmethod
    def empty(cls, ctas: int, rows: int, d_head: int) -> State:
        """The state before the first block."""
        statistics = torch.zeros(ctas, rows, QUAD, dtype=torch.float64)
        return cls(statistics - math.inf, statistics, torch.zeros(ctas, rows, d_head, dtype=torch.float64))

    @classmethod
    def behind(cls, values: Mapping[str, Tensor]) -> State:
        """The state after a block with these intermediates."""
        return cls(values["m"], values["l"], values["O"])


def over_columns(statistic: Tensor, columns: int) -> Tensor:
    """A row statistic, repeated for the columns of each lane, (CTAs, B_r, columns)."""
    return statistic[..., torch.arange(columns) % TILE_N // 2]


def by_lane(values: Tensor) -> Tensor:
    """The columns of each lane of the quad, (CTAs, B_r, n-tiles, 4, 2)."""
    return values.reshape(*values.shape[:-1], -1, QUAD, 2)


def _summed(terms: int, sizes: Tensor) -> Tensor:
    return sizes * (terms * EPSILON / (1 - terms * EPSILON)) + FLUSHED


def _exponential_error(exponent_error: Tensor) -> Tensor:
    """Relative error of 2^x for this error of x."""
    return torch.expm1(exponent_error * math.log(2)) + EX2


@dataclass(frozen=True)
class Progress:
    """The position of a KV block in its row."""

    done: int  # keys before the block
    keys: int  # of the row

    @property
    def due(self) -> float:
        """The sum, in units of its largest P, from which on a row is light."""
        weight = next(weight for keys, weight in WEIGHTS if self.keys >= keys)
        return weight * self.done / math.sqrt(self.keys)

    @property
    def starts_heavy(self) -> bool:
        """Whether the first block leaves every row heavy."""
        return self.keys not in LIGHT


def marked(top: Tensor, heavy: Tensor) -> Tensor:
    """The m in use for a maximum `top`: less by `SLACK` if the row is heavy, which the last bit of fp32 marks."""
    heavy = heavy & ((top - SLACK).abs() < MARKED)
    value = torch.where(heavy, top - SLACK, top).float()
    bits = value.view(torch.int32)
    light = torch.where(value.abs() < MARKED, bits & ~1, bits)
    return torch.where(heavy, bits | 1, light).view(torch.float32).double()


def is_heavy(m: Tensor) -> Tensor:
    """Which rows follow their maximum exactly, by the last bit of their m."""
    return (m.float().view(torch.int32) & 1).bool() & (m.abs() < MARKED)


def stale_maximum(before: State, s: Tensor, scale: float, progress: Progress, seen: Tensor | None = None) -> Bounded:
    """The m of rows that keep their maximum until a score exceeds it by `SLACK`, in powers of two.

    Eight rows update together: each takes its largest score so far and decides anew whether it is heavy. The m of a
    heavy row is below its maximum by the slack, so any larger score triggers an update. In the first block there is no
    sum to decide by; the row's length and the distance of its lanes' maxima decide. If rounding decides, the result
    follows `seen`, the kernel's m.
    """
    c = scale / math.log(2)
    lanes = by_lane(s).amax(dim=(-3, -1)) * c
    above, unsure = lanes - before.m - SLACK, lanes.abs() * (SCALE + EPSILON) + EPSILON * SLACK
    if seen is None:
        unsure = torch.zeros_like(unsure)
    must, may = (_together(above + sign * unsure > 0) for sign in (-1, 1))
    top = torch.maximum(before.m + SLACK * is_heavy(before.m), lanes.amax(dim=-1, keepdim=True))
    error = top.abs() * (SCALE + 4 * EPSILON) + 4 * EPSILON * SLACK
    share = before.l.sum(dim=-1, keepdim=True) * torch.exp2(before.m - top) - progress.due
    spread = lanes.amax(dim=-1, keepdim=True) - lanes.amin(dim=-1, keepdim=True) - APART
    first = torch.isinf(before.m)
    heavy = torch.where(first, (spread > 0) | progress.starts_heavy, share < 0)
    fresh = marked(top, heavy)
    if seen is not None:
        even = (spread.abs() < 2 * error) & (not progress.starts_heavy)
        close = torch.where(first, even, share.abs() < progress.due * HEAVY_ERROR)
        other = marked(top, ~heavy)
        fresh = torch.where(close & ((seen - other).abs() < (seen - fresh).abs()), other, fresh)
        must = must | (may & ((seen - fresh).abs() < (seen - before.m).abs()))
    return torch.where(must, fresh, before.m), torch.where(must, error, 0.0) + FLUSHED


def _together(above: Tensor) -> Tensor:
    """For each element of (CTAs, B_r, 4), whether any lane of its eight rows is true."""
    eight = above.reshape(above.shape[0], -1, TOGETHER * QUAD).any(dim=-1, keepdim=True)
    return eight.expand(-1, -1, TOGETHER * QUAD).reshape(above.shape)


def kv_block(
    before: State,
    inputs: tuple[Tensor, Tensor, Tensor],
    scale: float,
    dtype: str,
    *,
    progress: Progress | None = None,
    scaled: bool = False,
    kernel: Mapping[str, Tensor] | None = None,
) -> dict[str, Bounded]:
    """The intermediates of a KV block by name, in the order of computation.

    Args:
        before: the state after the previous block.
        inputs: Q (CTAs, B_r, d_head), and the block's rows of K and V (CTAs, B_c, d_head).
        scale: of S.
        dtype: of P as the tensor cores take it.
        progress: for kernels that keep a row's maximum (`stale_maximum`); m is then in powers of two.
        scaled: whether S is scaled before the maximum; else exponents are S c - m c with one constant c.
        kernel: a kernel's values of this block, from which each next one is computed; None uses the values found here.
    """
    found: dict[str, Bounded] = {}

    def made(name: str, value: Tensor, error: Tensor) -> Tensor:
        """Keeps an intermediate; returns the input of the next ones."""
        found[name] = value, error
        return value if kernel is None else kernel[name]

    (q, k, v), keys, d_head = inputs, inputs[1].shape[1], inputs[0].shape[-1]
    s = made("S", q @ k.mT, _summed(d_head + d_head // TILE_K, q.abs() @ k.abs().mT))
    if scaled:
        s = made("S_scaled", s * scale, (s * scale).abs() * (SCALE + EPSILON) + FLUSHED)
    c = (1 if scaled else scale) / math.log(2)
    if progress is not None:
        m = made("m", *stale_maximum(before, s, scale, progress, None if kernel is None else kernel["m"]))
        exponent = s * c - over_columns(m, keys)
        error = (s * c).abs() * (SCALE + EPSILON) + exponent.abs() * EPSILON
        c = 1.0
    else:
        top = torch.maximum(before.m, s.amax(dim=-1, keepdim=True))
        m = made("m", top, torch.full_like(top, FLUSHED))  # a maximum rounds nothing
        lanes = over_columns(m, keys)
        exponent = (s - lanes) * c
        error = exponent.abs() * (SCALE + 2 * EPSILON) + (0 if scaled else EPSILON * (lanes * c).abs())
    p = made("P", torch.exp2(exponent), torch.exp2(exponent) * _exponential_error(error) + FLUSHED)
    p16 = made("P16", p, torch.clamp(p.abs() * UNIT_ROUNDOFF[dtype], min=LEAST[dtype]))
    exponent = (before.m - m) * c
    correction = torch.exp2(exponent)
    off = torch.where(correction > 0, exponent.abs() * (SCALE + 3 * EPSILON), 0.0)
    error = correction * _exponential_error(off) + FLUSHED
    kept, added = before.l * correction, by_lane(p).sum(dim=(-3, -1))
    made("l", kept + added, _summed(keys // QUAD + 2, kept.abs() + added.abs()) + before.l.abs() * error)
    kept, error = before.o * over_columns(correction, d_head), over_columns(error, d_head)
    kept = made("O_rescaled", kept, before.o.abs() * error + kept.abs() * EPSILON + FLUSHED)
    made("O", kept + p16 @ v, _summed(keys + keys // TILE_K + 1, kept.abs() + p16.abs() @ v.abs()))
    return found


def normalised(after: State, dtype: str) -> Bounded:
    """O / l in 16 bits, as stored."""
    value = after.o / after.l.sum(dim=-1, keepdim=True)
    error = value.abs() * (UNIT_ROUNDOFF[dtype] + DIVISION + 4 * EPSILON)
    return value, torch.clamp(error, min=LEAST[dtype])


@dataclass(frozen=True)
class Where:
    """One element of an intermediate."""

    cta: tuple[int, int, int]  # ``blockIdx`` (x, y, z)
    warp: int  # of the CTA
    lane: int | None  # of the warp; None for the stored output
    row: int  # of the CTA's tile
    query: int  # the row in the sequence
    column: int | None  # a key of the block or a column of d_head; None for row statistics
    found: float  # the kernel's value
    expected: float  # the reference's value
    allowed: float  # their largest allowed distance
    maker: Instruction | None  # the instruction that made the value


@dataclass(frozen=True)
class Comparison:
    """One intermediate of one KV block."""

    step: int  # KV blocks visited before
    block: int | None  # its number, from key 0 on; None for the stored output
    name: str  # of `INTERMEDIATES`
    held: Array  # the kernel's values, (CTAs, rows, columns)
    expected: Tensor  # the result of the kernel's earlier values, fp64
    max_error: float  # largest absolute error; NaN if the kernel holds one
    rms: float  # root mean square of the error, over all CTAs
    share: float  # the largest error over its bound; more than 1 is a difference
    drift: float  # largest distance from the fp64 reference that starts from Q, K and V
    beyond: Tensor  # for each element whether its error exceeds its bound, (CTAs, rows, columns)
    worst: Where  # the element of `share`
    first: Where | None  # the first element of `beyond`, by CTA, row and column; None: all are within

    @property
    def n_beyond(self) -> int:
        """Elements whose error exceeds its bound."""
        return int(self.beyond.sum())


@dataclass(frozen=True)
class Trace:
    """All comparisons of a launch, in the order of computation."""

    iteration: Iteration
    config: KernelConfig
    shape: Problem
    tensors: tuple[Array, Array, Array, Array]  # Q, K, V and O, (batch, seq_len, n_heads, d_head)
    ctas: tuple[tuple[int, int, int], ...]  # ``blockIdx`` in the order of the arrays
    steps: tuple[KvStep, ...]  # the kernel's values, by KV block, of all CTAs
    backward: bool  # whether it visits the last KV block first
    comparisons: tuple[Comparison, ...]

    @property
    def n_expected(self) -> int:
        """KV blocks of the shape."""
        return self.shape.seq_len // self.config.B_c

    @property
    def first(self) -> Comparison | None:
        """The first comparison with an element beyond its bound."""
        return next((one for one in self.comparisons if one.first is not None), None)

    @property
    def passed(self) -> bool:
        """Whether all errors are within bounds and the number of KV blocks is right."""
        return self.first is None and len(self.steps) == self.n_expected


def of_ctas(found: Trace, tensor: Array, *, rows: bool = False) -> Tensor:
    """Each CTA's head of a tensor in fp64, (CTAs, seq_len, d_head), or with `rows` only the CTA's B_r rows."""
    size = found.config.B_r
    pieces = [tensor[z, x * size : (x + 1) * size, y] if rows else tensor[z, :, y] for x, y, z in found.ctas]
    return torch.from_numpy(np.stack(pieces).astype(np.float64))


def exact(array: Array) -> Tensor:
    """The array in fp64."""
    return torch.from_numpy(array.astype(np.float64))


ALL_AT_ONCE = 1 << 62  # bytes of a slice: the whole grid runs as one
LARGEST = 1 << 22  # scores of all heads; the trace keeps S and P, and both again in fp64


def trace(
    iteration: Iteration,
    config: KernelConfig,
    shape: Problem,
    *,
    contents: str = "normal",
    seed: int = 0,
    kernel: ptxemu.Kernel | None = None,
) -> Trace:
    """Runs a kernel on inputs of the name `contents` (`fill`) and compares all its intermediates.

    `kernel` is another kernel with the same parameters, in place of the iteration's. Raises `FlashladderError` if the
    kernel cannot take the shape or trace cannot read it, `EmulationError` if the kernel does something forbidden.
    """
    scores = shape.batch * shape.n_heads * shape.seq_len**2
    if scores > LARGEST:
        raise FlashladderError("too large to trace", expected=f"at most {LARGEST:,} scores", found=f"{scores:,}")
    tensors = make_tensors(iteration, config, shape, seed)
    fill(contents, *tensors[:3])
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
    before = truth = State.empty(len(found.ctas), config.B_r, config.d_head)
    for number, step in enumerate(found.steps):
        visited = min(number, found.n_expected - 1)  # steps beyond the last repeat it
        block = found.n_expected - 1 - visited if found.backward else visited
        rows = slice(block * config.B_c, (block + 1) * config.B_c)
        inputs, values = (q, k[:, rows], v[:, rows]), {name: exact(one.array) for name, one in step.items()}
        progress = Progress(number * config.B_c, found.shape.seq_len) if softmax == STALE else None
        form = partial(kv_block, scale=scale, dtype=config.dtype, progress=progress, scaled=softmax == SCALED)
        expected, throughout = form(before, inputs, kernel=values), form(truth, inputs)
        for name, bounded in expected.items():
            yield comparison(found, name, step[name], bounded, throughout[name][0], number, block)
        before, truth = State.behind(values), State.behind({n: value for n, (value, _) in throughout.items()})
    stored = Held(of_ctas(found, found.tensors[3], rows=True).numpy(), {})
    ideal, _ = normalised(truth, config.dtype)
    yield comparison(found, "out", stored, normalised(before, config.dtype), ideal, len(found.steps), None)


def comparison(
    found: Trace, name: str, held: Held, bounded: Bounded, throughout: Tensor, step: int, block: int | None
) -> Comparison:
    """Compares an intermediate with the result of earlier values, and with that of Q, K and V alone (`throughout`)."""
    value, (expected, allowed) = exact(held.array), bounded
    error = _distance(value, expected)
    beyond = ~(error <= allowed)
    ratio = torch.nan_to_num(error / allowed, nan=math.inf)

    def where(scores: Tensor) -> Where:
        """The first element with the largest score."""
        at = cta, row, column = tuple(int(axis) for axis in np.unravel_index(int(scores.argmax()), held.array.shape))
        statistic, (x, _, _) = name in STATISTICS, found.ctas[cta]
        warp, lane, m, n, element = Geometry.of(found.config).place(row, column, statistic=statistic)
        mine, ideal, most = (float(one[at]) for one in (value, expected, allowed))
        lane_shown, column_shown = lane if held.makers else None, None if statistic else column
        maker, query = held.makers.get((m, n, element)), x * found.config.B_r + row
        return Where(found.ctas[cta], warp, lane_shown, row, query, column_shown, mine, ideal, most, maker)

    drift = _distance(value, throughout).max()
    largest, rms, share, off = map(float, (error.max(), error.square().mean().sqrt(), ratio.max(), drift))
    first = where(beyond.int()) if bool(beyond.any()) else None
    return Comparison(step, block, name, held.array, expected, largest, rms, share, off, beyond, where(ratio), first)


def _distance(value: Tensor, expected: Tensor) -> Tensor:
    """Absolute difference; 0 between equal infinities, NaN if either is NaN."""
    return torch.where(value == expected, 0.0, (value - expected).abs())


ANOTHER_ROW = 4.0  # times the bound: another row's bound has a similar size


def lookalike(found: Trace, wrong: Comparison) -> str | None:
    """Says which other row or column the first wrong row of S, or column of O, holds; None if nothing fits."""
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
        if bool(near.any()) and not bool(near.all()):  # if all rows are equal, nothing can be said
            place = int(near.int().argmax())
            return words.format(place, place * keys, (place + 1) * keys - 1)
    return None
