"""Every wrong kernel fails the check, with the case and the words that its entry names; the unmodified one does not.

Run: pytest tests/broken/test_wrong_kernels.py  (1.5 s a kernel, half of it nvcc)
"""

from __future__ import annotations

import pytest

from flashladder.errors import FlashladderError
from flashladder.toolchain import find_toolchain
from tests.broken.wrong_kernels import WrongKernel, evidence_of, made, outcome, quick_cases, read_all, standard_cases

pytestmark = pytest.mark.nvcc
# Whether the unmodified kernels pass the quick cases is asked of all in tests/nvcc/test_emulate.py.
TWINS = sorted(
    {
        (wrong.iteration, wrong.dtype, wrong.case, wrong.evidence == "taken")
        for wrong in read_all()
        if wrong.case not in quick_cases(wrong.iteration, wrong.dtype)
    }
)


@pytest.fixture(scope="module", autouse=True)
def toolchain() -> None:
    try:
        find_toolchain()
    except FlashladderError as error:
        pytest.skip(f"needs the toolchain: {error}")


@pytest.mark.parametrize("wrong", read_all(), ids=str)
def test_the_check_refuses_a_wrong_kernel(wrong: WrongKernel) -> None:
    case = standard_cases(wrong.iteration, wrong.dtype)[wrong.case]
    with made(wrong) as kernels:
        found = outcome(wrong.iteration, wrong.dtype, case, kernels)
    assert (found.status, evidence_of(found)) == ("fail", wrong.evidence), found.reason


@pytest.mark.parametrize(("iteration", "dtype", "name", "refused"), TWINS)
def test_the_unmodified_kernel_is_right_in_the_same_case(iteration: int, dtype: str, name: str, refused: bool) -> None:
    found = outcome(iteration, dtype, standard_cases(iteration, dtype)[name])
    assert found.status == ("not_applicable" if refused else "pass"), found.reason
