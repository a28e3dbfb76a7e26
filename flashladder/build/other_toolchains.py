"""Compilers of other CUDA versions: installed from their locked wheels into ``build/toolchains/<version>/``.

An environment holds one version of each wheel, so another version has a folder of its own. What is
installed is exactly ``requirements/toolchain-<version>.txt``: versions with hashes, made by `nox -s relock`.

    python -m flashladder.build.other_toolchains 13.1      # `invoke build 16 --toolchain 13.1` does it by itself
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
import shutil
import subprocess
import tempfile

from flashladder.arguments import Parser
from flashladder.build.store import entry_lock
from flashladder.build.wheel import installer
from flashladder.errors import FlashladderError, one_line_errors
from flashladder.files import make_folder, relative, sha256, write_atomic
from flashladder.paths import BUILD, ROOT
from flashladder.toolchain.wheels import Toolchain, find_toolchain, load_pins

FOLDER = BUILD / "toolchains"
REQUIREMENTS = ROOT / "requirements"
STAMP = ".flashladder-stamp"  # holds the digest of the requirements; written last


def toolchain_of(cuda: str = "", folder: Path = FOLDER) -> Toolchain:
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


def provide(cuda: str, folder: Path = FOLDER) -> Path:
    """The folder that holds the wheels of CUDA version `cuda`; whole, or as it was before.

    Raises:
        FlashladderError: they cannot be installed: no lock file, no network, no space.
    """
    locked = REQUIREMENTS / f"toolchain-{cuda}.txt"
    try:
        digest = sha256(locked.read_bytes())
        make_folder(folder)
        target = folder / cuda
        with entry_lock(folder):  # two builds that need it wait for one download
            stamp = target / STAMP
            if not stamp.is_file() or stamp.read_bytes() != digest.encode():
                _install(locked, target)
                write_atomic(stamp, digest)
    except OSError as error:
        raise FlashladderError(
            f"the compiler of CUDA {cuda} cannot be installed ({error.strerror})",
            where=relative(Path(error.filename or folder)),
        ) from error
    return target


def _install(locked: Path, target: Path) -> None:
    """Installs exactly what `locked` names into `target`, in place of what was there."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
        made = Path(scratch) / "wheels"
        options = ["--target", str(made), "--no-deps", "--require-hashes", "-r", str(locked)]
        done = subprocess.run([*installer(), *options], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            raise FlashladderError(
                f"the compiler of CUDA {target.name} could not be installed ({lines[-1] if lines else 'no message'})",
                where=relative(locked),
                hint="a network, or wheels that UV_FIND_LINKS names, are needed once",
            )
        shutil.rmtree(target, ignore_errors=True)
        made.replace(target)


def main(arguments: Sequence[str] | None = None) -> None:
    """Installs one version and prints where it is; exit code 2 and one line when it cannot."""
    parser = Parser(
        prog="python -m flashladder.build.other_toolchains",
        description="Installs the compiler of another CUDA version beside the pinned one.",
        epilog="example: python -m flashladder.build.other_toolchains 13.1",
        formatter_class=argparse.HelpFormatter,
    )
    parser.add_argument("cuda", help="CUDA version, one of those in configs/toolchain.yaml")
    options = parser.parse_args(arguments)
    with one_line_errors():
        found = toolchain_of(options.cuda)
        print(f"{relative(found.root)}: nvcc {found.versions['nvidia-cuda-nvcc']}")


if __name__ == "__main__":
    main()
