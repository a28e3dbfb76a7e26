"""Results as frames: a row per pair and per summary, with what the document says of each."""

from __future__ import annotations

from flashladder.paths import ROOT
from flashladder.report.frames import pairs, summaries
from flashladder.results.files import load_as
from flashladder.results.schema import A_A, BenchResult
from tests.null.bench_fixture import group, result

BENCH = ROOT / "results" / "h200" / "bench.json.gz"


def test_every_raw_pair_and_every_summary_is_a_row() -> None:
    bench = load_as(BENCH, BenchResult)
    frame = pairs(bench)
    series = [one for part in bench.groups for one in part.series]
    assert len(frame) == sum(len(one.pairs) for one in series)
    assert (frame.kernel == "fa2").sum() == sum(len(one.pairs) for one in series if one.kernel == A_A) > 0
    first = bench.groups[0]
    own = frame[
        (frame.process == first.process) & (frame.dtype == first.dtype) & (frame.seq_len == first.shape.seq_len)
    ]
    assert own.ratio.tolist() == [pair.reference_us / pair.kernel_us for one in first.series for pair in one.pairs]
    blocks = {block.index: block for block in first.blocks}
    assert own.kernel_first.tolist() == [blocks[index].kernel_first for index in own.block]
    assert own.sm_clock_mhz.tolist() == [blocks[index].samples[0].sm_clock_mhz for index in own.block]
    assert set(frame[frame.kernel != "fa2"].iteration) == set(range(1, 17))
    assert summaries(bench).pct.tolist() == [one.pct for one in bench.summaries]


def test_a_dropped_block_says_why() -> None:
    made = group()
    blocks = [block.model_copy(update={"dropped": "hot" if block.index == 1 else None}) for block in made.blocks]
    frame = pairs(result(made.model_copy(update={"blocks": tuple(blocks)})))
    assert set(frame[frame.block == 1].dropped) == {"hot"}
    assert set(frame[frame.block != 1].dropped) == {""}
