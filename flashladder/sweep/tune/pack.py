"""Documents of a tuning run: all rungs as one bench result of purpose ``tune``, the finals as another.

Why two: finals have other inputs and a process of their own, so that the samples that chose a configuration and those
that judge it never meet in one median. Candidates that failed are named among the failures and have no samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flashladder.errors import FlashladderError
from flashladder.results.files import write_result
from flashladder.results.schema import BenchResult, Group, PlannedCell, Sweep
from flashladder.sweep.pack import timed
from flashladder.sweep.plan import Plan
from flashladder.sweep.tune.ladders import Ladder, key_of

FINALS = "tuned.json.gz"  # beside the rungs


def pack(
    made: Plan, planned: Sequence[PlannedCell], ladders: Sequence[Ladder], out: Path, made_for: str | None
) -> BenchResult:
    """Writes and returns the document of complete ladders.

    Raises:
        FlashladderError: nothing was measured, or on different GPU models, drivers or versions of torch.
    """
    failures = tuple(failure for ladder in ladders for failure in ladder.failures)
    sweep = Sweep(
        grid=made.grid.name,
        grid_sha256=made.grid.sha256,
        made_for=made_for,
        planned=tuple(planned),
        failures=failures,
    )
    failed = {failure.address for failure in failures}
    out_of_it = {key_of(cell) for cell in planned if cell.address in failed}
    documents = [_without(document, out_of_it) for ladder in ladders for document in ladder.documents]
    if not any(document.kernels for document in documents):
        first = f", the first: {failures[0].kind}: {failures[0].message}" if failures else ""
        raise FlashladderError(f"none of {len(planned)} candidates was measured{first}", where=out, exit_code=1)
    document = timed([one for one in documents if one.kernels], sweep)
    write_result(out, document)
    return document


def _without(document: BenchResult, keys: set[str]) -> BenchResult:
    """A document without what some candidates left in it."""
    groups = tuple(_group_without(group, keys) for group in document.groups)
    left = {series.kernel for group in groups for series in group.series}
    kernels = {key: kernel for key, kernel in document.kernels.items() if key in left}
    return document.model_copy(update={"groups": groups, "kernels": kernels})


def _group_without(group: Group, keys: set[str]) -> Group:
    blocks = tuple(
        block.model_copy(update={"order": tuple(key for key in block.order if key not in keys)})
        for block in group.blocks
    )
    series = tuple(one for one in group.series if one.kernel not in keys)
    return group.model_copy(update={"blocks": blocks, "series": series})
