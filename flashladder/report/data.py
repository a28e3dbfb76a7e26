"""The data of the report: committed results, locks and published figures, joined per iteration.

A result counts only if a lock holds its machine code (rule 9 of the measurement protocol), and a table holds one mode
(rule 10). All libraries of a machine come from one file: the sweep with references whose last step is the latest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean, median

from flashladder.cases.inputs import SEQ_LENS, on_grid
from flashladder.columns import grouped, listed
from flashladder.emulate.reading import NAME, EmulatedCounters, load_reading
from flashladder.errors import FlashladderError
from flashladder.files import dump_json, files_in, read_text, relative
from flashladder.ladder.gpus import configs_for, gpu_key, load_gpus
from flashladder.ladder.grid import grid_file, grid_names
from flashladder.ladder.iteration import Iteration, load_all
from flashladder.lock.schema import LOCKS, PUBLISHED_ARCH, LockedKernel, LockFile, find_locked, read_lock, refusal
from flashladder.names import DTYPES, HEADLINE_LENGTH, PUBLISHED_GPU
from flashladder.paths import RESULTS
from flashladder.results.derive import cells_of_host_time
from flashladder.results.files import load_as
from flashladder.results.published import Published, load
from flashladder.results.schema import BenchResult, Gpu, Kernel, Mean, Summary
from flashladder.results.statistics import stated

Fa2 = tuple[float, float, float]  # TFLOP/s of FA2 beside the kernels of one run: least, median, most
MODE = "event-free"  # timing mode of the progression tables
SECOND = "second_card"  # files of this prefix hold the same kernels on another card; they enter no table
TITLES = {"cudnn": "cuDNN", "fa3": "FA3", "fa4": "FA4", "flash-attn": "flash-attn"}


def plain(name: str) -> str:
    """A GPU's name without its brands: ``NVIDIA GeForce RTX 3090`` -> ``RTX 3090``."""
    return name.replace("NVIDIA ", "").replace("GeForce ", "")


def days_of(*results: BenchResult) -> str:
    """The first and the last day on which processes of these timings started."""
    days = sorted(process.started_utc[:10] for result in results for process in result.processes)
    return " to ".join(dict.fromkeys((days[0], days[-1])))


@dataclass(frozen=True)
class Timing:
    """A kernel or a library on one machine in one dtype: summaries by sequence length, and their harmonic mean.

    `mean` is None if a length is missing. `fa2` is FA2's speed at S = 4096 over all kernels of the same run. It varies
    with the card's clock and temperature, so tables multiply each kernel's ratio to FA2 by the median of the run.
    """

    summaries: Mapping[int, Summary]
    mean: Mean | None
    fa2: Fa2 | None

    @property
    def headline(self) -> Summary | None:
        """The timing at S = 4096."""
        return self.summaries.get(HEADLINE_LENGTH)

    @property
    def tflops(self) -> float | None:
        """TFLOP/s at S = 4096: the ratio to FA2 times the run's median for FA2."""
        return self.headline.pct / 100 * self.fa2[1] if self.headline and self.fa2 else None


@dataclass(frozen=True)
class Anchor(Timing):
    """A library that was timed at S = 4096 in one dtype; its `title` is for instance ``cuDNN 9.19.0``."""

    name: str
    title: str
    dtype: str


@dataclass(frozen=True)
class Measured(Timing):
    """A kernel of the ladder; `floor` is the A/A floor in points, the largest of all runs that timed the kernel."""

    kernel: Kernel
    floor: float


def fa2_of(result: BenchResult, dtype: str) -> Fa2 | None:
    """FA2's speed at S = 4096 beside the kernels of a run; None if no kernel was timed at that length."""
    own = [one for one in result.summaries if (one.dtype, one.shape.seq_len) == (dtype, HEADLINE_LENGTH)]
    found = [one.reference_tflops for one in own if one.kernel in result.kernels and on_grid(one.shape)]
    return (min(found), median(found), max(found)) if found else None


def counts(result: BenchResult) -> bool:
    """Whether a timing may enter tables: it has the progression's mode, and is not a tuning run."""
    return result.mode == MODE and result.purpose == "report"


