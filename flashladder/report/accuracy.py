"""Pages of errors, results/report/accuracy_<machine>.md: the latest steps and other libraries, beside FA2.

A softmax with a stale maximum rounds P differently; these pages show the cost in accuracy. `analysis/accuracy.py`
measures on a GPU, one file per family; `invoke report` renders. The gate holds the bounds below for the steps only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
import math
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from flashladder.columns import grouped, markdown
from flashladder.errors import FlashladderError
from flashladder.files import files_in, relative
from flashladder.ladder.iteration import load_iteration
from flashladder.located import first_problem
from flashladder.report.data import plain
from flashladder.report.tables import written
from flashladder.results.files import read_json

NAME = "accuracy.json.gz"
FILES = "accuracy*.json.gz"
REFERENCE = "fa2"
NORMAL = "normal"  # inputs of N(0, 1)
BOUNDS = {"maximum": 2.0, "RMS": 1.2}  # of a step's error over FA2's
ON_NORMAL = {"ampere": 1.2}  # of the maximum on N(0, 1), by family (decision 024)
TITLES = {
    NORMAL: "N(0, 1)", "rising": "rising logits", "falling": "falling logits", "matching": "K = Q",
    "one-hot": "one key has all weight", "equal": "equal logits", "outlier": "one row of V times 100",
}  # fmt: skip


class _Form(BaseModel):
    """Base of the models: strict types. A NaN passes, because the gate names it."""

    model_config = ConfigDict(frozen=True, strict=True)


class Record(_Form):
    """Errors of one draw: by arm (``fa2``, a step's number, a library) the maximum and the RMS."""

    dtype: str
    inputs: str
    seq_len: int = Field(gt=0)
    seed: int = Field(ge=0)
    errors: dict[str, Annotated[list[float], Field(min_length=2, max_length=2)]]


class Kernel(_Form):
    """The kernel of a measured step."""

    iteration: str = Field(pattern=r"^\d{1,3}$")
    config: str
    arch: str
    text_sha256: str


class Document(_Form):
    """A file of errors. Every draw has the same arms: FA2, at least one step, and libraries with known versions."""

    gpu: dict[Literal["name", "uuid"], str]
    torch: str
    references: dict[str, str] = {}
    kernels: dict[str, Kernel]
    records: list[Record] = Field(min_length=1)

    @model_validator(mode="after")
    def _arms_are_whole(self) -> Document:
        arms = self.records[0].errors.keys()
        for one in self.records:
            if one.errors.keys() != arms or not min(one.errors.get(REFERENCE, [0.0])) > 0:
                where = f"{one.dtype}, {one.inputs}, S = {one.seq_len}"
                raise ValueError(f"other arms, no FA2, or an FA2 without error, at {where}")
        libraries = {arm for arm in arms if not arm.isdecimal()} - {REFERENCE}
        if not any(map(str.isdecimal, arms)) or libraries - self.references.keys():
            raise ValueError("no iteration, or a library without a version")
        return self


@dataclass(frozen=True)
class Errors:
    """Errors over all seeds of one cell against fp64, by arm: the maximum, and the root of the mean square."""

    dtype: str
    inputs: str  # what Q, K and V hold
    seq_len: int
    maximum: Mapping[str, float]
    rms: Mapping[str, float]

    def ratios(self, arm: str) -> tuple[float, float]:
        """Maximum and RMS error of an arm over FA2's."""
        return self.maximum[arm] / self.maximum[REFERENCE], self.rms[arm] / self.rms[REFERENCE]


def load_errors(path: Path) -> Document:
    """Reads a file of errors; FlashladderError if it is not of this form, or FA2 is missing or has no error at all."""
    try:
        return Document.model_validate(read_json(path))
    except ValidationError as error:
        expected, found = "as analysis/accuracy.py writes it", first_problem(error)
        raise FlashladderError("not a file of errors", where=relative(path), expected=expected, found=found) from error


def cells(document: Document) -> list[Errors]:
    """One entry per dtype, inputs and length; it joins the draws of all seeds."""
    found = []
    for key, draws in grouped(document.records, lambda one: (one.dtype, one.inputs, one.seq_len)).items():
        errors = {arm: np.array([one.errors[arm] for one in draws]) for arm in draws[0].errors}
        maximum = {arm: float(own[:, 0].max()) for arm, own in errors.items()}  # NaN if one is NaN
        rms = {arm: math.sqrt(np.mean(own[:, 1] ** 2)) for arm, own in errors.items()}
        found.append(Errors(*key, maximum, rms))
    return found


def beyond_bounds(found: list[Errors]) -> Iterator[str]:
    """A line per error that exceeds its bound relative to FA2, or is NaN."""
    for cell in found:
        for arm in filter(str.isdecimal, cell.maximum):
            own = _on_normal(arm) if cell.inputs == NORMAL else None
            bounds = BOUNDS | ({"maximum": own} if own else {})
            for (what, most), ratio in zip(bounds.items(), cell.ratios(arm), strict=True):
                if not ratio <= most:
                    where = f"iteration {arm}, {cell.dtype}, {cell.inputs}, S = {cell.seq_len}"
                    yield f"{where}: {what} error {ratio:.3f} times FA2's, allowed {most:g}"


def _on_normal(arm: str) -> float | None:
    """The bound of a step's maximum error on N(0, 1), if its family has a special one."""
    return ON_NORMAL.get(load_iteration(int(arm)).family.name)


def render(results: Path) -> dict[str, bytes]:
    """A page for every file of errors, by name: ``accuracy_h200.md``, ``accuracy_hopper_h200.md``."""
    return {
        f"{path.name.removesuffix('.json.gz')}_{path.parent.name}.md": page(load_errors(path)).encode()
        for path in files_in(results, f"*/{FILES}")
    }


def page(document: Document) -> str:
    """A machine's page: the worst ratios over all lengths, and FA2's own maximum error."""
    found = cells(document)
    arms = sorted(found[0].maximum.keys() - {REFERENCE}, key=lambda arm: (not arm.isdecimal(), arm))
    header = ["inputs", "dtype", *(f"{arm}: {what}" for arm in arms for what in ("max", "RMS")), "FA2's max"]
    rows = []
    for (inputs, dtype), own in grouped(found, lambda cell: (cell.inputs, cell.dtype)).items():
        worst = [f"{max(cell.ratios(arm)[i] for cell in own):.2f}" for arm in arms for i in (0, 1)]
        title = TITLES.get(inputs, inputs.replace("scale", "Q times"))
        rows.append([title, dtype, *worst, f"{max(cell.maximum[REFERENCE] for cell in own):.1e}"])
    lengths, others = (
        ", ".join(str(n) for n in sorted({cell.seq_len for cell in found if (cell.inputs == NORMAL) is normal}))
        for normal in (True, False)
    )
    return written(
        "accuracy.md.j2", gpu=plain(document.gpu["name"]), document=document, lengths=lengths, others=others,
        bounds=BOUNDS, bound=_on_normal(arms[0]), table=markdown(header, rows),
        first_family=load_iteration(int(arms[0])).family is load_iteration(1).family,
        beside=", ".join(f"{arm} {document.references[arm]}" for arm in arms if not arm.isdecimal()),
    )  # fmt: skip
