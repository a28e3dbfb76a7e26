"""What the gate asks of result files: each function takes a path and returns one line per thing that is wrong.

With the lines comes how many things were compared (`gate_outcome.Found`).

Why apart from `flashladder.gate.command`: that module decides what is run and how it is told; here is what makes
committed samples, checks, sanitizer runs and counters believable. Nothing here needs a GPU or a compiler.

Nothing to run here; `invoke gate` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from flashladder.cases.inputs import cases_for, layouts
from flashladder.emulate import agreement as emulator_agreement
from flashladder.emulate.reading import NAME as READING_NAME
from flashladder.emulate.reading import load_reading, stale
from flashladder.errors import FlashladderError
from flashladder.files import files_in, relative
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import begun, load_all, load_iteration, load_runnable
from flashladder.lock.refusal import refusal
from flashladder.lock.schema import LOCKS, read_lock
from flashladder.report.data import SECOND
from flashladder.results import machine, published, signature
from flashladder.results.differences import Found
from flashladder.results.files import SEAL, SIGNATURE, load_as, seal_problems
from flashladder.results.schema import BenchResult, CaseResult, CheckResult, CounterResult, Kernel, SanitizerResult

CHECK = "check.json.gz"  # the ladder's; steps that came later may have a file of their own beside it
CHECKS = "check*.json.gz"


def published_problems(folder: Path) -> Found:
    """Published CSV files that are not the bytes that were taken over."""
    return Found(published.problems(folder), len(files_in(folder, "*.csv")))


def sealed_problems(folder: Path) -> Found:
    """Files of a machine's folder that are not as sealed, and a signature that does not hold."""
    found = [*seal_problems(folder), *signature.check(folder).problems]
    return Found(found, sum(path.is_file() and path.name not in (SEAL, SIGNATURE) for path in files_in(folder)))


def agreement_problems(path: Path) -> Found:
    """Hardware counters that the emulator does not find."""
    return Found(emulator_agreement.problems(path, load_reading(reading_beside(path))), len(load_all()))


def reading_beside(path: Path) -> Path:
    """The emulator's reading of the same results folder."""
    return path.parent.parent / READING_NAME


def reading_problems(path: Path) -> Found:
    """Races in the emulator's reading, PTX that is not locked, and a table beside it that is not what it gives."""
    reading = load_reading(path)
    return Found([*emulator_agreement.reading_problems(path), *stale(reading, path)], len(reading.kernels))


def sampled_files(folder: Path) -> list[Path]:
    """Committed timings: benchmarks, the same on other cards, tuning runs, then others that ``machine.json`` names."""
    names = ("bench", SECOND, "tune")
    found = [path for name in names for path in files_in(folder, f"*/{name}*.json.gz")]
    for one in machine_folders(folder):
        if (one / machine.NAME).is_file():
            kinds = {name: document.kind for name, document in machine.load(one).documents.items()}
            found += [one / name for name, kind in kinds.items() if kind == "bench" and (one / name).is_file()]
    return list(dict.fromkeys(found))


def checked_folders(folder: Path) -> list[Path]:
    """Machine folders that hold a benchmark, and so need a check beside it, or a check alone."""
    return sorted({path.parent for name in ("bench*.json.gz", CHECKS) for path in files_in(folder, f"*/{name}")})


def machine_folders(folder: Path) -> list[Path]:
    """Folders with measurements, or with a seal or a ``machine.json`` that tells of some."""
    return sorted({path.parent for name in ("*.json.gz", SEAL, machine.NAME) for path in files_in(folder, f"*/{name}")})


def sample_problems(path: Path) -> Found:
    """Impossible times, and summaries that do not follow from the raw samples (a tuning run needs no lock)."""
    from flashladder.results.derive import problems

    result = load_as(path, BenchResult)
    return Found(_led(path, problems(result)), len(result.summaries) + len(result.means))


def checks_of(folder: Path) -> CheckResult:
    """The numerical checks of a machine's folder, those of all its files together.

    Raises:
        FlashladderError: there is none, or one is of another GPU model.
    """
    first, *others = [load_as(path, CheckResult) for path in files_in(folder, CHECKS) or [folder / CHECK]]
    if found := {one.gpu.name for one in others} - {first.gpu.name}:
        raise FlashladderError("checks of another GPU", where=relative(folder), expected=first.gpu.name, found=found)
    kernels = {key: kernel for one in (first, *others) for key, kernel in one.kernels.items()}
    cases = tuple(case for one in (first, *others) for case in one.cases)
    return first.model_copy(update={"kernels": kernels, "cases": cases})