def by_speed(speeds: Iterable[tuple[int, float]]) -> tuple[int, ...]:
    """Steps by the mean of their speeds, the fastest first."""
    by_step = grouped(speeds, lambda one: one[0])
    return tuple(sorted(by_step, key=lambda step: mean(speed for _, speed in by_step[step]), reverse=True))


def last_sweep(folder: Path) -> tuple[BenchResult, dict[tuple[str, str], dict[int, Summary]]] | None:
    """The sweep with references whose last step is the latest, of a machine's folder; None if there is none.

    The second value holds its cells on the grid, without those that show the host's time: by kernel, dtype and length.
    Files that cannot be read are skipped here; the gate reports them.
    """
    found: list[BenchResult] = []
    for name in (name for name in grid_names() if "\nreferences: " in read_text(grid_file(name))):
        with suppress(FlashladderError):
            result = load_as(folder / f"{name}.json.gz", BenchResult)
            usable = counts(result) and result.references and result.kernels
            if usable and any(on_grid(one.shape) for one in result.summaries):
                found.append(result)
    if not found:
        return None
    last = max(found, key=lambda one: max(kernel.iteration for kernel in one.kernels.values()))
    of_host, cells = cells_of_host_time(last.groups), dict[tuple[str, str], dict[int, Summary]]()
    for one in last.summaries:
        if on_grid(one.shape) and (one.kernel, one.dtype, one.shape) not in of_host:
            cells.setdefault((one.kernel, one.dtype), {})[one.shape.seq_len] = one
    return last, cells


def fastest_of(folder: Path) -> dict[int, int]:
    """The fastest step from each sequence length on, by the mean over dtypes; empty without a sweep (`last_sweep`).

    A length between two of the grid takes the step of the shorter one. The first entry also serves all shorter lengths.
    """
    if (last := last_sweep(folder)) is None:
        return {}
    result, cells = last
    ours = [(result.kernels[name].iteration, own) for (name, _), own in cells.items() if name in result.kernels]
    speeds = {length: [(step, own[length].pct) for step, own in ours if length in own] for length in SEQ_LENS}
    return _fastest_from(speeds)


def causal_of(folder: Path) -> dict[int, int]:
    """As `fastest_of`, with a causal mask: from the sweeps of one folder whose grids have it."""
    speeds: dict[int, list[tuple[int, float]]] = {}
    for path in files_in(folder, "causal*.json.gz"):
        result = load_as(path, BenchResult)
        for one in result.summaries if counts(result) else ():
            if one.kernel in result.kernels:
                speeds.setdefault(one.shape.kv_len, []).append((result.kernels[one.kernel].iteration, one.pct))
    return _fastest_from(speeds)


def _fastest_from(speeds: Mapping[int, Sequence[tuple[int, float]]]) -> dict[int, int]:
    """The fastest step from each length on, 1 standing for the shortest; `speeds` maps lengths to steps' speeds."""
    best = dict[int, int]()
    for length, own in sorted(speeds.items()):
        steps = by_speed(own)
        if steps and steps[0] not in [*best.values()][-1:]:
            best[length if best else 1] = steps[0]
    return best


def fastest(results: Path, ranked: Mapping[str | None, Sequence[int]]) -> str:
    """The text of configs/fastest.json; `ranked` maps each GPU with a measured ladder to its steps, fastest first."""
    found = {key: fastest_of(results / key) for key in load_gpus() if (results / key).is_dir()}
    more: dict[str, dict[str, object]] = {
        key: ({"ranking": list(ranked[key])} if key in ranked else {}) | ({"causal": steps} if steps else {})
        for key in found
        for steps in (causal_of(results / key),)
    }
    return dump_json({key: {"from_seq_len": steps} | more[key] for key, steps in found.items() if steps})


