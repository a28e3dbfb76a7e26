"""Pages of sweeps (percent of FA2 by length, kernels and libraries), of tuning runs, and of sustained runs (energy).

A page shows one grid on all machines, from ``results/<machine>/<grid>.json.gz`` alone; ablations, compilers and tuning
runs have one per machine. A tuning run also has a CSV of all candidates and a plot of what the fast ones share.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from flashladder.bench.command import MARKS
from flashladder.bench.energy import LEGEND as STEADY_LEGEND
from flashladder.bench.energy import steady
from flashladder.columns import csv_of, csv_text, grouped, listed, markdown
from flashladder.errors import FlashladderError
from flashladder.files import files_in, relative
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.grid import grid_names
from flashladder.names import HEADLINE_LENGTH, LIBRARIES
from flashladder.paths import RESULTS
from flashladder.problem import kinds
from flashladder.report.data import TITLES, plain, stated_result
from flashladder.report.plot import FAINT, data_digest, saved
from flashladder.report.tables import DASH, written
from flashladder.report.variants import pages
from flashladder.results.derive import cells_of_host_time
from flashladder.results.files import load_as, load_result
from flashladder.results.schema import BenchResult, EnergyResult, Kernel, Summary, Sustained
from flashladder.results.statistics import LogSummary, percent
from flashladder.sweep.winner import Candidate, documents, judged, rows_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENERGY = "energy*.json.gz"
ENERGY_HEADER = ("S", "#", "configuration", "TFLOP/s", "MHz", "W", "pJ/FLOP", "limited by")
Cells = Mapping[tuple[str, int], Summary]  # by kernel and length
HEADLINES = {  # rows of README's table: grids without a mask, and with a causal one
    "lengths and heads alike": ("general", "causal"), "32 heads of Q over 8": ("grouped", "grouped_causal"),
    "packed sequences": ("packed", "packed_causal"), "512 keys": ("cross", ""), "77 keys": ("cross_short", ""),
    "few tiles": ("fewtiles", ""),
}  # fmt: skip
SHOWN = 90  # characters of a kernel's name; names of templates can be much longer
HOST = "h"  # mark of a cell that shows the host's time, instead of a verdict


def render(results: Path = RESULTS) -> dict[str, bytes]:
    """Every page of the sweeps under `results`, by name (``causal.md``, ``ablation_h200.svg``), and ``sweeps.csv``."""
    files, cells, shown = dict[str, bytes](), list[dict[str, object]](), dict[str, list[str]]()
    for path in files_in(results, "*/*.json.gz"):
        grid, machine, found = path.name.removesuffix(".json.gz"), path.parent.name, dict[str, bytes]()
        document = load_result(path) if grid in grid_names() else None
        if not isinstance(document, BenchResult) or document.sweep is None or document.sweep.grid != grid:
            continue
        if grid in ("ablation", "toolchain"):
            found = pages(grid, document)
        elif document.purpose == "tune":
            found = tuning_pages(path)
        elif document.purpose == "report":
            result = stated_result(path)
            shown.setdefault(grid, []).append(page(result))
            cells += ({"machine": machine, "grid": grid} | row for row in rows(result))
        files |= {f"{grid}_{machine}.{suffix}": data for suffix, data in found.items()}
    files |= {f"{grid}.md": "\n".join([f"# Grid {grid}\n", *parts]).encode() for grid, parts in shown.items()}
    return files | ({"sweeps.csv": csv_of(cells).encode()} if cells else {})


def page(result: BenchResult) -> str:
    """The page of a machine's sweep: tables per dtype with references below the kernels, provenance, failures."""
    hosts, tables = cells_of_host_time(result.groups), []
    for dtype, every in grouped(result.summaries, lambda one: one.dtype).items():
        own = {(one.kernel, one.shape.seq_len): one for one in every}
        of_host = {key for key, one in own.items() if (one.kernel, dtype, one.shape) in hosts}
        tables.append((dtype, _table(own, result, of_host), _over_libraries(own, result, of_host)))
    beside = [
        (name, one.version or f"torch {one.torch}", one.tile or DASH,
         "; ".join(dict.fromkeys(f"`{kernel[:SHOWN]}`" for kernel in one.kernels.values())))
        for name, one in [("fa2", result.reference), *result.references.items()]
    ]  # fmt: skip
    failures = ""
    if result.sweep and result.sweep.failures:
        cells = {cell.address: cell for cell in result.sweep.planned}
        failed = [(cells[one.address], one) for one in result.sweep.failures]
        lines = [(cell.subject, cell.config or DASH, one.kind, one.message) for cell, one in failed]
        failures = markdown(("#", "configuration", "kind", "why"), lines, left=4)
    return written(
        "sweep.md.j2", gpu=plain(result.gpu.name), problem=kinds(one.shape for one in result.summaries), result=result,
        cards=len({process.index for process in result.processes}), tables=tables, length=HEADLINE_LENGTH, hosts=hosts,
        days=sorted({process.started_utc[:10] for process in result.processes}), failures=failures,
        references=markdown(("name", "version", "tile", "kernels"), beside, left=4),
    )  # fmt: skip


