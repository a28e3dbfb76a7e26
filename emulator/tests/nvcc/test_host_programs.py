"""`ptxemu run` on ordinary CUDA programs: their own checks pass, and a fault in one is reported.

The programs are sections of tests/texts/host_programs.cu; tests/data/host_programs_h200.json says what they did on an
H200, alone and under compute-sanitizer.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
import re
import signal
import subprocess
import sys

import pytest
from tests.compile import NEEDS, root

from ptxemu.errors import PtxemuError
from ptxemu.host import program
from ptxemu.nvcc import toolkit

pytestmark = [pytest.mark.nvcc, pytest.mark.skipif(not toolkit(), reason=NEEDS)]

TESTS = Path(__file__).parents[1]
H200 = json.loads((TESTS / "data" / "host_programs_h200.json").read_text(encoding="utf-8"))["programs"]
TEXT = (TESTS / "texts" / "host_programs.cu").read_text(encoding="utf-8")
SECTIONS = re.split(r"^// ==== (\S+)\n", TEXT, flags=re.MULTILINE)
FILES = dict(zip(SECTIONS[1::2], SECTIONS[2::2], strict=True))
QUICK = ("tensor_ring", "errors", "symbols")
# Exit code of `ptxemu run`, and kinds of hazards, or the kind of the error that ended a launch.
FOUND = {
    "algorithms": (0, set()),
    "async_copies": (0, set()),
    "async_copies_missing": (1, {"not written before"}),
    "clusters": (0, set()),
    "clusters_missing": (1, {"exit"}),
    "errors": (1, {"past the end of the nearest buffer"}),
    "histogram": (0, set()),
    "histogram_missing": (1, {"WAR", "WAW"}),
    "memory": (0, set()),
    "modules": (0, set()),
    "product": (0, set()),
    "reduce": (0, set()),
    "symbols": (0, set()),
    "tensor_ring": (0, set()),
    "tensor_ring_missing": (1, {"WAR"}),
    "transpose": (0, set()),
    "transpose_missing": (1, {"RAW"}),
    "vector_add": (0, set()),
}
SAME_OUTPUT = {name for name in FOUND if not name.endswith("_missing")}


def run(*words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ptxemu", "run", *map(str, words)]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)


def test_every_program_of_the_folder_is_here() -> None:
    here = {name.removesuffix("_missing") + ".cu" for name in FOUND}
    assert here | {"check.h"} == FILES.keys()
    assert FOUND.keys() == H200.keys()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.exhaustive) for name in FOUND]
)
def test_program(name: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    flags = "-DMISSING" if name.endswith("_missing") else ""
    for file in ("check.h", main := f"{name.removesuffix('_missing')}.cu"):
        (tmp_path / file).write_text(FILES[file], encoding="utf-8")
    done = run("--json", report, tmp_path / main, NVCC_APPEND_FLAGS=flags)
    code, kinds = FOUND[name]
    assert done.returncode == code, done.stderr
    launches = json.loads(report.read_text(encoding="utf-8"))["launches"]
    found = {hazard["kind"] for launch in launches for hazard in launch["hazards"]}
    errors = [launch["error"]["message"] for launch in launches if launch["error"]]
    assert found | {kind for kind in kinds for error in errors if kind in error} == kinds
    if name in SAME_OUTPUT:
        assert done.stdout.splitlines()[-1].endswith(": 0 wrong")


@pytest.mark.exhaustive
def test_a_python_program_with_a_library_of_its_own(tmp_path: Path) -> None:
    """As an extension of a Python package has it."""
    source, library = tmp_path / "double.cu", tmp_path / "libdouble.so"
    source.write_text(
        "__global__ void twice(float *x) { x[threadIdx.x] *= 2; }\n"
        'extern "C" int run(float *host, int n) {\n'
        "    float *x;\n"
        "    cudaMalloc(&x, n * 4);\n"
        "    cudaMemcpy(x, host, n * 4, cudaMemcpyHostToDevice);\n"
        "    twice<<<1, n>>>(x);\n"
        "    return cudaMemcpy(host, x, n * 4, cudaMemcpyDeviceToHost);\n"
        "}\n"
    )
    script = tmp_path / "test.py"
    script.write_text(
        "import ctypes, sys\n"
        "x = (ctypes.c_float * 4)(1, 2, 3, 4)\n"
        "error = ctypes.CDLL(sys.argv[1]).run(x, 4)\n"
        "print(error, list(x))\n"
    )
    folder = root()
    assert folder is not None
    command = [str(folder / "bin" / "nvcc"), "-shared", "-Xcompiler", "-fPIC", "-arch=sm_80", "-cudart", "none"]
    command += ["-Xlinker", "--unresolved-symbols=ignore-all", "-cudadevrt", "none", "-no-compress"]
    subprocess.run([*command, str(source), "-o", str(library)], check=True)
    done = run("--", sys.executable, script, library)
    assert (done.returncode, done.stdout) == (0, "0 [2.0, 4.0, 6.0, 8.0]\n"), done.stderr


ODD = r"""
#include <cassert>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>

