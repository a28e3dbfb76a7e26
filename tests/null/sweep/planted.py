"""A worker of a sweep that misbehaves on demand: it dies, hangs, sends nonsense or the right answer. It needs no torch.

The variable PLANTS maps addresses of cells to deeds, in JSON. PLANT_START is a deed instead of becoming ready. The
folder PLANT_NOTES contains the documents of right cells, ``<address>.json``, and notes of this worker.
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
from typing import Any

from flashladder.results.schema import EmulatedSweepResult, PlannedCell
from flashladder.sweep import workers as worker
from flashladder.sweep.records import CellFailed

PLANTS: Mapping[str, str] = json.loads(os.environ.get("PLANTS", "{}"))
NOTES = Path(os.environ.get("PLANT_NOTES", "/nonexistent"))
PIPE = os.dup(1)  # to the sweep; the worker redirects stdout to stderr


def says(*lines: bytes, pause_s: float = 0.0) -> None:
    for line in lines:
        os.write(PIPE, line)
        time.sleep(pause_s)


def throw(error: BaseException) -> None:
    raise error


def die(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def half() -> None:
    says(b'{"event": "meas')
    os._exit(0)


def silence() -> None:
    os.closerange(3, 100)  # the pipe, and the worker's copy of it
    time.sleep(1000)


def noise() -> None:
    print("torch says hello")
    subprocess.run(["echo", "and so does a child"], check=True)
    sys.stderr.write("warning " * 200_000)


def a_child_that_stays() -> None:
    child = subprocess.Popen(["sleep", "1000"])
    (NOTES / "child").write_text(str(child.pid))
    die(signal.SIGSEGV)


def killed_once() -> None:
    path = NOTES / "killed"
    if not path.exists():
        path.touch()
        die(signal.SIGKILL)


DEEDS: Mapping[str, Callable[[], object]] = {
    "right": lambda: None,
    "another": lambda: None,
    "slow": lambda: time.sleep(0.3),
    "noise": noise,
    "segv": lambda: die(signal.SIGSEGV),
    "exit-0": lambda: os._exit(0),
    "sys-exit": lambda: throw(SystemExit(7)),  # as a library may do
    "hang": lambda: time.sleep(1000),
    "killed": lambda: die(signal.SIGKILL),
    "killed-once": killed_once,
    "garbage": lambda: says(b"I am a library that prints\n"),
    "list": lambda: says(b"[1, 2]\n"),
    "bytes": lambda: says(b"\xff\xfe\x00\n"),
    "half": half,
    "held-back": lambda: says(
        *(b'{"event": "held-back", "others": %d}\n' % n for n in (2, 2, 2, 1, 1, 1)), pause_s=0.4
    ),
    "silence": silence,
    "child": a_child_that_stays,
    "memory": lambda: throw(MemoryError()),
    "wrong": lambda: throw(CellFailed("wrong", "max error 7 (allowed 1)")),
    "illegal": lambda: throw(RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with ...")),
    "gpu-lost": lambda: throw(RuntimeError("NVML: GPU is lost")),
    "unusable": lambda: throw(RuntimeError("no CUDA-capable device is detected")),
}


def measure(cell: PlannedCell, _: Mapping[str, Any]) -> tuple[EmulatedSweepResult, float]:
    with (NOTES / "asked").open("a") as stream:
        stream.write(f"{cell.address}\n")
    deed = PLANTS.get(cell.address, "right")
    DEEDS[deed]()
    path = NOTES / f"{'another' if deed == 'another' else cell.address}.json"
    return EmulatedSweepResult.model_validate_json(path.read_bytes()), 0.0


def make(_: str) -> tuple[worker.Measure, worker.Answer]:
    DEEDS[os.environ.get("PLANT_START", "right")]()
    return measure, {"event": "ready"}


if __name__ == "__main__":
    raise SystemExit(worker.main(sys.argv[1], int(sys.argv[2]), make))
