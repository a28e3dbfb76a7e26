"""The files that the page is made from, where each was measured and by which command; the tables beside the page."""

from __future__ import annotations

from collections.abc import Sequence

from flashladder.errors import FlashladderError
from flashladder.files import files_in
from flashladder.lock.schema import lock_path
from flashladder.report import page
from flashladder.report.book import Book
from flashladder.report.page import Block, Cell, Table
from flashladder.results.files import load_result
from flashladder.results.schema import Result

ORDER, TITLE = 60, "Sources and further tables"
HELD = (
    "`invoke verify` derives every summary again from its raw samples; `invoke gate` renders tables, plots and this "
    "page again and compares. Published figures are others' and were not measured by this project."
)
BESIDE = {
    "ablation": "what each change is worth, taken back alone or added alone",
    "accuracy": "errors beside FA2's, by kind of input",
    "beyond": "steps 17 to 19 beside libraries",
    "causal": "steps 31 and 32 with a causal mask, beside libraries",
    "counters": "counters and races",
    "energy": "power, clock and energy per FLOP",
    "cross": "few keys for many queries: 512, and 77",
    "explain": "what binds each step, as the model predicts it",
    "fewtiles": "grids of few tiles",
    "general": "steps 29, 30 and 32 on the problems of all steps",
    "grouped": "four heads of Q for each head of K and V, with and without a causal mask",
    "hopper": "steps 20 to 24 beside libraries",
    "persistent": "steps 25 to 27 beside libraries",
    "progression": "every step, dtype and length",
    "sweep": "steps 1 to 16 beside libraries",
    "toolchain": "the same source through other compilers",
    "tune": "every candidate of a tuning run",
}


def documents(book: Book) -> Table:
    """Every result document of a machine."""
    rows = []
    for path in files_in(book.results, "*/*.json.gz"):
        try:
            result = load_result(path)
        except FlashladderError:  # a file of another form, such as rates
            continue
        if isinstance(result, Result):
            facts, name = dict(book.records.described(path)), path.relative_to(book.root).as_posix()
            record = book.records.fact(path, name, {"schema": result.schema_version})
            told = (facts["GPU"], facts["card"][:12], facts.get("started", "")[:10], facts.get("made by", ""))
            rows.append([Cell(name, record), *map(Cell, told), Cell(facts["SHA-256 of the file"][:16])])
    columns = page.columns("file|code", "GPU|text", "card|code", "day|short", "made by|code", "SHA-256|code")
    return Table("documents", "Result documents, each with its raw samples", columns, rows)


def locks(book: Book) -> Table:
    """The machine-code locks."""
    rows = []
    for arch, lock in sorted(book.ladder.locks.items()):
        path = lock_path(arch, book.results / "locks")
        n_kernels = sum(len(entry.kernels) for entry in lock.iterations.values())
        if path.is_file():
            facts = {"derived again by": "python -m flashladder.lock verify"}
            record = book.records.fact(path, f"The lock of {arch}", facts)
            numbers = [page.number(n, 0) for n in (len(lock.iterations), n_kernels)]
            rows.append([Cell(path.relative_to(book.root).as_posix(), record), Cell(arch), *numbers])
    columns = page.columns("file|code", "architecture|text", "iterations", "kernels")
    return Table("locks", "Machine-code locks", columns, rows)


def beside(book: Book) -> str:
    """The tables that lie beside the page."""
    lines = []
    for kind, what in BESIDE.items():
        found = files_in(book.results / "report", f"{kind}*.md")
        lines += [f"- {what}: {', '.join(f'[{path.stem}]({path.name})' for path in found)}"] if found else []
    return "\n".join(lines)


def content(book: Book) -> Sequence[Block]:
    """Tables beside the page, documents, locks, and what was refused."""
    found: list[Block] = [HELD, beside(book), *map(page.fold, (documents(book), locks(book)))]
    if book.ladder.refused:
        found.append("\n".join(["Refused results:", "", *(f"- {one}" for one in book.ladder.refused)]))
    return found
