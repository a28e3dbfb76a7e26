"""The report: page (HTML), progression and counter tables (Markdown, CSV), plot (SVG, PNG), and README's table.

Everything is made from committed files (`flashladder.report.data`) and always gives the same bytes, so that a stale
table is an error and not a matter of taste. Where nothing was measured yet, the tables hold published figures only
and say so.

Run:
    invoke report                             # rewrites results/report/ and README's table
    invoke report --open                      # and shows the page
    python -m flashladder.report --check      # compares; exit 1 and the names of the stale files
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import json
from pathlib import Path
import sys
import webbrowser

from flashladder.arguments import parser_of
from flashladder.columns import csv_text
from flashladder.commands import COMMANDS
from flashladder.errors import FlashladderError, one_line_errors, require_checkout
from flashladder.fastest import FASTEST
from flashladder.files import relative, require_file_or_nothing, write_atomic
from flashladder.names import HEADLINE_LENGTH
from flashladder.paths import RESULTS, ROOT
from flashladder.report import (
    counters as report_counters,
)
from flashladder.report import (
    figures,
    table_csv,
)
from flashladder.report import (
    plot as report_plot,
)
from flashladder.report import (
    sweeps as report_sweeps,
)
from flashladder.report import (
    tables as report_tables,
)
from flashladder.report.anchors import fastest
from flashladder.report.costs import accuracy as report_accuracy
from flashladder.report.costs import energy as report_energy
from flashladder.report.data import MODE, Ladder, collect

REPORT = RESULTS / "report"
BEGIN, END = "<!-- progression:begin -->", "<!-- progression:end -->"
PLOT = "progression"


def render(ladder: Ladder) -> dict[str, bytes]:
    """Every file of results/report by its name, with its bytes."""
    files = {
        "progression.md": report_tables.document(ladder).encode(),
        "progression.csv": csv_text(table_csv.PROGRESSION, table_csv.progression(ladder)).encode(),
        "cells.csv": csv_text(table_csv.CELLS, table_csv.cells(ladder)).encode(),
    }
    if ladder.emulated:
        files["counters.md"] = report_counters.document(ladder, ladder.emulated).encode()
        rows = report_counters.csv_rows(ladder, ladder.emulated)
        files["counters.csv"] = csv_text(report_counters.COLUMNS, rows).encode()
    names = {iteration.number: short_name(iteration.slug) for iteration in ladder.iterations}
    plot = report_plot.render(
        plot_series(ladder), names, report_tables.plot_subtitle(ladder), plot_levels(ladder), plot_panels(ladder)
    )
    return {**files, **{f"{PLOT}.{suffix}": data for suffix, data in plot.items()}}


def texts(ladder: Ladder, root: Path = ROOT) -> dict[str, bytes]:
    """README.md with its table, and every page with its figures, by path from `root`.

    Figures stay as they are where nothing was measured.
    """
    pages = figures.pages(root)
    new = figures.rewritten(ladder, pages, root) if ladder.machines else dict(pages)
    new[figures.README] = between_markers(new[figures.README], report_tables.readme_block(ladder))
    return {page: text.encode() for page, text in new.items()}


def committed(ladder: Ladder, root: Path = ROOT) -> dict[Path, bytes]:
    """Every file that a checkout at `root` should hold, with its bytes."""
    results = root / "results"
    costs = {**report_accuracy.render(results), **report_energy.render(results)}
    own = {**render(ladder), **report_sweeps.render(results), **costs}
    report = {root / "results" / "report" / name: data for name, data in own.items()}
    ranked = {machine.key: ladder.ranking(machine) for machine in ladder.machines}
    report[root / "configs" / FASTEST.name] = fastest(results, MODE, ranked).encode()
    return report | {root / page: data for page, data in texts(ladder, root).items()}


def pages(ladder: Ladder, root: Path = ROOT) -> dict[Path, bytes]:
    """The page that a checkout at `root` should hold, with its bytes (`flashladder.report.page`)."""
    from flashladder.report.page import INDEX, page

    return {root / "results" / "report" / INDEX: page(ladder, root)}


def short_name(slug: str) -> str:
    """An iteration's slug as words, for the axis of the plot."""
    return slug.replace("_", " ").replace("d head", "d_head")


def plot_series(ladder: Ladder) -> list[report_plot.Series]:
    """Measured machines first (fp16, each with the configurations of its own GPU), then the published GPUs."""
    lines = []
    for machine in ladder.machines:
        points = []
        for row in ladder.rows(machine, "fp16"):
            summary = report_tables.headline(row)
            if summary is not None:
                point = report_plot.Point(row.iteration.number, summary.pct, summary.pct_low, summary.pct_high)
                points.append(point)
        if points:
            lines.append(report_plot.Series(f"{report_tables.plain(machine.title)}, measured", tuple(points)))
    for key in ladder.published.gpus:
        column = ladder.published.column(key, "seq4096")
        line = tuple(report_plot.Point(number, value) for number, value in enumerate(column, 1))
        lines.append(report_plot.Series(f"{report_tables.gpu_title(key)}, published", line, key))
    return lines


