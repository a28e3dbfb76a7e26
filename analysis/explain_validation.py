"""Question: how good is the model behind `invoke explain`, over the ladder, on every GPU that anybody has timed?

Why kept: the model is fitted to no kernel's speed, and this says what that is worth: rank correlation and error of
predicted against measured (H200, H100) and published (A100, RTX 3090) percentages of FA2. Writes
results/explain/predictions.json (what the model says, with digests of the machine code), and from that and the
committed results results/report/explain.md, .svg and .png.

Run: ``python analysis/explain_validation.py`` (112 kernels, 5 minutes on one core); ``--render`` alone from the
committed predictions; ``--check`` compares that rendering, exit code 1 when stale.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
import random
import statistics
from typing import TYPE_CHECKING

from flashladder import parallel
from flashladder.columns import markdown
from flashladder.errors import CheckFailed, FlashladderError, one_line_errors
from flashladder.explain import predict as model
from flashladder.explain.predict import NAME, Predicted, Predictions, known, load_predictions, percentages
from flashladder.files import dump_json, relative, sha256, write_atomic
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.iteration import load_all, load_iteration
from flashladder.paths import RESULTS
from flashladder.report.plot import FAINT, INK, MEASURED_COLORS, saved
from flashladder.report.tables import written
from flashladder.results.schema import kernel_key
from flashladder.results.statistics import spearman

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEQ_LEN = 4096
Job = tuple[str, int, "str | None"]
DRAWN = 32  # kernels of a tuning run
TUNED = ("h200",)
GPUS = ("h200", "h100", "a100", "rtx3090", "rtx4090")
REPORT = RESULTS / "report"
UNTIMED = ("a100", "rtx3090", "rtx4090")
TUNING = "tune.json.gz"  # under a machine's folder
PUBLISHED = 16  # iterations; the others were never timed on these


def predicted(job: Job) -> Predicted:
    """What the model says of one iteration on one GPU, in the GPU's configuration or in another."""
    gpu, number, config = job
    return model.explain(str(number), gpu, config, SEQ_LEN).data


def predictions() -> Predictions:
    """The model's answers for the published ladder on every GPU."""
    followed = [one for one in load_all() if one.family.warps_alike]  # the model has one warp for all
    numbers = [one.number for one in followed if all(gpu in one.configs for gpu in ("a100", "rtx3090", "h200"))]
    ladder: list[Job] = [(gpu, number, None) for gpu in GPUS for number in numbers]
    others: list[Job] = []
    for gpu in TUNED:
        timed = sorted(percentages(RESULTS / gpu / TUNING, SEQ_LEN))
        drawn = random.Random(0).sample(timed, DRAWN)  # noqa: S311 - the same draw every time
        others += [(gpu, int(key.partition(" ")[0]), key.partition(" ")[2]) for key in sorted(drawn)]
    jobs = [*ladder, *others]
    found = dict(zip(jobs, parallel.over(predicted, jobs, "predicted"), strict=True))
    return Predictions(
        seq_len=SEQ_LEN,
        gpus={gpu: tuple(found[gpu, number, None] for number in numbers) for gpu in GPUS},
        tuned={gpu: tuple(found[job] for job in others if job[0] == gpu) for gpu in TUNED},
    )


@dataclass(frozen=True)
class Compared:
    """Predicted against measured or published percentages of FA2 on one GPU."""

    gpu: str  # its key
    what: str  # ``measured`` or ``published``
    pairs: Mapping[int | str, tuple[float, float]]  # iteration, or a kernel's key, to (predicted, measured)
    spearman: float  # rank correlation over the iterations
    median_error: float  # of the absolute differences, in percentage points
    largest: tuple[int | str, float]  # the same, and the difference (predicted less measured) of the largest one


def compare(predictions: Predictions, gpu: str) -> Compared | None:
    """Predicted against measured, else published, on one GPU; None where there is nothing to compare with."""
    kernels = predictions.gpus[gpu]
    what, actual = known(load_gpus()[gpu], kernels, predictions.seq_len)
    pairs: dict[int | str, tuple[float, float]] = {
        one.iteration: (one.percent_of_fa2, actual[one.iteration])
        for one in kernels
        if one.iteration in actual and one.percent_of_fa2 is not None
    }
    return compared(gpu, what, pairs) if len(pairs) > 1 else None


def compare_tuned(predictions: Predictions, gpu: str) -> Compared:
    """Predicted against measured on a tuning run; `FlashladderError`: it is missing, malformed, or lacks a kernel."""
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
    ours, theirs = zip(*pairs.values(), strict=True)
    median_error = statistics.median(map(abs, off.values()))
    largest = max(off.items(), key=lambda item: abs(item[1]))
    return Compared(gpu, what, pairs, spearman(ours, theirs), median_error, largest)


