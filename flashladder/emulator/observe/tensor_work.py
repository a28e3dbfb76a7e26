"""What the tensor cores and shared memory of one SM do for an instruction of a warpgroup, at best.

Why: an ideal number says how far a kernel could go. A ``wgmma`` of N columns occupies the four tensor cores of an SM of
compute capability 9.0 for N / 2 cycles, whatever its 32 bytes along K hold (4096 multiplications and additions of f16
numbers a cycle). It reads B once, and A as well unless that is in registers, at 128 bytes a cycle: with few columns
that takes longer. Source of the rates: NVIDIA H100 Tensor Core GPU Architecture (989 dense TFLOP/s of f16 at 1.83 GHz
with 132 SMs); of the second limit: measured rates of narrow products (arXiv 2402.13499).
"""

from __future__ import annotations

from flashladder.emulator.syntax.tree import Instruction, Vector

WARPS = 4  # of a warpgroup
ROW_BYTES = 32  # of A and B along K
M = 64
SHARED_BYTES = 128  # that an SM's shared memory delivers in a cycle
COLUMNS_PER_CYCLE = 2
PRODUCT = "wgmma.mma_async."


def columns(instruction: Instruction) -> int:
    """N of a ``wgmma.mma_async``."""
    return int(instruction.opcode.split(".")[4].partition("n")[2].partition("k")[0])


def tensor_cycles(instruction: Instruction) -> int:
    """Cycles of the tensor cores for a warpgroup's instruction, 0 for others."""
    return columns(instruction) // COLUMNS_PER_CYCLE if instruction.opcode.startswith(PRODUCT) else 0


def operand_bytes(instruction: Instruction) -> int:
    """Bytes of shared memory that it reads, 0 for others."""
    if not instruction.opcode.startswith(PRODUCT):
        return 0
    rows = columns(instruction) + (0 if isinstance(instruction.operands[1], Vector) else M)
    return rows * ROW_BYTES


def cycles(instruction: Instruction) -> int:
    """Cycles at best: those of the tensor cores, or of shared memory where that takes longer."""
    return max(tensor_cycles(instruction), operand_bytes(instruction) // SHARED_BYTES)
