"""Examples of README.md and docs/*.md run and print what the pages show; files and figures that they name are there.

bash runs a block of kind ``sh`` as it stands, but for ``pip install``. The ``python`` blocks of a page share their
names. A block of kind ``text`` is what the block above it prints; ``...`` in it is any text within a line, or, alone on
a line, any lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import redirect_stdout
import gzip
import importlib.util
import io
import itertools
import json
import os
from pathlib import Path
import re
import subprocess
import sys

import pytest

import ptxemu
from ptxemu import errors
from ptxemu.observe import hazards
from ptxemu.run.launch import MAX_INSTRUCTIONS
from ptxemu.table import ROWS, expand

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = ROOT.parent
_spec = importlib.util.spec_from_file_location("opcodes_page", ROOT / "tools" / "opcodes.py")
assert _spec is not None
assert _spec.loader is not None
opcodes = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(opcodes)
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s:]*)(?:#([^)\s]+))?\)")
RECORDED = re.compile(r"`emulator/tests/data/([\w.]+)` \(([^)]+)\)")


def blocks(page: str) -> Iterator[tuple[str, str, str | None]]:
    """Kind, text and what is printed of each example."""
    for kind, text, shown in BLOCK.findall(TEXTS[page]):
        if kind != "text" and not text.startswith("pip install"):
            yield kind, text, shown or None


def pages_with(kind: str) -> list[str]:
    return sorted(page for page in TEXTS if any(kind == each for each, _, _ in blocks(page)))


def require(page: str, example: str, printed: str, shown: str | None) -> None:
    """Fails where an example prints something else than its page shows."""
    if shown is None:
        return
    lines = [
        "(?:.*\n)*?" if line == "..." else ".*".join(map(re.escape, line.split("..."))) + "\n"
        for line in shown.splitlines()
    ]
    assert re.fullmatch("".join(lines), printed), f"{page}:\n{example}\nprints\n{printed}\nnot\n{shown}"


def run(page: str, kinds: set[str], folder: Path) -> None:
    """Runs the examples of a page in a folder, in their order."""
    names: dict[str, object] = {}
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for number, (kind, text, shown) in enumerate(blocks(page)):
        if kind not in kinds:
            continue
        if kind == "python":
            with redirect_stdout(io.StringIO()) as out:
                exec(compile(text, f"{page}, example {number}", "exec"), names)
            require(page, text, out.getvalue(), shown)
        else:
            done = subprocess.run(
                ["bash", "-c", text], cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
            assert (done.returncode, done.stderr) == (0, ""), f"{page}:\n{text}\n{done.stdout}"
            require(page, text, done.stdout, shown)


def test_every_example_is_of_a_kind_that_runs() -> None:
    assert {kind for page in TEXTS for kind, _, _ in blocks(page)} == {"sh", "python", "yaml"}
    assert "README.md" in pages_with("sh")


@pytest.mark.parametrize("page", [page for page in pages_with("python") if page != "README.md"])
def test_python_examples(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(page, {"python"}, tmp_path)


@pytest.mark.nvcc
@pytest.mark.parametrize("page", pages_with("sh"))
def test_commands_and_what_follows_from_them(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(page, {"sh", "python"}, tmp_path)


@pytest.mark.parametrize("page", TEXTS)
def test_links_lead_somewhere(page: str) -> None:
    home = ROOT if page == "README.md" else ROOT / "docs"
    for target, part in LINK.findall(TEXTS[page]):
        path = home / target if target else home / page
        assert path.is_file(), target
        if part:
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert part in {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}


@pytest.mark.parametrize("page", TEXTS)
def test_files_that_a_page_names_are_there(page: str) -> None:
    named = re.findall(r"\b((?:emulator|tests|analysis|results)/[\w./-]*\w)", re.sub(r"\]\([^)]*\)", "", TEXTS[page]))
    assert [name for name in named if not (REPOSITORY / name).exists()] == []


@pytest.mark.parametrize("page", TEXTS)
def test_figures_are_those_of_the_recorded_files(page: str) -> None:
    for name, said in RECORDED.findall(TEXTS[page]):
        data = (ROOT / "tests" / "data" / name).read_bytes()
        if name.endswith(".json.gz"):
            document = json.loads(gzip.decompress(data))
            assert int(said.split()[0]) == len(document.get("records", document.get("readings"))), name
        else:
            assert said in data.decode(), name


def table(page: str, head: str) -> list[str]:
    """The names in the first column of the table under a line."""
    rows = TEXTS[page].split(head)[1].split("\n\n")[0]
    return [
        name
        for row in rows.splitlines()
        if row.startswith("| `")
        for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])
    ]


def test_the_guide_has_every_kind_of_hazard_and_error() -> None:
    assert sorted(table("guide.md", "| kind | meaning | usual repair |")) == sorted(hazards.KINDS)
    assert sorted(table("guide.md", "| kind | meaning |\n")) == sorted(errors.KINDS)


def test_the_guide_has_every_counter_and_the_budgets() -> None:
    named = set[str]()
    for form in re.findall(r"`((?:l1tex|smsp)__[^`]+)`", TEXTS["guide.md"]):
        named |= {form.replace("{ld,st,atom}", operation) for operation in ("ld", "st", "atom")}
    assert named == set(ptxemu.Counters().as_dict())
    assert f'`memory_budget` (default `"{ptxemu.MEMORY_BUDGET >> 30}GiB"`)' in TEXTS["guide.md"]
    assert f"`max_instructions` (default {MAX_INSTRUCTIONS // 1_000_000} million)" in TEXTS["guide.md"]


def test_the_committed_list_of_opcodes_is_current_and_a_stale_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert opcodes.main(["--check"]) == 0
    page = tmp_path / "opcodes.md"
    monkeypatch.setattr(opcodes, "PAGE", page)
    page.write_text("# Opcodes\n", encoding="utf-8")
    assert opcodes.main(["--check"]) == 1
    assert "opcodes.md is stale" in capsys.readouterr().err
    opcodes.main([])
    assert opcodes.main(["--check"]) == 0


def test_the_page_lists_every_form_once() -> None:
    lines = [line for line in opcodes.page().splitlines() if line.startswith("| `")]
    cells = [cell.strip("` ") for line in lines for cell in line[2:].split(" | ")[0].split("<br>")]
    forms = list(itertools.chain.from_iterable(map(expand, cells)))
    assert len(forms) == len(set(forms))
    assert set(forms) == set(ROWS)
