"""The model's predictions of the whole ladder as data, and how far they are from what was measured and published.

Why data: a prediction needs the compiled kernels, a page and a test of acceptance do not. ``results/explain/`` holds
what the model said, with the digest of each kernel's machine code; measured and published figures are joined here, so
that neither file can hold the other's numbers. ``analysis/explain_validation.py`` makes both.

Try ``compare(load_predictions(), "a100").spearman``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
import statistics
from typing import Literal

from flashladder.errors import FlashladderError
from flashladder.explain.predict import PUBLISHED_LENGTH, Prediction, measured_percentages, percentages
from flashladder.files import checked_json, relative
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.iteration import load_iteration
from flashladder.located import first_problem
from flashladder.paths import RESULTS
from flashladder.results import published
from flashladder.results.schema import Strict, kernel_key
from flashladder.results.statistics import spearman

NAME = "explain/predictions.json"  # under a results folder
TUNING = "tune.json.gz"  # under a machine's folder
HOW_TO_WRITE = "run: python analysis/explain_validation.py"


class Predicted(Strict):
    """One kernel on one GPU, as the model says; attributes as of `flashladder.explain.predict.Prediction`.

    `resources` are clocks of a KV block by name, `percent_of_fa2` is None where FA2's speed is not known.
    """

    iteration: int
    config: str
    text_sha256: str
    ctas: int
    clocks: float
    alone: float
    chain: float
    overhead: float
    waves: float
    resources: dict[str, float]
    idle: dict[str, float]
    binding: str
    flop_per_clock: float
    tflops: float
    percent_of_fa2: float | None
    percent_of_peak: float


class Predictions(Strict):
    """What the model says of the ladder: kernels by GPU, at one length.

    `tuned` are kernels of other tiles and loads, drawn from a GPU's tuning run: nobody looked at them before.
    """

    schema_version: Literal[1] = 1
    kind: Literal["predictions"] = "predictions"
    seq_len: int
    gpus: dict[str, tuple[Predicted, ...]]
    tuned: dict[str, tuple[Predicted, ...]]


@dataclass(frozen=True)
class Compared:
    """Predicted against measured or published percentages of FA2 on one GPU."""

    gpu: str  # its key
    what: str  # ``measured`` or ``published``
    pairs: Mapping[int | str, tuple[float, float]]  # iteration, or a kernel's key, to (predicted, measured)
    spearman: float  # rank correlation over the iterations
    median_error: float  # of the absolute differences, in percentage points
    largest: tuple[int | str, float]  # the same, and the difference (predicted less measured) of the largest one


def as_data(prediction: Prediction) -> Predicted:
    """A prediction as it is kept, to a thousandth."""
    kernel, fa2 = prediction.kernel, prediction.percent_of_fa2
    return Predicted(
        iteration=kernel.iteration.number,
        config=kernel.config.short_form(),
        text_sha256=kernel.cubin.text_sha256,
        ctas=prediction.occupancy.ctas,
        clocks=round(prediction.clocks, 3),
        alone=round(prediction.alone, 3),
        chain=round(prediction.chain, 3),
        overhead=round(prediction.overhead, 3),
        waves=round(prediction.waves, 6),
        resources={one.name: round(one.clocks, 3) for one in prediction.resources},
        idle={why: round(share, 6) for why, share in prediction.idle.items()},
        binding=prediction.binding,
        flop_per_clock=round(prediction.flop_per_clock, 3),
        tflops=round(prediction.tflops, 3),
        percent_of_fa2=None if fa2 is None else round(fa2, 3),
        percent_of_peak=round(prediction.percent_of_peak, 3),
    )


def load_predictions(path: Path = RESULTS / NAME) -> Predictions:
    """The committed predictions.

    Raises:
        FlashladderError: they are missing or malformed.
    """
    try:
        return Predictions.model_validate_json(checked_json(path.read_bytes()))
    except FileNotFoundError as error:
        raise FlashladderError("no predictions", where=relative(path), hint=HOW_TO_WRITE) from error
    except (OSError, ValueError) as error:
        raise FlashladderError(first_problem(error), where=relative(path), hint=HOW_TO_WRITE) from error


def known(
    gpu: str, kernels: tuple[Predicted, ...], seq_len: int, folder: Path = RESULTS
) -> tuple[str, dict[int, float]]:
    """``measured`` or ``published``, and percent of FA2 by iteration; nothing where nobody has it."""
    keys = {one.iteration: kernel_key(one.iteration, one.config) for one in kernels}
    code = {keys[one.iteration]: one.text_sha256 for one in kernels}
    measured = measured_percentages(load_gpus()[gpu], seq_len, folder, code)
    if measured:
        return "measured", {number: measured[key] for number, key in keys.items() if key in measured}
    theirs = published.load(folder / "published")
    if seq_len != PUBLISHED_LENGTH:
        return "", {}
    found = {one.iteration: theirs.find(one.iteration, gpu, "seq4096") for one in kernels}
    return "published", {number: cell.value for number, cell in found.items() if cell}


def worth(predictions: Predictions, gpu: str, one: Predicted) -> tuple[int, float] | None:
    """The step before a kernel's, and by how many percent the kernel is faster than that one, both as predicted.

    Each step has the configuration that the GPU gives it. None for the first, and on a GPU without predictions.
    """
    parent = load_iteration(one.iteration).parent
    before = next((other for other in predictions.gpus.get(gpu, ()) if other.iteration == parent), None)
    return None if before is None else (before.iteration, 100 * (one.flop_per_clock / before.flop_per_clock - 1))


def compare(predictions: Predictions, gpu: str, folder: Path = RESULTS) -> Compared | None:
    """Predicted against measured, else published, on one GPU; None where there is nothing to compare with."""
    kernels = predictions.gpus[gpu]
    what, actual = known(gpu, kernels, predictions.seq_len, folder)
    pairs: dict[int | str, tuple[float, float]] = {
        one.iteration: (one.percent_of_fa2, actual[one.iteration])
        for one in kernels
        if one.iteration in actual and one.percent_of_fa2 is not None
    }
    return compared(gpu, what, pairs) if len(pairs) > 1 else None


def compare_tuned(predictions: Predictions, gpu: str) -> Compared:
    """Predicted against measured on kernels of a GPU's tuning run.

    Raises:
        FlashladderError: the run is missing, malformed, or lacks one of the kernels.
    """
    path = RESULTS / gpu / TUNING
    actual = percentages(path, predictions.seq_len)
    pairs: dict[int | str, tuple[float, float]] = {}
    for one in predictions.tuned[gpu]:
        key = kernel_key(one.iteration, one.config)
        if key not in actual or one.percent_of_fa2 is None:
            raise FlashladderError("a predicted kernel was not timed", where=relative(path), expected=key)
        pairs[key] = one.percent_of_fa2, actual[key]
    return compared(gpu, "measured, tuning run", pairs)


def compared(gpu: str, what: str, pairs: Mapping[int | str, tuple[float, float]]) -> Compared:
    """How far predicted figures are from the others."""
    off = {key: mine - theirs for key, (mine, theirs) in pairs.items()}
    return Compared(
        gpu=gpu,
        what=what,
        pairs=pairs,
        spearman=spearman([mine for mine, _ in pairs.values()], [theirs for _, theirs in pairs.values()]),
        median_error=statistics.median(map(abs, off.values())),
        largest=max(off.items(), key=lambda item: abs(item[1])),
    )
