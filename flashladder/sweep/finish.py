"""The end of a sweep, or of a part of one: packs what is complete, prints its table, names what failed.

Why apart from `flashladder.sweep.command`: a finished sweep that is called again has nothing to measure and nothing to
derive; its document is read and shown as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
import sys

from flashladder.errors import CheckFailed, FlashladderError
from flashladder.files import relative
from flashladder.ladder.grid import Grid
from flashladder.results.files import load_result
from flashladder.results.schema import BenchResult, EmulatedSweepResult, Failure, PlannedCell
from flashladder.sweep.cells import title
from flashladder.sweep.plan import Plan
from flashladder.sweep.records import SUFFIX, Records
from flashladder.sweep.screen import Screen, summary

Document = BenchResult | EmulatedSweepResult


def require_own_name(grid: Grid, folder: Path) -> None:
    """Raises `FlashladderError` where the document that this sweep would replace is another grid's."""
    out = folder.with_name(folder.name + SUFFIX)
    document = _packed(out)
    if document and document.sweep and document.sweep.grid != grid.name:
        raise FlashladderError(
            "another grid's document has this place",
            where=relative(out),
            expected=grid.name,
            found=document.sweep.grid,
            hint="another folder as --out",
        )


def whole(made: Plan, records: Records, screen: Screen, *, made_for: str | None = None) -> int:
    """Packs a complete sweep, unless that is done, and says what is in it; 0.

    Raises:
        CheckFailed: cells failed.
        FlashladderError: a record is damaged, or the records do not belong into one table.
    """
    out = records.folder.with_name(records.folder.name + SUFFIX)
    document = packed_before(made, records, out, made_for)
    if document is None:
        from flashladder.sweep.pack import pack

        document = pack(made, records, out, made_for=made_for)
        screen.event({"event": "packed", "path": str(out)})
    if not screen.as_json:
        print(summary(document, relative(out)))
    return _told(made.cells, document.sweep.failures if document.sweep else ())


def packed_before(made: Plan, records: Records, out: Path, made_for: str | None) -> Document | None:
    """The document at `out`, where it is that of this plan and no record is younger; None: it is to be made."""
    newest = max((records.path(cell.address).stat().st_mtime_ns for cell in made.cells), default=0)
    document = _packed(out, newest)
    if document is None or document.sweep is None:
        return None
    found = document.sweep
    same = (found.planned, found.grid_sha256, found.made_for) == (made.cells, made.grid.sha256, made_for)
    return document if same else None


def _packed(out: Path, since_ns: int = 0) -> Document | None:
    """A sweep's document at `out`, if it was written at or after a time; None for half a one, or an older release's."""
    try:
        stat = out.stat()
        return _read(out, stat.st_mtime_ns, stat.st_size) if stat.st_mtime_ns >= since_ns else None
    except (FileNotFoundError, FlashladderError):
        return None


@lru_cache(maxsize=1)
def _read(out: Path, *_: int) -> Document | None:
    """The document of one state of a file: asked for before a sweep, and after."""
    document = load_result(out)
    return document if isinstance(document, BenchResult | EmulatedSweepResult) else None


def shard(records: Records, cells: Sequence[PlannedCell], part: tuple[int, int]) -> int:
    """Says that one part (index, count) of a sweep is done; 0.

    Raises:
        CheckFailed: cells of it failed.
    """
    print(f"shard {part[0]} of {part[1]}: {len(cells)} cells are done", file=sys.stderr)
    failures = (record.failure for record in map(records.read, (cell.address for cell in cells)))
    return _told(cells, [failure for failure in failures if failure])


def _told(cells: Sequence[PlannedCell], failures: Sequence[Failure]) -> int:
    """0; `CheckFailed` where cells failed."""
    if failures:
        first = failures[0]
        cell = next(cell for cell in cells if cell.address == first.address)
        raise CheckFailed(
            f"{len(failures)} of {len(cells)} cells failed, the first: {title(cell)}: {first.kind}: {first.message}",
            hint="--retry measures them again",
        )
    return 0
