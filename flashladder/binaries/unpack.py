"""The bytes of a fatbin's entry, unpacked: by the system's zstd and LZ4, where they are not here by cuobjdump.

Why two ways: cuobjdump unpacks everything and knows every form, a process for each call; asking a library of three
thousand cubins which of them holds a kernel takes the first few kilobytes of each. zstd and LZ4 are on every Linux
whose packages are compressed with them (``libzstd.so.1``, ``liblz4.so.1``). Both ways give the same bytes
(`tests/nvcc/test_binaries.py`).

Nothing to run here.
"""

from __future__ import annotations

import ctypes
from functools import cache
import mmap
from pathlib import Path
import subprocess
import tempfile

from flashladder.binaries.fatbin import CONTAINER, MAGIC, Entry
from flashladder.errors import FlashladderError

LIBRARIES = {"zstd": "libzstd.so.1", "lz4": "liblz4.so.1"}


class _Buffer(ctypes.Structure):
    """``ZSTD_inBuffer`` and ``ZSTD_outBuffer``: address, bytes, how many of them are done."""

    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t), ("done", ctypes.c_size_t))


@cache
def library(form: str) -> ctypes.CDLL | None:
    """The system's library for a form; None where it has none."""
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


def unpacked(data: mmap.mmap | bytes, entry: Entry, most: int | None = None) -> bytes:
    """The entry's bytes, or the first `most` of them.

    Raises:
        FlashladderError: they are damaged.
    """
    if entry.form == "damaged":
        raise _damaged(entry, "a size that can be true", entry.size)
    stored = data[entry.begin : entry.begin + entry.stored]
    wanted = entry.size if most is None else min(most, entry.size)
    if entry.form == "plain":
        return stored[:wanted]
    own = library(entry.form)
    if own is None:
        return by_cuobjdump(data, entry)[:wanted]
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


def by_cuobjdump(data: mmap.mmap | bytes, entry: Entry) -> bytes:
    """The entry's bytes as cuobjdump extracts them from a fatbin of this one entry.

    Raises:
        FlashladderError: cuobjdump is not here, or cannot read the entry.
    """
    from flashladder.toolchain.wheels import find_toolchain

    whole = data[entry.header : entry.begin + entry.stored]
    padded = whole + b"\0" * (-len(whole) % 8)
    payload = len(padded) - (entry.begin - entry.header)
    padded = padded[:8] + payload.to_bytes(8, "little") + padded[16:]
    with tempfile.TemporaryDirectory(prefix="flashladder-") as folder:
        path = Path(folder, "one.fatbin")
        path.write_bytes(CONTAINER.pack(int.from_bytes(MAGIC, "little"), 1, CONTAINER.size, len(padded)) + padded)
        option = "-xelf" if entry.kind == "cubin" else "-xptx"
        done = subprocess.run(
            [find_toolchain().cuobjdump, option, "all", path.name], cwd=folder, capture_output=True, check=False
        )
        made = [found for found in Path(folder).iterdir() if found != path]
        if done.returncode or len(made) != 1:
            raise _damaged(entry, "what cuobjdump reads", done.stderr.decode(errors="replace").strip() or "nothing")
        return made[0].read_bytes()
