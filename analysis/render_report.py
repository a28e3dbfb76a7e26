"""Renders the report into any folder, without touching the committed one: for looking at a change before making it.

Run: python analysis/render_report.py /tmp/report
"""

from __future__ import annotations

from pathlib import Path
import sys

from flashladder.errors import FlashladderError, one_line_errors
from flashladder.files import write_atomic
from flashladder.report import command as report
from flashladder.report.data import collect


def main(argv: list[str]) -> int:
    with one_line_errors():
        if len(argv) != 1 or argv[0].startswith("-"):
            raise FlashladderError("usage: python analysis/render_report.py FOLDER")
        ladder = collect()
        for name, data in (report.render(ladder) | report.texts(ladder)).items():
            print(write_atomic(Path(argv[0]) / Path(name).name, data))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
