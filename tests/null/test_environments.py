"""Commands in surroundings that nobody prepared: no HOME, locale C, odd paths, a full disk, others at the same time.

Real processes on a copy of the checkout's data; nothing is compiled. What takes minutes (two builds, two reports, two
sweeps at once) is in tests/environments, which ``nox -s environments`` runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import hashlib
import json
import os
from pathlib import Path
import resource
import shutil
import signal
import subprocess
import sys
from typing import Any

import pytest

from flashladder.errors import FlashladderError, one_line_errors
from flashladder.files import write_atomic
from flashladder.paths import ROOT

FOLDERS = ("configs", "iterations", "kernels")
READING = [["list"], ["show", "8"], ["list", "--json"]]
BARE = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}


def copy_of_checkout(folder: Path) -> Path:
    """What reading commands read, and a title in another script."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "tasks.py", folder)
    first = next((folder / "iterations").glob("01_*.yaml"))
    text = first.read_text(encoding="utf-8")
    first.write_text(text.replace("title: ", "title: Größe 16 → ", 1), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout at a path with a blank, an umlaut, a quote and a bracket."""
    return copy_of_checkout(tmp_path_factory.mktemp("a b") / "Übung 'x' [1]")


def run(
    words: Sequence[str], root: Path, environment: Mapping[str, str] | None = None, **more: object
) -> subprocess.CompletedProcess[str]:
    """`flashladder WORDS` on the checkout at `root`, in a bare environment."""
    env = {**BARE, "HOME": "/", "FLASHLADDER_ROOT": str(root), **(environment or {})}
    command = [sys.executable, "-m", "flashladder", *words]
    given = {"capture_output": True, "text": True, "errors": "replace", "timeout": 120, "cwd": "/", **more}
    return subprocess.run(command, env=env, check=False, **given)  # type: ignore[call-overload, no-any-return]  # typed above


def snapshot(folder: Path) -> dict[str, tuple[int, str]]:
    """Every file with its time and digest."""
    return {
        str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_a_path_with_blanks_quotes_and_umlauts(odd: Path, words: list[str]) -> None:
    before = snapshot(odd)
    done = run(words, odd)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
    assert snapshot(odd) == before  # so that a checkout that cannot be written will do


LOCALES = {
    "c": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "posix": {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "latin": {"PYTHONIOENCODING": "latin-1"},
}


@pytest.mark.parametrize("name", LOCALES)
def test_a_locale_without_the_letters_of_a_title(odd: Path, name: str) -> None:
    done = run(["list"], odd, LOCALES[name])
    assert (done.returncode, done.stderr) == (0, "")
    assert "16 \\u2192" in done.stdout


def test_utf_8_shows_the_title_itself_in_80_columns_without_colours(odd: Path) -> None:
    done = run(["list"], odd, {"PYTHONUTF8": "1", "NO_COLOR": "1", "TERM": "xterm-256color"})
    assert "Größe 16 → " in done.stdout
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


HOMES = {"none": None, "missing": "/nonexistent/home", "read-only": "/proc"}


@pytest.mark.parametrize("name", HOMES)
def test_a_home_that_is_missing_or_cannot_be_written(odd: Path, name: str) -> None:
    environment = {**BARE, "FLASHLADDER_ROOT": str(odd), **({"HOME": home} if (home := HOMES[name]) else {})}
    command = [sys.executable, "-m", "flashladder", "show", "1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd="/", timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


REWRITE = """
import sys
from pathlib import Path
from flashladder.errors import one_line_errors
from flashladder.results.files import load_result, write_result
with one_line_errors():
    write_result(Path(sys.argv[1]), load_result(Path(sys.argv[1])))
"""


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    """A limit on the length of files fails as a full disk does: while the bytes are written."""
    old = tmp_path / "check.json"
    old.write_text(json.dumps(json.loads((ROOT / "tests" / "data" / "results.json").read_bytes())["check"]))
    before = snapshot(tmp_path)

    def full() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))

    alone = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}  # it writes too
    done = subprocess.run(
        [sys.executable, "-c", REWRITE, str(old)], cwd=ROOT, env=alone, capture_output=True, text=True, check=False,
        preexec_fn=full, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "could not write the file (File too large); free space" in done.stderr
    assert done.stderr.count("\n") == 1
    assert snapshot(tmp_path) == before


WRITER = """
import sys
from pathlib import Path
from flashladder.files import write_atomic
path, letter = Path(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
for _ in range(60):
    write_atomic(path, letter * 200_000)
"""


def test_writers_side_by_side_leave_one_of_their_files(tmp_path: Path) -> None:
    path = tmp_path / "shared.json"
    write_atomic(path, "a" * 200_000)
    command = [sys.executable, "-c", WRITER, str(path)]
    pipes: dict[str, Any] = {"cwd": ROOT, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    writers = [subprocess.Popen([*command, letter], **pipes) for letter in "abc"]
    for writer in writers:
        assert writer.stdout
        assert writer.stdout.readline() == b"ready\n"
    for writer in writers:
        assert writer.stdin
        writer.stdin.write(b"go\n")
        writer.stdin.flush()
    while any(writer.poll() is None for writer in writers):
        text = path.read_text(encoding="ascii")
        assert (len(text), len(set(text))) == (200_000, 1)
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    assert [one.name for one in tmp_path.iterdir()] == ["shared.json"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mred", "a\\x1b[31mred"),
        ("a\x00b\x7fc\x9bd", "a\\x00b\\x7fc\\x9bd"),
        ("evil\u202egpj.exe", "evil\\u202egpj.exe"),
        ("file\udcff.yaml", "file\\udcff.yaml"),
        ("two\nlines\there", "two lines here"),
        ("größe → 16", "größe → 16"),
        ("x" * 5000, "x" * 2000 + "... (5000 characters)"),
    ],
)
def test_a_message_never_commands_the_terminal(text: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left, one_line_errors():
        raise FlashladderError("bad", where=text, found=text, expected=text, hint=text)
    assert left.value.code == 2
    assert capsys.readouterr().err == f"error: {shown}: bad: expected {shown}, found {shown}; {shown}\n"
