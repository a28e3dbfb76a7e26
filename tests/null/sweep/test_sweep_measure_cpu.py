"""A cell of the emulator where the emulator is a function of the test: what fails, and what its code digest holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flashladder.cases.inputs import Tensors, make_tensors
from flashladder.ladder.iteration import load_iteration
from flashladder.sweep import plan
from flashladder.sweep.lanes.failures import CellFailed
from flashladder.sweep.measure import cpu as measure_cpu
import ptxemu
from ptxemu.errors import EmulationError
from tests.null.check.test_check_null import attention
from tests.null.sweep_fixture import digests, grid

TEXT = """\
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
    monkeypatch.setattr(measure_cpu, "forward", found.forward)
    monkeypatch.setattr(measure_cpu, "make_tensors", found.drawn)
    monkeypatch.setattr(measure_cpu, "tools_of", lambda: SimpleNamespace(ptx_versions={"nvcc": "13.0.88"}))
    monkeypatch.setattr(ptxemu, "Hazards", lambda: SimpleNamespace(reports=found.races))
    counted = SimpleNamespace(as_dict=lambda: {"loads": 3.0, "smem_op_atom": 0.0}, warp_instructions=9)
    monkeypatch.setattr(ptxemu, "Counters", lambda: counted)
    return found


@pytest.fixture
def made(tmp_path: Path) -> plan.Plan:
    return plan.make(grid(tmp_path, TEXT), "cpu", digests)


def measured(made: plan.Plan) -> Any:
    (cell,) = made.cells
    return measure_cpu.measure(cell, made.grid.name, made.grid.sha256)


def test_a_right_cell_is_a_document_about_itself(emulated: Emulated, made: plan.Plan) -> None:
    document, seconds = measured(made)
    assert emulated.tensors.out.shape == (1, 128, 1, 128)
    assert seconds == 0.25
    assert document.sweep.planned == made.cells
    assert [(one.address, one.accuracy.ok, one.hazards) for one in document.cells] == [(made.cells[0].address, True, 0)]
    assert [(one.instructions, one.counters) for one in document.cells] == [(9, {"loads": 3})]
    assert [kernel.build for kernel in document.kernels.values()] == [made.cells[0].code]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (torch.Tensor.zero_, r"^max error [0-9.e-]+ \(allowed [0-9.e-]+\), relative RMS 1 \(allowed [0-9.e-]+\)$"),
        (lambda out: out[0, 0, 0].fill_(float("nan")), r"^max error NaN \(allowed "),
    ],
    ids=["zeros", "nan"],
)
def test_wrong_numbers_are_wrong(
    emulated: Emulated, made: plan.Plan, spoil: Callable[[torch.Tensor], object], message: str
) -> None:
    emulated.spoil = spoil
    with pytest.raises(CellFailed, match=message) as caught:
        measured(made)
    assert caught.value.kind == "wrong"


def test_right_numbers_that_hang_on_the_order_of_threads_are_wrong(emulated: Emulated, made: plan.Plan) -> None:
    emulated.races = [SimpleNamespace(render=lambda: "read after write\n  by another thread")]
    with pytest.raises(CellFailed, match=r"^read after write by another thread$") as caught:
        measured(made)
    assert caught.value.kind == "wrong"


def test_a_kernel_that_does_what_it_may_not_is_a_crash(emulated: Emulated, made: plan.Plan) -> None:
    def fall(_: torch.Tensor) -> None:
        raise EmulationError("address", "a read\noutside of any allocation")

    emulated.spoil = fall
    with pytest.raises(CellFailed, match="a read outside of any allocation") as caught:
        measured(made)
    assert caught.value.kind == "crash"


@pytest.mark.parametrize("changed", ["version", "rule", "_ptx_digest"])
def test_another_emulator_rule_or_ptx_is_another_code(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_iteration(7).configs["a100"].short_form()
    for name in ("version", "rule", "_ptx_digest"):
        monkeypatch.setattr(measure_cpu, name, lambda *_, name=name: name)
    measure_cpu._machine_version.cache_clear()
    before = measure_cpu.code_digest("7", config)
    monkeypatch.setattr(measure_cpu, changed, lambda *_: "another")
    measure_cpu._machine_version.cache_clear()
    assert measure_cpu.code_digest("7", config) != before
    measure_cpu._machine_version.cache_clear()
