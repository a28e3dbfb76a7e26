"""Question: how fast is the emulator on this machine, and how does its time grow with the sequence length?

Runs the benchmarks of tests/nvcc/test_hopper_loop.py and keeps every sample in results/emulator/speed.json, from which
`invoke report` renders emulator/docs/speed.md and its plot.

Run: ``python analysis/emulator_speed.py``
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
import platform
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

from flashladder.files import dump_json, relative, write_atomic
from flashladder.paths import ROOT
from flashladder.report.counters import SAMPLES


def measure() -> dict[str, Any]:
    """Runs the benchmark; the document that is kept."""
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "raw.json"
        options = ["--benchmark-only", "--benchmark-enable", f"--benchmark-json={raw}", "-n", "0", "-q"]
        command = [sys.executable, "-m", "pytest", "tests/nvcc/test_hopper_loop.py", *options]
        subprocess.run(command, check=True, cwd=ROOT)
        found = json.loads(raw.read_text(encoding="utf-8"))
    cpu = found["machine_info"]["cpu"]
    runs = [bench["extra_info"] | {"seconds": bench["stats"]["data"]} for bench in found["benchmarks"]]
    machine = {"cpu": cpu.get("brand_raw", "unknown"), "cores": cpu.get("count"), "python": platform.python_version()}
    ours, loops = ([run for run in runs if ("program" in run) == other] for other in (False, True))
    return {"schema": 1, "machine": machine | {"numpy": np.__version__}, "runs": ours, "loops": loops}


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(relative(write_atomic(ROOT / SAMPLES, dump_json(measure()))))
