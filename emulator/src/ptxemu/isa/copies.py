"""Asynchronous copies of bytes: ``cp.async`` and ``cp.async.bulk``, and what commits and waits for them.

When their bytes land is decided in `machine.async_copies` and `machine.bulk_copies`. Copies of tensors' boxes are in
`tensor_copies`. Cache hints change nothing.

Source: PTX ISA 9.0, 9.7.9.25.3 (cp.async, commit_group, wait_group, wait_all), 9.7.9.25.4 (cp.async.bulk,
cp.reduce.async.bulk, commit_group, wait_group, prefetch), 9.7.13.15.14 (cp.async.mbarrier.arrive).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptxemu.isa.atomics import FLUSHING_ADD, OPERATIONS
from ptxemu.isa.loads import report
from ptxemu.machine.bulk_copies import by_size, into_shared, out_of_shared
from ptxemu.machine.core import Step
from ptxemu.machine.observer import PIECE, Copy, Global, Reduce, Shared, Targets
from ptxemu.machine.state import FullMachine, FullStep
from ptxemu.syntax.tree import Immediate, Negated, Register
from ptxemu.table import machine
from ptxemu.values import DTYPES, Array, constant


def _source(step: FullStep, address: Array, width: int, wanted: Array | None) -> Array:
    """What will land: the source's bytes, and zeros after the first `wanted` of each lane (None: all are wanted)."""
    if wanted is None or bool((wanted == width).all()):
        data = step.machine.memory.load(step, address, width)
        report(step, "global", "cp.async", address, width, None)
        return data
    active = np.ones((1, 1, 1), dtype=np.bool_) if step.mask is None else step.mask
    if (too_many := active & (wanted > width)).any():
        step.fail("unsupported", f"a source size above {width} bytes, which PTX leaves undefined", lanes=too_many)
    shape = np.broadcast_shapes(address.shape, wanted.shape, active.shape)
    data = np.zeros((*shape, width), dtype=np.uint8)
    if (whole := active & (wanted == width)).any():
        read = step.machine.memory.load(step, address, width, whole)
        as_bytes = np.ascontiguousarray(read if width == 16 else read[..., None]).view(np.uint8)
        data = np.where(whole[..., None], as_bytes, data)
    if (some := active & (wanted > 0) & (wanted < width)).any():
        odd = some & ((address & np.uint64(width - 1)) != 0)
        if odd.any():
            step.fail("misaligned", f"source of a {width}-byte copy", lanes=odd, address=address)
        for byte in range(width):
            if (lanes := some & (wanted > byte)).any():
                read = step.machine.memory.load(step, address + np.uint64(byte), 1, lanes)
                data[..., byte] = np.where(lanes, read, data[..., byte])
    if (reading := active & (wanted > 0)).any():
        report(step, "global", "cp.async", address, width, reading)
    return data.view(np.uint32) if width == 16 else data.view(f"u{width}")[..., 0]


@machine("cp.async.ca.shared{,::cta}.global{,.L2::64B,.L2::128B,.L2::256B}", "asynchronous copy of 4, 8 or 16 bytes")
@machine("cp.async.cg.shared{,::cta}.global{,.L2::64B,.L2::128B,.L2::256B}", "asynchronous copy of 16 bytes, past L1")
def cp_async(step: FullStep) -> None:
    """``cp.async [shared], [global], size{, source size | ignore}``: bytes past the source size are zeros."""
    operands = step.instruction.operands
    sizes = (16,) if ".cg." in step.instruction.opcode else (4, 8, 16)
    size = operands[2]
    if not isinstance(size, Immediate) or size.value not in sizes:
        step.fail("unsupported", "copy size", expected=f"one of {sizes}", found=str(size))
    wanted: Array | None = None  # bytes to read per lane: a source size, or a predicate that says to ignore the source
    if len(operands) > 3:
        given = operands[3]
        known = isinstance(given, Register) and step.machine.widths[step.machine.slots[given.name]] == 1
        if isinstance(given, Negated) or known:
            wanted = np.where(step.value(given, "pred"), np.uint32(0), np.uint32(size.value))
        else:
            wanted = step.value(given, "u32")
    data = _source(step, step.address(1), size.value, wanted)
    step.machine.copies.issue(step, step.address(0), size.value, data)


@machine("cp.async.commit_group", "makes the thread's uncommitted copies a group")
def commit_group(step: FullStep) -> None:
    """``cp.async.commit_group``; an empty group counts too."""
    step.machine.copies.commit(step)


