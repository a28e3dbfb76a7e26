"""Commands at the same time on one checkout, with a real compiler and real sweeps: each ends as it does alone.

It takes minutes, so it is no part of the suite: ``nox -s tests -- -n0 tests/environments/side_by_side.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import hashlib
import os
from pathlib import Path
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from flashladder.paths import ROOT

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkout of what is committed, at a path with a blank; what was compiled here is linked in."""
    folder = tmp_path_factory.mktemp("side by side") / "checkout é"
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout.split(b"\0")
    for name in filter(None, map(os.fsdecode, files)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            shutil.copy2(ROOT / name, folder / name)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def start(checkout: Path, *words: str, module: str = "flashladder", **more: bool) -> subprocess.Popen[str]:
    """`python -m flashladder WORDS` there."""
    environment = {**ENVIRONMENT, "FLASHLADDER_ROOT": str(checkout)}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": checkout, **more}
    return subprocess.Popen([sys.executable, "-m", module, *words], env=environment, text=True, **pipes)


def both(checkout: Path, words: Sequence[str], module: str = "flashladder") -> list[tuple[int, str]]:
    """Exit code and stderr of two at once."""
    running = [start(checkout, *words, module=module) for _ in range(2)]
    ended = [one.communicate(timeout=900) for one in running]
    return [(one.returncode, err) for one, (_, err) in zip(running, ended, strict=True)]


def state(folder: Path) -> dict[str, str]:
    """Digest of every file, but for locks and caches."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".lock") and "__pycache__" not in path.parts
    }


def temporary(folder: Path) -> list[Path]:
    """What a command began to write and left."""
    return [path for path in folder.rglob(".*.*") if path.is_file() and not path.name.startswith((".git", ".lock"))]


def test_two_builds_at_once(checkout: Path) -> None:
    words = ["7", "--arch", "sm_80", "--configs", "a100", "--no-install"]
    ended = both(checkout, words, "flashladder.build")
    assert sorted(code for code, _ in ended) in ([0, 0], [0, 2]), ended
    for code, err in ended:  # the second build does not wait; it also succeeds if it starts after the first has ended
        assert code == 0 or ("another build of iteration 7 is running" in err and err.count("\n") == 1)
    first = state(checkout / "build" / "iteration_07")
    assert any(name.endswith(".whl") for name in first)
    with start(checkout, *words, module="flashladder.build") as again:
        assert again.wait(900) == 0
    assert state(checkout / "build" / "iteration_07") == first
    assert list((checkout / "build").rglob("tmp-*")) == []


def test_two_reports_at_once(checkout: Path) -> None:
    assert both(checkout, ["report"]) == [(0, ""), (0, "")]
    assert temporary(checkout / "results") == []
    alone = start(checkout, "report", "--check")
    assert alone.communicate(timeout=900)[1] == ""
    assert alone.returncode == 0


def test_two_sweeps_into_one_folder(checkout: Path, tmp_path: Path) -> None:
    out = tmp_path / "records"
    ended = both(checkout, ["sweep", "--grid", "smoke", "--out", str(out)])
    codes = sorted(code for code, _ in ended)
    assert codes[0] == 0, ended
    if codes[1]:
        (refused,) = (err for code, err in ended if code)
        assert "another sweep measures into this folder" in refused
        assert refused.count("\n") == 1
    assert temporary(out) == []


def test_an_interrupt_leaves_nothing_half_written(checkout: Path, tmp_path: Path) -> None:
    before = state(checkout / "results")
    running = start(checkout, "report", start_new_session=True)
    time.sleep(4)
    os.killpg(running.pid, signal.SIGINT)
    _, err = running.communicate(timeout=60)
    if running.returncode:  # else it was quicker
        assert (running.returncode, err) == (130, "interrupted\n")
    assert temporary(checkout / "results") == []
    assert state(checkout / "results").keys() == before.keys()
