"""Verifies result files: recomputes every number from the raw samples, without a GPU or compiler.

Summaries must follow from the samples, no cell of the grid may be missing, and the machine code of every kernel must be
locked. `invoke gate` verifies all committed documents.

Run: ``invoke verify``, ``invoke verify results/h200 --json``, ``invoke verify build/bench.json.gz``. With ``--rerun``
this GPU times some cells again. Exit code: 0 all checks passed, 1 a check failed, 2 nothing to verify, or no GPU.
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
from flashladder.arguments import within
from flashladder.bench import cross_checks
from flashladder.bench.references import BACKENDS, FA2
from flashladder.cases.inputs import cases_for, emulator_cases, layouts
from flashladder.check import soak
from flashladder.errors import FlashladderError, failures, require_checkout, say
from flashladder.files import dump_json, files_in, read_text, relative, sha256
from flashladder.gate.published import compare_ranks, compare_same_gpu
from flashladder.gpu.ncu import csv_beside, to_csv
from flashladder.gpu.sanitize import TOOLS
from flashladder.ladder.ablation import Subject, split_description
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import gpu_key
from flashladder.ladder.grid import load_grid
from flashladder.ladder.iteration import begun, load_iteration, load_runnable
from flashladder.lock.schema import LOCKS, find_locked, read_lock, refusal
from flashladder.names import DTYPES
from flashladder.paths import CONFIGS, RESULTS
from flashladder.problem import Problem
from flashladder.report.accuracy import beyond_bounds, cells, load_errors
from flashladder.report.data import bench_files
from flashladder.results import schema
from flashladder.results.derive import Plan, problems, too_fast
from flashladder.results.files import identity, load_as, load_result, machine_name, read_json
from flashladder.sweep.plan import CPU, Settings, address_of, title, wanted
from flashladder.sweep.records import Records

GRIDS = CONFIGS / "grids"
CHECKS = "check*.json.gz"
ACCURACY = "accuracy"  # prefix of accuracy files, which have a form of their own
RECORD = re.compile(r"([0-9a-f]{16})\.json\.gz")  # the record of a cell, in the folder of a running sweep
NAMED = re.compile(r"`([\w.]+\.(?:json\.gz|json|csv|log))`")  # a file name in the first column of a README's table
DEFAULT_SAMPLE = (8, 0)  # cells and seed of a rerun

Swept = schema.BenchResult | schema.EmulatedSweepResult
Sample = dict[tuple[str, Problem], list[schema.Kernel]]  # kernels by dtype and shape
Timer = Callable[[Sample], schema.BenchResult]


@dataclass(frozen=True)
class Outcome:
    """Outcome of a file or a check: ``ok``, ``failed`` or ``skipped``, what was compared, one line per problem."""

    name: str
    status: str
    summary: str = ""
    details: tuple[str, ...] = ()


def outcome(name: str, problems: Iterable[str], summary: str) -> Outcome:
    """``failed`` with each problem once, or ``ok``."""
    details = tuple(dict.fromkeys(problems))
    return Outcome(name, "failed" if details else "ok", summary, details)


def error_line(error: Exception) -> str:
    """An error on one line, with its type if another package raised it."""
    return str(error) if isinstance(error, failures()) else " ".join(f"{type(error).__name__}: {error}".split())


def verify(path: Path, tell: Callable[[Outcome], object] = lambda _: None) -> list[Outcome]:
    """Verifies every document of `path`: a file, a machine's folder or a folder of these.

    Calls `tell` with each outcome at once. A missing path, and one without a document, are errors.
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
        what = "not a regular file" if path.exists() else "no such result"
        raise FlashladderError(what, where=relative(path), expected="a result file or a folder of them")


def machine_folders() -> list[Path]:
    """Folders of the committed results that hold measurements of a machine."""
    return [one for one in files_in(RESULTS, "*") if one.is_dir() and any(files_in(one, "*.json.gz"))]