def constant_count(step: FullStep) -> int:
    """The N of a wait for groups."""
    newest = step.instruction.operands[0] if len(step.instruction.operands) == 1 else None
    if not isinstance(newest, Immediate) or newest.value < 0:
        step.fail("unsupported", "group count", expected="a constant of at least 0", found=str(newest))
    return newest.value


@machine("cp.async.wait_group", "waits until at most N of the thread's latest groups are in flight")
def wait_group(step: FullStep) -> None:
    """``cp.async.wait_group N``."""
    step.machine.copies.wait(step, constant_count(step))


@machine("cp.async.wait_all", "waits for all copies of the thread")
def wait_all(step: FullStep) -> None:
    """``cp.async.wait_all``: committed or not."""
    step.machine.copies.wait(step, None)


@dataclass(frozen=True, eq=False)
class Arrival:
    """An arrival at mbarriers that comes when the copies that its threads had issued before have landed."""

    machine: FullMachine
    step: Step
    targets: Targets
    copies: tuple[Copy, ...]

    def complete(self) -> None:
        """The copies land, the threads arrive."""
        self.machine.copies.land(self.step, self.copies, self.targets)
        ones = np.ones(len(self.targets.blocks), dtype=np.int64)
        self.machine.mbarriers.arrive(self.step, self.targets, ones, told=True)


@machine("cp.async.mbarrier.arrive{,.noinc}{,.shared,.shared::cta}.b64", "arrives once the thread's copies have landed")
def mbarrier_arrive(step: FullStep) -> None:
    """``cp.async.mbarrier.arrive [mbarrier]``: without ``.noinc`` the phase takes one arrival more for each thread."""
    machine, own = step.machine, step.of(step.mask)
    targets = machine.mbarriers.targets(own, step.address(0))
    if ".noinc" not in step.instruction.opcode:
        machine.mbarriers.more(own, targets)
    machine.mbarriers.tell(own, targets, "arrive")  # now: of what the thread does later the arrival promises nothing
    machine.deferred.add(Arrival(machine, own, targets, machine.copies.in_flight))


HINT = "{,.L2::cache_hint}"
TX = "mbarrier::complete_tx::bytes"


def reduction(step: Step, name: str, kind: str) -> Reduce:
    """How a reduction combines elements of a type, and their dtype: sums of f32 flush subnormal numbers to zero."""
    dtype = DTYPES[kind]
    allowed = {"f32": ("add",), "f64": ("add",), "f16": ("add", "min", "max"), "bf16": ("add", "min", "max")}
    if name not in allowed.get(kind, (name,)) or (name in {"inc", "dec"} and kind != "u32"):
        step.fail("unsupported", f"reduction .{name} of elements of type {kind} is not supported")
    operation = FLUSHING_ADD if (name, kind) == ("add", "f32") else OPERATIONS[name]
    return (lambda old, new: np.asarray(operation.new(old, new)).astype(dtype, copy=False)), dtype


@machine(
    f"cp.async.bulk.{{shared::cluster,shared::cta}}.global.{TX}{{,.multicast::cluster}}{HINT}",
    "bulk copy into shared memory",
)
def load(step: FullStep) -> None:
    """``cp.async.bulk [shared], [global], size, [mbarrier]{, mask}{, policy}``."""
    everyone = step.machine.bulk.issue(step)
    for issue in by_size(everyone, everyone.number(2)):
        sizes, source = issue.number(2), issue.take(issue.step.address(1))
        issue.refuse_odd(source, "global memory of a bulk copy")
        block, offset = issue.shared(0, sizes)
        into_shared(issue, Global(PIECE, issue.run(source, sizes)), (block, offset), issue.run(offset, sizes), 3)


