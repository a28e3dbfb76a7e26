"""``--slurm`` without Slurm: accepted and refused values, a task's parameters and its end, missing cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest

from flashladder.errors import CheckFailed, FlashladderError
from flashladder.ladder.grid import load_grid
from flashladder.sweep import command, slurm
from flashladder.sweep import place as places
from flashladder.sweep.place import Place
from flashladder.sweep.slurm import Request, incomplete, on_machine, parameters, parse_options
from tests.data_files import table_of
from tests.typed import error_line


def test_every_key_is_read() -> None:
    text = (
        "partition=gpu, account=me,qos=high,constraint=h100&ib,reservation=r1,gres=gpu:h100:1,gpu=h100,cpus=4,mem=32G"
    )
    assert parse_options(f"{text},time=1-2:03,array=8") == {
        "partition": "gpu", "account": "me", "qos": "high", "constraint": "h100&ib", "reservation": "r1",
        "gres": "gpu:h100:1", "mem": "32G", "gpu": "h100", "cpus": 4, "array": 8, "time": 26 * 60 + 3,
    }  # fmt: skip
    assert parse_options("") == {}
    times = {"90": 90, "0:61": 2, "2:00:00": 120, "1-0": 1440, "1-1:30": 1530, "0-0:0:1": 1}
    assert {text: parse_options(f"time={text}") for text in times} == {text: {"time": n} for text, n in times.items()}


@pytest.mark.parametrize(("text", "message"), table_of("slurm/submit", "bad_options"))
def test_a_mistake_is_one_line(text: str, message: str) -> None:
    assert message in error_line(lambda: parse_options(text))


def destination(grid: str, options: str = "", *, anyway: bool = False) -> Place:
    return slurm.destination(load_grid(grid), parse_options(options), anyway=anyway)


def test_the_tasks_gpu_is_the_grids_or_the_named_one() -> None:
    for found, expected in (
        (destination("a100"), ("a100", "sm_80", None)),
        (destination("smoke", "gpu=h100"), ("h100", "sm_90", None)),
        (destination("a100", "gpu=h200", anyway=True), ("h200", "sm_90", "a100")),
        (destination("cpu", "gpu=h200"), ("cpu", "", None)),
    ):
        assert (found.machine, found.arch, found.made_for) == expected


@pytest.mark.parametrize(("words", "message"), table_of("slurm/submit", "exclusive"))
def test_what_cannot_be_is_refused_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: Sequence[str], message: str
) -> None:
    monkeypatch.setattr("shutil.which", str)
    monkeypatch.setattr(command, "make_plan", lambda *_, **__: pytest.fail("it planned"))
    grid, options, *more = words
    arguments = [f"--grid={grid}", f"--slurm={options}", f"--out={tmp_path / 'out'}", *more]
    assert message in error_line(lambda: command.main(arguments))
    assert not (tmp_path / "out").exists()


def test_a_dry_run_needs_no_slurm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert command.main(["--grid=cpu", "--slurm=array=4", "--dry-run", f"--out={tmp_path / 'out'}"]) == 0
    assert "64 cells, 0 of them measured before" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def made(options: str, machine: str = "h100") -> Request:
    return Request("h100", Path("/shared/h100"), (), parse_options(options), machine, command.main)


def task_of(folder: Path, sweep: Callable[[Sequence[str]], int], *words: str) -> Request:
    return Request("cpu", folder, words, {}, "cpu", sweep)


def test_a_task_asks_for_one_gpu_and_for_a_warning_in_time() -> None:
    found = parameters(made("partition=gpu,account=me,reservation=r,time=2:00:00"))
    assert (found["gpus_per_task"], found["cpus_per_task"], found["ntasks_per_node"]) == (1, 4, 1)
    assert (found["partition"], found["account"], found["time"], found["signal_delay_s"]) == ("gpu", "me", 120, 90)
    assert found["additional_parameters"]["requeue"] is True
    assert found["additional_parameters"]["reservation"] == "r"
    typed = parameters(made("gres=gpu:h100:1,cpus=8,time=2"))
    assert "gpus_per_task" not in typed
    assert (typed["gres"], typed["cpus_per_task"], typed["signal_delay_s"]) == ("gpu:h100:1", 8, 30)
    assert "gpus_per_task" not in parameters(made("", "cpu"))


def test_missing_cells_are_told_with_the_tasks_and_their_last_error(tmp_path: Path) -> None:
    one = task_of(tmp_path, command.main)
    one.logs.mkdir()
    (one.logs / "7_0_0_log.err").write_text("a\nerror: no space\nsrun: error: exit 2\n", encoding="utf-8")
    (one.logs / "8_0_0_log.err").write_text("error: of another job\n", encoding="utf-8")
    message = str(incomplete(one, "7", {"FAILED": 1, "COMPLETED": 1}, "3 of 64"))
    assert "job 7 has ended, and 3 of 64 cells are not measured" in message
    assert "found tasks: 1 completed, 1 failed (error: no space)" in message
    assert f"logs: {tmp_path}/slurm; the same command submits the rest" in message
    assert "found tasks: no longer listed by Slurm; logs" in str(incomplete(one, "9", {}, "3 of 64"))


@pytest.mark.parametrize(
    ("error", "code"),
    [(CheckFailed("2 of 9 cells failed"), 1), (FlashladderError("no disk"), 2), (KeyboardInterrupt(), 143)],
)
def test_failed_cells_are_a_result_and_other_errors_are_exit_codes(
    tmp_path: Path, error: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """143, as a shell has it after SIGTERM: the batch script does not start the task again."""
    task = task_of(tmp_path, Mock(side_effect=error))
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

    task = task_of(tmp_path, announced, "--shard", "0/2")
    assert task() == 2
    assert again[0] is None
    assert "error: the task finished no cell within its time limit" in capsys.readouterr().err
    assert again[1]
    assert again[1].function == task


def test_another_gpu_than_planned_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [places.Card(0, "NVIDIA A100-SXM4-80GB", "GPU-0", "sm_80")]
    monkeypatch.setattr(places, "cards", lambda: cards)
    assert [on_machine(machine, len, ["--shard", "0/2"]) for machine in ("a100", "cpu")] == [2, 2]
    assert "another GPU: expected h100, found a100; --slurm gres" in error_line(on_machine, "h100", len, [])
    cards.clear()
    assert "expected h100, found none" in error_line(on_machine, "h100", len, [])
