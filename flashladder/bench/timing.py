"""The paired timer: kernel and FA2 alternate, cold L2, order drawn per block, GPU state around every block.

On a power-limited card one arm timed after the other moves the ratio by points; adjacent launches share clock and
temperature (rule 3 of the measurement protocol). Many kernels share one block (R K1 R K2 ...), so that a ladder at one
length takes seconds, and each ratio still comes from two adjacent launches. A subject is checked before and after its
pairs. Events, launches and the L2 flush are handed in (`Hardware`), so that the timer is tested without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
import random
import time
from typing import TYPE_CHECKING, Any, Protocol

from flashladder.bench.references import Subject, reference_forward
from flashladder.cases.inputs import Case, Tensors, make_tensors
from flashladder.cases.reference import Expected, accuracy, choose_slices, expect, gather, same_bits
from flashladder.errors import FlashladderError
from flashladder.problem import Shape
from flashladder.results.derive import Plan, disturbed, kept, settle
from flashladder.results.schema import A_A, Accuracy, Block, Group, Pair, Sample, Series

if TYPE_CHECKING:
    import torch

RUN_UP = 4  # flushes queued before a block's first pair, so that the host is ahead of the GPU from then on
CLOCK_TOLERANCE = 0.02  # the SM clock is level when five looks agree this well
SLICE_S = 0.1  # of warm-up between two looks at the clock
FLUSH_BYTES = 256 * 2**20  # at least; twice the L2 where that is larger (an H200 has 60 MB)
FIRST_SEED = 20_240_000  # of the input sets
GROUP_S = 1.5  # about: inputs, references, checks and warm-up of one group


class Event(Protocol):
    """A point on the GPU's timeline, such as `torch.cuda.Event(enable_timing=True)`."""

    def record(self) -> Any:
        """Marks this point of the current stream."""

    def synchronize(self) -> Any:
        """Waits until the GPU has passed the mark."""

    def query(self) -> bool:
        """Whether the GPU has passed the mark."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this mark to `end_event`'s."""


@dataclass(frozen=True)
class Arm:
    """Something to time: `launch(i)` queues it once on input set `i`."""

    key: str
    launch: Callable[[int], object]


@dataclass(frozen=True)
class Hardware:
    """What the timer needs of a GPU: events, an L2 flush that is queued, a way to wait, a look at its state."""

    event: Callable[[], Event]
    flush: Callable[[], object]
    synchronize: Callable[[], object]
    sample: Callable[[], Sample]
    clock: Callable[[], float] = time.monotonic


def warm_up(hardware: Hardware, arm: Arm, *, least_s: float = 1.0, most_s: float = 6.0) -> float:
    """Runs `arm` until the SM clock is level, between `least_s` and `most_s` seconds; returns the seconds it took."""
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
        if spent >= most_s or (spent >= least_s and is_level(clocks[-5:])):
            return spent


def is_level(clocks: Sequence[int | None]) -> bool:
    """Whether the last looks at the SM clock (MHz) agree; a GPU that tells no clock is level after its minimum time."""
    known = [clock for clock in clocks if clock is not None]
    return not known or (len(clocks) >= 5 and max(known) - min(known) <= CLOCK_TOLERANCE * max(known))


def time_block(
    hardware: Hardware, reference: Arm, arms: Sequence[Arm], plan: Plan, block: Block
) -> tuple[Block, dict[str, list[Pair]]]:
    """Times one block: every arm in `block.order`, `plan.visit` pairs each, all queued without waiting in between.

    Returns:
        The block with its two samples, and per arm its pairs in microseconds.
    """
    by_key = {arm.key: arm for arm in arms}
    hardware.flush()
    reference.launch(0)
    before = hardware.sample()  # while the reference runs, so that the state is that of work and not of idling
    for _ in range(RUN_UP):
        hardware.flush()
    queued: list[tuple[str, int, list[Event]]] = []
    late = 0
    for key in block.order:
        for turn in range(plan.visit):
            inputs = (block.index * plan.visit + turn) % plan.input_sets
            arm = by_key[key]
            two = (arm, reference) if block.kernel_first else (reference, arm)
            marks: list[Event] = []
            for one in two:
                start, end, waited = _timed(hardware, one, inputs)
                marks += [start, end]
                late += waited
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


def _timed(hardware: Hardware, arm: Arm, inputs: int) -> tuple[Event, Event, bool]:
    """Both marks around a launch, and whether the GPU was at the first before the launch was queued: it waited."""
    start, end = hardware.event(), hardware.event()
    hardware.flush()
    start.record()
    arm.launch(inputs)
    waited = start.query()
    end.record()
    return start, end, waited


def time_pairs(
    hardware: Hardware, reference: Arm, arms: Sequence[Arm], plan: Plan, progress: Callable[[], object] = lambda: None
) -> tuple[tuple[Block, ...], Mapping[str, tuple[Pair, ...]]]:
    """Times all arms against the reference; raw pairs of dropped blocks are kept and marked by their block.

    An arm that launches the reference gives the A/A floor; `progress` is called after each block.
    """
    keys = [arm.key for arm in arms]
    draw = random.Random(plan.seed)  # noqa: S311 - an order of measurements, nothing secret
    most = plan.blocks + plan.extra_blocks
    directions = _balanced(draw, plan.blocks) + _balanced(draw, plan.extra_blocks)
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


def _balanced(draw: random.Random, n: int) -> list[bool]:
    directions = [bool(index % 2) for index in range(n)]
    draw.shuffle(directions)
    return directions


