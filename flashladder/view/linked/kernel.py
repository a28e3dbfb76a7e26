"""One kernel with what each of its instructions was made from: CUDA lines, PTX lines, machine code.

Why: three texts are the same program, and a reader of one asks for the others. nvcc's ``.loc`` lines tell for every PTX
instruction the CUDA line and the calls through which it was inlined; the cubin tells for every machine instruction its
line of PTX (`flashladder.machine_code.cubin`). Both were written by the compilers that made the locked code; what
they say is checked against the PTX in the store before it is shown.

Nothing to run here; `flashladder.view.linked.command` does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from flashladder.build.compile import cubin_for
from flashladder.build.store import CubinEntry
from flashladder.errors import FlashladderError
from flashladder.files import read_text, relative
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import Iteration
from flashladder.machine_code.cubin import PtxLines, read_ptx_lines, text_sha256
from flashladder.machine_code.flow import LOOP, Regions, regions_of
from flashladder.machine_code.ptx import ptx_sha256, read_ptx
from flashladder.machine_code.sass import Sass, disassemble
from flashladder.names import KERNEL
from flashladder.paths import KERNELS
from flashladder.toolchain.wheels import find_toolchain
from ptxemu import Instruction, parse

PTX_FILE = "kernel.ptx"  # as people name the PTX where a file of CUDA could stand
OURS = f"{KERNELS.name}/"  # files that .loc names and whose text is shown; the toolkit's headers are not ours to copy


class Place(NamedTuple):
    """A line of CUDA: the file as ``.loc`` names it, and the line, from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        """As compilers write it."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class PtxRow:
    """A line of PTX that holds an instruction, or several.

    Attributes:
        line: in the PTX file, from 1.
        opcodes: of its instructions, whole.
        text: the line without what stands around it.
        chain: its CUDA line, then those of the calls that it was inlined through; empty where the compiler names none.
        label: the branch target that it is; empty for most.
    """

    line: int
    opcodes: tuple[str, ...]
    text: str
    chain: tuple[Place, ...]
    label: str = ""


@dataclass(frozen=True)
class Linked:
    """A kernel, its three texts, and what is made from what.

    Attributes:
        key: by which it is chosen among others, such as ``8``.
        title: such as ``iteration 8``.
        config: short form.
        arch: such as ``sm_80``.
        sources: text of the CUDA files by name, lines without line breaks; nothing of headers that are not ours.
        ptx: every line with an instruction, ascending.
        sass: the machine code.
        made_from: for each machine instruction the index in `ptx` of what it was made from; None for what the assembler
            adds by itself.
        digests: of PTX and machine code, as the lock holds them.
    """

    key: str
    title: str
    config: str
    arch: str
    sources: Mapping[str, tuple[str, ...]]
    ptx: tuple[PtxRow, ...]
    sass: Sass
    made_from: tuple[int | None, ...]
    digests: Mapping[str, str]

    @cached_property
    def became(self) -> Mapping[int, tuple[int, ...]]:
        """Index in `ptx` to indices of the machine instructions made from it, ascending; without what became none."""
        found = defaultdict(list)
        for index, origin in enumerate(self.made_from):
            if origin is not None:
                found[origin].append(index)
        return {origin: tuple(indices) for origin, indices in found.items()}

    @cached_property
    def at(self) -> Mapping[Place, tuple[int, ...]]:
        """A CUDA line to indices in `ptx` of what was made from it or from what it calls."""
        found = defaultdict(list)
        for index, row in enumerate(self.ptx):
            for place in dict.fromkeys(row.chain):
                found[place].append(index)
        return {place: tuple(indices) for place, indices in found.items()}

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


def linked(iteration: Iteration, config: KernelConfig, arch: str) -> Linked:
    """A kernel of the ladder, compiled if it is not in the store.

    Raises:
        FlashladderError: it does not compile, or its line tables are not those of its PTX.
    """
    entry = cubin_for(iteration, config, arch, find_toolchain())
    return joined(entry, iteration.description, config.short_form())


def joined(entry: CubinEntry, key: str, config: str) -> Linked:
    """The same of an entry of the store that is there."""
    text = read_ptx(entry.ptx)
    rows = ptx_rows(text, relative(entry.ptx))
    sass, lines = disassemble(entry.cubin, lines=False), read_ptx_lines(entry.cubin)
    require_same(rows, lines, relative(entry.cubin))
    return Linked(
        key=key,
        title=f"iteration {key}",
        config=config,
        arch=entry.arch,
        sources=source_texts(rows, entry.ptx_entry.source),
        ptx=rows,
        sass=sass,
        made_from=made_from(rows, sass, lines),
        digests={"PTX": ptx_sha256(text), "machine code": text_sha256(entry.cubin)},
    )


def made_from(rows: Sequence[PtxRow], sass: Sass, lines: PtxLines) -> tuple[int | None, ...]:
    """For each machine instruction the index in `rows` of the line that the cubin names for it."""
    index = {row.line: i for i, row in enumerate(rows)}
    return tuple(index.get(lines.at(one.address) or 0) for one in sass.instructions)


def ptx_rows(text: str, where: str, kernel: str = KERNEL) -> tuple[PtxRow, ...]:
    """Every line of a kernel's PTX with an instruction.

    Raises:
        FlashladderError: it is no PTX, or there is no such kernel in it.
    """
    functions = {function.name: function for function in parse(text, where).functions}
    if kernel not in functions:
        raise FlashladderError("no such kernel in the PTX", where=where, expected=kernel, found=", ".join(functions))
    lines, found, labels, label = text.splitlines(), defaultdict[int, list[Instruction]](list), dict[int, str](), ""
    for item in functions[kernel].body:
        if isinstance(item, Instruction):
            found[item.line].append(item)
            labels[item.line], label = label, ""
        else:
            label = item.name
    return tuple(
        PtxRow(line, tuple(one.opcode for one in items), _bare(lines[line - 1]), _chain(items[0]), labels[line])
        for line, items in sorted(found.items())
    )


def _chain(instruction: Instruction) -> tuple[Place, ...]:
    places, source = [], instruction.source
    while source is not None:
        places.append(Place(source.file, source.line))
        source = source.inlined_at
    return tuple(places)


def _bare(line: str) -> str:
    """A line of PTX without comment and with single blanks."""
    return " ".join(line.partition("//")[0].split())


def require_same(rows: Sequence[PtxRow], lines: PtxLines, where: str) -> None:
    """Raises `FlashladderError` unless the PTX that the cubin keeps has the same instructions in the same lines."""
    for row in rows:
        kept = _bare(lines.text[row.line - 1]) if row.line <= len(lines.text) else "no such line"
        if kept != row.text:
            raise FlashladderError(
                "the cubin was made from other PTX", where=f"{where}, line {row.line} of its PTX", expected=row.text,
                found=kept, hint="run `invoke build` again",
            )  # fmt: skip


def source_texts(rows: Sequence[PtxRow], unit: Path) -> dict[str, tuple[str, ...]]:
    """The text of each CUDA file that the rows name and that is ours; the composed kernel, `unit`, is the first.

    Raises:
        FlashladderError: a file that is ours cannot be read.
    """
    names = dict.fromkeys([unit.name, *(place.file for row in rows for place in row.chain)])
    ours = {name: KERNELS / name.removeprefix(OURS) for name in names if name.startswith(OURS)} | {unit.name: unit}
    return {n: tuple(read_text(ours[n]).splitlines()) for n in names if n in ours}
