"""A results/ folder with a packed sweep and locks, for tests of verify; made up."""

from __future__ import annotations

from collections.abc import Callable
import json
from pathlib import Path
from typing import Any

from flashladder.lock.schema import Lock, LockedKernel, LockFile, write_lock
from flashladder.problem import Shape
from flashladder.results.derive import derive
from flashladder.results.files import load_result, machine_name, with_digest, write_result
from flashladder.results.schema import BenchResult, EmulatedCell, EmulatedSweepResult, Kernel, PlannedCell, Sweep
from flashladder.sweep.plan import CPU, Settings, cell_of, with_code
from tests.null.bench_fixture import FAST, GOOD, GPU, SHAPE, SLOW, group, result

Document = dict[str, Any]
Edit = Callable[[Document], object]
TEXT = "ab" * 32  # digest of the fixture's machine code
OTHER = "cd" * 32
NAME = machine_name(GPU.name)
SHORT = Shape(batch=16, seq_len=512, n_heads=16, d_head=128)
GRID = "h200"


def settings_of(made: BenchResult) -> Settings:
    own = made.settings
    return Settings(NAME, made.mode, own.pairs, own.blocks, own.min_pairs)


def planned(subject: str, config: str, shape: Shape, settings: Settings, code: str = TEXT) -> PlannedCell:
    return with_code(cell_of(subject, config, "fp16", shape), code, settings)


def swept() -> BenchResult:
    """Two kernels and the floor at two lengths."""
    made = result(group(), group(shape=SHORT))
    subjects = (("fa2", "", "fa2 2.11"), ("16", FAST, TEXT), ("1", SLOW, TEXT))
    cells = tuple(
        planned(subject, config, shape, settings_of(made), code)
        for shape in (SHAPE, SHORT)
        for subject, config, code in subjects
    )
    sweep = Sweep(grid=GRID, grid_sha256="0" * 64, planned=cells)
    return derive(made.model_copy(update={"sweep": sweep}))


def emulated() -> EmulatedSweepResult:
    """Two cells of the emulator."""
    made = result()
    kernels = [
        one.model_copy(update={"text_sha256": None, "build": TEXT, "arch": "compute_80"})
        for one in made.kernels.values()
    ]
    shape = Shape(batch=1, seq_len=64, n_heads=1, d_head=128)
    cells = tuple(planned(str(one.iteration), one.config, shape, Settings(CPU, "emulator")) for one in kernels)
    return EmulatedSweepResult(
        rung="CPU only", host=made.host, kernels={one.key: one for one in kernels},
        sweep=Sweep(grid="cpu", grid_sha256="0" * 64, planned=cells),
        cells=tuple(
            EmulatedCell(address=cell.address, accuracy=GOOD, counters={"a": 1}, instructions=9, hazards=0)
            for cell in cells
        ),
    )  # fmt: skip


def locked(results: Path, text: str = TEXT) -> None:
    """Writes a lock of the fixture's two kernels."""
    kernels = {16: FAST, 1: SLOW}
    entries = {
        number: Lock(
            history=("made up",), toolchain={}, flags={}, files={},
            kernels={
                config: LockedKernel(
                    text_sha256=text, ptx_sha256="0" * 64, registers=1, spill_stores=0, spill_loads=0, stack=0,
                    static_smem=0, dynamic_smem=0, counts={}, main_loop={},
                )
            },
        )
        for number, config in kernels.items()
    }  # fmt: skip
    write_lock(LockFile(arch="sm_90", iterations=entries), results / "locks")


def make(results: Path) -> Path:
    """A machine's folder under `results`; returns the sweep's document in it."""
    locked(results)
    (results / NAME).mkdir(parents=True)
    return write_result(results / NAME / f"{GRID}.json", swept())


def edited(path: Path, change: Edit, *, again: bool = False) -> None:
    """Changes a document; its own digest follows.

    Args:
        path: of the document.
        change: what is edited.
        again: the tables are derived from what is left.
    """
    document: Document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(with_digest(document), indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if again:
        made = load_result(path)
        assert isinstance(made, BenchResult)
        write_result(path, derive(made))


def ablated(kernel: Kernel) -> Kernel:
    """The same kernel as an ablation of its iteration."""
    return kernel.model_copy(update={"variant": " - swizzle", "text_sha256": OTHER})
