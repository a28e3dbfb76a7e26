"""Question: which instruction classes did each step of the ladder remove, here and in the published machine code?

Why: the published counts are of another author's kernels; ours need not be equal, but a step must move the same classes
the same way. Ours come from the committed lock (sm_80), so no compiler is needed.

Run: ``python analysis/opcode_progression.py [--gpu rtx3090] [--classes IADD3,LOP3] [--csv]``: one row per iteration,
each cell is ``ours/published`` of one class, at that GPU's configuration; ``-`` where nothing is locked or published.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from flashladder.columns import csv_text
from flashladder.columns import table as aligned
from flashladder.errors import FlashladderError, one_line_errors
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import load_all
from flashladder.lock.command import opcode_counts
from flashladder.results.published import sass_counts
from flashladder.view.binary import COLUMNS

GPUS = ("a100", "rtx3090")


def cell(ours: Mapping[str, int] | None, published: Mapping[str, int] | None, name: str) -> str:
    """``ours/published`` of one class."""
    return "/".join("-" if counts is None else str(counts.get(name, 0)) for counts in (ours, published))


def rows(gpu: str, classes: Sequence[str]) -> list[list[str]]:
    """Header and one row per iteration: number, configuration, then one cell per class."""
    published = sass_counts()
    table = [["iteration", "configuration (ours)", *classes]]
    for iteration in load_all():
        config: KernelConfig = iteration.configs[gpu]
        pair = (opcode_counts(iteration.number, config), published.get((iteration.number, gpu)))
        table.append([str(iteration.number), config.short_form(), *(cell(*pair, name) for name in classes)])
    return table


def chosen(text: str) -> list[str]:
    """The classes named, or the published ones."""
    classes = [name.strip() for name in text.split(",") if name.strip()] if text else list(COLUMNS)
    known = {name for counts in sass_counts().values() for name in counts}
    for name in classes:
        if name not in known:
            raise FlashladderError("no published count of this class", expected=", ".join(sorted(known)), found=name)
    return classes


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; exit code 2 on an unknown class."""
    parser = argparse.ArgumentParser(
        description="Opcode classes per iteration, ours/published, sm_80.",
        epilog="example: python analysis/opcode_progression.py --gpu a100 --classes IADD3,LOP3,SHF",
    )
    parser.add_argument("--gpu", choices=GPUS, default="a100", help="whose configurations (default: a100)")
    parser.add_argument("--classes", default="", help="classes separated by commas (default: all published ones)")
    parser.add_argument("--csv", action="store_true", help="comma-separated instead of aligned")
    args = parser.parse_args(argv)
    with one_line_errors():
        table = rows(args.gpu, chosen(args.classes))
        if args.csv:
            print(csv_text(table[0], table[1:]), end="")
            return 0
        print("\n".join(aligned(table, None)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
