"""A family of its own, for the tests: a warp per query row, no tensor cores, no shared memory, a grid of one dimension.

Beside it lie its kernel, its plan and its iteration; tests/nvcc/test_new_family.py copies them into a checkout, where
this file is ``flashladder/ladder/families/rows.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
import math
import re
from typing import TYPE_CHECKING, Any, Literal

from flashladder.errors import FlashladderError
from flashladder.ladder.config import D_HEAD, KernelConfig
from flashladder.ladder.family import Family, Knobs, Launch, Model, Targets

if TYPE_CHECKING:
    from flashladder.ladder.iteration import Iteration

SHORT_FORM = re.compile(r"\((FP16|BF16), 128, ([1-9]\d?)\): warp_per_row", re.ASCII)
BRIEF = re.compile(r"([1-9]\d?) rows", re.ASCII)
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

    dtype: str
    B_r: int
    B_c = 1
    d_head = D_HEAD
    smem_bytes = 0

    @property
    def n_threads(self) -> int:
        return 32 * self.B_r

    @property
    def tile(self) -> str:
        return f"{self.B_r},{self.B_c},{self.B_r}"

    def short_form(self) -> str:
        return f"({self.dtype.upper()}, {self.d_head}, {self.B_r}): warp_per_row"

    def __str__(self) -> str:
        return self.short_form()

    def brief(self) -> str:
        return f"{self.B_r} rows"

    def slug(self) -> str:
        return f"{self.dtype}_{self.B_r}_rows"

    def with_dtype(self, dtype: str) -> RowConfig:
        return replace(self, dtype=dtype)

    @classmethod
    def match(cls, text: str) -> RowConfig | None:
        found = SHORT_FORM.fullmatch(text)
        return cls(found[1].lower(), int(found[2])) if found else None


@dataclass(frozen=True)
class RowParts:
    """The loop over the keys."""

    loop: str


class Change(Model):
    """What differs from the parent."""

    loop: Literal["plain"] | None = None


class RowKnobs(Knobs):
    """Knobs of the configuration on one GPU."""

    B_r: int | None = None


class Rows(Family):
    """A warp per row."""

    name = "rows"
    parts_type = RowParts
    config_type = RowConfig
    change_model = Change
    knobs_model = RowKnobs
    plan = "rows/plan.cpp"
    least_capability = (10, 0)  # so that the H200 of the committed results does not run it

    @property
    def targets(self) -> Targets:
        return Targets("compute_80", ("sm_80", "sm_90"))

    def first_config(self, knobs: Mapping[str, object]) -> RowConfig:
        if "B_r" not in knobs:
            raise FlashladderError("incomplete configuration", expected="B_r", found="none")
        return RowConfig("fp16", 1)

    def conflicts(self, parts: RowParts, config: RowConfig) -> tuple[str, ...]:
        del parts
        return () if config.B_r in LEGAL else (f"B_r {config.B_r}: must be one of {LEGAL}",)

    def fit(self, parts: RowParts, config: RowConfig) -> RowConfig:
        del parts
        return config

    def candidates(self, parts: RowParts, dtype: str) -> tuple[RowConfig, ...]:
        del parts
        return tuple(RowConfig(dtype, rows) for rows in LEGAL)

    def of_brief(self, parts: RowParts, text: str) -> RowConfig | None:
        del parts
        found = BRIEF.fullmatch(text)
        return RowConfig("fp16", int(found[1])) if found else None

    def to_knobs(self, parts: RowParts, config: RowConfig) -> dict[str, str]:
        del parts
        return {"B_r": str(config.B_r)}

    def translation_unit(self, of: Iteration, config: RowConfig) -> str:
        return UNIT.format(title=of.title, dtype=config.dtype, config=config, loop=of.parts.loop)

    def part_files(self, of: Iteration, config: RowConfig) -> tuple[str, ...]:
        del config
        return (f"rows/{of.parts.loop}.cuh",)

    def grid(self, config: RowConfig, shape: tuple[int, int, int, int]) -> tuple[int, int, int]:
        return math.prod(shape[:3]) // config.B_r, 1, 1

    def launch(self, config: RowConfig, tensors: Sequence[Any], multiprocessors: int) -> Launch:
        import numpy as np

        del multiprocessors  # one grid for all GPUs
        _, seq_len, heads, _ = tensors[0].shape
        strides = [np.int64(tensor.strides[axis]) for tensor in tensors for axis in (0, 1, 2)]
        arguments = (np.int32(seq_len), np.int32(heads), *strides, *tensors)
        return Launch(self.grid(config, tensors[0].shape), (config.n_threads,), (arguments,), config.smem_bytes)


FAMILY = Rows()
