"""Sustained runs on a GPU: FA2's power and speed are those of a card at work, and the driver's answers leave no gaps.

Run: pytest tests/gpu/test_energy_gpu.py
"""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU that torch can use", allow_module_level=True)

from flashladder.bench.energy import meter_of, sustain
from flashladder.bench.references import reference_forward
from flashladder.bench.timing import Arm, prepare
from flashladder.gpu.device import open_device
from flashladder.problem import Shape
from flashladder.results.blocks import Plan
from flashladder.results.derive import fastest_possible_us

pytestmark = pytest.mark.gpu
SHAPE = Shape(batch=4, seq_len=2048, n_heads=16, d_head=128)


def test_fa2_takes_power_and_is_as_fast_as_back_to_back() -> None:
    device = open_device()
    if device.telemetry.energy_mj() is None:
        pytest.skip(f"{device.gpu.name} does not tell its energy")
    one = prepare("fp16", SHAPE, Plan(pairs=1, blocks=1, extra_blocks=0, min_pairs=1, input_sets=1)).sets[0]
    fa2 = Arm("fa2", lambda _: reference_forward(one.q, one.k, one.v))
    found = sustain(meter_of(device), fa2, "fp16", SHAPE, 1.0)
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
