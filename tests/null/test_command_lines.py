"""Command lines: arguments that are read, and those that are refused in one line."""

from __future__ import annotations

from collections.abc import Callable
import os
from pathlib import Path
import shutil
import subprocess
import sys

import pytest

from flashladder.__main__ import main
from flashladder.bench import command as bench
from flashladder.check import command as check
from flashladder.files import last_iteration
from flashladder.paths import ROOT
from tests.data_files import table_of
from tests.typed import error_line

LONG = "1" * 5000
CASES: list[tuple[list[str], str]] = [
    ([word.replace("LONG", LONG) for word in words], message.replace("LAST", str(last_iteration())))
    for words, message in table_of("null/command_lines", "refused")
]
"""Words after ``invoke``, and a part of the one line that is said; nothing is compiled."""
PARSERS = [
    (check.main, ["--bakcend", "emulator", "7"], "--bakcend; did you mean '--backend'?"),
    (check.main, ["7", "--gpu", "3090"], "unrecognized arguments: --gpu 3090; python -m flashladder.check --help"),
    (check.main, ["seven"], "argument N: expected a whole number of one to nine digits, found 'seven'; python -m"),
    (check.main, ["7", "--out", "c.txt"], "--out: expected a name that ends in .json or .json.gz, found 'c.txt'"),
    (check.main, [], "give iterations, or --all"),
    (bench.main, ["7", "--pairs", "3"], "--pairs: expected at least 20, found 3"),
]


@pytest.mark.parametrize(
    ("call", "words", "message"),
    [*((main, *case) for case in CASES), *PARSERS],
    ids=lambda value: value.__module__ if callable(value) else str(value)[:60],
)
def test_one_line_and_two(
    call: Callable[[list[str]], int], words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in f"{error_line(call, words)}\n"
    assert capsys.readouterr().out == ""


ANSWERS = [["show", "--help"], ["list"], ["show", "16", "--json"], []]


def code_without_a_reader(*words: str) -> int:
    """The exit code of a command whose stdout nobody reads; nothing may be on its stderr."""
    command = [sys.executable, "-m", "invoke", *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == b""
        return running.wait(timeout=120)


@pytest.mark.parametrize("words", ANSWERS, ids=" ".join)
def test_a_reader_that_leaves_ends_every_answer_quietly(words: list[str]) -> None:
    assert code_without_a_reader(*words) == 0


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_a_reader_that_leaves_does_not_turn_a_no_into_a_yes(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{}")
    assert code_without_a_reader("verify", str(tmp_path), *words) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [["show", "--help"], ["list"]], ids=" ".join)
def test_a_full_disk_is_one_line(words: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "invoke", *words], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (2, b"error: No space left on device\n")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(("typed", "offered"), [("p", ["ptx", "ptxas"]), ("bench --ref", ["--references"])])
def test_bash_completes_commands_and_options(typed: str, offered: list[str]) -> None:
    """As a person's shell does it, with the script that the program prints."""
    ours = f'flashladder() {{ "{sys.executable}" -m flashladder "$@"; }}'
    words = f"COMP_WORDS=(flashladder {typed}); _complete_flashladder flashladder {typed.rsplit(maxsplit=1)[-1]}"
    script = (
        f'{ours}; eval "$(flashladder --print-completion-script bash)"; {words}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    assert sorted(done.stdout.split()) == offered


@pytest.mark.parametrize(
    ("package", "task", "pip"),
    [("yaml", "list", "pyyaml"), ("pydantic", "show", "pydantic"), ("ml_dtypes", "emulate", "ml-dtypes")],
)
def test_a_package_that_is_missing_is_one_line(package: str, task: str, pip: str) -> None:
    code = f"import sys; sys.modules['{package}'] = None; from flashladder.__main__ import main; main(['{task}', '7'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: this needs {package}; run: pip install {pip} (in a checkout: nox -s dev)\n"


@pytest.mark.parametrize(("words", "shown"), [([], "flashladder TASK ARGUMENTS"), (["show", "7"], "Iteration 7")])
def test_the_package_by_itself_runs_the_tasks_from_any_folder(words: list[str], shown: str) -> None:
    command = [sys.executable, "-m", "flashladder", *words]
    env = os.environ | {"PYTHONPATH": str(ROOT)}  # where the package is not installed
    done = subprocess.run(command, cwd="/", env=env, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(shown)
