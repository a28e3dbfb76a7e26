"""`check`: its backends, its rule and its command, without a GPU."""

from __future__ import annotations

from collections.abc import Callable
import math
from types import SimpleNamespace
from typing import Any, get_args
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from flashladder.cases import inputs
from flashladder.cases.inputs import BESIDE, CONTENTS, ENDING, FAR, Case, View, cases_for, emulator_cases, far_stride
from flashladder.cases.reference import References, Run, Subject, check_case, compared_slices
from flashladder.check import command as check
from flashladder.check.command import as_arrays, emulated_run
from flashladder.errors import FlashladderError
from flashladder.ladder.families.ampere import AmpereConfig
from flashladder.ladder.families.hopper import HopperConfig
from flashladder.ladder.iteration import load_iteration
from flashladder.paths import KERNELS, ROOT
from flashladder.problem import Problem
from flashladder.results.schema import CaseResult
import ptxemu
from ptxemu import EmulationError
from tests.broken import wrong_page
from tests.broken.wrong_kernels import LAUNCH, read_all

CONFIG = AmpereConfig.parse("(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles")
SMALL = Problem(batch=2, seq_len=64, n_heads=3, d_head=128)


def parts(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """P in fp32, V, and the row sums of P, (B, H, S, ...)."""
    q32, k32, v32 = (t.float().transpose(1, 2) for t in (q, k, v))
    scores = q32 @ k32.transpose(2, 3) / math.sqrt(128)
    p = torch.exp(scores - scores.amax(-1, keepdim=True))
    return p, v32, p.sum(-1, keepdim=True)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """What a right kernel does: scores and sums in fp32, P rounded to 16 bits before it is normalised."""
    p, v32, total = parts(q, k, v)
    return ((p.to(q.dtype).float() @ v32) / total).transpose(1, 2)


def right(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, config: str) -> None:
    out.copy_(attention(q, k, v))


def altered(change: Callable[[torch.Tensor], object]) -> Run:
    return lambda q, k, v, out, config: change(out.copy_(attention(q, k, v)))


def one_nan(out: torch.Tensor) -> None:
    out[-1, -1, -1, -1] = math.nan


def beside(value: float) -> Callable[[torch.Tensor], object]:
    """Writes before O."""
    return lambda out: torch.empty(0, dtype=out.dtype).set_(out.untyped_storage())[:1].fill_(value)


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
    shape = SMALL if view not in FAR else SMALL.varied(n_heads=2)
    found = outcome(right, Case("view", shape, view, far_bytes=far if view in FAR else 0), CONFIG.with_dtype(dtype))
    assert (found.status, found.reason) == ("pass", None)
    assert found.accuracy is not None
    assert found.accuracy.ok
    assert found.repeats == 3


def computing(result: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]) -> Run:
    return lambda q, k, v, out, config: out.copy_(result(q, k, v))


zeros = computing(lambda q, k, v: torch.zeros_like(q))


def unwritten(*_: object) -> None:
    """Writes nothing: stale memory must not pass."""


def once() -> Run:
    """Writes O in its first run and nothing after it."""
    runs = iter([right])

    def run(*given: Any) -> None:
        next(runs, unwritten)(*given)

    return run


def fails(*_: object) -> None:
    raise RuntimeError("CUDA error: misaligned address\nmore lines")


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (unwritten, "not written"),
        (altered(one_nan), "1 of 49152 elements of O are NaN"),
        (altered(lambda out: out[0, 0, 0, 0].fill_(math.inf)), "NaN or infinite"),
        (altered(lambda out: out[:, :2].copy_(out[:, :2].flip(1).clone())), "max error"),  # rows 0 and 1 are swapped
        (computing(lambda q, k, v: attention(q * math.sqrt(128), k, v)), "max error"),
        (zeros, "max error"),
        (computing(lambda q, k, v: attention(q, k, v).bfloat16()), "max error"),  # three bits of fp16 are lost
        (fails, "the launch failed: CUDA error: misaligned address"),
        (once(), "run 2 differs from the first bit for bit"),
        *((altered(beside(value)), "wrote outside O: 1 elements changed") for value in (0.0, math.nan)),
    ],
)
def test_a_wrong_operator_fails(run: Run, reason: str) -> None:
    found = outcome(run, Case("slice", SMALL, "sliced"))
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