def documents(folder: Path) -> list[Path]:
    """The JSON files of a machine's folder, large ones first, to balance the worker processes."""
    files = {*files_in(folder, "*.json.gz"), *files_in(folder, "*.json")} if folder.is_dir() else ()
    return sorted(files, key=lambda path: (-path.stat().st_size, path.name))


def verify_file(path: Path) -> Outcome:
    """Verifies one file; the outcome of an unreadable file is ``failed``."""
    try:
        return outcome(relative(path), *_content(path))
    except Exception as error:  # noqa: BLE001 - a number of a damaged document may break any formula
        line = error_line(error).removeprefix(f"{relative(path)}: ")
        return Outcome(relative(path), "failed", "unreadable or damaged", (line,))


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
    checked = {case.kernel for path in files_in(folder, CHECKS) for case in load_as(path, schema.CheckResult).cases}
    timed = {path.name: load_as(path, schema.BenchResult).kernels for path in files_in(folder, "bench*.json.gz")}
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
    version, recorded, computed = identity(path)
    if version is None and path.name.startswith(ACCURACY):
        return _accuracy(path), "errors by iteration"
    if version is None:
        ours = RESULTS in path.resolve().parents or (path.parent / "README.md").is_file()
        if not ours or not isinstance(read_json(path), dict):
            load_result(path)  # its error names what is missing
        return [], "not a result document; only its JSON syntax was checked"
    result = load_result(path)
    lines = [] if recorded == computed else [f"content_sha256: recorded {recorded}, computed {computed}"]
    lines += [*_dtypes(result), *_machine_code(path, result), *_references(result), *_by_kind(path, result)]
    sweep: schema.Sweep | None = getattr(result, "sweep", None)
    note = grid_note(sweep) if sweep else None
    return lines, f"{_summary(result)}, schema {version}" + (f"; {note}" if note else "")


def _record(path: Path, address: str) -> tuple[list[str], str]:
    """The problems of one cell of a running sweep, and its title with the kind of its failure."""
    record = Records(path.parent).read(address)
    lines = problems(record.document) if isinstance(record.document, schema.BenchResult) else []
    failure = f": failed, {record.failure.kind}" if record.failure else ""
    return lines, f"record of a cell: {title(record.cell)}{failure}"


def _summary(result: schema.AnyResult) -> str:
    if isinstance(result, schema.SoakResult):
        return f"soak, {len(result.cases)} cases, {sum(one.launches for one in result.hammered):,} launches"
    counted = {"summaries": "cells", "agreements": "cells", "cells": "cells", "runs": "runs", "cases": "cases"}
    name = next((one for one in counted if hasattr(result, one)), "kernels")
    return f"{result.kind}, {len(getattr(result, name))} {counted.get(name, name)}"


def _dtypes(result: schema.AnyResult) -> Iterator[str]:
    """Kernels whose dtype is not their configuration's, and measurements whose dtype is not their kernel's."""
    for key, kernel in result.kernels.items():
        if kernel.dtype != (form := KernelConfig.parse(kernel.config).dtype):
            yield f"kernel {key}: expected dtype {form} (from the configuration), found {kernel.dtype}"
    for key, dtype in dict.fromkeys(_measured_as(result)):
        if key in result.kernels and result.kernels[key].dtype != dtype:
            yield f"{key}: measured as {dtype}, but the kernel is for {result.kernels[key].dtype}"


def _measured_as(result: schema.AnyResult) -> Iterator[tuple[str, str]]:
    """Kernel and dtype of each measurement."""
    timed = result.paired if isinstance(result, schema.SecondOpinionResult) else result
    if isinstance(timed, schema.BenchResult):
        yield from ((series.kernel, group.dtype) for group in timed.groups for series in group.series)
    elif isinstance(result, schema.CheckResult | schema.EmulatedCheckResult):
        yield from ((case.kernel, case.dtype) for case in result.cases)
    elif isinstance(result, schema.EnergyResult):
        yield from ((run.subject, run.dtype) for run in result.runs)
    elif isinstance(result, schema.SoakResult):
        yield from ((one.kernel, one.dtype) for part in (result.cases, result.hammered, result.far) for one in part)


