"""Which GPUs a sweep takes: by index or UUID, of the grid's model, of one model, each by one process at a time."""

from __future__ import annotations

import pytest

from flashladder.errors import FlashladderError
from flashladder.sweep.measure.devices import MOST_CPUS, Card, chosen, cpus, fitting, locked, machine_of, visible

H200 = [Card(0, "NVIDIA H200", "GPU-aaaa-1", "sm_90"), Card(1, "NVIDIA H200", "GPU-bbbb-2", "sm_90")]
A100 = Card(2, "NVIDIA A100-SXM4-80GB", "GPU-cccc-3", "sm_80")


@pytest.mark.parametrize(
    ("text", "indices"), [("all", [0, 1]), ("0", [0]), ("1,0", [1, 0]), ("GPU-bbbb", [1]), (" 0 , GPU-bbbb-2", [0, 1])]
)
def test_gpus_are_chosen_by_index_or_uuid(text: str, indices: list[int]) -> None:
    assert [card.index for card in chosen(H200, text)] == indices


@pytest.mark.parametrize(
    ("text", "told"),
    [("2", "no such GPU: expected all, or some of 0 (GPU-aaaa-1), 1 (GPU-bbbb-2), found '2'"),
     ("0,0", "a GPU is named twice"), ("GPU-", "no such GPU"), ("", "no such GPU"), ("0,,1", "no such GPU")],
)  # fmt: skip
def test_other_words_are_one_line(text: str, told: str) -> None:
    with pytest.raises(FlashladderError) as caught:
        chosen(H200, text)
    assert told in str(caught.value)


def test_the_environment_says_which_are_visible() -> None:
    assert visible(H200, None) == H200
    assert visible(H200, "1") == [H200[1]]
    assert visible(H200, "GPU-aaaa-1") == [H200[0]]
    assert visible(H200, "") == []


def test_a_grid_for_another_gpu_is_refused_and_says_how_to_override() -> None:
    with pytest.raises(FlashladderError) as caught:
        fitting(H200, "a100", anyway=False)
    assert "made for another GPU" in str(caught.value)
    assert "found NVIDIA H200; --anyway measures it here" in str(caught.value)
    assert fitting(H200, "a100", anyway=True) == (H200, "a100")


def test_a_grid_takes_the_gpus_of_its_model() -> None:
    assert fitting([*H200, A100], "a100", anyway=False) == ([A100], None)
    assert fitting([*H200, A100], "h200", anyway=True) == (H200, None)
    assert machine_of(H200) == "h200"


def test_one_table_mixes_no_models() -> None:
    with pytest.raises(FlashladderError, match=r"different models.*NVIDIA H200, NVIDIA A100.*--gpus"):
        fitting([*H200, A100], "any", anyway=False)
    with pytest.raises(FlashladderError, match="no GPU is left"):
        fitting([], "any", anyway=True)


def test_a_gpu_is_measured_on_by_one_process_at_a_time() -> None:
    card = Card(0, "NVIDIA H200", "GPU-test-of-the-lock", "sm_90")
    with locked([card]) as lanes:
        assert [(lane.name, lane.backend, lane.environment["CUDA_VISIBLE_DEVICES"]) for lane in lanes] == [
            ("gpu0", "gpu", card.uuid)
        ]
        with pytest.raises(FlashladderError, match="another flashladder process measures on this GPU"), locked([card]):
            pass
    with locked([card]):
        pass


def test_there_is_a_lane_per_cpu() -> None:
    lanes = cpus()
    assert len({lane.name for lane in lanes}) == len(lanes) >= 1
    assert {lane.backend for lane in lanes} == {"cpu"}


def test_a_task_of_slurm_has_a_lane_per_cpu_that_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    for given, count in (("3", 3), ("64", MOST_CPUS), ("", MOST_CPUS)):
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", given)
        assert len(cpus()) == count
