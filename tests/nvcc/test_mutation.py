"""The race detector and the adversarial copies are proven by deletion: every barrier, wait and commit is missed.

Run: pytest tests/nvcc/test_mutation.py  (0.1 s a mutant, from iteration 20 on 0.3 s; 710 of them)
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from flashladder.emulate import mutation
from flashladder.emulate.kernel import kernel_of, launch_of
from flashladder.emulate.mutation import (
    ORDERS,
    SWIZZLE,
    Equivalent,
    Mutant,
    Seen,
    alone,
    judge,
    launches_of,
    mutants_of,
    observe,
    read_equivalent,
)
from flashladder.errors import FlashladderError
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import Iteration, load_all, load_iteration
from flashladder.names import PUBLISHED_GPU
from ptxemu import Instruction
from ptxemu.syntax.tree import Immediate

pytestmark = pytest.mark.nvcc
NUMBERS = [iteration.number for iteration in load_all()]
NO_SYNCWARP = range(11, 18)  # there a barrier of the whole block orders the last reads of Q before the epilogue
CP_ASYNC = {"bar.sync", "bar.warp.sync", "cp.async.wait_group", "cp.async.commit_group"}  # up to iteration 19
TMA = {
    *("bar.sync", "barrier.cta", "mbarrier.init", "mbarrier.arrive", "mbarrier.try_wait", "fence"),
    *("cp.async.bulk.commit_group", "cp.async.bulk.wait_group"),
}
WGMMA = TMA | {"wgmma.fence", "wgmma.commit_group", "wgmma.wait_group"}
ROLES = WGMMA | {"setmaxnreg"}
KINDS = {
    20: TMA | {"bar.warp.sync"},
    21: WGMMA,
    **dict.fromkeys((22, 23, 24), ROLES),
    **dict.fromkeys((25, 26, 27), ROLES | {"bar.warp.sync"}),
    28: ROLES | {"bar.warp.sync", "barrier.cluster"},
}


def kinds(number: int) -> set[str]:
    """What there is to remove in an iteration: opcodes, or how they begin."""
    return KINDS.get(number, CP_ASYNC - ({"bar.warp.sync"} if number in NO_SYNCWARP else set()))


def kind_of(opcode: str, known: set[str]) -> str:
    """Which of them an opcode is."""
    return next((kind for kind in known if f"{opcode}.".startswith(f"{kind}.")), opcode)


@pytest.mark.slow
@pytest.mark.parametrize("number", NUMBERS)
def test_every_deletion_is_caught_and_the_kernel_itself_is_clean(number: int) -> None:
    verdicts = list(mutation.verify([number]))
    assert not [str(verdict) for verdict in verdicts if not verdict.as_listed]
    opcodes = [verdict.mutant.instruction.opcode for verdict in verdicts]
    assert (SWIZZLE in opcodes) == (number == mutation.SWIZZLED_ITERATION)
    assert {kind_of(opcode, kinds(number)) for opcode in opcodes if opcode != SWIZZLE} == kinds(number)
    for verdict in verdicts:
        assert verdict.mutant.instruction.line > 0
        if verdict.caught in ("error", "race"):
            assert "kernel.ptx:" in verdict.evidence


def test_the_list_of_equivalent_mutants_names_only_mutants_that_exist() -> None:
    listed = [(number, entry.opcode, entry.nth) for entry in read_equivalent() for number in entry.iterations]
    numbers = sorted({number for number, *_ in listed})
    known = {(n, one.instruction.opcode, one.nth) for n in numbers for one in mutants_of(load_iteration(n))}
    assert listed
    assert not set(listed) - known


def test_an_opcode_that_no_kernel_has_is_refused() -> None:
    with pytest.raises(FlashladderError, match=r"no such opcode is deleted: expected .*bar\.sync.*, found 'bar\.synk'"):
        mutation.main(["1", "--only", "bar.synk"])


def test_a_kernel_that_ships_with_a_race_in_one_order_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutants are tried in both orders, and what they are held against is, too."""
    asked = []

    def observed(iteration: Iteration, config: KernelConfig, *, schedule: str) -> tuple[Seen, ...]:
        asked.append(schedule)
        one = observe(iteration, config)
        return (replace(one[0], races=("planted",)),) if schedule == ORDERS[1] else one

    monkeypatch.setattr(mutation, "observe", observed)
    with pytest.raises(FlashladderError, match=r"iteration 4 as it ships is reported.*planted"):
        next(mutation.verify([4]))
    assert asked == list(ORDERS)


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


