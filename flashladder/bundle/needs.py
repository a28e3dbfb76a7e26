"""The Python packages that a bundle carries, as wheels of the target's Python and platform, hash-locked.

Why pip and not uv: pip can fetch the wheels of another Python and platform as files. It reads markers for the Python
that runs it, so that they are read here, for the target, and pip is given exact lines with their hashes. What was
fetched once is kept under ``build/bundle/``.
"""

from __future__ import annotations

from collections.abc import Sequence
import importlib.util
from pathlib import Path
import re
import subprocess
import sys
import tempfile

from flashladder.errors import FlashladderError
from flashladder.files import files_in, make_folder, read_text, relative, sha256
from flashladder.paths import BUILD, ROOT

LOCK = ROOT / "requirements" / "node.txt"
KEPT = BUILD / "bundle"
MACHINE = "x86_64"
# pip takes a platform literally: a node of glibc 2.28 runs the wheels of all of these.
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux_2_17", "manylinux2014", "manylinux_2_12")
OLDER_PLATFORMS = ("manylinux2010", "manylinux_2_5", "manylinux1")
_LINUX = re.compile(rf"(manylinux(_[0-9]+_[0-9]+|1|2010|2014)|linux)_{MACHINE}")
_ENTRY = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+?)(?: ; (?P<marker>[^\\]+?))?(?= \\| *$)")


def platforms(given: Sequence[str] = ()) -> tuple[str, ...]:
    """The platform tags whose wheels a node takes: those given, else of glibc 2.28 and older on x86-64.

    Raises:
        FlashladderError: a tag is none of Linux on x86-64, for which the iterations' wheels are.
    """
    if wrong := [tag for tag in given if not _LINUX.fullmatch(tag)]:
        expected = f"manylinux_X_Y_{MACHINE} or linux_{MACHINE}"
        raise FlashladderError("no platform of Linux on x86-64", where="--platform", expected=expected, found=wrong[0])
    return tuple(given) or tuple(f"{name}_{MACHINE}" for name in (*PLATFORMS, *OLDER_PLATFORMS))


def pinned(lock: str, python: str) -> list[str]:
    """The entries of a lock's text, with their hashes, that a Python (``3.12``) on Linux installs; without markers.

    Raises:
        FlashladderError: an entry is none that `nox -s relock` writes.
    """
    from packaging.markers import Marker

    target = {
        "python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux",
        "platform_machine": MACHINE, "platform_system": "Linux", "os_name": "posix",
        "implementation_name": "cpython", "platform_python_implementation": "CPython",
    }  # fmt: skip
    found = []
    for entry in re.split(r"\n(?=\S)", lock):
        lines = [line for line in entry.splitlines() if not line.startswith("#")]
        if not lines:
            continue
        match = _ENTRY.match(lines[0])
        if match is None:
            raise FlashladderError("cannot read the lock", where=relative(LOCK), found=repr(lines[0]))
        if not match["marker"] or Marker(match["marker"].strip()).evaluate(target):
            hashes = " ".join(line.strip(" \\") for line in lines[1:])
            found.append(f"{match['name']}=={match['version']} {hashes}")
    return found


def wheels(python: str, tags: Sequence[str], kept: Path = KEPT) -> list[Path]:
    """The wheels that a node of a Python (``3.12``) needs beside torch, fetched unless they are kept.

    Raises:
        FlashladderError: pip is missing, or one of them cannot be had.
    """
    lines = pinned(read_text(LOCK), python)
    folder = kept / f"wheels-{sha256(repr((lines, python, tags)))[:12]}"
    if not folder.is_dir():
        _fetch(lines, python, tags, folder)
    return files_in(folder, "*.whl")


def _fetch(lines: Sequence[str], python: str, tags: Sequence[str], folder: Path) -> None:
    """Fetches exactly `lines` into a new folder, whole or not at all."""
    if importlib.util.find_spec("pip") is None:
        raise FlashladderError("pip, which fetches wheels of another Python, is not here", hint="run: nox -s dev")
    make_folder(folder.parent)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".wheels-") as scratch:
        wanted, made = Path(scratch) / "requirements.txt", Path(scratch) / "wheels"
        wanted.write_text("\n".join(lines) + "\n", encoding="utf-8")
        options = [f"--platform={tag}" for tag in tags]
        options += [f"--python-version={python}", "--implementation=cp", "--only-binary=:all:", "--no-deps"]
        options += ["--require-hashes", "--quiet", "--disable-pip-version-check", f"--dest={made}", "-r", str(wanted)]
        command = [sys.executable, "-m", "pip", "download", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            told = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            raise FlashladderError(
                f"the Python packages of a bundle for Python {python} cannot be fetched",
                where=relative(LOCK),
                found=told[-1].removeprefix("ERROR: ") if told else "no message",
                hint="a network, or wheels that PIP_FIND_LINKS names, are needed once; --platform names others",
            )
        made.replace(folder)
