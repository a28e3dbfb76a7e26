"""A small Hopper kernel with its launch and what it must compute; how all of them are compiled and run.

Why: bulk copies, tensor maps, mbarriers, clusters and wgmma work together or not at all. The kernels are in
``kernels/*.cu``, each file with a Python module of the same name that holds launches and references; the emulator and a
GPU run the same descriptions.

Run: ``pytest tests/nvcc/test_hopper_programs.py``; on a GPU: `export`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
import importlib
from pathlib import Path
import subprocess
from typing import Any

import numpy as np

from flashladder.build import compile as compiling
from flashladder.build.scheduler import fill_all
from flashladder.build.store import PtxEntry, Tools, ptx_entry
from flashladder.errors import FlashladderError
import ptxemu
from ptxemu.values import Array

HERE = Path(__file__).parent
KERNELS = HERE / "kernels"
HEADERS = tuple(sorted(KERNELS.glob("*.cuh")))
TARGET = "sm_90a"
FILES = ("barriers", "bulk", "tensors", "tiles", "products", "roles", "clusters", "pipelines")


@dataclass(frozen=True)
class Run:
    """The arguments of one launch, fresh arrays all of them, and (argument or tensor of a map, what it must hold)."""

    arguments: tuple[Any, ...]
    results: tuple[tuple[Array, Array], ...]


@dataclass(frozen=True, eq=False)
class Program:
    """One launch of a kernel.

    Attributes:
        file: of `FILES`; `kernel`: the entry's name; `name`: where one kernel is launched in several ways.
        make: arguments and results.
        threads: of a block; `grid`, `cluster`: blocks along x, y, z.
        shared_bytes: dynamic shared memory of a block.
        tolerance: greatest difference, absolute and relative; 0: bit by bit.
    """

    file: str
    kernel: str
    make: Callable[[], Run]
    threads: int = 128
    grid: tuple[int, int, int] = (1, 1, 1)
    cluster: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0
    tolerance: float = 0.0
    name: str = ""

    def __str__(self) -> str:
        return f"{self.file}-{self.name or self.kernel}"


@cache
def programs() -> Mapping[str, Program]:
    """All of them, by name."""
    found = [each for file in FILES for each in importlib.import_module(f"tests.hopper_programs.{file}").PROGRAMS]
    named = {str(each): each for each in found}
    assert len(named) == len(found), "two programs of one name"
    return named


@cache
def tools() -> Tools:
    """The toolchain of the iterations, for Hopper's own target."""
    found = compiling.tools_of()
    kept = (flag for flag in found.nvcc_flags if not flag.startswith("-arch="))
    return replace(found, nvcc_flags=(f"-arch={TARGET}", *kept))


def entry(file: str, folder: Path = KERNELS) -> PtxEntry:
    """The store's entry of a CUDA file: its PTX."""
    headers = {*HEADERS, *folder.glob("*.cuh")} if folder == KERNELS else set(folder.glob("*.cuh"))
    return ptx_entry(f'#include "{file}.cu"\n', folder, [folder / f"{file}.cu", *sorted(headers)], tools())


def cubin(file: str, out: Path) -> None:
    """Writes a file's machine code, made from the PTX that the emulator runs.

    Raises:
        FlashladderError: no toolchain, or a tool refused the file.
    """
    ptx(file)
    command = [str(tools().ptxas), f"-arch={TARGET}", str(entry(file).ptx), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FlashladderError(f"ptxas refused {file}.ptx", found=done.stderr.strip())


@cache
def ptx(file: str) -> str:
    """The PTX of a file, compiled where the store lacks it.

    Raises:
        FlashladderError: no toolchain, or nvcc refused the file.
    """
    found = entry(file)
    fill_all([found])
    return found.ptx.read_text(encoding="utf-8")


@cache
def module(file: str) -> ptxemu.Program:
    """A file on the emulator."""
    return ptxemu.load(ptx(file), path=f"{file}.ptx")


@cache
def kernel(file: str, name: str) -> ptxemu.Kernel:
    """A kernel of a file on the emulator."""
    return module(file).kernel(name)


def mismatch(program: Program, found: Array, wanted: Array) -> str | None:
    """None when an array holds what it must, else one line about the first element that differs."""
    a, b = found.reshape(-1), wanted.reshape(-1)
    if program.tolerance:
        x, y = a.astype(np.float64), b.astype(np.float64)
        wrong = ~(np.abs(x - y) <= program.tolerance * np.maximum(1, np.abs(y)))
    else:
        wrong = a.view(f"u{a.itemsize}") != b.view(f"u{b.itemsize}")
    if not wrong.any():
        return None
    first = int(np.argmax(wrong))
    return f"{program}: {int(wrong.sum())} of {a.size} differ, first {first}: expected {b[first]}, found {a[first]}"