GENERAL = HopperConfig("fp16", 128, 128, 96, 2, 2, 3, 24, 240, persistent=True, general=True, causal=True)
FEW_KEYS = Problem(batch=2, seq_len=96, n_heads=4, d_head=128, kv_len=80, n_kv_heads=2, mask="causal")


def general_run(change: Callable[[torch.Tensor], object]) -> Run:
    """A right operator of general problems, whose log-sum-exp is changed."""

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, _: str, lse: torch.Tensor) -> None:
        group = q.shape[2] // k.shape[2]
        q32, k32, v32 = (t.float().transpose(1, 2) for t in (q, *(t.repeat_interleave(group, 2) for t in (k, v))))
        seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
        scores = (q32 @ k32.transpose(2, 3) / math.sqrt(128)).masked_fill(~seen, -math.inf)
        p = torch.exp(scores - scores.amax(-1, keepdim=True)).nan_to_num(0.0)
        total = p.sum(-1, keepdim=True)
        out.copy_((p.half().float() @ v32 / total).nan_to_num(0.0).transpose(1, 2))
        change(lse.copy_(torch.logsumexp(scores, -1)))

    return run


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda lse: lse, None),
        (lambda lse: lse.mul_(1 + 1e-6), None),
        (lambda lse: lse.mul_(1 + 1e-4), "log-sum-exp: relative error 0.0001"),
        (lambda lse: lse.mul_(math.log2(math.e)), "log-sum-exp"),
        (lambda lse: lse[:, :, 0].fill_(math.nan), "log-sum-exp"),  # a row that sees no key
        (lambda lse: lse[:, :, 0].fill_(-1e30), "log-sum-exp"),
        (lambda lse: lse[-1, -1, -1].fill_(math.nan), "log-sum-exp"),
        (lambda lse: lse.copy_(lse.flip(1)), "log-sum-exp"),  # of other heads
    ],
)
def test_the_log_sum_exp_is_compared_also_of_rows_without_a_key(
    change: Callable[[torch.Tensor], object], reason: str | None
) -> None:
    subject = Subject(31, GENERAL, general_run(change))
    found = check_case(subject, Case("few keys", FEW_KEYS), References(), device="cpu", repeats=2)
    assert found.status == ("fail" if reason else "pass"), found.reason
    assert (found.reason or "").startswith(reason or "")


def test_a_log_sum_exp_that_changes_its_mind_is_an_error() -> None:
    factors = iter((1.0, 1 + 1e-6, 1.0))
    subject = Subject(31, GENERAL, general_run(lambda lse: lse.mul_(next(factors))))
    found = check_case(subject, Case("few keys", FEW_KEYS), References(), device="cpu", repeats=3)
    assert (found.status, found.reason) == ("fail", "run 2: the log-sum-exp differs from the first")


def test_one_sample_of_many_heads_is_compared_by_head() -> None:
    shape = SMALL.varied(batch=1, n_heads=40)
    assert [head for _, head in compared_slices(shape, 1)] == list(range(40))


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
        assert {name for case in cases for name in case.contents} == set(CONTENTS) - {*inputs.LONE, *BESIDE, *ENDING}, (
            "the emulator asks for those"
        )
        assert max(case.scale for case in cases) == 30.0
        assert len({case.name for case in cases}) == len(cases)
        kept = [case for case in cases if {layout.seq for layout in inputs.layouts(case)} == {2048}]
        assert {"odd head slice", "sliced", "large logits", "grid", "extreme logits", "constant V", "far heads",
                "far samples", "mixed rows of 2048 3"} <= {case.name.rsplit(" ", 1)[0] for case in kept}  # fmt: skip


def test_kernels_that_take_any_length_are_asked_for_ragged_ones_too() -> None:
    config = HopperConfig("bf16", 128, 128, 128, 2, 2, 2)
    for quick, lengths in ((False, (1, 17, 129, 1000, 4097)), (True, (1, 17, 129, 1000))):
        ragged = [one.shape.seq_len for one in cases_for(config, quick=quick) if one.name.startswith("ragged")]
        assert ragged == list(lengths)
    divisible = AmpereConfig("bf16", 128, 128, 64, 4, True, True, True, 2, 2, 2, False, False)
    heavy = [case.shape.seq_len for case in cases_for(divisible) if case.contents == inputs.HEAVY]
    assert heavy == [256, 512, 1024]