def _table(own: Cells, result: BenchResult, of_host: Container[tuple[str, int]]) -> str:
    """A line per kernel of one dtype; cells `of_host` show the host's time, which no mean and no TFLOP/s includes."""
    lengths = sorted({length for _, length in own})
    means = {(mean.kernel, mean.dtype): mean.pct for mean in result.means}
    lines = []
    for key, dtype in dict.fromkeys((one.kernel, one.dtype) for one in own.values()):
        found = {length: one for (kernel, length), one in own.items() if kernel == key}
        marks = {n: HOST if (key, n) in of_host else MARKS[one.verdict] for n, one in found.items()}
        mean = None if HOST in marks.values() else means.get((key, dtype))
        head = None if marks.get(HEADLINE_LENGTH) == HOST else found.get(HEADLINE_LENGTH)
        cells = [f"{found[n].pct:.1f} {marks[n]}" if n in found else DASH for n in lengths]
        cells += [DASH if mean is None else f"{mean:.1f}", f"{head.tflops:.1f}" if head else DASH]
        lines.append((*named(key, result.kernels), *cells))
    return markdown(("#", "configuration", *(f"S = {n}" for n in lengths), "harmonic mean", "TFLOP/s"), lines)


def _over_libraries(own: Cells, result: BenchResult, of_host: Container[tuple[str, int]]) -> str:
    """The speed of each kernel over that of the fastest library, per length; empty without a library.

    Both alternated with FA2, whose time cancels out. Cells that show the host's time are left out. A library that is
    left out at one length only is named below that length.
    """
    timed = {key: one for key, one in own.items() if key not in of_host}
    best = {length: one for (_, length), one in _fastest(timed.values(), result.references).items()}
    if not best:
        return ""
    lengths, lines, fastest = sorted({length for _, length in own}), [], []
    for key in dict.fromkeys(kernel for kernel, _ in own if kernel in result.kernels):
        both = [(timed.get((key, n)), best.get(n)) for n in lengths]
        times = [f"{ours.pct / theirs.pct:.3f}" if ours and theirs else DASH for ours, theirs in both]
        lines.append((*named(key, result.kernels), *times))
    for n in lengths:
        left_out = listed([name for name in result.references if (name, n) in own.keys() - timed.keys()])
        fastest.append(" but for ".join(filter(None, (best[n].kernel, left_out))) if n in best else DASH)
    lacking = listed([name for name in LIBRARIES if name not in result.references])
    without = f" (not timed: {lacking})" if lacking else ""
    return (
        f"Times as fast as the fastest library{without}, each alternating with FA2, whose time differs from cell "
        "to cell:\n\n"
        + markdown(("#", "configuration", *(f"S = {n}" for n in lengths)), [*lines, ("fastest", DASH, *fastest)])
    )


def _fastest(timed: Iterable[Summary], among: Container[str]) -> dict[tuple[str, int], Summary]:
    """The fastest of the kernels or libraries in `among`, by dtype and length."""
    rising = sorted((one for one in timed if one.kernel in among), key=lambda one: one.pct)
    return {(one.dtype, one.shape.seq_len): one for one in rising}


def headlines(results: Path = RESULTS) -> list[str]:
    """README's table of the best step over the best library, by machine."""
    found = {(path.parent.name, path.name.split(".")[0]): path for path in files_in(results, "*/*.json.gz")}
    machines = [name for name in load_gpus() if any((name, grid) in found for grid in sum(HEADLINES.values(), ()))]
    header = [f"{load_gpus()[name].title}{mask}" for name in machines for mask in ("", ", causal")]
    lines = []
    for title, grids in HEADLINES.items():
        tables = zip(("table", "causal"), filter(None, grids), strict=False)
        links = ", ".join(f"[{name}](results/report/{grid}.md)" for name, grid in tables)
        cells = (over_best(found.get((name, grid))) for name in machines for grid in grids)
        lines.append((f"{title} ({links})", *cells))
    return [markdown(("Fastest step over fastest library", *header), lines, left=1)] if machines else []


