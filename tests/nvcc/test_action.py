"""The action with a CUDA file: `ptxemu` compiles and runs it; a racy kernel and one that nvcc refuses do not pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.gate_action import Inputs, checks
from flashladder.errors import FlashladderError

pytestmark = pytest.mark.nvcc
SOURCE = """
extern "C" __global__ void reversed(float *out, const float *in) {
    __shared__ float tile[64];
    tile[threadIdx.x] = in[threadIdx.x];
    BARRIER;
    out[threadIdx.x] = tile[63 - threadIdx.x];
}
"""


@pytest.mark.parametrize(
    ("barrier", "code", "says"),
    [("__syncthreads()", 0, "no hazards"), ("", 1, "k.cu:6"), ("missing()", 2, 'identifier "missing" is undefined')],
)
def test_a_cuda_file_passes_or_is_stopped(tmp_path: Path, barrier: str, code: int, says: str) -> None:
    (tmp_path / "k.cu").write_text(SOURCE.replace("BARRIER", barrier))
    given = {"CUDA": str(tmp_path / "k.cu"), "ARCH": "sm_80", "GRID": "1", "BLOCK": "64", "SHARED": "0"}
    args = "float32:64:zeros\nfloat32:64:arange"
    (done,) = checks(Inputs({f"GATE_{name}": text for name, text in {**given, "ARGS": args}.items()}), tmp_path)
    assert (done.what, done.code) == ("k.cu runs without a hazard", code), done.text
    assert says in done.text


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FlashladderError, match=r"bad input `cuda`: expected a file that ends in \.cu, found k\.cpp"):
        list(checks(Inputs({"GATE_CUDA": "k.cpp"}), tmp_path))
