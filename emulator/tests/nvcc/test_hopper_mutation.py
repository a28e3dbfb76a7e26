"""Deleting synchronisation proves the race detector and the late copies, on the Hopper programs (0.05 s a mutant).

Run: pytest tests/nvcc/test_hopper_mutation.py
"""

from __future__ import annotations

import pytest
from tests.compile import NEEDS, root
from tests.hopper_programs import mutation
from tests.hopper_programs.mutation import Mutant, Verdict, judge, kernels, listed, mutants_of, verdicts
from tests.hopper_programs.program import FILES

pytestmark = [pytest.mark.nvcc, pytest.mark.skipif(not root(), reason=NEEDS)]
LEAST = 500  # mutants that the programs must yield


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_every_deletion_is_caught_or_listed(file: str) -> None:
    names = [name for name in kernels() if name.startswith(f"{file}-")]
    assert [str(verdict) for verdict in verdicts(names) if not verdict.as_listed] == []


def test_there_are_many_and_the_list_names_only_those_that_exist() -> None:
    names = {mutant.name for program in kernels().values() for mutant in mutants_of(program)}
    assert len(names) >= LEAST
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