def _machine_code(path: Path, result: schema.AnyResult) -> Iterator[str]:
    """Kernels whose machine code is not locked, or whose registers or spills differ from the lock's.

    Skips emulated kernels and candidates of a tuning run. Skips variants, too, but refuses them in bench files.
    """
    if isinstance(result, schema.EmulatedCheckResult | schema.EmulatedSweepResult):
        return
    folder = path.parent.parent / LOCKS.name
    folder = folder if folder.is_dir() else LOCKS
    locks = {arch: read_lock(arch, folder) for arch in {kernel.arch for kernel in result.kernels.values()}}
    tuned = isinstance(result, schema.BenchResult) and result.purpose == "tune"
    for key, kernel in result.kernels.items():
        if key != kernel.key:
            yield f"kernel {key}: its own fields give the key {kernel.key}"
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


def _references(result: schema.AnyResult) -> Iterator[str]:
    timed = result.paired if isinstance(result, schema.SecondOpinionResult) else result
    for name, one in getattr(timed, "references", {}).items():
        if name not in BACKENDS:
            yield f"reference {name}: expected one of {', '.join(BACKENDS)}"
        elif wrong := [kernel for kernel in one.kernels.values() if not re.search(BACKENDS[name].marks, kernel)]:
            yield f"reference {name}: kernel name does not match this library: {wrong[0][:80]}"


def _by_kind(path: Path, result: schema.AnyResult) -> Iterator[str]:
    """The problems that only this kind of document can have."""
    if isinstance(result, schema.BenchResult):
        yield from problems(result)
        yield from _sweep(result) if result.sweep else _missing_cells(result)
    elif isinstance(result, schema.EmulatedSweepResult):
        yield from _sweep(result)
    elif isinstance(result, schema.SecondOpinionResult):
        yield from (*cross_checks.problems(result), *_missing_cells(result.paired))
    elif isinstance(result, schema.CheckResult | schema.EmulatedCheckResult):
        yield from _cases(result)
    elif isinstance(result, schema.SanitizerResult):
        yield from _sanitizers(result)
    elif isinstance(result, schema.EnergyResult):
        for run in result.runs:
            where = f"{run.subject} {run.dtype} S={run.shape.seq_len}, turn {run.turn}"
            yield from too_fast(where, run.seconds / run.launches * 1e6, run.shape, result.gpu.name)
    elif isinstance(result, schema.SoakResult):
        yield from _soak(result)
    elif isinstance(result, schema.CounterResult):
        table = csv_beside(path)
        if table.is_file() and table.read_bytes() != to_csv(result).encode():
            yield f"{table.name}: differs from what {path.name} gives"


def _missing_cells(result: schema.BenchResult) -> Iterator[str]:
    """A run without a grid times every kernel at every shape of its dtype. Yields the cells that are missing."""
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


def _cases(result: schema.CheckResult | schema.EmulatedCheckResult) -> Iterator[str]:
    """Failed, missing, repeated, unknown or wrongly rejected cases. On a CPU the quick cases suffice."""
    yield from (f"{one.kernel} {one.case}: failed: {one.reason}" for one in result.cases if one.status == "fail")
    for key, kernel in result.kernels.items():
        config, stride = KernelConfig.parse(kernel.config), load_iteration(kernel.iteration).row_stride
        own = [case for case in result.cases if case.kernel == key]
        counts = Counter(case.case for case in own)
        required = {case.name: case for case in cases_for(config)}
        if isinstance(result, schema.EmulatedCheckResult):
            quick, required = (
                {one.name: one for one in emulator_cases(config, stride, quick=q)} for q in (True, False)
            )
            required = quick if counts.keys() <= quick.keys() else required
        yield from (f"{key}: case {name} is missing" for name in required if name not in counts)
        wrong = (name for name, n in counts.items() if name not in required or n > 1)
        yield from (f"{key}: case {name} is unknown or repeated" for name in wrong)
        rejected = (one.case for one in own if one.status == "not_applicable")
        for case in (required[name] for name in rejected if name in required):
            if not stride or {layout.seq for layout in layouts(case)} == {stride}:
                yield f"{key}: case {case.name} was rejected, but the kernel supports these row strides"


