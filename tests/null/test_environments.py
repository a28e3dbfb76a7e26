"""Commands without HOME, in locale C, at odd paths, on a full disk, beside other writers.

Real processes on a copy of the checkout's data; nothing is compiled. tests/environments holds the tests of minutes.
"""

from __future__ import annotations

from contextlib import ExitStack
import json
import os
from pathlib import Path
import re
import resource
import shutil
import signal
import subprocess
import sys
from typing import Any

import pytest

from flashladder.errors import FlashladderError, one_line_errors
from flashladder.files import sha256, write_atomic
from flashladder.paths import ROOT
from tests.data_files import text_of


def snapshot(folder: Path) -> dict[Path, tuple[int, str]]:
    """Every file with its time and digest."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path: (path.stat().st_mtime_ns, sha256(path.read_bytes())) for path in files}


REWRITE = text_of("null/environments", "rewrite")


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
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert re.match("error: .*could not write the file .File too large.; free space", done.stderr)
    assert snapshot(tmp_path) == before


WRITER = text_of("null/environments", "writer")


def test_writers_side_by_side_leave_one_of_their_files(tmp_path: Path) -> None:
    path = tmp_path / "shared.json"
    write_atomic(path, "a" * 200_000)
    command = [sys.executable, "-c", WRITER, str(path)]
    pipes: dict[str, Any] = {"cwd": ROOT, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with ExitStack() as stack:
        writers: list[Any] = [stack.enter_context(subprocess.Popen([*command, x], **pipes)) for x in "abc"]
        assert [writer.stdout.readline() for writer in writers] == [b"ready\n"] * 3
        for writer in writers:
            writer.stdin.close()
        while any(writer.poll() is None for writer in writers):
            text = path.read_text(encoding="ascii")
            assert (len(text), len(set(text))) == (200_000, 1)
    assert [writer.returncode for writer in writers] == [0] * 3
    assert [one.name for one in tmp_path.iterdir()] == ["shared.json"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mred", "a\\x1b[31mred"),
        ("evil\u202egpj.exe", "evil\\u202egpj.exe"),
        ("file\udcff.yaml", "file\\udcff.yaml"),
        ("größe → 16", "größe → 16"),
        ("x" * 5000, "x" * 2000 + "... (5000 characters)"),
    ],
)
def test_a_message_never_commands_the_terminal(text: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left, one_line_errors():
        raise FlashladderError("bad", where=text, found=text, expected=text, hint=text)
    assert left.value.code == 2
    assert capsys.readouterr().err == f"error: {shown}: bad: expected {shown}, found {shown}; {shown}\n"


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What reading commands read, at a path with a blank, an umlaut and a quote; a title in another script."""
    folder = tmp_path_factory.mktemp("a b") / "Übung 'x' [1]"
    for name in ("configs", "iterations", "kernels"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "tasks.py", folder)
    first = next((folder / "iterations").glob("01_*.yaml"))
    text = first.read_text(encoding="utf-8")
    first.write_text(text.replace("title: ", "title: Größe 16 → ", 1), encoding="utf-8")
    return folder


NO_UTF_8 = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize(
    ("words", "environment", "holds"),
    [
        ("list", {"LC_ALL": "C", **NO_UTF_8}, "16 \\u2192"),
        ("list", {"PYTHONIOENCODING": "latin-1"}, "16 \\u2192"),
        ("list", {"PYTHONUTF8": "1", "NO_COLOR": "1", "TERM": "xterm-256color"}, "Größe 16 → "),
        ("show 8", {"HOME": "/nonexistent/home"}, "IADD3"),
    ],
    ids=str,
)
def test_reading_commands_in_odd_places(odd: Path, words: str, environment: dict[str, str], holds: str) -> None:
    """At an odd path, without HOME or with one that cannot be written, in any locale; nothing is written."""
    before = snapshot(odd)
    bare = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "FLASHLADDER_ROOT": str(odd)}
    done = subprocess.run(
        [sys.executable, "-m", "flashladder", *words.split()],
        env=bare | environment, cwd="/", capture_output=True, text=True, errors="replace", check=False, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert holds in done.stdout
    assert "\x1b" not in done.stdout
    assert snapshot(odd) == before
