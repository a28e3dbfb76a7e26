"""Tools that are not here: what filled a store that came from elsewhere, so that its entries are found again.

Why: an entry's key is made of versions and flags, the host compiler's among them. On a node without a compiler these
cannot be asked, yet PTX that came along is to be run there under the identity that it has at home. A bundle writes
``tools.json`` into its store (`flashladder.bundle`); `flashladder.build.compile.tools_of` reads it. Nothing to run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from flashladder.errors import FlashladderError
from flashladder.files import dump_json, load_json, relative

NAME = "tools.json"


@dataclass(frozen=True)
class Recorded:
    """What decides the output of a release build: flags and versions, no path. Fields as of `build.store.Tools`."""

    nvcc_flags: tuple[str, ...]
    ptxas_flags: tuple[str, ...]
    ptx_versions: Mapping[str, str]
    ptxas_version: str

    def as_json(self) -> str:
        """The record's text."""
        return dump_json({**asdict(self), "ptx_versions": dict(self.ptx_versions)})


def read_recorded(store: Path) -> Recorded | None:
    """The tools that filled `store`, where it came with a record of them; None where it did not.

    Raises:
        FlashladderError: the record is broken.
    """
    path = store / NAME
    try:
        data = load_json(path.read_bytes())
        return Recorded(
            nvcc_flags=tuple(map(str, data["nvcc_flags"])),
            ptxas_flags=tuple(map(str, data["ptxas_flags"])),
            ptx_versions={str(name): str(version) for name, version in data["ptx_versions"].items()},
            ptxas_version=str(data["ptxas_version"]),
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FlashladderError(
            f"the record of what compiled these kernels is broken ({error})",
            where=relative(path),
            hint="unpack the bundle again",
        ) from error