def anchors_of(folder: Path) -> tuple[Anchor, ...]:
    """The libraries of a machine's last sweep in the order of that file, once per dtype.

    Cells that show the host's time are left out; then the mean is, too. A library needs a cell at S = 4096.
    """
    if (last := last_sweep(folder)) is None:
        return ()
    (result, cells), anchors = last, []
    for (name, dtype), own in cells.items():
        if name in result.references and HEADLINE_LENGTH in own:
            means = [one for one in result.means if (one.kernel, one.dtype, one.seq_lens) == (name, dtype, SEQ_LENS)]
            whole = means[-1] if means and own.keys() == set(SEQ_LENS) else None
            title = f"{TITLES[name]} {(result.references[name].version or '').partition(',')[0]}".strip()
            anchors.append(Anchor(own, whole, fa2_of(result, dtype), name, title, dtype))
    return tuple(anchors)


@dataclass(frozen=True)
class Timed:
    """Files of timings on one GPU model, with the intervals and verdicts that tables print (`stated`)."""

    files: tuple[tuple[Path, BenchResult], ...]

    @property
    def path(self) -> Path:
        """The first file."""
        return self.files[0][0]

    @property
    def result(self) -> BenchResult:
        """The content of the first file."""
        return self.files[0][1]

    @property
    def name(self) -> str:
        """The name of the folder under results/."""
        return self.path.parent.name

    @property
    def gpu(self) -> Gpu:
        """The GPU of the first file."""
        return self.result.gpu

    @property
    def key(self) -> str | None:
        """The key of the GPU in configs/gpus; None for a GPU that is not there."""
        return gpu_key(self.gpu.name)

    @property
    def configs_of(self) -> str:
        """The key of the GPU whose configurations this GPU runs."""
        return configs_for(self.key, self.gpu.arch)

    @property
    def title(self) -> str:
        """The GPU as tables print it."""
        return plain(load_gpus()[self.key].title if self.key else self.gpu.name)

    @property
    def days(self) -> str:
        """The first and the last day of the timings."""
        return days_of(*(result for _, result in self.files))

    @cached_property
    def summaries(self) -> dict[tuple[str, str, int], Summary]:
        """Summaries by kernel, dtype and length."""
        return {(one.kernel, one.dtype, one.shape.seq_len): one for _, its in self.files for one in its.summaries}

    @property
    def lengths(self) -> list[int]:
        """The timed sequence lengths, ascending."""
        return sorted({length for *_, length in self.summaries})

    def holding(self, kernel: str) -> tuple[Path, BenchResult]:
        """The file that timed a kernel; the first file for a reference."""
        return next((file for file in self.files if kernel in file[1].kernels), self.files[0])


@dataclass(frozen=True)
class Machine(Timed):
    """The timings of one folder under results/ that count.

    `other_floors` are A/A floors of other cards of the same model, per dtype in percentage points. `anchors` are the
    libraries that were timed beside the last step.
    """

    other_floors: Mapping[str, tuple[float, ...]]
    measured: Mapping[tuple[int, str], Measured]
    refused: tuple[str, ...]
    anchors: tuple[Anchor, ...] = ()

    @property
    def rungs(self) -> str:
        """The rungs (kinds of machines) of the timings."""
        return " and ".join(dict.fromkeys(result.rung for _, result in self.files))

    @property
    def reference(self) -> str:
        """The FA2 that was timed, the driver, and the days."""
        by_fa2 = grouped(self.files, lambda one: (one[1].reference.torch, one[1].gpu.driver))
        return "; ".join(
            f"FA2 of torch {torch}, driver {driver}, {listed(sorted({days_of(result)[:10] for _, result in own}))}"
            for (torch, driver), own in by_fa2.items()
        )

    def floors(self, dtype: str) -> tuple[float, ...]:
        """The distinct A/A floors of the runs that timed kernels, in percentage points, ascending."""
        return tuple(sorted({one.floor for one in self.measured.values() if one.kernel.dtype == dtype}))

    def fa2(self, dtype: str) -> dict[Fa2, list[int]]:
        """FA2's speed in each run, with the iterations that the run timed at S = 4096."""
        found: dict[Fa2, list[int]] = {}
        for (number, _), one in sorted(self.measured.items()):
            if one.kernel.dtype == dtype and one.fa2 and number not in found.setdefault(one.fa2, []):
                found[one.fa2].append(number)
        return found


