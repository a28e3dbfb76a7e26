"""What runs the tests' programs on a GPU: the replay of cases and the runner for a bare machine, with ours in its place."""

from __future__ import annotations

from collections.abc import Sequence
import ctypes
from dataclasses import dataclass
import json
from pathlib import Path
import shutil
import struct
import subprocess
import sys

import numpy as np
import pytest
from tests.cases import replay
from tests.cases.harness import Case, Program
from tests.hopper_programs import on_chip

import ptxemu
from ptxemu import PtxemuError, TensorMap
from ptxemu.values import Array

# --- the runner -------------------------------------------------------------------------------------------------------

# A driver in Python, in the place of the library: "fails" is refused, "hangs" never ends, the rest double a word.
FAKE = """
import ctypes, time

class Fake:
    def __init__(self, name):
        self.memory = {}

    def __getattr__(self, name):
        known = type(self).__dict__.get("do_" + name, lambda *arguments: 0)
        return known.__get__(self)

    def do_cuGetErrorName(self, status, text):
        text._obj.value = b"CUDA_ERROR_FAKE"
        return 0

    def do_cuModuleGetFunction(self, function, module, name):
        self.name = name
        return 0

    def do_cuMemAlloc_v2(self, place, size):
        buffer = ctypes.create_string_buffer(size.value)
        place._obj.value = ctypes.addressof(buffer)
        self.memory[place._obj.value] = buffer
        return 0

    def do_cuMemcpyHtoD_v2(self, address, data, size):
        self.memory[address.value][: size.value] = data
        return 0

    def do_cuMemcpyDtoH_v2(self, out, address, size):
        out[: size.value] = self.memory[address.value][: size.value]
        return 0

    def do_cuLaunchKernelEx(self, config, function, pointers, extra):
        if self.name == b"fails":
            return 715
        while self.name == b"hangs":
            time.sleep(1)
        address = ctypes.cast(pointers[0], ctypes.POINTER(ctypes.c_uint64))[0]
        word = ctypes.cast(address, ctypes.POINTER(ctypes.c_uint32))
        word[0] *= config._obj.grid[0]
        return 0

ctypes.CDLL = Fake
"""


def described(name: str, kernel: str) -> dict[str, object]:
    """A program that doubles the 21 in its only buffer."""
    return {
        "name": name,
        "kernel": kernel,
        "cubin": "none.cubin",
        "threads": 32,
        "grid": [2, 1, 1],
        "tolerance": 0.0,
        "cluster": [1, 1, 1],
        "shared_bytes": 0,
        "digest": name,
        "buffers": [[0, 4]],
        "arguments": [{"bytes": "00" * 8, "pointers": [[0, 0]]}],
        "results": [{"buffer": 0, "expected": [4, 4], "itemsize": 4}],
    }


def run(folder: Path, *kernels: str) -> tuple[int, str, dict[str, dict[str, object]]]:
    """The runner with the fake driver: exit code, output, records by name."""
    text = Path(on_chip.__file__).read_text(encoding="utf-8").replace("PATIENCE = 30", "PATIENCE = 1")
    (folder / "run.py").write_text(text.replace("FOLDER = ", f"{FAKE}\nFOLDER = ", 1), encoding="utf-8")
    (folder / "programs.json").write_text(json.dumps([described(f"p{i}", each) for i, each in enumerate(kernels)]))
    (folder / "data.bin").write_bytes(struct.pack("<II", 21, 42))
    done = subprocess.run([sys.executable, "run.py"], cwd=folder, capture_output=True, text=True, check=False)
    records = json.loads((folder / "answers.json").read_text())["records"]
    return done.returncode, done.stdout, {each["name"]: each for each in records}


def test_answers_are_compared_and_a_failure_or_a_hang_costs_its_own_process(tmp_path: Path) -> None:
    code, out, records = run(tmp_path, "doubles", "fails", "hangs", "doubles")
    assert (code, "4 programs, 2 as expected, 2 not" in out) == (1, True)
    assert records["p1"]["error"] == "cuLaunchKernelEx: CUDA_ERROR_FAKE (715)"
    assert records["p2"]["error"] == "no answer within 1 s"
    for name in ("p0", "p3"):
        record = records[name]
        assert (record["error"], record["against_expected"], record["distinct"]) == (None, None, 1)
        assert record["outputs"] == ["KgAAAA=="]


def test_without_a_driver_nothing_is_written(tmp_path: Path) -> None:
    shutil.copyfile(on_chip.__file__, tmp_path / "run.py")
    text = (tmp_path / "run.py").read_text(encoding="utf-8").replace("libcuda.so.1", "no-such-library.so")
    (tmp_path / "run.py").write_text(text, encoding="utf-8")
    (tmp_path / "programs.json").write_text(json.dumps([described("p0", "doubles")]))
    (tmp_path / "data.bin").write_bytes(bytes(8))
    done = subprocess.run([sys.executable, "run.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no GPU, or no driver: nothing was run" in done.stderr
    assert not (tmp_path / "answers.json").exists()


def test_differences() -> None:
    two = struct.pack("<2f", 1, 2)
    for found, wanted, tolerance, says in (
        (two, two, 0.0, None),
        (struct.pack("<2f", 1, 2.001), two, 0.001, None),
        (struct.pack("<2f", 1, 2.1), two, 0.001, "1 of 2 differ, first 1: expected 0x40000000"),
        (struct.pack("<2I", 3, 5), struct.pack("<2I", 4, 6), 0.0, "2 of 2 differ, first 0: expected 0x00000004"),
    ):
        text = on_chip.difference(found, wanted, tolerance, 4)
        assert (text is None) if says is None else says in (text or "")


def test_the_drivers_structures_have_its_sizes() -> None:
    assert (ctypes.sizeof(on_chip.Config), on_chip.Config.stream.offset, on_chip.Config.count.offset) == (56, 32, 48)
    assert (ctypes.sizeof(on_chip.Attribute), on_chip.Attribute.size.offset) == (72, 8)


# --- the replay of cases ----------------------------------------------------------------------------------------------

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
