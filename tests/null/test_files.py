"""Files, columns and errors: what is written, shown and refused."""

from __future__ import annotations

from collections.abc import Callable
import csv
from dataclasses import asdict
import io
import os
from pathlib import Path
import re
import subprocess
import sys

import pytest

from flashladder import files
from flashladder.arguments import within
from flashladder.build.compile import render
from flashladder.columns import csv_records, csv_text, hanging, markdown
from flashladder.errors import Checked, one_line_errors
from flashladder.files import digest_files, escaped, files_in, make_folder, output_file, relative, sha256, write_atomic
from flashladder.gpu.device import exclusive
from flashladder.gpu.doctor import Diagnosis, Finding
from flashladder.gpu.doctor import render as render_diagnosis
from flashladder.ladder.iteration import load_all, load_iteration
from flashladder.located import closest
from flashladder.machine_code.ptxas import PtxasRow, PtxasUsage
from flashladder.names import GPUS
from flashladder.paths import ROOT
from flashladder.view import command as view
from tests.typed import error_line


def test_digests_do_not_depend_on_where_the_checkout_is() -> None:
    assert sha256("abc") == sha256(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert list(digest_files([ROOT / "README.md"])) == ["README.md"]
    assert relative(Path("/elsewhere/x")) == "/elsewhere/x"


@pytest.mark.parametrize("words", ["flashladder.build 7", "flashladder report --check"])
def test_a_wrong_root_is_one_line_in_every_command(words: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", *words.split()]
    environment = os.environ | {"FLASHLADDER_ROOT": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: FLASHLADDER_ROOT does not name a checkout: expected a folder that holds iter")


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda path: path.write_bytes(b"abc\xfc"), r"not UTF-8 \(byte 0xfc at offset 3\)"),
        (lambda path: path.write_bytes(b"x" * 101), "too large"),
        (Path.mkdir, "not a regular file"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.symlink_to("gone"), "a link to a file that does not exist"),
        (lambda path: path.symlink_to(path), "symbolic links"),
        (lambda path: None, "No such file"),
    ],
)
def test_what_is_no_text_is_told_with_its_file(tmp_path: Path, make: Callable[[Path], object], what: str) -> None:
    make(tmp_path / "a.txt")
    assert re.search(rf"a\.txt: .*{what}", error_line(files.read_text, tmp_path / "a.txt", most=100))


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("gone")], ids=["file", "link to nothing"])
def test_what_is_in_the_way_of_a_folder_is_named(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "a")
    for path in (tmp_path / "a", tmp_path / "a" / "b"):
        for work in (
            make_folder,
            lambda path: write_atomic(path / "x", ""),
            lambda path: output_file(f"{path}/x.y", ".y"),
        ):
            assert re.search(r"/a: not a folder.*remove it", error_line(work, path))


@pytest.mark.parametrize("path", ["/a/b.cu", "/umlaut\u00fc/x.cu", '/q"x\\y/z.cu', "/\udcff.cu"])
def test_paths_of_ptx_are_ascii_and_read_back(path: str) -> None:
    assert escaped(path).isascii()
    assert files.unescaped(escaped(path)) == path


def test_prose_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    finding = Finding("toolchain", False, "nvcc 13.0.88, crt 13.0.88, " * 6, "ask the administrator " * 9)
    for line in render_diagnosis(
        Diagnosis((finding,), "CPU only", ("compile kernels, verify locks",) * 4)
    ).splitlines():
        assert len(line) <= 60
    assert hanging("head  ", "word " * 40).splitlines()[1].startswith("        word")
    assert hanging("", "word " * 40).splitlines()[1].startswith("word")


