"""The references on a GPU: each that is installed is right, launches one kernel, and is timed beside FA2."""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU that torch can use", allow_module_level=True)

from flashladder.bench.references import BACKENDS, FA2, lacking, profiled, reference_identity, reference_subject
from flashladder.bench.timing import bench_group, cuda_hardware, prepare
from flashladder.gpu.device import open_device
from flashladder.ladder.config import DTYPES
from flashladder.problem import Shape
from flashladder.results.blocks import Plan

pytestmark = pytest.mark.gpu
SHAPE = Shape(batch=2, seq_len=1024, n_heads=16, d_head=128)
PLAN = Plan(pairs=4, blocks=2, min_pairs=4, input_sets=2)


@pytest.mark.filterwarnings("ignore")  # other people's compilers and libraries warn of what is theirs
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BACKENDS)
def test_a_reference_is_right_and_says_what_it_launched(name: str, dtype: str) -> None:
    if reason := lacking(name, dtype):
        pytest.skip(reason)
    device = open_device()
    hardware, _ = cuda_hardware(device.telemetry.sample, device.gpu.l2_bytes)
    subject = reference_subject(name, dtype)
    made = bench_group(hardware, [subject], prepare(dtype, SHAPE, PLAN), PLAN, process=0, warm_up_s=0.1)
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
