"""`invoke emulate`, `check` on the emulator, `invoke nvcc` and the CI action, on compiled kernels."""

from __future__ import annotations

from collections.abc import Iterator
import io
import json
from pathlib import Path
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from tqdm import tqdm

from analysis.gate_action import Inputs, checks
from flashladder import toolchain as own_cuda
from flashladder.cases.inputs import Case, emulator_cases, proof_cases
from flashladder.check import command as check
from flashladder.emulate import command as emulate
from flashladder.emulate import reading as emulator_counters
from flashladder.emulate.mutation import mutants_of
from flashladder.emulate.reading import load_reading
from flashladder.errors import CheckFailed, FlashladderError
from flashladder.ladder.claim import LOCK_ARCHES
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import Iteration, load_all, load_iteration
from flashladder.ladder.selection import select_configs
from flashladder.lock.command import locked_kernel
from flashladder.names import DTYPES, PUBLISHED_GPU
from flashladder.paths import ROOT
from tests.data_files import table_of, text_of
from tests.typed import command, error_line

pytestmark = pytest.mark.nvcc
NUMBERS = [iteration.number for iteration in load_all()]


def facts(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert command("emulate", *words, "--json") == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_copies_and_products_of_a_hopper_step_are_counted_where_the_others_are_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two CTAs of 128 rows read Q once and K and V whole, and write O; 16 products of 64 clocks for each KV block."""
    short = facts(capsys, "24", "--counters")["counters"]["short"]
    tensor = 256 * 128 * 2  # bytes
    assert short["bulk_bytes"] == tensor + 2 * (2 * tensor) + tensor
    assert (short["bulk_ld_sectors"], short["bulk_st_sectors"]) == (5 * tensor // 32, tensor // 32)
    assert short["wgmma_cycles"] == 2 * 2 * 2 * 16 * 64  # CTAs, warpgroups, KV blocks
    assert short["wgmma_shared_bytes"] > 0
    assert short["global_ld_sectors"] == short["cp_async_bytes"] == 0
    assert command("emulate", "24", "--seq-len", "1") == 0
    assert "d_head 128: 1 CTA of 12 warps, 160 KiB of shared memory each" in capsys.readouterr().out
    assert not {"bulk_bytes", "wgmma_cycles"} & set(facts(capsys, "1", "--counters")["counters"]["short"])


def test_few_multiprocessors_give_a_cta_of_a_persistent_kernel_several_tiles(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("25", "--seq-len", "300", "--heads", "2", "--hazards")
    two, many = (facts(capsys, *words, *more) for more in (("--multiprocessors", "2"), ()))
    assert (two["ctas"], many["ctas"]) == (2, 6)
    assert two["right"]
    assert two["hazards"] == many["hazards"] == []
    assert two["lane_instructions"] < many["lane_instructions"], "six CTAs begin and end, and not two"


def test_a_missing_barrier_fails_although_the_numbers_are_right(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant = next(one for one in mutants_of(load_iteration(1)) if one.instruction.opcode == "bar.sync")
    for module in (emulate, check):
        monkeypatch.setattr(module, "kernel_of", lambda *_: mutant.kernel)
    assert command("emulate", "1") == 0
    assert command("emulate", "1", "--hazards", "--counters") == 1
    counters, _, hazards = capsys.readouterr().out.partition("HAZARDS: ")
    assert "8.0x  ldmatrix" in counters
    assert "ampere/operands/whole.cuh:" in counters, "and not ptx/ldmatrix.cuh, which it calls"
    assert "ptx/ldmatrix.cuh:" not in counters
    assert "RAW" in hazards
    assert "kernels/ptx/ldmatrix.cuh:" in hazards
    with pytest.raises(CheckFailed, match="1 of 2 cases failed"):
        check.main(["1", "--backend", "emulator", "--dtype", "fp16", "--quick"])
    assert "shared RAW (read after write by another thread)" in capsys.readouterr().out


@pytest.mark.parametrize("number", NUMBERS)
def test_every_iteration_is_right_in_the_launch_of_reproduce(number: int) -> None:
    """In one dtype, turn by turn, and of general kernels one launch; `nox -s reproduce` runs all of them."""

    def turn(config: KernelConfig, row_stride: int) -> tuple[Case, ...]:
        cases = proof_cases(config, row_stride)
        return (cases[number % len(cases)],) if config.is_general else cases

    report = check.Emulated(dtypes=(DTYPES[number % 2],), cases=turn).check(number, bar=False)
    assert report.passed, report.render()
    assert all(case.status == "pass" for case in report.cases)


def parts_of_kernels() -> Iterator[tuple[Iteration, KernelConfig, int, int]]:
    """Each kernel for the published GPU, but none twice; one for packed sequences in two parts: minutes."""
    seen = set[tuple[object, ...]]()
    for iteration in load_all():
        arch = next(one for one in LOCK_ARCHES if one in iteration.family.targets.arches)
        for config in select_configs(iteration, PUBLISHED_GPU, DTYPES):
            locked = locked_kernel(iteration.number, config, arch)
            assert locked
            key = (locked.ptx_sha256, config, iteration.row_stride)
            parts = 0 if key in seen else 2 if config.is_packed else 1
            yield from ((iteration, config, part, parts) for part in range(parts))
            seen.add(key)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("iteration", "config", "part", "parts"),
    [pytest.param(*one, id=f"{one[0].number} {one[1].short_form()} {one[2]}") for one in parts_of_kernels()],
)
def test_every_kernel_is_right_in_every_case(iteration: Iteration, config: KernelConfig, part: int, parts: int) -> None:
    cases = emulator_cases(config, iteration.row_stride)[part::parts]
    asked = check.Emulated((config.short_form(),), (config.dtype,), lambda *_: cases)
    report = asked.check(iteration.number, bar=False)
    assert [case.case for case in report.cases] == [case.name for case in cases]
    assert report.passed, report.render()
    fixed = iteration.row_stride != 0
    assert any(case.status == "not_applicable" for case in report.cases) == fixed


@pytest.mark.parametrize(("number", "refused"), [(15, 0), (16, 2)])
def test_quick_cases_are_short_and_count_what_is_refused(
    number: int, refused: int, capsys: pytest.CaptureFixture[str]
) -> None:
    check.main([str(number), "--backend", "emulator", "--quick"])
    printed = capsys.readouterr().out
    assert "4 cases, 0 failed" in printed
    assert printed.count("1 correctly rejected") == refused


def test_other_configurations_are_checked_on_request() -> None:
    report = check.Emulated(("prog",), ("bf16",), proof_cases).check(7, bar=False)
    assert report.passed, report.render()
    assert len({case.kernel for case in report.cases}) == len(set(load_iteration(7).configs.values()))
    resident = "(FP16, 128, 64, 32, 4): async+eager+swizzled+load_0_2_2_tiles"  # Q stays in registers
    assert check.Emulated((resident,), ("fp16",), proof_cases).check(13, bar=False).passed


def test_every_bar_has_an_end_and_gets_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bars: list[tqdm[Any]] = []

    def bar(desc: str, disable: bool | None, **settings: Any) -> tqdm[Any]:
        assert disable is None, "hidden where there is no terminal, and only there"
        bars.append(tqdm(desc=desc, file=io.StringIO(), **settings))
        return bars[-1]

    monkeypatch.setattr(emulate, "tqdm", bar)
    assert command("emulate", "1", "--seq-len=704", "--heads=2", "--batch=3", "--hazards") == 0
    assert {one.desc for one in bars} == {"emulate 1", "compare with fp64", "look for races"}
    assert all(one.total and one.n == one.total for one in bars)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("number", NUMBERS)
def test_the_committed_reading_follows_from_the_ptx(number: int) -> None:
    assert emulator_counters.read_kernel(number) == load_reading().of(number)


def test_a_reading_is_kept_and_a_damaged_one_made_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(emulator_counters, "CACHE", tmp_path)
    monkeypatch.setattr(emulator_counters, "SHAPE", emulator_counters.RACE_SHAPE)  # small: a second
    first = emulator_counters.read_kernel(16)
    (kept,) = tmp_path.glob("*.json")
    kept.write_text("{", encoding="utf-8")
    assert emulator_counters.read_kernel(16) == first
    monkeypatch.setattr(emulator_counters, "forward", lambda *_, **__: pytest.fail("it runs again"))
    assert emulator_counters.read_kernel(16) == first
    for name, other in (("version", "of another emulator"), ("ptx_sha256", "0" * 64)):
        with monkeypatch.context() as patch, pytest.raises(pytest.fail.Exception, match="it runs again"):
            patch.setattr(emulator_counters, name, lambda *_, other=other: other)
            emulator_counters.read_kernel(16)


SOURCE = text_of("nvcc/emulate", "source")
LAUNCH = "--grid 1 --block 64 --arg out=float32:64:zeros --arg in=float32:64:arange --save out=out.npy --hazards"


def test_ptxemu_runs_what_nvcc_made(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(SOURCE.replace("BARRIER", "__syncthreads()"))
    for program, words in (
        ("invoke", ["--search-root", str(ROOT), "nvcc", "k.cu", "--out", "own.ptx"]),
        ("ptxemu", ["own.ptx", *LAUNCH.split()]),
    ):
        command = [sys.executable, "-m", program, *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert np.load(tmp_path / "out.npy").tolist() == list(range(63, -1, -1))


@pytest.mark.parametrize(("text", "arch", "out", "says"), table_of("nvcc/emulate", "refused_by_nvcc"))
def test_what_nvcc_refuses_is_one_line_and_leaves_no_file(
    tmp_path: Path, text: str, arch: str, out: str, says: str
) -> None:
    (tmp_path / "k.cu").write_text(text)
    assert says in error_line(own_cuda.compile_file, tmp_path / "k.cu", arch, tmp_path / out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["k.cu"]


def test_the_log_is_where_the_line_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "k.cu").write_text("__global__ void k( {}\n")
    for folder, shown in ((tmp_path, str(own_cuda.LOG)), (ROOT, "build/nvcc.log")):
        monkeypatch.chdir(folder)
        assert error_line(own_cuda.compile_file, tmp_path / "k.cu").endswith(f"the full log is {shown}")
        assert Path(shown).is_file()


def test_a_newer_target_and_the_file_beside_the_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "k.cu").write_text(SOURCE.replace("BARRIER", ""))
    own_cuda.compile_and_tell(str(tmp_path / "k.cu"), "sm_90")
    made = tmp_path / "k.ptx"
    assert ".target sm_90" in made.read_text()
    assert f"ptxemu {made}" in capsys.readouterr().out
    (tmp_path / "t.cu").write_text("template <class T> __global__ void k(T *p) { *p = 1; }")
    own_cuda.compile_and_tell(str(tmp_path / "t.cu"), "sm_90")
    assert "instantiate its template" in capsys.readouterr().out
    with pytest.raises(FlashladderError, match="no such file"):
        own_cuda.compile_file(tmp_path / "none.cu")


@pytest.mark.parametrize(
    ("barrier", "code", "says"),
    [("__syncthreads()", 0, "no hazards"), ("", 1, "k.cu:6"), ("missing()", 2, 'identifier "missing" is undefined')],
)
def test_a_cuda_file_passes_or_is_stopped(tmp_path: Path, barrier: str, code: int, says: str) -> None:
    (tmp_path / "k.cu").write_text(SOURCE.replace("BARRIER", barrier))
    given = {"CUDA": str(tmp_path / "k.cu"), "ARCH": "sm_80", "GRID": "1", "BLOCK": "64", "SHARED": "0"}
    given["ARGS"] = "float32:64:zeros\nfloat32:64:arange"
    (done,) = checks(Inputs({f"GATE_{name}": text for name, text in given.items()}), tmp_path)
    assert (done.what, done.code) == ("k.cu runs without a hazard", code), done.text
    assert says in done.text
    main = (
        "int main() { float *x; cudaMalloc(&x, 512); reversed<<<1, 64>>>(x, x + 64); return cudaDeviceSynchronize(); }"
    )
    (tmp_path / "p.cu").write_text(SOURCE.replace("BARRIER", barrier) + main)
    found = tmp_path / "p.sarif"
    (done,) = checks(Inputs({"GATE_PROGRAM": str(tmp_path / "p.cu"), "GATE_SARIF": str(found)}), tmp_path)
    assert (done.what, done.code) == ("p.cu runs without a hazard", code), done.text
    assert code == 2 or len(json.loads(found.read_text())["runs"][0]["results"]) == code
