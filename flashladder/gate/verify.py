"""Is a result what it says? Derives every number of a document again, without a GPU and without a compiler.

A document is a function of its raw samples. So its summaries must follow from them, every cell of its grid must be
there, and every kernel must be machine code that a lock holds. `invoke gate` verifies all committed documents.

Run: ``invoke verify``, ``invoke verify results/h200 --json``, ``invoke verify build/bench.json.gz``. With ``--rerun``
this GPU times some cells again. Exit code: 0 all documents hold, 1 one does not, 2 nothing to verify, or no GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from itertools import chain
from pathlib import Path
import random
import re

from tqdm import tqdm

from flashladder import parallel
from flashladder.bench import cross_checks
from flashladder.bench.references import BACKENDS, FA2
from flashladder.cases.inputs import cases_for, emulator_cases, layouts
from flashladder.errors import FlashladderError, failures, require_checkout, say
from flashladder.files import dump_json, files_in, read_text, relative, sha256
from flashladder.gate.published import in_rank_order, same_model
from flashladder.gpu.ncu import csv_beside, to_csv
from flashladder.gpu.sanitize import TOOLS
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import gpu_key
from flashladder.ladder.grid import load_grid
from flashladder.ladder.iteration import begun, load_iteration, load_runnable
from flashladder.lock.schema import LOCKS, find_locked, read_lock, refusal
from flashladder.names import DTYPES
from flashladder.paths import CONFIGS, RESULTS
from flashladder.problem import Shape
from flashladder.report.accuracy import beyond_bounds, cells, load_errors
from flashladder.report.data import bench_files
from flashladder.results.derive import Plan, problems, too_fast
from flashladder.results.files import identity, load_as, load_result, machine_name, read_json
from flashladder.results.schema import (
    A_A,
    AnyResult,
    BenchResult,
    CheckResult,
    CounterResult,
    EmulatedCheckResult,
    EmulatedSweepResult,
    EnergyResult,
    Kernel,
    PlannedCell,
    SanitizerResult,
    SecondOpinionResult,
    SoakResult,
    Sweep,
    kernel_key,
)
from flashladder.sweep.plan import CPU, Settings, address_of, title, wanted
from flashladder.sweep.records import Records

GRIDS = CONFIGS / "grids"
CHECKS = "check*.json.gz"
ACCURACY = "accuracy"  # files whose names begin so hold errors by iteration, in their own form
RECORD = re.compile(r"([0-9a-f]{16})\.json\.gz")  # the record of a cell, in the folder of a live sweep
NAMED = re.compile(r"`([\w.]+\.(?:json\.gz|json|csv|log))`")  # a file, in the first column of a folder's README
DRAWN = (8, 0)  # default cells and seed of a rerun

Swept = BenchResult | EmulatedSweepResult
Drawn = dict[tuple[str, Shape], list[Kernel]]  # kernels by dtype and shape
Timer = Callable[[Drawn], BenchResult]


@dataclass(frozen=True)
class Outcome:
    """A file or a check: ``ok``, ``failed`` or ``skipped``, what was compared, and one line per problem."""

    name: str
    status: str
    summary: str = ""
    details: tuple[str, ...] = ()


def outcome(name: str, problems: Iterable[str], summary: str) -> Outcome:
    """``failed`` with each problem once, or ``ok``."""
    details = tuple(dict.fromkeys(problems))
    return Outcome(name, "failed" if details else "ok", summary, details)


def described(error: Exception) -> str:
    """An error on one line, with its type unless this project raised it."""
    return str(error) if isinstance(error, failures()) else " ".join(f"{type(error).__name__}: {error}".split())


def verify(path: Path, tell: Callable[[Outcome], object] = lambda _: None) -> list[Outcome]:
    """Verifies every document of `path`, which is a file, a machine's folder or a folder of these.

    `tell` gets each outcome at once.

    Raises:
        FlashladderError: there is no such path, or nothing to verify in it.
    """
    where = relative(path)
    require_existing(path)
    if path.is_file():
        if not path.name.endswith((".json", ".json.gz")):
            raise FlashladderError("not a result", where=where, expected="a name that ends in .json or .json.gz")
        files, folders = [path], list[Path]()
    else:
        every = (path, *files_in(path, "*"))
        folders = machine_folders() if path.resolve() == RESULTS else [one for one in every if documents(one)]
        files = [one for folder in folders for one in documents(folder)]
    if not files:
        expected = "result files in it, or in a folder of it"
        raise FlashladderError("nothing to verify", where=where, expected=expected, found="none")
    found = parallel.over(verify_file, files, "verify", tell)
    for one in (one for folder in folders for one in verify_folder(folder)):
        tell(one)
        found.append(one)
    return found


def require_existing(path: Path) -> None:
    """Raises `FlashladderError` if no file and no folder is at `path`."""
    if not (path.is_file() or path.is_dir()):
        expected = "a result file or a folder of them"
        raise FlashladderError("no such result", where=relative(path), expected=expected)


def machine_folders() -> list[Path]:
    """Folders of the committed results that hold measurements of a machine."""
    return [one for one in files_in(RESULTS, "*") if one.is_dir() and any(files_in(one, "*.json.gz"))]


def documents(folder: Path) -> list[Path]:
    """The JSON files of a machine's folder, large ones first, so that parallel processes end together."""
    files = {*files_in(folder, "*.json.gz"), *files_in(folder, "*.json")} if folder.is_dir() else ()
    return sorted(files, key=lambda path: (-path.stat().st_size, path.name))