def summary(compared: list[Compared]) -> str:
    """One row for each GPU that there is something to compare with."""
    rows = []
    for one in compared:
        number, off = one.largest
        title = load_gpus()[one.gpu].title
        which = (
            f"iteration {number}" if isinstance(number, int) else number.partition(" ")[0].lstrip("0") + ", other tile"
        )
        numbers = [f"{one.spearman:.3f}", f"{one.median_error:.1f}", f"{off:+.1f} ({which})"]
        rows.append([title, one.what, str(len(one.pairs)), *numbers])
    header = ["GPU", "figures", "kernels", "Spearman", "median error, points", "largest error, points"]
    return markdown(header, rows)


def details(data: Predictions, gpu: str) -> tuple[str, str]:
    """A GPU, and the table of every iteration on it."""
    kernels = data.gpus[gpu]
    what, actual = known(load_gpus()[gpu], kernels, data.seq_len)
    header = ["#", "binding", "clocks of a KV block", "alone", "% of peak", "% of FA2", what or "measured", "off"]
    rows = []
    for one in kernels:
        told, fa2 = actual.get(one.iteration), one.percent_of_fa2
        row = [str(one.iteration), one.binding, f"{one.clocks:,.0f}", f"{one.alone:,.0f}", f"{one.percent_of_peak:.1f}"]
        row += ["-" if fa2 is None else f"{fa2:.1f}", "-" if told is None else f"{told:.1f}"]
        rows.append([*row, "-" if told is None or fa2 is None else f"{fa2 - told:+.1f}"])
    return load_gpus()[gpu].title, markdown(header, rows)


def steps(data: Predictions) -> str:
    """What each step beyond the published ladder is worth where nobody timed it."""
    rows = []
    for place, one in enumerate(data.gpus[UNTIMED[0]]):
        told = [model.worth(data, gpu, data.gpus[gpu][place]) for gpu in UNTIMED]
        if one.iteration > PUBLISHED and all(told):
            cells = [f"{step[1]:+.1f} %" for step in told if step]
            rows.append([f"{one.iteration} over {load_iteration(one.iteration).parent}", *cells])
    header = ["step", *(f"{load_gpus()[gpu].title}, predicted" for gpu in UNTIMED)]
    return markdown(header, rows)


def figure(compared: list[Compared]) -> Figure:
    """Predicted over measured percent of FA2, a panel for each GPU."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(12.4, 3.6), facecolor="white")
    panels = drawn.subplots(1, len(compared), squeeze=False)[0]
    drawn.subplots_adjust(left=0.05, right=0.985, top=0.86, bottom=0.16, wspace=0.22)
    for axes, one in zip(panels, compared, strict=True):
        axes.plot([0, 130], [0, 130], color=INK, linewidth=1.0)
        for number, (mine, theirs) in one.pairs.items():
            axes.plot([theirs], [mine], "o", color=MEASURED_COLORS[0], markersize=4)
            axes.annotate(str(number), (theirs, mine), xytext=(3, -7), textcoords="offset points", fontsize=6.5)
        axes.set(xlim=(0, 130), ylim=(0, 130), xlabel=f"{one.what}, percent of FA2", aspect="equal")
        axes.set_title(f"{load_gpus()[one.gpu].title}: Spearman {one.spearman:.2f}", loc="left", fontsize=9.5)
        axes.grid(color="#E6E6E6", linewidth=0.8)
        axes.tick_params(colors=FAINT)
    panels[0].set_ylabel("predicted, percent of FA2")
    return drawn


def rendered(data: Predictions) -> Iterator[tuple[Path, bytes]]:
    """The files of results/report that are made from predictions and committed results."""
    compared = [found for gpu in data.gpus if (found := compare(data, gpu))]
    tuned = (compare_tuned(data, gpu) for gpu in data.tuned)
    text = written(
        "explain.md.j2", name=NAME, seq_len=SEQ_LEN, summary=summary([*compared, *tuned]), steps=steps(data),
        gpus=[details(data, gpu) for gpu in data.gpus],
    )  # fmt: skip
    yield REPORT / "explain.md", text.encode()
    drawn = [{"gpu": one.gpu, "pairs": {str(n): pair for n, pair in one.pairs.items()}} for one in compared]
    digest = sha256(dump_json(drawn))
    pictures = saved(lambda: figure(compared), f"predicted over measured percent of FA2; data {digest}")
    yield from ((REPORT / f"explain.{suffix}", picture) for suffix, picture in pictures.items())


def main(argv: Sequence[str] | None = None) -> int:
    """Predicts, renders, or compares."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--render", action="store_true", help="from the committed predictions")
    parser.add_argument("--check", action="store_true", help="compare the table with that rendering, write nothing")
    options = parser.parse_args(argv)
    with one_line_errors():
        if not (options.render or options.check):
            print(relative(write_atomic(RESULTS / NAME, dump_json(predictions().model_dump(mode="json")))))
        for path, data in rendered(load_predictions()):
            if not options.check:
                print(relative(write_atomic(path, data)))
            elif path.suffix == ".md" and (not path.is_file() or path.read_bytes() != data):
                raise CheckFailed("stale table of the model", where=relative(path), hint="run it with --render")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
