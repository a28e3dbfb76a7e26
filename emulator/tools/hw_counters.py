"""Does Nsight Compute count what the emulator counts, for every kind of memory access?

Bank conflicts and sectors are rules of the hardware that no document states in full. Small kernels, one access pattern
each (tests/cases/patterns.py), run under ``ncu``; tests hold the emulator to the readings. Needs ncu, the right to read
counters, NumPy and ml_dtypes.

Run on a machine with a GPU: ``python tools/hw_counters.py``; on a Hopper GPU also ``--hopper`` (stmatrix, wgmma).
Exit code 1 when a counter differs, 2 when nothing could be read.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import csv
import gzip
import json
from pathlib import Path
import shutil
import subprocess
import sys

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.cases.patterns import AMPERE, HOPPER, Patterns, entry_name

import ptxemu
from ptxemu.chip import open_gpu

TESTS = Path(__file__).resolve().parents[1] / "tests"

TIMEOUT_S = 540.0


def launch(chosen: Patterns) -> None:
    """Launches every pattern once: what ncu watches."""
    with open_gpu() as gpu:
        program = gpu.load(chosen.ptx())
        for index, pattern in enumerate(chosen.patterns):
            program.kernel(entry_name(index)).launch((1,), (pattern.threads,), chosen.arguments(pattern))


def ncu(*arguments: str) -> str:
    """What Nsight Compute prints.

    Raises:
        PtxemuError: it is missing, or it failed.
    """
    found = shutil.which("ncu")
    if found is None:
        raise ptxemu.PtxemuError("Nsight Compute (ncu) is not on PATH")
    done = subprocess.run([found, *arguments], capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    if done.returncode:
        raise ptxemu.PtxemuError("ncu failed", found=" / ".join((done.stdout + done.stderr).strip().splitlines()[-3:]))
    return done.stdout


def measure(chosen: Patterns) -> list[dict[str, int]]:
    """The counters of each pattern.

    Raises:
        PtxemuError: ncu failed, or saw another number of kernels.
    """
    options = ["--clock-control", "none", "--csv", "--print-units", "base", "--kernel-name", "regex:pattern_"]
    command = [sys.executable, __file__, "--launch", *(["--hopper"] if chosen is HOPPER else [])]
    text = ncu(*options, "--metrics", ",".join(chosen.metrics), *command)
    if '"ID"' not in text:
        raise ptxemu.PtxemuError("ncu printed no table", found=text.strip().splitlines()[-1:])
    lines = (line for line in text[text.index('"ID"') :].splitlines() if line.startswith('"'))
    readings: dict[int, dict[str, int]] = {}
    for row in csv.DictReader(lines):
        readings.setdefault(int(row["ID"]), {})[row["Metric Name"]] = int(float(row["Metric Value"].replace(",", "")))
    if len(readings) != len(chosen.patterns):
        raise ptxemu.PtxemuError("ncu saw other kernels", expected=len(chosen.patterns), found=len(readings))
    return [readings[index] for index in sorted(readings)]


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, compares, writes; prints what differs."""
    parser = argparse.ArgumentParser(description="Read the counters of access patterns with Nsight Compute.")
    parser.add_argument("--out", type=Path, help="the file to write (.json.gz)")
    parser.add_argument("--launch", action="store_true", help="only launch the kernels (what ncu watches)")
    parser.add_argument("--hopper", action="store_true", help="what needs sm_90a")
    options = parser.parse_args(argv)
    chosen = HOPPER if options.hopper else AMPERE
    if options.launch:
        launch(chosen)
        return 0
    readings, version = measure(chosen), ncu("--version").strip().splitlines()[-1]
    with open_gpu() as gpu:
        machine = {"gpu": gpu.name, "driver": gpu.driver_version, "ncu": version}
    named = {pattern.name: reading for pattern, reading in zip(chosen.patterns, readings, strict=True)}
    document = {"schema": 1, "machine": machine, "ptx_sha256": chosen.digest(), "readings": named}
    (options.out or TESTS / "data" / chosen.file).write_bytes(
        gzip.compress(json.dumps(document, indent=1).encode(), mtime=0)
    )
    found = chosen.differences(readings)
    print("\n".join([*found, f"{len(readings)} patterns, {len(found)} differ"]))
    return int(bool(found))


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except ptxemu.PtxemuError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from error
