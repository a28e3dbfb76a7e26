"""Broken Hopper kernels must be caught, each with its kind, words and line; their correct twins without any complaint.

The CUDA files of `kernels` hold one template per defect. Run: pytest tests/broken/hopper
"""

from __future__ import annotations

import re

import pytest
from tests.compile import NEEDS, root

from tests.broken.hopper.defects import DEFECTS
from tests.broken.hopper.harness import KERNELS, Defect, Seen, lines_of, marked, see

pytestmark = [pytest.mark.nvcc, pytest.mark.skipif(not root(), reason=NEEDS)]
SCHEDULES = ("together", "reverse", 1)


def complaint(defect: Defect, seen: Seen) -> bool:
    """Whether a launch was caught as it should be, where it should be."""
    return any(
        kind in defect.caught
        and defect.says in message
        and any(lines_of(instruction, defect.file) & marked(defect.file, defect.kernel) for instruction in instructions)
        for kind, message, instructions in seen.complaints
    )


@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_the_defect_is_caught(defect: Defect) -> None:
    seen = see(defect, fixed=False, schedule=defect.schedule)
    if defect.caught == ("numbers",):
        assert (seen.complaints, seen.right) == ((), False)
    else:
        assert complaint(defect, seen), seen.complaints or "nothing was reported"


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_the_twin_is_clean(defect: Defect, schedule: str | int) -> None:
    seen = see(defect, fixed=True, schedule=schedule)
    assert [message for _, message, _ in seen.complaints] == []
    assert seen.right


def test_every_kernel_of_the_folder_is_tried() -> None:
    tried = {defect.kernel for defect in DEFECTS}
    for path in KERNELS.iterdir():
        pattern = r"^(?:PAIR|DESCRIBED)\((\w+)[,)]|^\.visible \.entry (\w+)_fixed\("
        names = [first or second for first, second in re.findall(pattern, path.read_text(), re.MULTILINE)]
        assert set(names) <= tried
        for name in names:
            assert marked(path.name, name)