def over_best(path: Path | None) -> str:
    """Least and most times as fast as the best library, but where a cell shows the host's time; a dash: no result."""
    if path is None:
        return DASH
    result = load_as(path, BenchResult)
    hosts = cells_of_host_time(result.groups)
    timed = [one for one in result.summaries if (one.kernel, one.dtype, one.shape) not in hosts]
    ours, theirs = _fastest(timed, result.kernels), _fastest(timed, result.references)
    times = [ours[cell].pct / theirs[cell].pct for cell in ours.keys() & theirs.keys()]
    there = [TITLES[name] for name in LIBRARIES if name in result.references]
    span = " to ".join(dict.fromkeys(f"{time:.2f}" for time in (min(times), max(times)))) if times else DASH
    return span + (f" over {listed(there)}" if len(there) < len(LIBRARIES) else "")


def named(key: str, kernels: Mapping[str, Kernel]) -> tuple[str, str]:
    """Number and tile of a kernel of the ladder; name and a dash of a reference."""
    if (kernel := kernels.get(key)) is None:
        return key, DASH
    return f"{kernel.iteration}{kernel.variant}", KernelConfig.parse(kernel.config).brief()


def rows(result: BenchResult) -> list[dict[str, object]]:
    """One CSV row per cell; `host_time` is 1 if the cell shows the host's time."""
    hosts = cells_of_host_time(result.groups)
    return [
        {
            "kernel": one.kernel, "dtype": one.dtype, **shape_of(one), "pct_of_fa2": f"{one.pct:.4f}",
            "pct_low": f"{one.pct_low:.4f}", "pct_high": f"{one.pct_high:.4f}", "verdict": one.verdict,
            "pairs": one.n_pairs, "a_a_floor_points": f"{result.floors_pct[one.dtype]:.4f}",
            "kernel_us": f"{one.kernel_us:.3f}", "fa2_us": f"{one.reference_us:.3f}", "tflops": f"{one.tflops:.3f}",
            "sm_clock_mhz": one.sm_clock_mhz, "dropped_share": f"{one.dropped_share:.4f}",
            "readmitted_share": f"{one.readmitted_share:.4f}",
            "host_time": int((one.kernel, one.dtype, one.shape) in hosts),
        }
        for one in result.summaries
    ]  # fmt: skip


def shape_of(one: Summary | Sustained) -> dict[str, object]:
    """The CSV columns of a shape."""
    names = ("seq_len", "batch", "n_heads", "kv_len", "n_kv_heads", "mask")
    return {name: getattr(one.shape, name) for name in names}


def render_energy(results: Path) -> dict[str, bytes]:
    """The page of every machine with sustained runs, by name (``energy_h200.md``), and all runs: ``energy.csv``."""
    files, rows = dict[str, bytes](), list[dict[str, object]]()
    for folder, paths in grouped(files_in(results, f"*/{ENERGY}"), lambda path: path.parent).items():
        found = {path.name: load_as(path, EnergyResult) for path in paths}
        rows += (
            {
                "machine": folder.name, "file": name, "subject": run.subject, "dtype": run.dtype, **shape_of(run),
                "turn": run.turn, "launches": run.launches, "seconds": run.seconds, "joules": run.joules,
                "tflops": f"{run.tflops:.3f}", "sm_clock_mhz": run.sm_clock_mhz, "watts": f"{run.watts:.2f}",
                "pj_per_flop": f"{run.pj_per_flop:.4f}",
            }
            for name, result in found.items() for run in result.runs
        )  # fmt: skip
        files[f"energy_{folder.name}.md"] = energy_page(list(found.values())).encode()
    return files | ({"energy.csv": csv_of(rows).encode()} if rows else {})


def energy_page(results: Sequence[EnergyResult]) -> str:
    """The page of a machine's sustained runs: a section per file and dtype."""
    parts = []
    for result in results:
        found, tables = sorted(steady(result), key=lambda one: one.seq_len), []
        for dtype in dict.fromkeys(run.dtype for run in result.runs):
            rows = [
                (
                    str(one.seq_len), *named(one.subject, result.kernels), f"{one.tflops:.1f}",
                    DASH if one.mhz is None else f"{one.mhz:.0f}", f"{one.watts:.0f}", f"{one.pj_per_flop:.3f}",
                    one.limit,
                )
                for one in found
                if one.dtype == dtype
            ]  # fmt: skip
            heading = ", ".join(filter(None, (dtype, kinds(run.shape for run in result.runs))))
            tables.append((heading, markdown(ENERGY_HEADER, rows, left=3)))
        parts.append((result, 1 + max((run.turn for run in result.runs), default=0), tables))
    return written("energy.md.j2", gpu=plain(results[0].gpu.name), legend=STEADY_LEGEND, results=parts)


BEST = 5  # candidates of each iteration and dtype on the page
PANELS = (
    ("live", "registers per thread on paper (255 exist)"),
    ("registers", "registers per thread as compiled"),
    ("warps", "warps per SM"),
)
TILES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#222222")


