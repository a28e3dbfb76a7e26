"""The same code timed in several files of one machine: its ratios agree within what the A/A floors allow.

Why: a ratio that was changed together with all its samples follows from them; the same kernel on a second card, in a
sweep or in an ablation does not. Each interval is widened by its file's own floor. Between a file and the one that the
manifest calls its other half (`beside`: another card, everything else alike) they must overlap; between files whose
arms took their turns in another order or under another protocol, by `OTHERWISE` floors. So must the arms of libraries
(cuDNN, FA4), which are known by name and version: their host code and clocks are not ours. Nothing to run here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
import math

from flashladder.cases.inputs import on_grid
from flashladder.results.schema import BenchResult, Shape, Summary

AGREES = "listed as apart in the manifest, but the machine's other runs agree with it"
APART = 3.0  # times what is allowed otherwise, of a cell that the manifest lists with a reason
OTHERWISE = 2.0  # times both floors: cells of a process of their own against cells in turn with others moved by 1.9
ENOUGH = 20  # pairs, from which on a ratio is compared

Cell = tuple[str, str, Shape]  # digest of the machine code or a library, dtype, shape


def cell_of(one: Summary) -> str:
    """A cell's name in messages and in a manifest's `apart`; with batch and heads where they are not the ladder's."""
    name, shape = f"{one.kernel} {one.dtype} S={one.shape.seq_len}", one.shape
    return name if on_grid(shape) else f"{name} B={shape.batch} H={shape.n_heads}"


@dataclass(frozen=True)
class Ratio:
    """One cell of one file: its summary, and the A/A floor of its dtype there in log units."""

    file: str
    summary: Summary
    floor: float
    library: bool = False

    @property
    def name(self) -> str:
        """The cell as messages name it."""
        return f"cell {cell_of(self.summary)}"


def ratios(files: Mapping[str, BenchResult]) -> dict[Cell, list[Ratio]]:
    """All cells that files have in common, by machine code or library."""
    found: dict[Cell, list[Ratio]] = {}
    for name, result in files.items():
        for one in result.summaries:
            code = code_of(result, one.kernel)
            if code is None or one.n_pairs < ENOUGH or one.dtype not in result.floors_pct:
                continue
            floor = math.log1p(result.floors_pct[one.dtype] / 100)
            ratio = Ratio(name, one, floor, library=one.kernel in result.references)
            found.setdefault((code, one.dtype, one.shape), []).append(ratio)
    return {cell: several for cell, several in found.items() if len(several) > 1}


def code_of(result: BenchResult, name: str) -> str | None:
    """What an arm is known by in every file: its machine code, or a library's name and version; None where unknown."""
    if library := result.references.get(name):
        return f"{name} {library.version}"
    kernel = result.kernels.get(name)
    return kernel.text_sha256 if kernel else None


def disagreements(
    files: Mapping[str, BenchResult], beside: Mapping[str, str], apart: Mapping[str, Collection[str]] | None = None
) -> Iterator[str]:
    """One line per cell and two files whose ratios are farther apart than their floors allow, led by the second file.

    Args:
        files: timings of one machine by file name.
        beside: file to the one whose other half it is.
        apart: file to its cells that the manifest lists as apart; one that is not apart is a line too.
    """
    apart = apart or {}
    listed = {(file, f"cell {cell}") for file, cells in apart.items() for cell in cells}
    needed = set()
    for several in ratios(files).values():
        for a, b in combinations(several, 2):
            alike = not a.library and (beside.get(b.file) == a.file or beside.get(a.file) == b.file)
            allowed = (a.floor + b.floor) * (1.0 if alike else OTHERWISE)
            known = listed & {(a.file, a.name), (b.file, b.name)}
            if gap(a.summary, b.summary) > allowed:
                needed |= known
            if gap(a.summary, b.summary) > allowed * (APART if known else 1.0):
                within = f"within both intervals and {100 * allowed:.2f} % for the floors"
                expected = f"expected {a.summary.pct:.2f} % as in {a.file}, {within}"
                yield f"{b.file}: {b.name}: {expected}, found {b.summary.pct:.2f} %"
    for file, cell in sorted(listed - needed):
        yield f"{file}: {cell}: {AGREES}"


def gap(a: Summary, b: Summary) -> float:
    """How far two intervals are apart, in log units; 0 where they overlap."""
    return max(0.0, math.log(a.pct_low / b.pct_high), math.log(b.pct_low / a.pct_high))
