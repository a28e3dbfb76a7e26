"""Every station of `invoke tour` shows what it is about: its command, in this process."""

from __future__ import annotations

import importlib

import pytest

from flashladder import __main__ as program
from flashladder.view.tour import STATIONS, Station

pytestmark = pytest.mark.nvcc


@pytest.mark.parametrize("station", STATIONS, ids=lambda one: one.title)
def test_a_station_shows_what_it_is_about(station: Station, capsys: pytest.CaptureFixture[str]) -> None:
    first, *words = station.typed.split()
    if first == "invoke":
        with pytest.raises(SystemExit) as left:
            program.main(words)
        assert left.value.code in (None, 0)
    else:
        assert importlib.import_module(words[1]).main(words[2:]) == 0
    out = capsys.readouterr().out
    assert station.found in out
    assert any(station.past in line for line in out.splitlines())
