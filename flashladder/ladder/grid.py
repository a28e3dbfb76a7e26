"""Grids (``configs/grids/*.yaml``): which iterations, configurations, dtypes and shapes are measured together.

A sweep, its dry run, its resume and the report agree on the cells because this module alone reads and checks a grid and
says what it selects. The models of the file are exported as JSON Schema for editors. Nothing is measured here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from flashladder.errors import FlashladderError
from flashladder.files import sha256
from flashladder.ladder.ablation import load_description
from flashladder.ladder.config import D_HEAD, KernelConfig
from flashladder.ladder.gpus import require_fit
from flashladder.ladder.iteration import Iteration
from flashladder.ladder.selection import select_configs
from flashladder.located import Located, closest, read_located, validate, yaml_files
from flashladder.names import Dtype
from flashladder.paths import CONFIGS
from flashladder.problem import Shape
from flashladder.toolchain import load_pins

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


class _Strict(BaseModel):
    """No unknown keys, no conversion between types, no change after reading."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


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


FOLDER = CONFIGS / "grids"
FEWEST_PAIRS = 20  # that give a median an honest 95 % interval


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
        mode: how its cells are measured: timed beside FA2, ranked (``tune``), or run by the emulator on a CPU.
        cells: every kernel on every shape, in order, without what is excluded; each for all of `toolchains`.
        dtypes: of all kernels; references are timed in each.
        shapes: every problem; references are timed on each.
        references: timed beside FA2 like the kernels, by name.
        toolchains: CUDA versions of the compiler, ``""`` for the pinned one.
        pairs: per cell.
        budget_s: seconds per GPU after which no cell is started; None: as long as it takes.
        excluded: how many cells each exclusion left out, with its reason.
        sha256: of the file.
        without_gpu: the grid that a machine without a GPU sweeps instead; None: it refuses.
    """

    name: str
    why: str
    gpu: str
    mode: Mode
    cells: tuple[Cell, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[Shape, ...]
    references: tuple[ReferenceName, ...]
    toolchains: tuple[str, ...]
    pairs: int
    budget_s: float | None
    excluded: tuple[tuple[int, str], ...]
    sha256: str
    without_gpu: str | None = None


def grid_names(folder: Path = FOLDER) -> tuple[str, ...]:
    """The names of the grids in a folder."""
    return tuple(path.stem for path in yaml_files(folder))


def grid_file(name: str, folder: Path = FOLDER) -> Path:
    """The file of a grid: of one in `folder` by its name, of any other by its path, which ends in ``.yaml``.

    Raises:
        FlashladderError: no such grid, or a file that bears the name of a committed one, whose results it would mix
            with its own.
    """
    names = grid_names(folder)
    path = folder / f"{name}.yaml"
    if name.endswith(".yaml"):
        path, there = Path(name), False
        with suppress(OSError, ValueError):  # a name that is too long, or that no file can have
            there = path.is_file()
        if not there:
            raise FlashladderError("no such file of a grid", where=name, hint=closest(path.stem, names))
        if path.stem in names and not path.samefile(folder / path.name):
            raise FlashladderError(
                "the name of a committed grid", where=name, expected="another one", found=path.stem, hint="rename it"
            )
    elif name not in names:
        raise FlashladderError(
            "unknown grid",
            expected=f"one of {', '.join(names)}, or a path that ends in .yaml",
            found=repr(name),
            hint=closest(name, names),
        )
    return path


def load_grid(name: str, folder: Path = FOLDER) -> Grid:
    """The grid `name`, or of the file `name` (see `grid_file`), checked against the iterations that it names.

    Raises:
        FlashladderError: no such grid, or its file is wrong: form, an unknown iteration, key or ablation, a length that
            a tile does not divide, a head count that iteration 16's fixed stride excludes.
    """
    path = grid_file(name, folder)
    name = path.stem
    located = read_located(path)
    file = validate(GridFile, located)
    shapes = [Shape(batch=one.batch, seq_len=one.seq_len, n_heads=file.n_heads, d_head=D_HEAD) for one in file.seq_lens]
    _each_once(located, file, shapes)
    cells, left_out, described = [], [0] * len(file.exclude), set[str]()
    for i, description in enumerate(file.iterations):
        iteration, configs = _selected(located, i, description, file)
        if iteration.description in described:  # however it is spelled
            raise _twice(located, "iterations", i, description)
        described.add(iteration.description)
        for config in configs:
            for j, shape in enumerate(shapes):
                why = [one.leaves_out(description, config.dtype, shape.seq_len) for one in file.exclude]
                if any(why):
                    left_out[why.index(True)] += 1
                else:
                    cells.append(_cell(located, (i, j), Cell(iteration, config, shape), file.mode))
    if 0 in left_out:
        what, expected = "the exclusion leaves nothing out", "iterations, dtypes and lengths of this grid"
        raise located.error(("exclude", left_out.index(0)), what, expected, "none of them")
    if not cells:
        found = f"all {sum(left_out)} left out"
        raise located.error(("exclude",), "the exclusions leave no cell", "at least one cell", found)
    return Grid(
        name=name,
        why=" ".join(file.why.split()),
        gpu=file.gpu,
        mode=file.mode,
        cells=tuple(cells),
        dtypes=tuple(file.dtypes),
        shapes=tuple(shapes),
        references=tuple(file.references),
        toolchains=tuple(file.toolchains) or ("",),
        pairs=file.pairs,
        budget_s=None if file.budget_minutes is None else 60 * file.budget_minutes,
        excluded=tuple((n, " ".join(one.why.split())) for n, one in zip(left_out, file.exclude, strict=True)),
        sha256=sha256(path.read_bytes()),
        without_gpu=file.without_gpu,
    )


def runnable(grid: Grid, arch: str) -> Grid:
    """The grid without the cells that a GPU of an architecture (``sm_90``) cannot run; they count as left out."""
    reasons = [cell.iteration.not_run_on(arch) for cell in grid.cells]
    kept = tuple(cell for cell, reason in zip(grid.cells, reasons, strict=True) if not reason)
    more = tuple((count, why) for why, count in Counter(filter(None, reasons)).items())
    if not kept:
        raise FlashladderError(
            "no cell of the grid runs here", where=grid.name, found="; ".join(why for _, why in more)
        )
    return replace(grid, cells=kept, excluded=(*grid.excluded, *more))


def _each_once(located: Located, file: GridFile, shapes: list[Shape]) -> None:
    """Refuses what stands in a list twice, and what its mode cannot measure."""
    lists: tuple[tuple[str, Sequence[object]], ...] = (
        ("iterations", file.iterations), ("dtypes", file.dtypes), ("seq_lens", shapes),
        ("references", file.references), ("toolchains", file.toolchains),
    )  # fmt: skip
    for key, items in lists:
        for i, item in enumerate(items):
            if item in items[:i]:
                raise _twice(located, key, i, item)
    for i, cuda in enumerate(file.toolchains):
        try:
            load_pins().axis(cuda)
        except FlashladderError as error:
            error.where = located.where(("toolchains", i))
            raise
    if file.mode == "emulator":
        for key in ("references", "toolchains", "pairs"):
            if key in file.model_fields_set:
                what = f"{key!r} in a grid of the emulator"
                raise located.error((key,), what, "none: they are timed on a GPU", getattr(file, key))
    elif file.mode == "event-free" and file.pairs < FEWEST_PAIRS:
        what = "too few pairs for an honest interval"
        raise located.error(("pairs",), what, f"at least {FEWEST_PAIRS}", file.pairs)


def _twice(located: Located, key: str, i: int, item: object) -> FlashladderError:
    """The error about the i-th item of a list, which stands there already."""
    return located.error((key, i), f"duplicate item in {key!r}", "each once", item)


def _selected(located: Located, i: int, description: str, file: GridFile) -> tuple[Iteration, tuple[KernelConfig, ...]]:
    """The i-th iteration and its configurations; errors point into the grid."""
    location: tuple[str | int, ...] = ("iterations", i)
    try:
        iteration = load_description(description)
        location = ("configs",)
        keys = [file.configs] if isinstance(file.configs, str) else file.configs
        configs = tuple(dict.fromkeys(one for key in keys for one in select_configs(iteration, key, file.dtypes)))
        for config in configs if file.gpu != "any" else ():
            require_fit(file.gpu, config, family=iteration.family)
    except FlashladderError as error:
        raise located.told(error, location) from error
    return iteration, configs


def _cell(located: Located, place: tuple[int, int], cell: Cell, mode: Mode) -> Cell:
    """The cell, if its kernel accepts its shape; the emulator slices wider rows for a kernel with a fixed stride."""
    i, j = place
    row_stride, shape, config = cell.iteration.row_stride, cell.shape, cell.config
    row = shape.n_heads * shape.d_head
    sliced = mode == "emulator" and row < row_stride
    if row_stride not in (0, row) and not sliced:
        what = f"iteration {cell.iteration.description} has a fixed row stride"
        raise located.error(("iterations", i), what, f"n_heads {row_stride // shape.d_head}", shape.n_heads)
    for name, size in config.multiples.items():
        if shape.seq_len % size:
            what = f"seq_len is not a multiple of {name} of {config.short_form()}"
            raise located.error(("seq_lens", j), what, f"a multiple of {size}", shape.seq_len)
    return cell
