"""Files, columns and errors: what is written, shown and refused."""

from __future__ import annotations

import ast
from collections.abc import Callable
import csv
import io
import os
from pathlib import Path
import re
import subprocess
import sys

import pytest

from flashladder.build.compile import render
from flashladder.columns import csv_records, csv_text, hanging, markdown, table, terminal_width
from flashladder.errors import Checked, CheckFailed, FlashladderError, one_line_errors
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
from flashladder.gpu.device import exclusive
from flashladder.gpu.doctor import Diagnosis, Finding
from flashladder.gpu.doctor import render as render_diagnosis
from flashladder.ladder.iteration import load_all, load_iteration
from flashladder.located import closest, is_of_a_file
from flashladder.machine_code.opcodes import unknown
from flashladder.machine_code.ptxas import PtxasRow, PtxasUsage
from flashladder.names import GPUS
from flashladder.paths import PACKAGE, ROOT
from flashladder.report.plot import STYLE
from flashladder.view import command as view


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
    assert output_file("~/k.cubin", ".cubin") == Path.home() / "k.cubin"
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


ROWS = [("#", "a thing", "b"), ("1", "some words more", "x"), ("10", "one", "longer than that")]
USAGE = PtxasUsage("sm_80", 255, 0, 0, 0, 1, 0, 488, 101.5)


def row(number: int, gpu: str, dtype: str, usage: PtxasUsage = USAGE) -> PtxasRow:
    config = load_iteration(number).configs[gpu].with_dtype(dtype)
    return PtxasRow.of(f"{number:02d}", config.short_form(), config.smem_bytes, usage)


