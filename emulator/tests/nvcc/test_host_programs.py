"""`ptxemu run` on ordinary CUDA programs: their own checks pass, and a fault in one is reported.

The programs are sections of tests/texts/host_programs.cu; tests/data/host_programs_h200.json says what they did on an
H200, alone and under compute-sanitizer.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
import re
import subprocess
import sys

import pytest
from tests.compile import NEEDS, root

from ptxemu.nvcc import toolkit

pytestmark = [pytest.mark.nvcc, pytest.mark.skipif(not toolkit(), reason=NEEDS)]

TESTS = Path(__file__).parents[1]
H200 = json.loads((TESTS / "data" / "host_programs_h200.json").read_text(encoding="utf-8"))["programs"]
TEXT = (TESTS / "texts" / "host_programs.cu").read_text(encoding="utf-8")
SECTIONS = re.split(r"^// ==== (\S+)\n", TEXT, flags=re.MULTILINE)
FILES = dict(zip(SECTIONS[1::2], SECTIONS[2::2], strict=True))
QUICK = ("tensor_ring", "errors")
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
    for file in ("check.h", program := f"{name.removesuffix('_missing')}.cu"):
        (tmp_path / file).write_text(FILES[file], encoding="utf-8")
    done = run("--json", report, tmp_path / program, NVCC_APPEND_FLAGS=flags)
    code, kinds = FOUND[name]
    assert done.returncode == code, done.stderr
    launches = json.loads(report.read_text(encoding="utf-8"))["launches"]
    found = {hazard["kind"] for launch in launches for hazard in launch["hazards"]}
    errors = [launch["error"] for launch in launches if launch["error"]]
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
    program = tmp_path / "test.py"
    program.write_text(
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
    done = run("--", sys.executable, program, library)
    assert (done.returncode, done.stdout) == (0, "0 [2.0, 4.0, 6.0, 8.0]\n"), done.stderr


def test_what_cannot_be_run(tmp_path: Path) -> None:
    missing = tmp_path / "graph.cu"
    missing.write_text("int main() { cudaGraph_t graph; return cudaGraphCreate(&graph, 0); }\n")
    done = run(missing)
    assert done.returncode == 2
    assert "graph.cu: cudaGraphCreate is not supported" in done.stderr