@dataclass(frozen=True)
class Prepared:
    """Inputs of one dtype and shape, and what is right on the first set; a warm process keeps them between cells."""

    dtype: str
    shape: Shape
    seeds: tuple[int, ...]
    sets: tuple[Tensors, ...]
    expected: Expected


def prepare(dtype: str, shape: Shape, plan: Plan, device: str = "cuda", *, first_seed: int = FIRST_SEED) -> Prepared:
    """Draws `plan.input_sets` sets of N(0, 1) inputs on `device` and computes the reference of the first."""
    seeds = tuple(first_seed + shape.seq_len + index for index in range(plan.input_sets))
    sets = tuple(make_tensors(Case(f"inputs {seed}", shape, seed=seed), dtype, device) for seed in seeds)
    return Prepared(dtype, shape, seeds, sets, expect(sets[0], dtype, choose_slices(shape, seeds[0], 2)))


def flush_bytes(l2_bytes: int) -> int:
    """Bytes of a buffer that replaces all that an L2 of `l2_bytes` holds when it is filled: at least twice as many."""
    return max(FLUSH_BYTES, 2 * l2_bytes)


def cuda_event() -> Event:
    """A CUDA event that takes times."""
    import torch

    made: Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch does not annotate it
    return made


def cuda_hardware(sample: Callable[[], Sample], l2_bytes: int) -> tuple[Hardware, int]:
    """CUDA events, and an L2 flush through a buffer of at least twice the L2; returns its size in bytes as well."""
    import torch

    size = flush_bytes(l2_bytes)
    buffer = torch.empty(size, dtype=torch.uint8, device="cuda")
    return Hardware(cuda_event, buffer.zero_, torch.cuda.synchronize, sample), size


def checked_run(subject: Subject, tensors: Tensors, expected: Expected) -> tuple[Accuracy, int, torch.Tensor]:
    """One run on poisoned output, compared with the reference; the sum of all bits in int32s, the compared slices."""
    import torch

    tensors.poison()
    subject.fill(tensors)
    found = accuracy(tensors.out, expected)
    return found, int(tensors.out.view(torch.int32).sum(dtype=torch.int64)), gather(tensors.out, expected.slices)


def bench_group(
    hardware: Hardware,
    subjects: Sequence[Subject],
    inputs: Prepared,
    plan: Plan,
    *,
    process: int,
    warm_up_s: float,
    a_a: bool = True,
    reference: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object] = reference_forward,
    progress: Callable[[], object] = lambda: None,
    about: Callable[[str], object] = lambda _: None,
) -> Group:
    """Checks, times and checks again; a subject that is wrong before is not timed.

    `inputs` are of `prepare` with this plan, `process` is the index of this process in the result, and `warm_up_s` the
    least seconds of warm-up. `a_a`: also pair FA2 with itself; False where the floor comes from another group.
    `reference` (of q, k, v) is what the subjects are paired with. `progress` is called after each block, `about` with
    a subject's key before it is checked, and with "" when none is any more.

    Raises:
        FlashladderError: a subject's output differed between two runs on the same inputs.
    """
    sets, first = inputs.sets, inputs.sets[0]

    def checked(subject: Subject) -> tuple[Accuracy, int, torch.Tensor]:
        about(subject.key)
        return checked_run(subject, first, inputs.expected)

    def arm(subject: Subject) -> Arm:
        return Arm(subject.key, lambda i: subject.launch(sets[i]))

    before = {subject.key: checked(subject) for subject in subjects}
    about("")
    good = [subject for subject in subjects if before[subject.key][0].ok]
    fa2 = Arm("FA2", lambda i: reference(sets[i].q, sets[i].k, sets[i].v))
    arms = [*([Arm(A_A, fa2.launch)] if a_a else []), *map(arm, good)]
    warmed = warm_up(hardware, fa2, least_s=warm_up_s) if arms else 0.0
    blocks, pairs = time_pairs(hardware, fa2, arms, plan, progress) if arms else ((), {})
    after = {subject.key: checked(subject) for subject in good}
    about("")
    for subject in good:
        (_, total, slices), (_, total_after, slices_after) = before[subject.key], after[subject.key]
        if total != total_after or not same_bits(slices, slices_after):
            raise FlashladderError(
                f"{subject.key} wrote other bits after timing than before, at S={inputs.shape.seq_len}", exit_code=1
            )

    found = [Series(kernel=A_A, pairs=pairs[A_A])] if a_a else []
    for key, (accuracy_before, *_) in before.items():
        later = after[key][0] if key in after else None  # one that was wrong before has no pairs
        found.append(Series(kernel=key, pairs=pairs.get(key, ()), before=accuracy_before, after=later))
    return Group(
        process=process, dtype=inputs.dtype, shape=inputs.shape, input_seeds=inputs.seeds, warm_up_s=round(warmed, 3),
        blocks=blocks, series=tuple(found),
    )  # fmt: skip


def estimate_s(counts: Sequence[tuple[Shape, int]], plan: Plan, *, tflops: float) -> float:
    """About how many seconds a plan takes where FA2 reaches `tflops`; `counts`: per group its shape, and subjects."""
    total = 0.0
    for shape, count in counts:
        launch = shape.flops / (tflops * 1e12) + FLUSH_BYTES / 3e12
        total += plan.visit * plan.blocks * (count + 1) * 2 * launch + GROUP_S  # the A/A series is one more
    return total
