"""What ``--slurm`` refuses before it submits, what the tasks are told, and what is said when cells are missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from flashladder.errors import FlashladderError
from flashladder.ladder.grid import load_grid
from flashladder.sweep import command, slurm
from flashladder.sweep.place import Place
from flashladder.sweep.slurm import Options, Request, incomplete, parameters, parse_options


def place(grid: str, options: str = "", *, anyway: bool = False) -> Place:
    return slurm.destination(load_grid(grid), parse_options(options), anyway=anyway)


def test_the_tasks_gpu_is_the_grids_or_the_named_one() -> None:
    assert place("a100") == Place((), "a100", "sm_80")
    assert place("smoke", "gpu=h100") == Place((), "h100", "sm_90")
    assert place("a100", "gpu=h200", anyway=True) == Place((), "h200", "sm_90", "a100")
    assert place("cpu", "gpu=h200") == Place((), "cpu", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("smoke", "gpu"), "--slurm: gpu needs a value"),
        (("smoke", ""), "--slurm: which GPU will the tasks have: expected one of gpu=a100, "),
        (("a100", "gpu=h200"), "the grid was made for another GPU: A100"),
        (("cpu", "array=2", "--shard=0/2"), "--slurm and --shard exclude each other"),
        (("a100", "array=2", "--gpus=0"), "--slurm and --gpus exclude each other"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: Sequence[str], said: str
) -> None:
    monkeypatch.setattr(slurm, "require_slurm", lambda: None)
    monkeypatch.setattr(slurm, "make_plan", lambda *_, **__: pytest.fail("it planned"))
    grid, options, *more = words
    with pytest.raises(FlashladderError) as caught:
        command.main([f"--grid={grid}", f"--slurm={options}", f"--out={tmp_path / 'out'}", *more])
    assert said in str(caught.value)
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


def test_a_folder_has_one_name_in_slurm() -> None:
    one = made("")
    assert one.name == made("array=3").name
    assert one.name != replace(one, folder=Path("/shared/other")).name
    assert one.name.startswith("flashladder-h100-")


def test_missing_cells_are_told_with_the_tasks_and_their_last_error(tmp_path: Path) -> None:
    one = Request("cpu", tmp_path, (), Options({}), "cpu", command.main)
    one.logs.mkdir()
    (one.logs / "7_0_0_log.err").write_text("a\nerror: no space\nsrun: error: exit 2\n", encoding="utf-8")
    (one.logs / "8_0_0_log.err").write_text("error: of another job\n", encoding="utf-8")
    said = str(incomplete(one, "7", {"FAILED": 1, "COMPLETED": 1}, "3 of 64"))
    assert "job 7 has ended, and 3 of 64 cells are not measured" in said
    assert "found tasks: 1 completed, 1 failed (error: no space)" in said
    assert f"logs: {tmp_path}/slurm; the same command submits the rest" in said
    assert "found tasks: forgotten by Slurm; logs" in str(incomplete(one, "9", {}, "3 of 64"))