@machine(f"cp.async.bulk.shared::cluster.shared::cta.{TX}", "bulk copy to the shared memory of a block of the cluster")
@machine(
    f"cp.reduce.async.bulk.shared::cluster.shared::cta.{TX}"
    ".{add.u32,add.s32,add.u64,min.u32,min.s32,max.u32,max.s32,and.b32,or.b32,xor.b32,inc.u32,dec.u32}",
    "bulk reduction in the shared memory of a block of the cluster",
)
def send(step: FullStep) -> None:
    """``cp.async.bulk [there], [here], size, [mbarrier there]``, and the same as a reduction.

    That there has to be a cluster is no rule of the ISA: an H200 stopped with an illegal instruction.
    """
    if step.machine.cluster.size == 1:
        hint = "launch it with a cluster, or let the threads copy"
        step.fail("arguments", "a bulk copy between shared memories in a grid without clusters", hint=hint)
    *_, name, kind = step.instruction.opcode.split(".")
    reduce = reduction(step, name, kind) if step.instruction.opcode.startswith("cp.reduce") else None
    everyone = step.machine.bulk.issue(step)
    for issue in by_size(everyone, everyone.number(2)):
        sizes = issue.number(2)
        own, source = issue.shared(1, sizes)
        block, offset = issue.shared(0, sizes)
        issue.refuse(own != issue.lanes[0], "out-of-bounds", "the source of a bulk copy lies in another block")
        places = Shared(own, issue.run(source, sizes))
        into_shared(issue, places, (block, offset), issue.run(offset, sizes), 3, reduce=reduce)


_SUMS = ("u32", "s32", "u64", "f32", "f64", "noftz.f16", "noftz.bf16")
_EXTREMES = ("u32", "s32", "u64", "s64", "f16", "bf16")
_REDUCED = ",".join(
    [f"add.{kind}" for kind in _SUMS]
    + [f"{name}.{kind}" for name in ("min", "max") for kind in _EXTREMES]
    + [f"{name}.{kind}" for name in ("and", "or", "xor") for kind in ("b32", "b64")]
    + ["inc.u32", "dec.u32"]
)


@machine(f"cp.async.bulk.global.shared::cta.bulk_group{HINT}", "bulk copy into global memory")
@machine(f"cp.reduce.async.bulk.global.shared::cta.bulk_group{HINT}.{{{_REDUCED}}}", "bulk reduction in global memory")
def store(step: FullStep) -> None:
    """``cp.async.bulk [global], [shared], size{, policy}``, and the same as a reduction."""
    parts = [part for part in step.instruction.opcode.split(".") if part != "noftz"]
    reduce = reduction(step, parts[-2], parts[-1]) if parts[1] == "reduce" else None
    everyone = step.machine.bulk.issue(step)
    for issue in by_size(everyone, everyone.number(2)):
        sizes, target = issue.number(2), issue.take(issue.step.address(0))
        issue.refuse_odd(target, "global memory of a bulk copy")
        block, offset = issue.shared(1, sizes)
        places = Global(PIECE, issue.run(target, sizes))
        out_of_shared(issue, Shared(block, issue.run(offset, sizes)), places, reduce)


@machine("cp.async.bulk.commit_group", "makes the thread's uncommitted bulk copies a group")
def commit_bulk_group(step: FullStep) -> None:
    """``cp.async.bulk.commit_group``; an empty group counts too."""
    step.machine.bulk.commit(step)


@machine("cp.async.bulk.wait_group{,.read}", "waits until N of the thread's bulk groups are in flight (.read: unread)")
def wait_bulk_group(step: FullStep) -> None:
    """``cp.async.bulk.wait_group{.read} N``."""
    reads_only = step.instruction.opcode.endswith(".read")
    step.machine.bulk.wait(step, constant_count(step), reads_only=reads_only)


@machine(f"cp.async.bulk.prefetch.L2.global{HINT}", "nothing: there is no cache")
def prefetch(step: FullStep) -> None:
    """``cp.async.bulk.prefetch.L2.global [a], size``: the address and the size have to be multiples of 16."""
    issue = step.machine.bulk.issue(step)
    issue.refuse_odd(issue.take(step.address(0)), "address of a bulk prefetch")
    issue.refuse_odd(issue.number(1), "bytes of a bulk prefetch")


POLICIES = {"evict_last": 0x14F0 << 48, "evict_first": 0x12F0 << 48, "evict_normal": 0x16F0 << 48}


@machine(
    "createpolicy.fractional.L2::{evict_last,evict_first,evict_normal}.b64", "a cache policy, which changes nothing"
)
@machine(
    "createpolicy.fractional.L2::{evict_last,evict_normal}{.L2::evict_first,.L2::evict_unchanged}.b64",
    "a cache policy, which changes nothing",
)
def create_policy(step: FullStep) -> None:
    """``createpolicy.fractional policy{, fraction}`` (9.7.9.18): of the number nobody may know anything."""
    name = step.instruction.opcode.split(".")[2].removeprefix("L2::")
    step.write(0, constant(POLICIES[name], "b64"))
