"""Soaking on a GPU: FA2 as an operator beside matmuls, by graphs and on long rows; a hang is reported."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU that torch can use", allow_module_level=True)

from flashladder.bench.references import reference_forward
from flashladder.cases.inputs import cases_for
from flashladder.cases.reference import References, Subject, check_case
from flashladder.check.soak import PLAIN, Gpu, Load, hammer, run_large
from flashladder.ladder.config import KernelConfig
from flashladder.problem import Problem

pytestmark = pytest.mark.gpu
CONFIG = KernelConfig.parse("(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles")
SMALL = Problem(batch=1, seq_len=129, n_heads=2, d_head=128)
LONG = Problem(batch=2, seq_len=4097, n_heads=2, d_head=128)
HANG = """
import torch
from flashladder.check.soak import Gpu
with Gpu().time_limit(0.5, "a long sleep"):
    for _ in range(40):
        torch.cuda._sleep(1_000_000_000)
    torch.cuda.synchronize()
print("it came back")
"""


def fa2(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, config: str) -> None:
    out.copy_(reference_forward(q, k, v))


def test_matmuls_run_beside_each_launch() -> None:
    load = Load(Gpu())
    case = next(one for one in cases_for(CONFIG) if one.name.startswith("grid 16x4096"))
    found = check_case(Subject(1, CONFIG, load.around(fa2)), case, References(), repeats=4)
    taken = load.summary("fa2", case.name)
    assert found.status == "pass", found.reason
    assert taken is not None
    assert taken.launches == 4
    assert 0.5 < taken.beside_s / taken.seconds <= 1.0


def test_graphs_launch_what_the_host_launches() -> None:
    found = hammer(Subject(1, CONFIG, fa2), SMALL, PLAIN + 5000, Gpu())
    assert (found.plain, found.replayed, found.differing, found.finite) == (PLAIN, 5000, 0, True)
    assert found.seconds / found.launches < 1e-3


def test_long_rows_are_right() -> None:
    found = run_large(Subject(1, CONFIG, fa2), LONG, Gpu())
    assert (found.differing, found.finite) == (0, True)
    assert found.max_error is not None
    assert found.rms_error is not None
    assert 0 < found.max_error <= found.max_allowed
    assert 0 < found.rms_error <= found.rms_allowed


def test_a_gpu_that_does_not_answer_ends_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", HANG], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.strip().endswith("error: a long sleep: did not finish within 0.5 s")
