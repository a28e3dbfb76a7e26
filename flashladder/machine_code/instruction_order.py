"""How far loads of fragments stand before the tensor instructions that need them, in PTX and in machine code.

Why: some steps change no opcode and no count, only the order: a double buffer asks for the next fragments before it
multiplies the current ones. In PTX every register has one purpose, so that the first reader is known; ptxas moves and
reuses registers, so that in machine code the order of the two kinds is measured without asking who reads what.
"""

from __future__ import annotations

from collections.abc import Iterable
import re

from flashladder.machine_code.ptx import normalise
from flashladder.machine_code.sass import Instruction

_REGISTER = re.compile(r"%\w+")
_GROUP = re.compile(r"\{([^{}]*)\}")


def mma_before_use(ptx: str) -> int:
    """For each ``ldmatrix`` the ``mma`` that stand between it and the first one that reads it, summed.

    A load that no ``mma`` reads adds nothing.
    """
    issued, found = 0, 0
    waiting: dict[str, tuple[int, int]] = {}  # register -> its load, and the mma issued before that load
    for load, statement in enumerate(normalise(ptx).split(";")):
        line = statement.strip().rpartition("\n")[2]
        if line.startswith("ldmatrix."):
            waiting |= dict.fromkeys(_REGISTER.findall(_GROUP.findall(line)[0]), (load, issued))
        elif line.startswith("mma."):
            _, left, right, _ = _GROUP.findall(line)  # results and addends are no fragments of Q, K, V
            read = {waiting[name] for name in _REGISTER.findall(left + right) if name in waiting}
            found += sum(issued - before for _, before in read)
            waiting = {name: load for name, load in waiting.items() if load not in read}
            issued += 1
    return found


def mma_same_a(ptx: str) -> int:
    """The ``mma`` whose A fragment is that of the ``mma`` before it, whatever stands between the two."""
    found, before = 0, ""
    for statement in normalise(ptx).split(";"):
        line = statement.strip().rpartition("\n")[2]
        if line.startswith("mma."):
            _, left, _, _ = _GROUP.findall(line)
            found += left == before
            before = left
    return found


def hmma_after_ldsm(instructions: Iterable[Instruction]) -> int:
    """For each ``LDSM`` the ``HMMA`` that stand after it, summed: equal for equal orders of the two."""
    loads, found = 0, 0
    for instruction in instructions:
        loads += instruction.opcode_class == "LDSM"
        found += loads * (instruction.opcode_class == "HMMA")
    return found
