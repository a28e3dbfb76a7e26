"""The report: page (HTML), progression and counter tables (Markdown, CSV), plot (SVG, PNG), and README's table.

The same committed files always give the same bytes, so ``--check`` finds a stale or edited table. Before the first
measurement the tables hold published figures only, and say so.

Run: ``invoke report``, ``invoke report --open``, ``invoke report --check`` (exit 1 and the names of the stale files).
"""

from __future__ import annotations

from collections.abc import Mapping
import json
from pathlib import Path
import sys
from typing import Literal
import webbrowser

from flashladder.columns import csv_of, told_on_terminal
from flashladder.errors import FlashladderError, require_checkout
from flashladder.files import read_text, relative, require_file_or_nothing, write_atomic
from flashladder.ladder.selection import FASTEST
from flashladder.located import read_committed
from flashladder.parallel import tune_gc
from flashladder.paths import RESULTS, ROOT
from flashladder.report import accuracy, counters, plot, sweeps, tables
from flashladder.report.data import Ladder, collect, fastest
from flashladder.results.schema import Strict

REPORT = RESULTS / "report"
PLOT = "progression"


def render(ladder: Ladder) -> dict[str, bytes]:
    """Bytes of those files of results/report that show the ladder, by name."""
    files = {
        "progression.md": tables.document(ladder).encode(),
        "progression.csv": csv_of(tables.progression(ladder)).encode(),
        "cells.csv": csv_of(tables.cells(ladder)).encode(),
    }
    if ladder.emulated:
        files |= counters.render(ladder, ladder.emulated)
    return files | {f"{PLOT}.{suffix}": data for suffix, data in plot.of_ladder(ladder).items()}


def result_pages(results: Path) -> dict[str, bytes]:
    """Bytes of the other files of results/report, by name: each shows one result file, not the ladder."""
    return {**sweeps.render(results), **sweeps.render_energy(results), **accuracy.render(results)}


def committed(ladder: Ladder, root: Path = ROOT) -> dict[Path, bytes]:
    """Bytes of every file that the report writes in a checkout at `root`, except the page."""
    results, readme = root / "results", root / "README.md"
    report = {results / "report" / name: data for name, data in (render(ladder) | result_pages(results)).items()}
    ranked = {machine.key: ladder.ranking(machine) for machine in ladder.machines}
    report[root / "configs" / FASTEST.name] = fastest(results, ranked).encode()
    block = "\n".join([tables.readme_block(ladder), *sweeps.headlines(results)]).rstrip()
    text = between_markers(read_text(readme), PLOT, block)
    return report | counters.speed(root) | {readme: between_markers(text, "times", sentence(results)).encode()}


def pages(ladder: Ladder, root: Path = ROOT) -> dict[Path, bytes]:
    """Bytes of the page of a checkout at `root` (`flashladder.report.page`)."""
    from flashladder.report.page import INDEX, page

    return {root / "results" / "report" / INDEX: page(ladder, root)}


def between_markers(text: str, about: str, block: str) -> str:
    """Replaces what stands between two markers; FlashladderError unless each is there once, in order."""
    begin, end = f"<!-- {about}:begin -->", f"<!-- {about}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise FlashladderError("markers of what is generated", where="README.md", expected=f"{begin} ... {end}")
    head, rest = text.split(begin)
    return f"{head}{begin}\n{block.strip()}\n{end}{rest.split(end)[1]}"


def stale(files: Mapping[Path, bytes]) -> list[str]:
    """Names the files on disk whose bytes differ from `files`, each with the reason.

    A picture that another matplotlib release drew is compared by the digest of its data: releases draw other bytes.
    """
    problems, drawn_by = [], ""
    for path, data in files.items():
        if not path.is_file():
            problems.append(f"{relative(path)}: missing")
            continue
        found = path.read_bytes()
        if found == data:
            continue
        if path.suffix in (".svg", ".png", ".html"):
            from flashladder.report.page import inflated_page

            named = path.with_suffix(".svg") if path.suffix == ".png" else path
            theirs = plot.rendered_by(named.read_bytes()) if named.is_file() else ("", "")
            ours = plot.rendered_by(files[named])
            if theirs[1] == ours[1] and theirs[0] != ours[0]:
                drawn_by = f"pictures were drawn by matplotlib {theirs[0]}, this is {ours[0]}: compared by their data"
                continue
            if path.suffix == ".html" and inflated_page(found) == inflated_page(data):
                continue
        problems.append(f"{relative(path)}: not what the committed results give")
    if drawn_by:
        print(drawn_by, file=sys.stderr)
    return problems


class CommandTimes(Strict):
    """Wall times in seconds, by command and run: the first run has an empty `build/`, the second one keeps it."""

    schema_version: Literal[1]
    kind: Literal["command-times"]
    date: str
    commit: str
    cpu: str
    cpus: int  # that the commands could use
    python: str
    seconds: Mapping[Literal["reproduce", "tests"], Mapping[Literal["first", "second"], float]]


def sentence(results: Path) -> str:
    """How long the commands take; `FlashladderError` if they were not timed."""
    times = read_committed(results / "times.json", CommandTimes, "no times", "time them: nox -s times")
    reproduce, tests = (times.seconds[name] for name in ("reproduce", "tests"))
    return (
        f"On {times.cpus} CPUs without a GPU, after downloads, the first command takes {reproduce['first']:.0f} s and "
        f"the second {tests['first']:.0f} s; run again, {reproduce['second']:.0f} s and {tests['second']:.0f} s "
        f"(measured by `nox -s times`, {times.date}, {times.cpu})."
    )


def report(*, check: bool = False, as_json: bool = False, show: bool = False) -> int:
    """Writes or checks the report, prints the table, and `show`s the page; 1: a file is stale or a result refused."""
    require_checkout("report")
    with told_on_terminal("rendering the report ..."):
        tune_gc()
        ladder = collect()
        files = committed(ladder, ROOT) | pages(ladder, ROOT)
    for path in files:
        require_file_or_nothing(path)
    problems = stale(files) if check else []
    if not check:
        for path, data in files.items():
            if not path.is_file() or path.read_bytes() != data:
                write_atomic(path, data)
    if as_json:
        print(json.dumps({"rows": tables.progression(ladder), "stale": problems, "refused": ladder.refused}, indent=2))
    elif check:
        print("stale" if problems else f"up to date: {len(files)} files")
    else:
        folder = relative(REPORT)
        print(f"{tables.terminal(ladder)}\n\nplot    {folder}/progression.svg, .png")
        print(f"tables  {folder}/progression.md, .csv\npage    {folder}/index.html")
    for line in (*ladder.refused, *(f"stale: {problem}; run: invoke report" for problem in problems)):
        print(line, file=sys.stderr)
    if show and not webbrowser.open((REPORT / "index.html").as_uri()):
        print(f"no browser here; copy and open {relative(REPORT / 'index.html')}", file=sys.stderr)
    return 1 if problems or ladder.refused else 0
