"""The page, results/report/index.html: all that is worth exploring, in one file that asks the network for nothing.

A section is a script of ``analysis/page/`` with `ORDER`, `TITLE` and ``content(book)``, which gives the blocks of
`flashladder.report.blocks`. The page's policy (`Content-Security-Policy`) forbids the browser every request and every
script but the page's own. jinja2 escapes all values.

Run: ``invoke report --open``.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
import hashlib
from importlib.metadata import version
import importlib.util
from pathlib import Path
import re
import sys
import traceback
from typing import Any

import jinja2
from markdown_it import MarkdownIt
from markupsafe import Markup

from flashladder.errors import FlashladderError
from flashladder.files import deflated, files_in, inflated, relative, sha256
from flashladder.paths import PACKAGE, ROOT
from flashladder.report.blocks import Block, Panel
from flashladder.report.book import Book
from flashladder.report.data import Ladder
from flashladder.report.tables import headline_machine

TEMPLATES = Path(__file__).with_name("templates")
INDEX = "index.html"
PLACES = (ROOT, PACKAGE.parent)  # a checkout that FLASHLADDER_ROOT names may hold data alone
SECTIONS = next((root for root in PLACES if (root / "analysis" / "page").is_dir()), ROOT) / "analysis" / "page"
RECORDS = "\x02records\x03"  # where they come to stand
_RECORDS = re.compile(rb'(?<=<script type="text/plain" id="records">)[^<]+')
MOST_BYTES = 1_000_000


@dataclass(frozen=True)
class Section:
    """One section: its script, its title, its place on the page, and what gives its blocks."""

    script: Path
    title: str
    order: float
    content: Callable[[Book], Sequence[Block]]


def find(folder: Path = SECTIONS) -> list[Section]:
    """Every section of `folder`, in the order of the page.

    Raises:
        FlashladderError: there is none, or a script is broken.
    """
    sections = [load(script) for script in files_in(folder, "[!_]*.py")]
    if not sections:
        raise FlashladderError("no section of the page", where=relative(folder), hint="git checkout -- analysis/page")
    return sorted(sections, key=lambda section: (section.order, section.script.name))


def load(script: Path) -> Section:
    """One section.

    Raises:
        FlashladderError: the script cannot be imported, or lacks something.
    """
    name = f"flashladder_page_{script.stem}"
    spec = importlib.util.spec_from_file_location(name, script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # a dataclass of the script looks itself up there
    try:
        spec.loader.exec_module(module)
        return Section(script, module.TITLE, module.ORDER, module.content)
    except Exception as error:
        raise _broken(script, error) from error


def page(ladder: Ladder, root: Path = ROOT, sections: Sequence[Section] | None = None) -> bytes:
    """The whole page, or that of some sections alone.

    Raises:
        FlashladderError: a section is broken, or the page is larger than one sends.
    """
    chosen = find() if sections is None else list(sections)
    book, drawn = Book(ladder, root), dict[str, Panel]()

    def plot(panel: Panel) -> Markup:
        mark = f"\x02{panel.digest}\x03"
        drawn[mark] = panel
        return Markup(mark)  # noqa: S704  # a digest between two marks, until the page has its own digest

    script = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    frame = environment(TEMPLATES).get_template("frame.html.j2").render(
        summary=_summary(ladder),
        sections=[(one.script.stem, one.title, _filled(one, book)) for one in chosen],
        style=Markup((TEMPLATES / "page.css").read_text(encoding="utf-8")),  # noqa: S704  # this project's own
        script=Markup(script),  # noqa: S704  # the same
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        records=Markup(RECORDS),  # noqa: S704  # a mark
        html=html,
        plot=plot,
    )  # fmt: skip
    data = book.records.data()
    whole = _signed(frame.replace(RECORDS, data, 1), drawn).replace(data, deflated(data), 1).encode()
    if len(whole) > MOST_BYTES:
        raise FlashladderError(
            "the page is too large to send", expected=f"at most {MOST_BYTES:,} bytes", found=f"{len(whole):,}"
        )
    return whole


def inflated_page(page: bytes) -> bytes:
    """The page with its records in plain text, as two are compared: zlibs differ in how they pack."""
    try:
        return _RECORDS.sub(lambda found: inflated(found[0].decode()).encode(), page, count=1)
    except ValueError:
        return page  # its records are damaged


@lru_cache(maxsize=8)
def environment(*folders: Path) -> jinja2.Environment:
    """jinja2 over templates of `folders`: every value is escaped, every unknown name is an error."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip


def html(text: str, below: int = 1) -> Markup:
    """Markdown as markup that is safe to show; its headings are lowered by so many levels."""
    tokens = _parser().parse(text)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1:]) + below)}"
    return Markup(_parser().renderer.render(tokens, _parser().options, {}))  # noqa: S704  # HTML in the source is off


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    """CommonMark with tables, each in a box of its own that scrolls."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.add_render_rule(
        "table_open", _tag('<div class="scroll" tabindex="0" role="group" aria-label="table"><table>')
    )
    parser.add_render_rule("table_close", _tag("</table></div>"))
    return parser


def _tag(text: str) -> Callable[..., str]:
    def rule(_renderer: Any, _tokens: Any, _index: int, _options: Any, _env: MutableMapping[str, Any]) -> str:
        return text

    return rule


def _filled(section: Section, book: Book) -> Sequence[Block]:
    try:
        return section.content(book)
    except FlashladderError:
        raise
    except Exception as error:
        raise _broken(section.script, error) from error


def _broken(script: Path, error: Exception) -> FlashladderError:
    """What a section's script raised, as one line that names the script and its line."""
    frames = [one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == str(script)]
    line = error.lineno if isinstance(error, SyntaxError) else frames[-1] if frames else None
    where = f"{relative(script)}:{line}" if line else relative(script)
    return FlashladderError("a section of the page fails", where=where, found=f"{type(error).__name__}: {error}")


def _signed(whole: str, drawn: dict[str, Panel]) -> str:
    """The page with its plots, and in its head who drew them and the digest of all that does not hang on that."""
    whole = whole.replace("\x02drawn-by\x03", f"Matplotlib v{version('matplotlib')}; data {sha256(whole)}", 1)
    for mark, panel in drawn.items():
        whole = whole.replace(mark, panel.svg)
    return whole


def _summary(ladder: Ladder) -> str:
    """What the page says first: how far the ladder came, on which GPU."""
    machine = headline_machine(ladder)
    told = [(found.pct, row) for row in ladder.rows(machine, "fp16") if (found := row.headline)] if machine else []
    if machine is None or not told:
        return "Nothing was measured by this project yet; published figures only."
    (first, _), (best, row) = told[0], max(told, key=lambda one: one[0])
    return (
        f"From {first:.1f} % of FlashAttention-2's speed to {best:.1f} % (iteration {row.iteration.number}), measured "
        f"on one {machine.gpu.name}: S = 4096, fp16, d_head 128, forward, non-causal."
    )
