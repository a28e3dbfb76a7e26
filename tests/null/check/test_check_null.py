"""The checker against operators that are wrong in one way each; and one that is right."""

from __future__ import annotations

from collections.abc import Callable
import math
from typing import get_args

import pytest
import torch

from flashladder.cases.inputs import (
    BESIDE,
    CONTENTS,
    ENDING,
    FAR,
    HEAVY,
    LONE,
    Case,
    View,
    cases_for,
    far_stride,
    layouts,
)
from flashladder.cases.reference import References, Run, Subject, check_case
from flashladder.ladder.families.ampere import AmpereConfig
from flashladder.ladder.families.hopper import HopperConfig
from flashladder.problem import Shape
from flashladder.results.schema import CaseResult

CONFIG = AmpereConfig.parse("(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles")
SMALL = Shape(batch=2, seq_len=64, n_heads=3, d_head=128)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """What a right kernel does: scores and sums in fp32, P rounded to 16 bits before it is normalised."""
    q32, k32, v32 = (t.float().transpose(1, 2) for t in (q, k, v))
    scores = q32 @ k32.transpose(2, 3) / math.sqrt(128)
    p = torch.exp(scores - scores.amax(-1, keepdim=True))
    return ((p.to(q.dtype).float() @ v32) / p.sum(-1, keepdim=True)).transpose(1, 2)


def right(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, config: str) -> None:
    out.copy_(attention(q, k, v))


def altered(change: Callable[[torch.Tensor], object]) -> Run:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, config: str) -> None:
        right(q, k, v, out, config)
        change(out)

    return run


def one_nan(out: torch.Tensor) -> None:
    out[-1, -1, -1, -1] = math.nan


def one_infinity(out: torch.Tensor) -> None:
    out[0, 0, 0, 0] = math.inf


def swap_rows(out: torch.Tensor) -> None:
    out[:, [0, 1]] = out[:, [1, 0]]


def write_before(out: torch.Tensor) -> None:
    storage = torch.empty(0, dtype=out.dtype).set_(out.untyped_storage())
    storage[0] = 0.0


def outcome(run: Run, case: Case | None = None, config: AmpereConfig = CONFIG, row_stride: int = 0) -> CaseResult:
    found = check_case(
        Subject(7, config, run, row_stride), case or Case("small", SMALL), References(), device="cpu", repeats=3
    )
    assert found.kernel == "07 " + config.short_form()
    return found


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("view", get_args(View))
def test_a_right_operator_passes(dtype: str, view: View) -> None:
    far = far_stride(2) if view != "far_rows" else far_stride(SMALL.seq_len)
    shape = SMALL if view not in FAR else SMALL.model_copy(update={"n_heads": 2})
    found = outcome(right, Case("view", shape, view, far_bytes=far if view in FAR else 0), CONFIG.with_dtype(dtype))
    assert (found.status, found.reason) == ("pass", None)
    assert found.accuracy is not None
    assert found.accuracy.ok
    assert found.repeats == 3


def unwritten(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, config: str) -> None:
    """Writes nothing: stale memory must not pass."""


def unscaled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, config: str) -> None:
    out.copy_(attention(q * math.sqrt(128), k, v))


def zeros(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, config: str) -> None:
    out.zero_()


def sloppy(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, config: str) -> None:
    """Right to bf16 only: three bits of fp16 are lost."""
    out.copy_(attention(q, k, v).bfloat16())


def once() -> Run:
    """Writes O in its first run and nothing after it."""
    runs: list[int] = []

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, config: str) -> None:
        if not runs:
            right(q, k, v, out, config)
        runs.append(1)

    return run


def test_a_second_run_that_writes_nothing_fails() -> None:
    assert outcome(once()).reason == "run 2 differs from the first bit for bit"


def another_nan_beside(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, config: str) -> None:
    right(q, k, v, out, config)
    torch.empty(0, dtype=out.dtype).set_(out.untyped_storage())[0] = math.nan


def test_a_nan_over_the_poison_is_a_write() -> None:
    assert outcome(another_nan_beside, Case("slice", SMALL, "sliced")).reason == "wrote outside O: 1 elements changed"


def fails(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, config: str) -> None:
    raise RuntimeError("CUDA error: misaligned address\nmore lines")


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (unwritten, "not written"),
        (altered(one_nan), "1 of 49152 elements of O are NaN"),
        (altered(one_infinity), "NaN or infinite"),
        (altered(swap_rows), "max error"),
        (unscaled, "max error"),
        (zeros, "max error"),
        (sloppy, "max error"),
        (fails, "the launch failed: CUDA error: misaligned address"),
    ],
)
def test_a_wrong_operator_fails(run: Run, reason: str) -> None:
    found = outcome(run)
    assert found.status == "fail"
    assert found.reason is not None
    assert reason in found.reason
    assert "\n" not in found.reason


