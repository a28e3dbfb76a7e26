"""The array by itself, with a stand-in for the sweep: one exclusive GPU per task, found again, cancelled, refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import json
import os
from pathlib import Path
import time
from typing import Any

import pytest

from flashladder.errors import FlashladderError
from flashladder.sweep import command
from flashladder.sweep import slurm as slurm_array
from flashladder.sweep.slurm import Request, parse_options, running_job, submit_array, watch
from tests.slurm.cluster import Cluster, cluster
from tests.slurm.conftest import require
from tests.typed import error_line


def sweep(words: Sequence[str]) -> int:
    """``FOLDER SECONDS --shard I/N``."""
    folder, seconds, _, shard = words
    start = time.time()
    time.sleep(float(seconds))
    note = {
        "shard": shard,
        "node": os.environ["SLURMD_NODENAME"],
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        "cpus": os.environ.get("SLURM_CPUS_PER_TASK", ""),
        "start": start,
        "end": time.time(),
    }
    (Path(folder) / f"{int(shard.partition('/')[0]):016x}.json.gz").write_text(json.dumps(note), encoding="utf-8")
    return 0


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Two nodes of two CPUs and two GPUs each."""
    require()
    pytest.importorskip("submitit")
    with cluster(nodes=2, cpus=2) as started:
        monkeypatch.setenv("SLURM_CONF", str(started.folder / "slurm.conf"))
        yield started


def request(folder: Path, options: str, seconds: float, machine: str = "h100") -> Request:
    """A sweep whose command is the stand-in."""
    return Request("smoke", folder, (str(folder), str(seconds)), parse_options(options), machine, sweep)


def watched(one: Request, job: str) -> tuple[dict[str, int], list[Mapping[str, Any]]]:
    events = list(watch(one, job, lambda: len(list(one.folder.glob("*.json.gz")))))
    return events[-1]["states"], events


def test_every_task_has_a_gpu_of_its_own(slurm: Cluster, tmp_path: Path) -> None:
    one = request(tmp_path, "cpus=1,mem=100M,partition=main,time=0:30", 1.5)
    assert running_job(one) is None
    job = submit_array(one, 5)
    assert running_job(one) == job
    assert running_job(request(tmp_path / "other", "", 0)) is None
    states, events = watched(one, job)
    assert states == {"COMPLETED": 5}
    assert running_job(one) is None
    notes = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(tmp_path.glob("*.json.gz"))]
    assert [note["shard"] for note in notes] == [f"{i}/5" for i in range(5)]
    assert {note["cpus"] for note in notes} == {"1"}
    places = [(note["node"], note["gpus"]) for note in notes]
    assert set(places) == {(node, gpu) for node in ("node0", "node1") for gpu in "01"}
    for i, a in enumerate(notes):  # the fifth waits for one of the four
        for b in notes[:i]:
            assert a["end"] <= b["start"] or b["end"] <= a["start"] or places[i] != (b["node"], b["gpus"])
    assert [event["event"] for event in events] == ["slurm"] * len(events)
    assert events[-1] == {"event": "slurm", "done": 5, "states": {"COMPLETED": 5}, "waiting": []}


def test_cpu_tasks_ask_for_no_gpu_and_a_silent_controller_is_asked_again(
    slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = request(tmp_path, "cpus=2", 0, machine="cpu")
    job = submit_array(one, 1)  # a single one is no array
    answered, silent = slurm_array.tasks_of, iter([True, True, False, True])

    def ask(of: Request) -> list[tuple[str, str, str]]:
        if next(silent, False):
            raise FlashladderError("squeue failed: slurm_load_jobs error: Unable to contact slurm controller")
        return answered(of)

    monkeypatch.setattr(slurm_array, "tasks_of", ask)
    states, events = watched(one, job)
    assert states == {"COMPLETED": 1}
    assert [event["event"] for event in events[:2]] == ["slurm-silent", "slurm"]  # one event for two silent answers
    assert "Unable to contact" in events[0]["message"]
    (path,) = tmp_path.glob("*.json.gz")
    note = json.loads(path.read_text(encoding="utf-8"))
    assert (note["gpus"], note["cpus"]) == ("", "2")


def test_without_slurm_or_submitit_one_line_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sweep = ["--grid=cpu", "--slurm", f"--out={tmp_path / 'out'}"]
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FlashladderError, match=r"^sbatch, squeue not found, which --slurm needs; run this on a host"):
        command.main(sweep)
    for name in ("sbatch", "squeue"):
        (tmp_path / name).write_text("#!/bin/sh\necho no controller >&2\nexit 1\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "submitit is not installed, which --slurm needs; pip install submitit" in error_line(command.main, sweep)
    assert "squeue failed: no controller" in error_line(running_job, request(tmp_path, "", 0))
