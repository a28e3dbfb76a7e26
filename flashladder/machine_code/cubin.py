"""Cubins as data: kernels with their machine code, its SHA-256, registers, and PTX line by line.

Under ``-lineinfo`` a cubin changes with its source's path and time stamp; its ``.text.<kernel>`` section does not. The
digest of that section is therefore the identity of a kernel, in locks and result files.

The layout is ELF-64's, with NVIDIA's names of sections and ``.nv.info``, a list of records. This reader decodes section
headers and symbols itself: a library has thousands of cubins, and pyelftools drops the bit that marks a kernel.

With ``-lineinfo`` ptxas writes two line tables. ``.debug_line`` holds the CUDA lines that ``nvdisasm -g`` prints.
``.nv_debug_line_sass`` holds lines of the PTX in the same DWARF form; the PTX, without comments and line tables, is in
``.nv_debug_ptx_txt``. An instruction has one line: if ptxas merges several PTX instructions, it names one of them.

Run: ``invoke sass kernel.cubin``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
import io
import mmap
from pathlib import Path
import struct
from typing import Any, NamedTuple

from flashladder.errors import FlashladderError
from flashladder.files import relative, sha256
from flashladder.names import KERNEL

EM_CUDA = 190
RESERVED = 1024  # bytes of shared memory for the system, which sm_90 and later count as static memory of each CTA
LINES, TEXT = ".nv_debug_line_sass", ".nv_debug_ptx_txt"

_HEADER = struct.Struct("<4sBBBBB7xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_NOBITS, _SYMTAB = 8, 2
_FAR = 0xFFFF  # replaces a section number that needs more than 16 bits
_ENTRY_POINT = 0x10  # in a symbol's `st_other`: a kernel, not a function that kernels call
_NAMES = b"\0.shstrtab\0"  # begin of both tables of names: `.shstrtab` directly after the header, then `.strtab`
_CODE = b".text."
# `.nv.info` is a list of (format, attribute, 16-bit size or value) records; a record of format 4 has a payload.
_PAYLOAD = 4
_FRAME_SIZE, _REGCOUNT = 0x11, 0x2F
_PARAM_CBANK = 0x0A  # in `.nv.info.<kernel>`: offset and bytes of the parameters in constant bank 0
_ADDRESS_BYTES = 8
_BITS = 40  # of an address within a kernel; `_relocated` puts the kernel's symbol above them

Data = mmap.mmap | bytes


class Section(NamedTuple):
    """A section of an ELF file."""

    name: str
    kind: int
    address: int  # where it is loaded; 0 if it is not
    begin: int  # in the file
    size: int


@dataclass(frozen=True)
class CodeKernel:
    """A kernel of a cubin."""

    symbol: str  # its mangled name
    index: int  # of its symbol, as ``nvdisasm -fun`` takes it
    code_bytes: int  # of its machine code
    registers: int | None  # per thread; None if the cubin does not say
    shared_bytes: int  # static shared memory of a CTA
    frame_bytes: int | None  # stack frame of a thread; None if the cubin does not say


@dataclass(frozen=True)
class Cubin:
    """One kernel of a cubin with its machine code."""

    arch: str  # sm_80, ...
    text: bytes  # machine code: 16 bytes per instruction
    registers: int  # per thread
    parameters_at: int | None = None  # offset of the kernel's parameters in constant bank 0

    @property
    def text_sha256(self) -> str:
        """SHA-256 of the machine code, lower-case hex."""
        return sha256(self.text)


def is_cubin(data: Data) -> bool:
    """Whether the bytes begin like ELF for CUDA."""
    return data[:4] == b"\x7fELF" and int.from_bytes(data[18:20], "little") == EM_CUDA


def arch_of(data: Data) -> str:
    """``sm_80``, from the ELF flags, one byte higher since ABI 8 (CUDA 13); `FlashladderError` if it is no cubin."""
    flags = _header(data, known=is_cubin(data))[12]
    return f"sm_{(flags >> (8 if data[8] >= 8 else 0)) & 0xFF}"


def _header(data: Data, *, known: bool = True) -> tuple[Any, ...]:
    if not known or len(data) < _HEADER.size or data[:6] != b"\x7fELF\x02\x01":
        raise FlashladderError("not a cubin", expected="64-bit ELF for CUDA", found=f"{bytes(data[:20])!r}")
    return _HEADER.unpack_from(data)


def names_in_front(data: bytes) -> list[str] | None:
    """The names of the kernels and functions with code, from the first bytes of a cubin; None if these are too few.

    NVIDIA's tools put the names of all sections directly after the header.
    """
    begin = _HEADER.size
    end = data.find(b"\0" + _NAMES, begin + 1)
    if end < 0 or not data.startswith(_NAMES, begin):
        return None
    names = data[begin:end].split(b"\0")
    return [name[len(_CODE) :].decode("utf-8", "replace") for name in names if name.startswith(_CODE)]


def kernels_of(data: bytes) -> list[CodeKernel]:
    """Every kernel, in the order of the symbol table; `FlashladderError` if it is no cubin, or a damaged one."""
    reserved = RESERVED if int(arch_of(data)[3:]) >= 90 else 0
    sections = sections_of(data)
    table = next((section for section in sections.values() if section.kind == _SYMTAB), None)
    if table is None:
        raise _damaged("a symbol table", "none")
    texts, symbols = _content(data, sections, ".strtab"), bytes_of(data, table)
    facts = {(owner, attribute): value for owner, attribute, value in _facts(_content(data, sections, ".nv.info"))}
    found = []
    cut = len(symbols) % _SYMBOL.size  # bytes of a damaged last symbol
    for index, (place, _, other, _, _, size) in enumerate(_SYMBOL.iter_unpack(symbols[: len(symbols) - cut])):
        symbol = _text(texts, place) if other & _ENTRY_POINT else ""
        code, shared = (sections.get(f".{kind}.{symbol}") for kind in ("text", "nv.shared"))
        if symbol and code is not None:
            shared_bytes = max(0, shared.size - reserved) if shared else 0
            registers, frame_bytes = (facts.get((index, attribute)) for attribute in (_REGCOUNT, _FRAME_SIZE))
            found.append(CodeKernel(symbol, index, size or code.size, registers, shared_bytes, frame_bytes))
    return found


def debug_ptx(data: bytes) -> str:
    """The PTX that ptxas kept (``-lineinfo`` or ``-g``), without comments and line tables; empty if there is none.

    Data that are no cubin, or a damaged one, are an error.
    """
    return "".join(f"{line}\n" for line in _kept_lines(_content(data, sections_of(data), TEXT)) if line)


def _kept_lines(text: bytes) -> list[str]:
    """The lines of the kept PTX, each of which ends in NUL."""
    return text.decode("utf-8", "replace").removesuffix("\0").split("\0")


def code_of(data: bytes, symbol: str) -> bytes:
    """The code of a kernel, 16 bytes per instruction; `FlashladderError` if the cubin is damaged or lacks it."""
    sections = sections_of(data)
    name = f".text.{symbol}"
    if name not in sections:
        found = ", ".join(other for other in sections if other.startswith(".text.")) or "no code"
        raise FlashladderError("no such kernel in the cubin", expected=name, found=found)
    return bytes_of(data, sections[name])


def sections_of(data: Data) -> dict[str, Section]:
    """The sections of a 64-bit ELF file by name, the first of several with one name; `FlashladderError` if damaged."""
    header = _header(data)
    begin, size, count, names = header[11], header[16], header[17], header[18]
    if not count and begin + _SECTION.size <= len(data):  # the first header holds a count above 65,279
        first = _SECTION.unpack_from(data, begin)
        count, names = first[5], first[6] if names == _FAR else names
    if size != _SECTION.size or begin + size * count > len(data) or names >= count:
        raise _damaged("section headers within the file", f"{count} of {size} bytes at {begin} of {len(data)}")
    rows = list(_SECTION.iter_unpack(data[begin : begin + size * count]))
    texts = bytes_of(data, Section(".shstrtab", rows[names][1], 0, rows[names][4], rows[names][5]))
    found: dict[str, Section] = {}
    for row in rows:
        name = _text(texts, row[0])
        found.setdefault(name, Section(name, row[1], row[3], row[4], row[5]))
    return found


def bytes_of(data: Data, section: Section) -> bytes:
    """The bytes of a section; `FlashladderError` if it ends beyond the file."""
    if section.kind == _NOBITS:
        return b""
    if section.begin + section.size > len(data):
        raise _damaged(f"the section {section.name} within the file", f"{section.begin + section.size} bytes")
    return bytes(data[section.begin : section.begin + section.size])


def _content(data: bytes, sections: dict[str, Section], name: str) -> bytes:
    return bytes_of(data, sections[name]) if name in sections else b""


def _text(texts: bytes, place: int) -> str:
    end = texts.find(b"\0", place)
    if end < 0:
        raise _damaged("names that end", f"none at {place}")
    return texts[place:end].decode("utf-8", "replace")


def _damaged(expected: str, found: object) -> FlashladderError:
    return FlashladderError("the cubin is damaged", expected=expected, found=found)


def _facts(info: bytes) -> Iterator[tuple[int, int, int]]:
    """(symbol, attribute, value) of the records of ``.nv.info`` that hold one value for a symbol."""
    at = 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == _PAYLOAD:
            if size == 8 and at + size <= len(info):
                symbol, value = struct.unpack_from("<II", info, at)
                yield symbol, attribute, value
            at += size


def read_cubin(path: Path, kernel: str = KERNEL) -> Cubin:
    """The machine code of `kernel`; `FlashladderError`: no cubin, or no such kernel (the message lists the others)."""
    with _read(path) as data:
        arch, code, registers = arch_of(data), code_of(data, kernel), _kernel(data, kernel).registers
        if registers is None:
            raise FlashladderError("the cubin does not give the kernel's registers", expected=".nv.info")
        facts = _facts(_content(data, sections_of(data), f".nv.info.{kernel}"))
        parameters_at = next((value & 0xFFFF for _, name, value in facts if name == _PARAM_CBANK), None)
        return Cubin(arch, code, registers, parameters_at)


def _kernel(data: bytes, symbol: str) -> CodeKernel:
    for kernel in kernels_of(data):
        if kernel.symbol == symbol:
            return kernel
    raise FlashladderError("the cubin has no symbol of that kernel", expected=symbol)


@contextmanager
def _read(path: Path) -> Iterator[bytes]:
    """A file's bytes; every error about them names the file."""
    try:
        yield path.read_bytes()
    except OSError as error:
        what = "no such cubin" if isinstance(error, FileNotFoundError) else f"not a cubin ({error.strerror})"
        raise FlashladderError(what, where=relative(path)) from error
    except FlashladderError as error:
        error.where = error.where or relative(path)
        raise


