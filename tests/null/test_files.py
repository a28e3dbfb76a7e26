"""Tests of flashladder.files: writes are whole or not there, digests and paths are stable."""

from __future__ import annotations

from collections.abc import Callable
import os
from pathlib import Path
import subprocess
import sys

import pytest

from flashladder.errors import FlashladderError
from flashladder.files import (
    digest_files,
    escaped,
    files_in,
    make_folder,
    output_file,
    read_text,
    relative,
    sha256,
    unescaped,
    write_atomic,
)
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


@pytest.mark.parametrize(
    ("make", "what"), [(os.mkfifo, "not a regular file"), (Path.mkdir, "is a directory")], ids=["fifo", "folder"]
)
def test_what_is_no_file_is_not_replaced(tmp_path: Path, make: Callable[[Path], object], what: str) -> None:
    make(tmp_path / "out")
    kind = (tmp_path / "out").stat().st_mode
    with pytest.raises(FlashladderError, match=rf"/out: {what}.*; remove it$"):
        write_atomic(tmp_path / "out", "text")
    assert (tmp_path / "out").stat().st_mode == kind
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    "words",
    ["flashladder.build 7", "flashladder report --check", "flashladder doctor", "flashladder.ladder.json_schema"],
)
def test_a_wrong_root_is_one_line_in_every_command(words: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", *words.split()]
    environment = os.environ | {"FLASHLADDER_ROOT": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: FLASHLADDER_ROOT does not name a checkout: expected a folder that holds iterations/, kernels/ and "
        f"configs/, found {str(tmp_path)!r}; unset it to use the checkout of this package\n"
    )


@pytest.mark.parametrize(
    ("data", "text"),
    [(b"", ""), (b"\xef\xbb\xbfa\r\nb\rc", "a\nb\nc"), ("\u00fc\n".encode(), "\u00fc\n")],
    ids=["empty", "mark and line ends", "umlaut"],
)
def test_a_text_is_read(tmp_path: Path, data: bytes, text: str) -> None:
    (tmp_path / "a").write_bytes(data)
    assert read_text(tmp_path / "a") == text


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda path: path.write_bytes(b"abc\xfc"), r"not UTF-8 \(byte 0xfc at offset 3\)"),
        (lambda path: path.write_bytes(b"x" * 101), "too large"),
        (Path.mkdir, "Is a directory"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.symlink_to("gone"), "a link to a file that does not exist"),
        (lambda path: path.symlink_to(path), "symbolic links"),
        (lambda path: None, "No such file"),
    ],
)
def test_what_is_no_text_is_told_with_its_file(tmp_path: Path, make: Callable[[Path], object], what: str) -> None:
    make(tmp_path / "a.txt")
    with pytest.raises(FlashladderError, match=rf"a\.txt: .*{what}") as caught:
        read_text(tmp_path / "a.txt", most=100)
    assert caught.value.exit_code == 2


def test_a_folder_is_listed_without_what_editors_leave(tmp_path: Path) -> None:
    kept = ["a.json.gz", "b.yaml", "sub/c.json.gz"]
    left = [
        ".hidden",
        ".#b.yaml",
        "#b.yaml#",
        "b.yaml~",
        ".b.yaml.swp",
        "b.yaml.orig",
        "a.json.gz.bak",
        ".git/x.json.gz",
    ]
    for name in (*kept, *left):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [path for path in files_in(tmp_path) if path.is_file()] == [tmp_path / name for name in kept]
    assert files_in(tmp_path, "*/*.json.gz") == [tmp_path / "sub" / "c.json.gz"]
    assert files_in(tmp_path / ".git", "*.gz") == [tmp_path / ".git" / "x.json.gz"]  # a folder that is asked for


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("gone")], ids=["file", "link to nothing"])
def test_what_is_in_the_way_of_a_folder_is_named(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "a")
    for work in (
        make_folder,
        lambda path: write_atomic(path / "x", ""),
        lambda path: output_file(str(path / "x.y"), ".y"),
    ):
        for path in (tmp_path / "a", tmp_path / "a" / "b"):
            with pytest.raises(FlashladderError, match=r"/a: not a folder.*remove it"):
                work(path)


def test_an_output_has_the_ending_of_its_kind(tmp_path: Path) -> None:
    assert output_file(str(tmp_path / "new" / "k.cubin"), ".cubin") == tmp_path / "new" / "k.cubin"
    (tmp_path / "k.cubin").mkdir()
    for name in ("own.cu", ".cubin", "", "k.cubin.cu", str(tmp_path / "k.cubin")):
        with pytest.raises(FlashladderError, match=r"bad --out: expected a file that ends in \.cubin"):
            output_file(name, ".cubin")


@pytest.mark.parametrize("path", ["/a/b.cu", "/umlaut\u00fc/x.cu", '/q"x\\y/z.cu', "/\udcff.cu"])
def test_paths_of_ptx_are_ascii_and_read_back(path: str) -> None:
    assert escaped(path).isascii()
    assert unescaped(escaped(path)) == path


@pytest.mark.parametrize(
    ("name", "kind"), [("a.cubin", b"\x7fELF"), ("a.ptx", b"//\n.version 9.0"), ("a.html", b"<p>")]
)
def test_an_output_replaces_only_a_file_of_its_kind(tmp_path: Path, name: str, kind: bytes) -> None:
    path = tmp_path / name
    for content in (b"", kind):
        path.write_bytes(content)
        assert output_file(str(path), path.suffix) == path
    path.write_bytes(b"my own notes")
    with pytest.raises(FlashladderError, match=rf"bad --out: expected a new file, or a {path.suffix} file to replace"):
        output_file(str(path), path.suffix)
