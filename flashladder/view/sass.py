"""Machine code for people: the listing beside its source lines, and tables of opcode classes.

Why: a step is understood by reading what the assembler made of it; the main loop is marked because whatever stands
outside of it runs once.

Run: ``python -m flashladder.view.sass 7`` lists an iteration beside its source lines (``--counts`` for the table alone,
``--config`` for another configuration than the first of its A100 ones, ``--arch`` for another architecture than
sm_80); ``python -m flashladder.view.sass a.cubin b.cubin`` counts any cubins side by side.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from flashladder.arguments import parser_of
from flashladder.columns import table
from flashladder.commands import COMMANDS
from flashladder.errors import FlashladderError, one_line_errors
from flashladder.files import relative
from flashladder.machine_code.sass import Sass, count, disassemble
from flashladder.names import KERNEL
from flashladder.view.linked.command import shown

COLUMNS = [
    "total",
    "IADD3",
    "LOP3",
    "SHF",
    "IMAD.MOV.U32",
    "MOV",
    "CS2R",
    "FMUL",
    "FFMA",
    "FADD",
    "MUFU",
    "HMMA",
    "LDSM",
    "LDGSTS",
    "FMNMX",
    "IMAD",
    "SHFL",
    "BAR",
    "LDL",
    "STL",
]


def count_table(columns: Mapping[str, Mapping[str, int]]) -> str:
    """A table of opcode classes (rows) by `columns`: the published classes first, then the others by size."""
    names = set().union(*columns.values())
    others = sorted(names - set(COLUMNS), key=lambda name: (-max(c.get(name, 0) for c in columns.values()), name))
    rows = [["class", *columns]]
    rows += [[name, *(str(c.get(name, 0)) for c in columns.values())] for name in [*COLUMNS, *others]]
    return "\n".join(table(rows, None, right=range(1, len(rows[0]))))


def listing(sass: Sass) -> str:
    """The machine code with the source line over the instructions that came from it; ``|`` marks the main loop."""
    inside = {instruction.address for instruction in sass.main_loop()}
    names = {address: label for label, address in sass.labels.items()}
    lines: list[str] = []
    last: tuple[str, int] | None = None
    for instruction in sass.instructions:
        if instruction.address in names:
            lines.append(f"{names[instruction.address]}:")
        if instruction.file is not None and instruction.line is not None:
            source = (instruction.file, instruction.line)
            if source != last:
                lines.append(f"      // {relative(Path(source[0]))}:{source[1]}  {_source_line(*source)}".rstrip())
            last = source
        margin = "|" if instruction.address in inside else " "
        lines.append(f"{margin} {instruction.address:04x}  {instruction}")
    return "\n".join(lines)


@cache
def _source_lines(file: str) -> tuple[str, ...]:
    try:
        return tuple(Path(file).read_text(encoding="utf-8").splitlines())
    except OSError:  # a cubin outlives its source: the listing then has the name and the number alone
        return ()


def _source_line(file: str, line: int) -> str:
    lines = _source_lines(file)
    return lines[line - 1].strip() if 0 < line <= len(lines) else ""


def cubin_of(description: str, config: str | None = None, arch: str = "sm_80") -> Path:
    """The cubin of an iteration (a number or an ablation), compiled if it is not in the store yet.

    Args:
        description: ``7``, ``16 - swizzle``.
        config: a key that names one configuration; the A100's when None.
        arch: one of the architectures of `flashladder.toolchain.wheels`.
    """
    from flashladder.build.compile import cubin_for
    from flashladder.ladder.ablation import load_description
    from flashladder.ladder.selection import one_config
    from flashladder.toolchain.wheels import find_toolchain

    iteration = load_description(description)
    return cubin_for(iteration, one_config(iteration, config), arch, find_toolchain()).cubin


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    targets = {"dest": "targets", "nargs": "+", "metavar": "N|CUBIN"}
    parser = parser_of(COMMANDS["sass"], "view.sass", "8 --counts", iteration=targets)
    parser.add_argument("--kernel", default=KERNEL, help=f"the kernel's symbol (default: {KERNEL})")
    parser.add_argument("--nvdisasm", type=Path, help="the nvdisasm to use (default: the wheels')")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the listing of one target, or the counts of one or several; returns the exit code."""
    args = _arguments(argv)
    with one_line_errors():
        given = {name: value for name, value in vars(args).items() if (name, value) != ("kernel", KERNEL)}
        if shown(args.targets, given):
            return 0
        if args.json:
            raise FlashladderError("--json is for a part of the kernel", expected="--line or --opcode beside it")
        show(args.targets, args.config, args.arch, kernel=args.kernel, counts=args.counts, nvdisasm=args.nvdisasm)
    return 0


def show(
    targets: Sequence[str],
    config: str | None = None,
    arch: str = "sm_80",
    *,
    kernel: str = KERNEL,
    counts: bool = False,
    nvdisasm: Path | None = None,
) -> None:
    """Prints the listing of one iteration, then the opcode table of every target (iterations or paths of cubins)."""
    are_files = [target.endswith(".cubin") for target in targets]
    columns: dict[str, dict[str, int]] = {}
    for target, is_file in zip(targets, are_files, strict=True):
        cubin = Path(target) if is_file else cubin_of(target, config, arch)
        sass = disassemble(cubin, nvdisasm, kernel)
        if len(targets) == 1 and not counts and not is_file:
            print(listing(sass))
        prefix = cubin.parent.name + "/" + cubin.stem if is_file else target
        columns |= {prefix: sass.counts(), f"{prefix} loop": count(sass.main_loop())}
    print(count_table(columns))


if __name__ == "__main__":
    raise SystemExit(main())
