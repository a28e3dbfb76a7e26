"""The measurement protocol: for each rule a test that fails when the bench, or what is derived, stops following it.

Each of these was a change to the code that every other test let pass: FA2 always on the first inputs, a flush smaller
than the L2, results off the grid, floors of the last file instead of each one's own, and more of that kind.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from flashladder.bench import timing as bench_run
from flashladder.bench.references import kernel_subject
from flashladder.bench.timing import bench_group, prepare
from flashladder.errors import FlashladderError
from flashladder.ladder.config import KernelConfig
from flashladder.problem import Shape
from flashladder.report import data as report_data
from flashladder.report import tables as report_tables
from flashladder.report.reasons import Words
from flashladder.report.variants import BOTH
from flashladder.results import derive as summaries
from flashladder.results.derive import Plan
from flashladder.results.files import load_as, write_result
from flashladder.results.schema import A_A, BenchResult, Group, kernel_key
from flashladder.results.statistics import (
    LogSummary,
    verdict,
)
from tests.null.bench.test_timing_null import FakeGpu
from tests.null.bench_fixture import FAST, group, pairs, result, sample
from tests.null.check.test_check_null import attention, right
from tests.null.ladder_fixture import make

TINY = Shape(batch=1, seq_len=64, n_heads=2, d_head=128)
H200_L2 = 62_914_560  # bytes, as its driver tells
MIB = 2**20


@dataclass
class Spy:
    """A group timed on CPU tensors: which Q, by its first values, each launch of FA2 and of the kernel was given."""

    gpu: FakeGpu = field(default_factory=FakeGpu)
    launches: list[tuple[str, bytes]] = field(default_factory=list)

    def reference(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self.launches.append(("FA2", q[0, 0, 0, :4].numpy().tobytes()))
        self.gpu.log.append("FA2")
        self.gpu.now += 20.0
        return attention(q, k, v)

    def kernel(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, config: str) -> None:
        self.launches.append(("kernel", q[0, 0, 0, :4].numpy().tobytes()))
        self.gpu.log.append("kernel")
        right(q, k, v, out, config)

    def run(self, plan: Plan) -> Group:
        timed = [kernel_subject(16, KernelConfig.parse(FAST), self.kernel)]
        return bench_group(
            self.gpu.hardware(), timed, prepare("fp16", TINY, plan, "cpu"), plan, process=0, warm_up_s=0.3,
            reference=self.reference,
        )  # fmt: skip


@pytest.fixture(scope="module")
def spy() -> Spy:
    spy = Spy()
    made = spy.run(Plan(pairs=6, blocks=3, min_pairs=6, input_sets=3))
    assert len(set(made.input_seeds)) == 3
    return spy


def test_each_pair_runs_on_one_input_set_and_all_sets_are_used(spy: Spy) -> None:
    """FA2 and kernel of a pair are adjacent and see the same Q; so do the two runs of FA2 in an A/A pair."""
    kernel = [index for index, (name, _) in enumerate(spy.launches) if name == "kernel"][1:-1]  # but the checks
    assert len(kernel) == 6
    for index in kernel:
        around = [spy.launches[at] for at in (index - 1, index + 1) if at < len(spy.launches)]
        assert ("FA2", spy.launches[index][1]) in around
    for name, least in (("FA2", 3), ("kernel", 3)):
        assert len({q for launched, q in spy.launches if launched == name}) == least


def test_fa2_runs_before_the_first_pair_until_the_clock_is_level(spy: Spy) -> None:
    first = spy.gpu.log.index("flush")
    assert spy.gpu.log[:first].count("FA2") * 20.0 >= 300.0  # milliseconds


@pytest.mark.parametrize(
    ("l2_bytes", "least"), [(H200_L2, 2 * H200_L2), (6 * MIB, 12 * MIB), (200 * MIB, 400 * MIB), (1 << 30, 1 << 31)]
)
def test_the_flush_writes_at_least_twice_the_l2(monkeypatch: pytest.MonkeyPatch, l2_bytes: int, least: int) -> None:
    written: list[int] = []

    class Buffer:
        def __init__(self, size: int) -> None:
            self.size = size

        def zero_(self) -> None:
            written.append(self.size)

    def empty(size: int, *, dtype: torch.dtype, device: str) -> Buffer:
        assert device == "cuda"
        return Buffer(size * dtype.itemsize)

    monkeypatch.setattr(torch, "empty", empty)
    hardware, size = bench_run.cuda_hardware(FakeGpu().sample, l2_bytes)
    hardware.flush()
    assert written == [size]
    assert size >= least


@pytest.mark.parametrize(("flush_bytes", "told"), [(16 * MIB, True), (119_999_999, True), (120_000_000, False)])
def test_a_result_with_a_flush_below_twice_its_l2_is_refused(*, flush_bytes: int, told: bool) -> None:
    made = result()
    small = made.model_copy(update={"settings": made.settings.model_copy(update={"flush_bytes": flush_bytes})})
    found = [line for line in summaries.problems(summaries.derive(small)) if "flush" in line]
    assert len(found) == told
    assert not told or found[0].startswith(
        f"settings.flush_bytes: expected at least 120000000, twice the L2, found {flush_bytes}"
    )


def test_only_the_grids_batch_and_heads_stand_in_a_table(tmp_path: Path) -> None:
    """A length that was timed at another batch is no cell of the table, alone or beside the grid's."""
    fixture = make(tmp_path / "results", lambda number: 90.0 + number, lengths=[4096])
    made = load_as(fixture.bench, BenchResult)
    off = Shape(batch=1, seq_len=4096, n_heads=16, d_head=128)
    other = made.groups[0].model_copy(update={"shape": off})
    for groups, expected in (((other,), None), ((other, made.groups[0]), 16)):
        write_result(fixture.bench, summaries.derive(made.model_copy(update={"groups": groups})))
        ladder = report_data.collect(fixture.folder)
        row = ladder.rows(ladder.machines[0], "fp16")[0]
        summary = row.headline
        assert (summary.shape.batch if summary else None) == expected
        assert all(cell[report_tables.CELLS.index("batch")] == 16 for cell in report_tables.cells(ladder))


