"""The paired timer: kernel and reference in turn, cold L2, order drawn per block, GPU state around every block.

Why: on a power-limited card one arm timed after the other moves the ratio by points; adjacent launches share clock and
temperature (rule 3 of the measurement protocol). Many kernels share one block (R K1 R K2 ...), each ratio still comes
from two adjacent launches. The timer knows no torch: events, launches and the L2 flush are handed in, so that it is
tested without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
import random
import time
from typing import Any, Protocol

from flashladder.errors import FlashladderError
from flashladder.results.blocks import Plan, disturbed, kept, settle
from flashladder.results.schema import Block, Pair, Sample

RUN_UP = 4  # flushes queued before a block's first pair, so that the host is ahead of the GPU from then on
CLOCK_TOLERANCE = 0.02  # the SM clock is level when five looks agree this well
SLICE_S = 0.1  # of warm-up between two looks at the clock


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
    hardware: Hardware,
    reference: Arm,
    arms: Sequence[Arm],
    plan: Plan,
    progress: Callable[[], object] = lambda: None,
) -> tuple[tuple[Block, ...], Mapping[str, tuple[Pair, ...]]]:
    """Times all arms against the reference; raw pairs of dropped blocks are kept and marked by their block.

    Args:
        hardware: events, flush, wait, state.
        reference: the arm that every other is paired with.
        arms: unique keys; add one that launches the reference for the A/A floor.
        plan: pairs, blocks, input sets, seed of the order.
        progress: called after each block.

    Raises:
        FlashladderError: no arm, or two with one key.
    """
    keys = [arm.key for arm in arms]
    if not keys or len(set(keys)) != len(keys):
        raise FlashladderError("arms need unique keys", found=keys)
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
