"""`trace`: the reference's intermediates, and the comparison block by block."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from flashladder.emulate.kernel import attention_fp64, make_inputs
from flashladder.gpu import doctor, sanitize
from flashladder.ladder.iteration import load_iteration
from flashladder.paths import KERNELS
from flashladder.problem import Problem
from flashladder.trace import command, recorder
from flashladder.trace import compare as ref
from flashladder.trace.compare import Comparison, Trace, comparison, trace
from flashladder.trace.recorder import STALE, Geometry, Held, UnknownForm, matrix
import ptxemu
from ptxemu.errors import EmulationError
from ptxemu.values import Array
from tests import typed
from tests.data_files import table_of
from tests.typed import error_line

SCALE = 1 / math.sqrt(128)
POWER = math.log(2) / SCALE  # in S, a power of two of P


def tensors(dtype: str = "fp16", contents: str = "normal") -> tuple[Array, ...]:
    drawn = make_inputs((1, 192, 1, 128), (1, 192, 1, 128), dtype, seed=3)
    ref.fill(contents, *drawn)
    return drawn


def as_ctas(array: Array) -> torch.Tensor:
    return torch.from_numpy(array[0, :, 0].astype(np.float64))[None]


def full(value: float, *shape: int) -> torch.Tensor:
    return torch.full((1, *shape), value, dtype=torch.float64)


def first_maximum(s: torch.Tensor, keys: int, seen: torch.Tensor | None = None) -> torch.Tensor:
    """The m of eight rows after their first KV block."""
    return ref.stale_maximum(ref.State.empty(1, 8, 128), s, SCALE, ref.Progress(0, keys), seen)[0]


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("blocks", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_in_any_order_of_blocks_it_is_attention(blocks: tuple[int, ...], *, stale: bool) -> None:
    q, k, v = tensors()
    state = ref.State.empty(1, 192, 128)
    for visit, block in enumerate(blocks):
        rows = slice(64 * block, 64 * block + 64)
        inputs = as_ctas(q), as_ctas(k)[:, rows], as_ctas(v)[:, rows]
        progress = ref.Progress(64 * visit, 192) if stale else None
        values = ref.kv_block(state, inputs, SCALE, "fp16", progress=progress)
        state = ref.State.behind({name: value for name, (value, _) in values.items()})
    found, _ = ref.normalised(state, "fp16")
    assert np.allclose(found[0], attention_fp64(q, k, v)[0, :, 0], rtol=1e-12, atol=1e-13)
    top, m = (as_ctas(q) @ as_ctas(k).mT)[0].amax(1), state.m[0, :, 0]
    if not stale:
        assert torch.allclose(m, top)
        return
    behind, heavy = top * SCALE * math.log2(math.e) - m, ref.is_heavy(m)  # in powers of two
    assert bool(heavy.any())
    assert torch.allclose(behind[heavy], torch.tensor(ref.SLACK).double(), atol=1e-5)
    assert float((behind - ref.SLACK).max()) < 1e-5
    assert float(behind.min()) > -1e-5


def test_the_slack_is_the_kernels() -> None:
    source = (KERNELS / "ampere" / "softmax" / f"{STALE}.cuh").read_text(encoding="utf-8")
    for before, value in (("slack =", ref.SLACK), ("apart =", ref.APART), (r"fabsf\(m\) <", ref.MARKED)):
        assert re.findall(rf"{before} ([\d.]+)f;", source) == [f"{value:.1f}"]
    weights = re.findall(r"n_kv_blocks >= (\d+) / keys \? ([\d.]+)f", source)
    (least,) = re.findall(r"keys \? [\d.]+f : ([\d.]+)f;", source)
    assert tuple((int(keys), float(weight)) for keys, weight in [*weights, ("0", least)]) == ref.WEIGHTS
    ((least, most),) = re.findall(r"return n_kv_blocks >= (\d+) / keys && n_kv_blocks < (\d+) / keys;", source)
    assert range(int(least), int(most)) == ref.LIGHT


@pytest.mark.parametrize(("keys", "light"), [(64, False), (480, False), (512, True), (992, True), (1024, False)])
def test_the_length_says_how_a_row_starts(keys: int, *, light: bool) -> None:
    m = first_maximum(full(4 * POWER, 8, 16), keys)
    assert bool((ref.is_heavy(m) != light).all())
    assert torch.allclose(m, full(4.0 if light else 4.0 - ref.SLACK), atol=1e-5)


@pytest.mark.parametrize("apart", [3.9, 4.1])
def test_a_row_starts_heavy_where_one_of_its_lanes_is_far_below_another(apart: float) -> None:
    s, of_lane_2 = full(4 * POWER, 8, 16), [4, 5, 12, 13]
    s[0, 2, of_lane_2] = (4.0 - apart) * POWER
    m = first_maximum(s, 512)
    assert ref.is_heavy(m)[0, :, 0].tolist() == [row == 2 and apart > ref.APART for row in range(8)]
    s[0, 2, of_lane_2] = (4.0 - ref.APART) * POWER * (1 + 1e-9)  # rounding decides
    for heavy in (False, True):
        seen = ref.marked(full(4.0, 8, 4), full(heavy, 8, 4).bool())
        assert bool((ref.is_heavy(first_maximum(s, 512, seen))[0, 2] == heavy).all())


def test_a_light_row_keeps_its_maximum_until_a_score_is_above_it_and_eight_rows_follow() -> None:
    light = full(1.0, 16, 4)
    state, progress = ref.State(light, full(1e6, 16, 4), light), ref.Progress(64, 4096)
    s = full(1.5 * POWER, 16, 16)
    kept, _ = ref.stale_maximum(state, s, SCALE, progress)
    assert torch.equal(kept, light)
    s[0, 3, 5] = 3.25 * POWER  # of row 3 the lane that holds column 5
    found, _ = ref.stale_maximum(state, s, SCALE, progress)
    assert torch.allclose(found[0, :, 0], torch.tensor([1.5] * 3 + [3.25] + [1.5] * 4 + [1.0] * 8).double())
    s[0, 3, 5] = 3 * POWER * (1 + 1e-9)  # rounding decides
    for seen in (light, found):
        assert torch.equal(ref.stale_maximum(state, s, SCALE, progress, seen)[0] == 1.0, seen == 1.0)


@pytest.mark.parametrize(
    ("done", "keys", "due"), [(64, 512, 1.25 * 64 / 512**0.5), (64, 256, 1.5 * 4), (1024, 1024, 2 * 32)]
)
def test_a_row_whose_sum_is_small_follows_every_score(done: int, keys: int, due: float) -> None:
    progress, top = ref.Progress(done, keys), full(5.0, 8, 4)
    assert progress.due == pytest.approx(due)
    sums = full(due, 8, 4) / 4 * torch.tensor([0.999, 1.001] * 4).view(8, 1)  # of four lanes
    state = ref.State(ref.marked(top, torch.ones_like(top).bool()), sums * 2**ref.SLACK, top)
    s = full(4 * POWER, 8, 16)
    assert torch.equal(ref.stale_maximum(state, s, SCALE, progress)[0], state.m)
    s[0, 0, 0] = 5.00001 * POWER
    found, _ = ref.stale_maximum(state, s, SCALE, progress)
    heavy = ref.is_heavy(found)
    assert heavy[0, :, 0].tolist() == [True, False] * 4
    assert torch.allclose(found + ref.SLACK * heavy, top, atol=1e-4)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_inputs_show_row_and_column_v_and_one(dtype: str) -> None:
    q, k, v = map(as_ctas, tensors(dtype, "range"))
    rows, columns = np.ogrid[:192, :192]
    assert (np.asarray((q @ k.mT)[0]) == 1000 * rows + columns).all()
    assert (np.asarray(v[0]) == np.arange(128)).all()
    identity, ones = tensors(contents="identity"), tensors(contents="ones")
    assert np.allclose(attention_fp64(*identity), identity[2].astype(float), rtol=1e-12, atol=1e-30)
    assert (identity[2][0, 77, 0, :4].astype(float) == [77, 1, 77, 3]).all()
    assert np.allclose(attention_fp64(*ones), 1, rtol=1e-12)


GEOMETRY = Geometry(ctas=2, warps=3, rows=96, keys=24, d_head=16)


def label(cta: Any, warp: Any, lane: Any, m: int, n: int, element: int) -> Any:
    """A number that only this element has; an array of them for arrays."""
    return ((((cta * 4 + warp) * 32 + lane) * 2 + m) * 4 + n) * 4 + element


@pytest.mark.parametrize("statistic", [False, True])
def test_every_element_is_where_its_place_says(*, statistic: bool) -> None:
    cta, warp, lane = np.ogrid[:2, :3, :32]
    elements = [0, 0, 2, 2] if statistic else range(4)  # of a statistic each lane of a quad has a copy
    tiles = range(1 if statistic else 3)
    held = [[[np.asarray(label(cta, warp, lane, m, n, i)) for i in elements] for n in tiles] for m in range(2)]
    found = matrix(held, GEOMETRY)[..., :: 2 if statistic else 1]
    assert found.shape == (2, 96, 4 if statistic else 24)
    for row, column in np.ndindex(*found.shape[1:]):
        place = GEOMETRY.place(row, column, statistic=statistic)
        assert found[1, row, column] == label(1, place.warp, place.lane, place.m, place.n, place.element)


STEP = load_iteration(16)
CONFIG = STEP.configs["a100"]
SHAPE_256 = Problem(batch=1, seq_len=256, n_heads=1, d_head=128)


def compared(value: float, allowed: float = 0.5) -> tuple[Trace, Comparison]:
    """S of the second CTA, zeros but for `value` in row 70 and column 9; they should be 0, and 1 throughout."""
    held = np.zeros((1, CONFIG.B_r, CONFIG.B_c), np.float32)
    held[0, 70, 9] = value
    empty = np.zeros((1, 256, 1, 128), np.float16)
    found = Trace(STEP, CONFIG, SHAPE_256, (empty,) * 4, ((1, 0, 0),), (), True, ())
    zeros = torch.zeros(held.shape, dtype=torch.float64)
    return found, comparison(found, "S", Held(held, {}), (zeros, zeros + allowed), zeros + 1, 0, 3)


@pytest.mark.parametrize("value", [0.75, -3.0, math.nan, math.inf, -math.inf])
def test_a_value_that_is_off_or_none_is_found_where_it_is(value: float) -> None:
    _, one = compared(value)
    assert one.n_beyond == 1
    assert one.share > 1
    for place in (one.first, one.worst):
        assert place is not None
        assert (place.row, place.column, place.query, place.cta) == (70, 9, CONFIG.B_r + 70, (1, 0, 0))


def test_errors_are_of_what_is_expected_drift_of_the_whole_and_all_blocks_are_due() -> None:
    found, one = compared(0.25)
    assert (found.first, found.passed) == (None, False)  # no KV block was visited
    assert (one.n_beyond, one.first, one.max_error, one.share, one.drift) == (0, None, 0.25, 0.5, 1.0)
    assert one.rms == pytest.approx(0.25 / math.sqrt(CONFIG.B_r * CONFIG.B_c))


HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .align 8 .b8 p[136]) {\n"
MMA = "mma.sync.aligned.{}.f32 {{%f0, %f1, %f2, %f3}}, {{%r0, %r1{}}}, {{%r2{}}}, {{%f0, %f1, %f2, %f3}};"
SMALL = Problem(batch=1, seq_len=64, n_heads=1, d_head=128)


@pytest.mark.parametrize(("words", "says"), table_of("null/trace/trace", "refused"))
def test_a_bad_command_line_is_one_line(words: list[str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "n_gpus", lambda: 0)
    assert says in error_line(typed.command, "trace", *words)


def test_the_sanitizers_run_after_the_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "require_gpu", lambda _: None)
    monkeypatch.setattr(sanitize, "main", lambda words: print(f"tools of {words}"))
    monkeypatch.setattr(command, "traced", lambda _: ("traced", False))
    assert typed.command("trace", "7", "--sanitize", "--config", "h200") == 1
    assert capsys.readouterr().out.splitlines() == ["traced", "tools of ['7', '--configs', 'h200']"]


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
    with pytest.raises(UnknownForm, match=re.escape(says)) as refused:
        trace(step, step.configs["a100"], SMALL, kernel=kernel(body))
    assert refused.value.exit_code == 2


def test_what_a_kernel_may_not_do_stays_the_emulators_error() -> None:
    step = load_iteration(1)
    with pytest.raises(EmulationError, match="trap"):
        trace(step, step.configs["a100"], SMALL, kernel=kernel("trap;"))


def test_a_negated_maximum_was_made_by_what_made_the_maximum() -> None:
    maximum: Any = SimpleNamespace(word="max", sources=())
    negated: Any = SimpleNamespace(word="neg", sources=(ptxemu.Value(np.array([2], np.float32), maximum),))
    adds: Any = SimpleNamespace(word="fma")
    found = recorder._positive(ptxemu.Value(np.array([-2], np.float32), negated), adds)
    assert (found.event, found.array.tolist()) == (maximum, [2.0])