@pytest.mark.parametrize("names", [("bench.json.gz", "bench_more.json.gz"), ("bench_more.json.gz", "bench.json.gz")])
def test_a_floor_is_of_the_run_that_timed_the_kernel(tmp_path: Path, names: tuple[str, str]) -> None:
    """Of two files the first has step 1 and the second the rest; a page's noise is the larger floor of its two runs."""
    fixture = make(tmp_path / "results", lambda number: 90.0 + number, lengths=[4096])
    made = load_as(fixture.bench, BenchResult)
    for name, floor, first in zip(names, (0.25, 0.75), (True, False), strict=True):
        kernels = {key: one for key, one in made.kernels.items() if (one.iteration == 1) is first}
        alone: dict[str, object] = {
            "kernels": kernels,
            "summaries": tuple(one for one in made.summaries if one.kernel in kernels),
            "means": tuple(one for one in made.means if one.kernel in kernels),
            "floors_pct": {"fp16": floor},
        }
        write_result(fixture.bench.parent / name, made.model_copy(update=alone))
    ladder = report_data.collect(fixture.folder)
    (machine,) = ladder.machines
    assert machine.floors("fp16") == (0.25, 0.75)
    assert machine.floors("bf16") == ()
    assert [row.measured.floor for row in ladder.rows(machine, "fp16")[:3] if row.measured] == [0.25, 0.75, 0.75]
    told = [row[report_tables.PROGRESSION.index("a_a_floor_points")] for row in report_tables.progression(ladder)[:2]]
    assert told == ["0.250", "0.750"]
    assert "A/A floors of the runs ±0.25 to ±0.75 points; intervals" in report_tables.readme_block(ladder)
    assert [Words(ladder, number).noise_points for number in (1, 2, 3)] == [0.25 * BOTH, 0.75 * BOTH, 0.75 * BOTH]
    with pytest.raises(FlashladderError, match="iteration 28 was not measured"):
        Words(ladder, 28).noise()


def test_the_floor_of_another_card_stands_beside_the_table(tmp_path: Path) -> None:
    fixture = make(tmp_path / "results", lambda number: 90.0 + number, lengths=[4096])
    made = load_as(fixture.bench, BenchResult)
    gpu = made.gpu.model_copy(update={"uuid": "GPU-other"})
    path = fixture.bench.parent / "second_card.json.gz"
    write_result(path, made.model_copy(update={"gpu": gpu, "floors_pct": {"fp16": 0.88}}))
    ladder = report_data.collect(fixture.folder)
    (machine,) = ladder.machines
    assert machine.other_floors == {"fp16": (0.88,)}
    floor = f"A/A floor ±{machine.floors('fp16')[0]:.2f} points (on the second card ±0.88)"
    assert floor in report_tables.readme_block(ladder)
    write_result(path, made)
    with pytest.raises(FlashladderError, match=r"second_card.json.gz: not another card .* the same card"):
        report_data.collect(fixture.folder)


