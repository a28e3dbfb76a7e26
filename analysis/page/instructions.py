"""Question: which instructions does each step execute less of, on each architecture?

Why a heat map: a step's reason is in its machine code, and opcode classes over the steps are read as colours before
they are read as numbers. Counts are static, of the whole kernel or of its main loop, from the committed locks.

Run: ``python analysis/page/instructions.py [--out FILE]``; it is a section of ``results/report/index.html``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from flashladder.ladder.gpus import load_gpus
from flashladder.lock.schema import LockedKernel, lock_path
from flashladder.names import GPUS, PUBLISHED_GPU
from flashladder.report.page.alone import alone
from flashladder.report.page.book import Book
from flashladder.report.page.cells import Cell, Column, Table, heated
from flashladder.report.page.locked import locked_record
from flashladder.report.page.sections import Content

ORDER, TITLE = 50, "Instructions"
SHOWN = 22  # classes with the most instructions in any step; the rest are seldom


def kernels(book: Book, gpu: str) -> dict[int, LockedKernel]:
    """The locked kernel of each step in the configuration of one GPU."""
    lock = book.ladder.locks.get(load_gpus()[gpu].arch)
    found = {}
    for step in book.ladder.iterations:
        config = step.configs.get(gpu, step.configs[PUBLISHED_GPU]).short_form()
        entry = lock.iterations.get(step.number) if lock else None
        if entry and config in entry.kernels:
            found[step.number] = entry.kernels[config]
    return found


def opcodes(counts: Mapping[str, int]) -> dict[str, int]:
    """Counts by opcode without modifiers; the total stands apart."""
    return {name: count for name, count in counts.items() if name.isupper() and "." not in name}


def table(book: Book, gpu: str, scope: str) -> Table:
    """Opcode by step, coloured by share of the row's largest."""
    found = kernels(book, gpu)
    record = partial(locked_record, book, lock_path(load_gpus()[gpu].arch, book.results / "locks"))
    rows_of = {number: opcodes(getattr(kernel, scope)) for number, kernel in found.items()}
    totals = {number: getattr(kernel, scope).get("total", 0) for number, kernel in found.items()}
    names = sorted(
        {name for row in rows_of.values() for name in row},
        key=lambda name: (-max(row.get(name, 0) for row in rows_of.values()), name),
    )
    rows = (
        [[Cell("total"), *(heated(totals[n], max(totals.values()), record(n, found[n])) for n in found)]]
        if found
        else []
    )
    for name in names[:SHOWN]:
        most = max(row.get(name, 0) for row in rows_of.values())
        rows.append([Cell(name), *(heated(rows_of[n].get(name, 0), most, record(n, found[n])) for n in found)])
    for name in ("registers", "spilled, B"):
        values = {
            n: one.registers if name == "registers" else one.spill_stores + one.spill_loads for n, one in found.items()
        }
        most = max(values.values(), default=0)
        row = [heated(value, most, record(n, found[n])) for n, value in values.items()]
        rows.append([Cell(name), *row])
    columns = [Column("opcode", "code"), *(Column(str(number)) for number in found)]
    title, arch = load_gpus()[gpu].title, load_gpus()[gpu].arch
    what = "main loop" if scope == "main_loop" else "whole kernel"
    return Table(
        f"opcodes-{gpu}-{scope.replace('_', '-')}",
        f"{arch}, {what}, the {title}'s configurations: instructions by iteration",
        columns,
        rows,
    )


def content(book: Book) -> Content:
    gpus = [gpu for gpu in GPUS if gpu in load_gpus() and kernels(book, gpu)]
    return {"tables": [table(book, gpu, scope) for scope in ("main_loop", "counts") for gpu in reversed(gpus)]}


if __name__ == "__main__":
    raise SystemExit(alone(__file__))