def tuning_pages(path: Path) -> dict[str, bytes]:
    """Files of a tuning run by suffix (md, csv, svg, png); `FlashladderError`: rungs or finals are missing or wrong."""
    rungs, finals = documents(path)
    try:
        rows = rows_of(rungs)
    except FlashladderError as error:
        error.where = relative(path)
        raise
    day = min(process.started_utc for process in rungs.processes)[:10]
    lengths = "S = " + ", ".join(str(n) for n in sorted({group.shape.seq_len for group in rungs.groups}))
    winners = [
        (
            str(one.number), one.dtype, one.config.brief(), one.verdict, _with_interval(one.winner),
            one.own_config.brief() if one.own_config else "none for this GPU", _with_interval(one.present),
        )
        for one in judged(rungs, finals)
    ]  # fmt: skip
    gpu, dtypes = plain(rungs.gpu.name), ", ".join(sorted({one.dtype for one in rungs.summaries}))
    header = ("#", "dtype", "winner", "verdict", "winner's", "present", "present's")
    page = written(
        "tune.md.j2", gpu=gpu, rows=rows, lengths=lengths, day=day, rungs=rungs, finals=finals, best=BEST,
        winners=markdown(header, winners, left=4), ranking=ranking(rows, BEST),
        floors=lambda one: ", ".join(f"{floor:.2f} in {dtype}" for dtype, floor in one.floors_pct.items()),
    )  # fmt: skip
    subtitle = f"{gpu}, {day}, {dtypes}, {len(rungs.summaries)} configurations, {lengths}"
    table = ([f"{cell:.4g}" if isinstance(cell, float) else cell for cell in row] for row in rows)
    data = [[row.tile, row.pct, row.spilled, *(getattr(row, name) for name, _ in PANELS)] for row in rows]
    drawn = saved(partial(_tuning_figure, rows, subtitle), f"{subtitle}; data {data_digest(data)}")
    return {"md": page.encode(), "csv": csv_text(Candidate._fields, table).encode(), **drawn}


def _with_interval(summary: LogSummary | None) -> str:
    if summary is None:
        return "not timed"
    return f"{percent(summary.median):.2f} [{percent(summary.low):.2f}, {percent(summary.high):.2f}]"


def ranking(rows: Sequence[Candidate], most: int) -> str:
    """The first `most` candidates of each iteration and dtype as a table, and the number of the others."""
    header = ("#", "dtype", "configuration", "% of FA2", "95 %", "pairs", "registers", "spilled", "warps per SM")
    lines: list[tuple[str, ...]] = []
    for (iteration, dtype), own in grouped(rows, lambda row: (str(row.iteration), row.dtype)).items():
        for row in own[:most]:
            span = f"{row.low:.2f} to {row.high:.2f}" if row.low is not None else "too few pairs"
            speed = (row.failure, DASH) if row.failure else (f"{row.pct:.2f}", span)
            numbers = ("" if value is None else str(value) for value in (row.registers, row.spilled, row.warps))
            lines.append((iteration, dtype, row.config, *speed, str(row.pairs), *numbers))
        if len(own) > most:
            rest = "" if own[most].pct is None else f"up to {max(row.pct or 0.0 for row in own[most:]):.2f}"
            lines.append((iteration, dtype, f"and {len(own) - most} more", rest, *[""] * 5))
    return markdown(header, lines, left=3)


def _tuning_figure(rows: Sequence[Candidate], subtitle: str) -> Figure:
    """Candidates by tile in each panel; those that spill are crosses. As vector graphics they would take 0.8 MB."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(13, 5.2), dpi=200, facecolor="white")
    axes = list(figure.subplots(1, len(PANELS), sharey=True))
    tiles = sorted({row.tile for row in rows if row.pct is not None})
    for axis, (name, label) in zip(axes, PANELS, strict=True):
        for i, tile in enumerate(tiles):
            for spills, marker in ((False, "o"), (True, "x")):
                of_tile = (row for row in rows if row.tile == tile and bool(row.spilled) == spills)
                own = [row for row in of_tile if None not in (getattr(row, name), row.pct)]
                axis.scatter(
                    [getattr(row, name) for row in own], [row.pct or 0.0 for row in own], s=14, marker=marker,
                    color=TILES[i % len(TILES)], alpha=0.7, rasterized=True, label=None if spills else tile,
                )  # fmt: skip
        axis.axhline(100, color=FAINT, linewidth=0.8)
        axis.set_xlabel(label)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_ylabel("percent of FA2")
    axes[-1].legend(title="B_r, B_c, warps (x: spills)", fontsize=8, loc="lower right")
    figure.text(0.01, 0.94, "What fast configurations have in common", fontsize=14, fontweight="bold")
    figure.text(0.01, 0.89, subtitle, fontsize=9, color="#555555")
    figure.subplots_adjust(left=0.05, right=0.99, top=0.85, bottom=0.11, wspace=0.06)
    return figure
