"""The site of all pages: each is listed once, each link leads to a file, nothing is taken from the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis import docs_site
from analysis.docs_site import LISTED, Link, dead, fetched, links, pages, stage
from flashladder.errors import CheckFailed, FlashladderError
from flashladder.located import read_yaml
from flashladder.paths import ROOT


def test_every_page_is_listed_once() -> None:
    listed = [page for below in pages().values() for page in below]
    assert len(listed) == len(set(listed))
    for pattern in ("*.md", "docs/**/*.md", "results/report/*.md", "results/*/README.md", "iterations/notes/*.md"):
        assert {path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern)} <= set(listed)
    assert list(pages()) == [heading for heading, _ in LISTED if heading in pages()]


def test_the_site_is_laid_out_with_what_its_pages_lead_to(tmp_path: Path) -> None:
    n_pages, n_files = stage(tmp_path)
    laid = {
        path.relative_to(tmp_path / "pages").as_posix() for path in (tmp_path / "pages").rglob("*") if path.is_file()
    }
    assert len(laid) == n_pages + n_files
    assert {"README.md", "api.md", "results/report/progression.svg", "docs/assets/iframe-worker.js"} <= laid
    settings: Any = read_yaml(tmp_path / "mkdocs.yml")
    assert [next(iter(one)) for one in settings["nav"]] == list(pages())
    general: Any = read_yaml(ROOT / "mkdocs.yml")
    assert general["theme"]["font"] is False


def test_a_link_that_leads_nowhere_is_named() -> None:
    text = (
        "[a](nosuch.md) `[b](b.md)` [c](https://x.y) [d](#d)\n```\n[e](e.md)\n```\n[f](../README.md#x) [g](/etc/passwd)"
    )
    found = list(links("docs/x.md", text))
    assert [link.target for link in found] == ["nosuch.md", "../README.md#x", "/etc/passwd"]
    nowhere = "expected a file of this checkout"
    assert dead(found, {"README.md"}) == [f"docs/x.md: nosuch.md: {nowhere}", f"docs/x.md: /etc/passwd: {nowhere}"]
    (unlisted,) = dead([Link("docs/x.md", "../README.md")], set())
    assert "a page that the site does not list" in unlisted


def test_what_a_site_would_fetch_is_named(tmp_path: Path) -> None:
    page = tmp_path / "a" / "index.html"
    page.parent.mkdir()
    page.write_text(
        '<link rel="canonical" href="https://x.y/"><a href="https://x.y">x</a><script src="own.js"></script>'
    )
    assert fetched(tmp_path) == []
    page.write_text('<script async src="https://x.y/z.js"></script><img src=//x.y/z.png>')
    assert [one.partition(": ")[0] for one in fetched(tmp_path)] == ["a/index.html"] * 2


def test_a_check_without_a_site_says_what_makes_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs_site, "SITE", tmp_path)
    with pytest.raises(FlashladderError, match="no site to check; run: nox -s docs") as caught:
        docs_site.main(["--check"])
    assert not isinstance(caught.value, CheckFailed)
