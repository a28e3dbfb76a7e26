"""The emulator's side of the numerical check: which cases, which memory the kernel sees, which errors mean what."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from flashladder.cases.inputs import (
    CONTENTS,
    ENDING,
    FAR,
    LARGE_LOGITS,
    Case,
    make_tensors,
)
from flashladder.cases.reference import References, Run, Subject, check_case
from flashladder.check import on_emulator as check_emulator
from flashladder.check.on_emulator import as_array, cases_for, emulated_run
from flashladder.ladder.iteration import load_iteration
from flashladder.paths import KERNELS
import ptxemu
from ptxemu import EmulationError
from ptxemu.run.launch import MEMORY_BUDGET
from ptxemu.values import Array

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
        assert {name for case in cases for name in case.contents} == set(CONTENTS) - set(ENDING), "no key by itself"
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


class Launches:
    """What the emulator was asked to run, with races that are planted."""

    def __init__(self, *reports: str, dropped: int = 0) -> None:
        self.reports, self.dropped = reports, dropped
        self.seen: list[tuple[object, ...]] = []

    def forward(self, iteration: Any, config: Any, tensors: Any, **given: Any) -> None:
        observers = given["observers"]
        self.seen.append(
            (iteration.number, config.short_form(), given["kernel"], len(observers), given["memory_budget"])
        )
        assert [array.shape for array in tensors] == [(1, tensors[0].shape[1], 2, 128)] * 4
        assert tensors[3][0, 0, 0, 0] == 7
        for hazards in observers:
            hazards.reports.extend(SimpleNamespace(render=lambda text=text: text) for text in self.reports)
            hazards.dropped += self.dropped


def launched(monkeypatch: pytest.MonkeyPatch, made: Launches, **given: Any) -> Callable[[int], None]:
    """Runs a launch of the given length."""
    asked: list[object] = []

    def kernel_of(*wanted: object) -> str:
        asked.append(wanted)
        return "the kernel"

    monkeypatch.setattr(check_emulator, "kernel_of", kernel_of)
    monkeypatch.setattr(check_emulator, "forward", made.forward)
    monkeypatch.setattr(ptxemu, "Hazards", lambda: SimpleNamespace(reports=[], dropped=0))
    iteration = load_iteration(1)
    config = iteration.configs["a100"]
    run = emulated_run(iteration, **given)

    def launch(length: int) -> None:
        q, k, v = (torch.zeros(1, length, 2, 128, dtype=torch.float16) for _ in range(3))
        out = torch.full_like(q, 7).view(torch.int16).fill_(7).view(torch.float16)
        run(q, k, v, out, config.short_form())
        assert asked[-1] == (iteration, config, given.get("kernels", KERNELS))

    return launch


def test_the_first_launch_and_every_longer_one_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Launches()
    launch = launched(monkeypatch, made)
    for length in (128, 128, 64, 256, 128, 256):
        launch(length)
    assert [n for *_, n, _ in made.seen] == [1, 0, 0, 1, 0, 0]
    short = load_iteration(1).configs["a100"].short_form()
    assert set(made.seen) == {(1, short, "the kernel", n, MEMORY_BUDGET) for n in (0, 1)}


def test_a_configuration_that_was_watched_is_not_watched_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = Launches("a race")
    short = load_iteration(1).configs["a100"].short_form()
    launch = launched(monkeypatch, made, watched=[short], memory_budget=5, kernels=tmp_path)
    launch(128)
    assert made.seen == [(1, short, "the kernel", 0, 5)]


@pytest.mark.parametrize(
    ("reports", "dropped", "message"),
    [
        (("a race",), 0, "a race"),
        (("a race", "another"), 0, "a race (1 more)"),
        (("a race", "b", "c"), 4, "a race (6 more)"),
    ],
)
def test_a_race_fails_the_launch(
    monkeypatch: pytest.MonkeyPatch, reports: tuple[str, ...], dropped: int, message: str
) -> None:
    launch = launched(monkeypatch, Launches(*reports, dropped=dropped))
    with pytest.raises(RuntimeError) as caught:
        launch(128)
    assert str(caught.value) == message


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
