"""`bench`: the paired timer, its protocol and what it writes, without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
import itertools
from pathlib import Path
import re
import runpy
import sys
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from flashladder.bench import command as bench
from flashladder.bench import energy, references
from flashladder.bench import timing as bench_run
from flashladder.bench.references import kernel_subject
from flashladder.bench.timing import RUN_UP, Arm, Hardware, bench_group, prepare, time_pairs, warm_up
from flashladder.build.wheel import Installed, chosen_configs
from flashladder.errors import CheckFailed, FlashladderError
from flashladder.ladder.ablation import Subject
from flashladder.ladder.config import KernelConfig
from flashladder.paths import ROOT
from flashladder.problem import Problem
from flashladder.report import data as report_data
from flashladder.report import tables as report_tables
from flashladder.report.reasons import Words
from flashladder.report.variants import BOTH
from flashladder.results import derive as summaries
from flashladder.results.derive import Plan, problems
from flashladder.results.files import load_as, write_result
from flashladder.results.schema import A_A, BenchResult, Block, Pair, Sample, kernel_key
from tests.data_files import table_of
from tests.null.bench_fixture import FAST, GPU, HOST, SHAPE, group, kernel, pairs, result, sample
from tests.null.check.test_check import attention, right, zeros
from tests.null.ladder_fixture import Fixture, make
from tests.typed import error_line


@dataclass
class FakeGpu:
    """A GPU whose timeline is a number; launches add their duration, in ms."""

    now: float = 0.0
    log: list[str] = field(default_factory=list)
    bits: list[int] = field(default_factory=list)
    clock_mhz: Callable[[int], int | None] = lambda _: 1500
    samples: int = 0
    late: list[bool] = field(default_factory=list)
    asked: list[tuple[float, float]] = field(default_factory=list)

    def launch(self, name: str, milliseconds: float) -> Callable[[int], None]:
        def run(inputs: int) -> None:
            self.log.append(f"{name}{inputs}")
            self.now += milliseconds

        return run

    def flush(self) -> None:
        self.log.append("flush")
        self.now += 0.08

    def sample(self) -> Sample:
        self.samples += 1
        bits = self.bits.pop(0) if self.bits else 0
        return Sample(
            t_s=self.now, sm_clock_mhz=self.clock_mhz(self.samples), memory_clock_mhz=1, power_w=1.0, temperature_c=40,
            throttle_bits=bits,
        )  # fmt: skip

    def hardware(self) -> Hardware:
        return Hardware(lambda: FakeEvent(self), self.flush, lambda: None, self.sample, lambda: self.now / 1e3)


@dataclass
class FakeEvent:
    gpu: FakeGpu
    at: float = -1.0

    def record(self) -> None:
        self.at = self.gpu.now

    def synchronize(self) -> None:
        assert self.at >= 0, "waiting for a mark that was never made"

    def query(self) -> bool:
        self.gpu.asked.append((self.at, self.gpu.now))
        return self.gpu.late.pop(0) if self.gpu.late else False

    def elapsed_time(self, end_event: FakeEvent) -> float:
        return end_event.at - self.at


def run(gpu: FakeGpu, plan: Plan) -> tuple[tuple[Block, ...], Mapping[str, tuple[Pair, ...]]]:
    reference = Arm("R", gpu.launch("R", 2.0))
    arms = [Arm("A", gpu.launch("A", 1.0)), Arm("B", gpu.launch("B", 4.0)), Arm("AA", reference.launch)]
    return time_pairs(gpu.hardware(), reference, arms, plan)


def test_pairs_carry_the_times_of_their_own_arms_whatever_the_order() -> None:
    gpu = FakeGpu()
    blocks, pairs = run(gpu, Plan(pairs=8, blocks=4))
    assert gpu.asked
    assert all(now > mark for mark, now in gpu.asked), "asked before the launch was queued: it says nothing about it"
    assert sum(block.kernel_first for block in blocks) == 2
    for key, us in {"A": 1000, "B": 4000, "AA": 2000}.items():
        assert [(round(pair.reference_us), round(pair.kernel_us)) for pair in pairs[key]] == [(2000, us)] * 8
    beginning = gpu.log[: RUN_UP + 3]
    assert beginning == ["flush", "R0", *["flush"] * (RUN_UP + 1)], "the host is ahead from the first pair on"
    launches = [index for index, name in enumerate(gpu.log) if name != "flush"]
    assert all(gpu.log[index - 1] == "flush" for index in launches), "a flush before each launch"
    timed = [gpu.log[index] for turn, index in enumerate(launches) if turn % 13]  # each block begins with one more
    for one, other in zip(timed[::2], timed[1::2], strict=True):
        assert one[-1] == other[-1], "both arms of a pair take the same inputs"
        assert "R" in {one[:-1], other[:-1]}
    assert {pair.input_set for pair in pairs["A"]} == {int(name[-1]) for name in timed} == {0, 1, 2}
    assert len({block.order for block in blocks}) > 1
    again, _ = run(FakeGpu(), Plan(pairs=8, blocks=4))
    assert [block.order for block in again] == [block.order for block in blocks]


LATE = [False] * 8 + [True, False, True]  # launches of the second block


@pytest.mark.parametrize(
    ("gpu", "late", "dropped"),
    [
        (FakeGpu(bits=[0, 0, 0, 0x40]), [0] * 5, "throttle reasons changed: hardware thermal"),
        (FakeGpu(late=LATE), [0, 2, 0, 0, 0], "the GPU waited for the host before 2 launches"),
    ],
)
def test_a_disturbed_block_is_dropped_and_replaced(gpu: FakeGpu, late: list[int], dropped: str) -> None:
    blocks, pairs = run(gpu, Plan(pairs=4, blocks=4, extra_blocks=2, min_pairs=4))  # six launches a block
    assert [block.dropped for block in blocks] == [None, dropped, None, None, None]
    assert [block.late for block in blocks] == late
    assert len(pairs["A"]) == 5, "raw pairs of the dropped block are kept"


def test_blocks_of_a_host_that_is_always_late_count() -> None:
    blocks, _ = run(FakeGpu(late=[True] * 1000), Plan(pairs=4, blocks=4, extra_blocks=2, min_pairs=4))
    assert len(blocks) == 6
    assert all(found.late and found.dropped is None for found in blocks)


@pytest.mark.parametrize(
    ("clock", "most_s", "took"),
    [(lambda n: 1000 + 100 * min(n, 12), 10.0, (1.2, 3.0)), (lambda n: 1000 + 500 * (n % 2), 2.0, (2.0, 2.5))],
    ids=["rises", "never settles"],
)
def test_warm_up_waits_until_the_clock_is_level_or_its_time_is_over(
    clock: Callable[[int], int], most_s: float, took: tuple[float, float]
) -> None:
    gpu = FakeGpu(clock_mhz=clock)
    spent = warm_up(gpu.hardware(), Arm("R", gpu.launch("R", 5.0)), least_s=0.3, most_s=most_s)
    assert took[0] <= spent < took[1]


TINY = Problem(batch=1, seq_len=64, n_heads=2, d_head=128)
CONFIG = KernelConfig.parse(FAST)
PLAN = Plan(pairs=4, blocks=2, min_pairs=4, input_sets=2)
SMALL = prepare("fp16", TINY, PLAN, "cpu")


def test_a_group_times_what_is_right_beside_fa2_on_the_same_inputs() -> None:
    gpu, launched = FakeGpu(), list[tuple[str, int]]()  # with which Q

    def timed(name: str, ms: float, run: Callable[..., Any]) -> Callable[..., Any]:
        def launch(q: torch.Tensor, *more: Any) -> Any:
            launched.append((name, q.data_ptr()))
            gpu.now += ms
            return run(q, *more)

        return launch

    kernels = [kernel_subject(15, CONFIG, zeros), kernel_subject(1, CONFIG, timed("slow", 4.0, right))]
    fa2 = timed("FA2", 2.0, attention)
    made = bench_group(gpu.hardware(), kernels, SMALL, PLAN, process=3, warm_up_s=0.1, reference=fa2)
    assert (made.process, len(made.input_seeds), made.warm_up_s >= 0.1) == (3, 2, True)
    floor, wrong, slow = made.series
    assert [one.kernel for one in made.series] == [A_A, *(one.key for one in kernels)]
    assert floor.pairs
    own = [index for index, (name, _) in enumerate(launched) if name == "slow"][1:-1]  # but the checks
    assert {launched[index][1] for index in own} == {one.q.data_ptr() for one in SMALL.sets}
    assert all(("FA2", launched[index][1]) in launched[index - 1 : index + 2] for index in own)
    assert (wrong.pairs, wrong.before and wrong.before.ok, wrong.after) == ((), False, None)
    assert {(round(one.reference_us), round(one.kernel_us)) for one in slow.pairs} == {(2000, 4000)}
    assert [one.input_set for one in slow.pairs].count(0) == len(slow.pairs) / 2 == 2
    assert slow.after
    assert slow.after.ok


def test_fa2_has_the_mask_of_the_group() -> None:
    gpu, fa2 = FakeGpu(), Mock()
    for mask, own in (("causal", {"causal": True}), ("none", {})):
        shape = Problem.model_validate(TINY.model_dump() | {"mask": mask})
        inputs = prepare("fp16", shape, PLAN, "cpu")
        fa2.reset_mock()
        fa2.side_effect = lambda *_, **__: gpu.launch("FA2", 2.0)(0)
        made = bench_group(gpu.hardware(), [], inputs, PLAN, process=0, warm_up_s=0.1, reference=fa2)
        assert made.series[0].pairs
        assert all(one.kwargs == own for one in fa2.mock_calls)


@pytest.mark.parametrize("compared", [True, False], ids=["the sum stays", "the slices stay"])
def test_a_kernel_that_changes_its_mind_is_an_error(*, compared: bool) -> None:
    gpu, calls = FakeGpu(), itertools.count(1)
    three = prepare("fp16", Problem(batch=1, seq_len=64, n_heads=3, d_head=128), PLAN, "cpu")
    head = next(head for head in range(3) if ((0, head) in three.expected.slices) is compared)

    def moody(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, config: str) -> None:
        right(q, k, v, out, config)
        if next(calls) > 5:
            words = out.view(torch.int32)[0, 0, head]
            words[:2] = words[:2].flip(0) if compared else words[:2] + 1

    subjects, fa2 = [kernel_subject(16, CONFIG, moody)], gpu.launch("FA2", 30.0)
    with pytest.raises(FlashladderError, match="other bits") as caught:
        bench_group(gpu.hardware(), subjects, three, PLAN, process=0, warm_up_s=0.1, reference=lambda *_: fa2(0))
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernels": {kernel_key(16, FAST): kernel(16, FAST, text="cd" * 32)}}, "machine code of 16"),
        ({"gpu": GPU.model_copy(update={"uuid": "GPU-1"})}, "GPU: expected GPU-1"),
        ({"settings": result().settings.model_copy(update={"pairs": 99})}, "settings, pairs: expected 99"),
        ({"purpose": "tune"}, "purpose: expected tune"),
    ],
)
def test_resuming_refuses_other_machine_code_gpu_or_settings(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = write_result(tmp_path / "bench.json.gz", result())
    with pytest.raises(FlashladderError, match=f"another {message}.*choose another --out"):
        bench.earlier(path, result().model_copy(update=change))


def test_what_is_timed_where_nothing_is_said() -> None:
    options, tune = (bench.parse_arguments(words) for words in (["7"], ["16", "--tune"]))
    assert [one.seq_len for one in options.problems] == [512, 1024, 2048, 4096, 8192, 16384]
    assert (options.dtypes, [one.seq_len for one in tune.problems]) == (["fp16", "bf16"], [4096])
    assert options.plan.pairs >= 20 > tune.plan.pairs
    assert bench.default_key("NVIDIA H200") == "h200"
    assert bench.default_key("NVIDIA H100 80GB HBM3") == bench.default_key("NVIDIA GeForce GTX 1080") == "prog"


def test_the_command_line_says_what_is_computed() -> None:
    words = ["31", "32", "--causal", "--heads", "32", "--kv-heads", "8", "--seq-lens", "1000,4096", "8192"]
    assert [str(one) for one in bench.parse_arguments(words).problems] == [
        f"B={batch} S={length} H=32 HK=8 causal" for batch, length in ((16, 1000), (16, 4096), (8, 8192))
    ]
    (cross,) = bench.parse_arguments(["29", "--kv-len", "77", "--batch", "2", "--seq-lens", "512"]).problems
    assert (cross.q_shape, cross.kv_shape) == ((2, 512, 16, 128), (2, 77, 16, 128))
    everything = bench.parse_arguments(["--all", "--causal"])
    found = {number: bench.computing(number, everything, everything.problems) for number in (16, 27, 31)}
    assert {number: {config.mask for config in configs} for number, configs in found.items()} == {
        16: set(), 27: set(), 31: {"causal"}
    }  # fmt: skip
    plain = bench.parse_arguments(["31"])
    assert {config.mask for config in bench.computing(31, plain, plain.problems)} == {"none"}


@pytest.mark.parametrize(("words", "message"), table_of("null/bench/bench", "uncomputed"))
def test_a_problem_that_nothing_computes_is_one_line_before_anything_starts(words: list[str], message: str) -> None:
    for main in (bench.main, energy.main):
        assert re.search(message, error_line(main, words))


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """The whole command on a simulated GPU: FA2 takes 2 ms, iteration 16 a right 1.6 ms, iteration 15 is wrong."""
    gpu = FakeGpu()

    def fast(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, config: str) -> None:
        gpu.now += 1.6
        right(q, k, v, out, config)

    fa2 = gpu.launch("FA2", 2.0)

    def load(number: int) -> Installed:
        forms = [config.short_form() for config in chosen_configs(number, ["a100"], ["fp16", "bf16"])]
        kernels = {form: {"sm_90": {"text_sha256": "ab" * 32}} for form in forms}
        return Installed(Subject(number), zeros if number == 15 else fast, {"kernels": kernels})

    monkeypatch.setattr(bench, "load_installed", load)
    telemetry = SimpleNamespace(sample=gpu.sample, foreign_processes=lambda own_context: 0)
    device = SimpleNamespace(gpu=GPU, host=HOST, rung="GPU", telemetry=telemetry, foreign_before=0)
    monkeypatch.setattr(bench, "open_device", lambda: device)
    monkeypatch.setattr(bench, "reference_identity", lambda kernels: result().reference)
    monkeypatch.setattr(bench, "cuda_hardware", lambda *_: (gpu.hardware(), 2**28))
    monkeypatch.setattr(references, "reference_kernel", lambda dtype, name, *_: f"flash_fwd_{dtype}_of_{name}")
    monkeypatch.setattr(bench, "shape_of", lambda length: Problem(**{**TINY.model_dump(), "seq_len": length // 8}))
    # kernels need longer rows or more heads than a CPU should compute
    monkeypatch.setattr(bench, "computing", lambda n, options, _: chosen_configs(n, options.configs, options.dtypes))
    monkeypatch.setattr(bench, "bench_group", partial(bench_group, reference=lambda *_: fa2(0)))
    monkeypatch.setattr(bench, "prepare", partial(prepare, device="cpu"))
    return gpu


def test_the_whole_command_and_its_resumption(
    simulated: FakeGpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench.json.gz"
    first = ["16", "--configs", "a100", "--seq-lens", "512", "1024", "--out", str(out)]
    bench.main(first)
    made = load_as(out, BenchResult)
    cells = [(dtype, length) for dtype in ("fp16", "bf16") for length in (64, 128)]
    assert [(group.dtype, group.shape.seq_len) for group in made.groups] == cells
    assert {round(summary.pct) for summary in made.summaries} == {125}
    assert {mean.seq_lens for mean in made.means} == {(64, 128)}
    assert made.reference.kernels == {"fp16": "flash_fwd_fp16_of_fa2", "bf16": "flash_fwd_bf16_of_fa2"}
    assert made.processes[0].foreign_after == 0
    assert problems(made) == []
    assert "125.0+" in capsys.readouterr().out
    launches = len(simulated.log)
    bench.main(first)
    assert len(simulated.log) == launches  # nothing was left to time
    bench.main([*first, "--dtype", "fp16", "--seq-lens", "512", "1024", "2048"])
    again = load_as(out, BenchResult)
    assert [group.process for group in again.groups] == [0, 0, 0, 0, 2]


@pytest.mark.usefixtures("simulated")
def test_a_file_holds_one_kind_of_problems(tmp_path: Path) -> None:
    line = ["16", "--configs", "a100", "--dtype", "fp16", "--seq-lens", "512", "--out", str(tmp_path / "bench.json.gz")]
    bench.main(line)
    with pytest.raises(FlashladderError, match="the file holds another problem: expected B=3 S=64 H=2, found B=1 S=64"):
        bench.main([*line, "--batch", "3"])
    for other in (["--causal"], ["--heads", "4"], ["--kv-heads", "1"]):
        with pytest.raises(FlashladderError, match="the file holds another problem: expected B=1 S=128 H="):
            bench.main([*line, *other, "--seq-lens", "1024"])


def test_a_wrong_kernel_is_not_timed_and_fails_the_command(simulated: FakeGpu, tmp_path: Path) -> None:
    argv = ["15", "16", "--configs", "a100", "--dtype", "fp16", "--seq-lens", "512", "--out", str(tmp_path / "b.json")]
    with pytest.raises(CheckFailed, match="not correct before timing") as caught:
        bench.main(argv)
    assert caught.value.exit_code == 1
    made = load_as(tmp_path / "b.json", BenchResult)
    assert {summary.kernel[:2] for summary in made.summaries} == {"16"}


def test_tuning_ranks_what_was_built_and_a_spent_budget_keeps_what_there_is(
    simulated: FakeGpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["16", "--tune", "--dtype", "fp16", "--out", str(tmp_path / "tune.json")]
    bench.main(line)
    made = load_as(tmp_path / "tune.json", BenchResult)
    assert (made.purpose, len(made.kernels)) == ("tune", 1)
    assert "best 1 of 1" in capsys.readouterr().out
    with pytest.raises(FlashladderError, match="not finished"):
        bench.main(["16", "--configs", "a100", "--budget", "0.0001", "--out", str(tmp_path / "bench.json")])


def test_the_flush_writes_at_least_twice_the_l2(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []

    def empty(size: int, *, dtype: torch.dtype, device: str) -> SimpleNamespace:
        return SimpleNamespace(zero_=lambda: written.append(size * dtype.itemsize))

    monkeypatch.setattr(torch, "empty", empty)
    for l2_bytes in (6 * 2**20, 1 << 30):
        hardware, size = bench_run.cuda_hardware(FakeGpu().sample, l2_bytes)
        hardware.flush()
        assert written.pop() == size >= 2 * l2_bytes


@pytest.fixture
def measured(tmp_path: Path) -> tuple[Fixture, BenchResult]:
    fixture = make(tmp_path / "results", lambda number: 90.0 + number, lengths=[4096])
    return fixture, load_as(fixture.bench, BenchResult)


def test_only_the_grids_batch_and_heads_stand_in_a_table(measured: tuple[Fixture, BenchResult]) -> None:
    """A length that was timed at another batch is no cell of the table, alone or beside the grid's."""
    fixture, made = measured
    other = made.groups[0].model_copy(update={"shape": SHAPE.varied(batch=1)})
    for groups, expected in (((other,), None), ((other, made.groups[0]), 16)):
        write_result(fixture.bench, summaries.derive(made.model_copy(update={"groups": groups})))
        ladder = report_data.collect(fixture.folder)
        summary = ladder.rows(ladder.machines[0], "fp16")[0].headline
        assert (summary.shape.batch if summary else None) == expected
        assert all(cell["batch"] == 16 for cell in report_tables.cells(ladder))


