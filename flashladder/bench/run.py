"""Times kernels and references beside FA2 at one dtype and shape: correct before, pairs in turn, correct after.

Why: kernels share blocks, so that a whole ladder at one length takes seconds and every ratio still comes from adjacent
launches (`flashladder.bench.timing`). Inputs are several seeded N(0, 1) sets; O is poisoned before each checked run.
Used by `flashladder.bench.command`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashladder.bench.references import reference_forward
from flashladder.bench.subject import Fingerprint, Subject, checked_run
from flashladder.bench.timing import Arm, Hardware, time_pairs, warm_up
from flashladder.cases.inputs import Case, Tensors, make_tensors
from flashladder.cases.reference import Expected, choose_slices, expect
from flashladder.errors import FlashladderError
from flashladder.problem import Shape
from flashladder.results.blocks import Plan
from flashladder.results.schema import A_A, Accuracy, Group, Pair, Sample, Series

if TYPE_CHECKING:
    import torch

FLUSH_BYTES = 256 * 2**20  # at least; twice the L2 where that is larger (an H200 has 60 MB)
FIRST_SEED = 20_240_000  # of the input sets


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


def cuda_hardware(sample: Callable[[], Sample], l2_bytes: int) -> tuple[Hardware, int]:
    """CUDA events, and an L2 flush through a buffer of at least twice the L2; returns its size in bytes as well."""
    import torch

    size = flush_bytes(l2_bytes)
    buffer = torch.empty(size, dtype=torch.uint8, device="cuda")

    def event() -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch does not annotate it

    return Hardware(event, buffer.zero_, torch.cuda.synchronize, sample), size


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

    Args:
        hardware: events, flush and GPU state, from `cuda_hardware`.
        subjects: kernels and references, all of the inputs' dtype.
        inputs: from `prepare`, with this plan.
        plan: pairs, blocks and input sets.
        process: index of this process in the result.
        warm_up_s: least seconds of warm-up.
        a_a: also pair FA2 with itself; False where the floor comes from another group.
        reference: called with q, k, v; what the subjects are paired with.
        progress: called after each block.
        about: called with a subject's key before it is checked, and with "" when none is any more.

    Raises:
        FlashladderError: a subject's output differed between two runs on the same inputs, or it has another dtype.
    """
    if wrong := [subject.key for subject in subjects if subject.dtype != inputs.dtype]:
        raise FlashladderError("inputs of another dtype", where=wrong[0], found=inputs.dtype)
    sets, first = inputs.sets, inputs.sets[0]

    def checked(subject: Subject) -> tuple[Accuracy, Fingerprint]:
        about(subject.key)
        return checked_run(subject, first, inputs.expected)

    before = {subject.key: checked(subject) for subject in subjects}
    about("")
    good = [subject for subject in subjects if before[subject.key][0].ok]
    fa2 = Arm("FA2", lambda i: reference(sets[i].q, sets[i].k, sets[i].v))
    arms = [*([Arm(A_A, fa2.launch)] if a_a else []), *(_arm(subject, sets) for subject in good)]
    warmed = warm_up(hardware, fa2, least_s=warm_up_s) if arms else 0.0
    blocks, pairs = time_pairs(hardware, fa2, arms, plan, progress) if arms else ((), {})
    after = {subject.key: checked(subject) for subject in good}
    about("")
    for subject in good:
        if not before[subject.key][1].same(after[subject.key][1]):
            raise FlashladderError(
                f"{subject.key} wrote other bits after timing than before, at S={inputs.shape.seq_len}", exit_code=1
            )
    floor = (Series(kernel=A_A, pairs=pairs[A_A]),) if a_a else ()
    return Group(
        process=process,
        dtype=inputs.dtype,
        shape=inputs.shape,
        input_seeds=inputs.seeds,
        warm_up_s=round(warmed, 3),
        blocks=blocks,
        series=(*floor, *(_series(subject.key, pairs, before, after) for subject in subjects)),
    )


def _series(
    key: str,
    pairs: Mapping[str, tuple[Pair, ...]],
    before: Mapping[str, tuple[Accuracy, Fingerprint]],
    after: Mapping[str, tuple[Accuracy, Fingerprint]],
) -> Series:
    """One subject's pairs, with its accuracy before and after them; one that was wrong before has no pairs."""
    return Series(
        kernel=key, pairs=pairs.get(key, ()), before=before[key][0], after=after[key][0] if key in after else None
    )


def _arm(subject: Subject, sets: Sequence[Tensors]) -> Arm:
    return Arm(subject.key, lambda i: subject.launch(sets[i]))


def estimate_s(
    counts: Sequence[tuple[Shape, int, int]], plan: Plan, *, tflops: float, slow: float = 6.0, group_s: float = 1.5
) -> float:
    """About how many seconds a plan takes.

    Args:
        counts: per group its shape, how many kernels run at about FA2's speed, and how many are `slow` times slower.
        plan: pairs and blocks.
        tflops: FA2's speed in TFLOP/s, roughly.
        slow: how much slower the base kernel with its bank conflicts is.
        group_s: inputs, references, checks and warm-up of one group, in seconds.
    """
    total = 0.0
    for shape, n_even, n_slow in counts:
        launch = shape.flops / (tflops * 1e12) + FLUSH_BYTES / 3e12
        even = (n_even + 1) * 2 * launch  # the A/A series is one more
        total += plan.visit * plan.blocks * (even + n_slow * (1 + slow) * launch) + group_s
    return total
