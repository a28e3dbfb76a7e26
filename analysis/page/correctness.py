"""Whether every kernel computes attention, how large its errors are, and what the sanitizers found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flashladder.columns import grouped
from flashladder.files import files_in
from flashladder.report import page
from flashladder.report.book import Book
from flashladder.report.data import plain
from flashladder.report.page import Block, Cell, Table
from flashladder.results.files import load_as
from flashladder.results.schema import CaseResult, CheckResult, SanitizerResult

ORDER, TITLE = 40, "Correctness"
HELD = ("fails", "holds")
EXPLAINED = (
    "An error may be at most twice that of torch's own 16-bit kernel against one high-precision reference. *Refused* "
    "counts tensors that a kernel has to refuse, and did."
)


def share(case: CaseResult) -> float:
    """The larger of largest and RMS error, as a share of what is allowed."""
    look = case.accuracy
    if look is None or look.max_error is None or look.rms_error is None:
        return 0.0
    return max(look.max_error / look.max_allowed, look.rms_error / look.rms_allowed)


def checked(book: Book, path: Path) -> Table:
    """Per iteration how many cases passed, and its worst one."""
    result, rows = load_as(path, CheckResult), []
    for number, cases in grouped(result.cases, lambda case: result.kernels[case.kernel].iteration).items():
        worst = max(cases, key=share)
        counts = {status: sum(case.status == status for case in cases) for status in ("pass", "fail", "not_applicable")}
        facts: dict[str, object] = {"worst case": worst.case}
        if look := worst.accuracy:
            facts |= {
                "its largest error": f"{look.max_error:.3g} (allowed {look.max_allowed:.3g})",
                "its RMS error": f"{look.rms_error:.3g} (allowed {look.rms_allowed:.3g})",
            }
        record = book.records.fact(path, worst.kernel, facts, result.kernels[worst.kernel])
        numbers = [page.number(count, 0, record, HELD[not counts["fail"]]) for count in counts.values()]
        rows.append([page.step(number), *numbers, page.number(100 * share(worst), 0, record), Cell(worst.case)])
    columns = page.columns("#", "passed", "failed", "refused", "worst error, % of allowed", "in case|text")
    caption = f"Cases of the check of correctness on {plain(result.gpu.name)}: {len(result.cases)}"
    return Table(f"check-{path.parent.name}", caption, columns, rows)


def sanitized(book: Book) -> Table:
    """What compute-sanitizer found, by tool and machine."""
    rows = []
    for path in files_in(book.results, "*/sanitizer.json.gz"):
        result = load_as(path, SanitizerResult)
        n = len(result.kernels)
        for one in result.findings:
            record = book.records.fact(path, f"{one.tool} over {n} kernels", {"its last lines": one.tail.strip()})
            outcome = Cell("clean" if one.clean else "not clean", record, style=f"outcome {HELD[one.clean]}")
            numbers = [page.number(n, 0, record), page.number(one.errors, 0, record), page.number(one.seconds, 1)]
            rows.append([Cell(plain(result.gpu.name)), Cell(one.tool), outcome, *numbers])
    columns = page.columns("GPU|text", "tool|text", "outcome|text", "kernels", "errors", "seconds")
    return Table("sanitizers", "compute-sanitizer over one launch of each kernel", columns, rows)


def content(book: Book) -> Sequence[Block]:
    """A table for each GPU, and the sanitizers'."""
    tables = [checked(book, path) for path in files_in(book.results, "*/check.json.gz")[::-1]]
    return [EXPLAINED, *map(page.fold, tables), sanitized(book)]
