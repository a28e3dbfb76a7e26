"""Markdown as HTML for the page: tables, lists, code; markup in the text is text.

Why a library: markdown-it-py follows CommonMark, and HTML in the source is off. Nothing to run here.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from functools import lru_cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup

LINKS = ("link_open", "link_close", "image")


def html(text: str, *, below: int = 0) -> Markup:
    """Markdown as markup that is safe to show.

    Args:
        text: of a committed page.
        below: levels that its headings are lowered by, so that a page's own order of headings goes on.
    """
    parser = _parser()
    tokens = parser.parse(text)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1:]) + below)}"
        for child in token.children or ():
            if child.type in LINKS:
                child.hidden = True
        token.children = [child for child in token.children or () if not child.hidden] if token.children else None
    return Markup(parser.renderer.render(tokens, parser.options, {}))  # noqa: S704  # HTML in the source is off


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    """CommonMark with tables; links are left out, as the page leads nowhere but to itself."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.add_render_rule("table_open", _opened)
    parser.add_render_rule("table_close", _closed)
    return parser


def _opened(
    _self: RendererHTML, _tokens: Sequence[Token], _index: int, _options: Any, _env: MutableMapping[str, Any]
) -> str:
    return '<div class="scroll" tabindex="0" role="group" aria-label="table"><table>\n'


def _closed(
    _self: RendererHTML, _tokens: Sequence[Token], _index: int, _options: Any, _env: MutableMapping[str, Any]
) -> str:
    return "</table></div>\n"
