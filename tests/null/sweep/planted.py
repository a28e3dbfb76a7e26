"""A sweep's worker that does as it is told, instead of measuring: die, hang, lie, be right; without torch, at once.

What each cell does is in the variable PLANTS (JSON: address to word), what the worker does instead of becoming ready in
PLANT_START; the folder PLANT_NOTES has the documents of right cells, ``<address>.json``, and takes notes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import time
from typing import Any, TextIO

from flashladder.results.schema import EmulatedSweepResult, PlannedCell
from flashladder.sweep import workers as worker
from flashladder.sweep.records import CellFailed

PLANTS: Mapping[str, str] = json.loads(os.environ.get("PLANTS", "{}"))
NOTES = Path(os.environ.get("PLANT_NOTES", "/nonexistent"))
ANSWERS_ONLY = worker.answers_only
answers: TextIO


def says(line: bytes, then: Callable[[], object] = lambda: None) -> Callable[[], None]:
    def do() -> None:
        answers.buffer.write(line)
        answers.flush()
        then()

    return do


def raises(error: BaseException) -> Callable[[], None]:
    def do() -> None:
        raise error

    return do


def silence() -> None:
    answers.close()
    time.sleep(1000)


def noise() -> None:
    print("torch says hello")
    subprocess.run(["echo", "and so does a child"], check=True)
    sys.stderr.write("warning " * 200_000)


def a_child_that_stays() -> None:
    child = subprocess.Popen(["sleep", "1000"])
    (NOTES / "child").write_text(str(child.pid))
    os.kill(os.getpid(), signal.SIGSEGV)


def held_back() -> None:
    """Longer than a cell may take, but not silently."""
    for others in (2, 2, 2, 1, 1, 1):
        says(json.dumps({"event": "held-back", "others": others}).encode() + b"\n")()
        time.sleep(0.4)


def killed_once() -> None:
    path = NOTES / "killed"
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)


DEEDS: Mapping[str, Callable[[], object]] = {
    "right": lambda: None,
    "another": lambda: None,
    "slow": lambda: time.sleep(0.3),
    "noise": noise,
    "segv": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "exit-0": lambda: os._exit(0),
    "sys-exit": raises(SystemExit(7)),  # what a library may do
    "hang": lambda: time.sleep(1000),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "killed-once": killed_once,
    "garbage": says(b"I am a library that prints\n"),
    "list": says(b"[1, 2]\n"),
    "bytes": says(b"\xff\xfe\x00\n"),
    "half": says(b'{"event": "meas', lambda: os._exit(0)),
    "held-back": held_back,
    "silence": silence,
    "child": a_child_that_stays,
    "memory": raises(MemoryError()),
    "wrong": raises(CellFailed("wrong", "max error 7 (allowed 1)")),
    "illegal": raises(RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with ...")),
    "gpu-lost": raises(RuntimeError("NVML: GPU is lost")),
    "unusable": raises(RuntimeError("no CUDA-capable device is detected")),
}


def measure(cell: PlannedCell, _: Mapping[str, Any]) -> tuple[EmulatedSweepResult, float]:
    with (NOTES / "asked").open("a") as stream:
        stream.write(f"{cell.address}\n")
    word = PLANTS.get(cell.address, "right")
    DEEDS[word]()
    path = NOTES / f"{'another' if word == 'another' else cell.address}.json"
    return EmulatedSweepResult.model_validate_json(path.read_bytes()), 0.0


def make(_: str) -> tuple[worker.Measure, worker.Answer]:
    DEEDS[os.environ.get("PLANT_START", "right")]()
    return measure, {"event": "ready"}


def answers_only() -> TextIO:
    global answers  # noqa: PLW0603 - what nonsense is written to
    answers = ANSWERS_ONLY()
    return answers


if __name__ == "__main__":
    worker.answers_only = answers_only
    raise SystemExit(worker.main(sys.argv[1], int(sys.argv[2]), make))
