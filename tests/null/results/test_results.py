"""Result files: round trip, refusals with a clear line, and tables that must follow from raw samples."""

from __future__ import annotations

import gzip
from pathlib import Path
import platform

import pytest

from flashladder.errors import FlashladderError
from flashladder.problem import Problem
from flashladder.results import derive as summaries
from flashladder.results.files import load_result, this_host, write_result
from flashladder.results.schema import BenchResult, Group, PlannedCell, Summary, Sweep, kernel_key
from tests.null.bench_fixture import FAST, SHAPE, SLOW, group, result

FAST_KEY = kernel_key(16, FAST)


def test_this_host_names_nobody() -> None:
    assert not platform.node() or platform.node() not in this_host().model_dump_json()


def derived(*groups: Group, **settings: int) -> tuple[BenchResult, Summary]:
    """A derived result, and its summary of iteration 16."""
    given = result(*groups)
    made = summaries.derive(given.model_copy(update={"settings": given.settings.model_copy(update=settings)}))
    return made, next(one for one in made.summaries if one.kernel == FAST_KEY)


def test_summaries_say_what_was_put_in() -> None:
    made, fast = derived()
    assert {one.kernel: one.verdict for one in made.summaries} == {FAST_KEY: "faster", kernel_key(1, SLOW): "slower"}
    assert made.summaries[0].pct == pytest.approx(16, abs=0.1)
    assert fast.pct == pytest.approx(110, abs=0.3)
    assert (fast.reference_tflops, fast.tflops) == pytest.approx((350, 385), abs=1)
    assert (fast.n_pairs, fast.sm_clock_mhz) == (12, 1700)
    assert 0 < made.floors_pct["fp16"] < 0.2


def test_dropped_and_readmitted_blocks_are_reported() -> None:
    made, fast = derived(group(bits=(0, 0x40)))
    assert (fast.n_pairs, fast.dropped_share, fast.readmitted_share) == (9, 0.25, 0.0)
    assert len(made.groups[0].series[1].pairs) == 12
    _, fast = derived(group(bits=(0, 0x4)), min_pairs=12)
    assert (fast.n_pairs, fast.dropped_share, fast.readmitted_share) == (12, 0.0, 0.25)


def test_a_short_sequence_is_limited_by_the_memory() -> None:
    short = Problem(batch=1, seq_len=128, n_heads=1, d_head=128)
    assert summaries.fastest_possible_us(SHAPE, "NVIDIA Example 1") is None
    limit = summaries.fastest_possible_us(short, "NVIDIA H200")
    assert limit == pytest.approx(short.input_bytes / 4800e9 * 1e6)


@pytest.mark.parametrize(("flush", "wrong"), [(119_999_999, True), (120_000_000, False)])
def test_a_flush_is_twice_the_l2(flush: int, wrong: bool) -> None:
    line = f"settings.flush_bytes: expected at least 120000000, twice the L2, found {flush}"
    assert (line in summaries.problems(derived(flush_bytes=flush)[0])) == wrong


def test_processes_are_clusters_of_the_summary_and_of_the_floor() -> None:
    """Five processes that disagree: draws of single pairs would never give the slowest one's median."""
    groups = []
    for process in range(5):
        one, factor = group(process), 1 + 0.1 * process
        slower = tuple(
            series.model_copy(update={"pairs": tuple(p._replace(kernel_us=p.kernel_us * factor) for p in series.pairs)})
            for series in one.series
        )
        groups.append(one.model_copy(update={"series": slower}))
    made, fast = derived(*groups)
    assert (fast.pct_low, fast.pct, fast.pct_high) == pytest.approx((110 / 1.4, 110 / 1.2, 110), abs=0.3)
    assert made.floors_pct["fp16"] == pytest.approx(40, abs=0.5)
    mean = next(m for m in made.means if m.kernel == FAST_KEY)
    assert (mean.pct_low, mean.pct_high) == pytest.approx((110 / 1.4, 110), abs=0.3)


def test_a_sweeps_cell_without_a_floor_has_no_summaries() -> None:
    first = group()
    bare = first.model_copy(update={"series": first.series[1:], "dtype": "bf16"})
    with pytest.raises(FlashladderError, match="no A/A series, so no noise floor; time the reference against itself"):
        summaries.derive(result(first, bare))
    cell = PlannedCell(subject="16", config=FAST, dtype="fp16", shape=SHAPE, code="", address="0" * 16)
    sweep = Sweep(grid="smoke", grid_sha256="0" * 64, planned=(cell,))
    made = summaries.derive(result(first, bare).model_copy(update={"sweep": sweep}))
    assert len(made.summaries) == 2
    assert {one.dtype for one in (*made.summaries, *made.means)} == set(made.floors_pct) == {"fp16"}


def test_round_trip_plain_and_compressed(tmp_path: Path) -> None:
    made = summaries.derive(result())
    for name in ("bench.json", "bench.json.gz"):
        assert load_result(write_result(tmp_path / name, made)) == made
    assert gzip.decompress((tmp_path / "bench.json.gz").read_bytes()) == (tmp_path / "bench.json").read_bytes()
