"""Targets that read files of the checkout and of results: YAML, JSON, gzip, CSV, seals, manifests.

Nothing to run here; `tests.fuzz.targets` lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
import gzip
import json
from pathlib import Path
import re
from typing import Any

from pydantic import ValidationError

from flashladder.build import store
from flashladder.build.command import is_fresh
from flashladder.build.wheel import checked_manifest
from flashladder.emulate.mutation import read_equivalent
from flashladder.emulate.reading import READING, load_reading
from flashladder.errors import FlashladderError
from flashladder.files import dump_json, load_json, relative, sha256
from flashladder.ladder.gpus import read_gpu
from flashladder.ladder.grid import load_grid
from flashladder.ladder.iteration import load_iteration
from flashladder.located import read_yaml
from flashladder.lock.schema import LOCKS, read_lock
from flashladder.lock.step_counts import COUNTS, read_counts
from flashladder.machine_code.opcodes import read_opcodes
from flashladder.paths import CONFIGS
from flashladder.problem import Shape
from flashladder.results import published
from flashladder.results.files import load_result, read_json, write_result
from flashladder.results.schema import Failure, PlannedCell
from flashladder.sweep.place import read_manifest
from flashladder.sweep.records import SUFFIX, CellRecord, Records, packed
from flashladder.toolchain.wheels import load_pins
from tests.fuzz.mutate import packed_bombs
from tests.fuzz.target import Target, filed, scratch
from tests.null.malformed_templates import ROOT as BASE
from tests.null.malformed_templates import STEP

RESULT_SEEDS = Path(__file__).parent.parent / "data" / "results"
ADDRESS = "0123456789abcdef"
YAML = (
    *("&a ", "*a", "!!str ", "|\n ", ">\n ", "? ", ": ", "- ", "---\n", "{", "}", "[", "]", "<<: ", "'", '"', "#"),
    *("%YAML 1.1\n", "0o17", "1:30", "2001-01-01", ".inf", "no", "\\x1b", '"\\e[31m"', '"\\u202e"'),
)
KINDS = "floating integer conversion movement predicates memory uniform warpgroup tensor_memory texture control other"
OPCODES = "\n".join(("source: s", "url: u", *(f"{name}: [FADD]" for name in KINDS.split()), "ptx: [add]", ""))
CLAIMS = (
    *["falls", "rises", "unchanged", "IADD3+LOP3", "ptx:", "main_loop:", "counters:", "at:"],
    *("{falls: 0.5}", "{equals: 1, within: 0.1}", "on: [sm_80]", "load_tiles: [2, 2, 2]"),
)


def _committed(*names: str) -> Callable[[], list[bytes]]:
    return lambda: [_lean((CONFIGS / name).read_bytes()) for name in names]


def _lean(text: bytes) -> bytes:
    """YAML without comments and with words of prose left out: PyYAML needs a millisecond for a kilobyte."""
    kept = [line for line in text.split(b"\n") if line.strip() and not line.lstrip().startswith(b"#")]
    prose = re.compile(rb"^( *(?:holds|source|note|document): \w+ \w+).*| #.*")
    return b"\n".join(prose.sub(rb"\1", line) for line in kept) + b"\n"


def _iteration(path: Path) -> None:
    (path.parent / "01_base.yaml").write_text(BASE, encoding="utf-8")
    found = load_iteration(2, path.parent)
    assert found.number == 2
    assert found.title.isprintable()


def _published_csv(path: Path) -> None:
    """A table whose digest is the one that is noted: what follows is the reader's."""
    description = _description()
    noted = description.files[published.PROGRESSION].model_copy(update={"sha256": sha256(path.read_bytes())})
    files = {**description.files, published.PROGRESSION: noted}
    for row in published.read_csv(path.parent, published.PROGRESSION, description.model_copy(update={"files": files})):
        published.number(row, "iteration", int, relative(path))


_description = cache(published.load_description)


def _result(path: Path) -> None:
    """What was read is written and read back equal."""
    result = load_result(path)
    again = scratch() / "again.json"
    assert load_result(write_result(again, result)) == result


def _results() -> list[bytes]:
    """A small document of each kind."""
    return [path.read_bytes() for path in sorted(RESULT_SEEDS.glob("*.json"))]


def _lock() -> list[bytes]:
    """The lock of sm_80 with one kernel of one iteration."""
    document = json.loads((LOCKS / "sm_80.json").read_bytes())
    one = document["iterations"]["1"]
    one["kernels"] = dict([next(iter(one["kernels"].items()))])
    one["files"] = dict([next(iter(one["files"].items()))])
    return [dump_json({**document, "iterations": {"1": one}}).encode()]


def _first(path: Path, key: str) -> Callable[[], list[bytes]]:
    """A committed document with the first of the entries under `key`."""

    def seeds() -> list[bytes]:
        document: dict[str, Any] = json.loads(path.read_bytes())
        document[key] = dict([next(iter(document[key].items()))])
        return [dump_json(document).encode()]

    return seeds


def _record() -> list[bytes]:
    shape = Shape(batch=1, seq_len=64, n_heads=1, d_head=128)
    cell = PlannedCell(subject="16", config="x", dtype="fp16", shape=shape, code="c", address=ADDRESS)
    failure = Failure(address=ADDRESS, kind="crash", message="it ended", exit_code=-9, tail="x")
    record = CellRecord(cell=cell, failure=failure, lane="gpu0", attempts=1, seconds=1.0)
    return [dump_json(record.model_dump(mode="json")).encode()]


