"""Results as frames: a row per pair and per summary, with what the document says of each."""

from __future__ import annotations

import pytest

from flashladder.paths import ROOT
from flashladder.report.frames import pairs, summaries
from flashladder.results.derive import derive
from flashladder.results.files import load_as
from flashladder.results.schema import A_A, BenchResult
from tests.null.bench_fixture import group, result

BENCH = ROOT / "results" / "h200" / "bench.json.gz"


@pytest.fixture(scope="module")
def bench() -> BenchResult:
    return load_as(BENCH, BenchResult)


def test_every_raw_pair_is_a_row(bench: BenchResult) -> None:
    frame = pairs(bench)
    series = [one for part in bench.groups for one in part.series]
    assert len(frame) == sum(len(one.pairs) for one in series)
    assert (frame.kernel == "fa2").sum() == sum(len(one.pairs) for one in series if one.kernel == A_A) > 0
    first = bench.groups[0]
    own = frame[
        (frame.process == first.process) & (frame.dtype == first.dtype) & (frame.seq_len == first.shape.seq_len)
    ]
    assert own.ratio.tolist() == [pair.reference_us / pair.kernel_us for one in first.series for pair in one.pairs]
    assert (own.fa2_us / own.kernel_us).tolist() == own.ratio.tolist()
    blocks = {block.index: block for block in first.blocks}
    assert own.kernel_first.tolist() == [blocks[index].kernel_first for index in own.block]
    assert own.sm_clock_mhz.tolist() == [blocks[index].samples[0].sm_clock_mhz for index in own.block]
    assert any(block.samples[0] != block.samples[-1] for block in first.blocks)
    assert own.sm_clock_mhz.between(500, 2500).all()
    assert set(frame[frame.kernel != "fa2"].iteration) == set(range(1, 17))


def test_a_dropped_block_says_why() -> None:
    made = group()
    blocks = [block.model_copy(update={"dropped": "hot" if block.index == 1 else None}) for block in made.blocks]
    frame = pairs(result(made.model_copy(update={"blocks": tuple(blocks)})))
    assert set(frame[frame.block == 1].dropped) == {"hot"}
    assert set(frame[frame.block != 1].dropped) == {""}


def test_every_summary_is_a_row(bench: BenchResult) -> None:
    frame = summaries(bench)
    assert frame.pct.tolist() == [one.pct for one in derive(bench).summaries]
    assert frame.columns[:6].tolist() == ["kernel", "iteration", "variant", "config", "dtype", "batch"]
