"""The claims of `iterations/*.yaml` about hardware counters, checked in the committed Nsight Compute readings.

Why: a claim about bank conflicts or sectors needs a GPU to be measured, and none to be checked again: the readings are
committed as ``results/<machine>/counters.json.gz``, every iteration in its A100 configuration at one shape. A reading
counts only when the machine code that it was taken of is the locked one.

Run: ``python -m flashladder.counter_claims`` prints every claim with both counts; exit code 1 when one does not hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flashladder.claims import tell
from flashladder.errors import FlashladderError, one_line_errors
from flashladder.files import RESULTS, relative
from flashladder.iteration import Claim, load_all
from flashladder.lock_schema import LOCKS, read_lock
from flashladder.report_data import refusal
from flashladder.result_schema import CounterResult, Kernel
from flashladder.results import load_as

CONFIG_OF = "a100"  # the GPU whose configurations the readings were taken with


@dataclass(frozen=True)
class Reading:
    """One claim beside what the counters said.

    Attributes:
        iteration: the iteration's number.
        claim: what its file says.
        before: the parent's count of the claim's metric, None for a claim that names a number.
        after: the iteration's count.
        holds: whether the claim holds.
    """

    iteration: int
    claim: Claim
    before: float | None
    after: float
    holds: bool

    def __str__(self) -> str:
        """One line: verdict, claim, counts."""
        counts = f"{self.after:g}" if self.before is None else f"{self.before:g} -> {self.after:g}"
        return f"{'holds' if self.holds else 'FAILS'}  iteration {self.iteration}: {self.claim}: {counts}"


def counter_files(folder: Path = RESULTS) -> list[Path]:
    """Committed readings, ``<machine>/counters.json.gz``, in order."""
    return sorted(folder.glob("*/counters.json.gz"))


def verify(path: Path, locks: Path = LOCKS) -> list[Reading]:
    """Every counter claim of every iteration in one file of readings.

    Raises:
        FlashladderError: the file holds something else, lacks an iteration, or was read from other machine code.
    """
    result = load_as(path, CounterResult)
    counts: dict[int, dict[str, int]] = {}
    for iteration in load_all():
        short_form = iteration.configs[CONFIG_OF].short_form()
        found = [
            key for key, one in result.kernels.items() if (one.iteration, one.config) == (iteration.number, short_form)
        ]
        if len(found) != 1:
            raise FlashladderError(
                f"no reading of iteration {iteration.number}",
                where=relative(path),
                expected=short_form,
                found=len(found),
            )
        _require_lock(path, result.kernels[found[0]], locks)
        counts[iteration.number] = result.counters[found[0]]
    return [
        judge(iteration.number, claim, counts[iteration.number], counts.get(iteration.parent or 0))
        for iteration in load_all()
        for claim in iteration.expect.counters
    ]


def _require_lock(path: Path, kernel: Kernel, locks: Path) -> None:
    """Raises `FlashladderError` unless the machine code of the reading is the locked one."""
    if reason := refusal(kernel, read_lock(kernel.arch, locks)):
        raise FlashladderError(
            f"the reading of {kernel.key} is of machine code that no lock holds",
            where=relative(path),
            found=reason,
            hint="read the counters again: python -m flashladder.counters --all",
        )


def judge(number: int, claim: Claim, own: Mapping[str, float], parent: Mapping[str, float] | None) -> Reading:
    """The verdict on one claim from two kernels' counts."""
    return Reading(
        iteration=number,
        claim=claim,
        before=claim.measure(parent) if claim.needs_parent and parent is not None else None,
        after=claim.measure(own),
        holds=claim.holds(own, parent),
    )


def check(folder: Path = RESULTS, locks: Path = LOCKS) -> None:
    """Prints every verdict of every committed file of readings.

    Raises:
        CheckFailed: a claim does not hold.
    """
    tell("counters", [reading for path in counter_files(folder) for reading in verify(path, locks)])


if __name__ == "__main__":
    with one_line_errors():
        check()
