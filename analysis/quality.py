"""Question: how much of the package do the tests reach without a GPU, and how much of what they reach do they check?

Renders docs/quality.md from two committed documents: tests/data/coverage.json, lines and branches per room as
`nox -s coverage` counts them, and tests/data/mutation.json, what became of planted mistakes (analysis/mutation.py).

Run: ``python analysis/quality.py`` renders; ``--coverage FILE`` judges coverage.py's JSON report, exit code 1 when
lines or branches are below 92 %, and with ``--record`` keeps its figures.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
import datetime as dt
import json
import math
from pathlib import Path
import platform
import sys
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from flashladder.errors import CheckFailed, FlashladderError, one_line_errors
from flashladder.files import dump_json, write_atomic
from flashladder.located import read_yaml
from flashladder.paths import ROOT

COVERAGE, MUTATION = (ROOT / "tests" / "data" / name for name in ("coverage.json", "mutation.json"))
PAGE = ROOT / "docs" / "quality.md"
LEAST = 92.0  # per cent of lines, and of branches
Z_95 = 1.959964  # standard deviations that hold 95 % of a normal distribution
Counts = Mapping[str, int]


def score(modules: Iterable[Counts]) -> float:
    """Per cent of the mutants tried that a test noticed (a run that never ended was noticed too)."""
    counts = list(modules)
    tried = sum(one["tried"] for one in counts)
    return 100.0 * sum(one["killed"] + one["timeout"] for one in counts) / tried if tried else 0.0


def interval(share: float, n: int, population: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a percentage seen in `n` of `population`, drawn without putting back; in per cent."""
    if n >= population:
        return share, share
    n_free = n * (population - 1) / (population - n)  # as many independent draws would tell as much
    p, z = share / 100.0, Z_95 * Z_95 / n_free
    middle, half = (p + z / 2) / (1 + z), Z_95 * math.sqrt(p * (1 - p) / n_free + z / 4 / n_free) / (1 + z)
    return 100.0 * (middle - half), 100.0 * (middle + half)


