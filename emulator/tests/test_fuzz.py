"""Random programs on the emulator and thread by thread in plain Python: both must store the same words.

More of them than the test draws, by seed: ``python -m tests.test_fuzz FIRST COUNT``.
"""

from __future__ import annotations

from random import Random
import sys

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
import numpy as np
from tests.fuzz_operations import N_COUNTERS, TABLE
from tests.fuzz_programs import SLOTS, Author, Program
from tests.fuzz_ptx import to_ptx
from tests.fuzz_threads import UNSTORED, expected

from ptxemu.machine.observer import Observer
from ptxemu.observe.counters import Counters
from ptxemu.observe.hazards import Hazards
from ptxemu.run.launch import load
from ptxemu.values import Array


def emulated(
    program: Program, text: str, observers: tuple[Observer, ...] = (), memory_budget: int = 1 << 30
) -> tuple[Array, Array]:
    """What the program stores and counts on the emulator."""
    words = np.full((program.blocks * program.threads, SLOTS + 2 * len(program.kept)), UNSTORED, np.uint32)
    counters = np.zeros(N_COUNTERS, np.uint32)
    table = np.frombuffer(TABLE, np.uint8)
    load(text, path="fuzz.ptx").kernel().launch(
        program.grid, program.block, (words, table, counters), observers=observers, memory_budget=memory_budget
    )
    return words, counters


def check(program: Program) -> None:
    """The emulator agrees with Python, in slices too; observers change nothing, count alike and find no race."""
    text = to_ptx(program)
    words, counters = expected(program)
    whole, cut, hazards = Counters(), Counters(), Hazards()
    for observers, budget in (((), 1 << 30), ((whole, hazards), 1 << 30), ((cut,), 1)):
        stored, counted = emulated(program, text, observers, budget)
        wrong = np.argwhere(stored != np.array(words, np.uint32))
        assert not wrong.size, f"{text}\n(thread, word) {wrong[:5].tolist()} of {program.grid} x {program.block}"
        assert counted.tolist() == counters
    assert whole.as_dict() == cut.as_dict()
    assert whole.opcodes == cut.opcodes
    assert whole.lane_instructions == cut.lane_instructions
    assert hazards.render() == ""


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(random=st.randoms(use_true_random=False))
def test_random_programs_compute_what_python_says(random: Random) -> None:
    check(Author(random).program())


if __name__ == "__main__":
    first, count = int(sys.argv[1]), int(sys.argv[2])
    for seed in range(first, first + count):
        try:
            check(Author(Random(seed)).program())
        except Exception:  # the seed is the report
            print(f"seed {seed}", flush=True)
            raise
    print(f"{count} programs agree")
