"""Is a result what it says? One file, a machine's folder, or all of results/, without a GPU and without a compiler.

Why: a figure is worth what can be checked of it by somebody else. Bytes are compared with the folder's seal, the
document with the digest of its own content and with its schema, every statistic with its raw samples, these with the
settings, machine code with the locks, a sweep with the cells that it planned, and ``machine.json`` with all documents.

Run: ``invoke verify``, ``invoke verify results/h200 --json``, ``python -m flashladder.gate.verify
build/bench.json.gz``; with ``--rerun`` a sample of cells is timed anew on this GPU. Exit code: 0 all of it holds, 1
something does not, 2 there is nothing to verify, or no GPU for a rerun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
import re

from tqdm import tqdm

from flashladder.arguments import named, parser_of, whole
from flashladder.commands import COMMANDS
from flashladder.errors import FlashladderError, one_line_errors, require_checkout
from flashladder.files import dump_json, files_in, relative
from flashladder.gate import results as gate_results
from flashladder.gate import verify_document
from flashladder.gate.evidence import cross, manifest, rerun
from flashladder.gate.verify_sweep import grid_note
from flashladder.ladder.manifest import NAME as MANIFEST
from flashladder.ladder.manifest import load_manifest
from flashladder.paths import RESULTS
from flashladder.results import machine, signature
from flashladder.results.derive import problems
from flashladder.results.files import SEAL, identity, load_result, seal_problems
from flashladder.results.schema import (
    AnyResult,
    BenchResult,
    CheckResult,
    CounterResult,
    EmulatedSweepResult,
    EnergyResult,
    SanitizerResult,
    SecondOpinionResult,
    SoakResult,
)
from flashladder.sweep.plan import title
from flashladder.sweep.records import Records

RECORD = re.compile(r"([0-9a-f]{16})\.json\.gz")  # of a cell, in the folder of a live sweep
DRAWN = (8, 0)  # cells and seed of a rerun, where none are given
PLAIN = "bytes only"  # a file that is no result document: logs, tables, readings of other forms


@dataclass(frozen=True)
class Verified:
    """One file: ``ok`` or ``failed``, a line per thing that is wrong, what it is, and whether a seal was compared."""

    path: str
    status: str
    summary: str
    sealed: bool
    details: tuple[str, ...] = ()


def verify(path: Path) -> list[Verified]:
    """Every file of `path`: a result file, a machine's folder, or a folder of these.

    Raises:
        FlashladderError: there is no such path, or nothing to verify in it.
    """
    if path.is_file():
        if not (_is_sealed(path.parent) or path.name.endswith((".json", ".json.gz"))):
            raise FlashladderError(
                "not a result", where=relative(path), expected="a name that ends in .json or .json.gz"
            )
        sealed = _is_sealed(path.parent)
        return [_verified(path, _broken_seal(path) if sealed else (), sealed=sealed)]
    if not path.is_dir():
        raise FlashladderError("no such result", where=relative(path), expected="a result file or a folder of them")
    folders = [path] if _is_machine(path) else [one for one in files_in(path, "*") if _is_machine(one)]
    if not folders:
        raise FlashladderError(
            "nothing to verify", where=relative(path), expected="result files in it, or in a folder of it", found="none"
        )
    with tqdm(desc="verify", unit="file", disable=None, leave=False) as bar:
        return [one for folder in folders for one in _of_folder(folder, bar.update)]


def _is_machine(folder: Path) -> bool:
    """Whether a folder holds measurements of a machine."""
    return folder.is_dir() and (_is_sealed(folder) or any(files_in(folder, "*.json.gz")))


def _is_sealed(folder: Path) -> bool:
    return any((folder / name).exists() for name in (SEAL, machine.NAME))


def _owes_a_seal(folder: Path) -> bool:
    """Whether a folder is published: one of results/, of a copy of it, or one with a manifest; a sweep's is none."""
    parent = folder.resolve().parent
    return _is_sealed(folder) or parent == RESULTS or any(files_in(parent, f"*/{MANIFEST}"))


