"""A sweep's worker that does as it is told, instead of measuring: die, hang, lie, be right; without torch, at once.

What each cell does is in the variable PLANTS (JSON: address to word), what the worker does instead of becoming ready in
PLANT_START; the folder PLANT_NOTES has the documents of right cells, ``<address>.json``, and takes notes.
Started by lanes with ``module="tests.null.sweep.planted"``; imports as little as a worker can, to be there at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
import json
import os
from pathlib import Path
import resource
import signal
import subprocess
import sys
import time
from typing import Any, TextIO

from flashladder.results.schema import PlannedCell
from flashladder.sweep import workers as worker
from flashladder.sweep.records import CellFailed

PLANTS: Mapping[str, str] = json.loads(os.environ.get("PLANTS", "{}"))
NOTES = Path(os.environ.get("PLANT_NOTES", "/nonexistent"))
answers: TextIO


def note(name: str) -> bool:
    """Whether this is noted for the first time."""
    path = NOTES / name
    first = not path.exists()
    path.touch()
    return first


def garbage() -> None:
    answers.write("I am a library that prints\n")
    answers.flush()


def listless() -> None:
    answers.write("[1, 2]\n")
    answers.flush()


def bytes_that_are_no_text() -> None:
    answers.buffer.write(b"\xff\xfe\x00\n")
    answers.flush()


def half_an_answer() -> None:
    answers.write('{"event": "meas')
    answers.flush()
    os._exit(0)


def silence() -> None:
    answers.close()
    time.sleep(1000)


def noise() -> None:
    print("torch says hello")
    subprocess.run(["echo", "and so does a child"], check=True)
    sys.stderr.write("warning " * 200_000)


def memory() -> None:
    limit = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2**30, limit[1]))
    try:
        bytearray(2**31)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limit)


def a_child_that_stays() -> None:
    child = subprocess.Popen(["sleep", "1000"])
    (NOTES / "child").write_text(str(child.pid))
    os.kill(os.getpid(), signal.SIGSEGV)


def raises(error: Exception) -> Callable[[], None]:
    def do() -> None:
        raise error

    return do


def held_back() -> None:
    """Longer than a cell may take, but not silently."""
    for others in (2, 2, 2, 1, 1, 1):
        answers.write(json.dumps({"event": "held-back", "others": others}) + "\n")
        answers.flush()
        time.sleep(0.4)


def killed_once() -> None:
    if note("killed"):
        os.kill(os.getpid(), signal.SIGKILL)


DEEDS: Mapping[str, Callable[[], object]] = {
    "right": lambda: None,
    "another": lambda: None,
    "slow": lambda: time.sleep(0.3),
    "noise": noise,
    "segv": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "exit-0": lambda: os._exit(0),
    "sys-exit": raises(SystemExit(7)),  # type: ignore[arg-type]  # what a library may do
    "hang": lambda: time.sleep(1000),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "killed-once": killed_once,
    "garbage": garbage,
    "list": listless,
    "bytes": bytes_that_are_no_text,
    "held-back": held_back,
    "half": half_an_answer,
    "silence": silence,
    "memory": memory,
    "child": a_child_that_stays,
    "wrong": raises(CellFailed("wrong", "max error 7 (allowed 1)")),
    "illegal": raises(RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with ...")),
    "gpu-lost": raises(RuntimeError("NVML: GPU is lost")),
}
STARTS: Mapping[str, Callable[[], object]] = {
    "hang": lambda: time.sleep(1000),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "killed-once": killed_once,
    "garbage": garbage,
    "unusable": raises(RuntimeError("no CUDA-capable device is detected")),
}


@dataclass(frozen=True)
class Document:
    """What `make_documents` of the tests has prepared."""

    address: str

    def model_dump(self, *, mode: str) -> object:
        assert mode == "json"
        return json.loads((NOTES / f"{self.address}.json").read_text(encoding="utf-8"))


def measure(cell: PlannedCell, _: Mapping[str, Any]) -> tuple[Document, float]:
    with (NOTES / "asked").open("a") as stream:
        stream.write(f"{cell.address}\n")
    word = PLANTS.get(cell.address, "right")
    DEEDS[word]()
    return Document("another" if word == "another" else cell.address), 0.0


def make(_: str) -> tuple[worker.Measure, worker.Answer]:
    STARTS.get(os.environ.get("PLANT_START", ""), lambda: None)()
    return measure, {"event": "ready"}


def answers_only() -> TextIO:
    global answers  # noqa: PLW0603 - what nonsense is written to
    answers = ANSWERS_ONLY()
    return answers


ANSWERS_ONLY = worker.answers_only

if __name__ == "__main__":
    worker.answers_only = answers_only
    raise SystemExit(worker.main(sys.argv[1], int(sys.argv[2]), make))
