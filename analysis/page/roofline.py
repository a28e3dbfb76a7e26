"""Question: what could these GPUs do at most, and how near does each kernel come?

Why a roofline: attention at these lengths is bound by tensor cores, not by memory, on every GPU of the ladder; a
percent of FA2 does not say how much either leaves. Peaks are those of ``configs/gpus/*.yaml``, with their sources.

Run: ``python analysis/page/roofline.py [--out FILE]``; it is a section of ``results/report/index.html``.
"""

from __future__ import annotations

from flashladder.ladder.gpus import Gpu, load_gpus
from flashladder.report.page import cells
from flashladder.report.page.alone import alone
from flashladder.report.page.book import HEADLINE_LENGTH, Book, Timed
from flashladder.report.page.cells import Cell, Table
from flashladder.report.page.figure import INK, Drawn, Plot, draw
from flashladder.report.page.sections import Content
from flashladder.results.published import PROGRESSION
from flashladder.results.schema import Shape, Summary

ORDER, TITLE = 30, "Roofline"
DTYPE = "fp16"


def intensity(shape: Shape) -> float:
    """FLOP per byte that must come from DRAM."""
    return shape.flops / shape.input_bytes


def best(one: Timed, length: int) -> tuple[Summary, list[Summary]] | None:
    """The fastest step of the ladder at a length, and the references there."""
    own = [s for s in one.result.summaries if (s.dtype, s.shape.seq_len) == (DTYPE, length)]
    steps = [s for s in own if s.kernel in one.result.kernels]
    return (max(steps, key=lambda s: s.pct), [s for s in own if s not in steps]) if steps else None


def panel(book: Book, gpu: Gpu) -> Drawn:
    """One GPU: its two roofs, and what was measured or published under them."""
    tensor, bandwidth = gpu.peaks["fp16_tensor"].value, gpu.peaks["memory_bandwidth"].value
    ridge = tensor * 1000 / bandwidth
    timed = next((one for one in book.sweeps if one.key == gpu.gpu), None)

    def fill(plot: Plot) -> None:
        plot.axes.loglog([8, ridge, 40000], [8 * bandwidth / 1000, tensor, tensor], color=INK, linewidth=1.6)
        plot.axes.annotate(f"{tensor:g} TFLOP/s, tensor cores", (38000, tensor * 1.08), ha="right", fontsize=8)
        plot.axes.annotate(
            f"{bandwidth:g} GB/s", (ridge * 0.4, bandwidth * ridge * 0.4 / 1000), ha="right", va="bottom", fontsize=8
        )
        measured(book, plot, timed) if timed else published(book, plot, gpu)
        plot.axes.set(xlabel="FLOP per byte of Q, K and V", ylabel="TFLOP/s", ylim=(20, 2000), xlim=(8, 40000))
        plot.axes.set_yticks([20, 50, 100, 200, 500, 1000, 2000], ["20", "50", "100", "200", "500", "1000", "2000"])
        plot.axes.set_xticks([10, 100, 1000, 10000], ["10", "100", "1,000", "10,000"])
        plot.axes.minorticks_off()
        plot.legend()

    what = "measured, S = 512 to 16384" if timed else f"published, S = {HEADLINE_LENGTH}; not measured by this project"
    return draw(
        f"roofline-{gpu.gpu}",
        f"{gpu.title}, {DTYPE}",
        f"Lines: peaks of bandwidth and tensor cores; points: {what}.",
        fill,
    )


def measured(book: Book, plot: Plot, one: Timed) -> None:
    """The fastest step, the references and FA2 at every length."""
    lines: dict[str, list[tuple[float, float, str]]] = {}
    for length in one.lengths:
        found = best(one, length)
        if found is None:
            continue
        step, references = found
        for name, s, tflops in (
            ("fastest step", step, step.tflops),
            ("FA2", step, step.reference_tflops),
            *((s.kernel, s, s.tflops) for s in references),
        ):
            record = book.records.timing(one.path, s.kernel, s.dtype, s.shape)
            what = f"iteration {one.result.kernels[s.kernel].iteration}" if name == "fastest step" else name
            url = plot.url(
                record, f"{one.title}, {what}, S = {length}: {tflops:.1f} TFLOP/s at {intensity(s.shape):.0f} FLOP/B"
            )
            lines.setdefault(name, []).append((intensity(s.shape), tflops, url))
    for style, (name, points) in enumerate(lines.items()):
        xs, ys, urls = zip(*points, strict=True)
        plot.line(xs, ys, style, dash=style, width=1)
        plot.dots(xs, ys, urls, style, size=16)
        plot.label(name, style, dash=style)


def published(book: Book, plot: Plot, gpu: Gpu) -> None:
    """The first and the fastest published step, and FA2."""
    theirs, description = book.ladder.published, book.ladder.published.description
    shape = description.shape
    x = intensity(
        Shape(batch=shape.batch[HEADLINE_LENGTH], seq_len=HEADLINE_LENGTH, n_heads=shape.n_heads, d_head=shape.d_head)
    )
    numbers = [one.number for one in book.ladder.iterations if theirs.find(one.number, gpu.gpu, "seq4096")]
    fastest = max(numbers, key=lambda number: theirs.cell(number, gpu.gpu, "seq4096").value)
    path = book.results / "published" / PROGRESSION
    for style, number in enumerate((fastest, numbers[0])):
        tflops = theirs.tflops(number, gpu.gpu, "seq4096")
        facts = {"published by": theirs.cell(number, gpu.gpu, "seq4096").source, "gives": f"{tflops:.1f} TFLOP/s"}
        record = book.records.fact(path, f"Iteration {number} on {gpu.title}", facts)
        plot.dots(
            [x],
            [tflops],
            [plot.url(record, f"iteration {number}: {tflops:.1f} TFLOP/s, published")],
            style,
            hollow=True,
        )
        plot.label(f"iteration {number}, published", style, dash=1)


def peaks(gpus: list[Gpu]) -> Table:
    """The peaks, with unit and source."""
    rows = [
        [
            Cell(gpu.title),
            Cell(name.replace("_", " ")),
            cells.number(peak.value, 0 if peak.value.is_integer() else 1),
            Cell(peak.unit),
            Cell(peak.source),
        ]
        for gpu in gpus
        for name, peak in gpu.peaks.items()
    ]
    columns = cells.columns("GPU|text", "peak|text", "value", "unit|text", "source|text")
    return Table("peaks", "Peaks of the GPUs, from configs/gpus/*.yaml", columns, rows)


def content(book: Book) -> Content:
    keys = dict.fromkeys([*(one.key for one in book.sweeps), *book.ladder.published.gpus])
    gpus = [load_gpus()[key] for key in keys if key in load_gpus()]
    return {"panels": [panel(book, gpu) for gpu in gpus], "peaks": peaks(gpus)}


if __name__ == "__main__":
    raise SystemExit(alone(__file__))
