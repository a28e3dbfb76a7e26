"""docs/add-a-family.md, executed in a copy of the checkout: a new family works in every command.

A new family must not need edits of the pipeline. The copy shares the store.
"""

from __future__ import annotations

import json
from pathlib import Path
import re
import shutil

import pytest

from flashladder.paths import ROOT
from tests import pages

pytestmark = pytest.mark.nvcc

FILES = Path(__file__).parent / "row_family"
PAGE = ROOT / "docs" / "add-a-family.md"
STEPS = list(pages.steps(PAGE))
ADDED = 5  # of them put a file in its place or make a folder for it


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with the new family's files, put there as the page says."""
    root = pages.copied(tmp_path_factory.mktemp("checkout"), "flashladder")
    shutil.copytree(FILES, root / "tests" / "nvcc" / "row_family")
    placed = [step for step in STEPS if isinstance(step, pages.Command) and step.words[0] in ("cp", "mkdir")]
    assert len(placed) == ADDED + 1
    for step in placed:
        pages.run(step, root, pages.environment(root, root))
    return root


def ran(checkout: Path, *words: str, code: int = 0) -> str:
    """The output of a command of the copy, followed by its errors."""
    done = pages.ran(checkout, checkout, *words, code=code)
    return done.stdout + done.stderr


def invoke(checkout: Path, *words: str, code: int = 0) -> str:
    return ran(checkout, "-m", "invoke", *words, code=code)


def test_the_page_shows_what_the_files_say() -> None:
    """Every excerpt is in one of the example's files, and the page mentions all files."""
    text = PAGE.read_text(encoding="utf-8")
    files = {path.name: path.read_text(encoding="utf-8") for path in FILES.iterdir() if path.is_file()}
    assert len(files) == ADDED
    assert all(f"row_family/{name} " in text and f"| `{name}` |" in text for name in files)
    excerpts = re.findall(r"^```(?:python|yaml)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(excerpts) == 4
    assert all(any(excerpt in whole for whole in files.values()) for excerpt in excerpts)


def test_what_the_page_types_makes_a_wheel_locks_and_a_row_of_the_table(checkout: Path) -> None:
    for step in STEPS[ADDED + 1 :]:
        pages.run(step, checkout, pages.environment(checkout, checkout))

    assert "build-iteration-34 -> A warp per row" in ran(checkout, "-m", "nox", "-l")
    rows = invoke(checkout, "ptxas", "34", "--configs", "a100", "--arch", "sm_90", "--json")
    assert {row["arch"] for row in json.loads(rows)} == {"sm_90"}
    (wheel,) = (checkout / "build" / "iteration_34" / "sm_80").glob("flashladder_34-*.whl")
    site = checkout / "site"
    shutil.unpack_archive(wheel, site, "zip")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import torch, flashladder\n"
        "for length in (64, 63):\n"
        "    q = torch.zeros(1, length, 3, 128, dtype=torch.float16, device='meta')\n"
        "    try: print(flashladder.forward(q, q, q, iteration=34).shape)\n"
        "    except Exception as error: print(error)"
    )
    shown = ran(checkout, "-c", program, str(site))
    assert "torch.Size([1, 64, 3, 128])" in shown
    assert "flashladder_34: q: expected seq_len divisible by B_r = 4, found 63" in shown

    locks = {path.stem: json.loads(path.read_text()) for path in (checkout / "results" / "locks").glob("*.json")}
    assert [arch for arch in sorted(locks) if "34" in locks[arch]["iterations"]] == ["sm_80", "sm_90"]
    assert set(locks["sm_80"]["iterations"]["34"]["kernels"]) == {
        f"({dtype}, 128, {rows}): warp_per_row" for dtype in ("FP16", "BF16") for rows in (4, 8)
    }
    assert "holds  iteration 8" in ran(checkout, "-m", "flashladder.lock.code_claims", "8", "34")

    text = (checkout / "README.md").read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if line.startswith("| 34 "))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1] == "A warp per row"
    assert set(cells[2:]) == {"–", "not run here"}
    assert "Iteration 34: not run here: needs compute capability 10.0 or later." in text


def test_it_shares_no_configuration_and_no_claim_with_the_other_family(checkout: Path) -> None:
    program = (
        "from flashladder.ladder.iteration import claim_configs, load_iteration as load, runnable\n"
        "from flashladder.ladder.selection import select_configs as chosen\n"
        "both = [{type(one).__name__ for one in chosen(load(n), 'prog-all')} for n in (16, 34)]\n"
        "print(both, claim_configs(load(34))[1])\n"
        "print(runnable([16, 34], 'sm_90'), runnable([16, 34], 'sm_100a'))"
    )
    assert ran(checkout, "-c", program).splitlines() == [
        "[{'AmpereConfig'}, {'RowConfig'}] None",
        "iteration 34: not run here: needs compute capability 10.0 or later",
        "[16] [16, 34]",
    ]


def test_a_broken_family_is_one_line(checkout: Path) -> None:
    broken = checkout / "flashladder" / "ladder" / "families" / "broken.py"
    for text in ("", "raise SystemExit(0)", "def"):
        broken.write_text(text, encoding="utf-8")
        try:
            shown = invoke(checkout, "list", code=2)
        finally:
            broken.unlink()
        assert shown.startswith(
            "error: flashladder/ladder/families/broken: the family cannot be loaded: expected a mod"
        )
        assert len(shown.splitlines()) == 1
