"""The published ladder as typed data: every cell with its unit, source and tolerance. This project did not measure it.

`results/published/*.csv` hold the numbers, `results/published/progression.yaml` their meaning and the digest of each
CSV: an edited CSV is refused. ``python -m flashladder.results.published`` prints every cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
import io
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError
import yaml

from flashladder.arguments import module_parser
from flashladder.columns import csv_records
from flashladder.errors import FlashladderError, run_main
from flashladder.files import files_in, read_bytes, relative, sha256, utf8
from flashladder.located import first_problem, plain
from flashladder.paths import RESULTS
from flashladder.results.schema import Strict

PUBLISHED = RESULTS / "published"
DESCRIPTION = "progression.yaml"
PROGRESSION = "published_progression.csv"
SASS_COUNTS = "published_sass_counts_sm80.csv"
N_ITERATIONS = 16

Statistic = Literal["seq4096", "hmean"]
Positive = Annotated[int, Field(gt=0)]


class Source(Strict):
    """Where the figures were published."""

    repository: str
    document: str
    measured_by: str


class SourceFile(Strict):
    """One copied CSV: its content, where it comes from, and the digest of its bytes."""

    holds: str
    source: str
    sha256: str


class Shape(Strict):
    """The shapes of the figures; `batch` maps a sequence length to its batch size."""

    dtype: str
    d_head: Positive
    n_heads: Positive
    seq_lens: tuple[int, ...]
    batch: dict[int, int]


class Flops(Strict):
    """How the published FLOP count differs from 4 B H S^2 d_head."""

    ours_per_head_and_s2: str
    published_extra_per_head_and_s2: int = Field(ge=0)


class Column(Strict):
    """What one column of the progression means."""

    gpu: str
    statistic: Statistic


class Tolerance(Strict):
    """How much a measurement may differ from a published cell: points of FA2 by statistic, and a rank correlation."""

    same_gpu_points: dict[Literal["default", "seq512", "hmean"], Annotated[float, Field(gt=0)]] = Field(min_length=3)
    other_gpu_spearman_at_least: float = Field(ge=-1, le=1)

    def points(self, statistic: str) -> float:
        """Percentage points on the same GPU model; `statistic` is ``hmean`` or ``seq<length>``."""
        known = {str(name): points for name, points in self.same_gpu_points.items()}
        return known.get(statistic, known["default"])


class Description(Strict):
    """`progression.yaml`."""

    schema_: Literal[1] = Field(alias="schema")
    source: Source
    files: dict[str, SourceFile]
    shape: Shape
    flops: Flops
    columns: dict[str, Column]
    tolerance: Tolerance


@dataclass(frozen=True)
class Cell:
    """One published figure: `value` in percent of FA2, `tolerance` in points of the same unit."""

    iteration: int
    gpu: str
    statistic: Statistic
    value: float
    tolerance: float
    source: str


@dataclass(frozen=True)
class Published:
    """The published progression: cells of iterations 1 to 16, and FA2's TFLOP/s by (gpu, statistic)."""

    description: Description
    cells: tuple[Cell, ...]
    fa2_tflops: Mapping[tuple[str, str], float]

    def find(self, iteration: int, gpu: str, statistic: Statistic) -> Cell | None:
        """The figure of `iteration` on `gpu` (a100, rtx3090); None: not published, as all later steps."""
        wanted = (iteration, gpu, statistic)
        return next((one for one in self.cells if (one.iteration, one.gpu, one.statistic) == wanted), None)

    def cell(self, iteration: int, gpu: str, statistic: Statistic) -> Cell:
        """As `find`; FlashladderError if it was not published."""
        if found := self.find(iteration, gpu, statistic):
            return found
        what = f"no published figure for iteration {iteration} on {gpu} ({statistic})"
        raise FlashladderError(what, where=relative(PUBLISHED))

    def column(self, gpu: str, statistic: Statistic) -> tuple[float, ...]:
        """Percent of FA2 of iterations 1 to 16, in order."""
        return tuple(self.cell(number, gpu, statistic).value for number in range(1, N_ITERATIONS + 1))

    @property
    def gpus(self) -> tuple[str, ...]:
        """Keys of the GPUs with published figures: ``a100``, ``rtx3090``."""
        return tuple(dict.fromkeys(cell.gpu for cell in self.cells))

    def tflops(self, iteration: int, gpu: str, statistic: Statistic) -> float:
        """TFLOP/s of a published row at 4 B H S^2 d_head FLOPs (the published count includes softmax)."""
        counted = 4 * self.description.shape.d_head
        share = counted / (counted + self.description.flops.published_extra_per_head_and_s2)
        return self.cell(iteration, gpu, statistic).value / 100 * self.fa2_tflops[gpu, statistic] * share


