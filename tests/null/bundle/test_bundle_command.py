"""``invoke bundle``: its options, which grids a choice of kernels suffices for, and what it needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import subprocess
import sys

import pytest

from flashladder.bundle import make as bundle
from flashladder.bundle.make import Kernels, grids_that_run
from flashladder.errors import FlashladderError
from flashladder.ladder.iteration import load_iteration
from flashladder.ladder.selection import select_configs


def ladder(*numbers: int) -> Kernels:
    """The ladder's wheels of some iterations, and their PTX."""
    steps = [load_iteration(number) for number in numbers]
    found = frozenset((step.description, "", c.short_form()) for step in steps for c in select_configs(step, "prog"))
    return Kernels((), found, found, {})


@pytest.mark.parametrize(
    ("numbers", "arches", "grids"),
    [
        (
            range(1, 29),
            ["sm_90"],
            ["beyond", "cpu", "fewtiles", "h100", "h200", "hopper", "persistent", "smoke", "split"],
        ),
        (range(1, 29), ["sm_80", "sm_86"], ["a100", "beyond", "cpu", "rtx3090", "smoke"]),
        ([1, 7, 8, 14, 15, 16], ["sm_90"], ["smoke"]),
        ([16], ["sm_90"], []),
    ],
)
def test_grids_run_whose_kernels_all_come_along(numbers: list[int], arches: list[str], grids: list[str]) -> None:
    assert grids_that_run(ladder(*numbers), arches) == grids


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--iterations", "7,x"], "--iterations takes numbers, commas between: found 'x'"),
        (["--iterations", "99"], "99"),
        (["--arch", "sm_61"], "unknown GPU architecture"),
        (["--python", "3.9"], "no such Python is supported: expected 3.10"),
        (["--grid", "h20"], "unknown grid"),
        (["--platform", "win_amd64"], "no platform of Linux on x86-64"),
        (["--nosuch"], "unrecognized arguments"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], told: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "flashladder.bundle", *words], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
    assert told in ran.stderr


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("gone")], ids=["file", "link to nothing"])
def test_a_folder_that_is_none_is_refused_before_anything_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "README.md")
    monkeypatch.setattr(bundle, "collect", lambda *_: pytest.fail("the work began"))
    with pytest.raises(FlashladderError, match=r"README\.md: not a folder"):
        bundle.main(["--arch", "sm_80", "--out", str(tmp_path / "README.md")])


def test_a_choice_of_iterations_that_lacks_kernels_of_the_grids_is_told() -> None:
    assert bundle.lacking(grids_that_run(ladder(*range(1, 29)), ["sm_90"])) == ""
    told = bundle.lacking(grids_that_run(ladder(1, 16), ["sm_90"]))
    assert told == "warning: it lacks kernels of the grids cpu and smoke; to include them: --grid cpu,smoke"
