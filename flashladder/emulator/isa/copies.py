"""Asynchronous copies, ``cp.async``, and what commits and awaits them.

When their bytes land is the affair of `flashladder.emulator.machine.copies.in_flight`.
Source: PTX ISA 9.0, 9.7.9.25.3 (cp.async, commit_group, wait_group, wait_all), 9.7.13.15.14 (cp.async.mbarrier.arrive).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashladder.emulator.isa.loads import report
from flashladder.emulator.machine.copies.in_flight import Copy
from flashladder.emulator.machine.phases.mbarrier_targets import Targets, targets_of
from flashladder.emulator.machine.state import Step
from flashladder.emulator.syntax.tree import Immediate, Negated, Operand, Register
from flashladder.emulator.table import machine
from flashladder.emulator.values import Array


def _wanted(step: Step, operand: Operand) -> Array:
    """Bytes to read per lane, from operand 3: a source size, or a predicate that says to ignore the source."""
    size = step.instruction.operands[2]
    predicate = isinstance(operand, Negated) or (
        isinstance(operand, Register) and step.machine.widths[step.machine.slots[operand.name]] == 1
    )
    if predicate and isinstance(size, Immediate):
        return np.where(step.value(operand, "pred"), np.uint32(0), np.uint32(size.value))
    return step.value(operand, "u32")


def _source(step: Step, address: Array, width: int, wanted: Array | None) -> Array:
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
def cp_async(step: Step) -> None:
    """``cp.async [shared], [global], size{, source size | ignore}``: bytes past the source size are zeros."""
    operands = step.instruction.operands
    sizes = (16,) if ".cg." in step.instruction.opcode else (4, 8, 16)
    size = operands[2]
    if not isinstance(size, Immediate) or size.value not in sizes:
        step.fail("unsupported", "copy size", expected=f"one of {sizes}", found=str(size))
    wanted = _wanted(step, operands[3]) if len(operands) > 3 else None
    data = _source(step, step.address(1), size.value, wanted)
    step.machine.copies.issue(step, step.address(0), size.value, data)


@machine("cp.async.commit_group", "makes the thread's uncommitted copies a group")
def commit_group(step: Step) -> None:
    """``cp.async.commit_group``; an empty group counts too."""
    step.machine.copies.commit(step)


@machine("cp.async.wait_group", "waits until at most N of the thread's latest groups are in flight")
def wait_group(step: Step) -> None:
    """``cp.async.wait_group N``."""
    newest = step.instruction.operands[0]
    if not isinstance(newest, Immediate) or newest.value < 0:
        step.fail("unsupported", "group count", expected="a constant of at least 0", found=str(newest))
    step.machine.copies.wait(step, newest.value)


@machine("cp.async.wait_all", "waits for all copies of the thread")
def wait_all(step: Step) -> None:
    """``cp.async.wait_all``: committed or not."""
    step.machine.copies.wait(step, None)


@dataclass(frozen=True, eq=False)
class Arrival:
    """An arrival at mbarriers that comes when the copies that its threads had issued before have landed."""

    step: Step
    targets: Targets
    copies: tuple[Copy, ...]

    def complete(self) -> None:
        """The copies land, the threads arrive."""
        machine = self.step.machine
        machine.copies.land(self.step, self.copies)
        machine.mbarriers.arrive(self.step, self.targets, np.ones(len(self.targets.blocks), dtype=np.int64))


@machine("cp.async.mbarrier.arrive{,.noinc}{,.shared,.shared::cta}.b64", "arrives once the thread's copies have landed")
def mbarrier_arrive(step: Step) -> None:
    """``cp.async.mbarrier.arrive [mbarrier]``: without ``.noinc`` the phase takes one arrival more for each thread."""
    own = Step(step.machine, step.instruction)
    own.mask = step.mask
    targets = targets_of(own, step.address(0))
    if ".noinc" not in step.instruction.opcode:
        step.machine.mbarriers.more(own, targets)
    step.machine.deferred.add(Arrival(own, targets, step.machine.copies.in_flight))
