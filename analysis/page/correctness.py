"""Question: does every kernel compute attention, how large are its errors, and what did the sanitizers find?

Why beside the speeds: a fast wrong kernel is worth nothing. Errors are shares of what the rule allows, which is twice
the error of torch's own 16-bit kernel against one high-precision reference.

Run: ``python analysis/page/correctness.py [--out FILE]``; it is a section of ``results/report/index.html``.
"""

from __future__ import annotations

from pathlib import Path

from flashladder.files import files_in
from flashladder.report.page import cells
from flashladder.report.page.alone import alone
from flashladder.report.page.book import Book
from flashladder.report.page.cells import Cell, Column, Table
from flashladder.report.page.sections import Content
from flashladder.report.tables import plain
from flashladder.results.files import load_as
from flashladder.results.schema import CaseResult, CheckResult, SanitizerResult

ORDER, TITLE = 100, "Correctness"


def share(case: CaseResult) -> float:
    """The larger of largest and RMS error, as a share of what is allowed."""
    look = case.accuracy
    if look is None or look.max_error is None or look.rms_error is None:
        return 0.0
    return max(look.max_error / look.max_allowed, look.rms_error / look.rms_allowed)


def checked(book: Book, path: Path) -> Table:
    """Per kernel how many cases passed, and its worst one."""
    result = load_as(path, CheckResult)
    by_kernel: dict[str, list[CaseResult]] = {}
    for case in result.cases:
        by_kernel.setdefault(case.kernel, []).append(case)
    rows = []
    for key, cases in by_kernel.items():
        kernel, worst = result.kernels[key], max(cases, key=share)
        counts = {status: sum(case.status == status for case in cases) for status in ("pass", "fail", "not_applicable")}
        facts: dict[str, object] = {"cases": len(cases), "worst case": worst.case}
        if worst.accuracy is not None:
            look = worst.accuracy
            facts |= {
                "its largest error": f"{look.max_error:.3g} (allowed {look.max_allowed:.3g})",
                "its RMS error": f"{look.rms_error:.3g} (allowed {look.rms_allowed:.3g})",
            }
        record = book.records.fact(path, f"{key}, {kernel.dtype}", facts, kernel)
        failed = "fails" if counts["fail"] else "holds"
        rows.append(
            [
                cells.step(kernel.iteration),
                Cell(kernel.config),
                cells.number(counts["pass"], 0, record, failed),
                cells.number(counts["fail"], 0, record, failed),
                cells.number(counts["not_applicable"], 0, record),
                cells.number(100 * share(worst), 0, record),
                Cell(worst.case),
            ]
        )
    columns = [
        Column("#"),
        Column("configuration", "code"),
        Column("passed"),
        Column("failed"),
        Column("refused", told="tensors that the kernel refuses, and did"),
        Column("worst error, % of allowed"),
        Column("in case", "text"),
    ]
    gpu = plain(result.gpu.name)
    return Table(
        f"check-{path.parent.name}", f"Cases of the check of correctness on {gpu}: {len(result.cases)}", columns, rows
    )


def sanitized(book: Book) -> Table:
    """What compute-sanitizer found, by tool and machine."""
    rows = []
    for path in files_in(book.results, "*/sanitizer.json.gz"):
        result = load_as(path, SanitizerResult)
        for one in result.findings:
            record = book.records.fact(
                path, f"{one.tool} over {len(result.kernels)} kernels", {"its last lines": one.tail.strip()}
            )
            outcome = Cell(
                "clean" if one.clean else "not clean", record, style="outcome holds" if one.clean else "outcome fails"
            )
            rows.append(
                [
                    Cell(plain(result.gpu.name)),
                    Cell(one.tool),
                    cells.number(len(result.kernels), 0, record),
                    outcome,
                    cells.number(one.errors, 0, record),
                    cells.number(one.seconds, 1, record),
                ]
            )
    columns = cells.columns("GPU|text", "tool|text", "kernels", "outcome|text", "errors", "seconds")
    return Table("sanitizers", "compute-sanitizer over one launch of each kernel", columns, rows)


def content(book: Book) -> Content:
    return {
        "tables": [checked(book, path) for path in files_in(book.results, "*/check.json.gz")[::-1]],
        "sanitizers": sanitized(book),
    }


if __name__ == "__main__":
    raise SystemExit(alone(__file__))