def verify_file(path: Path) -> Outcome:
    """Verifies one file; a file that cannot be read is a failed one."""
    try:
        return outcome(relative(path), *_content(path))
    except Exception as error:  # noqa: BLE001 - a number of a damaged document may break any formula
        line = described(error).removeprefix(f"{relative(path)}: ")
        return Outcome(relative(path), "failed", "cannot be read as what it says", (line,))


def verify_folder(folder: Path) -> list[Outcome]:
    """Problems of a folder as a whole: missing files that its README names, and kernels timed but not checked."""
    page = folder / "README.md"
    lines = read_text(page).splitlines() if page.is_file() else []
    named = [name for line in lines if line.startswith("| `") for name in NAMED.findall(line.split("|")[1])]
    missing = [folder / name for name in named if not (folder / name).is_file()]
    found = [Outcome(relative(one), "failed", "missing", (f"named in {relative(page)}",)) for one in missing]
    try:
        unchecked = _unchecked(folder)
    except FlashladderError as error:
        unchecked = [str(error)]
    return [*found, *([outcome(relative(folder), unchecked, "checks of timed kernels")] if unchecked else ())]


def _unchecked(folder: Path) -> list[str]:
    checked = {case.kernel for path in files_in(folder, CHECKS) for case in load_as(path, CheckResult).cases}
    timed = {path.name: load_as(path, BenchResult).kernels for path in files_in(folder, "bench*.json.gz")}
    return [
        f"{kernel.key}: timed in {name}, but not checked"
        for name, kernels in timed.items()
        for kernel in kernels.values()
        if kernel.key not in checked
    ]


def _content(path: Path) -> tuple[list[str], str]:
    """The problems of a file, and what it holds, in words."""
    if record := RECORD.fullmatch(path.name):
        return _record(path, record[1])
    version, noted, found_digest = identity(path)
    if version is None and path.name.startswith(ACCURACY):
        return _accuracy(path), "errors by iteration"
    if version is None:
        ours = RESULTS in path.resolve().parents or (path.parent / "README.md").is_file()
        if not ours or not isinstance(read_json(path), dict):
            load_result(path)  # raises an error that says what is missing
        return [], "data of another form, read whole"
    result = load_result(path)
    lines = [] if noted == found_digest else [f"content_sha256: noted {noted}, found {found_digest}"]
    lines += [*_dtypes(result), *_machine_code(path, result), *_references(result), *_by_kind(path, result)]
    sweep: Sweep | None = getattr(result, "sweep", None)
    note = grid_note(sweep) if sweep else None
    return lines, f"{_summary(result)}, schema {version}" + (f"; {note}" if note else "")


def _record(path: Path, address: str) -> tuple[list[str], str]:
    """One cell of a live sweep: whether its numbers follow from its samples, and whether it failed."""
    record = Records(path.parent).read(address)
    lines = problems(record.document) if isinstance(record.document, BenchResult) else []
    failure = f": failed, {record.failure.kind}" if record.failure else ""
    return lines, f"record of a cell: {title(record.cell)}{failure}"


