"""What runs first on a node: checks a bundle against its manifest, unpacks it beside itself, starts what is inside.

Why a file of its own: it is ``__main__.py`` of every bundle, which is a zip that Python runs, and needs the standard
library alone. Nothing of a bundle is used before all of it has the digests of the manifest, and nothing is written but
one folder, under a temporary name until it is whole; the environment of this Python is not touched.

    python3 flashladder-0.1.0-sm_90-cp312.pyz                                 # the grid of the GPU here, else `cpu`
    python3 flashladder-0.1.0-sm_90-cp312.pyz sweep --grid smoke --out results
    python3 flashladder-0.1.0-sm_90-cp312.pyz --into /scratch/me check 7      # any command; the folder to unpack into

Exit codes: those of the command, 2 where the bundle cannot be run, with one line.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from pathlib import Path, PurePosixPath
import platform
import shutil
import stat
import sys
import tempfile
from typing import Any
import zipfile
import zlib

MANIFEST = "MANIFEST.json"
RUNNER = "__main__.py"
SCHEMA = 1
OLDEST = (3, 10)
MOST_BYTES = 2 * 2**30  # of all files of a bundle, and of all wheels in it unpacked
MOST_MANIFEST = 4 * 2**20
WHEELS, BUILD = "wheels", "build"  # folders of a bundle
PACKAGES, START = "packages", "start.py"  # of an unpacked one
# Not `python -m`, which looks for modules in the working folder first: that may be a checkout.
START_TEXT = """\
import os
import sys

if __name__ == "__main__":
    sys.path[:] = [place for place in sys.path if place != os.path.dirname(os.path.abspath(__file__))]
    from flashladder.bundle.node import main

    raise SystemExit(main())
"""
INSTALLED = ("purelib", "platlib")  # of a wheel's .data folder what belongs beside the packages
# What zipfile raises for an archive that is damaged, encrypted or compressed in an unknown way.
BROKEN = (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError, zlib.error)


class Refused(Exception):
    """Why a bundle is not run, as one line."""


def checked_name(name: str) -> str:
    """The name of a zip's member, if it stays inside the folder that it is unpacked into.

    Raises:
        Refused: it is absolute, climbs, or is no plain relative name.
    """
    parts = PurePosixPath(name).parts
    plain = bool(parts) and name == "/".join(parts) and not name.startswith("/")
    if not plain or ".." in parts or any(sign in name for sign in "\\:\0") or not name.isprintable():
        raise Refused(f"unsafe name in an archive: {name!r}")
    return name


def members(archive: zipfile.ZipFile, most: int = MOST_BYTES) -> dict[str, zipfile.ZipInfo]:
    """The regular files of a zip by name; folders have no entry of their own.

    Raises:
        Refused: an unsafe or repeated name, a link or device, or more than `most` bytes unpacked.
    """
    found: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        if info.is_dir():
            checked_name(info.filename.rstrip("/"))
            continue
        name, kind = checked_name(info.filename), stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG):
            raise Refused(f"{name} in an archive is a link or a device")
        if name in found:
            raise Refused(f"{name} is twice in an archive")
        found[name] = info
    total = sum(info.file_size for info in found.values())
    if total > most:
        raise Refused(f"an archive of {total} bytes unpacked: expected at most {most}")
    return found


def content(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """The bytes of a member, no more than it says that it has."""
    with archive.open(info) as stream:
        data = stream.read(info.file_size + 1)
    if len(data) != info.file_size:
        raise Refused(f"{info.filename} is damaged")
    return data


def read_manifest(text: bytes) -> dict[str, Any]:
    """The manifest: what the bundle is, which wheels belong to which Python, and the digest of every file.

    Raises:
        Refused: it is not one.
    """
    try:
        data = json.loads(text)
        whole = (
            data["schema"] == SCHEMA
            and all(isinstance(data[key], str) for key in ("name", "machine"))
            and all(isinstance(data[key], dict) for key in ("files", "install"))
            and all(isinstance(name, str) and len(digest) == 64 for name, digest in data["files"].items())
            and all(isinstance(name, str) for names in data["install"].values() for name in names)
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Refused(f"{MANIFEST} is damaged ({type(error).__name__})") from None
    if not whole:
        raise Refused(f"{MANIFEST} is not one of a bundle of schema {SCHEMA}")
    return dict(data)


def checked_files(archive: zipfile.ZipFile) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest of a bundle, and its files with the digests that the manifest has for them.

    Raises:
        Refused: a file is missing, was changed, or is not of the bundle.
    """
    there = members(archive)
    if MANIFEST not in there or there[MANIFEST].file_size > MOST_MANIFEST:
        raise Refused(f"no {MANIFEST} in it: not a bundle")
    manifest = read_manifest(content(archive, there.pop(MANIFEST)))
    expected = manifest["files"]
    for name in sorted(set(there) ^ set(expected)):
        raise Refused(f"{name} is missing" if name in expected else f"{name} is not a file of this bundle")
    files = {}
    for name, info in there.items():
        data = content(archive, info)
        found = hashlib.sha256(data).hexdigest()
        if found != expected[name]:
            raise Refused(f"{name} was changed: expected sha256 {expected[name][:12]}, found {found[:12]}")
        files[name] = data
    return manifest, files


