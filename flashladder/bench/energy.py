"""Power, clock and energy per FLOP of kernels and references that run continuously for seconds, read through NVML.

They show what limits a kernel: at the power limit fewer joules per FLOP make it faster, at full clock something else
limits it (`limit_of`). Subjects alternate; each runs back to back, half a second to warm up and then at least
`--seconds`. Power is measured between two ticks of the GPU's energy counter (about ten a second). Batches of launches
are queued ahead, so that questions to the driver, which take milliseconds, leave no gap.

Run on a machine with a GPU:
    python -m flashladder.bench.energy 19 24 --references all --seq-lens 512 4096 16384 --out energy.json.gz
    python -m flashladder.bench.energy 31 --causal --kv-heads 4 --seq-lens 4096    # other problems, as bench's
    python -m flashladder.bench.energy --show results/h200/energy.json.gz
Exit code: 0 done, 2 it could not run, or the budget was spent too early.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from operator import and_
from statistics import median
import time

from flashladder.arguments import module_parser, require_numbers, some_seconds, whole
from flashladder.bench import command as bench
from flashladder.bench.references import FA2, Subject, reference_identity, reference_subject
from flashladder.bench.timing import Arm, prepare
from flashladder.cases.inputs import Tensors
from flashladder.columns import grouped, table
from flashladder.errors import FlashladderError, run_main
from flashladder.gpu.device import Device, Telemetry, origin
from flashladder.lazy_torch import torch
from flashladder.names import Dtype
from flashladder.problem import Problem, kinds
from flashladder.results.derive import NO_THROTTLE, SW_POWER_CAP, Plan, reason_names
from flashladder.results.files import load_as, write_result
from flashladder.results.schema import EnergyResult, Gpu, Sample, Sustained

BATCH_S = 0.005  # of launches that are counted together
AHEAD = 4  # batches queued behind the running one
PAUSE_S = 0.0005  # between two questions whether a batch is done
WARM_UP_S = 0.5
LOOK_S = 0.2  # between two samples of clock and power
LONGEST = 4.0  # a run's longest time, as a multiple of the seconds asked for: then the counter stands still
MORE_S = 0.4  # of a run, for its first launches and the ticks at both ends; also of a cell, for its inputs

FULL_CLOCK = 0.96  # of the highest clock: from here on nothing holds the card back
FULL_POWER = 0.95  # of the power limit: from here on power holds a card below full clock back
UNKNOWN = "?"
LEGEND = (
    f"Limited by power: the clock is below {100 * FULL_CLOCK:.0f} % of the highest one, and power is at "
    f"{100 * FULL_POWER:.0f} % of the limit or more, or the driver reports the power cap; then fewer joules per FLOP "
    "make a kernel faster. Limited by structure: the clock is the highest one, and the kernel waits for something else."
)

Done = Callable[[], bool]


def mark() -> Done:
    """Returns a function that tells whether everything queued so far is done."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch does not annotate it
    event.record()
    return event.query


def sustain(
    telemetry: Telemetry, arm: Arm, dtype: Dtype, shape: Problem, at_least_s: float, turn: int = 0
) -> Sustained:
    """Launches `arm` back to back and measures between two ticks of the energy counter.

    Raises:
        FlashladderError: the GPU does not report its energy, or its counter stands still.
    """
    each = _launches_a_batch(arm)
    for _ in _looks(arm, each, WARM_UP_S):
        pass
    ticks: list[tuple[float, int]] = []  # time and energy
    ends: list[tuple[float, int]] = []  # time and launches when the first batch after each tick is done
    samples: list[Sample] = []
    last, seen, looked = telemetry.energy_mj(), 0, 0.0
    if last is None:
        raise FlashladderError("this GPU does not report its energy", expected="nvmlDeviceGetTotalEnergyConsumption")
    for now, done in _looks(arm, each, LONGEST * at_least_s):
        if done > seen and len(ends) < len(ticks):
            ends.append((now, done))
            looked = now
        seen = done
        if len(ends) == 2:
            seconds = ends[1][0] - ends[0][0]
            watts = (ticks[1][1] - ticks[0][1]) / 1e3 / (ticks[1][0] - ticks[0][0])
            return Sustained(
                subject=arm.key, dtype=dtype, shape=shape, turn=turn, launches=ends[1][1] - ends[0][1],
                seconds=round(seconds, 6), joules=round(watts * seconds, 3), samples=tuple(samples),
            )  # fmt: skip
        if ends and now - looked >= LOOK_S:
            samples.append(telemetry.sample())
            looked = now
        due = not ticks or (len(ticks) == len(ends) == 1 and now - ends[0][0] >= at_least_s)
        energy = telemetry.energy_mj() or last
        if due and energy != last:
            ticks.append((now, energy))
        last = energy
    raise FlashladderError("the GPU's energy counter stands still", where=arm.key, expected="about ten ticks a second")


