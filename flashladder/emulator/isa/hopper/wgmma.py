"""Tensor-core instructions of warpgroups: wgmma.mma_async, fence, commit_group and wait_group.

Four warps multiply A (64 x K, from registers or shared memory) by B (K x N, from shared memory) and add D, which each
warp holds 16 rows of, in the fragments of ``mma.m16n8k...`` side by side. What is in flight, and when registers may be
touched, is the affair of `flashladder.emulator.machine.warpgroup.warpgroups`; where matrices lie in shared memory that
of `descriptors`. A product reads shared memory when a wait guarantees it: what was overwritten too early is wrong
numbers.

One instruction of all warpgroups of a slice is one batched `np.matmul` in float32, in which products of two factors are
exact; the sum of K products rounds differently from the hardware's, so compare by tolerance. A chain of products on the
same accumulators goes through registers once, at its end.
Source: PTX ISA 9.0, 9.7.15 (asynchronous warpgroup level matrix instructions).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from flashladder.emulator.isa.hopper.fragments import Accumulators, factors
from flashladder.emulator.isa.hopper.warpgroup import (
    agreed,
    executing_groups,
    executing_warps,
    matrix,
    whole_warpgroups,
)
from flashladder.emulator.machine.state import Machine, Step
from flashladder.emulator.machine.warpgroup.descriptors import Shape
from flashladder.emulator.machine.warpgroup.warpgroups import Product
from flashladder.emulator.syntax.tree import Immediate, Symbol, Vector
from flashladder.emulator.table import machine

M = 64
WIDTHS = tuple(range(8, 257, 8))  # N
INTEGER_WIDTHS = (8, 16, 24, *range(32, 257, 16))  # N where factors are integers
A_REGISTERS = 4  # 16 rows of 32 bytes a warp, in 32-bit registers


def _shapes(k: int, widths: Sequence[int] = WIDTHS) -> str:
    return "{" + ",".join(f"m64n{n}k{k}" for n in widths) + "}"


@dataclass(frozen=True)
class Form:
    """What an opcode says.

    Attributes:
        n: columns of B and D; A and B are 32 bytes wide along K.
        d, a, b: PTX types; ``f16`` and ``f32`` sums, or ``s32``.
        scales: operands after the two matrices: scale-d, then, of floating-point types, the signs of A and B.
        transposes: whether there are transposition bits for the matrices that lie in shared memory.
        saturate: whether ``s32`` sums are clamped.
    """

    n: int
    d: str
    a: str
    b: str
    scales: int
    transposes: bool
    saturate: bool

    @property
    def registers(self) -> int:
        """Registers of D per thread."""
        return self.n // (4 if self.d == "f16" else 2)


@cache
def form_of(opcode: str) -> Form:
    """The parts of ``wgmma.mma_async.sync.aligned.m64nNkK{.satfinite}.d.a.b{.and.popc}``."""
    parts = [part for part in opcode.split(".") if part not in {"and", "popc"}]
    d, a, b = parts[-3:]
    n = int(parts[4].partition("n")[2].partition("k")[0])
    return Form(n, d, a, b, 1 if d == "s32" else 3, a in {"f16", "bf16"}, "satfinite" in parts)


@machine(f"wgmma.mma_async.sync.aligned.{_shapes(16)}.{{f16,f32}}.f16.f16", "D = A B + D of a warpgroup; f16 factors")
@machine(f"wgmma.mma_async.sync.aligned.{_shapes(16)}.f32.bf16.bf16", "D = A B + D of a warpgroup; bf16 factors")
@machine(f"wgmma.mma_async.sync.aligned.{_shapes(8)}.f32.tf32.tf32", "D = A B + D of a warpgroup; tf32 factors")
@machine(
    f"wgmma.mma_async.sync.aligned.{_shapes(32)}.{{f16,f32}}.{{e4m3,e5m2}}.{{e4m3,e5m2}}",
    "D = A B + D of a warpgroup; 8-bit floating-point factors",
)
@machine(
    f"wgmma.mma_async.sync.aligned.{_shapes(32, INTEGER_WIDTHS)}{{,.satfinite}}.s32.{{s8,u8}}.{{s8,u8}}",
    "D = A B + D of a warpgroup; 8-bit factors, 32-bit sums that wrap, or are clamped by .satfinite",
)
@machine(
    f"wgmma.mma_async.sync.aligned.{_shapes(256, INTEGER_WIDTHS)}.s32.b1.b1.and.popc",
    "D = A B + D of a warpgroup; factors of one bit: the ones of a row of A and a column of B together",
)
def mma_async(step: Step) -> None:
    """``wgmma.mma_async... d, a | a-desc, b-desc, scale-d{, scale-a, scale-b{, trans-a, trans-b}}``.

    Raises:
        EmulationError: ``divergent-warp`` unless whole warpgroups execute it, with one descriptor and one scale-d;
            ``missing-fence``, ``in-flight``; ``out-of-bounds``, ``uninitialised`` of the matrices in shared memory.
    """
    form = form_of(step.instruction.opcode)
    from_registers = _check_operands(step, form)
    warps = whole_warpgroups(step)
    groups = executing_groups(step, warps)
    transposed = _transposed(step, form, from_registers=from_registers)
    product = Product(
        step=_own(step),
        groups=groups,
        warps=warps,
        batch=np.zeros((1, 1), np.int64),
        results=_names(step, 0),
        operands=_names(step, 1) if from_registers else (),
        left=step.vector(1, "b32") if from_registers else matrix(step, 1, Shape(M, not transposed[0]), groups, warps),
        right=matrix(step, 2, Shape(form.n, not transposed[1]), groups, warps),
        keeps=agreed(step, 3, "pred", groups, warps, "scale-d"),
    )
    step.machine.warpgroups.same_order.executed(step, warps)
    step.machine.warpgroups.issue(product)
    for observer in step.machine.observers:
        observer.product_issued(step, product)


@machine("wgmma.fence.sync.aligned", "orders a warpgroup's registers before the products that follow", kind="control")
def fence(step: Step) -> None:
    """``wgmma.fence.sync.aligned``: `WarpgroupFence` carries it out."""
    step.fail("unsupported", "a fence inside a basic block")


@machine("wgmma.commit_group.sync.aligned", "makes the warp's uncommitted products a group")
def commit_group(step: Step) -> None:
    """``wgmma.commit_group.sync.aligned``; an empty group counts too."""
    warps = executing_warps(step)
    step.machine.warpgroups.same_order.executed(step, warps)
    step.machine.warpgroups.commit(warps)


@machine("wgmma.wait_group.sync.aligned", "waits until at most N of the warp's latest groups of products are in flight")
def wait_group(step: Step) -> None:
    """``wgmma.wait_group.sync.aligned N``: what it covers happens now."""
    newest = step.instruction.operands[0] if len(step.instruction.operands) == 1 else None
    if not isinstance(newest, Immediate) or newest.value < 0:
        step.fail("unsupported", "group count", expected="a constant of at least 0", found=str(newest))
    executing = executing_warps(step)
    step.machine.warpgroups.same_order.executed(step, executing)
    landing = step.machine.warpgroups.wait(executing, newest.value)
    held: Accumulators | None = None
    for product, warps in landing:
        if held is None or not held.fits(product, warps):
            if held is not None:
                held.store(step.machine)
            held = Accumulators.of(step.machine, product, form_of(product.instruction.opcode).d, warps)
        _happen(step.machine, product, held)
        for observer in step.machine.observers:
            observer.product_done(step, product, warps)
    if held is not None:
        held.store(step.machine)


def _happen(owner: Machine, product: Product, held: Accumulators) -> None:
    """D = A B + D."""
    instruction = product.instruction
    form = form_of(instruction.opcode)
    from_registers = isinstance(instruction.operands[1], Vector)
    transposed = _transposed(product.step, form, from_registers=from_registers)
    a = factors(owner, product.left, form.a, product.groups, transposed=transposed[0])
    b = factors(owner, product.right, form.b, product.groups, transposed=transposed[1])
    sums = np.matmul(a, b.swapaxes(-1, -2))  # (blocks|1, groups|1, 64, N)
    if form.scales == 3 and _sign(product.step, 4) * _sign(product.step, 5) < 0:
        sums = -sums
    held.add(sums, product.keeps, saturate=form.saturate)


def _own(step: Step) -> Step:
    """The step with a mask of its own, which outlives the instruction."""
    own = Step(step.machine, step.instruction)
    own.mask = step.mask
    return own


def _check_operands(step: Step, form: Form) -> bool:
    """Refuses a wrong number of operands or registers; whether A is in registers."""
    operands = step.instruction.operands
    from_registers = len(operands) > 1 and isinstance(operands[1], Vector)
    wanted = 3 + form.scales + ((1 if from_registers else 2) if form.transposes else 0)
    if len(operands) != wanted:
        step.fail("syntax", f"operands of {step.instruction.opcode}", expected=wanted, found=len(operands))
    for index, count in ((0, form.registers), (1, A_REGISTERS if from_registers else None)):
        operand = operands[index]
        found = len(operand.items) if isinstance(operand, Vector) else 1
        if count is not None and found != count:
            step.fail("syntax", f"registers of {'DA'[index]}", expected=count, found=found)
    return from_registers


def _transposed(step: Step, form: Form, *, from_registers: bool) -> tuple[bool, bool]:
    """Whether A and B are MN-major."""
    if not form.transposes:
        return False, False
    bits = [_constant(step, index, (0, 1)) == 1 for index in range(6, len(step.instruction.operands))]
    return (False, bits[0]) if from_registers else (bits[0], bits[1])


def _sign(step: Step, index: int) -> int:
    return _constant(step, index, (1, -1))


def _constant(step: Step, index: int, allowed: tuple[int, int]) -> int:
    operand = step.instruction.operands[index]
    if not isinstance(operand, Immediate) or operand.value not in allowed:
        step.fail(
            "syntax", f"operand {index + 1} of wgmma", expected=f"{allowed[0]} or {allowed[1]}", found=str(operand)
        )
    return operand.value


def _names(step: Step, index: int) -> tuple[str, ...]:
    """The registers of a ``{...}`` operand, each once."""
    operand = step.instruction.operands[index]
    items = operand.items if isinstance(operand, Vector) else (operand,)
    names = tuple(str(item) for item in items)
    if Symbol("_") in items or len({*names}) != len(names):
        step.fail("syntax", "registers of wgmma", expected="each named once", found=str(operand))
    return names
