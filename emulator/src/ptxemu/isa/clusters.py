"""Clusters: addresses in the shared memory of another block, asynchronous stores there, and the cluster's barrier.

Source: PTX ISA 9.0, 9.7.9.23 (mapa), 9.7.9.24 (getctarank), 9.7.9.12 (st.async), 9.7.13.4 (barrier.cluster), 9.7.13.8
(red.async).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptxemu.isa.atomics import OPERATIONS
from ptxemu.isa.loads import form_of, packed
from ptxemu.isa.warp import whole_warps
from ptxemu.machine.core import Step
from ptxemu.machine.memory import words_of
from ptxemu.machine.observer import Combine, RemoteAccess
from ptxemu.machine.state import FullMachine, FullStep
from ptxemu.table import machine
from ptxemu.values import Array, width


@machine("mapa{,.shared::cluster}.{u32,u64}", "the same address in the block of the cluster that has rank b")
def mapa(step: FullStep) -> None:
    """``mapa{.space}.type d, a, b``; without a space a and d are generic."""
    kind = step.instruction.opcode[-3:]
    cluster = step.machine.cluster
    rank = step.source(2, "u32")
    what, expected = "no such rank in the cluster", f"0 to {cluster.size - 1}"
    step.refuse(rank >= cluster.size, "out-of-bounds", what, expected=expected, found=rank)
    cluster.mapped_any = True
    step.write(0, cluster.mapped(step.source(1, kind).astype(np.uint64), rank).astype(f"u{int(kind[1:]) // 8}"))


@machine("getctarank{,.shared::cluster}.{u32,u64}", "the rank of the block that an address of shared memory lies in")
def getctarank(step: FullStep) -> None:
    """``getctarank{.space}.type d, a``; the type is that of the address, d has 32 bits."""
    block, _ = step.machine.cluster.resolve(step.source(1, step.instruction.opcode[-3:]).astype(np.uint64))
    step.write(0, (block % step.machine.cluster.size).astype(np.uint32))


@machine("barrier.cluster.arrive{,.release,.relaxed}{,.aligned}", "arrives at the barrier of the cluster and goes on")
def arrive(step: FullStep) -> None:
    """``barrier.cluster.arrive``: ``.relaxed`` orders no memory."""
    missing = step.mask is None or bool((step.machine.live & ~step.lanes()).any())  # lanes that have not exited
    if step.instruction.opcode.endswith(".aligned") and missing and step.machine.exists.all():
        whole_warps(step)
    step.machine.cluster_barrier.arrive(step)


@machine("barrier.cluster.wait{,.acquire}{,.aligned}", "waits for all threads of the cluster", kind="control")
def wait(step: FullStep) -> None:
    """``barrier.cluster.wait``: `Waits` carries it out."""
    step.fail("unsupported", "a wait inside a basic block")


@dataclass(frozen=True, eq=False)
class AsyncStore:
    """One instruction's asynchronous stores, of all lanes that issued it; arrays are flat.

    Their values are those of the issue; they land as late as they may, and then tell the mbarrier, in the same block as
    the bytes, how many have come. The race detector does not look at reductions.

    Attributes:
        step: the instruction, with the lanes.
        blocks, offsets: where they land.
        barriers: offsets of the mbarriers that are told, in the same blocks.
        words: what is stored, one word of `width` bytes each.
        combine: of a reduction, how it changes memory; None: it replaces it.
    """

    machine: FullMachine
    step: Step
    blocks: Array
    offsets: Array
    barriers: Array
    words: Array
    width: int
    combine: Combine | None

    @property
    def access(self) -> RemoteAccess:
        """What is stored where, by which lanes."""
        return RemoteAccess("st", np.nonzero(self.step.lanes()), self.blocks, self.offsets, self.width)

    def complete(self) -> None:
        """Lands, then tells the mbarriers."""
        gone = ~np.asarray(self.machine.live.any(axis=(1, 2)))[self.blocks]
        if gone.any():
            block = self.machine.block_index(int(self.blocks[gone.argmax()]))
            what = f"the store still writes to the shared memory of block {block}, which has exited"
            self.step.fail("exited", what, hint="let the block wait for it before it exits: mbarrier.try_wait")
        rows, where = self.machine.shared.rows, self.offsets.astype(np.uint64)
        if self.combine is None:
            for observer in self.machine.observers:
                observer.store_landed(self.step, self.access, self.barriers)
            rows.put(self.blocks, where, self.width, self.words)
        else:
            for index in range(len(self.words)):  # several may change one word
                one = slice(index, index + 1)
                old = rows.take(self.blocks[one], where[one], self.width).view(self.words.dtype)
                new = self.combine(old, self.words[one]).view(f"u{self.width}")
                rows.put(self.blocks[one], where[one], self.width, new)
        nbytes = np.full(len(self.words), self.width, np.int64)
        self.machine.mbarriers.complete_tx(self.step, self.blocks, self.barriers, nbytes)


def _issue(step: FullStep, values: Array, width: int, combine: Combine | None = None) -> None:
    """Puts the executing lanes' stores of `values` off; operand 0 is the address, the last one the mbarrier's.

    Fails: as `Cluster.places` and `Mbarriers.targets`; "mbarrier": it is in another block than the bytes.
    """
    machine = step.machine
    lanes, blocks, offsets = machine.cluster.places(step, step.address(0), width)
    targets = machine.mbarriers.targets(step, step.address(len(step.instruction.operands) - 1))
    elsewhere = np.flatnonzero(targets.blocks != blocks)
    if elsewhere.size:
        targets.fail(step, "the mbarrier lies in another block than the bytes that it is told of", elsewhere)
    words = machine.full(values if combine is not None else words_of(values, width))[lanes]
    own = step.of(step.lanes().copy())
    store = AsyncStore(machine, own, blocks, offsets, targets.offsets, words, width, combine)
    for observer in machine.observers if combine is None else ():
        observer.store_issued(own, store.access)
    machine.deferred.add(store)


_ASYNC = "shared::cluster.mbarrier::complete_tx::bytes"
_STORED = "{b32,u32,s32,f32,b64,u64,s64,f64,v2.b32,v2.u32,v2.s32,v2.f32,v2.b64,v2.u64,v2.s64,v2.f64"
_STORED += ",v4.b32,v4.u32,v4.s32,v4.f32}"


@machine(f"st.async{{,.weak}}.{_ASYNC}.{_STORED}", "stores asynchronously into the cluster, then tells an mbarrier")
def store_async(step: FullStep) -> None:
    """``st.async [a], b, [mbar]``: b may be a vector."""
    form = form_of(step.instruction.opcode)
    values = step.vector(1, form.type)
    if len(values) != form.count:
        step.fail("syntax", "registers of the source", expected=form.count, found=len(values))
    _issue(step, packed(values, form.width), form.width)


@machine(f"red.async.relaxed.cluster.{_ASYNC}.{{inc,dec}}.u32", "counts asynchronously in the cluster")
@machine(f"red.async.relaxed.cluster.{_ASYNC}.{{min,max}}.{{u32,s32}}", "minimum, maximum, asynchronously")
@machine(f"red.async.relaxed.cluster.{_ASYNC}.{{and,or,xor}}.b32", "bitwise and, or, xor, asynchronously")
@machine(f"red.async.relaxed.cluster.{_ASYNC}.add.{{u32,s32,u64}}", "adds asynchronously in the cluster")
def reduce_async(step: FullStep) -> None:
    """``red.async.op.type [a], b, [mbar]``."""
    operation, kind = step.instruction.opcode.split(".")[-2:]
    _issue(step, step.source(1, kind), width(kind), OPERATIONS[operation].new)
