"""Question: what is each iteration: its reason, its file, its kernel, and what it changed?

Why here: whoever wonders about a number wants the code that made it, without a checkout. The note, the YAML file, the
composed kernel as `invoke show` prints it, and the difference from the parent as `invoke diff` does.

Run: ``python analysis/page/iterations.py [--out FILE]``; it is a section of ``results/report/index.html``.
"""

from __future__ import annotations

from dataclasses import dataclass
import os
import re

from markupsafe import Markup

from flashladder.files import read_text
from flashladder.ladder.iteration import Iteration
from flashladder.names import PUBLISHED_GPU
from flashladder.report.page.alone import alone
from flashladder.report.page.book import Book
from flashladder.report.page.notes import html
from flashladder.report.page.sections import Content
from flashladder.view.command import changes
from flashladder.view.diff import caveat, diff_iterations, equal_configs
from flashladder.view.fold import kernel_text

ORDER, TITLE = 110, "Iterations"
FRAME = re.compile(r"\A# .*\n|^Rendered by .*\n", re.MULTILINE)  # of a note: its own title, and who made it
MARKS = {"+": "ins", "-": "del"}


@dataclass(frozen=True)
class Step:
    """One iteration as its article shows it; `diff` holds lines with the element that each is set in."""

    number: int
    title: str
    changes: str
    note: Markup
    file: str
    yaml: str
    config: str
    kernel: str
    parent: int | None
    caveat: str
    diff: list[tuple[str, str]]


def note(book: Book, step: Iteration) -> Markup:
    """The iteration's note, or its reason alone where none was rendered yet.

    Raises:
        FlashladderError: something is there that is no readable file, such as a folder or a dangling link.
    """
    path = book.root / "iterations" / "notes" / f"{step.number:02d}.md"
    text = FRAME.sub("", read_text(path)) if os.path.lexists(path) else step.why
    return html(text, below=2)


def of(book: Book, step: Iteration, parent: Iteration | None) -> Step:
    """Everything about one iteration."""
    config = step.configs[PUBLISHED_GPU]
    told, lines = "", []
    if parent is not None:
        configs = equal_configs(parent, step)
        told = caveat(parent, step, configs)
        difference = diff_iterations(parent, step, configs).splitlines()[2:]
        lines = [(MARKS.get(line[:1], ""), line) for line in difference]
    return Step(
        number=step.number,
        title=step.title,
        changes=changes(step),
        note=note(book, step),
        file=step.path.name,
        yaml=read_text(step.path),
        config=config.short_form(),
        kernel=kernel_text(step, config),
        parent=step.parent,
        caveat=told,
        diff=lines,
    )


def content(book: Book) -> Content:
    by_number = {step.number: step for step in book.ladder.iterations}
    return {"steps": [of(book, step, by_number.get(step.parent or 0)) for step in book.ladder.iterations]}


if __name__ == "__main__":
    raise SystemExit(alone(__file__))
