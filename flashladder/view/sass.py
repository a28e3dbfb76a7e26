"""Machine code for people: the listing beside its source lines, and tables of opcode classes.

Why: a step is understood by reading what the assembler made of it; the main loop is marked because whatever stands
outside of it runs once.

Run: ``python -m flashladder.view.sass 7`` lists an iteration beside its source lines (``--counts`` for the table alone,
``--order`` for where the main loop waits, ``--config`` for another configuration than the first of its A100 ones,
``--arch`` for another architecture than sm_80 or the family's); ``python -m flashladder.view.sass a.cubin b.cubin``
counts any cubins side by side.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from flashladder.arguments import parser_of
from flashladder.commands import COMMANDS
from flashladder.errors import FlashladderError, one_line_errors
from flashladder.files import relative
from flashladder.machine_code.sass import count, disassemble
from flashladder.names import KERNEL
from flashladder.view.binary import (
    CUBIN,
    Wanted,
    is_file,
    output_of,
    refuse_config,
    refuse_of_files,
    sass_of,
    show_sass,
)
from flashladder.view.linked.command import shown
from flashladder.view.listing import COLUMNS, WHOLE_AND_LOOP, count_table, listing
from flashladder.view.order import order

__all__ = ["COLUMNS", "count_table", "cubin_of", "listing", "main", "show"]


def cubin_of(description: str, config: str | None = None, arch: str = "") -> Path:
    """The cubin of an iteration (a number or an ablation), compiled if it is not in the store yet.

    Args:
        description: ``7``, ``16 - swizzle``.
        config: a key that names one configuration; the A100's when None.
        arch: one of the architectures of `flashladder.toolchain.wheels`; empty for the first of its family.
    """
    from flashladder.build.compile import cubin_for
    from flashladder.ladder.ablation import load_description
    from flashladder.ladder.selection import one_config
    from flashladder.toolchain.wheels import find_toolchain

    iteration = load_description(description)
    return cubin_for(iteration, one_config(iteration, config), arch or iteration.shown_arch, find_toolchain()).cubin


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    targets = {"dest": "targets", "nargs": "+", "metavar": "N|FILE"}
    parser = parser_of(COMMANDS["sass"], "view.sass", "8 --counts", iteration=targets)
    parser.add_argument("--nvdisasm", type=Path, help="the nvdisasm to use (default: the wheels')")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the listing of one target, or the counts of one or several; returns the exit code."""
    args = _arguments(argv)
    with one_line_errors():
        if shown(args.targets, vars(args)):
            return 0
        first, *others = args.targets
        if args.order:
            refuse_others(args)
            print(order_of(first, args))
            return 0
        if is_file(first) and not others:
            chosen: dict[str, Any] = {
                field.name: getattr(args, field.name) for field in fields(Wanted) if field.name in args
            }
            refuse_config(args.config, Path(first))
            show_sass(Path(first), Wanted(**chosen))
            return 0
        refuse_of_files(first, vars(args))
        if (args.control or args.clean or args.json or args.out) and not others:
            show_step(first, args)
        else:
            show(args.targets, args.config, args.arch, counts=args.counts, nvdisasm=args.nvdisasm)
    return 0


def refuse_others(args: argparse.Namespace) -> None:
    """Raises `FlashladderError` for what does not go with ``--order``, which is about one main loop."""
    wrong = [name for name in ("counts", "control", "clean", "json", "list", "out") if getattr(args, name)]
    if wrong or len(args.targets) > 1:
        found = f"--{wrong[0]}" if wrong else ", ".join(args.targets)
        raise FlashladderError("--order prints one main loop", expected="one target and no other form", found=found)


def order_of(target: str, args: argparse.Namespace) -> str:
    """The order of a main loop: of an iteration, or of a kernel in a file."""
    if is_file(target):
        refuse_config(args.config, Path(target))
        title, sass = sass_of(Path(target), args.kernel or "", args.arch)
        return order(f"{relative(Path(target))}: {title}", sass)
    refuse_of_files(target, vars(args))
    sass = disassemble(cubin_of(target, args.config, args.arch), args.nvdisasm, lines=False)
    return order(title_of(target, args.config, args.arch), sass)


def show_step(step: str, args: argparse.Namespace) -> None:
    """Prints an iteration's machine code with control codes, cleaned, or as JSON: its cubin, as that of any file."""
    names = ("counts", "clean", "control", "json", "out", "nvdisasm")
    wanted = Wanted(**{name: getattr(args, name) for name in names})
    output_of(wanted, CUBIN)  # before a kernel is compiled
    cubin = cubin_of(step, args.config, args.arch)
    show_sass(cubin, wanted)


def show(
    targets: Sequence[str],
    config: str | None = None,
    arch: str = "",
    *,
    kernel: str = KERNEL,
    counts: bool = False,
    nvdisasm: Path | None = None,
) -> None:
    """Prints the listing of one iteration, then the opcode table of every target (iterations or paths of cubins)."""
    columns: dict[str, dict[str, int]] = {}
    for target in targets:
        cubin = Path(target) if is_file(target) else cubin_of(target, config, arch)
        sass = disassemble(cubin, nvdisasm, kernel)
        if not is_file(target):
            print(title_of(target, config, arch), end="\n\n" if counts and target == targets[-1] else "\n")
        if len(targets) == 1 and not counts:
            print(listing(sass))
        prefix = f"{cubin.parent.name}/{cubin.stem}" if is_file(target) else target
        names = (prefix, f"{prefix} main loop") if len(targets) > 1 else WHOLE_AND_LOOP
        columns |= dict(zip(names, (sass.counts(), count(sass.main_loop())), strict=True))
    print(count_table(columns))


def title_of(description: str, config: str | None, arch: str) -> str:
    """What is shown of an iteration: number, architecture and configuration."""
    from flashladder.ladder.ablation import load_description
    from flashladder.ladder.selection import one_config

    iteration = load_description(description)
    chosen = one_config(iteration, config)
    return f"iteration {iteration.description}, {arch or iteration.shown_arch}: {chosen.brief()}, {chosen.dtype}"


if __name__ == "__main__":
    raise SystemExit(main())
