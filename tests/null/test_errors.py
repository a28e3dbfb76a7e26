"""Tests of flashladder.errors: one line, the right exit code, and never a traceback."""

from __future__ import annotations

from pathlib import Path
import subprocess
import sys

import pytest

from flashladder.errors import CheckFailed, FlashladderError, one_line_errors


def test_the_line_says_what_where_expected_found_and_what_to_do() -> None:
    error = FlashladderError("bad tile", where="a.yaml:3", expected="64", found="65", hint="edit\n it")
    assert str(error) == "a.yaml:3: bad tile: expected 64, found 65; edit it"
    assert error.exit_code == 2
    assert str(FlashladderError("no GPU")) == "no GPU"


@pytest.mark.parametrize(("error", "code"), [(FlashladderError("x"), 2), (CheckFailed("x"), 1)])
def test_the_edge_prints_one_line_and_leaves(
    error: FlashladderError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught, one_line_errors():
        raise error
    assert caught.value.code == code
    assert capsys.readouterr().err == "error: x\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_answer_that_cannot_be_written_is_one_line() -> None:
    program = "from flashladder.errors import one_line_errors\nwith one_line_errors():\n    print('an answer')\n"
    with Path("/dev/full").open("wb") as full:
        found = subprocess.run([sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, check=False)
    assert found.returncode == 2
    assert found.stderr == b"error: No space left on device\n"


def test_an_answer_that_nobody_takes_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)  # what Python makes of `>&-`
    with one_line_errors():
        print("an answer")


def test_an_interrupt_is_one_word(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught, one_line_errors():
        raise KeyboardInterrupt
    assert caught.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_reader_that_leaves_early_ends_the_command_quietly() -> None:
    program = (
        "from flashladder.errors import one_line_errors\n"
        "with one_line_errors():\n"
        "    for _ in range(100000): print('a line that fills the pipe')\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=30) == 0