@pytest.mark.parametrize("names", [("bench.json.gz", "bench_more.json.gz"), ("bench_more.json.gz", "bench.json.gz")])
def test_a_floor_is_of_the_run_that_timed_the_kernel(
    measured: tuple[Fixture, BenchResult], names: tuple[str, str]
) -> None:
    """Of two files the first has step 1 and the second the rest; a page's noise is the larger floor of its two runs."""
    fixture, made = measured
    for name, floor, first in zip(names, (0.25, 0.75), (True, False), strict=True):
        kernels = {key: one for key, one in made.kernels.items() if (one.iteration == 1) is first}
        own = {
            part: tuple(one for one in getattr(made, part) if one.kernel in kernels) for part in ("summaries", "means")
        }
        alone = {"kernels": kernels, "floors_pct": {"fp16": floor}, **own}
        write_result(fixture.bench.parent / name, made.model_copy(update=alone))
    ladder = report_data.collect(fixture.folder)
    (machine,) = ladder.machines
    assert (machine.floors("fp16"), machine.floors("bf16")) == ((0.25, 0.75), ())
    assert [row.measured.floor for row in ladder.rows(machine, "fp16")[:3] if row.measured] == [0.25, 0.75, 0.75]
    assert [row["a_a_floor_points"] for row in report_tables.progression(ladder)[:2]] == ["0.250", "0.750"]
    assert "itself) is ±0.25 to ±0.75 points; intervals" in report_tables.readme_block(ladder)
    assert [Words(ladder, number).noise_points for number in (1, 2, 3)] == [0.25 * BOTH, 0.75 * BOTH, 0.75 * BOTH]
    for name, floor in zip(names, (0.75, 0.25), strict=True):
        path = fixture.bench.parent / name
        write_result(path, load_as(path, BenchResult).model_copy(update={"floors_pct": {"fp16": floor}}))
    assert Words(report_data.collect(fixture.folder), 2).noise_points == 0.75 * BOTH, "its parent's is larger"
    with pytest.raises(FlashladderError, match="iteration 28 was not measured"):
        Words(ladder, 28).called["noise"]()