@dataclass(frozen=True)
class Row:
    """One line of a progression table; `measured` and `locked` are None if there is no such kernel."""

    iteration: Iteration
    config: str
    measured: Measured | None
    locked: LockedKernel | None

    @property
    def headline(self) -> Summary | None:
        """The timing at S = 4096."""
        return self.measured.headline if self.measured else None

    @property
    def tflops(self) -> float | None:
        """TFLOP/s at S = 4096 (`Timing.tflops`)."""
        return self.measured.tflops if self.measured else None


@dataclass(frozen=True)
class Ladder:
    """Everything that the report shows; `emulated` is None if no counters of the emulator are committed."""

    iterations: tuple[Iteration, ...]
    published: Published
    machines: tuple[Machine, ...]
    locks: Mapping[str, LockFile]
    emulated: EmulatedCounters | None = None

    @property
    def refused(self) -> tuple[str, ...]:
        """Every result that tables must not show, with the reason."""
        return tuple(reason for machine in self.machines for reason in machine.refused)

    def families(self) -> dict[str, list[int]]:
        """The iterations of each family of kernels."""
        every = grouped(self.iterations, lambda one: one.family.name)
        return {name: [one.number for one in own] for name, own in every.items()}

    def rows(self, machine: Machine | None, dtype: str, configs_of: str | None = None) -> tuple[Row, ...]:
        """One row per iteration, as measured on `machine` (None: a table without measurements).

        `configs_of`: key of the GPU whose configurations are shown; None: those that the machine's GPU runs.
        """
        key = configs_of or (machine.configs_of if machine else PUBLISHED_GPU)
        default_arch = machine.gpu.arch if machine else PUBLISHED_ARCH
        rows = []
        for iteration in self.iterations:
            config = iteration.configs.get(key, iteration.configs[PUBLISHED_GPU]).with_dtype(dtype).short_form()
            measured = machine.measured.get((iteration.number, config)) if machine else None
            own = iteration.family.targets.serving(default_arch) or default_arch
            arch = measured.kernel.arch if measured else own
            rows.append(Row(iteration, config, measured, find_locked(self.locks.get(arch), iteration.number, config)))
        return tuple(rows)

    def headlines(self, machine: Machine) -> list[tuple[Iteration, Summary]]:
        """The steps that a machine timed in fp16 at S = 4096, in the configurations that its GPU runs."""
        return [(row.iteration, one) for row in self.rows(machine, "fp16") if (one := row.headline)]

    def ranking(self, machine: Machine) -> tuple[int, ...]:
        """A machine's measured steps, fastest first: harmonic mean over lengths, then mean over dtypes."""
        every = (row.measured for dtype in DTYPES for row in self.rows(machine, dtype))
        return by_speed((one.kernel.iteration, one.mean.pct) for one in every if one and one.mean)


def collect(folder: Path = RESULTS) -> Ladder:
    """Reads all results under `folder`; a malformed file, a cell measured twice and a folder of two GPUs are errors."""
    ladder = load_all()
    machines = _machines(bench_files(folder), folder / LOCKS.name)
    timed = (kernel.arch for one in machines for _, result in one.files for kernel in result.kernels.values())
    arches = sorted({PUBLISHED_ARCH, *(one.shown_arch for one in ladder), *timed})
    locks = {arch: read_lock(arch, folder / LOCKS.name) for arch in arches}
    reading, published = folder / NAME, load(folder / "published")
    return Ladder(ladder, published, machines, locks, load_reading(reading) if reading.is_file() else None)


def bench_files(folder: Path = RESULTS) -> list[Path]:
    """Committed benchmark files, ``<machine>/bench*.json.gz``, in order."""
    return files_in(folder, "*/bench*.json.gz")


def swept_files(folder: Path) -> list[Path]:
    """The sweep of every machine's own grid, such as ``h100/h100.json.gz``, in order."""
    return [path for path in files_in(folder, "*/*.json.gz") if path.name == f"{path.parent.name}.json.gz"]


