"""Is a result what it says? Every number of a document is derived again, without a GPU and without a compiler.

A document is a function of its raw samples: its summaries must follow from them, every cell of its grid must be there,
and every kernel must be the machine code that a lock holds. `invoke gate` asks the same of all committed documents.

Run: ``invoke verify``, ``invoke verify results/h200 --json``, ``invoke verify build/bench.json.gz``; with ``--rerun``
some cells are timed again on this GPU. Exit code: 0 all hold, 1 something does not, 2 nothing to verify, or no GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
import random
import re

from tqdm import tqdm

from flashladder import parallel
from flashladder.bench import cross_checks
from flashladder.bench.references import BACKENDS, FA2
from flashladder.cases.inputs import cases_for, emulator_cases, layouts
from flashladder.errors import FlashladderError, require_checkout, say
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
ACCURACY = "accuracy"  # how files begin that hold errors by iteration; they have a form of their own
RECORD = re.compile(r"([0-9a-f]{16})\.json\.gz")  # of a cell, in the folder of a live sweep
NAMED = re.compile(r"`([\w.]+\.(?:json\.gz|json|csv|log))`")  # a file, in the first column of a folder's README
DRAWN = (8, 0)  # cells and seed of a rerun, where none are given

Swept = BenchResult | EmulatedSweepResult
Place = tuple[str, Shape]  # dtype and shape
Drawn = dict[Place, list[Kernel]]
Timer = Callable[[Drawn], BenchResult]


@dataclass(frozen=True)
class Outcome:
    """A file or a check: ``ok``, ``failed`` or ``skipped``, what was compared, and a line per thing that is wrong."""

    name: str
    status: str
    summary: str = ""
    details: tuple[str, ...] = ()


def outcome(name: str, problems: Iterable[str], summary: str) -> Outcome:
    """``failed`` with the problems, each once, or ``ok``."""
    details = tuple(dict.fromkeys(problems))
    return Outcome(name, "failed" if details else "ok", summary, details)


def verify(path: Path, tell: Callable[[Outcome], object] = lambda _: None) -> list[Outcome]:
    """Every document of `path`: a file, a machine's folder, or a folder of these; `tell` gets each as it is known.

    Raises:
        FlashladderError: there is no such path, or nothing to verify in it.
    """
    where = relative(path)
    if path.is_file():
        if not path.name.endswith((".json", ".json.gz")):
            raise FlashladderError("not a result", where=where, expected="a name that ends in .json or .json.gz")
        found = [verify_file(path)]
        tell(found[0])
        return found
    if not path.is_dir():
        raise FlashladderError("no such result", where=where, expected="a result file or a folder of them")
    every = (path, *files_in(path, "*"))
    folders = machine_folders() if path.resolve() == RESULTS else [one for one in every if documents(one)]
    if not folders:
        expected = "result files in it, or in a folder of it"
        raise FlashladderError("nothing to verify", where=where, expected=expected, found="none")
    found = parallel.over(verify_file, [one for folder in folders for one in documents(folder)], "verify", tell)
    for one in (one for folder in folders for one in verify_folder(folder)):
        tell(one)
        found.append(one)
    return found


def machine_folders() -> list[Path]:
    """Folders of the committed results that hold measurements of a machine."""
    return [one for one in files_in(RESULTS, "*") if one.is_dir() and any(files_in(one, "*.json.gz"))]


def documents(folder: Path) -> list[Path]:
    """The JSON files of a machine's folder, large ones first, so that processes end together; none of a file."""
    files = {*files_in(folder, "*.json.gz"), *files_in(folder, "*.json")} if folder.is_dir() else ()
    return sorted(files, key=lambda path: (-path.stat().st_size, path.name))


def verify_file(path: Path) -> Outcome:
    """One file; an error of reading it is a line as well."""
    try:
        return outcome(relative(path), *_content(path))
    except Exception as error:  # noqa: BLE001 - what a damaged document holds may break any formula
        whole = str(error) if isinstance(error, FlashladderError) else f"{type(error).__name__}: {error}"
        told = " ".join(whole.removeprefix(f"{relative(path)}: ").split())
        return Outcome(relative(path), "failed", "cannot be read as what it says", (told,))


