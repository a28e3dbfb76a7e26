"""``invoke bundle``: one file for a node without network. ``python -m flashladder.bundle`` is the same command.

Why: GPU nodes are often behind no network at all; they have Python, torch and a driver. The file holds everything else:
wheels of the iterations, the pipeline and its Python needs, PTX for the emulator, grids, locks, and a runner.

    invoke bundle --arch sm_90 --python 3.12              # all iterations, here; on the node: python3 BUNDLE.pyz
    python -m flashladder.bundle --iterations 16 --out /tmp

Exit code: 0, or 2 where it could not be made. The same checkout, toolchain and options give the same bytes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
import re
import sys
import tempfile

from flashladder.arguments import parser_of
from flashladder.bundle import needs
from flashladder.bundle.archive import write_bundle
from flashladder.bundle.contents import Kernels, collect, facts_text, grids_that_run
from flashladder.bundle.pipeline import own_wheels
from flashladder.bundle.readme import readme
from flashladder.bundle.runner import BUILD as BUILD_FOLDER
from flashladder.bundle.runner import WHEELS
from flashladder.bundle.sbom import sbom
from flashladder.commands import COMMANDS
from flashladder.errors import FlashladderError, require_checkout
from flashladder.files import relative, require_folder_or_nothing, sha256
from flashladder.ladder.grid import Grid, load_grid
from flashladder.ladder.iteration import load_all, load_iteration
from flashladder.paths import BUILD, ROOT
from flashladder.toolchain.wheels import load_pins, require_arch
from flashladder.version import __version__

UNASKED = ("cpu", "smoke")  # grids of a node without a GPU, and with a model that has none of its own
PYTHONS = tuple(f"3.{minor}" for minor in range(10, 15))


def words(text: str) -> list[str]:
    """Words with commas between, each once."""
    return list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def numbers_of(text: str) -> list[int]:
    """Iterations, each the number of one; all where `text` is empty.

    Raises:
        FlashladderError: there is no such iteration.
    """
    if not text:
        return [iteration.number for iteration in load_all()]
    found = words(text)
    if wrong := [word for word in found if not re.fullmatch(r"[0-9]{1,3}", word)]:
        raise FlashladderError("--iterations takes numbers, commas between", found=repr(wrong[0]))
    return [load_iteration(int(word)).number for word in found]


def pythons_of(text: str) -> list[str]:
    """Python versions, by default this one's.

    Raises:
        FlashladderError: the pipeline does not run on one of them.
    """
    found = words(text) or [".".join(map(str, sys.version_info[:2]))]
    if wrong := [word for word in found if word not in PYTHONS]:
        raise FlashladderError("no such Python is supported", expected=", ".join(PYTHONS), found=wrong[0])
    return found


def arches_of(text: str) -> list[str]:
    """Architectures, by default all for which machine code is made.

    Raises:
        FlashladderError: there is no such one.
    """
    return [require_arch(word) for word in words(text)] or list(load_pins().arches)


def grids_of(text: str) -> list[Grid]:
    """Grids by name.

    Raises:
        FlashladderError: there is no such one.
    """
    return [load_grid(word) for word in words(text)]


def install_sets(pythons: Sequence[str], tags: Sequence[str], own: Sequence[Path]) -> dict[str, list[Path]]:
    """Per Python version the wheels that are unpacked for it: `own`, and those of the packages that they need."""
    return {python: [*own, *needs.wheels(python, tags)] for python in pythons}


def lacking(grids: Sequence[str]) -> str:
    """The line that says which of the grids that a node sweeps unasked cannot be swept; empty where both can."""
    if not (missing := [name for name in UNASKED if name not in grids]):
        return ""
    return (
        f"warning: it lacks kernels of the grids {' and '.join(missing)}; to include them: --grid {','.join(missing)}"
    )


def make(
    kernels: Kernels, install: dict[str, list[Path]], arches: Sequence[str], numbers: Sequence[int], out: Path
) -> Path:
    """Writes the bundle of these parts into the folder `out`."""
    name = "-".join(["flashladder", __version__, *arches, *("cp" + python.replace(".", "") for python in install)])
    grids = grids_that_run(kernels, arches)
    wheels = {f"{WHEELS}/{path.name}": path.read_bytes() for paths in install.values() for path in paths}
    files = {f"{BUILD_FOLDER}/{path}": data for path, data in kernels.store.items()}
    files[f"{BUILD_FOLDER}/bundle.json"] = facts_text(name, arches, grids, numbers).encode()
    files["README.txt"] = readme(name, arches, [*install], grids, numbers).encode()
    files["LICENSE"] = (ROOT / "LICENSE").read_bytes()
    files["sbom.cdx.json"] = sbom(name, wheels, load_pins()).encode()
    inside = {python: [f"{WHEELS}/{path.name}" for path in paths] for python, paths in install.items()}
    return write_bundle(out / f"{name}.pyz", needs.MACHINE, inside, {**files, **wheels})


def main(argv: Sequence[str] | None = None) -> int:
    """Builds what is missing, fetches what is not kept, writes the bundle.

    Raises:
        FlashladderError: it could not be made.
    """
    options = _parse(argv)
    require_checkout("bundle")
    numbers, arches, pythons = numbers_of(options.iterations), arches_of(options.arch), pythons_of(options.python)
    tags = needs.platforms(words(options.platform))
    out = Path(options.out) if options.out else BUILD / "bundle"
    require_folder_or_nothing(out)
    kernels = collect(numbers, grids_of(options.grid), arches)
    with tempfile.TemporaryDirectory() as scratch:
        own = [*own_wheels(Path(scratch)), *kernels.wheels]
        install = install_sets(pythons, tags, own)
        made = make(kernels, install, arches, numbers, out)
    data = made.read_bytes()
    print(f"{relative(made)}: {len(data) / 1e6:.1f} MB, sha256 {sha256(data)}")
    if warned := lacking(grids_that_run(kernels, arches)):
        print(warned, file=sys.stderr)
    print(f"on the node, with Python {' or '.join(pythons)} and torch: python3 {made.name} --help")
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    return parser_of(COMMANDS["bundle"], "bundle", "--arch sm_90 --python 3.12").parse_args(argv)
