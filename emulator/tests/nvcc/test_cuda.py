"""Ordinary CUDA kernels, compiled in four ways, run on the emulator: right numbers, no race reported.

Run: pytest tests/nvcc/test_cuda.py
"""

from functools import cache

import numpy as np
import pytest
from tests.compile import NEEDS, root
from tests.cuda_programs.program import SOURCES, VARIANTS, compiled, programs

import ptxemu
from ptxemu.errors import EmulationError

pytestmark = [pytest.mark.nvcc, pytest.mark.skipif(not root(), reason=NEEDS)]

CASES = {program.kernel: (source, program) for source in SOURCES for program in programs(source)}
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum"


@cache
def load(source: str, variant: str) -> ptxemu.Program:
    return ptxemu.load(compiled(source, variant))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", CASES)
def test_program(name: str, variant: str) -> None:
    source, program = CASES[name]
    hazards, counters, arguments = ptxemu.Hazards(), ptxemu.Counters(), program.copies()
    kernel = load(source, variant).kernel(name)
    observers = (hazards, counters)
    kernel.launch(program.grid, program.block, arguments, shared_bytes=program.shared_bytes, observers=observers)
    assert program.problems(arguments, variant) == []
    assert list(hazards.reports) == []
    if program.conflicts is not None and variant == "release":
        assert sum(counters.as_dict()[CONFLICTS.format(each)] for each in ("ld", "st")) == program.conflicts


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_plain_read_beside_atomics_is_a_race(variant: str) -> None:
    hazards, best = ptxemu.Hazards(), np.zeros(1, np.float32)
    values = np.arange(128, dtype=np.float32)
    load("reductions", variant).kernel("maximum_racy").launch((2,), (64,), (values, best), observers=[hazards])
    assert best == 127
    assert {(report.kind, report.space) for report in hazards.reports} == {("WAR", "global")}
    assert all(report.second.opcode.startswith("atom") for report in hazards.reports)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("prints", "call of vprintf.* a function that has a body in this module"),
        ("recursion", "call of _Z9fibonaccii.* does not call itself.* write recursion as a loop"),
        ("allocates", "call of malloc"),
        ("wmma_product", r"instruction wmma\.\S+ is not supported"),
    ],
)
def test_unsupported(name: str, message: str, variant: str) -> None:
    kernel = load("unsupported", variant).kernel(name)
    arguments = [np.zeros((16, 16), np.uint16)] * (len(kernel.function.parameters) - 1) + [np.zeros((16, 16), "f4")]
    with pytest.raises(EmulationError, match=message) as caught:
        kernel.launch((1,), (32,), arguments)
    assert caught.value.kind == "unsupported"
    assert caught.value.line


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_failed_assertion_stops_with_its_text(variant: str) -> None:
    values = np.arange(32, dtype=np.int32)
    values[7] = -1
    with pytest.raises(EmulationError, match=r"assertion failed: in\[threadIdx.x\] >= 0, thread 7 ") as caught:
        load("structs", variant).kernel("asserted").launch((1,), (32,), (values, np.zeros_like(values)))
    assert caught.value.kind == "trap"
