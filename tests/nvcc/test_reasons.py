"""What pages of reasons say of the compiler, where no committed file holds it.

Run: pytest tests/nvcc/test_reasons.py  (compiles what the store lacks)
"""

from __future__ import annotations

import itertools

import pytest

from flashladder.build.compile import compile_many
from flashladder.ladder.iteration import load_iteration
from flashladder.machine_code.cubin import read_cubin
from flashladder.machine_code.flow import main_loop
from flashladder.machine_code.sass import disassemble
from flashladder.report.reasons import page_of

pytestmark = pytest.mark.nvcc


def said(number: int, words: str) -> bool:
    """Whether a page says this."""
    return words in page_of(number)[1]


def test_the_knobs_that_changed_with_iteration_9_on_the_rtx_3090_change_no_machine_code() -> None:
    assert said(9, "of which ptxas makes the same machine code on sm_86 with either")
    step, before = load_iteration(9), load_iteration(8)
    own, old = step.configs["rtx3090"], step.family.fit(step.parts, before.configs["rtx3090"])
    assert own != old
    one, other = (read_cubin(entry.cubin) for entry in compile_many([(step, own, "sm_86"), (step, old, "sm_86")]))
    assert one.text_sha256 == other.text_sha256


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_ptxas_had_moved_the_loads_between_the_products_before_iteration_4(arch: str) -> None:
    assert said(4, "in iteration 3's listing `LDSM` and `HMMA` alternate already")
    step = load_iteration(3)
    (entry,) = compile_many([(step, step.configs["a100"], arch)])
    kinds = [one.opcode_class for one in main_loop(disassemble(entry.cubin)) if one.opcode_class in ("LDSM", "HMMA")]
    runs = sum(kind == "LDSM" and before == "HMMA" for before, kind in itertools.pairwise(kinds))
    assert runs > kinds.count("LDSM") / 2  # most loads follow a product, not another load


def test_the_products_of_s_stand_without_moves_from_iteration_9_on() -> None:
    assert said(9, "the `HMMA` of S now stand in runs with nothing but `LDSM` between them")
    longest = []
    for number in (8, 9):
        step = load_iteration(number)
        (entry,) = compile_many([(step, step.configs["h200"], "sm_90")])
        run = best = 0
        for one in main_loop(disassemble(entry.cubin)):
            run = 0 if one.opcode_class not in ("LDSM", "HMMA") else run + (one.opcode_class == "HMMA")
            best = max(best, run)
        longest.append(best)
    assert longest[1] > 10 * longest[0]
