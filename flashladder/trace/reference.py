"""The online softmax block by block, in plain PyTorch and fp64: a kernel's intermediates, and how near they must be.

`fill` gives Q, K and V contents whose intermediates can be read off. Each function of the algorithm is one step of
algorithm 1 of FlashAttention-2 (Dao 2023, arXiv:2307.08691) on a CTA's rows, and returns with the value how far a right
kernel may be from it. The bounds are worst cases of rounding: fp32 keeps 2^-24 of a number, a sum of n terms n times
that of the terms' sizes; ``ex2.approx.ftz`` 2^-22, ``rsqrt.approx.ftz`` 2^-22.9, ``rcp.approx.ftz`` 2^-23,
``div.approx.ftz`` 2^-22 (PTX ISA 9.0, 9.7.3); what is less than 2^-126 is flushed to zero.

Tensors are (CTAs, B_r, columns), fp64. Row statistics have a column for each of the four lanes that share a row: a lane
has a copy of m, and of l the part of its own columns (c % 8 // 2 is the lane of column c).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
import math
from types import MappingProxyType

import numpy as np
import torch

from flashladder.cases.reference import UNIT_ROUNDOFF
from flashladder.trace.recorder import QUAD, TILE_K, TILE_N
from ptxemu import Array

Fill = Callable[[Array, Array, Array], None]
DIGIT = 256  # bf16 holds whole numbers up to here
ROW = 1000  # S of `range` is ROW x row + column, exact in fp32 up to row 16,777
ONE_HOT = 64  # positions that one half of d_head tells apart, in `identity`
STRENGTH = 32  # of a one-hot: 1024 x 1 / sqrt(128) apart, exp(-90) counts as nothing


def _range(q: Array, k: Array, v: Array) -> None:
    """S[i, j] = 1000 i + j, so that m[i] is the last column seen; V[j, c] = c, so that every row of O / l counts up."""
    position = np.arange(q.shape[1]).reshape(-1, 1)
    high, low = np.divmod(position, DIGIT)
    q[...], k[...] = 0, 0
    q[..., 0], q[..., 1], q[..., 2:4] = low, 16 * high, 1
    k[..., 0], k[..., 1], k[..., 2], k[..., 3] = ROW, ROW * DIGIT // 16, low, DIGIT * high
    v[...] = np.arange(v.shape[3])


def _identity(q: Array, k: Array, v: Array) -> None:
    """S[i, j] = 2048 where i = j, 1024 or less elsewhere, so that O[i] = V[i]; V[j, c] = j, in odd columns c."""
    position = np.arange(q.shape[1])
    q[...], k[...] = 0, 0
    for tensor in (q, k):
        tensor[:, position, :, position % ONE_HOT] = STRENGTH
        tensor[:, position, :, ONE_HOT + position // ONE_HOT % ONE_HOT] = STRENGTH
    v[...] = np.where(np.arange(v.shape[3]) % 2, np.arange(v.shape[3]), position.reshape(-1, 1, 1))


def _ones(_q: Array, _k: Array, v: Array) -> None:
    """V = 1: O is l but for the rounding of P, what is stored is 1. Q and K stay as they were drawn."""
    v[...] = 1


INPUTS: Mapping[str, Fill | None] = MappingProxyType(
    {"normal": None, "range": _range, "identity": _identity, "ones": _ones}
)
"""Name to what changes N(0, 1) draws (batch, seq_len, n_heads, d_head) in place."""


def fill(name: str, q: Array, k: Array, v: Array) -> None:
    """Gives Q, K and V the contents `name`."""
    change = INPUTS[name]
    if change is not None:
        change(q, k, v)


EPSILON = 2.0**-24  # unit roundoff of fp32
EX2 = 2.0**-22  # relative errors of approximate instructions
RSQRT = 2.0**-22.9
DIVISION = 2.0**-22  # div.approx; rcp and the multiplication behind it have less
FLUSHED = 2.0**-126  # the least number that .ftz keeps
SCALE = RSQRT + 2 * EPSILON  # the scale: a reciprocal root, and log2(e), times each other
LEAST = {"fp16": 2.0**-25, "bf16": 2.0**-134}  # half the least subnormal: error of what is too small for the dtype

SLACK = 2.0  # powers of two by which a score may exceed the m in use: `slack` of softmax/exp2_stale.cuh
WEIGHTS = ((1024, 2.0), (512, 1.25), (0, 1.5))  # its `weight`, from so many keys on
LIGHT = range(512, 1024)  # its `starts_light`: lengths of rows that the first block leaves light,
APART = 4.0  # its `apart`: unless the maxima of their lanes lie farther apart than so many powers of two
MARKED = 1024.0  # its `marks`: the size of m from which on a row is light and its m whole
HEAVY_ERROR = 2.0**-17  # of a row's sum in units of its largest P: what two sums and two exponentials round
TOGETHER = 8  # rows that follow a maximum together: those of a warp's lanes in one half of an m-tile

Bounded = tuple[torch.Tensor, torch.Tensor]
"""A value, and the error that a right kernel may have."""


@dataclass(frozen=True)
class State:
    """What one KV block hands to the next: m and l (CTAs, B_r, 4), O (CTAs, B_r, d_head), not yet divided by l."""

    m: torch.Tensor
    l: torch.Tensor  # noqa: E741 - the paper's name
    o: torch.Tensor

    @classmethod
    def empty(cls, ctas: int, rows: int, d_head: int) -> State:
        """Before the first block."""
        statistics = torch.zeros(ctas, rows, QUAD, dtype=torch.float64)
        return cls(statistics - math.inf, statistics, torch.zeros(ctas, rows, d_head, dtype=torch.float64))


def over_columns(statistic: torch.Tensor, columns: int) -> torch.Tensor:
    """A row statistic as each column's lane has it, (CTAs, B_r, columns)."""
    return statistic[..., torch.arange(columns) % TILE_N // 2]


def by_lane(values: torch.Tensor) -> torch.Tensor:
    """Sums over the columns of each lane of the quad, (CTAs, B_r, 4)."""
    split = values.reshape(*values.shape[:-1], -1, QUAD, 2)
    return split.sum(dim=(-3, -1))


def _summed(terms: int, sizes: torch.Tensor) -> torch.Tensor:
    return sizes * (terms * EPSILON / (1 - terms * EPSILON)) + FLUSHED


def _exponential_error(exponent_error: torch.Tensor) -> torch.Tensor:
    """Relative error of 2^x when x is so far off."""
    return torch.expm1(exponent_error * math.log(2)) + EX2


def scores(q: torch.Tensor, k: torch.Tensor) -> Bounded:
    """S = Q K^T of a block; q (CTAs, B_r, d_head), k (CTAs, B_c, d_head)."""
    d_head = q.shape[-1]
    return q @ k.mT, _summed(d_head + d_head // TILE_K, q.abs() @ k.abs().mT)


def scaled_scores(s: torch.Tensor, scale: float) -> Bounded:
    """S scale, where the kernel multiplies before the maximum."""
    value = s * scale
    return value, value.abs() * (SCALE + EPSILON) + FLUSHED


def maximum(before: torch.Tensor, s: torch.Tensor) -> Bounded:
    """m: the largest score so far, in each lane of the quad; a maximum rounds nothing."""
    value = torch.maximum(before, s.amax(dim=-1, keepdim=True))
    return value, torch.full_like(value, FLUSHED)


@dataclass(frozen=True)
class Progress:
    """How many keys came before a block, and how many there are."""

    done: int
    keys: int

    @property
    def due(self) -> float:
        """The sum, in units of its largest P, from which on a row is a light one."""
        weight = next(weight for keys, weight in WEIGHTS if self.keys >= keys)
        return weight * self.done / math.sqrt(self.keys)

    @property
    def starts_heavy(self) -> bool:
        """Whether the first block leaves every row heavy."""
        return self.keys not in LIGHT


def marked(top: torch.Tensor, heavy: torch.Tensor) -> torch.Tensor:
    """The m in use of rows with this maximum: below it by `SLACK` if the row is heavy; the last bit of fp32 says so."""
    heavy = heavy & ((top - SLACK).abs() < MARKED)
    value = torch.where(heavy, top - SLACK, top).float()
    bits = value.view(torch.int32)
    light = torch.where(value.abs() < MARKED, bits & ~1, bits)
    return torch.where(heavy, bits | 1, light).view(torch.float32).double()


def is_heavy(m: torch.Tensor) -> torch.Tensor:
    """Which rows follow their maximum exactly, by the last bit of their m."""
    return (m.float().view(torch.int32) & 1).bool() & (m.abs() < MARKED)


def stale_maximum(
    before: State, s: torch.Tensor, scale: float, progress: Progress, seen: torch.Tensor | None = None
) -> Bounded:
    """The m of a row that keeps its maximum, in powers of two: that of before, until a score is above it by `SLACK`.

    Eight rows follow together, to the largest score so far of each, and say anew whether they are heavy: the m of a
    heavy row is below its maximum by the slack, so that the next score above the maximum is above by the slack. The
    first block has no sum to go by; the length decides, and how far the lanes' maxima lie apart. Where rounding decides
    whether one is above, or heavy, `seen` may have it either way.
    """
    c = scale / math.log(2)
    lanes = s.reshape(*s.shape[:-1], -1, QUAD, 2).amax(dim=(-3, -1)) * c
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


def _together(above: torch.Tensor) -> torch.Tensor:
    """Whether any lane of its eight rows says yes, for each element of (CTAs, B_r, 4)."""
    eight = above.reshape(above.shape[0], -1, TOGETHER * QUAD).any(dim=-1, keepdim=True)
    return eight.expand(-1, -1, TOGETHER * QUAD).reshape(above.shape)


def stale_weights(s: torch.Tensor, m: torch.Tensor, scale: float) -> Bounded:
    """P = 2^(S c - m), m in powers of two; up to 2^SLACK."""
    scores = s * (scale / math.log(2))
    exponent = scores - over_columns(m, s.shape[-1])
    error = scores.abs() * (SCALE + EPSILON) + exponent.abs() * EPSILON
    value = torch.exp2(exponent)
    return value, value * _exponential_error(error) + FLUSHED


def weights(s: torch.Tensor, m: torch.Tensor, scale: float, *, folded: bool) -> Bounded:
    """P = exp((S - m) scale); `folded`: 2^(S c - m c) with one constant c, where m c is rounded by itself."""
    c = scale / math.log(2)
    lanes = over_columns(m, s.shape[-1])
    exponent = (s - lanes) * c
    error = exponent.abs() * (SCALE + 2 * EPSILON) + (EPSILON * (lanes * c).abs() if folded else 0)
    value = torch.exp2(exponent)
    return value, value * _exponential_error(error) + FLUSHED


def rounded(p: torch.Tensor, dtype: str) -> Bounded:
    """P in 16 bits: as near as round-to-nearest brings it."""
    return p, torch.clamp(p.abs() * UNIT_ROUNDOFF[dtype], min=LEAST[dtype])


def _correction(before: torch.Tensor, m: torch.Tensor, scale: float) -> Bounded:
    """exp((m_before - m) scale)."""
    exponent = (before - m) * (scale / math.log(2))
    value = torch.exp2(exponent)
    off = torch.where(value > 0, exponent.abs() * (SCALE + 3 * EPSILON), 0.0)
    return value, value * _exponential_error(off) + FLUSHED


def total(before: State, m: torch.Tensor, p: torch.Tensor, scale: float) -> Bounded:
    """l: that of before, brought to the new maximum, and the sum of P."""
    correction, error = _correction(before.m, m, scale)
    kept, added = before.l * correction, by_lane(p)
    terms = p.shape[-1] // QUAD + 2
    return kept + added, _summed(terms, kept.abs() + added.abs()) + before.l.abs() * error


def rescaled(before: State, m: torch.Tensor, scale: float) -> Bounded:
    """O of before, brought to the new maximum: what the products with V are added to."""
    correction, error = (over_columns(one, before.o.shape[-1]) for one in _correction(before.m, m, scale))
    value = before.o * correction
    return value, before.o.abs() * error + value.abs() * EPSILON + FLUSHED


def output(kept: torch.Tensor, p: torch.Tensor, v: torch.Tensor) -> Bounded:
    """O + P V; p as the tensor cores take it, v (CTAs, B_c, d_head)."""
    keys = v.shape[1]
    return kept + p @ v, _summed(keys + keys // TILE_K + 1, kept.abs() + p.abs() @ v.abs())


def normalised(o: torch.Tensor, l: torch.Tensor, dtype: str) -> Bounded:  # noqa: E741 - the paper's name
    """O / l in 16 bits: what is stored."""
    value = o / l.sum(dim=-1, keepdim=True)
    error = value.abs() * (UNIT_ROUNDOFF[dtype] + DIVISION + 4 * EPSILON)
    return value, torch.clamp(error, min=LEAST[dtype])


@dataclass(frozen=True)
class Exact:
    """A KV block of the reference, from Q, K and V alone."""

    scores: torch.Tensor
    p: torch.Tensor
    rescaled: torch.Tensor
    after: State


def online_softmax(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, blocks: Sequence[int], keys: int, scale: float, *, stale: bool
) -> Iterator[Exact]:
    """The whole algorithm in fp64, a KV block at a time.

    Args:
        q: (CTAs, B_r, d_head).
        k: (CTAs, seq_len, d_head), of each CTA's head.
        v: the same.
        blocks: the KV blocks in the order in which they are visited.
        keys: rows of K and V in a block.
        scale: of S.
        stale: whether rows keep their maximum, see `stale_maximum`; m is in powers of two then.
    """
    state = State.empty(*q.shape)
    for visit, block in enumerate(blocks):
        rows = slice(block * keys, (block + 1) * keys)
        s, _ = scores(q, k[:, rows])
        progress = Progress(visit * keys, k.shape[1])
        m, _ = stale_maximum(state, s, scale, progress) if stale else maximum(state.m, s)
        p, _ = stale_weights(s, m, scale) if stale else weights(s, m, scale, folded=True)
        sums, _ = total(state, m, p, math.log(2) if stale else scale)
        kept, _ = rescaled(state, m, math.log(2) if stale else scale)
        o, _ = output(kept, p, v[:, rows])
        state = State(m, sums, o)
        yield Exact(s, p, kept, state)
