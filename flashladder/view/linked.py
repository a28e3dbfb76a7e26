"""Linked lines of CUDA, PTX and machine code: ``--line`` and ``--opcode`` of `invoke sass` and `invoke ptx`.

nvcc's ``.loc`` lines give the CUDA line of every PTX instruction and the calls through which it was inlined. The cubin
gives the PTX line of every machine instruction. `flashladder.view.linked_page` writes the same as HTML.

Run: ``invoke sass 8 --line exp2_folded.cuh:20-30``, ``invoke sass 8 --line kernel.ptx:700-720``,
``invoke ptx 8 --opcode LDSM`` (the PTX that became it).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
import re
from typing import Any, NamedTuple

from flashladder.build.compile import cubin_for
from flashladder.errors import FlashladderError
from flashladder.files import read_text, relative
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import Iteration
from flashladder.located import closest
from flashladder.machine_code.cubin import read_cubin, read_ptx_lines
from flashladder.machine_code.flow import LOOP, Regions, regions_of
from flashladder.machine_code.ptx import ptx_sha256, read_ptx
from flashladder.machine_code.sass import Sass, count, disassemble
from flashladder.names import KERNEL
from flashladder.paths import KERNELS
from ptxemu import Instruction, parse

PTX_FILE = "kernel.ptx"  # the PTX, in place of a CUDA file
OURS = f"{KERNELS.name}/"  # the pages show the text of these files, but not of the toolkit's headers
LINE = re.compile(r"(?P<file>[^:]+?)(?::(?P<first>\d{1,9})(?:-(?P<last>\d{1,9}))?)?", re.ASCII)
FORM = f"FILE:LINE, FILE:FIRST-LAST (ascending), FILE or FOLDER, where FILE is a part of the kernel or {PTX_FILE}"
MOST_NAMED = 12  # lines or opcodes that a message names


class Place(NamedTuple):
    """A line of CUDA."""

    file: str  # as ``.loc`` names it
    line: int  # from 1

    def __str__(self) -> str:
        """``FILE:LINE``, as compilers write it."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class PtxRow:
    """A line of PTX with at least one instruction."""

    line: int  # in the PTX file, from 1
    opcodes: tuple[str, ...]  # full opcodes of its instructions
    text: str  # the line without comment
    chain: tuple[Place, ...]  # its CUDA line, then the calls through which it was inlined; empty if unknown
    label: str = ""  # of the line, if it is a branch target


@dataclass(frozen=True)
class Linked:
    """A kernel as CUDA, PTX and machine code, with the links between the three."""

    key: str  # the iteration's description, such as ``8``
    config: str  # short form
    arch: str  # such as ``sm_80``
    sources: Mapping[str, tuple[str, ...]]  # lines of this project's CUDA files by name
    ptx: tuple[PtxRow, ...]  # every line with an instruction, ascending
    sass: Sass
    made_from: tuple[int | None, ...]  # for each machine instruction its index in `ptx`; None if ptxas added it
    digests: Mapping[str, str]  # of PTX and machine code, as the lock holds them

    @cached_property
    def became(self) -> Mapping[int, tuple[int, ...]]:
        """Maps an index in `ptx` to the indices of the machine instructions made from it, ascending; at least one."""
        return _inverted((origin, index) for index, origin in enumerate(self.made_from) if origin is not None)

    @cached_property
    def at(self) -> Mapping[Place, tuple[int, ...]]:
        """Maps a CUDA line to the indices in `ptx` of the code made from it or from its calls."""
        return _inverted((place, index) for index, row in enumerate(self.ptx) for place in dict.fromkeys(row.chain))

    @cached_property
    def files(self) -> tuple[str, ...]:
        """Names of the CUDA files that code was made from, the composed kernel first."""
        return tuple(dict.fromkeys([*self.sources, *(place.file for place in self.at)]))

    @cached_property
    def regions(self) -> Regions:
        """The blocks of the machine code with their regions."""
        return regions_of(self.sass)

    @cached_property
    def main_loop(self) -> frozenset[int]:
        """Indices of the machine instructions of the main loop."""
        blocks = [self.regions.flow.blocks[block] for block in self.regions.blocks(LOOP)]
        return frozenset(index for block in blocks for index in range(block.begin, block.end))

    def source(self, place: Place) -> str:
        """The text of a CUDA line; empty for files of others."""
        lines = self.sources.get(place.file, ())
        return lines[place.line - 1] if 0 < place.line <= len(lines) else ""


