"""A machine's folder against its manifest, and the manifest against the ladder: nothing that is owed may be gone.

Why: a cell, a dtype, a length, a case, a tool or a whole file that was taken out leaves files that agree with each
other, also after they were sealed anew. The manifest says what is owed (`flashladder.ladder.manifest`); that it asks
for enough is asked here: every iteration in its own and the published configurations, both dtypes, all lengths,
and so many files of each kind (`LEAST`, `MORE`) that none can go together with its entry.

Nothing to run here; `invoke gate` and `invoke verify` do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flashladder.errors import FlashladderError
from flashladder.files import files_in, relative
from flashladder.gate.evidence import accuracy, proofs, soak, timings
from flashladder.gpu.sanitize import TOOLS
from flashladder.ladder import manifest
from flashladder.ladder.config import DTYPES
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.grid import load_grid
from flashladder.ladder.iteration import begun, load_all, load_iteration, load_runnable
from flashladder.ladder.manifest import NAME, Manifest, load_manifest
from flashladder.names import PUBLISHED_GPU
from flashladder.results import machine
from flashladder.results.differences import Found
from flashladder.results.files import SEAL, SIGNATURE, load_as
from flashladder.results.published import N_ITERATIONS
from flashladder.results.schema import BenchResult

LEAST_PAIRS = 20  # of a timing that is reported (rule 3 of the measurement protocol)
LEAST_REPEATS = 10  # runs of a case that agree; the checker makes more since these files were recorded
LADDERS = "timings of the ladder"  # in all lengths, by the manifest; a second run is what the first is compared with
LEAST: Mapping[str, int] = {LADDERS: 2, "timings": 2, "cases": 1, "rates": 1, "tests": 1}  # files of any machine
MORE: Mapping[str, Mapping[str, int]] = {  # files of a machine on which more was measured, by what they hold
    "h200": {
        LADDERS: 12, "timings": 18, "accuracy": 2, "energy": 2,
        "sanitizers": 1, "counters": 1, "table": 1, "opinions": 2, "soak": 1, "tests": 2, "seconds": 1,
        "trials": 6, "cases": 2,
    },
    "h100": {LADDERS: 8, "timings": 8, "cases": 2, "accuracy": 2, "opinions": 1, "energy": 1, "trials": 2},
}  # fmt: skip
UNNAMED = {NAME, SEAL, SIGNATURE, machine.NAME}


def folder_problems(folder: Path) -> Found:
    """All that a folder lacks or holds too much, a line each, and how many files were compared."""
    found = list(folder_lacks(folder))
    if not (folder / NAME).is_file():
        return Found(found, 0)
    owed = load_manifest(folder)
    for name in owed.files:
        found += file_problems(folder / name, owed) if (folder / name).is_file() else []
    return Found(found, len(owed.files))


def folder_lacks(folder: Path) -> Iterator[str]:
    """What the manifest asks too little for, files that it does not name, and those that it names and that are gone."""
    where = relative(folder / NAME)
    if not (folder / NAME).is_file():
        yield f"{where}: is missing, so that nothing says what this folder must hold; see results/h200/{NAME}"
        return
    owed = load_manifest(folder)
    yield from (f"{where}: {line}" for line in too_little(owed, folder.name))
    there = {path.relative_to(folder).as_posix() for path in files_in(folder) if path.is_file()} - UNNAMED
    yield from (f"{where}: {name} is here, and not in it" for name in sorted(there - owed.files.keys()))
    yield from (f"{where}: {name} is in it, and missing" for name in sorted(owed.files.keys() - there))


def file_problems(path: Path, owed: Manifest | None = None) -> list[str]:
    """What one file lacks of what the manifest beside it says; one that cannot be read is a line."""
    try:
        spec = (owed or load_manifest(path.parent)).files.get(path.name)
        lines = [] if spec is None else list(_of(path, spec))
    except FlashladderError as error:
        return [str(error)]
    except FileNotFoundError as error:
        return [f"{relative(Path(error.filename))}: is missing"]
    except (KeyError, TypeError, ValueError) as error:  # of a file that is no result document, and has no schema
        lines = [f"not of the form that the manifest says: {type(error).__name__} {error}"]
    return [f"{relative(path)}: {line}" for line in lines]


def _of(path: Path, spec: Any) -> Iterable[str]:
    if isinstance(spec, manifest.Timings):
        return timings.problems(load_as(path, BenchResult), spec)
    for kind, compare in _KINDS:
        if isinstance(spec, kind):
            return compare(path, spec)
    return ()


_KINDS: tuple[tuple[type, Callable[[Path, Any], Iterator[str]]], ...] = (
    (manifest.Cases, proofs.check),
    (manifest.Sanitizers, proofs.sanitizers),
    (manifest.Counters, proofs.counters),
    (manifest.Opinions, proofs.opinions),
    (manifest.Log, proofs.log),
    (manifest.Seconds, proofs.seconds),
    (manifest.Trials, proofs.trials),
    (manifest.Rates, proofs.rates),
    (manifest.Energy, proofs.energy),
    (manifest.Soak, soak.problems),
    (manifest.Accuracy, accuracy.problems),
)


def too_little(owed: Manifest, folder: str) -> Iterator[str]:
    """What a manifest must ask for, and does not."""
    if owed.machine != folder:
        yield f"machine: expected {folder}, as the folder, found {owed.machine}"
    gpu = load_gpus().get(owed.machine)
    if gpu is None:
        yield f"machine: expected one of configs/gpus, found {owed.machine}"
        return
    held = owed.files.values()
    asked = {number for one in held if (of := getattr(one, "of", None)) is not None for number in of.iterations}
    every = {iteration.number: iteration for iteration in begun(load_runnable(gpu.arch), {1} | asked)}
    timed_of = (one.of for one in held if isinstance(one, manifest.Timings) and one.of is not None)
    yield from _measured_after_all({number for of in timed_of for number in of.iterations})
    yield from _too_few(owed)
    ladders = [one for one in held if isinstance(one, manifest.Timings) and one.of and one.purpose == "report"]
    configs = {PUBLISHED_GPU, "h200" if gpu.arch == "sm_90" else owed.machine}
    timed = [(one, one.of, _timed_in(one.of, configs)) for one in ladders if one.of and one.beside is None]
    whole = [one for one, of, numbers in timed if numbers == set(of.iterations)]
    if not whole:
        yield f"expected timings of the ladder in the configurations {', '.join(sorted(configs))}, found none"
    beside = {n for *_, numbers in timed for n in numbers} - {n for one in whole if one.of for n in one.of.iterations}
    published = {number for number in every if number <= N_ITERATIONS}
    of_published = [one.of for one in whole if one.of and published & set(one.of.iterations)]
    yield from _lacks("timings", of_published, published - beside, set(DTYPES))
    yield from _lacks_together("timings", [one.of for one in whole if one.of], set(every) - beside, set(DTYPES))
    yield from _lacks_of_tables(owed, configs, set(every))
    for one in ladders:
        yield from _lacks_of_grid(one)
    for one in whole:
        yield from (f"timings: S={n}: is not asked for" for n in timings.lengths(one.grid) if n not in one.seq_lens)
        if min(one.pairs, one.min_pairs) < LEAST_PAIRS:
            yield f"timings: expected at least {LEAST_PAIRS} pairs, found {one.pairs}, {one.min_pairs} that count"
    others = {number for one in held if not isinstance(one, manifest.Cases) for number in _asked_of(one)}
    proofs_of = [one for one in held if isinstance(one, manifest.Cases | manifest.Sanitizers)]
    yield from _proofs(proofs_of, set(every), others & {one.number for one in load_all()})
    for errors in (one for one in held if isinstance(one, manifest.Accuracy)):
        yield from _too_few_errors(errors, set(every))
    for read in (one for one in held if isinstance(one, manifest.Counters)):
        yield from _lacks(read.holds, [read.of], set(every), {DTYPES[0]})


def _proofs(held: Sequence[manifest.Cases | manifest.Sanitizers], every: set[int], others: set[int]) -> Iterator[str]:
    """What cases and sanitizers must be asked of, and are not; `others`: steps of other files."""
    cases = [one for one in held if isinstance(one, manifest.Cases)]
    if not cases or any("prog" not in one.of.configs for one in cases):
        yield "expected cases of all configurations of the ladder (prog), found none"
    yield from _lacks_together("cases", [one.of for one in cases], every | others, set(DTYPES))
    for proof in held:
        if isinstance(proof, manifest.Sanitizers):
            yield from _lacks(proof.holds, [proof.of], every, set(DTYPES))
            yield from (f"sanitizers: {tool} is not asked for" for tool in TOOLS if tool not in proof.tools)
        elif proof.repeats < LEAST_REPEATS:
            yield f"cases: expected at least {LEAST_REPEATS} runs that agree, found {proof.repeats}"


def _asked_of(one: Any) -> set[int]:
    """Iterations that a file is asked for."""
    of = getattr(one, "of", None)
    return set(of.iterations if of is not None else getattr(one, "iterations", ()))


def _measured_after_all(asked: set[int]) -> Iterator[str]:
    """Steps of which timings are asked for, though they say why there are none."""
    for step in map(load_iteration, sorted(asked & {one.number for one in load_all()})):
        if step.unmeasured:
            told = f"expected no 'unmeasured' in {relative(step.path)}, found one"
            yield f"timings of iteration {step.number} are asked for: {told}"


def _timed_in(of: manifest.Kernels, configs: set[str]) -> set[int]:
    """Iterations of which a file asks for what each of some GPUs would run."""
    asked = {number: {one.short_form() for one in found} for number, found in of.configurations().items()}
    return {
        number
        for number in of.iterations
        if {load_iteration(number).configs[gpu].short_form() for gpu in configs} <= asked[number]
    }


def _too_few_errors(errors: manifest.Accuracy, numbers: set[int]) -> Iterator[str]:
    """The steps of the file's families from the last published one on, each on so many inputs."""
    known = {number: load_iteration(number).family.name for number in numbers | set(errors.iterations)}
    families = {known[number] for number in errors.iterations}
    due = {number for number, family in known.items() if number >= N_ITERATIONS and family in families}
    yield from (f"accuracy: iteration {one} is not asked for" for one in sorted(due - set(errors.iterations)))
    if errors.inputs < accuracy.INPUTS:
        yield f"accuracy: expected at least {accuracy.INPUTS} inputs, found {errors.inputs}"


