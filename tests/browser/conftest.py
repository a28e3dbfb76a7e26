"""A real Chromium for the tests of the page. Without one they are skipped, and in CI they fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
import os
from pathlib import Path
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from flashladder.paths import RESULTS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

INDEX = RESULTS / "report" / "index.html"
Opener = Callable[..., "Page"]
NAMES = ("chromium", "chromium-browser", "google-chrome")


def executable() -> str | None:
    """The browser that runs the tests: ``FLASHLADDER_CHROMIUM``, or the first of `NAMES` on PATH."""
    return os.environ.get("FLASHLADDER_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def axe() -> Path | None:
    """The script of axe-core, which ``nox -s browser`` installs and names."""
    path = Path(os.environ.get("FLASHLADDER_AXE") or "node_modules/axe-core/axe.min.js")
    return path if path.is_file() else None


def require(*, with_axe: bool = False) -> None:
    """Skips a test without a browser; fails it if CI requires one."""
    reason = ""
    if find_spec("playwright") is None:
        reason = "playwright is not installed here; run: nox -s browser"
    elif executable() is None:
        reason = f"no browser on PATH ({', '.join(NAMES)}); install Debian's chromium"
    elif with_axe and axe() is None:
        reason = "axe-core is not installed here; run: nox -s browser, with npm on PATH"
    if reason and os.environ.get("FLASHLADDER_BROWSER") == "required":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A browser with a profile of its own, which playwright removes."""
    require()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable(), args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser: Browser) -> Iterator[Opener]:
    """Opens a page from the disk; ``page.heard`` lists its console messages and its requests."""
    contexts = []

    def open_page(path: Path = INDEX, *, width: int = 1280, scheme: Any = "light", anchor: str = "") -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        heard: list[str] = []
        page.heard = heard  # type: ignore[attr-defined]  # carried beside the page
        page.on("console", lambda message: heard.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: heard.append(f"error: {error}"))
        page.on("request", lambda request: heard.append(f"request: {request.url}"))
        page.goto(path.as_uri() + anchor)
        if "data-p=" in page.content():  # its records are inflated first
            page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield open_page
    for context in contexts:
        context.close()