def _inverted(pairs: Iterable[tuple[Any, int]]) -> dict[Any, tuple[int, ...]]:
    found = defaultdict[Any, list[int]](list)
    for key, value in pairs:
        found[key].append(value)
    return {key: tuple(values) for key, values in found.items()}


def linked(iteration: Iteration, config: KernelConfig, arch: str) -> Linked:
    """A kernel of the ladder, compiled if needed; raises `FlashladderError` if that fails."""
    entry = cubin_for(iteration, config, arch)
    text = read_ptx(entry.ptx)
    rows = ptx_rows(text, relative(entry.ptx))
    sass, lines = disassemble(entry.cubin, lines=False), read_ptx_lines(entry.cubin)
    index = {row.line: i for i, row in enumerate(rows)}
    names = dict.fromkeys([entry.ptx_entry.source.name, *(place.file for row in rows for place in row.chain)])
    ours = {name: KERNELS / name.removeprefix(OURS) for name in names if name.startswith(OURS)}
    ours[entry.ptx_entry.source.name] = entry.ptx_entry.source  # the composed kernel is the first of `names`
    return Linked(
        key=iteration.description,
        config=config.short_form(),
        arch=entry.arch,
        sources={name: tuple(read_text(ours[name]).splitlines()) for name in names if name in ours},
        ptx=rows,
        sass=sass,
        made_from=tuple(index.get(lines.at(one.address) or 0) for one in sass.instructions),
        digests={"PTX": ptx_sha256(text), "machine code": read_cubin(entry.cubin).text_sha256},
    )


def ptx_rows(text: str, where: str) -> tuple[PtxRow, ...]:
    """Every line with an instruction of the kernel; raises `FlashladderError` if `text` is not its PTX."""
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
    rows = []
    for line, items in sorted(found.items()):
        text_of_line = " ".join(lines[line - 1].partition("//")[0].split())
        opcodes, chain = tuple(one.opcode for one in items), tuple(_chain(items[0]))
        rows.append(PtxRow(line, opcodes, text_of_line, chain, labels[line]))
    return tuple(rows)


def _chain(instruction: Instruction) -> Iterator[Place]:
    source = instruction.source
    while source is not None:
        yield Place(source.file, source.line)
        source = source.inlined_at


class Selection(NamedTuple):
    """Part of a kernel, as indices in `Linked.ptx` and of machine instructions."""

    ptx: frozenset[int]
    sass: frozenset[int]


def select(kernel: Linked, line: str, opcode: str) -> Selection:
    """The code that a source line and an opcode both name, either of them empty; errors as of `of_line`."""
    found = [find(kernel, word.strip()) for find, word in ((of_line, line), (of_opcode, opcode)) if word]
    both = Selection(*(frozenset.intersection(*side) for side in zip(*found, strict=True)))
    if not any(both):
        raise FlashladderError("nothing in the kernel is of that line and of that opcode", found=f"{line} and {opcode}")
    return both


def _of_ptx(kernel: Linked, rows: Iterable[int]) -> Selection:
    chosen = frozenset(rows)
    return Selection(chosen, frozenset(i for row in chosen for i in kernel.became.get(row, ())))


def of_line(kernel: Linked, text: str) -> Selection:
    """The code made from lines of a CUDA file, directly or through calls, or from lines of the PTX.

    Raises `FlashladderError` if `text` is malformed, the kernel has no such file, or no code was made from these lines.
    """
    match = LINE.fullmatch(text)
    first = int(match["first"] or 1) if match else 0
    last = int(match["last"] or match["first"] or 10**9) if match else 0
    if match is None or not 1 <= first <= last:
        raise FlashladderError("not a line of source", expected=FORM, found=repr(text))
    name = match["file"].strip()
    if Path(name).is_absolute() and Path(name).exists():  # as an editor copies it
        name = relative(Path(name))
    folder = f"/{name.strip('/')}/"
    inside = {row for place, rows in kernel.at.items() if folder in f"/{place.file}" for row in rows}
    if match["first"] is None and inside:
        return _of_ptx(kernel, inside)
    file = _file(kernel, name)
    numbers: Mapping[int, tuple[int, ...]] = {row.line: (index,) for index, row in enumerate(kernel.ptx)}
    if file != PTX_FILE:
        numbers = {place.line: rows for place, rows in kernel.at.items() if place.file == file}
    if found := [row for number, rows in numbers.items() if first <= number <= last for row in rows]:
        return _of_ptx(kernel, found)
    near = sorted(sorted(numbers, key=lambda number: abs(number - first))[:MOST_NAMED])
    expected = f"a line with code, such as {', '.join(map(str, near))}"
    raise FlashladderError("no code was made from there", expected=expected, found=text)


