"""The linked view as bytes: one policy, nothing unescaped, each text once, the same bytes again."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from typing import Any

from flashladder.machine_code.sass import BYTES
from flashladder.view.linked_page import document, page, read_document
from tests.null.view.linked_fixture import MADE_FROM, TWICE, UNIT, toy

ONE = page([toy()]).decode()


def data_of(text: str) -> dict[str, Any]:
    (block,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    found: dict[str, Any] = json.loads(block)
    return found


def test_no_text_ends_its_element_and_no_value_is_markup() -> None:
    assert ONE.count("<script") == 2
    assert "<b>bold" not in ONE
    assert "<i>(FP16)" not in ONE
    assert data_of(ONE)["kernels"][0]["config"] == "<i>(FP16)</i>"
    assert data_of(ONE)["files"][0] == ["kernel.cu", list(UNIT)]


def test_the_policy_names_the_digest_of_the_only_script_and_nothing_is_asked_for() -> None:
    (script,) = re.findall(r"<script>(.*?)</script>", ONE, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', ONE)
    assert f"script-src 'sha256-{digest}'" in html.unescape(policy)
    assert policy.startswith("default-src 'none'; ")
    assert not re.search(r"""https?:|\bsrc=|@import|url\(|innerHTML|insertAdjacentHTML""", ONE)


def test_the_data_joins_the_three_texts() -> None:
    kernel = document([toy()])["kernels"][0]["data"]
    assert [origin for origin, *_ in kernel["sass"]] == [-1 if origin is None else origin for origin in MADE_FROM]
    assert kernel["sass"][2] == [2, "FMUL.FTZ R4, R2, R3"]
    assert kernel["blocks"] == [
        [0, "", "prologue", [1]],
        [2, ".L_x_0", "main loop", [2, 1]],
        [7, "", "epilogue", []],
    ]
    assert kernel["sass"][3] == [3, "FMUL.FTZ R5, R4, R3"]
    assert kernel["loop"] == [[2, 6]]
    line, chain, text, label = kernel["ptx"][2]
    assert (line, text, label) == (18, "mul.f32 %f1, %f2, %f3;", "$L__BB0_1")
    assert kernel["chains"][chain] == [[1, 2], [0, 4]]
    assert kernel["chains"][kernel["ptx"][6][1]] == []
    instructions = toy().sass.instructions
    assert [one.address for one in instructions] == [index * BYTES for index in range(len(instructions))]


def test_two_kernels_share_the_files_that_are_equal() -> None:
    other = ("// another unit", *UNIT[1:])
    data = document([toy("7", other), toy()])
    assert [name for name, _ in data["files"]] == ["kernel.cu", "kernels/twice.cuh", "kernel.cu"]
    assert data["files"][1] == ["kernels/twice.cuh", list(TWICE)]
    assert [one["data"]["files"] for one in data["kernels"]] == [[0, 1], [2, 1]]
    text = page([toy("7", other), toy()]).decode()
    assert "<title>Iteration 7 and iteration 8: CUDA, PTX and machine code" in text
    assert re.findall(r'data-text="(\w+)"( checked)?', text) == [
        ("cuda", " checked"),
        ("ptx", ""),
        ("sass", " checked"),
    ]
    assert text.count('<div class="text ptx" hidden>') == 2


def test_more_kernels_are_packed_and_read_again() -> None:
    several = [toy(key) for key in ("7", "8", "16 - swizzle")]
    text = page(several)
    assert isinstance(data_of(text.decode())["files"], str)
    found = read_document(text)
    assert found["files"] == document([toy()])["files"]
    assert [one["key"] for one in found["kernels"]] == ["7", "8", "16 - swizzle"]
    assert [one["data"] for one in found["kernels"]] == [document([toy()])["kernels"][0]["data"]] * 3
    assert text.decode().count("<option") == 7
    assert read_document(page([toy()]))["kernels"] == document([toy()])["kernels"]
