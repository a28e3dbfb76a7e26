"""Question: do all pages of this checkout lead to each other? Lays them out as a site, with what they link to.

Why: pages lie where a reader of the repository looks for them (README.md, docs/, results/report/), and a site generator
wants one folder. Each page is copied to the path that it has here, so that its links hold, and so is each file that one
links to. A link that leads nowhere is an error. The list of pages is made here as well.

Run: ``nox -s docs``, or ``python analysis/docs_site.py && mkdocs build --strict --config-file build/docs/mkdocs.yml``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
import re
import shutil
import sys

import yaml

from flashladder.arguments import Parser
from flashladder.errors import CheckFailed, FlashladderError, one_line_errors
from flashladder.files import relative, write_atomic
from flashladder.paths import BUILD, ROOT
import ptxemu

STAGE, SITE = BUILD / "docs", BUILD / "site"
FETCHED = re.compile(
    r"""<(?:script|img|link|iframe|source|video)\b[^>]*?\b(?:src|href|srcset)=["']?(?:https?:)?//[^"'\s>]+"""
)
NOT_FETCHED = ('rel="canonical"', "rel=canonical")
LINK = re.compile(r"(?<!`)\]\(([^)\s]+)\)")
CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LISTED = (
    ("Guide", ("README.md", "docs/reproduce.md", "docs/reading-order.md", "docs/without-a-gpu.md",
               "docs/python.md", "docs/faq.md", "docs/troubleshooting.md")),
    ("Extend", ("docs/add-an-iteration.md", "docs/add-a-family.md", "docs/another-gpu.md", "CONTRIBUTING.md")),
    ("Measure", ("docs/measurement.md", "docs/trust.md", "docs/sweeps.md", "docs/tuning.md", "docs/slurm.md",
                 "docs/bundle.md", "docs/ci.md", "docs/wrong-kernels.md")),
    ("Emulator", ("emulator/README.md", "emulator/docs/guide.md", "emulator/docs/programs.md",
                  "emulator/docs/hopper.md", "emulator/docs/verdict.md", "emulator/docs/*.md", "docs/trace.md")),
    ("Python", ("api.md",)),
    ("Other pages", ("docs/*.md", "CHANGELOG.md", "emulator/CHANGELOG.md")),
    ("Results", ("results/report/*.md", "results/*/README.md")),
    ("Steps", ("iterations/notes/*.md",)),
    ("Decisions", ("docs/decisions/README.md", "docs/decisions/*.md")),
)  # fmt: skip
"""Headings of the site to pages, or patterns of them; a page stands under the first heading that names it."""
API = ("flashladder", "flashladder.errors", "ptxemu", *(f"ptxemu.{name}" for name in ptxemu.__all__))
MADE = {"api.md": "# Python\n\nMade from docstrings.\n\n" + "\n".join(f"::: {name}\n" for name in API)}
"""Pages that the site alone has."""


def pages(root: Path = ROOT) -> dict[str, list[str]]:
    """Headings to the pages below them, each page once, as paths from the root."""
    seen, found = set[str](), dict[str, list[str]]()
    for heading, patterns in LISTED:
        for pattern in patterns:
            here = sorted(path.relative_to(root).as_posix() for path in root.glob(pattern))
            for page in here or ([pattern] if pattern in MADE else []):
                if page not in seen:
                    seen.add(page)
                    found.setdefault(heading, []).append(page)
    return found


def links(page: str, text: str) -> Iterator[Path]:
    """Where the links of a page lead that are neither in code nor to other places."""
    for target in LINK.findall(CODE.sub("", text)):
        if not re.match(r"[a-z]+:|#", target):
            yield place(page, target)


def place(page: str, target: str) -> Path:
    """The file or folder that a link of a page names."""
    return ((ROOT / page).parent / target.partition("#")[0]).resolve()


def settled(page: str, text: str, listed: Sequence[str]) -> str:
    """A page's text whose links to folders lead to the first page in each."""

    def put(match: re.Match[str]) -> str:
        path = place(page, match[1])
        below = [one for one in listed if (ROOT / one).parent == path] if path.is_dir() else []
        return f"]({match[1].rstrip('/')}/{Path(below[0]).name})" if below else match[0]

    return LINK.sub(put, text)


def stage(folder: Path = STAGE) -> tuple[int, int]:
    """Fills `folder`: ``pages/`` and ``mkdocs.yml``; the numbers of pages and other files. `CheckFailed`: dead link."""
    shutil.rmtree(folder, ignore_errors=True)
    headings = pages()
    listed = {page: None for below in headings.values() for page in below}
    own = (page for page in listed if page not in MADE)
    texts = {page: settled(page, (ROOT / page).read_text(encoding="utf-8"), list(listed)) for page in own}
    led = {path: page for page, text in texts.items() for path in links(page, text)}
    if wrong := [path for path in led if not (path.is_relative_to(ROOT) and path.is_file())]:
        raise CheckFailed(f"{len(wrong)} links lead nowhere", where=led[wrong[0]], found=relative(wrong[0]))
    others = {*led} | set((ROOT / "docs" / "assets").iterdir())
    others -= {(ROOT / page).resolve() for page in listed}
    for page, text in {**texts, **MADE}.items():
        write_atomic(folder / "pages" / page, text)
    for path in others:
        target = folder / "pages" / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    given = {"INHERIT": str(ROOT / "mkdocs.yml"), "docs_dir": "pages", "site_dir": str(SITE)}
    nav = [{heading: below} for heading, below in headings.items()]
    write_atomic(folder / "mkdocs.yml", yaml.safe_dump({**given, "nav": nav}, sort_keys=False, allow_unicode=True))
    return len(listed), len(others)


def fetched(site: Path = SITE) -> list[str]:
    """What pages of a site would take from the network when they are opened."""
    return [
        f"{path.relative_to(site)}: {found}"
        for path in sorted(site.rglob("*.html"))
        for found in FETCHED.findall(path.read_text(encoding="utf-8"))
        if not any(word in found for word in NOT_FETCHED)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Lays out the pages; with ``--check`` looks whether the site that was made of them needs a network."""
    parser = Parser(prog="python analysis/docs_site.py", description="Lay out the pages of the site.")
    parser.add_argument("--check", action="store_true", help="does the site that was built need a network?")
    if parser.parse_args(argv).check:
        n = len(list(SITE.rglob("*.html")))
        if not n:
            raise FlashladderError("no site to check", where=relative(SITE), hint="run: nox -s docs")
        if found := fetched():
            raise CheckFailed(f"{len(found)} things come from the network, the first: {found[0]}")
        print(f"{relative(SITE)}: {n} pages, which need no network")
        return 0
    n_pages, n_files = stage()
    print(f"{relative(STAGE)}: {n_pages} pages, and {n_files} files that they lead to")
    return 0


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