def plot_levels(ladder: Ladder) -> list[report_plot.Level]:
    """The libraries of README's table, across the plot; none where another machine's line is the first."""
    machine = report_tables.headline_machine(ladder)
    if machine is None or machine is not ladder.machines[0]:
        return []
    return [
        report_plot.Level(one.title, one.summaries[HEADLINE_LENGTH].pct)
        for one in report_tables.anchors_below(machine, "fp16")
    ]


def plot_panels(ladder: Ladder) -> dict[int, str]:
    """First iteration and title of each panel: a panel per family, or two of the one that there is."""
    firsts: dict[str, int] = {}
    for iteration in ladder.iterations:
        firsts.setdefault(iteration.family.name, iteration.number)
    last = ladder.iterations[-1].number
    if len(firsts) < 2:
        closer = report_plot.CLOSER_FROM
        return {1: f"iterations 1 to {closer - 1}, percent of FA2", closer: f"iterations {closer} to {last}"}
    ends = [first - 1 for first in [*firsts.values()][1:]]
    return {
        first: f"{first} to {end}: family {name}"
        for (name, first), end in zip(firsts.items(), [*ends, last], strict=True)
    }


def between_markers(text: str, block: str) -> str:
    """`text` with `block` between the two markers; FlashladderError when they are not there exactly once, in order."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise FlashladderError("markers of the generated table", where=figures.README, expected=f"{BEGIN} ... {END}")
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n{block.strip()}\n{END}{rest.split(END)[1]}"


def _inflated(page: bytes) -> bytes:
    """The page with its records in plain text; as it stands where they are none."""
    from flashladder.report.page import inflated_page

    return inflated_page(page)


def _require_replaceable(files: Iterable[Path]) -> None:
    """Raises `FlashladderError` where something that a file cannot replace is at one of `files`."""
    for path in files:
        require_file_or_nothing(path)


def stale(files: Mapping[Path, bytes]) -> list[str]:
    """The files whose committed bytes are not `files`, each with what is wrong.

    Pictures are compared byte for byte when this matplotlib release is the one that drew them; another release draws
    other bytes from the same data, so that then the digest of the data drawn is compared.
    """
    _require_replaceable(files)
    problems = []
    drawn_by = ""
    for path, data in files.items():
        if not path.is_file():
            problems.append(f"{relative(path)}: missing")
            continue
        found = path.read_bytes()
        if path.suffix in (".svg", ".png", ".html"):
            committed = path.with_suffix(".svg") if path.suffix == ".png" else path
            theirs = report_plot.rendered_by(committed.read_bytes()) if committed.is_file() else ("", "")
            ours = report_plot.rendered_by(files[committed])
            if theirs[1] == ours[1] and theirs[0] != ours[0]:
                drawn_by = f"pictures were drawn by matplotlib {theirs[0]}, this is {ours[0]}: compared by their data"
                continue
        same = _inflated(found) == _inflated(data) if path.suffix == ".html" else found == data
        if not same:
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
    ladder = collect()
    files = committed(ladder, ROOT) | pages(ladder, ROOT)
    problems = stale(files) if check else []
    if not check:
        _require_replaceable(files)
        for path, data in files.items():
            if not path.is_file() or path.read_bytes() != data:
                write_atomic(path, data)
    if as_json:
        rows = [dict(zip(table_csv.PROGRESSION, row, strict=True)) for row in table_csv.progression(ladder)]
        print(json.dumps({"rows": rows, "stale": problems, "refused": ladder.refused}, indent=2))
    elif check:
        print("stale" if problems else f"up to date: {len(files)} files")
    else:
        print(report_tables.terminal(ladder))
        print(f"\nplot    {relative(REPORT / PLOT)}.svg, .png\ntables  {relative(REPORT / 'progression.md')}, .csv")
        print(f"page    {relative(REPORT / 'index.html')}")
    for line in (*ladder.refused, *(f"stale: {problem}; run: invoke report" for problem in problems)):
        print(line, file=sys.stderr)
    if show:
        open_page(REPORT / "index.html")
    return 1 if problems or ladder.refused else 0


def open_page(path: Path) -> None:
    """Shows a page in this machine's browser; where there is none, says where it lies."""
    if not webbrowser.open(path.as_uri()):
        print(f"no browser here; copy and open {relative(path)}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Renders the report from committed results."""
    options = parser_of(COMMANDS["report"], "report", "--check").parse_args(argv)
    with one_line_errors():
        return report(check=options.check, as_json=options.json, show=options.open)
