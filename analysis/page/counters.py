"""Question: what does each step cost on chip: wavefronts, bank conflicts, sectors, instructions?

Why two counts: the emulator counts the PTX that ships on any CPU, Nsight Compute counts the machine code on a GPU. They
stand side by side, and `invoke gate` holds one to the other.

Run: ``python analysis/page/counters.py [--out FILE]``; it is a section of ``results/report/index.html``.
"""

from __future__ import annotations

from pathlib import Path

from flashladder.emulate.reading import NAME
from flashladder.files import files_in
from flashladder.names import CONFLICTS, INSTRUCTIONS, LDSM, SECTORS, TENSOR, WAVEFRONTS
from flashladder.report.page import cells
from flashladder.report.page.alone import alone
from flashladder.report.page.book import Book
from flashladder.report.page.cells import Cell, Column, Table
from flashladder.report.page.figure import Drawn, Plot, draw
from flashladder.report.page.sections import Content
from flashladder.results.files import load_as
from flashladder.results.schema import CounterResult

ORDER, TITLE = 60, "Counters and races"
COUNTED = {
    "ld wavefronts": WAVEFRONTS.format("ld"),
    "ld conflicts": CONFLICTS.format("ld"),
    "st wavefronts": WAVEFRONTS.format("st"),
    "st conflicts": CONFLICTS.format("st"),
    "ld sectors": SECTORS[0],
    "st sectors": SECTORS[1],
    "ldsm": LDSM,
    "mma": TENSOR,
}


def hardware(book: Book) -> list[tuple[str, Path, CounterResult]]:
    """GPU, file and counters of every machine that Nsight Compute was run on."""
    paths = files_in(book.results, "*/counters.json.gz")
    found = [(path, load_as(path, CounterResult)) for path in paths]
    return [(result.gpu.name.replace("NVIDIA ", ""), path, result) for path, result in found]


def emulated(book: Book) -> Table | None:
    """The emulator's reading."""
    reading = book.ladder.emulated
    if reading is None:
        return None
    path, shape = book.results / NAME, reading.shape
    rows = []
    for step in book.ladder.iterations:
        kernel = reading.find(step.number)
        if kernel is None:
            continue
        facts = {
            "configuration": kernel.config,
            "normalised PTX": f"SHA-256 {kernel.ptx_sha256['fp16']}",
            "made again by": "python -m flashladder.emulate.take_reading",
            "warp instructions": f"{kernel.warp_instructions:,}",
        }
        record = book.records.fact(path, f"Iteration {step.number}, emulated", facts, None)
        races = sum(kernel.races.values())
        rows.append(
            [
                cells.step(step.number),
                Cell(step.title),
                *(cells.number(kernel.counters[name], 0, record) for name in COUNTED.values()),
                cells.number(kernel.warp_instructions, 0, record),
                cells.number(races, 0, record, "holds" if races == 0 else "fails"),
            ]
        )
    columns = [
        Column("#"),
        Column("Step", "text"),
        *(Column(title, told=name) for title, name in COUNTED.items()),
        Column("PTX instructions"),
        Column("races", told="fp16 and bf16"),
    ]
    where = f"batch {shape.batch}, S = {shape.seq_len}, {shape.n_heads} heads, fp16, the A100's configurations"
    caption = f"Counted by the emulator in the PTX that ships: {where}"
    return Table("counters-emulated", caption, columns, rows)


def measured(book: Book, gpu: str, path: Path, result: CounterResult) -> Table:
    """One GPU's counters as Nsight Compute read them."""
    names = {**COUNTED, "SASS instructions": INSTRUCTIONS}
    rows = []
    for key, counts in result.counters.items():
        kernel = result.kernels[key]
        facts = {"read by": f"Nsight Compute {result.ncu}", "mode": result.mode}
        record = book.records.fact(path, key, facts, kernel)
        rows.append(
            [
                cells.step(kernel.iteration),
                Cell(kernel.config),
                *(cells.number(counts.get(name), 0, record) for name in names.values()),
            ]
        )
    shape = result.shape
    caption = f"Counted by Nsight Compute on {gpu}: batch {shape.batch}, S = {shape.seq_len}, {shape.n_heads} heads"
    columns = [
        Column("#"),
        Column("configuration", "code"),
        *(Column(title, told=name) for title, name in names.items()),
    ]
    return Table(f"counters-{path.parent.name}", caption, columns, rows)


def panel(book: Book) -> Drawn:
    """Wavefronts of shared memory over the steps: what loads and stores need, emulated and on the GPUs."""

    def fill(plot: Plot) -> None:
        reading, style = book.ladder.emulated, 0
        sources = [("emulated", {k.iteration: k.counters for k in reading.kernels.values()})] if reading else []
        sources += [
            (gpu, {r.kernels[key].iteration: c for key, c in r.counters.items()}) for gpu, _, r in hardware(book)
        ]
        for who, counts in sources:
            for what in ("ld", "st"):
                xs = sorted(counts)
                ys = [counts[n][WAVEFRONTS.format(what)] for n in xs]
                urls = [
                    plot.url("", f"{who}, iteration {n}: {y:,} {what} wavefronts") for n, y in zip(xs, ys, strict=True)
                ]
                plot.line(xs, ys, style, dash=style)
                plot.dots(xs, ys, urls, style, size=30 - 7 * style)
                plot.label(f"{what}, {who}", style, dash=style)
                style += 1
        plot.axes.set_yscale("log")
        plot.axes.set(xlabel="iteration", ylabel="wavefronts of shared memory, one launch")
        plot.axes.set_xticks([one.number for one in book.ladder.iterations])
        plot.legend("upper right")

    return draw(
        "wavefronts",
        "Wavefronts of shared memory",
        "One launch in the A100's configurations; the swizzle of step 2 removes all bank conflicts of loads.",
        fill,
    )


def content(book: Book) -> Content:
    table = emulated(book)
    return {
        "panels": [panel(book)] if table or hardware(book) else [],
        "tables": [*([table] if table else []), *(measured(book, *one) for one in hardware(book))],
    }


if __name__ == "__main__":
    raise SystemExit(alone(__file__))
