"""What the model says of a kernel on a GPU: clocks of a KV block, what binds, TFLOP/s, percent of FA2 and of the peak.

Why these parts: an SM makes rounds of the loop (`steady`), each CTA has a begin and an end (`overhead`), and the last
wave of CTAs does not fill all SMs (`waves`). Each is simulated; nothing is fitted to a kernel's measured speed.

Try ``predict(kernel, load_gpus()["a100"], 4096)``.
"""

from __future__ import annotations

from dataclasses import dataclass
import statistics

from flashladder.errors import FlashladderError
from flashladder.explain.anchor import MEGA, TERA, Anchor, anchor_of
from flashladder.explain.chain import chain
from flashladder.explain.chip import Chip, chip_of
from flashladder.explain.kernel import D_HEAD, HEADS, Kernel
from flashladder.explain.resources import Resource, binding, resources
from flashladder.explain.simulate import simulate
from flashladder.explain.steps import Step, steps_of
from flashladder.ladder.gpus import Gpu
from flashladder.machine_code.ptxas import Occupancy

PHASES = 8  # between two CTAs of an SM, over which the mean is taken
APART = tuple(phase / PHASES for phase in range(PHASES))  # of a KV block's clocks
APART_WHOLE = (0.1, 0.6)  # the same, of a short CTA
BATCH = 16


@dataclass(frozen=True)
class Prediction:
    """The model's answer.

    Attributes:
        kernel: what runs.
        gpu: where.
        seq_len: of the launch, with 16 heads and a batch of 16.
        occupancy: of an SM.
        clocks: of one SM for one KV block of one CTA, in the steady loop.
        alone: clocks of a KV block in one CTA that has the SM to itself.
        chain: of dependences through a KV block.
        overhead: clocks that a CTA takes beside its KV blocks, while others run.
        waves: rounds of CTAs that an SM makes over those that the launch is worth.
        resources: what a KV block asks each for.
        idle: why schedulers issue nothing, as shares of their clocks, the largest first.
        binding: what binds.
        flop_per_clock: of one SM over the whole launch.
        anchor: FA2 on that GPU; None where it is not known.
    """

    kernel: Kernel
    gpu: Gpu
    seq_len: int
    occupancy: Occupancy
    clocks: float
    alone: float
    chain: float
    overhead: float
    waves: float
    resources: tuple[Resource, ...]
    idle: dict[str, float]
    binding: str
    flop_per_clock: float
    anchor: Anchor | None

    @property
    def percent_of_fa2(self) -> float | None:
        """Of FA2's speed on that GPU; None where that is not known."""
        return 100 * self.flop_per_clock / self.anchor.flop_per_clock if self.anchor else None

    @property
    def percent_of_peak(self) -> float:
        """Of what the tensor cores can do."""
        return 100 * self.flop_per_clock / self.gpu.peaks["fp16_tensor_rate"].value

    @property
    def tflops(self) -> float:
        """At the clock at which FA2 reached its own; where that is not known at the boost clock."""
        if self.anchor:
            return self.anchor.tflops * self.flop_per_clock / self.anchor.flop_per_clock
        return self.flop_per_clock * self.gpu.whole("sms") * self.gpu.peaks["boost_clock"].value * MEGA / TERA

    @property
    def warps_to_hide(self) -> float:
        """Warps on a scheduler that would keep the most wanted resource busy, each as slow as it is alone."""
        return self.alone / max(one.clocks for one in self.resources)


def predict(kernel: Kernel, gpu: Gpu, seq_len: int) -> Prediction:
    """What the model says.

    Raises:
        FlashladderError: the kernel does not fit the GPU, the length is no multiple of its tiles, the GPU's file lacks
            a rate, or the kernel has an instruction that the model does not know.
    """
    config = kernel.config
    for tile, size in config.multiples.items():
        if seq_len % size or seq_len < size:
            raise FlashladderError("sequence length", expected=f"a multiple of {tile} = {size}", found=seq_len)
    occupancy = gpu.occupancy(**kernel.needs)
    if not occupancy.ctas:
        raise FlashladderError(f"the kernel does not fit an SM of the {gpu.title}", found=config.short_form())
    chip = chip_of(gpu)
    block = steps_of(kernel.block, kernel.cubin.text, chip, kernel.conflicts)
    whole = steps_of(kernel.whole, kernel.cubin.text, chip, kernel.conflicts)
    ctas = occupancy.ctas
    alone = simulate(block, chip, ctas=1, warps=kernel.warps)
    runs = [simulate(block, chip, ctas=ctas, warps=kernel.warps, rounds=4, apart=part * alone.clocks) for part in APART]
    clocks = statistics.harmonic_mean([one.clocks for one in runs])
    overhead = _whole(whole, chip, ctas, kernel.warps, kernel.kv_blocks * alone.clocks) - kernel.kv_blocks * clocks
    blocks = seq_len // config.B_c
    launched = BATCH * HEADS * seq_len // config.B_r
    waves = _waves(launched / (ctas * chip.sms), alone.clocks / clocks, ctas)
    flop = 4 * config.B_r * config.B_c * D_HEAD * ctas * blocks / ((blocks * clocks + overhead) * waves)
    found = resources(block, chip, kernel, seq_len)
    return Prediction(
        kernel=kernel,
        gpu=gpu,
        seq_len=seq_len,
        occupancy=occupancy,
        clocks=clocks / ctas,
        alone=alone.clocks,
        chain=chain(kernel.block, block),
        overhead=overhead,
        waves=waves,
        resources=found,
        idle=runs[0].idle,
        binding=binding(found, clocks / ctas, runs[0].idle),
        flop_per_clock=flop,
        anchor=anchor_of(gpu, seq_len),
    )


def _whole(steps: tuple[Step, ...], chip: Chip, ctas: int, warps: int, span: float) -> float:
    """Clocks of a short CTA among others, each followed by the next one in its place."""
    runs = [simulate(steps, chip, ctas=ctas, warps=warps, rounds=2, skipped=1, apart=x * span) for x in APART_WHOLE]
    return statistics.harmonic_mean([one.clocks for one in runs])


def _waves(worth: float, alone: float, ctas: int) -> float:
    """Rounds of CTAs over those that a launch is worth; in the last, an SM with one CTA is faster than a full one."""
    full, rest = divmod(worth, 1)
    if not rest:
        return 1.0
    return (full + (alone if rest * ctas <= 1 else 1.0)) / worth
