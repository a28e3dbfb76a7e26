"""The opcode table of a kernel that is not locked: compiled, and the same as the lock's where that has it."""

from __future__ import annotations

import pytest

from flashladder.ladder.iteration import load_iteration
from flashladder.lock import command as lock
from flashladder.view import diff as view_counts
from tests.typed import command

pytestmark = pytest.mark.nvcc


def test_a_compiled_kernel_counts_as_the_lock_says() -> None:
    step = load_iteration(7)
    config = step.configs["a100"]
    assert view_counts.compiled_counts(step, config) == lock.opcode_counts(7, config, step.shown_arch)


def test_diff_7_8_bears_the_title_out(capsys: pytest.CaptureFixture[str]) -> None:
    command("diff", "7", "8")
    page = capsys.readouterr().out
    table = page[page.index("opcode counts (sm_80), (FP16, 128, 64, 64, 4)") :].partition("\n\n")[0].splitlines()
    assert "-> (FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles" in table[0]
    rows = {row.split()[0]: row for row in table[1:]}
    for opcode in ("IADD3", "LOP3", "SHF"):
        assert " -" in rows[opcode]
    assert "HMMA" not in rows  # the same tile does the same products
