"""The bottleneck table of a note: what one KV block asks of an SM, what binds it, and how far the model is off.

Why from its file: the model runs machine code for minutes; what it said is committed, results/explain/predictions.json,
and a note has no such table where it is not. Nothing to run here; ``python analysis/render_notes.py`` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from flashladder.errors import FlashladderError
from flashladder.files import load_json, relative
from flashladder.ladder.gpus import load_gpus
from flashladder.names import GPUS, PUBLISHED_GPU
from flashladder.paths import RESULTS
from flashladder.report.data import Ladder
from flashladder.report.reasons.counts import locked
from flashladder.report.reasons.speeds import Speeds
from flashladder.report.tables import DASH

PREDICTIONS = "explain/predictions.json"  # under a results folder


def bottleneck(ladder: Ladder, number: int, folder: Path = RESULTS) -> Iterator[str]:
    """Lines of the section, from its heading on; none without predictions, or of a kernel that the model cannot follow.

    Raises:
        FlashladderError: the predictions are malformed, lack the kernel, or are of other machine code than the lock's.
    """
    path = folder / PREDICTIONS
    iteration = next(one for one in ladder.iterations if one.number == number)
    if not path.is_file() or not iteration.family.warps_alike:
        return
    speeds = Speeds(ladder, number)
    found = {gpu: _prediction(path, ladder, gpu, number) for gpu in GPUS}
    first = found[PUBLISHED_GPU]["resources"]
    names = sorted(first, key=lambda name: (-first[name], name))
    yield from (
        "## Bottleneck",
        "",
        "What a KV block of one CTA asks of an SM in the configuration of the GPU, in percent of the clocks that the",
        f"model predicts for it (`invoke explain {number} --gpu a100`); a model is not a measurement.",
        "",
        f"| | {' | '.join(load_gpus()[gpu].title for gpu in found)} |",
        "| --- |" + " ---: |" * len(found),
    )
    rows = {name: [f"{100 * one['resources'][name] / one['clocks']:.0f} %" for one in found.values()] for name in names}
    rows["clocks"] = [f"{one['clocks']:,.0f}" for one in found.values()]
    rows["binds"] = [str(one["binding"]) for one in found.values()]
    rows["predicted, of FA2"] = [f"{one['percent_of_fa2']:.1f} %" for one in found.values()]
    rows["published or measured"] = [_known(speeds, gpu) for gpu in found]
    yield from (f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items())
    yield ""


def _known(speeds: Speeds, gpu: str) -> str:
    """What was published or measured of the page's step; a dash on a GPU where nobody has timed it."""
    if gpu in speeds.ladder.published.gpus and speeds.ladder.published.find(speeds.number, gpu, "seq4096") is None:
        return DASH
    return speeds.speed(gpu)


def _prediction(path: Path, ladder: Ladder, gpu: str, number: int) -> Mapping[str, Any]:
    """What the model said of an iteration on a GPU."""
    where = relative(path)
    try:
        (found,) = (one for one in _read(path, path.stat().st_mtime_ns)["gpus"][gpu] if one["iteration"] == number)
        own, *_ = (found[name] for name in ("text_sha256", "resources", "clocks", "binding", "percent_of_fa2"))
    except (KeyError, ValueError) as error:
        raise FlashladderError(f"no prediction of iteration {number} on {gpu}", where=where, found=error) from error
    iteration = next(one for one in ladder.iterations if one.number == number)
    if own != (theirs := locked(iteration, gpu).text_sha256):
        raise FlashladderError(f"iteration {number} on {gpu} is not what was predicted", expected=theirs, found=own)
    return found  # type: ignore[no-any-return]  # JSON


@lru_cache(maxsize=2)
def _read(path: Path, stamp: int) -> Any:
    del stamp
    return load_json(path.read_bytes())
