"""What figures in texts are derived from: committed results, published figures, durations, listed mutants.

Why apart from `flashladder.report.figures`: that says where a figure stands and how it is written; here it becomes a
number. Nothing to run here; ``python -m flashladder.report.figures`` shows every figure.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
import statistics
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt

from flashladder.columns import listed
from flashladder.errors import FlashladderError
from flashladder.files import files_in, relative
from flashladder.ladder.claim import LOCK_ARCHES
from flashladder.ladder.iteration import load_all
from flashladder.located import first_problem, read_yaml
from flashladder.lock.schema import read_lock
from flashladder.names import HEADLINE_LENGTH, PUBLISHED_GPU
from flashladder.paths import CONFIGS, RESULTS
from flashladder.report.anchors import TITLES
from flashladder.report.data import Ladder, Machine, second_files
from flashladder.report.tables import headline, headline_machine
from flashladder.results.files import load_as, read_json
from flashladder.results.published import number, read_csv
from flashladder.results.schema import BenchResult, CheckResult, Summary

DURATIONS = "durations.json"  # under a results folder
REFERENCES = ("cudnn_tflops", "fa4_sm90_tflops")


class Duration(BaseModel):
    """How long a command took, where it was measured, and how much it left on the disk (None: not looked at)."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    command: str
    seconds: PositiveFloat
    cores: PositiveInt
    disk_gb: PositiveFloat | None = None
    where: str
    date: str = Field(pattern=r"^\d{4}-\d\d-\d\d$")


def read_durations(path: Path) -> dict[str, Duration]:
    """Durations by name.

    Raises:
        FlashladderError: the file cannot be read, or a duration is malformed.
    """
    document = read_json(path)
    try:
        return {name: Duration.model_validate(one) for name, one in dict(document).items()}
    except (TypeError, ValueError) as error:
        raise FlashladderError("bad record of durations", where=relative(path), found=first_problem(error)) from error


