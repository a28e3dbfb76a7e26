"""Iterations 20 to 24 on the CPU: right in both dtypes at ragged lengths, in any order of their warps, without a race.

Every case is held to the rule of the check; hazards are looked for in the same launch. The whole list of cases, with
views and logits of all kinds: ``invoke check 24 --backend emulator``.
"""

from __future__ import annotations

import numpy as np
import pytest

from flashladder import emulator
from flashladder.emulate.kernel import arguments_of, attention_fp64, forward, kernel_of, make_tensors
from flashladder.ladder.config import DTYPES, KernelConfig
from flashladder.ladder.iteration import Iteration, load_all
from flashladder.ladder.selection import one_config
from flashladder.results.schema import Shape

pytestmark = pytest.mark.nvcc
STEPS = [step for step in load_all() if step.family.name == "hopper"]
SHAPES = {"three blocks": (1, 384, 2), "ragged": (1, 201, 2), "larger": (2, 650, 3), "one row": (1, 1, 1)}
ALLOWED = {"fp16": 1.5e-3, "bf16": 1.2e-2}  # of the largest element, which is below 3 for N(0, 1) inputs: rounding of O


def require_right(step: Iteration, config: KernelConfig, shape: tuple[int, int, int], schedule: str | int) -> None:
    """One launch, with numbers and hazards."""
    batch, seq_len, heads = shape
    size = Shape(batch=batch, seq_len=seq_len, n_heads=heads, d_head=config.d_head)
    tensors, hazards = make_tensors(step, config, size, seed=seq_len), emulator.Hazards()
    launch = step.family.launch(config, tensors)
    kernel_of(step, config).launch(
        launch.grid, launch.block, arguments_of(launch), shared_bytes=launch.shared_bytes, observers=(hazards,),
        schedule=schedule,
    )  # fmt: skip
    q, k, v, out = tensors
    error = np.abs(out.astype(np.float64) - attention_fp64(q, k, v))
    assert np.isfinite(error).all()
    assert error.max() <= ALLOWED[config.dtype] * max(1.0, float(np.abs(attention_fp64(q, k, v)).max()))
    assert hazards.render() == ""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.slug)
def test_numbers_are_right_and_no_hazard_is_found(step: Iteration, shape: tuple[int, int, int], dtype: str) -> None:
    require_right(step, one_config(step, "h200", dtype), shape, "together")


@pytest.mark.parametrize("schedule", ["reverse", 1])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.slug)
def test_in_another_order_of_warps_too(step: Iteration, schedule: str | int) -> None:
    require_right(step, one_config(step, "h200"), SHAPES["ragged"], schedule)


@pytest.mark.parametrize(
    ("number", "form"),
    [
        (20, "(FP16, 128, 256, 48, 2): stages_3_2"),
        (22, "(BF16, 128, 192, 80, 3): stages_2_3+registers_32_160"),
        (24, "(FP16, 128, 128, 144, 2): stages_2_2+registers_40_232+overlap"),
        (24, "(BF16, 128, 128, 176, 2): stages_1_2+registers_24_240+overlap"),
    ],
)
def test_other_tiles_rings_and_registers_are_right(number: int, form: str) -> None:
    step = next(one for one in STEPS if one.number == number)
    require_right(step, one_config(step, form), (1, 401, 2), "together")


def test_rows_behind_the_end_are_neither_read_nor_written() -> None:
    """Q, K, V and O are the first rows of longer tensors, whose rest is NaN and stays so."""
    step = STEPS[-1]
    config = one_config(step, "h200")
    size = Shape(batch=1, seq_len=300, n_heads=2, d_head=config.d_head)
    whole = make_tensors(step, config, size, seed=1)
    for tensor in whole:
        tensor[:, 201:] = np.nan
    forward(step, config, tuple(tensor[:, :201] for tensor in whole))  # type: ignore[arg-type]  # four of them
    q, k, v, out = whole
    assert np.isnan(out[:, 201:].astype(np.float32)).all()
    expected = attention_fp64(q[:, :201], k[:, :201], v[:, :201])
    assert np.abs(out[:, :201].astype(np.float64) - expected).max() < ALLOWED["fp16"]
