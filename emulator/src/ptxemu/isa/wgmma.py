"""Tensor-core instructions of warpgroups: wgmma.mma_async, fence, commit_group and wait_group.

Four warps multiply A (64 x K, from registers or shared memory) by B (K x N, from shared memory) and add D, which each
warp holds 16 rows of, in the fragments of ``mma.m16n8k...`` side by side. What is in flight, when registers may be
used and where matrices lie in shared memory is decided in `machine.warpgroups`. A product reads shared memory when a
wait guarantees it: what was overwritten too early is wrong numbers.

Everything is one array over (blocks, warpgroups, rows, columns), so that one instruction of all warpgroups of a slice
is one batched `np.matmul` in float32, in which products of two factors are exact; the sum of K products rounds
differently from the hardware's, so compare by tolerance. A chain of products on the same accumulators goes through
registers once, at its end. A register r of D holds, of columns 8 j to 8 j + 7 and a half h of the warp's rows, in lane
4 g + t row g: the numbers of columns 2 t and 2 t + 1, one register each (r = 4 j + 2 h, + 1) or, of f16, both (r = 2 j
+ h).

The ISA leaves open what happens where the four warps of a warpgroup do not execute the same ``wgmma`` with the same
descriptors, and nothing on a GPU tells; here it is an error.

Source: PTX ISA 9.0, 9.7.15 (wgmma), 9.7.15.5 (mma_async, its operands), 9.7.15.5.1 (fragments, matrix layouts).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from ptxemu.isa.copies import constant_count
from ptxemu.isa.matrix import ROW, stacked, widened
from ptxemu.isa.warp import whole_warps
from ptxemu.machine.core import Step
from ptxemu.machine.observer import Product
from ptxemu.machine.state import FullMachine, FullStep
from ptxemu.machine.warpgroups import CHUNK, WARPS, Shape, chunk_addresses, refuse_torn, render
from ptxemu.syntax.tree import Immediate, Symbol, Vector
from ptxemu.table import machine
from ptxemu.values import WARP, Array, BoolArray, merged


def executing_warps(step: FullStep) -> BoolArray | None:
    """The executing warps, (blocks|1, warps|1); None for all."""
    warps = whole_warps(step)
    return None if warps is None else warps[..., 0]


def agreed(step: FullStep, index: int, ptx_type: str, groups: Array, warps: BoolArray | None, what: str) -> Array:
    """An operand on which all threads of a warpgroup agree: (blocks|1, groups|1)."""
    value = step.source(index, ptx_type)
    if value.size == 1:
        return value[..., 0]
    if value.shape[1] > 1:
        value = value[:, (groups[:, None] * WARPS + np.arange(WARPS)).reshape(-1)]
    value = value.reshape(len(value), -1, WARPS if value.shape[1] > 1 else 1, value.shape[2])
    first = value[:, :, :1, :1]
    active = None if warps is None else warps[:, groups * WARPS][:, :, None, None]
    differs = value != first if active is None else (value != first) & active
    if differs.any():
        kinds = np.unique(np.broadcast_to(value, differs.shape)[differs])[:2]
        what = f"{what} of a wgmma is not the same in all threads of the warpgroup"
        step.fail("divergent-warp", what, found=" and ".join(str(each) for each in kinds))
    found: Array = first[:, :, 0, 0]
    if active is not None and found.size > 1:  # a block without the warpgroup holds anything: take what another has
        present = np.broadcast_to(active[:, :, 0, 0], np.broadcast_shapes(active.shape[:2], found.shape))
        found = np.where(present, found, np.broadcast_to(found, present.shape)[present][0])
    for axis in (0, 1):  # of length 1 where all agree
        same = found.take([0], axis=axis)
        found = same if (found == same).all() else found
    return found


def matrix(
    step: FullStep, index: int, shape: Shape, groups: Array, warps: BoolArray | None
) -> tuple[Array, tuple[Array, Shape]]:
    """Chunk addresses of a matrix in shared memory: (blocks|1, groups|1, *shape.chunks), all in it and written.

    And the descriptors, with the shape.
    """
    raw = agreed(step, index, "b64", groups, warps, "a descriptor").view(np.uint64)
    address = chunk_addresses(raw, shape)
    room, first = step.machine.shared.nbytes, step.machine.shared.first
    if int(address.max()) + CHUNK > room or int(address.min()) < first:
        wrong = np.argwhere((address + CHUNK > room) | (address < first))[0]
        beyond = f"reaches {int(address.max()) + CHUNK - room} bytes past the end of"
        if int(address.max()) + CHUNK <= room:
            beyond = f"begins {first - int(address.min())} bytes before the start of"
        what = f"matrix {'AB'[index - 1]} of a wgmma {beyond} the block's {room - first} bytes of shared memory"
        where = np.array(address[tuple(wrong)]).reshape(1, 1, 1)
        step.fail("out-of-bounds", what, address=where, found=render(int(raw[tuple(wrong[:2])])))
    blocks = np.arange(step.machine.shape[0])
    places = address.reshape(len(address), -1)
    missing = step.machine.shared.rows.unwritten_chunks(blocks, places)
    if missing is not None:
        _unwritten(step, "AB"[index - 1], raw, address, np.broadcast_to(missing, (len(blocks), places.shape[1])), warps)
    return address, (raw, shape)


def _unwritten(
    step: FullStep, matrix: str, raw: Array, address: Array, missing: BoolArray, warps: BoolArray | None
) -> None:
    """Fails for the first chunk of a block that executes."""
    if warps is not None:
        missing = missing & warps.any(axis=1, keepdims=True)
    for block, place in np.argwhere(missing)[:1]:
        row = min(int(block), len(address) - 1)
        group = int(place) // (address.size // len(address) // address.shape[1])
        where = np.array(address.reshape(len(address), -1)[row, place]).reshape(1, 1, 1)
        found = render(int(np.broadcast_to(raw, address.shape[:2])[row, group]))
        what = f"matrix {matrix} of a wgmma lies in shared memory not written before"
        hint = "wait for the copy that fills it, or check start and offsets of the descriptor"
        lanes = step.machine.only(int(block))
        step.fail("uninitialised", what, lanes=lanes, address=where, found=found, hint=hint)


EIGHT_BITS = {
    "e4m3": np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32),
    "e5m2": np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e5m2).astype(np.float32),
}
STORED: dict[str, np.dtype[Any]] = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "s32": np.dtype(np.int32)}
LOWEST, HIGHEST = -(1 << 31), (1 << 31) - 1


def factors(
    owner: FullMachine, source: Array | Sequence[Array], ptx_type: str, groups: Array, *, transposed: bool
) -> Array:
    """A, or the transpose of B, as float32: (blocks|1, groups|1, M or N, K).

    `source` are registers of A, or addresses of `warpgroups.chunk_addresses` in the owner's shared memory, (blocks|1,
    groups|1, rows, chunks); `transposed` says whether the chunks are MN-major.
    """
    if not isinstance(source, np.ndarray):
        some = [each if each.shape[1] == 1 else each[:, _warps(groups)] for each in source]
        pieces = [np.broadcast_to(each, (len(each), WARPS * len(groups), WARP)) for each in some]
        rows = stacked(pieces, 2)  # (blocks|1, warps, 16, 2)
        return numbers(rows.reshape(len(rows), len(groups), 16 * WARPS, 2), ptx_type)
    blocks, count = owner.shape[0], source.shape[1]  # the chunks of every block: (blocks, groups|1, rows, chunks)
    places = np.broadcast_to(source, (blocks, *source.shape[1:])) if count > 1 else source
    rows_of = np.repeat(np.arange(blocks), count)
    chunks = owner.shared.rows.take_chunks(rows_of, places.reshape(len(places) * count, -1))
    found = numbers(chunks.reshape(blocks, *source.shape[1:]), ptx_type)
    return found.swapaxes(-1, -2) if transposed else found


def numbers(rows: Array, ptx_type: str) -> Array:
    """Chunks of 16 bytes as float32, exactly: the last axis grows by the numbers of a chunk."""
    if ptx_type in EIGHT_BITS:
        return np.asarray(EIGHT_BITS[ptx_type].take(np.ascontiguousarray(rows).view(np.uint8)))
    if ptx_type == "b1":
        return np.unpackbits(np.ascontiguousarray(rows).view(np.uint8), axis=-1).astype(np.float32)
    return widened(np.ascontiguousarray(rows).view(ROW), ptx_type)


def _warps(groups: Array) -> Array:
    return np.asarray((groups[:, None] * WARPS + np.arange(WARPS)).reshape(-1))


@dataclass
class Accumulators:
    """D of one or several products that follow each other, as a matrix.

    Attributes:
        product: the first of them.
        kind: ``f32``, ``f16`` or ``s32``.
        warps: for whom it is, (blocks|1, warps); None: all.
        matrix: (blocks, groups, 64, N): float32, which may hold f16 numbers, or int64; None before it is needed.
    """

    product: Product
    kind: str
    warps: BoolArray | None
    matrix: Array | None = None

    @classmethod
    def of(cls, owner: FullMachine, product: Product, kind: str, warps: BoolArray | None) -> Accumulators:
        """The accumulators of a product, read from the registers if any warpgroup adds to them."""
        held = cls(product, kind, warps)
        if product.keeps.any():
            held.matrix = held.loaded(owner)
        return held

    def fits(self, product: Product, warps: BoolArray | None) -> bool:
        """Whether a product has the same accumulators for the same warps."""
        if product.results != self.product.results or not np.array_equal(product.groups, self.product.groups):
            return False
        if warps is None or self.warps is None:
            return warps is self.warps
        return warps is self.warps or np.array_equal(warps, self.warps)

    def add(self, sums: Array, keeps: BoolArray, *, saturate: bool) -> None:
        """D = sums, plus D where `keeps`, (blocks|1, groups|1), holds."""
        if self.kind == "s32":
            sums = sums.astype(np.int64)
        if self.matrix is not None and keeps.any():
            added = self.matrix + sums
            sums = added if keeps.all() else np.where(keeps[..., None, None], added, sums)
        if self.kind == "f16":
            sums = sums.astype(np.float16).astype(np.float32)
        elif self.kind == "s32":
            sums = np.clip(sums, LOWEST, HIGHEST) if saturate else ((sums - LOWEST) & 0xFFFFFFFF) + LOWEST
        self.matrix = sums

    def loaded(self, owner: FullMachine) -> Array:
        """The matrix that the registers hold."""
        dtype, names, groups = STORED[self.kind], self.product.results, self.product.groups
        blocks, warps = owner.shape[0], WARPS * len(groups)
        held = np.empty((len(names), blocks, warps, WARP), np.uint32)
        chosen = _warps(groups)
        for r, name in enumerate(names):
            register = owner.registers[owner.slots[name]].view(np.uint32)
            held[r] = register if register.shape[1] == 1 else register[:, chosen]
        pairs = (-1, 2, 2) if dtype.itemsize == 4 else (-1, 2)
        tiles = held.reshape(*pairs, blocks, len(groups), WARPS, 8, 4)
        tiles = tiles.view(dtype).reshape(*tiles.shape, -1) if dtype.itemsize == 2 else tiles.view(dtype)
        order = (3, 4, 5, 1, 6, 0, 7, 2) if dtype.itemsize == 4 else (2, 3, 4, 1, 5, 0, 6, 7)
        matrix = tiles.transpose(order).reshape(blocks, len(groups), 16 * WARPS, -1)
        return matrix.astype(np.int64 if self.kind == "s32" else np.float32)

    def store(self, owner: FullMachine) -> None:
        """Writes the registers, for the warps in question."""
        if self.matrix is None:
            return
        dtype, groups = STORED[self.kind], self.product.groups
        columns = self.matrix.shape[-1]
        whole = np.broadcast_to(self.matrix, (owner.shape[0], len(groups), *self.matrix.shape[2:])).astype(dtype)
        tiles = whole.reshape(owner.shape[0], len(groups), WARPS, 2, 8, columns // 8, 4, 2)
        order = (5, 3, 7, 0, 1, 2, 4, 6) if dtype.itemsize == 4 else (5, 3, 0, 1, 2, 4, 6, 7)
        flat = np.ascontiguousarray(tiles.transpose(order)).view(dtype if dtype.itemsize == 4 else np.uint32)
        pieces = flat.reshape(-1, owner.shape[0], WARPS * len(groups), WARP)
        self._assign(owner, pieces)

    def _assign(self, owner: FullMachine, pieces: Array) -> None:
        """Puts (registers, blocks, warps of the groups, 32) where they belong."""
        slots = [owner.slots[name] for name in self.product.results]
        chosen = _warps(self.product.groups)
        if len(chosen) == owner.shape[1] and self.warps is None:
            for slot, piece in zip(slots, pieces, strict=True):
                owner.registers[slot] = piece
            return
        mask = None if self.warps is None else np.broadcast_to(self.warps, owner.shape[:2])[:, chosen, None]
        every = np.empty((len(slots), *owner.shape), pieces.dtype)
        for slot, piece, full in zip(slots, pieces, every, strict=True):
            full[...] = owner.registers[slot].view(pieces.dtype)
            full[:, chosen] = piece if mask is None or mask.all() else merged(full[:, chosen], piece, mask)
            owner.registers[slot] = full


M = 64
WIDTHS = tuple(range(8, 257, 8))  # N
INTEGER_WIDTHS = (8, 16, 24, *range(32, 257, 16))  # N where factors are integers
A_REGISTERS = 4  # 16 rows of 32 bytes a warp, in 32-bit registers


def _shapes(k: int, widths: Sequence[int] = WIDTHS) -> str:
    return "{" + ",".join(f"m64n{n}k{k}" for n in widths) + "}"


@dataclass(frozen=True)
class Form:
    """What an opcode says: N, the types of D, A and B (each 32 bytes wide along K), and its operands.

    `scales` counts operands after the two matrices: scale-d, then, of floating-point types, the signs of A and B.
    `transposes` says whether there are transposition bits for the matrices in shared memory, `saturate` whether ``s32``
    sums are clamped.
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
def mma_async(step: FullStep) -> None:
    """``wgmma.mma_async... d, a | a-desc, b-desc, scale-d{, scale-a, scale-b{, trans-a, trans-b}}``.

    Fails: ``divergent-warp`` unless whole warpgroups execute it, with one descriptor and one scale-d;
    ``missing-fence``, ``in-flight``; ``out-of-bounds``, ``uninitialised`` of the matrices in shared memory.
    """
    form = form_of(step.instruction.opcode)
    from_registers = _check_operands(step, form)
    warps, count = executing_warps(step), step.machine.shape[1]
    if warps is not None or count % WARPS:  # whole warpgroups
        present = np.ones((1, 1), np.bool_) if warps is None else warps
        warps = np.broadcast_to(present, (len(present), count))
        refuse_torn(step, warps, warps)
    groups = np.arange(step.machine.shape[1] // WARPS)  # those that execute in any block
    if warps is not None:
        groups = np.flatnonzero(warps[:, ::WARPS].any(axis=0))
    transposed = _transposed(step, form, from_registers=from_registers)
    left: Array | Sequence[Array]
    first: tuple[Array, Shape] | None = None
    if from_registers:
        left = step.vector(1, "b32")
    else:
        left, first = matrix(step, 1, Shape(M, not transposed[0]), groups, warps)
    right, second = matrix(step, 2, Shape(form.n, not transposed[1]), groups, warps)
    product = Product(
        step=step.of(step.mask),
        groups=groups,
        warps=warps,
        batch=np.zeros((1, 1), np.int64),
        results=_names(step, 0),
        operands=_names(step, 1) if from_registers else (),
        left=left,
        right=right,
        descriptors=(first, second),
        keeps=agreed(step, 3, "pred", groups, warps, "scale-d"),
    )
    step.machine.warpgroups.same_order.executed(step, warps)
    step.machine.warpgroups.issue(product)
    for observer in step.machine.observers:
        observer.product_issued(step, product)


@machine("wgmma.fence.sync.aligned", "orders a warpgroup's registers before the products that follow", kind="control")
def fence(step: FullStep) -> None:
    """``wgmma.fence.sync.aligned``: `WarpgroupFence` carries it out."""
    step.fail("unsupported", "a fence inside a basic block")


@machine("wgmma.commit_group.sync.aligned", "makes the warp's uncommitted products a group")
def commit_group(step: FullStep) -> None:
    """``wgmma.commit_group.sync.aligned``; an empty group counts too."""
    warps = executing_warps(step)
    step.machine.warpgroups.same_order.executed(step, warps)
    step.machine.warpgroups.commit(warps)


@machine("wgmma.wait_group.sync.aligned", "waits until at most N of the warp's latest groups of products are in flight")
def wait_group(step: FullStep) -> None:
    """``wgmma.wait_group.sync.aligned N``: what it covers happens now."""
    newest = constant_count(step)
    executing = executing_warps(step)
    step.machine.warpgroups.same_order.executed(step, executing)
    landing = step.machine.warpgroups.wait(executing, newest)
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


def _happen(owner: FullMachine, product: Product, held: Accumulators) -> None:
    """D = A B + D."""
    instruction = product.instruction
    form = form_of(instruction.opcode)
    from_registers = isinstance(instruction.operands[1], Vector)
    transposed = _transposed(product.step, form, from_registers=from_registers)
    a = factors(owner, product.left, form.a, product.groups, transposed=transposed[0])
    b = factors(owner, product.right, form.b, product.groups, transposed=transposed[1])
    sums = np.matmul(a, b.swapaxes(-1, -2))  # (blocks|1, groups|1, 64, N)
    if form.scales == 3 and _constant(product.step, 4, (1, -1)) != _constant(product.step, 5, (1, -1)):
        sums = -sums
    held.add(sums, product.keeps, saturate=form.saturate)


def _check_operands(step: FullStep, form: Form) -> bool:
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


def _constant(step: Step, index: int, allowed: tuple[int, int]) -> int:
    operand = step.instruction.operands[index]
    if not isinstance(operand, Immediate) or operand.value not in allowed:
        step.fail(
            "syntax", f"operand {index + 1} of wgmma", expected=f"{allowed[0]} or {allowed[1]}", found=str(operand)
        )
    return operand.value


def _names(step: FullStep, index: int) -> tuple[str, ...]:
    """The registers of a ``{...}`` operand, each once."""
    operand = step.instruction.operands[index]
    items = operand.items if isinstance(operand, Vector) else (operand,)
    names = tuple(str(item) for item in items)
    if Symbol("_") in items or len({*names}) != len(names):
        step.fail("syntax", "registers of wgmma", expected="each named once", found=str(operand))
    return names
