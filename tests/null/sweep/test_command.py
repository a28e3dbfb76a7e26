"""The command, with planted workers and with a GPU on paper: failures, resume, retry, signals, full disks, builds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
import json
import os
from pathlib import Path
import re
import signal
import subprocess
import sys
from typing import Any

import pytest

from flashladder.errors import CheckFailed, FlashladderError
from flashladder.ladder.grid import load_grid
from flashladder.paths import ROOT
from flashladder.results.files import load_as
from flashladder.results.schema import BenchResult, PlannedCell, Sweep
from flashladder.sweep import command, place, plan
from flashladder.sweep.place import Card
from flashladder.sweep.records import Records, held
from flashladder.sweep.workers import Device, Task
from tests.null.sweep.conftest import plant
from tests.null.sweep_fixture import SMALL, alive, digests, grid, planned, timed
from tests.typed import error_line

DRIVER = [sys.executable, "-c", "import sys; from tests.null.sweep.conftest import drive; drive(sys.argv[1:])"]


@pytest.fixture
def words(made: plan.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The options of a sweep of `made` into ``records``; workers are planted."""
    assert made.grid.name == "small"
    plant(monkeypatch.setattr)
    return ["--grid", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "records")]


def asked(tmp_path: Path) -> list[str]:
    """The address of every cell that a worker was given, in order; forgets them."""
    path = tmp_path / "asked"
    found = path.read_text().split() if path.exists() else []
    path.unlink(missing_ok=True)
    return found


