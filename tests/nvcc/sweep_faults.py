"""Kills sweeps and their workers with SIGKILL at random moments, and checks that sweeps resume from what is left.

A campaign kills a number of sweeps, then of workers, and compares each complete folder with that of an undisturbed
sweep. Importing torch takes longer than all cells of the grid, so four of five kills come after a worker is ready.

``pytest tests/nvcc/test_sweep_faults.py`` does ten of each; the hundreds, with a log for results/sweep/:
    python -m tests.nvcc.sweep_faults --kills 100 --seed 20261122 --log faults.txt
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
import gzip
import itertools
import os
from pathlib import Path
import random
import signal
import subprocess
import sys
import tempfile
import time

from flashladder.paths import ROOT
from flashladder.sweep.records import SUFFIX, Records
from tests.null.sweep_fixture import EMULATED, SHORT, SMALL, canonical, grid

WORKER = b"flashladder.sweep.workers"
EARLY = 0.2  # share of the kills that come before a worker is ready
READY_S = 180.0  # limit for importing torch on a busy machine
GONE_S = 30.0  # a worker that is still importing may notice late that its sweep is dead
GRID = {**SMALL, **SHORT, **EMULATED, "iterations": [1, 4, 8, 12, 16]}  # five cells that take seconds together


class Sweep:
    """``python -m flashladder.sweep --json`` into a folder, its output, and its workers."""

    def __init__(self, folder: Path, *more: str) -> None:
        grid(folder.parent, GRID, "faults")
        self._out, self._err = (folder.with_name(f"{folder.name}.{name}") for name in ("stdout", "stderr"))
        self.started = time.monotonic()
        words = [sys.executable, "-m", "flashladder.sweep", "--out", str(folder), *more, "--json"]
        words += ["--grid", str(folder.with_name("faults.yaml"))]
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(words, cwd=ROOT, stdout=out, stderr=err)

    def errors(self) -> str:
        return self._err.read_text(encoding="utf-8")

    def wait(self, timeout_s: float | None = None) -> int | None:
        """The exit code; None if it still runs after this time."""
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(timeout_s)
        return None

    def wait_for_a_worker(self) -> None:
        """Waits until a worker is ready, or the sweep has ended."""
        while self.wait(0.02) is None and b'"event": "worker"' not in self._out.read_bytes():
            assert time.monotonic() - self.started < READY_S, self.errors()

    def workers(self) -> list[int]:
        """Process ids of its workers."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")  # empty if the process has ended
                if WORKER in words and str(self.process.pid).encode() in words:
                    found.append(int(entry.name))
        return found

    def require_no_orphans(self) -> float:
        """The seconds that its workers outlived it, at most `GONE_S`."""
        begin = time.monotonic()
        while left := self.workers():
            assert time.monotonic() - begin < GONE_S, f"orphans of sweep {self.process.pid}: {left}"
            time.sleep(0.01)
        return time.monotonic() - begin


def kept(folder: Path) -> Mapping[str, str]:
    """The comparable text of every record in `folder` that is no failure, by address. All records must be valid."""
    records = Records(folder)
    found = [records.read(address) for address in records.addresses()]
    return {record.cell.address: canonical(record) for record in found if not record.failure}


def packed(folder: Path) -> bytes:
    """The document beside `folder`."""
    return gzip.decompress(Records(folder).packed.read_bytes())


class Campaign:
    """Random faults in sweeps of `GRID` in `place`. `expected` and `document` come from an undisturbed sweep."""

    def __init__(self, place: Path, chance: random.Random, say: Callable[[str], object]) -> None:
        self.place, self.chance, self.say, self.complete = place, chance, say, 0
        folder = place / "undisturbed"
        first = Sweep(folder)
        first.wait_for_a_worker()
        self.start_s = time.monotonic() - first.started
        assert first.wait() == 0, first.errors()
        self.span_s = time.monotonic() - first.started - self.start_s
        self.expected, self.document = kept(folder), packed(folder)
        assert len(self.expected) == 5
        say(f"undisturbed: {len(self.expected)} cells, ready in {self.start_s:.2f} s, done in {self.span_s:.2f} s")

    def wait(self, running: Sweep) -> int | None:
        """Waits until a random moment of a sweep; returns its exit code if it ends before."""
        if self.chance.random() < EARLY:
            return running.wait(self.chance.uniform(0, self.start_s))
        running.wait_for_a_worker()
        return running.wait(self.chance.uniform(0, self.span_s))

    def compare(self, folder: Path) -> str:
        """Asserts that the records in `folder` equal those of the undisturbed sweep; returns their number as text."""
        found = kept(folder)
        assert found.items() <= self.expected.items()
        return f"{len(found)} of {len(self.expected)} cells kept"

    def require_whole(self, folder: Path) -> None:
        """Asserts that `folder` and its document equal those of the undisturbed sweep, without other files."""
        assert kept(folder) == self.expected
        assert packed(folder) == self.document
        names = {f"{address}{SUFFIX}" for address in self.expected} | {".lock"}
        assert {path.name for path in folder.iterdir()} == names
        self.complete += 1
        self.say(f"{folder.name} is whole: {len(self.expected)} cells, each equal to the undisturbed sweep's")

    def kill(self, what: str, count: int) -> None:
        """Kills `count` sweeps, or workers of running sweeps. Starts a new folder when one is complete."""
        folders = (self.place / f"{what}s-{number}" for number in itertools.count())
        folder, killed = next(folders), 0
        while killed < count or folder.exists():
            running = Sweep(folder, "--retry")
            while killed < count and (code := self.wait(running)) is None:
                victims = [running.process.pid] if what == "sweep" else sorted(running.workers())
                if not victims:
                    continue
                with suppress(ProcessLookupError):
                    os.kill(self.chance.choice(victims), signal.SIGKILL)
                    killed += 1
                    after = time.monotonic() - running.started
                    self.say(f"{what} killed {killed:3d}: after {after:.3f} s in {folder.name}: {self.compare(folder)}")
                if what == "sweep":
                    break
            code = running.wait()
            gone = running.require_no_orphans()
            last = running.errors().strip().splitlines()[-1:] or ["done"]
            self.say(f"the sweep into {folder.name} left with {code}, its workers after {gone:.2f} s: {last[0][:160]}")
            assert code in ((0, 1, 2) if what == "worker" else (0, -signal.SIGKILL)), running.errors()
            self.compare(folder)
            if code == 0:
                self.require_whole(folder)
                folder = next(folders)


def main(words: Sequence[str] | None = None) -> None:
    """Runs a campaign, with a log."""
    parser = argparse.ArgumentParser(prog="python -m tests.nvcc.sweep_faults")
    parser.add_argument("--kills", type=int, default=100, help="sweeps to kill, and then workers")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    given = parser.parse_args(words)
    with given.log.open("w", encoding="utf-8") as log, tempfile.TemporaryDirectory() as place:

        def say(line: str) -> None:
            print(line, flush=True)
            print(line, file=log, flush=True)

        say(f"seed {given.seed}, {given.kills} sweeps and {given.kills} workers killed with SIGKILL")
        campaign = Campaign(Path(place), random.Random(given.seed), say)
        campaign.kill("sweep", given.kills)
        campaign.kill("worker", given.kills)
        say(f"passed: {campaign.complete} sweeps were made whole, each cell once and equal to the undisturbed sweep's")


if __name__ == "__main__":
    main()