def swept(ladder: Ladder, folder: Path = RESULTS) -> list[Machine]:
    """Machines under `folder` that have a sweep (``h100/h100.json.gz``) but no benchmark file."""
    known = {machine.name for machine in ladder.machines}
    return list(_machines([path for path in swept_files(folder) if path.parent.name not in known], folder / LOCKS.name))


def _machines(paths: Sequence[Path], locks: Path) -> tuple[Machine, ...]:
    counted = (path for path in paths if counts(load_as(path, BenchResult)))
    return tuple(_machine_of(own, locks) for own in grouped(counted, lambda path: path.parent).values())


def _machine_of(paths: Sequence[Path], locks: Path) -> Machine:
    """Joins the timings of one folder, which must differ in their cells; refuses kernels without a lock in `locks`."""
    files = tuple((path, stated_result(path)) for path in paths)
    folder, first = paths[0].parent, files[0][1].gpu
    measured, refused = dict[tuple[int, str], Measured](), list[str]()
    for path, result in files:
        where = relative(path)
        if result.gpu.name != first.name:
            what, found = "another GPU in this folder", result.gpu.name
            raise FlashladderError(what, where=where, expected=first.name, found=found)
        held = {arch: read_lock(arch, locks) for arch in {kernel.arch for kernel in result.kernels.values()}}
        for kernel in result.kernels.values():
            if reason := refusal(kernel, held[kernel.arch]):
                refused.append(f"{where}: {kernel.key}: {reason}")
                continue
            cell, key = (kernel.iteration, kernel.config), kernel.key
            earlier = measured.get(cell, Measured({}, None, None, kernel, 0.0))
            own = {one.shape.seq_len: one for one in result.summaries if one.kernel == key and on_grid(one.shape)}
            if twice := sorted(own.keys() & earlier.summaries.keys()):
                raise FlashladderError(
                    f"{key} at S={twice[0]} was measured twice", where=relative(folder),
                    found=listed([path.name for path, its in files if key in its.kernels]),
                    hint="keep one of these files in the folder",
                )  # fmt: skip
            means = [one for one in result.means if one.kernel == key and one.seq_lens == SEQ_LENS]
            fa2 = fa2_of(result, kernel.dtype) if HEADLINE_LENGTH in own else earlier.fa2
            floor = max(result.floors_pct.get(kernel.dtype, 0.0), earlier.floor)
            whole = means[0] if means else earlier.mean
            measured[cell] = Measured({**earlier.summaries, **own}, whole, fa2, kernel, floor)
    return Machine(files, _floors_of_others(folder, first), measured, tuple(refused), anchors_of(folder))


def stated_result(path: Path) -> BenchResult:
    """A file of timings with the intervals and verdicts that tables print: other runs of the same code widen them."""
    return stated(load_as(path, BenchResult), other_runs(path))


def other_runs(path: Path) -> list[BenchResult]:
    """The benchmarks, other cards' files, sweep and bundle's run in a file's folder, which may widen its intervals."""
    patterns = ("bench*", f"{SECOND}*", path.parent.name, "bundle")
    files = [one for pattern in patterns for one in files_in(path.parent, f"{pattern}.json.gz")]
    found = [load_as(one, BenchResult) for one in files if one.name != path.name]
    return [one for one in found if counts(one)]


def _floors_of_others(folder: Path, first: Gpu) -> dict[str, tuple[float, ...]]:
    floors: dict[str, tuple[float, ...]] = {}
    for path in files_in(folder, f"{SECOND}*.json.gz"):
        result = load_as(path, BenchResult)
        if result.gpu.name != first.name or result.gpu.uuid == first.uuid:
            card = f"{result.gpu.name}, {'the same' if result.gpu.uuid == first.uuid else 'another'} card"
            what = "not another card of this folder's model"
            raise FlashladderError(what, where=relative(path), expected=first.name, found=card)
        for dtype, floor in result.floors_pct.items():
            floors[dtype] = (*floors.get(dtype, ()), floor)
    return floors
