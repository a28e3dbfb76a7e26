"""``machine.json`` of a results folder: which GPU its documents were measured on, by which drivers and hosts, and when.

Why: a folder under results/ is one GPU model; its documents may be of several cards, of which each names its own. Here
all of that stands in one place, with the digest of each document's content, so that a document that was exchanged,
added or taken away is seen though the folder was sealed anew. It is derived from the documents, never written by hand.
Nothing to run here; ``python -m flashladder.results --seal results/h200`` writes it with the seal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
import re
from typing import Literal

from pydantic import ValidationError

from flashladder.errors import FlashladderError
from flashladder.files import dump_json, files_in, relative, write_atomic
from flashladder.ladder.gpus import gpu_key, load_gpus
from flashladder.located import first_problem
from flashladder.results.cells import Sweep
from flashladder.results.files import identity, load_result, read_json, seal
from flashladder.results.samples import Strict
from flashladder.results.schema import AnyResult, Result

NAME = "machine.json"
CPU = "cpu"  # the folder of what needs no GPU


class Document(Strict):
    """One result file: its kind, card and host, how it was measured, and the digest of its content.

    `card` is None for what was not measured on a GPU; `grid` is the one that it answers, where it is a sweep's.
    """

    kind: str
    card: str | None
    driver: str | None
    host: str
    rung: str
    protocol_version: str
    grid: str | None
    content_sha256: str


class Machine(Strict):
    """What the documents of one folder have in common, and each of them.

    Attributes:
        machine: the folder's name: a key of ``configs/gpus/``, or ``cpu``.
        gpu: model as the driver reports it; None for the CPU.
        arch: of its machine code, ``sm_90``.
        cards: UUIDs of all cards of that model that documents name, sorted.
        drivers: their versions; `hosts`, `rungs` and `protocol_versions` likewise.
        documents: by file name.
    """

    schema_version: Literal[1] = 1
    machine: str
    gpu: str | None
    arch: str | None
    cards: tuple[str, ...]
    drivers: tuple[str, ...]
    hosts: tuple[str, ...]
    rungs: tuple[str, ...]
    protocol_versions: tuple[str, ...]
    documents: dict[str, Document]


def result_files(folder: Path) -> list[Path]:
    """The files of a machine's folder that are result documents, of whatever version, sorted; one without is none.

    Raises:
        FlashladderError: a JSON file that cannot be read.
    """
    paths = sorted({*files_in(folder, "*.json.gz"), *files_in(folder, "*.json")} - {folder / NAME})
    return [path for path in paths if identity(path)[0] is not None]


def derive(folder: Path) -> Machine:
    """What ``machine.json`` of a folder must say.

    Raises:
        FlashladderError: no documents, one that cannot be read, or two GPU models.
        CheckFailed: a document does not follow its schema.
    """
    found = {path.name: load_result(path) for path in result_files(folder)}
    if not found:
        raise FlashladderError("no result documents", where=relative(folder), expected="*.json.gz", found="none")
    models = {name: model_of(result) for name, result in found.items()}
    model = next(iter(models.values()))
    for name, other in models.items():
        if other != model:
            raise FlashladderError(
                "another GPU in this folder", where=relative(folder / name), expected=_told(model), found=_told(other)
            )
    documents = {name: _document(folder / name, result) for name, result in found.items()}
    first = next(iter(found.values()))
    return Machine(
        machine=folder.name,
        gpu=model,
        arch=first.gpu.arch if isinstance(first, Result) else None,
        cards=_all(one.card for one in documents.values()),
        drivers=_all(one.driver for one in documents.values()),
        hosts=_all(one.host for one in documents.values()),
        rungs=_all(one.rung for one in documents.values()),
        protocol_versions=_all(one.protocol_version for one in documents.values()),
        documents=documents,
    )


def write(folder: Path) -> Path:
    """Writes ``machine.json`` from the documents of `folder`, then seals the folder; returns the seal.

    Raises:
        FlashladderError: no such folder, as `derive`, or results of another GPU than the folder is named after.
    """
    if not folder.is_dir():
        raise FlashladderError("no such folder to seal", where=relative(folder))
    machine = derive(folder)
    if other := wrong_folder(machine):
        raise FlashladderError(other, where=relative(folder), hint=f"move them to results/{gpu_key(machine.gpu or '')}")
    write_atomic(folder / NAME, dump_json(machine.model_dump(mode="json")))
    return seal(folder)


def machine_name(gpu_name: str) -> str:
    """How this GPU model's folder is called: ``h200`` for a known one, else its name made safe for a path."""
    return gpu_key(gpu_name) or re.sub(r"[^a-z0-9]+", "_", gpu_name.lower()).strip("_")


