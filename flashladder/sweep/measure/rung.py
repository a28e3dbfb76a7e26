"""A rung of a tuning run on a GPU: all its candidates checked, then timed in turn with FA2 in one process.

Why one group: candidates that are to be told apart by half a per cent share clock and temperature, block by block. The
rung is told as one cell; a candidate that is wrong stays without pairs, one that brings the process down is named on
stderr before it is run, so that the sweep can leave it out. Used by `flashladder.sweep.measure.worker`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
import sys
import time
from typing import Any

from flashladder.bench.references import FA2, Subject
from flashladder.bench.timing import Prepared, bench_group, prepare
from flashladder.results.blocks import Plan
from flashladder.results.cells import PlannedCell
from flashladder.results.origin import Kernel
from flashladder.results.schema import BenchResult, Settings, Shape
from flashladder.sweep.lanes.failures import CellFailed, first_line, kind_of
from flashladder.sweep.measure import gpu as measure_gpu

MARK = "candidate: "  # leads a line on stderr; nothing behind it: all of them in turn


@dataclass
class About:
    """Which candidate is being worked on; said on stderr, where it outlives the process."""

    key: str = ""

    def __call__(self, key: str) -> None:
        """Notes and says it."""
        self.key = key
        print(f"{MARK}{key}", file=sys.stderr, flush=True)


class Session(measure_gpu.Session):
    """A worker's GPU: cells one by one, and rungs of candidates."""

    def __init__(self) -> None:
        super().__init__()
        self._drawn: dict[tuple[str, Shape, int, int], Prepared] = {}

    def measure(self, cell: PlannedCell, request: Mapping[str, Any]) -> tuple[BenchResult, float]:
        """The document of a cell, or of a rung where the request names candidates; see the base class.

        Raises:
            CellFailed: as there; of a rung the message names the candidate where one alone is the cause.
        """
        if "candidates" not in request:
            return super().measure(cell, request)
        candidates = [PlannedCell.model_validate(one) for one in request["candidates"]]
        plan, about = Plan(**request["plan"]), About()
        try:
            return self._rung(cell, candidates, plan, request, about)
        except Exception as error:
            raise CellFailed(kind_of(error), told(about.key, error)) from error

    def _rung(
        self,
        cell: PlannedCell,
        candidates: Sequence[PlannedCell],
        plan: Plan,
        request: Mapping[str, Any],
        about: About,
    ) -> tuple[BenchResult, float]:
        """Times the candidates; what is wrong with one of them shows in its series, or as an exception."""
        about("")
        found = [self._subject(one) for one in candidates]
        subjects: list[Subject] = [subject for subject, _ in found if subject]
        kernels: list[Kernel] = [kernel for _, kernel in found if kernel]
        foreign = self._wait_until_alone(request["tell"])
        inputs = self._inputs_of(cell, plan, int(request["first_seed"]))
        cold = time.monotonic() - self._last > measure_gpu.COLD_AFTER_S
        group = bench_group(
            self._hardware,
            subjects,
            inputs,
            plan,
            process=0,
            warm_up_s=measure_gpu.FIRST_WARM_UP_S if cold else measure_gpu.WARM_UP_S,
            about=about,
        )
        self._last = time.monotonic()
        after = self._device.telemetry.foreign_processes(own_context=True)
        document = self._document(cell, request, plan, None, group, (foreign, after))
        update: dict[str, object] = {
            "kernels": {kernel.key: kernel for kernel in kernels},
            "settings": Settings(**request["settings"], flush_bytes=self._flush_bytes),
        }
        if request["profile"]:
            update["reference"] = self._identity(FA2, cell.dtype)
        return document.model_copy(update=update), measure_gpu.gpu_seconds(group)

    def _inputs_of(self, cell: PlannedCell, plan: Plan, first_seed: int) -> Prepared:
        """The inputs of a rung; those of both dtypes stay, others than the last seeds' go."""
        key = (cell.dtype, cell.shape, plan.input_sets, first_seed)
        if key not in self._drawn:
            self._drawn = {kept: own for kept, own in self._drawn.items() if kept[1:] == key[1:]}
            self._drawn[key] = prepare(cell.dtype, cell.shape, plan, first_seed=first_seed)
        return self._drawn[key]


def told(key: str, error: BaseException) -> str:
    """What is said of an exception: led by the candidate that was being checked, if it was one alone."""
    line = first_line(error)
    return f"{key}: {line}" if key and not line.startswith(key) else line


def names_alone(text: str, keys: Sequence[str]) -> str | None:
    """The candidate that a failure's message begins with; None where it names none of `keys`."""
    return max((key for key in keys if text.startswith(key)), key=len, default=None)


def last_marked(tail: str, keys: Sequence[str]) -> str | None:
    """The candidate that a dead worker had said it was checking; None where it was timing all of them."""
    marks = [line.partition(MARK)[2].strip() for line in tail.splitlines() if MARK in line]
    return marks[-1] if marks and marks[-1] in keys else None
