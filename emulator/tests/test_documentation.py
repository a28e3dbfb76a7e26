"""The committed list of opcodes is what the table holds."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path

import pytest

from ptxemu.table import ROWS, expand

ROOT = Path(__file__).resolve().parents[1]
_spec = importlib.util.spec_from_file_location("opcodes_page", ROOT / "tools" / "opcodes.py")
assert _spec is not None
assert _spec.loader is not None
documentation = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(documentation)


def test_the_committed_page_is_current() -> None:
    assert documentation.main(["--check"]) == 0


def test_a_stale_page_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "opcodes.md"
    monkeypatch.setattr(documentation, "PAGE", page)
    page.write_text("# Opcodes\n", encoding="utf-8")
    assert documentation.main(["--check"]) == 1
    assert "opcodes.md is stale" in capsys.readouterr().err
    documentation.main([])
    assert documentation.main(["--check"]) == 0


def test_the_page_lists_every_form_once() -> None:
    lines = [line for line in documentation.page().splitlines() if line.startswith("| `")]
    cells = [cell.strip("` ") for line in lines for cell in line[2:].split(" | ")[0].split("<br>")]
    forms = list(itertools.chain.from_iterable(map(expand, cells)))
    assert len(forms) == len(set(forms))
    assert set(forms) == set(ROWS)


def test_collapsed_forms_stand_for_the_same_ones() -> None:
    for forms, lines in (
        (["add.u32"], ["add.u32"]),
        (["a.x.p", "a.x.q", "a.y.p", "a.y.q"], ["a.{x,y}.{p,q}"]),
        (["a.x.p", "a.x.q", "a.y.p"], ["a.x.{p,q}", "a.y.p"]),
        (["add.f32", "add.ftz.f32"], ["add{,.ftz}.f32"]),
        (["m", "m.x.p", "m.x.q", "m.p", "m.q"], ["m", "m{,.x}.{p,q}"]),
        (["ld.p", "ld.v2.p", "ld.v4.p", "ld.q", "ld.v2.q"], ["ld{,.v2}.{p,q}", "ld.v4.p"]),
        ([], []),
    ):
        assert documentation.collapse(forms) == lines
        assert sorted(itertools.chain.from_iterable(map(expand, lines))) == sorted(forms)
