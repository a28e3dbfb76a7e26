"""Question: does a GPU compute what the emulator computes for ordinary CUDA programs, bit by bit where that is defined?

Why: single instructions are replayed by ``emulator_hw.py``; here whole kernels as nvcc writes them run on both. Results
of approximate units, tensor cores and floating-point atomics are compared with the reference's tolerance instead.

Prepare where the toolchain is: ``python analysis/emulator_hw_programs.py --compile`` (writes build/cuda_programs/).
Run on a machine with a GPU and that folder: ``python analysis/emulator_hw_programs.py``; exit code 1 when any differs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
import sys
import types

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
if "tests" not in sys.modules:  # another package of this name, somewhere on sys.path, would hide our folder
    sys.modules["tests"] = types.ModuleType("tests")
    sys.modules["tests"].__path__ = [str(ROOT / "tests")]

from tests.cuda_programs.program import (  # noqa: E402
    FOLDER,
    SOURCES,
    VARIANTS,
    Program,
    compiled,
    difference,
    exact,
    outputs,
    programs,
)

from flashladder.errors import CheckFailed, FlashladderError, one_line_errors  # noqa: E402
from flashladder.files import relative  # noqa: E402
import ptxemu
from ptxemu.chip import GpuProgram, open_gpu  # noqa: E402


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
        for source in SOURCES:
            for variant in VARIANTS:
                path = folder / f"{source}.{variant}.ptx"
                if not path.is_file():
                    raise FlashladderError("no compiled program", where=relative(path), hint="run with --compile first")
                text = path.read_text(encoding="utf-8").replace(", debug\n", "\n", 1)  # the JIT may optimise
                here, there = ptxemu.load(text, path=path.name), gpu.load(text)
                for program in programs(source):
                    try:
                        bits, problems = compare(here, there, program, variant)
                    except FlashladderError as error:
                        bits, problems = False, [str(error)]
                        gpu.reset()
                        there = gpu.load(text)
                    total, strict, wrong = total + 1, strict + bits, wrong + bool(problems)
                    for text in problems:
                        print(f"{source}.{variant} {program.kernel}: {text}", flush=True)
                there.unload()
    print(f"{total} programs, {strict} of them bit by bit, {wrong} differ")
    if wrong:
        raise CheckFailed(f"{wrong} programs differ between the emulator, the GPU and the reference")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run the tests' CUDA programs on the emulator and on the GPU.")
    parser.add_argument("--compile", action="store_true", help="only compile them, where the toolchain is")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="the compiled programs (build/cuda_programs)")
    options = parser.parse_args(argv)
    with one_line_errors():
        if not options.compile:
            return run(options.folder)
        for source in SOURCES:
            for variant in VARIANTS:
                print(relative(compiled(source, variant, options.folder)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
