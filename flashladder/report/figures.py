"""Figures in running text (README, CHANGELOG, docs), each derived from the committed data that it speaks of.

Why: a number in a sentence rots like one in a table. `FIGURES` says where each stands, as a pattern whose group is the
number, and what gives it; `invoke report` writes it there, `invoke gate` compares. Durations are those of
`results/durations.json`, which says what was timed, where and when: correct it when it is timed anew.

Run: ``python -m flashladder.report.figures`` prints every figure with its page; exit code 1 when one is another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
import math
from pathlib import Path
import re
import statistics

from flashladder.columns import listed
from flashladder.errors import CheckFailed, FlashladderError, one_line_errors
from flashladder.files import read_text
from flashladder.ladder.claim import LOCK_ARCHES
from flashladder.paths import ROOT
from flashladder.report.data import Ladder, collect
from flashladder.report.figure_data import Data
from flashladder.results.derive import Found

README, CHANGELOG, H200 = "README.md", "CHANGELOG.md", "results/h200/README.md"
MEASURED, LAPTOP, REPRODUCED = "docs/measurement.md", "docs/without-a-gpu.md", "docs/reproduce.md"
SEALED = {H200}  # compared, never rewritten: a seal holds the page's bytes
UNDERIVABLE = (FlashladderError, KeyError, TypeError, ValueError)  # what it is derived from is edited or not there
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


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


def spelled(n: int) -> str:
    """A count as texts write it: in words up to twelve."""
    return WORDS[n] if n < len(WORDS) else str(n)


def about(seconds: float) -> str:
    """A duration as texts write it: ``a second``, ``40 seconds``, ``a minute``, ``90 seconds``, ``four minutes``."""
    tens = 10 * round(seconds / 10)
    if tens in (60, 0) or seconds >= 105 or seconds < 20:
        n, unit = (max(1, round(seconds)), "second") if seconds < 20 else (round(seconds / 60), "minute")
        return f"a {unit}" if n == 1 else f"{spelled(n)} {unit}s"
    return f"{tens} seconds"


def _step(step: int) -> Callable[[Data], str]:
    return lambda data: f"{data.percent(step):.1f}"


def _cases(data: Data) -> str:
    return str(data.emulator_cases())


def _duration(name: str) -> Callable[[Data], str]:
    return lambda data: about(data.durations[name].seconds)


def _points(name: str) -> Callable[[Data], str]:
    return lambda data: f"{getattr(data.ladder.published.description.tolerance.same_gpu_points, name):g}"


def _spearman(data: Data) -> str:
    return f"{data.ladder.published.description.tolerance.other_gpu_spearman_at_least:g}"


def _day(data: Data) -> str:
    return re.split(r"driver \S+, ", data.machine.reference)[-1]


def _best(data: Data) -> str:
    return f"{max(data.percent(step.number) for step in data.ladder.iterations):.0f}"


def _over(machine: str, place: int) -> Callable[[Data], str]:
    return lambda data: f"{data.over_libraries(machine)[place]:.2f}"


def _libraries(machine: str) -> Callable[[Data], str]:
    return lambda data: data.libraries(machine)


def _disk(data: Data) -> str:
    return f"{data.durations['reproduce'].disk_gb or 0:.0f}"


def _emulated_under(data: Data) -> str:
    return about(math.ceil(max(data.emulated_s(1, 256, 1))))


def _emulated_about(data: Data) -> str:
    return about(statistics.median(data.emulated_s(16, 1024, 16)))


FIGURES = (
    Figure(README, r"first command takes about ([a-z0-9]+ minutes?)", _duration("reproduce")),
    Figure(README, r"the second about ([a-z0-9]+ minutes?)", _duration("tests")),
    Figure(README, r"they need ([\d.]+) GB of disk", _disk),
    Figure(README, r"is ([\d.]+) to [\d.]+ times as fast as the best of", _over("h100", 0)),
    Figure(README, r"is [\d.]+ to ([\d.]+) times as fast as the best of", _over("h100", 1)),
    Figure(README, r"times as fast as the best of ([\w, ]+) at every", _libraries("h100")),
    Figure(README, r"fp16 and bf16; the best is ([\w, ]+) \(", lambda data: data.best_libraries("h100")),
    Figure(README, r"is ([\d.]+) to [\d.]+ times as fast as the better", _over("h200", 0)),
    Figure(README, r"is [\d.]+ to ([\d.]+) times as fast as the better", _over("h200", 1)),
    Figure(README, r"the better of ([\w ]+) \(", _libraries("h200")),
    Figure(MEASURED, r"FA4 are about ([\d.]+) times", lambda data: f"{data.beyond_ampere():.1f}"),
    Figure(MEASURED, r"within ([\d.]+) points \(harmonic", _points("default")),
    Figure(MEASURED, r"points \(harmonic mean ([\d.]+)\)", _points("hmean")),
    Figure(MEASURED, r"rank order on another \(Spearman at least ([\d.]+)\)", _spearman),
    Figure(MEASURED, r"An H200 and an H100 passed (\d+) cases each", lambda data: str(data.checked())),
    Figure(MEASURED, r"counts of all (\d+) locked kernels", lambda data: str(data.locked_kernels())),
    Figure(MEASURED, r"Machine code is made for ([\w, ]+), and PTX", lambda _: listed(LOCK_ARCHES)),
    Figure(LAPTOP, r"\((\d+) cases, about", _cases),
    Figure(LAPTOP, r"cases, about ([a-z0-9]+ [a-z]+) on two cores", _duration("check on the emulator")),
    Figure(LAPTOP, r"one head; under ([a-z]+ [a-z]+) once", _emulated_under),
    Figure(LAPTOP, r"heads a kernel takes about ([a-z0-9]+ [a-z]+) with", _emulated_about),
    Figure(LAPTOP, r"caught but (\w+) that", lambda data: spelled(data.equivalent_mutants())),
    Figure(H200, r"more than ([\d.]+) points at S", lambda data: f"{data.moved(everywhere=False):.1f}"),
    Figure(H200, r"or ([\d.]+) at any length", lambda data: f"{data.moved(everywhere=True):.1f}"),
    *(Figure(CHANGELOG, rf"^- Iteration {step}, .*: ([\d.]+) %\.$", _step(step)) for step in range(1, 29)),
    Figure(REPRODUCED, r"steps lead from (\d+) to", lambda data: f"{data.percent(1):.0f}"),
    Figure(REPRODUCED, r"steps lead from \d+ to (\d+) percent", _best),
    Figure(CHANGELOG, r"H200's configurations \(([\d and,-]+)\)", _day),
)


def pages(root: Path = ROOT) -> dict[str, str]:
    """The texts that figures stand in, by their path from the root."""
    return {page: read_text(root / page) for page in dict.fromkeys(one.page for one in FIGURES)}


def problems(ladder: Ladder, root: Path = ROOT, figures: tuple[Figure, ...] = FIGURES) -> Found:
    """Figures in texts that are not what the data give, and sentences that are no longer there."""
    texts, data = pages(root), Data(ladder, root / "results", root / "configs")
    found = []
    for figure in figures:
        shown = [" ".join(match[1].split()) for match in figure.regex.finditer(texts[figure.page])]
        try:
            expected = figure.value(data)
        except UNDERIVABLE as error:
            found.append(f"{figure.page}: {figure.pattern}: cannot be derived: {error!s}")
            continue
        if not shown:
            found.append(
                f"{figure.page}: no text like {figure.pattern} (flashladder/report/figures.py): expected {expected}"
            )
        found += [
            f"{figure.page}: {figure.pattern}: expected {expected}, found {one}; run: invoke report"
            for one in dict.fromkeys(shown)
            if one != expected
        ]
    return Found(found, len(figures))


def rewritten(ladder: Ladder, texts: Mapping[str, str], root: Path = ROOT) -> dict[str, str]:
    """The texts with every figure as the data give it; a sealed page is left out.

    A figure that cannot be derived, such as that of a step without a timing, stays as it is: `problems` names it.
    """
    data = Data(ladder, root / "results", root / "configs")
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


def main() -> int:
    """Prints every figure; raises `CheckFailed` when a text shows another."""
    ladder = collect()
    data = Data(ladder)
    for figure in FIGURES:
        print(f"{figure.page}: {figure.pattern}: {figure.value(data)}")
    if found := problems(ladder).problems:
        raise CheckFailed(f"{len(found)} figures differ, the first: {found[0]}")
    return 0


if __name__ == "__main__":
    with one_line_errors():
        raise SystemExit(main())