def test_the_floor_of_another_card_stands_beside_the_table(measured: tuple[Fixture, BenchResult]) -> None:
    fixture, made = measured
    gpu = made.gpu.model_copy(update={"uuid": "GPU-other"})
    path = fixture.bench.parent / "second_card.json.gz"
    write_result(path, made.model_copy(update={"gpu": gpu, "floors_pct": {"fp16": 0.88}}))
    ladder = report_data.collect(fixture.folder)
    (machine,) = ladder.machines
    assert machine.other_floors == {"fp16": (0.88,)}
    floor = f"itself) is ±{machine.floors('fp16')[0]:.2f} points (on a second card ±0.88)"
    assert floor in report_tables.readme_block(ladder)
    write_result(path, made)
    with pytest.raises(FlashladderError, match=r"second_card.json.gz: not another card .* the same card"):
        report_data.collect(fixture.folder)


@pytest.mark.parametrize("change", [{"purpose": "tune"}, {"mode": "event-locked"}])
def test_samples_that_chose_a_configuration_are_not_reported(
    measured: tuple[Fixture, BenchResult], change: dict[str, str]
) -> None:
    fixture, made = measured
    write_result(fixture.bench, made.model_copy(update=change))
    assert report_data.collect(fixture.folder).machines == ()


def test_a_reference_that_is_impossibly_fast_is_an_error_too() -> None:
    made = result(group(shape=Problem(batch=16, seq_len=512, n_heads=16, d_head=128)))
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