def test_the_terminal_decides_then_columns_then_80(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, width in (("132", 132), ("1", 40), ("80", 80)):
        monkeypatch.setenv("COLUMNS", text)
        assert terminal_width() == width
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr("sys.__stdout__", None)  # as behind a pipe: nothing knows a width
    assert terminal_width() == 80


@pytest.mark.parametrize("width", [60, 80])
def test_prose_fits_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    finding = Finding("toolchain", False, "nvcc 13.0.88, crt 13.0.88, " * 6, "ask the administrator " * 9)
    for line in render_diagnosis(
        Diagnosis((finding,), "CPU only", ("compile kernels, verify locks",) * 4)
    ).splitlines():
        assert len(line) <= width
    assert hanging("head  ", "word " * 40).splitlines()[1].startswith("        word")
    assert hanging("", "word " * 40).splitlines()[1].startswith("word")


def test_narrower_is_one_blank_and_then_wrapped_cells() -> None:
    assert table(ROWS, 35, right={0})[0] == " # a thing         b"
    assert table(ROWS, 26, right={0}, wrapped={1, 2}) == [
        " #  a thing     b",
        " 1  some words  x",
        "    more",
        "10  one         longer",
        "                than that",
    ]


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_the_list_fits_and_loses_nothing(width: int) -> None:
    text = view.list_iterations(limit=width)
    assert max(map(len, text.splitlines())) <= width
    assert not any(line.endswith(" ") for line in text.splitlines())
    for step in load_all():
        words = map(re.escape, step.title.split())  # in order; a wrapped title goes on in its own column
        assert re.search(rf"^ ?{step.number} .*?" + r"[\s\S]{0,120}?".join(words), text, re.MULTILINE), step.number
        assert all(step.configs[gpu].brief() in text for gpu in GPUS)
    assert len(re.findall(r"^ ?\d+ ", text, re.MULTILINE)) == 2 * len(load_all())


def test_equal_columns_of_the_ptxas_table_move_below_it() -> None:
    rows = [row(7, gpu, dtype) for dtype in ("fp16", "bf16") for gpu in GPUS]
    lines = render(rows, ["warning: x", "warning: x"], 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["dtype", "configuration", "regs", "st", "ld", "ms"]
    assert [line.split()[:3] for line in lines[1:7]] == [
        [dtype, *load_iteration(7).configs[gpu].brief().split()] for dtype in ("fp16", "bf16") for gpu in GPUS
    ]
    assert lines[1].split()[3:] == ["255", "0", "0", "102"]
    told = "In every row: # 07, arch sm_80, stack 0, bar 1, static 0, dynamic 49152, cmem 488."
    assert " ".join(lines[8:-1]).startswith(told)
    assert lines[-1] == "warning: x"


def test_where_everything_differs_each_kernel_gets_a_heading() -> None:
    usages = [PtxasUsage("sm_80", 255, 88, 0, 0, 1, 10, 488, 1.0), PtxasUsage("sm_90", 9, 0, 8, 8, 2, 2, None, 2.0)]
    kernels = [(number, gpu, dtype) for number in (7, 16) for gpu in ("rtx3090", "h200") for dtype in ("fp16", "bf16")]
    lines = render([row(*kernel, usage) for kernel in kernels for usage in usages], [], 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1] == "07 fp16 128,32,4 2_2_2+buffer+opt"
    assert lines[3].split() == ["sm_90", "9", "0", "8", "8", "2", "2", "49152", "-", "2"]
    assert "In every row" not in "".join(lines)


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
GPUS_TITLED = ("a100", "h100", "h200", "rtx3090", "rtx4090")


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
        ("A100 ", GPUS_TITLED, "a100"),
        ("RTX 3090", GPUS_TITLED, "rtx3090"),
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
    assert closest(typed, GPUS_TITLED) is None


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


SOURCES = sorted([*PACKAGE.rglob("*.py"), *(ROOT / "analysis").glob("*.py"), ROOT / "tasks.py", ROOT / "noxfile.py"])
FORBIDDEN = {
    *("eval", "exec", "__import__", "os.system", "os.popen", "pickle.load", "pickle.loads", "marshal.loads"),
    *("shelve.open", "torch.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "joblib.load", "tempfile.mktemp"),
    *("subprocess.getoutput", "subprocess.getstatusoutput"),
}


def calls(path: Path) -> list[tuple[str, ast.Call]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [(ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_shell_no_pickle_no_unsafe_loader(path: Path) -> None:
    for name, call in calls(path):
        given = {word.arg: ast.unparse(word.value) for word in call.keywords}
        assert name not in FORBIDDEN, f"{path}:{call.lineno}"
        assert given.get("shell", "False") == "False", f"{path}:{call.lineno}"
        assert given.get("allow_pickle", "False") == "False", f"{path}:{call.lineno}"
        if name == "np.load":
            assert given.get("allow_pickle") == "False", f"{path}:{call.lineno}"
        assert not name.endswith((".extractall", ".unpack_archive")) or "filter" in given, f"{path}:{call.lineno}"


HOSTILE = [
    "a|b",
    "=1+1",
    "@SUM(A1)",
    "\tx",
    "two\nlines",
    "<script>alert(1)</script>",
    "`code`",
    '"quoted", with comma',
    "$x_{",
]


def test_a_markdown_table_keeps_its_columns() -> None:
    lines = markdown(["name", "value"], [[name, "1"] for name in HOSTILE]).splitlines()
    assert len(lines) == len(HOSTILE) + 2
    assert {line.replace("\\|", "").count("|") for line in lines} == {3}


def test_a_csv_cell_is_no_formula_and_reads_back() -> None:
    text = csv_text(["name", "value"], [[name, -1.5] for name in HOSTILE])
    for row, name in zip(list(csv.reader(io.StringIO(text)))[1:], HOSTILE, strict=True):
        assert row[0].lstrip("'") == name
        assert row[0][0] not in "=@\t\r"
        assert row[1] == "-1.5"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "line 1: expected a header"),
        ("a,a\n1,2\n", "line 1: expected a header, each name once"),
        ("a,b\n1\n", "line 2 has 1 cells, and the header 2"),
        ("a,b\n\n1,2,3\n", "line 3 has 3 cells, and the header 2"),
        ("a,b\n1," + "x" * 200_000, "line 2: field larger than field limit"),
    ],
)
def test_a_malformed_csv_names_its_line(text: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        csv_records(io.StringIO(text))


def test_a_plot_takes_dollar_signs_as_they_are() -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context():
        for name, value in STYLE.items():
            mpl.rcParams.update({name: value})
        figure = Figure()
        figure.text(0, 0, "$x_{ <b>&")
        out = io.BytesIO()
        figure.savefig(out, format="svg")
    assert b"$x_{ &lt;b&gt;&amp;" in out.getvalue()


def test_what_a_check_tells_commands_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Checked("", ("\x1b]0;title\x07 edited", "two\nlines")).show()
    assert capsys.readouterr().out == "\\x1b]0;title\\x07 edited\ntwo\nlines\n"


def test_a_name_that_no_file_can_have_is_told_as_it_is(tmp_path: Path) -> None:
    assert relative(Path("a\x00b")) == "a\x00b"
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert relative(loop).endswith("loop")


def test_the_lock_of_a_gpu_follows_no_link(tmp_path: Path) -> None:
    """The folder for temporary files is everybody's: a link to a file of ours must not be written through."""
    victim = tmp_path / "victim"
    victim.write_text("mine\n", encoding="ascii")
    (tmp_path / "flashladder-GPU-1.lock").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"), exclusive("GPU-1", tmp_path):
        pass
    assert victim.read_text(encoding="ascii") == "mine\n"
