"""``ptxemu FILE.cu``: nvcc of the wheels or of PATH compiles it; reports name CUDA lines; nvcc's errors are shown."""

from __future__ import annotations

import importlib.util
from pathlib import Path
import stat

import numpy as np
import pytest

from ptxemu import nvcc
from ptxemu.__main__ import main

REVERSED = """
extern "C" __global__ void reversed(float *out, const float *in) {
    __shared__ float tile[64];
    tile[threadIdx.x] = in[threadIdx.x];
    BARRIER;
    out[threadIdx.x] = tile[63 - threadIdx.x];
}
"""
WORDS = ["--block", "64", "--arg", "out=float32:64:zeros", "--arg", "in=float32:64:arange"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("CXX", "NVCC_CCBIN", "NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS"):
        monkeypatch.delenv(name, raising=False)
    Path("k.cu").write_text(REVERSED.replace("BARRIER", "__syncthreads()"))


@pytest.mark.nvcc
def test_a_cuda_file_runs_and_a_race_names_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["k.cu", *WORDS, "--hazards", "--save", "out=o.npy"]) == 0
    out, err = capsys.readouterr()
    assert (np.load("o.npy") == np.arange(64)[::-1]).all()
    assert out.startswith("reversed(")
    assert "of k.ptx, sm_80\n" in out
    assert err == ""
    Path("k.cu").write_text(REVERSED.replace("BARRIER", ""))
    assert main(["k.cu", *WORDS, "--hazards", "--arch", "sm_90", "--ptx", "kept.ptx"]) == 1
    out, err = capsys.readouterr()
    assert "of kept.ptx, sm_90\n" in out
    assert "HAZARDS: 1\nkept.ptx:" in out
    assert "k.cu:6" in out
    assert main(["kept.ptx", *WORDS, "--hazards"]) == 1
    assert sorted(path.name for path in Path().iterdir()) == ["k.cu", "kept.ptx", "o.npy"]


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("text", "words", "told", "says"),
    [
        ("__global__ void k( {}\n", [], "k.cu(1): error", "k.cu: nvcc could not compile it for sm_80 (exit code"),
        ('#include "none.h"\n', [], "none.h: No such file", "k.cu: nvcc could not compile it"),
        ("", ["--arch", "sm_10"], "compute_10", "k.cu: nvcc could not compile it for sm_10"),
    ],
)
def test_what_nvcc_says_is_shown(
    text: str, words: list[str], told: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("k.cu").write_text(text)
    assert main(["k.cu", *WORDS, *words, "--ptx", "k.ptx"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert err.splitlines()[-1].startswith(f"error: {says}")
    assert [path.name for path in Path().iterdir()] == ["k.cu"]


@pytest.mark.nvcc
def test_a_warning_is_shown_and_options_come_from_nvccs_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("k.cu").write_text('extern "C" __global__ void k() { int unused = SIZE; }\n')
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DSIZE=5")
    assert main(["k.cu", "--block", "32"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("k() of k.ptx")
    assert "unused" in err


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The only line on stderr, where nothing is on stdout."""
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--arch", "ampere"], "bad --arch: expected for example sm_80, found 'ampere'"),
        (["--ptx", "k.txt"], "bad --ptx: expected a .ptx file, found 'k.txt'"),
        (["--ptx", "no/k.ptx"], "bad --ptx: expected a .ptx file in a folder that exists"),
    ],
)
def test_bad_options(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["k.cu", *WORDS, *words]) == 2
    assert says in one_line(capsys)


def stand_in(path: Path, text: str) -> Path:
    """A program that does what a line of shell says."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_without_wheels_nvcc_of_path_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert main(["k.cu", *WORDS]) == 2
    assert "there is no nvcc here to compile CUDA C++; run: pip install 'ptxemu[nvcc]'" in one_line(capsys)
    stand_in(tmp_path / "bin" / "nvcc", 'for word; do out=$word; done; echo "$@" >&2; echo ".version 8.0" > "$out"')
    assert main(["k.cu", *WORDS]) == 2
    assert "nvcc needs a C++ compiler: expected $CXX, or one of g++, c++, clang++ on PATH" in one_line(capsys)
    stand_in(tmp_path / "bin" / "clang++", "exit 0")
    assert nvcc.compile_file(Path("k.cu"), "sm_90") == ".version 8.0\n"
    told = capsys.readouterr().err
    assert f"-ccbin {tmp_path / 'bin' / 'clang++'} -ptx -std=c++17 -lineinfo -arch=compute_90 " in told
    monkeypatch.setenv("NVCC_CCBIN", "/usr/bin/g++")
    nvcc.compile_file(Path("k.cu"), "sm_80")
    assert "-ccbin" not in capsys.readouterr().err
    stand_in(tmp_path / "bin" / "nvcc", "kill -9 $$")
    assert main(["k.cu", *WORDS]) == 2
    assert "(exit code -9)" in one_line(capsys)
