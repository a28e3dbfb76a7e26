"""A grid as a job array on a real Slurm: a killed task, a drained node, a lost submitter; no cell lost or doubled.

Needs Slurm's programs (`tests/slurm/cluster.py` names the packages), and the toolchain for the kernels of the cpu grid:
    python -m pytest -n0 tests/slurm
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
import json
import os
from pathlib import Path
import re
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from flashladder.ladder.grid import load_grid
from flashladder.results.files import load_as
from flashladder.results.schema import EmulatedSweepResult
from flashladder.sweep import plan
from flashladder.sweep.plan import CPU
from flashladder.sweep.records import Records
from tests.null.sweep_fixture import canonical
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import processes_of, within

ROOT = Path(__file__).parents[2]
SWEEP = [sys.executable, "-m", "flashladder.sweep", "--grid", "cpu"]
TASKS = 2


class Submitter:
    """``--slurm`` in a process of its own, whose lines are kept; one that still runs when its test ends is killed."""

    def __init__(self, slurm: Cluster, out: Path, *more: str) -> None:
        self._log = out.with_name(f"submitter-{time.monotonic_ns()}")
        command = [*SWEEP, "--out", str(out), "--slurm", f"array={TASKS}", *more]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=slurm.environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def lines(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def job(self) -> str:
        """The job id, once it is printed."""
        within(60, lambda: re.search(r"Slurm job \d+ ", self.lines()) or self.process.poll() is not None)
        found = re.search(r"Slurm job (\d+) ", self.lines())
        assert found, self.lines()
        return found[1]

    def interrupted(self) -> int:
        """Its exit code after Ctrl-C, pressed again where a busy machine has not answered."""
        for _ in range(3):
            os.killpg(self.process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                return self.process.wait(5)
        return self.ended(5)

    def ended(self, seconds: float) -> int:
        """Its exit code."""
        try:
            return self.process.wait(seconds)
        finally:
            if self.process.poll() is None:
                print(self.lines())
                self.process.kill()


@pytest.fixture
def submit(slurm: Cluster) -> Iterator[Callable[..., Submitter]]:
    started: list[Submitter] = []

    def start(out: Path, *more: str) -> Submitter:
        started.append(Submitter(slurm, out, *more))
        return started[-1]

    yield start
    for submitter in started:
        submitter.process.kill()
        submitter.process.wait()


def undisturbed(folder: Path) -> tuple[EmulatedSweepResult, Records]:
    """The grid in one process."""
    done = subprocess.run([*SWEEP, "--out", str(folder)], cwd=ROOT, capture_output=True, text=True, check=False)
    if "toolchain" in done.stderr and done.returncode == 2:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return document(folder), Records(folder)


def document(folder: Path) -> EmulatedSweepResult:
    return load_as(folder.with_name(f"{folder.name}.json.gz"), EmulatedSweepResult, hint="")


def step_of(slurm: Cluster, task: int) -> list[int]:
    """The processes that run a task under submitit."""
    ours = processes_of(f"SLURM_CONF={slurm.folder}")
    mine = processes_of(f"SLURM_ARRAY_TASK_ID={task}\0")
    return [pid for pid in ours if pid in mine and "submitit.core._submit" in ours[pid] and "srun" not in ours[pid]]


def log_of(out: Path, job: str, task: int) -> str:
    return (out / "slurm" / f"{job}_{task}_0_log.out").read_text(encoding="utf-8")


@pytest.mark.nvcc
def test_killed_task_drained_node_lost_submitter_nothing_lost_or_doubled(
    slurm: Cluster, submit: Callable[..., Submitter], tmp_path: Path
) -> None:
    expected, whole = undisturbed(tmp_path / "undisturbed")
    assert expected.sweep is not None
    settings = plan.settings_of(load_grid("cpu"), CPU)
    shards = [plan.shard(expected.sweep.planned, (i, TASKS), settings) for i in range(TASKS)]
    parts = [{cell.address for cell in shard} for shard in shards]
    out = tmp_path / "cpu"
    first = submit(out)
    job = first.job()
    records = Records(out)
    within(
        90,
        lambda: all(len(part & records.addresses()) >= 2 for part in parts),
        lambda: f"{first.lines()}{slurm.tasks()}",
    )

    assert first.interrupted() == 130  # Ctrl-C: the submitter goes, the tasks stay
    assert f"`scancel {job}` ends it" in first.lines()
    assert "run the same command to watch it again" in first.lines()
    assert sorted(state for state, _ in slurm.tasks().values()) == ["RUNNING", "RUNNING"]

    (victim,) = step_of(slurm, 0)
    worker = f"flashladder.sweep.workers\0cpu\0{victim}\0"
    within(30, lambda: len(processes_of(worker)) == 1)
    os.kill(victim, signal.SIGKILL)
    within(30, lambda: slurm.tasks()[f"{job}_0"][0] == "PENDING", lambda: str(slurm.tasks()))
    assert not processes_of(worker)  # nothing of it goes on measuring
    node = slurm.tasks()[f"{job}_1"][1]
    slurm.ask("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
    slurm.ask("scontrol", "requeue", f"{job}_1")
    within(30, lambda: "drained" in slurm.ask("sinfo", "-h", "-N", "-n", node, "-o", "%T"))
    assert not all(part <= records.addresses() for part in parts)

    second = submit(out)
    assert second.job() == job
    assert "is already queued or running" in second.lines()
    other = next(name for name in slurm.nodes if name != node)
    within(60, lambda: other in [where for state, where in slurm.tasks().values() if state == "RUNNING"])
    assert node not in [where for state, where in slurm.tasks().values() if state == "RUNNING"]
    slurm.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")
    assert second.ended(180) == 0, second.lines()

    found = document(out)
    assert (found.sweep, found.cells) == (expected.sweep, expected.cells)
    addresses = [cell.address for cell in expected.sweep.planned]
    assert sorted(records.addresses()) == sorted(addresses)
    assert [cell.address for cell in found.cells] == addresses
    for address in addresses:
        assert canonical(records.read(address)) == canonical(whole.read(address))
    assert {name.partition("_")[0] for name in slurm.tasks()} == {job}
    for task in range(TASKS):  # both began twice, and the second time went on
        log = log_of(out, job, task)
        assert log.count("Starting with JobEnvironment") == 2, log
        assert re.search(r"cells, [1-9]\d* of them measured before", log), log
    third = submit(out)  # nothing is left: nothing is submitted
    assert third.ended(60) == 0
    assert len(slurm.tasks()) == TASKS


@pytest.mark.nvcc
def test_the_end_of_its_time_puts_a_task_back_and_scancel_does_not(
    slurm: Cluster, submit: Callable[..., Submitter], tmp_path: Path
) -> None:
    out = tmp_path / "cpu"
    submitter = submit(out, "--json")
    events: list[dict[str, Any]] = []

    def heard() -> list[dict[str, Any]]:
        events[:] = [json.loads(line) for line in submitter.lines().splitlines() if line.startswith("{")]
        return events

    within(60, lambda: any(event["event"] == "slurm-submitted" for event in heard()), submitter.lines)
    job = next(event["job"] for event in events if event["event"] == "slurm-submitted")
    records = Records(out)
    within(90, lambda: len(records.addresses()) >= 4, lambda: f"{submitter.lines()}{slurm.tasks()}")
    slurm.ask("scancel", "--signal=USR2", f"{job}_0")  # as Slurm announces the end of a task's time
    within(60, lambda: slurm.tasks()[f"{job}_0"][0] == "PENDING", lambda: log_of(out, job, 0))
    assert "Calling checkpoint method" in log_of(out, job, 0)  # Slurm may end the task before the line after this one
    assert not any(records.read(address).failure for address in records.addresses())
    within(60, lambda: slurm.tasks()[f"{job}_0"][0] == "RUNNING", lambda: str(slurm.tasks()))
    slurm.ask("scancel", job)
    assert submitter.ended(60) == 2
    assert f"job {job} has ended, and " in submitter.lines()
    states = {name: state for name, (state, _) in slurm.tasks().items()}
    assert states[f"{job}_0"] == "CANCELLED"
    assert states[f"{job}_1"] in ("CANCELLED", "COMPLETED")  # it may have come to its end before
    assert f"{Counter(states.values())['CANCELLED']} cancelled" in submitter.lines()
    assert "the same command submits the rest" in submitter.lines()
    assert heard()[-1]["states"] == Counter(states.values())


def test_what_slurm_refuses_is_one_line_and_nothing_is_kept(slurm: Cluster, tmp_path: Path) -> None:
    command = [*SWEEP, "--out", str(tmp_path / "cpu"), "--slurm", "array=2,partition=nosuch"]
    done = subprocess.run(command, cwd=ROOT, env=slurm.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    if "toolchain" in done.stderr:
        pytest.skip(done.stderr.strip())
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: --slurm: Slurm refused the job: found ")
    assert "invalid partition" in line
    assert not slurm.tasks()