@dataclass(frozen=True)
class Data:
    """The committed data that figures come from; each is read when it is first asked for."""

    ladder: Ladder
    results: Path = RESULTS
    configs: Path = CONFIGS

    @property
    def machine(self) -> Machine:
        """The machine of README's table."""
        machine = headline_machine(self.ladder)
        if machine is None:
            raise FlashladderError(
                "nothing was measured, so that texts can name no figure", where=relative(self.results)
            )
        return machine

    @cached_property
    def durations(self) -> dict[str, Duration]:
        """Durations by name."""
        return read_durations(self.results / DURATIONS)

    def percent(self, step: int) -> float:
        """Percent of FA2 of a step in README's table."""
        row = self.ladder.rows(self.machine, "fp16")[step - 1]
        if (summary := headline(row)) is None:
            raise FlashladderError(
                f"iteration {step} was not measured at S = {HEADLINE_LENGTH}", where=self.machine.name
            )
        return summary.pct

    def beyond_ampere(self) -> float:
        """How many times as fast as the first family's best step cuDNN and FA4 (their mean) are, in README's shape."""
        rows = read_csv(self.results / "published", "anchors_h200.csv", self.ladder.published.description)
        where = relative(self.results / "published" / "anchors_h200.csv")
        (row,) = (one for one in rows if (one["seq_len"], one["dtype"]) == (str(HEADLINE_LENGTH), "fp16"))
        fa2, *theirs = (number(row, name, float, where) for name in ("fa2_tflops", *REFERENCES))
        first = self.ladder.iterations[0].family
        rows_of_it = (row for row in self.ladder.rows(self.machine, "fp16") if row.iteration.family is first)
        found = (headline(row) for row in rows_of_it)
        best = max(summary.pct for summary in found if summary is not None) / 100
        return statistics.mean(theirs) / fa2 / best

    def over_libraries(self, machine: str) -> tuple[float, float]:
        """How many times as fast as the fastest library the ladder's best is: the least and most of a sweep's cells."""
        ours, theirs = self._fastest(machine, ours=True), self._fastest(machine, ours=False)
        times = [ours[cell].pct / theirs[cell].pct for cell in ours]
        return min(times), max(times)

    def libraries(self, machine: str) -> str:
        """``cuDNN, FA3 and FA4``: the libraries of that sweep."""
        return listed([TITLES[name] for name in sorted(self._sweep(machine).references)])

    def best_libraries(self, machine: str) -> str:
        """``cuDNN at 512, FA3 from 1024 on``: the fastest library of that sweep by length, or those of its dtypes."""
        names: dict[int, set[str]] = {}
        for (_, length), one in self._fastest(machine, ours=False).items():
            names.setdefault(length, set()).add(TITLES[one.kernel])
        who_at = {length: " or ".join(sorted(names[length])) for length in sorted(names)}
        groups = [(who, list(lengths)) for who, lengths in groupby(who_at, who_at.__getitem__)]
        told = [f"{who} at {listed([str(n) for n in lengths])}" for who, lengths in groups]
        last, lengths = groups[-1]
        return ", ".join([*told[:-1], f"{last} from {lengths[0]} on"])

    def _sweep(self, machine: str) -> BenchResult:
        return load_as(self.results / machine / "persistent.json.gz", BenchResult)

    def _fastest(self, machine: str, *, ours: bool) -> dict[tuple[str, int], Summary]:
        """The fastest kernel, or library, of that sweep by dtype and length."""
        result = self._sweep(machine)
        found: dict[tuple[str, int], Summary] = {}
        for one in result.summaries:
            cell = (one.dtype, one.shape.seq_len)
            if one.kernel in (result.kernels if ours else result.references) and (
                cell not in found or one.pct > found[cell].pct
            ):
                found[cell] = one
        return found

    def checked(self) -> int:
        """Cases of the check of correctness that every GPU with one has run."""
        files = files_in(self.results, "*/check.json.gz")
        counts = {len(load_as(path, CheckResult).cases) for path in files}
        if len(counts) != 1:
            raise FlashladderError("GPUs were not checked alike", where=relative(self.results), found=sorted(counts))
        return counts.pop()

    def locked_kernels(self) -> int:
        """Kernels in the locks of all architectures."""
        locks = (read_lock(arch, self.results / "locks") for arch in LOCK_ARCHES)
        return sum(len(entry.kernels) for lock in locks for entry in lock.iterations.values())

    def equivalent_mutants(self) -> int:
        """Mutants of the kernels that change nothing."""
        from flashladder.emulate.mutation import EQUIVALENT, Equivalent

        listed = cast("list[object]", read_yaml(self.configs / EQUIVALENT.name))
        return sum(len(Equivalent.model_validate(one).iterations) for one in listed)

    def emulated_s(self, step: int, seq_len: int, heads: int) -> list[float]:
        """Seconds of the emulator's runs of one case."""
        document: dict[str, Any] = read_json(self.results / "emulator" / "speed.json")
        shape = {"iteration": step, "seq_len": seq_len, "heads": heads}
        (run,) = (one for one in document["runs"] if {key: one[key] for key in shape} == shape)
        return list(run["seconds"])

    def moved(self, *, everywhere: bool) -> float:
        """Most points by which any figure of another card lies from this one's, at S = 4096 or at every length."""
        own = {
            (one.kernel, one.dtype, one.shape): one.pct
            for measured in self.machine.measured.values()
            for one in measured.summaries.values()
        }
        return max(
            abs(one.pct - own[one.kernel, one.dtype, one.shape])
            for path in second_files(self.results / self.machine.name)
            for result in (load_as(path, BenchResult),)
            for one in result.summaries
            if one.kernel in result.kernels and (everywhere or one.shape.seq_len == HEADLINE_LENGTH)
        )

    def emulator_cases(self) -> int:
        """Cases of the check on the emulator, all iterations in both dtypes."""
        from flashladder.check.on_emulator import cases_for
        from flashladder.ladder.config import DTYPES

        return len(DTYPES) * sum(len(cases_for(one.configs[PUBLISHED_GPU], one.row_stride)) for one in load_all())
