"""A CUDA file from the guide: compiled by `invoke nvcc`, run by `ptxemu`; and what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

from flashladder.errors import FlashladderError
from flashladder.paths import ROOT
from flashladder.toolchain import own_cuda

pytestmark = pytest.mark.nvcc
GUIDE = (ROOT / "docs" / "emulator.md").read_text(encoding="utf-8")


def guide(language: str) -> str:
    (text,) = re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    return str(text)


def in_folder(folder: Path, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    search = ["--search-root", str(ROOT)] if program == "invoke" else []
    command = [sys.executable, "-m", program, *search, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)


def test_the_guides_commands_work_as_they_stand(tmp_path: Path) -> None:
    (tmp_path / "saxpy.cu").write_text(guide("cuda"))
    commands = [shlex.split(line.removeprefix("$ ")) for line in guide("console").splitlines()]
    assert [words[0] for words in commands] == ["invoke", "ptxemu"]
    replies = [in_folder(tmp_path, *words) for words in commands]
    for reply in replies:
        assert (reply.returncode, reply.stderr) == (0, "")
    page = replies[1].stdout
    assert "saxpy(saxpy_param_0: u64, saxpy_param_1: u64, saxpy_param_2: f32, saxpy_param_3: u32) of saxpy.ptx" in page
    assert "4 CTAs of 256 threads" in page
    assert "y  float32 1000: 999 of 1000 elements changed, saved to y.npy; min 1, mean 1000, max 1999; 1 3 5 7" in page
    assert "x  float32 1000: unchanged" in page
    assert "no hazards" in page
    assert re.search(r"^global_ld_sectors +250 ", page, re.MULTILINE)
    assert (np.load(tmp_path / "y.npy") == 2 * np.arange(1000, dtype=np.float32) + 1).all()
    facts = json.loads(in_folder(tmp_path, *commands[1], "--json").stdout)
    assert facts["arguments"][0]["changed"] == 999
    assert (facts["grid"], facts["block"], facts["hazards"]) == ([4], [256], [])


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
    (tmp_path / "k.cu").write_text(guide("cuda"))
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