def test_three_planted_failures_among_eighteen_are_three_lines_and_exit_code_1(
    made: plan.Plan,
    words: Sequence[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bad = {made.cells[3].address: "segv", made.cells[8].address: "hang", made.cells[11].address: "wrong"}
    monkeypatch.setenv("PLANTS", json.dumps(bad))
    first = (
        r"^3 of 18 cells failed, the first: 2 .* S=1024 .*: crash: its worker ended .*; --retry measures them again$"
    )
    with pytest.raises(CheckFailed, match=first):
        command.main([*words, "--timeout", "5"])
    lines = sorted(capsys.readouterr().err.splitlines())
    assert [line.partition(": ")[0] for line in lines] == ["failed"] * 3
    assert [re.sub(".* B=[12] H=16: ", "", line) for line in lines] == [
        "crash: its worker ended with signal SIGSEGV",
        "timeout: no answer within 5 s: its worker was killed",
        "wrong: max error 7 (allowed 1)",
    ]
    assert sorted(asked(tmp_path)) == sorted(cell.address for cell in made.cells)

    with pytest.raises(CheckFailed, match=r"^3 of 18 cells failed"):
        command.main(list(words))  # resumes: nothing is left
    assert asked(tmp_path) == []
    for retry, missing in (([], 0), (["--retry"], 3)):
        capsys.readouterr()
        command.main([*words, *retry, "--dry-run", "--json"])
        assert json.loads(capsys.readouterr().out)["missing"] == missing
    monkeypatch.setenv("PLANTS", "{}")
    assert command.main([*words, "--retry"]) == 0
    assert sorted(asked(tmp_path)) == sorted(bad)
    assert command.main([*words, "--retry"]) == 0
    assert asked(tmp_path) == []


def test_one_sweep_a_folder_and_shards_beside_each_other(words: Sequence[str], tmp_path: Path) -> None:
    folder = tmp_path / "records"
    folder.mkdir()
    left = folder / f".{0:016x}.json.gz.x7d_2k1z"
    left.write_bytes(b"half a rec")  # what a killed sweep began to write: no record, and it goes
    refused = f"{folder}: another sweep measures into this folder; wait for it, or choose another folder with --out"
    for shard, more in product((None, (0, 2)), ((), ("--shard", "0/2"))):
        with held(folder, shard):
            assert error_line(command.main, [*words, *more]) == refused
    with held(folder, (0, 2)):
        assert command.main([*words, "--shard", "1/2"]) == 0
    with held(folder, (1, 2)):
        assert command.main([*words, "--shard", "0/2"]) == 0
    assert len(asked(tmp_path)) == len(Records(folder).addresses()) == 18
    assert not folder.with_name("records.json.gz").exists()
    assert command.main(list(words)) == 0
    assert asked(tmp_path) == []
    assert folder.with_name("records.json.gz").exists()
    assert not left.exists()


def test_a_reader_that_leaves_is_one_line_and_loses_nothing(words: Sequence[str], tmp_path: Path) -> None:
    with subprocess.Popen([*DRIVER, *words, "--json"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as one:
        assert one.stdout
        assert one.stderr
        one.stdout.readline()
        one.stdout.close()
        errors = one.stderr.read().decode()
    assert one.returncode == 2, errors
    assert errors == "error: stdout was closed; run the same command again to continue\n"
    for address in Records(tmp_path / "records").addresses():
        assert Records(tmp_path / "records").read(address).cell.address == address


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_an_interrupted_sweep_says_how_to_go_on_and_leaves_whole_records(
    number: signal.Signals, made: plan.Plan, words: Sequence[str], tmp_path: Path
) -> None:
    environment = {**os.environ, "PLANTS": json.dumps({cell.address: "slow" for cell in made.cells})}
    with subprocess.Popen(
        [*DRIVER, *words, "--json"], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout
        events = []
        for line in running.stdout:
            events.append(json.loads(line))
            if [event["event"] for event in events].count("measured") == 3:
                running.send_signal(number)
                break
        errors = running.communicate()[1].decode()
    records = Records(tmp_path / "records")
    kept = len(records.addresses())
    assert running.returncode == 130
    assert (
        errors == f"measured cells are kept in {records.folder}; run the same command again to continue\ninterrupted\n"
    )
    assert 3 <= kept < 18
    assert all(records.read(address).document for address in records.addresses())
    assert not any(alive(event["pid"]) for event in events if "pid" in event)
    asked(tmp_path)
    assert command.main(list(words)) == 0
    assert len(asked(tmp_path)) == 18 - kept


def test_a_machine_without_a_gpu_sweeps_the_grid_that_the_file_names_for_it(
    words: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    grid(tmp_path, {**SMALL, "without_gpu": str(tmp_path / "small.yaml")}, "timed")
    monkeypatch.setattr(command, "n_gpus", lambda: 0)
    timed = ["--grid", str(tmp_path / "timed.yaml"), *words[2:]]
    assert command.main(timed) == 0
    assert f"measuring grid {tmp_path / 'small.yaml'} on this CPU instead of timed" in capsys.readouterr().out
    assert command.main([*timed, "--dry-run"]) == 0
    assert re.search(r" on (1 CPU|\d+ CPUs)", capsys.readouterr().out)
    assert "no GPU here" in error_line(command.main, [*timed, "--gpus", "0"])
    assert load_grid(str(load_grid("smoke").without_gpu)).mode == "emulator"


UUID = "GPU-of-the-commands-tests"


@dataclass
class Host:
    """A host with one H200. `run` measures nothing: it writes made-up records. Iteration 16 is built on demand."""

    folder: Path
    changed: Mapping[str, object] = field(default_factory=dict)  # in the grid `SMALL`
    built: bool = True
    arch: str = "sm_90"
    builds: list[tuple[list[str], str]] = field(default_factory=list)
    tasks: Sequence[Task] = ()
    devices: Sequence[Device] = ()
    budget_s: float | None = None

    def sweep(self, *options: str) -> int:
        grid(self.folder, {**SMALL, **self.changed})
        return command.main(["--grid", str(self.folder / "small.yaml"), "--out", str(self.folder / "out"), *options])

    def packed(self) -> Sweep:
        document = load_as(self.folder / "out.json.gz", BenchResult)
        assert document.sweep
        return document.sweep

    @property
    def made(self) -> plan.Plan:
        return planned(self.folder, self.changed)

    def code_of(self, cell: PlannedCell, arch: str) -> tuple[str, str]:
        assert arch == self.arch
        return sys.executable, digests([cell])[0] if self.built or cell.subject != "16" else ""

    def build(self, kernels: Sequence[PlannedCell], where: place.Place) -> None:
        self.builds.append(([kernel.subject for kernel in kernels], where.arch))
        self.built = True

    def run(
        self, tasks: Sequence[Task], devices: Sequence[Device], records: Records, budget_s: float | None, **_: Any
    ) -> None:
        self.tasks, self.devices, self.budget_s = tasks, devices, budget_s
        for task in tasks:
            records.write(timed(task.cell, self.made))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    found = Host(tmp_path)
    monkeypatch.setattr(place, "cards", lambda: [Card(0, "NVIDIA H200", UUID, "sm_90")])
    for module in (place, command):
        monkeypatch.setattr(module, "code_of", found.code_of)
    monkeypatch.setattr(place, "build_all", found.build)
    monkeypatch.setattr(command, "run", found.run)
    return found


def test_a_sweep_gives_cells_to_devices_and_packs_their_records(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.changed = {"budget_minutes": 2}
    assert host.sweep() == 0
    assert tuple(task.cell for task in host.tasks) == host.made.cells
    asked = {(task.request["grid"], task.request["mode"], task.request["plan"]["pairs"]) for task in host.tasks}
    assert asked == {("small", "event-free", host.made.settings.pairs)}
    assert [(device.name, device.environment["CUDA_VISIBLE_DEVICES"]) for device in host.devices] == [("gpu0", UUID)]
    assert host.budget_s == 120
    assert (host.packed().planned, host.packed().made_for) == (host.made.cells, None)
    for cell in host.made.cells[2:]:
        Records(host.folder / "out").path(cell.address).unlink()
    capsys.readouterr()
    assert host.sweep() == 0
    assert len(host.tasks) == 4
    assert "small on h200: 6 cells, 2 of them measured before; about " in capsys.readouterr().out
    assert host.sweep("--dry-run") == 0
    assert "6 cells, 6 of them measured before, in " in capsys.readouterr().out
    host.changed = {"gpu": "a100"}
    assert re.search(r"made for another GPU.*--anyway measures it here", error_line(host.sweep))
    assert host.sweep("--anyway") == 0
    assert host.packed().made_for == "a100"


def test_what_is_missing_is_built_or_named(host: Host) -> None:
    host.built = False
    assert error_line(host.sweep, "--no-build").startswith("1 kernels of the grid are not built: found iteration 16: (")
    assert (host.builds, list(host.tasks)) == ([], [])
    assert host.sweep() == 0
    assert host.builds == [(["16"], "sm_90")]
    assert all(task.cell.code for task in host.tasks)


def test_a_reference_that_is_not_installed_is_a_line_and_no_cell(
    host: Host, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host.changed = {"references": ["fa4"]}
    monkeypatch.setattr(place, "reference_version", lambda _: None)
    assert host.sweep() == 0
    line = "fa4 is not installed, so it is not timed; to install it: pip install 'flash-attn-4[cu13]'"
    assert line in capsys.readouterr().out.splitlines()
    assert {task.cell.subject for task in host.tasks} == {"1", "16", "fa2"}


def test_a_dry_run_leaves_out_what_the_grids_gpu_cannot_run(
    host: Host, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the sweep does on that GPU, whether it is here or not."""
    monkeypatch.setattr(place, "cards", lambda: [Card(0, "NVIDIA A100-SXM4-80GB", UUID, "sm_80")])
    host.arch = "sm_80"
    host.changed = {"gpu": "a100", "iterations": [1, 24]}
    assert host.sweep("--dry-run") == 0
    assert "excluded: 2 cells: iteration 24: not run here: needs sm_90a" in capsys.readouterr().out
    host.changed = {"gpu": "a100", "iterations": [24]}
    with pytest.raises(FlashladderError, match=r"^small: no cell of the grid runs here: found iteration 24: not run"):
        host.sweep("--dry-run")
