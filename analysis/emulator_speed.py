"""Question: how fast is the emulator on this machine, and how does its time grow with the sequence length?

Runs the benchmarks of tests/nvcc/test_emulator_speed.py and test_hopper_loop.py, keeps every sample in
results/emulator/speed.json, and renders emulator/docs/speed.md and its plot from that file. Nothing is gated on these
times.

Run: ``python analysis/emulator_speed.py [--render]`` (--render: from the committed samples, measuring nothing)
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

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from flashladder.files import dump_json, write_atomic
from flashladder.paths import ROOT
from flashladder.report.speed_page import SAMPLES, render


def measure() -> dict[str, Any]:
    """Runs the benchmark; the document that is kept."""
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "raw.json"
        tests = ["tests/nvcc/test_emulator_speed.py", "tests/nvcc/test_hopper_loop.py"]
        command = [
            sys.executable,
            "-m",
            "pytest",
            *tests,
            "--benchmark-only",
            "--benchmark-enable",
            f"--benchmark-json={raw}",
            "-n",
            "0",
            "-q",
        ]
        subprocess.run(command, check=True, cwd=ROOT)
        found = json.loads(raw.read_text(encoding="utf-8"))
    cpu = found["machine_info"]["cpu"]
    runs = [bench["extra_info"] | {"seconds": bench["stats"]["data"]} for bench in found["benchmarks"]]
    machine = {"cpu": cpu.get("brand_raw", "unknown"), "cores": cpu.get("count"), "python": platform.python_version()}
    ours, loops = ([run for run in runs if ("program" in run) == other] for other in (False, True))
    return {"schema": 1, "machine": machine | {"numpy": np.__version__}, "runs": ours, "loops": loops}


def main() -> None:
    """Measures unless told not to, and renders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--render", action="store_true", help="render the committed samples")
    if not parser.parse_args().render:
        write_atomic(SAMPLES, dump_json(measure()))
    for path, data in render(json.loads(SAMPLES.read_text(encoding="utf-8"))).items():
        write_atomic(path, data)
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
