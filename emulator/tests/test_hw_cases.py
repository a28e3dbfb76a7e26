"""What an H200 answered, case by case, is what the expectations say and what the emulator computes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from tests.cases.harness import Case, collect, compare, run_case
from tests.cases.replay import Record, agree, digest, read

import ptxemu
from ptxemu.table import ROWS

FILE = Path(__file__).parent / "data" / "emulator_cases.json.gz"
FORMS = 120  # opcode forms that the hardware must have answered


@cache
def matched() -> tuple[tuple[Record, Case], ...]:
    """The records whose case is still the same, text and inputs."""
    today = {digest(case): case for cases in collect().values() for case in cases}
    return tuple((record, today[record.digest]) for record in read(FILE)[1] if record.digest in today)


@pytest.mark.parametrize("module", list(collect()))
def test_the_hardware_agrees(module: str) -> None:
    differences = []
    for record, case in matched():
        if record.module == module:
            hardware = record.arrays(case)
            differences += [compare(case, hardware), agree(case, hardware, run_case(case, ptxemu.load))]
            assert record.error is None
    assert [difference for difference in differences if difference] == []


def test_enough_opcodes_were_answered() -> None:
    answered = {record.opcode for record, _ in matched()}
    cases = sum(map(len, collect().values()))
    print(f"{len(matched())} of {cases} cases were replayed as they are today, {len(answered)} opcodes of {len(ROWS)}")
    assert len(answered) >= FORMS
