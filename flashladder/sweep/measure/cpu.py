"""A cell of the ``cpu`` grid: one kernel's PTX on this CPU, its numerics by the check's rule, counters and hazards.

Why: a sweep's whole machinery runs, and is tested, on a machine without a GPU; and the grid shows how bank conflicts
and sectors move along the ladder. Two runs of a cell give the same document, whatever happened in between.
Used by `flashladder.sweep.measure.worker`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from flashladder.build.compile import ptx_for, ptx_many, ptx_planned, tools_of
from flashladder.cases.inputs import FULL_HEADS, Case, View, make_tensors
from flashladder.cases.reference import References, accuracy
from flashladder.check.command import rule
from flashladder.check.on_emulator import as_array
from flashladder.emulate.kernel import forward
from flashladder.emulate.take_reading import version
from flashladder.errors import FlashladderError
from flashladder.files import sha256
from flashladder.gpu.doctor import rung
from flashladder.ladder.ablation import load_description
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import Iteration
from flashladder.machine_code.ptx import ptx_sha256, read_ptx
from flashladder.results.cells import EmulatedCell, PlannedCell, Sweep
from flashladder.results.files import this_host
from flashladder.results.origin import Kernel
from flashladder.results.schema import Accuracy, EmulatedSweepResult
from flashladder.sweep.cells import Wanted
from flashladder.sweep.lanes.failures import CellFailed
import ptxemu
from ptxemu import Array, EmulationError

_REFERENCES = References()


@lru_cache(maxsize=1)
def _machine_version() -> str:
    """A digest of the emulator and of the rule by which numerics are judged."""
    return sha256(version() + rule())


@lru_cache(maxsize=4096)
def _ptx_digest(iteration: Iteration, config: KernelConfig) -> str:
    return ptx_sha256(read_ptx(ptx_for(iteration, config).ptx))


def code_digest(subject: str, config: str) -> str:
    """A digest of all that decides a cell's document: PTX, emulator, rule.

    Raises:
        FlashladderError: no such subject, or nothing here can compile it.
    """
    return sha256(_machine_version() + _ptx_digest(load_description(subject), KernelConfig.parse(config)))


def known_digests(wanted: Sequence[Wanted]) -> list[str]:
    """`code_digest` of each cell whose PTX is in the store, empty for the others; compiles nothing."""
    try:
        tools = tools_of()
    except FlashladderError:
        return [""] * len(wanted)
    built = {
        (cell.subject, cell.config): ptx_planned(load_description(cell.subject), KernelConfig.parse(cell.config), tools)
        for cell in wanted
    }
    return [
        code_digest(cell.subject, cell.config) if built[cell.subject, cell.config].is_complete else ""
        for cell in wanted
    ]


def build(wanted: Sequence[Wanted]) -> None:
    """Compiles the PTX of all cells that is not in the store.

    Raises:
        FlashladderError: nothing here can compile it.
    """
    kernels = dict.fromkeys((cell.subject, cell.config) for cell in wanted)
    ptx_many([(load_description(subject), KernelConfig.parse(config)) for subject, config in kernels])


def measure(cell: PlannedCell, grid: str, grid_sha256: str) -> tuple[EmulatedSweepResult, float]:
    """Runs the cell's kernel; returns its document and the seconds that the emulator worked.

    Raises:
        CellFailed: wrong numbers, a hazard, or a kernel that did what it may not.
    """
    iteration, config = load_description(cell.subject), KernelConfig.parse(cell.config)
    fixed = iteration.row_stride and cell.shape.n_heads < FULL_HEADS
    view: View = "head_slice" if fixed else "contiguous"
    case = Case("sweep", cell.shape, view, seed=cell.shape.seq_len)
    tensors = make_tensors(case, cell.dtype, "cpu")
    storages: dict[int, Array] = {}
    arrays = [as_array(tensor, storages) for tensor in (tensors.q, tensors.k, tensors.v, tensors.out)]
    counters, hazards = ptxemu.Counters(), ptxemu.Hazards()
    try:
        ran = forward(iteration, config, (arrays[0], arrays[1], arrays[2], arrays[3]), observers=(counters, hazards))
    except EmulationError as error:
        raise CellFailed("crash", " ".join(str(error).split())) from error
    found = accuracy(tensors.out, _REFERENCES.expected(case, cell.dtype, tensors))
    _require_right(found, hazards)
    measured = EmulatedCell(
        address=cell.address,
        accuracy=found,
        counters={name: int(value) for name, value in counters.as_dict().items() if "_op_atom" not in name},
        instructions=counters.warp_instructions,
        hazards=len(hazards.reports),
    )
    return _document(cell, iteration, config, measured, (grid, grid_sha256)), ran.seconds


def _require_right(found: Accuracy, hazards: ptxemu.Hazards) -> None:
    """Raises `CellFailed` for wrong numbers, and for right ones that hang on the order of threads."""
    if not found.ok:
        raise CellFailed(
            "wrong",
            f"max error {_number(found.max_error)} (allowed {found.max_allowed:.3g}), relative RMS "
            f"{_number(found.rms_error)} (allowed {found.rms_allowed:.3g})",
        )
    if hazards.reports:
        raise CellFailed("wrong", " ".join(hazards.reports[0].render().split()))


def _number(value: float | None) -> str:
    return "NaN" if value is None or np.isnan(value) else f"{value:.3g}"


def _document(
    cell: PlannedCell, iteration: Iteration, config: KernelConfig, measured: EmulatedCell, grid: tuple[str, str]
) -> EmulatedSweepResult:
    kernel = Kernel(
        iteration=iteration.number,
        variant=iteration.description.removeprefix(str(iteration.number)),
        config=config.short_form(),
        dtype=config.dtype,
        arch=iteration.family.targets.ptx,
        text_sha256=None,
        build=cell.code,
        toolchain=dict(tools_of().ptx_versions),
    )
    return EmulatedSweepResult(
        rung=rung(gpu=False, counted=False, clocks=False),
        host=this_host(),
        kernels={kernel.key: kernel},
        sweep=Sweep(grid=grid[0], grid_sha256=grid[1], planned=(cell,)),
        cells=(measured,),
    )
