"""Power, clock and energy per FLOP of kernels and references that run for seconds on end, told by NVML.

Why: paired timings say which kernel is faster, not what holds it. A kernel that runs at the power limit below the
highest clock is as fast as it is frugal: fewer joules per FLOP make it faster. One at full clock waits for something
else (`flashladder.bench.steady`).
Subjects take turns; each is launched back to back, without a flush, for half a second to warm up and for `--seconds` at
least; power is that between two ticks of the GPU's energy counter (about ten a second). After each dtype and length
`--out` is written; where it exists, what it holds is not run again.

Run on a machine with a GPU:
    python -m flashladder.bench.energy 19 24 --references all --seq-lens 512 4096 16384 --out energy.json.gz
    python -m flashladder.bench.energy 24 --references all --seq-lens 16384 --seconds 10 --out energy_10s.json.gz
    python -m flashladder.bench.energy --show results/h200/energy.json.gz
Exit code: 0 done, 2 it could not run, or the budget was spent before its end.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
import time
from typing import TYPE_CHECKING

from flashladder.arguments import Parser, seconds, whole
from flashladder.bench.long_runs import add_kernels, add_result, on_this_gpu, require_same
from flashladder.bench.steady import LEGEND, Steady, steady
from flashladder.bench.subject import Subject
from flashladder.bench.sustained import WARM_UP_S, Done, Meter, sustain
from flashladder.bench.timing import Arm
from flashladder.cases.case import SEQ_LENS, shape_of
from flashladder.columns import table
from flashladder.errors import one_line_errors
from flashladder.ladder.config import Dtype
from flashladder.names import REFERENCES
from flashladder.problem import Shape
from flashladder.results.files import OTHER_FILE, load_as, write_result
from flashladder.results.schema import EnergyResult, Sustained

if TYPE_CHECKING:
    from pathlib import Path

    from flashladder.cases.inputs import Tensors
    from flashladder.gpu.device import Device

TURNS = 2
MORE_S = 0.4  # of a run, for its first launches and the ticks at both ends; and of a cell, for its inputs


def render(result: EnergyResult) -> str:
    """A table per dtype and length: medians of the turns, the most frugal first."""
    lines = [
        f"{result.gpu.name}, power limit {result.gpu.power_limit_w or 0:.0f} W, at least {result.seconds:g} s a run"
    ]
    found = sorted(steady(result), key=lambda one: (one.dtype, one.seq_len, one.pj_per_flop))
    for (dtype, seq_len), own in groupby(found, key=lambda one: (one.dtype, one.seq_len)):
        rows = [("subject", "TFLOP/s", "W", "MHz", "pJ/FLOP", "limited by"), *map(_row, own)]
        lines += ["", f"{dtype}, S = {seq_len}", *table(rows, None, right={1, 2, 3, 4})]
    return "\n".join([*lines, "", LEGEND])


def _row(one: Steady) -> tuple[str, ...]:
    clock = f"{one.mhz:.0f}" if one.mhz is not None else ""
    return one.subject, f"{one.tflops:.1f}", f"{one.watts:.0f}", clock, f"{one.pj_per_flop:.3f}", one.limit


def measure(options: argparse.Namespace, device: Device) -> tuple[EnergyResult, bool]:
    """Every subject at every dtype and length, in turns; what does not run here is left out with one line.

    Returns:
        All runs, those of an earlier file included; the flag says whether all of it was reached.

    Raises:
        FlashladderError: a wheel is missing, the GPU does not tell its energy, or `options.out` is of something else.
    """
    from flashladder.bench.command import choose
    from flashladder.bench.references import FA2, arms, reference_forward, reference_identity
    from flashladder.bench.run import prepare
    from flashladder.results.blocks import Plan

    kernels, identities = choose(options, device.gpu.arch)
    beside = arms(options.references, options.dtypes)
    for line in beside.left_out:
        print(f"left out: {line}")
    result = EnergyResult(
        rung=device.rung, gpu=device.gpu, host=device.host, kernels=identities, reference=reference_identity({}),
        references=dict(beside.identities), seconds=options.seconds, runs=(),
    )  # fmt: skip
    result = earlier(options.out, result)
    done = {(run.dtype, run.shape) for run in result.runs}
    work = [(d, s) for d in options.dtypes for s in map(shape_of, options.seq_lens) if (d, s) not in done]
    subjects = [
        *(Subject(FA2, d, lambda one: reference_forward(one.q, one.k, one.v), returns=True) for d in options.dtypes),
        *kernels, *beside.subjects,
    ]  # fmt: skip
    each = options.seconds + WARM_UP_S + MORE_S
    about = sum(MORE_S + each * options.turns * sum(one.dtype == dtype for one in subjects) for dtype, _ in work)
    print(f"{len(work)} cells, {options.turns} turns each: about {about:.0f} s", flush=True)
    start, plan = time.monotonic(), Plan(pairs=1, blocks=1, extra_blocks=0, min_pairs=1, input_sets=2)
    for dtype, shape in work:
        if options.budget and time.monotonic() - start > options.budget:
            return result, False
        own = [one for one in subjects if one.dtype == dtype]
        cell, sets = Cell(meter_of(device), dtype, shape, options.seconds), prepare(dtype, shape, plan).sets
        runs = tuple(cell.run(_arm(one, sets), turn) for turn in range(options.turns) for one in own)
        result = result.model_copy(update={"runs": (*result.runs, *runs)})
        if options.out:
            write_result(options.out, result)
    return result, True


def meter_of(device: Device) -> Meter:
    """The GPU as torch and NVML see it."""
    import torch

    def mark() -> Done:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch does not annotate it
        event.record()
        return event.query

    return Meter(mark, device.telemetry.energy_mj, device.telemetry.sample)


def earlier(path: Path | None, fresh: EnergyResult) -> EnergyResult:
    """`fresh` with the runs of an earlier file, which must be of the same GPU, kernels, references and seconds.

    Raises:
        FlashladderError: it is of others.
    """
    if path is None or not path.is_file():
        return fresh
    old = load_as(path, EnergyResult, hint=OTHER_FILE)
    names = {"seconds": "duration", "kernels": "kernels", "references": "references", "reference": "FA2"}
    require_same(path, ((what, getattr(fresh, name), getattr(old, name)) for name, what in names.items()))
    require_same(path, [("GPU", fresh.gpu.uuid, old.gpu.uuid)])
    return old


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
        found = sustain(self.meter, arm, self.at_least_s)
        return Sustained(
            subject=arm.key, dtype=self.dtype, shape=self.shape, turn=turn, launches=found.launches,
            seconds=round(found.seconds, 6), joules=round(found.watts * found.seconds, 3), samples=found.samples,
        )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m flashladder.bench.energy",
        description="Power, clock and energy per FLOP of kernels and references that run for seconds on end.",
        epilog="example: python -m flashladder.bench.energy 19 24 --references all --seq-lens 4096",
    )
    add_kernels(parser)
    known = ("all", *REFERENCES)
    parser.add_argument("--references", nargs="+", default=[], choices=known, metavar="NAME", help=", ".join(known))
    parser.add_argument("--seq-lens", nargs="+", type=whole, choices=SEQ_LENS, default=list(SEQ_LENS), metavar="S")
    parser.add_argument("--seconds", type=seconds, default=2.0, help="of a run, at least (default: 2)")
    parser.add_argument("--turns", type=whole, default=TURNS, help=f"of each subject (default: {TURNS})")
    add_result(parser, "dtype and length")
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
    options.tune = False

    def measured(options: argparse.Namespace, device: Device) -> bool:
        result, complete = measure(options, device)
        print(render(result))
        return complete

    on_this_gpu(options, measured)
    return 0


if __name__ == "__main__":
    with one_line_errors():
        raise SystemExit(main())