def verify_folder(folder: Path) -> list[Outcome]:
    """What no single document of a folder can tell: files that its README names, kernels timed and never checked."""
    page = folder / "README.md"
    lines = read_text(page).splitlines() if page.is_file() else []
    named = [name for line in lines if line.startswith("| `") for name in NAMED.findall(line.split("|")[1])]
    told = (f"named in {relative(page)}",)
    missing = [one for name in named if not (one := folder / name).is_file()]
    found = [Outcome(relative(one), "failed", "missing", told) for one in missing]
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
    """What is wrong with a file, and what it is, in words."""
    if record := RECORD.fullmatch(path.name):
        return _record(path, record[1])
    version, noted, found_digest = identity(path)
    if version is None and path.name.startswith(ACCURACY):
        return _accuracy(path), "errors by iteration"
    if version is None:
        ours = RESULTS in path.resolve().parents or (path.parent / "README.md").is_file()
        if not ours or not isinstance(read_json(path), dict):
            load_result(path)  # which says what is missing
        return [], "data of another form, read whole"
    result = load_result(path)
    lines = [] if noted == found_digest else [f"content_sha256: noted {noted}, found {found_digest}"]
    lines += [*_dtypes(result), *_machine_code(path, result), *_references(result), *_by_kind(path, result)]
    sweep: Sweep | None = getattr(result, "sweep", None)
    note = grid_note(sweep) if sweep else None
    return lines, f"{_told(result)}, schema {version}" + (f"; {note}" if note else "")


def _record(path: Path, address: str) -> tuple[list[str], str]:
    """One cell of a live sweep: whether its numbers follow from its samples, and what became of it."""
    record = Records(path.parent).read(address)
    document, told = record.document, f"record of a cell: {title(record.cell)}"
    lines = problems(document) if isinstance(document, BenchResult) else []
    return lines, f"{told}: failed, {record.failure.kind}" if record.failure else told


def _told(result: AnyResult) -> str:
    if isinstance(result, SoakResult):
        return f"soak, {len(result.cases)} cases, {sum(one.launches for one in result.hammered):,} launches"
    counted = {"summaries": "cells", "agreements": "cells", "cells": "cells", "runs": "runs", "cases": "cases"}
    name = next((one for one in counted if hasattr(result, one)), "kernels")
    return f"{result.kind}, {len(getattr(result, name))} {counted.get(name, name)}"


def _dtypes(result: AnyResult) -> Iterator[str]:
    """Kernels in another dtype than their configuration's, and measurements in another dtype than their kernel's."""
    own = {key: kernel.dtype for key, kernel in result.kernels.items()}
    for key, kernel in result.kernels.items():
        if kernel.dtype != (form := KernelConfig.parse(kernel.config).dtype):
            yield f"kernel {key}: dtype {kernel.dtype}, of a configuration for {form}"
    for key, dtype in dict.fromkeys(_measured_as(result)):
        if own.get(key, dtype) != dtype:
            yield f"{key}: measured as {dtype}, a kernel for {own[key]}"


def _measured_as(result: AnyResult) -> Iterator[tuple[str, str]]:
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
    """Kernels whose machine code no lock holds, or whose registers are not the lock's.

    Candidates of a tuning run and variants have no lock; the emulator runs PTX.
    """
    if isinstance(result, EmulatedCheckResult | EmulatedSweepResult):
        return
    folder = path.parent.parent / LOCKS.name
    locks = {
        arch: read_lock(arch, folder if folder.is_dir() else LOCKS)
        for arch in {kernel.arch for kernel in result.kernels.values()}
    }
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
    """What follows from the samples of a document of this kind, and does not."""
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
    """Cells of a run without a grid that are missing: every kernel is timed at every shape of its dtype."""
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
    """Failed cases, and cases that a kernel lacks, has twice, or refused without need; on a CPU short ones may do."""
    yield from (f"{one.kernel} {one.case}: failed: {one.reason}" for one in result.cases if one.status == "fail")
    names = Counter((one.kernel, one.case) for one in result.cases)
    refused = [(one.kernel, one.case) for one in result.cases if one.status == "not_applicable"]
    for key, kernel in result.kernels.items():
        config, stride = KernelConfig.parse(kernel.config), load_iteration(kernel.iteration).row_stride
        own = {name: n for (of, name), n in names.items() if of == key}
        due = {case.name: case for case in cases_for(config)}
        if isinstance(result, EmulatedCheckResult):
            short, due = ({one.name: one for one in emulator_cases(config, stride, quick=q)} for q in (True, False))
            due = short if own.keys() <= short.keys() else due
        yield from (f"{key}: case {name} is missing" for name in due if not names[key, name])
        yield from (f"{key}: case {name} is unknown or repeated" for name, n in own.items() if name not in due or n > 1)
        for _, name in (one for one in refused if one[0] == key and one[1] in due):
            if not stride or {layout.seq for layout in layouts(due[name])} == {stride}:
                yield f"{key}: case {name} was refused, expected pass: it takes such row strides"


