"""What the runs tried and found, as data, and the table of docs/fuzzing.md made from it.

`results/fuzzing.json` holds per target and engine the inputs, seconds and causes found by the last recorded run, and
what all earlier ones led to: the inputs in tests/data/found.json, each of which was mended. Run
``python -m tests.fuzz.figures`` to render docs/fuzzing.md, ``--check`` to compare it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
import fcntl
import os
import platform
from typing import Any

from flashladder.arguments import write_or_compare
from flashladder.errors import one_line_errors
from flashladder.files import dump_json, load_json, write_atomic
from flashladder.paths import RESULTS, ROOT
from flashladder.results.files import this_host
from tests.fuzz.target import found_inputs
from tests.fuzz.targets import TARGETS

FIGURES = RESULTS / "fuzzing.json"
PAGE = ROOT / "docs" / "fuzzing.md"
PROGRAM = "python -m tests.fuzz.figures"
BEGIN, END = "<!-- figures: made by python -m tests.fuzz.figures -->\n", "<!-- end of figures -->\n"


def load() -> dict[str, Any]:
    """The recorded figures; empty ones where nothing was recorded."""
    if not FIGURES.is_file():
        return {"schema_version": 1, "kind": "fuzzing", "runs": {}}
    document: dict[str, Any] = load_json(FIGURES.read_bytes())
    return document


def record(target: str, engine: str, inputs: int, seconds: float, found: int) -> None:
    """Notes a run, whole, beside those of other processes, and renders the page."""
    lock = ROOT / "build" / "fuzz" / ".lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w", encoding="ascii") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        document = load()
        document["date"] = datetime.now(tz=timezone.utc).date().isoformat()
        document["where"] = f"{this_host().cpu}, {os.cpu_count()} cores, Python {platform.python_version()}"
        run = {"inputs": inputs, "seconds": round(seconds, 1), "found": found}
        document["runs"].setdefault(target, {})[engine] = run
        write_atomic(FIGURES, dump_json(document))
        write_atomic(PAGE, render(document))


def kept(target: str) -> int:
    """Inputs of a target that were found, mended and kept."""
    return len(found_inputs().get(target, {}))


def render(document: Mapping[str, Any]) -> str:
    """The page with these figures between its marks."""
    engines = [name for name in ("mutations", "hypothesis", "atheris") if _of(document, name)]
    head = ["target", "reads", *(f"{name}: inputs, s" for name in engines), "left", "found and fixed"]
    rows = [head, ["---", "---", *("---:" for _ in engines), "---:", "---:"]]
    for name, target in TARGETS.items():
        runs = document["runs"].get(name, {})
        cells = [f"{runs[one]['inputs']:,} in {runs[one]['seconds']:.0f} s" if one in runs else "-" for one in engines]
        left = sum(run["found"] for run in runs.values())
        rows.append([f"`{name}`", f"`{target.what}`", *cells, str(left), str(kept(name))])
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    sums = " ".join(
        f"{name}: {sum(run['inputs'] for run in _of(document, name)):,} inputs in "
        f"{sum(run['seconds'] for run in _of(document, name)) / 60:.0f} minutes."
        for name in engines
    )
    total = sum(kept(name) for name in TARGETS)
    told = f"In all {sums} {total} causes were found and fixed. Measured {document['date']}: {document['where']}."
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{table}\n\n{told}\n\n{END}{rest.partition(END)[2]}"


def _of(document: Mapping[str, Any], engine: str) -> list[dict[str, Any]]:
    return [runs[engine] for runs in document["runs"].values() if engine in runs]


def main(argv: list[str] | None = None) -> int:
    """Renders or compares the page."""
    return write_or_compare(argv, PROGRAM, "page of the fuzzing figures", PAGE, render(load()))


if __name__ == "__main__":
    with one_line_errors():
        raise SystemExit(main())
