"""The kernels of a cubin from its sections: names, registers, shared memory, bytes of code, and the PTX it came from.

Why beside `flashladder.machine_code.cubin`, which reads one kernel of ours through pyelftools: a library has thousands
of cubins with dozens of kernels each, and pyelftools takes milliseconds for one. The layout is ELF-64's; what is
NVIDIA's own is the section ``.nv.info`` (records as in `flashladder.machine_code.cubin`) and the names of sections.

Nothing to run here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
import struct

from flashladder.errors import FlashladderError
from flashladder.machine_code.cubin import ATTRIBUTE_FRAME_SIZE, ATTRIBUTE_REGCOUNT, EM_CUDA, PAYLOAD

_HEADER = struct.Struct("<4sBBBBB7xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_NOBITS, _SYMTAB = 8, 2
_FAR = 0xFFFF  # in place of the number of a section that is too large for 16 bits
_ENTRY_POINT = 0x10  # of a symbol's `st_other`: a kernel, not a function that kernels call
_NAMES = b"\0.shstrtab\0"  # how the tables of names begin, `.shstrtab` right behind the header, `.strtab` behind it
_CODE = b".text."
RESERVED = 1024  # bytes that code for sm_90 and later counts as static shared memory: the system's, of each CTA


@dataclass(frozen=True)
class CodeKernel:
    """A kernel of a cubin."""

    symbol: str  # its name, mangled
    index: int  # of its symbol, as ``nvdisasm -fun`` takes it
    code_bytes: int  # of its machine code
    registers: int | None  # per thread; None where the cubin does not say
    shared_bytes: int  # static shared memory of a CTA
    frame_bytes: int | None  # stack frame of a thread; None where the cubin does not say


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    begin: int
    size: int


def is_cubin(data: bytes) -> bool:
    """Whether the bytes begin like ELF for CUDA."""
    return data[:4] == b"\x7fELF" and int.from_bytes(data[18:20], "little") == EM_CUDA


def arch_of(data: bytes) -> str:
    """``sm_80``, from the ELF flags; the number moved up by one byte with ABI 8 (CUDA 13).

    Raises:
        FlashladderError: no cubin.
    """
    flags = _header(data)[12]
    return f"sm_{(flags >> (8 if data[8] >= 8 else 0)) & 0xFF}"


def names_in_front(data: bytes) -> list[str] | None:
    """The names of the kernels and functions with code, from a cubin's beginning; None where it ends too early.

    NVIDIA's tools put the names of sections right behind the header, where a few kilobytes tell them all.
    """
    begin = 64
    if data[begin : begin + len(_NAMES)] != _NAMES:
        return None
    end = data.find(b"\0" + _NAMES, begin + 1)
    if end < 0:
        return None
    names = data[begin:end].split(b"\0")
    return [name[len(_CODE) :].decode("utf-8", "replace") for name in names if name.startswith(_CODE)]


def kernels_of(data: bytes) -> list[CodeKernel]:
    """Every kernel, in the order of the symbol table.

    Raises:
        FlashladderError: no cubin, or a damaged one.
    """
    sections = _sections(data)
    named = {section.name: section for section in sections}
    table = next((section for section in sections if section.kind == _SYMTAB), None)
    if table is None:
        raise _damaged("a symbol table", "none")
    texts = _bytes(data, named.get(".strtab") or _Section(".strtab", 0, 0, 0))
    facts = _facts(_bytes(data, named[".nv.info"])) if ".nv.info" in named else {}
    reserved = RESERVED if int(arch_of(data)[3:]) >= 90 else 0
    found = []
    for index, (place, _, other, _, _, size) in enumerate(_symbols(_bytes(data, table))):
        symbol = _text(texts, place) if other & _ENTRY_POINT else ""
        code = named.get(f".text.{symbol}")
        if not symbol or code is None:
            continue
        shared = named.get(f".nv.shared.{symbol}")
        found.append(
            CodeKernel(
                symbol=symbol,
                index=index,
                code_bytes=size or code.size,
                registers=facts.get((index, ATTRIBUTE_REGCOUNT)),
                shared_bytes=max(0, shared.size - reserved) if shared else 0,
                frame_bytes=facts.get((index, ATTRIBUTE_FRAME_SIZE)),
            )
        )
    return found


def debug_ptx(data: bytes) -> str:
    """The PTX that ptxas kept in the section ``.nv_debug_ptx_txt`` (``-lineinfo`` or ``-g``); empty without one.

    Its lines end in NUL and comments and line tables are gone: it has the normal form of what was assembled.

    Raises:
        FlashladderError: no cubin, a damaged one, or a section that is no text.
    """
    for section in _sections(data):
        if section.name == ".nv_debug_ptx_txt":
            try:
                text = _bytes(data, section).decode("utf-8")
            except UnicodeDecodeError as error:
                raise _damaged("text in .nv_debug_ptx_txt", "bytes") from error
            return "".join(f"{line}\n" for line in text.split("\0") if line)
    return ""


def code_of(data: bytes, symbol: str) -> bytes:
    """The machine code of a kernel, 16 bytes per instruction.

    Raises:
        FlashladderError: no cubin, a damaged one, or one without this kernel.
    """
    for section in _sections(data):
        if section.name == f".text.{symbol}":
            return _bytes(data, section)
    raise _damaged(f".text.{symbol}", "no such section")


def _damaged(expected: str, found: object) -> FlashladderError:
    return FlashladderError("the cubin is damaged", expected=expected, found=found)


def _header(data: bytes) -> tuple[int, ...]:
    if not is_cubin(data) or len(data) < _HEADER.size or data[4:6] != b"\x02\x01":
        raise FlashladderError("not a cubin", expected="64-bit ELF for CUDA", found=f"{bytes(data[:20])!r}")
    return _HEADER.unpack_from(data)


def _sections(data: bytes) -> list[_Section]:
    header = _header(data)
    begin, size, count, names = header[11], header[16], header[17], header[18]
    if not count and begin + _SECTION.size <= len(data):  # more than 65,279: the first header tells
        first = _SECTION.unpack_from(data, begin)
        count, names = first[5], first[6] if names == _FAR else names
    if size != _SECTION.size or begin + size * count > len(data) or names >= count:
        raise _damaged("section headers within the file", f"{count} of {size} bytes at {begin} of {len(data)}")
    rows = list(_SECTION.iter_unpack(data[begin : begin + size * count]))
    _, kind, _, _, place, length, *_ = rows[names]
    texts = _bytes(data, _Section(".shstrtab", kind, place, length))
    return [_Section(_text(texts, row[0]), row[1], row[4], row[5]) for row in rows]


def _bytes(data: bytes, section: _Section) -> bytes:
    if section.kind == _NOBITS:
        return b""
    if section.begin + section.size > len(data):
        raise _damaged(f"the section {section.name} within the file", f"{section.begin + section.size} bytes")
    return bytes(data[section.begin : section.begin + section.size])


def _text(texts: bytes, place: int) -> str:
    end = texts.find(b"\0", place)
    if end < 0:
        raise _damaged("names that end", f"none at {place}")
    return texts[place:end].decode("utf-8", "replace")


def _symbols(table: bytes) -> Iterator[tuple[int, ...]]:
    return _SYMBOL.iter_unpack(table[: len(table) // _SYMBOL.size * _SYMBOL.size])


def _facts(info: bytes) -> dict[tuple[int, int], int]:
    """(symbol, attribute) to value, of the records of ``.nv.info`` that hold one value for a symbol."""
    found, at = {}, 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form != PAYLOAD:
            continue
        if size == 8 and at + size <= len(info):
            symbol, value = struct.unpack_from("<II", info, at)
            found[symbol, attribute] = value
        at += size
    return found
