"""Linked lines of CUDA, PTX and machine code: ``--line`` and ``--opcode`` of `invoke sass` and `invoke ptx`.

nvcc's ``.loc`` lines tell for every PTX instruction the CUDA line and the calls through which it was inlined; the cubin
tells for every machine instruction its line of PTX (`flashladder.machine_code.cubin`). `flashladder.view.linked_page`
writes the same as HTML.

Run:
    invoke sass 8 --line exp2_folded.cuh:20-30      # machine code of these CUDA lines
    invoke sass 8 --line kernel.ptx:700-720         # machine code of these lines of PTX
    invoke ptx 8 --opcode LDSM                      # the PTX that became LDSM
    invoke sass 8 --page build/8.html               # all three texts, linked, as one page
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
import json
from pathlib import Path
import re
from typing import Any, NamedTuple

from flashladder.build.compile import cubin_for
from flashladder.errors import FlashladderError
from flashladder.files import read_text, relative
from flashladder.ladder.ablation import load_description
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import Iteration
from flashladder.ladder.selection import one_config
from flashladder.located import closest
from flashladder.machine_code.cubin import PtxLines, read_cubin, read_ptx_lines
from flashladder.machine_code.flow import LOOP, Regions, regions_of
from flashladder.machine_code.opcodes import unknown
from flashladder.machine_code.ptx import ptx_sha256, read_ptx
from flashladder.machine_code.sass import Sass, count, disassemble
from flashladder.names import KERNEL
from flashladder.paths import KERNELS
from flashladder.view.binary import is_file
from ptxemu import Instruction, parse

PTX_FILE = "kernel.ptx"  # the name of the PTX where a CUDA file could stand
OURS = f"{KERNELS.name}/"  # files that .loc names and whose text is shown; the toolkit's headers are not ours to copy
LINE = re.compile(r"(?P<file>[^:]+?)(?::(?P<first>\d{1,9})(?:-(?P<last>\d{1,9}))?)?", re.ASCII)
FORM = f"FILE:LINE, FILE:FIRST-LAST, FILE or FOLDER, where FILE is a part of the kernel or {PTX_FILE}"
MOST_NAMED = 12  # lines or opcodes that a message names


class Place(NamedTuple):
    """A line of CUDA: the file as ``.loc`` names it, and the line, from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        """As compilers write it."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class PtxRow:
    """A line of PTX that holds an instruction, or several."""

    line: int  # in the PTX file, from 1
    opcodes: tuple[str, ...]  # of its instructions, whole
    text: str  # the line without comment
    # its CUDA line, then those of the calls that it was inlined through; empty where the compiler names none
    chain: tuple[Place, ...]
    label: str = ""  # the branch target that it is; empty for most


@dataclass(frozen=True)
class Linked:
    """A kernel, its three texts, and what is made from what."""

    key: str  # by which it is chosen among others, such as ``8``
    config: str  # short form
    arch: str  # such as ``sm_80``
    # text of the CUDA files by name, lines without line breaks; nothing of headers that are not ours
    sources: Mapping[str, tuple[str, ...]]
    ptx: tuple[PtxRow, ...]  # every line with an instruction, ascending
    sass: Sass  # the machine code
    # for each machine instruction the index in `ptx` of what it was made from; None for what the assembler adds by
    # itself
    made_from: tuple[int | None, ...]
    digests: Mapping[str, str]  # of PTX and machine code, as the lock holds them

    @property
    def title(self) -> str:
        """Such as ``iteration 8``."""
        return f"iteration {self.key}"

    @cached_property
    def became(self) -> Mapping[int, tuple[int, ...]]:
        """Index in `ptx` to indices of the machine instructions made from it, ascending; without what became none."""
        return _inverted((origin, index) for index, origin in enumerate(self.made_from) if origin is not None)

    @cached_property
    def at(self) -> Mapping[Place, tuple[int, ...]]:
        """A CUDA line to indices in `ptx` of what was made from it or from what it calls."""
        return _inverted((place, index) for index, row in enumerate(self.ptx) for place in dict.fromkeys(row.chain))

    @cached_property
    def files(self) -> tuple[str, ...]:
        """Names of the CUDA files that code was made from, the composed kernel first."""
        return tuple(dict.fromkeys([*self.sources, *(place.file for place in self.at)]))

    @cached_property
    def regions(self) -> Regions:
        """The blocks of the machine code, and what each is for."""
        return regions_of(self.sass)

    @cached_property
    def main_loop(self) -> frozenset[int]:
        """Indices of the machine instructions of the main loop."""
        blocks = [self.regions.flow.blocks[block] for block in self.regions.blocks(LOOP)]
        return frozenset(index for block in blocks for index in range(block.begin, block.end))

    def source(self, place: Place) -> str:
        """The text of a CUDA line; empty where it is not ours."""
        lines = self.sources.get(place.file, ())
        return lines[place.line - 1] if 0 < place.line <= len(lines) else ""


def _inverted(pairs: Iterable[tuple[Any, int]]) -> dict[Any, tuple[int, ...]]:
    found = defaultdict[Any, list[int]](list)
    for key, value in pairs:
        found[key].append(value)
    return {key: tuple(values) for key, values in found.items()}


def linked(iteration: Iteration, config: KernelConfig, arch: str) -> Linked:
    """A kernel of the ladder, compiled if it is not in the store.

    Raises:
        FlashladderError: it does not compile.
    """
    entry = cubin_for(iteration, config, arch)
    text = read_ptx(entry.ptx)
    rows = ptx_rows(text, relative(entry.ptx))
    sass, lines = disassemble(entry.cubin, lines=False), read_ptx_lines(entry.cubin)
    return Linked(
        key=iteration.description,
        config=config.short_form(),
        arch=entry.arch,
        sources=_sources(rows, entry.ptx_entry.source),
        ptx=rows,
        sass=sass,
        made_from=made_from(rows, sass, lines),
        digests={"PTX": ptx_sha256(text), "machine code": read_cubin(entry.cubin).text_sha256},
    )


def linked_by_name(description: str, config: str | None, arch: str | None) -> Linked:
    """The kernel that words name: a number or an ablation, a key of one configuration, an architecture.

    Raises:
        FlashladderError: one of them is wrong, or the kernel does not compile.
    """
    if is_file(description):
        raise FlashladderError(
            "a file alone has no CUDA lines to ask for", expected="an iteration, such as 8", found=description
        )
    iteration = load_description(description)
    return linked(iteration, one_config(iteration, config), arch or iteration.shown_arch)


def made_from(rows: Sequence[PtxRow], sass: Sass, lines: PtxLines) -> tuple[int | None, ...]:
    """For each machine instruction the index in `rows` of the line that the cubin names for it; None without one."""
    index = {row.line: i for i, row in enumerate(rows)}
    return tuple(index.get(lines.at(one.address) or 0) for one in sass.instructions)


def ptx_rows(text: str, where: str) -> tuple[PtxRow, ...]:
    """Every line with an instruction of our kernel's PTX.

    Raises:
        FlashladderError: it is no PTX, or there is no such kernel in it.
    """
    functions = {function.name: function for function in parse(text, where).functions}
    if KERNEL not in functions:
        raise FlashladderError("no such kernel in the PTX", where=where, expected=KERNEL, found=", ".join(functions))
    lines, found, labels, label = text.splitlines(), defaultdict[int, list[Instruction]](list), dict[int, str](), ""
    for item in functions[KERNEL].body:
        if isinstance(item, Instruction):
            found[item.line].append(item)
            labels[item.line], label = label, ""
        else:
            label = item.name
    return tuple(
        PtxRow(
            line,
            tuple(one.opcode for one in items),
            " ".join(lines[line - 1].partition("//")[0].split()),
            tuple(_chain(items[0])),
            labels[line],
        )
        for line, items in sorted(found.items())
    )


def _chain(instruction: Instruction) -> Iterator[Place]:
    source = instruction.source
    while source is not None:
        yield Place(source.file, source.line)
        source = source.inlined_at


def _sources(rows: Sequence[PtxRow], unit: Path) -> dict[str, tuple[str, ...]]:
    """The text of each CUDA file of ours that the rows name; the composed kernel, `unit`, is the first."""
    names = dict.fromkeys([unit.name, *(place.file for row in rows for place in row.chain)])
    ours = {name: KERNELS / name.removeprefix(OURS) for name in names if name.startswith(OURS)} | {unit.name: unit}
    return {n: tuple(read_text(ours[n]).splitlines()) for n in names if n in ours}


class Selection(NamedTuple):
    """Part of a kernel: indices of lines of its PTX and of its machine instructions."""

    ptx: frozenset[int]
    sass: frozenset[int]


def select(kernel: Linked, line: str | None, opcode: str | None) -> Selection:
    """What a source line and an opcode both name; all of the kernel where neither is given.

    Raises:
        FlashladderError: one of them is malformed, or names nothing in this kernel, or nothing fits both.
    """
    found = Selection(frozenset(range(len(kernel.ptx))), frozenset(range(len(kernel.made_from))))
    for find, word in ((of_line, line), (of_opcode, opcode)):
        if word is not None:
            other = find(kernel, word)
            found = Selection(found.ptx & other.ptx, found.sass & other.sass)
    if not any(found):
        raise FlashladderError("nothing in the kernel is of that line and of that opcode", found=f"{line} and {opcode}")
    return found


def _of_ptx(kernel: Linked, rows: Iterable[int]) -> Selection:
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
    name = _as_named(match["file"].strip())
    folder = f"/{name.strip('/')}/"
    inside = {row for place, rows in kernel.at.items() if folder in f"/{place.file}" for row in rows}
    if match["first"] is None and inside:
        return _of_ptx(kernel, inside)
    file = _file(kernel, name)
    first, last = int(match["first"] or 1), int(match["last"] or match["first"] or 10**9)
    if not 1 <= first <= last:
        raise FlashladderError("not a range of lines", expected="FIRST-LAST, from 1, ascending", found=repr(text))
    numbers: Mapping[int, tuple[int, ...]] = {row.line: (index,) for index, row in enumerate(kernel.ptx)}
    if file != PTX_FILE:
        numbers = {place.line: rows for place, rows in kernel.at.items() if place.file == file}
    if rows := [row for number, those in numbers.items() if first <= number <= last for row in those]:
        return _of_ptx(kernel, rows)
    text = kernel.source(Place(file, first)).strip()
    near = sorted(sorted(numbers, key=lambda number: abs(number - first))[:MOST_NAMED])
    raise FlashladderError(
        "no code was made from there", where=f"{file}:{first}" + (f"-{last}" if match["last"] else ""),
        expected=f"a line with code, such as {', '.join(map(str, near))}",
        found="none in the range" if match["last"] else repr(text) if text else "no text",
    )  # fmt: skip


def _as_named(name: str) -> str:
    """A path as the kernel's files are named: an absolute one, such as an editor copies, from the checkout on."""
    return relative(Path(name)) if Path(name).is_absolute() and Path(name).exists() else name


