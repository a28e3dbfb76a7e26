"""Pages of sweeps (percent of FA2 by length, kernels and libraries) and of runs that last for seconds (energy).

One page per machine and grid, made from ``results/<machine>/<grid>.json.gz`` alone; `invoke report` writes them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from pathlib import Path

from flashladder.bench.command import MARKS
from flashladder.bench.energy import LEGEND as STEADY_LEGEND
from flashladder.bench.energy import Steady, steady
from flashladder.columns import csv_text, listed, markdown
from flashladder.files import files_in
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.grid import grid_names
from flashladder.names import HEADLINE_LENGTH, LIBRARIES
from flashladder.paths import RESULTS
from flashladder.report import tuning
from flashladder.report.data import TITLES, other_runs
from flashladder.report.tables import DASH, plain
from flashladder.report.variants import pages
from flashladder.results.derive import cells_of_host_time
from flashladder.results.files import load_as, load_result
from flashladder.results.schema import BenchResult, EnergyResult, Kernel, Summary
from flashladder.results.statistics import stated

CSV = (
    "kernel", "dtype", "seq_len", "batch", "n_heads", "pct_of_fa2", "pct_low", "pct_high", "verdict", "pairs",
    "a_a_floor_points", "kernel_us", "fa2_us", "tflops", "sm_clock_mhz", "dropped_share", "readmitted_share",
    "host_time",
)  # fmt: skip
ENERGY = "energy*.json.gz"
ENERGY_HEADER = ("S", "#", "configuration", "TFLOP/s", "MHz", "W", "pJ/FLOP", "limited by")
ENERGY_CSV = (
    "file", "subject", "dtype", "seq_len", "batch", "n_heads", "turn", "launches", "seconds", "joules", "tflops",
    "sm_clock_mhz", "watts", "pj_per_flop",
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
        document = load_result(path) if grid in grid_names() else None
        if not isinstance(document, BenchResult) or document.sweep is None or document.sweep.grid != grid:
            continue
        found: dict[str, bytes] = {}
        if grid in ("ablation", "toolchain"):
            found = pages(grid, document)
        elif document.purpose == "tune":
            found = tuning.pages(path, document)
        elif document.purpose == "report":
            told = stated(document, other_runs(path))
            found = {"md": page(told).encode(), "csv": csv_text(CSV, rows(told)).encode()}
        name = f"sweep_{machine}" if grid == machine else f"{grid}_{machine}"
        files |= {f"{name}.{suffix}": data for suffix, data in found.items()}
    return files


def page(result: BenchResult) -> str:
    """A machine's sweep: one table per dtype, references below the kernels, provenance."""
    sweep, settings = result.sweep, result.settings
    cards = len({process.index for process in result.processes})
    days = sorted({process.started_utc[:10] for process in result.processes})
    grid = f"Grid `{sweep.grid if sweep else ''}`, {len(sweep.planned) if sweep else 0} cells"
    where = (
        f"{grid}, {cards} worker processes, {', '.join(days)}; driver {result.gpu.driver}, torch "
        f"{result.reference.torch}; {settings.pairs} pairs per cell in {settings.blocks} blocks, mode {result.mode}, "
        f"rung {result.rung}, protocol {result.protocol_version}."
    )
    parts = [f"# {plain(result.gpu.name)}, measured by a sweep", where]
    hosts = cells_of_host_time(result.groups)
    for dtype in dict.fromkeys(summary.dtype for summary in result.summaries):
        own = [summary for summary in result.summaries if summary.dtype == dtype]
        late = [one for one in own if (one.kernel, one.dtype, one.shape) in hosts]
        parts += [
            f"## {dtype}, percent of FA2's speed; A/A floor {result.floors_pct[dtype]:.2f} points",
            _table(own, result, late),
            _over_libraries(own, result, late),
        ]
    beside = [
        (name, one.version or f"torch {one.torch}", one.tile or DASH,
         "; ".join(dict.fromkeys(f"`{kernel[:SHOWN]}`" for kernel in one.kernels.values())))
        for name, one in [("fa2", result.reference), *result.references.items()]
    ]  # fmt: skip
    parts += [LEGEND + (HOSTS if hosts else "")]
    parts += ["## References", markdown(("name", "version", "tile", "kernels"), beside, left=4)]
    if sweep and sweep.failures:
        cells = {cell.address: cell for cell in sweep.planned}
        lines = [
            (cells[one.address].subject, cells[one.address].config or DASH, one.kind, one.message)
            for one in sweep.failures
        ]
        parts += ["## Failures", markdown(("#", "configuration", "kind", "why"), lines, left=4)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _table(own: list[Summary], result: BenchResult, late: list[Summary]) -> str:
    lengths = sorted({summary.shape.seq_len for summary in own})
    means = {(mean.kernel, mean.dtype): mean.pct for mean in result.means}
    header = ("#", "configuration", *(f"S = {length}" for length in lengths), "harmonic mean", "TFLOP/s")
    lines = []
    for key in dict.fromkeys(summary.kernel for summary in own):
        found = {summary.shape.seq_len: summary for summary in own if summary.kernel == key}
        marks = {n: HOST if one in late else MARKS[one.verdict] for n, one in found.items()}
        mean = None if HOST in marks.values() else means.get((key, own[0].dtype))
        head = None if marks.get(HEADLINE_LENGTH) == HOST else found.get(HEADLINE_LENGTH)
        cells = [f"{found[n].pct:.1f} {marks[n]}" if n in found else DASH for n in lengths]
        cells += [DASH if mean is None else f"{mean:.1f}", f"{head.tflops:.1f}" if head else DASH]
        lines.append((*named(key, result.kernels), *cells))
    return markdown(header, lines)


def headlines(results: Path = RESULTS) -> list[str]:
    """README's sentence for each machine: how many times as fast as the best library its best step is, in every cell.

    Cells are dtype and length of the sweep `persistent`; those that tell the host's time are left out.
    """
    told = []
    for path in files_in(results, "*/persistent.json.gz"):
        result, machine = load_as(path, BenchResult), path.parent.name
        hosts = cells_of_host_time(result.groups)
        timed = [one for one in result.summaries if (one.kernel, one.dtype, one.shape) not in hosts]
        ours, theirs = _fastest(timed, result.kernels), _fastest(timed, result.references)
        times = [ours[cell].pct / theirs[cell].pct for cell in ours.keys() & theirs.keys()]
        if times:
            lengths = sorted({length for _, length in ours})
            beside = listed([TITLES[name] for name in LIBRARIES if name in result.references])
            missing = listed([TITLES[name] for name in LIBRARIES if name not in result.references])
            told.append(
                f"- **{load_gpus()[machine].title}**: the fastest step is {min(times):.2f} to {max(times):.2f} times "
                f"as fast as the best of {beside}, in fp16 and bf16 from S = {lengths[0]} to {lengths[-1]} "
                f"([table](results/report/persistent_{machine}.md))."
                + (f" Not timed there: {missing}." if missing else "")
            )
    return told


def _fastest(timed: Sequence[Summary], among: Container[str]) -> dict[tuple[str, int], Summary]:
    """The fastest subject of those `among`, by dtype and length."""
    best: dict[tuple[str, int], Summary] = {}
    for one in (one for one in timed if one.kernel in among):
        cell = (one.dtype, one.shape.seq_len)
        if cell not in best or one.pct > best[cell].pct:
            best[cell] = one
    return best


def _over_libraries(own: list[Summary], result: BenchResult, late: list[Summary]) -> str:
    """How many times as fast as the fastest library each kernel is, per length; empty without a library.

    Both were timed in turn with FA2, whose share cancels out. Cells that tell the host's time are left out, and
    libraries that are left out of a length are named where another is not.
    """
    timed = [one for one in own if one not in late]
    best = {length: one for (_, length), one in _fastest(timed, result.references).items()}
    kernels = dict.fromkeys(one.kernel for one in own if one.kernel in result.kernels)
    if not best:
        return ""
    lengths = sorted({one.shape.seq_len for one in own})
    lines = []
    for key in kernels:
        found = {one.shape.seq_len: one.pct for one in timed if one.kernel == key}
        times = [f"{found[n] / best[n].pct:.3f}" if n in found and n in best else DASH for n in lengths]
        lines.append((*named(key, result.kernels), *times))
    among = []
    for n in lengths:
        unknown = [one.kernel for one in late if one.shape.seq_len == n and one.kernel in result.references]
        among.append(" but for ".join(filter(None, (best[n].kernel, listed(unknown)))) if n in best else DASH)
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


def render_energy(results: Path) -> dict[str, bytes]:
    """Page and table of every machine whose runs are there, by name."""
    files: dict[str, bytes] = {}
    for folder in sorted({path.parent for path in files_in(results, f"*/{ENERGY}")}):
        found = {path.name: load_as(path, EnergyResult) for path in files_in(folder, ENERGY)}
        rows = [
            (
                name, run.subject, run.dtype, run.shape.seq_len, run.shape.batch, run.shape.n_heads, run.turn,
                run.launches, run.seconds, run.joules, f"{run.tflops:.3f}", run.sm_clock_mhz, f"{run.watts:.2f}",
                f"{run.pj_per_flop:.4f}",
            )
            for name, result in found.items()
            for run in result.runs
        ]  # fmt: skip
        files[f"energy_{folder.name}.md"] = energy_page(list(found.values())).encode()
        files[f"energy_{folder.name}.csv"] = csv_text(ENERGY_CSV, rows).encode()
    return files


def energy_page(results: Sequence[EnergyResult]) -> str:
    """A machine's page: a section per file and dtype."""
    about = (
        "Kernels, FA2 and other libraries, launched back to back in turn, without a flush between launches; medians of "
        f"their turns. Power is that between two ticks of the GPU's energy counter. {STEADY_LEGEND}"
    )
    parts = [f"# Speed, power and energy of seconds on end on an {plain(results[0].gpu.name)}", about]
    for result in results:
        gpu, turns = result.gpu, 1 + max((run.turn for run in result.runs), default=0)
        limit = f"{gpu.power_limit_w:.0f} W" if gpu.power_limit_w else DASH
        highest = f"{gpu.max_sm_clock_mhz} MHz" if gpu.max_sm_clock_mhz else DASH
        beside = [f"FA2 of torch {result.reference.torch}"]
        beside += [
            f"{name} {one.version or f'of torch {one.torch}'}" for name, one in sorted(result.references.items())
        ]
        parts.append(
            f"At least {result.seconds:g} s a run, {turns} turn{'s' if turns > 1 else ''}: power limit {limit}, "
            f"highest clock {highest}, driver {gpu.driver}; {', '.join(beside)}."
        )
        found = sorted(steady(result), key=lambda one: one.seq_len)
        for dtype in dict.fromkeys(run.dtype for run in result.runs):
            own = [one for one in found if one.dtype == dtype]
            parts += [f"## {dtype}, at least {result.seconds:g} s a run", _energy_table(own, result)]
    return "\n\n".join(parts) + "\n"


def _energy_table(own: Sequence[Steady], result: EnergyResult) -> str:
    rows = [
        (
            str(one.seq_len), *named(one.subject, result.kernels), f"{one.tflops:.1f}",
            DASH if one.mhz is None else f"{one.mhz:.0f}", f"{one.watts:.0f}", f"{one.pj_per_flop:.3f}", one.limit,
        )
        for one in own
    ]  # fmt: skip
    return markdown(ENERGY_HEADER, rows, left=3)