def _sanitizers(result: SanitizerResult) -> Iterator[str]:
    """Tools that did not run or found something, and iterations that were left out."""
    ran = {kernel.iteration for kernel in result.kernels.values()}
    ladder = begun(load_runnable(result.gpu.arch), ran)
    yield from (f"no kernel of iteration {one.number} was run" for one in ladder if one.number not in ran)
    tools = [finding.tool for finding in result.findings]
    if sorted(tools) != sorted(TOOLS):
        yield f"tools: expected {', '.join(TOOLS)} once each, found {', '.join(tools) or 'none'}"
    yield from (f"{one.tool}: not clean, errors {one.errors}" for one in result.findings if not one.clean)


def _soak(result: SoakResult) -> Iterator[str]:
    """What went wrong, by the words of the command; launches faster than the GPU's peaks; kernels unknown."""
    from flashladder.check import soak  # it brings the emulator, a fifth of what this module takes to import

    yield from soak.problems(result)
    for far in result.far:
        where = f"{far.kernel} at B={far.shape.batch}, S={far.shape.seq_len}"
        yield from too_fast(where, far.seconds * 1e6, far.shape, result.gpu.name)
    named = {one.kernel for part in (result.cases, result.beside, result.hammered, result.far) for one in part}
    yield from (f"kernel {key}: nothing describes it" for key in sorted(named - result.kernels.keys()))


def _accuracy(path: Path) -> list[str]:
    """Errors that are larger than allowed, and kernels whose machine code no lock holds."""
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
    """Why a sweep is not held to its grid file: it is not here, or was changed since; None where it is the same."""
    path = GRIDS / f"{sweep.grid}.yaml"
    if not path.is_file():
        return f"no grid {sweep.grid} in {relative(GRIDS)}, so that its completeness is not checked"
    return None if sha256(path.read_bytes()) == sweep.grid_sha256 else f"{relative(path)} was changed since"


def _sweep(result: Swept) -> Iterator[str]:
    """Cells of the grid that are missing, doubled, not planned, or not what their address says."""
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
    """Cells that the grid file names and the document lacks; a library that is nowhere in it was not installed.

    Configurations are left out: a tuned one may have been entered since.
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


@cache  # several documents are of one grid, and it takes a tenth of a second to read
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
    """Cells against measurements: each once, or failed and not at all; a tuning run times survivors again."""
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
    """`n_cells` cells of the ladder's kernels by dtype and shape, chosen by the seed and the file's digest.

    Raises:
        FlashladderError: the file has no such cell, or fewer than one is asked for.
    """
    known = [one for one in result.summaries if one.kernel in result.kernels and not result.kernels[one.kernel].variant]
    if not known or n_cells < 1:
        told = "a benchmark of the ladder's kernels, and --cells of 1 or more"
        raise FlashladderError("no cell to time again", expected=told)
    drawn = random.Random(f"{digest} {seed}").sample(known, min(n_cells, len(known)))  # noqa: S311 - a choice of cells
    found: Drawn = {}
    for one in sorted(drawn, key=lambda one: (one.dtype, one.shape.seq_len, one.kernel)):
        found.setdefault((one.dtype, one.shape), []).append(result.kernels[one.kernel])
    return found


def rerun(path: Path, n_cells: int, seed: int, timer: Timer | None = None) -> Outcome:
    """Times some of a file's cells again and compares: within tolerances on the same GPU model, by rank on another.

    `timer` is what times them: this machine's GPU unless given.

    Raises:
        FlashladderError: no GPU, no such wheel, a file of another kind, or a tuning run.
    """
    expected = load_as(path, BenchResult)
    if expected.purpose != "report":
        raise FlashladderError("a tuning run, whose pairs are too few to compare", where=relative(path))
    drawn = draw(expected, n_cells, seed, identity(path)[2])
    found = (timer or time_on_this_gpu)(drawn)
    every = sum(len(kernels) for kernels in drawn.values())
    lines = problems(found)
    if found.gpu.name == expected.gpu.name:
        compared = same_model(expected, found.model_copy(update={"means": ()}), (path.name, "rerun"))
        lines += [*compared.problems, *[f"{every - compared.n} cells gave no figure"] * (compared.n < every)]
        told = "within the tolerances of the same model"
    else:
        ranked, low = in_rank_order(expected, found)
        told, lines = f"another model than {expected.gpu.name}: {ranked}", [*lines, *low]
    where = f"{every} of {len(expected.summaries)} cells timed again on this {found.gpu.name}, seed {seed}"
    return outcome(relative(path), lines, f"{where}, {told}")


def file_to_rerun(path: Path | None, gpu_name: str) -> Path:
    """The file that is meant: a benchmark itself, that of a folder, or that of this GPU's model.

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
    raise FlashladderError(
        "nothing to time again", where=relative(folder), expected="a file bench*.json.gz, or a sweep of the ladder",
        found="none", hint=f"name a file; this GPU is {gpu_key(gpu_name) or gpu_name}",
    )  # fmt: skip


