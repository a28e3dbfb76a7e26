"""The model of one SM, and ptxas's occupancy beside the runtime's."""

from __future__ import annotations

from functools import partial
from itertools import product
import json
from pathlib import Path
import re
import subprocess

import pytest

from analysis.pipe_rates import named
from flashladder.explain.predict import explain, load_predictions
from flashladder.explain.simulate import SCHEDULERS, chip_of, simulate, steps_of
from flashladder.ladder.gpus import load_gpus
from flashladder.machine_code.cubin import read_cubin
from flashladder.machine_code.executions import path
from flashladder.machine_code.flow import main_loop
from flashladder.machine_code.sass import disassemble
from flashladder.toolchain import find_toolchain, host_compiler
from tests.data_files import text_of
from tests.null.explain.test_explain import measured_rates
from tests.typed import command

pytestmark = pytest.mark.nvcc


GPU = "h200"
ROUNDS = ("mma.f16", "ldmatrix.x4", "ex2", "lop3", "shfl.bfly", "mma.f16 + 2 fma", "ex2 + 4 fma")
OFF = 0.13  # of a measured rate


@pytest.mark.parametrize(
    ("gpu", "number"),
    [("h200", 1), ("h200", 16), ("a100", 2), ("rtx3090", 7), ("h100", 9), ("rtx4090", 18), ("h200", 19)],
)
def test_the_committed_predictions_are_the_models(gpu: str, number: int) -> None:
    data = load_predictions()
    assert explain(str(number), gpu, None, data.seq_len).data in data.gpus[gpu]


def test_a_change_taken_back_is_predicted_too() -> None:
    without, with_it = explain("16 - swizzle", "a100", None, 4096), explain("16", "a100", None, 4096)
    assert without.kernel.conflicts > 7
    assert with_it.kernel.conflicts == 1
    assert without.data.binding == "shared memory"
    assert without.data.tflops < with_it.data.tflops / 3


def test_the_screen_says_what_binds_and_marks_a_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("explain", "2", "--gpu", "h200") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "binding latency (copies)" in shown
    ((percent, off),) = re.findall(
        r"predicted \d+ TFLOP/s, \d+ % of the peak, (\d+) % of FA2 .* measured 79.7 % of FA2: "
        r"the prediction is off by ([+-][\d.]+) points",
        shown,
    )
    assert float(off) == pytest.approx(int(percent) - 79.7, abs=0.6)
    ((warps, per_scheduler),) = re.findall(r"(\d+) warps on an SM; .* hide its latencies, ([\d.]+) are resident", shown)
    assert int(warps) == SCHEDULERS * float(per_scheduler)
    assert command("explain", "7", "--gpu", "rtx4090", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["percent_of_fa2"], document["anchor"], document["binding"]) == (None, None, "tensor")
    assert "measured" not in document


def test_a_step_that_nobody_timed_is_told_as_predicted_and_as_that_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("explain", "17", "--gpu", "rtx3090") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(r"step [+-]\d+\.\d % over iteration 16, both predicted", shown)
    assert f"measured nothing: no timing of it on the {load_gpus()['rtx3090'].title} at this length" in shown
    assert "assumed no lane asks in the vote of a KV block: the code for that case is left out" in shown
    assert "is off by" not in shown


def test_where_every_row_is_brought_to_its_maximum_a_kv_block_takes_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    left_out = explain("17", "a100", None, 4096)
    monkeypatch.setattr("flashladder.machine_code.executions.path", partial(path, asked=True))
    asked = explain("17", "a100", None, 4096)
    assert (left_out.kernel.votes, asked.kernel.votes) == (1, 5)
    assert asked.data.clocks / left_out.data.clocks == pytest.approx(1.43, abs=0.03)  # docs/explain.md


@pytest.mark.parametrize("name", ROUNDS)
def test_the_model_runs_its_own_micro_benchmarks_as_fast_as_the_chip(name: str, tmp_path: Path) -> None:
    kernel, cubin = named(name, 4), tmp_path / "rate.cubin"
    ptx = tmp_path / "rate.ptx"
    ptx.write_text(kernel.text(), encoding="utf-8")
    subprocess.run([find_toolchain().ptxas, "-arch=sm_90", "-o", cubin, ptx], check=True)
    chip, sass = chip_of(load_gpus()[GPU]), disassemble(cubin, kernel="rate", lines=False)
    steps = steps_of(main_loop(sass), read_cubin(cubin, "rate").text, chip)
    found = simulate(steps, chip, ctas=1, warps=16, rounds=4, skipped=1)
    n = next(iter(kernel.instructions.values()))
    assert n * 16 / found.clocks == pytest.approx(measured_rates(GPU)[name, 16, 4], rel=OFF)


SOURCE = text_of("nvcc/explain", "source")
REGISTERS = (16, 24, 40, 63, 64, 65, 80, 96, 127, 128, 129, 160, 168, 200, 224, 248, 255)
THREADS = (1, 32, 96, 128, 160, 256, 288, 384, 512, 1024)
SHARED = (0, 1, 1024, 16384, 32768, 49152, 65536, 98304, 99 * 1024, 99 * 1024 + 1, 131072, 163 * 1024, 227 * 1024)
BARRIERS = (1, 3, 16)


@pytest.fixture(scope="module")
def calculator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("occupancy")
    source, program = folder / "occupancy.cpp", folder / "occupancy"
    source.write_text(SOURCE)
    include = find_toolchain().root / "include"
    subprocess.run([host_compiler(), "-O1", "-w", "-I", include, source, "-o", program], check=True)
    return program


@pytest.mark.parametrize("key", sorted(load_gpus()))
def test_it_agrees_with_nvidias_calculator(calculator: Path, key: str) -> None:
    gpu, cases = load_gpus()[key], list(product(REGISTERS, THREADS, SHARED, BARRIERS))
    peaks = ("threads_per_block", "warps_per_sm", "registers_per_block", "registers_per_sm", "shared_memory_per_sm")
    device = (*gpu.arch.removeprefix("sm_"), *map(gpu.whole, (*peaks, "shared_memory_reserved")))
    lines = (" ".join(map(str, (*device, *case))) for case in cases)
    done = subprocess.run([calculator], input="\n".join(lines), text=True, capture_output=True, check=True)
    theirs = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(theirs) == len(cases)
    names = ("registers", "shared memory", "warps", "CTAs", "barriers")
    for (registers, threads, shared, barriers), (ctas, *limits) in zip(cases, theirs, strict=True):
        own = gpu.occupancy(registers=registers, threads=threads, shared_bytes=shared, barriers=barriers)
        case = (registers, threads, shared, barriers)
        given = {name: limit for name, limit in zip(names, limits, strict=True) if limit != 2**31 - 1}
        assert (own.ctas, own.limits) == (ctas, given), case
