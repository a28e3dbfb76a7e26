"""Small Hopper kernels on the emulator: the numbers of independent references, and those that a chip answered.

The kernels and their launches: tests/hopper_programs. A chip is asked again by tests/gpu/test_hopper_programs_gpu.py.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.hopper_programs.answers import Answer, read
from tests.hopper_programs.export import digest
from tests.hopper_programs.program import FILES, HERE, KERNELS, Program, Run, kernel, mismatch, module, programs, ptx
from tests.hopper_programs.tensors import REFUSED

from flashladder.errors import FlashladderError
import ptxemu

pytestmark = pytest.mark.nvcc
ANSWERED = 112  # programs that a chip must have answered


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    try:
        for file in FILES:
            ptx(file)
    except FlashladderError as error:
        pytest.skip(f"needs the toolchain: {error}")


def run(program: Program, *observers: ptxemu.Counters | ptxemu.Hazards, **options: Any) -> Run:
    """One launch on the emulator."""
    made = program.make()
    kernel(program.file, program.kernel).launch(
        program.grid,
        program.threads,
        made.arguments,
        shared_bytes=program.shared_bytes,
        cluster=None if max(program.cluster) == 1 else program.cluster,
        observers=observers,
        **options,
    )
    return made


@cache
def answers() -> dict[str, Answer]:
    """What a chip said."""
    return read()


@pytest.mark.parametrize("name", programs())
def test_the_emulator_computes_what_is_expected(name: str) -> None:
    program = programs()[name]
    found = run(program)
    assert [mismatch(program, *each) for each in found.results] == [None] * len(found.results)


@pytest.mark.parametrize(
    ("name", "schedule"),
    [(name, order) for place, name in enumerate(programs()) for order in ("together", ("reverse", 1)[place % 2])],
)
def test_nothing_is_reported(name: str, schedule: str | int) -> None:
    program, hazards = programs()[name], ptxemu.Hazards()
    found = run(program, ptxemu.Counters(), hazards, schedule=schedule)
    assert hazards.render() == ""
    assert [mismatch(program, *each) for each in found.results] == [None] * len(found.results)


@pytest.mark.parametrize("name", sorted(answers().keys() - set(map(str, REFUSED))))
def test_the_chip_agrees(name: str) -> None:
    program, answer = programs()[name], answers()[name]
    made = program.make()
    assert (answer.error, answer.distinct) == (None, 1)
    assert answer.digest == digest(program, made), "the program is another one than that which the chip ran: ask again"
    wanted = tuple(each for _, each in made.results)
    found = zip(answer.arrays(wanted), wanted, strict=True)
    assert [mismatch(program, *each) for each in found] == [None] * len(wanted)


@pytest.mark.parametrize("program", REFUSED, ids=str)
def test_what_the_chip_refuses_is_an_error(program: Program) -> None:
    answer = answers()[str(program)]
    assert answer.digest == digest(program, program.make())
    assert "ILLEGAL_INSTRUCTION" in (answer.error or "")
    with pytest.raises(ptxemu.EmulationError, match=r"box (that )?begins"):
        run(program)


def test_enough_programs_were_answered() -> None:
    answered = programs().keys() & answers().keys()
    assert len(answered) >= ANSWERED
    assert {name.split("-")[0] for name in answered} == set(FILES)


def test_every_kernel_has_a_launch() -> None:
    launched = {(program.file, program.kernel) for program in programs().values()}
    assert launched == {(file, name) for file in FILES for name in module(file).entries}
    assert {path.stem for path in KERNELS.glob("*.cu")} == set(FILES)
    assert {path.stem for path in HERE.glob("*.py")} >= set(FILES)


def test_a_mismatch_is_seen() -> None:
    program = programs()["bulk-load"]
    wanted = np.arange(4, dtype=np.float32)
    assert mismatch(program, wanted.copy(), wanted) is None
    text = mismatch(program, np.array([0, 1, 5, 3], np.float32), wanted)
    assert text == "bulk-load: 1 of 4 differ, first 2: expected 2.0, found 5.0"
