"""Does a GPU compute what the emulator's cases expect, bit by bit? Runs all of them on both and keeps the raw answers.

Needs NumPy, ml_dtypes and NVIDIA's driver, which compiles the PTX itself.

Run on a machine with a GPU: ``python tools/hw_cases.py``; ``--only integer floating`` takes some groups, merged into
the file that is there. Exit code 1 when anything disagrees, 2 when nothing could be run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
import platform
import sys

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.cases import harness, replay

import ptxemu
from ptxemu.chip import open_gpu

TESTS = Path(__file__).resolve().parents[1] / "tests"


def main(argv: Sequence[str] | None = None) -> int:
    """Replays groups of cases, writing the file after each, and prints a table."""
    groups = harness.collect()
    parser = argparse.ArgumentParser(description="Replay the emulator's cases on this machine's GPU.")
    parser.add_argument("--out", type=Path, default=TESTS / "data" / "emulator_cases.json.gz")
    parser.add_argument("--only", nargs="+", default=list(groups), choices=list(groups), metavar="GROUP")
    options = parser.parse_args(argv)
    before = replay.read(options.out)[1] if options.out.exists() and len(options.only) < len(groups) else []
    found = [record for record in before if record.module not in options.only]
    with open_gpu() as gpu:
        packages = {name: metadata.version(name) for name in ("numpy", "ml_dtypes")}
        machine = {"gpu": gpu.name, "driver": gpu.driver_version, "cuda": ".".join(map(str, gpu.cuda_version))}
        for name in options.only:
            found += replay.records(name, groups[name], gpu.load, gpu.reset, ptxemu.load)
            found.sort(key=lambda record: record.module)
            replay.write(options.out, machine | {"python": platform.python_version(), "packages": packages}, found)
            print(f"{name}: {len(groups[name])} cases", flush=True)
    print(replay.table(found))
    return int(any(r.error or r.against_expected or r.against_emulator for r in found))


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except ptxemu.PtxemuError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from error
