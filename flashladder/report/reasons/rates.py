"""What an HMMA costs: clocks of the tensor pipe, and of the scheduler that issues it, measured where they were.

Why measured: Hopper's documented peak is that of wgmma, and no document says how long an mma.sync keeps its scheduler
from issuing anything else. On an H200 the two hardly overlap: beside other instructions an mma takes most of its
clocks from them, so that their number decides the speed of a loop (results/h200/rates.json.gz, analysis/pipe_rates.py).
Nothing to run here.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
import statistics

from flashladder.errors import FlashladderError
from flashladder.files import relative
from flashladder.ladder.gpus import load_gpus
from flashladder.paths import RESULTS
from flashladder.results.files import read_json

MMA = "mma.f16"
MMA_FLOPS = 2 * 16 * 8 * 16  # of an HMMA: m16n8k16, a multiplication and an addition each
SCHEDULERS = 4  # of an SM, from sm_80 to sm_90: each issues an instruction per clock
ISSUED = ("fma", "mul", "iadd", "cvt.f16x2", "shfl.bfly")  # beside an mma these take one slot each, and no more


def tensor_rate(gpu: str) -> float:
    """HMMA per clock and SM: measured where it was, else the documented one."""
    path = RESULTS / gpu / "rates.json.gz"
    if not path.is_file():
        return documented_rate(gpu)
    return max(rate for parts, rate in _rounds(path) if parts == {MMA: 1})


def documented_rate(gpu: str) -> float:
    """HMMA per clock and SM at the documented peak, by whichever instruction reaches it."""
    return load_gpus()[gpu].peaks["fp16_tensor_rate"].value / MMA_FLOPS


def mma_issue(machine: str) -> float:
    """Clocks of a scheduler that an HMMA takes from other instructions: the mean over rounds that mix it with them.

    Args:
        machine: folder of the results that hold the rates.

    Raises:
        FlashladderError: it holds none.
    """
    path = RESULTS / machine / "rates.json.gz"
    best: dict[tuple[tuple[str, float], ...], float] = {}
    for parts, rate in _rounds(path) if path.is_file() else ():
        others = parts.keys() - {MMA}
        if MMA in parts and others and others <= set(ISSUED):
            clocks = SCHEDULERS / rate - sum(parts[name] for name in others)
            key = tuple(sorted(parts.items()))
            best[key] = min(clocks, best.get(key, clocks))
    if not best:
        raise FlashladderError("no rates of mixed rounds", where=relative(path), expected=f"{MMA} + fma and its like")
    return statistics.mean(best.values())


@lru_cache(maxsize=4)
def _rounds(path: Path) -> tuple[tuple[dict[str, float], float], ...]:
    """Instructions of a round for each of its first kind, and how many of that kind an SM takes per clock."""
    found = []
    for run in read_json(path)["runs"]:
        if not run["alone"]:
            spans = [span for repeat in run["spans"] for span in repeat]
            first = next(iter(run["instructions"].values()))
            rate = run["trips"] * first * run["warps"] / statistics.median(spans)
            found.append(({name: count / first for name, count in run["instructions"].items()}, rate))
    return tuple(found)
