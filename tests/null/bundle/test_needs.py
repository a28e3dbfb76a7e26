"""What a bundle takes from the lock for another Python, and what pip is asked."""

from __future__ import annotations

from pathlib import Path
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from flashladder.bundle import make as bundle
from flashladder.errors import FlashladderError

LOCK = """\
# Generated
colorama==0.4.6 ; sys_platform == 'win32' \\
    --hash=sha256:aa
numpy==2.2.6 ; python_full_version < '3.11' \\
    --hash=sha256:bb \\
    --hash=sha256:cc
numpy==2.4.6 ; python_full_version == '3.11.*' \\
    --hash=sha256:dd
numpy==2.5.5 ; python_full_version >= '3.12' \\
    --hash=sha256:ee
tqdm==4.70.1 \\
    --hash=sha256:ff
"""


@pytest.mark.parametrize(
    ("python", "numpy"),
    [
        ("3.10", "numpy==2.2.6 --hash=sha256:bb --hash=sha256:cc"),
        ("3.11", "numpy==2.4.6 --hash=sha256:dd"),
        ("3.13", "numpy==2.5.5 --hash=sha256:ee"),
    ],
)
def test_markers_are_read_for_the_target_not_for_this_python(python: str, numpy: str) -> None:
    assert bundle.pinned(LOCK, python) == [numpy, "tqdm==4.70.1 --hash=sha256:ff"]


def test_the_lock_holds_all_that_a_node_needs_each_with_hashes() -> None:
    for python in ("3.10", "3.12", "3.14"):
        lines = bundle.pinned(bundle.LOCK.read_text(encoding="utf-8"), python)
        assert {line.partition("==")[0] for line in lines} >= {"invoke", "numpy", "pydantic", "pyelftools", "pyyaml"}
        assert all("--hash=sha256:" in line for line in lines)


def pip(monkeypatch: pytest.MonkeyPatch, code: int, stderr: str = "") -> list[list[str]]:
    """pip that leaves a wheel, or with `code`; what it was asked."""
    asked: list[list[str]] = []

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        asked.append(command)
        (dest,) = (word.partition("=")[2] for word in command if word.startswith("--dest="))
        Path(dest).mkdir()
        (Path(dest) / "numpy.whl").touch()
        asked.append(Path(command[-1]).read_text(encoding="utf-8").splitlines())
        return SimpleNamespace(returncode=code, stderr=stderr)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    return asked


def test_pip_is_asked_for_binaries_by_hash_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pip(monkeypatch, 0)
    for _ in range(2):
        found = bundle.packages("3.12", ["manylinux_2_28_x86_64", "linux_x86_64"], tmp_path)
        assert [path.name for path in found] == ["numpy.whl"]
    command, lines = asked
    assert {"--require-hashes", "--only-binary=:all:", "--python-version=3.12", "--no-deps"} <= set(command)
    assert {"--platform=manylinux_2_28_x86_64", "--platform=linux_x86_64"} <= set(command)
    assert all(" --hash=sha256:" in line and ";" not in line for line in lines)
    bundle.packages("3.13", ["manylinux_2_28_x86_64"], tmp_path)
    assert len(asked) == 4


def test_no_network_is_one_line_and_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip(monkeypatch, 1, "WARNING: x\nERROR: No matching distribution found for numpy==2.5.5\n")
    with pytest.raises(FlashladderError, match=r"cannot be fetched: found No matching distribution .* PIP_FIND_LINKS"):
        bundle.packages("3.12", ["x"], tmp_path)
    assert not list(tmp_path.iterdir())


def test_without_pip_the_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(FlashladderError, match="pip, which fetches wheels of another Python, is not here"):
        bundle.packages("3.12", ["x"], tmp_path)


def test_platforms() -> None:
    assert bundle.platforms(["manylinux_2_34_x86_64", "linux_x86_64"]) == ("manylinux_2_34_x86_64", "linux_x86_64")
    for tag in ("win_amd64", "macosx_11_0_arm64", "manylinux_2_28_aarch64", "musllinux_1_2_x86_64"):
        with pytest.raises(FlashladderError, match=f"no platform of Linux on x86-64: expected .*, found {tag}"):
            bundle.platforms([tag])
    assert bundle.platforms()[0] == "manylinux_2_28_x86_64"
