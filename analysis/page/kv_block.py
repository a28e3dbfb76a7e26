"""Question: what does one KV block cost at each iteration, and what did a step trade for what?

Why kinds: forty opcode classes are an index, a dozen kinds are a picture: moves fall at iteration 9, integers at 8,
arithmetic at 6. All counts are of 64 queries by 64 keys, so that tiles of other sizes compare. Below them stand the
published counts of the whole kernel beside ours.

Run: ``python analysis/page/kv_block.py [--out FILE]``; it is a section of ``results/report/index.html``.
"""

from __future__ import annotations

from collections.abc import Mapping

from flashladder.ladder.gpus import load_gpus
from flashladder.lock.schema import PUBLISHED_ARCH, LockedKernel, lock_path, read_lock
from flashladder.machine_code.kinds import KINDS
from flashladder.names import GPUS
from flashladder.report.kv_block import Cost, costs, present
from flashladder.report.page.alone import alone
from flashladder.report.page.book import Book
from flashladder.report.page.cells import Cell, Column, Table
from flashladder.report.page.records import join
from flashladder.report.page.sections import Content
from flashladder.results.published import SASS_COUNTS, sass_counts

ORDER, TITLE = 45, "What a KV block costs"
STRONGEST = 55  # percent of the ground, so that numbers stay readable on it


def heat_map(book: Book, gpu: str) -> Table:
    """Kind by iteration in one GPU's configurations, coloured by the share of the row's largest."""
    found = costs(gpu, book.results / "locks")
    facts = load_gpus()[gpu]
    records = {number: record(book, facts.arch, number, cost.locked, told(cost)) for number, cost in found.items()}
    rows = [[Cell("all"), *(heated(cost.total, found_most(found), records[n]) for n, cost in found.items())]]
    for kind in present(found):
        most = max(cost.kinds[kind] for cost in found.values())
        rows.append([Cell(kind), *(heated(cost.kinds[kind], most, records[n]) for n, cost in found.items())])
    columns = [
        Column("kind", "code"),
        *(Column(str(number), told=cost.config.brief()) for number, cost in found.items()),
    ]
    caption = (
        f"{facts.arch}, the {facts.title}'s configurations: warp instructions for 64 queries by 64 keys, by iteration"
    )
    return Table(f"kv-block-{gpu}", caption, columns, rows)


def found_most(found: dict[int, Cost]) -> float:
    """The largest sum of all kinds."""
    return max(cost.total for cost in found.values())


def told(cost: Cost) -> dict[str, object]:
    """How a column follows from the lock's counts."""
    config = cost.config
    tile = " x ".join(str(size) for size in config.multiples.values())
    return {"counts of": "a round of the main loop", "scaled by": f"{config.n_threads // 32} warps, 64 x 64 of {tile}"}


def heated(count: float, most: float, records: str) -> Cell:
    """A count on a ground as strong as its share of the row's largest."""
    return Cell(f"{count:,.0f}", records, count, heat=round(STRONGEST * count / most) if most else 0)


def record(book: Book, arch: str, number: int, kernel: LockedKernel, more: Mapping[str, object]) -> str:
    """The lock's entry of one kernel, as the source of a number."""
    path = lock_path(arch, book.results / "locks")
    facts = {"machine code": f"SHA-256 of .text {kernel.text_sha256}", **more}
    return book.records.fact(path, f"Iteration {number}, {arch}", facts)


def beside(book: Book, gpu: str) -> Table:
    """The published classes: ours and theirs, whole kernel, in the configuration of one GPU on the published one's."""
    published = sass_counts(book.results / "published")
    ours = ours_at(book, gpu)
    numbers = [number for number in ours if (number, gpu) in published]
    source = book.results / "published" / SASS_COUNTS
    records = {}
    for number in numbers:
        theirs = {"published by": book.ladder.published.description.source.repository, **published[number, gpu]}
        records[number] = join(
            [
                record(book, PUBLISHED_ARCH, number, ours[number], {"counts of": "the whole kernel"}),
                book.records.fact(source, f"Iteration {number}, {gpu}, published counts", theirs),
            ]
        )
    rows = [
        [Cell(name), *(compared(ours[n].counts.get(name, 0), published[n, gpu][name], records[n]) for n in numbers)]
        for name in next(iter(published.values()))
    ]
    columns = [Column("class", "code"), *(Column(str(number)) for number in numbers)]
    caption = f"{PUBLISHED_ARCH}, whole kernel, the {load_gpus()[gpu].title}'s configurations: ours / published"
    return Table(f"beside-published-{gpu}", caption, columns, rows)


def compared(own: int, theirs: int, records: str) -> Cell:
    """``57 / 93``, ours first."""
    return Cell(f"{own} / {theirs}", records, float(own))


def ours_at(book: Book, gpu: str) -> dict[int, LockedKernel]:
    """Our kernels in the configuration of one GPU on the architecture of the published listings."""
    lock, found = read_lock(PUBLISHED_ARCH, book.results / "locks"), {}
    for step in book.ladder.iterations:
        entry = lock.iterations.get(step.number)
        kernel = entry.kernels.get(step.configs[gpu].short_form()) if entry and gpu in step.configs else None
        if kernel is not None:
            found[step.number] = kernel
    return found


def content(book: Book) -> Content:
    gpus = [gpu for gpu in reversed(GPUS) if costs(gpu, book.results / "locks")]
    published = {gpu for _, gpu in sass_counts(book.results / "published")}
    return {
        "kinds": list(KINDS.items()),
        "maps": [heat_map(book, gpu) for gpu in gpus],
        "published": [beside(book, gpu) for gpu in GPUS if gpu in published and ours_at(book, gpu)],
    }


if __name__ == "__main__":
    raise SystemExit(alone(__file__))