def _too_few(owed: Manifest) -> Iterator[str]:
    """Kinds of which the manifest names fewer files than the machine is known to have; soaks that ask for little."""
    found: Counter[str] = Counter(one.holds for one in owed.files.values())
    found[LADDERS] = sum(
        isinstance(one, manifest.Timings) and one.of is not None and one.purpose == "report"
        for one in owed.files.values()
    )
    for one in owed.files.values():
        yield from soak.too_little(one) if isinstance(one, manifest.Soak) else ()
    for kind, least in {**LEAST, **MORE.get(owed.machine, {})}.items():
        if found[kind] < least:
            yield f"{kind}: expected at least {least} files that hold them, found {found[kind]}"


def _lacks_of_tables(owed: Manifest, configs: set[str], every: set[int]) -> Iterator[str]:
    """Steps that no file of the ladder's tables is asked for: a sweep beside it keeps none of them in a table."""
    tables = [
        one.of
        for name, one in owed.files.items()
        if name.startswith("bench") and isinstance(one, manifest.Timings) and one.of and one.purpose == "report"
    ]
    asked = {number for of in tables for number in _timed_in(of, configs)}
    missing = every - asked if tables else set()
    yield from (f"timings in the ladder's tables: iteration {one} is not asked for" for one in sorted(missing))


