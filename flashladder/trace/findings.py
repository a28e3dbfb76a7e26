"""What a trace found: each intermediate of each KV block beside what it should be, and whoever holds the elements.

Nothing to run here; `flashladder.trace.compare` fills these.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import Iteration
from flashladder.results.schema import Shape
from flashladder.trace.recorder import KvStep
from ptxemu import Array, Instruction


@dataclass(frozen=True)
class Where:
    """One element, who holds it, and what it is.

    Attributes:
        cta: ``blockIdx`` (x, y, z).
        warp, lane: of the CTA, of the warp; None in what is stored.
        row: of the CTA's tile; `query` the same over the sequence.
        column: of the matrix (a key of the block, or of d_head); None of row statistics.
        found, expected, allowed: the kernel's value, the reference's, and how far they may be apart.
        maker: the instruction that made it.
    """

    cta: tuple[int, int, int]
    warp: int | None
    lane: int | None
    row: int
    query: int
    column: int | None
    found: float
    expected: float
    allowed: float
    maker: Instruction | None


@dataclass(frozen=True)
class Comparison:
    """One intermediate of one KV block.

    Attributes:
        step: how many KV blocks were visited before.
        block: which it is, from key 0 on; None for what is stored.
        name: of `INTERMEDIATES`.
        held: the kernel's values, (CTAs, rows, columns).
        expected: what they should be by the values before them, fp64.
        max_error: largest absolute error; NaN where the kernel holds one.
        rms: root mean square of the error, over all CTAs.
        share: the largest error in units of what is allowed there: more than 1 is a difference.
        drift: largest distance from the fp64 reference that starts from Q, K and V.
        beyond: for each element whether it is further off than allowed, (CTAs, rows, columns).
        worst: where that is.
        first: the first element beyond, by CTA, row and column; None: all are within.
    """

    step: int
    block: int | None
    name: str
    held: Array
    expected: torch.Tensor
    max_error: float
    rms: float
    share: float
    drift: float
    beyond: torch.Tensor
    worst: Where
    first: Where | None

    @property
    def n_beyond(self) -> int:
        """Elements that are further off than allowed."""
        return int(self.beyond.sum())


@dataclass(frozen=True)
class Trace:
    """All comparisons of a launch, in the order in which a kernel computes.

    Attributes:
        tensors: Q, K, V and O, (batch, seq_len, n_heads, d_head).
        ctas: ``blockIdx`` in the order of the arrays.
        steps: what the kernel held, a step a KV block, all CTAs.
        n_expected: KV blocks that the shape has.
        backward: from the last KV block to the first.
    """

    iteration: Iteration
    config: KernelConfig
    shape: Shape
    tensors: tuple[Array, Array, Array, Array]
    ctas: tuple[tuple[int, int, int], ...]
    steps: tuple[KvStep, ...]
    n_expected: int
    backward: bool
    comparisons: tuple[Comparison, ...]

    @property
    def first(self) -> Comparison | None:
        """The first that has an element beyond what is allowed."""
        return next((one for one in self.comparisons if one.first is not None), None)

    @property
    def passed(self) -> bool:
        """All within bounds, and as many KV blocks as there are."""
        return self.first is None and len(self.steps) == self.n_expected


def visited(found: Trace) -> list[int]:
    """The KV blocks that the steps should be, in order; steps beyond the last repeat it."""
    order = list(range(found.n_expected))
    order = order[::-1] if found.backward else order
    return [order[min(step, len(order) - 1)] for step in range(len(found.steps))]


def of_ctas(found: Trace, tensor: Array, *, rows: bool = False) -> torch.Tensor:
    """Each CTA's head of a tensor in fp64, (CTAs, seq_len, d_head); with `rows` its own B_r rows of it."""
    size = found.config.B_r
    pieces = [tensor[z, x * size : (x + 1) * size, y] if rows else tensor[z, :, y] for x, y, z in found.ctas]
    return torch.from_numpy(np.stack(pieces).astype(np.float64))


def exact(array: Array) -> torch.Tensor:
    """In fp64."""
    return torch.from_numpy(array.astype(np.float64))
