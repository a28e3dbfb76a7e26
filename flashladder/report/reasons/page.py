"""Renders one page of reasons: checks its words, fills in its calls, and says where the data contradict it.

Nothing to run here; ``python analysis/render_notes.py`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
import traceback

import jinja2

from flashladder.errors import FlashladderError
from flashladder.files import read_text, relative
from flashladder.paths import ITERATIONS
from flashladder.report.data import Ladder
from flashladder.report.reasons.counts import Counted
from flashladder.report.reasons.loads import Loads
from flashladder.report.reasons.prose import check, environment
from flashladder.report.reasons.speeds import Speeds

FOLDER = ITERATIONS / "reasons"
SECTIONS = ("What one sees", "Reasons", "Try next")


def vocabulary(ladder: Ladder, number: int) -> Mapping[str, Callable[..., str]]:
    """All that the page of an iteration may call."""
    return {name: call for part in (Speeds, Counted, Loads) for name, call in part(ladder, number).vocabulary().items()}


def reasons(ladder: Ladder, number: int, folder: Path = FOLDER) -> str:
    """The reasons of an iteration as Markdown, without a newline at the end.

    Raises:
        FlashladderError: the page is missing, a figure in it was typed by hand, a name is unknown, a section lacks, or
            the data contradict it; with file and line.
    """
    path = folder / f"{number:02d}.md"
    where, known = relative(path), vocabulary(ladder, number)
    if not path.exists():
        raise FlashladderError("no reasons", where=where, hint="docs/add-an-iteration.md says how")
    text = read_text(path)
    check(text, where, known)
    found = tuple(line.removeprefix("## ") for line in text.splitlines() if line.startswith("#"))
    if found != SECTIONS:
        raise FlashladderError("wrong sections", where=where, expected=", ".join(SECTIONS), found=", ".join(found))
    template = environment().from_string(text)
    try:
        return template.render(known).strip()
    except (FlashladderError, jinja2.TemplateError, KeyError, TypeError) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
        at = f"{where}:{lines[-1]}" if lines else where
        if isinstance(error, FlashladderError):
            error.where = at
            raise
        raise FlashladderError("a call that fails", where=at, found=error) from error