def test_the_clock_of_a_cell_is_that_of_blocks_that_count() -> None:
    """Three of four blocks are dropped, at another clock."""
    timed = group()
    hot = [sample(bits).model_copy(update={"sm_clock_mhz": 900}) for bits in (0, 0x40)]
    dropped = [block.model_copy(update={"samples": tuple(hot)}) for block in timed.blocks[1:]]
    made = result(timed.model_copy(update={"blocks": (timed.blocks[0], *dropped)}))
    assert {one.sm_clock_mhz for one in summaries.derive(made).summaries} == {1700.0}


SCRIPT = ROOT / "examples" / "one_cell.py"
MS = {"flashladder_27": 2.0, "cudnn": 3.0, "fa3": 2.4, "fa4": 2.5}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """An H200 on which cuDNN, FA3, FA4 and iteration 27 take the times of `MS`."""
    made = FakeGpu()

    def call(name: str) -> Callable[..., torch.Tensor]:
        def launch(q: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
            made.now += MS[name]
            made.log.append(name)
            return torch.zeros_like(q)

        return launch

    events = [SimpleNamespace(name=name, device_type=where) for name, where in SEEN]
    stand_ins = {
        "torch.randn": partial(lambda make, *size, device, **more: make(*size, **more), torch.randn),
        "torch.empty": lambda *_, **__: SimpleNamespace(zero_=lambda: None),
        "torch.cuda.is_available": lambda: True,
        "torch.cuda.get_device_capability": lambda: (9, 0),
        "torch.cuda.get_device_name": lambda: "NVIDIA H200",
        "torch.cuda.Event": lambda enable_timing: FakeEvent(made),
        "torch.cuda.synchronize": lambda: None,
        "torch.backends.cudnn.version": lambda: 91900,
        "torch.nn.functional.scaled_dot_product_attention": call("cudnn"),
        "torch.profiler.profile": lambda acc_events: nullcontext(SimpleNamespace(events=lambda: events)),
        "importlib.metadata.version": VERSIONS.__getitem__,
        "os._exit": sys.exit,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(name, stand_in)
    monkeypatch.setattr(torch.ops, "flashladder_27", SimpleNamespace(forward=call("flashladder_27")), raising=False)
    for module in ("flashladder_27", "flash_attn"):
        monkeypatch.setitem(sys.modules, module, ModuleType(module))
    for name, module in MODULES.items():
        monkeypatch.setitem(sys.modules, module, Mock(flash_attn_func=call(name)))
    return made


MODULES = {"fa3": "flash_attn_interface", "fa4": "flash_attn.cute"}
VERSIONS = {"flashladder_27": "0.1.0", "flash-attn-3": "3.0.0", "flash-attn-4": "4.0"}
SEEN = [("flash_fwd_kernel", "DeviceType.CUDA"), ("cudnn_sdpa", "DeviceType.CUDA"), ("aten::empty", "DeviceType.CPU")]


def ran(monkeypatch: pytest.MonkeyPatch, *words: str) -> object:
    """Runs the script with these words; returns its exit code."""
    monkeypatch.setattr(sys, "argv", [SCRIPT.name, *words])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    return caught.value.code


def test_one_cell_prints_who_is_faster(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran(monkeypatch, "--seq-len", "64", "--dtype", "bfloat16") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"NVIDIA H200, torch {torch.__version__}; bfloat16, B=16, S=64, H=16"
    flops = 4 * 16 * 16 * 64**2 * 128
    assert [line.split() for line in lines[1:5]] == [
        [name, version, f"{1e3 * MS[name]:.1f}", "us", f"{flops / MS[name] / 1e9:.1f}", "TFLOP/s"]
        for name, version in (("flashladder_27", "0.1.0"), ("cudnn", "91900"), ("fa3", "3.0.0"), ("fa4", "4.0"))
    ]
    assert lines[5:8] == ["kernels:", "  flash_fwd_kernel", "  cudnn_sdpa"]
    assert lines[8] == "flashladder_27 is 1.200 times as fast as fa3; largest difference to cuDNN 0.0e+00"
    turns = gpu.log[2:-4]
    assert {name: turns.count(name) for name in MS} == dict.fromkeys(MS, 50)
    pairs = set(itertools.pairwise(turns))
    assert {("flashladder_27", "fa4"), ("fa4", "flashladder_27")} <= pairs, "forth and back"


def test_what_is_missing_or_odd_is_one_line(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in ("abc", "0", "1.5"):
        assert ran(monkeypatch, f"--seq-len={text}") == 2
        assert f"expected a whole number from 1 on, found '{text}'" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, MODULES["fa3"], None)  # as where it is not installed
    assert ran(monkeypatch, "--seq-len", "32") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("without FA3 (")
    assert "pip install" in lines[0]
    assert "1.250 times as fast as fa4" in lines[-1]
    assert set(gpu.log) == MS.keys() - {"fa3"}
    monkeypatch.setitem(sys.modules, "flashladder_26", None)
    assert ran(monkeypatch, "--iteration", "26") == 2
    told = capsys.readouterr().err
    assert told.startswith("error: cannot load flashladder_26 (")
    assert "; `invoke build 26` makes its wheel" in told
    refused = "error: expected an H100 or H200 that torch can use, found none; run this on one\n"
    for name, answer in (("get_device_capability", (8, 0)), ("is_available", False)):
        monkeypatch.setattr(torch.cuda, name, lambda answer=answer: answer)
        assert (ran(monkeypatch), capsys.readouterr().err) == (2, refused)
