"""The page by axe-core: no serious and no critical violation, light and dark, folded, unfolded, with a record open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.conftest import Opener, axe, require

if TYPE_CHECKING:
    from playwright.sync_api import Page

GRAVE = ("serious", "critical")
RUN = """async (context) => {
  const found = await axe.run(context, { resultTypes: ["violations"] });
  return [found.violations.map((one) => [one.impact, one.id, one.nodes.length, one.nodes[0].html.slice(0, 200),
    one.nodes[0].failureSummary]), found.testEngine.version];
}"""


@pytest.fixture(autouse=True)
def installed() -> None:
    require(with_axe=True)


def grave(page: Page, context: str = "html") -> list[Any]:
    script = axe()
    assert script is not None
    page.evaluate(script.read_text(encoding="utf-8"))
    found, version = page.evaluate(RUN, context)
    assert version.startswith("4.")
    return [one for one in found if one[0] in GRAVE]


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_has_no_grave_violation(opened: Opener, scheme: str, width: int) -> None:
    assert grave(opened(scheme=scheme, width=width)) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nor_has_it_with_everything_unfolded(opened: Opener, scheme: str) -> None:
    page = opened(scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert grave(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nor_has_a_record(opened: Opener, scheme: str) -> None:
    page = opened(scheme=scheme)
    page.locator("#t-progression-fp16-own a[data-p]").first.click()
    assert grave(page, "dialog") == []


def test_the_check_sees_a_violation(opened: Opener) -> None:
    page = opened()
    page.evaluate("document.querySelector('a[data-p]').parentElement.setAttribute('role', 'button')")
    page.evaluate("document.querySelector('main p').style.color = '#bbbbbb'")
    assert {one[1] for one in grave(page)} >= {"color-contrast", "nested-interactive"}