def _file(kernel: Linked, name: str) -> str:
    """The name of the kernel's file that is `name` or ends with it."""
    files = [*kernel.files, PTX_FILE]
    found = [name] if name in files else [file for file in files if file.endswith(f"/{name.lstrip('./')}")]
    if len(found) == 1:
        return found[0]
    what, hint = "several files of this kernel have that name", None
    if not found:
        what = "no such file in this kernel"
        hint = closest(name, files) or closest(name, [file.rpartition("/")[2] for file in files])
    raise FlashladderError(what, expected=f"one of {', '.join(found or files)}", found=repr(name), hint=hint)


def of_opcode(kernel: Linked, text: str) -> Selection:
    """Machine instructions of an opcode with the PTX they came from, or PTX of an opcode with what it became.

    Opcodes of machine code are in capitals, those of PTX in small letters; LDSM also finds LDSM.16.M88.4.
    Raises `FlashladderError` if this kernel has no such opcode.
    """
    is_ptx, instructions = text == text.lower(), kernel.sass.instructions
    of_ptx, of_sass = {o for row in kernel.ptx for o in row.opcodes}, {one.opcode for one in instructions}
    present = of_ptx if is_ptx else of_sass
    fits = {opcode for opcode in present if opcode == text or opcode.startswith(f"{text}.")}
    if not fits:
        classes = {opcode: opcode.partition(".")[0] for opcode in of_ptx | of_sass}
        hint = closest(text, sorted({*classes, *classes.values()}))
        what = f"the kernel has no such {'PTX' if is_ptx else 'machine'} instruction"
        near = {one for one in present if classes[one] == text.partition(".")[0]} or {classes[one] for one in present}
        raise FlashladderError(what, expected=f"one of {', '.join(sorted(near))}", found=repr(text), hint=hint)
    if is_ptx:
        return _of_ptx(kernel, (i for i, row in enumerate(kernel.ptx) if fits.intersection(row.opcodes)))
    sass = frozenset(i for i, one in enumerate(instructions) if one.opcode in fits)
    return Selection(frozenset(row for i in sass if (row := kernel.made_from[i]) is not None), sass)


def listing(kernel: Linked, chosen: Selection, *, ptx_first: bool = False) -> str:
    """The selected PTX and machine instructions under their CUDA lines; ``|`` marks the main loop.

    With `ptx_first`, each line of PTX is followed by all that was made from it. Else machine instructions are in
    address order, each group under the PTX it came from.
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
        added = "      // the assembler's own"
        lines.append(added if row is None else f"{kernel.ptx[row].line:6d}  {kernel.ptx[row].text}")
        made = []
        for index in instructions:
            margin, one = "|" if index in kernel.main_loop else " ", kernel.sass.instructions[index]
            made.append(f"{margin}       {one.address:04x}  {one}")
        lines += made or ["        (no instruction of its own: removed, or one with another's)"]
    counts = count(kernel.sass.instructions[index] for index in chosen.sass)
    total = counts.pop("total")
    classes = ", ".join(f"{n} {name}" for name, n in sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    lost = sum(row not in kernel.became for row in chosen.ptx)
    without = f" ({lost} without machine code of their own)" if lost else ""
    inside = f": {classes}; {len(chosen.sass & kernel.main_loop)} in the main loop" if total else ""
    lines += ["", f"PTX lines {len(chosen.ptx)}{without}, machine instructions {total}{inside}"]
    return "\n".join(lines)


def as_data(kernel: Linked, chosen: Selection) -> dict[str, Any]:
    """The selected lines of PTX and machine instructions as JSON."""
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
    named = {"kernel": f"iteration {kernel.key}", "config": kernel.config, "arch": kernel.arch}
    return {**named, "sha256": dict(kernel.digests), "ptx": lines, "sass": code}
