"""Every wrong kernel fails the check, with the case and the words that its entry names; the unmodified one does not."""

from __future__ import annotations

import re

import pytest

from flashladder.build.compile import ptx_for
from flashladder.ladder.iteration import load_iteration
from flashladder.machine_code.ptx import normalise
from flashladder.names import KERNEL
from tests.broken import wrong_kernels
from tests.broken.wrong_kernels import WrongKernel, batches, compiled, config_of, outcome, read_all, standard_cases

pytestmark = pytest.mark.nvcc
# Whether the unmodified kernels pass the quick cases is asked of all in tests/nvcc/test_emulate.py.
TWINS = sorted(
    {
        (wrong.iteration, wrong.dtype, wrong.case, wrong.evidence == "taken")
        for wrong in read_all()
        if wrong.case not in wrong_kernels.quick_cases(wrong.iteration, wrong.dtype)
    }
)


ALL = [
    pytest.param(wrong, id=wrong.name, marks=() if wrong in wrong_kernels.read_some() else pytest.mark.exhaustive)
    for wrong in read_all()
]


@pytest.mark.parametrize("wrong", ALL)
def test_the_check_refuses_a_wrong_kernel(wrong: WrongKernel) -> None:
    case = standard_cases(wrong.iteration, wrong.dtype)[wrong.case]
    with compiled(wrong):
        found = outcome(wrong.iteration, wrong.dtype, case)
    assert (found.status, wrong_kernels.evidence_of(found)) == ("fail", wrong.evidence), found.reason


@pytest.mark.parametrize(("iteration", "dtype", "name", "refused"), TWINS)
def test_the_unmodified_kernel_is_right_in_the_same_case(iteration: int, dtype: str, name: str, refused: bool) -> None:
    found = outcome(iteration, dtype, standard_cases(iteration, dtype)[name])
    assert found.status == ("not_applicable" if refused else "pass"), found.reason


@pytest.mark.parametrize("wrong", [batches()[0][0], batches()[-1][-1]], ids=str)
def test_compiled_with_others_a_kernel_is_the_same_program(wrong: WrongKernel) -> None:
    """But for the numbers of registers and labels, which no instruction depends on."""
    with wrong_kernels.made(wrong) as kernels:
        entry = ptx_for(load_iteration(wrong.iteration), config_of(wrong.iteration, wrong.dtype), kernels=kernels)
        alone = entry.ptx.read_text(encoding="utf-8")
    assert renumbered(wrong_kernels.ptx_of(wrong).replace(wrong_kernels.symbol(wrong), KERNEL)) == renumbered(alone)


def renumbered(text: str) -> str:
    """Normalised PTX without declarations of registers; registers and labels numbered as they first appear."""
    names: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        return names.setdefault(match[0], f"{match['kind']}{len(names)}")

    statements = [line for line in normalise(text).splitlines() if not line.startswith(".reg")]
    return re.sub(r"(?P<kind>%[a-z]+|\$L__BB)[\d_]+\b", number, "\n".join(statements))