def is_key(name: str) -> bool:
    """Whether folders of this name are those of one known machine."""
    return name == CPU or name in load_gpus()


def wrong_folder(machine: Machine) -> str | None:
    """What is wrong where a folder is named after another GPU than its documents are of."""
    key = gpu_key(machine.gpu) if machine.gpu else CPU
    named = machine.machine
    if key == named or not is_key(named):
        return None
    return f"results of {_told(machine.gpu)} in a folder named {named}"


def load(folder: Path) -> Machine:
    """The ``machine.json`` of a folder.

    Raises:
        FlashladderError: it is missing, no JSON, or does not follow its schema.
    """
    path, hint = folder / NAME, f"python -m flashladder.results --seal {relative(folder)}"
    if not path.is_file():
        raise FlashladderError("is missing", where=relative(path), hint=f"if all else is as meant: {hint}")
    document = read_json(path)
    try:
        return Machine.model_validate(document)
    except ValidationError as error:
        raise FlashladderError(first_problem(error), where=relative(path), hint=hint) from error


def problems(folder: Path) -> list[str]:
    """One line per thing that ``machine.json`` says otherwise than the documents beside it."""
    written, derived = load(folder), derive(folder)
    where, hint = relative(folder / NAME), f"if that is meant: python -m flashladder.results --seal {relative(folder)}"
    lines = [f"{what}: written {old}, the documents give {new}" for what, old, new in _differences(written, derived)]
    wrong = wrong_folder(derived)
    return [f"{where}: {line}; {hint}" for line in lines] + ([f"{where}: {wrong}"] if wrong else [])


def _differences(written: Machine, derived: Machine) -> Iterator[tuple[str, object, object]]:
    old, new = written.model_dump(mode="json"), derived.model_dump(mode="json")
    documents: tuple[Mapping[str, Mapping[str, object]], ...] = (old.pop("documents"), new.pop("documents"))
    yield from ((name, old[name], new[name]) for name in old if old[name] != new[name])
    for name in sorted(documents[0].keys() | documents[1].keys()):
        a, b = (one.get(name) for one in documents)
        if a is None or b is None:
            yield name, "nothing" if a is None else "a document", "nothing" if b is None else "a document"
        else:
            yield from ((f"{name}: {key}", a[key], b[key]) for key in a if a[key] != b[key])


def model_of(result: AnyResult) -> str | None:
    """The GPU model that a result names; None for the CPU."""
    return result.gpu.name if isinstance(result, Result) else None


def _document(path: Path, result: AnyResult) -> Document:
    gpu = result.gpu if isinstance(result, Result) else None
    sweep: Sweep | None = getattr(result, "sweep", None)
    return Document(
        kind=result.kind,
        card=gpu.uuid if gpu else None,
        driver=gpu.driver if gpu else None,
        host=result.host.digest,
        rung=result.rung,
        protocol_version=result.protocol_version,
        grid=sweep.grid if sweep else None,
        content_sha256=identity(path)[1],
    )


def _all(values: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted({value for value in values if value is not None}))


def _told(model: str | None) -> str:
    return model or "this CPU"
