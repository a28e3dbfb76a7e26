"""Figures in sentences of README and of the measurement rules, each derived from the data that it speaks of.

`FIGURES` says where each stands, as a pattern whose group is the number, and what gives it. `invoke report` writes it
there, `invoke gate` compares. Durations are those of ``results/durations.json``, which says what was timed, where and
when.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
import re

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt

from flashladder.columns import listed
from flashladder.errors import FlashladderError
from flashladder.files import read_text, relative
from flashladder.located import first_problem
from flashladder.names import HEADLINE_LENGTH
from flashladder.paths import RESULTS, ROOT
from flashladder.report.data import TITLES, Ladder, second_files
from flashladder.report.tables import headline_machine
from flashladder.results.derive import Found
from flashladder.results.files import load_as, read_json
from flashladder.results.published import Tolerance
from flashladder.results.schema import BenchResult, Summary

README, MEASURED, H200 = "README.md", "docs/measurement.md", "results/h200/README.md"
DURATIONS = "durations.json"  # under a results folder
SEALED = {H200}  # compared, never rewritten
UNDERIVABLE = (FlashladderError, KeyError, TypeError, ValueError)  # what it is derived from is edited or not there
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


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

    @cached_property
    def durations(self) -> dict[str, Duration]:
        """Durations by name."""
        return read_durations(self.results / DURATIONS)

    @property
    def tolerance(self) -> Tolerance:
        """By how much a measurement may differ from the published figures."""
        return self.ladder.published.description.tolerance

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

    def moved(self, *, everywhere: bool) -> float:
        """Most points by which any figure of another card lies from this one's, at S = 4096 or at every length."""
        machine = headline_machine(self.ladder)
        if machine is None:
            raise FlashladderError("nothing was measured", where=relative(self.results))
        own = {
            (one.kernel, one.dtype, one.shape): one.pct
            for measured in machine.measured.values()
            for one in measured.summaries.values()
        }
        return max(
            abs(one.pct - own[one.kernel, one.dtype, one.shape])
            for path in second_files(self.results / machine.name)
            for result in (load_as(path, BenchResult),)
            for one in result.summaries
            if one.kernel in result.kernels and (everywhere or one.shape.seq_len == HEADLINE_LENGTH)
        )


@dataclass(frozen=True)
class Figure:
    """One figure: `pattern` (blanks match line ends too) has one group, which must be what `value` gives."""

    page: str
    pattern: str
    value: Callable[[Data], str]

    @property
    def regex(self) -> re.Pattern[str]:
        """The pattern over lines as they are wrapped."""
        return re.compile(self.pattern.replace(" ", r"\s+"), re.MULTILINE)


def about(seconds: float) -> str:
    """A duration as texts write it: ``a second``, ``40 seconds``, ``a minute``, ``90 seconds``, ``four minutes``."""
    tens = 10 * round(seconds / 10)
    if tens in (60, 0) or seconds >= 105 or seconds < 20:
        n, unit = (max(1, round(seconds)), "second") if seconds < 20 else (round(seconds / 60), "minute")
        return f"a {unit}" if n == 1 else f"{WORDS[n] if n < len(WORDS) else n} {unit}s"
    return f"{tens} seconds"


def _duration(name: str) -> Callable[[Data], str]:
    return lambda data: about(data.durations[name].seconds)


def _over(machine: str, place: int) -> Callable[[Data], str]:
    return lambda data: f"{data.over_libraries(machine)[place]:.2f}"


FIGURES = (
    Figure(README, r"first command takes about ([a-z0-9]+ minutes?)", _duration("reproduce")),
    Figure(README, r"the second about ([a-z0-9]+ minutes?)", _duration("tests")),
    Figure(README, r"they need ([\d.]+) GB of disk", lambda data: f"{data.durations['reproduce'].disk_gb or 0:.0f}"),
    Figure(README, r"is ([\d.]+) to [\d.]+ times as fast as the best of", _over("h100", 0)),
    Figure(README, r"is [\d.]+ to ([\d.]+) times as fast as the best of", _over("h100", 1)),
    Figure(README, r"times as fast as the best of ([\w, ]+) at every", lambda data: data.libraries("h100")),
    Figure(README, r"fp16 and bf16; the best is ([\w, ]+) \(", lambda data: data.best_libraries("h100")),
    Figure(README, r"is ([\d.]+) to [\d.]+ times as fast as the better", _over("h200", 0)),
    Figure(README, r"is [\d.]+ to ([\d.]+) times as fast as the better", _over("h200", 1)),
    Figure(README, r"the better of ([\w ]+) \(", lambda data: data.libraries("h200")),
    Figure(MEASURED, r"within ([\d.]+) points \(harmonic", lambda data: f"{data.tolerance.same_gpu_points.default:g}"),
    Figure(MEASURED, r"points \(harmonic mean ([\d.]+)\)", lambda data: f"{data.tolerance.same_gpu_points.hmean:g}"),
    Figure(
        MEASURED,
        r"rank order on another \(Spearman at least ([\d.]+)\)",
        lambda data: f"{data.tolerance.other_gpu_spearman_at_least:g}",
    ),
    Figure(H200, r"more than ([\d.]+) points at S", lambda data: f"{data.moved(everywhere=False):.1f}"),
    Figure(H200, r"or ([\d.]+) at any length", lambda data: f"{data.moved(everywhere=True):.1f}"),
)


def pages(root: Path = ROOT) -> dict[str, str]:
    """The texts that figures stand in, by their path from the root."""
    return {page: read_text(root / page) for page in dict.fromkeys(one.page for one in FIGURES)}


def problems(ladder: Ladder, root: Path = ROOT, figures: tuple[Figure, ...] = FIGURES) -> Found:
    """Figures in texts that are not what the data give, and sentences that are no longer there."""
    texts, data = pages(root), Data(ladder, root / "results")
    found = []
    for figure in figures:
        shown = dict.fromkeys(" ".join(match[1].split()) for match in figure.regex.finditer(texts[figure.page]))
        where = f"{figure.page}: {figure.pattern}"
        try:
            expected = figure.value(data)
        except UNDERIVABLE as error:
            found.append(f"{where}: cannot be derived: {error!s}")
            continue
        if not shown:
            found.append(f"{where}: no such text (flashladder/report/figures.py): expected {expected}")
        found += [f"{where}: expected {expected}, found {one}; run: invoke report" for one in shown if one != expected]
    return Found(found, len(figures))


def rewritten(ladder: Ladder, texts: Mapping[str, str], root: Path = ROOT) -> dict[str, str]:
    """The texts with every figure as the data give it; a sealed page is left out.

    A figure that cannot be derived, such as that of a machine that was not measured, stays as it is.
    """
    data = Data(ladder, root / "results")
    new = {page: text for page, text in texts.items() if page not in SEALED}
    for figure in FIGURES:
        if figure.page in new:
            try:
                expected = figure.value(data)
            except UNDERIVABLE:
                continue
            new[figure.page] = figure.regex.sub(partial(_put, expected), new[figure.page])
    return new


def _put(figure: str, match: re.Match[str]) -> str:
    """The matched text with `figure` for its group, as it is wrapped where nothing changed."""
    if " ".join(match[1].split()) == figure:
        return match[0]
    start, end = match.start(1) - match.start(), match.end(1) - match.start()
    return match[0][:start] + figure + match[0][end:]
