"""Raw samples that stand in two places: those of one run in two files, and no others.

Why: samples that are given out as another cell's, another file's or another GPU's agree with their own tables, and
their ratio may be a plausible one. Two runs never take the same times to the last digit, so that whoever has the same
ones must be the same cell of the same run: `bench_hopper.json.gz` repeats a part of `hopper.json.gz`. There every cell
must be the same, or the one of the two that was edited would still have the other beside it.

Nothing to run here; `invoke gate` and `invoke verify` do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, combinations
from pathlib import Path

from flashladder.files import relative
from flashladder.results.files import load_result
from flashladder.results.schema import BenchResult

ENOUGH = 6  # pairs, from which on equal samples are no chance

Samples = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Place:
    """A cell of a file: which run it is of, what was timed, and how messages name it."""

    path: Path
    run: tuple[str, str, int]  # card, start, process
    cell: tuple[str, str, int, int]  # series, dtype, sequence length, batch

    @property
    def name(self) -> str:
        """As other messages on cells write it."""
        series, dtype, seq_len, batch = self.cell
        return f"cell {series} {dtype} S={seq_len} B={batch}"


Held = tuple[tuple[Place, Samples], ...]


def problems(held: Iterable[Held], *, between: bool = False) -> Iterator[str]:
    """One line per cell that has another one's samples, or others than the same cell of the same run.

    Args:
        held: what files hold, from `cells`.
        between: compares files of different folders alone; otherwise those of one folder, and each with itself.
    """
    by_samples: dict[Samples, list[Place]] = {}
    by_cell: dict[object, list[tuple[Place, Samples]]] = {}
    for place, samples in chain.from_iterable(held):
        by_samples.setdefault(samples, []).append(place)
        by_cell.setdefault((place.run, place.cell), []).append((place, samples))
    for places in by_samples.values():
        for one, other in combinations(places, 2):
            if (one.run, one.cell) != (other.run, other.cell) and (one.path.parent != other.path.parent) == between:
                where = "" if other.path == one.path else f" in {relative(one.path)}"
                yield f"{relative(other.path)}: {other.name}: its raw samples are those of {one.name}{where}"
    for several in by_cell.values():
        for (one, first), (other, second) in combinations(several, 2):
            if first != second and one.path != other.path and (one.path.parent != other.path.parent) == between:
                told = f"other raw samples than in {relative(one.path)}, which holds the same run"
                yield f"{relative(other.path)}: {other.name}: {told}"


def cells(path: Path) -> Held:
    """Every series of a file with enough pairs; none of a document that holds no timings.

    Raises:
        FlashladderError: it cannot be read.
    """
    stat = path.stat()
    return _cells(path, (stat.st_mtime_ns, stat.st_size))


@lru_cache(maxsize=64)
def _cells(path: Path, stamp: tuple[int, int]) -> Held:
    del stamp
    found, result = [], load_result(path)
    if not isinstance(result, BenchResult):
        return ()
    starts = {one.index: one.started_utc for one in result.processes}
    for group in result.groups:
        run = (result.gpu.uuid, starts.get(group.process, ""), group.process)
        for series in (one for one in group.series if len(one.pairs) >= ENOUGH):
            cell = (series.kernel, group.dtype, group.shape.seq_len, group.shape.batch)
            samples = tuple((pair.reference_us, pair.kernel_us) for pair in series.pairs)
            found.append((Place(path, run, cell), samples))
    return tuple(found)