__global__ void add(int *x) { x[threadIdx.x] += 1; }
__global__ void asserts(int n) { assert(n == 0); }
__global__ void prints(int n) { printf("%d", n); }

int main(int argc, char **argv) {
    int *x;
    const char *what = argv[1];
    std::printf("before\n");
    if (!std::strcmp(what, "missing")) { cudaGraph_t graph; return cudaGraphCreate(&graph, 0); }
    cudaMalloc(&x, 128);
    add<<<1, 32>>>(x);
    if (!std::strcmp(what, "exit")) return 7;
    if (!std::strcmp(what, "host")) return x[0];
    if (!std::strcmp(what, "abort")) std::abort();
    const cudaMemcpyKind in = cudaMemcpyHostToDevice, inside = cudaMemcpyDeviceToDevice;
    if (!std::strcmp(what, "beyond")) return cudaMemcpy(x, x + 31, 8, inside) != cudaErrorInvalidValue;
    if (!std::strcmp(what, "bad copy")) return cudaMemcpy(x, (void *)8, 4, in) != cudaErrorInvalidValue;
    if (!std::strcmp(what, "bad fill")) return cudaMemset((void *)8, 0, 4) != cudaErrorInvalidValue;
    if (!std::strcmp(what, "assert")) { asserts<<<1, 1>>>(5); return cudaDeviceSynchronize() != cudaErrorAssert; }
    if (!std::strcmp(what, "printf")) { prints<<<1, 1>>>(5); return cudaDeviceSynchronize() != cudaErrorNotSupported; }
    if (!std::strcmp(what, "wait")) for (std::puts("waits"), std::fflush(stdout);;) usleep(10000);
    std::fflush(stdout);
    if (fork() == 0) return cudaMalloc(&x, 128);
    int status;
    wait(&status);
    return WEXITSTATUS(status) != 2;
}
"""


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that does what its argument says, compiled as a user's build does."""
    folder, nvcc = tmp_path_factory.mktemp("odd"), toolkit()
    assert nvcc is not None
    (folder / "odd.cu").write_text(ODD)
    libraries = run("--libraries").stdout.strip()
    command = [str(nvcc / "bin" / "nvcc"), "-arch=sm_90a", "-no-compress", "-cudart", "shared", "-cudadevrt", "none"]
    subprocess.run([*command, f"-L{libraries}", str(folder / "odd.cu"), "-o", str(folder / "odd")], check=True)
    return folder / "odd"


@pytest.mark.parametrize(("what", "code", "message"), [
    ("missing", 2, "odd: cudaGraphCreate is not supported"),
    ("exit", 7, "no hazards"),
    ("host", 139, "the host may not use device addresses"),
    ("bad copy", 0, "a host address that the program may not access"),
    ("bad fill", 0, "cudaMemset: no device address"),
    ("beyond", 0, "cudaMemcpy: 8 bytes from byte 124 of an allocation of 128 bytes"),
    ("abort", 134, "signal 6"),
    ("assert", 1, "1 error that ended a launch"),
    ("printf", 2, "call of vprintf"),
    ("fork", 0, "forked after the first CUDA call"),
])  # fmt: skip
def test_a_program_that_ends_in_an_odd_way(odd: Path, what: str, code: int, message: str) -> None:
    done = run(odd, what)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert what in {"host", "abort"} or done.stdout == "before\n"


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_program_too(odd: Path, tmp_path: Path, number: int) -> None:
    command = [sys.executable, "-m", "ptxemu", "run", str(odd), "wait"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        assert [started.stdout.readline() for _ in range(2)] == ["before\n", "waits\n"]
        started.send_signal(number)
        started.communicate(timeout=20)  # the program holds the pipe open until it has ended
    assert started.returncode == 128 + number
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("words", "message"), [
    ((), "no program is named"),
    (("nowhere",), "nowhere: no such program"),
    ((".",), ".: a folder, not a program"),
    (("nowhere.cu",), "nowhere.cu: no such file"),
    (("--schedule", "soon", "x"), "bad --schedule"),
    (("--max-instructions", "-1", "x"), "bad --max-instructions"),
    (("--arch", "sm_90", "x"), "--arch is for a CUDA file"),
])  # fmt: skip
def test_a_wrong_command_line_is_one_line(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(PtxemuError) as caught:
        program.run(words)
    assert message in str(caught.value)


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(PtxemuError, match=r"cannot be kept.*Not a directory.*XDG_CACHE_HOME"):
        program.stand_in()
