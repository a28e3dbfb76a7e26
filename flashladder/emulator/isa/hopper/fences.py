"""Fences between proxies, of mbarrier initialisations, and of a cluster: what they order is the observers' business.

Why no values change: memory is sequentially consistent here, and asynchronous copies read and write as late as they
may. Whether the program may rely on what it reads is judged by `flashladder.emulator.observe.proxies`.

Source: PTX ISA 9.0, 8.6 (proxies), 9.7.13.4 (fence).
"""

from __future__ import annotations

from flashladder.emulator.machine.state import Step
from flashladder.emulator.syntax.tree import Immediate
from flashladder.emulator.table import machine

_RESTRICTED = (
    *("acquire.sync_restrict::shared::cluster.cluster", "release.sync_restrict::shared::cta.cluster"),
    *("release.sync_restrict::shared::cluster::read.cluster", "release.sync_restrict::shared::cluster::read.cta"),
)


@machine("fence.proxy.async{,.global,.shared::cta,.shared::cluster}", "orders the generic and the async proxy")
@machine(f"fence.proxy.async::generic.{{{','.join(_RESTRICTED)}}}", "orders the generic and the async proxy")
def proxy_async(step: Step) -> None:
    """``fence.proxy.async``: what the thread knows to be written is written for asynchronous operations, too."""
    for observer in step.machine.observers:
        observer.proxy_fence(step)


@machine("fence.mbarrier_init.release.cluster", "makes the thread's new mbarriers known to copies and to the cluster")
def mbarrier_init(step: Step) -> None:
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
def nothing(_step: Step) -> None:
    """Fences of what is ordered already."""


@machine("fence.proxy.tensormap::generic.acquire{.cta,.cluster,.gpu,.sys}", "nothing: a map is read when it is used")
def acquire_map(step: Step) -> None:
    """``fence.proxy.tensormap::generic.acquire.gpu [map], 128``."""
    size = step.instruction.operands[1]
    if size != Immediate(128):
        step.fail("syntax", "size of a tensor map", expected=128, found=str(size))
