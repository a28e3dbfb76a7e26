"""Chromium for the tests of the page: found on this machine, started without network services, told apart from a skip.

Why a real browser: whether a page sorts, prints, asks the network and can be used without a mouse, only a browser says.
``nox -s browser`` gives the tests what they need; elsewhere they are skipped with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
import os
from pathlib import Path
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


def executable() -> str | None:
    """The browser that runs the tests: ``FLASHLADDER_CHROMIUM``, or the first of `NAMES` on PATH."""
    return os.environ.get("FLASHLADDER_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def axe() -> Path | None:
    """The script of axe-core, which ``nox -s browser`` installs and names."""
    path = Path(os.environ.get("FLASHLADDER_AXE") or "node_modules/axe-core/axe.min.js")
    return path if path.is_file() else None


def missing(*, with_axe: bool = False) -> str:
    """Why no browser can be started here; empty where one can."""
    if find_spec("playwright") is None:
        return "playwright is not installed here; run: nox -s browser"
    if executable() is None:
        return f"no browser on PATH ({', '.join(NAMES)}); install Debian's chromium"
    if with_axe and axe() is None:
        return "axe-core is not installed here; run: nox -s browser, with npm on PATH"
    return ""


@contextmanager
def started() -> Iterator[Browser]:
    """A browser of its own profile, which playwright makes and takes away."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=[*ARGUMENTS])
        try:
            yield browser
        finally:
            browser.close()
