"""README's sentence on how long its two commands take, from results/times.json, which `nox -s times` measures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from flashladder.files import checked_json
from flashladder.located import read_committed
from flashladder.results.schema import Strict

NAME = "times.json"  # under results/
Run = Literal["first", "second"]


class CommandTimes(Strict):
    """Wall times in seconds, by command and run: the first run has an empty `build/`, the second one keeps it."""

    schema_version: Literal[1]
    kind: Literal["command-times"]
    date: str
    commit: str
    cpu: str
    cpus: int  # that the commands could use
    python: str
    seconds: Mapping[Literal["reproduce", "tests"], Mapping[Run, float]]


def sentence(results: Path) -> str:
    """How long the commands take; `FlashladderError` if they were not timed."""
    hint = "time them: nox -s times"
    times = read_committed(
        results / NAME, lambda raw: CommandTimes.model_validate_json(checked_json(raw)), "no times", hint
    )
    reproduce, tests = (times.seconds[name] for name in ("reproduce", "tests"))
    return (
        f"On {times.cpus} CPUs without a GPU, after downloads, the first command takes {reproduce['first']:.0f} s and "
        f"the second {tests['first']:.0f} s; run again, {reproduce['second']:.0f} s and {tests['second']:.0f} s "
        f"(measured by `nox -s times`, {times.date}, {times.cpu})."
    )
