"""What identifies a run, cross-checked between the files of a machine, and between machines.

Why: `machine.json` says which cards, hosts and drivers the files name; here they must fit each other. Cards of one
model are built alike, one card is in one host on a day, FA2 is the same build everywhere, the rates
name the machine's GPU and driver, the same machine code keeps its ratio, raw samples are those of one run, and
the same seeded cases have the same bounds. Nothing to run here; `invoke gate` and `invoke verify` do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

from flashladder.files import relative
from flashladder.gate.evidence import copies, repeats
from flashladder.gate.results import CHECK
from flashladder.ladder.manifest import NAME, Timings, load_manifest
from flashladder.results.differences import Found
from flashladder.results.files import load_as, load_result, read_json
from flashladder.results.machine import result_files
from flashladder.results.schema import BenchResult, CheckResult, Gpu, Result, SecondOpinionResult

BUILT = (
    "form_factor", "compute_capability", "n_sm", "l2_bytes", "memory_bytes", "power_limit_w", "max_sm_clock_mhz",
    "ecc", "mig",
)  # fmt: skip
RATES = "rates.json.gz"  # of another form than the documents


def folder_problems(folder: Path) -> Found:
    """All contradictions between the files of one machine, a line each led by a file's path, and how many were read."""
    documents, held_samples = dict[str, Result](), []
    for path in result_files(folder):
        if isinstance(result := load_result(path), Result):
            documents[path.name] = result
        held_samples.append(copies.cells(path))  # while the document is at hand
    held = timings(folder)
    lines = [
        *_unnamed(documents, held),
        *_alike(documents, held),
        *_references(documents),
        *_on_the_chip(folder, documents),
    ]
    timed = {name: one for name, one in documents.items() if isinstance(one, BenchResult)}
    timed |= {name: one.paired for name, one in documents.items() if isinstance(one, SecondOpinionResult)}
    beside = {name: one.beside for name, one in held.items() if one.beside}
    lines += repeats.disagreements(timed, beside, {name: one.apart.cells for name, one in held.items() if one.apart})
    copied = copies.problems(held_samples)
    return Found([*(f"{relative(folder)}/{line}" for line in lines), *copied], len(documents))


def timings(folder: Path) -> dict[str, Timings]:
    """What the manifest of a folder says of its timings, by file; nothing where it has none."""
    if not (folder / NAME).is_file():
        return {}
    return {name: one for name, one in load_manifest(folder).files.items() if isinstance(one, Timings)}


def _unnamed(documents: Mapping[str, Result], held: Mapping[str, Timings]) -> Iterator[str]:
    """A file that another is said to be of another card than, or beside, is there; one named `second` says of which."""
    for name, one in held.items():
        for field, other in (("other_card_than", one.other_card_than), ("beside", one.beside)):
            if other and other not in documents:
                yield f"{NAME}: {name}: {field}: expected a file of this folder with timings, found {other}"
        if name.removesuffix(".json.gz").endswith("_second") and not one.other_card_than:
            yield f"{NAME}: {name}: expected other_card_than, as its name says that it is of a second card"


def _alike(documents: Mapping[str, Result], held: Mapping[str, Timings]) -> Iterator[str]:
    """Cards of the same model are built alike; one card is in one host under one driver on a day."""
    first: dict[object, tuple[str, Gpu]] = {}
    for name, one in documents.items():
        where, gpu = first.setdefault(one.gpu.name, (name, one.gpu))
        for field in BUILT:
            expected, found = getattr(gpu, field), getattr(one.gpu, field)
            if expected != found:
                yield f"{name}: gpu.{field}: expected {expected}, as in {where}, found {found}"
    seen: dict[tuple[str, str], tuple[str, Mapping[str, object]]] = {}
    for name, one in documents.items():
        if isinstance(one, BenchResult):
            day = min((process.started_utc[:10] for process in one.processes), default="")
            mine = {"gpu.driver": one.gpu.driver, "host.digest": one.host.digest, "host.cpu": one.host.cpu}
            where, theirs = seen.setdefault((one.gpu.uuid, day), (name, mine))
            for field, found in mine.items():
                if theirs[field] != found:
                    told = f"expected {theirs[field]}, as in {where} on the same card and day, found {found}"
                    yield f"{name}: {field}: {told}"
    for name, other in _beside_of(documents, held):
        if documents[name].gpu.uuid == documents[other].gpu.uuid:
            yield f"{name}: gpu.uuid: expected another card than that of {other}"


def _beside_of(documents: Mapping[str, Result], held: Mapping[str, Timings]) -> Iterator[tuple[str, str]]:
    """Files whose names say that they are of a second card, each with the ladder's own; others by the manifest."""
    told = ((name, one.other_card_than) for name, one in held.items())
    yield from ((name, other) for name, other in told if other and {name, other} <= documents.keys())
    own = [name for name in documents if name.startswith("bench")]
    yield from ((name, other) for name in documents if name.startswith("second_card") for other in own)


def _references(documents: Mapping[str, Result]) -> Iterator[str]:
    """FA2 is the same build and the same kernel in all timings of a machine, and another library the same version."""
    known: dict[str, tuple[str, object]] = {}
    for name, one in documents.items():
        reference = getattr(one, "reference", None)
        if reference is None:
            continue
        told = {"torch": reference.torch, "cuda": reference.cuda, "op": reference.op}
        told |= {f"kernels.{dtype}": kernel for dtype, kernel in reference.kernels.items()}
        told |= {f"{arm}.version": other.version for arm, other in getattr(one, "references", {}).items()}
        for field, found in told.items():
            where, expected = known.setdefault(field, (name, found))
            if expected != found:
                yield f"{name}: reference.{field}: expected {expected}, as in {where}, found {found}"


def _on_the_chip(folder: Path, documents: Mapping[str, Result]) -> Iterator[str]:
    """The rates name the GPU model and a driver of the machine's documents."""
    if not (folder / RATES).is_file():
        return
    document = read_json(folder / RATES)
    told = document.get("gpu", {}) if isinstance(document, dict) else {}
    for field in ("name", "driver"):
        known = {getattr(one.gpu, field) for one in documents.values()}
        if told.get(field) not in known:
            expected = " or ".join(sorted(known))
            yield f"{RATES}: gpu.{field}: expected {expected}, found {told.get(field)}"


def machines_agree(folders: Sequence[Path]) -> Found:
    """What files of several machines contradict each other in.

    The bounds of seeded cases are of the inputs and of torch: the same on every machine with the same torch. Raw
    samples of one machine are not another one's.
    """
    checks = [
        (folder / CHECK, load_as(folder / CHECK, CheckResult)) for folder in folders if (folder / CHECK).is_file()
    ]
    found: list[str] = []
    for (path, one), (other, another) in combinations(checks, 2):
        if one.reference.torch == another.reference.torch and one.rule == another.rule:
            found += [f"{relative(other)}: {line}, as in {relative(path)}" for line in _bounds(one, another)]
    held = [copies.cells(path) for folder in folders for path in result_files(folder)]
    return Found([*found, *copies.problems(held, between=True)], len(checks))


def _bounds(one: CheckResult, another: CheckResult) -> Iterator[str]:
    expected = {(case.kernel, case.case): case.accuracy for case in one.cases}
    for case in another.cases:
        bound = expected.get((case.kernel, case.case))
        if bound is not None and case.accuracy is not None and bound.max_allowed != case.accuracy.max_allowed:
            told = f"found {case.accuracy.max_allowed:g}, expected {bound.max_allowed:g}"
            yield f"{case.kernel}: case {case.case}: max_allowed: {told}"
