"""How busy a loop keeps the parts of an SM beside its tensor pipe: shares of the cycles that its HMMA take.

Why shares: tiles differ between steps and GPUs, the work per HMMA does not. Shared memory serves a wavefront per clock:
32 banks of 4 bytes, which an ldmatrix.x4 keeps busy for as many clocks as it has wavefronts; the copies' writes are
left out. A scheduler issues an instruction per clock, but none while an HMMA takes it (`rates`). Nothing to run here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
import statistics

from flashladder.errors import FlashladderError
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.iteration import load_iteration
from flashladder.names import HEADLINE_LENGTH, LDSM, WAVEFRONTS
from flashladder.report.data import Ladder
from flashladder.report.reasons.counts import locked
from flashladder.report.reasons.guarded import Contradicted
from flashladder.report.reasons.rates import MMA_FLOPS, SCHEDULERS, documented_rate, mma_issue, tensor_rate
from flashladder.report.reasons.speeds import Speeds

WHOLE = 100.0  # %: as many cycles as the tensor pipe's
RESOURCES = ("shared reads", "issue slots")


@dataclass(frozen=True)
class Loads:
    """Of one step: `number` is the page's."""

    ladder: Ladder
    number: int

    def vocabulary(self) -> Mapping[str, Callable[..., str]]:
        """What a page may call."""
        return {
            "ceiling": self.ceiling, "binds": self.binds, "hides": self.hides,
            "busy": self.busy,
            "tensor_use": self.tensor_use, "fa2_use": self.fa2_use, "mma_cycles": self.mma_cycles,
            "peak_cycles": self.peak_cycles, "mma_issue": self.mma_issue,
        }  # fmt: skip

    @cached_property
    def _mma_issue(self) -> float:
        """Measured on the machine of the ladder, and taken for other GPUs, of which nobody says it."""
        return mma_issue(Speeds(self.ladder, self.number).machine.name)

    def mma_issue(self) -> str:
        """Clocks for which an HMMA keeps its scheduler from issuing anything else."""
        return f"{self._mma_issue:.1f}"

    def share(self, resource: str, gpu: str, of: int) -> float:
        """Cycles of a resource in percent of the tensor pipe's, in the main loop of a GPU's own configuration."""
        if resource not in RESOURCES:
            raise FlashladderError("no such resource", expected=", ".join(RESOURCES), found=resource)
        loop = locked(load_iteration(of), gpu).main_loop
        tensor = loop["HMMA"] / tensor_rate(gpu)
        if resource == "issue slots":
            others = loop["total"] - loop["HMMA"]
            return 100 * (others + loop["HMMA"] * self._mma_issue) / SCHEDULERS / tensor
        if self.ladder.emulated is None:
            raise FlashladderError("no emulated counters", hint="python -m flashladder.emulate.take_reading --write")
        kernel = self.ladder.emulated.of(of)
        wavefronts = kernel.counters[WAVEFRONTS.format("ld")] / kernel.counters[LDSM]  # a property of the layout
        return 100 * loop["LDSM"] * wavefronts / tensor

    def ceiling(self, resource: str, gpu: str) -> str:
        """``12 %``: how much of the tensor pipe's rate such a resource leaves at most; of one that binds.

        Raises:
            Contradicted: the tensor pipe needs longer.
        """
        self._held(resource, gpu, self.number, binds=True)
        return f"{100 * WHOLE / self.share(resource, gpu, self.number):.0f} %"

    def binds(self, resource: str, gpu: str, of: int = 0) -> str:
        """``133 %`` of the tensor pipe's cycles: of a resource that needs at least as long as it.

        Raises:
            Contradicted: it does not.
        """
        return self._held(resource, gpu, of or self.number, binds=True)

    def hides(self, resource: str, gpu: str, of: int = 0) -> str:
        """``63 %``: as `binds`, of a resource that needs less time than the tensor pipe."""
        return self._held(resource, gpu, of or self.number, binds=False)

    def _held(self, resource: str, gpu: str, of: int, *, binds: bool) -> str:
        share = self.share(resource, gpu, of)
        if (share >= WHOLE) is not binds:
            expected = f"{'at least' if binds else 'less than'} {WHOLE:g} %"
            what = f"the data contradict the page about {resource} of iteration {of} on {gpu}"
            raise Contradicted(what, expected=expected, found=f"{share:.1f} %")
        return f"{share:.0f} %"

    def mma_cycles(self, gpu: str) -> str:
        """Clocks that one HMMA keeps the tensor pipe of its scheduler busy."""
        return f"{SCHEDULERS / tensor_rate(gpu):.1f}".removesuffix(".0")

    def peak_cycles(self, gpu: str) -> str:
        """The same at the documented rate; fewer than measured.

        Raises:
            Contradicted: they are not.
        """
        if documented_rate(gpu) <= tensor_rate(gpu):
            raise Contradicted(f"the data contradict the page about mma on {gpu}", expected="less than the peak")
        return f"{SCHEDULERS / documented_rate(gpu):.1f}".removesuffix(".0")

    def tensor_use(self, gpu: str, of: int = 0) -> str:
        """``59 %``: the share of the tensor pipe's rate through mma.sync that the kernel reaches at S = 4096."""
        return f"{100 * self._use(gpu, of or self.number):.0f} %"

    def busy(self, resource: str, gpu: str, of: int = 0) -> str:
        """``46 %``: the share of the kernel's time that a resource works, at S = 4096."""
        of = of or self.number
        return f"{self.share(resource, gpu, of) * self._use(gpu, of):.0f} %"

    def _use(self, gpu: str, of: int) -> float:
        return self._tflops(gpu, of) * 1e12 / self._peak(gpu)

    def fa2_use(self, gpu: str) -> str:
        """The same of FA2."""
        first = self.ladder.iterations[0].number
        tflops = self._tflops(gpu, first) / Speeds(self.ladder, first).pct(gpu, first) * 100
        return f"{100 * tflops * 1e12 / self._peak(gpu):.0f} %"

    def _peak(self, gpu: str) -> float:
        """FLOP/s of all tensor pipes, at the clock of the timing or, of a published figure, the boost clock."""
        peaks = load_gpus()[gpu].peaks
        speeds = Speeds(self.ladder, self.number)
        clocks = [peaks["boost_clock"].value]
        if gpu == speeds.machine.key:
            family = load_iteration(self.number).family  # another family's kernels may run at another clock
            own = {one.number for one in self.ladder.iterations if one.family is family}
            measured = (one for (number, _), one in speeds.machine.measured.items() if number in own)
            summaries = [one.summaries.get(HEADLINE_LENGTH) for one in measured]
            clocks = [one.sm_clock_mhz for one in summaries if one and one.sm_clock_mhz]
        return tensor_rate(gpu) * MMA_FLOPS * peaks["sms"].value * statistics.median(clocks) * 1e6

    def _tflops(self, gpu: str, of: int) -> float:
        speeds = Speeds(self.ladder, self.number)
        if gpu in self.ladder.published.gpus:
            return self.ladder.published.tflops(of, gpu, "seq4096")
        row = next(row for row in self.ladder.rows(speeds.machine, "fp16") if row.iteration.number == of)
        if row.tflops is None:
            raise FlashladderError("FA2 was not timed", found=gpu)
        return row.tflops