def _sanitizers(result: schema.SanitizerResult) -> Iterator[str]:
    """Sanitizer tools that did not run or found an error, and iterations that did not run."""
    ran = {kernel.iteration for kernel in result.kernels.values()}
    ladder = begun(load_runnable(result.gpu.arch), ran)
    yield from (f"no kernel of iteration {one.number} was run" for one in ladder if one.number not in ran)
    tools = [finding.tool for finding in result.findings]
    if sorted(tools) != sorted(TOOLS):
        yield f"tools: expected {', '.join(TOOLS)} once each, found {', '.join(tools) or 'none'}"
    yield from (f"{one.tool}: not clean, errors {one.errors}" for one in result.findings if not one.clean)


def _soak(result: schema.SoakResult) -> Iterator[str]:
    """The command's own problems, launches that are faster than the GPU's peaks allow, and unknown kernels."""
    yield from soak.problems(result)
    for far in result.far:
        where = f"{far.kernel} at {soak.described(far.shape)}"
        yield from too_fast(where, far.seconds * 1e6, far.shape, result.gpu.name)
    named = {one.kernel for part in (result.cases, result.beside, result.hammered, result.far) for one in part}
    yield from (
        f"kernel {key} has measurements, but no entry in `kernels`" for key in sorted(named - result.kernels.keys())
    )


def _accuracy(path: Path) -> list[str]:
    """Errors beyond their bounds, missing or repeated records, and kernels whose machine code is not locked."""
    found, document = list(beyond_bounds(cells(load_errors(path)))), read_json(path)
    steps: dict[str, set[str]] = {dtype: set() for dtype in DTYPES}
    for key, one in document["kernels"].items():
        steps.setdefault(KernelConfig.parse(one["config"]).dtype, set()).add(str(one["iteration"]))
        locked = find_locked(read_lock(one["arch"]), int(one["iteration"]), one["config"])
        if locked is None or locked.text_sha256 != one["text_sha256"]:
            found.append(f"kernel {key}: not the locked machine code")
    counts = Counter((one["dtype"], one["inputs"], one["seq_len"], one["seed"]) for one in document["records"])
    for what, seq_len, seed in {one[1:] for one in counts}:
        numbers = {dtype: counts[dtype, what, seq_len, seed] for dtype in DTYPES}
        where = f"{what} S={seq_len}, seed {seed}: expected one record, found"
        found += [f"{dtype} {where} {n}" for dtype, n in numbers.items() if n != 1]
    for one in document["records"]:
        where = f"{one['dtype']} {one['inputs']} S={one['seq_len']}"
        if {arm for arm in one["errors"] if arm.isdigit()} != steps.get(one["dtype"]):
            found.append(f"{where}: expected errors of iterations {', '.join(sorted(steps[one['dtype']]))}")
        wrong = [arm for arm, (most, rms) in one["errors"].items() if not 0 < rms <= most]
        found += [f"{where}: implausible errors of {arm}: need 0 < RMS <= max" for arm in wrong]
    return found


def grid_note(sweep: schema.Sweep) -> str | None:
    """Why completeness is not checked: the sweep's grid file is missing or has changed. None if it is unchanged."""
    path = GRIDS / f"{sweep.grid}.yaml"
    if not path.is_file():
        return f"no grid {sweep.grid} in {relative(GRIDS)}, so completeness was not checked"
    if sha256(path.read_bytes()) == sweep.grid_sha256:
        return None
    return f"{relative(path)} changed since this sweep, so completeness was not checked"