@pytest.mark.parametrize("width", [80, 160])
def test_the_list_fits_and_loses_nothing(width: int) -> None:
    text = view.list_iterations(limit=width)
    assert max(map(len, text.splitlines())) <= width
    assert not any(line.endswith(" ") for line in text.splitlines())
    for step in load_all():
        words = map(re.escape, step.title.split())  # in order; a wrapped title goes on in its own column
        assert re.search(rf"^ ?{step.number} .*?" + r"[\s\S]{0,120}?".join(words), text, re.MULTILINE), step.number
        assert all(step.configs[gpu].brief() in text for gpu in GPUS)
    assert len(re.findall(r"^ ?\d+ ", text, re.MULTILINE)) == 2 * len(load_all())


def test_configurations_of_the_ptxas_table_are_wrapped() -> None:
    usages = [PtxasUsage("sm_80", 255, 88, 0, 0, 1, 10, 488, 1.0), PtxasUsage("sm_90", 9, 0, 8, 8, 2, 2, None, 2.0)]
    configs = [load_iteration(number).configs["rtx3090"] for number in (7, 16)]
    named = [{"kernel": "07", "config": one.short_form(), "smem_dynamic": one.smem_bytes} for one in configs]
    rows = [PtxasRow(**asdict(usage), **names) for names in named for usage in usages]
    lines = render(rows, ["warning"], 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(lines[1].split()) == "07 fp16 128,32,4 sm_80 255 88 0 0 1 10 49152 488 1"
    assert lines[2].split() == ["2_2_2+buffer+opt"]


def test_an_answer_that_nobody_takes_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)  # what Python makes of `>&-`
    with one_line_errors():
        print("an answer")


def test_a_name_that_no_file_can_have_is_told_as_it_is(tmp_path: Path) -> None:
    assert relative(Path("a\x00b")) == "a\x00b"
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert relative(loop).endswith("loop")


def test_the_lock_of_a_gpu_follows_no_link(tmp_path: Path) -> None:
    """The folder for temporary files is everybody's: a link to a file of ours must not be written through."""
    (tmp_path / "victim").write_text("mine\n", encoding="ascii")
    for name in ("victim", "planted"):  # a file of ours, and none
        (tmp_path / f"flashladder-{name}.lock").symlink_to(tmp_path / name)
        with pytest.raises(OSError, match="symbolic links"), exclusive(name, tmp_path):
            pass
    assert (tmp_path / "victim").read_text(encoding="ascii") == "mine\n"
    assert not (tmp_path / "planted").exists()


FLAGS = ("--grid", "--dry-run", "--gpus", "--retry", "--config", "--counters")
MODELS = ("a100", "h100", "h200", "rtx3090", "rtx4090")


@pytest.mark.parametrize(
    ("typed", "candidates", "expected"),
    [
        *(("--gird", FLAGS, "--grid"), ("--cnofig", FLAGS, "--config"), ("--dry_run", FLAGS, "--dry-run")),
        *(("--retri", FLAGS, "--retry"), ("--gpu", FLAGS, "--gpus"), ("smok", ("smoke", "split"), "smoke")),
        *(("perstent", ("persistent", "ping_pong"), "persistent"), ("RTX 3090", MODELS, "rtx3090")),
        *((one, MODELS, None) for one in ("b200", "b100", "a10", "h20", "h2000", "rtx3080", "3090", "v100")),
        *((one, ("fp16", "bf16", "bench", "7"), None) for one in ("fp8", "fp32", "bf", "77", "", "-", "nosuch")),
    ],
)
def test_a_slip_of_the_keyboard_is_answered_with_the_word_and_another_name_is_none(
    typed: str, candidates: tuple[str, ...], expected: str | None
) -> None:
    assert closest(typed, candidates) == (expected and f"did you mean {expected!r}?")


HOSTILE = ["a|b", "=1+1", "@SUM(A1)", "\tx", "two\nlines", "<script>alert(1)</script>", '"quoted", with comma', "$x_{"]