def _cell(data: bytes) -> None:
    """A record's document; that the file is gzip at all is asked by the target ``packed``."""
    folder = scratch() / "cells"
    folder.mkdir(exist_ok=True)
    (folder / f"{ADDRESS}{SUFFIX}").write_bytes(gzip.compress(data, compresslevel=0))
    records = Records(folder)
    record = records.read(ADDRESS)
    assert packed(record.model_dump(mode="json"))


def _manifest(path: Path) -> None:
    """An installed wheel's manifest, for the loader, for a plan and for the build that made it."""
    folder = path.parent
    (folder / "x.so").write_bytes(b"code")
    assert is_fresh(folder, "d") in (True, False)
    read_manifest(path)
    checked_manifest(folder, "build it again")


def _manifests() -> list[bytes]:
    kernels = {"(FP16, ...)": {"sm_90": {"text_sha256": "ab", "registers": 128}}}
    document = {"inputs_digest": "d", "outputs": {"x.so": sha256(b"code")}, "kernels": kernels}
    return [dump_json({**document, "library_sha256": "00"}).encode(), dump_json(document).encode()]


def _entry(path: Path) -> None:
    """The record of a compiled kernel."""
    assert store.is_whole(path.parent, store.CubinEntry.OUTPUT, store.CubinEntry.LOG) in (True, False)
    load_json(path.read_bytes())


def _entries() -> list[bytes]:
    usage = {"arch": "sm_80", "registers": 8, "stack": 0, "spill_stores": 0, "spill_loads": 0, "barriers": 1,
             "smem_static": 0, "cmem": None, "compile_ms": 1.5, "warnings": []}  # fmt: skip
    return [dump_json({**usage, "key": "entry", "sha256": "ab"}).encode()]


TARGETS = (
    Target(
        "yaml",
        "located.read_yaml",
        filed("x.yaml", read_yaml),
        lambda: [STEP.encode(), b"a: [1, {b: 'c'}]\n\"d\": >\n  text\n  more\ne: [0.25, true, null, 'x']\n"],
        YAML,
    ),
    Target(
        "iteration",
        "ladder.iteration.load_iteration",
        filed("steps/02_step.yaml", _iteration),
        lambda: [STEP.encode()],
        (*CLAIMS, "layout", "xor", "softmax", "exp2_folded", "parent", "family: ampere", "h200: {B_c: 32}", *YAML),
    ),
    Target(
        "grid",
        "ladder.grid.load_grid",
        filed("g/mine.yaml", lambda path: load_grid(str(path))),
        _committed("grids/smoke.yaml", "grids/cpu.yaml"),
        ("prog", "all", "tune", "16 - swizzle", "seq_lens", "toolchains: ['13.1']", "exclude", "pairs: 3", *YAML),
    ),
    Target("gpu", "ladder.gpus.read_gpu", filed("a100.yaml", read_gpu), _committed("gpus/a100.yaml"), YAML),
    Target(
        "toolchain",
        "toolchain.wheels.load_pins",
        filed("toolchain.yaml", load_pins.__wrapped__),
        _committed("toolchain.yaml"),
        YAML,
    ),
    Target(
        "opcodes",
        "machine_code.opcodes.read_opcodes",
        filed("opcodes.yaml", read_opcodes),
        lambda: [OPCODES.encode()],
        YAML,
    ),
    Target(
        "mutants",
        "emulate.mutation.read_equivalent",
        filed("mutants.yaml", read_equivalent),
        lambda: [b"\n- ".join((CONFIGS / "equivalent_mutants.yaml").read_bytes().split(b"\n- ")[:4])],
        YAML,
    ),
    Target(
        "progression",
        "results.published.load_description",
        filed(f"described/{published.DESCRIPTION}", lambda path: published.load_description(path.parent)),
        lambda: [_lean((published.PUBLISHED / published.DESCRIPTION).read_bytes())],
        YAML,
    ),
    Target(
        "published-table",
        "results.published.read_csv, number",
        filed(f"csv/{published.PROGRESSION}", _published_csv),
        lambda: [(published.PUBLISHED / published.PROGRESSION).read_bytes()],
        (",", "\r\n", '"'),
    ),
    Target("result", "results.files.load_result", filed("r.json", _result), _results),
    Target(
        "packed",
        "results.files.read_json of .json.gz",
        filed("r.json.gz", read_json),
        lambda: [gzip.compress(b'{"schema_version": 2}', mtime=0)],
        heavy=packed_bombs,
    ),
    Target("lock", "lock.schema.read_lock", filed("sm_80.json", lambda path: read_lock("sm_80", path.parent)), _lock),
    Target("step-counts", "lock.step_counts.read_counts", filed("counts.json", read_counts), _first(COUNTS, "kernels")),
    Target("reading", "emulate.reading.load_reading", filed("reading.json", load_reading), _first(READING, "kernels")),
    Target("cell-record", "sweep.records.Records.read", _cell, _record),
    Target(
        "manifest",
        "build.wheel.checked_manifest, sweep inventory",
        filed("wheel/manifest.json", _manifest),
        _manifests,
    ),
    Target(
        "store-entry",
        "build.store.is_whole",
        filed("entry/meta.json", _entry),
        _entries,
        (),
        (FlashladderError, ValidationError, ValueError),
    ),
)
