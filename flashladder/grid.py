"""Grids (``configs/grids/*.yaml``): which iterations, configurations, dtypes and shapes are measured together.

Why data: a sweep, its dry run, its resume and the report must agree on the cells. This module reads and checks a grid
and says what it selects; it measures nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from flashladder.config import KernelConfig
from flashladder.errors import FlashladderError
from flashladder.files import CONFIGS
from flashladder.gpus import require_fit
from flashladder.iteration import Iteration, load_description
from flashladder.located import Located, closest, read_located, validate
from flashladder.parts import D_HEAD
from flashladder.selection import select_configs
from flashladder.yaml_text import yaml_files

FOLDER = CONFIGS / "grids"
GridGpu = Literal["any", "a100", "rtx3090", "rtx4090", "h100", "h200"]


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


class ShapeFile(_Strict):
    """One problem size: sequence length in tokens, batch in samples."""

    seq_len: Annotated[int, Field(gt=0, le=2**20)]
    batch: Annotated[int, Field(gt=0, le=2**16)]


class GridFile(_Strict):
    """One file ``configs/grids/*.yaml``."""

    why: Annotated[str, Field(min_length=20)]
    gpu: GridGpu
    iterations: Annotated[
        list[
            Annotated[
                str,
                BeforeValidator(_description),
                WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}]}),
            ]
        ],
        Field(min_length=1),
    ]
    configs: str
    dtypes: Annotated[list[Literal["fp16", "bf16"]], Field(min_length=1)]
    seq_lens: Annotated[list[ShapeFile], Field(min_length=1)]
    n_heads: Annotated[int, Field(gt=0, le=2**16)]


@dataclass(frozen=True)
class Shape:
    """One problem: tensors are (batch, seq_len, n_heads, d_head) in elements."""

    batch: int
    seq_len: int
    n_heads: int
    d_head: int

    @property
    def flops(self) -> int:
        """Multiplications and additions of both matrix products of one forward pass."""
        return 4 * self.batch * self.n_heads * self.seq_len**2 * self.d_head


@dataclass(frozen=True)
class Cell:
    """One thing to measure: an iteration in one configuration on one problem."""

    iteration: Iteration
    config: KernelConfig
    shape: Shape


@dataclass(frozen=True)
class Grid:
    """A checked grid.

    Attributes:
        name: the file's stem.
        why: what the grid is for.
        gpu: key of ``configs/gpus`` that it was made for, or ``any``.
        cells: every measurement, in order.
    """

    name: str
    why: str
    gpu: str
    cells: tuple[Cell, ...]


def grid_names(folder: Path = FOLDER) -> tuple[str, ...]:
    """The names of the grids in a folder."""
    return tuple(path.stem for path in yaml_files(folder))


def load_grid(name: str, folder: Path = FOLDER) -> Grid:
    """The grid `name`, checked against the iterations that it names.

    Raises:
        FlashladderError: no such grid, or its file is wrong: form, an unknown iteration, key or ablation, a length that
            a tile does not divide, a head count that iteration 16's fixed stride excludes.
    """
    names = grid_names(folder)
    if name not in names:
        raise FlashladderError(
            "unknown grid", expected=f"one of {', '.join(names)}", found=repr(name), hint=closest(name, names)
        )
    located = read_located(folder / f"{name}.yaml")
    file = validate(GridFile, located)
    shapes = [Shape(shape.batch, shape.seq_len, file.n_heads, D_HEAD) for shape in file.seq_lens]
    for key, items in (("iterations", file.iterations), ("dtypes", file.dtypes), ("seq_lens", shapes)):
        for i, item in enumerate(items):
            if item in items[:i]:
                raise FlashladderError(
                    f"duplicate item in {key!r}", where=located.where((key, i)), expected="each once", found=item
                )
    cells = []
    for i, description in enumerate(file.iterations):
        iteration, configs = _selected(located, i, description, file)
        cells += [
            _cell(located, i, j, Cell(iteration, config, shape)) for config in configs for j, shape in enumerate(shapes)
        ]
    return Grid(name, " ".join(file.why.split()), file.gpu, tuple(cells))


def _selected(located: Located, i: int, description: str, file: GridFile) -> tuple[Iteration, tuple[KernelConfig, ...]]:
    """The i-th iteration and its configurations; errors point into the grid."""
    location: tuple[str | int, ...] = ("iterations", i)
    try:
        iteration = load_description(description)
        location = ("configs",)
        configs = select_configs(iteration, file.configs, file.dtypes)
        for config in configs if file.gpu != "any" else ():
            require_fit(file.gpu, config)
    except FlashladderError as error:
        raise FlashladderError(
            error.what, where=located.where(location), expected=error.expected, found=error.found, hint=error.hint
        ) from error
    return iteration, configs


def _cell(located: Located, i: int, j: int, cell: Cell) -> Cell:
    """The cell, if its kernel accepts its shape."""
    parts, shape, config = cell.iteration.parts, cell.shape, cell.config
    row = shape.n_heads * shape.d_head
    if parts.row_stride not in (0, row):
        raise FlashladderError(
            f"iteration {cell.iteration.description} has a fixed row stride",
            where=located.where(("iterations", i)),
            expected=f"n_heads {parts.row_stride // shape.d_head}",
            found=shape.n_heads,
        )
    for name, size in (("B_r", config.B_r), ("B_c", config.B_c)):
        if shape.seq_len % size:
            raise FlashladderError(
                f"seq_len is not a multiple of {name} of {config.short_form()}",
                where=located.where(("seq_lens", j)),
                expected=f"a multiple of {size}",
                found=shape.seq_len,
            )
    return cell
