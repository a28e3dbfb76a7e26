"""Clusters: addresses in the shared memory of another block, and the cluster's barrier.

Where an address leads is the affair of `ptxemu.machine.shared`, who waits that of
`ptxemu.machine.barriers`. Source: PTX ISA 9.0, 9.7.9.23 (mapa), 9.7.9.24 (getctarank),
9.7.13.4 (barrier.cluster), 9.7.9.12 (st.async), 9.7.13.8 (red.async).
"""

from __future__ import annotations

import numpy as np

from ptxemu.isa.atomics import OPERATIONS
from ptxemu.isa.loads import form_of, packed
from ptxemu.isa.warp import whole_warps
from ptxemu.machine.async_copies import issue
from ptxemu.machine.state import Step
from ptxemu.table import machine
from ptxemu.values import width


@machine("mapa{,.shared::cluster}.{u32,u64}", "the same address in the block of the cluster that has rank b")
def mapa(step: Step) -> None:
    """``mapa{.space}.type d, a, b``; without a space a and d are generic."""
    kind = step.instruction.opcode[-3:]
    cluster = step.machine.cluster
    rank = step.source(2, "u32")
    wrong = step.lanes() & (rank >= cluster.size)
    if wrong.any():
        found = int(step.machine.full(rank)[wrong][0])
        expected = f"0 to {cluster.size - 1}"
        step.fail("out-of-bounds", "no such rank in the cluster", lanes=wrong, expected=expected, found=found)
    cluster.mapped_any = True
    step.write(0, cluster.mapped(step.source(1, kind).astype(np.uint64), rank).astype(f"u{int(kind[1:]) // 8}"))


@machine("getctarank{,.shared::cluster}.{u32,u64}", "the rank of the block that an address of shared memory lies in")
def getctarank(step: Step) -> None:
    """``getctarank{.space}.type d, a``; the type is that of the address, d has 32 bits."""
    block, _ = step.machine.cluster.resolve(step.source(1, step.instruction.opcode[-3:]).astype(np.uint64))
    step.write(0, (block % step.machine.cluster.size).astype(np.uint32))


@machine("barrier.cluster.arrive{,.release,.relaxed}{,.aligned}", "arrives at the barrier of the cluster and goes on")
def arrive(step: Step) -> None:
    """``barrier.cluster.arrive``: ``.relaxed`` orders no memory."""
    if step.instruction.opcode.endswith(".aligned"):
        _whole(step)
    step.machine.cluster_barrier.arrive(step)


@machine("barrier.cluster.wait{,.acquire}{,.aligned}", "waits for all threads of the cluster", kind="control")
def wait(step: Step) -> None:
    """``barrier.cluster.wait``: `Waits` carries it out."""
    step.fail("unsupported", "a wait inside a basic block")


_ASYNC = "shared::cluster.mbarrier::complete_tx::bytes"
_STORED = "{b32,u32,s32,f32,b64,u64,s64,f64,v2.b32,v2.u32,v2.s32,v2.f32,v2.b64,v2.u64,v2.s64,v2.f64"
_STORED += ",v4.b32,v4.u32,v4.s32,v4.f32}"


@machine(f"st.async{{,.weak}}.{_ASYNC}.{_STORED}", "stores asynchronously into the cluster, then tells an mbarrier")
def store_async(step: Step) -> None:
    """``st.async [a], b, [mbar]``: b may be a vector."""
    form = form_of(step.instruction.opcode)
    values = step.vector(1, form.type)
    if len(values) != form.count:
        step.fail("syntax", "registers of the source", expected=form.count, found=len(values))
    issue(step, packed(values, form.width), form.width)


@machine(f"red.async.relaxed.cluster.{_ASYNC}.{{inc,dec}}.u32", "counts asynchronously in the cluster")
@machine(f"red.async.relaxed.cluster.{_ASYNC}.{{min,max}}.{{u32,s32}}", "minimum, maximum, asynchronously")
@machine(f"red.async.relaxed.cluster.{_ASYNC}.{{and,or,xor}}.b32", "bitwise and, or, xor, asynchronously")
@machine(f"red.async.relaxed.cluster.{_ASYNC}.add.{{u32,s32,u64}}", "adds asynchronously in the cluster")
def reduce_async(step: Step) -> None:
    """``red.async.op.type [a], b, [mbar]``."""
    operation, kind = step.instruction.opcode.split(".")[-2:]
    issue(step, step.source(1, kind), width(kind), OPERATIONS[operation].new)


def _whole(step: Step) -> None:
    """The threads of a warp, its missing last ones and those that have exited aside, come together."""
    if step.mask is not None and not (step.machine.live & ~step.lanes()).any():
        return
    if step.mask is not None and step.machine.exists.all():
        whole_warps(step)