def time_on_this_gpu(drawn: Drawn) -> BenchResult:
    """Times cells on torch's current GPU, by the protocol of `flashladder.bench`.

    Raises:
        FlashladderError: there is no GPU, another process measures on it, or a wheel or a configuration is missing.
    """
    from flashladder.bench.command import finish, new_result
    from flashladder.bench.references import Subject, kernel_subject
    from flashladder.bench.timing import bench_group, cuda_hardware, prepare
    from flashladder.build.wheel import load_installed
    from flashladder.gpu.device import exclusive, open_device

    device, plan = open_device(), Plan()
    work: list[tuple[Place, list[Subject]]] = []
    kernels: dict[str, Kernel] = {}
    for place, those in drawn.items():
        work.append((place, []))
        for one in those:
            installed, config = load_installed(one.iteration), KernelConfig.parse(one.config)
            installed.require(config)
            work[-1][1].append(kernel_subject(one.iteration, config, installed.run))
            kernels[work[-1][1][-1].key] = installed.identity(config, device.gpu.arch)
    with exclusive(device.gpu.uuid):
        hardware, flush_bytes = cuda_hardware(device.telemetry.sample, device.gpu.l2_bytes)
        made = new_result(plan, device, kernels, flush_bytes)
        groups = tuple(
            bench_group(hardware, subjects, prepare(*place, plan), plan, process=0, warm_up_s=0.3 if index else 1.5)
            for index, (place, subjects) in enumerate(work)
        )
        return finish(None, made.model_copy(update={"groups": groups}), device)


def rerun_here(path: Path | None, n_cells: int, seed: int) -> Outcome:
    """What ``invoke verify --rerun`` does.

    Raises:
        FlashladderError: as `rerun` and `file_to_rerun`; without a GPU before anything is read.
    """
    from flashladder.gpu.device import open_device

    if path is not None and not path.exists():
        raise FlashladderError("no such result", where=relative(path), expected="a result file or a folder of them")
    return rerun(file_to_rerun(path, open_device().gpu.name), n_cells, seed)


def print_at_once(one: Outcome) -> None:
    """Prints a line about a file or check and one per thing that is wrong, also into a pipe, above a progress bar."""
    head = f"{one.status:8s}{one.name}" + (f" ({one.summary})" if one.summary else "")
    with tqdm.external_write_mode():
        say("\n".join([head, *(f"        {line}" for line in one.details)]))


def verify_and_tell(
    named: str = "", *, again: bool = False, n_cells: int = DRAWN[0], seed: int = DRAWN[1], as_json: bool = False
) -> int:
    """Verifies a file or a folder, all machines' where none is named, and prints; exit code 1 when one does not hold.

    `named` is the path of a result file, or of a folder of them. With `again` it also times `n_cells` cells, drawn by
    `seed`, on this GPU (`rerun`). `as_json` prints when all is known, instead of a line for each file at once.

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
    n_failed = sum(one.status == "failed" for one in found)
    if as_json:
        every = [{"path": one.name, **asdict(one)} for one in (*found, *timed)]
        say(dump_json([{key: value for key, value in one.items() if key != "name"} for one in every]).rstrip())
    else:
        files = f"{len(found)} file{'s' if len(found) > 1 else ''}"
        say(f"{n_failed} of {files} failed" if n_failed else f"{files} verified")
        for one in timed:
            print_at_once(one)
    return 1 if any(one.status == "failed" for one in (*found, *timed)) else 0
