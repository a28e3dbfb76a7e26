"""The command for a grid of GPUs where there is one of paper: what is planned, built, asked of the lanes and packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
import sys
from typing import Any

import pytest

from flashladder.errors import FlashladderError
from flashladder.results.files import load_as
from flashladder.results.schema import BenchResult
from flashladder.sweep import command, plan
from flashladder.sweep.cells import Wanted
from flashladder.sweep.lanes.lane import Device, Task
from flashladder.sweep.lanes.run import Outcome
from flashladder.sweep.measure import builds, devices, environments
from flashladder.sweep.measure.devices import Card
from flashladder.sweep.records import Records
from tests.null.sweep_fixture import SMALL, digests, grid, timed

UUID = "GPU-of-the-commands-tests"


@dataclass
class Host:
    """One H200 whose lanes measure at once; `leaves` cells are left, as where time is up; 16 is built when asked."""

    folder: Path
    text: str = SMALL
    leaves: int = 0
    built: bool = True
    builds: list[tuple[list[str], str]] = field(default_factory=list)
    tasks: Sequence[Task] = ()
    lanes: Sequence[Device] = ()
    budget_s: float | None = None

    def sweep(self, *options: str) -> int:
        grid(self.folder, self.text)
        return command.main(["--grid", str(self.folder / "small.yaml"), "--out", str(self.folder / "out"), *options])

    @property
    def made(self) -> plan.Plan:
        return plan.make(grid(self.folder, self.text), "h200", digests)

    def digests(self, cells: Sequence[Wanted], arch: str) -> list[str]:
        assert arch == "sm_90"
        every = zip(cells, digests(cells), strict=True)
        return [code if self.built or cell.subject != "16" else "" for cell, code in every]

    def build(self, kernels: Sequence[Wanted], arch: str) -> None:
        self.builds.append(([kernel.subject for kernel in kernels], arch))
        self.built = True

    def run(self, tasks: Sequence[Task], lanes: Sequence[Device], records: Records, **more: Any) -> Outcome:
        self.tasks, self.lanes, self.budget_s = tasks, lanes, more["budget_s"]
        done = tasks[: len(tasks) - self.leaves]
        for task in done:
            records.write(timed(task.cell, self.made))
        return Outcome(measured=len(done), left=self.leaves, out_of_time=bool(self.leaves))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    found = Host(tmp_path)
    monkeypatch.setattr(devices, "cards", lambda: [Card(0, "NVIDIA H200", UUID, "sm_90")])
    monkeypatch.setattr(environments, "digests", found.digests)
    monkeypatch.setattr(environments, "python_of", lambda *_: sys.executable)
    monkeypatch.setattr(builds, "build_all", found.build)
    monkeypatch.setattr(command, "run", found.run)
    return found


def test_a_sweep_gives_the_lanes_its_cells_and_packs_what_they_leave(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    assert host.sweep() == 0
    assert tuple(task.cell for task in host.tasks) == host.made.cells
    assert {task.timeout_s for task in host.tasks} == {
        plan.timeout_s(cell, host.made.settings) for cell in host.made.cells
    }
    assert [task.request["cell"]["address"] for task in host.tasks] == [cell.address for cell in host.made.cells]
    asked = {(task.request["grid"], task.request["mode"], task.request["pairs"]) for task in host.tasks}
    assert asked == {("small", "event-free", host.made.settings.pairs)}
    assert [(lane.name, lane.key) for lane in host.lanes] == [("gpu0", UUID)]
    packed = load_as(host.folder / "out.json.gz", BenchResult)
    assert packed.sweep
    assert (packed.sweep.planned, packed.sweep.made_for) == (host.made.cells, None)
    assert host.sweep("--timeout", "7", "--retry") == 0
    assert host.tasks == []
    capsys.readouterr()
    assert host.sweep("--dry-run") == 0
    assert "6 cells, 6 of them measured before, in " in capsys.readouterr().out


def test_a_grid_for_another_gpu_says_so_in_what_it_leaves(host: Host) -> None:
    host.text = SMALL.replace("gpu: any", "gpu: a100")
    with pytest.raises(FlashladderError, match=r"made for another GPU.*--anyway measures it here"):
        host.sweep()
    assert host.sweep("--anyway") == 0
    packed = load_as(host.folder / "out.json.gz", BenchResult)
    assert packed.sweep
    assert packed.sweep.made_for == "a100"
    assert packed.sweep.planned == host.made.cells  # under addresses of the GPU that measured


def test_a_timeout_is_that_of_every_cell(host: Host) -> None:
    assert host.sweep("--timeout", "7") == 0
    assert {task.timeout_s for task in host.tasks} == {7.0}


def test_a_spent_budget_is_no_complete_sweep(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.text, host.leaves = SMALL + "budget_minutes: 2\n", 4
    with pytest.raises(FlashladderError, match="the grid's budget is spent: 4 of 6 cells are not measured") as caught:
        host.sweep()
    assert (caught.value.exit_code, host.budget_s) == (2, 120.0)
    assert not (host.folder / "out.json.gz").exists()
    host.leaves = 0
    assert host.sweep() == 0
    assert len(host.tasks) == 4
    assert "small on h200: 6 cells, 2 of them measured before; about " in capsys.readouterr().out


def test_a_shard_measures_its_part_and_packs_nothing(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    assert host.sweep("--shard", "0/2") == 0
    own = plan.shard(host.made.cells, (0, 2), host.made.settings)
    assert [task.cell for task in host.tasks] == own
    assert f"shard 0 of 2: {len(own)} cells are done" in capsys.readouterr().err
    assert not (host.folder / "out.json.gz").exists()
    assert host.sweep() == 0
    assert len(host.tasks) == len(host.made.cells) - len(own)


def test_what_is_missing_is_built_or_named(host: Host) -> None:
    host.built = False
    with pytest.raises(FlashladderError, match=r"^1 kernels of the grid are not built here: found iteration 16: \("):
        host.sweep("--no-build")
    assert (host.builds, list(host.tasks)) == ([], [])
    assert host.sweep() == 0
    assert host.builds == [(["16"], "sm_90")]
    assert all(task.cell.code for task in host.tasks)


def test_a_reference_that_is_not_installed_is_a_line_and_no_cell(
    host: Host, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host.text = SMALL + "references: [fa4]\n"
    monkeypatch.setattr(environments, "reference_version", lambda _: None)
    assert host.sweep() == 0
    line = "fa4 is not installed here: not timed; pip install 'flash-attn-4[cu13]' brings it"
    assert line in capsys.readouterr().out.splitlines()
    assert {task.cell.subject for task in host.tasks} == {"1", "16", "fa2"}


def test_a_dry_run_divides_the_time_by_the_gpus_and_measures_nothing(
    host: Host, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host.text = SMALL + "budget_minutes: 150\n"
    cards = [Card(number, "NVIDIA H200", f"{UUID}-{number}", "sm_90") for number in range(2)]
    monkeypatch.setattr(devices, "cards", lambda: cards)
    monkeypatch.setattr(plan, "estimate_s", lambda *_: 100.0)
    assert host.sweep("--dry-run") == 0
    told = capsys.readouterr().out.splitlines()
    assert told[-3].startswith("6 cells, 0 of them measured before, in ")
    assert told[-2:] == ["nothing to build", "about 5 min on 2 GPUs; the grid's budget is 2.5 h per GPU"]
    assert list(host.tasks) == []
    host.built = False
    assert host.sweep("--dry-run") == 0
    assert "1 kernel to build" in capsys.readouterr().out


def test_a_dry_run_leaves_out_what_the_grids_gpu_cannot_run(
    host: Host, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the sweep does on that GPU, whether it is here or not."""
    monkeypatch.setattr(devices, "cards", lambda: [Card(0, "NVIDIA A100-SXM4-80GB", UUID, "sm_80")])
    monkeypatch.setattr(environments, "digests", lambda cells, _: digests(cells))
    host.text = SMALL.replace("gpu: any", "gpu: a100").replace("[1, 16]", "[1, 24]")
    assert host.sweep("--dry-run") == 0
    told = capsys.readouterr().out
    assert "left out: 2 cells: iteration 24: not run here: needs sm_90a" in told
    host.text = host.text.replace("[1, 24]", "[24]")
    with pytest.raises(FlashladderError, match=r"^small: no cell of the grid runs here: found iteration 24: not run"):
        host.sweep("--dry-run")
