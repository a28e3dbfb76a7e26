"""Which kernels' numbers may be shown: those of the locked machine code, and of no other."""

from __future__ import annotations

import pytest

from flashladder.ladder.config import EXAMPLE
from flashladder.lock.schema import LockFile, find_locked, refusal
from flashladder.results.schema import Kernel
from tests.null.lock.test_lock import locked

LOCK = LockFile(arch="sm_90", iterations={7: locked("code 7")})
OWN = LOCK.iterations[7].kernels[EXAMPLE]


def kernel(text: str | None = OWN.text_sha256, **changed: object) -> Kernel:
    made = Kernel(iteration=7, config=EXAMPLE, dtype="fp16", arch="sm_90", text_sha256=text, toolchain={})
    return made.model_copy(update=changed)


def test_a_locked_kernel_is_found_by_iteration_and_configuration() -> None:
    assert find_locked(LOCK, 7, EXAMPLE) == OWN
    assert find_locked(LOCK, 7, "other") is None
    assert find_locked(LOCK, 8, EXAMPLE) is None
    assert find_locked(None, 7, EXAMPLE) is None


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (kernel(), None),
        (
            kernel(variant=" - swizzle"),
            "refused: a variant, which belongs into a file of its own and not beside the ladder's kernels",
        ),
        (kernel(None), "refused: compiled by the driver, so that its machine code is not known"),
        (kernel(iteration=8), "refused: not in results/locks/sm_90.json; run: invoke lock 8 --reason '...'"),
        (kernel(config="other"), "refused: not in results/locks/sm_90.json; run: invoke lock 7 --reason '...'"),
        (
            kernel("ab" * 32),
            f"refused: measured machine code abababababab..., locked {OWN.text_sha256[:12]}...; run: invoke bench 7",
        ),
    ],
)
def test_numbers_of_other_machine_code_are_refused(made: Kernel, told: str | None) -> None:
    assert refusal(made, LOCK) == told
