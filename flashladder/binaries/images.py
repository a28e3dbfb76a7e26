"""The cubins and PTX of a file that others built: wheel, library, object, fatbin, cubin or PTX, told by its content.

A fatbin is a header of 16 bytes and entries, each with a header of its own; the format has no public description, what
is read here is what fatbinary 12 and 13 write and cuobjdump reads. An entry is unpacked on demand, as far as it is
asked for, by the system's zstd and LZ4. Members of a wheel are inflated into
files without a name: no name in the archive is ever a path here. Sizes are bounded before anything is read.

``invoke sass FILE`` and ``invoke ptx FILE`` use it (`flashladder.view.binary`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
import ctypes
from dataclasses import dataclass
from functools import cache
import lzma
import mmap
from pathlib import Path, PurePosixPath
import re
import shutil
import struct
import tempfile
from typing import IO, Literal
import zipfile
import zlib

from flashladder.errors import FlashladderError
from flashladder.files import BOM, relative
from flashladder.machine_code.cubin import Data, arch_of, bytes_of, is_cubin, sections_of
from flashladder.machine_code.ptx import is_ptx, target

MAGIC = struct.pack("<I", 0xBA55ED50)
CONTAINER = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes of all entries
# kind, version, bytes of this header, bytes of the payload with padding, bytes of it as stored where it is compressed,
# place of options, PTX version (minor, major), architecture, place and length of the name, flags, 0, bytes unpacked
ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_KINDS: dict[int, Literal["ptx", "cubin"]] = {1: "ptx", 2: "cubin"}  # others (LTO-IR) are passed over
_LZ4, _ZSTD, _ALONE = 0x2000, 0x8000, 0x100000  # flags
MOST_UNPACKED = 256 << 20  # bytes of an entry; the largest of PyTorch has 34 MiB
MOST_RATIO = 4096  # of unpacked to stored bytes: what a bomb would need more of
MOST_BYTES = 8 << 30  # of a member of a wheel, inflated; the largest of PyTorch has 1.3 GiB
MOST_TEXT = 64 << 20  # bytes of a PTX file
_CODE = (".so", ".pyd", ".dll", ".cubin", ".fatbin", ".ptx", ".o", ".a", ".bin")
_DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, IndexError, NotImplementedError, OverflowError, RuntimeError),
)  # what zipfile lets through of an archive that it cannot read
LIBRARIES = {"zstd": "libzstd.so.1", "lz4": "liblz4.so.1"}
_RELATIVE = 8
_RELA = struct.Struct("<QQq")
_SHORT_FORM = re.compile(rb"\((?:FP16|BF16)(?:, \d{1,9}){4}\): [\w+.-]{1,300}(?=\0)")
MOST_RELOCATIONS = 1 << 16  # a library of ours has a few hundred; PyTorch's have millions, and no such table
POINTERS = 3  # of a row: short form, dtype, fatbin


@dataclass(frozen=True)
class Entry:
    """One PTX or one cubin of a fatbin."""

    kind: Literal["ptx", "cubin"]  # what it is
    number: int  # of its architecture, 80
    header: int  # where its header begins in the file
    begin: int  # where its bytes begin
    stored: int  # how many bytes there are
    # whether and how they are compressed; ``damaged`` where their size cannot be true
    form: Literal["plain", "lz4", "zstd", "damaged"]
    size: int  # bytes unpacked
    container: int  # where the fatbin begins that holds it
    alone: bool = False  # whether it is for that architecture and no later one, as fatbinary's ``sm=90a`` says

    @property
    def arch(self) -> str:
        """``sm_80`` of machine code, ``compute_80`` of PTX, ``sm_90a`` of what is for one architecture alone."""
        return f"{'sm' if self.kind == 'cubin' else 'compute'}_{self.number}{'a' * self.alone}"


@dataclass(frozen=True)
class Image:
    """One cubin or one PTX."""

    kind: Literal["ptx", "cubin"]  # which of them
    arch: str  # ``sm_80``, or ``compute_80`` of PTX; by the fatbin's header where it lies in one
    place: str  # where it lies, for people: the file's name, or the member of the wheel
    config: str  # short form of its configuration, by the table of a library of this project; else empty
    data: Data  # of the file
    entry: Entry | None = None  # of the fatbin; None where the file itself is the image

    @property
    def size(self) -> int:
        """Bytes, unpacked."""
        return len(self.data) if self.entry is None else self.entry.size

    def read(self, most: int | None = None) -> bytes:
        """Its bytes, or the first `most` of them.

        Raises:
            FlashladderError: they are damaged.
        """
        try:
            return bytes(self.data[:most]) if self.entry is None else unpacked(self.data, self.entry, most)
        except FlashladderError as error:
            error.where = f"{self.place}: {error.where}" if error.where else self.place
            raise


@contextmanager
def images(path: Path) -> Iterator[list[Image]]:
    """The images of a file, in its order, while the context lasts.

    Raises:
        FlashladderError: no such file, one that holds no kernels, or an image turns out to be damaged.
    """
    where = relative(path)
    with ExitStack() as stack:
        try:
            try:
                found = list(_images(path, where, stack))
            except _DAMAGED as error:
                raise FlashladderError("the archive is damaged", found=str(error) or "its end") from error
            except (OSError, ValueError) as error:
                what = getattr(error, "strerror", None) or str(error)
                raise FlashladderError(f"the file cannot be read ({what})") from error
            yield _some(found)
        except FlashladderError as error:
            error.where = error.where or where
            raise


def _some(found: list[Image]) -> list[Image]:
    if not found:
        expected = "a wheel, library, object, fatbin, cubin or PTX file"
        hint = "link-time code (LTO) becomes code when it is linked"
        raise FlashladderError("no GPU code in the file", expected=expected, hint=hint)
    return found


def _images(path: Path, where: str, stack: ExitStack) -> Iterator[Image]:
    if path.is_dir():
        raise FlashladderError("a folder", expected="a file that holds kernels")
    if not path.is_file():
        if path.exists():
            hint = "write it to a file first" if path.is_fifo() else None
            raise FlashladderError("not a regular file", expected="a file that holds kernels", hint=hint)
        raise FlashladderError("no such file")
    stream = stack.enter_context(path.open("rb"))
    is_zip = stream.read(4) == b"PK\x03\x04"
    if not is_zip:
        yield from _of_file(stream, path.name, stack)
        return
    if not zipfile.is_zipfile(stream):
        raise FlashladderError("the archive is damaged", expected="its index at the end", found="none")
    archive = stack.enter_context(zipfile.ZipFile(stream))
    for member in archive.infolist():
        name = PurePosixPath(member.filename).name
        if not (name.endswith(_CODE) or ".so." in name) or member.is_dir():
            continue
        if member.file_size > MOST_BYTES:
            raise FlashladderError(
                "a member of the archive is too large", where=f"{where}: {name}",
                expected=f"at most {MOST_BYTES >> 30} GiB", found=f"{member.file_size >> 30} GiB",
            )  # fmt: skip
        inflated = stack.enter_context(tempfile.TemporaryFile(prefix="flashladder-"))  # noqa: SIM115 - the stack closes it
        with archive.open(member) as source:
            shutil.copyfileobj(source, inflated, 1 << 20)
        inflated.flush()
        yield from _of_file(inflated, name, stack)


def _of_file(stream: IO[bytes], name: str, stack: ExitStack) -> Iterator[Image]:
    stream.seek(0)
    head = stream.read(1 << 16)  # bytes that tell what a file is
    if not head:
        return
    data = stack.enter_context(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    if is_cubin(head):
        yield Image("cubin", arch_of(head), name, "", data)
    elif is_ptx(head.removeprefix(BOM).decode("utf-8", "replace")):
        if len(data) > MOST_TEXT:
            raise FlashladderError("the PTX file is too long", where=name, expected=f"{MOST_TEXT >> 20} MiB at most")
        text = data[:].removeprefix(BOM)
        yield Image("ptx", target(text.decode("utf-8", "replace")).replace("sm_", "compute_"), name, "", text)
    else:
        found = list(entries(data))
        tables = table_of(data, {entry.container for entry in found})
        for entry in found:
            yield Image(entry.kind, entry.arch, name, tables.get(entry.container, ""), data, entry)


def entries(data: Data) -> Iterator[Entry]:
    """Every PTX and cubin of every fatbin in a file, wherever it lies.

    A place that only looks like a fatbin is passed over: its header or its first entry does not hold together.
    """
    at = data.find(MAGIC)
    while at >= 0:
        end = _end(data, at)
        if end:
            yield from _entries_of(data, at, end)
        at = data.find(MAGIC, max(end, at + len(MAGIC)))


def _end(data: Data, at: int) -> int:
    """Where the fatbin that begins at `at` ends; 0 when there is none."""
    if at + CONTAINER.size > len(data):
        return 0
    _, version, header, size = CONTAINER.unpack_from(data, at)
    end = at + CONTAINER.size + size
    if version != 1 or header != CONTAINER.size or end > len(data):
        return 0
    return end if not size or _entry_end(data, at + CONTAINER.size, end) else 0


def _entry_end(data: Data, at: int, end: int) -> int:
    """Where the entry ends whose header begins at `at`, in a fatbin that ends at `end`; 0 when there is none."""
    if at + ENTRY.size > end:
        return 0
    header, payload = struct.unpack_from("<IQ", data, at + 4)
    after: int = at + header + payload
    return after if header >= ENTRY.size and after <= end else 0


def _entries_of(data: Data, container: int, end: int) -> Iterator[Entry]:
    at = container + CONTAINER.size
    while after := _entry_end(data, at, end):
        kind, _, header, payload, stored, _, _, _, number, _, _, flags, _, size = ENTRY.unpack_from(data, at)
        if kind in _KINDS:
            form: Literal["plain", "lz4", "zstd", "damaged"]
            form = "lz4" if flags & _LZ4 else "zstd" if flags & _ZSTD else "plain"
            if form == "plain":
                stored = size = payload
            if stored > payload or size > min(MOST_UNPACKED, MOST_RATIO * stored):
                form = "damaged"
            yield Entry(_KINDS[kind], number, at, at + header, stored, form, size, container, bool(flags & _ALONE))
        at = after


def table_of(data: Data, containers: Collection[int]) -> Mapping[int, str]:
    """Place of a fatbin in a library to the short form that the library's table of kernels gives it; empty without one.

    A row of the table begins with pointers to the short form and to the dtype and ends with one to the fatbin; in a
    shared library each pointer is a relocation ``R_X86_64_RELATIVE``, whose addend is where it points.
    """
    if not containers:
        return {}
    try:
        return _table_of(data, containers)
    except FlashladderError:
        return {}  # a table that cannot be read names nothing: the kernels are there without it


def _table_of(data: Data, containers: Collection[int]) -> dict[int, str]:
    sections = sections_of(data)
    relocations = sections.get(".rela.dyn")
    if relocations is None or relocations.size > MOST_RELOCATIONS * _RELA.size or relocations.size % _RELA.size:
        return {}
    rows = _RELA.iter_unpack(bytes_of(data, relocations))
    pointers = sorted((offset, addend) for offset, info, addend in rows if info & 0xFFFFFFFF == _RELATIVE)
    loaded = [one for one in sections.values() if one.address]

    def place(address: int) -> int:
        return next((one.begin + address - one.address for one in loaded if 0 <= address - one.address < one.size), -1)

    found = {}
    for index in range(POINTERS - 1, len(pointers)):
        fatbin = place(pointers[index][1])
        if fatbin in containers:
            name = _SHORT_FORM.match(data, max(0, place(pointers[index - POINTERS + 1][1])))
            if name:
                found[fatbin] = name[0].decode("ascii")
    return found


class _Buffer(ctypes.Structure):
    """``ZSTD_inBuffer`` and ``ZSTD_outBuffer``: address, bytes, how many of them are done."""

    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t), ("done", ctypes.c_size_t))


@cache
def library(form: str) -> ctypes.CDLL | None:
    """The system's library for ``zstd`` or ``lz4``; None where it has none."""
    try:
        found = ctypes.CDLL(LIBRARIES[form])
    except OSError:
        return None
    if form == "zstd":
        found.ZSTD_createDStream.restype = ctypes.c_void_p
        found.ZSTD_decompressStream.restype = ctypes.c_size_t
        found.ZSTD_decompressStream.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Buffer), ctypes.POINTER(_Buffer)]
        found.ZSTD_freeDStream.argtypes = [ctypes.c_void_p]
        found.ZSTD_isError.argtypes = [ctypes.c_size_t]
    return found


