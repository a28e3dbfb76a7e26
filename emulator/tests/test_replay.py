"""The replay on a GPU, with a machine that fails in every way in the GPU's place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tests.cases import replay
from tests.cases.harness import Case, Program

import ptxemu
from ptxemu.errors import PtxemuError
from ptxemu.machine.tensor_map import TensorMap
from ptxemu.values import Array

VALUES = np.arange(64, dtype=np.int32)
STEPS = ("add.s32 d, a, 1;", "add.s32 d, a, 2;", "add.s32 d, a, 3;")
CASES = [
    Case("add.s32", text, {"a": ("s32", VALUES)}, {"d": "s32"}, {"d": VALUES + np.int32(step)})
    for step, text in enumerate(STEPS, start=1)
]


@dataclass
class Chip:
    """The emulator as a GPU that refuses modules with `refused` in them, and breaks in kernel `broken`."""

    refused: str = "no such text"
    broken: str = ""
    off: int = 0  # what it adds to every output
    lost: bool = False
    resets: int = 0

    def load(self, text: str) -> Program:
        if self.refused in text:
            raise PtxemuError("the CUDA driver refused cuModuleLoadDataEx", found="CUDA_ERROR_INVALID_PTX (218)")
        return ChipProgram(self, ptxemu.load(text))

    def reset(self) -> None:
        self.lost = False
        self.resets += 1


@dataclass
class ChipProgram:
    chip: Chip
    program: ptxemu.Program

    def kernel(self, name: str) -> ChipKernel:
        return ChipKernel(self, name)


@dataclass
class ChipKernel:
    program: ChipProgram
    name: str

    def launch(self, grid: Sequence[int], block: Sequence[int], args: Sequence[Array | TensorMap]) -> None:
        chip = self.program.chip
        chip.lost |= self.name == chip.broken
        if chip.lost:
            raise PtxemuError("the CUDA driver refused cuCtxSynchronize", found="CUDA_ERROR_ILLEGAL_ADDRESS (700)")
        self.program.program.kernel(self.name).launch(grid, block, args)
        assert isinstance(args[-1], np.ndarray)
        args[-1].view(np.int32)[:] += chip.off


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


def test_one_bad_case_does_not_stop_the_others() -> None:
    found = replayed(Chip(refused="add.s32 d, a, 2;"))
    assert [record.error is None for record in found] == [True, False, True]
    assert "CUDA_ERROR_INVALID_PTX (218)" in (found[1].error or "")
    assert found[2].against_expected is None


def test_a_kernel_that_fails_costs_only_itself() -> None:
    chip = Chip(broken="case_0001")
    found = replayed(chip)
    assert [record.error is None for record in found] == [True, False, True]
    assert chip.resets == 1


def test_disagreements_are_named() -> None:
    text = replay.table(replayed(Chip(off=1)))
    assert text.splitlines()[2].split() == ["all", "3", "3", "0", "0"]
    assert "integer [expected] add.s32: 64 of 64 elements differ" in text
    assert "integer [emulator] add.s32: 64 of 64 elements differ" in text


def test_two_machines_may_each_use_up_the_tolerance() -> None:
    ones = np.ones(1, np.float32)
    case = Case("x", "", {"a": ("f32", ones)}, {"d": "f32"}, {"d": ones}, tolerance=1e-3, note="")
    above, below, far = ({"d": ones * np.float32(factor)} for factor in (1.0009, 0.9991, 0.99))
    assert replay.agree(case, above, below) is None
    assert replay.agree(case, above, far) is not None


def test_a_file_that_is_no_replay_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "cases.json.gz"
    path.write_bytes(b"no gzip")
    with pytest.raises(PtxemuError, match="malformed replayed cases"):
        replay.read(path)
