"""The frame of the page: sections, style, script and records in one HTML file that asks the network for nothing.

Why one file: it is sent, kept beside results and opened from a disk. Its policy (`Content-Security-Policy`) forbids the
browser every request and every script but its own, whose digest it names. All values are escaped by jinja2.

Run: ``invoke report --open``.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import lru_cache
import hashlib
from pathlib import Path
import re

import jinja2
from markupsafe import Markup

from flashladder.errors import FlashladderError
from flashladder.files import deflated, inflated, relative, sha256
from flashladder.paths import ROOT
from flashladder.report.data import Ladder
from flashladder.report.page.book import Book
from flashladder.report.page.figure import Drawn
from flashladder.report.page.sections import Content, Section, filled, find
from flashladder.report.tables import headline, headline_machine

TEMPLATES = Path(__file__).with_name("templates")
INDEX = "index.html"
RECORDS = "\x02records\x03"  # where they come to stand
_RECORDS = re.compile(rb'(?<=<script type="text/plain" id="records">)[^<]+')
MOST_BYTES = 3_300_000  # of a page that one sends


def page(ladder: Ladder, root: Path = ROOT, sections: Sequence[Section] | None = None) -> bytes:
    """The whole page, or that of some sections alone.

    Raises:
        FlashladderError: a section is broken, or the page is larger than one sends.
    """
    chosen = find() if sections is None else list(sections)
    book = Book(ladder, root)
    drawn: dict[str, Drawn] = {}
    bodies = [_Body(section, _rendered(section, filled(section, book), drawn)) for section in chosen]
    script = _own("page.js")
    frame = environment(TEMPLATES).get_template("frame.html.j2").render(
        title=chosen[0].title if len(chosen) == 1 else "",
        summary=_summary(ladder),
        bodies=bodies,
        style=Markup(_own("page.css")),  # noqa: S704  # this project's own
        script=Markup(script),  # noqa: S704  # the same
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        records=Markup(RECORDS),  # noqa: S704  # a mark
    )  # fmt: skip
    data = book.records.data()
    whole = _signed(frame.replace(RECORDS, data, 1), drawn).replace(data, deflated(data), 1).encode()
    if len(whole) > MOST_BYTES:
        raise FlashladderError(
            "the page is too large to send", expected=f"at most {MOST_BYTES:,} bytes", found=f"{len(whole):,}"
        )
    return whole


def inflated_page(page: bytes) -> bytes:
    """The page with its records in plain text, as two are compared: zlibs differ in how they pack.

    Raises:
        ValueError: what stands for the records is not packed.
    """
    return _RECORDS.sub(lambda found: inflated(found[0].decode()).encode(), page, count=1)


class _Body:
    """A section with its markup, as the frame sets it."""

    def __init__(self, section: Section, markup: Markup) -> None:
        self.name, self.title, self.markup = section.name, section.title, markup


def _rendered(section: Section, content: Content, drawn: dict[str, Drawn]) -> Markup:
    """A section's template, filled; plots stand as marks until the page is signed.

    Raises:
        FlashladderError: the template is broken or uses a name that the script does not give.
    """

    def plot(one: Drawn) -> Markup:
        mark = f"\x02{one.digest}\x03"
        drawn[mark] = one
        return Markup(mark)  # noqa: S704  # a digest between two marks

    template = section.template
    try:
        found = environment(TEMPLATES, template.parent).get_template(template.name)
        return Markup(found.render(plot=plot, **content))  # noqa: S704  # autoescaped
    except jinja2.TemplateSyntaxError as error:
        raise FlashladderError(
            "the section's template is broken", where=f"{relative(template)}:{error.lineno}", found=error.message
        ) from error
    except (jinja2.TemplateError, AttributeError, TypeError) as error:
        raise FlashladderError("the section's template fails", where=relative(template), found=error) from error


@lru_cache(maxsize=8)
def environment(*folders: Path) -> jinja2.Environment:
    """jinja2 over templates of `folders`: every value is escaped, every unknown name is an error."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
    )


def _own(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _signed(whole: str, drawn: dict[str, Drawn]) -> str:
    """The page with its plots, and in its head who drew them and the digest of all that does not hang on that."""
    import matplotlib as mpl

    whole = whole.replace("\x02drawn-by\x03", f"Matplotlib v{mpl.__version__}; data {sha256(whole)}", 1)
    for mark, one in drawn.items():
        whole = whole.replace(mark, one.svg)
    return whole


def _summary(ladder: Ladder) -> str:
    """What the page says first: how far the ladder came, on which GPU."""
    machine = headline_machine(ladder)
    told = [(found.pct, row) for row in ladder.rows(machine, "fp16") if (found := headline(row))] if machine else []
    if machine is None or not told:
        return "Nothing was measured by this project yet; published figures only."
    (first, _), (best, row) = told[0], max(told, key=lambda one: one[0])
    return (
        f"From {first:.1f} % of FlashAttention-2's speed to {best:.1f} % (iteration {row.iteration.number}), measured "
        f"on one {machine.gpu.name}: S = 4096, fp16, d_head 128, forward, non-causal."
    )
