"""The online softmax block by block, in plain PyTorch and fp64: a kernel's intermediates, and how near they must be.

`fill` gives Q, K and V contents whose intermediates can be read off. `kv_block` is one round of algorithm 1 of
FlashAttention-2 (Dao 2023, arXiv:2307.08691) on a CTA's rows; with each value it tells how far a right kernel may be
from it. The bounds are worst cases of rounding: fp32 keeps 2^-24 of a number, a sum of n terms n times that of the
terms' sizes; ``ex2.approx.ftz`` 2^-22, ``rsqrt.approx.ftz`` 2^-22.9, ``rcp.approx.ftz`` 2^-23, ``div.approx.ftz`` 2^-22
(PTX ISA 9.0, 9.7.3); what is less than 2^-126 is flushed to zero.

Tensors are (CTAs, B_r, columns), fp64. Row statistics have a column for each of the four lanes that share a row: a lane
has a copy of m, and of l the part of its own columns (c % 8 // 2 is the lane of column c).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
import math

import numpy as np
import torch

from flashladder.cases.reference import UNIT_ROUNDOFF
from flashladder.trace.recorder import QUAD, TILE_K, TILE_N
from ptxemu import Array

DIGIT = 256  # bf16 holds whole numbers up to here
ROW = 1000  # S of `range` is ROW x row + column, exact in fp32 up to row 16,777
ONE_HOT = 64  # positions that one half of d_head tells apart, in `identity`
STRENGTH = 32  # of a one-hot: 1024 x 1 / sqrt(128) apart, exp(-90) counts as nothing


def fill(name: str, q: Array, k: Array, v: Array) -> None:
    """Changes N(0, 1) draws, (batch, seq_len, n_heads, d_head), to the contents `name`, in place.

    ``range``: S[i, j] = 1000 i + j, so that m[i] is the last column seen; V[j, c] = c, so that rows of O / l count up.
    ``identity``: S[i, j] = 2048 where i = j, 1024 or less elsewhere, so that O[i] = V[i]; V[j, c] = j, in odd columns
    c. ``ones``: V = 1, so that O is l but for the rounding of P. ``normal`` stays.
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

    @classmethod
    def behind(cls, values: Mapping[str, torch.Tensor]) -> State:
        """After a block with these intermediates."""
        return cls(values["m"], values["l"], values["O"])


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


def kv_block(
    before: State,
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    scale: float,
    dtype: str,
    *,
    progress: Progress | None = None,
    scaled: bool = False,
    kernel: Mapping[str, torch.Tensor] | None = None,
) -> dict[str, Bounded]:
    """The intermediates of a KV block by name, in the order in which they are computed.

    Args:
        before: what the block before left.
        inputs: Q (CTAs, B_r, d_head), and the block's rows of K and V (CTAs, B_c, d_head).
        scale: of S.
        dtype: in which the tensor cores take P.
        progress: where a row may keep its maximum (`stale_maximum`); m is in powers of two then.
        scaled: whether S is multiplied before the maximum; else exponents are S c - m c with one constant c.
        kernel: a kernel's values of this block, of which each next one is made; without them those computed here are.
    """
    found: dict[str, Bounded] = {}

    def made(name: str, value: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
        """Keeps an intermediate; returns what the next ones are made of."""
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
    kept, added = before.l * correction, by_lane(p)
    made("l", kept + added, _summed(keys // QUAD + 2, kept.abs() + added.abs()) + before.l.abs() * error)
    kept, error = before.o * over_columns(correction, d_head), over_columns(error, d_head)
    kept = made("O_rescaled", kept, before.o.abs() * error + kept.abs() * EPSILON + FLUSHED)
    made("O", kept + p16 @ v, _summed(keys + keys // TILE_K + 1, kept.abs() + p16.abs() @ v.abs()))
    return found


def normalised(after: State, dtype: str) -> Bounded:
    """O / l in 16 bits: what is stored."""
    value = after.o / after.l.sum(dim=-1, keepdim=True)
    error = value.abs() * (UNIT_ROUNDOFF[dtype] + DIVISION + 4 * EPSILON)
    return value, torch.clamp(error, min=LEAST[dtype])
