"""A cell on the emulator and on a simulated GPU: its document, who else is there, what is wrong or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flashladder.bench import references
from flashladder.bench.references import Subject
from flashladder.bench.timing import bench_group, prepare
from flashladder.build.wheel import Installed
from flashladder.cases.inputs import Tensors, make_tensors
from flashladder.ladder.iteration import load_iteration
from flashladder.results.derive import problems
from flashladder.results.schema import A_A, BenchResult, PlannedCell, Reference
from flashladder.sweep import measure, plan, workers
from flashladder.sweep.records import CellFailed
import ptxemu
from ptxemu.errors import EmulationError
from tests.null.bench.test_bench import FakeGpu
from tests.null.bench_fixture import GPU, result
from tests.null.check.test_check import attention
from tests.null.sweep_fixture import digests, grid

ONE = """\
why: One step on a length that a CPU can check, for tests.
gpu: any
mode: emulator
iterations: [7]
configs: a100
dtypes: [fp16]
seq_lens:
  - {seq_len: 128, batch: 1}
n_heads: 1
"""


class Emulated:
    """What the kernel does with the output, beside the right answer, and what the race detector says."""

    spoil: Callable[[torch.Tensor], object] = staticmethod(lambda _: None)
    tensors: Tensors

    def __init__(self) -> None:
        self.races: list[object] = []

    def forward(self, *_: object, observers: object) -> Any:
        del observers
        self.tensors.out.copy_(attention(self.tensors.q, self.tensors.k, self.tensors.v))
        self.spoil(self.tensors.out)
        return SimpleNamespace(seconds=0.25)

    def drawn(self, *about: Any) -> Tensors:
        self.tensors = make_tensors(*about)
        return self.tensors


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Emulated:
    found = Emulated()
    monkeypatch.setattr(measure, "forward", found.forward)
    monkeypatch.setattr(measure, "make_tensors", found.drawn)
    monkeypatch.setattr(measure, "tools_of", lambda: SimpleNamespace(ptx_versions={"nvcc": "13.0.88"}))
    monkeypatch.setattr(ptxemu, "Hazards", lambda: SimpleNamespace(reports=found.races))
    counted = SimpleNamespace(as_dict=lambda: {"loads": 3.0, "smem_op_atom": 0.0}, warp_instructions=9)
    monkeypatch.setattr(ptxemu, "Counters", lambda: counted)
    return found


@pytest.fixture
def one_cell(tmp_path: Path) -> plan.Plan:
    return plan.make(grid(tmp_path, ONE), "cpu", digests)


def emulated_cell(made: plan.Plan) -> Any:
    (cell,) = made.cells
    return measure.emulated(cell, {"grid": made.grid.name, "grid_sha256": made.grid.sha256})


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
    emulated: Emulated, one_cell: plan.Plan, spoil: Callable[[torch.Tensor], object], kind: str, message: str
) -> None:
    emulated.spoil = spoil
    if spoil is race:
        emulated.races.append(SimpleNamespace(render=lambda: "read after write\n  by another thread"))
    with pytest.raises(CellFailed, match=message) as caught:
        emulated_cell(one_cell)
    assert caught.value.kind == kind


CODE = "ab" * 32
TEXT = """\
why: One step and a reference on lengths that a CPU can check, for tests.
gpu: any
iterations: [7]
configs: a100
dtypes: [fp16, bf16]
references: [cudnn]
seq_lens:
  - {seq_len: 128, batch: 1}
  - {seq_len: 256, batch: 1}