def _summary(result: AnyResult) -> str:
    if isinstance(result, SoakResult):
        return f"soak, {len(result.cases)} cases, {sum(one.launches for one in result.hammered):,} launches"
    counted = {"summaries": "cells", "agreements": "cells", "cells": "cells", "runs": "runs", "cases": "cases"}
    name = next((one for one in counted if hasattr(result, one)), "kernels")
    return f"{result.kind}, {len(getattr(result, name))} {counted.get(name, name)}"


def _dtypes(result: AnyResult) -> Iterator[str]:
    """Kernels whose dtype is not their configuration's, and measurements whose dtype is not their kernel's."""
    for key, kernel in result.kernels.items():
        if kernel.dtype != (form := KernelConfig.parse(kernel.config).dtype):
            yield f"kernel {key}: dtype {kernel.dtype}, of a configuration for {form}"
    for key, dtype in dict.fromkeys(_measured_as(result)):
        if key in result.kernels and result.kernels[key].dtype != dtype:
            yield f"{key}: measured as {dtype}, a kernel for {result.kernels[key].dtype}"


def _measured_as(result: AnyResult) -> Iterator[tuple[str, str]]:
    """Kernel and dtype of each measurement."""
    timed = result.paired if isinstance(result, SecondOpinionResult) else result
    if isinstance(timed, BenchResult):
        yield from ((series.kernel, group.dtype) for group in timed.groups for series in group.series)
    elif isinstance(result, CheckResult | EmulatedCheckResult):
        yield from ((case.kernel, case.dtype) for case in result.cases)
    elif isinstance(result, EnergyResult):
        yield from ((run.subject, run.dtype) for run in result.runs)
    elif isinstance(result, SoakResult):
        yield from ((one.kernel, one.dtype) for part in (result.cases, result.hammered, result.far) for one in part)


def _machine_code(path: Path, result: AnyResult) -> Iterator[str]:
    """Kernels whose machine code no lock holds, or whose registers differ from the lock's.

    Candidates of a tuning run and variants have no lock. The emulator runs PTX.
    """
    if isinstance(result, EmulatedCheckResult | EmulatedSweepResult):
        return
    folder = path.parent.parent / LOCKS.name
    folder = folder if folder.is_dir() else LOCKS
    locks = {arch: read_lock(arch, folder) for arch in {kernel.arch for kernel in result.kernels.values()}}
    tuned = isinstance(result, BenchResult) and result.purpose == "tune"
    for key, kernel in result.kernels.items():
        if key != kernel.key:
            yield f"kernel {key} is called {kernel.key}"
        if tuned or (kernel.variant and not path.name.startswith("bench")):
            continue
        if reason := refusal(kernel, locks[kernel.arch]):
            yield f"{key}: {reason}"
            continue
        locked = find_locked(locks[kernel.arch], kernel.iteration, kernel.config)
        for name in ("registers", "spill_stores", "spill_loads"):
            expected, found = getattr(locked, name), getattr(kernel, name)
            if found is not None and found != expected:
                yield f"kernel {key}: {name}: expected {expected}, as locked, found {found}"


def _references(result: AnyResult) -> Iterator[str]:
    timed = result.paired if isinstance(result, SecondOpinionResult) else result
    for name, one in getattr(timed, "references", {}).items():
        if name not in BACKENDS:
            yield f"reference {name}: expected one of {', '.join(BACKENDS)}"
        elif wrong := [kernel for kernel in one.kernels.values() if not re.search(BACKENDS[name].marks, kernel)]:
            yield f"reference {name}: its kernel is another's: {wrong[0][:80]}"


def _by_kind(path: Path, result: AnyResult) -> Iterator[str]:
    """The problems that are particular to a kind of document."""
    if isinstance(result, BenchResult):
        yield from problems(result)
        yield from _sweep(result) if result.sweep else _lost_cells(result)
    elif isinstance(result, EmulatedSweepResult):
        yield from _sweep(result)
    elif isinstance(result, SecondOpinionResult):
        yield from (*cross_checks.problems(result), *_lost_cells(result.paired))
    elif isinstance(result, CheckResult | EmulatedCheckResult):
        yield from _cases(result)
    elif isinstance(result, SanitizerResult):
        yield from _sanitizers(result)
    elif isinstance(result, EnergyResult):
        for run in result.runs:
            where = f"{run.subject} {run.dtype} S={run.shape.seq_len}, turn {run.turn}"
            yield from too_fast(where, run.seconds / run.launches * 1e6, run.shape, result.gpu.name)
    elif isinstance(result, SoakResult):
        yield from _soak(result)
    elif isinstance(result, CounterResult):
        table = csv_beside(path)
        if table.is_file() and table.read_bytes() != to_csv(result).encode():
            yield f"{table.name}: differs from what {path.name} gives"


