"""The bench on a GPU: FA2 against a copy of itself is the same, against twice its work slower; times are plausible."""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU that torch can use", allow_module_level=True)

from flashladder.bench.references import kernel_subject, reference_forward, reference_identity
from flashladder.bench.timing import bench_group, cuda_hardware, prepare
from flashladder.gpu.device import Device, open_device
from flashladder.ladder.config import KernelConfig
from flashladder.problem import Shape
from flashladder.results.blocks import Plan
from flashladder.results.derive import derive, problems
from flashladder.results.schema import BenchResult, Kernel, Process, Settings

pytestmark = pytest.mark.gpu
CONFIG = KernelConfig.parse("(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles")
SHAPE = Shape(batch=4, seq_len=2048, n_heads=16, d_head=128)
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
    result = derive(
        BenchResult(
            rung=device.rung,
            gpu=device.gpu,
            host=device.host,
            kernels={
                one.key: Kernel(
                    iteration=int(one.key[:2]), config=CONFIG.short_form(), dtype="fp16", arch=device.gpu.arch,
                    text_sha256=None, toolchain={},
                )
                for one in timed
            },
            reference=reference_identity({}),
            settings=Settings(pairs=PLAN.pairs, blocks=PLAN.blocks, min_pairs=PLAN.min_pairs, flush_bytes=flush_bytes),
            processes=(Process(index=0, started_utc="", foreign_before=device.foreign_before),),
            groups=(group,),
        )
    )  # fmt: skip
    same, half = (next(s for s in result.summaries if s.kernel == one.key) for one in timed)
    assert 85 < same.pct <= 101  # the copy of O costs a little
    assert 40 < half.pct < 52
    assert half.verdict == "slower"
    assert result.floors_pct["fp16"] < 3
    assert problems(result) == []