n_heads: 1
"""
Change = Callable[[torch.Tensor], object]


@dataclass
class Machine:
    """A simulated GPU with a session on it; `others` are the processes seen at each look, then nobody."""

    made: plan.Plan
    gpu: FakeGpu = field(default_factory=FakeGpu)
    others: list[int | None] = field(default_factory=list)
    kernel_ms: float = 1.6
    spoil: Change = lambda _: None
    told: list[Mapping[str, Any]] = field(default_factory=list)

    def foreign_processes(self, *, own_context: bool) -> int | None:
        assert own_context
        return self.others.pop(0) if self.others else 0

    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, _: str) -> None:
        self.gpu.now += self.kernel_ms
        out.copy_(attention(q, k, v))
        self.spoil(out)

    def cell(self, subject: str, dtype: str = "fp16", seq_len: int = 128) -> PlannedCell:
        cells = (one for one in self.made.cells if (one.subject, one.dtype) == (subject, dtype))
        return next(one for one in cells if one.shape.seq_len == seq_len)

    def request(self, cell: PlannedCell, mode: str = "event-free") -> dict[str, Any]:
        settings = replace(self.made.settings, mode=mode)
        return {
            **plan.request_of(self.made, cell, settings, plan.pairs_of(settings.pairs)),
            "tell": self.told.append,
        }


@dataclass(frozen=True)
class Opened:
    """What the session asks of an open GPU."""

    telemetry: Machine
    gpu: object = GPU
    host: object = field(default_factory=lambda: result().host)
    rung: str = "GPU"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """FA2 takes 2 ms, the kernel a right 1.6 ms; cuDNN is FA2 again."""
    found = Machine(plan.make(grid(tmp_path, TEXT), "h200", lambda cells: [CODE] * len(cells)))

    def reference(*_: torch.Tensor) -> None:
        found.gpu.now += 2.0

    def beside(name: str, dtype: str) -> Subject:
        return Subject(name, dtype, lambda on: found.run(on.q, on.k, on.v, on.out, ""))

    def load(_: str, __: str) -> Installed:
        forms = {cell.config for cell in found.made.cells if cell.config}
        return Installed(7, found.run, {"kernels": {form: {"sm_90": {"text_sha256": CODE}} for form in forms}})

    def identity(kernels: Mapping[str, str], name: str = "fa2") -> Reference:
        return result().reference.model_copy(update={"op": name, "kernels": dict(kernels)})

    opened = Opened(found, GPU.model_copy(update={"name": "NVIDIA H200"}))
    for name, value in {
        "open_device": lambda: opened,
        "cuda_hardware": lambda *_: (found.gpu.hardware(), 2**28),
        "_loaded": load,
        "prepare": partial(prepare, device="cpu"),
        "bench_group": partial(bench_group, reference=reference),
        "reference_identity": identity,
        "reference_subject": beside,
        "lacking": lambda *_: None,
        "LOOK_S": 0.0,
    }.items():
        monkeypatch.setattr(measure, name, value)
    monkeypatch.setattr(opened.telemetry, "sample", found.gpu.sample, raising=False)
    monkeypatch.setattr(references, "reference_kernel", lambda dtype, name: f"{name} in {dtype}")
    return found


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
    assert [kernel.text_sha256 for kernel in document.kernels.values()] == [CODE]
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
    machine.others = [2, 1, 0, 3]
    (document,) = measured(machine, machine.cell("7"))
    assert machine.told == [{"event": "held-back", "others": 2}, {"event": "held-back", "others": 1}]
    assert (document.processes[0].foreign_before, document.processes[0].foreign_after) == (0, 3)
    machine.others = [None, None]
    (unknown,) = measured(machine, machine.cell("7"))
    assert unknown.processes[0].foreign_before is None
    monkeypatch.setattr(measure, "HELD_BACK_S", -1.0)
    machine.others = [3] * 9
    with pytest.raises(CellFailed, match=r"^3 other processes still used this GPU") as caught:
        measured(machine, machine.cell("7"))
    assert caught.value.kind == "refused"


def test_other_machine_code_than_was_planned_is_not_timed(machine: Machine) -> None:
    cell = machine.cell("7").model_copy(update={"code": "cd" * 32})
    with pytest.raises(CellFailed, match="the installed machine code differs from the planned one: expected cdcdcd"):
        measured(machine, cell)
    assert machine.gpu.log == []


def moody(launches: int) -> Change:
    """Right so many times, then one bit is another."""
    done = []

    def change(out: torch.Tensor) -> None:
        done.append(1)
        if len(done) > launches:
            out.view(torch.int16)[0, 0, 0, 0] ^= 1

    return change


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (torch.Tensor.zero_, "wrong before timing: max error "),
        (lambda out: out[0, 0, 0].fill_(float("nan")), "wrong before timing: max error NaN (allowed "),
        (moody(1), "wrote other bits after timing than before"),
    ],
    ids=["zeros", "nan", "moody"],
)
def test_wrong_numbers_are_told_as_wrong(machine: Machine, spoil: Change, message: str) -> None:
    machine.spoil = spoil
    found = workers.answer(measure.Session().measure, machine.request(machine.cell("7")))
    assert found["kind"] == "wrong"
    assert message in found["message"]


def test_a_time_that_no_gpu_can_have_is_wrong(machine: Machine) -> None:
    machine.kernel_ms = 1e-9
    found = workers.answer(measure.Session().measure, machine.request(machine.cell("7")))
    assert found["kind"] == "wrong"


@pytest.mark.parametrize("changed", ["version", "rule", "_ptx_digest"])
def test_another_emulator_rule_or_ptx_is_another_code(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_iteration(7).configs["a100"].short_form()
    for name in ("version", "rule", "_ptx_digest"):
        monkeypatch.setattr(measure, name, lambda *_, name=name: name)
    measure._machine_version.cache_clear()
    before = measure.code_digest("7", config)
    monkeypatch.setattr(measure, changed, lambda *_: "another")
    measure._machine_version.cache_clear()
    assert measure.code_digest("7", config) != before
    measure._machine_version.cache_clear()
