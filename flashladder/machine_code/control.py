"""What an instruction waits for and signals: the control code in the upper bits of its 128-bit encoding.

Why: the hardware has no interlocks for most of what it does; the assembler writes into each instruction how many cycles
to stall, which of six scoreboard barriers it sets and which it waits for. That is where latency shows in the listing.
No document of NVIDIA's describes the bits. Their places are those that Jia et al. found for Volta ("Dissecting the
NVIDIA Volta GPU Architecture via Microbenchmarking", 2018, section 2.1), the same from sm_70 to sm_90; the reuse flags
are checked against nvdisasm's own ``.reuse`` in every listing (`decoded`).

Run: ``invoke sass 8 --control``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashladder.errors import FlashladderError
from flashladder.machine_code.sass import BYTES, Instruction

_BEGIN = 105  # of the control code among the 128 bits
_NONE = 7  # a barrier's number that means none
N_BARRIERS = 6
ARCHES = range(70, 91)  # numbers of the architectures that are known to have these places

LEGEND = "B: barriers waited for; R, W: barrier set when operands are read, result is written; Y: may yield; S: stall"


@dataclass(frozen=True)
class Control:
    """The control code of one instruction.

    Attributes:
        stall: cycles until the next instruction of the warp may issue.
        yields: whether the scheduler may turn to another warp.
        write: the barrier that is released when the result is written; None for none.
        read: the barrier that is released when the operands are read; None for none.
        waits: the barriers that must be released before it issues.
        reuse: operand slots whose register is kept for the next instruction.
    """

    stall: int
    yields: bool
    write: int | None
    read: int | None
    waits: tuple[int, ...]
    reuse: tuple[int, ...]

    def __str__(self) -> str:
        """Fixed width: ``B0-----:R-:W1:Y:S04``; reuse is in the operands."""
        waits = "".join(str(one) if one in self.waits else "-" for one in range(N_BARRIERS))
        read, write = ("-" if one is None else str(one) for one in (self.read, self.write))
        return f"B{waits}:R{read}:W{write}:{'Y' if self.yields else '-'}:S{self.stall:02d}"


def control_of(encoding: bytes) -> Control:
    """The control code of one instruction.

    Args:
        encoding: its 16 bytes, as they stand in the cubin.

    Raises:
        FlashladderError: another number of bytes.
    """
    if len(encoding) != BYTES:
        raise FlashladderError("not an instruction", expected=f"{BYTES} bytes", found=len(encoding))
    bits = int.from_bytes(encoding, "little") >> _BEGIN
    write, read, waits, reuse = bits >> 5 & 7, bits >> 8 & 7, bits >> 11 & 63, bits >> 17 & 15
    return Control(
        stall=bits & 15,
        yields=not bits >> 4 & 1,
        write=None if write == _NONE else write,
        read=None if read == _NONE else read,
        waits=tuple(one for one in range(N_BARRIERS) if waits >> one & 1),
        reuse=tuple(one for one in range(4) if reuse >> one & 1),
    )


def decoded(code: bytes, instructions: Sequence[Instruction], arch: str) -> list[Control]:
    """The control codes of a kernel's instructions.

    Args:
        code: the kernel's machine code, 16 bytes per instruction.
        instructions: what nvdisasm made of it.
        arch: ``sm_80``.

    Raises:
        FlashladderError: another architecture, code that is not these instructions', or reuse flags that differ from
            what nvdisasm printed: the bits lie elsewhere than is known.
    """
    if int(arch.removeprefix("sm_").rstrip("af")) not in ARCHES:
        raise FlashladderError("control codes are not known", expected="sm_70 to sm_90", found=arch)
    found = []
    for one in instructions:
        control = control_of(code[one.address : one.address + BYTES])
        if len(control.reuse) != one.operands.count(".reuse"):
            raise FlashladderError(
                "the control code does not fit its instruction",
                where=f"address {one.address:04x}",
                expected=f"{one.operands.count('.reuse')} reuse flags, as in {one}",
                found=len(control.reuse),
            )
        found.append(control)
    return found
