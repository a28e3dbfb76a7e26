"""Runs fuzz targets with one of two engines, keeps the inputs that fail, and writes figures.

    python -m tests.fuzz.run --target grid --inputs 2000              # own mutations, repeatable: --seed
    python -m tests.fuzz.run --engine atheris --target ptx            # coverage-guided; needs the group "fuzz"
    python -m tests.fuzz.run --inputs 100000 --record                 # all; figures into results/fuzzing.json
Exit code 1: an input failed; one per cause is under build/fuzz/<target>/. Once it is mended, ``--keep`` moves these to
tests/data/found.json, which the tests replay, and renders the table of docs/quality.md again.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from itertools import islice
import json
import os
import platform
import re
import subprocess
import sys
import time
from typing import Any

from flashladder.arguments import Parser, whole
from flashladder.errors import CheckFailed, FlashladderError, one_line_errors
from flashladder.files import dump_json, load_json, relative, sha256, write_atomic
from flashladder.paths import BUILD, RESULTS, ROOT
from flashladder.results.files import this_host
from tests.fuzz.target import FOUND, Finding, Target, attempt, found_inputs, limit_memory, mutations
from tests.fuzz.targets import TARGETS

KEPT = BUILD / "fuzz"
FIGURES = RESULTS / "fuzzing.json"
PAGE = ROOT / "docs" / "quality.md"
BEGIN, END = "<!-- figures: made by python -m tests.fuzz.run -->\n", "<!-- end of figures -->\n"
MOST_CAUSES = 20  # of one target, after which it is given up


def guided(target: Target, inputs: int, seed: int) -> Iterator[bytes]:
    """What libFuzzer under Python found, in a process of its own, as it ends the one that it is in."""
    folder = KEPT / target.name / "atheris"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.found"):
        old.unlink()
    words = [target.name, str(inputs), str(seed or 1), str(folder)]
    command = [sys.executable, "-m", "tests.fuzz.under_atheris", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
    said = re.findall(r"Done (\d+) runs|number_of_executed_units: (\d+)", done.stderr)
    if not said or int(said[-1][0] or said[-1][1]) < inputs:
        raise FlashladderError("atheris ended early", where=target.name, found=done.stderr.strip()[-300:])
    yield from (path.read_bytes() for path in sorted(folder.glob("*.found")))


def fuzz(target: Target, engine: str, inputs: int, seed: int) -> tuple[float, dict[str, Finding]]:
    """Seconds, and a finding for each cause."""
    causes: dict[str, Finding] = {}
    clock = time.monotonic if engine == "atheris" else time.process_time
    start = clock()
    tried = guided(target, inputs, seed) if engine == "atheris" else islice(mutations(target, seed), inputs)
    for finding in filter(None, (attempt(target, data) for data in tried)):
        causes[finding.place] = min(finding, causes.get(finding.place, finding), key=lambda one: len(one.data))
        if len(causes) >= MOST_CAUSES:
            break
    spent = clock() - start
    for finding in causes.values():
        write_atomic(KEPT / target.name / sha256(finding.data)[:12], finding.data)
    return spent, causes


def keep() -> None:
    """Moves what earlier runs found to the inputs that the tests replay."""
    found = found_inputs()
    for path in (path for name in TARGETS for path in (KEPT / name).glob("*") if path.is_file()):
        found.setdefault(path.parent.name, {})[path.name] = path.read_bytes()
        path.unlink()
    text = {name: {one: b64encode(data).decode() for one, data in found[name].items()} for name in sorted(found)}
    write_atomic(FOUND, json.dumps(text, indent=1) + "\n")


def load() -> dict[str, Any]:
    """The recorded figures; empty ones where nothing was recorded."""
    if not FIGURES.is_file():
        return {"schema_version": 1, "kind": "fuzzing", "runs": {}}
    document: dict[str, Any] = load_json(FIGURES.read_bytes())
    return document


def record(target: str, engine: str, inputs: int, seconds: float, found: int) -> None:
    """Notes a run and renders the page."""
    document = load()
    document["date"] = datetime.now(tz=timezone.utc).date().isoformat()
    document["where"] = f"{this_host().cpu}, {os.cpu_count()} cores, Python {platform.python_version()}"
    run = {"inputs": inputs, "seconds": round(seconds, 1), "found": found}
    document["runs"].setdefault(target, {})[engine] = run
    write_atomic(FIGURES, dump_json(document))
    write_atomic(PAGE, render(document))


def render(document: Mapping[str, Any]) -> str:
    """The page with these figures between its marks."""
    found, runs = found_inputs(), document["runs"]
    names = ("mutations", "hypothesis", "atheris")
    engines = {name: own for name in names if (own := [one[name] for one in runs.values() if name in one])}
    head = ["target", "reads", *(f"{name}: inputs, s" for name in engines), "left", "found and fixed"]
    rows = [head, ["---", "---", *("---:" for _ in engines), "---:", "---:"]]
    for name, target in TARGETS.items():
        own = runs.get(name, {})
        cells = [f"{own[one]['inputs']:,} in {own[one]['seconds']:.0f} s" if one in own else "-" for one in engines]
        left = sum(run["found"] for run in own.values())
        rows.append([f"`{name}`", f"`{target.what}`", *cells, str(left), str(len(found.get(name, {})))])
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    sums = " ".join(
        f"{name}: {sum(run['inputs'] for run in own):,} inputs in {sum(run['seconds'] for run in own) / 60:.0f} min."
        for name, own in engines.items()
    )
    total = sum(map(len, found.values()))
    told = f"In all {sums} {total} causes were found and fixed. Measured {document['date']}: {document['where']}."
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{table}\n\n{told}\n\n{END}{rest.partition(END)[2]}"


def main(argv: list[str] | None = None) -> int:
    """Runs the targets one after the other; 1 when something was found."""
    parser = Parser(prog="python -m tests.fuzz.run", description="Fuzzes parsers and loaders.")
    parser.add_argument("--inputs", type=whole, default=2000, help="for each target (default: 2000)")
    parser.add_argument("--target", nargs="+", choices=TARGETS, default=list(TARGETS), metavar="NAME", help="of --list")
    parser.add_argument("--engine", choices=("mutations", "atheris"), default="mutations")
    parser.add_argument("--seed", type=whole, default=0, help="of the inputs (default: 0)")
    parser.add_argument("--record", action="store_true", help="note the figures in results/fuzzing.json and the page")
    parser.add_argument("--keep", action="store_true", help="move the inputs under build/fuzz to tests/data/found.json")
    parser.add_argument("--list", action="store_true", help="print the targets")
    options = parser.parse_args(argv)
    if not options.inputs:
        parser.error("--inputs: expected at least 1, found 0")
    if options.list:
        print("\n".join(f"{target.name:16s} {target.what}" for target in TARGETS.values()))
        return 0
    if options.keep:
        keep()
        write_atomic(PAGE, render(load()))
        return 0
    os.environ.pop("FLASHLADDER_ROOT", None)
    if options.engine != "atheris":
        limit_memory()
    total = 0
    for name in options.target:
        spent, causes = fuzz(TARGETS[name], options.engine, options.inputs, options.seed)
        total += len(causes)
        print(f"{name:16s} {options.inputs:7d} inputs {spent:7.1f} s  {len(causes)} found", flush=True)
        for place, finding in causes.items():
            print(f"    {place}: {' '.join(finding.what.split())[:150]}")
            print(f"    {finding.data[:100]!r}", flush=True)
        if options.record:
            record(name, options.engine, options.inputs, spent, len(causes))
    if total:
        raise CheckFailed(
            f"{total} causes", where=relative(KEPT), hint="mend them, then run python -m tests.fuzz.run --keep"
        )
    return 0


if __name__ == "__main__":
    with one_line_errors():
        raise SystemExit(main())
