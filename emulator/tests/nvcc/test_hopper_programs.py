"""Small Hopper kernels on the emulator: the numbers of independent references, and those that a chip answered.

The kernels and their launches: tests/hopper_programs. `pytest tests/gpu` asks a chip again.
"""

import numpy as np
import pytest
from tests.compile import NEEDS, root
from tests.hopper_programs import mutation
from tests.hopper_programs.answers import arrays_of, digest, read
from tests.hopper_programs.mutation import Mutant, Verdict, judge, kernels, listed, mutants_of, verdicts
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


@pytest.mark.parametrize("file", FILES)
def test_every_deletion_is_caught_or_listed(file: str) -> None:
    names = [name for name in kernels() if name.startswith(f"{file}-")]
    assert [str(verdict) for verdict in verdicts(names) if not verdict.as_listed] == []


def test_there_are_many_and_the_list_names_only_those_that_exist() -> None:
    names = {mutant.name for program in kernels().values() for mutant in mutants_of(program)}
    assert len(names) >= 500
    assert listed().keys() <= names


def one(kernel: str, opcode: str) -> Mutant:
    return next(each for each in mutants_of(kernels()[kernel]) if each.instruction.opcode.startswith(opcode))


@pytest.mark.parametrize(
    ("kernel", "opcode", "evidence"),
    [
        ("bulk-store", "fence.proxy.async", "proxy"),
        ("bulk-ring", "mbarrier.try_wait", "error: "),
        ("bulk-store_in_turn", "cp.async.bulk.commit_group", "race: "),
        ("products-chained", "wgmma.fence", "error: "),
        ("clusters-write_next", "barrier.cluster.arrive", "error: "),
    ],
)
def test_what_gives_a_mutant_away(kernel: str, opcode: str, evidence: str) -> None:
    found = judge(one(kernel, opcode))
    assert evidence in (found.evidence or "")
    assert found.as_listed


def test_a_mutant_that_is_listed_by_mistake_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = one("bulk-store", "fence.proxy.async")
    monkeypatch.setattr(mutation, "listed", lambda: {mutant.name: "a wrong claim"})
    assert not judge(mutant).as_listed
    assert not Verdict(mutant, None, None).as_listed