def unpacked(data: Data, entry: Entry, most: int | None = None) -> bytes:
    """The entry's bytes, or the first `most` of them.

    Raises:
        FlashladderError: they are damaged, or the system has no library that unpacks them.
    """
    if entry.form == "damaged":
        raise _damaged(entry, "a size that can be true", entry.size)
    stored = data[entry.begin : entry.begin + entry.stored]
    wanted = entry.size if most is None else min(most, entry.size)
    if entry.form == "plain":
        return stored[:wanted]
    own = library(entry.form)
    if own is None:
        raise FlashladderError(
            f"the kernels are packed with {entry.form}", expected=LIBRARIES[entry.form], found="no such library here",
            hint="install it, or unpack the kernels: cuobjdump -xelf all FILE",
        )  # fmt: skip
    found = (_zstd if entry.form == "zstd" else _lz4)(own, stored, wanted)
    if len(found) != wanted:
        raise _damaged(entry, f"{wanted} bytes of {entry.form}", len(found))
    return found


def _damaged(entry: Entry, expected: str, found: object) -> FlashladderError:
    where = f"entry at byte {entry.header}"
    return FlashladderError("the fatbin is damaged", where=where, expected=expected, found=found)


def _zstd(own: ctypes.CDLL, stored: bytes, wanted: int) -> bytes:
    """As many of the `wanted` bytes as there are: none where the stream is none."""
    out = (ctypes.c_char * wanted)()
    source = ctypes.c_char_p(stored)
    given = _Buffer(ctypes.cast(source, ctypes.c_void_p), len(stored), 0)
    made = _Buffer(ctypes.cast(out, ctypes.c_void_p), wanted, 0)
    stream = own.ZSTD_createDStream()
    try:
        while made.done < wanted:
            before = (given.done, made.done)
            left = own.ZSTD_decompressStream(stream, ctypes.byref(made), ctypes.byref(given))
            if own.ZSTD_isError(left) or (given.done, made.done) == before:
                return b""
    finally:
        own.ZSTD_freeDStream(stream)
    return out.raw


def _lz4(own: ctypes.CDLL, stored: bytes, wanted: int) -> bytes:
    """As many of the `wanted` bytes as there are: none where the block is none."""
    out = (ctypes.c_char * wanted)()
    done = own.LZ4_decompress_safe_partial(ctypes.c_char_p(stored), out, len(stored), wanted, wanted)
    return out.raw[:done] if done > 0 else b""
