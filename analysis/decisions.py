"""Question: which decisions were taken? Lists docs/decisions/ by the titles of its records.

Why: a list that is kept by hand lacks the newest record.

Run: ``python analysis/decisions.py`` writes docs/decisions/README.md; ``--check`` compares, exit code 1 when stale.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
import sys

from flashladder.arguments import write_or_compare
from flashladder.errors import FlashladderError, one_line_errors
from flashladder.files import relative
from flashladder.paths import ROOT

FOLDER = ROOT / "docs" / "decisions"
PAGE = FOLDER / "README.md"
HEAD = """\
# Decisions

Why it is built this way, in the order in which it was decided. One that no longer holds names its successor.

| | |
| --- | --- |
"""


def row(path: Path) -> str:
    """A record's line of the list.

    Raises:
        FlashladderError: its first line is not ``# NUMBER: title``.
    """
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    number, colon, title = first.removeprefix("# ").partition(": ")
    if not (first.startswith("# ") and colon and path.name.startswith(f"{number}-")):
        raise FlashladderError("not a decision record", where=relative(path), expected="# NUMBER: title", found=first)
    return f"| [{number}]({path.name}) | {title} |\n"


def page(folder: Path = FOLDER) -> str:
    """The list."""
    return HEAD + "".join(map(row, sorted(folder.glob("[0-9]*.md"))))


def main(argv: Sequence[str] | None = None) -> int:
    """Writes or compares the list."""
    return write_or_compare(argv, "python analysis/decisions.py", "list of decisions", PAGE, page())


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
