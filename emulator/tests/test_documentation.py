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
