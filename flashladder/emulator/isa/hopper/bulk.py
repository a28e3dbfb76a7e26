"""Bulk copies: ``cp.async.bulk`` between global and shared memory and between blocks of a cluster, and their groups.

One thread moves a whole run of bytes; when they move is the affair of `flashladder.emulator.machine.copies.transfers`.
Copies of tensors' boxes are in `tensor_copies`. Cache hints are hints: they change nothing.

Source: PTX ISA 9.0, 9.7.9.25.4 (cp.async.bulk, cp.reduce.async.bulk, commit_group, wait_group, prefetch).
"""

from __future__ import annotations

import numpy as np

from flashladder.emulator.isa.atomics import FLUSHING_ADD, OPERATIONS
from flashladder.emulator.machine.copies.bulk_groups import groups_of
from flashladder.emulator.machine.copies.issue import Issue, by_size, into_shared, out_of_shared, run_of
from flashladder.emulator.machine.copies.transfers import PIECE, Global, Reduce, Shared
from flashladder.emulator.machine.state import Step
from flashladder.emulator.syntax.tree import Immediate
from flashladder.emulator.table import machine
from flashladder.emulator.values import DTYPES, constant

HINT = "{,.L2::cache_hint}"
TX = "mbarrier::complete_tx::bytes"


def reduction(step: Step, name: str, kind: str) -> Reduce:
    """How a reduction combines elements of a type, and their dtype: sums of f32 flush subnormal numbers to zero."""
    dtype = DTYPES[kind]
    allowed = {"f32": ("add",), "f64": ("add",), "f16": ("add", "min", "max"), "bf16": ("add", "min", "max")}
    if name not in allowed.get(kind, (name,)) or (name in {"inc", "dec"} and kind != "u32"):
        step.fail("unsupported", f"reduction .{name} of elements of type {kind}")
    operation = FLUSHING_ADD if (name, kind) == ("add", "f32") else OPERATIONS[name]
    return (lambda old, new: np.asarray(operation.new(old, new)).astype(dtype, copy=False)), dtype


@machine(
    f"cp.async.bulk.{{shared::cluster,shared::cta}}.global.{TX}{{,.multicast::cluster}}{HINT}",
    "bulk copy into shared memory",
)
def load(step: Step) -> None:
    """``cp.async.bulk [shared], [global], size, [mbarrier]{, mask}{, policy}``."""
    everyone = Issue.of(step)
    for issue in by_size(everyone, everyone.number(2)):
        sizes = issue.number(2)
        source = issue.take(issue.step.address(1))
        issue.refuse(
            source % PIECE != 0, "misaligned", "global memory of a bulk copy", expected=f"a multiple of {PIECE}"
        )
        block, offset = issue.shared(0, sizes)
        addresses = run_of(source, int(sizes[0]) if sizes.size else 0)
        into_shared(issue, Global(PIECE, addresses), (block, offset), run_of(offset, addresses.shape[1] * PIECE), 3)


@machine(f"cp.async.bulk.shared::cluster.shared::cta.{TX}", "bulk copy to the shared memory of a block of the cluster")
@machine(
    f"cp.reduce.async.bulk.shared::cluster.shared::cta.{TX}"
    ".{add.u32,add.s32,add.u64,min.u32,min.s32,max.u32,max.s32,and.b32,or.b32,xor.b32,inc.u32,dec.u32}",
    "bulk reduction in the shared memory of a block of the cluster",
)
def send(step: Step) -> None:
    """``cp.async.bulk [there], [here], size, [mbarrier there]``, and the same as a reduction.

    That there has to be a cluster is no rule of the ISA: an H200 stopped with an illegal instruction.
    """
    if step.machine.cluster.size == 1:
        hint = "launch it with a cluster, or let the threads copy"
        step.fail("arguments", "a bulk copy between shared memories in a grid without clusters", hint=hint)
    everyone = Issue.of(step)
    for issue in by_size(everyone, everyone.number(2)):
        sizes = issue.number(2)
        nbytes = int(sizes[0]) if sizes.size else 0
        own, source = issue.shared(1, sizes)
        block, offset = issue.shared(0, sizes)
        issue.refuse(own != issue.lanes[0], "out-of-bounds", "the source of a bulk copy lies in another block")
        *_, name, kind = step.instruction.opcode.split(".")
        reduce = reduction(step, name, kind) if step.instruction.opcode.startswith("cp.reduce") else None
        into_shared(
            issue, Shared(own, run_of(source, nbytes)), (block, offset), run_of(offset, nbytes), 3, reduce=reduce
        )


