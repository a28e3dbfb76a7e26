"""Grids (``configs/grids/*.yaml``): which iterations, configurations, dtypes and shapes are measured together.

A sweep, its dry run, its resume and the report all use this module to read a grid, check it and select its cells.

``python -m flashladder.ladder.grid`` writes ``configs/schema/*.json``, the JSON Schema of all YAML files for editors.
A test checks that those files are current.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
import random
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import Field, InstanceOf, TypeAdapter

from flashladder.arguments import module_parser
from flashladder.errors import FlashladderError, run_main
from flashladder.files import dump_json, relative, sha256, write_atomic
from flashladder.ladder.ablation import load_description
from flashladder.ladder.config import D_HEAD, KernelConfig
from flashladder.ladder.family import Model, families
from flashladder.ladder.gpus import GPUS, Gpu, require_fit
from flashladder.ladder.iteration import Iteration, file_model
from flashladder.ladder.selection import select_configs
from flashladder.located import Located, closest, read_located, validate, yaml_files
from flashladder.names import Dtype, ReferenceName
from flashladder.paths import CONFIGS
from flashladder.problem import Mask, Problem
from flashladder.toolchain import load_pins

# without a checkout there is no folder; reading a file reports that
GRID_GPUS = ("any", *(path.stem for path in (yaml_files(GPUS) if GPUS.is_dir() else ())))
if TYPE_CHECKING:
    GridGpu = str
else:
    GridGpu = Literal[GRID_GPUS]
Mode = Literal["event-free", "tune", "emulator"]
_Descriptions = Annotated[list[Annotated[int, Field(ge=1)] | str], Field(min_length=1)]  # of steps and ablations


class ShapeFile(Model):
    """One problem size: sequence length in tokens, batch in samples."""

    seq_len: Annotated[int, Field(gt=0, le=2**20)]
    batch: Annotated[int, Field(gt=0, le=2**16)]


class PackedFile(Model):
    """Lengths of packed sequences: drawn log-uniformly from a seed until they make up all tokens."""

    shortest: Annotated[int, Field(gt=0)]
    longest: Annotated[int, Field(gt=0, le=2**20)]
    seed: Annotated[int, Field(ge=0)]

    def lengths(self, tokens: int) -> tuple[int, ...]:
        """The lengths; the last sequence has what is left of the tokens."""
        draw, found = random.Random(self.seed), list[int]()  # noqa: S311 - lengths, nothing secret
        while (left := tokens - sum(found)) > 0:
            length = self.shortest * (self.longest / self.shortest) ** draw.random()
            found.append(min(round(length), left))
        return tuple(found)


class ExcludeFile(Model):
    """Cells that a grid excludes, and why; an absent list stands for all of its kind."""

    why: Annotated[str, Field(min_length=20)]
    iterations: _Descriptions | None = None
    dtypes: Annotated[list[Dtype], Field(min_length=1)] | None = None
    seq_lens: Annotated[list[Annotated[int, Field(gt=0)]], Field(min_length=1)] | None = None

    def leaves_out(self, description: str, dtype: str, seq_len: int) -> bool:
        """Whether it excludes the cell."""
        iterations = self.iterations and [*map(str, self.iterations)]
        lists = ((iterations, description), (self.dtypes, dtype), (self.seq_lens, seq_len))
        return all(values is None or value in values for values, value in lists)


class GridFile(Model):
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
    references: list[ReferenceName] = Field(default=[], description="timed beside FA2 like the kernels")
    toolchains: list[Annotated[str, Field(pattern=r"^\d{1,3}\.\d{1,3}$")]] = Field(
        default=[], description="CUDA versions of the compiler's wheels; none: the pinned one"
    )
    exclude: list[ExcludeFile] = Field(default=[])
    iterations: _Descriptions
    configs: Annotated[
        str | Annotated[list[str], Field(min_length=1)], Field(description="selection keys; each kernel counts once")
    ]
    dtypes: Annotated[list[Dtype], Field(min_length=1)]
    seq_lens: Annotated[list[ShapeFile], Field(min_length=1)]
    n_heads: Annotated[int, Field(gt=0, le=2**16)]
    n_kv_heads: Annotated[int, Field(gt=0, le=2**16)] | None = Field(
        default=None, description="heads of K and V, a divisor of n_heads; none: n_heads"
    )
    kv_len: Annotated[int, Field(gt=0, le=2**20)] | None = Field(
        default=None, description="keys of a sample at every seq_len; none: as many as queries"
    )
    mask: Mask = Field(default="none", description="with one there are as many keys as queries")
    packed: PackedFile | None = Field(default=None, description="sequences of other lengths, seq_len tokens in all")


FOLDER = CONFIGS / "grids"
FEWEST_PAIRS = 20  # that give a median an honest 95 % interval


@dataclass(frozen=True)
class Cell:
    """One thing to measure: an iteration in one configuration on one problem."""

    iteration: Iteration
    config: KernelConfig
    shape: Problem


class Grid(GridFile):
    """A checked grid: its file, in which the toolchain ``""`` is the pinned one, and the cells that it selects."""

    name: str  # the file's stem
    cells: tuple[InstanceOf[Cell], ...]  # every kernel on every shape but the excluded, in order, for all `toolchains`
    shapes: tuple[Problem, ...]  # every problem; references are timed on each, in each of `dtypes`
    excluded: tuple[tuple[int, str], ...]  # number of cells that each exclusion left out, with its reason
    sha256: str  # of the file

    @property
    def budget_s(self) -> float | None:
        """Seconds per GPU after which no cell starts; None: no limit."""
        return None if self.budget_minutes is None else 60 * self.budget_minutes


def grid_names(folder: Path = FOLDER) -> tuple[str, ...]:
    """The names of the grids in a folder."""
    return tuple(path.stem for path in yaml_files(folder))


def grid_file(name: str, folder: Path = FOLDER) -> Path:
    """The file of a grid: of one in `folder` by its name, of any other by its path, which ends in ``.yaml``.

    A file with the name of a committed grid is an error, because their results would mix.
    """
    names = grid_names(folder)
    path = folder / f"{name}.yaml"
    if name.endswith(".yaml"):
        path, there = Path(name), False
        with suppress(OSError, ValueError):  # a name that is too long or illegal
            there = path.is_file()
        if not there:
            raise FlashladderError("no such file of a grid", where=name, hint=closest(path.stem, names))
        if path.stem in names and not path.samefile(folder / path.name):
            what = "the name of a committed grid"
            raise FlashladderError(what, where=name, expected="another one", found=path.stem, hint="rename it")
    elif name not in names:
        expected = f"one of {', '.join(names)}, or a path that ends in .yaml"
        raise FlashladderError("unknown grid", expected=expected, found=repr(name), hint=closest(name, names))
    return path


def load_grid(name: str, folder: Path = FOLDER) -> Grid:
    """The grid `name`, or of the file `name` (see `grid_file`), checked against the iterations that it names.

    Raises:
        FlashladderError: no such grid, or its file is wrong: form, an unknown iteration, key or ablation, a length that
            a tile does not divide, a head count that iteration 16's fixed stride excludes, an iteration without a
            kernel for the grid's problems.
    """
    path = grid_file(name, folder)
    name = path.stem
    located = read_located(path)
    file = validate(GridFile, located)
    _each_once(located, file)
    shapes = _problems(located, file)
    cells, left_out, described = list[Cell](), [0] * len(file.exclude), set[str]()
    for i, description in enumerate(map(str, file.iterations)):
        iteration, configs = _selected(located, i, description, file)
        if iteration.description in described:  # in any spelling
            raise located.error(("iterations", i), "duplicate item in 'iterations'", "each once", description)
        described.add(iteration.description)
        before = len(cells) + sum(left_out)
        for config in configs:
            for j, shape in enumerate(shapes):
                why = [one.leaves_out(description, config.dtype, shape.seq_len) for one in file.exclude]
                if any(why):
                    left_out[why.index(True)] += 1
                    continue
                cell = _cell(located, (i, j), Cell(iteration, config, shape), file.mode)
                if not config.refuses(shape):
                    cells.append(cell)
        if len(cells) + sum(left_out) == before:
            every = ((config, shape) for config in (*configs, *iteration.configs.values()) for shape in shapes)
            refused = next(filter(None, (config.refuses(shape) for config, shape in every)))
            what = f"no kernel of iteration {iteration.description} computes these problems: {refused}"
            raise located.error(("iterations", i), what)
    if 0 in left_out:
        what, expected = "the exclusion leaves nothing out", "iterations, dtypes and lengths of this grid"
        raise located.error(("exclude", left_out.index(0)), what, expected, "none of them")
    if not cells:
        found = f"all {sum(left_out)} left out"
        raise located.error(("exclude",), "the exclusions leave no cell", "at least one cell", found)
    own = dict(file) | {"why": " ".join(file.why.split()), "toolchains": file.toolchains or [""]}
    return Grid.model_construct(
        **own,
        name=name,
        cells=tuple(cells),
        shapes=tuple(shapes),
        excluded=tuple((n, " ".join(one.why.split())) for n, one in zip(left_out, file.exclude, strict=True)),
        sha256=sha256(path.read_bytes()),
    )


def runnable(grid: Grid, arch: str) -> Grid:
    """The grid without the cells that a GPU of an architecture (``sm_90``) cannot run; they count as excluded."""
    reasons = [cell.iteration.not_run_on(arch) for cell in grid.cells]
    kept = tuple(cell for cell, reason in zip(grid.cells, reasons, strict=True) if not reason)
    more = tuple((count, why) for why, count in Counter(filter(None, reasons)).items())
    if not kept:
        found = "; ".join(why for _, why in more)
        raise FlashladderError("no cell of the grid runs here", where=grid.name, found=found)
    return grid.model_copy(update={"cells": kept, "excluded": (*grid.excluded, *more)})


def _each_once(located: Located, file: GridFile) -> None:
    """Checks that no list has an item twice, and that the mode can measure everything."""
    for key in ("iterations", "dtypes", "seq_lens", "references", "toolchains"):
        items = getattr(file, key)
        for i, item in enumerate(items):
            if item in items[:i]:
                raise located.error((key, i), f"duplicate item in {key!r}", "each once", item)
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


def _problems(located: Located, file: GridFile) -> list[Problem]:
    """The problems of a grid, one per length; errors point at the key that does not fit the others."""
    if file.n_kv_heads and file.n_heads % file.n_kv_heads:
        what = "heads of Q cannot share those of K and V evenly"
        raise located.error(("n_kv_heads",), what, f"a divisor of n_heads {file.n_heads}", file.n_kv_heads)
    if file.mask != "none" and file.kv_len is not None:
        # with other lengths torch aligns the mask at the top left, the kernels at the bottom right
        raise located.error(("kv_len",), "'kv_len' in a grid with a mask", "none: as many keys as queries", file.kv_len)
    if file.mask != "none" and file.mode == "tune":
        what = "a mask in a tuning grid"
        raise located.error(("mask",), what, "none: one configuration serves with and without", file.mask)
    both: dict[str, Any] = {"n_heads": file.n_heads, "n_kv_heads": file.n_kv_heads or file.n_heads}
    both |= {"d_head": D_HEAD, "mask": file.mask}
    if file.packed:
        if file.packed.shortest > file.packed.longest:
            expected = f"at least shortest {file.packed.shortest}"
            raise located.error(("packed", "longest"), "lengths of sequences", expected, file.packed.longest)
        for found, where, expected in (
            (file.kv_len, ("kv_len",), "none: as many keys as queries"),
            (next((one.batch for one in file.seq_lens if one.batch > 1), None), ("seq_lens",), "batch 1"),
            (file.mode if file.mode == "tune" else None, ("mode",), "another mode: nothing is tuned for them"),
        ):
            if found is not None:
                raise located.error(where, "a grid of packed sequences", expected, found)
        return [Problem.packing(file.packed.lengths(one.seq_len), **both) for one in file.seq_lens]
    return [
        Problem(batch=one.batch, seq_len=one.seq_len, kv_len=file.kv_len or one.seq_len, **both)
        for one in file.seq_lens
    ]


def _selected(located: Located, i: int, description: str, file: GridFile) -> tuple[Iteration, tuple[KernelConfig, ...]]:
    """The i-th iteration and its configurations; errors point into the grid."""
    with located.placing(("iterations", i)):
        iteration = load_description(description)
    with located.placing(("configs",)):
        keys = [file.configs] if isinstance(file.configs, str) else file.configs
        found = (select_configs(iteration, key, file.dtypes, mask=file.mask, packed=bool(file.packed)) for key in keys)
        configs = tuple(dict.fromkeys(chain.from_iterable(found)))
        for config in configs if file.gpu != "any" else ():
            require_fit(file.gpu, config, family=iteration.family)
    return iteration, configs


def _cell(located: Located, place: tuple[int, int], cell: Cell, mode: Mode) -> Cell:
    """The cell if its kernel accepts its shape; the emulator slices wider rows for a kernel with a fixed stride."""
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


def schemas() -> dict[Path, str]:
    """File to text of the JSON Schema of every kind of YAML file, as it should be on disk."""
    iteration: Any = Union[tuple(file_model(family) for family in families())]  # noqa: UP007  # of a computed tuple
    models: dict[str, Any] = {"iteration": iteration, "gpu": Gpu, "grid": GridFile}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {
        CONFIGS / "schema" / f"{name}.json": dump_json(head | TypeAdapter(model).json_schema(mode="validation"))
        for name, model in models.items()
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Writes all schemas; the command line has no arguments."""
    module_parser("ladder.grid", "Writes the JSON Schemas of all YAML files.").parse_args(argv)
    for path, text in schemas().items():
        write_atomic(path, text)
        print(f"wrote {relative(path)}")


if __name__ == "__main__":
    run_main(main)
