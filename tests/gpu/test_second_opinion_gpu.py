"""The other timers on a GPU: NVBench and Nsight Compute time FA2 and what else is installed, round by round."""

from __future__ import annotations

import math

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU that torch can use", allow_module_level=True)

from flashladder.bench.cross_timers import ASK, Rounds
from flashladder.bench.references import lacking
from flashladder.errors import FlashladderError
from flashladder.problem import Shape
from flashladder.results.schema import Method

pytestmark = pytest.mark.gpu
SHAPE = Shape(batch=4, seq_len=2048, n_heads=16, d_head=128)


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
