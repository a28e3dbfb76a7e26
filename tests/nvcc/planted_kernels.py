"""The sweep's worker on the emulator, with three planted iterations: one crashes, one never ends, one is wrong.

The wrong one is a kernel of tests/broken/wrong, composed, compiled and emulated; the crash is a read of address 0 in
the worker, as of a library's; the hang is the worker's, because the emulator ends a kernel that spins by itself.
PLANTS names them (JSON: subject to word). Started by lanes with ``module="tests.nvcc.planted_kernels"``.
"""

from __future__ import annotations

from collections.abc import Mapping
import ctypes
from functools import partial
import json
import os
import sys
from typing import Any
from unittest.mock import patch

from flashladder.emulate.kernel import forward, kernel_of
from flashladder.ladder.ablation import load_description
from flashladder.ladder.config import KernelConfig
from flashladder.results.schema import PlannedCell
from flashladder.sweep import measure as measure_cpu
from flashladder.sweep import workers as worker
from tests.broken.wrong_kernels import made, read_all

PLANTS: Mapping[str, str] = json.loads(os.environ.get("PLANTS", "{}"))


def measure(cell: PlannedCell, request: Mapping[str, Any]) -> tuple[Any, float]:
    with open(os.environ["PLANT_NOTES"], "a", encoding="ascii") as stream:  # noqa: PTH123 - one write, appended
        stream.write(f"{cell.subject}\n")
    word = PLANTS.get(cell.subject)
    if word == "crash":
        ctypes.string_at(0)
    while word == "hang":
        pass
    if word is None:
        return measure_cpu.emulated(cell, request)
    (wrong,) = (one for one in read_all() if one.name == word)
    assert str(wrong.iteration) == cell.subject
    with made(wrong) as kernels:
        kernel = kernel_of(load_description(cell.subject), KernelConfig.parse(cell.config), kernels)
        with patch.object(measure_cpu, "forward", partial(forward, kernel=kernel)):
            return measure_cpu.emulated(cell, request)


def make(backend: str) -> tuple[worker.Measure, worker.Answer]:
    return measure, worker.measurer(backend)[1]


if __name__ == "__main__":
    raise SystemExit(worker.main(sys.argv[1], int(sys.argv[2]), make))
