"""A cell on a GPU: one kernel, or one reference, timed in turn with FA2 by the one timer there is.

Why a session: GPU, flush buffer, inputs and their reference stay between cells, so that a warm worker spends a second
on what is not a launch. Each cell is a document of its own, with the GPU's state around every block and the identity of
what ran; the A/A floor of a dtype and shape is the cell of FA2 beside itself. Used by `worker`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from functools import lru_cache
import time
from typing import Any

from flashladder.bench.references import (
    FA2,
    Subject,
    kernel_subject,
    lacking,
    profiled,
    reference_identity,
    reference_subject,
)
from flashladder.bench.timing import Prepared, bench_group, cuda_hardware, prepare
from flashladder.build.installed import load_installed
from flashladder.errors import FlashladderError
from flashladder.gpu.device import open_device
from flashladder.ladder.config import KernelConfig
from flashladder.results.blocks import Plan
from flashladder.results.cells import PlannedCell, Sweep
from flashladder.results.derive import derive, problems
from flashladder.results.origin import Kernel, Reference
from flashladder.results.schema import BenchResult, Group, Process, Settings
from flashladder.sweep.lanes.failures import CellFailed
from flashladder.sweep.plan import pairs_of

FIRST_WARM_UP_S = 1.5
WARM_UP_S = 0.2  # of a worker that measured a moment ago
COLD_AFTER_S = 3.0  # without work
HELD_BACK_S = 600.0  # a cell waits so long for a GPU that others use
LOOK_S = 2.0  # between two looks at who uses it

_loaded = lru_cache(maxsize=32)(load_installed)  # its library is digested once, not per cell


class Session:
    """One worker's GPU, and what it keeps between cells."""

    def __init__(self) -> None:
        self._device = open_device()
        self._hardware, self._flush_bytes = cuda_hardware(self._device.telemetry.sample, self._device.gpu.l2_bytes)
        self._started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._prepared: tuple[Plan, Prepared] | None = None
        self._identities: dict[tuple[str, str], Reference] = {}
        self._last = float("-inf")

    def told(self) -> Mapping[str, Any]:
        """What the worker says about itself when it is ready."""
        gpu = self._device.gpu
        return {"gpu": gpu.name, "uuid": gpu.uuid, "rung": self._device.rung}

    def measure(self, cell: PlannedCell, request: Mapping[str, Any]) -> tuple[BenchResult, float]:
        """The document of a cell, and the seconds that the GPU worked for it.

        Raises:
            CellFailed: wrong numbers, an impossible time, another machine code than was planned, or a busy GPU.
            FlashladderError: the kernel is not installed here, or varied from run to run.
        """
        pairs = pairs_of(int(request["pairs"]))
        subject, kernel = self._subject(cell)
        foreign = self._wait_until_alone(request["tell"])
        inputs = self._inputs(cell, pairs)
        cold = time.monotonic() - self._last > COLD_AFTER_S
        group = bench_group(
            self._hardware,
            [] if subject is None else [subject],
            inputs,
            pairs,
            process=0,
            warm_up_s=FIRST_WARM_UP_S if cold else WARM_UP_S,
            a_a=subject is None,
        )
        self._last = time.monotonic()
        self._require_right(group)
        after = self._device.telemetry.foreign_processes(own_context=True)
        document = derive(self._document(cell, request, pairs, kernel, group, (foreign, after)))
        if found := problems(document):
            raise CellFailed("wrong", found[0])
        return document, gpu_seconds(group)

    def _subject(self, cell: PlannedCell) -> tuple[Subject | None, Kernel | None]:
        """What is timed and, of a kernel, which code that is; None for FA2, which is timed beside itself."""
        if cell.subject == FA2:
            return None, None
        if not cell.config:
            if told := lacking(cell.subject, cell.dtype):
                raise CellFailed("refused", told)
            return reference_subject(cell.subject, cell.dtype), None
        installed, config = _loaded(cell.subject, cell.toolchain), KernelConfig.parse(cell.config)
        installed.require(config)
        kernel = installed.identity(config, self._device.gpu.arch)
        if (kernel.text_sha256 or kernel.build) != cell.code:
            raise FlashladderError(
                "another machine code is installed than was planned",
                expected=cell.code[:12],
                found=str(kernel.text_sha256 or kernel.build)[:12],
                hint="start the sweep again",
            )
        return kernel_subject(kernel.iteration, config, installed.run, kernel.variant), kernel

    def _inputs(self, cell: PlannedCell, pairs: Plan) -> Prepared:
        """The inputs of a cell; those of the cell before it, where dtype and shape are the same."""
        kept = self._prepared
        if kept is None or (kept[0], kept[1].dtype, kept[1].shape) != (pairs, cell.dtype, cell.shape):
            self._prepared = None  # its memory goes first
            kept = self._prepared = (pairs, prepare(cell.dtype, cell.shape, pairs))
        return kept[1]

    def _wait_until_alone(self, tell: Callable[[Mapping[str, Any]], object]) -> int | None:
        """How many others use the GPU when the cell starts: none, after waiting; None where NVML does not tell.

        The sweep is told at each look that the cell is held back, so that it does not count as hanging.

        Raises:
            CellFailed: it did not become free.
        """
        end = time.monotonic() + HELD_BACK_S
        while found := self._device.telemetry.foreign_processes(own_context=True):
            if time.monotonic() > end:
                raise CellFailed("refused", f"{found} other processes use this GPU, for {HELD_BACK_S:.0f} s by now")
            tell({"event": "held-back", "others": found})
            time.sleep(LOOK_S)
        return found

    def _require_right(self, group: Group) -> None:
        """Raises `CellFailed` for numbers that are wrong before or after timing."""
        for series in group.series:
            if told := series.wrong:
                raise CellFailed("wrong", told)

    def _identity(self, name: str, dtype: str) -> Reference:
        """A reference with its kernel in this dtype, asked of the profiler once, after the cell is timed."""
        if (name, dtype) not in self._identities:
            self._identities[name, dtype] = profiled(reference_identity({}, name), name, (dtype,))
        return self._identities[name, dtype]

    def _document(
        self,
        cell: PlannedCell,
        request: Mapping[str, Any],
        pairs: Plan,
        kernel: Kernel | None,
        group: Group,
        foreign: tuple[int | None, int | None],
    ) -> BenchResult:
        """The document of this cell alone, before anything is derived."""
        is_floor = cell.subject == FA2
        beside = {} if cell.config or is_floor else {cell.subject: self._identity(cell.subject, cell.dtype)}
        return BenchResult(
            purpose="tune" if request["mode"] == "tune" else "report",
            rung=self._device.rung,
            gpu=self._device.gpu,
            host=self._device.host,
            kernels={kernel.key: kernel} if kernel else {},
            reference=self._identity(FA2, cell.dtype) if is_floor else reference_identity({}),
            references=beside,
            sweep=Sweep(grid=str(request["grid"]), grid_sha256=str(request["grid_sha256"]), planned=(cell,)),
            settings=Settings(
                pairs=pairs.pairs, blocks=pairs.blocks, min_pairs=pairs.min_pairs, flush_bytes=self._flush_bytes
            ),
            processes=(
                Process(index=0, started_utc=self._started, foreign_before=foreign[0], foreign_after=foreign[1]),
            ),
            groups=(group,),
        )


def gpu_seconds(group: Group) -> float:
    """Seconds that the GPU worked for a group: its launches and the warm-up before them."""
    launches = sum(pair.reference_us + pair.kernel_us for series in group.series for pair in series.pairs)
    return group.warm_up_s + launches / 1e6
