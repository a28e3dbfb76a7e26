"""The emulator's side of the numerical check: which cases, which memory the kernel sees, which errors mean what."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flashladder.cases.case import LARGE_LOGITS, Run, Subject, check_case
from flashladder.cases.contents import CONTENTS
from flashladder.cases.inputs import FAR, Case, make_tensors
from flashladder.cases.reference import References
from flashladder.check import on_emulator as check_emulator
from flashladder.check.on_emulator import as_array, cases_for, emulated_run
from flashladder.emulator import EmulationError
from flashladder.emulator.values import Array
from flashladder.ladder.iteration import load_all, load_iteration

TAKEN = {"head_slice", "mixed_slots", "far_heads", "far_samples"}  # views whose row stride is 2048


@pytest.mark.parametrize("number", range(1, 17))
def test_the_cases_hold_the_accepted_shapes_and_fit_the_tiles(number: int) -> None:
    iteration = load_iteration(number)
    stride = iteration.parts.row_stride
    for config in iteration.configs.values():
        cases = cases_for(config, stride)
        assert len({case.name for case in cases}) == len(cases)
        sizes = {(case.shape.batch, case.shape.seq_len, case.shape.n_heads) for case in cases}
        assert (2, 256, 2) in sizes
        assert any(length == 1024 for _, length, _ in sizes)
        assert all(case.shape.seq_len % config.B_r == case.shape.seq_len % config.B_c == 0 for case in cases)
        assert {case.view for case in cases} >= {"head_slice", "packed", "transposed", "sliced", "mixed", *FAR}
        assert any(case.scale == LARGE_LOGITS for case in cases)
        assert {name for case in cases for name in case.contents} == set(CONTENTS)
        assert [case.name for case in cases if case.repeats != 1] == ["small 2x256x2"]
        assert cases[0].repeats == 2
        blocks = {case.shape.seq_len // config.B_c for case in cases}
        assert min(blocks) == max(config.B_r, config.B_c) // config.B_c
        assert any(count % 2 for count in blocks) or config.B_r > config.B_c  # else lengths are even numbers of blocks
        assert set(cases_for(config, stride, quick=True)) <= {*cases, *cases_for(config, stride, quick=True)}


def test_a_fixed_row_stride_gets_head_slices_that_it_takes_and_others_to_refuse() -> None:
    config = load_iteration(16).configs["a100"]
    for case in cases_for(config, 2048):
        strides = make_tensors(case, "fp16", "cpu").row_strides
        takes = case.view in TAKEN
        assert (strides == {2048}) == takes, case.name
    alone = [case for case in cases_for(config, 2048) if case.view == "one_off"]
    assert [case.turn for case in alone] == [0, 1, 2, 3]
    taken = {case.view for case in cases_for(config, 2048) if case.view in TAKEN}
    assert taken == TAKEN
    assert {case.view for case in cases_for(config, 2048)} > TAKEN


CASES = {case.view: case for case in cases_for(load_iteration(1).configs["a100"]) if case.view not in FAR}


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.view)
def test_the_emulator_sees_torchs_own_memory(case: Case, dtype: str) -> None:
    tensors = make_tensors(case, dtype, "cpu")
    storages: dict[int, Array] = {}
    arrays = [as_array(tensor, storages) for tensor in (tensors.q, tensors.k, tensors.v, tensors.out)]
    for array, tensor in zip(arrays, (tensors.q, tensors.k, tensors.v, tensors.out), strict=True):
        assert array.shape == tuple(tensor.shape)
        assert array.strides == tuple(2 * stride for stride in tensor.stride())
        assert np.array_equal(array, tensor.contiguous().view(torch.int16).numpy().view(np.uint16))
        owner = array.base
        assert isinstance(owner, np.ndarray)
        assert owner.flags.c_contiguous
        assert owner.nbytes == tensor.untyped_storage().nbytes()
    assert len(storages) == (2 if case.view == "packed" else 4)
    arrays[3][...] = 0
    assert not tensors.out.any()
    around = tensors.out_base.numel() - tensors.out.numel()
    assert int(torch.isnan(tensors.out_base).sum()) == around


def run_of_one(monkeypatch: pytest.MonkeyPatch, forward: object, number: int) -> Run:
    monkeypatch.setattr(check_emulator, "kernel_of", lambda *_: None)
    monkeypatch.setattr(check_emulator, "forward", forward)
    return emulated_run(load_iteration(number))


def test_a_tensor_outside_of_the_contract_is_a_value_error(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of_one(monkeypatch, lambda *_, **__: pytest.fail("must not run"), 16)
    config = load_iteration(16).configs["a100"]
    q = torch.zeros(1, 128, 2, 128, dtype=torch.float16)
    with pytest.raises(ValueError, match="row stride of 2048"):
        run(q, q, q, q.clone(), config.short_form())


def test_a_forbidden_access_is_a_failed_case_with_its_ptx_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise EmulationError("out-of-bounds", "an address outside every buffer", path="kernel.ptx", line=12, address=64)

    run = run_of_one(monkeypatch, broken, 1)
    config = load_iteration(1).configs["a100"]
    outcome = check_case(Subject(1, config, run), cases_for(config)[2], References(), "cpu")
    assert outcome.status == "fail"
    assert "kernel.ptx:12: an address outside every buffer, address 0x40" in str(outcome.reason)


def test_a_kernel_that_writes_nothing_fails_every_case(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of_one(monkeypatch, lambda *_, **__: None, 1)
    config = load_iteration(1).configs["a100"]
    outcome = check_case(Subject(1, config, run), cases_for(config)[2], References(), "cpu")
    assert "were not written" in str(outcome.reason)


def test_every_iteration_is_checked_where_several_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from flashladder.check.cases import CheckReport

    asked: list[int] = []

    def run(job: check_emulator._Job) -> CheckReport:
        asked.append(job.number)
        assert (job.configs, job.dtypes, job.quick) == (("a100",), ("fp16",), True)
        return CheckReport(())

    monkeypatch.setattr(check_emulator, "ptx_many", len)
    monkeypatch.setattr("flashladder.parallel.over", lambda _, jobs, __: [run(job) for job in jobs])
    numbers = [iteration.number for iteration in load_all()]
    check_emulator.check_many(numbers, dtypes=["fp16"], quick=True)
    assert asked == numbers
