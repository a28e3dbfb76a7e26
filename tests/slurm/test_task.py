"""One task of the array in this process, without Slurm: exit codes, the announced end, another GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
import pickle

import pytest

from flashladder.errors import CheckFailed, FlashladderError
from flashladder.sweep import command, place
from flashladder.sweep.slurm import Task, on_machine


def raises(error: BaseException) -> Callable[[Sequence[str]], int]:
    def sweep(_: Sequence[str]) -> int:
        raise error

    return sweep


@pytest.mark.parametrize(
    ("error", "code"),
    [(CheckFailed("2 of 9 cells failed"), 1), (FlashladderError("no disk"), 2), (KeyboardInterrupt(), 143)],
)
def test_failed_cells_are_a_result_and_other_errors_are_exit_codes(
    tmp_path: Path, error: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """143, as a shell has it after SIGTERM: the batch script does not start the task again."""
    task = Task(raises(error), (), tmp_path)
    if code == 1:
        assert task() == 1
    else:
        with pytest.raises(SystemExit) as left:
            task()
        assert left.value.code == code
    assert capsys.readouterr().err.startswith("interrupted" if code == 143 else "error: ")


def test_a_task_that_finished_a_cell_goes_on_later_and_another_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("submitit")
    (tmp_path / f"{0:016x}.json.gz").touch()  # of another time
    again = []

    def announced(words: Sequence[str]) -> int:
        """Slurm announces the end of the task's time, before and after its first cell is finished."""
        again.append(task.checkpoint())
        (tmp_path / f"{1:016x}.json.gz").touch()
        again.append(task.checkpoint())
        return len(words)

    task = Task(announced, ("--shard", "0/2"), tmp_path)
    assert task() == 2
    assert again[0] is None
    assert "error: no cell was finished in the task's time" in capsys.readouterr().err
    assert again[1]
    assert again[1].function == Task(announced, ("--shard", "0/2"), tmp_path)


def test_another_gpu_than_planned_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [place.Card(0, "NVIDIA A100-SXM4-80GB", "GPU-0", "sm_80")]
    monkeypatch.setattr(place, "cards", lambda: cards)
    assert [on_machine(machine, len, ["--shard", "0/2"]) for machine in ("a100", "cpu")] == [2, 2]
    with pytest.raises(FlashladderError, match="another GPU: expected h100, found a100; --slurm gres"):
        on_machine("h100", len, [])
    cards.clear()
    with pytest.raises(FlashladderError, match="expected h100, found none"):
        on_machine("h100", len, [])


def test_a_task_can_be_pickled(tmp_path: Path) -> None:
    task = Task(partial(on_machine, "cpu", command.main), ("b",), tmp_path)
    assert pickle.loads(pickle.dumps(task)).folder == tmp_path
