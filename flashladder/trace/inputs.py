"""What Q, K and V hold in a trace: drawn numbers, or such whose intermediates can be read off.

Why: of N(0, 1) inputs a wrong element says nothing; here S, P or O name the row and column that they belong to, or that
they were taken from. All numbers are exact in fp16 and bf16 unless said otherwise. `INPUTS` is the list; nothing to run
here, ``invoke trace 7 --input range`` uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

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
