"""What each resource of an SM is asked for by one KV block of one CTA, in clocks: the bounds of the model.

Why: the largest of these is a bound that no order of instructions can beat. Where the predicted time is near it, it is
what binds; where it is far from all of them, warps wait for each other and for results, and that is what binds.

Try ``resources(steps, chip, kernel, 4096)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashladder.explain.chip import SCHEDULERS, Chip
from flashladder.explain.kernel import D_HEAD, Kernel
from flashladder.explain.steps import PIPES, Step

BINDS_FROM = 0.7  # of the predicted clocks: a resource that is taken for less of them does not bind
EXPOSED_FROM = 0.1  # of them: schedulers that wait longer than this for copies are bound by the latency of memory
COPIES = "copies"
ELEMENT = 2  # bytes of fp16 and bf16
TENSORS = 4  # Q, K, V and O


@dataclass(frozen=True)
class Resource:
    """One resource.

    Attributes:
        name: of it.
        count: what a KV block of a CTA asks for, in `unit`.
        unit: of the count.
        clocks: for which one SM is taken by it.
    """

    name: str
    count: float
    unit: str
    clocks: float


def resources(steps: Sequence[Step], chip: Chip, kernel: Kernel, seq_len: int) -> tuple[Resource, ...]:
    """Every resource, for the steps of one warp in one KV block; the same in all warps of the CTA.

    What comes from DRAM is each tensor once, shared out among the KV blocks of a head: K and V that another CTA has
    read are in L2.
    """
    config, warps = kernel.config, kernel.warps
    share = warps / SCHEDULERS

    def pipe(title: str, *names: str) -> Resource:
        own = [one for one in steps if one.pipe is not None and PIPES[one.pipe] in names]
        return Resource(title, len(own) * warps, "instructions", sum(one.holds for one in own) * share)

    waves = sum(one.wavefronts for one in steps) * warps
    copied = sum(one.copied for one in steps) * warps
    blocks = (seq_len / config.B_r) * (seq_len / config.B_c)
    dram = TENSORS * seq_len * D_HEAD * ELEMENT / blocks
    return (
        pipe("tensor", "mma"),
        pipe("FMA", "fma"),
        pipe("ALU", "alu"),
        pipe("MUFU", "mufu"),
        Resource("shared memory", waves, "wavefronts", waves),
        Resource("issue slots", len(steps) * warps, "instructions", sum(one.issues for one in steps) * share),
        Resource("L2", copied, "bytes", copied / chip.l2),
        Resource("DRAM", dram, "bytes", dram / chip.dram),
    )


def binding(found: Sequence[Resource], clocks: float, waits: dict[str, float]) -> str:
    """What binds, by name: copies that nothing hides, a resource that is taken most of the time, or else the waits.

    Args:
        found: what a KV block asks for.
        clocks: predicted for it.
        waits: why schedulers are idle, as shares of their clocks, the largest first.
    """
    most = max(found, key=lambda one: one.clocks)
    if waits.get(COPIES, 0.0) >= EXPOSED_FROM:
        return f"latency ({COPIES})"
    if most.clocks >= BINDS_FROM * clocks or not waits:
        return most.name
    return f"latency ({next(iter(waits))})"