def _lacks_of_grid(one: manifest.Timings) -> Iterator[str]:
    """Iterations of a sweep's grid that the file of it is not asked for."""
    if one.of is not None and one.grid is not None:
        due = {cell.iteration.number for cell in load_grid(one.grid).cells} - set(one.of.iterations)
        yield from (f"timings: iteration {number} of the grid {one.grid} is not asked for" for number in sorted(due))


def _lacks_together(what: str, given: Sequence[manifest.Kernels], numbers: set[int], dtypes: set[str]) -> Iterator[str]:
    """Iterations that none of the files asks for, where a step may have one of its own; dtypes of each file."""
    missing = numbers - {number for of in given for number in of.iterations} if given else set()
    yield from (f"{what}: iteration {one} is not asked for" for one in sorted(missing))
    for of in given:
        yield from (f"{what}: {one} is not asked for" for one in sorted(dtypes - set(of.dtypes)))


def _lacks(what: str, given: Sequence[manifest.Kernels | None], numbers: set[int], dtypes: set[str]) -> Iterator[str]:
    """Iterations that no file asks for, or one that asks for a part of the published or of the later steps; dtypes."""
    asked = [of for of in given if of is not None]
    families: dict[tuple[str, bool], set[int]] = {}
    for number in numbers:
        families.setdefault((load_iteration(number).family.name, number <= N_ITERATIONS), set()).add(number)
    groups = tuple(families.values())
    wanted = [set[int]().union(*(group for group in groups if group & set(of.iterations))) for of in asked]
    missing = {number for of, due in zip(asked, wanted, strict=True) for number in due - set(of.iterations)}
    if asked:
        missing |= numbers - {number for of in asked for number in of.iterations}
    yield from (f"{what}: iteration {one} is not asked for" for one in sorted(missing))
    for of in asked:
        yield from (f"{what}: {one} is not asked for" for one in sorted(dtypes - set(of.dtypes)))
