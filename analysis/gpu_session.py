"""Everything that needs a GPU, in one go: check, sanitizer, counters, tuning, bench; each under a time budget.

Why: a rented GPU machine is bare and counted by the minute. Each phase is a process of its own, leaves one file in
``--out`` and goes on where an earlier run stopped (``--resume`` takes over that run's files). A phase that fails does
not stop the others; the table at the end says which did.

Run, from the checkout's root:
    python -m analysis.gpu_session --out results/h200 --phases check bench --wheels wheels
Exit code: 0 all phases passed, 1 one failed, 2 nothing to run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
import os
from pathlib import Path
import shutil
import subprocess
import sys
import time

from flashladder.gpu.device import run_bounded

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "build" / "gpu_site"  # of wheels that were carried here
PHASES = ("check", "sanitize", "counters", "tune", "bench")
GRACE_S = 100.0  # beyond its budget a phase may finish the group it has begun: 36 pairs at S=16384 take about 70 s
SANITIZER_S = 90.0  # one tool, torch's import under it included


@dataclass(frozen=True)
class Phase:
    """One process: what it runs, and the seconds after which it should begin nothing new."""

    name: str
    command: list[str]
    budget_s: float


@dataclass(frozen=True)
class Outcome:
    """How a phase ended; `code` None: it was stopped."""

    name: str
    code: int | None
    seconds: float
    last: str


def plan(options: argparse.Namespace) -> list[Phase]:
    """The phases in the order of `PHASES`, each with its budget."""
    numbers = [str(number) for number in options.iterations] or ["--all"]
    out: Path = options.out
    configs = ["--configs", *options.configs]

    def module(name: str, *arguments: object) -> list[str]:
        return [sys.executable, "-m", f"flashladder.{name}", *numbers, *map(str, arguments)]

    seconds = options.budget
    quick = ["--quick"] if options.quick else []
    shorter = ["--seq-lens", "512", "1024"] if options.quick else []
    tuned = [str(number) for number in options.tune_iterations]
    sanitizer_s = max(SANITIZER_S, seconds / 4)
    commands = {
        "check": module("check", *configs, "--out", out / "check.json.gz", "--budget", seconds, *quick),
        "sanitize": module("gpu.sanitize", "--out", out / "sanitizer.json.gz", "--timeout", sanitizer_s),
        "counters": module("gpu.ncu", "--out", out / "counters.json.gz", "--timeout", seconds),
        "tune": [
            sys.executable, "-m", "flashladder.bench", *tuned, "--tune", "--dtype", *options.tune_dtypes,
            "--out", str(out / "tune.json.gz"), "--budget", str(seconds),
        ],
        "bench": module("bench", *configs, "--out", out / "bench.json.gz", "--budget", seconds, *shorter),
    }  # fmt: skip
    least = {"sanitize": 4 * SANITIZER_S}
    return [
        Phase(name, commands[name], max(seconds, least.get(name, 0.0))) for name in PHASES if name in options.phases
    ]


def run(phase: Phase, log: Path) -> Outcome:
    """Runs one phase; its output goes to the terminal and to `log`."""
    start = time.monotonic()
    print(f"== {phase.name}", flush=True)
    paths = [str(ROOT), str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    reply = run_bounded(phase.command, phase.budget_s + GRACE_S, cwd=ROOT, env=env)
    text, code = reply.output, reply.code
    with log.open("a", encoding="utf-8") as stream:
        stream.write(f"== {phase.name}: {' '.join(phase.command)}\n{text}\n")
    print(text, flush=True)
    last = (text.strip().splitlines() or [""])[-1]
    return Outcome(phase.name, code, time.monotonic() - start, last)


def install(wheels: Path) -> None:
    """Unpacks every wheel of a folder into `SITE`, without a network; what the machine has stays as it is."""
    files = [str(path) for path in sorted(wheels.glob("*.whl"))]
    if not files:
        raise SystemExit(f"error: {wheels}: no wheels in this folder")
    shutil.rmtree(SITE, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(SITE)]
    subprocess.run([*pip, *files], check=True)


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line as a namespace."""
    parser = argparse.ArgumentParser(description="Check, sanitize, count, tune and time on this machine's GPU.")
    parser.add_argument("--out", type=Path, required=True, help="folder of the result files")
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=["check", "bench"])
    parser.add_argument("--iterations", nargs="+", type=int, default=[], metavar="N", help="default: all")
    parser.add_argument("--configs", nargs="+", default=["a100", "h200"], help="for check and bench")
    parser.add_argument("--tune-iterations", nargs="+", type=int, default=[16], metavar="N")
    parser.add_argument("--tune-dtypes", nargs="+", default=["fp16"])
    parser.add_argument("--budget", type=float, default=240.0, help="seconds per phase")
    parser.add_argument("--quick", action="store_true", help="short lengths only, to see that everything runs")
    parser.add_argument("--wheels", type=Path, help="install the wheels of this folder first")
    parser.add_argument("--resume", type=Path, help="folder of an earlier run, whose files are taken over")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_arguments(argv)
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.resume:
        for path in sorted(options.resume.glob("*.json.gz")):
            shutil.copyfile(path, options.out / path.name)  # not copy: the earlier files may be read-only
    if options.wheels:
        install(options.wheels)
    outcomes = [run(phase, options.out / "session.log") for phase in plan(options)]
    print("== phases")
    for outcome in outcomes:
        state = "stopped" if outcome.code is None else f"exit {outcome.code}"
        print(f"{outcome.name:10s} {state:8s} {outcome.seconds:6.0f} s  {outcome.last}")
    return 0 if all(outcome.code == 0 for outcome in outcomes) else 1


if __name__ == "__main__":
    raise SystemExit(main())
