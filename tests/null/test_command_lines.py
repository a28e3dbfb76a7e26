"""Odd command lines end in one line and exit code 2, in this process; readers that leave and full disks in another."""

from __future__ import annotations

from pathlib import Path
import shutil
import subprocess
import sys

import pytest

from flashladder.__main__ import main
from flashladder.paths import ROOT
from tests.null.command_lines import CASES


def test_there_are_at_least_a_hundred() -> None:
    assert len(CASES) >= 100


@pytest.mark.parametrize(("words", "message"), CASES, ids=lambda case: str(case)[:60])
def test_one_line_and_two(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    out, err = capsys.readouterr()
    assert (left.value.code, out) == (2, ""), err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err


ANSWERS = [["--list"], ["show", "--help"], ["list"], ["show", "16", "--json"], ["help"], []]


@pytest.mark.parametrize("words", ANSWERS, ids=" ".join)
def test_a_reader_that_leaves_ends_every_answer_quietly(words: list[str]) -> None:
    command = [sys.executable, "-m", "invoke", *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == b""
        assert running.wait(timeout=120) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [["--list"], ["show", "--help"], ["list"]], ids=" ".join)
def test_a_full_disk_is_one_line(words: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "invoke", *words], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (2, b"error: No space left on device\n")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("sho", ["show"]),
        ("p", ["ptx", "ptxas"]),
        ("bench --ref", ["--references"]),
        ("sass --co", ["--config", "--control", "--counts"]),
    ],
)
def test_bash_completes_commands_and_options(typed: str, offered: list[str]) -> None:
    """As a person's shell does it, with the script that the program prints."""
    ours = f'flashladder() {{ "{sys.executable}" -m flashladder "$@"; }}'
    words = f"COMP_WORDS=(flashladder {typed}); _complete_flashladder flashladder {typed.rsplit(maxsplit=1)[-1]}"
    script = (
        f'{ours}; eval "$(flashladder --print-completion-script bash)"; {words}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    assert sorted(done.stdout.split()) == offered
