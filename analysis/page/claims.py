"""Question: what does each step claim about its machine code and its counters, and does it hold everywhere?

Why: an explanation that no machine checks is an opinion. Every claim stands with the counts that it was judged on, at
every place, and with what it would be with the step taken back; one that also holds then says nothing and is refused.

Run: ``python analysis/page/claims.py [--out FILE]``; it is a section of ``results/report/index.html``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from flashladder.emulate import agreement, counter_claims
from flashladder.emulate.counter_claims import counter_files
from flashladder.emulate.reading import NAME
from flashladder.errors import FlashladderError
from flashladder.ladder.claim import LOCK_ARCHES
from flashladder.lock import code_claims
from flashladder.lock.code_claims import Verdict, plain
from flashladder.lock.schema import LOCKS
from flashladder.lock.step_counts import COUNTS, read_counts
from flashladder.paths import RESULTS
from flashladder.report.page import cells
from flashladder.report.page.alone import alone
from flashladder.report.page.book import Book
from flashladder.report.page.cells import Cell, Table
from flashladder.report.page.sections import Content
from flashladder.view.command import expectation

ORDER, TITLE = 90, "Claims"


def source(book: Book, place: str) -> Path:
    """The file whose counts a claim is judged on at one place."""
    if place in (*LOCK_ARCHES, "PTX"):
        return book.results / COUNTS.relative_to(RESULTS)
    return book.results / NAME if place == "emulator" else book.results / place / "counters.json.gz"


def outcome(verdict: Verdict) -> Cell:
    """Whether a claim holds, fails, or is not made at this place."""
    if not verdict.holds:
        return Cell(f"fails: {verdict.problem}", style="outcome fails")
    return Cell("holds", style="outcome holds") if verdict.claimed else Cell("not claimed here", style="outcome quiet")


def row(book: Book, verdict: Verdict) -> list[Cell]:
    """One claim at one place."""
    facts = {"claim": verdict.claim, "counts": verdict.counts, "with the step taken back": plain(verdict.null)}
    record = book.records.fact(source(book, verdict.place), f"Iteration {verdict.iteration} on {verdict.place}", facts)
    return [
        cells.step(verdict.iteration),
        Cell(expectation(verdict.claim)),
        Cell(verdict.place),
        Cell(verdict.counts, record),
        Cell(plain(verdict.null), record, verdict.null),
        Cell("yes" if verdict.refuted else "no"),
        outcome(verdict),
    ]


def of_code(book: Book) -> list[Verdict]:
    """The claims about machine code and PTX, of the steps that have committed counts: a new one has none yet."""
    counts = read_counts(book.results / COUNTS.relative_to(RESULTS))
    counted = {kernel.iteration for kernel in counts.kernels.values()}
    return code_claims.verify([one.number for one in book.ladder.iterations if one.number in counted], counts)


def judged(book: Book) -> tuple[list[Verdict], list[str]]:
    """Every verdict that committed files give, and what could not be judged."""
    looks = [partial(of_code, book)]
    looks += [partial(counter_claims.verify, path, book.results / LOCKS.name) for path in counter_files(book.results)]
    if book.ladder.emulated is not None:
        looks.append(partial(agreement.claims, book.ladder.emulated))
    found: list[Verdict] = []
    problems = []
    for look in looks:
        try:
            found += look()
        except FlashladderError as error:
            problems.append(str(error))
    return found, problems


def content(book: Book) -> Content:
    verdicts, problems = judged(book)
    columns = cells.columns(
        "#", "claim|text", "place|text", "parent -> step|short", "step taken back", "refuted then|text", "verdict|text"
    )
    made = [one for one in verdicts if one.claimed]
    return {
        "problems": problems,
        "told": f"{sum(one.holds for one in made)} of {len(made)} claims hold where they are made",
        "table": Table("claims", "Every claim at every place", columns, [row(book, one) for one in verdicts]),
    }


if __name__ == "__main__":
    raise SystemExit(alone(__file__))
