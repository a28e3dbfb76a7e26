"""A cubin as data: a kernel's machine code with its SHA-256, architecture, registers, and PTX line by line.

A raw cubin changes with its source's path and time stamp under ``-lineinfo``; its ``.text.<kernel>`` section does not,
so that the digest of that section is the identity of a kernel: locks and result files carry it.

With ``-lineinfo`` ptxas writes two line tables. ``.debug_line`` holds the CUDA lines that ``nvdisasm -g`` prints;
``.nv_debug_line_sass`` holds, in the same DWARF form, lines of the PTX, whose text without comments and line tables
stands in ``.nv_debug_ptx_txt``. An instruction has one line: of several PTX instructions that became one, ptxas names
one.

Run: ``python -m flashladder.machine_code.cubin kernel.cubin ...`` prints architecture, registers, frame and digest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
import io
from pathlib import Path
import struct

from elftools.common.utils import struct_parse
from elftools.dwarf.lineprogram import LineProgram
from elftools.dwarf.structs import DWARFStructs
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import SymbolTableSection

from flashladder.arguments import Parser
from flashladder.errors import FlashladderError, one_line_errors
from flashladder.files import relative, sha256
from flashladder.names import KERNEL

EM_CUDA = 190
# `.nv.info` is a list of (format, attribute, 16-bit size or value) records; a record of format 4 has a payload.
PAYLOAD = 4
ATTRIBUTE_FRAME_SIZE = 0x11
ATTRIBUTE_REGCOUNT = 0x2F
ATTRIBUTE_PARAM_CBANK = 0x0A  # in `.nv.info.<kernel>`: where the parameters lie in constant bank 0, and their bytes


@dataclass(frozen=True)
class Cubin:
    """What a cubin says about one kernel."""

    kernel: str
    arch: str  # sm_80, ...
    text: bytes  # machine code: 16 bytes per instruction
    registers: int  # per thread
    frame_bytes: int  # local memory per thread: stack frame and spills
    parameters_at: int | None = None  # offset of the kernel's parameters in constant bank 0

    @property
    def text_sha256(self) -> str:
        """SHA-256 of the machine code, lower-case hex."""
        return sha256(self.text)


def read_cubin(path: Path, kernel: str = KERNEL) -> Cubin:
    """Reads the machine code of `kernel` from a cubin.

    Raises:
        FlashladderError: no such file, no cubin, or no such kernel in it (the message lists those it has).
    """
    with elf_of(path) as elf:
        return _read(elf, kernel, relative(path))


@contextmanager
def elf_of(path: Path) -> Iterator[ELFFile]:
    """A cubin as an ELF file; whatever goes wrong while it is read is one line.

    Raises:
        FlashladderError: no such file, or none that can be read as a cubin.
    """
    where = relative(path)
    try:
        with path.open("rb") as stream:
            yield ELFFile(stream)
    except FileNotFoundError as error:
        raise FlashladderError("no such cubin", where=where) from error
    except FlashladderError:
        raise
    except Exception as error:  # pyelftools raises whatever a damaged file leads it to
        raise FlashladderError("not a cubin", where=where, expected="an ELF file", found=str(error)) from error


def text_sha256(path: Path, kernel: str = KERNEL) -> str:
    """SHA-256 of the section ``.text.<kernel>`` of a cubin, lower-case hex; errors as `read_cubin`."""
    return read_cubin(path, kernel).text_sha256


def _read(elf: ELFFile, kernel: str, where: str) -> Cubin:
    if elf.header["e_machine"] not in ("EM_CUDA", EM_CUDA):
        raise FlashladderError("not a cubin", where=where, expected="ELF for CUDA", found=elf.header["e_machine"])
    section = elf.get_section_by_name(f".text.{kernel}")
    if section is None:
        names = [s.name for s in elf.iter_sections() if s.name.startswith(".text.")]
        raise FlashladderError(
            "no such kernel in the cubin", where=where, expected=f".text.{kernel}", found=", ".join(names) or "no code"
        )
    index = symbol_index(elf, kernel)
    info = elf.get_section_by_name(".nv.info")
    values = {} if info is None else dict(_attributes(info.data(), index))
    if ATTRIBUTE_REGCOUNT not in values:
        raise FlashladderError("the cubin does not give the kernel's registers", where=where, expected=".nv.info")
    own = elf.get_section_by_name(f".nv.info.{kernel}")
    places = dict(_attributes(own.data())) if own is not None else {}
    place = places.get(ATTRIBUTE_PARAM_CBANK)
    return Cubin(
        kernel, _arch(elf), section.data(), values[ATTRIBUTE_REGCOUNT], values.get(ATTRIBUTE_FRAME_SIZE, 0),
        None if place is None else place & 0xFFFF,
    )  # fmt: skip


def symbol_index(elf: ELFFile, kernel: str) -> int:
    """Which of the cubin's symbols `kernel` is.

    Raises:
        FlashladderError: none.
    """
    symbols = elf.get_section_by_name(".symtab")
    if isinstance(symbols, SymbolTableSection):
        for index, symbol in enumerate(symbols.iter_symbols()):
            if symbol.name == kernel:
                return index
    raise FlashladderError("the cubin has no symbol of that kernel", expected=kernel)


def _attributes(data: bytes, symbol: int | None = None) -> Iterator[tuple[int, int]]:
    """(attribute, value) of the records that hold one value for `symbol`, or for any."""
    offset = 0
    while offset + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, offset)
        offset += 4
        if form != PAYLOAD:
            continue
        if size == 8:
            owner, value = struct.unpack_from("<II", data, offset)
            if symbol in (None, owner):
                yield attribute, value
        offset += size


def _arch(elf: ELFFile) -> str:
    """``sm_XX`` from the ELF flags; the number moved up by one byte with ABI 8 (CUDA 13)."""
    shift = 8 if elf.header["e_ident"]["EI_ABIVERSION"] >= 8 else 0
    return f"sm_{(elf.header['e_flags'] >> shift) & 0xFF}"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints one line per cubin."""
    parser = Parser(
        prog="python -m flashladder.machine_code.cubin",
        description="Architecture, registers, frame and machine-code digest of cubins.",
        epilog="example: python -m flashladder.machine_code.cubin build/store/*/kernel.cubin",
    )
    parser.add_argument("cubins", nargs="+", type=Path)
    parser.add_argument("--kernel", default=KERNEL, help=f"the kernel's symbol (default: {KERNEL})")
    args = parser.parse_args(argv)
    with one_line_errors():
        for path in args.cubins:
            cubin = read_cubin(path, args.kernel)
            facts = f"{cubin.arch}  {cubin.registers} registers  {cubin.frame_bytes} B frame  {len(cubin.text)} B code"
            print(f"{cubin.text_sha256}  {facts}  {relative(path)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())


LINES, TEXT = ".nv_debug_line_sass", ".nv_debug_ptx_txt"
ADDRESS_BYTES = 8
_BITS = 40  # of an address within a kernel; above them stands the kernel's symbol while the table is read


@dataclass(frozen=True)
class PtxLines:
    """The PTX lines of one kernel's machine code.

    Attributes:
        starts: (address, line): from this address to the next one code comes from this line, counted from 1.
        end: the address behind the last instruction.
        text: the PTX as the cubin keeps it; ``text[0]`` is line 1. Comments and ``.loc`` are blank lines.
    """

    starts: tuple[tuple[int, int], ...]
    end: int
    text: tuple[str, ...]

    def at(self, address: int) -> int | None:
        """The line that the instruction at `address` was made from; None outside of the code or where none is."""
        index = bisect_right(self.starts, (address, 1 << _BITS)) - 1
        return (self.starts[index][1] or None) if index >= 0 and address < self.end else None


def read_ptx_lines(path: Path, kernel: str = KERNEL) -> PtxLines:
    """Reads the PTX lines of `kernel` from a cubin.

    Raises:
        FlashladderError: no such file or kernel, no cubin, or one that was made without ``-lineinfo``.
    """
    where = relative(path)
    with elf_of(path) as elf:
        code = elf.get_section_by_name(f".text.{kernel}")
        lines, text = elf.get_section_by_name(LINES), elf.get_section_by_name(TEXT)
        if code is None or lines is None or text is None:
            raise FlashladderError(
                "the cubin does not say which PTX its code came from", where=where, expected=f"{LINES} and {TEXT}",
                hint="make it with ptxas -lineinfo",
            )  # fmt: skip
        starts, end = _rows(_relocated(elf, lines.data()), symbol_index(elf, kernel))
        if end != code.data_size:
            raise FlashladderError(
                "the PTX lines are not those of the code", where=where, expected=f"{code.data_size} bytes", found=end
            )
        kept = text.data().decode("utf-8").removesuffix("\0").split("\0")
        if any(not 0 <= line <= len(kept) for _, line in starts):
            raise FlashladderError("a line beyond the PTX", where=where, expected=f"at most {len(kept)} lines")
        return PtxLines(starts, end, tuple(kept))


def _relocated(elf: ELFFile, data: bytes) -> bytes:
    """The table with each kernel's symbol above its addresses, which alone all begin at 0."""
    table = bytearray(data)
    for form in (".rel", ".rela"):  # of sm_80 to sm_89, and of sm_90
        found = elf.get_section_by_name(form + LINES)
        for entry in found.iter_relocations() if isinstance(found, RelocationSection) else ():
            at, symbol = entry["r_offset"], entry["r_info_sym"]
            address = int.from_bytes(table[at : at + ADDRESS_BYTES], "little") + entry.entry.get("r_addend", 0)
            table[at : at + ADDRESS_BYTES] = (address | symbol << _BITS).to_bytes(ADDRESS_BYTES, "little")
    return bytes(table)


def _rows(table: bytes, symbol: int) -> tuple[tuple[tuple[int, int], ...], int]:
    """(address, line) of one kernel's code in order of address, the last row of each address, and where it ends."""
    structs = DWARFStructs(little_endian=True, dwarf_format=32, address_size=ADDRESS_BYTES)
    stream, found, end, at = io.BytesIO(table), dict[int, int](), 0, 0
    while at < len(table):
        header = struct_parse(structs.Dwarf_lineprog_header, stream, at)
        behind = at + header["unit_length"] + structs.initial_length_field_size()
        for entry in LineProgram(header, stream, structs, stream.tell(), behind).get_entries():
            state = entry.state
            if state is None or state.address >> _BITS != symbol:
                continue
            address = state.address - (symbol << _BITS)
            if state.end_sequence:
                end = max(end, address)
            else:
                found[address] = state.line
        at = behind
    return tuple(sorted(found.items())), end
