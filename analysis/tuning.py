"""Question: what do fast configurations have in common? All candidates of a tuning run, as table and plot.

Writes beside the document ``tune.csv`` (every candidate), ``tune.md`` (the best of each iteration and dtype) and
``tune.svg``: percent of FA2 over registers on paper, over registers as compiled and over warps per SM, one colour per
tile, spilling kernels as crosses.

Run: ``python analysis/tuning.py results/h200/tune.json.gz``
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import io
from pathlib import Path
import sys
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from flashladder.errors import FlashladderError, one_line_errors
from flashladder.files import relative, write_atomic
from flashladder.report.plot import STYLE
from flashladder.results.files import load_as
from flashladder.results.schema import BenchResult
from flashladder.sweep.tune.table import Row, rows_of, to_csv, to_markdown

BEST = 5  # of each iteration and dtype in the table
PANELS = (
    ("live", "registers per thread on paper (255 exist)"),
    ("registers", "registers per thread as compiled"),
    ("warps", "warps per SM"),
)
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#222222")


def plot(rows: Sequence[Row], title: str) -> bytes:
    """The scatter as SVG; the same rows give the same bytes under one release of matplotlib."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    with mpl.rc_context(dict[Any, Any](STYLE)):
        figure, axes = plt.subplots(1, len(PANELS), figsize=(13, 4.8), sharey=True)
        tiles = sorted({row.tile for row in rows if row.pct is not None})
        for axis, (name, label) in zip(axes, PANELS, strict=True):
            for color, tile in zip(COLORS * len(tiles), tiles, strict=False):
                _points(axis, [row for row in rows if row.tile == tile], name, (color, tile))
            axis.axhline(100, color="#8A8A8A", linewidth=0.8)
            axis.set_xlabel(label)
        axes[0].set_ylabel("percent of FA2")
        axes[-1].legend(title="B_r, B_c, warps (x: spills)", fontsize=8, loc="lower right")
        figure.suptitle(title)
        figure.tight_layout()
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
        plt.close(figure)
    return out.getvalue()


def _points(axis: Any, rows: Sequence[Row], name: str, style: tuple[str, str]) -> None:
    """One tile's candidates in one panel; those that spill are crosses."""
    color, label = style
    for spills, marker in ((False, "o"), (True, "x")):
        own = [row for row in rows if bool(row.spilled) == spills and None not in (getattr(row, name), row.pct)]
        xs, ys = [getattr(row, name) for row in own], [row.pct for row in own]
        axis.scatter(xs, ys, s=14, marker=marker, color=color, alpha=0.7, label=None if spills else label)


def main(argv: Sequence[str] | None = None) -> None:
    """Writes table and plot beside each document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path, metavar="FILE", help="tune.json.gz of a sweep")
    for path in parser.parse_args(argv).paths:
        document = load_as(path, BenchResult)
        try:
            rows = rows_of(document)
        except FlashladderError as error:
            error.where = relative(path)
            raise
        stem = path.name.partition(".")[0]
        title = f"{document.gpu.name}: {len(rows)} configurations, S={document.groups[0].shape.seq_len}"
        outputs: dict[str, bytes | str] = {"csv": to_csv(rows), "md": to_markdown(rows, BEST), "svg": plot(rows, title)}
        for suffix, data in outputs.items():
            print(relative(write_atomic(path.with_name(f"{stem}.{suffix}"), data)))


if __name__ == "__main__":
    with one_line_errors():
        main()