TAKEN = {"head_slice", "mixed_slots", "far_heads", "far_samples"}  # views whose row stride is 2048


@pytest.mark.parametrize("number", range(1, 17))
def test_the_cases_hold_the_accepted_shapes_and_fit_the_tiles(number: int) -> None:
    iteration = load_iteration(number)
    stride = iteration.parts.row_stride
    for config in iteration.configs.values():
        cases = emulator_cases(config, stride)
        assert len({case.name for case in cases}) == len(cases)
        assert all(case.shape.seq_len % config.B_r == case.shape.seq_len % config.B_c == 0 for case in cases)
        assert {case.view for case in cases} >= {"head_slice", "packed", "transposed", "sliced", "mixed", *FAR}
        assert any(case.scale == inputs.LARGE_LOGITS for case in cases)
        assert {name for case in cases for name in case.contents} == set(CONTENTS) - set(ENDING), "no key by itself"
        assert [case.name for case in cases if case.repeats != 1] == ["small 2x256x2"]
        assert cases[0].repeats == 2
        blocks = {case.shape.seq_len // config.B_c for case in cases}
        assert min(blocks) == max(config.B_r, config.B_c) // config.B_c
        assert any(count % 2 for count in blocks) or config.B_r > config.B_c  # else lengths are even numbers of blocks


def test_a_fixed_row_stride_gets_head_slices_that_it_takes_and_others_to_refuse() -> None:
    cases = emulator_cases(load_iteration(16).configs["a100"], 2048)
    for case in cases:
        strides = inputs.make_tensors(case, "fp16", "cpu").row_strides
        assert (strides == {2048}) == (case.view in TAKEN), case.name
    assert [case.turn for case in cases if case.view == "one_off"] == [0, 1, 2, 3]
    assert {case.view for case in cases} > TAKEN


CASES = {case.view: case for case in emulator_cases(load_iteration(1).configs["a100"]) if case.view not in FAR}


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.view)
def test_the_emulator_sees_torchs_own_memory(case: Case, dtype: str) -> None:
    tensors = inputs.make_tensors(case, dtype, "cpu")
    four = (tensors.q, tensors.k, tensors.v, tensors.out)
    arrays = as_arrays(*four)
    for array, tensor in zip(arrays, four, strict=True):
        assert array.shape == tuple(tensor.shape)
        assert array.strides == tuple(2 * stride for stride in tensor.stride())
        assert np.array_equal(array, tensor.contiguous().view(torch.int16).numpy().view(np.uint16))
        owner = array.base
        assert isinstance(owner, np.ndarray)
        assert owner.flags.c_contiguous
        assert owner.nbytes == tensor.untyped_storage().nbytes()
    assert len({id(array.base) for array in arrays}) == (2 if case.view == "packed" else 4)
    arrays[3][...] = 0
    assert not tensors.out.any()
    around = tensors.out_base.numel() - tensors.out.numel()
    assert int(torch.isnan(tensors.out_base).sum()) == around


def run_of_one(monkeypatch: pytest.MonkeyPatch, forward: object, number: int, **given: Any) -> Run:
    monkeypatch.setattr(check, "kernel_of", lambda *_: None)
    monkeypatch.setattr(check, "forward", forward)
    return emulated_run(load_iteration(number), **given)


def launched(
    monkeypatch: pytest.MonkeyPatch, lengths: tuple[int, ...], *reports: str, dropped: int = 0, **given: Any
) -> list[int]:
    """Whether each launch of these lengths was watched, by an emulator that reports these races where it is."""
    seen: list[int] = []

    def forward(_: object, config: Any, tensors: Any, *, observers: Any, **__: Any) -> None:
        seen.append(len(observers))
        assert (config, tensors[3][0, 0, 0, 0]) == (load_iteration(1).configs["a100"], 7)
        for hazards in observers:
            hazards.reports.extend(SimpleNamespace(render=lambda text=text: text) for text in reports)
            hazards.dropped += dropped

    monkeypatch.setattr(ptxemu, "Hazards", lambda: SimpleNamespace(reports=[], dropped=0))
    run = run_of_one(monkeypatch, forward, 1, **given)
    for length in lengths:
        q, k, v = (torch.zeros(1, length, 2, 128, dtype=torch.float16) for _ in range(3))
        out = torch.zeros_like(q).view(torch.int16).fill_(7).view(torch.float16)
        run(q, k, v, out, load_iteration(1).configs["a100"].short_form())
    return seen


