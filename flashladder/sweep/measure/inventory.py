"""Which wheels are installed where, from their manifests alone: what a plan asks before anything runs.

Why apart from `flashladder.build.installed`: a plan of ten thousand cells asks in well under a second, of environments
whose Python is another one; so nothing is imported, and each manifest is read once.

    >>> found = Inventory().find("16 - swizzle", "13.1", "(FP16, 128, 64, 64, 4): ...", "sm_90")
    >>> found.place.python, found.code
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
import sys

from flashladder.files import load_json
from flashladder.ladder.ablation import parse_subject
from flashladder.paths import ROOT


@dataclass(frozen=True)
class Place:
    """An environment: its interpreter, and the folders in which that one looks for packages."""

    python: Path
    folders: tuple[Path, ...]

    @staticmethod
    def here() -> Place:
        """This interpreter's."""
        return Place(Path(sys.executable), tuple(Path(entry) for entry in sys.path if entry))


@dataclass(frozen=True)
class Code:
    """One installed kernel.

    Attributes:
        place: the environment that has it.
        code: SHA-256 of its machine code for the architecture; where the wheel has none, so that a driver compiles its
            PTX, the digest of all inputs of the wheel.
        compiled: whether the wheel has machine code for the architecture.
    """

    place: Place
    code: str
    compiled: bool


class Inventory:
    """What is installed, as it was when it was first asked for: make a new one after a build."""

    def __init__(self, root: Path = ROOT, here: Place | None = None) -> None:
        """Looks at nothing yet.

        Args:
            root: the checkout, whose ``.nox/build-iteration-N`` are the iterations' own environments.
            here: the current environment.
        """
        self._root = root
        self._here = here or Place.here()
        self._places: dict[int, tuple[Place, ...]] = {}
        self._manifests: dict[tuple[Path, str], Mapping[str, object] | None] = {}

    def places(self, number: int) -> tuple[Place, ...]:
        """Where wheels of iteration `number` and of its variants may be: its own environment, then the current one."""
        if number not in self._places:
            own = self._root / ".nox" / f"build-iteration-{number}"
            folders = tuple(sorted(own.glob("lib/python3*/site-packages")))
            found = (Place(own / "bin" / "python", folders),) if folders else ()
            self._places[number] = (*found, self._here)
        return self._places[number]

    def find(self, subject: int | str, cuda: str, config: str, arch: str) -> Code | None:
        """The kernel, in the first environment that has its wheel; None where none has it, or the wheel lacks it.

        Args:
            subject: the iteration's number, or an ablation such as ``16 - swizzle``.
            cuda: CUDA version of its compiler; empty for the pinned one.
            config: short form of its configuration.
            arch: the GPU's, ``sm_90`` ...

        Raises:
            FlashladderError: `subject` is no description, or no toolchain of version `cuda` is pinned.
        """
        found = self._wheel(subject, cuda)
        kernels = found[1].get("kernels") if found else None
        if found is None or not isinstance(kernels, dict) or config not in kernels:
            return None
        own = kernels[config]
        kernel = own.get(arch) or own.get(f"{arch}a")  # for one architecture alone: ladder/protocol/data.py, Targets
        digest = kernel["text_sha256"] if kernel else found[1]["inputs_digest"]
        return Code(found[0], str(digest), compiled=bool(kernel))

    def place(self, subject: int | str, cuda: str = "") -> Place | None:
        """The first environment that has the wheel; None where none has."""
        found = self._wheel(subject, cuda)
        return None if found is None else found[0]

    def _wheel(self, subject: int | str, cuda: str) -> tuple[Place, Mapping[str, object]] | None:
        """Where a subject's wheel is installed, and its manifest."""
        wanted = parse_subject(subject, cuda)
        for place in self.places(wanted.number):
            for folder in place.folders:
                if manifest := self._manifest(folder, wanted.package):
                    return place, manifest
        return None

    def _manifest(self, folder: Path, package: str) -> Mapping[str, object] | None:
        """The manifest of a wheel in `folder`; None where there is none, or a broken one."""
        key = (folder, package)
        if key not in self._manifests:
            self._manifests[key] = read_manifest(folder / package / "manifest.json")
        return self._manifests[key]


def read_manifest(path: Path) -> Mapping[str, object] | None:
    """The manifest of a wheel; None where there is none, or a broken one."""
    try:
        data = load_json(path.read_bytes())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) and isinstance(data.get("inputs_digest"), str) else None
