"""Small Hopper kernels with their launches and what they must compute: ``kernels/*.cu``.

Bulk copies, tensor maps, mbarriers, clusters and wgmma work together or not at all. The emulator and a GPU run the same
descriptions. Run: ``pytest tests/nvcc/test_hopper_programs.py``; on a GPU: ``python tools/hw_hopper.py``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
import importlib
from pathlib import Path
from typing import Any

import numpy as np
from tests.compile import BUILD, ptx, ptx_of_all, root

import ptxemu
from ptxemu.values import Array

HERE = Path(__file__).parent
KERNELS = HERE / "kernels"
HEADERS = tuple(sorted(KERNELS.glob("*.cuh")))
FILES = ("barriers", "bulk", "tensors", "tiles", "products", "roles", "clusters", "pipelines")
COMPILED = BUILD.parent / "hopper_programs"  # where `hw_hopper.py --compile` writes
LAUNCHES = ("plain", "tensors", "products")  # modules beside this one


@dataclass(frozen=True)
class Run:
    """The arguments of one launch, fresh arrays all of them, and (argument or tensor of a map, what it must hold)."""

    arguments: tuple[Any, ...]
    results: tuple[tuple[Array, Array], ...]


def giving(wanted: Array, *more: Any) -> Run:
    """A run whose first argument is an array of zeros that must become `wanted`."""
    out = np.zeros_like(wanted)
    return Run((out, *more), ((out, wanted),))


@dataclass(frozen=True, eq=False)
class Program:
    """One launch of a kernel; `grid`, `cluster`: blocks along x, y, z."""

    file: str  # of `FILES`
    kernel: str
    make: Callable[[], Run]
    threads: int = 128
    grid: tuple[int, int, int] = (1, 1, 1)
    cluster: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0  # dynamic, of a block
    tolerance: float = 0.0  # greatest difference, absolute and relative; 0: bit by bit
    name: str = ""  # where one kernel is launched in several ways

    def __str__(self) -> str:
        return f"{self.file}-{self.name or self.kernel}"

    def launch(self, kernel: ptxemu.Kernel | None = None, **options: Any) -> Run:
        run, cluster = self.make(), self.cluster if max(self.cluster) > 1 else None
        chosen = kernel or module(self.file).kernel(self.kernel)
        options |= {"shared_bytes": self.shared_bytes, "cluster": cluster}
        chosen.launch(self.grid, self.threads, run.arguments, **options)
        return run

    def mismatch(self, run: Run) -> str | None:
        """None when all results are as they must be, else one line about the first element that differs."""
        return next((text for text in (mismatch(self, *each) for each in run.results) if text), None)


FOUND: list[Program] = []


def launches(file: str, threads: int = 128, grid: Any = 1, cluster: Any = 1, **more: Any) -> Callable[..., None]:
    """Decorates a function that makes a run: a program of the kernel of the function's name."""

    def add(make: Callable[[], Run]) -> None:
        blocks, of_cluster = (each if isinstance(each, tuple) else (each, 1, 1) for each in (grid, cluster))
        FOUND.append(Program(file, more.pop("kernel", "") or make.__name__, make, threads, blocks, of_cluster, **more))

    return add


@cache
def programs() -> Mapping[str, Program]:
    for each in LAUNCHES:
        importlib.import_module(f"tests.hopper_programs.{each}")
    named = {str(each): each for each in sorted(FOUND, key=lambda each: FILES.index(each.file))}
    assert len(named) == len(FOUND), "two programs of one name"
    return named


@cache
def text_of(file: str) -> str:
    """The PTX of a file; the first time all of them are compiled. Without a compiler it must lie in `COMPILED`."""
    if not root():
        return (COMPILED / f"{file}.ptx").read_text(encoding="utf-8")
    ptx_of_all(KERNELS / f"{each}.cu" for each in FILES)
    return ptx(KERNELS / f"{file}.cu")


@cache
def module(file: str) -> ptxemu.Program:
    return ptxemu.load(text_of(file), path=f"{file}.ptx")


def mismatch(program: Program, found: Array, wanted: Array) -> str | None:
    """None when an array holds what it must, else one line about the first element that differs."""
    a, b = np.asarray(found).reshape(-1), wanted.reshape(-1)
    if program.tolerance:
        x, y = a.astype(np.float64), b.astype(np.float64)
        wrong = ~(np.abs(x - y) <= program.tolerance * np.maximum(1, np.abs(y)))
    else:
        wrong = a.view(f"u{a.itemsize}") != b.view(f"u{b.itemsize}")
    if not wrong.any():
        return None
    first = int(np.argmax(wrong))
    return f"{program}: {int(wrong.sum())} of {a.size} differ, first {first}: expected {b[first]}, found {a[first]}"
