"""The linked view in Chromium: what a line belongs to, by mouse and by keyboard, both ways; names, policy, themes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flashladder.view.linked_page import page as rendered
from tests.browser.conftest import Opener
from tests.browser.test_page import grave, heard
from tests.null.view.test_linked import UNIT, toy

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("linked") / "8.html"
    path.write_bytes(rendered([toy()]))
    return path


def marked(page: Page, name: str) -> set[str]:
    return set(page.locator(f".row.{name}").evaluate_all("(rows) => rows.map((row) => row.id)"))


def told(page: Page) -> str:
    return page.locator("#told").text_content() or ""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_loads_without_an_error_runs_no_text_and_asks_for_nothing(opened: Opener, one: Path, scheme: str) -> None:
    page = opened(one, scheme=scheme)
    assert heard(page) == [f"request: {one.as_uri()}"]
    assert page.evaluate("window.hacked ?? null") is None
    assert page.locator("#k0-c-0-1").text_content() == f"1{UNIT[0]}"
    assert page.locator("#k0-sass .row.loop").count() == 5
    blocks = ["block 0, prologue, then 1", ".L_x_0: block 1, main loop, then 2 or 1", "block 2, epilogue"]
    assert page.locator("#k0-sass .row.label").all_text_contents() == blocks
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}[scheme]


def test_pointing_shows_what_belongs_together_a_click_keeps_and_tells_it(opened: Opener, one: Path) -> None:
    page = opened(one)
    near = {"k0-s-0040", "k0-s-0030", "k0-p-21", "k0-c-1-2"}
    page.locator("#k0-s-0040").hover()
    assert marked(page, "near") == near
    page.locator("h1").hover()
    assert marked(page, "near") == set()
    page.locator("#k0-p-21").click()
    assert (marked(page, "on"), marked(page, "call")) == (near, {"k0-c-0-5"})
    assert told(page) == (
        "PTX line 21: 1 line of PTX, 2 machine instructions (1 FMUL, 1 MOV), 2 in the main loop; "
        "from kernels/twice.cuh:2 < kernel.cu:5"
    )
    selected = [page.locator(f"#k0-s-00{n}0").get_attribute("aria-selected") for n in (4, 5)]
    assert selected == ["true", "false"]
    page.locator("#k0-s-0000").click()
    assert marked(page, "on") == {"k0-s-0000"}
    assert told(page) == "address 0000: 0 lines of PTX, 1 machine instruction (1 MOV), 0 in the main loop"


def test_the_keyboard_does_all_of_it(opened: Opener, one: Path) -> None:
    page = opened(one)
    page.locator("#k0-ptx").focus()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    assert page.locator("#k0-ptx").get_attribute("aria-activedescendant") == "k0-p-18"
    assert marked(page, "near") == {"k0-p-18", "k0-s-0020", "k0-c-1-2"}
    page.keyboard.press("ArrowRight")
    assert page.locator(":focus").get_attribute("aria-activedescendant") == "k0-s-0020"
    page.keyboard.press("Enter")
    assert marked(page, "on") == {"k0-p-18", "k0-s-0020", "k0-c-1-2"}
    page.keyboard.press("End")
    assert page.locator("#k0-sass").get_attribute("aria-activedescendant") == "k0-s-0070"
    page.keyboard.press("Escape")
    assert marked(page, "on") == set()
    assert told(page) == "Nothing is chosen."


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("FMUL", {"k0-s-0020", "k0-s-0030", "k0-s-0040", "k0-p-18", "k0-p-21", "k0-c-1-2"}),
        ("bra", {"k0-p-24", "k0-s-0060", "k0-c-0-6"}),
        ("kernel.cu:4-5", {"k0-c-0-4", "k0-c-0-5", "k0-p-18", "k0-p-21", "k0-s-0020", "k0-s-0030", "k0-s-0040"}),
        ("<b>", set()),
    ],
)
def test_find_takes_opcodes_and_lines(opened: Opener, one: Path, word: str, expected: set[str]) -> None:
    page = opened(one)
    page.locator("#find").fill(word)
    assert marked(page, "on") == expected
    assert told(page).startswith(f"{word}: ")
    assert ("nothing found" in told(page)) == (not expected)
    page.locator("#find").press("Enter")
    assert page.locator(".row.active").count() == (0 if not expected else 3)
    page.locator("#find").fill("")
    assert marked(page, "on") == set()


def test_two_kernels_choose_a_shared_line_in_both_and_their_own_in_one(opened: Opener, tmp_path: Path) -> None:
    path = tmp_path / "7-8.html"
    path.write_bytes(rendered([toy("7", ("// another", *UNIT[1:])), toy()]))
    page = opened(path)
    assert not page.locator("#k0-ptx").is_visible()
    page.locator("#k1-c-1-2").click()
    assert {"k0-c-1-2", "k1-c-1-2", "k0-s-0020", "k1-s-0040"} <= marked(page, "on")
    page.locator("#k1-c-2-5").click()
    assert marked(page, "on") == {"k1-c-2-5", "k1-p-21", "k1-s-0030", "k1-s-0040"}
    page.locator("#k0-s-0020").click()
    assert marked(page, "on") == {"k0-s-0020", "k0-p-18", "k0-c-1-2", "k1-c-1-2"}
    page.get_by_label("PTX", exact=True).check()
    assert page.locator("#k0-ptx").is_visible()
    wide, seen = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide <= seen


def test_of_several_kernels_one_or_two_are_chosen(opened: Opener, tmp_path: Path) -> None:
    path = tmp_path / "all.html"
    path.write_bytes(rendered([toy(key) for key in ("7", "8", "16 - swizzle")]))
    page = opened(path)
    page.wait_for_selector("#k0-sass .row.loop")
    assert page.locator("#k0-told").inner_text().startswith("<i>(FP16)</i>; 7 lines of PTX, 1 of them without")
    assert not page.locator("#k1").is_visible()
    page.get_by_label("beside it").select_option("16 - swizzle")
    page.wait_for_selector("#k1-sass .row.loop")
    assert page.locator("#k0-title, #k1-title").all_text_contents() == [
        "Iteration 7, sm_80",
        "Iteration 16 - swizzle, sm_80",
    ]
    page.locator("#k1-s-0040").click()
    assert {"k1-p-21", "k0-c-1-2"} <= marked(page, "on")
    assert page.url.endswith("#7,16%20-%20swizzle/k1-s-0040")
    page.get_by_label("beside it").select_option("nothing")
    assert not page.locator("#k1").is_visible()
    assert marked(page, "on") == set()
    again = opened(path, anchor="#8,7/k1-s-0040")
    again.wait_for_selector(".row.on")
    assert again.locator("#k0-title, #k1-title").all_text_contents() == ["Iteration 8, sm_80", "Iteration 7, sm_80"]
    assert heard(again) == [f"request: {path.as_uri()}"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_has_no_grave_violation_also_with_rows_chosen(opened: Opener, one: Path, scheme: str) -> None:
    page = opened(one, scheme=scheme)
    page.locator("#k0-p-21").click()
    page.locator("#k0-c-0-4").hover()
    assert grave(page) == []