def by_room(report: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Lines and branches of each room of flashladder, and of ptxemu as a whole, from coverage.py's JSON report."""
    rooms: dict[str, dict[str, int]] = {}
    if "files" not in report:
        raise FlashladderError("not a report of coverage.py", expected="what `coverage json` writes")
    for name, file in sorted(report["files"].items()):
        parts = Path(name).parts
        room = "ptxemu" if "ptxemu" in parts else parts[1] if len(parts) > 2 else "(modules)"
        own = rooms.setdefault(room, dict.fromkeys(KEYS, 0))
        for key, of_report in KEYS.items():
            own[key] += file["summary"][of_report]
    return rooms


KEYS = {
    "lines": "num_statements",
    "lines_reached": "covered_lines",
    "branches": "num_branches",
    "branches_reached": "covered_branches",
}


def totals(rooms: Mapping[str, Counts]) -> dict[str, int]:
    """Sum of all rooms."""
    return {key: sum(room[key] for room in rooms.values()) for key in KEYS}


def share(counts: Counts, what: str) -> float:
    """Per cent of `what` ("lines", "branches") that was reached; 100 where there is none."""
    return 100.0 * counts[f"{what}_reached"] / counts[what] if counts[what] else 100.0


def judged(rooms: Mapping[str, Counts]) -> str:
    """One line on the whole package.

    Raises:
        CheckFailed: fewer lines or branches than `LEAST` per cent were reached.
    """
    total = totals(rooms)
    told = ", ".join(f"{share(total, what):.1f} % of {total[what]} {what}" for what in ("lines", "branches"))
    if min(share(total, what) for what in ("lines", "branches")) < LEAST:
        raise CheckFailed("the tests reach too little of the package", expected=f"{LEAST:g} % of either", found=told)
    return f"the tests reach {told}"


def read(path: Path) -> dict[str, Any]:
    """A committed document, or an empty one."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def stamp() -> dict[str, str]:
    """What figures depend on besides the code."""
    today = dt.datetime.now(tz=dt.timezone.utc).date()
    return {"date": today.isoformat(), "python": platform.python_version()}


def keep_mutation(room: str, modules: Mapping[str, Counts]) -> None:
    """Keeps one room's figures, beside those of other rooms, and renders."""
    rooms = {**read(MUTATION).get("rooms", {}), room: {**stamp(), "modules": modules}}
    write_atomic(MUTATION, dump_json({"rooms": dict(sorted(rooms.items()))}))
    write_atomic(PAGE, page(read(COVERAGE), read(MUTATION), settings()))


def settings() -> dict[str, Any]:
    """configs/mutation.yaml."""
    found: Any = read_yaml(ROOT / "configs" / "mutation.yaml")
    return dict(found)


def page(coverage: Mapping[str, Any], mutation: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """docs/quality.md."""
    lines = [HEADER, *coverage_part(coverage), *mutation_part(mutation, config), *survivors_part(config)]
    return "\n".join(lines) + "\n"


def coverage_part(coverage: Mapping[str, Any]) -> list[str]:
    """The table of what tests reach."""
    rooms = coverage.get("rooms", {})
    lines = [
        "",
        "## What the tests reach",
        "",
        COVERAGE_TEXT.format(least=LEAST, date=coverage.get("date"), python=coverage.get("python")),
        "",
        "| room | lines | reached | branches | reached |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, room in [*rooms.items(), ("**all**", totals(rooms))]:
        told = [f"{room[what]} | {share(room, what):.1f} %" for what in ("lines", "branches")]
        lines.append(f"| {name} | {' | '.join(told)} |")
    return lines


def mutation_part(mutation: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """The table of what tests notice."""
    lines = ["", "## What the tests notice", "", MUTATION_TEXT.format(least=config["score"], seed=config["seed"])]
    lines += [f"- `{one['pattern']}`: {one['reason']}." for one in config["ignored"]]
    lines += [
        "",
        "| module | planted | tried | noticed | of these by a timeout | survived | score |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, room in mutation.get("rooms", {}).items():
        modules = room["modules"]
        for module, counts in modules.items():
            lines.append(row(module.removeprefix("flashladder."), counts, f"{score([counts]):.0f} %"))
        total = {key: sum(one[key] for one in modules.values()) for key in next(iter(modules.values()))}
        low, high = interval(score([total]), total["tried"], total["planted"])
        told = f"**{score([total]):.1f} %**" + (f" ({low:.1f} to {high:.1f})" if low < high else "")
        note = f"; {room['note']}" if "note" in room else ""
        lines.append(row(f"**{name}**, {room['date']}, Python {room['python']}{note}", total, told))
    return lines


def row(name: str, counts: Counts, told: str) -> str:
    """A line of the table; no score for a module of which nothing was tried."""
    noticed = counts["killed"] + counts["timeout"]
    shown = told if counts["tried"] else "-"
    numbers = (counts["planted"], counts["tried"], noticed, counts["timeout"], counts["survived"], shown)
    return f"| {name} | {' | '.join(map(str, numbers))} |"


def survivors_part(config: Mapping[str, Any]) -> list[str]:
    """The survivors that are explained, by reason."""
    lines = ["", "## Survivors, and why they may"] if config["survivors"] else []
    for group in config["survivors"]:
        reason = group["reason"]
        lines += ["", f"{reason[0].upper()}{reason[1:]}:", ""]
        for one in group["mutants"]:
            lines.append(f"- `{one['function'].removeprefix('flashladder.')}`: ``{one['becomes']}``")
    return lines


HEADER = """<!-- Generated by `python analysis/quality.py`; do not edit. -->
# How good the tests are"""
COVERAGE_TEXT = """`nox -s coverage`, {date}, Python {python}, no GPU: the whole suite, and commands that tests start as
processes of their own. The session fails below {least:g} % of lines or of branches. Nothing is left out of the count
but `if TYPE_CHECKING:`; what only a GPU can run is reached by planted stand-ins, or not."""
MUTATION_TEXT = """`nox -s mutation` plants mistakes one at a time in the rooms whose verdicts everything else rests on,
with mutmut: an operator turned round, an argument or a keyword dropped, a number plus one, a text changed. For each it
runs the tests of the same room that call the changed function; no compiler, no GPU. `tried` of all that were `planted`
are drawn with seed {seed}; the brackets are the 95 % interval of what all of them would give. The session fails when
a room's score is below {least} %, or when a survivor is explained below that no longer survives. Code at
module level, properties and validators stay as they are. Nothing is planted in lines with:
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Judges a report when there is one, and renders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coverage", type=Path, metavar="FILE", help="coverage.py's JSON report")
    parser.add_argument("--record", action="store_true", help="keep the report's figures")
    options = parser.parse_args(argv)
    with one_line_errors():
        rooms = by_room(read(options.coverage)) if options.coverage else None
        if rooms is not None and options.record:
            write_atomic(COVERAGE, dump_json({**stamp(), "rooms": rooms}))
        if rooms is None or options.record:
            write_atomic(PAGE, page(read(COVERAGE), read(MUTATION), settings()))
        if rooms is not None:
            print(judged(rooms))


if __name__ == "__main__":
    main()
