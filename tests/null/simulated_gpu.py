"""A simulated GPU for sessions of the sweep: its time is a number, and its kernels have known speeds and faults.

Everything else is real: the session, its checks on CPU tensors, the paired timer. As a program, this module is a worker
of a tuning run. FAULTS in the environment names faults and their candidates: ``crash:fp16 64,64,4 0_0_2+opt;wrong:...``
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
import os
import random
import signal
import sys
import time
from types import SimpleNamespace
from typing import Any

import torch

from flashladder.bench import references
from flashladder.bench.references import Subject
from flashladder.bench.timing import bench_group, prepare
from flashladder.files import sha256
from flashladder.ladder.config import KernelConfig
from flashladder.results.schema import Kernel, Reference
from flashladder.sweep import measure, workers
from flashladder.sweep.records import CellRecord
from flashladder.sweep.workers import Task, Worker
from tests.null.bench.test_bench import FakeGpu
from tests.null.bench_fixture import GPU, HOST, result
from tests.null.check.test_check import attention

H200 = GPU.model_copy(update={"name": "NVIDIA H200"})
BASE_MS = 20.0
NOISE = 0.007
BEST = "64,64,4 0_2_0+opt"


@dataclass
class SimulatedGpu(FakeGpu):
    """An H200. `spoil` changes the output of a kernel's n-th launch. `others`: processes in each query, then none."""

    fa2_ms: Callable[[], float] = lambda: 2.0
    kernel_ms: Callable[[str], float] = lambda _: 1.6
    spoil: Callable[[str, int, torch.Tensor], object] = lambda *_: None
    others: list[int | None] = field(default_factory=list)
    launches: Counter[str] = field(default_factory=Counter)
    outputs: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)  # by address of Q, kept alive

    def foreign_processes(self, *, own_context: bool) -> int | None:
        assert own_context
        return self.others.pop(0) if self.others else 0

    def reference(self, *_: torch.Tensor) -> None:
        self.now += self.fa2_ms()

    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, form: str) -> None:
        self.now += self.kernel_ms(form)
        self.launches[form] += 1
        if q.data_ptr() not in self.outputs:
            self.outputs[q.data_ptr()] = q, attention(q, k, v)
        out.copy_(self.outputs[q.data_ptr()][1])
        self.spoil(form, self.launches[form], out)

    def installed(self, subject: str, _: str) -> Any:
        def identity(config: KernelConfig, arch: str) -> Kernel:
            form, number = config.short_form(), int(subject)
            return Kernel(
                iteration=number, config=form, dtype=config.dtype, arch=arch, text_sha256=f"code of {number} {form}",
                registers=200, spill_stores=0, spill_loads=0, toolchain={},
            )  # fmt: skip

        return SimpleNamespace(run=self.run, require=lambda _: None, identity=identity)

    def plug_in(self, patch: Callable[[object, str, object], None] = setattr) -> None:
        """Makes sessions open this GPU. cuDNN is a kernel there."""

        def identity(kernels: Mapping[str, str], name: str = "fa2") -> Reference:
            return result().reference.model_copy(update={"op": name, "kernels": dict(kernels)})

        def subject(name: str, dtype: str, *_: object) -> Subject:
            return Subject(name, dtype, lambda on: self.run(on.q, on.k, on.v, on.out, name))

        for name, value in {
            "open_device": lambda: SimpleNamespace(telemetry=self, gpu=H200, host=HOST, rung="GPU"),
            "cuda_hardware": lambda *_: (self.hardware(), 2**28),
            "_loaded": self.installed,
            "prepare": partial(prepare, device="cpu"),
            "bench_group": partial(bench_group, reference=self.reference),
            "LOOK_S": 0.0,
        }.items():
            patch(measure, name, value)
        patch(references, "reference_identity", identity)
        patch(references, "reference_subject", subject)
        patch(references, "lacking", lambda *_: None)
        patch(references, "reference_kernel", lambda dtype, name, *_: f"{name} in {dtype}")


def speed(form: str) -> float:
    """The true ratio to FA2: between 0.8 and 1.0, and one candidate of each dtype at 1.01."""
    if KernelConfig.parse(form).brief() == BEST:
        return 1.01
    return 0.8 + 0.2 * int(sha256(form)[:8], 16) / 2**32


def misbehave(form: str, launches: int, out: torch.Tensor) -> None:
    """The fault of a candidate, if FAULTS names it."""
    config, faults = KernelConfig.parse(form), os.environ.get("FAULTS", "").split(";")
    fault = next((one for one in faults if one.endswith(f":{config.dtype} {config.brief()}")), "").partition(":")[0]
    if fault == "wrong":
        out.zero_()
    elif fault == "illegal":
        msg = "CUDA error: an illegal memory access was encountered"
        raise RuntimeError(msg)
    elif fault == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif fault == "moody" and launches > 3:
        out.view(torch.int16)[0, 0, 0, 0] ^= 1


def tuning_gpu() -> SimulatedGpu:
    """A GPU with a tuning space: kernels have the times of `speed`, with noise, and the faults of `misbehave`."""
    draw = random.Random(1)
    return SimulatedGpu(
        fa2_ms=lambda: BASE_MS * draw.lognormvariate(0, NOISE / 2),
        kernel_ms=lambda form: BASE_MS / speed(form) * draw.lognormvariate(0, NOISE),
        spoil=misbehave,
    )


class Session(measure.Session):
    """A session whose start no other one shares."""

    def __init__(self) -> None:
        super().__init__()
        self._started = f"{time.time_ns()}"


class InProcess(Worker):
    """A worker whose session is in this process."""

    _session: Session | None = None

    def measure(self, task: Task) -> CellRecord:
        self._session = self._session or Session()
        found = workers.answer(self._session.measure, {**task.request, "tell": lambda _: None})
        return self._record(task, found, 1, 1.0)


def make(_: str) -> tuple[workers.Measure, workers.Answer]:
    torch.set_num_threads(1)
    tuning_gpu().plug_in()
    return Session().measure, {"event": "ready"}


if __name__ == "__main__":
    raise SystemExit(workers.main(sys.argv[1], int(sys.argv[2]), make))
