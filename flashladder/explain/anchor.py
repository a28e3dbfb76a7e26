"""FA2 as the model's measure: how many FLOP per clock and SM it reaches on a GPU, from what was measured or published.

Why: the model counts clocks, a percentage of FA2 needs FA2's. On a measured GPU it is that of the cell whose clock was
highest, hence not throttled; where FA2 was published, its TFLOP/s at the clock that was locked for it. A GPU for which
there is neither has no percentage of FA2.

Try ``anchor_of(load_gpus()["h200"], 4096)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
import statistics
from types import MappingProxyType

from flashladder.files import files_in, relative
from flashladder.ladder.gpus import Gpu
from flashladder.paths import RESULTS
from flashladder.results import published
from flashladder.results.files import load_as
from flashladder.results.schema import BenchResult

DTYPE = "fp16"
PUBLISHED_LENGTH = 4096
BEYOND = "beyond.json.gz"  # of a machine's folder: the sweep of the steps that were published nowhere
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


def measured_percentages(
    gpu: Gpu, seq_len: int, folder: Path = RESULTS, code: Mapping[str, str] = MappingProxyType({})
) -> dict[str, float]:
    """Percent of FA2 by kernel (``16 (FP16, ...)``), as measured on a GPU; empty where it was not.

    The sweep of the ladder counts first, then that of the steps beyond it, then single benchmarks; a file that does not
    exist holds nothing. `code`: as of `percentages`.
    """
    own = folder / gpu.gpu
    found: dict[str, float] = {}
    for path in (own / f"{gpu.gpu}.json.gz", own / BEYOND, *files_in(own, "bench*.json.gz")):
        if path.is_file():
            found = percentages(path, seq_len, code) | found
    return found


def percentages(path: Path, seq_len: int, code: Mapping[str, str] = MappingProxyType({})) -> dict[str, float]:
    """Percent of FA2 by kernel, of a file of timings.

    Args:
        path: the file.
        seq_len: of the cells.
        code: the digest of a kernel's machine code: timings of other code with that name are left out.

    Raises:
        FlashladderError: it is missing or malformed.
    """
    result = _read(path)
    cells = [one for one in result.summaries if (one.dtype, one.shape.seq_len) == (DTYPE, seq_len)]
    timed = {key: kernel.text_sha256 for key, kernel in result.kernels.items() if kernel.text_sha256 is not None}
    other = {key for key, digest in timed.items() if key in code and code[key] != digest}
    return {one.kernel: one.pct for one in cells if one.kernel not in other}


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
