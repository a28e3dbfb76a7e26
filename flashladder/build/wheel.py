"""A wheel per iteration, and the wheels of other compilers: assembled, installed, and imported as a test.

The same files give the same bytes. An environment holds one version of each wheel, so the compiler of another CUDA
version is installed into ``build/toolchains/<version>/``: exactly ``requirements/toolchain-<version>.txt``, versions
with hashes, made by `nox -s relock`.

Why not bdist_wheel: nothing is left to compile when a wheel is made, and a wheel is a zip with three metadata files.
The library inside needs no Python symbol, hence ``cp310-abi3``.
Used by `flashladder.build.command`; on its own it installs every wheel that is built for this machine's GPU (else
sm_80):

    python -m flashladder.build.wheel
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
import hashlib
import importlib
import importlib.util
import io
import json
from pathlib import Path
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from typing import Any
import zipfile

from flashladder.build.compile import default_arch
from flashladder.build.library import LIBRARY_NAME
from flashladder.build.store import entry_lock
from flashladder.errors import FlashladderError, one_line_errors
from flashladder.files import files_in, load_json, make_folder, read_bytes, relative, sha256, write_atomic
from flashladder.ladder.iteration import load_all
from flashladder.paths import BUILD, ROOT
from flashladder.tool_runs import disk_full
from flashladder.toolchain import Toolchain, find_toolchain, load_pins

EPOCH = (1980, 1, 1, 0, 0, 0)  # the first moment a zip can hold: members carry no time of their own
EPOCH_SECONDS = "315532800"
LIBRARY_DIGEST = "library_sha256"  # its key in the manifest

# Runs in a process of its own: the operator exists, and the library offers exactly the configurations that were built.
_IMPORT_CHECK = """
import importlib, json, sys
name, expected = sys.argv[1], json.loads(sys.argv[2])
module = importlib.import_module(name)
import torch
namespace = getattr(torch.ops, name)
namespace.forward.default, namespace.forward_out.default
found = sorted(module.configurations())
if found != sorted(expected):
    sys.exit(f"{module.__file__}: expected the configurations {expected}, found {found}")
print(module.__file__)
"""


def wheel_name(name: str, version: str) -> str:
    """File name of the wheel of package `name`: any CPython from 3.10 on, this platform."""
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return f"{name}-{version}-cp310-abi3-{platform}.whl"


def assemble(folder: Path, name: str, version: str, summary: str, members: Mapping[str, bytes]) -> Path:
    """Writes the wheel of package `name` into `folder`; the same members give the same bytes.

    Args:
        folder: where the wheel goes.
        name: import name of the package, ``flashladder_07``.
        version: PEP 440 version.
        summary: one line for the metadata.
        members: file name inside the package -> content.
    """
    final = folder / wheel_name(name, version)
    tag = "-".join(final.stem.split("-")[2:])
    info = f"{name}-{version}.dist-info"
    contents = {f"{name}/{member}": members[member] for member in sorted(members)}
    contents[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.4\nName: {name.replace('_', '-')}\nVersion: {version}\nSummary: {summary}\n"
        "License-Expression: Apache-2.0\nRequires-Python: >=3.10\nRequires-Dist: torch>=2.10\n"
    ).encode()
    contents[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: flashladder ({version})\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    )
    record = f"{info}/RECORD"
    contents[record] = "".join([*map(_recorded, contents, contents.values()), f"{record},,\n"]).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in contents.items():
            entry = zipfile.ZipInfo(path, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (stat.S_IFREG | (0o755 if path.endswith(".so") else 0o644)) << 16
            archive.writestr(entry, data)
    return write_atomic(final, packed.getvalue())


def _recorded(path: str, data: bytes) -> str:
    """A member's line of RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(data)}\n"


def installed_digest(name: str) -> str | None:
    """Digest of the inputs that the installed package `name` was built from; None where it is missing or damaged."""
    folder = package_folder(name)
    try:
        digest = None if folder is None else checked_manifest(folder).get("inputs_digest")
    except FlashladderError:
        return None
    return digest if isinstance(digest, str) else None


