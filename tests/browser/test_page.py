"""The page in Chromium: no error, no request, sorting, filters, samples behind numbers, width, print, axe-core."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flashladder.ladder.iteration import load_iteration
from flashladder.lock.command import locked_kernel
from flashladder.paths import RESULTS
from flashladder.report.data import collect
from flashladder.report.page import find
from flashladder.report.page import page as rendered
from flashladder.results.derive import by_cell
from flashladder.results.files import load_as
from flashladder.results.schema import BenchResult
from tests.browser.conftest import INDEX, Opener, axe, require
from tests.data_files import text_of
from tests.null.report.test_page import add

if TYPE_CHECKING:
    from playwright.sync_api import Page

WIDTHS = "(({ scrollWidth, clientWidth }) => [scrollWidth, clientWidth])(document.getElementById('record'))"
TABLE = "#t-progression-fp16-own"


def heard(page: Page) -> list[str]:
    found: list[str] = page.heard  # type: ignore[attr-defined]  # carried beside the page
    return found


def column(page: Page, title: str, table: str = TABLE, nth: int = 0) -> list[str]:
    """The texts of one column, top to bottom."""
    script = text_of("browser/page", "column_of")
    found: list[str] = page.evaluate(script, [table, title, nth])
    return found


def test_the_policy_forbids_every_request_and_every_other_script(opened: Opener) -> None:
    page = opened()
    blocked = page.evaluate(text_of("browser/page", "blocked"))
    assert sorted(blocked[0]) == ["connect-src", "script-src-elem"]
    assert blocked[1] is None


def by_value(cells: list[str], *, down: bool = False) -> list[str]:
    """Sorted cells of a column; dashes of steps without a time are last."""
    numbers = [cell for cell in cells if cell != "–"]
    return [*sorted(numbers, key=float, reverse=down), *["–"] * (len(cells) - len(numbers))]


def test_a_click_on_a_head_sorts_up_then_down_by_value(opened: Opener) -> None:
    page = opened()
    before = column(page, "% of FA2")
    assert before != by_value(before)
    head = page.locator(f"{TABLE} thead tr:last-child th", has_text="% of FA2").first
    assert head.get_attribute("aria-sort") == "none"
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert column(page, "% of FA2") == by_value(before)
    head.get_by_role("button").press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert column(page, "% of FA2") == by_value(before, down=True)
    page.locator(f"{TABLE} thead tr:last-child th", has_text="Step").get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "none"
    assert column(page, "Step") == sorted(column(page, "Step"), key=str.lower)


def test_a_filter_leaves_the_rows_that_hold_every_word(opened: Opener) -> None:
    page = opened()
    field = page.locator(f".table:has({TABLE}) input[type=search]")
    rows = len(column(page, "Step"))
    field.fill("SWIZZLING")
    assert column(page, "Step") == ["Swizzling", "Encoded swizzling from registers to shared memory"]
    assert page.locator(f".table:has({TABLE}) output").text_content() == f" 2 of {rows}"
    field.fill("swizzling encoded")
    assert column(page, "#") == ["11"]
    field.fill("")
    assert len(column(page, "Step")) == rows


def test_a_link_to_an_iteration_unfolds_it(opened: Opener) -> None:
    page = opened()
    assert not page.locator("#iteration-8 h3").first.is_visible()
    page.locator(f"{TABLE} a[href='#iteration-8']").click()
    assert page.locator("#iteration-8 h3").first.is_visible()
    assert "xor_static" in (page.locator("#iteration-8").text_content() or "")


def test_a_number_leads_to_its_raw_samples_machine_digest_and_command(opened: Opener) -> None:
    page = opened()
    number = page.locator(f"{TABLE} tbody tr").nth(15).locator("td").nth(2).locator("a")
    shown = number.text_content()
    number.click()
    dialog = page.locator("dialog#record")
    assert dialog.is_visible()
    text = dialog.inner_text()
    config = load_iteration(16).configs["h200"]
    kernel = locked_kernel(16, config, "sm_90")
    assert kernel is not None
    result = load_as(RESULTS / "h200" / "bench.json.gz", BenchResult)
    for part in (
        f"Record behind {shown}", kernel.text_sha256, "results/h200/bench.json.gz", "python -m flashladder.bench --all",
        result.gpu.uuid, result.gpu.driver, "invoke verify results/h200/bench.json.gz",
    ):  # fmt: skip
        assert part in text
    key = f"16 {config.short_form()}"
    (cell,) = [cell for cell in by_cell(result.groups) if (cell[0], cell[1], cell[2].seq_len) == (key, "fp16", 4096)]
    ((_, series),) = by_cell(result.groups)[cell]
    rows = page.evaluate("""() => [...document.querySelectorAll("#record-body tbody tr")]
      .map((row) => [...row.cells].map((cell) => cell.textContent))""")
    assert [(float(row[3]), float(row[4])) for row in rows] == [
        (round(pair.reference_us, 3), round(pair.kernel_us, 3)) for pair in series.pairs
    ]
    assert [(int(row[0]), int(row[1])) for row in rows] == [(pair.block, pair.input_set) for pair in series.pairs]
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    assert number.evaluate("(link) => link === document.activeElement")


def test_it_loads_without_an_error_or_a_request_and_shows_every_record(opened: Opener) -> None:
    page = opened()
    assert page.title().startswith("flashladder")
    page.mouse.wheel(0, 20000)
    shown = page.evaluate(text_of("browser/page", "records"))
    assert shown[0] > 500
    assert shown[1] == []
    assert heard(page) == [f"request: {INDEX.as_uri()}"]


def test_the_theme_follows_the_system_until_a_person_chooses(opened: Opener) -> None:
    page = opened(scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark, button = page.evaluate(ground), page.locator("#theme")
    assert dark == "rgb(20, 23, 27)"
    button.click()
    assert (button.text_content(), page.evaluate(ground)) == ("Theme: light", "rgb(255, 255, 255)")
    button.click()
    assert (button.text_content(), page.evaluate(ground)) == ("Theme: dark", dark)
    page.reload()
    assert button.text_content() == "Theme: dark"
    assert opened(scheme="light").evaluate(ground) == "rgb(255, 255, 255)"


@pytest.mark.parametrize("width", [375, 1280])
def test_nothing_is_wider_than_the_window(opened: Opener, width: int) -> None:
    page = opened(width=width)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.locator(f"{TABLE} a[data-p]").first.click()
    wide, room = page.evaluate(WIDTHS)
    assert wide <= room


def test_headings_links_and_ids_are_in_order(opened: Opener) -> None:
    page = opened()
    levels, links, ids = page.evaluate("""() => [
      [...document.querySelectorAll("main :is(h1,h2,h3,h4,h5,h6)")].map((one) => +one.tagName[1]),
      [...document.querySelectorAll("a[href^='#']")].map((link) => link.getAttribute("href").slice(1)),
      [...document.querySelectorAll("[id]")].map((one) => one.id),
    ]""")
    assert levels[0] == 2
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert set(links) <= set(ids)
    assert len(ids) == len(set(ids))


def test_it_prints_in_ink_on_paper_without_what_only_a_screen_can_do(opened: Opener) -> None:
    page = opened(scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert [page.locator(one).is_visible() for one in ("nav", "#theme", TABLE)] == [False, False, True]


def test_hostile_names_are_text(opened: Opener, tmp_path: Path) -> None:
    sections = find(add(tmp_path, "<script>window.hacked = 1</script>"))
    (tmp_path / "hostile.html").write_bytes(rendered(collect(), sections=sections))
    page = opened(tmp_path / "hostile.html")
    text = page.locator("main").inner_text()
    page.locator("a[data-p]").first.click()
    text += page.locator("dialog").inner_text()
    for part in ("<script>window.hacked = 1<", "</table><img src=x", "</script><script>x<", "<b>what<"):
        assert part in text
    assert page.evaluate("window.hacked ?? null") is None
    assert page.locator("main img").count() == 0
    assert heard(page) == [f"request: {(tmp_path / 'hostile.html').as_uri()}"]


GRAVE = ("serious", "critical")
RUN = text_of("browser/page", "axe")


def grave(page: Page, context: str = "html") -> list[Any]:
    require(with_axe=True)
    script = axe()
    assert script is not None
    page.evaluate(script.read_text(encoding="utf-8"))
    found, version = page.evaluate(RUN, context)
    assert version.startswith("4.")
    return [one for one in found if one[0] in GRAVE]


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_has_no_grave_violation_with_everything_unfolded(opened: Opener, scheme: str, width: int) -> None:
    page = opened(scheme=scheme, width=width)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert grave(page) == []
    page.locator(f"{TABLE} a[data-p]").first.click()
    assert grave(page, "dialog") == []
