"""What a file that may hold kernels is, by its content, and the images in it: cubins and PTX, each unpacked on demand.

Why by content: a library may be called ``.so``, ``.pyd`` or ``.so.13``, a cubin anything. A wheel's libraries are
inflated one by one into files without a name, so that no name in the archive is ever a path here and nothing is left
behind; sizes are bounded before anything is read.

Nothing to run here; ``invoke sass FILE`` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
import lzma
import mmap
from pathlib import Path, PurePosixPath
import shutil
import struct
import tempfile
from typing import IO, Literal
import zipfile
import zlib

from flashladder.binaries import cubins, fatbin, own_table
from flashladder.binaries.unpack import unpacked
from flashladder.errors import FlashladderError
from flashladder.files import BOM, relative
from flashladder.machine_code.ptx import is_ptx

MOST_BYTES = 8 << 30  # of a member of a wheel, inflated; the largest of PyTorch has 1.3 GiB
MOST_TEXT = 64 << 20  # bytes of a PTX file
_CODE = (".so", ".pyd", ".dll", ".cubin", ".fatbin", ".ptx", ".o", ".a", ".bin")
_DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, IndexError, NotImplementedError, OverflowError, RuntimeError),
)  # what zipfile lets through of an archive that it cannot read
_SNIFF = 1 << 16  # bytes that tell what a file is


@dataclass(frozen=True)
class Image:
    """One cubin or one PTX.

    Attributes:
        kind: which of them.
        arch: ``sm_80``, or ``compute_80`` of PTX; by the fatbin's header where it lies in one.
        place: where it lies, for people: the file's name, or the member of the wheel.
        config: what the library's own table of kernels calls it; empty where there is none.
        data: of the file.
        entry: of the fatbin; None where the file itself is the image.
    """

    kind: Literal["ptx", "cubin"]
    arch: str
    place: str
    config: str
    data: mmap.mmap | bytes
    entry: fatbin.Entry | None = None

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
        FlashladderError: no such file, or one that holds no kernels.
    """
    where = relative(path)
    with ExitStack() as stack:
        try:
            found = list(_images(path, where, stack))
        except FlashladderError as error:
            error.where = error.where or where
            raise
        except _DAMAGED as error:
            raise FlashladderError("the archive is damaged", where=where, found=str(error) or "its end") from error
        except (OSError, ValueError) as error:
            what = getattr(error, "strerror", None) or str(error)
            raise FlashladderError(f"the file cannot be read ({what})", where=where) from error
        if not found:
            raise FlashladderError(
                "no GPU code in the file", where=where, expected="a wheel, library, object, fatbin, cubin or PTX file"
            )
        try:
            yield found
        except FlashladderError as error:  # of an image that turns out to be damaged
            error.where = error.where or where
            raise


def _images(path: Path, where: str, stack: ExitStack) -> Iterator[Image]:
    if path.is_dir():
        raise FlashladderError("a folder", where=where, expected="a file that holds kernels")
    if not path.is_file():
        if path.exists():
            hint = "write it to a file first" if path.is_fifo() else None
            raise FlashladderError("not a regular file", where=where, expected="a file that holds kernels", hint=hint)
        raise FlashladderError("no such file", where=where)
    stream = stack.enter_context(path.open("rb"))
    if stream.read(4) == b"PK\x03\x04" and not zipfile.is_zipfile(stream):
        raise FlashladderError("the archive is damaged", where=where, expected="its index at the end", found="none")
    if not zipfile.is_zipfile(stream) or stream.seek(0) or stream.read(4) != b"PK\x03\x04":
        yield from _of_file(stream, path.name, stack)
        return
    archive = stack.enter_context(zipfile.ZipFile(stream))
    for member in archive.infolist():
        name = PurePosixPath(member.filename).name
        if not (name.endswith(_CODE) or ".so." in name) or member.is_dir():
            continue
        if member.file_size > MOST_BYTES:
            raise FlashladderError(
                "a member of the archive is too large",
                where=f"{where}: {name}",
                expected=f"at most {MOST_BYTES >> 30} GiB",
                found=f"{member.file_size >> 30} GiB",
            )
        inflated = stack.enter_context(tempfile.TemporaryFile(prefix="flashladder-"))  # noqa: SIM115 - the stack closes it
        with archive.open(member) as source:
            shutil.copyfileobj(source, inflated, 1 << 20)
        inflated.flush()
        yield from _of_file(inflated, name, stack)


def _of_file(stream: IO[bytes], name: str, stack: ExitStack) -> Iterator[Image]:
    stream.seek(0)
    head = stream.read(_SNIFF)
    if not head:
        return
    data = stack.enter_context(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    if cubins.is_cubin(head):
        yield Image("cubin", cubins.arch_of(head), name, "", data)
    elif is_ptx(head.removeprefix(BOM).decode("utf-8", "replace")):
        if len(data) > MOST_TEXT:
            raise FlashladderError("the PTX file is too long", where=name, expected=f"{MOST_TEXT >> 20} MiB at most")
        text = data[:].removeprefix(BOM)
        yield Image("ptx", target_of(text), name, "", text)
    else:
        found = list(fatbin.entries(data))
        tables = own_table.configs(data, {entry.container for entry in found})
        for entry in found:
            yield Image(entry.kind, entry.arch, name, tables.get(entry.container, ""), data, entry)


def target_of(text: bytes) -> str:
    """``compute_80`` of PTX whose ``.target`` is ``sm_80``."""
    from flashladder.machine_code.ptx import target

    return target(text.decode("utf-8", "replace")).replace("sm_", "compute_")
