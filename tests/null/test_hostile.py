"""Names that are meant to do harm do none: in tables, plots and messages; and what the package never does.

Nothing is started through a shell, unpickled, evaluated or followed where somebody else could have put it.
"""

from __future__ import annotations

import ast
import csv
import io
from pathlib import Path

import pytest

from flashladder.columns import csv_records, csv_text, markdown
from flashladder.errors import Checked
from flashladder.files import relative
from flashladder.gpu.device import exclusive
from flashladder.paths import PACKAGE, ROOT
from flashladder.report.plot import STYLE

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