def _lost_cells(result: BenchResult) -> Iterator[str]:
    """Missing cells of a run without a grid: it times every kernel at every shape of its dtype."""
    timed = {
        (group.dtype, group.shape, one.kernel)
        for group in result.groups
        for one in group.series
        if one.pairs or (one.before and not one.before.ok)
    }
    for key, kernel in result.kernels.items():
        for shape in dict.fromkeys(group.shape for group in result.groups if group.dtype == kernel.dtype):
            if (kernel.dtype, shape, key) not in timed:
                yield f"cell {_series(key, kernel.dtype, shape)}: is missing"


def _cases(result: CheckResult | EmulatedCheckResult) -> Iterator[str]:
    """Failed cases, and cases that a kernel lacks, has twice or refused needlessly. On a CPU the quick ones suffice."""
    yield from (f"{one.kernel} {one.case}: failed: {one.reason}" for one in result.cases if one.status == "fail")
    for key, kernel in result.kernels.items():
        config, stride = KernelConfig.parse(kernel.config), load_iteration(kernel.iteration).row_stride
        own = [case for case in result.cases if case.kernel == key]
        counts = Counter(case.case for case in own)
        due = {case.name: case for case in cases_for(config)}
        if isinstance(result, EmulatedCheckResult):
            quick, due = ({one.name: one for one in emulator_cases(config, stride, quick=q)} for q in (True, False))
            due = quick if counts.keys() <= quick.keys() else due
        yield from (f"{key}: case {name} is missing" for name in due if name not in counts)
        wrong = (name for name, n in counts.items() if name not in due or n > 1)
        yield from (f"{key}: case {name} is unknown or repeated" for name in wrong)
        for case in (due[one.case] for one in own if one.status == "not_applicable" and one.case in due):
            if not stride or {layout.seq for layout in layouts(case)} == {stride}:
                yield f"{key}: case {case.name} was refused, expected pass: it takes such row strides"


def _sanitizers(result: SanitizerResult) -> Iterator[str]:
    """Sanitizer tools that did not run or found something, and iterations that did not run."""
    ran = {kernel.iteration for kernel in result.kernels.values()}
    ladder = begun(load_runnable(result.gpu.arch), ran)
    yield from (f"no kernel of iteration {one.number} was run" for one in ladder if one.number not in ran)
    tools = [finding.tool for finding in result.findings]
    if sorted(tools) != sorted(TOOLS):
        yield f"tools: expected {', '.join(TOOLS)} once each, found {', '.join(tools) or 'none'}"
    yield from (f"{one.tool}: not clean, errors {one.errors}" for one in result.findings if not one.clean)


def _soak(result: SoakResult) -> Iterator[str]:
    """What the command calls a problem; launches that are faster than the GPU's peaks allow; unknown kernels."""
    from flashladder.check import soak  # imports the emulator, which is a fifth of this module's import time

    yield from soak.problems(result)
    for far in result.far:
        where = f"{far.kernel} at {soak.described(far.shape)}"
        yield from too_fast(where, far.seconds * 1e6, far.shape, result.gpu.name)
    named = {one.kernel for part in (result.cases, result.beside, result.hammered, result.far) for one in part}
    yield from (f"kernel {key}: nothing describes it" for key in sorted(named - result.kernels.keys()))


def _accuracy(path: Path) -> list[str]:
    """Errors by iteration: those beyond their bounds, missing ones, and kernels whose machine code no lock holds."""
    found, document = list(beyond_bounds(cells(load_errors(path)))), read_json(path)
    steps: dict[str, set[str]] = {dtype: set() for dtype in DTYPES}
    for key, one in document["kernels"].items():
        steps.setdefault(KernelConfig.parse(one["config"]).dtype, set()).add(str(one["iteration"]))
        locked = find_locked(read_lock(one["arch"]), int(one["iteration"]), one["config"])
        if locked is None or locked.text_sha256 != one["text_sha256"]:
            found.append(f"kernel {key}: is not the locked machine code")
    drawn = Counter((one["dtype"], one["inputs"], one["seq_len"], one["seed"]) for one in document["records"])
    for what, seq_len, seed in {one[1:] for one in drawn}:
        lost = [dtype for dtype in DTYPES if drawn[dtype, what, seq_len, seed] != 1]
        found += [f"{dtype} {what} S={seq_len}, seed {seed}: expected once" for dtype in lost]
    for one in document["records"]:
        where = f"{one['dtype']} {one['inputs']} S={one['seq_len']}"
        if {arm for arm in one["errors"] if arm.isdigit()} != steps.get(one["dtype"]):
            found.append(f"{where}: expected errors of iterations {', '.join(sorted(steps[one['dtype']]))}")
        wrong = [arm for arm, (most, rms) in one["errors"].items() if not 0 < rms <= most]
        found += [f"{where}: errors of {arm} cannot be" for arm in wrong]
    return found


