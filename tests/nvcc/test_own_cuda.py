"""A CUDA file: compiled by `invoke nvcc`, run by `ptxemu`; and what goes wrong."""

from __future__ import annotations

from pathlib import Path
import subprocess
import sys

import numpy as np
import pytest

from flashladder.errors import FlashladderError
from flashladder.paths import ROOT
from flashladder.toolchain import own_cuda

pytestmark = pytest.mark.nvcc
SAXPY = """
extern "C" __global__ void saxpy(float *y, const float *x, float a, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = a * x[i] + y[i];
    }
}
"""
LAUNCH = "--grid 4 --block 256 --arg y=float32:1000:ones --arg x=float32:1000:arange --arg a=2.0 --arg n=int32:1000"


def test_ptxemu_runs_what_nvcc_made(tmp_path: Path) -> None:
    (tmp_path / "saxpy.cu").write_text(SAXPY)
    for program, words in (
        ("invoke", ["--search-root", str(ROOT), "nvcc", "saxpy.cu", "--out", "own.ptx"]),
        ("ptxemu", ["own.ptx", *LAUNCH.split(), "--save", "y=y.npy", "--hazards"]),
    ):
        command = [sys.executable, "-m", program, *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert (np.load(tmp_path / "y.npy") == 2 * np.arange(1000, dtype=np.float32) + 1).all()


@pytest.mark.parametrize(
    ("text", "arch", "out", "says"),
    [
        ("__global__ void k( {}\n", "sm_80", "k.ptx", "k.cu:1: nvcc: "),
        ("", "ampere", "k.ptx", "bad --arch: expected for example sm_80, found 'ampere'"),
        ("", "sm_999", "k.ptx", "nvcc does not know this --arch: expected one of sm_75, sm_80, "),
        ("", "sm_99", "k.ptx", ", found sm_99"),
        ("", "sm_80", "k.cu", "bad --out"),
        ("", "sm_80", "no/k.ptx", "bad --out"),
        ("", "sm_80", "other.cu", "bad --out"),
    ],
)
def test_what_nvcc_refuses_is_one_line_and_leaves_no_file(
    tmp_path: Path, text: str, arch: str, out: str, says: str
) -> None:
    (tmp_path / "k.cu").write_text(text)
    with pytest.raises(FlashladderError) as caught:
        own_cuda.compile_file(tmp_path / "k.cu", arch, tmp_path / out)
    assert says in str(caught.value)
    assert caught.value.exit_code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["k.cu"]


def test_the_log_is_where_the_line_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "k.cu").write_text("__global__ void k( {}\n")
    for folder, shown in ((tmp_path, str(own_cuda.LOG)), (ROOT, "build/nvcc.log")):
        monkeypatch.chdir(folder)
        with pytest.raises(FlashladderError) as caught:
            own_cuda.compile_file(tmp_path / "k.cu")
        assert str(caught.value).endswith(f"the full log is {shown}")
        assert Path(shown).is_file()


def test_a_newer_target_and_the_file_beside_the_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "k.cu").write_text(SAXPY)
    own_cuda.compile_and_tell(str(tmp_path / "k.cu"), "sm_90")
    made = tmp_path / "k.ptx"
    assert ".target sm_90" in made.read_text()
    assert f"ptxemu {made}" in capsys.readouterr().out
    with pytest.raises(FlashladderError, match="no such file"):
        own_cuda.compile_file(tmp_path / "none.cu")


@pytest.mark.parametrize("exists", [True, False])
def test_ptx_is_not_compiled(exists: bool, tmp_path: Path) -> None:
    source = tmp_path / "add.ptx"
    if exists:
        source.touch()
    with pytest.raises(FlashladderError, match=rf"PTX is compiled already.*`ptxemu {source}`") as caught:
        own_cuda.compile_file(source)
    assert "--out" not in str(caught.value)
