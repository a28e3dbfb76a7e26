"""Machine code (SASS) as data: instructions, source lines, control codes, and counts by opcode class.

The classes are those of `results/published/published_sass_counts_sm80.csv`: the opcode up to its first dot.
`IMAD.MOV.U32`, a register move on the FMA pipe, is a class of its own.

The hardware has few interlocks. The assembler writes a control code into each instruction: the cycles to stall, the one
of six scoreboard barriers that it sets, and those that it waits for. NVIDIA does not document the bits. Their places
are those that Jia et al. found for Volta ("Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking", 2018,
section 2.1), the same from sm_70 to sm_90. `decoded` compares the reuse flags with nvdisasm's own ``.reuse``.

Run: ``invoke sass 8``; ``invoke sass 8 --control``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
import itertools
from pathlib import Path
import re
import subprocess
import tempfile

from flashladder.errors import FlashladderError
from flashladder.files import relative, unescaped
from flashladder.names import KERNEL
from flashladder.toolchain import find_toolchain

BYTES = 16  # of an instruction, from sm_70 on
SECTION = 128  # bytes; the assembler pads a section of code with NOP to a multiple of it
LONE_OPCODES = frozenset({"IMAD.MOV.U32"})

_SECTION = re.compile(r"^\s*\.section\s+\.text\.(?P<name>[^,\s]+)")
_SIZE = re.compile(r"^\s*\.size\s+(?P<name>[^,\s]+),\((?P<end>\.L_\w+) - ")
_LABEL = re.compile(r"^(?P<label>\.L_\w+):")
_SOURCE = re.compile(r'^\s*//## File "(?P<file>(?:[^"\\]|\\.)*)", line (?P<line>\d{1,9})\b')
_INSTRUCTION = re.compile(
    r"^\s*\{?\s*/\*(?P<address>[0-9a-f]+)\*/\s+(?:(?P<predicate>@\S+)\s+)?(?P<opcode>[A-Z][\w.]*)\s*(?P<operands>.*?)\s*;"
)
_NUMBER = re.compile(r"\b0x(?P<address>[0-9a-f]+)$")  # the target of a branch in code without labels
_TARGET = re.compile(r"`\((\.L_\w+)\)")
_LISTED = re.compile(r"(?:BRANCH_TARGETS |,)(\.L_\w+)")  # targets of an indirect branch, in a comment
INDIRECT = frozenset({"BRX", "BRXU", "JMX", "JMXU"})
_BRANCHES = frozenset({"BRA", "JMP", "CALL", "BREAK"}) | INDIRECT
TENSOR = ("HMMA", "HGMMA", "IMMA", "IGMMA")  # classes of matrix products: mma and wgmma
_ENDS = frozenset({"EXIT", "RET", "KILL"})


def opcode_class(opcode: str) -> str:
    """The class of an opcode: ``LDSM`` of ``LDSM.16.M88.4``; ``IMAD.MOV.U32`` stays whole."""
    return opcode if opcode in LONE_OPCODES else opcode.partition(".")[0]


@dataclass(frozen=True)
class Instruction:
    """One machine instruction, with its source line (None without ``-lineinfo``)."""

    address: int
    predicate: str
    opcode: str
    operands: str
    file: str | None = None
    line: int | None = None

    @property
    def opcode_class(self) -> str:
        """Its class in counts."""
        return opcode_class(self.opcode)

    def __str__(self) -> str:
        """The instruction as nvdisasm prints it, without its address."""
        return " ".join(part for part in (self.predicate, self.opcode, self.operands) if part)


def count(instructions: Iterable[Instruction]) -> dict[str, int]:
    """Instructions per opcode class, and their sum as ``total``; classes in order of name."""
    counts = Counter(instruction.opcode_class for instruction in instructions)
    return {"total": sum(counts.values()), **dict(sorted(counts.items()))}


@dataclass(frozen=True)
class Sass:
    """The machine code of one kernel: its instructions in address order, and the addresses of its labels."""

    instructions: tuple[Instruction, ...]
    labels: Mapping[str, int]

    def counts(self) -> dict[str, int]:
        """Instructions per opcode class in the whole kernel."""
        return count(self.instructions)

    @cached_property
    def index(self) -> Mapping[int, int]:
        """Place among `instructions` of each address."""
        return {instruction.address: i for i, instruction in enumerate(self.instructions)}

    def targets(self, instruction: Instruction) -> list[int]:
        """Addresses to which a branch may go; none for another instruction."""
        if instruction.opcode_class not in _BRANCHES:
            return []
        found = _TARGET.findall(instruction.operands) + _LISTED.findall(instruction.operands)
        return [self.labels[name] for name in found if name in self.labels]

    def moves_control(self, instruction: Instruction) -> bool:
        """Whether another instruction than the next may follow: a branch, a call or an end."""
        return instruction.opcode_class in _ENDS or bool(self.targets(instruction))


def never_falls_through(instruction: Instruction) -> bool:
    """Whether it is an unconditional exit or jump: no predicate, and no condition before the target."""
    kind = instruction.opcode_class
    always = kind in _ENDS or kind in INDIRECT or (kind in {"BRA", "JMP"} and "," not in instruction.operands)
    return always and not instruction.predicate


def parse(text: str, kernel: str = KERNEL) -> Sass:  # noqa: C901, PLR0912 - one branch for each kind of line and check
    """Reads ``nvdisasm -c -g``; `FlashladderError`: no such kernel, an unknown line, a lost or repeated instruction."""
    sections, waiting = list[str](), list[str]()  # labels wait for the instruction after them
    instructions, labels = list[Instruction](), dict[str, int]()
    end, file, line = "", None, None
    for number, row in enumerate(text.splitlines(), 1):
        if match := _SECTION.match(row):
            sections.append(match["name"])
        elif not sections or sections[-1] != kernel:
            continue
        elif match := _SIZE.match(row):
            end = match["end"] if match["name"] == kernel else end
        elif match := _LABEL.match(row):
            waiting.append(match["label"])
        elif match := _SOURCE.match(row):
            file, line = unescaped(match["file"]), int(match["line"])
        elif match := _INSTRUCTION.match(row):
            address = int(match["address"], 16)
            if address != len(instructions) * BYTES:
                what, expected = "a gap in nvdisasm's listing", f"{len(instructions) * BYTES:04x}"
                raise FlashladderError(what, where=f"line {number}", expected=expected, found=match[0])
            labels.update(dict.fromkeys(waiting, address))
            waiting.clear()
            predicate = match["predicate"] or ""
            instructions.append(Instruction(address, predicate, match["opcode"], match["operands"], file, line))
        elif row.lstrip().startswith("/*"):
            raise FlashladderError("unknown line of nvdisasm", where=f"line {number}", found=row.strip())
    if not instructions:
        found = ", ".join(sections) or "no .text section"
        raise FlashladderError("no machine code of the kernel", expected=f".text.{kernel}", found=found)
    if end and (end not in waiting or len(instructions) * BYTES % SECTION):
        raise FlashladderError("nvdisasm's listing is cut", where=f".text.{kernel}", expected=f"{end} at its end")
    for one in (one for one in instructions if one.opcode_class in _BRANCHES):
        if any(name not in labels and f"\n{name}:" not in text for name in _TARGET.findall(one.operands)):
            raise FlashladderError("a branch to nowhere in nvdisasm's listing", found=f"{one.address:04x} {one}")
    return Sass(tuple(instructions), labels)


def disassemble_many(codes: Sequence[bytes], arch: str, nvdisasm: Path) -> list[Sass]:
    """Kernels of one architecture from their machine code alone (the ``.text`` section), without source lines.

    nvdisasm takes 0.2 s to start and 0.02 s for a kernel, so it reads all kernels as one piece of code. Such code has
    no labels: they are made from the targets of branches. It is an error if nvdisasm fails or reads other code.
    """
    with tempfile.NamedTemporaryFile(suffix=".bin") as raw:
        raw.write(b"".join(codes))
        raw.flush()
        text = _output(nvdisasm, ["-b", arch.upper().replace("_", ""), "-ndf"], Path(raw.name)) if codes else ""
    rows = (match for row in text.splitlines() if (match := _INSTRUCTION.match(row)))
    found, begin = [], 0
    for code in codes:
        instructions, labels = [], dict[str, int]()
        for row in itertools.islice(rows, len(code) // BYTES):
            opcode, operands = row["opcode"], row["operands"]
            if opcode_class(opcode) in _BRANCHES and (target := _NUMBER.search(operands)):
                place = int(target["address"], 16) - begin
                labels[f".L_{place:x}"] = place
                operands = f"{operands[: target.start()]}`(.L_{place:x})"
            instructions.append(Instruction(int(row["address"], 16) - begin, row["predicate"] or "", opcode, operands))
        if [one.address for one in instructions] != list(range(0, len(code), BYTES)):
            expected = f"{len(code) // BYTES} instructions"
            raise FlashladderError("nvdisasm read other code", expected=expected, found=len(instructions))
        found.append(Sass(tuple(instructions), labels))
        begin += len(code)
    return found


def run_nvdisasm(cubin: Path, *, lines: bool = True, symbol: int | None = None) -> str:
    """The output of ``nvdisasm -c -g`` for a cubin, or for its function `symbol`.

    nvdisasm is faster by a quarter without source `lines`, and by another one without data-flow analysis (``-ndf``).
    """
    if not cubin.is_file():
        raise FlashladderError("no such cubin", where=relative(cubin))
    only = [] if symbol is None else ["-fun", str(symbol)]
    return _output(find_toolchain().nvdisasm, ["-c", *(["-g"] if lines else []), "-ndf", *only], cubin)


def _output(nvdisasm: Path, options: Sequence[str], path: Path) -> str:
    try:
        done = subprocess.run([str(nvdisasm), *options, str(path)], capture_output=True, text=True, check=False)
    except OSError as error:
        raise FlashladderError(f"could not run nvdisasm ({error.strerror})", where=relative(nvdisasm)) from error
    if done.returncode:
        raise FlashladderError("nvdisasm failed", where=relative(path), found=done.stderr or done.returncode)
    return done.stdout


def disassemble(cubin: Path, kernel: str = KERNEL, *, lines: bool = True) -> Sass:
    """`kernel` of a cubin, with source `lines` or without; `FlashladderError`: it is not there, or nvdisasm failed."""
    return parse(run_nvdisasm(cubin, lines=lines), kernel)


_BEGIN = 105  # first bit of the control code in the 128 bits
_NONE = 7  # the barrier number that means no barrier
N_BARRIERS = 6
ARCHES = range(70, 91)  # architectures whose control codes have these places

LEGEND = "B: barriers waited for; R, W: barrier set when operands are read, result is written; Y: may yield; S: stall"


@dataclass(frozen=True)
class Control:
    """The control code of one instruction."""

    stall: int  # cycles until the next instruction of the warp may issue
    yields: bool  # whether the scheduler may switch to another warp
    write: int | None  # the barrier that is released when the result is written
    read: int | None  # the barrier that is released when the operands are read
    waits: tuple[int, ...]  # the barriers that must be released before it issues
    reuse: tuple[int, ...]  # operand slots that keep their register for the next instruction

    def __str__(self) -> str:
        """Fixed width: ``B0-----:R-:W1:Y:S04``; reuse is in the operands."""
        waits = "".join(str(one) if one in self.waits else "-" for one in range(N_BARRIERS))
        read, write = ("-" if one is None else str(one) for one in (self.read, self.write))
        return f"B{waits}:R{read}:W{write}:{'Y' if self.yields else '-'}:S{self.stall:02d}"


def control_of(encoding: bytes) -> Control:
    """The control code of one instruction, from its 16 bytes in the cubin; `FlashladderError` for another number."""
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
    """The control codes of a kernel's machine code, 16 bytes per instruction, which nvdisasm reads as `instructions`.

    An architecture with unknown control codes is an error, and so are reuse flags that differ from nvdisasm's: then the
    code is of other instructions, or the bits have other places.
    """
    if int(arch.removeprefix("sm_").rstrip("af")) not in ARCHES:
        raise FlashladderError("control codes are not known", expected="sm_70 to sm_90", found=arch)
    found = []
    for one in instructions:
        control, n_reused = control_of(code[one.address : one.address + BYTES]), one.operands.count(".reuse")
        if len(control.reuse) != n_reused:
            where, expected = f"address {one.address:04x}", f"{n_reused} reuse flags, as in {one}"
            what = "the control code does not fit its instruction"
            raise FlashladderError(what, where=where, expected=expected, found=len(control.reuse))
        found.append(control)
    return found
