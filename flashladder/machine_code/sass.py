"""Machine code (SASS) as data: instructions, source lines, control codes, and counts by opcode class.

The classes are those of `results/published/published_sass_counts_sm80.csv`: the opcode up to its first dot, except that
`IMAD.MOV.U32`, which is a register move issued on the FMA pipe, is counted on its own.

A control code says what an instruction waits for and signals. The hardware has few interlocks: the assembler writes
into each instruction how many cycles to stall, which of six scoreboard barriers it sets and which it waits for. NVIDIA
does not document the bits; their places are those that Jia et al. found for Volta ("Dissecting the NVIDIA Volta GPU
Architecture via Microbenchmarking", 2018, section 2.1), the same from sm_70 to sm_90. `decoded` checks the reuse flags
against nvdisasm's own ``.reuse``.

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

BYTES = 16  # of an instruction, from sm_70 on
SECTION = 128  # bytes, to a multiple of which the assembler fills a section of code up with NOP
LONE_OPCODES = frozenset({"IMAD.MOV.U32"})

_SECTION = re.compile(r"^\s*\.section\s+\.text\.(?P<name>[^,\s]+)")
_SIZE = re.compile(r"^\s*\.size\s+(?P<name>[^,\s]+),\((?P<end>\.L_\w+) - ")
_LABEL = re.compile(r"^(?P<label>\.L_\w+):")
_SOURCE = re.compile(r'^\s*//## File "(?P<file>(?:[^"\\]|\\.)*)", line (?P<line>\d{1,9})\b')
_INSTRUCTION = re.compile(
    r"^\s*\{?\s*/\*(?P<address>[0-9a-f]+)\*/\s+(?:(?P<predicate>@\S+)\s+)?(?P<opcode>[A-Z][\w.]*)\s*(?P<operands>.*?)\s*;"
)
_NUMBER = re.compile(r"\b0x(?P<address>[0-9a-f]+)$")  # where a branch goes, in code without labels
_TARGET = re.compile(r"`\((\.L_\w+)\)")
_LISTED = re.compile(r"(?:BRANCH_TARGETS |,)(\.L_\w+)")  # of an indirect branch, in a comment
INDIRECT = frozenset({"BRX", "BRXU", "JMX", "JMXU"})
_BRANCHES = frozenset({"BRA", "JMP", "CALL", "BREAK"}) | INDIRECT
TENSOR = ("HMMA", "HGMMA", "IMMA", "IGMMA")  # classes of matrix products: mma and wgmma
_ENDS = frozenset({"EXIT", "RET", "KILL"})


def opcode_class(opcode: str) -> str:
    """The class an opcode is counted in: ``LDSM.16.M88.4`` is ``LDSM``, ``IMAD.MOV.U32`` stays whole."""
    return opcode if opcode in LONE_OPCODES else opcode.partition(".")[0]


@dataclass(frozen=True)
class Instruction:
    """One machine instruction, with the source line that it came from (None without ``-lineinfo``)."""

    address: int
    predicate: str
    opcode: str
    operands: str
    file: str | None = None
    line: int | None = None

    @property
    def opcode_class(self) -> str:
        """The class it is counted in."""
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
    """The machine code of one kernel: its instructions in address order and where its labels point."""

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
        """Addresses to which a branch may go; none for what is no branch."""
        if instruction.opcode_class not in _BRANCHES:
            return []
        found = _TARGET.findall(instruction.operands) + _LISTED.findall(instruction.operands)
        return [self.labels[name] for name in found if name in self.labels]

    def moves_control(self, instruction: Instruction) -> bool:
        """Whether another instruction than the next one may follow: a branch, a call or an end."""
        return instruction.opcode_class in _ENDS or bool(self.targets(instruction))


def never_falls_through(instruction: Instruction) -> bool:
    """An exit or a plain jump; a predicate, or a condition before the target, makes it able to fall through."""
    if instruction.predicate:
        return False
    if instruction.opcode_class in _ENDS or instruction.opcode_class in INDIRECT:
        return True
    return instruction.opcode_class in {"BRA", "JMP"} and "," not in instruction.operands


def parse(text: str, kernel: str = KERNEL) -> Sass:  # noqa: C901, PLR0912 - a kind of line each, then what must hold
    """Reads what ``nvdisasm -c -g`` prints.

    Raises:
        FlashladderError: there is no such kernel, an unknown instruction, or not every instruction of it, each once.
    """
    sections: list[str] = []
    end = ""
    instructions: list[Instruction] = []
    waiting: list[str] = []
    labels: dict[str, int] = {}
    file, line = None, None
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
                expected = f"{len(instructions) * BYTES:04x}"
                raise FlashladderError(
                    "a gap in nvdisasm's listing", where=f"line {number}", expected=expected, found=match[0]
                )
            labels.update(dict.fromkeys(waiting, address))
            waiting.clear()
            predicate = match["predicate"] or ""
            instructions.append(Instruction(address, predicate, match["opcode"], match["operands"], file, line))
        elif row.lstrip().startswith("/*"):
            raise FlashladderError("unknown line of nvdisasm", where=f"line {number}", found=row.strip())
    if not instructions:
        raise FlashladderError(
            "no machine code of the kernel", expected=f".text.{kernel}", found=", ".join(sections) or "no .text section"
        )
    if end and (end not in waiting or len(instructions) * BYTES % SECTION):
        raise FlashladderError("nvdisasm's listing is cut", where=f".text.{kernel}", expected=f"{end} at its end")
    for one in (one for one in instructions if one.opcode_class in _BRANCHES):
        if any(name not in labels and f"\n{name}:" not in text for name in _TARGET.findall(one.operands)):
            raise FlashladderError("a branch to nowhere in nvdisasm's listing", found=f"{one.address:04x} {one}")
    return Sass(tuple(instructions), labels)


def disassemble_many(codes: Sequence[bytes], arch: str, nvdisasm: Path) -> list[Sass]:
    """Kernels of one architecture from their machine code alone (the ``.text`` section), without source lines.

    Why: nvdisasm takes a fifth of a second to start and a fiftieth for a kernel. All are read as one piece of code;
    labels, which it does not have, are made from the addresses to which branches go.

    Raises:
        FlashladderError: nvdisasm failed, or read another number of instructions than there are.
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


