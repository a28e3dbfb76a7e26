"""Asks this machine's GPU (H100, H200) to run the small Hopper programs, and keeps its raw answers.

Run: ``python tools/hw_hopper.py [--out FILE]``; exit code 1 when a program does not compute what is expected. A machine
without the compiler's wheels needs what ``--compile`` writes where they are: ``build/hopper_programs``. NumPy and
ml_dtypes must be there. A program that a chip refuses leaves a process that can use the chip no more, so each of those
runs in a process of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
import sys
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.hopper_programs.answers import FILE, ask, write
from tests.hopper_programs.program import COMPILED, FILES, programs, text_of
from tests.hopper_programs.tensors import REFUSED

from ptxemu.chip import open_gpu
from ptxemu.errors import PtxemuError


def alone(place: int) -> dict[str, Any]:
    """The answer to one of `REFUSED`, in a process that ends after it."""
    with open_gpu() as gpu:
        return ask(gpu, REFUSED[place])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run the small Hopper programs on this machine's GPU.")
    parser.add_argument("--out", type=Path, default=FILE, help="the file to write (.json.gz)")
    parser.add_argument("--compile", action="store_true", help=f"only write PTX to {COMPILED.name}")
    options = parser.parse_args(argv)
    if options.compile:
        COMPILED.mkdir(parents=True, exist_ok=True)
        return sum(not (COMPILED / f"{file}.ptx").write_text(text_of(file), encoding="utf-8") for file in FILES)
    with open_gpu() as gpu:
        found = [ask(gpu, program) for program in programs().values()]
        machine = {"gpu": gpu.name, "cuda_driver": ".".join(map(str, gpu.cuda_version))}
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        refused = pool.map(alone, range(len(REFUSED)), chunksize=1)
    write(machine, [*found, *refused], options.out)
    told = [each for each in found if each["error"] or each["against_expected"] or each["distinct"] != 1]
    told += [each | {"error": "was not refused"} for each in refused if not each["error"]]
    for each in told:
        print(f"{each['name']}: {each['error'] or each['against_expected']}, {each['distinct']} different answers")
    print(f"{len(found)} programs, {len(refused)} to be refused, {len(told)} not as expected")
    return int(bool(told))


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except PtxemuError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from error
