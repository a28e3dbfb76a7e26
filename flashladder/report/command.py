"""The report: page (HTML), progression and counter tables (Markdown, CSV), plot (SVG, PNG), and README's table.

Everything is made from committed files and always gives the same bytes, so that ``--check`` finds a stale or edited
table. Where nothing was measured yet, the tables hold published figures only and say so.

Run:
    invoke report                             # rewrites results/report/ and README's table
    invoke report --open                      # and shows the page
    invoke report --check      # compares; exit 1 and the names of the stale files
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
import json
import multiprocessing
from pathlib import Path
import sys
import webbrowser

from flashladder.columns import csv_of, told_on_terminal
from flashladder.errors import FlashladderError, require_checkout
from flashladder.files import read_text, relative, require_file_or_nothing, write_atomic
from flashladder.ladder.selection import FASTEST
from flashladder.parallel import start_worker, tune_gc
from flashladder.paths import RESULTS, ROOT
from flashladder.report import accuracy, counters, plot, sweeps, tables
from flashladder.report.data import Ladder, collect, fastest

REPORT = RESULTS / "report"
BEGIN, END = "<!-- progression:begin -->", "<!-- progression:end -->"
PLOT = "progression"


def render(ladder: Ladder) -> dict[str, bytes]:
    """The ladder's own files of results/report by their names, with their bytes."""
    files = {
        "progression.md": tables.document(ladder).encode(),
        "progression.csv": csv_of(tables.progression(ladder)).encode(),
        "cells.csv": csv_of(tables.cells(ladder)).encode(),
    }
    if ladder.emulated:
        files |= counters.render(ladder, ladder.emulated)
    return files | {f"{PLOT}.{suffix}": data for suffix, data in plot.of_ladder(ladder).items()}


def beside(results: Path) -> dict[str, bytes]:
    """The other files of results/report: each follows from results of its own, without the ladder."""
    return {**sweeps.render(results), **sweeps.render_energy(results), **accuracy.render(results)}


def _beside(results: Path) -> dict[str, bytes] | None:
    """`beside` in another process; None where it fails, so that the caller meets the same error."""
    tune_gc()
    try:
        return beside(results)
    except FlashladderError:
        return None


def committed(ladder: Ladder, root: Path = ROOT, others: Mapping[str, bytes] | None = None) -> dict[Path, bytes]:
    """Every file that a checkout at `root` should hold, with its bytes; `others` are those of `beside`, if at hand."""
    results = root / "results"
    own = {**render(ladder), **(beside(results) if others is None else others)}
    report = {root / "results" / "report" / name: data for name, data in own.items()}
    ranked = {machine.key: ladder.ranking(machine) for machine in ladder.machines}
    report[root / "configs" / FASTEST.name] = fastest(results, ranked).encode()
    readme = root / "README.md"
    block = "\n".join([tables.readme_block(ladder), "", *sweeps.headlines(results)]).rstrip()
    return report | counters.speed(root) | {readme: between_markers(read_text(readme), block).encode()}


def pages(ladder: Ladder, root: Path = ROOT) -> dict[Path, bytes]:
    """The page that a checkout at `root` should hold, with its bytes (`flashladder.report.page`)."""
    from flashladder.report.page import INDEX, page

    return {root / "results" / "report" / INDEX: page(ladder, root)}


def between_markers(text: str, block: str) -> str:
    """`text` with `block` between the two markers; FlashladderError when they are not there exactly once, in order."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise FlashladderError("markers of the generated table", where="README.md", expected=f"{BEGIN} ... {END}")
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n{block.strip()}\n{END}{rest.split(END)[1]}"


def stale(files: Mapping[Path, bytes]) -> list[str]:
    """The files whose committed bytes are not `files`, each with what is wrong.

    Pictures are compared byte for byte when this matplotlib release is the one that drew them; another release draws
    other bytes from the same data, so that then the digest of the data drawn is compared.
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


def report(*, check: bool = False, as_json: bool = False, show: bool = False) -> int:
    """Writes or checks the report and prints the table; `show` opens the page in a browser.

    Returns:
        0; 1 when a file is stale (`check`) or a result had to be refused.
    """
    require_checkout("report")
    spawn, start = multiprocessing.get_context("spawn"), partial(start_worker, interrupts=False)
    with told_on_terminal("rendering the report ..."), ProcessPoolExecutor(1, spawn, start) as pool:
        others = pool.submit(_beside, RESULTS)
        try:
            tune_gc()
            ladder = collect()
            page = pages(ladder, ROOT)
            files = committed(ladder, ROOT, others.result()) | page
        except BaseException:
            for process in multiprocessing.active_children():
                process.terminate()  # after Ctrl-C nobody waits for it
            raise
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
        print(tables.terminal(ladder))
        print(f"\nplot    {relative(REPORT / PLOT)}.svg, .png\ntables  {relative(REPORT / 'progression.md')}, .csv")
        print(f"page    {relative(REPORT / 'index.html')}")
    for line in (*ladder.refused, *(f"stale: {problem}; run: invoke report" for problem in problems)):
        print(line, file=sys.stderr)
    if show and not webbrowser.open((REPORT / "index.html").as_uri()):
        print(f"no browser here; copy and open {relative(REPORT / 'index.html')}", file=sys.stderr)
    return 1 if problems or ladder.refused else 0