def package_folder(name: str) -> Path | None:
    """The folder of the installed package `name`, found without importing it; None where it is not installed."""
    importlib.invalidate_caches()  # it may have been installed a moment ago
    spec = importlib.util.find_spec(name)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def checked_manifest(folder: Path, hint: str = "build it again") -> dict[str, Any]:
    """The manifest of the wheel installed in `folder`.

    Raises:
        FlashladderError: it, or the library, is missing, damaged or older than this check; `hint` says what to do.
    """
    path, library = folder / "manifest.json", folder / LIBRARY_NAME
    try:
        manifest: dict[str, Any] = dict(load_json(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise FlashladderError("cannot read the wheel's manifest", where=path, found=error, hint=hint) from error
    expected = manifest.get(LIBRARY_DIGEST)
    if expected is None:
        raise FlashladderError("the wheel is older than the digest of its library", where=path, hint=hint)
    try:
        found = sha256(library.read_bytes())
    except OSError as error:
        raise FlashladderError("cannot read the wheel's library", where=folder, found=error, hint=hint) from error
    if found != expected:
        what, known = "the installed library is damaged: its digest is not the manifest's", str(expected)[:12]
        raise FlashladderError(what, where=library, expected=known, found=found[:12], hint=hint)
    return manifest


def install(*wheels: Path) -> None:
    """Installs `wheels` into the environment of this Python, without dependencies and without a network.

    uv's cache is left out: an environment's files are hard links into it, so that it repeats what was damaged in one.

    Raises:
        FlashladderError: this Python is not in a virtual environment, has no installer, or the installer failed.
    """
    if sys.prefix == sys.base_prefix:
        what = "this Python is not in a virtual environment, so the wheel is not installed"
        instead = "use `nox -s build-iteration-N` or `nox -s dev`, or build with --no-install"
        raise FlashladderError(what, where=sys.prefix, hint=instead)
    command = installer()
    again = ["--reinstall", "--no-cache"] if "--python" in command else ["--force-reinstall"]
    options = ["--no-deps", "--no-index", *again]
    done = subprocess.run([*command, *options, *wheels], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        if "No space left" in done.stderr:
            raise disk_full(Path(sys.prefix))
        what = f"the wheel could not be installed ({_last_line(done.stderr)})"
        raise FlashladderError(what, where=", ".join(map(relative, wheels)))


def installer() -> list[str]:
    """The command that installs into the environment of this Python; the same options follow for uv and pip.

    Raises:
        FlashladderError: neither uv nor pip is here.
    """
    uv = [sys.executable, "-m", "uv"] if importlib.util.find_spec("uv") else [shutil.which("uv") or ""]
    if uv != [""]:
        return [*uv, "pip", "install", "--python", sys.executable]
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "install"]
    raise FlashladderError("neither uv nor pip is in this environment", hint="run: pip install uv")


def install_built(build: Path = BUILD, arch: str | None = None) -> list[str]:
    """Installs every release wheel of the selection ``prog`` for `arch` that is built and not installed here yet.

    Args:
        build: the folder of all builds.
        arch: ``sm_80`` ...; None for the GPU present, else ``sm_80``.

    Returns:
        The names of the packages that are installed now, whether or not they were before.

    Raises:
        FlashladderError: a manifest cannot be read, or the installer failed.
    """
    wheels, names = list[Path](), list[str]()
    families = {iteration.number: iteration.family for iteration in load_all()}
    for manifest in files_in(build, "iteration_[0-9][0-9]/*/manifest.json"):
        family = families.get(int(manifest.parent.parent.name[-2:]))
        wanted = default_arch(family) if arch is None else (family and family.targets.serving(arch)) or arch
        if manifest.parent.name != wanted:
            continue
        try:
            digest = load_json(manifest.read_bytes())["inputs_digest"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FlashladderError(
                f"the build's manifest is broken ({error})", where=relative(manifest), hint="build that iteration again"
            ) from error
        name = f"flashladder_{manifest.parent.parent.name[-2:]}"
        names.append(name)
        if installed_digest(name) != digest:
            wheels += files_in(manifest.parent, "*.whl")
    if wheels:
        install(*wheels)
    return names


def check_import(name: str, configs: Sequence[str]) -> str:
    """Imports the installed package in a process of its own; returns the path it was imported from.

    Args:
        name: ``flashladder_07``.
        configs: short forms that the library must offer, no more and no fewer.

    Raises:
        FlashladderError: the import fails, an operator is missing, or the configurations differ.
    """
    command = [sys.executable, "-I", "-c", _IMPORT_CHECK, name, json.dumps(sorted(configs))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        hint = "the wheel was built with another torch or compiler than this environment's, or is broken"
        raise FlashladderError(f"the import check failed: {_last_line(done.stderr)}", where=name, hint=hint)
    return done.stdout.strip()


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else "no message"


TOOLCHAINS = BUILD / "toolchains"
REQUIREMENTS = ROOT / "requirements"
STAMP = ".flashladder-stamp"  # holds the digest of the requirements; written last


def toolchain_of(cuda: str = "", folder: Path = TOOLCHAINS) -> Toolchain:
    """The toolchain whose compiler is of CUDA version `cuda`, installed if it is not; empty for the pinned one.

    Args:
        cuda: ``13.1``, one of those in ``configs/toolchain.yaml``.
        folder: where versions have their folders.

    Raises:
        FlashladderError: no such version is pinned, it cannot be installed, or the environment's own toolchain is not
            the pinned one.
    """
    version = load_pins().axis(cuda)
    return find_toolchain(provide(version, folder), version) if version else find_toolchain()


def provide(cuda: str, folder: Path = TOOLCHAINS) -> Path:
    """The folder that holds the wheels of CUDA version `cuda`; whole, or as it was before.

    Raises:
        FlashladderError: they cannot be installed: no lock file, no network.
    """
    locked, target = REQUIREMENTS / f"toolchain-{cuda}.txt", make_folder(folder) / cuda
    digest, stamp = sha256(read_bytes(locked)), target / STAMP
    with entry_lock(folder):  # two builds that need it wait for one download
        if stamp.is_file() and stamp.read_bytes() == digest.encode():
            return target
        with tempfile.TemporaryDirectory(dir=folder, prefix=f".{cuda}-") as scratch:
            made = Path(scratch) / "wheels"
            options = ["--target", str(made), "--no-deps", "--require-hashes", "-r", str(locked)]
            done = subprocess.run([*installer(), *options], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise FlashladderError(
                    f"the compiler of CUDA {cuda} could not be installed ({_last_line(done.stderr)})",
                    where=relative(locked),
                    hint="a network, or wheels that UV_FIND_LINKS names, are needed once",
                )
            shutil.rmtree(target, ignore_errors=True)
            made.replace(target)
        write_atomic(stamp, digest)
    return target


def main() -> None:
    """Installs what is built; prints the packages on one line."""
    with one_line_errors():
        names = install_built()
        print(f"built iterations installed here: {', '.join(names) or 'none'}")


if __name__ == "__main__":
    main()
