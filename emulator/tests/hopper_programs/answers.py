"""What a chip answered to the programs: the committed file, and how it is made of the runner's answers.json.

Run: ``python -m tests.hopper_programs.answers ANSWERS [REFUSED_ANSWERS]``, the answers.json of the runner in the
exported folder and in its `refused`, keeps in `FILE` the answers to programs that are still the same, as the chip gave
them; tests/nvcc/test_hopper_programs.py compares.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
import gzip
import json
from pathlib import Path
import sys
from typing import Any

import numpy as np
from tests.hopper_programs.export import digest
from tests.hopper_programs.program import HERE, programs
from tests.hopper_programs.tensors import REFUSED

from flashladder.files import write_atomic
from ptxemu.values import Array

FILE = HERE.parent / "data" / "hopper_programs_h200.json.gz"
SCHEMA = 1
GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Answer:
    """One program on a chip.

    Attributes:
        digest: of instructions, inputs and launch; tells whether the program of today is the one that ran.
        outputs: raw bytes of each result, base64.
        distinct: how many different answers repeated launches gave.
        error: why there is no answer.
        against_expected: the first difference from the reference of that day.
    """

    name: str
    digest: str
    outputs: tuple[str, ...]
    distinct: int
    error: str | None
    against_expected: str | None

    def arrays(self, like: tuple[Array, ...]) -> list[Array]:
        """The results as arrays of these shapes and types."""
        raw = (base64.b64decode(text) for text in self.outputs)
        return [np.frombuffer(data, array.dtype).reshape(array.shape) for data, array in zip(raw, like, strict=True)]


def _document(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    document: dict[str, Any] = json.loads(gzip.decompress(data) if data.startswith(GZIP) else data)
    assert document["schema"] == SCHEMA
    return document


def read(path: Path = FILE) -> dict[str, Answer]:
    """The answers by program."""
    records = _document(path)["records"]
    return {each["name"]: Answer(**{**each, "outputs": tuple(each["outputs"])}) for each in records}


def keep(found: Sequence[Path], out: Path = FILE) -> int:
    """Keeps the answers to programs of today in `out`, compressed without a time stamp; how many there are.

    Several files of one machine are joined, the first that answers a program.
    """
    documents = [_document(each) for each in found]
    assert all(each["machine"] == documents[0]["machine"] for each in documents), "another machine answered"
    known = {digest(each, each.make()): str(each) for each in (*programs().values(), *REFUSED)}
    same = {each["digest"]: each for document in reversed(documents) for each in document["records"]}
    kept = sorted((each | {"name": known[key]} for key, each in same.items() if key in known), key=lambda e: e["name"])
    text = json.dumps(documents[0] | {"records": kept}, sort_keys=True, separators=(",", ":")) + "\n"
    write_atomic(out, gzip.compress(text.encode(), mtime=0))
    return len(kept)


if __name__ == "__main__":
    print(f"{keep([Path(each) for each in sys.argv[1:]])} of {len(programs()) + len(REFUSED)} programs")
