"""The checkout on every Python that is here: compiled with warnings as errors, every module imported, files read."""

from __future__ import annotations

from collections.abc import Sequence
import os
from pathlib import Path
import subprocess
import sys
import time

from flashladder.paths import ROOT
from tests.interpreters import PTX, PYTHONS, interpreters

HOME = ROOT / ".nox" / "pythons"
REQUIREMENTS = ("build", "analysis")
SOURCES = ("flashladder", "analysis", "tests", "noxfile.py", "tasks.py")
IMPORT_ALL = """\
import importlib, pkgutil, sys
import flashladder
from flashladder.errors import PACKAGES
absent = {*PACKAGES, "torch", "submitit", "pytest", "cyclonedx", "packageurl"}
left = []
for found in pkgutil.walk_packages(flashladder.__path__, "flashladder."):
    if found.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(found.name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in absent:
            raise
        left.append(found.name)
print(len([name for name in sys.modules if name.startswith("flashladder.")]), "modules; not without torch:", *left)
"""
DATA = ROOT / "tests" / "data"
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("-m", "flashladder", "list"),
    ("-m", "flashladder", "show", "8"),
    ("-m", "flashladder", "verify", "results/h100"),
    ("-m", "flashladder", "ptx", str(DATA / "tiny.ptx"), "--counts"),
    ("-m", "flashladder", "sass", str(DATA / "tiny.sm_80.cubin"), "--list"),
    ("-m", "ptxemu", str(HOME / "own.ptx"), "--block", "32", "--arg", "out=int32:32:zeros"),
)


def environment(version: str, python: Path) -> Path:
    """The interpreter of an environment with what the package needs, but torch."""
    venv = HOME / version
    if not (venv / "bin" / "python").exists():
        subprocess.run(["uv", "venv", "--quiet", "--python", str(python), str(venv)], check=True)
    files = [word for name in REQUIREMENTS for word in ("-r", f"requirements/{name}.txt")]
    subprocess.run(["uv", "pip", "install", "--quiet", "--python", str(venv), *files], check=True, cwd=ROOT)
    return venv / "bin" / "python"


def ask(python: Path, words: Sequence[str]) -> str:
    """What a command prints; its last line where it fails."""
    paths = f"{ROOT}{os.pathsep}{ROOT / 'emulator' / 'src'}"
    env = {**os.environ, "PYTHONPATH": paths, "PYTHONPYCACHEPREFIX": str(python.parent.parent / "pycache")}
    done = subprocess.run([str(python), *words], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{python}: {' '.join(words)[:60]}: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    return done.stdout.strip()


def main() -> int:
    """One line per Python; leaves with 1 at the first that differs."""
    lists = set[str]()
    HOME.mkdir(parents=True, exist_ok=True)
    (HOME / "own.ptx").write_text(PTX, encoding="ascii")
    here = interpreters()
    for version in PYTHONS:
        start = time.monotonic()
        if version not in here:
            print(f"{version}: not here")
            continue
        python = environment(version, here[version])
        ask(python, ("-W", "error", "-m", "compileall", "-q", "-f", *SOURCES))
        modules = ask(python, ("-W", "error", "-c", IMPORT_ALL))
        answers = [ask(python, words) for words in COMMANDS]
        lists.add(answers[0])
        print(f"{version}: compiled, {modules}; {len(COMMANDS)} commands; {time.monotonic() - start:.0f} s", flush=True)
    if len(lists) != 1:
        print("the ladder is listed differently")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
