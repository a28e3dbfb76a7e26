"""Executes documentation pages: writes their files, runs their commands and compares the output.

A block below "`PATH`:" is that file. In a ``console`` block, a line that begins with ``$`` is a command, run without a
shell. The output must contain the lines below it in this order, each as a line or a part of one. ``...`` stands for any
text, and ``[exit code N]`` for an exit code other than 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
import os
from pathlib import Path
import re
import shlex
import shutil
import subprocess
import sys

from flashladder.paths import BUILD, ROOT

BLOCK = re.compile(r"(?:^`([^`\n]+)`:\n\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXIT = re.compile(r"\[exit code (\d+)\]")
MODULES = ("invoke", "nox", "flashladder")  # programs that this Python has


@dataclass(frozen=True)
class File:
    """A file that a page shows."""

    path: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command that a page shows, and the output that the page promises."""

    line: str
    expected: tuple[str, ...]
    code: int = 0

    @property
    def words(self) -> list[str]:
        """The words of the command line, for this interpreter."""
        first, *rest = shlex.split(self.line)
        if first in MODULES:
            return [sys.executable, "-m", first, *rest]
        return [sys.executable if first == "python" else first, *rest]

    def require(self, printed: str) -> None:
        """Fails if a line of the page is not in the output, or not after the previous line."""
        at = 0
        for line in self.expected:
            found = printed.find(line, at)
            assert found >= 0, f"$ {self.line}\nthe page says {line!r}; printed:\n{printed[-3000:]}"
            at = found + len(line)


def steps(page: Path) -> Iterator[File | Command]:
    """The files and commands of a page, in order."""
    for path, kind, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if path:
            yield File(path, text)
        elif kind == "console":
            yield from _commands(text)


def _commands(text: str) -> Iterator[Command]:
    for block in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        line, *below = block.splitlines()
        ends = [int(found[1]) for one in below if (found := EXIT.fullmatch(one.strip()))]
        said = [one.strip() for one in below if one.strip() not in ("", "...") and not EXIT.fullmatch(one.strip())]
        yield Command(line, tuple(said), *ends)


def run(step: File | Command, root: Path, environment: Mapping[str, str]) -> str:
    """Writes a file below `root`, or runs a command there, compares and returns its output."""
    if isinstance(step, File):
        (root / step.path).parent.mkdir(parents=True, exist_ok=True)
        (root / step.path).write_text(step.text, encoding="utf-8")
        return ""
    done = subprocess.run(
        step.words, cwd=root, env=os.environ | dict(environment), capture_output=True, text=True, check=False
    )
    printed = done.stdout + done.stderr
    assert done.returncode == step.code, f"$ {step.line}: {done.returncode}\n{printed[-3000:]}"
    step.require(printed)
    return printed


FOLDERS = ("iterations", "kernels", "configs", "results", "docs", "analysis")
FILES = ("noxfile.py", "tasks.py", "README.md", "CHANGELOG.md", "pyproject.toml")
LEFT_OUT = ("__pycache__", "ablation*.json.gz", "toolchain.json.gz", "tune.json.gz")  # sweeps are slow to draw


def copied(root: Path, *more: str) -> Path:
    """Fills `root` with `FOLDERS`, `more` folders and `FILES`."""
    for name in (*FOLDERS, *more):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns(*LEFT_OUT))
    for name in FILES:
        shutil.copy(ROOT / name, root / name)
    (root / "build").mkdir()
    for name in ("store", "counts"):
        (BUILD / name).mkdir(parents=True, exist_ok=True)
        (root / "build" / name).symlink_to(BUILD / name)
    return root


def environment(checkout: Path, package: Path) -> dict[str, str]:
    """The variables that make Python in a copy use the package in the folder `package`."""
    return {"FLASHLADDER_ROOT": str(checkout), "PYTHONPATH": str(package), "COLUMNS": "80", "OMP_NUM_THREADS": "1"}


def ran(checkout: Path, package: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs Python in a copy with the package in the folder `package`; it must end with `code`."""
    own = environment(checkout, package)
    done = subprocess.run(
        [sys.executable, *words], cwd=checkout, env=os.environ | own, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-2000:]
    return done
