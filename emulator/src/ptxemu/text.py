"""Text of files and command lines: PTX as it is on disk, names inside of PTX, amounts of memory."""

from __future__ import annotations

import os
from pathlib import Path
import re
import stat
import tempfile

from ptxemu.errors import PtxemuError

MOST_BYTES = 256 << 20  # of a PTX file
_ESCAPE = re.compile(rb"\\(?:([0-3][0-7]{2})|([\"\\]))")
_AMOUNT = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*(?:([KMGT])(i?)B?|B)?", re.ASCII | re.IGNORECASE)


def read_text(path: Path) -> str:
    r"""The text of a regular file, its lines ended by ``\n`` and without a byte-order mark, which nvcc ignores too.

    Raises:
        PtxemuError: no such file, something else than a file, more than `MOST_BYTES`, or a byte that is not UTF-8.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO without a writer would wait for one
        with os.fdopen(handle, "rb") as stream:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise PtxemuError("not a regular file", where=path, hint="put a file there")
            data = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise PtxemuError(f"cannot read the file: {error.strerror or error}", where=path) from error
    if data.startswith(b"\x7fELF"):
        raise PtxemuError(
            "machine code, not PTX", where=path, hint="`cuobjdump -ptx FILE` prints the PTX that is in it"
        )
    if len(data) > MOST_BYTES:
        raise PtxemuError("the file is too large", where=path, expected=f"at most {MOST_BYTES >> 20} MiB", found="more")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        what = f"not UTF-8 (byte {data[error.start]:#04x} at offset {error.start})"
        raise PtxemuError(what, where=path, hint="save the file as UTF-8") from error
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def output_file(name: str, ending: str, option: str) -> Path:
    """The path of a file that a command will write, checked before it works.

    Raises:
        PtxemuError: another ending, something else than a file, or a folder that does not exist or cannot be written.
    """
    path = Path.home() / name[2:] if name.startswith("~/") else Path(name)  # a shell leaves ~ in --ptx=~/x
    if not path.name.endswith(ending) or path.name == ending or path.is_dir():
        raise PtxemuError(f"bad {option}", expected=f"a {ending} file", found=repr(name))
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        expected = f"a {ending} file in a folder that exists and can be written"
        raise PtxemuError(f"bad {option}", expected=expected, found=repr(name))
    return path


def write_whole(path: Path, data: bytes) -> None:
    """Writes `data` beside `path` and renames it into place, so that nobody ever reads half a file.

    Raises:
        PtxemuError: the disk is full, or the folder cannot be written.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".ptxemu-")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise PtxemuError(
            f"cannot write the file: {reason}", where=path, hint="free space, or choose another"
        ) from error


def unescaped(name: str) -> str:
    r"""A file name of PTX as it is: nvcc writes ``\303\274`` for ``ü``, and a backslash before a quote."""
    if "\\" not in name:
        return name
    data = _ESCAPE.sub(lambda match: bytes([int(match[1], 8)]) if match[1] else match[2], os.fsencode(name))
    return os.fsdecode(data)


def parse_bytes(text: str, what: str = "a memory budget", example: str = "1GiB or 512MiB") -> int:
    """``1GiB``, ``512 MiB``, ``2G`` or a plain number as bytes.

    ``GB`` is 1000^3; ``GiB`` and a bare ``G`` are 1024^3.

    Raises:
        PtxemuError: something else, or less than one byte.
    """
    match = _AMOUNT.fullmatch(text.strip())
    size = 0
    if match is not None:
        letter, binary = (match[2] or "").upper(), bool(match[3]) or not match[0].upper().endswith("B")
        size = int(float(match[1]) * (1024 if binary else 1000) ** " KMGT".index(letter or " "))
    if size < 1:
        raise PtxemuError(f"not {what}", expected=f"for example {example}", found=repr(text))
    return size