def _file(kernel: Linked, name: str) -> str:
    """The file of the kernel that `name` is, or is the end of."""
    files = [*kernel.files, PTX_FILE]
    found = [name] if name in files else [file for file in files if file.endswith(f"/{name.lstrip('./')}")]
    if len(found) == 1:
        return found[0]
    what = "several files of this kernel have that name" if found else "no such file in this kernel"
    hint = closest(name, files) or closest(name, [file.rpartition("/")[2] for file in files])
    raise FlashladderError(
        what, expected=f"one of {', '.join(found or files)}", found=repr(name), hint=None if found else hint
    )


def of_opcode(kernel: Linked, text: str) -> Selection:
    """Machine instructions of an opcode and the PTX they came from, or PTX of an opcode and what it became.

    Opcodes of machine code are in capitals, those of PTX in small letters; LDSM finds LDSM.16.M88.4, too.

    Raises:
        FlashladderError: there is no such opcode, or none in this kernel.
    """
    word = text.strip()
    is_ptx, instructions = word == word.lower(), kernel.sass.instructions
    have = {o for row in kernel.ptx for o in row.opcodes} if is_ptx else {one.opcode for one in instructions}
    fits = {opcode for opcode in have if opcode == word or opcode.startswith(f"{word}.")}
    if not fits:
        raise _no_such(word, have, "ptx" if is_ptx else "sass")
    if is_ptx:
        return _of_ptx(kernel, (i for i, row in enumerate(kernel.ptx) if fits.intersection(row.opcodes)))
    sass = frozenset(i for i, one in enumerate(instructions) if one.opcode in fits)
    return Selection(frozenset(row for i in sass if (row := kernel.made_from[i]) is not None), sass)


