"""Machine code as the model of an SM sees it: which pipe an instruction takes, how long, and when its result is there.

Why: of an instruction only a few numbers decide its time; they are looked up once, not in every round of a loop. An
opcode that stands in no table here is an error, never a guess.

Try ``steps_of(instructions, cubin.text, chip)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
import re
from typing import Literal

from flashladder.errors import FlashladderError
from flashladder.explain.chip import ASSUMED, Chip
from flashladder.machine_code.sass import BYTES, Instruction, control_of

Kind = Literal["plain", "mma", "shared", "copy", "commit", "wait", "barrier", "branch", "end"]
PIPES = ("mma", "fma", "alu", "mufu", "uniform")
SHARED = ("LDSM", "LDS", "STS", "SHFL", "LDG", "STG", "LDL", "STL", "LDGSTS")
_LOADS = ("LDSM", "LDS", "LDL")
_KINDS: Mapping[str, Kind] = {
    "HMMA": "mma", **dict.fromkeys(SHARED, "shared"), "LDGSTS": "copy", "LDGDEPBAR": "commit", "DEPBAR": "wait",
    "BAR": "barrier", "BRA": "branch", "EXIT": "end",
}  # fmt: skip
_OPCODES = {
    "mma": "HMMA",
    "fma": "FFMA FMUL FADD",
    "imad": "IMAD F2FP",
    "mufu": "MUFU I2F",  # whole numbers become floats where exponentials are made
    "alu": "BMSK CS2R FMNMX FSEL FSETP HADD2 HFMA2 HMUL2 I2FP IABS IADD3 IMNMX ISETP LEA LOP3 MOV P2R PLOP3 POPC "
    "PRMT R2P SEL SGXT SHF VIADD VIMNMX VOTE",
    "uniform": "BREAK BSSY BSYNC CALL LDC NOP R2UR RET S2R S2UR WARPSYNC YIELD R2B MEMBAR ERRBAR CCTL",
}
_SHARED_PIPE = {"imad": "fma"}  # what takes a pipe for another time than most of its instructions
_PIPE_OF = {opcode: pipe for pipe, text in _OPCODES.items() for opcode in text.split()}
_UNIFORM = re.compile(r"^U[A-Z]")  # the uniform datapath: one for a scheduler
_REGISTER = re.compile(r"\bR(\d+)")
_GROUPS_LEFT = re.compile(r"SB\d,\s*(0x[0-9a-f]+|\d+)")
_OFF = "@!PT"  # never runs, takes its slot
_MMA_OPERANDS = (4, 4, 2, 4)  # registers of D, A, B and C of HMMA.16816.F32
_LANE_BYTES = 32  # lanes
HALF = 2.0  # the uniform datapath is taken for two clocks


@dataclass(frozen=True)
class Step:
    """One instruction.

    Attributes:
        text: the instruction.
        kind: what it does beside taking a pipe.
        pipe: place in `PIPES`; None for what takes no pipe of a scheduler's own.
        holds: clocks for which it takes the pipe; `issues` those for which nothing else is issued.
        stall: clocks to the warp's next instruction, at least.
        waits: scoreboards that must be clear.
        written, read: scoreboards that it sets until its result is there, and until its operands were read.
        latency: clocks to its result; of a memory instruction, without its wavefronts.
        wavefronts: for which it takes the pipe of shared memory; `returns` clocks of the way back.
        copied: bytes that it brings from L2.
        left: groups of copies that a wait leaves in flight.
        after: registers that it reads, as far as an mma may still be writing them.
        makes: registers that an mma writes.
    """

    text: str
    kind: Kind
    pipe: int | None
    holds: float
    issues: float
    stall: int
    waits: tuple[int, ...]
    written: int | None
    read: int | None
    latency: float = 0.0
    wavefronts: float = 0.0
    returns: float = 0.0
    copied: int = 0
    left: int = 0
    after: tuple[int, ...] = ()
    makes: tuple[int, ...] = ()

    @property
    def opcode_class(self) -> str:
        """The opcode up to its first dot."""
        return self.text.partition(" ")[0].partition(".")[0]


def steps_of(instructions: Iterable[Instruction], text: bytes, chip: Chip, conflicts: float = 1.0) -> tuple[Step, ...]:
    """Instructions, in the order in which a warp runs them, as steps.

    Args:
        instructions: any of a kernel, as often as they run.
        text: the kernel's ``.text`` section.
        chip: the SM.
        conflicts: wavefronts of an ldmatrix over those that it has without bank conflicts.

    Raises:
        FlashladderError: an opcode that the model does not know.
    """
    known: dict[int, Step] = {}
    found = []
    for one in instructions:
        if one.address not in known:
            known[one.address] = _step(one, text, chip, conflicts)
        found.append(known[one.address])
    return tuple(found)


def _step(one: Instruction, text: bytes, chip: Chip, conflicts: float) -> Step:
    code = control_of(text[one.address : one.address + BYTES])
    opcode = "NOP" if one.predicate == _OFF else one.opcode
    name = opcode.partition(".")[0]
    kind = _KINDS.get(name, "plain")
    pipe = _pipe(name, one) if kind in ("plain", "mma") else None
    waves = _wavefronts(opcode, conflicts) if kind in ("shared", "copy") else 0.0
    left = _GROUPS_LEFT.search(one.operands) if kind == "wait" else None
    return Step(
        text=str(one),
        kind=kind,
        pipe=None if pipe is None else PIPES.index(_SHARED_PIPE.get(pipe, pipe)),
        holds=0.0 if pipe is None else HALF if pipe == "uniform" else getattr(chip, pipe),
        issues=chip.mma_issue if kind == "mma" else 1.0,
        stall=max(1, code.stall),
        waits=code.waits,
        written=code.write,
        read=code.read,
        latency=_latency(name, chip),
        wavefronts=waves,
        returns=waves * chip.shared_return if name in _LOADS else 0.0,
        copied=lane_bytes(opcode) * _LANE_BYTES if kind == "copy" else 0,
        left=int(left[1], 0) if left else 0,
        after=_reads(kind, one.operands),
        makes=tuple(_registers(one.operands)[0]) if kind == "mma" else (),
    )


def _pipe(name: str, one: Instruction) -> str:
    if name in _PIPE_OF:
        return _PIPE_OF[name]
    if _UNIFORM.match(name):
        return "uniform"
    raise FlashladderError(
        "the model does not know what an instruction takes", where=f"address {one.address:#x}", found=str(one),
        hint="add its opcode to flashladder/explain/steps.py",
    )  # fmt: skip


@lru_cache(maxsize=256)
def lane_bytes(opcode: str) -> int:
    """Bytes per lane that a memory instruction moves: 4 unless its opcode says 64 or 128 bits."""
    parts = opcode.split(".")
    return 16 if "128" in parts else 8 if "64" in parts else 4


def _wavefronts(opcode: str, conflicts: float) -> float:
    """Wavefronts of 128 bytes; of an ldmatrix as many as matrices, of other accesses without conflicts."""
    name, _, rest = opcode.partition(".")
    if name == "LDSM":
        return float(rest.rpartition(".")[2]) * conflicts if rest[-1].isdigit() else conflicts
    if name == "LDGSTS":
        return ASSUMED.copy_wavefronts * lane_bytes(opcode) / 16
    return lane_bytes(opcode) / 4


def _latency(name: str, chip: Chip) -> float:
    if name in ("LDSM", "LDS", "LDL", "STS"):
        return chip.shared_latency
    fixed = {
        "HMMA": chip.mma_latency, "MUFU": chip.mufu_latency, "SHFL": chip.shuffle_latency, "LDG": chip.l2_latency,
        "STG": ASSUMED.store, "STL": ASSUMED.store, "LDGSTS": 0.0,
    }  # fmt: skip
    return fixed.get(name, ASSUMED.variable)


def _registers(operands: str) -> list[range]:
    """Registers of D, A, B and C of an mma."""
    parts = operands.split(",")[:4]
    found = []
    for part, size in zip(parts, _MMA_OPERANDS, strict=False):
        match = _REGISTER.search(part)
        first = int(match[1]) if match else 0
        found.append(range(first, first + size) if match else range(0))
    return found


def _reads(kind: Kind, operands: str) -> tuple[int, ...]:
    """Registers that may have to wait for an mma: those named, of an mma all of A, B and C."""
    if kind == "mma":
        return tuple(register for part in _registers(operands)[1:] for register in part)
    return tuple(int(match[1]) for match in _REGISTER.finditer(operands.partition(",")[2]))
