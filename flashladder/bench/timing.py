"""The paired timer: kernel and FA2 alternate, with a cold L2, a random order and GPU state around each block.

Adjacent launches share clock and temperature (rule 3 of the measurement protocol); at the power limit arms timed one
after the other would shift the ratio by points. Many kernels share one block (R K1 R K2 ...), so a ladder at one length
takes seconds. A subject is checked before and after its pairs. Tests replace events, flush and clock (`Hardware`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
import random
import time
from typing import Any

from flashladder.bench.references import Forward, Subject, on_problem, reference_forward
from flashladder.cases.inputs import Case, Tensors, make_tensors
from flashladder.cases.reference import Expected, accuracy, choose_slices, expect, gather, same_bits
from flashladder.errors import FlashladderError
from flashladder.lazy_torch import Tensor, torch
from flashladder.problem import Problem
from flashladder.results.derive import Plan, disturbed, kept, settle
from flashladder.results.schema import A_A, Accuracy, Block, Group, Pair, Sample, Series

RUN_UP = 4  # flushes queued before a block's first pair, so that the host is ahead of the GPU
CLOCK_TOLERANCE = 0.02  # five looks at a level SM clock agree this well
SLICE_S = 0.1  # of warm-up between two looks at the clock
FLUSH_BYTES = 256 * 2**20  # at least; twice the L2 if that is larger (an H200 has 60 MB)
FIRST_SEED = 20_240_000  # of the input sets
GROUP_S = 1.5  # for inputs, references, checks and warm-up of one group, about
ROUGH_TFLOPS = 300.0  # FA2 on an H200, about


Event = Any  # `torch.cuda.Event(enable_timing=True)`, whose methods have no types, or a test's stand-in


@dataclass(frozen=True)
class Arm:
    """Something to time: `launch(i)` queues it once on input set `i`."""

    key: str
    launch: Callable[[int], object]


@dataclass(frozen=True)
class Hardware:
    """What the timer needs: events, a queued L2 flush, a way to wait, a look at the GPU's state, the host's clock."""

    event: Callable[[], Event]
    flush: Callable[[], object]
    synchronize: Callable[[], object]
    sample: Callable[[], Sample]
    clock: Callable[[], float] = time.monotonic


def warm_up(hardware: Hardware, arm: Arm, *, least_s: float = 1.0, most_s: float = 6.0) -> float:
    """Runs `arm` until the SM clock is level, for `least_s` to `most_s` seconds; returns the seconds it took."""
    start = hardware.clock()
    clocks: list[int | None] = []
    while True:
        slice_end = hardware.clock() + SLICE_S
        while hardware.clock() < slice_end:
            for _ in range(4):
                arm.launch(0)
            hardware.synchronize()
        arm.launch(0)
        clocks.append(hardware.sample().sm_clock_mhz)
        hardware.synchronize()
        spent = hardware.clock() - start
        known = [clock for clock in clocks[-5:] if clock is not None]  # none if the GPU does not report it
        level = not known or (len(clocks) >= 5 and max(known) - min(known) <= CLOCK_TOLERANCE * max(known))
        if spent >= most_s or (spent >= least_s and level):
            return spent


def time_block(
    hardware: Hardware, reference: Arm, arms: Sequence[Arm], plan: Plan, block: Block
) -> tuple[Block, dict[str, list[Pair]]]:
    """Times one block: `plan.visit` pairs of every arm in `block.order`, all queued without waiting in between.

    Returns the block with its two samples, and each arm's pairs in microseconds.
    """
    by_key = {arm.key: arm for arm in arms}
    hardware.flush()
    reference.launch(0)
    before = hardware.sample()  # while the reference runs: an idle GPU has another state
    for _ in range(RUN_UP):
        hardware.flush()
    queued: list[tuple[str, int, list[Event]]] = []
    late = 0
    for key in block.order:
        for turn in range(plan.visit):
            inputs = (block.index * plan.visit + turn) % plan.input_sets
            arm = by_key[key]
            marks: list[Event] = []
            for one in (arm, reference) if block.kernel_first else (reference, arm):
                start, end = hardware.event(), hardware.event()
                hardware.flush()
                start.record()
                one.launch(inputs)
                late += start.query()  # the GPU is at this mark already: it waits for the host
                end.record()
                marks += [start, end]
            queued.append((key, inputs, marks))
    queued[-1][2][1].synchronize()
    after = hardware.sample()  # while the last launch runs
    hardware.synchronize()
    pairs: dict[str, list[Pair]] = {key: [] for key in block.order}
    for key, inputs, (start, end, second_start, second_end) in queued:
        first, second = start.elapsed_time(end) * 1e3, second_start.elapsed_time(second_end) * 1e3
        reference_us, kernel_us = (second, first) if block.kernel_first else (first, second)
        pairs[key].append(Pair(block.index, inputs, reference_us, kernel_us))
    return block.model_copy(update={"samples": (before, after), "late": late}), pairs


def time_pairs(
    hardware: Hardware, reference: Arm, arms: Sequence[Arm], plan: Plan, progress: Callable[[], object] = lambda: None
) -> tuple[tuple[Block, ...], Mapping[str, tuple[Pair, ...]]]:
    """Times all arms against the reference; keeps the pairs of dropped blocks too.

    An arm that launches the reference gives the A/A floor. `progress` is called after each block.
    """
    keys = [arm.key for arm in arms]
    draw = random.Random(plan.seed)  # noqa: S311 - an order of measurements, nothing secret
    most = plan.blocks + plan.extra_blocks
    directions: list[bool] = []  # whether the kernel is first: in half of the blocks, and of the extra ones
    for count in (plan.blocks, plan.extra_blocks):
        balanced = [bool(index % 2) for index in range(count)]
        draw.shuffle(balanced)
        directions += balanced
    blocks: list[Block] = []
    pairs: dict[str, list[Pair]] = {key: [] for key in keys}
    while len(blocks) < plan.blocks or (len(blocks) < most and kept(blocks) < plan.blocks):
        order = tuple(draw.sample(keys, len(keys)))
        planned = Block(index=len(blocks), kernel_first=directions[len(blocks)], order=order, samples=())
        block, timed = time_block(hardware, reference, arms, plan, planned)
        blocks.append(block.model_copy(update={"dropped": disturbed(block)}))
        for key, new in timed.items():
            pairs[key] += new
        progress()
    settled = settle(blocks, visit=plan.visit, min_pairs=plan.min_pairs)
    return settled, {key: tuple(found) for key, found in pairs.items()}


@dataclass(frozen=True)
class Prepared:
    """Inputs of one dtype and shape, and the right result of the first set; a worker keeps them between cells."""

    dtype: str
    shape: Problem
    seeds: tuple[int, ...]
    sets: tuple[Tensors, ...]
    expected: Expected


def prepare(dtype: str, shape: Problem, plan: Plan, device: str = "cuda", *, first_seed: int = FIRST_SEED) -> Prepared:
    """Draws `plan.input_sets` sets of N(0, 1) inputs on `device` and computes the reference of the first."""
    seeds = tuple(first_seed + shape.seq_len + index for index in range(plan.input_sets))
    sets = tuple(make_tensors(Case(f"inputs {seed}", shape, seed=seed), dtype, device) for seed in seeds)
    return Prepared(dtype, shape, seeds, sets, expect(sets[0], dtype, choose_slices(shape, seeds[0], 2), shape))


def flush_bytes(l2_bytes: int) -> int:
    """Bytes to write so that nothing old is left in an L2 of `l2_bytes`: at least twice its size."""
    return max(FLUSH_BYTES, 2 * l2_bytes)


def cuda_event() -> Event:
    """A CUDA event with timing."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch does not annotate it


