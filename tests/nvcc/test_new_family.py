"""A family of its own files: another kernel, other arguments, another grid, and every command knows it.

Why: what comes after Ampere's ladder must not edit the pipeline. All in a copy of the checkout, which shares the store.
"""

from __future__ import annotations

import json
from pathlib import Path
import shutil

import pytest

from tests.nvcc import checkouts
from tests.nvcc.checkouts import copied

pytestmark = pytest.mark.nvcc

FILES = Path(__file__).parent / "row_family"
PLACES = {
    "rows.py": "flashladder/ladder/families/rows.py",
    "args.cuh": "kernels/rows/args.cuh",
    "plain.cuh": "kernels/rows/plain.cuh",
    "plan.cpp": "kernels/rows/plan.cpp",
    "17_rows.yaml": "iterations/17_rows.yaml",
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with the new family's files."""
    root = copied(tmp_path_factory.mktemp("checkout"), "flashladder")
    assert {path.name for path in FILES.iterdir() if path.is_file()} == set(PLACES)
    for name, place in PLACES.items():
        (root / place).parent.mkdir(exist_ok=True)
        assert not (root / place).exists()
        shutil.copy(FILES / name, root / place)
    return root


def ran(checkout: Path, *words: str, code: int = 0) -> str:
    """What a command of the copy prints, errors behind."""
    done = checkouts.ran(checkout, checkout, *words, code=code)
    return done.stdout + done.stderr


def invoke(checkout: Path, *words: str, code: int = 0) -> str:
    return ran(checkout, "-m", "invoke", *words, code=code)


def test_it_is_listed_shown_and_compared(checkout: Path) -> None:
    assert "build-iteration-17 -> A warp per row" in ran(checkout, "-m", "nox", "-l")
    listed = invoke(checkout, "list")
    assert "17  A warp per row" in listed
    assert "8 rows" in listed
    shown = invoke(checkout, "show", "17")
    assert "(FP16, 128, 4): warp_per_row" in shown
    assert "__shfl_xor_sync" in shown
    different = invoke(checkout, "diff", "16", "17")
    assert "-  layout" in different
    assert "+  loop" in different


def test_it_is_built_and_called(checkout: Path) -> None:
    refused = invoke(checkout, "build", "17", "--arch", "sm_86", code=2)
    assert "family rows, which has no code for this: expected sm_80 or sm_90, found sm_86" in refused
    rows = invoke(checkout, "ptxas", "17", "--configs", "a100", "--arch", "sm_90", "--json")
    assert {row["arch"] for row in json.loads(rows)} == {"sm_90"}
    invoke(checkout, "build", "17", "--arch", "sm_80")
    (wheel,) = (checkout / "build" / "iteration_17" / "sm_80").glob("flashladder_17-*.whl")
    site = checkout / "site"
    shutil.unpack_archive(wheel, site, "zip")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import torch, flashladder\n"
        "for length in (64, 63):\n"
        "    q = torch.zeros(1, length, 3, 128, dtype=torch.float16)\n"
        "    try: flashladder.forward(q, q, q, iteration=17)\n"
        "    except Exception as error: print(error)"
    )
    said = ran(checkout, "-c", program, str(site))
    assert "flashladder_17: q: expected a CUDA tensor" in said
    assert "flashladder_17: q: expected seq_len divisible by B_r = 4, found 63" in said


def test_it_is_right_on_the_emulator(checkout: Path) -> None:
    text = invoke(checkout, "check", "17", "--backend", "emulator", "--quick")
    assert "17 (BF16, 128, 4): warp_per_row" in text
    assert ", 0 failed" in text
    assert "numbers  right" in invoke(checkout, "emulate", "17", "--seq-len", "64", "--heads", "2")


def test_it_shares_no_configuration_and_no_claim_with_the_other_family(checkout: Path) -> None:
    program = (
        "from flashladder.ladder.iteration import claim_configs, load_iteration as load\n"
        "from flashladder.ladder.selection import select_configs as chosen\n"
        "both = [{type(one).__name__ for one in chosen(load(n), 'prog-all')} for n in (16, 17)]\n"
        "print(both, claim_configs(load(17))[1])"
    )
    assert ran(checkout, "-c", program).strip() == "[{'AmpereConfig'}, {'RowConfig'}] None"
    own = checkout / "iterations" / "17_rows.yaml"
    before = own.read_text(encoding="utf-8")
    own.write_text(before + "expect:\n  sass: {IADD3: {falls: 0.5}}\n", encoding="utf-8")
    try:
        said = invoke(checkout, "list", code=2)
    finally:
        own.write_text(before, encoding="utf-8")
    assert "iterations/17_rows.yaml:13: a claim against a parent that does not exist" in said


def test_it_is_not_run_where_it_cannot(checkout: Path) -> None:
    program = (
        "from flashladder.ladder.iteration import runnable\n"
        "print(runnable([16, 17], 'sm_90'), runnable([16, 17], 'sm_100a'))"
    )
    assert ran(checkout, "-c", program).splitlines() == [
        "iteration 17: not run here: needs compute capability 10.0 or later", "[16] [16, 17]",
    ]  # fmt: skip


def test_it_is_locked_and_reported(checkout: Path) -> None:
    invoke(checkout, "lock", "17", "--reason", "new")
    locks = {path.stem: json.loads(path.read_text()) for path in (checkout / "results" / "locks").glob("*.json")}
    assert [arch for arch in sorted(locks) if "17" in locks[arch]["iterations"]] == ["sm_80", "sm_90"]
    assert set(locks["sm_80"]["iterations"]["17"]["kernels"]) == {
        f"({dtype}, 128, {rows}): warp_per_row" for dtype in ("FP16", "BF16") for rows in (4, 8)
    }
    ran(checkout, "-m", "flashladder.lock", "verify", "--iterations", "17")
    ran(checkout, "-m", "flashladder.lock.step_counts", "--write")
    assert "holds  iteration 8" in ran(checkout, "-m", "flashladder.lock.code_claims", "8", "17")
    invoke(checkout, "report")
    row = next(
        line for line in (checkout / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("| 17 ")
    )
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1] == "A warp per row"
    assert set(cells[2:-2]) == {"–", "not run here"}
    assert "Iteration 17: not run here: needs compute capability 10.0 or later." in (checkout / "README.md").read_text()
    assert cells[-1] == "0"


def test_a_broken_family_is_one_line(checkout: Path) -> None:
    unloadable = "the family cannot be loaded: expected a module with FAMILY"
    for text, expected in (
        ("FAMILY = 7", "not a family of kernels: expected FAMILY = an instance of Family, found 7"),
        ("", unloadable),
        ("raise SystemExit(0)", unloadable),
        ("def", unloadable),
    ):
        broken = checkout / "flashladder" / "ladder" / "families" / "broken.py"
        broken.write_text(text, encoding="utf-8")
        try:
            said = invoke(checkout, "list", code=2)
        finally:
            broken.unlink()
        assert said.startswith(f"error: flashladder/ladder/families/broken: {expected}")
        assert len(said.splitlines()) == 1


def test_a_file_of_no_family_is_one_line(checkout: Path) -> None:
    other = checkout / "iterations" / "18_other.yaml"
    other.write_text((FILES / "17_rows.yaml").read_text().replace("17", "18").replace("family: rows", "family: row"))
    try:
        said = invoke(checkout, "list", code=2)
    finally:
        other.unlink()
    assert said == (
        "error: iterations/18_other.yaml:3: no such family of kernels: expected ampere or rows, found 'row'; "
        "did you mean 'rows'?\n"
    )
