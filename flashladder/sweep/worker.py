"""A process that measures cells, one after the other, for the sweep that started it; it stays warm between them.

A kernel that faults takes its CUDA context along, one that hangs can only be ended from outside, and each iteration
lives in an environment of its own: so cells run in processes. This one speaks JSON, one document per line: requests on
stdin, answers on stdout (what libraries print goes to stderr). It ends when stdin ends or the sweep's process dies.

Run: by `flashladder.sweep.workers`; to see what it says:
    echo '{}' | python -m flashladder.sweep.worker cpu
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import ctypes
import json
import os
import signal
import sys
import time
from typing import Any, TextIO

from flashladder import parallel
from flashladder.results.schema import FailureKind, PlannedCell
from flashladder.sweep.records import first_line, kind_of

PR_SET_PDEATHSIG = 1  # prctl(2)
POISONS_CONTEXT: frozenset[FailureKind] = frozenset({"illegal-address", "crash", "gpu-lost"})  # nothing works after it
Answer = Mapping[str, Any]
Measure = Callable[[PlannedCell, Mapping[str, Any]], tuple[Any, float]]
"""From a cell and the request to the cell's document and the seconds that were measurement, not overhead."""


def die_with(parent: int) -> None:
    """Makes the kernel end this process when `parent` dies, however it dies: no orphan may hold a GPU."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died in between
        os._exit(1)


def answers_only() -> TextIO:
    """Keeps stdout for answers: what anything else prints there goes to stderr."""
    sys.stdout.flush()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def answer(measure: Measure, request: Mapping[str, Any]) -> Answer:
    """Measures the cell of one request; a failure is an answer as well."""
    start = time.monotonic()
    try:
        document, busy_s = measure(PlannedCell.model_validate(request["cell"]), request)
    except Exception as error:  # noqa: BLE001 - whatever a kernel, torch or CUDA raises is about this cell alone
        return {"event": "failed", "kind": kind_of(error), "message": first_line(error)}
    overhead_s = max(0.0, time.monotonic() - start - busy_s)
    return {"event": "measured", "document": document.model_dump(mode="json"), "overhead_s": overhead_s}


def measurer(backend: str) -> tuple[Measure, Answer]:
    """How this backend measures, and what it says when it is ready; imports what is slow, once."""
    if backend == "cpu":
        import torch

        from flashladder.sweep.measure import emulated

        torch.set_num_threads(1)  # there is a worker per CPU
        parallel.tune_gc()
        return emulated, {"event": "ready", "module": emulated.__module__}
    from flashladder.sweep.measure import Session

    session = Session()
    return session.measure, {"event": "ready", **session.told()}


def main(backend: str, parent: int, make: Callable[[str], tuple[Measure, Answer]] = measurer) -> int:
    """Answers until stdin ends; exit code 3 after a failure that leaves nothing usable, told as ``last``."""
    die_with(parent)
    answers = answers_only()

    def tell(one: Answer) -> None:
        answers.write(json.dumps(one) + "\n")
        answers.flush()

    try:
        measure, ready = make(backend)
    except Exception as error:  # noqa: BLE001 - told as an answer: the sweep decides what it means
        tell({"event": "unusable", "kind": kind_of(error), "message": first_line(error)})
        return 2
    tell(ready)
    for line in sys.stdin:
        found = answer(measure, {**json.loads(line), "tell": tell})
        last = found.get("kind") in POISONS_CONTEXT and backend != "cpu"
        tell({**found, "last": True} if last else found)
        if last:
            return 3
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else os.getppid()))
