"""Drawings of control flow: outline and DOT of small kernels, what they show and that they are always the same."""

from __future__ import annotations

import json
from pathlib import Path
import re
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st
import pytest

from flashladder.machine_code.executions import run
from flashladder.machine_code.flow import regions_of
from flashladder.machine_code.opcodes import KINDS
from flashladder.machine_code.sass import parse
from flashladder.view.cfg import Picture, dot, outline, per_block, picture_of, svg
from tests.data_files import table_of
from tests.null.machine_code.test_sass import code

LISTING = Path(__file__).parents[2] / "data" / "tiny.sm_80.sass"
MMA = "HMMA.16816.F32 R8, R4, R16, R8"
ROUNDS = (
    "MOV R0, RZ", "BAR.SYNC 0x0", MMA, "ISETP.LT.AND P1, PT, RZ, c[0x0][0x160], PT", "@!P1 BRA `(.L_x_2)",
    ".L_x_0:", "IADD3 R0, R0, 0x1, RZ", MMA, "ISETP.GE.AND P0, PT, R0, c[0x0][0x160], PT", "@P0 BRA `(.L_x_1)",
    "LDGSTS.E [R2], [R4.64]", ".L_x_1:", "FADD R8, R8, R9", "@!P0 BRA `(.L_x_0)",
    ".L_x_2:", "STG.E [R4.64], R8", "EXIT", ".L_x_3:", "BRA `(.L_x_3)",
)  # fmt: skip


@pytest.fixture(scope="module")
def rounds() -> Picture:
    regions = regions_of(code(*ROUNDS))
    return picture_of("a kernel: of tests", regions, run(regions.flow, {0x160: 5}))


def test_an_outline_shows_regions_loops_and_runs(rounds: Picture) -> None:
    text = outline(rounds)
    assert [" ".join(line.split()) for line in text.splitlines()[:13]] == table_of("null/view/flow_view", "outline")
    assert max(map(len, text.splitlines())) <= 80
    table = {line.split()[0]: line.split()[1:] for line in text.partition("by kind:\n")[2].splitlines()}
    assert table["tensor"] == ["0", "1", "1", "0", "6"]
    assert table["copies"] == ["0", "0", "0.8", "0", "4"]


def test_counts_stand_by_kind_and_add_up(rounds: Picture) -> None:
    lines = per_block(rounds).splitlines()[1:]
    assert lines[0].split() == ["prologue", "peeled", "block", "per", "KV", "block", "epilogue", "all"]
    cells = {line.split()[0]: [float(cell) for cell in line.split()[-5:]] for line in lines[1:]}
    assert cells["total"] == [1, 3, 5.8, 2, 35]  # a branch that is not taken takes no effect
    assert cells["copies"] == cells["LDGSTS"] == [0, 0, 0.8, 0, 4]
    assert cells["integer"] == [a + b for a, b in zip(cells["IADD3"], cells["ISETP"], strict=True)]
    whole = [sum(column) for column in zip(*(cells[kind] for kind in KINDS if kind in cells), strict=True)]
    assert whole == pytest.approx(cells["total"])


def test_without_a_launch_nobody_knows_how_often_blocks_run() -> None:
    picture = picture_of("tiny", regions_of(parse(LISTING.read_text(encoding="utf-8"))))
    text = outline(picture)
    lines = [line for line in text.splitlines() if "@>" in line]  # loops of one block, one after the other
    assert [line.split()[:5] for line in lines] == [["@>", "B2", "a0", "9", "-"], ["@>", "B6", "210", "19", "-"]]
    assert {line.index("@>") for line in lines} == {0}
    assert "rounds" not in text
    assert (picture["per_kv_block"], picture["rounds"]) == (None, None)
    assert picture["opcodes"]["main loop"]["HMMA.16816.F32"] == 2  # as it stands
    assert " x " not in dot(picture)


def test_nested_loops_have_strokes_of_their_own() -> None:
    rows = (".L_x_0:", "NOP", ".L_x_1:", MMA, "@P0 BRA `(.L_x_1)", "@P1 BRA `(.L_x_0)", "EXIT")
    text = outline(picture_of("nested", regions_of(code(*rows))))
    strokes = [line[:4] for line in text.splitlines() if re.match(r"^.{4} +B\d", line)]
    assert strokes == [".>  ", "| @>", "'-  ", "    "]


def test_dot_has_every_block_and_edge(rounds: Picture) -> None:
    text = dot(rounds)
    edges = set(re.findall(r"(B\d) -> (B\d)", text))
    assert edges == {(block["name"], way["target"]) for block in rounds["blocks"] for way in block["ways"]}
    assert re.findall(r"^    (B\d) \[label=", text, re.MULTILINE) == [block["name"] for block in rounds["blocks"]]
    assert 'B4 -> B2 [label="!P0", constraint=false];' in text


def test_svg_has_every_block_condition_and_edge(rounds: Picture) -> None:
    text = svg(rounds)
    assert text == svg(rounds)
    drawn = [*ET.fromstring(text).iter()]
    texts = ["".join(one.itertext()).strip() for one in drawn if one.tag.endswith("}text")]
    for block in rounds["blocks"]:
        assert block["name"] in {one.partition(" ")[0] for one in texts}
        assert any(one.startswith(f"{block['address']:#06x}: {block['instructions']}") for one in texts)
        assert {way["when"] for way in block["ways"]} - {""} <= {*texts}
    lines = [one for one in drawn if "stroke-linecap: round" in one.get("style", "")]
    assert len(lines) == 2 * sum(len(block["ways"]) for block in rounds["blocks"]), "an arc and its head for each edge"


@given(st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=1, max_size=9))
def test_any_flow_is_drawn_and_outlined(branches: list[tuple[int, bool]]) -> None:
    rows = []
    for place, (target, conditional) in enumerate(branches):
        rows += [f".L_x_{place}:", f"{'@P0 ' if conditional else ''}BRA `(.L_x_{min(target, len(branches) - 1)})"]
    picture = picture_of("drawn", regions_of(code(*rows, "EXIT")))
    outline(picture)
    dot(picture)


def test_json_holds_the_graph(rounds: Picture) -> None:
    found = json.loads(json.dumps(rounds))
    assert found["blocks"][2]["ways"] == [
        {"target": "B3", "kind": "falls", "when": "!P0"}, {"target": "B4", "kind": "branches", "when": "P0"},
    ]  # fmt: skip
    assert found["loops"] == [
        {"header": "B2", "blocks": ["B2", "B3", "B4"], "latches": ["B4"], "parent": None, "depth": 1, "trips": 5.0}
    ]
    assert found["opcodes"]["main loop"]["HMMA.16816.F32"] == found["rounds"] == 5


def test_two_conditions_of_a_branch_are_both_told() -> None:
    picture = picture_of("two", regions_of(code("@!P1 BRA P0, `(.L_x_0)", "NOP", ".L_x_0:", "EXIT")))
    assert [(way["kind"], way["when"]) for way in picture["blocks"][0]["ways"]] == [
        ("falls", "not (!P1 and P0)"), ("branches", "!P1 and P0"),
    ]  # fmt: skip