@pytest.mark.parametrize("number", [24, 26])
def test_other_byte_counts_than_those_that_come_are_caught(number: int) -> None:
    """An mbarrier that expects half of a tile ends its phase too early, or is told too much; one of two tiles never."""
    iteration = load_iteration(number)
    config = iteration.configs[PUBLISHED_GPU]
    kernel = kernel_of(iteration, config)
    places = [
        place
        for place, item in enumerate(kernel.function.body)
        if isinstance(item, Instruction) and item.opcode.startswith("mbarrier.arrive.expect_tx")
    ]
    assert len(places) == 4, "Q, K, V and the last V"
    for place in places:
        for count in (16384, 65536):  # bytes; a tile has 32768
            caught = judge(changed_bytes(iteration, place, count), observe_once(number), []).caught
            assert caught == "error" or (caught == "race" and count == 16384), "what is read too early is seen at once"


def changed_bytes(iteration: Iteration, place: int, count: int) -> Mutant:
    """The kernel with another number of bytes in the ``expect_tx`` at `place` of its body."""
    config = iteration.configs[PUBLISHED_GPU]
    kernel = kernel_of(iteration, config)
    body = list(kernel.function.body)
    item = body[place]
    assert isinstance(item, Instruction)
    body[place] = replace(item, operands=(*item.operands[:-1], Immediate(count)))
    return Mutant(iteration, config, item, 1, kernel.with_body(body))


def test_the_tiles_of_a_persistent_kernel_end_in_both_slots_of_its_loop() -> None:
    iteration = load_iteration(26)
    assert of_one_cta(iteration) == [(1, 4), (3, 3), (4, 4)]
    assert of_one_cta(load_iteration(24)) == [(4, 4)]


def of_one_cta(iteration: Iteration) -> list[tuple[int, int]]:
    """Blocks of a tile, and tiles, where there is one multiprocessor."""
    config = iteration.configs[PUBLISHED_GPU]
    found = launches_of(iteration, config)
    return [(one.seq_len // config.B_c, one.n_heads * one.seq_len // config.B_r) for one, count in found if count == 1]


def test_a_kernel_that_splits_tiles_is_also_observed_with_clusters_of_unlike_parts() -> None:
    iteration = load_iteration(28)
    config = iteration.configs[PUBLISHED_GPU]
    assert of_one_cta(iteration) == of_one_cta(load_iteration(27))
    (split,) = [(one, count) for one, count in launches_of(iteration, config) if count > 1]
    assert (split[0].seq_len // config.B_c, launch_of(iteration, config, *split).cluster) == (7, (3, 1, 1))
    assert alone(iteration, config, split), "each cluster has a tile of its own"
    assert not any(alone(iteration, config, one) for one in launches_of(iteration, config) if one != split)
    assert alone(load_iteration(24), load_iteration(24).configs[PUBLISHED_GPU], (split[0], 1))


def test_the_first_alone_runs_in_the_other_order_only_and_where_it_tells_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def asked_for(*_: object, first: int | None, multiprocessors: int, schedule: str, **__: object) -> None:
        asked.append((schedule, multiprocessors > 1, first))

    monkeypatch.setattr(mutation, "forward", asked_for)
    for number, expected in ((24, [(False, 1)]), (28, [(False, None)] * 3 + [(True, 1)])):
        iteration = load_iteration(number)
        for order in ORDERS:
            asked.clear()
            observe(iteration, iteration.configs[PUBLISHED_GPU], schedule=order)
            one = order == ORDERS[1]
            assert asked == [(order, several, first if one else None) for several, first in expected]


def test_numbers_of_the_first_cta_are_compared_in_the_other_order() -> None:
    """A kernel that leaves out the last block's product is as free of races, and wrong in every order."""
    iteration = load_iteration(16)
    config = iteration.configs[PUBLISHED_GPU]
    kernel = kernel_of(iteration, config)
    places = [
        place
        for place, item in enumerate(kernel.function.body)
        if isinstance(item, Instruction) and item.opcode.startswith("mma.sync")
    ]
    body = [item for place, item in enumerate(kernel.function.body) if place != places[-1]]
    item = kernel.function.body[places[-1]]
    assert isinstance(item, Instruction)
    mutant = Mutant(iteration, config, item, 1, kernel.with_body(body))
    (planned,) = launches_of(iteration, config)
    shape = planned[0]
    for order in ORDERS:
        caught, evidence = mutation._given_away(mutant, planned, observe_once(16)[0], order)
        assert caught == "numbers"
        rows = shape.seq_len if order == ORDERS[0] else config.B_r
        assert evidence.endswith(f" of {rows * shape.d_head} elements of O differ")


@cache
def observe_once(number: int) -> tuple[Seen, ...]:
    iteration = load_iteration(number)
    return observe(iteration, iteration.configs[PUBLISHED_GPU])


def test_a_malformed_list_is_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "equivalent_mutants.yaml"
    broken.write_text("- iterations: [1]\n  opcode: bar.sync\n")
    with pytest.raises(FlashladderError) as caught:
        read_equivalent(broken)
    assert "\n" not in str(caught.value)
