"""Which line of the PTX each machine instruction was made from, as the cubin itself says.

Why: with ``-lineinfo`` ptxas writes two line tables. ``.debug_line`` holds the CUDA lines that ``nvdisasm -g`` prints;
``.nv_debug_line_sass`` holds, in the same DWARF form, lines of the PTX file that it was given, whose text without
comments and line tables it keeps in ``.nv_debug_ptx_txt``, line for line. So what a PTX instruction became can be read
from the very machine code that is locked, without another compile. An instruction has one line: where several PTX
instructions became one (a product and a sum, an FFMA), ptxas names one of them.
``nvdisasm -gp`` prints the same lines; the CUDA lines that it prints beside them (``-gi``) name one chain of calls
where the same line was inlined through two, those of the PTX's own ``.loc`` tell them apart.

Nothing to run here; ``invoke sass 8 --line ...`` and ``invoke ptx 8 --line ...`` do.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
import io
from pathlib import Path

from elftools.common.utils import struct_parse
from elftools.dwarf.lineprogram import LineProgram
from elftools.dwarf.structs import DWARFStructs
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection

from flashladder.errors import FlashladderError
from flashladder.files import relative
from flashladder.machine_code.cubin import elf_of, symbol_index
from flashladder.names import KERNEL

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