@dataclass(frozen=True)
class PtxLines:
    """The PTX lines of one kernel's machine code."""

    # (address, line): the code from this address to the next one has this line, counted from 1
    starts: tuple[tuple[int, int], ...]
    end: int  # the address after the last instruction
    text: tuple[str, ...]  # the PTX as the cubin keeps it; ``text[0]`` is line 1. Comments and ``.loc`` are blank lines

    def at(self, address: int) -> int | None:
        """The PTX line of the instruction at `address`; None outside the code, or if the code has no line there."""
        index = bisect_right(self.starts, (address, 1 << _BITS)) - 1
        return (self.starts[index][1] or None) if index >= 0 and address < self.end else None


def read_ptx_lines(path: Path, kernel: str = KERNEL) -> PtxLines:
    """The PTX lines of a kernel; `FlashladderError`: no cubin, no such kernel, or it was made without ``-lineinfo``."""
    with _read(path) as data:
        sections = sections_of(data)
        if not sections.keys() >= {f".text.{kernel}", LINES, TEXT}:
            what, hint = "the cubin does not say which PTX its code came from", "make it with ptxas -lineinfo"
            raise FlashladderError(what, expected=f"{LINES} and {TEXT}", hint=hint)
        symbol = _kernel(data, kernel).index
        try:
            starts, end = _rows(_relocated(data, sections), symbol)
        except FlashladderError:
            raise
        except Exception as error:  # pyelftools raises many kinds of errors for a damaged table
            raise _damaged(f"a line table in {LINES}", str(error)) from error
        size, kept = sections[f".text.{kernel}"].size, _kept_lines(_content(data, sections, TEXT))
        if end != size:
            raise FlashladderError("the PTX lines are not those of the code", expected=f"{size} bytes", found=end)
        if any(not 0 <= line <= len(kept) for _, line in starts):
            raise FlashladderError("a line beyond the PTX", expected=f"at most {len(kept)} lines")
        return PtxLines(starts, end, tuple(kept))


