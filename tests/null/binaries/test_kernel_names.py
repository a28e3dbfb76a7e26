"""Which kernels of a file ``--kernel`` means: every spelling that ``--list`` prints, or a command's example has."""

from __future__ import annotations

from typing import Any, cast

import pytest

from flashladder.binaries.kernels import Kernel, chosen
from flashladder.errors import FlashladderError

IMAGE = cast("Any", None)  # nothing of it is read
CONFIGS = ("(FP16, 128, 64, 64, 4): async+eager", "(FP16, 128, 128, 64, 4): async", "(BF16, 128, 128, 64, 4): async")
OURS = [Kernel("flash_fwd_kernel", "flash_fwd_kernel", config, "sm_80", "SASS", IMAGE) for config in CONFIGS]
LONG = f"void library::detail::attention<{'int, ' * 30}float>(float*, int)"
THEIRS = Kernel("_ZN7library6detail", LONG, "", "sm_80", "SASS", IMAGE)


@pytest.mark.parametrize("one", [*OURS, THEIRS], ids=lambda one: one.title[:30])
def test_what_the_list_prints_names_the_kernel(one: Kernel) -> None:
    assert chosen([*OURS, THEIRS], one.title) == [one]
    assert chosen([*OURS, THEIRS], one.title.replace(", ", ",")) == [one]


def test_a_kernel_of_ours_may_be_called_as_a_librarys() -> None:
    assert chosen(OURS, f"flash_fwd_kernel {CONFIGS[0]}") == OURS[:1]
    assert chosen(OURS, "flash_fwd_kernel (FP16, 128, 64, 64, 4)") == OURS[:1]


def test_a_name_of_none_says_where_they_are_listed() -> None:
    with pytest.raises(FlashladderError, match="--list"):
        chosen(OURS, "flash_bwd_kernel (FP16, 128, 64, 64, 4)")