def test_samples_that_chose_a_configuration_are_not_reported(tmp_path: Path) -> None:
    fixture = make(tmp_path / "results", lambda number: 90.0 + number, lengths=[4096])
    made = load_as(fixture.bench, BenchResult)
    for change in ({"purpose": "tune"}, {"mode": "event-locked"}):
        write_result(fixture.bench, made.model_copy(update=change))
        assert report_data.collect(fixture.folder).machines == ()


def test_a_short_shape_is_bounded_by_its_bytes() -> None:
    """At S = 128 an H200 reads Q, K and V for longer than it multiplies; both bounds count, the longer one decides."""
    short = Shape(batch=16, seq_len=128, n_heads=16, d_head=128)
    assert summaries.fastest_possible_us(short, "NVIDIA H200") == pytest.approx(
        3 * 2 * 16 * 128 * 16 * 128 / 4800e9 * 1e6
    )


def test_a_reference_that_is_impossibly_fast_is_an_error_too() -> None:
    made = result(group(shape=Shape(batch=16, seq_len=512, n_heads=16, d_head=128)))
    made = made.model_copy(update={"gpu": made.gpu.model_copy(update={"name": "NVIDIA H200"})})
    series = made.groups[0].series[0]
    quick = series.model_copy(update={"pairs": (series.pairs[0]._replace(reference_us=1.0), *series.pairs[1:])})
    groups = (made.groups[0].model_copy(update={"series": (quick, *made.groups[0].series[1:])}),)
    found = summaries.problems(summaries.derive(made.model_copy(update={"groups": groups})))
    assert [line.partition(":")[0] for line in found] == [f"{A_A} fp16 S=512"]


def test_the_floor_of_one_dtype_judges_that_dtype_alone() -> None:
    """bf16's A/A pairs differ by 20 %, fp16's by 0.1 %: 110 % is faster in fp16 and within the floor in bf16."""
    noisy = group().series[0].model_copy(update={"pairs": pairs(1.2, 9)})
    other = group().model_copy(update={"dtype": "bf16", "series": (noisy, *group().series[1:])})
    made = summaries.derive(result(group(), other))
    found = {one.dtype: one.verdict for one in made.summaries if one.kernel == kernel_key(16, FAST)}
    assert found == {"fp16": "faster", "bf16": "same"}
    assert made.floors_pct["bf16"] > 19
    assert made.floors_pct["fp16"] < 1


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.01, 0.02, "ambiguous"),  # an interval that touches the floor is not beyond it
        (-0.02, -0.01, "ambiguous"),
        (0.01, 0.01, "same"),  # and one that ends at it is within it
        (-0.01, 0.01, "same"),
        (np.nextafter(0.01, 1), 0.02, "faster"),
        (-0.02, np.nextafter(-0.01, -1), "slower"),
        (-0.01, np.nextafter(0.01, 1), "ambiguous"),
        (np.nextafter(-0.01, -1), 0.01, "ambiguous"),
    ],
)
def test_verdicts_at_the_floor(low: float, high: float, expected: str) -> None:
    assert verdict(LogSummary((low + high) / 2, low, high, 24), floor=0.01) == expected


def test_fewer_pairs_than_asked_for_are_ambiguous() -> None:
    made = result()
    asked = made.model_copy(update={"settings": made.settings.model_copy(update={"min_pairs": 13})})
    assert {one.verdict for one in summaries.derive(asked).summaries} == {"ambiguous"}
    assert "ambiguous" not in {one.verdict for one in summaries.derive(made).summaries}


def test_the_clock_of_a_cell_is_that_of_blocks_that_count() -> None:
    """Three of four blocks are dropped, at another clock."""
    timed = group()
    hot = [sample(bits).model_copy(update={"sm_clock_mhz": 900}) for bits in (0, 0x40)]
    dropped = [block.model_copy(update={"samples": tuple(hot)}) for block in timed.blocks[1:]]
    made = result(timed.model_copy(update={"blocks": (timed.blocks[0], *dropped)}))
    assert {one.sm_clock_mhz for one in summaries.derive(made).summaries} == {1700.0}
