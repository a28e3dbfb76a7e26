"""Sections of the page: a section is one script and one template of ``analysis/page/``, found by lying there.

Why found and not listed: whoever adds a section adds two files and edits none. The script holds `ORDER` (a number: its
place on the page), `TITLE`, and ``content(book) -> dict``, the names that its template uses; it also runs alone and
writes a page of its own section.

Run: ``python analysis/page/progression.py --out /tmp/progression.html``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
import importlib.util
from pathlib import Path
import re
import sys
import traceback
from typing import Any

from flashladder.errors import FlashladderError
from flashladder.files import files_in, relative
from flashladder.paths import PACKAGE, ROOT
from flashladder.report.page.book import Book

PLACES = (ROOT, PACKAGE.parent)  # a checkout that FLASHLADDER_ROOT names may hold data alone
SECTIONS = next((root for root in PLACES if (root / "analysis" / "page").is_dir()), ROOT) / "analysis" / "page"
TEMPLATE = ".html.j2"
NAME = re.compile(r"^[a-z][a-z0-9_]*$")
EXPECTED = "ORDER, a number; TITLE, a text; content(book), a function"
Content = Mapping[str, object]


@dataclass(frozen=True)
class Section:
    """One section: its name, which is its anchor, its title, its place, and what fills its template."""

    name: str
    title: str
    order: float
    template: Path
    content: Callable[[Book], object]


def find(folder: Path = SECTIONS) -> list[Section]:
    """Every section of `folder`, in the order of the page.

    Raises:
        FlashladderError: there is none, a script lacks its template or the other way round, or a script is broken.
    """
    scripts = {path.name.removesuffix(".py"): path for path in files_in(folder, "[!_]*.py")}
    templates = {path.name.removesuffix(TEMPLATE): path for path in files_in(folder, f"*{TEMPLATE}")}
    if not scripts:
        raise FlashladderError("no section of the page", where=relative(folder), hint="git checkout -- analysis/page")
    for name in sorted(scripts.keys() ^ templates.keys()):
        there = scripts.get(name) or templates[name]
        raise FlashladderError(
            "half a section", where=relative(there), expected=f"{name}.py and {name}{TEMPLATE} beside each other",
            found=f"only {there.name}",
        )  # fmt: skip
    sections = [load(scripts[name]) for name in sorted(scripts)]
    return sorted(sections, key=lambda section: (section.order, section.name))


def load(script: Path) -> Section:
    """One section.

    Raises:
        FlashladderError: the script cannot be imported, or lacks something.
    """
    name, where = script.stem, relative(script)
    if not NAME.match(name):
        raise FlashladderError("not the name of a section", where=where, expected="lower-case letters, digits, _")
    module = _module(script)
    order, title, content = (getattr(module, one, None) for one in ("ORDER", "TITLE", "content"))
    if not isinstance(order, int | float) or not isinstance(title, str) or not title.strip() or not callable(content):
        lacking = [one for one in ("ORDER", "TITLE", "content") if not hasattr(module, one)]
        found = f"no {lacking[0]}" if lacking else f"ORDER {order!r}, TITLE {title!r}"
        raise FlashladderError("not a section of the page", where=where, expected=EXPECTED, found=found)
    return Section(name, title, order, script.with_name(name + TEMPLATE), content)


def filled(section: Section, book: Book) -> Content:
    """What the section gives its template.

    Raises:
        FlashladderError: its script fails; the line names the place.
    """
    with told(section.template.with_name(f"{section.name}.py")):
        content = section.content(book)
    if not isinstance(content, dict):
        script = section.template.with_name(f"{section.name}.py")
        raise FlashladderError(
            "content(book) gives no names", where=relative(script), expected="a dict", found=type(content).__name__
        )
    return content


class told:  # noqa: N801  # a context manager, read as a verb
    """Turns what a section's script raises into one line that names the script and its line."""

    def __init__(self, script: Path) -> None:
        self.script = script

    def __enter__(self) -> None:
        """Nothing."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Raises the one line in place of `error`; what is an answer or an interrupt already goes through."""
        if error is None or isinstance(error, FlashladderError) or not isinstance(error, Exception):
            return
        if isinstance(error, SyntaxError):
            line = error.lineno
        else:
            frames = [one for one in traceback.extract_tb(error.__traceback__) if one.filename == str(self.script)]
            line = frames[-1].lineno if frames else None
        where = f"{relative(self.script)}:{line}" if line else relative(self.script)
        raise FlashladderError(
            "the section of the page fails", where=where, found=f"{type(error).__name__}: {error}"
        ) from error


def _module(script: Path) -> Any:
    """The script as a module of a name of its own, so that none shadows another."""
    name = f"flashladder_page_{script.stem}"
    spec = importlib.util.spec_from_file_location(name, script)
    if spec is None or spec.loader is None:
        raise FlashladderError("not a Python file", where=relative(script))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # a dataclass of the script looks itself up there
    with told(script):
        spec.loader.exec_module(module)
    return module
