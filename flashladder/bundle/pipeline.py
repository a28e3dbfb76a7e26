"""The pipeline and the emulator as wheels: built from a copy of the checkout, the same bytes for the same files.

Why a copy: setuptools leaves folders of its own beside what it builds, and takes up what an earlier build left there.
Also used by ``nox -s package``; on its own it writes the wheels into the working folder:

    python -m flashladder.bundle.pipeline
"""

from __future__ import annotations

from collections.abc import Sequence
import os
from pathlib import Path
import shutil
import subprocess
import sys
import tempfile

from flashladder.build.wheel import EPOCH_SECONDS
from flashladder.errors import FlashladderError, one_line_errors, require_checkout
from flashladder.files import make_folder, relative
from flashladder.paths import ROOT

# What the wheels are made of: the packages, what setup.py carries along, and what the metadata names.
SOURCES = (
    "flashladder", "configs", "iterations", "kernels", "requirements", "results/locks", "results/published",
    "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py", "tasks.py",
    "emulator/LICENSE", "emulator/README.md", "emulator/pyproject.toml", "emulator/src",
)  # fmt: skip
UMASK_OF_FILES, UMASK_OF_FOLDERS = 0o644, 0o755
_NO_FILES = shutil.ignore_patterns("__pycache__", ".*", "*.egg-info", "*.so")


def own_wheels(out: Path) -> list[Path]:
    """Builds the wheels of this checkout's packages, flashladder and ptxemu, into the folder `out`.

    Raises:
        FlashladderError: this is no checkout, or the build failed.
    """
    require_checkout("the pipeline's wheel")
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "checkout"
        for name in SOURCES:
            source, target = ROOT / name, copy / name
            make_folder(target.parent)
            if source.is_dir():
                shutil.copytree(source, target, ignore=_NO_FILES, copy_function=shutil.copyfile)
            else:
                shutil.copyfile(source, target)
        for path in copy.rglob("*"):
            path.chmod(UMASK_OF_FOLDERS if path.is_dir() else UMASK_OF_FILES)
        made = Path(scratch) / "made"
        for package in (copy, copy / "emulator"):
            _build(["--wheel", "--out-dir", str(made)], package)
        make_folder(out)
        return [Path(shutil.copyfile(wheel, out / wheel.name)) for wheel in sorted(made.glob("*.whl"))]


def _build(options: Sequence[str], folder: Path) -> None:
    """Runs the build front end; its backend is this environment's, so that nothing is fetched."""
    command = [sys.executable, "-m", "uv", "build", "--no-build-isolation", "--python", sys.executable, *options]
    variables = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH_SECONDS}
    done = subprocess.run(
        [*command, str(folder)], capture_output=True, text=True, check=False, env=variables, cwd=folder
    )
    if done.returncode:
        told = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise FlashladderError(
            "the pipeline's wheel could not be built",
            where=relative(ROOT / "pyproject.toml"),
            found=told[-1] if told else "no message",
            hint="run: nox -s dev, whose environment has uv and setuptools",
        )


if __name__ == "__main__":
    with one_line_errors():
        print("\n".join(map(relative, own_wheels(Path.cwd()))))