def grid_note(sweep: Sweep) -> str | None:
    """Why completeness is not checked: the sweep's grid file is missing or has changed. None: it is the same."""
    path = GRIDS / f"{sweep.grid}.yaml"
    if not path.is_file():
        return f"no grid {sweep.grid} in {relative(GRIDS)}, so that its completeness is not checked"
    return None if sha256(path.read_bytes()) == sweep.grid_sha256 else f"{relative(path)} was changed since"


def _sweep(result: Swept) -> Iterator[str]:
    """Cells of the grid that are missing, repeated or not planned, or whose address does not follow from them."""
    if (sweep := result.sweep) is None:
        return
    settings = _settings(result)
    failed = {failure.address for failure in sweep.failures}
    yield from (f"cell {line}" for line in _unplanned(sweep))
    for cell in sweep.planned:
        if (address := address_of(cell, cell.code, settings)) != cell.address:
            yield f"cell {title(cell)}: address {cell.address} does not follow from it: expected {address}"
        if cell.address not in failed:
            yield from (f"cell {title(cell)}: {line}" for line in _of_cell(cell, result))
    yield from _counted(result, sweep, failed)


def _unplanned(sweep: Sweep) -> Iterator[str]:
    """Cells that the grid file names and the document lacks, without libraries that are nowhere in the document.

    Such a library was not installed. Configurations are not compared: a later tuning run may have changed them.
    """
    if grid_note(sweep):
        return
    planned = {(cell.subject, cell.dtype, cell.toolchain, cell.shape) for cell in sweep.planned}
    subjects = {subject for subject, *_ in planned}
    for one in _cells_of_grid(sweep.grid):
        subject, dtype, _, shape = one
        absent_library = subject in BACKENDS and subject != FA2 and subject not in subjects
        if not absent_library and one not in planned:
            yield f"{_series(subject, dtype, shape)}: is of the grid {sweep.grid}, and missing"


@cache  # several documents share a grid, and reading one takes 0.1 s
def _cells_of_grid(name: str) -> tuple[tuple[str, str, str, Shape], ...]:
    return tuple(dict.fromkeys((one.subject, one.dtype, one.toolchain, one.shape) for one in wanted(load_grid(name))))


def key_of(cell: PlannedCell) -> str:
    """How series name what a cell measures."""
    if cell.subject == FA2:
        return A_A
    if not cell.config:
        return cell.subject
    number = re.match(r"\d*", cell.subject, re.ASCII)
    digits = number[0] if number else ""
    variant = cell.subject.removeprefix(digits) + (f" cuda {cell.toolchain}" if cell.toolchain else "")
    return kernel_key(int(digits or 0), cell.config, variant)


def _settings(result: Swept) -> Settings:
    if isinstance(result, EmulatedSweepResult):
        return Settings(CPU, "emulator", protocol=result.protocol_version)
    mode = "tune" if result.purpose == "tune" else result.mode
    own, machine = result.settings, machine_name(result.gpu.name)
    return Settings(machine, mode, own.pairs, own.blocks, own.min_pairs, protocol=result.protocol_version)


def _of_cell(cell: PlannedCell, result: Swept) -> Iterator[str]:
    if not cell.config:
        if isinstance(result, BenchResult) and cell.subject != FA2 and cell.subject not in result.references:
            yield f"the result does not say which {cell.subject} this is"
    elif (kernel := result.kernels.get(key_of(cell))) is None:
        yield "the result does not say which machine code this is"
    else:
        if (code := kernel.text_sha256 or kernel.build) != cell.code:
            yield f"code {str(code)[:12]}, planned {cell.code[:12] or 'none'}"
        if kernel.dtype != cell.dtype:
            yield f"dtype {cell.dtype}, of a kernel for {kernel.dtype}"