def test_the_first_launch_and_every_longer_one_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launched(monkeypatch, (128, 128, 64, 256, 128, 256)) == [1, 0, 0, 1, 0, 0]
    watched = [load_iteration(1).configs["a100"].short_form()]
    assert launched(monkeypatch, (128,), "a race", already_watched=watched) == [0], "it was before"
    split = Mock(side_effect=lambda _, tensors, __: SimpleNamespace(cluster=(256 // tensors[0].shape[1], 1, 1)))
    monkeypatch.setattr(type(load_iteration(1).family), "launch", staticmethod(split))
    assert launched(monkeypatch, (256, 128, 128)) == [1, 1, 0], "several CTAs for a tile are another launch"


def test_a_launch_with_more_keys_is_longer_and_one_with_more_queries_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    run = run_of_one(monkeypatch, lambda *_, observers, **__: seen.append(len(observers)), 29)
    for queries, keys in ((128, 128), (128, 300), (300, 300)):
        q, k = (torch.zeros(1, length, 2, 128, dtype=torch.float16) for length in (queries, keys))
        run(q, k, k, torch.zeros_like(q), load_iteration(29).configs["h200"].short_form())
    assert seen == [1, 1, 0]


@pytest.mark.parametrize(
    ("reports", "dropped", "message"), [(("a race",), 0, "a race"), (("a race", "b", "c"), 4, "a race (6 more)")]
)
def test_a_race_fails_the_launch(
    monkeypatch: pytest.MonkeyPatch, reports: tuple[str, ...], dropped: int, message: str
) -> None:
    with pytest.raises(RuntimeError) as caught:
        launched(monkeypatch, (128,), *reports, dropped=dropped)
    assert str(caught.value) == message


def test_a_tensor_outside_of_the_contract_is_a_value_error(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of_one(monkeypatch, lambda *_, **__: pytest.fail("must not run"), 16)
    config = load_iteration(16).configs["a100"]
    q = torch.zeros(1, 128, 2, 128, dtype=torch.float16)
    with pytest.raises(ValueError, match="row stride of 2048"):
        run(q, q, q, q.clone(), config.short_form())


def test_a_forbidden_access_fails_a_case_and_what_the_emulator_does_not_know_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken, config = Mock(), load_iteration(1).configs["a100"]
    given = Subject(1, config, run_of_one(monkeypatch, broken, 1)), emulator_cases(config)[2], References(), "cpu"
    where: dict[str, Any] = {"path": "kernel.ptx", "line": 12}
    broken.side_effect = EmulationError("out-of-bounds", "an address outside every buffer", **where, address=64)
    outcome = check_case(*given)
    assert outcome.status == "fail"
    assert "kernel.ptx:12: an address outside every buffer, address 0x40" in str(outcome.reason)
    broken.side_effect = EmulationError("unsupported", "the call of vprintf is not supported", **where)
    with pytest.raises(FlashladderError, match=r"iteration 1: the emulator cannot .*kernel.ptx:12: .*vprintf"):
        check_case(*given)


TYPES_ONLY = {  # no instruction comes of them
    *("kernels/ampere/contracts.cuh", "kernels/hopper/contracts.cuh", "kernels/ptx/value_types.cuh"),
    "kernels/hopper/mainloop/early_softmax.cuh",
}


def test_a_mistake_is_made_in_every_source_of_the_kernels() -> None:
    changed = {edit.file for wrong in read_all() for edit in wrong.edits}
    sources = {path.relative_to(ROOT).as_posix() for path in KERNELS.rglob("*.cuh")} | set(LAUNCH)
    assert changed == sources - TYPES_ONLY


def test_the_committed_page_is_current() -> None:
    assert wrong_page.main(["--check"]) == 0
