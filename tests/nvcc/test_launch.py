"""The launcher without a GPU: a CUDA runtime that prints the calls of `launch.cpp`."""

from __future__ import annotations

import json
from pathlib import Path
import subprocess

import pytest

from flashladder.paths import KERNELS
from tests.nvcc.conftest import compiled

pytestmark = pytest.mark.nvcc

LAUNCHED = 12  # lines about launches
NOTHING = "(nil)"  # how glibc's printf prints a null pointer
RUNTIME = Path(__file__).with_name("host") / "runtime.cpp"
INVALID_VALUE, INVALID_CLUSTER_SIZE, NO_IMAGE = 1, 912, 209  # cudaError_t


def ran(folder: Path, capability: int, **defined: object) -> subprocess.CompletedProcess[str]:
    """The launcher on a GPU of compute capability N.5; `defined` are macros of the program, such as ``LEAST``."""
    macros = {"CAPABILITY": capability, "LEAST": 80, "ALONE": 0, "REFUSES": 0, "LOADS": 0, "ARCHES": "sm_80, sm_90"}
    options = [f"-D{name}={json.dumps(value)}" for name, value in (macros | defined).items()]
    program = compiled(folder, RUNTIME.read_text(encoding="utf-8"), KERNELS / "host" / "launch.cpp", *options)
    return subprocess.run([program], capture_output=True, text=True, check=True)


def printed(folder: Path, capability: int, **defined: object) -> list[str]:
    """The calls of the runtime, or the launcher's error."""
    return ran(folder, capability, **defined).stdout.splitlines()


def test_the_runtime_gets_the_launch_as_it_was_planned_and_is_asked_once_a_size(tmp_path: Path) -> None:
    lines = printed(tmp_path, 9)
    resident = f"block 96 shared 4096 stream {NOTHING} argument 44 attributes 0"  # x is at most the multiprocessors
    assert lines[:LAUNCHED] == [
        *("device 1", "kernel flash_fwd_kernel", "shared memory 4096 on 1"),
        "grid 2 3 5 block 96 shared 4096 stream 0x7 argument 42 attributes 0",
        "device 1",
        "grid 6 3 5 block 96 shared 4096 stream 0x7 argument 43 attributes 1 cluster 1 3 1",
        *("device 1", f"grid 4 2 1 {resident}", "device 1", f"grid 4 2 1 {resident}"),
        *("device 1", f"grid 3 2 1 {resident}"),
    ]
    asked = [f"clusters of {ctas} 1 1 of 96 threads and 4096 bytes, 1 attribute" for ctas in (2, 8)]
    assert lines[LAUNCHED:] == [
        *("device 1", asked[0], "2 of 4: 50", asked[1], "8 of 4: 12", "2 of 4: 50", "device 1", "2 again: 50"),
    ]
    # the driver refuses the size on a slice that is too small for any cluster; no error is left behind
    assert printed(tmp_path, 9, REFUSES=INVALID_CLUSTER_SIZE)[LAUNCHED:] == [
        *("device 1", asked[0], "error taken", "2 of 4: 0", asked[1], "error taken", "8 of 4: 0"),
        *("2 of 4: 0", "device 1", "2 again: 0"),
    ]


@pytest.mark.parametrize(
    ("capability", "defined", "message"),
    [
        (9, {"REFUSES": INVALID_VALUE}, "asking how many clusters run at once failed: name (text)"),
        (7, {}, "q: expected a GPU of compute capability 8.0 or later, found sm_75 ()"),
        (8, {"LEAST": 95, "ALONE": 1}, "q: expected a GPU of compute capability 9.5, no other, found sm_85 ()"),
        (10, {"LEAST": 95, "ALONE": 1}, "q: expected a GPU of compute capability 9.5, no other, found sm_105 ()"),
    ],
)
def test_what_cannot_be_launched_is_one_line(
    tmp_path: Path, capability: int, defined: dict[str, object], message: str
) -> None:
    assert printed(tmp_path, capability, **defined)[-1] == f"flashladder_07: {message}"


@pytest.mark.parametrize(
    ("capability", "arches", "compiled"),
    [
        (8, "sm_80", False),  # 8.5 runs code for 8.0
        (8, "sm_86, sm_90", True),  # not that of a later one
        (9, "sm_90a", True),  # for 9.0 alone
        (9, "sm_95a", False),
    ],
)
def test_ptx_that_the_driver_compiles_is_told_once(
    tmp_path: Path, capability: int, arches: str, compiled: bool
) -> None:
    """On stderr, and before the launch nothing else changes."""
    done = ran(tmp_path, capability, ARCHES=arches)
    assert len(done.stdout.splitlines()) == LAUNCHED + 8
    assert len(done.stderr.splitlines()) == int(compiled)
    if compiled:
        arch = f"sm_{capability}5"
        for piece in ("flashladder_07: ", f"no machine code for {arch}", arches, "PTX", f"7 -- --arch {arch}"):
            assert piece in done.stderr


def test_no_build_is_offered_that_the_toolchain_cannot_make(tmp_path: Path) -> None:
    message = ran(tmp_path, 12, ARCHES="sm_80").stderr
    assert "no machine code for sm_125" in message
    assert "--arch" not in message
    refused = ran(tmp_path, 12, ARCHES="sm_80", LOADS=NO_IMAGE).stdout.splitlines()[-1]
    assert "no code for this GPU" in refused
    assert refused.endswith("; update the driver")
    done = ran(tmp_path, 9, ARCHES="sm_80", LOADS=NO_IMAGE)  # what does not load is not reported as compiled
    assert "no code for this GPU: expected machine code for one of sm_80" in done.stdout
    assert "--arch sm_95` or update the driver" in done.stdout
    assert done.stderr == ""
