"""Times many kernels beside FA2 at one dtype and shape: correct before, pairs in turn, correct after.

Why: kernels share blocks, so that a whole ladder at one length takes seconds and every ratio still comes from adjacent
launches (`flashladder.timing`). Inputs are several seeded N(0, 1) sets; O is poisoned before each checked run.
Used by `flashladder.bench`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashladder.check_case import Run
from flashladder.config import KernelConfig
from flashladder.device import reference_forward
from flashladder.errors import FlashladderError
from flashladder.inputs import Case, Tensors, make_tensors
from flashladder.reference import Expected, accuracy, choose_slices, expect, gather
from flashladder.result_schema import A_A, Accuracy, Group, Pair, Sample, Series, Shape, kernel_key
from flashladder.timing import Arm, Hardware, Plan, time_pairs, warm_up

if TYPE_CHECKING:
    import torch

FLUSH_BYTES = 256 * 2**20  # at least; twice the L2 where that is larger (an H200 has 60 MB)
FIRST_SEED = 20_240_000  # of the input sets


@dataclass(frozen=True)
class Timed:
    """A kernel to time: `run(q, k, v, out, short_form)`."""

    iteration: int
    config: KernelConfig
    run: Run

    @property
    def key(self) -> str:
        """How results name this kernel."""
        return kernel_key(self.iteration, self.config.short_form())


@dataclass(frozen=True)
class Fingerprint:
    """What one run wrote: the sum of all its bits as 32-bit integers, and the compared slices themselves."""

    total: int
    slices: torch.Tensor

    def same(self, other: Fingerprint) -> bool:
        """Whether both runs wrote the same bits."""
        import torch

        return self.total == other.total and torch.equal(self.slices.view(torch.int16), other.slices.view(torch.int16))


def cuda_hardware(sample: Callable[[], Sample], l2_bytes: int) -> tuple[Hardware, int]:
    """CUDA events, and an L2 flush through a buffer of at least twice the L2; returns its size in bytes as well."""
    import torch

    size = max(FLUSH_BYTES, 2 * l2_bytes)
    buffer = torch.empty(size, dtype=torch.uint8, device="cuda")

    def event() -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch does not annotate it

    return Hardware(event, buffer.zero_, torch.cuda.synchronize, sample), size


def checked_run(kernel: Timed, tensors: Tensors, expected: Expected) -> tuple[Accuracy, Fingerprint]:
    """One run on poisoned output, compared with the reference."""
    import torch

    tensors.poison()
    kernel.run(tensors.q, tensors.k, tensors.v, tensors.out, kernel.config.short_form())
    found = accuracy(tensors.out, expected)
    total = int(tensors.out.view(torch.int32).sum(dtype=torch.int64))
    return found, Fingerprint(total, gather(tensors.out, expected.slices))


def bench_group(
    hardware: Hardware,
    kernels: Sequence[Timed],
    dtype: str,
    shape: Shape,
    plan: Plan,
    *,
    process: int,
    warm_up_s: float,
    device: str = "cuda",
    reference: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object] = reference_forward,
    progress: Callable[[], object] = lambda: None,
) -> Group:
    """Checks, times and checks again; a kernel that is wrong before is not timed.

    Args:
        hardware: events, flush and GPU state, from `cuda_hardware`.
        kernels: all of `dtype`.
        dtype: fp16 or bf16.
        shape: of all four tensors.
        plan: pairs, blocks and input sets.
        process: index of this process in the result.
        warm_up_s: least seconds of warm-up.
        device: torch device of the tensors.
        reference: called with q, k, v; what the kernels are paired with.
        progress: called after each block.

    Raises:
        FlashladderError: a kernel's output differed between two runs on the same inputs.
    """
    seeds = tuple(FIRST_SEED + shape.seq_len + index for index in range(plan.input_sets))
    sets = [make_tensors(Case(f"inputs {seed}", shape, seed=seed), dtype, device) for seed in seeds]
    expected = expect(sets[0], dtype, choose_slices(shape, seeds[0], 2))
    before = {kernel.key: checked_run(kernel, sets[0], expected) for kernel in kernels}
    good = [kernel for kernel in kernels if before[kernel.key][0].ok]
    fa2 = Arm("FA2", lambda i: reference(sets[i].q, sets[i].k, sets[i].v))
    arms = [Arm(A_A, fa2.launch), *(_arm(kernel, sets) for kernel in good)]
    warmed = warm_up(hardware, fa2, least_s=warm_up_s)
    blocks, pairs = time_pairs(hardware, fa2, arms, plan, progress)
    after = {kernel.key: checked_run(kernel, sets[0], expected) for kernel in good}
    for kernel in good:
        if not before[kernel.key][1].same(after[kernel.key][1]):
            raise FlashladderError(
                f"{kernel.key} wrote other bits after timing than before, at S={shape.seq_len}", exit_code=1
            )
    series = [_series(kernel.key, pairs, before, after) for kernel in kernels]
    return Group(
        process=process,
        dtype=dtype,
        shape=shape,
        input_seeds=seeds,
        warm_up_s=round(warmed, 3),
        blocks=blocks,
        series=(Series(kernel=A_A, pairs=pairs[A_A]), *series),
    )


def _series(
    key: str,
    pairs: Mapping[str, tuple[Pair, ...]],
    before: Mapping[str, tuple[Accuracy, Fingerprint]],
    after: Mapping[str, tuple[Accuracy, Fingerprint]],
) -> Series:
    """One kernel's pairs, with its accuracy before and after them; a kernel that was wrong before has no pairs."""
    return Series(
        kernel=key, pairs=pairs.get(key, ()), before=before[key][0], after=after[key][0] if key in after else None
    )


def _arm(kernel: Timed, sets: Sequence[Tensors]) -> Arm:
    form = kernel.config.short_form()
    return Arm(kernel.key, lambda i: kernel.run(sets[i].q, sets[i].k, sets[i].v, sets[i].out, form))


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
