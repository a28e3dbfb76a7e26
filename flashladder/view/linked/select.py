"""Lines and opcodes in a kernel: what was made from a source line, what an opcode came from and what it became.

Why: ``--line kernels/ptx/mma.cuh:23`` asks forward, ``--opcode LDSM`` backward; both give the same two sets, lines of
PTX and machine instructions, so that they can be combined. Opcodes of machine code are written in capitals, those of
PTX in small letters.

Nothing to run here; `flashladder.view.linked.command` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
import re

from flashladder.errors import FlashladderError
from flashladder.located import closest
from flashladder.machine_code.opcodes import unknown
from flashladder.view.linked.kernel import PTX_FILE, Linked, Place

LINE = re.compile(r"(?P<file>[^:]+?)(?::(?P<first>\d{1,9})(?:-(?P<last>\d{1,9}))?)?", re.ASCII)
FORM = f"FILE:LINE, FILE:FIRST-LAST, FILE or FOLDER, where FILE is a part of the kernel or {PTX_FILE}"
MOST_NAMED = 12  # lines or opcodes that a message names


@dataclass(frozen=True)
class Selection:
    """Part of a kernel: indices of lines of its PTX and of its machine instructions."""

    ptx: frozenset[int]
    sass: frozenset[int]

    def __and__(self, other: Selection) -> Selection:
        """What is in both."""
        return Selection(self.ptx & other.ptx, self.sass & other.sass)

    def __bool__(self) -> bool:
        """Whether there is anything in it."""
        return bool(self.ptx or self.sass)


def select(kernel: Linked, line: str | None, opcode: str | None) -> Selection:
    """What a source line and an opcode both name; all of the kernel where neither is given.

    Raises:
        FlashladderError: one of them is malformed, or names nothing in this kernel, or nothing fits both.
    """
    everything = Selection(frozenset(range(len(kernel.ptx))), frozenset(range(len(kernel.made_from))))
    parts = [find(kernel, word) for find, word in ((of_line, line), (of_opcode, opcode)) if word is not None]
    found = reduce(Selection.__and__, parts, everything)
    if not found:
        raise FlashladderError("nothing in the kernel is of that line and of that opcode", found=f"{line} and {opcode}")
    return found


def of_ptx(kernel: Linked, rows: Iterable[int]) -> Selection:
    """Lines of PTX and what they became."""
    chosen = frozenset(rows)
    return Selection(chosen, frozenset(i for row in chosen for i in kernel.became.get(row, ())))


def of_line(kernel: Linked, text: str) -> Selection:
    """What was made from lines of a CUDA file, by themselves or through what they call, or from lines of the PTX.

    Raises:
        FlashladderError: `text` is no line, the kernel has no such file, or nothing was made from these lines.
    """
    match = LINE.fullmatch(text.strip())
    if match is None:
        raise FlashladderError("not a line of source", expected=FORM, found=repr(text))
    name = match["file"].strip()
    if match["first"] is None and (inside := _inside(kernel, name)):
        return of_ptx(kernel, inside)
    file = _file(kernel, name)
    first, last = int(match["first"] or 1), int(match["last"] or match["first"] or 10**9)
    if not 1 <= first <= last:
        raise FlashladderError("not a range of lines", expected="FIRST-LAST, from 1, ascending", found=repr(text))
    numbers: dict[int, tuple[int, ...]]
    if file == PTX_FILE:
        numbers = {row.line: (index,) for index, row in enumerate(kernel.ptx)}
    else:
        numbers = {place.line: rows for place, rows in kernel.at.items() if place.file == file}
    if rows := [row for number, those in numbers.items() if first <= number <= last for row in those]:
        return of_ptx(kernel, rows)
    text = kernel.source(Place(file, first)).strip()
    raise FlashladderError(
        "no code was made from there", where=f"{file}:{first}" + (f"-{last}" if match["last"] else ""),
        expected=f"a line with code, such as {_nearest(numbers, first)}",
        found="none in the range" if match["last"] else repr(text) if text else "no text",
    )  # fmt: skip


def _inside(kernel: Linked, folder: str) -> set[int]:
    """Rows that were made from the files of a folder, such as ``softmax``, or from what they call."""
    word = f"/{folder.strip('/')}/"
    return {row for place, rows in kernel.at.items() if word in f"/{place.file}" for row in rows}


def _nearest(numbers: Iterable[int], wanted: int) -> str:
    """The lines with code that are closest to one without."""
    close = sorted(sorted(numbers, key=lambda number: abs(number - wanted))[:MOST_NAMED])
    return ", ".join(map(str, close))


def _file(kernel: Linked, name: str) -> str:
    """The file of the kernel that `name` is, or is the end of."""
    files = [*kernel.files, PTX_FILE]
    found = [name] if name in files else [file for file in files if file.endswith(f"/{name.lstrip('./')}")]
    if len(found) == 1:
        return found[0]
    what = "several files of this kernel have that name" if found else "no such file in this kernel"
    raise FlashladderError(what, expected=f"one of {', '.join(found or files)}", found=repr(name),
                           hint=None if found else _closest_file(name, files))  # fmt: skip


def _closest_file(name: str, files: list[str]) -> str | None:
    """A hint at a misspelt file, with or without its folder."""
    return closest(name, files) or closest(name, [file.rpartition("/")[2] for file in files])


def of_opcode(kernel: Linked, text: str) -> Selection:
    """Machine instructions of an opcode and the PTX they came from, or PTX of an opcode and what it became.

    Raises:
        FlashladderError: there is no such opcode, or none in this kernel.
    """
    word = text.strip()
    is_ptx = word == word.lower()
    instructions = kernel.sass.instructions
    have = {o for row in kernel.ptx for o in row.opcodes} if is_ptx else {one.opcode for one in instructions}
    fits = _matching(word)
    if not any(map(fits, have)):
        raise _no_such(word, have, "ptx" if is_ptx else "sass")
    if is_ptx:
        return of_ptx(kernel, (i for i, row in enumerate(kernel.ptx) if any(map(fits, row.opcodes))))
    sass = frozenset(i for i, one in enumerate(instructions) if fits(one.opcode))
    return Selection(frozenset(row for i in sass if (row := kernel.made_from[i]) is not None), sass)


def _matching(word: str) -> Callable[[str], bool]:
    """Whether an opcode is `word`, or begins with it and a dot: LDSM finds LDSM.16.M88.4."""
    return lambda opcode: opcode == word or opcode.startswith(f"{word}.")


def _in_capitals(word: str) -> str | None:
    """A hint at an opcode of machine code that was written small."""
    big = word.upper()
    return f"did you mean '{big}'?" if big != word and unknown(big.partition(".")[0], "sass") is None else None


def _no_such(word: str, have: set[str], language: str) -> FlashladderError:
    """Why an opcode finds nothing: it is misspelt, or this kernel has none."""
    bases = sorted({opcode.partition(".")[0] for opcode in have})
    base = word.partition(".")[0]
    problem = unknown(base, language)
    if problem and base not in bases:
        expected = "an opcode of machine code in capitals, or one of PTX, such as LDSM, HMMA.16816, ldmatrix"
        return FlashladderError(
            "no such opcode", expected=expected, found=repr(word), hint=_in_capitals(word) or problem[1]
        )
    longer = sorted(opcode for opcode in have if opcode.partition(".")[0] == base)[:MOST_NAMED]
    return FlashladderError(
        "the kernel has no such instruction", expected=f"one of {', '.join(longer or bases)}", found=repr(word)
    )