def test_tables_keep_their_columns_and_a_csv_cell_is_no_formula() -> None:
    lines = markdown(["name", "value"], [[name, "1"] for name in HOSTILE]).splitlines()
    assert len(lines) == len(HOSTILE) + 2
    assert {line.replace("\\|", "").count("|") for line in lines} == {3}
    text = csv_text(["name", "value"], [[name, -1.5] for name in HOSTILE])
    for row, name in zip(list(csv.reader(io.StringIO(text)))[1:], HOSTILE, strict=True):
        assert (row[0].lstrip("'"), row[1]) == (name, "-1.5")
        assert row[0][0] not in "=@\t\r"
    for text, what in (
        ("", "line 1: expected a header"),
        ("a,a\n1,2\n", "line 1: expected a header, each name once"),
        ("a,b\n\n1,2,3\n", "line 3 has 3 cells, and the header 2"),
        ("a,b\n1," + "x" * 200_000, "line 2: field larger than field limit"),
    ):
        with pytest.raises(ValueError, match=what):
            csv_records(io.StringIO(text))


def test_what_a_check_tells_commands_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Checked("", ("\x1b]0;title\x07 edited", "two\nlines")).show()
    assert capsys.readouterr().out == "\\x1b]0;title\\x07 edited\ntwo\nlines\n"


@pytest.mark.parametrize(("ending", "own"), [(".cubin", b"\x7fELF"), (".ptx", b"//\n.version 9.0"), (".html", b"<p>")])
def test_an_output_has_the_ending_of_its_kind_and_replaces_only_that(tmp_path: Path, ending: str, own: bytes) -> None:
    path = tmp_path / "new" / f"k{ending}"
    assert output_file(str(path), ending) == path
    assert output_file(f"~/k{ending}", ending) == Path.home() / f"k{ending}"
    path.parent.mkdir()
    for content in (b"", own):
        path.write_bytes(content)
        assert output_file(str(path), ending) == path
    path.write_bytes(b"my own notes")
    (tmp_path / f"x{ending}").mkdir()
    told = rf"bad --out: expected a (new file, or a \{ending} file to replace|file that ends in \{ending})"
    for name in (str(path), "own.cu", ending, "", f"k{ending}.cu", str(tmp_path / f"x{ending}")):
        assert re.search(told, error_line(output_file, name, ending))


def test_a_folder_is_listed_without_what_editors_leave(tmp_path: Path) -> None:
    kept = ["a.json.gz", "b.yaml", "sub/c.json.gz"]
    left = [".hidden", ".#b.yaml", "#b.yaml#", "b.yaml~", ".b.yaml.swp", "b.yaml.orig", "a.json.gz.bak", ".git/x.gz"]
    for name in (*kept, *left):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [path for path in files_in(tmp_path) if path.is_file()] == [tmp_path / name for name in kept]
    assert files_in(tmp_path, "*/*.json.gz") == [tmp_path / "sub" / "c.json.gz"]
    assert files_in(tmp_path / ".git", "*.gz") == [tmp_path / ".git" / "x.gz"]  # a folder that is asked for


@pytest.mark.parametrize(("make", "what"), [(os.mkfifo, "not a regular file"), (Path.mkdir, "is a directory")])
def test_what_is_no_file_is_not_replaced(tmp_path: Path, make: Callable[[Path], object], what: str) -> None:
    make(tmp_path / "out")
    kind = (tmp_path / "out").stat().st_mode
    assert re.search(rf"/out: {what}.*; remove it$", error_line(write_atomic, tmp_path / "out", "text"))
    assert (tmp_path / "out").stat().st_mode == kind
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert write_atomic(tmp_path / "new", "text").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("text", ["٣", "-1", "", "0", "1.5", "12345678901"])
def test_a_whole_number_is_ascii_and_in_range(text: str) -> None:
    found = error_line(within, "cells", text, most=9)
    assert found == f"bad --cells: expected a whole number from 1 to 9, found {text!r}"
    assert within("cells", "9", most=9) == 9