def _of_folder(folder: Path, tick: Callable[[], object]) -> list[Verified]:
    """Every file of a machine's folder, and those that are missing; what a sweep left has no seal."""
    if not _owes_a_seal(folder):
        return [_verified(path, (), sealed=False) for path in files_in(folder, "*.json.gz")]
    broken = _broken_seals(folder)
    for name, told in _by_file(folder, _crossed(folder)).items():
        broken[name] = (*broken.get(name, ()), *told)
    there = {path.relative_to(folder).as_posix() for path in files_in(folder) if path.is_file()}
    owed = {MANIFEST} if folder.parent == RESULTS else set()
    names = sorted(there | {*broken, machine.NAME} | owed)
    readable = _is_readable(folder / MANIFEST)
    found = []
    for name in names:
        asked = readable or name == MANIFEST  # one that cannot be read is said once, at the manifest itself
        found.append(_verified(folder / name, broken.get(name, ()), sealed=True, asked=asked))
        tick()
    return found


def _is_readable(path: Path) -> bool:
    """Whether a manifest can be read, or is not there."""
    try:
        if path.is_file():
            load_manifest(path.parent)
    except FlashladderError:
        return False
    return True


def _broken_seals(folder: Path) -> dict[str, tuple[str, ...]]:
    """What the seal of a folder says, by the name of the file that it is about."""
    return _by_file(folder, seal_problems(folder))


