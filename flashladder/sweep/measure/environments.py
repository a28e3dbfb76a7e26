"""Which environment has a cell's kernel, and which code that is: read from files, importing neither torch nor wheels.

Why: a plan needs the digest of thousands of kernels in a second, and every iteration is built into an environment of
its own (`flashladder.sweep.measure.inventory`). References are timed in the environment of this Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
import importlib.metadata
import sys

from flashladder.sweep.cells import Wanted
from flashladder.sweep.measure.inventory import Code, Inventory
from flashladder.toolchain.wheels import load_pins

PACKAGES = {"fa3": "flash-attn-3", "fa4": "flash-attn-4", "flash-attn": "flash-attn"}  # not of torch


@lru_cache(maxsize=1)
def _inventory() -> Inventory:
    """What is installed, as it was when it was first asked for."""
    return Inventory()


def _code(cell: Wanted, arch: str) -> Code | None:
    """The kernel of a cell as it is installed; one without machine code for `arch` counts where none is ever made."""
    found = _inventory().find(cell.subject, cell.toolchain, cell.config, arch)
    return found if found is None or found.compiled or arch not in load_pins().arches else None


def digests(cells: Sequence[Wanted], arch: str) -> list[str]:
    """The digest of each cell's machine code for `arch`, of a reference its version; empty: it is not built.

    On a GPU for which no machine code is ever made the driver compiles the PTX: there it is the digest of the wheel.
    """
    known: dict[tuple[str, str, str], str] = {}
    for cell in cells:
        key = (cell.subject, cell.config, cell.toolchain)
        if key not in known:
            found = None if cell.is_reference else _code(cell, arch)
            own = reference_version(cell.subject) if cell.is_reference else found and found.code
            known[key] = own or ""
    return [known[cell.subject, cell.config, cell.toolchain] for cell in cells]


def forget() -> None:
    """Looks again: something was built."""
    _inventory.cache_clear()


def python_of(cell: Wanted, arch: str) -> str:
    """The interpreter of the environment that has the cell's kernel."""
    found = None if cell.is_reference else _code(cell, arch)
    return str(found.place.python) if found else sys.executable


@lru_cache(maxsize=8)
def reference_version(name: str) -> str | None:
    """The version of a reference's package here; None where it is not installed."""
    try:
        return f"{name} {importlib.metadata.version(PACKAGES.get(name, 'torch'))}"
    except importlib.metadata.PackageNotFoundError:
        return None
