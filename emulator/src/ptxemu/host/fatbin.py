"""The PTX of a fatbin, which nvcc puts into a program: for each source file PTX and machine code of architectures.

A fatbin is a header and a row of files, each with a header of its own. Compressed files are LZ4 blocks (CUDA 12) or
Zstandard frames (CUDA 13); the packages ``lz4`` and ``zstandard`` read them. nvcc's ``-no-compress`` leaves files as
they are. The layout is read off what nvcc 13.0 and 12.9 write.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
import importlib
import re
import struct
from typing import Any

from ptxemu.errors import PtxemuError

MAGIC = 0xBA55ED50
HEADER = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes of all files
FILE = struct.Struct("<HHIQIIHHIIIQQQ")  # see `_files`
PTX, MACHINE_CODE = 1, 2  # kinds of files
LZ4, ZSTD = 0x2000, 0x8000  # flags: how a file is compressed
ELF = b"\x7fELF"
_TARGET = re.compile(rb"^\s*\.target\s+sm_(\d+)([af]?)", re.MULTILINE)


@dataclass(frozen=True)
class File:
    """One file of a fatbin: PTX or machine code, as it is stored."""

    kind: int
    capability: int  # 90 of sm_90
    flags: int
    stored: bytes
    size: int  # bytes of the contents

    def contents(self) -> bytes:
        """The file's bytes.

        Raises:
            PtxemuError: the package that reads this compression is not installed.
        """
        if self.flags & ZSTD:
            return bytes(_package("zstandard").ZstdDecompressor().decompress(self.stored, max_output_size=self.size))
        if self.flags & LZ4:
            return bytes(_package("lz4.block").decompress(self.stored, uncompressed_size=self.size))
        return self.stored


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        hint = f"run: pip install {package}, or compile with nvcc -no-compress"
        raise PtxemuError(f"the program's PTX is compressed, and {package} is not installed", hint=hint) from None


def _files(image: bytes) -> Iterator[File]:
    magic, _, at, total = HEADER.unpack_from(image)
    end = at + total
    while magic == MAGIC and at + FILE.size <= min(end, len(image)):
        kind, _, header, padded, packed, _, _, _, capability, _, _, flags, _, size = FILE.unpack_from(image, at)
        stored = image[at + header : at + header + (packed or padded)]
        yield File(kind, capability, flags, stored, size)
        at += header + padded


def ptx_of(image: bytes, capability: int, name: str) -> str:
    """The PTX that a GPU of a compute capability (90 for 9.0) would compile, of a fatbin or of PTX itself.

    Raises:
        PtxemuError: there is none for that GPU; the message says what there is.
    """
    if len(image) < HEADER.size or HEADER.unpack_from(image)[0] != MAGIC:
        if image[:4] == ELF:
            raise _none(name, capability, "machine code alone")
        return image.rstrip(b"\0").decode(errors="replace")
    there, best = list[str](), (-1, b"")
    for file in _files(image):
        if file.kind != PTX:
            there.append(f"machine code for sm_{file.capability}")
            continue
        text = file.contents().rstrip(b"\0")
        found = _TARGET.search(text)
        if found is None:
            continue
        number, suffix = int(found[1]), found[2].decode()
        there.append(f"PTX for sm_{number}{suffix}")
        runs = number == capability if suffix else number <= capability
        if runs and 2 * number + bool(suffix) > best[0]:
            best = 2 * number + bool(suffix), text
    if not best[1]:
        raise _none(name, capability, ", ".join(there) or "nothing")
    return best[1].decode(errors="replace")


def _none(name: str, capability: int, found: str) -> PtxemuError:
    code = f"-gencode arch=compute_{capability},code=compute_{capability}"
    also = " (or 90a)" if capability == 90 else ""
    hint = f"compile with {code}{also} and without -rdc, or choose another --gpu"
    expected = f"PTX that a GPU of compute capability {capability / 10} runs"
    return PtxemuError("no PTX", where=name, expected=expected, found=found, hint=hint)
