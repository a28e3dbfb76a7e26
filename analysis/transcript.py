"""Question: does every step that README promises to a newcomer work, in a clean clone, and how long does it take?

Why: a path is walked by its authors in environments that have everything. Here a clone of the last commit is made in an
empty folder, with a new environment, and each command is typed as README has it; exit codes, times and what is printed
become docs/transcript.md. A step that ends otherwise than it should fails the walk.

Run: ``python analysis/transcript.py`` (README's two long commands take about fifteen minutes).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
import os
from pathlib import Path
import re
import shlex
import subprocess
import sys
import tempfile
import time

from flashladder.arguments import Parser
from flashladder.errors import CheckFailed, one_line_errors
from flashladder.files import relative, write_atomic
from flashladder.paths import ROOT

PAGE = ROOT / "docs" / "transcript.md"
WIDTH = 100
NOT_SHOWN = re.compile(r"^(Looking in |\[notice\]|WARNING: )|it/s\]|%\|")  # of pip, and of progress bars


@dataclass(frozen=True)
class Step:
    """A command of README."""

    typed: str  # as a person types it
    says: str  # what it is for
    shown: int  # lines of what it prints, from its end
    found: str  # a part of what it prints
    first: bool = False  # whether lines are shown from the beginning instead


STEPS = (
    Step("pip install nox", "In a new environment: all that README asks for.", 1, "nox"),
    Step("nox -s reproduce", "The first command.", 40, "reproduced: every check that this machine can run"),
    Step("nox -s tests", "The second.", 4, " passed"),
    Step("nox -s dev", "An environment to work in.", 4, "ready:"),
    Step("invoke list", "The ladder.", 24, "Static GMEM stride", first=True),
    Step("invoke show 8", "One step: why, what changes, and then its whole kernel.", 40, "xor_static", first=True),
    Step("invoke diff 7 8", "What it changes.", 20, "LOP3"),
    Step("invoke sass 8 --counts", "Its machine code by class of opcode.", 24, "HMMA"),
    Step("invoke emulate 1 --counters", "The first kernel, with its bank conflicts.", 24, "shared_ld_conflicts"),
    Step("invoke sweep --grid smoke", "A sweep; without a GPU the grid `cpu`.", 8, "build/sweep/"),
    Step("invoke verify build/sweep/cpu/cpu.json.gz", "Does its result hold?", 3, "verified"),
    Step("invoke tour --yes", "The guided walk, without waiting.", 6, "That was the ladder"),
    Step("invoke report", "Tables and plots from committed results.", 6, "results/report/progression.md"),
)  # fmt: skip


def environment(clone: Path) -> dict[str, str]:
    """A newcomer's: no CUDA, no Python path, the environments of the clone first in PATH."""
    kept = {name: value for name, value in os.environ.items() if name not in {"CUDA_HOME", "CUDA_PATH", "PYTHONPATH"}}
    path = [str(clone / ".venv" / "bin"), str(clone.parent / "venv" / "bin")]
    own = [folder for folder in kept["PATH"].split(os.pathsep) if not (Path(folder).parent / "pyvenv.cfg").exists()]
    kept.pop("VIRTUAL_ENV", None)
    return {**kept, "PATH": os.pathsep.join([*path, *own]), "COLUMNS": "80", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def typed(step: Step, clone: Path) -> tuple[float, str]:
    """Runs a step in the clone; its seconds, and what it printed.

    Raises:
        CheckFailed: it did not end well, or did not print what it should.
    """
    own = environment(clone)
    start = time.monotonic()
    done = subprocess.run(
        ["env", *shlex.split(step.typed)], cwd=clone, env=own, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    seconds = time.monotonic() - start
    if done.returncode or step.found not in done.stdout:
        last = (done.stdout.strip() or "nothing").splitlines()[-1]
        raise CheckFailed(
            f"$ {step.typed}", expected=f"exit code 0 and {step.found!r}", found=f"{done.returncode}: {last}"
        )
    return seconds, done.stdout


def section(number: int, step: Step, seconds: float, printed: str, places: dict[str, str]) -> str:
    """A step as the page shows it; paths of this machine as `places` names them."""
    for path, name in places.items():
        printed = printed.replace(path, name)
    lines = [line.rpartition("\r")[2].rstrip() for line in printed.splitlines()]
    lines = [line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..." for line in lines if not NOT_SHOWN.search(line)]
    shown, left = lines[: step.shown] if step.first else lines[-step.shown :], len(lines) - step.shown
    before = [f"... ({left} lines before)"] if left > 0 and not step.first else []
    after = [f"... ({left} lines more)"] if left > 0 and step.first else []
    body = "\n".join([*before, *shown, *after]).strip("\n")
    return f"## {number}. `{step.typed}`\n\n{step.says} {seconds:.0f} s, exit code 0.\n\n```text\n{body}\n```\n\n"


def walk(clone: Path) -> Iterator[str]:
    """The sections of the page."""
    places = {str(clone): "~/flashladder", str(clone.parent): "~", str(Path.home()): "~"}
    for number, step in enumerate(STEPS, 1):
        print(f"$ {step.typed}", flush=True)
        yield section(number, step, *typed(step, clone), places)


def page(sections: Iterable[str]) -> str:
    """docs/transcript.md."""
    cores = len(os.sched_getaffinity(0))
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    when = datetime.now(timezone.utc).date()
    return (
        "# A new user's transcript\n\n"
        f"Made by `python analysis/transcript.py`, {when}, on {cores} cores without a GPU, with Python "
        f"{sys.version_info.major}.{sys.version_info.minor}, from a clean clone of {commit} in an empty folder,\n"
        "without `build/`; downloads were cached. Each command is as README has it. Lines are left out and cut.\n\n"
        + "".join(sections)
    ).rstrip() + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Walks and writes the page."""
    Parser(prog="python analysis/transcript.py", description="Walk README's path in a clean clone.").parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "flashladder"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        subprocess.run([sys.executable, "-m", "venv", str(clone.parent / "venv")], check=True)
        sections = list(walk(clone))
    print(relative(write_atomic(PAGE, page(sections))))
    return 0


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
