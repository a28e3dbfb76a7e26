"""Sweeps and their workers killed with SIGKILL at random moments; what is left, and what a resumed sweep makes of it.

Why: hours of measurement are only safe if a sweep may end at any moment. A campaign kills so many sweeps, then so many
workers; whenever a folder is complete it is compared with that of an undisturbed sweep, and a new one is begun.
Sweeps are forked or, with ``--by-command``, started as a user does. Importing torch takes longer than all cells of a
test's grid, so that a random moment would nearly always fall into an import; a forked sweep is the same program from
`main` on, its workers are its children in sessions of their own, over pipes, with nothing of it open.

Run: ``pytest tests/nvcc/test_sweep_faults.py`` does ten of each; the hundreds, with a log for results/sweep/:
    python -m tests.nvcc.sweep_faults --kills 100 --seed 20261122 --log faults.txt
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
import gzip
import importlib.metadata
import io
import itertools
import json
import multiprocessing
import os
from pathlib import Path
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from types import SimpleNamespace
from typing import IO, Any

from flashladder.errors import one_line_errors
from flashladder.files import digest_files, sha256
from flashladder.paths import ROOT
from flashladder.sweep import command
from flashladder.sweep import workers as process
from flashladder.sweep.records import SUFFIX, Records
from tests.null.sweep_fixture import canonical

WORKER = "flashladder.sweep.workers"
KEPT: list[object] = []  # files of the sweep in its workers: what is in their buffers is the sweep's to write
FORK = multiprocessing.get_context("fork")


class Sweep:
    """One that runs: its process, and what it writes to stderr."""

    pid: int

    def __init__(self) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as this

    def told(self) -> str:
        """What it wrote to stderr."""
        self._stderr.seek(0)
        return self._stderr.read().decode()

    def workers(self) -> list[int]:
        """Its workers that run."""
        found = []
        for entry in _processes():
            with suppress(OSError):
                if self._is_worker(entry):
                    found.append(int(entry.name))
        return found

    def _is_worker(self, entry: Path) -> bool:
        """Whether a process is one; `entry` is its folder in /proc."""
        raise NotImplementedError


class ByCommand(Sweep):
    """``python -m flashladder.sweep`` with these options."""

    def __init__(self, options: Sequence[str]) -> None:
        super().__init__()
        words = [sys.executable, "-m", "flashladder.sweep", *options]
        self._process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=self._stderr)
        self.pid = self._process.pid

    def wait(self, timeout_s: float | None = None) -> int | None:
        """The exit code; None when it still runs after this time."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def kill(self) -> None:
        """SIGKILL, to the sweep alone."""
        self._process.kill()
        self._process.wait()

    def _is_worker(self, entry: Path) -> bool:
        words = (entry / "cmdline").read_bytes().split(b"\0")  # empty for one that ended
        return WORKER.encode() in words and str(self.pid).encode() in words


class Forked(Sweep):
    """The same, forked from this process."""

    def __init__(self, options: Sequence[str]) -> None:
        super().__init__()
        self._process = FORK.Process(target=_sweep, args=(list(options), self._stderr.fileno()))
        self._process.start()
        self.pid = int(self._process.pid or 0)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """The exit code; None when it still runs after this time."""
        self._process.join(timeout_s)
        return self._process.exitcode

    def kill(self) -> None:
        """SIGKILL, to the sweep alone."""
        self._process.kill()
        self._process.join()

    def _is_worker(self, entry: Path) -> bool:
        """Workers bear the name that the sweep gave itself."""
        name = (entry / "comm").read_text().strip()
        state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        return name == _name(self.pid) and entry.name != str(self.pid) and state not in "ZX"


def seconds_until_gone(sweep: ByCommand | Forked, at_most_s: float) -> float:
    """How long workers outlived their sweep.

    Raises:
        AssertionError: they still do.
    """
    begin = time.monotonic()
    while left := sweep.workers():
        assert time.monotonic() - begin < at_most_s, f"orphans of sweep {sweep.pid}: {left}"
        time.sleep(0.01)
    return time.monotonic() - begin