def _sweep(result: Swept) -> Iterator[str]:
    """Missing, repeated or unplanned cells, and cells with a wrong address (digest of the cell's description)."""
    if (sweep := result.sweep) is None:
        return
    settings = _settings(result)
    failed = {failure.address for failure in sweep.failures}
    yield from (f"cell {line}" for line in _missing_from_plan(sweep))
    for cell in sweep.planned:
        if (address := address_of(cell, cell.code, settings)) != cell.address:
            yield f"cell {title(cell)}: address {cell.address}, recomputed {address}"
        if cell.address not in failed:
            yield from (f"cell {title(cell)}: {line}" for line in _of_cell(cell, result))
    yield from _counted(result, sweep, failed)


def _missing_from_plan(sweep: schema.Sweep) -> Iterator[str]:
    """Grid cells that the document's plan lacks; ignores a library that has no cell at all (not installed).

    Configurations are not compared, because a later tuning run may have changed them.
    """
    if grid_note(sweep):
        return
    planned = {(cell.subject, cell.dtype, cell.toolchain, cell.shape) for cell in sweep.planned}
    subjects = {subject for subject, *_ in planned}
    for one in _cells_of_grid(sweep.grid):
        subject, dtype, _, shape = one
        absent_library = subject in BACKENDS and subject != FA2 and subject not in subjects
        if not absent_library and one not in planned:
            yield f"{_series(subject, dtype, shape)}: in grid {sweep.grid}, but missing here"


@cache  # several documents share a grid, and reading one takes 0.1 s
def _cells_of_grid(name: str) -> tuple[tuple[str, str, str, Problem], ...]:
    return tuple(dict.fromkeys((one.subject, one.dtype, one.toolchain, one.shape) for one in wanted(load_grid(name))))


def key_of(cell: schema.PlannedCell) -> str:
    """The series key of a cell."""
    if cell.subject == FA2:
        return schema.A_A
    if not cell.config:
        return cell.subject
    subject = Subject(*split_description(cell.subject), cell.toolchain)
    return schema.kernel_key(subject.number, cell.config, subject.variant)


def _settings(result: Swept) -> Settings:
    if isinstance(result, schema.EmulatedSweepResult):
        return Settings(CPU, "emulator", protocol=result.protocol_version)
    mode = "tune" if result.purpose == "tune" else result.mode
    own, machine = result.settings, machine_name(result.gpu.name)
    return Settings(machine, mode, own.pairs, own.blocks, own.min_pairs, protocol=result.protocol_version)


def _of_cell(cell: schema.PlannedCell, result: Swept) -> Iterator[str]:
    if not cell.config:
        if isinstance(result, schema.BenchResult) and cell.subject != FA2 and cell.subject not in result.references:
            yield f"no version recorded for reference {cell.subject}"
    elif (kernel := result.kernels.get(key_of(cell))) is None:
        yield "its kernel has no entry in `kernels`"
    else:
        if (code := kernel.text_sha256 or kernel.build) != cell.code:
            yield f"code {str(code)[:12]}, planned {cell.code[:12] or 'none'}"
        if kernel.dtype != cell.dtype:
            yield f"dtype {cell.dtype}, but the kernel is for {kernel.dtype}"


