"""What is pinned: versions of the CUDA toolchain, architectures and flags, read from ``configs/toolchain.yaml``.

Why apart from `flashladder.toolchain.wheels`: a plan asks which CUDA versions there are, and needs none of their
programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
import functools
from pathlib import Path
from typing import Any

from flashladder.errors import FlashladderError
from flashladder.files import relative
from flashladder.paths import CONFIGS


@dataclass(frozen=True)
class Pins:
    """``configs/toolchain.yaml`` as data: exact versions, architectures and flags (without -arch, -I, -ccbin).

    `arches` are what GPUs are called; `own_arches` is machine code that runs on one of them alone, from PTX of its own.
    `others` maps the CUDA versions of the toolchain axis to the packages that differ from the pinned ones.
    """

    cuda: str
    packages: Mapping[str, str]
    torch: str
    arches: tuple[str, ...]
    own_arches: tuple[str, ...]
    ptx_arch: str
    nvcc_flags: Mapping[str, tuple[str, ...]]
    ptxas_flags: Mapping[str, tuple[str, ...]]
    others: Mapping[str, Mapping[str, str]]

    @property
    def code_arches(self) -> tuple[str, ...]:
        """All that ptxas makes machine code for."""
        return (*self.arches, *self.own_arches)

    def flags(self, tool: str, *, debug: bool) -> tuple[str, ...]:
        """The flags of `tool` ("nvcc" or "ptxas") for a release or a debug build."""
        table = {"nvcc": self.nvcc_flags, "ptxas": self.ptxas_flags}[tool]
        return table["all"] + table["debug" if debug else "release"]

    def axis(self, cuda: str) -> str:
        """`cuda` on the toolchain axis: itself, or empty for the pinned version, however it is said.

        Raises:
            FlashladderError: no compiler of that version is pinned.
        """
        if cuda in ("", self.cuda):
            return ""
        if cuda not in self.others:
            raise FlashladderError(
                "no toolchain of this CUDA version is pinned",
                where="configs/toolchain.yaml",
                expected=f"one of {', '.join([self.cuda, *self.others])}",
                found=cuda,
            )
        return cuda


@functools.cache
def load_pins(path: Path = CONFIGS / "toolchain.yaml") -> Pins:
    """Reads the pins.

    Raises:
        FlashladderError: the file is missing, is not YAML, or lacks a key.
    """
    from flashladder.located import read_located

    located = read_located(path)
    data: Mapping[str, Any] = located.data
    try:
        return Pins(
            cuda=str(data["cuda"]),
            packages={str(name): str(version) for name, version in data["packages"].items()},
            torch=str(data["torch"]),
            arches=tuple(data["arches"]),
            own_arches=tuple(data["own_arches"]),
            ptx_arch=str(data["ptx_arch"]),
            nvcc_flags={kind: tuple(data["nvcc_flags"][kind]) for kind in ("all", "release", "debug")},
            others={
                str(cuda): {str(name): str(version) for name, version in packages.items()}
                for cuda, packages in data.get("others", {}).items()
            },
            ptxas_flags={kind: tuple(data["ptxas_flags"][kind]) for kind in ("all", "release", "debug")},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise FlashladderError("the toolchain pins are malformed", where=relative(path), found=repr(error)) from error
