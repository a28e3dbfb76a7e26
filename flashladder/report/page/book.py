"""What a section is given: the ladder, the results that are committed, and the records behind numbers.

Why one object: every section reads the same results once, and all number their records together. Nothing to run here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from flashladder.files import files_in
from flashladder.ladder.gpus import configs_for, gpu_key, load_gpus
from flashladder.names import HEADLINE_LENGTH
from flashladder.paths import ROOT
from flashladder.report.data import Ladder, bench_files, other_runs
from flashladder.report.page.figure import Drawn
from flashladder.report.page.records import Records
from flashladder.report.tables import plain
from flashladder.results.files import load_result
from flashladder.results.schema import BenchResult, Summary
from flashladder.sweep.winner import FINALS

__all__ = ["HEADLINE_LENGTH", "Book", "Timed"]
from flashladder.results.statistics import stated


@dataclass(frozen=True)
class Timed:
    """One file of timings on one GPU: its title, the file, and what is in it; `further` are its later steps' files."""

    title: str
    key: str
    path: Path
    result: BenchResult
    further: tuple[Timed, ...] = ()

    def holding(self, kernel: str) -> Timed:
        """The file that timed a kernel: this one, unless it is one of the further files'."""
        return next((one for one in self.further if kernel in one.result.kernels), self)

    @property
    def configs_of(self) -> str:
        """The GPU whose configurations are this one's: its own, or those of one with the same architecture."""
        return configs_for(self.key, self.result.gpu.arch)

    @cached_property
    def summaries(self) -> dict[tuple[str, str, int], Summary]:
        """Summaries by kernel, dtype and length."""
        own = {(one.kernel, one.dtype, one.shape.seq_len): one for one in self.result.summaries}
        for other in self.further:
            own |= other.summaries
        return own

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Lengths that were timed, ascending."""
        return tuple(sorted({one.shape.seq_len for one in self.result.summaries}))


@dataclass
class Book:
    """All that sections draw from; `root` is the checkout."""

    ladder: Ladder
    root: Path = ROOT
    drawn: list[Drawn] = field(default_factory=list)

    @cached_property
    def records(self) -> Records:
        """The records that sections asked for so far."""
        return Records(self.root)

    @property
    def results(self) -> Path:
        """The folder of results."""
        return self.root / "results"

    @cached_property
    def machines(self) -> tuple[Timed, ...]:
        """Of every measured GPU the file that its progression is made from: its benchmark, or else its sweep."""
        own: dict[str, list[Path]] = {}
        for path in (*bench_files(self.results), *(one.path for one in self.sweeps)):
            known = own.setdefault(path.parent.name, [])
            if not known or path.name.startswith("bench"):
                known.append(path)
        paths = [own[name] for name in sorted(own, reverse=True)]
        return tuple(
            replace(self._stated(first), further=tuple(map(self._stated, further))) for first, *further in paths
        )

    @cached_property
    def sweeps(self) -> tuple[Timed, ...]:
        """Of every machine the sweep of its own grid: the ladder beside all references."""
        names = [path for path in files_in(self.results, "*/*.json.gz") if path.name == f"{path.parent.name}.json.gz"]
        return tuple(self._stated(path) for path in names[::-1])

    def grids(self, grid: str) -> tuple[Timed, ...]:
        """Every machine's sweep of one grid, such as ``ablation``."""
        paths = files_in(self.results, f"*/{grid}.json.gz")
        return tuple(self._timed(path) for path in paths)

    def further_sweeps(self, grid: str) -> tuple[Timed, ...]:
        """Every machine's sweep of one grid, as `sweeps` has those of the machines' own."""
        paths = files_in(self.results, f"*/{grid}.json.gz")[::-1]
        return tuple(self._stated(path) for path in paths)

    @property
    def tunings(self) -> tuple[Timed, ...]:
        """Every machine's tuning run that has finals beside it."""
        return tuple(one for one in self.grids("tune") if one.path.with_name(FINALS).is_file())

    def _stated(self, path: Path) -> Timed:
        """A file with intervals and verdicts as tables print them: what other runs of the same code say is in them."""
        timed = self._timed(path)
        return replace(timed, result=stated(timed.result, other_runs(path)))

    def _timed(self, path: Path) -> Timed:
        result = load_result(path)
        if not isinstance(result, BenchResult):
            raise TypeError(f"{path} holds {result.kind}, no timings")
        key = gpu_key(result.gpu.name)
        return Timed(plain(load_gpus()[key].title if key else result.gpu.name), key or "", path, result)
