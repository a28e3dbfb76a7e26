"""Tests of flashladder.files: writes are whole or not there, digests and paths are stable."""

from __future__ import annotations

from collections.abc import Callable
import os
from pathlib import Path
import subprocess
import sys

import pytest

from flashladder.errors import FlashladderError
from flashladder.files import digest_files, dump_json, relative, sha256, write_atomic
from flashladder.paths import ROOT


def test_a_write_replaces_the_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.txt"
    write_atomic(path, "one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert [entry.name for entry in path.parent.iterdir()] == ["a.txt"]


def test_a_failed_write_says_so_and_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(FlashladderError, match=r"could not write the file \(No space left on device\)") as caught:
        write_atomic(path, "x")
    assert caught.value.exit_code == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]
    assert path.read_text() == "old"


def test_digests_do_not_depend_on_where_the_checkout_is() -> None:
    assert sha256("abc") == sha256(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert list(digest_files([ROOT / "README.md"])) == ["README.md"]
    assert relative(Path("/elsewhere/x")) == "/elsewhere/x"


def test_json_is_sorted_and_ends_with_a_newline() -> None:
    assert dump_json({"b": 1, "a": [2]}) == '{\n  "a": [\n    2\n  ],\n  "b": 1\n}\n'


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir], ids=["fifo", "folder"])
def test_what_is_no_file_is_not_replaced(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "out")
    kind = (tmp_path / "out").stat().st_mode
    with pytest.raises(FlashladderError, match=r"out: not a regular file, so that it is not replaced$"):
        write_atomic(tmp_path / "out", "text")
    assert (tmp_path / "out").stat().st_mode == kind
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    "module",
    ["view list", "report --check", "gpu.doctor", "gate", "bench 7", "ladder.json_schema", "machine_code.ptx 7"],
)
def test_a_wrong_root_is_one_line_in_every_command(module: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", *f"flashladder.{module}".split()]
    environment = os.environ | {"FLASHLADDER_ROOT": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: FLASHLADDER_ROOT does not name a checkout: expected a folder that holds iterations/, kernels/ and "
        f"configs/, found {str(tmp_path)!r}; unset it to use the checkout of this package\n"
    )
