"""PTX as data: a normalised text with its SHA-256, and counts by opcode.

The PTX that ships holds comments, line tables and names that nvcc makes from a file's path. Without them, two texts are
equal exactly if they give the assembler the same instructions.

Run: ``invoke ptx kernel.ptx --counts``.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
import itertools
from pathlib import Path
import re

from flashladder.errors import FlashladderError
from flashladder.files import read_text, relative, sha256

_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_DEBUG_SECTION = re.compile(r"^[ \t]*\.section\s+\.debug_\w+\s*\{.*?(?:^[ \t]*\}[^\n]*$|\Z)", re.DOTALL | re.MULTILINE)
_LINE_TABLE = re.compile(r"^[ \t]*\.(?:file|loc)(?:[ \t][^\n]*)?$", re.MULTILINE)
_DEBUG_TARGET = re.compile(r"^([ \t]*\.target\s+\w+)\s*,\s*debug\s*$", re.MULTILINE)
# Labels of line tables, and names of internal symbols, in which nvcc puts a hash of the source's path.
_DEBUG_LABEL = re.compile(r"^[ \t]*\$L__(?:tmp|func_begin|func_end|info_string)\d+:\s*$", re.MULTILINE)
_INTERNAL = re.compile(r"_INTERNAL_[0-9a-f]{8}_\d+_\w+?_cu_[0-9a-f]{8}")
_ANONYMOUS = re.compile(r"_GLOBAL__N__[0-9a-f]{8}_\d+_\w+?_cu_[0-9a-f]{8}")
_TARGET = re.compile(r"^[ \t]*\.target[ \t]+(sm_\d+[a-z]?)", re.MULTILINE)
_BLANKS = re.compile(r"[ \t]+")

_LABEL = re.compile(r"^(?:[$%A-Za-z_][\w$]*:(?!:)\s*)+")
_VECTOR = re.compile(r"\{\s*[^{};\s][^{};]*\}")  # braces around operands or initial values; a block contains a ``;``
_STATEMENT = re.compile(r"^(?:@!?%\w+\s+)?(?P<opcode>[a-z][\w.:]*(?:\s+\.[a-z][\w.:]*)*)")


@lru_cache(maxsize=1)  # who reads a file asks for its digest next
def normalise(text: str) -> str:
    """PTX without comments, line tables, debug sections, blank lines and names derived from a path.

    Idempotent: a normalised text is its own normal form. Runs of blanks become one.
    """
    text = "\n".join(text.splitlines())  # the patterns know one kind of line end
    for pattern in (_COMMENT, _DEBUG_SECTION, _LINE_TABLE, _DEBUG_LABEL):
        text = pattern.sub("", text)
    text = _DEBUG_TARGET.sub(r"\1", text)
    text = _ANONYMOUS.sub("_GLOBAL__N_", _INTERNAL.sub("_INTERNAL_", text))
    lines = (line.strip() for line in _BLANKS.sub(" ", text).splitlines())
    return "".join(f"{line}\n" for line in lines if line)


def ptx_sha256(text: str) -> str:
    """SHA-256 of the normalised text, lower-case hex."""
    return sha256(normalise(text))


def opcodes(text: str) -> list[str]:
    """The full opcode of every instruction, in order, e.g. ``mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32``.

    Directives (``.reg``, ``.param`` ...), labels and predicates are left out.
    """
    found = []
    for statement in re.split(r"[;{}]", _VECTOR.sub("", normalise(text))):
        lines = (_LABEL.sub("", line).strip() for line in statement.splitlines())
        instruction = " ".join(itertools.dropwhile(lambda line: not line or line.startswith("."), lines))
        if match := _STATEMENT.match(instruction):
            found.append("".join(match["opcode"].split()))
    return found


def opcode_counts(text: str) -> dict[str, int]:
    """Instructions per full opcode, and their sum as ``total``."""
    counts = Counter(opcodes(text))
    return {"total": sum(counts.values()), **dict(sorted(counts.items()))}


def is_ptx(text: str) -> bool:
    """Whether the text, which may be cut, begins like PTX."""
    return normalise(text).startswith(".version")


def target(text: str) -> str:
    """The target of the PTX, such as ``sm_80``; `FlashladderError` if it has no ``.target``."""
    if found := _TARGET.search(_COMMENT.sub("", text)):
        return found[1]
    raise FlashladderError("not PTX", expected="a .target directive", found="none")


def read_ptx(path: Path) -> str:
    """The text of a PTX file; `FlashladderError` if it is missing or does not begin like PTX (``.version``)."""
    if not path.exists():
        raise FlashladderError("no such PTX file", where=relative(path))
    text = read_text(path)
    if not is_ptx(text):
        raise FlashladderError("not PTX", where=relative(path), expected=".version as the first directive")
    return text
