"""Replays every case on a GPU, beside the emulator, and keeps what the hardware answered.

An expectation and an emulator written by the same people may share a misreading; the chip shares none. The raw outputs
are kept, so that machines without a GPU compare with the hardware in every later test run.
"""

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
from tests.cases.harness import Case, Load, Outputs, compare, entry_name, launch_case, ptx_of, run_case

from ptxemu.errors import PtxemuError
from ptxemu.values import DTYPES, Array

SCHEMA = 1
# What a defect of the emulator can raise; the replay records it and goes on, because time on a GPU is scarce.
DEFECTS = (PtxemuError, ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)


@dataclass(frozen=True)
class Record:
    """One case on one GPU."""

    module: str  # the group of cases
    opcode: str
    text: str
    digest: str  # of the PTX and the inputs: tells whether a case of today is the one that ran
    outputs: Mapping[str, str] = field(default_factory=dict)  # raw bytes of each, base64; empty when it did not run
    error: str | None = None  # why it did not run on the GPU
    against_expected: str | None = None  # the first difference, as below
    against_emulator: str | None = None

    def arrays(self, case: Case) -> dict[str, Array]:
        raw = {name: base64.b64decode(data) for name, data in self.outputs.items()}
        return {name: np.frombuffer(data, DTYPES[case.outputs[name]]) for name, data in raw.items()}


def digest(case: Case) -> str:
    """SHA-256 of everything that decides what the hardware computes."""
    inputs = b"".join(np.ascontiguousarray(array).tobytes() for _, array in case.inputs.values())
    maps = repr(sorted(case.maps.items())).encode() if case.maps else b""
    return hashlib.sha256(ptx_of([case]).encode() + inputs + maps).hexdigest()


def run_on(cases: Sequence[Case], load: Load, recover: Callable[[], None]) -> list[Outputs | str]:
    """What a GPU gives for each case: its outputs, or why it gave none.

    All cases share a module, unless the driver refuses that: then each gets its own, and the bad one stands alone.
    `recover` makes the GPU usable again after a kernel that failed.
    """
    text = ptx_of(cases)
    try:
        program = load(text)
    except PtxemuError as error:
        return [str(error)] if len(cases) == 1 else [run_on([case], load, recover)[0] for case in cases]
    results: list[Outputs | str] = []
    for index, case in enumerate(cases):
        try:
            results.append(launch_case(case, program.kernel(entry_name(index))))
        except PtxemuError as error:
            results.append(str(error))
            recover()
            program = load(text)
    return results


def agree(case: Case, hardware: Outputs, emulated: Outputs) -> str | None:
    """Whether two machines agree: the same bits, or twice the tolerance that each may use up."""
    both = replace(case, expected=hardware, tolerance=2 * case.tolerance, absolute=2 * case.absolute)
    return compare(both, emulated)


def records(module: str, cases: Sequence[Case], gpu: Load, recover: Callable[[], None], cpu: Load) -> Iterator[Record]:
    """Runs the cases of one group on both machines, on the GPU in a module for each target."""
    results: dict[int, Outputs | str] = {}
    for target in sorted({case.target for case in cases}):
        chosen = [index for index, case in enumerate(cases) if case.target == target]
        results.update(zip(chosen, run_on([cases[index] for index in chosen], gpu, recover), strict=True))
    for index, case in enumerate(cases):
        record, found = Record(module, case.opcode, case.text, digest(case)), results[index]
        if isinstance(found, str):
            yield replace(record, error=found)
            continue
        data = {name: base64.b64encode(array.tobytes()).decode() for name, array in found.items()}
        record = replace(record, outputs=data, against_expected=compare(case, found))
        yield replace(record, against_emulator=_emulated(case, found, cpu))


def _emulated(case: Case, hardware: Outputs, load: Load) -> str | None:
    try:
        return agree(case, hardware, run_case(case, load))
    except DEFECTS as error:
        return f"{case.opcode}: the emulator failed: {type(error).__name__}: {error}"


def write(path: Path, machine: Mapping[str, object], found: Sequence[Record]) -> Path:
    """The committed file: gzip without a time stamp, so that equal results are equal bytes."""
    document = {"schema": SCHEMA, "machine": dict(machine), "records": [asdict(record) for record in found]}
    text = json.dumps(document, sort_keys=True, separators=(",", ":")) + "\n"
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
    return path


def read(path: Path) -> tuple[dict[str, object], list[Record]]:
    """The inverse of `write`; a file that is no such file is a `PtxemuError`."""
    try:
        document = json.loads(gzip.decompress(path.read_bytes()))
        if document["schema"] != SCHEMA:
            raise PtxemuError("replayed cases of another schema", where=path, expected=SCHEMA)
        return document["machine"], [Record(**record) for record in document["records"]]
    except (OSError, EOFError, KeyError, TypeError, ValueError) as error:
        raise PtxemuError("malformed replayed cases", where=path, found=repr(error)) from error


def table(found: Sequence[Record]) -> str:
    lines = [f"{'group':14s} {'cases':>6s} {'ran':>6s} {'= expected':>11s} {'= emulator':>11s}"]
    for module in [*dict.fromkeys(record.module for record in found), "all"]:
        ran = [each for each in found if module in {each.module, "all"}]
        count, ran = len(ran), [each for each in ran if each.error is None]
        agreed = (sum(getattr(each, name) is None for each in ran) for name in ("against_expected", "against_emulator"))
        lines.append("{:14s} {:6d} {:6d} {:11d} {:11d}".format(module, count, len(ran), *agreed))
    for record in found:
        told = {"gpu": record.error, "expected": record.against_expected, "emulator": record.against_emulator}
        lines += [f"{record.module} [{name}] {text}" for name, text in told.items() if text]
    return "\n".join(lines)