def check_problems(folder: Path) -> Found:
    """Failed cases, machine code that is not locked, and timed kernels without their full set of cases."""
    path = folder / CHECK
    result = checks_of(folder)
    checked = {kernel.key for kernel in result.kernels.values()}
    found = unlocked(path, result.kernels.values())
    found += [f"{case.kernel} {case.case}: failed: {case.reason}" for case in result.cases if case.status == "fail"]
    for timed in files_in(folder, "bench*.json.gz"):
        for kernel in load_as(timed, BenchResult).kernels.values():
            if kernel.key not in checked:
                found.append(f"{kernel.key}: timed in {timed.name}, but not checked")
                continue
            found += _case_problems(kernel, [case for case in result.cases if case.kernel == kernel.key])
    return Found(_led(path, dict.fromkeys(found)), len(result.cases))


def _case_problems(kernel: Kernel, cases: Sequence[CaseResult]) -> list[str]:
    """Cases that a kernel lacks, has twice or should not have, and cases that it refused without need."""
    stride = load_iteration(kernel.iteration).row_stride
    wanted = {case.name: case for case in cases_for(KernelConfig.parse(kernel.config))}
    names = Counter(case.case for case in cases)
    found = [f"{kernel.key}: case {name} is missing" for name in wanted if name not in names]
    found += [f"{kernel.key}: case {name} is unknown or repeated" for name in names - Counter(wanted.keys())]
    for case in cases:
        if case.status != "not_applicable" or case.case not in wanted:
            continue
        if not stride or {layout.seq for layout in layouts(wanted[case.case])} == {stride}:
            found.append(f"{kernel.key}: case {case.case} was refused, expected pass: it takes such row strides")
    return found


def sanitizer_problems(path: Path) -> Found:
    """Tools that were not run or are not clean, iterations left out, and machine code that is not locked."""
    from flashladder.gpu.sanitize import TOOLS

    result = load_as(path, SanitizerResult)
    ran_kernels = {kernel.iteration for kernel in result.kernels.values()}
    ladder = begun(load_runnable(result.gpu.arch), ran_kernels)
    found = [f"no kernel of iteration {one.number} was run" for one in ladder if one.number not in ran_kernels]
    ran = [finding.tool for finding in result.findings]
    if sorted(ran) != sorted(TOOLS):
        found.append(f"tools: expected {', '.join(TOOLS)} once each, found {', '.join(ran) or 'none'}")
    found += [f"{one.tool}: not clean, errors {one.errors}" for one in result.findings if not one.clean]
    return Found(_led(path, found + unlocked(path, result.kernels.values())), len(result.kernels))


def counter_table_problems(path: Path) -> Found:
    """Whether the CSV beside the readings is what they give."""
    from flashladder.gpu.ncu import csv_beside, to_csv

    table = csv_beside(path)
    found = table.read_bytes() if table.is_file() else None
    result = load_as(path, CounterResult)
    problems = unlocked(path, result.kernels.values())
    if found != to_csv(result).encode():
        what = "is missing" if found is None else f"differs from what {path.name} gives"
        problems = [f"{relative(table)}: {what}", *problems]
    return Found(problems, len(result.counters))


def unlocked(path: Path, kernels: Iterable[Kernel]) -> list[str]:
    """Kernels whose machine code is not the locked one (`report_data.refusal`), by the locks beside the folder."""
    kernels = tuple(kernels)
    folder = path.parent.parent / LOCKS.name
    folder = folder if folder.is_dir() else LOCKS
    locks = {arch: read_lock(arch, folder) for arch in {kernel.arch for kernel in kernels}}
    reasons = ((kernel.key, refusal(kernel, locks[kernel.arch])) for kernel in kernels)
    return [f"{key}: {reason}" for key, reason in reasons if reason]


def _led(path: Path, lines: Iterable[str]) -> list[str]:
    """Each line led by the name of its file."""
    return [f"{relative(path)}: {line}" for line in lines]
