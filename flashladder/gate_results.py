"""What the gate asks of result files: each function takes a path and returns one line per thing that is wrong.

Why apart from `flashladder.gate`: that module decides what is run and how it is told; here is what makes committed
samples, checks, sanitizer runs and counters believable. Nothing here needs a GPU or a compiler.

Nothing to run here; `invoke gate` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from flashladder.check_case import cases_for
from flashladder.config import KernelConfig
from flashladder.files import relative
from flashladder.iteration import load_iteration
from flashladder.lock_schema import read_lock
from flashladder.report_data import refusal
from flashladder.result_schema import BenchResult, CaseResult, CheckResult, CounterResult, Kernel, SanitizerResult
from flashladder.results import load_as

CHECK = "check.json.gz"


def sampled_files(folder: Path) -> list[Path]:
    """Committed timings: benchmarks, then the tuning runs that chose configurations."""
    return [path for name in ("bench", "tune") for path in sorted(folder.glob(f"*/{name}*.json.gz"))]


def checked_folders(folder: Path) -> list[Path]:
    """Machine folders that hold a benchmark, and so need a check beside it, or a check alone."""
    return sorted({path.parent for name in ("bench*.json.gz", CHECK) for path in folder.glob(f"*/{name}")})


def machine_folders(folder: Path) -> list[Path]:
    """Folders with measurements."""
    return sorted({path.parent for path in folder.glob("*/*.json.gz")})


def sample_problems(path: Path) -> list[str]:
    """Impossible times, and summaries that do not follow from the raw samples (a tuning run needs no lock)."""
    from flashladder.summaries import problems

    return _led(path, problems(load_as(path, BenchResult)))


def check_problems(folder: Path) -> list[str]:
    """Failed cases, machine code that is not locked, and timed kernels without their full set of cases."""
    path = folder / CHECK
    result = load_as(path, CheckResult)
    checked = {kernel.key for kernel in result.kernels.values()}
    found = _unlocked(path, result.kernels.values())
    found += [f"{case.kernel} {case.case}: failed: {case.reason}" for case in result.cases if case.status == "fail"]
    for timed in sorted(folder.glob("bench*.json.gz")):
        for kernel in load_as(timed, BenchResult).kernels.values():
            if kernel.key not in checked:
                found.append(f"{kernel.key}: timed in {timed.name}, but not checked")
                continue
            found += _case_problems(kernel, [case for case in result.cases if case.kernel == kernel.key])
    return _led(path, dict.fromkeys(found))


def _case_problems(kernel: Kernel, cases: Sequence[CaseResult]) -> list[str]:
    """Cases that a kernel lacks, has twice or should not have, and cases that it refused without need."""
    stride = load_iteration(kernel.iteration).parts.row_stride
    wanted = {case.name: case for case in cases_for(KernelConfig.parse(kernel.config))}
    names = Counter(case.case for case in cases)
    found = [f"{kernel.key}: case {name} is missing" for name in wanted if name not in names]
    found += [f"{kernel.key}: case {name} is unknown or repeated" for name in names - Counter(wanted.keys())]
    for case in cases:
        if case.status != "not_applicable" or case.case not in wanted:
            continue
        fits = wanted[case.case].view == "contiguous" and case.shape.n_heads * case.shape.d_head == stride
        if not stride or fits:
            found.append(f"{kernel.key}: case {case.case} was refused, expected pass: it takes such row strides")
    return found


def sanitizer_problems(path: Path) -> list[str]:
    """Tools that were not run or are not clean, and machine code that is not locked."""
    from flashladder.sanitize import TOOLS

    result = load_as(path, SanitizerResult)
    found = [] if result.kernels else ["no kernel was run"]
    ran = [finding.tool for finding in result.findings]
    if sorted(ran) != sorted(TOOLS):
        found.append(f"tools: expected {', '.join(TOOLS)} once each, found {', '.join(ran) or 'none'}")
    found += [f"{one.tool}: not clean, errors {one.errors}" for one in result.findings if not one.clean]
    return _led(path, found + _unlocked(path, result.kernels.values()))


def counter_table_problems(path: Path) -> list[str]:
    """Whether the CSV beside the readings is what they give."""
    from flashladder.counters import csv_beside, to_csv

    table = csv_beside(path)
    found = table.read_bytes() if table.is_file() else None
    if found == to_csv(load_as(path, CounterResult)).encode():
        return []
    return [f"{relative(table)}: {'is missing' if found is None else 'differs from what ' + path.name + ' gives'}"]


def _unlocked(path: Path, kernels: Iterable[Kernel]) -> list[str]:
    """Kernels whose machine code is not the locked one (`report_data.refusal`)."""
    kernels = tuple(kernels)
    locks = {arch: read_lock(arch, path.parent.parent / "locks") for arch in {kernel.arch for kernel in kernels}}
    reasons = ((kernel.key, refusal(kernel, locks[kernel.arch])) for kernel in kernels)
    return [f"{key}: {reason}" for key, reason in reasons if reason]


def _led(path: Path, lines: Iterable[str]) -> list[str]:
    """Each line led by the name of its file."""
    return [f"{relative(path)}: {line}" for line in lines]