def _counted(result: Swept, sweep: schema.Sweep, failed: set[str]) -> Iterator[str]:
    """Cells that are not measured exactly once, and failed cells that are measured at all.

    A tuning run may measure a cell more than once, because each round times the survivors again.
    """
    if isinstance(result, schema.EmulatedSweepResult):
        names = {cell.address: cell.address for cell in sweep.planned}
        measured = Counter(cell.address for cell in result.cells)
        wrong = (cell.address for cell in result.cells if cell.hazards or not cell.accuracy.ok)
        yield from (f"cell {address}: races or wrong numbers, but not recorded as a failure" for address in wrong)
    else:
        names = {cell.address: _series(key_of(cell), cell.dtype, cell.shape) for cell in sweep.planned}
        every = ((series, group) for group in result.groups for series in group.series if series.pairs)
        measured = Counter(_series(series.kernel, group.dtype, group.shape) for series, group in every)
    tuning = isinstance(result, schema.BenchResult) and result.purpose == "tune"
    for cell in sweep.planned:
        n = measured[names[cell.address]]
        if cell.address in failed and n:
            yield f"cell {title(cell)}: recorded as failed, but measured {n} times"
        elif cell.address not in failed and n != 1 and not (tuning and n):
            yield f"cell {title(cell)}: measured {n} times, expected 1"
    planned = Counter(names.values())
    yield from (f"{name}: planned twice" for name, n in planned.items() if n > 1)
    yield from (f"{name}: measured, not planned" for name in measured if name not in planned)


def _series(kernel: str, dtype: str, shape: Problem) -> str:
    sizes = f"S={shape.seq_len} B={shape.batch} H={shape.n_heads} D={shape.d_head}"
    return ", ".join(filter(None, (f"{kernel} {dtype} {sizes}", shape.kind)))


def draw(result: schema.BenchResult, n_cells: int, seed: int, digest: str) -> Sample:
    """A random sample of cells, reproducible from seed and file digest. Returns kernels grouped by (dtype, shape).

    A file without such a cell, and `n_cells` less than 1, are errors.
    """
    known = [one for one in result.summaries if one.kernel in result.kernels and not result.kernels[one.kernel].variant]
    if not known or n_cells < 1:
        expected = "a benchmark of the ladder's kernels, and --cells of 1 or more"
        raise FlashladderError("no cell to time again", expected=expected)
    cells = random.Random(f"{digest} {seed}").sample(known, min(n_cells, len(known)))  # noqa: S311 - a choice of cells
    sample: Sample = {}
    for cell in sorted(cells, key=lambda one: (one.dtype, one.shape.seq_len, one.kernel)):
        sample.setdefault((cell.dtype, cell.shape), []).append(result.kernels[cell.kernel])
    return sample


def rerun(path: Path, n_cells: int, seed: int, timer: Timer | None = None) -> Outcome:
    """Times some of a file's cells again and compares: with tolerances on the same GPU model, by rank on another.

    `timer` times the cells; None: this machine's GPU. A missing GPU or wheel, a file of another kind, and a tuning run
    are errors.
    """
    expected = load_as(path, schema.BenchResult)
    if expected.purpose != "report":
        raise FlashladderError("a tuning run has too few pairs to compare", where=relative(path))
    sample = draw(expected, n_cells, seed, identity(path)[2])
    found = (timer or time_on_this_gpu)(sample)
    n_drawn = sum(map(len, sample.values()))
    if found.gpu.name == expected.gpu.name:
        lines, n = compare_same_gpu(expected, found.model_copy(update={"means": ()}), (path.name, "rerun"))
        lines = lines if n == n_drawn else [*lines, f"{n_drawn - n} cells have no valid timing"]
        compared = "compared with the tolerances for the same GPU model"
    else:
        lines, correlation = compare_ranks(expected, found)
        compared = f"another GPU model than the file's ({expected.gpu.name}), so ranks are compared: {correlation}"
    where = f"{n_drawn} of {len(expected.summaries)} cells timed again on this {found.gpu.name}, seed {seed}"
    return outcome(relative(path), (*problems(found), *lines), f"{where}, {compared}")


def file_to_rerun(path: Path | None, gpu_name: str) -> Path:
    """The file to time again: `path`, the benchmark in that folder, or this GPU model's; `FlashladderError`: none."""
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


