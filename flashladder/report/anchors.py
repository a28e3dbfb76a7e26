"""What the ladder is compared with besides FA2: the libraries in the sweep that timed its last step.

Why: percent of FA2 says how far a step has come, not whether something faster can be installed. A library's speed
belongs to the run in which it was timed in turn with FA2, so that each machine's rows come from one file: of the
machine's committed sweeps with references that which goes farthest up the ladder.

Nothing to run here; `invoke report` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import mean, median

from flashladder.cases.inputs import SEQ_LENS, on_grid
from flashladder.errors import FlashladderError
from flashladder.files import dump_json
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.grid import grid_names, load_grid
from flashladder.names import HEADLINE_LENGTH
from flashladder.results.derive import cells_of_host_time
from flashladder.results.files import load_as
from flashladder.results.schema import BenchResult, Mean, Summary

Fa2 = tuple[float, float, float]  # TFLOP/s of FA2 beside kernels of one run: least, median, most
TITLES = {"cudnn": "cuDNN", "fa3": "FA3", "fa4": "FA4", "flash-attn": "flash-attn"}


@dataclass(frozen=True)
class Anchor:
    """A library in one dtype: its summaries by sequence length, and their harmonic mean."""

    name: str
    version: str
    dtype: str
    summaries: Mapping[int, Summary]
    mean: Mean | None
    fa2: Fa2 | None = None

    @property
    def tflops(self) -> float | None:
        """TFLOP/s at S = 4096: the ratio times the run's one figure for FA2, as of a step of that run."""
        return None if self.fa2 is None else self.summaries[HEADLINE_LENGTH].pct / 100 * self.fa2[1]

    @property
    def title(self) -> str:
        """``cuDNN 9.19.0``."""
        return f"{TITLES[self.name]} {self.version}".strip()


def fa2_of(result: BenchResult, dtype: str) -> Fa2 | None:
    """FA2 at S = 4096 beside the kernels of a run; None where none of them was timed there."""
    found = [
        one.reference_tflops
        for one in result.summaries
        if (one.dtype, one.shape.seq_len) == (dtype, HEADLINE_LENGTH)
        and one.kernel in result.kernels
        and on_grid(one.shape)
    ]
    return (min(found), median(found), max(found)) if found else None


def last_sweep(folder: Path, mode: str) -> BenchResult | None:
    """Of a machine's sweeps with references that whose last step is the ladder's farthest; None where there is none.

    A sweep of other shapes than the ladder's alone is none, as it says nothing of the grid's cells. Nor is a file that
    cannot be read: the gate says so, and here a row is missing.
    """
    found: list[tuple[int, BenchResult]] = []
    for name in grid_names():
        path = folder / f"{name}.json.gz"
        if not path.is_file() or not load_grid(name).references:
            continue
        try:
            result = load_as(path, BenchResult)
        except FlashladderError:
            continue
        whole = (result.mode, result.purpose) == (mode, "report") and result.references and result.kernels
        if whole and any(on_grid(one.shape) for one in result.summaries):
            found.append((max(kernel.iteration for kernel in result.kernels.values()), result))
    return max(found, key=lambda one: one[0])[1] if found else None


def fastest_of(folder: Path, mode: str) -> dict[int, int]:
    """The fastest step from each sequence length on, of a machine's last sweep; empty where there is none.

    Fastest is which has the largest mean over its dtypes; lengths between two of the grid go with the shorter one, and
    shorter ones than all with the shortest.
    """
    result = last_sweep(folder, mode)
    if result is None:
        return {}
    told: dict[int, dict[int, list[float]]] = {length: {} for length in SEQ_LENS}
    for one in _of_the_gpu(result):
        if one.kernel in result.kernels:
            told[one.shape.seq_len].setdefault(result.kernels[one.kernel].iteration, []).append(one.pct)
    best = {length: max(steps, key=lambda step: mean(steps[step])) for length, steps in told.items() if steps}
    firsts = [(next(lengths), step) for step, lengths in groupby(best, key=best.__getitem__)]
    return {length if i else 1: step for i, (length, step) in enumerate(firsts)}


def fastest(results: Path, mode: str, ranked: Mapping[str | None, Sequence[int]]) -> str:
    """The text of configs/fastest.json: `fastest_of` each GPU that has a folder of results.

    `ranked` are a GPU's measured steps, the fastest first, of GPUs on which the ladder was measured.
    """
    found = {key: fastest_of(results / key, mode) for key in load_gpus() if (results / key).is_dir()}
    ranking = {key: {"ranking": list(steps)} for key, steps in ranked.items()}
    return dump_json({key: {"from_seq_len": steps} | ranking.get(key, {}) for key, steps in found.items() if steps})


def anchors_of(folder: Path, mode: str) -> tuple[Anchor, ...]:
    """The libraries of a machine's last sweep, in the order of that file, each in the dtypes that it was timed in.

    A cell that tells the host's time is no speed: it is left out, and the mean with it; where it is the one at
    S = 4096, the library.
    """
    result = last_sweep(folder, mode)
    if result is None:
        return ()
    found: dict[tuple[str, str], dict[int, Summary]] = {}
    for one in _of_the_gpu(result):
        if one.kernel in result.references:
            found.setdefault((one.kernel, one.dtype), {})[one.shape.seq_len] = one
    means = {(one.kernel, one.dtype): one for one in result.means if one.seq_lens == SEQ_LENS}
    return tuple(
        Anchor(
            name,
            (result.references[name].version or "").partition(",")[0],
            dtype,
            own,
            means.get((name, dtype)) if own.keys() == set(SEQ_LENS) else None,
            fa2_of(result, dtype),
        )
        for (name, dtype), own in found.items()
        if HEADLINE_LENGTH in own
    )


def _of_the_gpu(result: BenchResult) -> Iterator[Summary]:
    """The grid's cells whose times are the GPU's."""
    late = cells_of_host_time(result.groups)
    for one in result.summaries:
        if on_grid(one.shape) and (one.kernel, one.dtype, one.shape) not in late:
            yield one
