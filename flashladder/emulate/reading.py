"""The committed reading of the emulator: counters and races of every iteration in its published A100 configuration.

Why apart from `flashladder.emulate.take_reading`, which makes it: reports and checks read it without emulating
anything. It follows from the PTX alone, and so carries the PTX's digests instead of a seal. Nothing to run here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from flashladder.columns import csv_text
from flashladder.columns import table as aligned
from flashladder.errors import FlashladderError
from flashladder.files import checked_json, dump_json, relative
from flashladder.ladder.config import DTYPES
from flashladder.located import first_problem
from flashladder.paths import RESULTS
from flashladder.problem import Shape
from flashladder.results.schema import Strict

NAME = "emulator/counters.json"  # under a results folder
READING = RESULTS / NAME
SHARED = ("ld", "st")
HOW_TO_WRITE = "run: python -m flashladder.emulate.take_reading --write"


class EmulatedKernel(Strict):
    """One kernel's reading."""

    iteration: int  # number; `config` its short form
    config: str
    ptx_sha256: dict[str, str]  # of the normalised PTX, for both dtypes
    counters: dict[str, int]  # at the reading's shape, by Nsight Compute's names
    ideal_wavefronts: dict[str, int]  # of the accesses to shared memory without conflicts, for ``ld`` and ``st``
    copied_bytes: int  # written to shared memory by ``cp.async``
    warp_instructions: int  # PTX instructions executed by warps; `lane_instructions` by lanes
    lane_instructions: int
    races: dict[str, int]  # found at the reading's shape for races, for both dtypes


class EmulatedCounters(Strict):
    """The reading of all iterations; counters in fp16 (bf16 moves and multiplies the same)."""

    schema_version: Literal[1] = 1
    kind: Literal["emulator-counters"] = "emulator-counters"
    shape: Shape
    race_shape: Shape
    kernels: dict[str, EmulatedKernel]

    def of(self, number: int) -> EmulatedKernel:
        """The kernel of an iteration.

        Raises:
            FlashladderError: the reading lacks it.
        """
        if found := self.find(number):
            return found
        raise FlashladderError(f"no emulated counters of iteration {number}", hint=HOW_TO_WRITE)

    def find(self, number: int) -> EmulatedKernel | None:
        """The kernel of an iteration; None where it was not read."""
        return next((kernel for kernel in self.kernels.values() if kernel.iteration == number), None)


def load_reading(path: Path = READING) -> EmulatedCounters:
    """The committed reading.

    Raises:
        FlashladderError: it is missing or malformed.
    """
    try:
        return EmulatedCounters.model_validate_json(checked_json(path.read_bytes()))
    except FileNotFoundError as error:
        raise FlashladderError("no emulated counters", where=relative(path), hint=HOW_TO_WRITE) from error
    except (OSError, ValueError) as error:
        raise FlashladderError(first_problem(error), where=relative(path), hint=HOW_TO_WRITE) from error


def to_csv(reading: EmulatedCounters) -> str:
    """The counters as a table: iteration, configuration, races, then one column per counter."""
    metrics = sorted(next(iter(reading.kernels.values())).counters)
    header = ["iteration", "config", *metrics, *(f"ideal_wavefronts_{one}" for one in SHARED), "copied_bytes",
              "warp_instructions", "lane_instructions", *(f"races_{dtype}" for dtype in DTYPES)]  # fmt: skip
    rows = [
        [kernel.iteration, kernel.config, *(kernel.counters[metric] for metric in metrics),
         *(kernel.ideal_wavefronts[one] for one in SHARED), kernel.copied_bytes, kernel.warp_instructions,
         kernel.lane_instructions, *(kernel.races[dtype] for dtype in DTYPES)]
        for kernel in reading.kernels.values()
    ]  # fmt: skip
    return csv_text(header, rows)


def files_of(reading: EmulatedCounters, path: Path = READING) -> Mapping[Path, str]:
    """Every committed file of a reading with its text."""
    return {path: dump_json(reading.model_dump(mode="json")), path.with_suffix(".csv"): to_csv(reading)}


def stale(reading: EmulatedCounters, path: Path = READING) -> list[str]:
    """Committed files that are not what `reading` gives."""
    return [
        f"{relative(file)}: {'differs from what the PTX gives' if file.is_file() else 'is missing'}; {HOW_TO_WRITE}"
        for file, text in files_of(reading, path).items()
        if not file.is_file() or file.read_bytes() != text.encode()
    ]


def table(reading: EmulatedCounters) -> str:
    """The reading for people."""
    from flashladder.names import CONFLICTS, LDSM, SECTORS, WAVEFRONTS

    shown = {"ld wavefr.": WAVEFRONTS.format("ld"), "conflicts": CONFLICTS.format("ld"),
             "st wavefr.": WAVEFRONTS.format("st"), "ld sectors": SECTORS[0], "ldsm": LDSM}  # fmt: skip
    rows = [[*shown, "races", "kernel"]]
    for key, one in reading.kernels.items():
        counts = [*(one.counters[metric] for metric in shown.values()), sum(one.races.values())]
        rows.append([*map(str, counts), key])
    return "\n".join(aligned(rows, None, right=range(len(shown) + 1)))
