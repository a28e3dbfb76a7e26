"""The first code that runs on a node: it checks a bundle, unpacks it beside itself and starts the command inside.

It is ``__main__.py`` of every bundle, which is a zip that Python runs, and needs the standard library alone. It unpacks
nothing before all files have the digests of the manifest. It writes one folder, under a temporary name until that is
complete, and does not touch the environment of this Python.

    python3 flashladder-0.1.0-sm_90-cp312.pyz                                 # the grid of the GPU here, else `cpu`
    python3 flashladder-0.1.0-sm_90-cp312.pyz sweep --grid smoke --out results
    python3 flashladder-0.1.0-sm_90-cp312.pyz --into /scratch/me check 7      # any command; the folder to unpack into

Exit codes: those of the command, or 2 and one line if the bundle cannot be run.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from pathlib import Path
import platform
import shutil
import sys
import tempfile
from typing import Any
import zipfile
import zlib

MANIFEST = "MANIFEST.json"
RUNNER = "__main__.py"
SCHEMA = 1
OLDEST = (3, 10)
WHEELS, BUILD = "wheels", "build"  # folders of a bundle
PACKAGES, START = "packages", "start.py"  # of an unpacked one
# Not `python -m`, which looks for modules in the working folder first: this may be a checkout.
START_TEXT = """\
import os
import sys

if __name__ == "__main__":
    sys.path[:] = [place for place in sys.path if place != os.path.dirname(os.path.abspath(__file__))]
    from flashladder.bundle.make import main

    raise SystemExit(main())
"""
# What zipfile raises for an archive that is damaged, encrypted or compressed in an unknown way.
BROKEN = (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError, zlib.error)


class Refused(Exception):
    """The reason why a bundle is not run, as one line."""


def checked(archive: zipfile.ZipFile) -> dict[str, Any]:
    """The manifest of a complete bundle; `Refused` if a file is missing, was changed, or is not in the manifest."""
    try:
        manifest: dict[str, Any] = dict(json.loads(archive.read(MANIFEST)))
        files = dict(manifest["files"])
        if manifest["schema"] != SCHEMA or not isinstance(manifest["install"], dict):
            raise Refused(f"{MANIFEST} is not one of a bundle of schema {SCHEMA}")
    except (ValueError, TypeError, RecursionError, KeyError) as error:
        raise Refused(f"{MANIFEST} is damaged or missing ({type(error).__name__})") from None
    for name in sorted({*archive.namelist()} ^ {*files, MANIFEST}):
        raise Refused(f"{name!r} is missing" if name in files else f"{name!r} is not a file of this bundle")
    for name, digest in files.items():
        found = hashlib.sha256(archive.read(name)).hexdigest()
        if found != digest:
            raise Refused(f"{name} was changed: expected sha256 {str(digest)[:12]}, found {found[:12]}")
    return manifest


def unpack_wheel(data: bytes, site: Path) -> None:
    """Unpacks a wheel's packages and metadata into the folder `site`; scripts and headers are left out."""
    with zipfile.ZipFile(io.BytesIO(data)) as wheel:
        for name in wheel.namelist():
            wheel.extract(name, site)  # which keeps every name inside of it, and makes no links
    for folder in site.glob("*.data"):
        for part in (*folder.glob("purelib"), *folder.glob("platlib")):
            shutil.copytree(part, site, dirs_exist_ok=True)
        shutil.rmtree(folder)


def unpacked(archive: Path, into: Path, version: tuple[int, int], machine: str) -> Path:
    """Unpacks a bundle below `into`, unless done. `Refused`: damaged, or for another machine. `OSError`: no access."""
    with zipfile.ZipFile(archive) as opened:
        manifest = checked(opened)
        digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
        wanted = ".".join(map(str, version))
        if machine != manifest["machine"]:
            raise Refused(f"the bundle is for another machine: expected {manifest['machine']}, found {machine}")
        if wanted not in manifest["install"]:
            known = ", ".join(sorted(manifest["install"])) or "none"
            make = f"make one where there is a network: invoke bundle --python {wanted}"
            raise Refused(f"the bundle is for another Python: expected {known}, found {wanted}; {make}")
        target = into / f"{digest[:12]}-cp{version[0]}{version[1]}"
        if target.is_dir():
            return target
        print(f"unpacking {manifest['name']} into {target}", file=sys.stderr)
        into.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=into, prefix=".unpacking-"))
        try:
            for name in manifest["install"][wanted]:
                unpack_wheel(opened.read(name), scratch / PACKAGES)
            for name in (one for one in manifest["files"] if one.startswith(f"{BUILD}/")):
                opened.extract(name, scratch)
            (scratch / START).write_text(START_TEXT, encoding="utf-8")
            scratch.chmod(0o755)
            scratch.replace(target)
        except OSError:
            if not target.is_dir():  # else another process was faster
                raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target


def prepare(words: list[str], archive: Path) -> tuple[list[str], dict[str, str]]:
    """Unpacks the bundle; the command to run for these words, and its environment. Raises `Refused`."""
    into = archive.absolute().with_suffix("")
    if words[:1] == ["--into"]:
        if len(words) < 2 or not words[1].strip():
            raise Refused("--into needs a folder")
        into, words = Path(words[1]).absolute(), words[2:]
    if archive.is_dir():
        raise Refused(f"{archive} is an unpacked bundle: expected the one file, run as it came")
    try:
        folder = unpacked(archive, into, sys.version_info[:2], platform.machine())
    except BROKEN as error:
        raise Refused(f"{archive}: not a whole archive ({error})") from None
    except OSError as error:
        where = error.filename or into
        raise Refused(
            f"{where}: the bundle cannot be unpacked ({error.strerror or error}); free space, or name a folder that "
            "can be written: --into FOLDER"
        ) from None
    kept = {name: value for name, value in os.environ.items() if name != "FLASHLADDER_ROOT"}
    path = os.pathsep.join(filter(None, [str(folder / PACKAGES), kept.get("PYTHONPATH")]))  # the bundle's before others
    variables = {**kept, "PYTHONPATH": path, "FLASHLADDER_BUILD": str(folder / BUILD)}
    return [sys.executable, str(folder / START), *words], variables


def main() -> int:
    """Runs the bundle that this file is in."""
    if sys.version_info[:2] < OLDEST:
        print(f"error: expected Python 3.10 or newer, found {platform.python_version()}", file=sys.stderr)
        return 2
    try:
        command, variables = prepare(sys.argv[1:], Path(__file__).parent)
    except Refused as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return os.execve(command[0], command, variables)  # noqa: S606 - so it gets the signals and leaves the exit code


if __name__ == "__main__":
    raise SystemExit(main())
