"""Timing on a GPU: the paired timer, references, other timers, sustained runs, and committed cells timed anew.

What is not installed is skipped by name.
"""

from __future__ import annotations

import math

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU that torch can use", allow_module_level=True)

from flashladder.bench.command import new_result
from flashladder.bench.cross_checks import ASK, Rounds
from flashladder.bench.energy import sustain
from flashladder.bench.references import (
    BACKENDS,
    FA2,
    kernel_subject,
    lacking,
    profiled,
    reference_forward,
    reference_identity,
    reference_subject,
)
from flashladder.bench.timing import Arm, bench_group, cuda_hardware, prepare
from flashladder.errors import FlashladderError
from flashladder.gate.verify import rerun_here
from flashladder.gpu.device import Device, open_device
from flashladder.ladder.config import KernelConfig
from flashladder.names import DTYPES
from flashladder.paths import RESULTS
from flashladder.problem import Problem
from flashladder.results.derive import Plan, derive, fastest_possible_us, problems
from flashladder.results.schema import Kernel, Method

pytestmark = pytest.mark.gpu
CONFIG = KernelConfig.parse("(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles")
SHAPE = Problem(batch=4, seq_len=2048, n_heads=16, d_head=128)
PLAN = Plan(pairs=24, blocks=4)


def once(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, config: str) -> None:
    out.copy_(reference_forward(q, k, v))


def twice(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, config: str) -> None:
    reference_forward(q, k, v)
    once(q, k, v, out, config)


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device()


def test_twice_the_work_is_about_half_as_fast(device: Device) -> None:
    hardware, flush_bytes = cuda_hardware(device.telemetry.sample, device.gpu.l2_bytes)
    timed = [kernel_subject(1, CONFIG, once), kernel_subject(2, CONFIG, twice)]
    group = bench_group(hardware, timed, prepare("fp16", SHAPE, PLAN), PLAN, process=0, warm_up_s=0.5)
    kernels = {
        one.key: Kernel(
            iteration=int(one.key[:2]), config=CONFIG.short_form(), dtype="fp16", arch=device.gpu.arch,
            text_sha256=None, toolchain={},
        )
        for one in timed
    }  # fmt: skip
    made = new_result(PLAN, device, kernels, flush_bytes)
    result = derive(made.model_copy(update={"groups": (group,)}))
    same, half = (next(s for s in result.summaries if s.kernel == one.key) for one in timed)
    assert 85 < same.pct <= 101  # the copy of O costs a little
    assert 40 < half.pct < 52
    assert half.verdict == "slower"
    assert result.floors_pct["fp16"] < 3
    assert problems(result) == []


SMALL_SHAPE = Problem(batch=2, seq_len=1024, n_heads=16, d_head=128)
FEW = Plan(pairs=4, blocks=2, min_pairs=4, input_sets=2)


@pytest.mark.filterwarnings("ignore")  # other people's compilers and libraries warn of what is theirs
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BACKENDS)
def test_a_reference_is_right_and_says_what_it_launched(name: str, dtype: str) -> None:
    if reason := lacking(name, dtype):
        pytest.skip(reason)
    device = open_device()
    hardware, _ = cuda_hardware(device.telemetry.sample, device.gpu.l2_bytes)
    subject = reference_subject(name, dtype)
    made = bench_group(hardware, [subject], prepare(dtype, SMALL_SHAPE, FEW), FEW, process=0, warm_up_s=0.1)
    series = made.series[1]
    assert series.kernel == name
    assert series.before is not None
    assert series.before.ok, series.before
    assert series.after is not None
    assert series.after.ok
    assert len(series.pairs) in range(4, 13)  # blocks that waited for the host are timed again, up to four times
    assert {pair.input_set for pair in series.pairs} == {0, 1}
    identity = profiled(reference_identity({}, name), name, [dtype])
    assert identity.kernels.get(dtype, "this profiler sees no kernels")
    if name == FA2 and identity.kernels:
        assert identity.tile is not None


@pytest.mark.parametrize("method", ASK)
def test_a_tool_times_references_round_by_round(method: Method) -> None:
    names = [name for name in ("cudnn", "flash-attn", "fa4") if lacking(name, "fp16") is None]
    rounds = Rounds(("fa2", *names), "fp16", SHAPE, 3)
    try:
        (found,) = ASK[method]([rounds], 300.0)
    except FlashladderError as error:
        if "not installed" in str(error) or "refuses" in str(error):
            pytest.skip(str(error))
        raise
    assert [one.subject for one in found.timings] == list(rounds.subjects)
    for one in found.timings:
        assert set(one.rounds) == {0, 1, 2}
        assert 20 < SHAPE.flops / (min(one.us) * 1e6) < 1500  # TFLOP/s
        assert max(one.us) < 1.5 * min(one.us)
        assert all(math.isfinite(us) for us in one.us)


def test_fa2_takes_power_and_is_as_fast_as_back_to_back() -> None:
    device = open_device()
    if device.telemetry.energy_mj() is None:
        pytest.skip(f"{device.gpu.name} does not report its energy")
    one = prepare("fp16", SHAPE, Plan(pairs=1, blocks=1, extra_blocks=0, min_pairs=1, input_sets=1)).sets[0]
    fa2 = Arm("fa2", lambda _: reference_forward(one.q, one.k, one.v))
    found = sustain(device.telemetry, fa2, "fp16", SHAPE, 1.0)
    assert found.seconds >= 1.0
    assert found.samples
    assert 50 < found.watts < 1.1 * (device.gpu.power_limit_w or 2000)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch's
    begin.record()
    for _ in range(200):
        reference_forward(one.q, one.k, one.v)
    end.record()
    end.synchronize()
    apart, each = begin.elapsed_time(end) / 200 / 1e3, found.seconds / found.launches
    assert each == pytest.approx(apart, rel=0.1)
    assert each * 1e6 > (fastest_possible_us(SHAPE, device.gpu.name) or 0)


def test_committed_cells_are_found_again() -> None:
    try:
        found = rerun_here(RESULTS / "h200" / "bench.json.gz", 6, 0)
    except FlashladderError as error:
        if "is not installed" in str(error):
            pytest.skip(str(error))
        raise
    assert found.summary.startswith("6 of 264 cells timed again on this ")
    assert found.details == ()
