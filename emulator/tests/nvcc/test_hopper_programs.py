"""Small Hopper kernels on the emulator: the numbers of independent references, and those that a chip answered.

The kernels and their launches: tests/hopper_programs. `pytest tests/gpu` asks a chip again.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.compile import NEEDS, root
from tests.hopper_programs.answers import arrays_of, digest, read
from tests.hopper_programs.program import FILES, KERNELS, Program, mismatch, module, programs
from tests.hopper_programs.tensors import REFUSED

import ptxemu

pytestmark = [pytest.mark.nvcc, pytest.mark.skipif(not root(), reason=NEEDS)]
ANSWERS = read()


@pytest.mark.parametrize(
    ("name", "schedule"),
    [(name, order) for place, name in enumerate(programs()) for order in ("together", ("reverse", 1)[place % 2])],
)
def test_numbers_are_as_expected_and_nothing_is_reported(name: str, schedule: str | int) -> None:
    program, hazards = programs()[name], ptxemu.Hazards()
    run = program.launch(observers=(ptxemu.Counters(), hazards), schedule=schedule)
    assert (hazards.render(), program.mismatch(run)) == ("", None)


@pytest.mark.parametrize("name", programs())
def test_numbers_without_observers_are_as_expected_and_as_the_chip_answered(name: str) -> None:
    program, answer = programs()[name], ANSWERS[name]
    assert program.mismatch(program.launch()) is None
    assert (answer["error"], answer["distinct"]) == (None, 1)
    run = program.make()
    assert answer["digest"] == digest(program, run), "the chip ran another program: ask again"
    assert program.mismatch(arrays_of(answer, run)) is None


@pytest.mark.parametrize("program", REFUSED, ids=str)
def test_what_the_chip_refuses_is_an_error(program: Program) -> None:
    answer = ANSWERS[str(program)]
    assert answer["digest"] == digest(program, program.make())
    assert "ILLEGAL_INSTRUCTION" in answer["error"]
    with pytest.raises(ptxemu.EmulationError, match=r"box (that )?begins"):
        program.launch()


def test_every_kernel_has_a_launch() -> None:
    launched = {(program.file, program.kernel) for program in programs().values()}
    assert launched == {(file, name) for file in FILES for name in module(file).entries}
    assert {path.stem for path in KERNELS.glob("*.cu")} == set(FILES)


def test_a_mismatch_is_seen() -> None:
    program, wanted = programs()["bulk-load"], np.arange(4, dtype=np.float32)
    assert mismatch(program, wanted.copy(), wanted) is None
    text = mismatch(program, np.array([0, 1, 5, 3], np.float32), wanted)
    assert text == "bulk-load: 1 of 4 differ, first 2: expected 2.0, found 5.0"
