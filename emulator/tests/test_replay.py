"""The replay of cases on a GPU, with the emulator in its place: what is kept, and cases that fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tests.cases import replay
from tests.cases.harness import Case, Program

import ptxemu
from ptxemu import PtxemuError, TensorMap
from ptxemu.values import Array

VALUES = np.arange(64, dtype=np.int32)
CASES = [
    Case("add.s32", f"add.s32 d, a, {n};", {"a": ("s32", VALUES)}, {"d": "s32"}, {"d": VALUES + np.int32(n)})
    for n in (1, 2, 3)
]


@dataclass
class Chip:
    """The emulator as a GPU: it refuses modules with `refused` in them, breaks in a kernel, adds `off` to outputs."""

    refused: str = "no such text"
    broken: str = ""
    off: int = 0
    lost: bool = False
    resets: int = 0

    def load(self, text: str) -> Program:
        if self.refused in text:
            raise PtxemuError("the CUDA driver refused cuModuleLoadDataEx", found="CUDA_ERROR_INVALID_PTX (218)")
        return ChipKernel(self, ptxemu.load(text))

    def reset(self) -> None:
        self.lost, self.resets = False, self.resets + 1


@dataclass
class ChipKernel:
    chip: Chip
    program: ptxemu.Program
    name: str = ""

    def kernel(self, name: str) -> ChipKernel:
        return ChipKernel(self.chip, self.program, name)

    def launch(self, grid: Sequence[int], block: Sequence[int], args: Sequence[Array | TensorMap]) -> None:
        self.chip.lost |= self.name == self.chip.broken
        if self.chip.lost:
            raise PtxemuError("the CUDA driver refused cuCtxSynchronize", found="CUDA_ERROR_ILLEGAL_ADDRESS (700)")
        self.program.kernel(self.name).launch(grid, block, args)
        assert isinstance(args[-1], np.ndarray)
        args[-1].view(np.int32)[:] += self.chip.off


def replayed(chip: Chip) -> list[replay.Record]:
    return list(replay.records("integer", CASES, chip.load, chip.reset, ptxemu.load))


def test_what_the_hardware_answered_is_kept(tmp_path: Path) -> None:
    found = replayed(Chip())
    assert [(r.error, r.against_expected, r.against_emulator) for r in found] == [(None, None, None)] * 3
    path = replay.write(tmp_path / "cases.json.gz", {"gpu": "X"}, found)
    before = path.read_bytes()
    assert replay.read(replay.write(path, {"gpu": "X"}, found)) == ({"gpu": "X"}, found)
    assert path.read_bytes() == before
    for record, case in zip(found, CASES, strict=True):
        assert np.array_equal(record.arrays(case)["d"], case.expected["d"])
        assert record.digest == replay.digest(case)
    path.write_bytes(b"no gzip")
    with pytest.raises(PtxemuError, match="malformed replayed cases"):
        replay.read(path)


def test_a_case_that_fails_costs_only_itself_and_disagreements_are_named() -> None:
    for chip, resets in ((Chip(refused="add.s32 d, a, 2;"), 0), (Chip(broken="case_0001"), 1)):
        assert [record.error is None for record in replayed(chip)] == [True, False, True]
        assert chip.resets >= resets
    text = replay.table(replayed(Chip(off=1)))
    assert text.splitlines()[2].split() == ["all", "3", "3", "0", "0"]
    for side in ("expected", "emulator"):
        assert f"integer [{side}] add.s32: 64 of 64 elements differ" in text
    ones = np.ones(1, np.float32)
    case = Case("x", "", {"a": ("f32", ones)}, {"d": "f32"}, {"d": ones}, tolerance=1e-3, note="")
    above, below, far = ({"d": ones * np.float32(factor)} for factor in (1.0009, 0.9991, 0.99))
    assert replay.agree(case, above, below) is None  # two machines may each use up the tolerance
    assert replay.agree(case, above, far) is not None
