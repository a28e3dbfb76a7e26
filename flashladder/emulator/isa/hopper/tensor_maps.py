"""Tensor maps that a program changes, or puts together, in memory: ``tensormap.replace`` and its kin.

Why: a kernel that learns its tensors' addresses and sizes on the device (grouped products, what Triton makes of a
descriptor) copies a map to shared memory, changes fields of it, and copies it to global memory, where copies name it.
The fields lie where `tensor_map` puts them, not where a GPU does: nobody may look.

Source: PTX ISA 9.0, 9.7.9.28 (tensormap.replace), 9.7.13.16 (tensormap.cp_fenceproxy).
"""

from __future__ import annotations

import numpy as np

from flashladder.emulator.errors import EmulationError
from flashladder.emulator.isa.loads import read, write
from flashladder.emulator.machine.copies.issue import Issue
from flashladder.emulator.machine.copies.tensor_map import MAP_ALIGNMENT, MAP_BYTES, replaced
from flashladder.emulator.machine.state import Step
from flashladder.emulator.syntax.tree import Immediate
from flashladder.emulator.table import machine
from flashladder.emulator.values import Array

_SPACES = "{,.global,.shared::cta}"
_SCALARS = "rank,elemtype,interleave_layout,swizzle_mode,fill_mode"


def _space(opcode: str) -> str:
    """The state space of a map that is changed: shared, global or (none named) generic."""
    return "shared" if ".shared" in opcode else "global" if ".global." in opcode else ""


def _words(step: Step, space: str, operand: int) -> list[Array]:
    """The 128 bytes at an address, as sixteen values of 64 bits."""
    issue, address = Issue.of(step), step.address(operand)
    odd = issue.take(address) % MAP_ALIGNMENT != 0
    issue.refuse(odd, "misaligned", "a tensor map", expected=f"a multiple of {MAP_ALIGNMENT}")
    return [read(step, space, address + np.uint64(place), 8) for place in range(0, MAP_BYTES, 8)]


def _store(step: Step, space: str, operand: int, words: list[Array]) -> None:
    address = step.address(operand)
    for place, word in enumerate(words):
        write(step, space, address + np.uint64(8 * place), 8, word)


@machine(f"tensormap.replace.tile.global_address{_SPACES}.b1024.b64", "another address in a tensor map")
@machine(f"tensormap.replace.tile.{{{_SCALARS}}}{_SPACES}.b1024.b32", "another choice in a tensor map")
@machine(f"tensormap.replace.tile.{{box_dim,global_dim,element_stride}}{_SPACES}.b1024.b32", "another size of axis b")
@machine(f"tensormap.replace.tile.global_stride{_SPACES}.b1024.b64", "another stride of axis b + 1")
def replace(step: Step) -> None:
    """``tensormap.replace.tile.field [map]{, axis}, value``."""
    opcode, operands = step.instruction.opcode, step.instruction.operands
    axis = operands[1] if len(operands) == 3 else Immediate(0)
    if not isinstance(axis, Immediate):
        step.fail("unsupported", "axis of a field of a tensor map", expected="a constant", found=str(axis))
    issue, space, field = Issue.of(step), _space(opcode), opcode.split(".")[3]
    words = _words(step, space, 0)
    values = issue.take(step.source(len(operands) - 1, opcode.rpartition(".")[2]))
    table = np.stack([step.machine.full(word)[issue.lanes] for word in words], axis=1).astype(np.uint64)
    try:
        for row, value in enumerate(values):
            contents = replaced(table[row].tobytes(), field, axis.value, int(value))
            table[row] = np.frombuffer(contents, dtype=np.uint64)
    except EmulationError as error:
        step.fail("tensor map", str(error).partition(": ")[2])
    changed = np.zeros((len(words), *step.machine.shape), dtype=np.uint64)
    changed[(slice(None), *issue.lanes)] = table.T
    _store(step, space, 0, list(changed))


@machine(
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release{.cta,.cluster,.gpu,.sys}.sync.aligned",
    "copies a tensor map from shared to global memory, where copies may name it",
)
def publish(step: Step) -> None:
    """``tensormap.cp_fenceproxy... [global], [shared], 128``."""
    if step.instruction.operands[2] != Immediate(MAP_BYTES):
        step.fail("syntax", "size of a tensor map", expected=MAP_BYTES, found=str(step.instruction.operands[2]))
    _store(step, "global", 0, _words(step, "shared", 1))
