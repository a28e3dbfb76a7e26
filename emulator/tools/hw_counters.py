"""Question: does Nsight Compute count what the emulator counts, for every kind of memory access?

Why: bank conflicts and sectors are rules of the hardware that no document states in full. Small kernels
(tests/emulator_cases/patterns.py), one access pattern each, run under ``ncu``; the readings are committed, and
tests/null/emulator/test_hw_counters.py holds the emulator to them. Needs counter rights, NumPy and ml_dtypes.

Run on a machine with a GPU: ``python analysis/emulator_hw_counters.py --out results/h200/emulator_patterns.json.gz``
On Hopper also with ``--hopper --out results/h200/hopper_patterns.json.gz``: ``stmatrix`` and ``wgmma``.
Exit code 1 when a counter differs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import gzip
import json
from pathlib import Path
import sys
import tempfile
import types

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
if "tests" not in sys.modules:  # another package of this name, somewhere on sys.path, would hide our folder
    sys.modules["tests"] = types.ModuleType("tests")
    sys.modules["tests"].__path__ = [str(ROOT / "tests")]

from tests.cases import hopper_patterns  # noqa: E402
from tests.cases import patterns as all_patterns  # noqa: E402
from tests.cases.patterns import entry_name, told  # noqa: E402

from flashladder.errors import CheckFailed, FlashladderError, one_line_errors  # noqa: E402
from flashladder.files import sha256, write_atomic  # noqa: E402
from flashladder.gpu.bounded import run_bounded  # noqa: E402 - after the path is set
from flashladder.gpu.doctor_gpu import require_ncu  # noqa: E402
from flashladder.gpu.ncu import parse_ncu  # noqa: E402
from ptxemu.chip import open_gpu  # noqa: E402

TIMEOUT_S = 540.0


def launch(chosen: types.ModuleType = all_patterns) -> None:
    """Launches every pattern of a module once; what ncu watches."""
    every = chosen.patterns()
    with open_gpu() as gpu:
        program = gpu.load(chosen.ptx_of(every))
        for index, pattern in enumerate(every):
            program.kernel(entry_name(index)).launch((1,), (pattern.threads,), chosen.arguments(pattern))


def measure(chosen: types.ModuleType = all_patterns) -> tuple[list[dict[str, int]], str]:
    """The counters of each pattern of a module, and ncu's version."""
    ncu = require_ncu()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        command = [
            str(ncu), "--clock-control", "none", "--metrics", ",".join(chosen.METRICS), "--csv",
            "--print-units", "base", "--kernel-name", "regex:pattern_", "--log-file", str(log),
            sys.executable, __file__, "--launch",
            *(["--hopper"] if chosen is hopper_patterns else []),
        ]  # fmt: skip
        reply = run_bounded(command, TIMEOUT_S)
        if reply.code != 0 or not log.is_file():
            raise FlashladderError("ncu failed", found=" / ".join(reply.output.strip().splitlines()[-3:]))
        readings = parse_ncu(log.read_text(encoding="utf-8"), chosen.METRICS)
    version = run_bounded([str(ncu), "--version"], 60.0).output.strip().splitlines()
    return readings, (version or ["ncu"])[-1]


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, compares, writes; prints what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("emulator_patterns.json.gz"))
    parser.add_argument("--launch", action="store_true", help="only launch the kernels (what ncu watches)")
    parser.add_argument("--hopper", action="store_true", help="what needs sm_90a")
    options = parser.parse_args(argv)
    module = hopper_patterns if options.hopper else all_patterns
    if options.launch:
        launch(module)
        return 0
    chosen = module.patterns()
    readings, version = measure(module)
    if len(readings) != len(chosen):
        raise FlashladderError("ncu saw another number of kernels", expected=len(chosen), found=len(readings))
    with open_gpu() as gpu:
        machine = {"gpu": gpu.name, "driver": gpu.driver_version, "ncu": version}
    document = {
        "schema": 1,
        "machine": machine,
        "ptx_sha256": sha256(module.ptx_of(chosen)),
        "readings": {pattern.name: reading for pattern, reading in zip(chosen, readings, strict=True)},
    }
    write_atomic(options.out, gzip.compress(json.dumps(document, indent=1).encode(), mtime=0))
    found = told(chosen, readings, module.emulate(chosen))
    print("\n".join([*found, f"{len(chosen)} patterns, {len(found)} differ"]))
    if found:
        raise CheckFailed(f"{len(found)} patterns count differently on the emulator")
    return 0


if __name__ == "__main__":
    with one_line_errors():
        raise SystemExit(main())
