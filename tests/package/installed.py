"""The package as a user gets it: a wheel in an environment of its own, on each Python here, from an empty folder.

``nox -s package`` builds the wheels and runs ``python tests/package/installed.py dist/*.whl [3.10 3.13]``, which needs
the index. Exit code 1 if something differs from what is expected.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
import os
from pathlib import Path
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

from flashladder.bundle.make import own_wheels
from flashladder.paths import ROOT
from tests.data_files import text_of

PYTHONS = tuple(f"3.{minor}" for minor in range(10, 15))
PTX = (ROOT / "tests" / "data" / "add.ptx").read_text(encoding="ascii")
RESULT = ROOT / "results" / "h200" / "ablation.json.gz"
PROGRAM = text_of("package/installed", "program")
IMPORTS = text_of("package/installed", "imports")

CHECKOUT = "needs a checkout, and this package is installed without one"
EXPECTED = (
    ("--version", 0, "flashladder 0.1.0"),
    ("help", 0, "This machine"),
    ("list", 0, "Static GMEM stride"),
    ("show 8", 0, "Reducing IADD3, LOP3 and SHF instructions"),
    ("diff 7 8", 0, "xor_static"),
    ("doctor", 2, "emulator"),
    ("emulate own.ptx", 2, "`ptxemu own.ptx"),
    ("verify RESULT", 0, "1 file verified"),
    ("sweep --grid cpu --dry-run", 0, "64 cells"),
    ("sweep --grid h200 --dry-run", 0, "44 kernels to build"),
    *((line, 2, "pip install 'flashladder[build]'") for line in ("emulate 1", "build 7", "ptx 7", "sass 8")),
    ("check 7 --backend emulator", 2, "this needs torch"),
    ("check 7", 2, "no GPU here"),
    ("bench 7", 2, "timing needs a GPU; `invoke explain N"),
    *((line, 2, CHECKOUT) for line in ("gate", "report", "tour --yes", "bundle", "verify", "lock 7 --reason x")),
)
"""Command lines, their exit codes, and what their output holds (2: their one line on stderr)."""


def interpreters() -> dict[str, Path]:
    """Version to interpreter, of those on PATH or kept by pyenv that start."""
    found: dict[str, Path] = {}
    kept = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for version in PYTHONS:
        named = shutil.which(f"python{version}")
        for path in [*([Path(named)] if named else []), *sorted(kept.glob(f"{version}.*/bin/python3"))]:
            asked = subprocess.run([path, "-c", "print()"], capture_output=True, check=False)
            if asked.returncode == 0:
                found.setdefault(version, path)
    return found


def run(command: Sequence[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command with a bare environment."""
    variables = {"PATH": "/usr/bin:/bin", "HOME": str(folder / "no-home"), "COLUMNS": "80"}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


def problems_of(expected: tuple[str, int, str], program: Path, folder: Path) -> list[str]:
    """What is wrong with a command line."""
    line, code, holds = expected
    ran = run([program, *(str(RESULT) if word == "RESULT" else word for word in line.split())], folder)
    text = ran.stdout if code == 0 or line == "doctor" else ran.stderr
    found = []
    if ran.returncode != code:
        found.append(f"exit code {ran.returncode}, expected {code}: {ran.stderr[-300:]!r}")
    if holds not in text:
        found.append(f"no {holds!r} in {text[-300:]!r}")
    if code == 2 and line != "doctor" and ran.stderr.count("\n") != 1:
        found.append(f"not one line: {ran.stderr!r}")
    return [f"flashladder {line}: {problem}" for problem in found]


def try_out(python: Path, wheels: Sequence[Path], scratch: Path) -> list[str]:
    """What is wrong with the package on one Python."""
    venv, folder = scratch / "venv", scratch / "a folder, empty"
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "--quiet", "--no-python-downloads", "--python", python, venv], check=True)
    subprocess.run([*uv, "pip", "install", "--quiet", "--python", venv, *wheels], check=True)
    folder.mkdir()
    (folder / "own.ptx").write_text(PTX, encoding="utf-8")
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        lists = pool.map(lambda expected: problems_of(expected, venv / "bin" / "flashladder", folder), EXPECTED)
    found = [line for lines in lists for line in lines]
    words = ["own.ptx", "--block", "32", "--arg", "out=uint32:32:zeros", "--hazards"]
    ran = [
        *(run([venv / "bin" / "python", "-W", "error", "-c", text], folder) for text in (PROGRAM, IMPORTS)),
        run([venv / "bin" / "ptxemu", *words], folder),
    ]
    return [*found, *(one.stderr for one in ran if one.returncode)]


def differing(wheels: Sequence[Path], scratch: Path) -> list[str]:
    """Files that differ between the wheels from the sdists and those of a bundle."""
    mine, theirs = dict[str, bytes](), dict[str, bytes]()
    for files, paths in ((mine, wheels), (theirs, own_wheels(scratch))):
        for path in paths:
            with zipfile.ZipFile(path) as wheel:
                files.update((name, wheel.read(name)) for name in wheel.namelist())
    return [f"{name}: not as in a bundle" for name in sorted(mine | theirs) if mine.get(name) != theirs.get(name)]


def main(argv: Sequence[str]) -> int:
    """Tries the wheels on every Python; a line for each."""
    wheels = [Path(word).resolve() for word in argv if word.endswith(".whl")]
    wanted = [word for word in argv if not word.endswith(".whl")] or PYTHONS
    here = {version: python for version, python in interpreters().items() if version in wanted}
    failed = not here
    with tempfile.TemporaryDirectory() as scratch:
        for line in differing(wheels, Path(scratch)):
            print(line)
            failed = True
        for version, python in here.items():
            start = time.monotonic()
            place = Path(scratch) / version
            place.mkdir()
            found = try_out(python, wheels, place)
            size = sum(path.stat().st_size for path in (place / "venv").rglob("*") if path.is_file()) / 1e6
            verdict = f"{len(EXPECTED) + 1} commands as expected" if not found else f"{len(found)} problems"
            seconds = time.monotonic() - start
            print(f"Python {version}: {verdict}, {seconds:.0f} s, environment of {size:.0f} MB", flush=True)
            print("".join(f"  {line}\n" for line in found), end="")
            failed |= bool(found)
    missing = ", ".join(version for version in wanted if version not in here)
    print(f"not on this machine: {missing}" if missing else "on all that were asked for")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
