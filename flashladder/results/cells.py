"""The part of a result that a sweep adds: which cells were planned, which failed and how, what an emulated one gave.

Why apart from `flashladder.results.schema`: these models are also what a live sweep writes, one record per cell, before
there is a document to pack them into (`flashladder.sweep`). Every planned cell is named with its address, so that one
that was deleted from a packed document is missed.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from flashladder.ladder.config import Dtype
from flashladder.results.samples import Accuracy, Shape, Strict

FailureKind = Literal[
    "crash", "illegal-address", "timeout", "out-of-memory", "gpu-lost", "wrong", "refused", "not-built"
]
ADDRESS = r"^[0-9a-f]{16}$"


class PlannedCell(Strict):
    """One measurement of a grid.

    Attributes:
        subject: an iteration (``16``), an ablation (``16 - swizzle``) or a reference (``fa2``, ``cudnn`` ...).
        config: short form of its configuration; empty for a reference.
        dtype: fp16 or bf16.
        shape: of all four tensors.
        toolchain: CUDA version of the compiler's wheels, ``13.1``; empty for the pinned one and for a reference.
        code: digest of what runs: machine code, or PTX and emulator; of a reference its version. Empty when unknown,
            because it is not built.
        address: digest of all of the above with the machine, the settings and the protocol: the record's name.
    """

    subject: str = Field(min_length=1)
    config: str
    dtype: Dtype
    shape: Shape
    toolchain: str = ""
    code: str
    address: str = Field(pattern=ADDRESS)


class Failure(Strict):
    """Why a cell has no numbers: of that cell alone; `tail` is the end of what its process wrote to stderr."""

    address: str = Field(pattern=ADDRESS)
    kind: FailureKind
    message: str = Field(min_length=1)
    exit_code: int | None = None
    tail: str = ""


class Sweep(Strict):
    """Which grid a document answers: the digest of its file, all cells that it planned, and those that failed.

    `made_for` is the GPU that the grid was made for where it was measured on another one.
    """

    grid: str = Field(min_length=1)
    grid_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    made_for: str | None = None
    planned: tuple[PlannedCell, ...] = Field(min_length=1)
    failures: tuple[Failure, ...] = ()

    @model_validator(mode="after")
    def _each_once(self) -> Sweep:
        """No cell is planned twice, none fails twice, and only planned ones fail."""
        planned = [cell.address for cell in self.planned]
        failed = [failure.address for failure in self.failures]
        for name, found in (("planned", planned), ("failed", failed)):
            if twice := sorted({address for address in found if found.count(address) > 1}) if _repeats(found) else []:
                msg = f"cell {twice[0]} is {name} twice"
                raise ValueError(msg)
        if unknown := sorted(set(failed) - set(planned)):
            msg = f"cell {unknown[0]} failed, but was not planned"
            raise ValueError(msg)
        return self


class EmulatedCell(Strict):
    """One kernel run on the CPU from its PTX.

    Attributes:
        address: of the planned cell.
        accuracy: by the rule of `flashladder.cases.reference`.
        counters: Nsight Compute's names to the emulator's counts, in one launch.
        instructions: warp instructions executed.
        hazards: races and missing waits that were reported.
    """

    address: str = Field(pattern=ADDRESS)
    accuracy: Accuracy
    counters: dict[str, int]
    instructions: int = Field(gt=0)
    hazards: int = Field(ge=0)


def _repeats(addresses: list[str]) -> bool:
    return len(set(addresses)) != len(addresses)
