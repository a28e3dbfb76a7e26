"""The runner that a bare machine with a GPU gets: comparisons, the driver's structures, children that fail or hang."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
import shutil
import struct
import subprocess
import sys

import pytest
from tests.hopper_programs import on_chip

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
    text = Path(on_chip.__file__).read_text(encoding="utf-8").replace("PATIENCE = 30", "PATIENCE = 3")
    (folder / "run.py").write_text(text.replace("FOLDER = ", f"{FAKE}\nFOLDER = ", 1), encoding="utf-8")
    (folder / "programs.json").write_text(json.dumps([described(f"p{i}", each) for i, each in enumerate(kernels)]))
    (folder / "data.bin").write_bytes(struct.pack("<II", 21, 42))
    done = subprocess.run([sys.executable, "run.py"], cwd=folder, capture_output=True, text=True, check=False)
    records = json.loads((folder / "answers.json").read_text())["records"]
    return done.returncode, done.stdout, {each["name"]: each for each in records}


def test_answers_are_raw_and_compared(tmp_path: Path) -> None:
    code, out, records = run(tmp_path, "doubles", "doubles")
    assert (code, "2 programs, 2 as expected, 0 not" in out) == (0, True)
    assert records["p1"]["outputs"] == ["KgAAAA=="]
    assert (records["p0"]["error"], records["p0"]["against_expected"], records["p0"]["distinct"]) == (None, None, 1)


def test_a_failure_and_a_hang_cost_their_own_process(tmp_path: Path) -> None:
    code, out, records = run(tmp_path, "doubles", "fails", "doubles", "hangs", "doubles")
    assert code == 1
    assert records["p1"]["error"] == "cuLaunchKernelEx: CUDA_ERROR_FAKE (715)"
    assert records["p3"]["error"] == "no answer within 3 s"
    assert [records[f"p{i}"]["error"] for i in (0, 2, 4)] == [None] * 3
    assert "5 programs, 3 as expected, 2 not" in out


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


@pytest.mark.parametrize(
    ("found", "wanted", "tolerance", "says"),
    [
        (struct.pack("<2f", 1, 2), struct.pack("<2f", 1, 2), 0.0, None),
        (struct.pack("<2f", 1, 2.001), struct.pack("<2f", 1, 2), 0.001, None),
        (struct.pack("<2f", 1, 2.1), struct.pack("<2f", 1, 2), 0.001, "1 of 2 differ, first 1: expected 0x40000000"),
        (struct.pack("<2I", 3, 5), struct.pack("<2I", 4, 6), 0.0, "2 of 2 differ, first 0: expected 0x00000004"),
    ],
)
def test_differences(found: bytes, wanted: bytes, tolerance: float, says: str | None) -> None:
    text = on_chip.difference(found, wanted, tolerance, 4)
    assert (text is None) if says is None else says in (text or "")


def test_the_drivers_structures_have_its_sizes() -> None:
    assert (ctypes.sizeof(on_chip.Config), on_chip.Config.stream.offset, on_chip.Config.count.offset) == (56, 32, 48)
    assert (ctypes.sizeof(on_chip.Attribute), on_chip.Attribute.size.offset) == (72, 8)