def scribble(name: str, outside: bool) -> Run:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, config: str) -> None:
        right(q, k, v, out, config)
        tensor = {"Q": q, "K": k, "V": v}[name]
        if outside:
            torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())[0] = 1.0
        else:
            tensor[-1, -1, -1, -1] += 1.0

    return run


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("name", ["Q", "K", "V"])
def test_writing_to_an_input_or_beside_it_fails(name: str, outside: bool) -> None:
    found = outcome(scribble(name, outside), Case("sliced", SMALL, "sliced"))
    assert (found.status, found.reason) == ("fail", f"wrote to {name}, an input: 1 of its elements changed")


def test_writing_outside_the_view_fails() -> None:
    found = outcome(altered(write_before), Case("slice", SMALL, "sliced"))
    assert found.reason == "wrote outside O: 1 elements changed"


def strict(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, config: str) -> None:
    if {t.stride(1) for t in (q, k, v, out)} != {2048}:
        raise ValueError("flashladder_16: q: expected a seq_len stride of 2048 elements")
    right(q, k, v, out, config)


def careless(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, config: str) -> None:
    out[0, 0, 0, 0] = 1.0
    raise ValueError("too late")


@pytest.mark.parametrize(
    ("run", "view", "status", "reason"),
    [
        (strict, "contiguous", "not_applicable", "expected a seq_len stride"),
        (strict, "packed", "not_applicable", "expected a seq_len stride"),
        (strict, "head_slice", "pass", ""),
        (right, "contiguous", "fail", "expected an error"),
        (careless, "contiguous", "fail", "but wrote to O"),
    ],
)
def test_a_fixed_row_stride_must_be_kept_or_refused(run: Run, view: str, status: str, reason: str) -> None:
    found = outcome(run, Case("view", SMALL, view), row_stride=2048)  # type: ignore[arg-type]  # the Views
    assert found.status == status
    assert reason in (found.reason or "")


def test_cases_cover_the_rule() -> None:
    for tile in (64, 128):
        config = AmpereConfig("fp16", 128, tile, 64, 4, True, True, True, 2, 2, 2, False, False)
        cases = cases_for(config)
        grid = [case.shape for case in cases if case.name.startswith("grid")]
        assert [(shape.batch, shape.seq_len) for shape in grid] == [
            (16, 512), (16, 1024), (16, 2048), (16, 4096), (8, 8192), (4, 16384),
        ]  # fmt: skip
        assert min(case.shape.seq_len for case in cases) == tile
        assert all(case.shape.seq_len % tile == 0 for case in cases)
        assert {(case.shape.batch, case.shape.n_heads) for case in cases} >= {(1, 3), (3, 5)}
        assert {case.view for case in cases} == set(get_args(View))
        for view in ("mixed", "mixed_slots", "one_off"):
            assert {case.turn for case in cases if case.view == view} == {0, 1, 2, 3}
        assert {name for case in cases for name in case.contents} == set(CONTENTS) - {*LONE, *BESIDE, *ENDING}, (
            "the emulator asks for those"
        )
        assert max(case.scale for case in cases) == 30.0
        assert len({case.name for case in cases}) == len(cases)
        kept = [case for case in cases if make_strides(case) == {2048}]
        assert {"odd head slice", "sliced", "large logits", "grid", "extreme logits", "constant V", "far heads",
                "far samples", "mixed rows of 2048 3"} <= {case.name.rsplit(" ", 1)[0] for case in kept}  # fmt: skip


def make_strides(case: Case) -> set[int]:
    return {layout.seq for layout in layouts(case)}


def test_kernels_that_take_any_length_are_asked_for_ragged_ones_too() -> None:
    """From one row on, in each of the cases that divisible lengths have as well but heavy rows, which wait."""
    config = HopperConfig("bf16", 128, 128, 128, 2, 2, 2)
    whole, quick = (
        [(case.shape.batch, case.shape.seq_len, case.shape.n_heads) for case in cases_for(config, quick=short)]
        for short in (False, True)
    )
    assert whole[:5] == [(2, length, 3) for length in (1, 17, 129, 1000, 4097)]
    assert quick[:4] == whole[:4]
    divisible = AmpereConfig("bf16", 128, 128, 64, 4, True, True, True, 2, 2, 2, False, False)
    heavy = [case for case in cases_for(divisible) if case.contents == HEAVY]
    assert [case.shape.seq_len for case in heavy] == [256, 512, 1024]
    assert [*cases_for(config)[5:]] == [case for case in cases_for(divisible) if case not in heavy]
