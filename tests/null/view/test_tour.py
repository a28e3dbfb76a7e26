"""The walk: every station in order, what a person types at it, what is cut, and a command that fails."""

from __future__ import annotations

import subprocess
import textwrap

import pytest

from flashladder.errors import CheckFailed, FlashladderError
from flashladder.view import tour
from flashladder.view.tour import STATIONS, walk


class Planted:
    """Stands for the commands: each says what its station looks for."""

    def __init__(self) -> None:
        self.ran: list[list[str]] = []
        self.codes: dict[str, int] = {}
        self.silent: set[str] = set()

    def run(self, command: list[str], **given: object) -> subprocess.CompletedProcess[str]:
        self.ran.append(command)
        (station,) = (one for one in STATIONS if one.command == command)
        out = "" if station.typed in self.silent else f"before\n{station.past} {station.found} {'x' * 200}\n" * 60
        code = self.codes.get(station.typed, 0)
        return subprocess.CompletedProcess(command, code, out, "error: a reason\n" if code else "")


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Planted:
    commands = Planted()
    monkeypatch.setattr(subprocess, "run", commands.run)
    return commands


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tour, "on_terminal", lambda: True)


def test_without_a_terminal_it_runs_through_within_80_columns(
    planted: Planted, capsys: pytest.CaptureFixture[str]
) -> None:
    walk(ask=lambda _: pytest.fail("it waits"))
    out = capsys.readouterr().out
    assert planted.ran == [station.command for station in STATIONS]
    for number, station in enumerate(STATIONS, 1):
        assert f"{number}/{len(STATIONS)}  {station.title}\n" in out
        assert f"\n$ {station.typed}\n" in out
    assert max(map(len, out.splitlines())) <= 80
    assert f"({120 - STATIONS[-1].shown} more lines)" in out
    assert textwrap.fill(tour.GOODBYE, 80) in out


def test_on_a_terminal_it_waits_and_q_leaves_with_the_way_back(
    planted: Planted, terminal: None, capsys: pytest.CaptureFixture[str]
) -> None:
    said = iter(["", " ", "q"])
    walk(4, ask=lambda _: next(said))
    assert planted.ran == [station.command for station in STATIONS[3:5]]
    assert capsys.readouterr().out.endswith("go on with: invoke tour --start 6\n")


def test_the_end_of_the_input_leaves_and_yes_waits_for_nobody(planted: Planted, terminal: None) -> None:
    def closed(_: str) -> str:
        raise EOFError

    walk(ask=closed)
    assert planted.ran == []
    walk(ask=closed, waits=False)
    assert len(planted.ran) == len(STATIONS)


@pytest.mark.parametrize(("code", "silent", "said"), [
    (2, False, "station 3 could not be shown: expected exit code 0, found 2: a reason; `invoke show 8` says more"),
    (0, True, "station 3 shows nothing: expected 'xor_static'; `invoke show 8` says more; go on with"),
])  # fmt: skip
def test_a_command_that_fails_or_shows_nothing_is_one_line(
    planted: Planted, code: int, silent: bool, said: str
) -> None:
    typed = STATIONS[2].typed
    planted.codes, planted.silent = {typed: code}, {typed} if silent else set()
    with pytest.raises(CheckFailed) as caught:
        walk()
    assert said in str(caught.value)
    assert len(planted.ran) == 3


@pytest.mark.parametrize("start", [0, len(STATIONS) + 1])
def test_a_station_that_is_not_there_is_one_line(start: int) -> None:
    with pytest.raises(FlashladderError, match=f"bad --start: expected a whole number from 1 to {len(STATIONS)}"):
        walk(start)
