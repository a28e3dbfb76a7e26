"""Fatbins, wheels and libraries made by hand, byte by byte, for tests that have no compiler."""

from __future__ import annotations

import ctypes
from pathlib import Path
import zipfile

from flashladder.binaries import CONTAINER, ENTRY, library

DATA = Path(__file__).parents[2] / "data"
CUBIN = (DATA / "tiny.sm_80.cubin").read_bytes()
PTX = (DATA / "tiny.ptx").read_bytes()
FLAGS = {"plain": 0x11, "lz4": 0x2011, "zstd": 0x8011}


def packed(data: bytes, form: str) -> bytes:
    """`data` as the system's library packs it."""
    own = library(form)
    assert own is not None
    room = (ctypes.c_char * (len(data) + 1024))()
    if form == "lz4":
        size = own.LZ4_compress_default(ctypes.c_char_p(data), room, len(data), len(room))
    else:
        own.ZSTD_compress.restype = ctypes.c_size_t
        size = own.ZSTD_compress(room, ctypes.c_size_t(len(room)), ctypes.c_char_p(data), ctypes.c_size_t(len(data)), 3)
    return room.raw[:size]


def entry(data: bytes, kind: int = 2, number: int = 80, form: str = "plain", size: int | None = None) -> bytes:
    """One entry; `size` is what its header says it unpacks to."""
    stored = data if form == "plain" else packed(data, form)
    payload = stored + b"\0" * (-len(stored) % 8)
    told = (0, 0) if form == "plain" else (len(stored), len(data) if size is None else size)
    head = ENTRY.pack(
        kind, 0x101, ENTRY.size, len(payload), told[0], 0, 8, 1, number, 0, 0, FLAGS[form], 0, told[1]
    )  # fmt: skip
    return head + payload


def container(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return CONTAINER.pack(0xBA55ED50, 1, CONTAINER.size, len(body)) + body


def wheel(path: Path, **members: bytes) -> Path:
    """A zip file with these members; ``__`` in a name stands for a dot."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"pkg/{name.replace('__', '.')}", data)
    return path
