"""Question: what does one KV block cost at each iteration, and what did a step trade for what?

Why kinds: forty opcode classes are an index, a dozen kinds are a picture: moves fall at iteration 9, integers at 8,
arithmetic at 6. All counts are of 64 queries by 64 keys, so that tiles of other sizes compare. Below them stand the
published counts of the whole kernel beside ours.

Run: ``python analysis/page/kv_block.py [--out FILE]``; it is a section of ``results/report/index.html``.
"""

from __future__ import annotations

from flashladder.ladder.gpus import load_gpus
from flashladder.lock.schema import PUBLISHED_ARCH, LockedKernel, lock_path, read_lock
from flashladder.machine_code.opcodes import KINDS
from flashladder.names import PUBLISHED_GPU
from flashladder.report.kv_block import Cost, costs, present
from flashladder.report.page.alone import alone
from flashladder.report.page.book import Book
from flashladder.report.page.cells import Cell, Column, Table, heated
from flashladder.report.page.locked import locked_record
from flashladder.report.page.records import join
from flashladder.report.page.sections import Content
from flashladder.results.published import SASS_COUNTS, sass_counts

ORDER, TITLE = 45, "What a KV block costs"
SHOWN = ("h200", PUBLISHED_GPU)


def heat_map(book: Book, gpu: str) -> Table:
    """Kind by iteration in one GPU's configurations, coloured by the share of the row's largest; sums lead to locks."""
    found = costs(gpu, book.results / "locks")
    facts = load_gpus()[gpu]
    path = lock_path(facts.arch, book.results / "locks")
    records = {number: locked_record(book, path, number, cost.locked) for number, cost in found.items()}
    rows = [[Cell("all"), *(heated(cost.total, found_most(found), records[n]) for n, cost in found.items())]]
    for kind in present(found):
        most = max(cost.kinds[kind] for cost in found.values())
        rows.append([Cell(kind), *(heated(cost.kinds[kind], most) for cost in found.values())])
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


def beside(book: Book, gpu: str) -> Table:
    """The published classes: ours and theirs, whole kernel, in the configuration of one GPU on the published one's."""
    published = sass_counts(book.results / "published")
    ours = ours_at(book, gpu)
    numbers = [number for number in ours if (number, gpu) in published]
    theirs = {"published by": book.ladder.published.description.source.repository, "holds": "counts by class"}
    source = book.records.fact(book.results / "published" / SASS_COUNTS, "Published counts", theirs)
    path = lock_path(PUBLISHED_ARCH, book.results / "locks")
    records = {n: join([locked_record(book, path, n, ours[n]), source]) for n in numbers}
    rows = [
        [Cell(name), *(Cell(f"{ours[n].counts.get(name, 0)} / {published[n, gpu][name]}", records[n]) for n in numbers)]
        for name in next(iter(published.values()))
    ]
    rows[1:] = [[Cell(cell.text) for cell in row] for row in rows[1:]]  # the totals lead to the rest
    columns = [Column("class", "code"), *(Column(str(number)) for number in numbers)]
    caption = f"{PUBLISHED_ARCH}, whole kernel, the {load_gpus()[gpu].title}'s configurations: ours / published"
    return Table(f"beside-published-{gpu}", caption, columns, rows)


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
    """Two GPUs, and the published GPU's listings: the page has 3 MB in all, and the scripts print the others."""
    gpus = [gpu for gpu in SHOWN if costs(gpu, book.results / "locks")]
    published = [PUBLISHED_GPU] if ours_at(book, PUBLISHED_GPU) else []
    return {
        "kinds": list(KINDS.items()),
        "maps": [heat_map(book, gpu) for gpu in gpus],
        "published": [beside(book, gpu) for gpu in published],
    }


if __name__ == "__main__":
    raise SystemExit(alone(__file__))
