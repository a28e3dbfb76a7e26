"""A function over items in several processes: order, and errors that arrive whole."""

from __future__ import annotations

import pytest

from flashladder import parallel
from flashladder.emulator import EmulationError
from flashladder.errors import FlashladderError


@pytest.mark.parametrize("n_cpus", [1, 2])
def test_answers_come_in_the_items_order(monkeypatch: pytest.MonkeyPatch, n_cpus: int) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(n_cpus)))
    assert parallel.over(abs, [3, -1, -2], "abs") == [3, 1, 2]
    assert parallel.over(abs, [], "nothing") == []


@pytest.mark.parametrize("n_cpus", [1, 2])
def test_the_first_error_ends_it(monkeypatch: pytest.MonkeyPatch, n_cpus: int) -> None:
    from flashladder.emulate import parse_bytes

    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(n_cpus)))
    with pytest.raises(FlashladderError, match=r"not a memory budget.*'x'") as caught:
        parallel.over(parse_bytes, ["1", "x", "y"], "bytes")
    assert caught.value.exit_code == 2


def test_an_emulation_error_becomes_one_that_every_process_can_read() -> None:
    def broken(_: int) -> int:
        raise EmulationError("trap", "stopped", path="kernel.ptx", line=3, found="a trap")

    with pytest.raises(FlashladderError, match=r"kernel\.ptx:3: stopped.*a trap") as caught:
        parallel._portable(broken, 1)
    assert type(caught.value) is FlashladderError