def load_description(folder: Path = PUBLISHED) -> Description:
    """Reads and validates `progression.yaml`; FlashladderError names file, field and problem."""
    path = folder / DESCRIPTION
    try:
        return Description.model_validate(plain(_read(path)))
    except (yaml.YAMLError, ValueError) as error:
        what = first_problem(error) if isinstance(error, ValidationError) else f"not YAML ({error})"
        raise FlashladderError(what, where=relative(path)) from error


@lru_cache(maxsize=4)
def load(folder: Path = PUBLISHED) -> Published:
    """The published progression with its meaning; `FlashladderError`: a file is missing, edited or not as described."""
    description = load_description(folder)
    fa2, *rows = read_csv(folder, PROGRESSION, description)  # FA2's own row is in TFLOP/s
    source = f"{description.source.repository} {description.source.document}"
    columns = [(name, (one.gpu, one.statistic)) for name, one in description.columns.items()]
    try:
        cells = tuple(
            Cell(int(row["iteration"]), *of, float(row[name]), description.tolerance.points(of[1]), source)
            for row in rows
            for name, of in columns
        )
        return Published(description, cells, {of: float(fa2[name]) for name, of in columns})
    except (KeyError, ValueError) as error:
        what, where = "not the table that is described", relative(folder / PROGRESSION)
        raise FlashladderError(what, where=where, found=repr(error)) from error


def sass_counts(folder: Path = PUBLISHED) -> dict[tuple[int, str], dict[str, int]]:
    """Published static instruction counts: (iteration, a100 | rtx3090) -> {class: count}.

    Rows for any GPU appear under both. ``total`` is the length of the listing.
    """
    counts: dict[tuple[int, str], dict[str, int]] = {}
    for row in read_csv(folder, SASS_COUNTS, load_description(folder)):
        iteration, listing = int(row.pop("iteration")), row.pop("gpu_listing").lower()
        for gpu in ("a100", "rtx3090") if listing == "any" else (listing,):
            counts[iteration, gpu] = {name: int(count) for name, count in row.items()}
    return counts


def read_csv(folder: Path, name: str, description: Description) -> list[dict[str, str]]:
    """Rows of one published CSV, whose digest must be the description's."""
    path = folder / name
    text = _read(path)
    if (noted := description.files.get(name)) is None:
        raise FlashladderError(f"{name} is not described", where=relative(folder / DESCRIPTION))
    if (found := sha256(text)) != noted.sha256:
        what, expected = "published figures were edited", f"SHA-256 {noted.sha256}"
        hint = "restore the file: published figures are copied, never changed"
        raise FlashladderError(what, where=relative(path), expected=expected, found=found, hint=hint)
    try:
        return csv_records(io.StringIO(text))
    except ValueError as error:
        raise FlashladderError("malformed table", where=relative(path), found=error) from error


def problems(folder: Path = PUBLISHED) -> list[str]:
    """One line per CSV that is missing, edited or not described; FlashladderError if the description is broken."""
    description = load_description(folder)
    found = []
    for name in sorted({path.name for path in files_in(folder, "*.csv")} | description.files.keys()):
        try:
            read_csv(folder, name, description)
        except FlashladderError as error:
            found.append(str(error))
    return found


def _read(path: Path) -> str:
    try:
        return utf8(read_bytes(path), path)  # text mode would convert CRLF and so change the digest
    except FlashladderError as error:
        error.hint = "git checkout -- results"
        raise


def main(argv: Sequence[str] | None = None) -> None:
    """Prints every published cell with unit and tolerance."""
    module_parser("results.published", "The published progression with unit, source and tolerance.").parse_args(argv)
    cells = load().cells
    print(f"percent of FA2, from {cells[0].source}; not measured by this project")
    for cell in cells:
        where = f"{cell.iteration:2d}  {cell.gpu:8s}  {cell.statistic:8s}"
        print(f"{where}  {cell.value:6.1f} %  within {cell.tolerance:g} points on that GPU")


if __name__ == "__main__":
    run_main(main)
