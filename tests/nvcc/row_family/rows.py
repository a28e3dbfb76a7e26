"""A family of its own, for the tests: a warp per query row, no tensor cores, no shared memory, a grid of one dimension.

Beside it lie its kernel, its plan and its iteration; tests/nvcc/test_new_family.py copies them into a checkout, where
this file is ``flashladder/ladder/families/rows.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
import math
from typing import TYPE_CHECKING, Any, Literal

from flashladder.ladder.config import D_HEAD, KernelConfig, Word
from flashladder.ladder.family import Family, Launch, Model, Targets

if TYPE_CHECKING:
    from flashladder.ladder.iteration import Iteration

LEGAL = (4, 8)
UNIT = """\
// {title}
#include <cstdint>

#include "ptx/value_types.cuh"

struct Kernel {{
    using value_t = flashladder::{dtype};
    static constexpr int d_head = {config.d_head};
    static constexpr int n_warps = {config.B_r};
}};

#include "rows/{loop}.cuh"
"""


@dataclass(frozen=True, order=True)
class RowConfig(KernelConfig):
    """`B_r` warps, each with a row of its own."""

    example = "(FP16, 128, 4): warp_per_row"
    sizes = ("d_head", "B_r")
    words = (Word("warp_per_row", ("warp_per_row",)),)
    dtype: str
    d_head: int
    B_r: int
    warp_per_row: bool = True
    B_c = 1
    smem_bytes = 0

    @property
    def n_threads(self) -> int:
        return 32 * self.B_r


@dataclass(frozen=True)
class RowParts:
    """The loop over the keys."""

    loop: str


class Change(Model):
    """What differs from the parent."""

    loop: Literal["plain"] | None = None


class Rows(Family):
    """A warp per row."""

    name = "rows"
    parts_type = RowParts
    config_type = RowConfig
    change_model = Change
    required = ("B_r",)
    plan = "rows/plan.cpp"
    least_capability = (10, 0)  # so that the H200 of the committed results does not run it

    @property
    def targets(self) -> Targets:
        return Targets("compute_80", ("sm_80", "sm_90"))

    def decisions(self, parts: RowParts) -> dict[str, tuple[bool, str]]:
        return {"warp_per_row": (True, f"the loop {parts.loop} has a warp per row")}

    def rules(self, parts: RowParts, config: RowConfig) -> tuple[str, ...]:
        return () if config.B_r in LEGAL else (f"B_r {config.B_r}: must be one of {LEGAL}",)

    def candidates(self, parts: RowParts) -> tuple[RowConfig, ...]:
        return tuple(RowConfig("fp16", D_HEAD, rows) for rows in LEGAL)

    def translation_unit(self, of: Iteration, config: RowConfig) -> str:
        return UNIT.format(title=of.title, dtype=config.dtype, config=config, loop=of.parts.loop)

    def part_files(self, of: Iteration, config: RowConfig) -> tuple[str, ...]:
        return (f"rows/{of.parts.loop}.cuh",)

    def grid(self, config: RowConfig, shape: tuple[int, int, int, int]) -> tuple[int, int, int]:
        return math.prod(shape[:3]) // config.B_r, 1, 1

    def launch(
        self,
        config: RowConfig,
        tensors: Sequence[Any],
        multiprocessors: int,
        lse: Any = None,
        bounds: Sequence[Any] = (),
    ) -> Launch:
        import numpy as np

        _, seq_len, heads, _ = tensors[0].shape
        strides = [np.int64(tensor.strides[axis]) for tensor in tensors for axis in (0, 1, 2)]
        arguments = (np.int32(seq_len), np.int32(heads), *strides, *tensors)
        return Launch(self.grid(config, tensors[0].shape), (config.n_threads,), (arguments,), config.smem_bytes)


FAMILY = Rows()
