"""Pages of committed sweeps: percent of FA2 by length for kernels and references, ablations, toolchains, tuning.

Why: a grid that was measured is read as a table with its A/A floor, not as a file of samples. One page per machine and
grid, made from ``results/<machine>/<grid>.json.gz`` alone; `invoke report` writes them, and the gate compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flashladder.bench.table import MARKS
from flashladder.columns import csv_text, listed, markdown
from flashladder.files import files_in
from flashladder.ladder.config import KernelConfig
from flashladder.names import HEADLINE_LENGTH, LIBRARIES
from flashladder.paths import RESULTS
from flashladder.report.data import other_runs
from flashladder.report.tables import DASH, plain
from flashladder.report.variants import tuning
from flashladder.report.variants.pages import pages
from flashladder.results.derive import cells_of_host_time
from flashladder.results.files import load_result
from flashladder.results.schema import BenchResult, Kernel, Reference, Summary
from flashladder.results.statistics import stated

CSV = (
    "kernel", "dtype", "seq_len", "batch", "n_heads", "pct_of_fa2", "pct_low", "pct_high", "verdict", "pairs",
    "a_a_floor_points", "kernel_us", "fa2_us", "tflops", "sm_clock_mhz", "dropped_share", "readmitted_share",
    "host_time",
)  # fmt: skip
SHOWN = 90  # characters of a kernel's name; templates go on for lines
HOST = "h"  # instead of a verdict
HOSTS = (
    f" `{HOST}`: the GPU waited for the host in most blocks, so that the cell tells how long it "
    "takes to queue a launch; it counts in no mean, and as no library's speed."
)
LEGEND = (
    "`+` faster, `-` slower, `=` the same within the floor, `?` the interval, which includes the floor and what other "
    "files say about the same code, does not tell. TFLOP/s at S = "
    f"{HEADLINE_LENGTH} as timed, beside FA2 in turn."
)


def render(results: Path = RESULTS) -> dict[str, bytes]:
    """Every page of the sweeps under `results` by its name: ``sweep_h200.md``, ``ablation_h200.svg`` ..."""
    files: dict[str, bytes] = {}
    for path in files_in(results, "*/*.json.gz"):
        grid, machine = path.name.removesuffix(".json.gz"), path.parent.name
        document = load_result(path) if _is_sweep(path) else None
        if not isinstance(document, BenchResult) or document.sweep is None or document.sweep.grid != grid:
            continue
        if grid in ("ablation", "toolchain"):
            files |= {f"{grid}_{machine}.{suffix}": data for suffix, data in pages(grid, document).items()}
        elif document.purpose == "tune":
            files |= {f"{grid}_{machine}.{suffix}": data for suffix, data in tuning.pages(path, document).items()}
        elif document.purpose == "report":
            told = stated(document, other_runs(path))
            name = f"sweep_{machine}" if grid == machine else f"{grid}_{machine}"
            files[f"{name}.md"] = page(told).encode()
            files[f"{name}.csv"] = csv_text(CSV, rows(told)).encode()
    return files


def _is_sweep(path: Path) -> bool:
    """Whether a grid's name is a file's: others are not read."""
    from flashladder.ladder.grid import grid_names

    return path.name.removesuffix(".json.gz") in grid_names()


def page(result: BenchResult) -> str:
    """A machine's sweep: one table per dtype, references below the kernels, provenance."""
    parts = [f"# {plain(result.gpu.name)}, measured by a sweep", _where(result)]
    hosts = cells_of_host_time(result.groups)
    for dtype in dict.fromkeys(summary.dtype for summary in result.summaries):
        own = [summary for summary in result.summaries if summary.dtype == dtype]
        late = [one for one in own if (one.kernel, one.dtype, one.shape) in hosts]
        parts += [
            f"## {dtype}, percent of FA2's speed; A/A floor {result.floors_pct[dtype]:.2f} points",
            _table(own, result, late),
            _over_libraries(own, result, late),
        ]
    parts += [
        LEGEND + (HOSTS if hosts else ""),
        _references(result),
        _failures(result),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _where(result: BenchResult) -> str:
    cards = len({process.index for process in result.processes})
    days = sorted({process.started_utc[:10] for process in result.processes})
    grid, n_cells = (result.sweep.grid, len(result.sweep.planned)) if result.sweep else ("", 0)
    return (
        f"Grid `{grid}`, {n_cells} cells, {cards} worker processes, {', '.join(days)}; driver {result.gpu.driver}, "
        f"torch {result.reference.torch}; {result.settings.pairs} pairs per cell in {result.settings.blocks} blocks, "
        f"mode {result.mode}, rung {result.rung}, protocol {result.protocol_version}."
    )


def _table(own: list[Summary], result: BenchResult, late: list[Summary]) -> str:
    lengths = sorted({summary.shape.seq_len for summary in own})
    means = {(mean.kernel, mean.dtype): mean.pct for mean in result.means}
    header = ("#", "configuration", *(f"S = {length}" for length in lengths), "harmonic mean", "TFLOP/s")
    lines = []
    for key in dict.fromkeys(summary.kernel for summary in own):
        found = {summary.shape.seq_len: summary for summary in own if summary.kernel == key}
        waited = {summary.shape.seq_len for summary in late if summary.kernel == key}
        head = None if HEADLINE_LENGTH in waited else found.get(HEADLINE_LENGTH)
        mean = None if waited else means.get((key, own[0].dtype))
        lines.append(
            (
                *named(key, result.kernels),
                *(
                    f"{found[n].pct:.1f} {HOST if n in waited else MARKS[found[n].verdict]}" if n in found else DASH
                    for n in lengths
                ),
                DASH if mean is None else f"{mean:.1f}",
                f"{head.tflops:.1f}" if head else DASH,
            )
        )
    return markdown(header, lines)


def _over_libraries(own: list[Summary], result: BenchResult, late: list[Summary]) -> str:
    """How many times as fast as the fastest library each kernel is, per length; empty without a library.

    Both were timed in turn with FA2, whose share cancels out. Cells that tell the host's time are left out, and
    libraries that are left out of a length are named where another is not.
    """
    best: dict[int, Summary] = {}
    for one in (one for one in own if one not in late):
        if one.kernel in result.references and one.pct > getattr(best.get(one.shape.seq_len), "pct", 0.0):
            best[one.shape.seq_len] = one
    kernels = dict.fromkeys(one.kernel for one in own if one.kernel in result.kernels)
    if not best:
        return ""
    lengths = sorted({one.shape.seq_len for one in own})
    lines = []
    for key in kernels:
        found = {one.shape.seq_len: one.pct for one in own if one.kernel == key and one not in late}
        times = [f"{found[n] / best[n].pct:.3f}" if n in found and n in best else DASH for n in lengths]
        lines.append((*named(key, result.kernels), *times))
    unknown = {
        n: [one.kernel for one in late if one.shape.seq_len == n and one.kernel in result.references] for n in lengths
    }
    among = (
        " but for ".join(filter(None, (best[n].kernel, " and ".join(unknown[n])))) if n in best else DASH
        for n in lengths
    )
    lines.append(("fastest", DASH, *among))
    lacking = listed([name for name in LIBRARIES if name not in result.references])
    without = f" (not timed: {lacking})" if lacking else ""
    told = (
        f"Times as fast as the fastest library{without}, each beside FA2 in turn, whose time differs from cell to cell:"
    )
    return told + "\n\n" + markdown(("#", "configuration", *(f"S = {length}" for length in lengths)), lines)


def named(key: str, kernels: Mapping[str, Kernel]) -> tuple[str, str]:
    """Number and tile of a kernel; the name of a reference."""
    kernel = kernels.get(key)
    if kernel is None:
        return key, DASH
    return f"{kernel.iteration}{kernel.variant}", KernelConfig.parse(kernel.config).brief()


def _references(result: BenchResult) -> str:
    """What was timed beside the kernels: version, tile, kernel."""
    lines = [
        (name, one.version or f"torch {one.torch}", one.tile or DASH, _kernels(one))
        for name, one in [("fa2", result.reference), *result.references.items()]
    ]
    return "## References\n\n" + markdown(("name", "version", "tile", "kernels"), lines, left=4)


def _kernels(reference: Reference) -> str:
    """The beginnings of its kernels' names, each once."""
    return "; ".join(dict.fromkeys(f"`{name[:SHOWN]}`" for name in reference.kernels.values()))


def _failures(result: BenchResult) -> str:
    """The cells without numbers, each with its reason."""
    failures = result.sweep.failures if result.sweep else ()
    cells = {cell.address: cell for cell in result.sweep.planned} if result.sweep else {}
    lines = [(cells[one.address].subject, cells[one.address].config or DASH, one.kind, one.message) for one in failures]
    return "## Failures\n\n" + markdown(("#", "configuration", "kind", "why"), lines, left=4) if lines else ""


def rows(result: BenchResult) -> list[tuple[object, ...]]:
    """One row per cell, as derived from its samples; `host_time`: 1 where it tells the host's time."""
    hosts = cells_of_host_time(result.groups)
    return [
        (
            one.kernel, one.dtype, one.shape.seq_len, one.shape.batch, one.shape.n_heads, f"{one.pct:.4f}",
            f"{one.pct_low:.4f}", f"{one.pct_high:.4f}", one.verdict, one.n_pairs,
            f"{result.floors_pct[one.dtype]:.4f}", f"{one.kernel_us:.3f}", f"{one.reference_us:.3f}",
            f"{one.tflops:.3f}", one.sm_clock_mhz,
            f"{one.dropped_share:.4f}", f"{one.readmitted_share:.4f}",
            int((one.kernel, one.dtype, one.shape) in hosts),
        )
        for one in result.summaries
    ]  # fmt: skip
