"""Power, clock and energy per FLOP of kernels and references that run for seconds on end, told by NVML.

Why: paired timings say which kernel is faster, not what holds it. A kernel that runs at the power limit below the
highest clock is as fast as it is frugal: fewer joules per FLOP make it faster. One at full clock waits for something
else.
Subjects take turns; each is launched back to back, without a flush, from one tick of the GPU's energy counter (about
ten a second) to one at least `--seconds` later, and once before that to warm up.

Run on a machine with a GPU:
    python -m flashladder.bench.energy 19 24 --references all --seq-lens 512 4096 16384 --out energy.json.gz
    python -m flashladder.bench.energy --show results/h200/energy.json.gz
Exit code: 0 done, 2 it could not run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
import time
from typing import TYPE_CHECKING

from flashladder.arguments import Parser, seconds, whole
from flashladder.bench.subject import Subject
from flashladder.bench.timing import Arm
from flashladder.cases.case import SEQ_LENS
from flashladder.columns import table
from flashladder.errors import FlashladderError, one_line_errors
from flashladder.ladder.config import DTYPES, Dtype
from flashladder.results.files import load_as, write_result
from flashladder.results.schema import EnergyResult, Sample, Shape, Sustained

if TYPE_CHECKING:
    from flashladder.cases.inputs import Tensors
    from flashladder.gpu.device import Device

BATCH_S = 0.005  # launches between two looks at the counter: what a run may be off by at either end
WARM_UP_S = 0.5
LOOK_S = 0.2  # between two samples of clock and power
TURNS = 2
LONGEST = 4.0  # times the seconds asked for: a counter that has not moved by then does not count


@dataclass(frozen=True)
class Meter:
    """What a run needs of a GPU: to wait for it, its energy counter in millijoules, a look at its state."""

    synchronize: Callable[[], object]
    energy_mj: Callable[[], int | None]
    sample: Callable[[], Sample]
    clock: Callable[[], float] = time.monotonic


def sustain(meter: Meter, arm: Arm, at_least_s: float) -> tuple[int, float, float, tuple[Sample, ...]]:
    """Launches `arm` back to back from one tick of the energy counter to another.

    Returns:
        Launches, seconds and joules between the two ticks, and the samples taken meanwhile.

    Raises:
        FlashladderError: the GPU does not tell its energy, or its counter stands still.
    """
    each = _launches_a_batch(meter, arm)
    for _ in _batches(meter, arm, each, WARM_UP_S):
        pass
    begin: tuple[int, float, int] | None = None  # launches, time and energy at the first tick
    samples: list[Sample] = []
    last, launched, looked = _energy(meter), 0, meter.clock()
    for now in _batches(meter, arm, each, LONGEST * at_least_s):
        launched += each
        if begin is not None and now - looked >= LOOK_S:
            samples.append(_busy(meter, arm))
            launched, looked = launched + 1, now
        energy = _energy(meter)
        if energy == last:
            continue
        last = energy
        if begin is None:
            begin, looked = (launched, now, energy), now
        elif now - begin[1] >= at_least_s:
            return launched - begin[0], now - begin[1], (energy - begin[2]) / 1e3, tuple(samples)
    raise FlashladderError("the GPU's energy counter stands still", where=arm.key, expected="about ten ticks a second")


def _launches_a_batch(meter: Meter, arm: Arm) -> int:
    """So many launches that they take about `BATCH_S`."""
    arm.launch(0)
    meter.synchronize()
    start, count = meter.clock(), 0
    while meter.clock() - start < 4 * BATCH_S:
        arm.launch(0)
        meter.synchronize()
        count += 1
    return max(1, round(count * BATCH_S / (meter.clock() - start)))


def _batches(meter: Meter, arm: Arm, each: int, most_s: float) -> Iterator[float]:
    """Runs batches for `most_s` seconds; the time behind each."""
    start = now = meter.clock()
    turn = 0
    while now - start < most_s:
        for _ in range(each):
            arm.launch(turn)
            turn += 1
        meter.synchronize()
        now = meter.clock()
        yield now


def _busy(meter: Meter, arm: Arm) -> Sample:
    """A look at the GPU while it works."""
    arm.launch(0)
    found = meter.sample()
    meter.synchronize()
    return found


def _energy(meter: Meter) -> int:
    found = meter.energy_mj()
    if found is None:
        raise FlashladderError("this GPU does not tell its energy", expected="nvmlDeviceGetTotalEnergyConsumption")
    return found


def render(result: EnergyResult) -> str:
    """A table per dtype and length: medians of the turns, the most frugal first."""
    lines = [
        f"{result.gpu.name}, power limit {result.gpu.power_limit_w or 0:.0f} W, at least {result.seconds:g} s a run"
    ]
    key = _cell
    for (dtype, seq_len), own in groupby(sorted(result.runs, key=key), key=key):
        by_subject: dict[str, list[Sustained]] = {}
        for run in own:
            by_subject.setdefault(run.subject, []).append(run)
        rows: list[tuple[str, ...]] = [("subject", "TFLOP/s", "W", "MHz", "pJ/FLOP")]
        for name, runs in sorted(by_subject.items(), key=lambda item: median(one.pj_per_flop for one in item[1])):
            clocks = [clock for one in runs if (clock := one.sm_clock_mhz) is not None]
            rows.append((
                name, f"{median(one.tflops for one in runs):.1f}", f"{median(one.watts for one in runs):.0f}",
                f"{median(clocks):.0f}" if clocks else "", f"{median(one.pj_per_flop for one in runs):.3f}",
            ))  # fmt: skip
        lines += ["", f"{dtype}, S = {seq_len}", *table(rows, None, right={1, 2, 3, 4})]
    return "\n".join(lines)


def _cell(run: Sustained) -> tuple[str, int]:
    return run.dtype, run.shape.seq_len


def measure(options: argparse.Namespace, device: Device) -> EnergyResult:
    """Every subject at every dtype and length, in turns; what does not run here is left out with one line.

    Raises:
        FlashladderError: a wheel is missing, or the GPU does not tell its energy.
    """
    import torch

    from flashladder.bench.command import choose, shape_of
    from flashladder.bench.references import FA2, arms, reference_forward, reference_identity
    from flashladder.bench.run import prepare
    from flashladder.results.blocks import Plan

    kernels, identities = choose(options, device.gpu.arch)
    beside = arms(options.references, options.dtypes)
    for line in beside.left_out:
        print(f"left out: {line}")
    meter = Meter(torch.cuda.synchronize, device.telemetry.energy_mj, device.telemetry.sample)
    runs: list[Sustained] = []
    plan = Plan(pairs=1, blocks=1, extra_blocks=0, min_pairs=1, input_sets=2)
    for dtype in options.dtypes:
        fa2 = Subject(FA2, dtype, lambda one: reference_forward(one.q, one.k, one.v), returns=True)
        subjects = [fa2, *(one for one in (*kernels, *beside.subjects) if one.dtype == dtype)]
        for shape in map(shape_of, options.seq_lens):
            cell = Cell(meter, dtype, shape, options.seconds)
            sets = prepare(dtype, shape, plan).sets
            for turn in range(options.turns):
                runs += (cell.run(_arm(one, sets), turn) for one in subjects)
    return EnergyResult(
        rung=device.rung, gpu=device.gpu, host=device.host, kernels=identities, reference=reference_identity({}),
        references=dict(beside.identities), seconds=options.seconds, runs=tuple(runs),
    )  # fmt: skip


def _arm(subject: Subject, sets: Sequence[Tensors]) -> Arm:
    return Arm(subject.key, lambda i: subject.launch(sets[i % len(sets)]))


@dataclass(frozen=True)
class Cell:
    """One dtype and shape on a GPU."""

    meter: Meter
    dtype: Dtype
    shape: Shape
    at_least_s: float

    def run(self, arm: Arm, turn: int) -> Sustained:
        """One turn of a subject."""
        launches, took, joules, samples = sustain(self.meter, arm, self.at_least_s)
        return Sustained(
            subject=arm.key, dtype=self.dtype, shape=self.shape, turn=turn, launches=launches,
            seconds=round(took, 6), joules=round(joules, 3), samples=samples,
        )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m flashladder.bench.energy",
        description="Power, clock and energy per FLOP of kernels and references that run for seconds on end.",
        epilog="example: python -m flashladder.bench.energy 19 24 --references all --seq-lens 4096",
    )
    parser.add_argument("numbers", nargs="*", type=whole, metavar="N", help="iterations")
    parser.add_argument("--configs", nargs="+", metavar="KEY", help="selection keys (default: those of this GPU)")
    parser.add_argument("--dtype", dest="dtypes", nargs="+", choices=DTYPES, default=list(DTYPES), help="default: both")
    parser.add_argument("--references", nargs="+", default=[], metavar="NAME", help="cudnn, fa4, flash-attn or all")
    parser.add_argument("--seq-lens", nargs="+", type=whole, choices=SEQ_LENS, default=list(SEQ_LENS), metavar="S")
    parser.add_argument("--seconds", type=seconds, default=2.0, help="of a run, at least (default: 2)")
    parser.add_argument("--turns", type=whole, default=TURNS, help=f"of each subject (default: {TURNS})")
    parser.add_argument("--out", type=Path, help="result file, .json.gz")
    parser.add_argument(
        "--show", type=Path, metavar="FILE", help="print the table of a result file and do nothing else"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints the table, or prints that of a file."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.show:
        print(render(load_as(options.show, EnergyResult)))
        return 0
    if not options.numbers or options.turns < 1 or options.seconds <= 0:
        parser.error("expected iterations, at least one turn and more than 0 seconds")
    from flashladder.bench.command import default_key
    from flashladder.gpu.device import exclusive, open_device

    device = open_device()
    options.configs, options.tune = options.configs or [default_key(device.gpu.name)], False
    with exclusive(device.gpu.uuid):
        result = measure(options, device)
    if options.out:
        write_result(options.out, result)
    print(render(result))
    return 0


if __name__ == "__main__":
    with one_line_errors():
        raise SystemExit(main())
