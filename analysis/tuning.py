"""Question: which configurations won a tuning run, and what do fast ones have in common?

Reads the document of the rungs, with that of the finals beside it, and writes a table (Markdown, CSV) and a plot (SVG,
PNG) of all candidates.

Run: python analysis/tuning.py results/h200/tune.json.gz --out build/report
"""

from __future__ import annotations

from pathlib import Path

from flashladder.errors import one_line_errors
from flashladder.files import write_atomic
from flashladder.report.tuning import pages
from flashladder.report.variants import arguments


def main(argv: list[str] | None = None) -> None:
    options = arguments(__doc__, argv)
    with one_line_errors():
        for suffix, data in pages(Path(options.result)).items():
            print(write_atomic(Path(options.out) / f"tune.{suffix}", data))


if __name__ == "__main__":
    main()
