"""Question: what does a KV block cost at each iteration, by kind of instruction, and what did each step trade for what?

Why: a round of the main loop is what runs hundreds of times, and tiles differ between iterations: counts are of 64
queries by 64 keys, so that rows compare. They come from the committed locks, so that no compiler is needed.

Run: ``python analysis/kv_block.py [--gpu h200] [--csv]``: a row per iteration, a column per kind, in that GPU's
configurations on its architecture.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from flashladder.columns import csv_text, table
from flashladder.errors import one_line_errors
from flashladder.names import GPUS, PUBLISHED_GPU
from flashladder.report.counters import costs, present


def rows(gpu: str) -> list[list[str]]:
    """Header and one row per iteration: number, tile, all instructions, then those of each kind."""
    found = costs(gpu)
    kinds = present(found)
    lines = [["#", "tile", "all", *kinds]]
    for number, cost in found.items():
        lines.append([str(number), cost.config.tile, *(f"{n:.0f}" for n in (cost.total, *map(cost.kinds.get, kinds)))])
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; exit code 2 on an unknown GPU."""
    parser = argparse.ArgumentParser(
        description="Instructions of a KV block by kind, for 64 queries by 64 keys.",
        epilog="example: python analysis/kv_block.py --gpu h200",
    )
    parser.add_argument("--gpu", choices=GPUS, default=PUBLISHED_GPU, help="whose configurations (default: a100)")
    parser.add_argument("--csv", action="store_true", help="comma-separated instead of aligned")
    args = parser.parse_args(argv)
    with one_line_errors():
        lines = rows(args.gpu)
        print(
            csv_text(lines[0], lines[1:]).rstrip()
            if args.csv
            else "\n".join(table(lines, None, right={0, *range(2, 99)}))
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
