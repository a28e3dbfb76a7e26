"""A cell on the emulator and on a simulated GPU: its document, who else is there, what is wrong or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flashladder.results.derive import problems
from flashladder.results.schema import A_A, BenchResult, PlannedCell
from flashladder.sweep import measure, plan, workers
from flashladder.sweep.records import CellFailed
import ptxemu
from ptxemu.errors import EmulationError
from tests.null.check.test_check import attention
from tests.null.simulated_gpu import SimulatedGpu
from tests.null.sweep_fixture import EMULATED, SHORT, planned

Change = Callable[[torch.Tensor], object]


@pytest.fixture
def one_cell(tmp_path: Path) -> plan.Plan:
    return planned(tmp_path, SHORT | EMULATED, "cpu")


def fall(_: torch.Tensor) -> None:
    raise EmulationError("address", "a read\noutside of any allocation")


def race(_: torch.Tensor) -> None:
    """Right numbers, which depend on the order of threads."""


@pytest.mark.parametrize(
    ("spoil", "kind", "message"),
    [
        (torch.Tensor.zero_, "wrong", r"^max error [0-9.e-]+ \(allowed [0-9.e-]+\), relative RMS 1 \(allowed "),
        (lambda out: out[0, 0, 0].fill_(float("nan")), "wrong", r"^max error NaN \(allowed "),
        (race, "wrong", "^read after write by another thread$"),
        (fall, "crash", "a read outside of any allocation"),
    ],
    ids=["zeros", "nan", "race", "fall"],
)
def test_wrong_numbers_races_and_crashes_are_told_apart(
    one_cell: plan.Plan, monkeypatch: pytest.MonkeyPatch, spoil: Change, kind: str, message: str
) -> None:
    reports = [SimpleNamespace(render=lambda: "read after write\n  by another thread")] if spoil is race else []

    def forward(_: object, __: object, tensors: Sequence[torch.Tensor], observers: object) -> Any:
        q, k, v, out = tensors
        out.copy_(attention(q, k, v))
        spoil(out)
        return SimpleNamespace(seconds=0.25)

    monkeypatch.setattr(measure, "forward", forward)
    monkeypatch.setattr(measure, "as_arrays", lambda *tensors: tensors)
    monkeypatch.setattr(ptxemu, "Hazards", lambda: SimpleNamespace(reports=reports))
    (cell,) = one_cell.cells
    with pytest.raises(CellFailed, match=message) as caught:
        measure.emulated(cell, {"grid": one_cell.grid.name, "grid_sha256": one_cell.grid.sha256})
    assert caught.value.kind == kind


@dataclass
class Machine:
    """A plan, and the GPU that measures it; `events` are those that its sessions sent."""

    made: plan.Plan
    gpu: SimulatedGpu
    events: list[Mapping[str, Any]] = field(default_factory=list)

    def cell(self, subject: str, dtype: str = "fp16") -> PlannedCell:
        return next(cell for cell in self.made.cells if (cell.subject, cell.dtype) == (subject, dtype))

    def request(self, cell: PlannedCell, mode: str = "event-free") -> dict[str, Any]:
        settings = replace(self.made.settings, mode=mode)
        pairs = plan.pairs_of(settings.pairs)
        return {**plan.request_of(self.made, cell, settings, pairs), "tell": self.events.append}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    gpu = SimulatedGpu()
    gpu.plug_in(monkeypatch.setattr)
    return Machine(planned(tmp_path, SHORT | {"dtypes": ["fp16", "bf16"], "references": ["cudnn"]}), gpu)


def measured(machine: Machine, *cells: PlannedCell, mode: str = "event-free") -> list[BenchResult]:
    """The documents of cells by one warm session."""
    session = measure.Session()
    return [session.measure(cell, machine.request(cell, mode))[0] for cell in cells]


def keys(document: BenchResult) -> Sequence[str]:
    return [series.kernel for group in document.groups for series in group.series]


def test_a_kernels_document_is_about_its_cell_and_holds(machine: Machine) -> None:
    cell = machine.cell("7")
    (document,) = measured(machine, cell)
    assert problems(document) == []
    assert keys(document) == list(document.kernels)
    assert [kernel.text_sha256 for kernel in document.kernels.values()] == [cell.code]
    assert document.sweep
    assert document.sweep.planned == (cell,)
    assert (document.purpose, document.references) == ("report", {})
    assert (document.processes[0].foreign_before, document.processes[0].foreign_after) == (0, 0)
    (series,) = document.groups[0].series
    assert {round(pair.reference_us / pair.kernel_us, 3) for pair in series.pairs} == {1.25}
    assert measured(machine, cell, mode="tune")[0].purpose == "tune"


def test_references_are_named_with_their_kernel_of_the_cells_dtype(machine: Machine) -> None:
    cells = [machine.cell(name, dtype) for name in ("fa2", "cudnn") for dtype in ("fp16", "bf16")]
    found = measured(machine, *cells)
    assert [keys(document) for document in found] == [[A_A], [A_A], ["cudnn"], ["cudnn"]]
    assert [document.kernels for document in found] == [{}] * 4
    assert [document.reference.kernels for document in found[:2]] == [{"fp16": "fa2 in fp16"}, {"bf16": "fa2 in bf16"}]
    assert [document.references["cudnn"].kernels for document in found[2:]] == [
        {"fp16": "cudnn in fp16"}, {"bf16": "cudnn in bf16"}
    ]  # fmt: skip


def test_a_cell_waits_until_nobody_else_uses_the_gpu(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.gpu.others = [2, 1, 0, 3]
    (document,) = measured(machine, machine.cell("7"))
    assert machine.events == [{"event": "held-back", "others": 2}, {"event": "held-back", "others": 1}]
    assert (document.processes[0].foreign_before, document.processes[0].foreign_after) == (0, 3)
    machine.gpu.others = [None, None]
    (unknown,) = measured(machine, machine.cell("7"))
    assert unknown.processes[0].foreign_before is None
    monkeypatch.setattr(measure, "HELD_BACK_S", -1.0)
    machine.gpu.others = [3] * 9
    with pytest.raises(CellFailed, match=r"^3 other processes still used this GPU") as caught:
        measured(machine, machine.cell("7"))
    assert caught.value.kind == "refused"


def test_other_machine_code_than_was_planned_is_not_timed(machine: Machine) -> None:
    cell = machine.cell("7").model_copy(update={"code": "cd" * 32})
    with pytest.raises(CellFailed, match="the installed machine code differs from the planned one: expected cdcdcd"):
        measured(machine, cell)
    assert not machine.gpu.launches
    assert machine.gpu.log == []


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (None, "the GPU's peaks allow"),
        (torch.Tensor.zero_, "wrong before timing: max error "),
        (lambda out: out[0, 0, 0].fill_(float("nan")), "wrong before timing: max error NaN (allowed "),
        (lambda out: out.view(torch.int16)[0, 0, 0, 0].bitwise_xor_(1), "wrote other bits after timing than before"),
    ],
    ids=["fast", "zeros", "nan", "moody"],
)
def test_wrong_numbers_and_impossible_times_are_wrong(machine: Machine, spoil: Change | None, message: str) -> None:
    first = 2 if "after timing" in message else 1
    if spoil:
        machine.gpu.spoil = lambda _, launch, out: spoil(out) if launch >= first else None
    else:
        machine.gpu.kernel_ms = lambda _: 1e-9
    found = workers.answer(measure.Session().measure, machine.request(machine.cell("7")))
    assert found["kind"] == "wrong"
    assert message in found["message"]


@pytest.mark.parametrize("changed", ["version", "rule_digest", "ptx_sha256"])
def test_another_emulator_rule_or_ptx_is_another_code(
    one_cell: plan.Plan, changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tools_of", "read_ptx", "version", "rule_digest", "ptx_sha256"):
        monkeypatch.setattr(measure, name, lambda *_, name=name: name)
    stored = SimpleNamespace(is_complete=True, ptx="kernel.ptx")
    monkeypatch.setattr(measure, "ptx_planned", lambda *_: stored)
    (before,) = measure.known_digests(one_cell.cells)
    monkeypatch.setattr(measure, changed, lambda *_: "another")
    assert measure.known_digests(one_cell.cells) != [before]
    stored.is_complete = False
    assert measure.known_digests(one_cell.cells) == [""]
