"""Tensor-core instructions: ldmatrix, stmatrix, movmatrix and mma.

Every 32-bit register of an operand holds one *tile* of 8 rows of 16 bytes, row by row over the lanes: lane 4 g + t
holds bytes 4 t to 4 t + 3 of row g. So a register of shape (blocks, warps, 32) is, without any copy, (blocks, warps, 8
rows, 4 words), and a row is 8 numbers of f16 or bf16, 4 of tf32, 16 of s8. The tables of PTX ISA 9.0, 9.7.14.5
("Matrix Fragments for mma...") say nothing else for these types.

Products of all warps are one batched `np.matmul` in float32: products of 16-bit numbers are exact there, sums round
differently from the hardware's (which truncates and whose order is not documented), so compare by tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
import weakref

import numpy as np

from ptxemu.isa.warp import whole_warps
from ptxemu.machine.observer import Access
from ptxemu.machine.state import FullMachine, FullStep
from ptxemu.table import machine
from ptxemu.values import BFLOAT16, WARP, Array, as_type

ROW = np.dtype(np.complex128)  # 16 bytes that move together; never computed with
BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "s8": 1, "u8": 1}  # of one element of A and B
RESULTS = {"f16": 2, "f32": 4, "s32": 4}  # registers of C and D
EXPONENT_SHIFT = np.float32(2.0**112)  # f32's exponent bias minus f16's: 127 - 15


@machine(
    "ldmatrix.sync.aligned.m8n8.{x1,x2,x4}{,.trans}.{shared,shared::cta}.b16",
    "1, 2 or 4 tiles of 8 x 8 16-bit numbers from shared memory, each spread over the warp",
)
def ldmatrix(step: FullStep) -> None:
    """``ldmatrix.sync.aligned.m8n8.num{.trans}.shared.b16 {d0, ..}, [p]`` (PTX ISA 9.0, 9.7.14.5.15).

    Addresses: lanes 0 to 7 give those of the 8 rows (16 bytes each, aligned to 16) of the first matrix, lanes 8 to 15
    of the second, and so on; what the lanes beyond hold is ignored. Each row counts as read by the lane that names it:
    the lanes meet here, but nothing orders their memory, so what another lane wrote takes a ``bar.warp.sync`` first.

    Fragments: register j receives matrix j. Lane 4 g + t gets the two numbers in row g, columns 2 t and 2 t + 1
    (the lower column in the low half); with ``.trans`` those in rows 2 t and 2 t + 1 of column g, that is, the
    fragment of the transposed matrix.

    Raises:
        EmulationError: ``divergent-warp`` unless each warp is complete; what `SharedMemory.load` raises.
    """
    count, transposed = _tiles(step.instruction.opcode)
    warps = whole_warps(step)
    rows = _rows(step, 1, count)
    loaded = step.machine.shared.load(step, rows, 16, mask=warps)  # (blocks, warps, 8 count, 4 words)
    tiles = loaded.reshape(*loaded.shape[:2], count, 8, 4)
    if transposed:
        tiles = np.ascontiguousarray(tiles.view(np.uint16).swapaxes(-1, -2)).view(np.uint32)
    for observer in step.machine.observers:
        observer.access(step, Access("shared", "ldmatrix", rows, 16, warps))
    step.write_vector(0, [tiles[:, :, j].reshape(*tiles.shape[:2], WARP) for j in range(count)])


@machine(
    "stmatrix.sync.aligned.m8n8.{x1,x2,x4}{,.trans}.{shared,shared::cta}.b16",
    "1, 2 or 4 tiles of 8 x 8 16-bit numbers to shared memory, each spread over the warp",
)
def stmatrix(step: FullStep) -> None:
    """``stmatrix.sync.aligned.m8n8.num{.trans}.shared.b16 [p], {r0, ..}`` (PTX ISA 9.0, 9.7.14.5.16): sm_90.

    Addresses and fragments are those of `ldmatrix`; each row counts as written by the lane that names it. Of rows at
    one address the last wins.

    Raises:
        EmulationError: ``divergent-warp`` unless each warp is complete; what `SharedMemory.store` raises.
    """
    count, transposed = _tiles(step.instruction.opcode)
    warps = whole_warps(step)
    rows = _rows(step, 0, count)
    registers = step.vector(1, "b32")
    if len(registers) != count:
        step.fail("syntax", "registers of stmatrix", expected=count, found=len(registers))
    tiles = np.stack(np.broadcast_arrays(*(tile_rows(register) for register in registers)), axis=2)
    if transposed:
        tiles = np.ascontiguousarray(tiles.view(np.uint16).reshape(*tiles.shape, 8).swapaxes(-1, -2))
    values = tiles.view(np.uint32).reshape(*tiles.shape[:2], 8 * count, 4)
    step.machine.shared.store(step, rows, 16, values, np.ones((1, 1, 1), np.bool_) if warps is None else warps)
    for observer in step.machine.observers:
        observer.access(step, Access("shared", "stmatrix", rows, 16, warps))


def _rows(step: FullStep, index: int, count: int) -> Array:
    """The addresses that the first lanes of each warp name, (blocks|1, warps|1, 8 x count)."""
    address = step.address(index)
    if address.shape[2] != WARP:
        address = np.broadcast_to(address, (*address.shape[:2], WARP))
    return address[..., : 8 * count]


@cache
def _tiles(opcode: str) -> tuple[int, bool]:
    """How many matrices an ``ldmatrix`` or ``stmatrix`` moves, and whether transposed."""
    parts = opcode.split(".")
    return int(parts[4].removeprefix("x")), "trans" in parts


@machine("movmatrix.sync.aligned.m8n8.trans.b16", "the fragment of the transposed 8 x 8 matrix")
def movmatrix(step: FullStep) -> None:
    """``movmatrix.sync.aligned.m8n8.trans.b16 d, a``: a tile in registers, transposed (PTX ISA 9.0, 9.7.14.5.17)."""
    whole_warps(step)
    tile = tile_rows(step.source(1, "b32")).view(np.uint16)
    tile = tile.reshape(*tile.shape[:2], 8, 8).swapaxes(-1, -2)
    step.write(0, np.ascontiguousarray(tile).view(np.uint32).reshape(*tile.shape[:2], WARP))


@machine("mma.sync.aligned.{m16n8k8,m16n8k16}.row.col.f32.f16.f16.f32", "D = A B + C; f16 factors, f32 sums")
@machine("mma.sync.aligned.{m16n8k8,m16n8k16}.row.col.f32.bf16.bf16.f32", "D = A B + C; bf16 factors, f32 sums")
@machine("mma.sync.aligned.{m16n8k8,m16n8k16}.row.col.f16.f16.f16.f16", "D = A B + C; f16 factors and results")
@machine("mma.sync.aligned.{m16n8k4,m16n8k8}.row.col.f32.tf32.tf32.f32", "D = A B + C; tf32 factors, f32 sums")
@machine(
    "mma.sync.aligned.{m16n8k16,m16n8k32}.row.col{,.satfinite}.s32.{s8,u8}.{s8,u8}.s32",
    "D = A B + C; 8-bit factors, 32-bit sums that wrap, or are clamped by .satfinite",
)
def mma(step: FullStep) -> None:
    """``mma.sync.aligned.m16n8kK.row.col{.satfinite}.dtype.atype.btype.ctype d, a, b, c`` (PTX ISA 9.0, 9.7.14.5).

    Each warp multiplies A (16 x K) by B (K x 8) and adds C (16 x 8). Fragments, with lane = 4 g + t, in tiles of 8 rows
    of 16 bytes (see the top of this file; K is one or two tiles wide):

    - A: register 0 is the tile of rows 0-7, register 1 that of rows 8-15, 2 and 3 the same of K's second half;
    - B: register 0 is a tile whose row g is *column* g of B, register 1 the same of K's second half: B's transpose;
    - C, D of 32 bits: registers 0 and 1 hold row g, columns 2 t and 2 t + 1; registers 2 and 3 hold row g + 8;
    - C, D of f16: register 0 is the tile of rows 0-7, register 1 that of rows 8-15.

    Raises:
        EmulationError: ``divergent-warp`` unless each warp is complete; ``syntax`` if registers do not make up K.
    """
    d_type, a_type, b_type, wide, saturate = _form(step.instruction.opcode)
    whole_warps(step)
    left, right, old = step.vector(1, "b32"), step.vector(2, "b32"), step.vector(3, "b32")
    sizes = len(left), len(right), len(old)
    if sizes != (2 * wide, wide, RESULTS[d_type]):
        step.fail("syntax", "registers of A, B, C", expected=(2 * wide, wide, RESULTS[d_type]), found=sizes)
    a = LEFT.matrix(step.machine, left, a_type)  # (blocks, warps, 16, K)
    b = RIGHT.matrix(step.machine, right, b_type)  # (blocks, warps, 8, K)
    product = np.matmul(a, b.swapaxes(-1, -2))  # (blocks, warps, 16, 8)
    step.write_vector(0, added(product, old, d_type, saturate=saturate))


@cache
def _form(opcode: str) -> tuple[str, str, str, int, bool]:
    """Types of D, A and B of an ``mma``, its tiles along K, and whether sums are clamped."""
    parts = opcode.split(".")
    d_type, a_type, b_type = parts[-4:-1]
    return d_type, a_type, b_type, int(parts[3].partition("k")[2]) * BYTES[a_type] // 16, "satfinite" in parts


def added(product: Array, c: Sequence[Array], d_type: str, *, saturate: bool) -> list[Array]:
    """The registers of D = product + C: product is (blocks, warps, 16, 8), float32, C's registers are ``b32``.

    Sums of 8-bit products stay below 2**24: float32 holds them exactly. ``f16`` is rounded once, from float32; ``s32``
    wraps, or is clamped with `saturate`.
    """
    if d_type == "f16":
        total = (product + stacked(c, 2).view(np.float16)).astype(np.float16).view(np.uint32)
        return [total[:, :, half : half + 8].reshape(*total.shape[:2], WARP) for half in (0, 8)]
    blocks, warps = product.shape[:2]
    split = product.reshape(blocks, warps, 2, 8, 4, 2)  # half of the rows, g, t, column parity
    parts = [split[:, :, half, :, :, odd].reshape(blocks, warps, WARP) for half in (0, 1) for odd in (0, 1)]
    if d_type == "f32":
        return [part + as_type(old, "f32") for part, old in zip(parts, c, strict=True)]
    sums = [part.astype(np.int64) + as_type(old, "s32") for part, old in zip(parts, c, strict=True)]
    if saturate:
        sums = [np.clip(value, -(1 << 31), (1 << 31) - 1) for value in sums]
    return [value.astype(np.int32) for value in sums]


def tile_rows(register: Array) -> Array:
    """A register as the rows of its tile: (blocks|1, warps|1, 8) of `ROW`, no copy where the lanes lie side by side."""
    if register.shape[-1] != WARP:
        register = np.broadcast_to(register, (*register.shape[:2], WARP))
    if register.strides[-1] != register.itemsize:
        register = np.ascontiguousarray(register)
    rows: Array = register.view(ROW)
    return rows


def stacked(registers: Sequence[Array], height: int) -> Array:
    """Tiles as one matrix: register r is tile r % height from the top, r // height from the left.

    The result is (blocks|1, warps|1, 8 x height, tiles from left to right) of `ROW`.
    """
    rows = [tile_rows(register) for register in registers]
    blocks, warps, _ = np.broadcast_shapes(*(tile.shape for tile in rows))
    matrix = np.empty((blocks, warps, height, 8, len(rows) // height), ROW)
    for r, tile in enumerate(rows):
        matrix[:, :, r % height, :, r // height] = tile
    return matrix.reshape(blocks, warps, 8 * height, -1)


def widened(raw: Array, ptx_type: str) -> Array:
    """The numbers of a matrix of `ROW`s as float32, exactly: (..., rows, K).

    NumPy's own f16 cast takes 1.2 ns a number where the processor's is not used; shifting exponent and fraction into
    place and multiplying by 2**112 takes 0.2 ns (AMD EPYC, NumPy 2.4, 2026). It reads infinity and NaN as
    numbers of 65536 and more, which is how they are noticed and left to NumPy.
    """
    if ptx_type == "tf32":  # the hardware ignores the low 13 bits of the fraction
        kept: Array = raw.view(np.uint32) & np.uint32(0xFFFFE000)
        return kept.view(np.float32)
    if ptx_type != "f16":
        numbers: Array = raw.view({"s8": np.dtype(np.int8), "u8": np.dtype(np.uint8), "bf16": BFLOAT16}[ptx_type])
        return numbers.astype(np.float32)
    spread = raw.view(np.int16).astype(np.int32)
    spread <<= 13
    spread &= np.int32(~0x70000000)  # the copies of the sign bit that sign extension left above the exponent
    number = spread.view(np.float32)
    number *= EXPONENT_SHIFT
    if number.max() >= 65536 or number.min() <= -65536:
        return raw.view(np.float16).astype(np.float32)
    return number


class Operands:
    """Matrices made from registers lately, kept because one fragment takes part in many products.

    Q stays in its registers for a whole kernel, a fragment of P meets every column tile of V. The key is the identity
    of the registers' arrays: they are immutable, and an entry holds them, so that no other array can take their place
    in memory. Nothing outlives the machine.

    Args:
        height: tiles from top to bottom: 2 for A (16 rows), 1 for the transpose of B (8 rows).
        limit: entries; A of K = 16 takes 1 KiB a warp, B 512 bytes.
    """

    def __init__(self, height: int, limit: int) -> None:
        self._height = height
        self._limit = limit
        self._entries: dict[tuple[object, ...], tuple[Sequence[Array], Array]] = {}
        self._owner: weakref.ref[FullMachine] | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        """Forgets everything."""
        self._entries.clear()

    def matrix(self, owner: FullMachine, registers: Sequence[Array], ptx_type: str) -> Array:
        """The matrix in these registers as float32, (blocks|1, warps|1, 8 x height, K)."""
        if self._owner is None or self._owner() is not owner:
            self.clear()
            self._owner = weakref.ref(owner, lambda _: self.clear())
        key = (ptx_type, *map(id, registers))
        entry = self._entries.pop(key, None)  # put back last: the first is the least recently used
        if entry is None:
            if len(self._entries) >= self._limit:
                del self._entries[next(iter(self._entries))]
            entry = (registers, widened(stacked(registers, self._height), ptx_type))
        self._entries[key] = entry
        return entry[1]


LEFT = Operands(height=2, limit=48)
RIGHT = Operands(height=1, limit=16)
OPERAND_BYTES = 48 * (1024 + 512) + 16 * (512 + 256)  # of the matrices kept and of their registers, per warp, at most