def run_nvdisasm(cubin: Path, nvdisasm: Path | None = None, *, lines: bool = True, symbol: int | None = None) -> str:
    """What ``nvdisasm -c -g`` prints for a cubin, or for the function with this `symbol`; the wheels' by default.

    Without source `lines`, and always without its data-flow analysis, which changes no output: a quarter faster each.
    """
    if nvdisasm is None:
        from flashladder.toolchain import find_toolchain

        nvdisasm = find_toolchain().nvdisasm
    if not cubin.is_file():
        raise FlashladderError("no such cubin", where=relative(cubin))
    only = [] if symbol is None else ["-fun", str(symbol)]
    return _output(nvdisasm, ["-c", *(["-g"] if lines else []), "-ndf", *only], cubin)


def _output(nvdisasm: Path, options: Sequence[str], path: Path) -> str:
    try:
        done = subprocess.run([str(nvdisasm), *options, str(path)], capture_output=True, text=True, check=False)
    except OSError as error:
        raise FlashladderError(f"could not run nvdisasm ({error.strerror})", where=relative(nvdisasm)) from error
    if done.returncode:
        raise FlashladderError("nvdisasm failed", where=relative(path), found=done.stderr or done.returncode)
    return done.stdout


def disassemble(cubin: Path, nvdisasm: Path | None = None, kernel: str = KERNEL, *, lines: bool = True) -> Sass:
    """The machine code of `kernel` in a cubin, with the source `lines` that it came from or without.

    Raises:
        FlashladderError: no such file or kernel, or nvdisasm could not read it.
    """
    return parse(run_nvdisasm(cubin, nvdisasm, lines=lines), kernel)


_BEGIN = 105  # of the control code among the 128 bits
_NONE = 7  # a barrier's number that means none
N_BARRIERS = 6
ARCHES = range(70, 91)  # numbers of the architectures that are known to have these places

LEGEND = "B: barriers waited for; R, W: barrier set when operands are read, result is written; Y: may yield; S: stall"


@dataclass(frozen=True)
class Control:
    """The control code of one instruction."""

    stall: int  # cycles until the next instruction of the warp may issue
    yields: bool  # whether the scheduler may turn to another warp
    write: int | None  # the barrier that is released when the result is written; None for none
    read: int | None  # the barrier that is released when the operands are read; None for none
    waits: tuple[int, ...]  # the barriers that must be released before it issues
    reuse: tuple[int, ...]  # operand slots whose register is kept for the next instruction

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
        control, n_reused = control_of(code[one.address : one.address + BYTES]), one.operands.count(".reuse")
        if len(control.reuse) != n_reused:
            where, expected = f"address {one.address:04x}", f"{n_reused} reuse flags, as in {one}"
            what = "the control code does not fit its instruction"
            raise FlashladderError(what, where=where, expected=expected, found=len(control.reuse))
        found.append(control)
    return found
