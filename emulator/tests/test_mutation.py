"""`ptxemu.mutants`: what is removed, what stands in its place, and that a removed barrier is noticed."""

from __future__ import annotations

import numpy as np
import pytest
from tests.programs import OUT, program, table_of, text_of

import ptxemu

REVERSED = text_of("programs", "reversed")
WAITING = text_of("mutation")  # thread 0 arrives at an mbarrier of one thread; all wait for it


def told(kernel: ptxemu.Kernel) -> str:
    """What a launch of 64 threads shows: an error's kind, that there is a race, or nothing."""
    hazards = ptxemu.Hazards()
    try:
        kernel.launch(1, 64, [np.zeros(64, np.int32)], observers=hazards)
    except ptxemu.EmulationError as error:
        return error.kind
    return "race" if hazards.reports else ""


def test_a_barrier_that_is_needed_is_noticed_and_the_other_is_not() -> None:
    kernel = ptxemu.load(REVERSED).kernel()
    found = list(ptxemu.mutants(kernel))
    first, second = [(one.instruction.opcode, one.nth, told(one.kernel)) for one in found]
    assert (first, second, told(kernel)) == (("bar.sync", 1, "race"), ("bar.sync", 2, ""), "")
    left = [str(one) for place, one in enumerate(kernel.function.body) if place != found[0].place]
    assert [str(one) for one in found[0].kernel.function.body] == left


def test_a_wait_that_is_removed_answers_yes_and_an_arrival_returns_a_state() -> None:
    kernel = ptxemu.load(WAITING).kernel()
    found = {one.instruction.opcode.split(".shared")[0]: one for one in ptxemu.mutants(kernel)}
    assert list(found) == ["mbarrier.init", "bar.sync", "mbarrier.arrive", "mbarrier.try_wait.parity"]
    assert told(kernel) == ""
    assert {name: told(one.kernel) for name, one in found.items()} == {
        "mbarrier.init": "mbarrier",
        "bar.sync": "race",
        "mbarrier.arrive": "deadlock",
        "mbarrier.try_wait.parity": "race",
    }
    in_its_place = [str(one.kernel.function.body[one.place]) for one in list(found.values())[2:]]
    assert in_its_place == ["@%p2 mov.b64 %rd3, 0;", "@%p2 setp.eq.u32 %p1, 0, 0;"]


def test_a_reduction_that_is_removed_gives_each_thread_its_own_answer() -> None:
    text = "setp.lt.u32 %p1, %r0, 5; setp.lt.u32 %p3, %r0, 32; mov.u32 %r1, 7; @%p3 bar.red.popc.u32 %r1, 0, 32, !%p1;"
    text += "barrier.red.and.pred %p2, 0, %p1; @!%p2 add.u32 %r1, %r1, 100; st.global.u32 [%rd0], %r1;"
    kernel, found, late = program(OUT + text), [], 32 * [107]  # of the second warp
    for one in (kernel, *(mutant.kernel for mutant in ptxemu.mutants(kernel))):
        one.launch(1, 64, [out := np.zeros(64, np.int32)])
        found.append(out.tolist())
    assert found == [32 * [127] + late, 5 * [100] + 27 * [101] + late, 5 * [27] + 27 * [127] + late]


@pytest.mark.parametrize(("opcode", "removed"), table_of("mutation", "synchronisation"))
def test_what_counts_as_synchronisation(opcode: str, removed: bool) -> None:
    from ptxemu.mutation import is_synchronisation

    assert is_synchronisation(ptxemu.Instruction(opcode, ())) == removed


def test_another_body_is_checked() -> None:
    kernel = ptxemu.load(WAITING).kernel()
    body = [one for one in kernel.function.body if str(one) != "again:"]
    with pytest.raises(ptxemu.EmulationError, match="again"):
        kernel.with_body(body)
    assert kernel.with_body(kernel.function.body).name == "waiting"
