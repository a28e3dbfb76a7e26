"""Question: which files is this page made from, on which machine was each measured, by which command, in what state?

Why last: every number leads to its own record; here stand all files at once, so that one that is missing is seen.

Run: ``python analysis/page/provenance.py [--out FILE]``; it is a section of ``results/report/index.html``.
"""

from __future__ import annotations

from flashladder.files import files_in
from flashladder.lock.schema import lock_path
from flashladder.report.page import cells
from flashladder.report.page.alone import alone
from flashladder.report.page.book import Book
from flashladder.report.page.cells import Cell, Table
from flashladder.report.page.sections import Content
from flashladder.results.files import identity

ORDER, TITLE = 120, "Provenance"


def documents(book: Book) -> Table:
    """Every result document of a machine."""
    rows = []
    for path in files_in(book.results, "*/*.json.gz"):
        version, digest = identity(path)
        if version is None:
            continue
        facts = dict(book.records.described(path))
        record = book.records.fact(path, path.relative_to(book.root).as_posix(), {"schema": version})
        rows.append(
            [
                Cell(path.relative_to(book.root).as_posix(), record),
                Cell(facts.get("GPU", "")),
                Cell(facts.get("card", "")[:12]),
                Cell(facts.get("started", "")[:10]),
                Cell(facts.get("made by", "")),
                Cell(digest[:16]),
            ]
        )
    columns = cells.columns(
        "file|code", "GPU|text", "card|code", "day|short", "made by|code", "SHA-256 of the content|code"
    )
    return Table("documents", "Result documents, each with its raw samples", columns, rows)


def locks(book: Book) -> Table:
    """The machine-code locks."""
    rows = []
    for arch, lock in sorted(book.ladder.locks.items()):
        path = lock_path(arch, book.results / "locks")
        if not path.is_file():
            continue
        n_kernels = sum(len(entry.kernels) for entry in lock.iterations.values())
        record = book.records.fact(
            path,
            f"The lock of {arch}",
            {
                "iterations": len(lock.iterations),
                "kernels": n_kernels,
                "derived again by": "python -m flashladder.lock verify",
            },
        )
        rows.append(
            [
                Cell(path.relative_to(book.root).as_posix(), record),
                Cell(arch),
                cells.number(len(lock.iterations), 0, record),
                cells.number(n_kernels, 0, record),
            ]
        )
    columns = cells.columns("file|code", "architecture|text", "iterations", "kernels")
    return Table("locks", "Machine-code locks", columns, rows)


def content(book: Book) -> Content:
    return {"documents": documents(book), "locks": locks(book), "refused": book.ladder.refused}


if __name__ == "__main__":
    raise SystemExit(alone(__file__))