def _relocated(data: bytes, sections: dict[str, Section]) -> bytes:
    """The line table with each kernel's symbol above `_BITS` of its addresses, which all begin at 0."""
    table = bytearray(_content(data, sections, LINES))
    for name, form in ((".rel", "<QQ"), (".rela", "<QQq")):  # sm_80 to sm_89, and sm_90
        for at, info, *addend in struct.iter_unpack(form, _content(data, sections, name + LINES)):
            address = int.from_bytes(table[at : at + _ADDRESS_BYTES], "little") + sum(addend)
            table[at : at + _ADDRESS_BYTES] = (address | info >> 32 << _BITS).to_bytes(_ADDRESS_BYTES, "little")
    return bytes(table)


def _rows(table: bytes, symbol: int) -> tuple[tuple[tuple[int, int], ...], int]:
    """(address, line) of one kernel's code by address, the last row of each address, and the end of the code."""
    from elftools.common.utils import struct_parse  # imported late, because it loads slowly
    from elftools.dwarf.lineprogram import LineProgram
    from elftools.dwarf.structs import DWARFStructs

    structs = DWARFStructs(little_endian=True, dwarf_format=32, address_size=_ADDRESS_BYTES)
    stream, found, end, at = io.BytesIO(table), dict[int, int](), 0, 0
    while at < len(table):
        header = struct_parse(structs.Dwarf_lineprog_header, stream, at)
        following = at + header["unit_length"] + structs.initial_length_field_size()
        for entry in LineProgram(header, stream, structs, stream.tell(), following).get_entries():
            state = entry.state
            if state is None or state.address >> _BITS != symbol:
                continue
            address = state.address - (symbol << _BITS)
            if state.end_sequence:
                end = max(end, address)
            else:
                found[address] = state.line
        at = following
    return tuple(sorted(found.items())), end