def wheels_for(manifest: dict[str, Any], version: tuple[int, int], machine: str) -> list[str]:
    """The wheels of a bundle for a Python (3, 12) on a machine (``x86_64``).

    Raises:
        Refused: it has none for these.
    """
    wanted = ".".join(map(str, version))
    if machine != manifest["machine"]:
        raise Refused(f"the bundle is for another machine: expected {manifest['machine']}, found {machine}")
    if wanted not in manifest["install"]:
        known = ", ".join(sorted(manifest["install"])) or "none"
        raise Refused(
            f"the bundle is for another Python: expected {known}, found {wanted}; make one where there is a network: "
            f"invoke bundle --python {wanted}"
        )
    names = [str(name) for name in manifest["install"][wanted]]
    for name in names:
        if name not in manifest["files"]:
            raise Refused(f"{name} is missing")
    return names


def unpack_wheel(data: bytes, site: Path) -> None:
    """Unpacks a wheel's packages and metadata into the folder `site`; scripts and headers are left out.

    Raises:
        Refused: it is not a wheel, or an unsafe one.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as wheel:
        for name, info in members(wheel).items():
            first, _, rest = name.partition("/")
            kind, _, inside = rest.partition("/")
            if not first.endswith(".data"):
                write(site / name, content(wheel, info))
            elif kind in INSTALLED:
                write(site / checked_name(inside), content(wheel, info))


def write(path: Path, data: bytes) -> None:
    """Writes a new file, and the folders that it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as stream:
        stream.write(data)


def unpacked(archive: Path, into: Path, version: tuple[int, int], machine: str) -> Path:
    """The folder below `into` that holds what is in a bundle, for this Python: packages, builds, and what starts it.

    Raises:
        Refused: the bundle is damaged or made for something else.
        OSError: it cannot be read, or nothing can be written there.
    """
    with zipfile.ZipFile(archive) as opened:
        manifest, files = checked_files(opened)
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    names = wheels_for(manifest, version, machine)
    target = into / f"{digest[:12]}-cp{version[0]}{version[1]}"
    if target.is_dir():
        return target
    print(f"unpacking {manifest['name']} into {target}", file=sys.stderr)
    into.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=into, prefix=".unpacking-"))
    try:
        for name in names:
            unpack_wheel(files[name], scratch / PACKAGES)
        for name, data in files.items():
            if name.startswith(f"{BUILD}/"):
                write(scratch / name, data)
        write(scratch / START, START_TEXT.encode())
        scratch.chmod(0o755)
        scratch.replace(target)
    except OSError:
        if not target.is_dir():  # another one was faster
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def environment(folder: Path) -> dict[str, str]:
    """This process's variables, with the bundle's packages before others and its builds as the builds."""
    kept = {name: value for name, value in os.environ.items() if name != "FLASHLADDER_ROOT"}
    path = os.pathsep.join(filter(None, [str(folder / PACKAGES), kept.get("PYTHONPATH")]))
    return {**kept, "PYTHONPATH": path, "FLASHLADDER_BUILD": str(folder / BUILD)}


def prepare(words: list[str], archive: Path) -> tuple[list[str], dict[str, str]]:
    """The command to run for these words, and its environment, once the bundle is unpacked.

    Raises:
        Refused: it cannot be run here.
    """
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
    return [sys.executable, str(folder / START), *words], environment(folder)


def supported(version: tuple[int, int]) -> bool:
    """Whether the pipeline runs on a version of Python at all."""
    return version >= OLDEST


def main() -> int:
    """Runs the bundle that this file is in."""
    if not supported(sys.version_info[:2]):
        print(f"error: expected Python 3.10 or newer, found {platform.python_version()}", file=sys.stderr)
        return 2
    try:
        command, variables = prepare(sys.argv[1:], Path(__file__).parent)
    except Refused as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return os.execve(command[0], command, variables)  # noqa: S606 - this process becomes it: signals, exit code


if __name__ == "__main__":
    raise SystemExit(main())