def cuda_hardware(sample: Callable[[], Sample], l2_bytes: int) -> tuple[Hardware, int]:
    """CUDA events and an L2 flush; the flush's size in bytes."""
    size = flush_bytes(l2_bytes)
    buffer = torch.empty(size, dtype=torch.uint8, device="cuda")
    return Hardware(cuda_event, buffer.zero_, torch.cuda.synchronize, sample), size


def bench_group(
    hardware: Hardware,
    subjects: Sequence[Subject],
    inputs: Prepared,
    plan: Plan,
    *,
    process: int,
    warm_up_s: float,
    a_a: bool = True,
    reference: Forward = reference_forward,
    progress: Callable[[], object] = lambda: None,
    about: Callable[[str], object] = lambda _: None,
) -> Group:
    """Checks all subjects, times the right ones, and checks these again.

    `inputs` come from `prepare` with this plan. `process` is the index of this process in the result. `warm_up_s` is
    the least warm-up. `a_a`: also pair FA2 with itself; False if another group gives the floor. `reference` is what
    subjects are paired with. `progress` is called after each block; `about` with a subject's key before its check, and
    with "" after all checks.

    Raises:
        FlashladderError: a subject's output differed between two runs on the same inputs, or the reference's mask is
            not the kernels'.
    """
    sets, first, fa2_forward = inputs.sets, inputs.sets[0], on_problem(reference, inputs.shape)

    def checked(subject: Subject) -> tuple[Accuracy, int, Tensor]:
        """Errors of one run on poisoned output, the sum of all its bits as int32, and the compared slices."""
        about(subject.key)
        first.poison()
        subject.fill(first)
        bits = int(first.out.view(torch.int32).sum(dtype=torch.int64))
        return accuracy(first.out, inputs.expected), bits, gather(first.out, inputs.expected.slices)

    def arm(subject: Subject) -> Arm:
        return Arm(subject.key, lambda i: subject.launch(sets[i]))

    before = {subject.key: checked(subject) for subject in subjects}
    about("")
    good = [subject for subject in subjects if before[subject.key][0].ok]
    fa2 = Arm("FA2", lambda i: fa2_forward(sets[i].q, sets[i].k, sets[i].v, **sets[i].packing))
    arms = [*([Arm(A_A, fa2.launch)] if a_a else []), *map(arm, good)]
    warmed = warm_up(hardware, fa2, least_s=warm_up_s) if arms else 0.0
    blocks, pairs = time_pairs(hardware, fa2, arms, plan, progress) if arms else ((), {})
    after = {subject.key: checked(subject) for subject in good}
    about("")
    for subject in good:
        (_, total, slices), (_, total_after, slices_after) = before[subject.key], after[subject.key]
        if total != total_after or not same_bits(slices, slices_after):
            what = f"{subject.key} wrote other bits after timing than before, at S={inputs.shape.seq_len}"
            raise FlashladderError(what, exit_code=1)

    found = [Series(kernel=A_A, pairs=pairs[A_A])] if a_a else []
    for key, (accuracy_before, *_) in before.items():
        later = after[key][0] if key in after else None  # a subject that was wrong before has no pairs
        found.append(Series(kernel=key, pairs=pairs.get(key, ()), before=accuracy_before, after=later))
    return Group(
        process=process, dtype=inputs.dtype, shape=inputs.shape, input_seeds=inputs.seeds, warm_up_s=round(warmed, 3),
        blocks=blocks, series=tuple(found),
    )  # fmt: skip


def estimate_s(counts: Sequence[tuple[Problem, int]], plan: Plan) -> float:
    """About how many seconds a plan takes on an H200; `counts`: shape and number of subjects of each group."""
    launches = ((2 * plan.visit * plan.blocks * (count + 1), shape) for shape, count in counts)  # one more for A/A
    return sum(n * (shape.flops / (ROUGH_TFLOPS * 1e12) + FLUSH_BYTES / 3e12) + GROUP_S for n, shape in launches)