def _by_file(folder: Path, lines: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Lines by the name of the file that leads each."""
    broken: dict[str, tuple[str, ...]] = {}
    for line in lines:
        where, _, told = line.partition(": ")
        name = where.removeprefix(f"{relative(folder)}/")
        broken[name] = (*broken.get(name, ()), told)
    return broken


def _crossed(folder: Path) -> Sequence[str]:
    """What the files of a folder contradict each other in; of one that cannot be read, that is said at the file."""
    try:
        return cross.folder_problems(folder).problems
    except FlashladderError:
        return ()


def _broken_seal(path: Path) -> tuple[str, ...]:
    """What the seal says about one file; of the seal itself, all that it says."""
    broken = _broken_seals(path.parent)
    if path.name != SEAL:
        return broken.get(path.name, ())
    return tuple(told if name == SEAL else f"{name}: {told}" for name, lines in broken.items() for told in lines)


def _verified(path: Path, broken: Iterable[str], *, sealed: bool, asked: bool = True) -> Verified:
    """One file: its seal, then what it holds, and what the manifest asks of it where it is `asked`."""
    details = list(broken)
    summary = PLAIN
    if path.is_file() or path.name == machine.NAME:
        try:
            summary, found = _content(path, sealed=sealed)
            details += found
        except FlashladderError as error:
            summary = "cannot be read as what it says"
            details.append(_without(path, str(error)))
    details += [_without(path, line) for line in _owed(path)] if sealed and asked else []
    status = "failed" if details else "ok"
    return Verified(relative(path), status, summary, sealed, tuple(dict.fromkeys(details)))


def _owed(path: Path) -> list[str]:
    """What the manifest beside a file says that the file lacks; of the manifest, what the folder and itself lack."""
    if path.name != MANIFEST:
        return manifest.file_problems(path) if (path.parent / MANIFEST).is_file() else []
    try:
        return list(manifest.folder_lacks(path.parent))
    except FlashladderError as error:
        return [str(error)]


def _without(path: Path, line: str) -> str:
    """A line about a file, without the file's name in front."""
    return line.removeprefix(f"{relative(path)}: ")


def _content(path: Path, *, sealed: bool) -> tuple[str, list[str]]:
    """What a file is, in words, and what is wrong with it."""
    if sealed and path.name == machine.NAME:
        found = machine.problems(path.parent)
        return "what the documents beside it say", [_without(path, line) for line in found]
    if sealed and path.name == SEAL:
        signed = signature.check(path.parent)
        return signed.told, [line.removeprefix(f"{relative(path.parent)}/") for line in signed.problems]
    if not path.name.endswith((".json", ".json.gz")):
        return PLAIN, []
    version, _ = identity(path)
    if version is None and sealed:
        return PLAIN, []
    if record := RECORD.fullmatch(path.name):
        return _record(path, record[1])
    result = load_result(path)
    lines = [*verify_document.problems(path), *_by_kind(path, result, sealed=sealed)]
    sweep = getattr(result, "sweep", None)
    note = grid_note(sweep) if sweep else None
    return f"{_told(result)}, schema {version}" + (f"; {note}" if note else ""), [
        _without(path, line) for line in lines
    ]


def _record(path: Path, address: str) -> tuple[str, list[str]]:
    """One cell of a live sweep: what became of it, and whether its numbers follow from its samples."""
    record = Records(path.parent).read(address)
    told = f"record of a cell: {title(record.cell)}"
    if record.failure:
        return f"{told}: failed, {record.failure.kind}", []
    document = record.document
    return told, problems(document) if isinstance(document, BenchResult) else []


def _by_kind(path: Path, result: AnyResult, *, sealed: bool) -> Sequence[str]:
    """What the gate asks of files of this kind; some of it needs the files beside it."""
    if isinstance(result, BenchResult):
        return gate_results.sample_problems(path).problems
    if sealed and isinstance(result, CounterResult):
        return gate_results.counter_table_problems(path).problems
    if sealed and isinstance(result, SanitizerResult):
        return gate_results.sanitizer_problems(path).problems
    if sealed and isinstance(result, CheckResult):
        return gate_results.check_problems(path.parent).problems
    return ()


def _told(result: AnyResult) -> str:
    """What a document is, in a few words."""
    if isinstance(result, BenchResult):
        what = f"{len(result.summaries)} cells"
    elif isinstance(result, SecondOpinionResult):
        what = f"{len(result.agreements)} cells"
    elif isinstance(result, EmulatedSweepResult):
        what = f"{len(result.cells)} cells"
    elif isinstance(result, CounterResult | SanitizerResult):
        what = f"{len(result.kernels)} kernels"
    elif isinstance(result, EnergyResult):
        what = f"{len(result.runs)} runs"
    elif isinstance(result, SoakResult):
        what = f"{len(result.cases)} cases, {sum(one.launches for one in result.hammered):,} launches"
    else:
        what = f"{len(result.cases)} cases"
    return f"{result.kind}, {what}"


def render(found: Sequence[Verified]) -> str:
    """One line per file, and one per thing that is wrong under it."""
    lines = []
    for one in found:
        note = "" if one.sealed else "; no seal beside it, so that its bytes were compared with nothing"
        lines.append(f"{one.status:8s}{one.path} ({one.summary}{note})")
        lines += [f"        {line}" for line in one.details]
    failed = sum(one.status == "failed" for one in found)
    lines.append(f"{failed} of {len(found)} files do not hold" if failed else f"all of {len(found)} files hold")
    return "\n".join(lines)


def _path(text: str) -> Path | None:
    """What was named; nothing, which is how a task passes its default on, means all machines."""
    return named(text) if text else None


def main(argv: Sequence[str] | None = None) -> int:
    """Verifies and prints; exit code 1 when something does not hold, 2 when a rerun has no GPU."""
    numbers = {"type": whole}
    own: dict[str, Mapping[str, object]] = {"path": {"type": _path}, "cells": numbers, "seed": numbers}
    parser = parser_of(COMMANDS["verify"], "gate.verify", "results/h200", **own)
    options = parser.parse_args(argv)
    path: Path | None = options.path
    if not options.rerun and (int(options.cells), int(options.seed)) != DRAWN:
        parser.error("--cells and --seed are of a rerun; add --rerun")
    with one_line_errors():
        if path is None:
            require_checkout("verify without a path")
        again = rerun.main(path, int(options.cells), int(options.seed)) if options.rerun else None
        found = verify(path or RESULTS)
    told = [asdict(one) for one in found] + ([asdict(again)] if again else [])
    lines = [render(found), *(rerun.render(again) if again else ())]
    print(dump_json(told).rstrip() if options.json else "\n".join(lines))
    failed = any(one.status == "failed" for one in found) or (again is not None and bool(again.problems))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
