"""A worker, and one in this process, whose GPU is a number: speeds are known, noise is added, some misbehave.

Everything but the GPU is real: the session, its checks on CPU tensors, the paired timer. `FAULTS` in the environment
names candidates and what they do: ``crash:7 fp16 64,64,4 0_0_2+opt;wrong:...``.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import time
from typing import Any

import torch

from flashladder.bench.references import Subject
from flashladder.bench.timing import Prepared, bench_group, prepare
from flashladder.cases.inputs import Tensors
from flashladder.files import sha256
from flashladder.gpu.device import Device
from flashladder.ladder.config import KernelConfig
from flashladder.results.derive import Plan
from flashladder.results.schema import Group, Host, Kernel, PlannedCell, kernel_key
from flashladder.sweep import measure as measure_gpu
from flashladder.sweep import workers as worker
from flashladder.sweep.records import CellRecord
from flashladder.sweep.workers import Task, Worker
from tests.null.bench.test_bench import FakeGpu
from tests.null.bench_fixture import GPU
from tests.null.check.test_check import attention

_NUMBERS = itertools.count(1)  # of the sessions of this process: the seeds of their noise
_OWN: list[Session] = []  # the last one measures now
BASE_MS = 20.0
NOISE = 0.007
H200 = GPU.model_copy(update={"name": "NVIDIA H200", "l2_bytes": 1000})


def speed(config: str) -> float:
    """The true ratio to FA2: between 0.8 and 1.0, and one candidate of each dtype at 1.01."""
    if KernelConfig.parse(config).brief() == BEST:
        return 1.01
    return 0.8 + 0.2 * int(sha256(config)[:8], 16) / 2**32


BEST = "64,64,4 0_2_0+opt"


class Telemetry:
    """Nobody else uses this GPU."""

    def foreign_processes(self, *, own_context: bool) -> int:
        del own_context
        return 0


class Session(measure_gpu.Session):
    """The real session on a GPU that is not there."""

    def __init__(self) -> None:
        self.told = {"gpu": H200.name}
        self._gpu = FakeGpu()
        self._draw = random.Random(next(_NUMBERS))
        host = Host(digest="0", cpu="c", n_cpus=1, system="s", python="3.12")
        self._device = Device(H200, host, "GPU", Telemetry(), 0)  # type: ignore[arg-type]  # what is used of it
        self._hardware, self._flush_bytes = self._gpu.hardware(), 2**28
        self._started = f"{time.time_ns()}"
        self._last = 0.0
        self._inputs = {}
        self._outputs: dict[int, torch.Tensor] = {}
        self._faults = dict(one.split(":")[::-1] for one in os.environ.get("FAULTS", "").split(";") if one)
        self._launches: dict[str, int] = {}

    def _identity(self, name: str, dtype: str) -> Any:
        from flashladder.bench.references import reference_identity

        return reference_identity({dtype: f"{name} kernel"})

    def _drawn(self, cell: PlannedCell, plan: Plan, first_seed: int | None) -> Prepared:
        key = (cell.dtype, cell.shape, plan.input_sets, first_seed)
        if key not in self._inputs:
            self._inputs[key] = prepare(cell.dtype, cell.shape, plan, "cpu", first_seed=first_seed or 0)
        return self._inputs[key]

    def reference(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self._gpu.now += BASE_MS * self._draw.lognormvariate(0, NOISE / 2)
        return self._right(q, k, v)

    def _right(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if q.data_ptr() not in self._outputs:
            self._outputs[q.data_ptr()] = attention(q, k, v)
        return self._outputs[q.data_ptr()]

    def _subject(self, cell: PlannedCell) -> tuple[Subject | None, Kernel | None]:
        key = kernel_key(int(cell.subject), cell.config)
        fault = self._faults.get(f"{cell.subject} {cell.dtype} {KernelConfig.parse(cell.config).brief()}", "")

        def launch(tensors: Tensors) -> None:
            self._launches[key] = self._launches.get(key, 0) + 1
            self._gpu.now += BASE_MS / speed(cell.config) * self._draw.lognormvariate(0, NOISE)
            tensors.out.copy_(self._right(tensors.q, tensors.k, tensors.v))
            misbehave(fault, tensors, self._launches[key])

        kernel = Kernel(
            iteration=int(cell.subject), config=cell.config, dtype=cell.dtype, arch="sm_90",
            text_sha256=cell.code, registers=200, spill_stores=0, spill_loads=0, toolchain={},
        )  # fmt: skip
        return Subject(key, cell.dtype, launch), kernel


def misbehave(fault: str, tensors: Tensors, launches: int) -> None:
    """What a candidate does instead of being right."""
    if fault == "wrong":
        tensors.out.zero_()
    elif fault == "illegal":
        msg = "CUDA error: an illegal memory access was encountered"
        raise RuntimeError(msg)
    elif fault == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif fault == "moody" and launches > 3:
        tensors.out.view(torch.int16)[0, 0, 0, 0] ^= 1


class InProcess(Worker):
    """A worker whose session is in this process, which is there at once."""

    _session: Session | None = None

    def measure(self, task: Task) -> CellRecord:
        self._session = self._session or fresh()
        _OWN.append(self._session)
        found = worker.answer(self._session.measure, {**task.request, "tell": lambda _: None})
        return self._record(task, found, 1, 1.0)


def _timed(*arguments: Any, **named: Any) -> Group:
    return bench_group(*arguments, **named, reference=_OWN[-1].reference)


def fresh() -> Session:
    """A session on a GPU of its own."""
    session = Session()
    _OWN.append(session)
    measure_gpu.bench_group = _timed  # type: ignore[attr-defined]  # an import there
    measure_gpu.FIRST_WARM_UP_S = measure_gpu.WARM_UP_S = 0.01
    return session


def make(backend: str) -> Any:
    torch.set_num_threads(1)
    session = fresh()
    return session.measure, {"event": "ready", "backend": backend, **session.told}


if __name__ == "__main__":
    raise SystemExit(worker.main(sys.argv[1], int(sys.argv[2]), make))
