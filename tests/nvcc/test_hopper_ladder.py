"""Iterations 20 to 24 on the CPU: right in both dtypes at ragged lengths, in any order of their warps, without a race.

Every case may be off by two roundoffs of O's largest element; hazards are looked for in the same launch. The whole
list of cases by the whole rule, with views and logits of all kinds: ``invoke check 24 --backend emulator``.
"""

from __future__ import annotations

import numpy as np
import pytest

from flashladder.build.compile import cubin_for
from flashladder.cases.reference import UNIT_ROUNDOFF
from flashladder.emulate.kernel import arguments_of, attention_fp64, forward, kernel_of, make_tensors
from flashladder.ladder.config import DTYPES, KernelConfig
from flashladder.ladder.iteration import Iteration, load_all
from flashladder.ladder.selection import one_config
from flashladder.machine_code.flow import main_loop
from flashladder.machine_code.order import stretches
from flashladder.machine_code.sass import disassemble
from flashladder.problem import Shape
from flashladder.toolchain.wheels import find_toolchain
import ptxemu
from ptxemu.values import Array

pytestmark = pytest.mark.nvcc
STEPS = [step for step in load_all() if step.family.name == "hopper"]
SHAPES = {"three blocks": (1, 384, 2), "ragged": (1, 201, 2), "larger": (2, 650, 3), "one row": (1, 1, 1)}
ROUNDOFFS = 2  # of O's largest element, that any may be off by: P is rounded, and O


def require_near(out: Array, expected: Array, dtype: str) -> None:
    """Every element within `ROUNDOFFS`; a NaN is not."""
    error = np.abs(out.astype(np.float64) - expected).max()
    assert error <= ROUNDOFFS * UNIT_ROUNDOFF[dtype] * np.abs(expected).max()


def require_right(
    step: Iteration, config: KernelConfig, shape: tuple[int, int, int], schedule: str | int, apart: float = 0.0
) -> None:
    """One launch, with numbers and hazards; Q and K lie `apart` from 0 on either side."""
    batch, seq_len, heads = shape
    size = Shape(batch=batch, seq_len=seq_len, n_heads=heads, d_head=config.d_head)
    tensors, hazards = make_tensors(step, config, size, seed=seq_len), ptxemu.Hazards()
    for tensor, side in zip(tensors[:2], (1, -1), strict=True):
        tensor[...] += tensor.dtype.type(side * apart)
    launch = step.family.launch(config, tensors, 132)
    kernel_of(step, config).launch(
        launch.grid, launch.block, arguments_of(launch), shared_bytes=launch.shared_bytes, observers=(hazards,),
        schedule=schedule,
    )  # fmt: skip
    q, k, v, out = tensors
    require_near(out, attention_fp64(q, k, v), config.dtype)
    assert hazards.render() == ""


@pytest.mark.parametrize(("shape", "dtype"), [*zip(SHAPES.values(), DTYPES * 2, strict=True)], ids=SHAPES.keys())
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.slug)
def test_numbers_are_right_and_no_hazard_is_found(step: Iteration, shape: tuple[int, int, int], dtype: str) -> None:
    require_right(step, one_config(step, "h200", dtype), shape, "together")


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.slug)
def test_what_lies_behind_the_last_key_takes_no_weight(step: Iteration) -> None:
    """All scores are about -100, those of rows that the copy engine fills with zeros 0: one that counts is seen."""
    config = one_config(step, "h200")
    block: int = config.B_c
    for rows in (1, 2, 8, 9, block - 8, block - 1, block):
        require_right(step, config, (1, rows, 1), "together", apart=3.0)
    for rows in (1, block - 1):
        require_right(step, config, (1, block + rows, 1), "together", apart=3.0)


@pytest.mark.parametrize("number", [23, 24])
def test_a_turn_is_what_issues_the_products_and_ends_before_they_do(number: int) -> None:
    """What no result depends on: a turn that is passed on too early or too late is as right, and is none."""
    step = next(one for one in STEPS if one.number == number)
    cubin = cubin_for(step, one_config(step, "h200"), "sm_90a", find_toolchain()).cubin
    events = [one.event for one in stretches(main_loop(disassemble(cubin, lines=False)))]
    taken, passed = events.index("wait at a barrier"), events.index("arrive at a barrier")
    products = [place for place, event in enumerate(events) if "products" in event and not event.startswith("fence")]
    assert products
    assert all(taken < place < passed for place in products)
    assert not any(event.startswith("wait") for event in events[taken + 1 : passed])
    waits = f"wait until {'0 groups are' if number == 23 else '1 group is'} left"
    assert events[passed + 1 : passed + 3] == [waits, "arrive on an mbarrier"], "and K's stage is given back at once"


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
    require_near(out[:, :201], attention_fp64(q[:, :201], k[:, :201], v[:, :201]), config.dtype)
