"""The steps that `flashladder.forward` takes: what the file may hold, and that each is one of those measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flashladder import fastest
from flashladder.errors import FlashladderError
from flashladder.fastest import Fastest, choices, load_fastest
from flashladder.ladder.iteration import load_iteration


def first_of(gpu: str, arch: str) -> tuple[tuple[int, int], ...]:
    """The first choice from each length on."""
    return tuple((start, steps[0]) for start, steps in choices(gpu, arch))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "valid dictionary"),
        ('{"h200": {"from_seq_len": {"0": 26}}}', "greater than or equal to 1"),
        ('{"h200": {"from_seq_len": {"long": 26}}}', "valid integer"),
        ('{"h200": {"steps": {}}}', "from_seq_len"),
        ('{"h200": {"from_seq_len": {"1": 26}, "ranking": [0]}}', "greater than or equal to 1"),
        ('{"h200": {"from_seq_len": {}}}', "a step from length 1 on"),
        ('{"h200": {"from_seq_len": {"512": 26}}}', r"a step from length 1 on, found lengths \[512\]"),
        ('{"h200": ', "line 1"),
        ('{"h200": {"from_seq_len": {"1": 26, "1": 27}}}', "twice"),
    ],
)
def test_a_file_of_another_form_is_one_line(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "fastest.json"
    path.write_text(text)
    with pytest.raises(FlashladderError, match=says) as caught:
        load_fastest(path)
    assert "\n" not in str(caught.value)
    assert "invoke report writes it" in str(caught.value)


@pytest.fixture
def fresh() -> Iterator[None]:
    """No answer of another table is kept, before and after."""
    choices.cache_clear()
    yield
    choices.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_steps_that_a_gpu_does_not_run_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of the H200 says nothing to a GPU that only falls back on its configurations."""
    monkeypatch.setattr(fastest, "load_fastest", lambda: {"a100": Fastest(from_seq_len={1: 26}, ranking=(26, 7))})
    ((start, steps),) = choices("NVIDIA A100-SXM4-80GB", "sm_80")
    assert start == 1
    assert steps == tuple(sorted(steps, reverse=True)), "later steps first"
    assert all(load_iteration(step).family.runs_on("sm_80") for step in steps)


@pytest.mark.usefixtures("fresh")
def test_a_gpu_takes_its_own_table_before_that_of_its_configurations(monkeypatch: pytest.MonkeyPatch) -> None:
    """And lengths come in their order, whatever that of the file is."""
    h200 = Fastest(from_seq_len={1: 26}, ranking=(26, 28, 19, 20))
    tables = {"h100": Fastest(from_seq_len={4096: 24, 1: 25, 512: 27}), "h200": h200}
    monkeypatch.setattr(fastest, "load_fastest", lambda: tables)
    assert first_of("NVIDIA H100 80GB HBM3", "sm_90") == ((1, 25), (512, 27), (4096, 24))
    assert first_of("NVIDIA GH200 480GB", "sm_90") == ((1, 26),)


@pytest.mark.usefixtures("fresh")
def test_behind_the_first_choice_come_the_others_by_rank_and_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank may be that of the GPU whose configurations it runs; steps without one come last."""
    h200 = Fastest(from_seq_len={1: 26}, ranking=(26, 28, 19, 20))
    tables = {"h100": Fastest(from_seq_len={1: 25}), "h200": h200}
    monkeypatch.setattr(fastest, "load_fastest", lambda: tables)
    ((_, steps),) = choices("NVIDIA H100 80GB HBM3", "sm_90")
    assert steps[:6] == (25, 26, 28, 19, 20, 27)
    assert len(set(steps)) == len(steps)
    assert steps[-1] == 1


@pytest.mark.usefixtures("fresh")
def test_a_gpu_that_no_step_runs_on_is_one_line() -> None:
    with pytest.raises(FlashladderError, match=r"^no step runs on this GPU: expected .*8\.0.*, found sm_75$"):
        choices("Tesla T4", "sm_75")
