"""Question: how far do the raw pairs of a timing scatter, and does the ratio move with the clock or with time?

Prints a row per kernel, dtype and length: pairs that count, median ratio to FA2, the middle half's width in points, and
the ratio's rank correlation with the SM clock and with the block's place. Writes every pair as CSV with ``--out``.

Run: python analysis/samples.py results/h200/bench.json.gz --out build/samples.csv
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashladder.arguments import Parser, named, result_file
from flashladder.errors import one_line_errors
from flashladder.files import output_file, write_atomic
from flashladder.report.frames import pairs
from flashladder.results.files import load_as
from flashladder.results.schema import BenchResult

if TYPE_CHECKING:
    import pandas as pd


CELL = ["kernel", "dtype", "seq_len"]
ENOUGH = 8  # pairs, below which a correlation says nothing
LEGEND = f"""\
pairs: those that count; ratio: FA2's time over the kernel's, median; middle_half_points: from the lower to the upper
quartile, in percent of FA2; with_clock, with_time: rank correlation of the ratio with the SM clock and with the block's
place (-: under {ENOUGH} pairs)."""


def scatter(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per kernel, dtype and length, by the pairs of blocks that count."""
    counted = frame[frame.dropped == ""]
    cells = counted.groupby(CELL)
    ranks = {name: cells[name].rank() for name in ("sm_clock_mhz", "block")}
    ranked = counted.assign(**ranks, rank=cells.ratio.rank()).groupby(CELL)
    middle_half = cells.ratio.quantile(0.75) - cells.ratio.quantile(0.25)
    enough = cells.ratio.count() >= ENOUGH
    found: pd.DataFrame = cells.ratio.agg(pairs="count", ratio="median").assign(
        middle_half_points=100 * middle_half,
        with_clock=ranked[["rank", "sm_clock_mhz"]].corr().iloc[0::2, 1].droplevel(-1).where(enough),
        with_time=ranked[["rank", "block"]].corr().iloc[0::2, 1].droplevel(-1).where(enough),
    )
    return found


def main(argv: list[str] | None = None) -> None:
    parser = Parser(
        description=(__doc__ or "").partition("\n")[0],
        epilog="example: python analysis/samples.py results/h200/bench.json.gz --out build/samples.csv",
    )
    parser.add_argument("result", metavar="FILE", type=result_file, help="a timing (.json.gz)")
    parser.add_argument("--out", metavar="FILE", type=named, help="also write every pair to this CSV")
    options = parser.parse_args(argv)
    with one_line_errors():
        out = output_file(str(options.out), ".csv") if options.out else None
        frame = pairs(load_as(options.result, BenchResult))
        print(scatter(frame).to_string(float_format="%.3f", na_rep="-"))
        print(LEGEND)
        if out:
            print(write_atomic(out, frame.to_csv(index=False)))


if __name__ == "__main__":
    main()
