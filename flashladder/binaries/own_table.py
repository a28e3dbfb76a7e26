"""Which configuration each fatbin of a library of this project is: its table of kernels names them.

Why: all kernels of ours have one symbol, and a library holds dozens of them (`flashladder.build.library`). A row
of the table begins with pointers to the short form and to the dtype and ends with one to the fatbin; in a shared
library each pointer is a relocation ``R_X86_64_RELATIVE``, whose addend is where it points.

Nothing to run here.
"""

from __future__ import annotations

from collections.abc import Collection
import io
import mmap
import re
import struct
from typing import IO, cast

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection

_RELATIVE = 8
_RELA = struct.Struct("<QQq")
_SHORT_FORM = re.compile(rb"\((?:FP16|BF16)(?:, \d{1,9}){4}\): [\w+.-]{1,300}(?=\0)")
MOST_RELOCATIONS = 1 << 16  # a library of ours has a few hundred; PyTorch's have millions, and no such table
POINTERS = 3  # of a row: short form, dtype, fatbin


def configs(data: mmap.mmap | bytes, containers: Collection[int]) -> dict[int, str]:
    """Place of a fatbin in the file to the short form that the library's table gives it; empty without a table."""
    if not containers or data[:4] != b"\x7fELF":
        return {}
    try:
        return _configs(data, containers)
    except (ELFError, struct.error, ValueError, KeyError, TypeError, IndexError, UnicodeDecodeError, OverflowError):
        return {}  # a table that cannot be read names nothing: the kernels are there without it


def _configs(data: mmap.mmap | bytes, containers: Collection[int]) -> dict[int, str]:
    if isinstance(data, mmap.mmap):
        data.seek(0)
    elf = ELFFile(io.BytesIO(data) if isinstance(data, bytes) else cast("IO[bytes]", data))
    relocations = elf.get_section_by_name(".rela.dyn")
    if not isinstance(relocations, RelocationSection) or relocations["sh_size"] > MOST_RELOCATIONS * _RELA.size:
        return {}
    rows = _RELA.iter_unpack(relocations.data())
    pointers = sorted((offset, addend) for offset, info, addend in rows if info & 0xFFFFFFFF == _RELATIVE)
    loads = [
        (one["p_vaddr"], one["p_offset"], one["p_filesz"]) for one in elf.iter_segments() if one["p_type"] == "PT_LOAD"
    ]

    def place(address: int) -> int:
        return next((begin + address - low for low, begin, size in loads if low <= address < low + size), -1)

    found = {}
    for index in range(POINTERS - 1, len(pointers)):
        fatbin = place(pointers[index][1])
        if fatbin in containers:
            name = _SHORT_FORM.match(data, max(0, place(pointers[index - POINTERS + 1][1])))
            if name:
                found[fatbin] = name[0].decode("ascii")
    return found
