"""The race detector and the adversarial copies are proven by deletion: every barrier, wait and commit is missed.

Run: pytest tests/nvcc/test_mutation.py  (0.2 s a mutant, 490 of them)
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flashladder.emulate import mutation
from flashladder.emulate.mutation import DELETED, SWIZZLE, Equivalent, judge, mutants_of, observe, read_equivalent
from flashladder.emulator import EmulationError
from flashladder.errors import FlashladderError
from flashladder.ladder.iteration import load_all, load_iteration
from flashladder.names import PUBLISHED_GPU

pytestmark = pytest.mark.nvcc
NUMBERS = [iteration.number for iteration in load_all()]
NO_SYNCWARP = range(11, 18)  # there a barrier of the whole block orders the last reads of Q before the epilogue
CP_ASYNC = {"bar.sync", "bar.warp.sync", "cp.async.wait_group", "cp.async.commit_group"}  # up to iteration 19
TMA = {
    *("bar.sync", "barrier.cta", "mbarrier.init", "mbarrier.arrive", "mbarrier.try_wait", "fence"),
    *("cp.async.bulk.commit_group", "cp.async.bulk.wait_group"),
}
WGMMA = TMA | {"wgmma.fence", "wgmma.commit_group", "wgmma.wait_group"}
KINDS = {20: TMA | {"bar.warp.sync"}, 21: WGMMA} | dict.fromkeys((22, 23, 24), WGMMA | {"setmaxnreg"})


def kinds(number: int) -> set[str]:
    """What there is to delete in an iteration, as `DELETED` has it."""
    return KINDS.get(number, CP_ASYNC - ({"bar.warp.sync"} if number in NO_SYNCWARP else set()))


@pytest.mark.slow
@pytest.mark.parametrize("number", NUMBERS)
def test_every_deletion_is_caught_and_the_kernel_itself_is_clean(number: int) -> None:
    verdicts = list(mutation.verify([number]))
    assert not [str(verdict) for verdict in verdicts if not verdict.as_listed]
    opcodes = [verdict.mutant.instruction.opcode for verdict in verdicts]
    assert (SWIZZLE in opcodes) == (number == mutation.SWIZZLED_ITERATION)
    assert {kind for kind in DELETED if any(f"{opcode}.".startswith(f"{kind}.") for opcode in opcodes)} == kinds(number)
    for verdict in verdicts:
        assert verdict.mutant.instruction.line > 0
        if verdict.caught in ("error", "race"):
            assert "kernel.ptx:" in verdict.evidence


def test_without_the_syncwarp_before_q_iteration_1_races() -> None:
    mutant = next(m for m in mutants_of(load_iteration(1)) if m.instruction.opcode == "bar.warp.sync")
    race = mutation.observe(mutant.iteration, mutant.config, mutant.kernel).races[0]
    assert "RAW" in race
    assert "ldmatrix" in race
    assert "flash_fwd_runtime_offsets.cuh" in race


def test_the_list_of_equivalent_mutants_names_only_mutants_that_exist() -> None:
    for entry in read_equivalent():
        for number in entry.iterations:
            found = [(mutant.instruction.opcode, mutant.nth) for mutant in mutants_of(load_iteration(number))]
            assert (entry.opcode, entry.nth) in found


def test_a_mutant_listed_by_mistake_is_reported() -> None:
    iteration = load_iteration(1)
    mutant = next(m for m in mutants_of(iteration) if m.instruction.opcode == "bar.sync")
    listed = [Equivalent(iterations=(1,), opcode="bar.sync", nth=1, reason="a wrong claim")]
    verdict = judge(mutant, observe(iteration, iteration.configs[PUBLISHED_GPU]), listed)
    assert verdict.caught == "race"
    assert not verdict.as_listed
    assert str(verdict).startswith("WRONG")


def test_a_mutant_that_nothing_catches_is_reported() -> None:
    iteration = load_iteration(4)
    mutant = next(iter(mutants_of(iteration)))
    assert mutant.instruction.opcode == "cp.async.commit_group"
    verdict = judge(mutant, observe(iteration, iteration.configs[PUBLISHED_GPU]), [])
    assert verdict.caught is None
    assert "not caught" in str(verdict)


def test_without_the_swizzle_the_bank_conflicts_of_iteration_1_appear() -> None:
    linear, swizzled = (observe(load_iteration(n), load_iteration(n).configs[PUBLISHED_GPU]) for n in (1, 2))
    assert swizzled.conflicts == 0
    assert linear.conflicts > 100_000
    assert (linear.out == swizzled.out).all()


def test_a_launch_that_does_not_fit_is_an_error_of_its_own() -> None:
    iteration = load_iteration(1)
    config = replace(iteration.configs[PUBLISHED_GPU], B_r=128)
    mutant = next(iter(mutants_of(iteration)))
    with pytest.raises((EmulationError, FlashladderError)):
        observe(iteration, config, mutant.kernel)


def test_a_malformed_list_is_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "equivalent_mutants.yaml"
    broken.write_text("- iterations: [1]\n  opcode: bar.sync\n")
    with pytest.raises(FlashladderError) as caught:
        read_equivalent(broken)
    assert "\n" not in str(caught.value)
