"""Messages: one line, the right exit code, never a traceback; and the one word that a misspelt name can only mean."""

from __future__ import annotations

from pathlib import Path
import subprocess
import sys

import pytest

from flashladder.errors import CheckFailed, FlashladderError, one_line_errors
from flashladder.located import closest, is_of_a_file
from flashladder.machine_code.opcodes import unknown


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


FLAGS = ("--grid", "--dry-run", "--gpus", "--retry", "--config", "--counters")
GPUS = ("a100", "h100", "h200", "rtx3090", "rtx4090")


@pytest.mark.parametrize(
    ("typed", "candidates", "expected"),
    [
        ("--gird", FLAGS, "--grid"),
        ("--cnofig", FLAGS, "--config"),
        ("--dry_run", FLAGS, "--dry-run"),
        ("--retri", FLAGS, "--retry"),
        ("--gpu", FLAGS, "--gpus"),
        ("perstent", ("persistent", "ping_pong"), "persistent"),
        ("pingpong", ("persistent", "ping_pong"), "ping_pong"),
        ("smok", ("smoke", "split"), "smoke"),
        ("A100 ", GPUS, "a100"),
        ("RTX 3090", GPUS, "rtx3090"),
    ],
)
def test_a_slip_of_the_keyboard_is_answered_with_the_word(
    typed: str, candidates: tuple[str, ...], expected: str
) -> None:
    assert closest(typed, candidates) == f"did you mean {expected!r}?"


@pytest.mark.parametrize(
    "typed", ["b200", "b100", "a10", "h20", "h2000", "a1000", "rtx3080", "rtx5090", "3090", "v100"]
)
def test_another_gpu_is_no_slip(typed: str) -> None:
    assert closest(typed, GPUS) is None


@pytest.mark.parametrize("typed", ["FOO", "FOO.E.128", "DMUK", "IADD4", "FFMA3"])
def test_another_opcode_is_no_slip(typed: str) -> None:
    wrong = unknown(typed, "sass")
    assert wrong is not None
    assert wrong[1] is None


@pytest.mark.parametrize("typed", ["fp8", "fp32", "bf", "77", "", "-", "nosuch"])
def test_what_is_no_name_gets_no_guess(typed: str) -> None:
    assert closest(typed, ("fp16", "bf16", "bench", "1", "7")) is None


@pytest.mark.parametrize(
    ("where", "of_a_file"),
    [
        ("iterations/07_x.yaml:3", True),
        ("kernels/x.cuh", True),
        ("a.json", True),
        ("iteration 3", False),
        (None, False),
    ],
)
def test_an_error_that_names_a_file_is_told_as_it_is(where: str | None, *, of_a_file: bool) -> None:
    assert is_of_a_file(FlashladderError("x", where=where)) == of_a_file
