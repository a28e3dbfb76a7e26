"""Plans and records for tests of the sweep: a small grid, and documents with made-up digests and times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import json
from pathlib import Path

from flashladder.ladder.grid import Grid, load_grid
from flashladder.problem import Problem
from flashladder.results.derive import derive
from flashladder.results.schema import A_A, EmulatedCell, EmulatedSweepResult, Failure, PlannedCell, Settings, Sweep
from flashladder.sweep import plan
from flashladder.sweep.records import CellRecord
from tests.null.bench_fixture import GOOD, HOST, group, kernel, pairs, result

LD_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"

SMALL: Mapping[str, object] = {
    "why": "Two steps on two lengths, for tests of the sweep.",
    "gpu": "any",
    "iterations": [1, 16],
    "configs": "a100",
    "dtypes": ["fp16"],
    "seq_lens": [{"seq_len": 512, "batch": 2}, {"seq_len": 1024, "batch": 1}],
    "n_heads": 16,
}
SHORT = {"iterations": [7], "seq_lens": [{"seq_len": 128, "batch": 1}], "n_heads": 1}  # a CPU can check it


def grid(tmp_path: Path, facts: Mapping[str, object] = SMALL, name: str = "small") -> Grid:
    (tmp_path / f"{name}.yaml").write_text(json.dumps(facts), encoding="utf-8")
    return load_grid(name, tmp_path)


def digests(cells: Sequence[PlannedCell]) -> list[str]:
    """A made-up, stable code digest per cell."""
    return [f"code of {cell.subject} {cell.config}" for cell in cells]


EMULATED = {"mode": "emulator"}


def planned(
    tmp_path: Path, changed: Mapping[str, object] | None = None, machine: str = "h200", name: str = "small"
) -> plan.Plan:
    """The plan of the grid `SMALL` with these changes."""
    return plan.make(grid(tmp_path, {**SMALL, **(changed or {})}, name), machine, digests)


def timed(cell: PlannedCell, made: plan.Plan, seed: int = 0, **changed: object) -> CellRecord:
    """The record of a cell on a GPU, with the times of `bench_fixture`."""
    shape = Problem.model_validate(cell.shape.model_dump())
    base = group(shape=shape)
    own = kernel(int(cell.subject), cell.config, text=cell.code) if cell.config else None
    key = own.key if own else A_A
    series = base.series[0].model_copy(
        update={
            "kernel": key,
            "pairs": pairs(1.1 if own else 1.0, seed, shape),
            **({"before": GOOD, "after": GOOD} if own else {}),
        }
    )
    blocks = tuple(block.model_copy(update={"order": (key,)}) for block in base.blocks)
    document = result(base.model_copy(update={"series": (series,), "blocks": blocks})).model_copy(
        update={
            "kernels": {own.key: own} if own else {},
            "sweep": Sweep(grid=made.grid.name, grid_sha256=made.grid.sha256, planned=(cell,)),
            "settings": Settings(pairs=12, blocks=4, min_pairs=9, flush_bytes=2**28),
            **changed,
        }
    )
    return CellRecord(cell=cell, document=derive(document), lane="gpu0", attempts=1, seconds=1.0, overhead_s=0.5)


def emulated_document(cell: PlannedCell, grid: str, grid_sha256: str) -> EmulatedSweepResult:
    """A document of the emulator about one cell."""
    own = kernel(int(cell.subject), cell.config, text=None).model_copy(update={"build": cell.code})
    measured = EmulatedCell(address=cell.address, accuracy=GOOD, counters={LD_CONFLICTS: 1}, instructions=1, hazards=0)
    return EmulatedSweepResult(
        rung="CPU only", host=HOST, kernels={own.key: own}, cells=(measured,),
        sweep=Sweep(grid=grid, grid_sha256=grid_sha256, planned=(cell,)),
    )  # fmt: skip


def emulated(cell: PlannedCell, made: plan.Plan) -> CellRecord:
    """The record of a cell on the emulator."""
    document = emulated_document(cell, made.grid.name, made.grid.sha256)
    return CellRecord(cell=cell, document=document, lane="cpu0", attempts=1, seconds=1.0, overhead_s=0.1)


def failed(cell: PlannedCell) -> CellRecord:
    """The record of a cell whose worker died."""
    failure = Failure(address=cell.address, kind="crash", message="its worker ended with signal SIGSEGV", exit_code=-11)
    return CellRecord(cell=cell, failure=failure, lane="gpu0", attempts=1, seconds=1.0)


def alive(pid: int) -> bool:
    """Whether a process runs. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def canonical(record: CellRecord) -> str:
    """The parts of an emulated cell's record that two runs share: all but times, worker and attempts."""
    return record.model_dump_json(exclude={"lane", "attempts", "seconds", "overhead_s"})