def _no_such(word: str, have: set[str], language: str) -> FlashladderError:
    """Why an opcode finds nothing: it is misspelt, or this kernel has none."""
    bases = sorted({opcode.partition(".")[0] for opcode in have})
    base, big = word.partition(".")[0], word.upper()
    problem = unknown(base, language)
    if problem is None or base in bases:
        longer = sorted(opcode for opcode in have if opcode.partition(".")[0] == base)[:MOST_NAMED]
        expected = f"one of {', '.join(longer or bases)}"
        return FlashladderError("the kernel has no such instruction", expected=expected, found=repr(word))
    is_small = big != word and unknown(big.partition(".")[0], "sass") is None
    expected = "an opcode of machine code in capitals, or one of PTX, such as LDSM, HMMA.16816, ldmatrix"
    hint = f"did you mean '{big}'?" if is_small else problem[1]
    return FlashladderError("no such opcode", expected=expected, found=repr(word), hint=hint)


def listing(kernel: Linked, chosen: Selection, *, ptx_first: bool = False) -> str:
    """The selected lines of PTX and machine instructions; where the chain of calls changes, that and its CUDA line.

    Args:
        kernel: whose they are.
        chosen: what was selected.
        ptx_first: lines of PTX in order, each with all that was made from it; else machine instructions in order, each
            group under what it came from. ``|`` marks the main loop.
    """
    groups: Iterable[tuple[int | None, Iterable[int]]] = groupby(sorted(chosen.sass), key=kernel.made_from.__getitem__)
    if ptx_first:
        groups = ((row, kernel.became.get(row, ())) for row in sorted(chosen.ptx))
    lines, last = list[str](), tuple[Place, ...]()
    for row, instructions in groups:
        chain = () if row is None else kernel.ptx[row].chain
        if chain and chain != last:
            lines.append(f"// {' < '.join(map(str, chain))}")
            lines += [f"//   {text}"] if (text := kernel.source(chain[0]).strip()) else []
        last = chain
        lines.append(
            "      // the assembler's own" if row is None else f"{kernel.ptx[row].line:6d}  {kernel.ptx[row].text}"
        )
        made = []
        for index in instructions:
            margin, one = "|" if index in kernel.main_loop else " ", kernel.sass.instructions[index]
            made.append(f"{margin}       {one.address:04x}  {one}")
        lines += made or ["        (no instruction of its own: removed, or one with another's)"]
    return "\n".join([*lines, *([""] if lines else []), _summary(kernel, chosen)])


