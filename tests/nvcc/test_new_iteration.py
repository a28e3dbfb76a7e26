"""A seventeenth iteration from two new files, a YAML and a part: every command knows it without another edit.

Why: a ladder that grows by editing the pipeline does not grow. All in a copy of the checkout, which shares the store.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
import shutil
import subprocess
import sys

import pytest

from flashladder.paths import ROOT
from tests.nvcc import checkouts
from tests.nvcc.checkouts import copied

pytestmark = pytest.mark.nvcc

YAML = """\
iteration: 17
title: An epilogue of its own
parent: 16
why: >
  The part is a copy of the one before under another name. The compiler must not see a difference, so that whatever
  the pipeline shows of this step, it shows of two new files.
change:
  epilogue: encoded_twin
expect:
  sass: {total: unchanged}
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with the new iteration."""
    root = copied(tmp_path_factory.mktemp("checkout"))
    part = (root / "kernels" / "ampere" / "epilogue" / "encoded.cuh").read_text(encoding="utf-8")
    twin = part.replace("`encoded` (iteration 11)", "`encoded_twin` (iteration 17)").replace("Encoded", "EncodedTwin")
    assert twin.count("EncodedTwin") >= 1
    (root / "kernels" / "ampere" / "epilogue" / "encoded_twin.cuh").write_text(twin, encoding="utf-8")
    (root / "iterations" / "17_twin.yaml").write_text(YAML, encoding="utf-8")
    return root


def ran(checkout: Path, *words: str, code: int = 0) -> str:
    """What a command of the copy prints."""
    return checkouts.ran(checkout, ROOT, "-m", *words, code=code).stdout


def invoke(checkout: Path, *words: str, code: int = 0) -> str:
    return ran(checkout, "invoke", *words, code=code)


def test_it_is_listed_shown_and_compared(checkout: Path) -> None:
    assert "build-iteration-17 -> An epilogue of its own" in ran(checkout, "nox", "-l")
    assert "17  An epilogue of its own" in invoke(checkout, "list")
    assert "struct EncodedTwin" in invoke(checkout, "show", "17")
    different = invoke(checkout, "diff", "16", "17")
    assert "+struct EncodedTwin {" in different
    assert "no opcode class changes its count" in different


def test_it_is_built_and_called(checkout: Path) -> None:
    invoke(checkout, "build", "17", "--arch", "sm_80")
    folder = checkout / "build" / "iteration_17" / "sm_80"
    (wheel,) = folder.glob("flashladder_17-*.whl")
    site = checkout / "site"
    shutil.unpack_archive(wheel, site, "zip")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import torch, flashladder\n"
        "q = torch.zeros(1, 128, 16, 128, dtype=torch.float16)\n"
        "try: flashladder.forward(q, q, q, iteration=17)\n"
        "except Exception as error: print(error)"
    )
    environment = os.environ | {"FLASHLADDER_ROOT": str(checkout), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program, str(site)], env=environment, capture_output=True, text=True, check=True
    )
    assert "flashladder_17: q: expected a CUDA tensor" in done.stdout


def test_it_is_right_on_the_emulator(checkout: Path) -> None:
    text = invoke(checkout, "check", "17", "--backend", "emulator", "--dtype", "fp16", "--quick")
    assert "17 (FP16, 128, 128, 64, 4)" in text
    assert ", 0 failed" in text
    assert "numbers  right" in invoke(checkout, "emulate", "17", "--seq-len", "128")


def test_it_is_locked_and_reported(checkout: Path) -> None:
    before = json.loads((checkout / "results" / "locks" / "sm_80.json").read_text(encoding="utf-8"))
    assert "locked iteration 17: results/locks/sm_80.json" in invoke(checkout, "lock", "17", "--reason", "new")
    after = json.loads((checkout / "results" / "locks" / "sm_80.json").read_text(encoding="utf-8"))
    kernels, parent = after["iterations"]["17"]["kernels"], before["iterations"]["16"]["kernels"]
    assert {name: one["text_sha256"] for name, one in kernels.items()} == {
        name: one["text_sha256"] for name, one in parent.items()
    }
    invoke(checkout, "report")
    row = next(
        line for line in (checkout / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("| 17 ")
    )
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1] == "An epilogue of its own"
    assert set(cells[2:-2]) == {"–"}, "not measured, not published"
    assert cells[-2:] == ["255", "40"]  # of the H200's configuration, as iteration 16