def time_on_this_gpu(sample: Sample) -> schema.BenchResult:
    """Times cells on torch's current GPU, by the protocol of `flashladder.bench`.

    It is an error if there is no GPU, another process uses it, or a wheel or a configuration is missing.
    """
    from flashladder.bench.command import finish, new_result
    from flashladder.bench.references import kernel_subject
    from flashladder.bench.timing import bench_group, cuda_hardware, prepare
    from flashladder.build.wheel import load_installed
    from flashladder.gpu.device import exclusive, open_device

    device, plan = open_device(), Plan()
    subjects, kernels = {}, dict[str, schema.Kernel]()
    for one in chain.from_iterable(sample.values()):
        installed, config = load_installed(one.iteration), KernelConfig.parse(one.config)
        installed.require(config)
        subjects[one.key] = kernel_subject(one.iteration, config, installed.run)
        kernels[one.key] = installed.identity(config, device.gpu.arch)
    with exclusive(device.gpu.uuid):
        hardware, flush_bytes = cuda_hardware(device.telemetry.sample, device.gpu.l2_bytes)
        made = new_result(plan, device, kernels, flush_bytes)
        groups = tuple(
            bench_group(
                hardware, [subjects[one.key] for one in kernels_here], prepare(dtype, shape, plan), plan,
                process=0, warm_up_s=0.3 if index else 1.5,
            )
            for index, ((dtype, shape), kernels_here) in enumerate(sample.items())
        )  # fmt: skip
        return finish(None, made.model_copy(update={"groups": groups}), device)


def rerun_here(path: Path | None, n_cells: int, seed: int) -> Outcome:
    """``invoke verify --rerun``; errors as `rerun` and `file_to_rerun`, of a missing GPU before any file is read."""
    from flashladder.gpu.device import open_device

    if path is not None:
        require_existing(path)
    return rerun(file_to_rerun(path, open_device().gpu.name), n_cells, seed)


def print_at_once(one: Outcome) -> None:
    """Prints the line of a file or check and one line per problem above a progress bar; flushes, also into a pipe."""
    head = f"{one.status:8s}{one.name}" + (f" ({one.summary})" if one.summary else "")
    with tqdm.external_write_mode():
        say("\n".join([head, *(f"        {line}" for line in one.details)]))


def verify_and_tell(named: str, *, rerun: bool, n_cells: int, seed: int, as_json: bool) -> int:
    """Verifies and prints; exit code 1 if a check failed.

    `named`: a result file or a folder of them; empty: the results of all machines. With `rerun` this GPU also times a
    random sample of `n_cells` cells. `as_json` prints all outcomes at the end, instead of a line per file at once. A
    missing file, `--cells` or `--seed` without `--rerun`, and a rerun without a GPU are errors.
    """
    if not rerun and (n_cells, seed) != DEFAULT_SAMPLE:
        raise FlashladderError("--cells and --seed need --rerun")
    within("cells", n_cells)
    within("seed", seed, least=0)
    if not named:
        require_checkout("verify without a path")
    elif not named.strip():
        raise FlashladderError("verify takes a path", expected="a result file or a folder", found=repr(named))
    path = Path(named) if named else None
    timed = [rerun_here(path, n_cells, seed)] if rerun else []
    found = verify(path or RESULTS) if as_json else verify(path or RESULTS, print_at_once)
    if as_json:
        every = [asdict(one) for one in (*found, *timed)]
        say(dump_json([{"path": fields.pop("name"), **fields} for fields in every]).rstrip())
    else:
        n_failed = sum(one.status == "failed" for one in found)
        plural = "s" if len(found) > 1 else ""
        # Only a folder that failed has an outcome of its own: without failures each outcome is a file's.
        say(f"{n_failed} of {len(found)} check{plural} failed" if n_failed else f"{len(found)} file{plural} verified")
        for one in timed:
            print_at_once(one)
    return 1 if any(one.status == "failed" for one in (*found, *timed)) else 0