def _summary(kernel: Linked, chosen: Selection) -> str:
    """How much it is: lines of PTX, machine instructions by class, and how many of them the main loop holds."""
    counts = count(kernel.sass.instructions[index] for index in chosen.sass)
    total = counts.pop("total")
    classes = ", ".join(f"{n} {name}" for name, n in sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    lost = sum(row not in kernel.became for row in chosen.ptx)
    without = f" ({lost} without machine code of their own)" if lost else ""
    inside = f": {classes}; {len(chosen.sass & kernel.main_loop)} in the main loop" if total else ""
    return f"PTX lines {len(chosen.ptx)}{without}, machine instructions {total}{inside}"


def as_data(kernel: Linked, chosen: Selection) -> dict[str, Any]:
    """Every selected line of PTX and every selected machine instruction, as JSON can hold them."""
    instructions, rows, origins = kernel.sass.instructions, kernel.ptx, kernel.made_from
    lines = [
        {"line": rows[index].line, "text": rows[index].text, "cuda": list(map(str, rows[index].chain)),
         "sass": [instructions[i].address for i in kernel.became.get(index, ())]}
        for index in sorted(chosen.ptx)
    ]  # fmt: skip
    code = [
        {"address": instructions[index].address, "text": str(instructions[index]),
         "class": instructions[index].opcode_class, "main_loop": index in kernel.main_loop,
         "ptx": None if (origin := origins[index]) is None else rows[origin].line}
        for index in sorted(chosen.sass)
    ]  # fmt: skip
    named = {"kernel": kernel.title, "config": kernel.config, "arch": kernel.arch, "sha256": dict(kernel.digests)}
    return {**named, "ptx": lines, "sass": code}


def show_lines(kernel: Linked, line: str, opcode: str, *, ptx_first: bool = False, as_json: bool = False) -> None:
    """Prints what a line and an opcode name in a kernel, by address or by line of PTX; empty names all.

    Raises:
        FlashladderError: what they name is not there.
    """
    chosen = select(kernel, line or None, opcode or None)
    if as_json:
        print(json.dumps(as_data(kernel, chosen), indent=2))
    else:
        print(listing(kernel, chosen, ptx_first=ptx_first))
