"""Question: does a GPU compute what the emulator's cases expect, bit by bit?

Why: every instruction of the emulator's table has cases with edge values; here the same PTX runs on the chip, and its
raw answers are kept. Needs NumPy, ml_dtypes and NVIDIA's driver, nothing else: the driver compiles the PTX.

Run on a machine with a GPU: ``python analysis/emulator_hw.py --out results/h200/emulator_cases.json.gz``
Exit code 1 when anything disagrees. ``--only integer floating`` takes some modules, merged into the file that is there.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
import platform
import sys
import types

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
if "tests" not in sys.modules:  # another package of this name, somewhere on sys.path, would hide our folder
    sys.modules["tests"] = types.ModuleType("tests")
    sys.modules["tests"].__path__ = [str(ROOT / "tests")]

from tests.cases import harness, replay  # noqa: E402

from flashladder.errors import FlashladderError, one_line_errors  # noqa: E402
import ptxemu
from ptxemu.chip import Gpu, open_gpu  # noqa: E402


def identity(gpu: Gpu) -> dict[str, object]:
    """Which machine answered."""
    return {
        "gpu": gpu.name,
        "driver": gpu.driver_version,
        "cuda": ".".join(map(str, gpu.cuda_version)),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in ("numpy", "ml_dtypes")},
    }


def run(out: Path, only: Sequence[str]) -> int:
    """Replays all modules of cases, writing the file after each, and prints the table last."""
    modules = harness.collect()
    unknown = sorted(set(only) - set(modules))
    if unknown:
        raise FlashladderError("no such module of cases", expected=", ".join(modules), found=", ".join(unknown))
    chosen = {name: cases for name, cases in modules.items() if name in only or not only}
    found = [record for record in replay.read(out)[1] if record.module not in chosen] if only and out.exists() else []
    with open_gpu() as gpu:
        machine = identity(gpu)
        print(f"{machine['gpu']}, driver {machine['driver']}", flush=True)
        for name, cases in chosen.items():
            found += replay.records(name, cases, gpu.load, gpu.reset, ptxemu.load)
            replay.write(out, machine, sorted(found, key=lambda record: record.module))
            print(f"{name}: {len(cases)} cases", flush=True)
    print(replay.table(sorted(found, key=lambda record: record.module)))
    return 1 if any(r.error or r.against_expected or r.against_emulator for r in found) else 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Replay the emulator's cases on this machine's GPU.")
    parser.add_argument("--out", type=Path, required=True, help="the file to write (.json.gz)")
    parser.add_argument("--only", nargs="+", default=[], metavar="MODULE", help="modules of tests/emulator_cases")
    options = parser.parse_args(argv)
    with one_line_errors():
        return run(options.out, options.only)


if __name__ == "__main__":
    raise SystemExit(main())
