"""Deletion of each barrier, wait and commit proves the race detector and the adversarial copies of the emulator."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from flashladder.emulate import mutation
from flashladder.emulate.kernel import kernel_of
from flashladder.emulate.mutation import ORDERS, SWIZZLE, Equivalent, Mutant, Seen, judge, mutants_of, observe
from flashladder.errors import FlashladderError
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import Iteration, load_all, load_iteration
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
    **dict.fromkeys((29, 30, 31, 32, 33), ROLES | {"bar.warp.sync"}),
}


def kinds(number: int) -> set[str]:
    """The opcodes that mutants of an iteration delete, or their prefixes."""
    return KINDS.get(number, CP_ASYNC - ({"bar.warp.sync"} if number in NO_SYNCWARP else set()))


def kind_of(opcode: str, known: set[str]) -> str:
    """The `known` kind of an opcode; the opcode itself if it has none."""
    return next((kind for kind in known if f"{opcode}.".startswith(f"{kind}.")), opcode)


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
    listed = [(number, entry.opcode, entry.nth) for entry in mutation.read_equivalent() for number in entry.iterations]
    numbers = sorted({number for number, *_ in listed})
    known = {(n, one.instruction.opcode, one.nth) for n in numbers for one in mutants_of(load_iteration(n))}
    assert listed
    assert not set(listed) - known


def test_an_opcode_that_no_kernel_has_is_refused() -> None:
    with pytest.raises(FlashladderError, match=r"no such opcode is deleted: expected .*bar\.sync.*, found 'bar\.synk'"):
        mutation.main(["1", "--only", "bar.synk"])


def test_a_kernel_that_ships_with_a_race_in_one_order_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel itself runs in both orders, like its mutants."""
    asked = []

    def observed(iteration: Iteration, config: KernelConfig, *, schedule: str) -> tuple[Seen, ...]:
        asked.append(schedule)
        one = observe(iteration, config)
        return (replace(one[0], races=("planted",)),) if schedule == ORDERS[1] else one

    monkeypatch.setattr(mutation, "observe", observed)
    with pytest.raises(FlashladderError, match=r"iteration 4 as it ships is reported.*planted"):
        next(mutation.verify([4]))
    assert asked == list(ORDERS)


def test_a_verdict_that_is_not_as_listed_is_wrong() -> None:
    mutant = next(m for m in mutants_of(load_iteration(1)) if m.instruction.opcode == "bar.sync")
    listed = [Equivalent(iterations=(1,), opcode="bar.sync", nth=1, reason="a wrong claim")]
    verdict = judge(mutant, observed_once(1), listed)
    assert verdict.caught == "race"
    assert str(verdict).startswith("WRONG")
    mutant = next(iter(mutants_of(load_iteration(4))))
    assert mutant.instruction.opcode == "cp.async.commit_group"
    verdict = judge(mutant, observed_once(4), [])
    assert (verdict.caught, verdict.as_listed) == (None, False)
    assert "not caught" in str(verdict)


@cache
def observed_once(number: int) -> tuple[Seen, ...]:
    iteration = load_iteration(number)
    return observe(iteration, mutation.config_of(iteration))


def places_of(iteration: Iteration, opcode: str) -> list[int]:
    """The places of this opcode in the body of an iteration's kernel."""
    body = kernel_of(iteration, mutation.config_of(iteration)).function.body
    return [i for i, item in enumerate(body) if isinstance(item, Instruction) and item.opcode.startswith(opcode)]


def changed(iteration: Iteration, place: int, count: int | None) -> Mutant:
    """The kernel with `count` as the last operand of the instruction at `place`, or (None) without that instruction."""
    config = mutation.config_of(iteration)
    kernel = kernel_of(iteration, config)
    item = kernel.function.body[place]
    assert isinstance(item, Instruction)
    new = [] if count is None else [replace(item, operands=(*item.operands[:-1], Immediate(count)))]
    body = (*kernel.function.body[:place], *new, *kernel.function.body[place + 1 :])
    return Mutant(iteration, config, item, 1, kernel.with_body(body))


@pytest.mark.parametrize("number", [24, 26])
def test_other_byte_counts_than_those_that_come_are_caught(number: int) -> None:
    """An mbarrier that expects half a tile ends its phase too early or overflows; one that expects two never ends."""
    iteration = load_iteration(number)
    places = places_of(iteration, "mbarrier.arrive.expect_tx")
    assert len(places) == 4, "Q, K, V and the last V"
    for place in places:
        for count in (16384, 65536):  # bytes; a tile has 32768
            caught = judge(changed(iteration, place, count), observed_once(number), []).caught
            assert caught == "error" or (caught == "race" and count == 16384), "what is read too early is seen at once"


def test_numbers_are_compared_in_both_orders_of_the_first_cta_alone_in_the_other() -> None:
    """A kernel without the last block's product has no race, and is wrong in every order."""
    iteration = load_iteration(16)
    mutant = changed(iteration, places_of(iteration, "mma.sync")[-1], None)
    ((shape, _),) = planned = mutation.launches_of(iteration, mutant.config)
    for order, rows in zip(ORDERS[::2], (shape.seq_len, mutant.config.B_r), strict=True):
        caught, evidence = mutation._caught_in(mutant, planned[0], observed_once(16)[0], order)
        assert caught == "numbers"
        assert evidence.endswith(f" of {rows * shape.d_head} elements of O differ")
