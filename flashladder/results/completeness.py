"""Are a timing's raw samples all there? Blocks and pairs counted against the settings under which they were taken.

Why apart from `flashladder.results.derive`: that asks whether tables follow from the samples; a block that was taken
out together with its pairs leaves tables that follow. A run cut short is told here as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flashladder.results.blocks import CELL_EXTRA_BLOCKS, Plan, disturbed
from flashladder.results.schema import A_A, BenchResult, Group, Series, Settings

FIRST_PROTOCOL = "1"  # in which a sweep's cells had no more blocks than others


def incomplete(result: BenchResult) -> list[str]:
    """One line per group, block or series whose samples are not those that its settings ask for."""
    processes = {process.index for process in result.processes}
    own = result.sweep is not None and result.protocol_version != FIRST_PROTOCOL
    usual = CELL_EXTRA_BLOCKS if own else Plan.extra_blocks
    extra = None if result.purpose == "tune" else usual
    found = []
    for group in result.groups:
        where = f"process {group.process} {group.dtype} S={group.shape.seq_len}"
        if group.process not in processes:
            found.append(f"{where}: the result does not describe this process")
        lines = (_too_few(group, result.settings.blocks, extra), *_of_group(group, result.settings))
        found += [f"{where}: {line}" for line in lines if line]
    return found if result.sweep else found + _without_floor(result.groups)


def _without_floor(groups: Sequence[Group]) -> list[str]:
    """Dtypes and shapes at which the reference was not timed beside itself; a sweep's plan tells by itself."""
    every = dict.fromkeys((group.dtype, group.shape) for group in groups)
    have = {(one.dtype, one.shape) for one in groups for series in one.series if series.kernel == A_A and series.pairs}
    return [
        f"{dtype} S={shape.seq_len}: no pairs of {A_A}, the floor"
        for dtype, shape in every
        if (dtype, shape) not in have
    ]


def _too_few(group: Group, wanted: int, extra: int | None) -> str | None:
    """What is wrong with the number of blocks; `extra` at most are timed in place of dropped ones, None: any number."""
    n = len(group.blocks)
    if [block.index for block in group.blocks] != list(range(n)):
        return f"blocks: expected 0 to {n - 1}, found {', '.join(str(block.index) for block in group.blocks)}"
    counted = sum(disturbed(block) is None for block in group.blocks)
    replaced = extra is None or counted >= wanted or n == wanted + extra
    if n >= wanted and replaced and (extra is None or n <= wanted + extra):
        return None
    more = "" if extra is None else f", and up to {wanted + extra} until {wanted} count"
    return f"blocks: expected at least {wanted}{more}, found {n}, of which {counted} count"


def _of_group(group: Group, settings: Settings) -> Iterator[str]:
    timed = sorted(series.kernel for series in group.series if series.pairs)
    for block in group.blocks:
        if len(block.samples) != 2:
            yield f"block {block.index}: expected 2 looks at the GPU, found {len(block.samples)}"
        if sorted(block.order) != timed:
            odd = sorted(set(block.order) ^ set(timed)) or ["one of them twice"]
            yield f"block {block.index}: its order and the series with pairs are not the same kernels: {odd[0]}"
    indices = [block.index for block in group.blocks]
    for series in group.series:
        yield from _of_series(series, indices, settings)


def _of_series(series: Series, indices: list[int], settings: Settings) -> Iterator[str]:
    """A kernel that was wrong before has no pairs; every other has equally many in each block, one block at a time."""
    visit = -(-settings.pairs // settings.blocks)
    if not series.pairs and series.before and not series.before.ok:
        return
    blocks = [pair.block for pair in series.pairs]
    if blocks != [index for index in indices for _ in range(visit)]:
        wrong = [index for index in sorted({*indices, *blocks}) if blocks.count(index) != visit or index not in indices]
        told = f"{blocks.count(wrong[0])} in block {wrong[0]}" if wrong else "them in another order"
        yield f"{series.kernel}: expected {visit} pairs in each of {len(indices)} blocks, found {told}"
