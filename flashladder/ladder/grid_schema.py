"""The form of a grid's file (``configs/grids/*.yaml``): strict pydantic models, exported as JSON Schema for editors.

What a grid selects: `flashladder.ladder.grid`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from flashladder.ladder.config import Dtype
from flashladder.paths import CONFIGS
from flashladder.yaml_text import yaml_files

_GPUS = CONFIGS / "gpus"
# without a checkout there are none, which whoever reads a file says
GRID_GPUS = ("any", *(path.stem for path in (yaml_files(_GPUS) if _GPUS.is_dir() else ())))
if TYPE_CHECKING:
    GridGpu = str  # one of `GRID_GPUS`, which the folder decides
else:
    GridGpu = Literal[GRID_GPUS]
Mode = Literal["event-free", "tune", "emulator"]
ReferenceName = Literal["cudnn", "fa3", "fa4", "flash-attn"]


def _description(value: object) -> str:
    """An iteration's number or an ablation, as text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        return value
    raise PydanticCustomError(
        "description",
        "not an iteration",
        {"expected": "a number or an ablation such as '16 - swizzle'", "found": str(value)},
    )


class _Strict(BaseModel):
    """No unknown keys, no conversion between types, no change after reading."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


_Descriptions = Annotated[
    list[
        Annotated[
            str,
            BeforeValidator(_description),
            WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}]}),
        ]
    ],
    Field(min_length=1),
]


class ShapeFile(_Strict):
    """One problem size: sequence length in tokens, batch in samples."""

    seq_len: Annotated[int, Field(gt=0, le=2**20)]
    batch: Annotated[int, Field(gt=0, le=2**16)]


class ExcludeFile(_Strict):
    """Cells that a grid leaves out, and why; a list that is absent leaves out all of its kind."""

    why: Annotated[str, Field(min_length=20)]
    iterations: _Descriptions | None = None
    dtypes: Annotated[list[Dtype], Field(min_length=1)] | None = None
    seq_lens: Annotated[list[Annotated[int, Field(gt=0)]], Field(min_length=1)] | None = None

    def leaves_out(self, description: str, dtype: str, seq_len: int) -> bool:
        """Whether the cell is among them."""
        asked = ((self.iterations, description), (self.dtypes, dtype), (self.seq_lens, seq_len))
        return all(chosen is None or found in chosen for chosen, found in asked)


class GridFile(_Strict):
    """One file ``configs/grids/*.yaml``."""

    why: Annotated[str, Field(min_length=20)]
    gpu: GridGpu
    mode: Mode = "event-free"
    pairs: Annotated[int, Field(ge=1, le=1000, description="of adjacent launches per cell, beside FA2")] = 24
    budget_minutes: Annotated[
        float | None,
        Field(gt=0, allow_inf_nan=False, description="per GPU; no cell is started after it, a later run goes on"),
    ] = None
    without_gpu: Annotated[
        str | None, Field(description="the grid that a machine without a GPU sweeps instead; none: it refuses")
    ] = None
    references: Annotated[list[ReferenceName], Field(description="timed beside FA2 like the kernels")] = []
    toolchains: Annotated[
        list[Annotated[str, Field(pattern=r"^\d{1,3}\.\d{1,3}$")]],
        Field(description="CUDA versions of the compiler's wheels; none: the pinned one"),
    ] = []
    exclude: list[ExcludeFile] = []
    iterations: _Descriptions
    configs: Annotated[
        str | Annotated[list[str], Field(min_length=1)], Field(description="selection keys; each kernel counts once")
    ]
    dtypes: Annotated[list[Dtype], Field(min_length=1)]
    seq_lens: Annotated[list[ShapeFile], Field(min_length=1)]
    n_heads: Annotated[int, Field(gt=0, le=2**16)]