def _launches_a_batch(arm: Arm) -> int:
    """The number of launches that take about `BATCH_S`; the first launch may compile and is not timed."""
    count, took = 1, 0.0
    while count == 1 or took < 4 * BATCH_S:
        count *= 1 if not took else 2
        start = time.monotonic()
        for turn in range(count):
            arm.launch(turn)
        done = mark()
        while not done():
            time.sleep(PAUSE_S)
        took = time.monotonic() - start
    return max(1, round(count * BATCH_S / took))


def _looks(arm: Arm, each: int, most_s: float) -> Iterator[tuple[float, int]]:
    """Yields time and finished launches for `most_s` seconds; keeps `AHEAD` batches of `each` launches queued."""
    queued: deque[Done] = deque()
    launched = done = 0
    start = now = time.monotonic()
    while now - start < most_s:
        while queued and queued[0]():
            queued.popleft()
            done += each
        while len(queued) <= AHEAD:
            for turn in range(launched, launched + each):
                arm.launch(turn)
            launched += each
            queued.append(mark())
        time.sleep(PAUSE_S)
        now = time.monotonic()
        yield now, done


@dataclass(frozen=True)
class Steady:
    """A subject at one dtype and length: medians over its turns, and `limit_of` them."""

    subject: str
    dtype: str
    seq_len: int
    tflops: float
    watts: float
    mhz: float | None
    pj_per_flop: float
    limit: str


def steady(result: EnergyResult) -> tuple[Steady, ...]:
    """One entry per subject, dtype and length, in the order of their first runs."""
    cells = grouped(result.runs, lambda run: (run.subject, run.dtype, run.shape.seq_len))
    found = []
    for cell, runs in cells.items():
        tflops, watts, pj = (median(getattr(run, of) for run in runs) for of in ("tflops", "watts", "pj_per_flop"))
        found.append(Steady(*cell, tflops, watts, _median_clock(runs), pj, limit_of(result.gpu, runs)))
    return tuple(found)


def limit_of(gpu: Gpu, runs: Sequence[Sustained]) -> str:
    """What limits a kernel, by its clock, its power and the driver's throttle reasons; ``?``: they do not say."""
    clock = _median_clock(runs)
    if clock is None or not gpu.max_sm_clock_mhz:
        return UNKNOWN
    if clock >= FULL_CLOCK * gpu.max_sm_clock_mhz:
        return "structure"
    looks = [one.throttle_bits for run in runs for one in run.samples if one.throttle_bits is not None]
    capped = 2 * sum(bool(bits & SW_POWER_CAP) for bits in looks) > len(looks)
    if capped or (gpu.power_limit_w and median(run.watts for run in runs) >= FULL_POWER * gpu.power_limit_w):
        return "power"
    always = reduce(and_, looks) & ~NO_THROTTLE if looks else 0
    return ", ".join(reason_names(always)) or UNKNOWN


def _median_clock(runs: Sequence[Sustained]) -> float | None:
    clocks = [clock for run in runs if (clock := run.sm_clock_mhz) is not None]
    return median(clocks) if clocks else None