def _counted(result: Swept, sweep: Sweep, failed: set[str]) -> Iterator[str]:
    """Each cell is measured once, a failed one never; a tuning run times the survivors of a rung again."""
    if isinstance(result, EmulatedSweepResult):
        names = {cell.address: cell.address for cell in sweep.planned}
        measured = Counter(cell.address for cell in result.cells)
        wrong = (cell.address for cell in result.cells if cell.hazards or not cell.accuracy.ok)
        yield from (f"cell {address}: wrong, and no failure" for address in wrong)
    else:
        names = {cell.address: _series(key_of(cell), cell.dtype, cell.shape) for cell in sweep.planned}
        every = ((series, group) for group in result.groups for series in group.series if series.pairs)
        measured = Counter(_series(series.kernel, group.dtype, group.shape) for series, group in every)
    again = isinstance(result, BenchResult) and result.purpose == "tune"
    for cell in sweep.planned:
        n, due = measured[names[cell.address]], int(cell.address not in failed)
        if n != due and not (again and n > due > 0):
            yield f"cell {title(cell)}: measured {n} times, expected {due}" + ", as it failed" * (not due)
    planned = Counter(names.values())
    yield from (f"{name}: planned twice" for name, n in planned.items() if n > 1)
    yield from (f"{name}: measured, not planned" for name in measured if name not in planned)


def _series(kernel: str, dtype: str, shape: Shape) -> str:
    return f"{kernel} {dtype} S={shape.seq_len} B={shape.batch} H={shape.n_heads} D={shape.d_head}"


def draw(result: BenchResult, n_cells: int, seed: int, digest: str) -> Drawn:
    """Draws `n_cells` cells of the ladder's kernels by the seed and the file's digest; kernels by dtype and shape.

    Raises:
        FlashladderError: the file has no such cell, or `n_cells` is less than 1.
    """
    known = [one for one in result.summaries if one.kernel in result.kernels and not result.kernels[one.kernel].variant]
    if not known or n_cells < 1:
        expected = "a benchmark of the ladder's kernels, and --cells of 1 or more"
        raise FlashladderError("no cell to time again", expected=expected)
    cells = random.Random(f"{digest} {seed}").sample(known, min(n_cells, len(known)))  # noqa: S311 - a choice of cells
    drawn: Drawn = {}
    for cell in sorted(cells, key=lambda one: (one.dtype, one.shape.seq_len, one.kernel)):
        drawn.setdefault((cell.dtype, cell.shape), []).append(result.kernels[cell.kernel])
    return drawn


def rerun(path: Path, n_cells: int, seed: int, timer: Timer | None = None) -> Outcome:
    """Times some of a file's cells again and compares: within tolerances on the same GPU model, by rank on another.

    `timer` times them; None: this machine's GPU.

    Raises:
        FlashladderError: no GPU, no such wheel, a file of another kind, or a tuning run.
    """
    expected = load_as(path, BenchResult)
    if expected.purpose != "report":
        raise FlashladderError("a tuning run, whose pairs are too few to compare", where=relative(path))
    drawn = draw(expected, n_cells, seed, identity(path)[2])
    found = (timer or time_on_this_gpu)(drawn)
    n_drawn = sum(map(len, drawn.values()))
    if found.gpu.name == expected.gpu.name:
        lines, n = same_model(expected, found.model_copy(update={"means": ()}), (path.name, "rerun"))
        lines = lines if n == n_drawn else [*lines, f"{n_drawn - n} cells gave no figure"]
        compared = "within the tolerances of the same model"
    else:
        lines, correlation = in_rank_order(expected, found)
        compared = f"another model than {expected.gpu.name}: {correlation}"
    where = f"{n_drawn} of {len(expected.summaries)} cells timed again on this {found.gpu.name}, seed {seed}"
    return outcome(relative(path), (*problems(found), *lines), f"{where}, {compared}")


