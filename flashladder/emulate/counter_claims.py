"""The claims of `iterations/*.yaml` about hardware counters, checked in the committed Nsight Compute readings.

Why: a claim about bank conflicts or sectors needs a GPU to be measured, and none to be checked again: the readings are
committed as ``results/<machine>/counters.json.gz``, every iteration in its A100 configuration at one shape. A reading
counts only when the machine code that it was taken of is the locked one.

Run: ``python -m flashladder.emulate.counter_claims`` prints every claim with both counts; exit code 1 when one does not
hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flashladder.errors import Checked, FlashladderError, one_line_errors
from flashladder.files import files_in, relative
from flashladder.ladder.claim import EMULATED, Claim
from flashladder.ladder.iteration import Iteration, begun, claim_configs, load_runnable
from flashladder.lock.code_claims import Sides, Verdict, checked, judge, next_step
from flashladder.lock.schema import LOCKS, read_lock, refusal
from flashladder.names import PUBLISHED_GPU
from flashladder.paths import RESULTS
from flashladder.results.files import load_as
from flashladder.results.schema import CounterResult, Kernel


def counter_files(folder: Path = RESULTS) -> list[Path]:
    """Committed readings, ``<machine>/counters.json.gz``, in order."""
    return files_in(folder, "*/counters.json.gz")


def verify(path: Path, locks: Path = LOCKS) -> list[Verdict]:
    """Every counter claim of every iteration of the families that a file of a GPU's readings is about.

    Raises:
        FlashladderError: the file holds something else, lacks an iteration, or was read from other machine code.
    """
    result = load_as(path, CounterResult)
    counts: dict[int, dict[str, int]] = {}
    ladder = begun(load_runnable(result.gpu.arch), (kernel.iteration for kernel in result.kernels.values()))
    for iteration in ladder:
        short_form = iteration.configs[PUBLISHED_GPU].short_form()
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
    place = path.parent.name
    return [
        verdict
        for iteration in ladder
        for claim in iteration.expect.counters
        if on_hardware(claim)
        for verdict in judge(iteration.number, claim, {place: sides(iteration, counts)})
    ]


def on_hardware(claim: Claim) -> bool:
    """Whether a claim is about what a GPU counts: the order of addresses is seen by the emulator only."""
    return not any(name in EMULATED for name in claim.names)


def sides(iteration: Iteration, counts: Mapping[int, Mapping[str, float]]) -> Sides:
    """The counts that an iteration's claims are judged on, of those of all iterations by number."""
    own = counts[iteration.number]
    if iteration.parent is None or claim_configs(iteration)[1] is None:  # nothing of its family came before
        return Sides(own, None, counts[next_step(iteration).number])
    return Sides(own, counts[iteration.parent], counts[iteration.parent])


def _require_lock(path: Path, kernel: Kernel, locks: Path) -> None:
    """Raises `FlashladderError` unless the machine code of the reading is the locked one."""
    if reason := refusal(kernel, read_lock(kernel.arch, locks)):
        raise FlashladderError(
            f"the reading of {kernel.key} is of machine code that no lock holds",
            where=relative(path),
            found=reason,
            hint="read the counters again: python -m flashladder.gpu.ncu --all",
        )


def check(folder: Path = RESULTS, locks: Path = LOCKS) -> Checked:
    """Whether the claims hold in every committed file of readings.

    Raises:
        FlashladderError: as `verify`.
    """
    return checked("counters", [verdict for path in counter_files(folder) for verdict in verify(path, locks)])


if __name__ == "__main__":
    with one_line_errors():
        check().show()