_SUMS = ("u32", "s32", "u64", "f32", "f64", "noftz.f16", "noftz.bf16")
_EXTREMES = ("u32", "s32", "u64", "s64", "f16", "bf16")
_REDUCED = ",".join(
    [
        *(f"add.{kind}" for kind in _SUMS),
        *(f"{name}.{kind}" for name in ("min", "max") for kind in _EXTREMES),
        *(f"{name}.{kind}" for name in ("and", "or", "xor") for kind in ("b32", "b64")),
        *("inc.u32", "dec.u32"),
    ]
)


@machine(f"cp.async.bulk.global.shared::cta.bulk_group{HINT}", "bulk copy into global memory")
@machine(f"cp.reduce.async.bulk.global.shared::cta.bulk_group{HINT}.{{{_REDUCED}}}", "bulk reduction in global memory")
def store(step: Step) -> None:
    """``cp.async.bulk [global], [shared], size{, policy}``, and the same as a reduction."""
    everyone = Issue.of(step)
    for issue in by_size(everyone, everyone.number(2)):
        sizes = issue.number(2)
        nbytes = int(sizes[0]) if sizes.size else 0
        target = issue.take(issue.step.address(0))
        issue.refuse(
            target % PIECE != 0, "misaligned", "global memory of a bulk copy", expected=f"a multiple of {PIECE}"
        )
        block, offset = issue.shared(1, sizes)
        parts = step.instruction.opcode.split(".")
        reduce = (
            reduction(step, parts[-3] if "noftz" in parts else parts[-2], parts[-1]) if parts[1] == "reduce" else None
        )
        out_of_shared(issue, Shared(block, run_of(offset, nbytes)), Global(PIECE, run_of(target, nbytes)), reduce)


@machine("cp.async.bulk.commit_group", "makes the thread's uncommitted bulk copies a group")
def commit_group(step: Step) -> None:
    """``cp.async.bulk.commit_group``; an empty group counts too."""
    groups_of(step.machine).commit(step)


@machine("cp.async.bulk.wait_group{,.read}", "waits until N of the thread's bulk groups are in flight (.read: unread)")
def wait_group(step: Step) -> None:
    """``cp.async.bulk.wait_group{.read} N``."""
    newest = step.instruction.operands[0]
    if not isinstance(newest, Immediate) or newest.value < 0:
        step.fail("unsupported", "group count", expected="a constant of at least 0", found=str(newest))
    reads_only = step.instruction.opcode.endswith(".read")
    groups_of(step.machine).wait(step, newest.value, reads_only=reads_only)


@machine(f"cp.async.bulk.prefetch.L2.global{HINT}", "nothing: there is no cache")
def prefetch(step: Step) -> None:
    """``cp.async.bulk.prefetch.L2.global [a], size``: the address and the size have to be multiples of 16."""
    issue = Issue.of(step)
    for what, numbers in (("address", issue.take(step.address(0))), ("bytes", issue.number(1))):
        wrong = numbers % PIECE != 0
        issue.refuse(
            wrong, "misaligned", f"{what} of a bulk prefetch", expected=f"a multiple of {PIECE}", found=numbers
        )


POLICIES = {"evict_last": 0x14F0 << 48, "evict_first": 0x12F0 << 48, "evict_normal": 0x16F0 << 48}


@machine(
    "createpolicy.fractional.L2::{evict_last,evict_first,evict_normal}.b64", "a cache policy, which changes nothing"
)
@machine(
    "createpolicy.fractional.L2::{evict_last,evict_normal}{.L2::evict_first,.L2::evict_unchanged}.b64",
    "a cache policy, which changes nothing",
)
def create_policy(step: Step) -> None:
    """``createpolicy.fractional policy{, fraction}`` (9.7.9.18): of the number nobody may know anything."""
    name = step.instruction.opcode.split(".")[2].removeprefix("L2::")
    step.write(0, constant(POLICIES[name], "b64"))
