"""The committed notes are what the committed results give."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis import render_notes


def test_the_committed_notes_are_current() -> None:
    assert render_notes.main(["--check"]) == 0


def test_an_edited_note_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(render_notes, "NOTES", tmp_path)
    render_notes.main([])
    note = tmp_path / "08.md"
    note.write_text(note.read_text(encoding="utf-8").replace("IADD3", "IADD4", 1), encoding="utf-8")
    with pytest.raises(SystemExit) as caught:
        render_notes.main(["--check"])
    assert caught.value.code == 1
    assert "08.md: stale note" in capsys.readouterr().err
