"""``invoke trace`` without a compiler: where elements are, what differs, what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from flashladder.errors import FlashladderError
from flashladder.gpu import doctor, sanitize
from flashladder.ladder.iteration import load_iteration
from flashladder.problem import Shape
from flashladder.trace import command, compare
from flashladder.trace.compare import Comparison, Trace, trace
from flashladder.trace.recorder import Geometry, Held, UnknownForm, matrix, statistics
import ptxemu
from ptxemu.errors import EmulationError
from tests import typed

GEOMETRY = Geometry(ctas=2, warps=3, rows=96, keys=24, d_head=16)


def label(cta: Any, warp: Any, lane: Any, m: int, n: int, element: int) -> Any:
    """A number that only this element has; an array of them for arrays."""
    return ((((cta * 4 + warp) * 32 + lane) * 2 + m) * 4 + n) * 4 + element


def test_every_element_of_an_accumulator_is_where_its_place_says() -> None:
    cta, warp, lane = np.ogrid[:2, :3, :32]
    registers = [
        [[np.asarray(label(cta, warp, lane, m, n, element)) for element in range(4)] for n in range(3)]
        for m in range(2)
    ]  # fmt: skip
    found = matrix(registers, GEOMETRY)
    assert found.shape == (2, 96, 24)
    for row, column in np.ndindex(96, 24):
        place = GEOMETRY.place(row, column)
        assert found[1, row, column] == label(1, place.warp, place.lane, place.m, place.n, place.element)


def test_every_copy_of_a_row_statistic_is_where_its_place_says() -> None:
    cta, warp, lane = np.ogrid[:2, :3, :32]
    registers = [[np.asarray(label(cta, warp, lane, m, 0, 2 * half)) for half in range(2)] for m in range(2)]
    found = statistics(registers, GEOMETRY)
    assert found.shape == (2, 96, 4)
    for row, copy in np.ndindex(96, 4):
        place = GEOMETRY.place(row, copy, statistic=True)
        assert found[0, row, copy] == label(0, place.warp, place.lane, place.m, 0, place.element)


STEP = load_iteration(16)
CONFIG = STEP.configs["a100"]
SHAPE = Shape(batch=1, seq_len=256, n_heads=1, d_head=128)


def compared(value: float, allowed: float = 0.5) -> tuple[Trace, Comparison]:
    """S of the second CTA, zeros but for `value` in row 70 and column 9; they should be 0, and 1 throughout."""
    held = np.zeros((1, CONFIG.B_r, CONFIG.B_c), np.float32)
    held[0, 70, 9] = value
    empty = np.zeros((1, 256, 1, 128), np.float16)
    found = Trace(STEP, CONFIG, SHAPE, (empty,) * 4, ((1, 0, 0),), (), 4, True, ())
    zeros = torch.zeros(held.shape, dtype=torch.float64)
    pair = compare._Pair(compare.S, Held(held, {}), (zeros, zeros + allowed), zeros + 1)
    return found, compare._comparison(found, pair, 0, 3)


@pytest.mark.parametrize("value", [0.75, -3.0, math.nan, math.inf, -math.inf])
def test_a_value_that_is_off_or_none_is_found_where_it_is(value: float) -> None:
    assert CONFIG.B_r == 2 * CONFIG.B_c
    _, one = compared(value)
    assert one.n_beyond == 1
    assert one.first is not None
    assert one.first == one.worst or math.isnan(value)
    for place in (one.first, one.worst):
        assert (place.row, place.column, place.query, place.cta) == (70, 9, CONFIG.B_r + 70, (1, 0, 0))
    assert one.share > 1


def test_errors_are_of_what_is_expected_and_drift_of_the_whole() -> None:
    _, one = compared(0.25)
    assert (one.n_beyond, one.first) == (0, None)
    assert (one.max_error, one.share, one.drift) == (0.25, 0.5, 1.0)
    assert one.rms == pytest.approx(0.25 / math.sqrt(CONFIG.B_r * CONFIG.B_c))


def test_a_trace_that_visits_too_few_blocks_has_not_passed() -> None:
    found, _ = compared(0.0)
    assert found.first is None
    assert not found.passed


HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .align 8 .b8 p[136]) {\n"
MMA = "mma.sync.aligned.{}.f32 {{%f0, %f1, %f2, %f3}}, {{%r0, %r1{}}}, {{%r2{}}}, {{%f0, %f1, %f2, %f3}};"
SMALL = Shape(batch=1, seq_len=64, n_heads=1, d_head=128)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["99"], "no such iteration"),
        (["1", "--seq-len", "100"], "seq_len does not fit the tiles: expected a multiple of B_r = 64, found 100"),
        (["1", "--seq-len", "x"], "--seq-len needs a whole number"),
        (["1", "--seq-len", "4096"], "too large to trace: expected at most 4,194,304 scores, found 16,777,216"),
        (["16", "--heads", "17"], "too many heads"),
        (["1", "--block", "2"], "--block belongs to --show"),
        (["1", "--at", "2,3"], "--at belongs to --show"),
        (["1", "--show", "S", "--at", "2"], "bad --at: expected ROW,COLUMN such as 16,8, found '2'"),
        (["1", "--sanitize", "--json"], "--sanitize runs an iteration's build"),
        (["16 - swizzle", "--sanitize"], "--sanitize runs an iteration's build"),
    ],
)
def test_a_bad_command_line_is_one_line(words: list[str], says: str) -> None:
    with pytest.raises(FlashladderError) as refused:
        typed.command("trace", *words)
    assert says in str(refused.value)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(("right", "code"), [(True, 0), (False, 1)])
def test_the_sanitizers_run_after_the_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], right: bool, code: int
) -> None:
    def tools(words: list[str]) -> int:
        print(f"tools of {words}")
        return 0

    monkeypatch.setattr(doctor, "require_gpu", lambda _: None)
    monkeypatch.setattr(sanitize, "main", tools)
    monkeypatch.setattr(command, "traced", lambda _: ("traced", right))
    assert typed.command("trace", "7", "--sanitize", "--config", "h200") == code
    assert capsys.readouterr().out.splitlines() == ["traced", "tools of ['7', '--configs', 'h200']"]


def test_without_a_gpu_the_sanitizers_are_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "n_gpus", lambda: 0)
    with pytest.raises(FlashladderError, match=r"no GPU here.*invoke emulate N --hazards"):
        typed.command("trace", "7", "--sanitize")


def kernel(body: str) -> ptxemu.Kernel:
    registers = ".reg .b32 %r<64>; .reg .f32 %f<64>;"
    return ptxemu.load(f"{HEAD}{registers}\n{body}\nret;\n}}\n", path="k.ptx").kernel()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("", "accumulators of S in a KV block: expected 8, found 0"),
        (MMA.format("m16n8k8.row.col.f32.f16.f16", "", ""), "another mma: expected mma.sync.aligned.m16n8k16"),
        (
            "mov.b32 %r0, 0; " + MMA.format("m16n8k16.row.col.f32.f16.f16", ", %r3, %r4", ", %r5"),
            "accumulators of S in a KV block: expected 8, found 0",
        ),
    ],
)
def test_another_form_of_kernel_is_refused_in_one_line(body: str, says: str) -> None:
    step = load_iteration(1)
    with pytest.raises(UnknownForm) as refused:
        trace(step, step.configs["a100"], SMALL, kernel=kernel(body))
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 2


def test_what_a_kernel_may_not_do_stays_the_emulators_error() -> None:
    step = load_iteration(1)
    with pytest.raises(EmulationError, match="trap"):
        trace(step, step.configs["a100"], SMALL, kernel=kernel("trap;"))
