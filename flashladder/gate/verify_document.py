"""What every result document must prove of itself: the digest of its content, all its keys, its code, its cells.

Why apart from `flashladder.gate.verify`: the gate asks this of every committed document as well, beside what it asks of
each kind (`flashladder.gate.results`). Nothing to run here; `invoke verify` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from flashladder.bench import cross_checks
from flashladder.files import relative
from flashladder.gate import verify_sweep
from flashladder.gate.evidence import inside
from flashladder.gate.results import unlocked
from flashladder.ladder.config import KernelConfig
from flashladder.report.data import feeds_ladder
from flashladder.results.differences import Found
from flashladder.results.files import load_result, read_json
from flashladder.results.machine import problems as machine_problems
from flashladder.results.machine import result_files
from flashladder.results.migrations import DIGEST, digest_of, migrate, version_of
from flashladder.results.origin import SCHEMA_VERSION
from flashladder.results.schema import (
    AnyResult,
    BenchResult,
    CheckResult,
    EmulatedCheckResult,
    EmulatedSweepResult,
    EnergyResult,
    SecondOpinionResult,
    SoakResult,
)

MOST = 8  # lines on one document's keys


def problems(path: Path) -> list[str]:
    """One line per thing that a document does not prove, led by its file's name.

    Raises:
        FlashladderError: it cannot be read, or does not follow its schema.
    """
    result, document = load_result(path), read_json(path)
    found = [*_own_text(document, result), *_dtypes(result), *_code(path, result), *inside.problems(path, result)]
    if isinstance(result, BenchResult | EmulatedSweepResult):
        found += verify_sweep.problems(result)
    if isinstance(result, SecondOpinionResult):
        found += [*_dtypes(result.paired), *cross_checks.problems(result)]
    return [f"{relative(path)}: {line}" for line in found]


def folder_problems(folder: Path) -> Found:
    """The same of all documents of a machine's folder, and of what ``machine.json`` says about them."""
    files = result_files(folder)
    found = [line for path in files for line in problems(path)]
    return Found([*found, *machine_problems(folder)], len(files))


def _own_text(document: Mapping[str, object], result: AnyResult) -> list[str]:
    """The digest of the content, and keys that were left to a default; older versions have neither."""
    if version_of(document) != SCHEMA_VERSION:
        return []
    digest, written = digest_of(document), document.get(DIGEST)
    found = [] if written == digest else [f"{DIGEST}: written {written}, its content gives {digest}"]
    lost = list(_differences(migrate(dict(document)), result.model_dump(mode="json")))
    return found + lost[:MOST]


def _differences(written: object, meant: object, where: str = "") -> Iterator[str]:
    """Keys and values that are not as the schema writes them."""
    if isinstance(written, Mapping) and isinstance(meant, Mapping):
        for key in meant:
            name = f"{where}.{key}".lstrip(".")
            if key in written:
                yield from _differences(written[key], meant[key], name)
            else:
                yield f"{name}: is missing"
    elif isinstance(written, list) and isinstance(meant, list) and len(written) == len(meant):
        for index, (a, b) in enumerate(zip(written, meant, strict=True)):
            yield from _differences(a, b, f"{where}.{index}")
    elif written != meant:
        yield f"{where}: written {written}, read as {meant}"


def _dtypes(result: AnyResult) -> list[str]:
    """Kernels whose dtype is not that of their configuration, and measurements in another dtype than their kernel's."""
    own = {key: kernel.dtype for key, kernel in result.kernels.items()}
    forms = {key: KernelConfig.parse(kernel.config).dtype for key, kernel in result.kernels.items()}
    used: list[tuple[str, str]] = []
    if isinstance(result, BenchResult):
        used = [(series.kernel, group.dtype) for group in result.groups for series in group.series]
    elif isinstance(result, CheckResult | EmulatedCheckResult):
        used = [(case.kernel, case.dtype) for case in result.cases]
    elif isinstance(result, EnergyResult):
        used = [(run.subject, run.dtype) for run in result.runs]
    elif isinstance(result, SoakResult):
        used = [(one.kernel, one.dtype) for part in (result.cases, result.hammered, result.far) for one in part]
    found = [
        f"kernel {key}: dtype {own[key]}, of a configuration for {form}"
        for key, form in forms.items()
        if own[key] != form
    ]
    return found + [
        f"{key}: measured as {dtype}, a kernel for {own[key]}"
        for key, dtype in dict.fromkeys(used)
        if own.get(key, dtype) != dtype
    ]


def _code(path: Path, result: AnyResult) -> list[str]:
    """Kernels whose machine code no lock holds; a tuning run and the emulator's PTX need none, variants have none."""
    if isinstance(result, EmulatedCheckResult | EmulatedSweepResult):
        return []
    named = [
        f"kernel {key} is called {kernel.key}" for key, kernel in result.kernels.items() if key != kernel.key
    ]  # fmt: skip
    if isinstance(result, BenchResult) and result.purpose == "tune":
        return named
    own = [kernel for kernel in result.kernels.values() if feeds_ladder(path) or not kernel.variant]
    return named + unlocked(path, own)