def render(result: EnergyResult) -> str:
    """A table per dtype and length: medians of the turns, the fewest joules per FLOP first."""
    gpu = result.gpu
    limit = f"power limit {gpu.power_limit_w or 0:.0f} W"
    facts = (gpu.name, kinds(run.shape for run in result.runs), limit, f"at least {result.seconds:g} s a run")
    lines = [", ".join(filter(None, facts))]
    found = sorted(steady(result), key=lambda one: (one.dtype, one.seq_len, one.pj_per_flop))
    for (dtype, seq_len), own in groupby(found, key=lambda one: (one.dtype, one.seq_len)):
        rows = [("subject", "TFLOP/s", "W", "MHz", "pJ/FLOP", "limited by")]
        rows += [
            (one.subject, f"{one.tflops:.1f}", f"{one.watts:.0f}", f"{one.mhz:.0f}" if one.mhz is not None else "",
             f"{one.pj_per_flop:.3f}", one.limit)
            for one in own
        ]  # fmt: skip
        lines += ["", f"{dtype}, S = {seq_len}", *table(rows, None, right={1, 2, 3, 4})]
    return "\n".join([*lines, "", LEGEND])


def measure(options: argparse.Namespace, device: Device) -> None:
    """Measures every subject at every dtype and length, in turn, and prints the table.

    Raises:
        FlashladderError: a wheel is missing, the GPU does not report its energy, or `options.out` is of another run.
    """
    subjects, kernels, references = bench.choose(options, device.gpu.arch)
    subjects = [*(reference_subject(FA2, dtype, options.problems[0]) for dtype in options.dtypes), *subjects]
    fresh = EnergyResult(
        **origin(device), kernels=kernels, reference=reference_identity({}), references=dict(references),
        seconds=options.seconds, runs=(),
    )  # fmt: skip
    names = {"duration": "seconds", "kernels": "kernels", "references": "references", "FA2": "reference"}
    result = bench.resumable(options.out, fresh, **names) or fresh
    bench.require_alike(options.out, (run.shape for run in result.runs), options.problems)
    done = {(run.dtype, run.shape) for run in result.runs}
    work = [(d, s) for d in options.dtypes for s in options.problems if (d, s) not in done]
    each = options.seconds + WARM_UP_S + MORE_S
    about = sum(MORE_S + each * options.turns * sum(one.dtype == dtype for one in subjects) for dtype, _ in work)
    print(f"{len(work)} cells, {options.turns} turns each: about {about:.0f} s", flush=True)
    plan = Plan(pairs=1, blocks=1, extra_blocks=0, min_pairs=1, input_sets=2)
    for dtype, shape in bench.until_spent(options, work):
        sets = prepare(dtype, shape, plan).sets
        runs = [
            sustain(device.telemetry, _arm(one, sets), dtype, shape, options.seconds, turn)
            for turn in range(options.turns)
            for one in subjects
            if one.dtype == dtype
        ]
        result = result.model_copy(update={"runs": (*result.runs, *runs)})
        if options.out:
            write_result(options.out, result)
    print(render(result))


def _arm(subject: Subject, sets: Sequence[Tensors]) -> Arm:
    return Arm(subject.key, lambda i: subject.launch(sets[i % len(sets)]))


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints the table, or prints that of a file."""
    description = "Power, clock and energy per FLOP of kernels and references that run continuously for seconds."
    parser = module_parser("bench.energy", description, "19 24 --references all --seq-lens 4096")
    bench.add_kernels(parser)
    parser.add_argument(
        "--references", nargs="+", default=[], choices=bench.ARMS, metavar="NAME", help=", ".join(bench.ARMS)
    )
    bench.add_problem(parser)
    parser.add_argument("--seconds", type=some_seconds, default=2.0, help="of a run, at least (default: 2)")
    parser.add_argument("--turns", type=whole, default=2, help="of each subject (default: 2)")
    bench.add_result(parser, "dtype and length")
    bench.add_show(parser)
    options = parser.parse_args(argv)
    if options.show:
        print(render(load_as(options.show, EnergyResult)))
        return
    require_numbers(parser, options)
    if options.turns < 1:
        parser.error("expected at least one turn")
    options.problems = bench.problems_of(parser, options)
    bench.on_this_gpu(options, measure)


if __name__ == "__main__":
    run_main(main)
