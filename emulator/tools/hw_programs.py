"""Does a GPU compute what the emulator computes for ordinary CUDA programs, bit by bit where that is defined?

Single instructions are replayed by ``hw_cases.py``; here whole kernels as nvcc writes them run on both. Results of
approximate units, tensor cores and floating-point atomics are compared with the reference's tolerance instead.

Prepare where the compiler's wheels are: ``python tools/hw_programs.py --compile`` (writes build/cuda_programs/). Run on
a machine with a GPU and that folder: ``python tools/hw_programs.py``. Exit code 1 when any differs, 2 when nothing ran.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path
import sys

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.cuda_programs.program import SOURCES, VARIANTS, Program, compiled, difference, exact, outputs, programs

import ptxemu
from ptxemu.chip import GpuProgram, open_gpu

ROOT = Path(__file__).resolve().parents[1]

FOLDER = ROOT / "build" / "cuda_programs"


def compare(here: ptxemu.Program, there: GpuProgram, program: Program, variant: str) -> tuple[bool, list[str]]:
    """Runs one program on the emulator and on the GPU; whether bits had to agree, and what differs."""
    kernel, ours, theirs = here.kernel(program.kernel), program.copies(), program.copies()
    kernel.launch(program.grid, program.block, ours, shared_bytes=program.shared_bytes)
    there.kernel(program.kernel).launch(program.grid, program.block, theirs, shared_bytes=program.shared_bytes)
    problems, bits = [f"GPU: {text}" for text in program.problems(theirs, variant)], exact(kernel.function)
    if bits:
        pairs = zip(outputs(ours), outputs(theirs), strict=True)
        found = [difference(left, right, 0.0) for left, right in pairs if left.size]
        problems += [f"emulator against GPU: {text}" for text in found if text]
    return bits, problems


def run(folder: Path) -> int:
    """Compares every program in every variant; prints what differs and the sums."""
    total = strict = wrong = 0
    with open_gpu() as gpu:
        print(f"{gpu.name}, driver {gpu.driver_version}, NumPy {np.__version__}", flush=True)
        for source, variant in product(SOURCES, VARIANTS):
            name = f"{source}.{variant}.ptx"
            text = (folder / name).read_text(encoding="utf-8").replace(", debug\n", "\n", 1)  # the JIT may optimise
            here, there = ptxemu.load(text, path=name), gpu.load(text)
            for program in programs(source):
                try:
                    bits, problems = compare(here, there, program, variant)
                except ptxemu.PtxemuError as error:
                    bits, problems = False, [str(error)]
                    gpu.reset()
                    there = gpu.load(text)
                total, strict, wrong = total + 1, strict + bits, wrong + bool(problems)
                for problem in problems:
                    print(f"{source}.{variant} {program.kernel}: {problem}", flush=True)
            there.unload()
    print(f"{total} programs, {strict} of them bit by bit, {wrong} differ")
    return int(wrong > 0)


def main(argv: Sequence[str] | None = None) -> int:
    """Compiles, or runs what was compiled."""
    parser = argparse.ArgumentParser(description="Run the tests' CUDA programs on the emulator and on the GPU.")
    parser.add_argument("--compile", action="store_true", help="only compile them, where the compiler's wheels are")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="the compiled programs (build/cuda_programs)")
    options = parser.parse_args(argv)
    if not options.compile:
        return run(options.folder)
    options.folder.mkdir(parents=True, exist_ok=True)
    for source, variant in product(SOURCES, VARIANTS):
        (options.folder / f"{source}.{variant}.ptx").write_text(compiled(source, variant), encoding="utf-8")
    return 0


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except (OSError, ptxemu.PtxemuError) as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from error
