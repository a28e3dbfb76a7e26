"""Question: what is each change worth, taken back from the last iteration, and added to the first?

Reads a packed sweep of the grid `ablation` and writes a table (Markdown, CSV) and a plot (SVG, PNG) of it.

Run: python analysis/ablation.py results/h200/ablation.json.gz --out build/report
"""

from __future__ import annotations

from pathlib import Path

from flashladder.errors import one_line_errors
from flashladder.report.variants import arguments, write


def main(argv: list[str] | None = None) -> None:
    options = arguments(__doc__, argv)
    with one_line_errors():
        for path in write("ablation", Path(options.result), Path(options.out)):
            print(path)


if __name__ == "__main__":
    main()
