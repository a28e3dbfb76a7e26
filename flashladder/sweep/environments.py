"""Which environment has a cell's kernel, and which code that is: read from files, importing neither torch nor wheels.

Why: a plan needs the digest of thousands of kernels in a second, and every iteration is built into an environment of
its own. A wheel that is installed in the environment of this Python counts where its own environment has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
import importlib.metadata
import json
from pathlib import Path
import sys

from flashladder.files import ROOT
from flashladder.installed import package_name
from flashladder.sweep.cells import Wanted
from flashladder.toolchain import load_pins
from flashladder.wheel import package_folder

SESSIONS = ROOT / ".nox"
PACKAGES = {"fa4": "flash-attn-4", "flash-attn": "flash-attn"}  # references that torch does not bring


@lru_cache(maxsize=256)
def _found(subject: str, toolchain: str) -> tuple[str, Mapping[str, Mapping[str, str]], str] | None:
    """Interpreter, per configuration and architecture the digest of its machine code, and the wheel's own digest."""
    if toolchain or not subject.isdigit():
        return None
    name = package_name(int(subject))
    session = SESSIONS / f"build-iteration-{subject}"
    own = sorted(session.glob(f"lib/python3*/site-packages/{name}/manifest.json"))
    here = None if own else package_folder(name)
    if not own and here is None:
        return None
    python = str(session / "bin" / "python") if own else sys.executable
    try:
        manifest = json.loads((own[0] if own else Path(str(here)) / "manifest.json").read_text(encoding="utf-8"))
        kernels = manifest.get("kernels") or manifest["inputs"]["kernels"]
        texts = {
            config: {arch: str(entry["text_sha256"]) for arch, entry in by_arch.items() if isinstance(entry, dict)}
            for config, by_arch in kernels.items()
        }
        return python, texts, str(manifest["inputs_digest"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # damaged: as if it were not built


def code_digest(cell: Wanted, arch: str) -> str:
    """The digest of a cell's machine code; empty: it is not built for `arch`.

    On a GPU for which no machine code is ever made the driver compiles the PTX: there it is the digest of the wheel.
    """
    if cell.is_reference:
        return reference_version(cell.subject) or ""
    found = _found(cell.subject, cell.toolchain)
    if found is None or cell.config not in found[1]:
        return ""
    compiled = found[1][cell.config].get(arch)
    return compiled or ("" if arch in load_pins().arches else found[2])


def digests(cells: Sequence[Wanted], arch: str) -> list[str]:
    """`code_digest` of each cell."""
    return [code_digest(cell, arch) for cell in cells]


def forget() -> None:
    """Looks again: something was built."""
    _found.cache_clear()


def python_of(cell: Wanted) -> str:
    """The interpreter of the environment that has the cell's kernel; a reference is timed in that of this Python."""
    found = None if cell.is_reference else _found(cell.subject, cell.toolchain)
    return found[0] if found else sys.executable


@lru_cache(maxsize=8)
def reference_version(name: str) -> str | None:
    """The version of a reference's package here; None where it is not installed."""
    try:
        return f"{name} {importlib.metadata.version(PACKAGES.get(name, 'torch'))}"
    except importlib.metadata.PackageNotFoundError:
        return None