def file_to_rerun(path: Path | None, gpu_name: str) -> Path:
    """The file to time again: `path` itself, the benchmark in the folder `path`, or that of this GPU's model.

    Raises:
        FlashladderError: there is none.
    """
    if path is not None and path.is_file():
        return path
    folder = path or RESULTS / machine_name(gpu_name)
    own = [one for one in bench_files(folder.parent) if one.parent.name == folder.name]
    swept = folder / f"{folder.name}.json.gz"
    if own or swept.is_file():
        return own[0] if own else swept
    what, expected = "nothing to time again", "a file bench*.json.gz, or a sweep of the ladder"
    hint = f"name a file; this GPU is {gpu_key(gpu_name) or gpu_name}"
    raise FlashladderError(what, where=relative(folder), expected=expected, found="none", hint=hint)


def time_on_this_gpu(drawn: Drawn) -> BenchResult:
    """Times cells on torch's current GPU, by the protocol of `flashladder.bench`.

    Raises:
        FlashladderError: there is no GPU, another process measures on it, or a wheel or a configuration is missing.
    """
    from flashladder.bench.command import finish, new_result
    from flashladder.bench.references import kernel_subject
    from flashladder.bench.timing import bench_group, cuda_hardware, prepare
    from flashladder.build.wheel import load_installed
    from flashladder.gpu.device import exclusive, open_device

    device, plan = open_device(), Plan()
    subjects, kernels = {}, dict[str, Kernel]()
    for one in chain.from_iterable(drawn.values()):
        installed, config = load_installed(one.iteration), KernelConfig.parse(one.config)
        installed.require(config)
        subjects[one.key] = kernel_subject(one.iteration, config, installed.run)
        kernels[one.key] = installed.identity(config, device.gpu.arch)
    with exclusive(device.gpu.uuid):
        hardware, flush_bytes = cuda_hardware(device.telemetry.sample, device.gpu.l2_bytes)
        made = new_result(plan, device, kernels, flush_bytes)
        groups = tuple(
            bench_group(
                hardware, [subjects[one.key] for one in those], prepare(*place, plan), plan,
                process=0, warm_up_s=0.3 if index else 1.5,
            )
            for index, (place, those) in enumerate(drawn.items())
        )  # fmt: skip
        return finish(None, made.model_copy(update={"groups": groups}), device)


def rerun_here(path: Path | None, n_cells: int, seed: int) -> Outcome:
    """What ``invoke verify --rerun`` does.

    Raises:
        FlashladderError: as `rerun` and `file_to_rerun`; without a GPU before it reads anything.
    """
    from flashladder.gpu.device import open_device

    if path is not None:
        require_existing(path)
    return rerun(file_to_rerun(path, open_device().gpu.name), n_cells, seed)


def print_at_once(one: Outcome) -> None:
    """Prints the line of a file or check and one line per problem above a progress bar; does not buffer in a pipe."""
    head = f"{one.status:8s}{one.name}" + (f" ({one.summary})" if one.summary else "")
    with tqdm.external_write_mode():
        say("\n".join([head, *(f"        {line}" for line in one.details)]))


def verify_and_tell(
    named: str = "", *, again: bool = False, n_cells: int = DRAWN[0], seed: int = DRAWN[1], as_json: bool = False
) -> int:
    """Verifies a file or a folder (default: the results of all machines) and prints; exit code 1 if one does not hold.

    `named` is the path of a result file, or of a folder of them. With `again` this GPU also times `n_cells` cells,
    drawn by `seed` (`rerun`). `as_json` prints all outcomes at the end, instead of a line for each file at once.

    Raises:
        FlashladderError: no such file, options that do not go together, or a rerun without a GPU.
    """
    if not again and (n_cells, seed) != DRAWN:
        raise FlashladderError("--cells and --seed are of a rerun", hint="add --rerun")
    if not named:
        require_checkout("verify without a path")
    elif not named.strip():
        raise FlashladderError("verify takes a path", expected="a result file or a folder", found=repr(named))
    path = Path(named) if named else None
    timed = [rerun_here(path, n_cells, seed)] if again else []
    found = verify(path or RESULTS) if as_json else verify(path or RESULTS, print_at_once)
    if as_json:
        every = [asdict(one) for one in (*found, *timed)]
        say(dump_json([{"path": fields.pop("name"), **fields} for fields in every]).rstrip())
    else:
        n_failed = sum(one.status == "failed" for one in found)
        files = f"{len(found)} file{'s' if len(found) > 1 else ''}"
        say(f"{n_failed} of {files} failed" if n_failed else f"{files} verified")
        for one in timed:
            print_at_once(one)
    return 1 if any(one.status == "failed" for one in (*found, *timed)) else 0
