"""Question: what does another CUDA version's compiler make of the same source, and how fast is that?

Reads a packed sweep of the grid `toolchain` and writes a table (Markdown, CSV) and a plot (SVG, PNG) of it.

Run: python analysis/toolchain.py results/h200/toolchain.json.gz --out build/report
"""

from __future__ import annotations

from pathlib import Path

from flashladder.errors import one_line_errors
from flashladder.report.variants import arguments, write


def main(argv: list[str] | None = None) -> None:
    options = arguments(__doc__, argv)
    with one_line_errors():
        for path in write("toolchain", Path(options.result), Path(options.out)):
            print(path)


if __name__ == "__main__":
    main()
