"""mbarriers (init, inval, arrivals, bytes, waits) and the fences between proxies.

`machine.mbarriers` counts and completes phases, `machine.waits` holds the threads that wait. Fences change no values:
memory is sequentially consistent here, and asynchronous copies read and write as late as they may. Whether the program
may rely on what it reads is for the race detector to judge.

Source: PTX ISA 9.0, 8.6 (proxies), 9.7.13.4 (fence), 9.7.13.15 (mbarrier).
"""

from __future__ import annotations

import numpy as np

from ptxemu.machine.observer import Targets
from ptxemu.machine.state import FullStep
from ptxemu.syntax.tree import Immediate, Register
from ptxemu.table import machine
from ptxemu.values import Array, constant

_CTA = "{,.shared,.shared::cta}"
_ANY = "{,.shared,.shared::cta,.shared::cluster}"
_RELEASE = "{,.release.cta,.release.cluster,.relaxed.cta,.relaxed.cluster}"
_ACQUIRE = "{,.acquire.cta,.acquire.cluster,.relaxed.cta,.relaxed.cluster}"
_TX = "{,.relaxed.cta,.relaxed.cluster}"
ONE = constant(1, "u32")


@machine(f"mbarrier.init{_CTA}.b64", "a new mbarrier whose phases take b arrivals")
def init(step: FullStep) -> None:
    """``mbarrier.init [a], count``."""
    step.machine.mbarriers.init(step, step.address(0), step.source(1, "u32"))


@machine(f"mbarrier.inval{_CTA}.b64", "the end of an mbarrier: its bytes are ordinary memory again")
def inval(step: FullStep) -> None:
    """``mbarrier.inval [a]``."""
    step.machine.mbarriers.invalidate(step, step.address(0))


@machine(f"mbarrier.{{arrive,arrive_drop}}{_RELEASE}{_ANY}.b64", "arrives, b times; _drop: later phases expect less")
@machine(f"mbarrier.{{arrive,arrive_drop}}.noComplete{{,.release.cta}}{_CTA}.b64", "arrives without ending the phase")
@machine(f"mbarrier.{{arrive,arrive_drop}}.expect_tx{_RELEASE}{_ANY}.b64", "expects b bytes more, then arrives once")
def arrive(step: FullStep) -> None:
    """``mbarrier.arrive{.expect_tx} state, [a]{, b}``; the state (or ``_``) is the one before the arrival."""
    opcode, mbarriers = step.instruction.opcode, step.machine.mbarriers
    wants_state = isinstance(step.instruction.operands[0], Register)
    targets = step.machine.mbarriers.targets(step, step.address(1), own=wants_state)
    given = step.source(2, "u32") if len(step.instruction.operands) > 2 else ONE
    amount = _of(step, targets, given)
    counts, nbytes = (np.ones_like(amount), amount) if ".expect_tx" in opcode else (amount, None)
    drop, complete = "arrive_drop" in opcode, ".noComplete" not in opcode
    states = mbarriers.arrive(step, targets, counts, nbytes=nbytes, drop=drop, complete=complete)
    if wants_state:
        full = np.zeros(step.machine.shape, np.uint64)
        full[targets.lanes] = states
        step.write(0, full)


@machine(f"mbarrier.expect_tx{_TX}{_ANY}.b64", "expects b bytes more in this phase")
@machine("mbarrier.expect_tx.shared::cluster.relaxed.cluster.b64", "the same, in the order that CUTLASS writes")
def expect_tx(step: FullStep) -> None:
    """``mbarrier.expect_tx [a], bytes``."""
    targets = step.machine.mbarriers.targets(step, step.address(0))
    step.machine.mbarriers.expect_tx(step, targets, _of(step, targets, step.source(1, "u32")))


@machine(f"mbarrier.complete_tx{_TX}{_ANY}.b64", "says that b bytes have landed")
@machine("mbarrier.complete_tx.shared::cluster.relaxed.cluster.b64", "the same, in the order that CUTLASS writes")
def complete_tx(step: FullStep) -> None:
    """``mbarrier.complete_tx [a], bytes``: no copy, only what one would say."""
    targets = step.machine.mbarriers.targets(step, step.address(0))
    nbytes = _of(step, targets, step.source(1, "u32"))
    step.machine.mbarriers.complete_tx(step, targets.blocks, targets.offsets, nbytes)


@machine(
    f"mbarrier.{{try_wait,test_wait}}{{,.parity}}{_ACQUIRE}{_CTA}.b64",
    "whether a phase, by state or parity, is complete; waits for it",
    kind="control",
)
def wait(step: FullStep) -> None:
    """``mbarrier.try_wait p, [a], state{, time}``: `Waits` carries it out."""
    step.fail("unsupported", "a wait inside a basic block")


@machine("mbarrier.pending_count.b64", "the pending count of a state")
def pending_count(step: FullStep) -> None:
    """``mbarrier.pending_count count, state``."""
    step.write(0, (step.source(1, "b64") & np.uint64((1 << 20) - 1)).astype(np.uint32))


def _of(step: FullStep, targets: Targets, value: Array) -> Array:
    """A value of the executing lanes, flat, int64."""
    return np.asarray(step.machine.full(value)[targets.lanes].astype(np.int64))


_RESTRICTED = (
    *("acquire.sync_restrict::shared::cluster.cluster", "release.sync_restrict::shared::cta.cluster"),
    *("release.sync_restrict::shared::cluster::read.cluster", "release.sync_restrict::shared::cluster::read.cta"),
)


@machine("fence.proxy.async{,.global,.shared::cta,.shared::cluster}", "orders the generic and the async proxy")
@machine(f"fence.proxy.async::generic.{{{','.join(_RESTRICTED)}}}", "orders the generic and the async proxy")
def proxy_async(step: FullStep) -> None:
    """``fence.proxy.async``: what the thread knows to be written is written for asynchronous operations, too."""
    for observer in step.machine.observers:
        observer.proxy_fence(step)


@machine("fence.mbarrier_init.release.cluster", "makes the thread's new mbarriers known to copies and to the cluster")
def mbarrier_init(step: FullStep) -> None:
    """``fence.mbarrier_init``: a fence of the async proxy for mbarriers alone."""
    for observer in step.machine.observers:
        observer.mbarrier_fence(step)


@machine("fence{,.sc,.acq_rel}.cluster", "nothing: memory is sequentially consistent")
@machine("fence.{acquire,release}{.cta,.cluster,.gpu,.sys}", "nothing: memory is sequentially consistent")
@machine(
    "fence.{acquire.sync_restrict::shared::cluster,release.sync_restrict::shared::cta}.cluster",
    "nothing: memory is sequentially consistent",
)
@machine("fence.proxy.alias", "nothing: an address is always the same byte")
@machine("fence.proxy.tensormap::generic.release{.cta,.cluster,.gpu,.sys}", "nothing: a map is read when it is used")
def nothing(_step: FullStep) -> None:
    """Fences of what is ordered already."""


@machine("fence.proxy.tensormap::generic.acquire{.cta,.cluster,.gpu,.sys}", "nothing: a map is read when it is used")
def acquire_map(step: FullStep) -> None:
    """``fence.proxy.tensormap::generic.acquire.gpu [map], 128``."""
    size = step.instruction.operands[1]
    if size != Immediate(128):
        step.fail("syntax", "size of a tensor map", expected=128, found=str(size))
