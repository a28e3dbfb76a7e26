"""FA2 as the model's measure: how many FLOP per clock and SM it reaches on a GPU, from what was measured or published.

Why: the model counts clocks, a percentage of FA2 needs FA2's. On a measured GPU it is that of the cell whose clock was
highest, hence not throttled; where FA2 was published, its TFLOP/s at the clock that was locked for it. A GPU for which
there is neither has no percentage of FA2.

Try ``anchor_of(load_gpus()["h200"], 4096)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
import statistics

from flashladder.files import relative
from flashladder.ladder.gpus import Gpu
from flashladder.paths import RESULTS
from flashladder.results import published
from flashladder.results.files import load_as
from flashladder.results.schema import BenchResult

DTYPE = "fp16"
PUBLISHED_LENGTH = 4096
TERA, MEGA = 1e12, 1e6


@dataclass(frozen=True)
class Anchor:
    """FA2 on one GPU at one length.

    Attributes:
        flop_per_clock: of one SM.
        tflops: what it reached; on a measured GPU the median over all cells, throttled as they were.
        source: where both come from.
    """

    flop_per_clock: float
    tflops: float
    source: str


def anchor_of(gpu: Gpu, seq_len: int, folder: Path = RESULTS) -> Anchor | None:
    """FA2 on a GPU; None where nobody measured or published it at this length.

    Raises:
        FlashladderError: a file of results is malformed.
    """
    path = folder / gpu.gpu / f"{gpu.gpu}.json.gz"
    if path.is_file():
        return _measured(path, gpu.whole("sms"), seq_len)
    theirs = published.load(folder / "published")
    if gpu.gpu not in theirs.gpus or seq_len != PUBLISHED_LENGTH or "published_clock" not in gpu.rates:
        return None
    clock = gpu.rate("published_clock")
    tflops = theirs.tflops(1, gpu.gpu, "seq4096") / theirs.cell(1, gpu.gpu, "seq4096").value * 100
    source = f"published, {theirs.description.source.repository}, at {clock:.0f} MHz"
    return Anchor(tflops * TERA / (clock * MEGA * gpu.whole("sms")), tflops, source)


def measured_percentages(gpu: Gpu, seq_len: int, folder: Path = RESULTS) -> dict[str, float]:
    """Percent of FA2 by kernel (``16 (FP16, ...)``), as measured on a GPU; empty where it was not."""
    path = folder / gpu.gpu / f"{gpu.gpu}.json.gz"
    return percentages(path, seq_len) if path.is_file() else {}


def percentages(path: Path, seq_len: int) -> dict[str, float]:
    """Percent of FA2 by kernel, of a file of timings.

    Raises:
        FlashladderError: it is missing or malformed.
    """
    cells = _read(path).summaries
    return {one.kernel: one.pct for one in cells if (one.dtype, one.shape.seq_len) == (DTYPE, seq_len)}


@cache
def _read(path: Path) -> BenchResult:
    return load_as(path, BenchResult)


def _measured(path: Path, sms: int, seq_len: int) -> Anchor | None:
    cells = [one for one in _read(path).summaries if (one.dtype, one.shape.seq_len) == (DTYPE, seq_len)]
    clocks = [one.sm_clock_mhz for one in cells if one.sm_clock_mhz is not None]
    if not clocks:
        return None
    level = [one.reference_tflops for one in cells if one.sm_clock_mhz == max(clocks)]
    flop = statistics.median(level) * TERA / (max(clocks) * MEGA * sms)
    source = f"{relative(path)}: {max(clocks):.0f} MHz, the highest clock of its cells"
    return Anchor(flop, statistics.median(one.reference_tflops for one in cells), source)