def _processes() -> list[Path]:
    return [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _name(pid: int) -> str:
    return f"sweep-{pid}"


def _sweep(options: Sequence[str], stderr: int) -> None:
    """What a forked sweep runs."""
    Path("/proc/self/comm").write_text(_name(os.getpid()))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(stderr, 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False, buffering=1)  # noqa: SIM115
    process.subprocess = SimpleNamespace(  # type: ignore[assignment,attr-defined]  # all that it takes of the module
        Popen=ForkedWorker, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired
    )
    with one_line_errors():
        raise SystemExit(command.main(options))


class ForkedWorker:
    """Takes the place of `subprocess.Popen` for a worker: everything but ``exec``."""

    def __init__(self, words: Sequence[str], *, stderr: IO[bytes], env: Mapping[str, str], **_: Any) -> None:
        requests, answers = os.pipe(), os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            _work(words, (requests[0], answers[1], stderr.fileno()), env)
        os.close(requests[0])
        os.close(answers[1])
        self.stdin, self.stdout = io.open(requests[1], "wb"), io.open(answers[0], "rb")  # noqa: SIM115, UP020

    def wait(self, timeout: float) -> int:
        """The exit code, as of `subprocess.Popen.wait`."""
        end = time.monotonic() + timeout
        while self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                raise subprocess.TimeoutExpired("worker", timeout)
            else:
                time.sleep(0.005)
        return self.returncode


def _work(words: Sequence[str], ends: tuple[int, int, int], env: Mapping[str, str]) -> None:
    """A forked worker; does not return."""
    code = 1
    try:
        os.setsid()
        for number, end in enumerate(ends):
            os.dup2(end, number)
        os.closerange(3, min(4096, os.sysconf("SC_OPEN_MAX")))
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.environ.update(env)
        KEPT.append((sys.stdin, sys.stdout, sys.stderr))
        sys.stdin, sys.stdout, sys.stderr = (open(n, mode) for n, mode in enumerate(("r", "w", "w")))  # noqa: PTH123, SIM115
        code = process.main(words[3], int(words[4]))
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
    finally:
        os._exit(code)


GRID = """\
why: A few cells of the emulator that take seconds together, for sweeps that are killed at random moments.
gpu: any
mode: emulator
iterations: [1, 4, 8, 12, 16]
configs: a100
dtypes: [fp16]
seq_lens: [{seq_len: 128, batch: 1}]
n_heads: 1
"""
GONE_S = 30.0  # a worker that was just starting notices within its imports that its sweep is dead
Say = Callable[[str], object]


def options(folder: Path, *more: str) -> list[str]:
    """The words after ``sweep``; the grid's file lies beside `folder`."""
    grid = folder.with_name("faults.yaml")
    grid.write_text(GRID, encoding="utf-8")
    return ["--grid", str(grid), "--out", str(folder), *more]


def kept(folder: Path) -> Mapping[str, str]:
    """Address to what must be equal, of every record in `folder` that is no failure; each must be whole."""
    records = Records(folder)
    found = [records.read(address) for address in records.addresses()]
    return {record.cell.address: canonical(record) for record in found if not record.failure}


def packed(folder: Path) -> object:
    """The document beside `folder`."""
    return json.loads(gzip.decompress(folder.with_name(folder.name + SUFFIX).read_bytes()))


@dataclass
class Campaign:
    """Random faults in sweeps of `GRID` under `place`; `expected` and `document` come from an undisturbed one."""

    place: Path
    chance: random.Random
    say: Say
    make: type[ByCommand | Forked] = Forked
    expected: Mapping[str, str] = field(init=False)
    document: object = field(init=False)
    span_s: float = field(init=False)
    complete: int = 0

    def __post_init__(self) -> None:
        folder = self.place / "undisturbed"
        first = ByCommand(options(folder))
        assert first.wait() == 0, first.told()
        self.expected, self.document = kept(folder), packed(folder)
        assert len(self.expected) == 5
        begin = time.monotonic()
        again = self.start(self.place / "timed")
        assert again.wait() == 0, again.told()
        self.span_s = time.monotonic() - begin
        self.say(f"undisturbed: {len(self.expected)} cells in {self.span_s:.2f} s")
        self.require_whole(self.place / "timed")

    def start(self, folder: Path, *more: str) -> ByCommand | Forked:
        """A sweep of `GRID` into `folder`."""
        return self.make(options(folder, *more))

    def compare(self, folder: Path) -> str:
        """Asserts that what `folder` holds is a part of the undisturbed sweep's; says how much."""
        found = kept(folder)
        assert found.items() <= self.expected.items()
        return f"{len(found)} of {len(self.expected)} cells kept"

    def finish(self, folder: Path) -> None:
        """Resumes until the sweep is whole; asserts that nothing is missing, doubled, different or left lying about."""
        running = self.start(folder, "--retry")
        assert running.wait() == 0, running.told()
        self.require_whole(folder)

    def require_whole(self, folder: Path) -> None:
        """Asserts that `folder` and the document beside it are those of the undisturbed sweep."""
        assert kept(folder) == self.expected
        assert packed(folder) == self.document
        names = {f"{address}{SUFFIX}" for address in self.expected} | {".lock"}
        assert {path.name for path in folder.iterdir()} == names
        self.complete += 1
        self.say(f"{folder.name} is whole: {len(self.expected)} cells, each equal to the undisturbed sweep's")

    def kill_sweeps(self, count: int) -> None:
        """Kills `count` sweeps, each at a random moment of an undisturbed one's time."""
        folders = (self.place / f"sweeps-{number}" for number in itertools.count())
        folder, killed = next(folders), 0
        while killed < count:
            moment = self.chance.uniform(0, self.span_s)
            running = self.start(folder)
            if (code := running.wait(moment)) is None:
                running.kill()
                killed += 1
                gone = seconds_until_gone(running, GONE_S)
                told = f"{self.compare(folder)}, no worker left after {gone:.2f} s"
                self.say(f"sweep killed {killed:3d}: after {moment:.3f} s in {folder.name}: {told}")
                continue
            assert code == 0, running.told()
            self.require_whole(folder)
            folder = next(folders)
        self.finish(folder)

    def kill_workers(self, count: int) -> None:
        """Kills `count` workers of running sweeps, random ones at random moments."""
        folders = (self.place / f"workers-{number}" for number in itertools.count())
        folder, killed = next(folders), 0
        while killed < count:
            running = self.start(folder, "--retry")
            begin = time.monotonic()
            while (code := running.wait(self.chance.uniform(0, self.span_s / 2))) is None and killed < count:
                if found := sorted(running.workers()):
                    with suppress(ProcessLookupError):
                        os.kill(self.chance.choice(found), signal.SIGKILL)
                        killed += 1
                        after = time.monotonic() - begin
                        told = f"after {after:.3f} s in {folder.name}: {self.compare(folder)}"
                        self.say(f"worker killed {killed:3d}: {told}")
            code = running.wait()
            last = running.told().strip().splitlines()[-1:] or ["done"]
            self.say(f"the sweep into {folder.name} left with {code}: {last[0][:160]}")
            seconds_until_gone(running, GONE_S)
            assert code in (0, 1, 2), running.told()
            if code == 0:
                self.require_whole(folder)
                folder = next(folders)
        if folder.exists():
            self.finish(folder)


def import_everything() -> None:
    """What a forked sweep and its workers need not import again."""
    import torch

    from flashladder.sweep import measure as measure_cpu
    from flashladder.sweep import pack

    assert torch.get_num_threads()
    assert measure_cpu.__name__ != pack.__name__


def versions() -> str:
    """What is tried: a digest of the package's sweep, and torch."""
    code = sha256(json.dumps(digest_files((ROOT / "flashladder" / "sweep").rglob("*.py"))))
    return f"flashladder/sweep {code[:16]}, torch {importlib.metadata.version('torch')}"


def main() -> None:
    """Runs a campaign, with a log."""
    import_everything()
    parser = argparse.ArgumentParser(prog="python -m tests.nvcc.sweep_faults")
    parser.add_argument("--kills", type=int, default=100, help="sweeps to kill, and then workers")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--by-command", action="store_true", help="start each sweep as a user does")
    given = parser.parse_args()
    with given.log.open("w", encoding="utf-8") as log, tempfile.TemporaryDirectory() as place:

        def say(line: str) -> None:
            print(line, flush=True)
            log.write(f"{line}\n")
            log.flush()

        say(f"seed {given.seed}, {given.kills} sweeps and {given.kills} workers killed with SIGKILL")
        say(versions())
        say(f"Python {platform.python_version()}, Linux {platform.release()}, {len(os.sched_getaffinity(0))} CPUs")
        say("each started by its command" if given.by_command else "each forked from one that has its imports")
        campaign = Campaign(Path(place), random.Random(given.seed), say, ByCommand if given.by_command else Forked)
        campaign.kill_sweeps(given.kills)
        campaign.kill_workers(given.kills)
        say(f"passed: {campaign.complete} sweeps were made whole, each cell once and equal to the undisturbed sweep's")


if __name__ == "__main__":
    main()
