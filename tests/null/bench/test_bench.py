"""`bench`: the paired timer, its protocol and what it writes, without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
import functools
from importlib import metadata
import itertools
from pathlib import Path
import runpy
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from flashladder.bench import command as bench
from flashladder.bench import references
from flashladder.bench import timing as bench_run
from flashladder.bench.references import kernel_subject
from flashladder.bench.timing import RUN_UP, Arm, Hardware, bench_group, prepare, time_pairs, warm_up
from flashladder.build.wheel import Installed, chosen_configs
from flashladder.errors import CheckFailed, FlashladderError
from flashladder.ladder.config import KernelConfig
from flashladder.paths import ROOT
from flashladder.problem import Shape
from flashladder.report import data as report_data
from flashladder.report import tables as report_tables
from flashladder.report.reasons import Words
from flashladder.report.variants import BOTH
from flashladder.results import derive as summaries
from flashladder.results.derive import Plan, problems
from flashladder.results.files import load_as, write_result
from flashladder.results.schema import A_A, BenchResult, Block, Pair, Sample, kernel_key
from tests.null.bench_fixture import FAST, GPU, group, kernel, pairs, result, sample
from tests.null.check.test_check import attention, right, zeros
from tests.null.ladder_fixture import make

THERMAL = 0x40


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

    @property
    def waits(self) -> bool:
        return self.late.pop(0) if self.late else False

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


class FakeEvent:
    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu
        self.at = -1.0

    def record(self) -> None:
        self.at = self.gpu.now

    def synchronize(self) -> None:
        assert self.at >= 0, "waiting for a mark that was never made"

    def query(self) -> bool:
        self.gpu.asked.append((self.at, self.gpu.now))
        return self.gpu.waits

    def elapsed_time(self, end_event: FakeEvent) -> float:
        return end_event.at - self.at


def run(gpu: FakeGpu, plan: Plan) -> tuple[tuple[Block, ...], dict[str, tuple[Pair, ...]]]:
    reference = Arm("R", gpu.launch("R", 2.0))
    arms = [Arm("A", gpu.launch("A", 1.0)), Arm("B", gpu.launch("B", 4.0)), Arm("AA", reference.launch)]
    blocks, pairs = time_pairs(gpu.hardware(), reference, arms, plan)
    return blocks, dict(pairs)


def test_pairs_carry_the_times_of_their_own_arms_whatever_the_order() -> None:
    gpu = FakeGpu()
    blocks, pairs = run(gpu, Plan(pairs=8, blocks=4))
    assert gpu.asked
    assert all(now > mark for mark, now in gpu.asked), "asked before the launch was queued: it says nothing about it"
    assert sum(block.kernel_first for block in blocks) == 2
    assert {(round(p[2]), round(p[3])) for p in pairs["A"]} == {(2000, 1000)}
    assert {(round(p[2]), round(p[3])) for p in pairs["B"]} == {(2000, 4000)}
    assert {(round(p[2]), round(p[3])) for p in pairs["AA"]} == {(2000, 2000)}
    assert [len(found) for found in pairs.values()] == [8, 8, 8]
    assert gpu.log[: RUN_UP + 3] == ["flush", "R0", *["flush"] * (RUN_UP + 1)], (
        "the host is ahead from the first pair on"
    )
    assert len({block.order for block in blocks}) > 1
    again, _ = run(FakeGpu(), Plan(pairs=8, blocks=4))
    assert [block.order for block in again] == [block.order for block in blocks]


def test_arms_of_a_pair_are_adjacent_on_the_same_inputs_and_each_is_flushed_before() -> None:
    gpu = FakeGpu()
    run(gpu, Plan(pairs=6, blocks=2, input_sets=3))
    launches = [(index, name) for index, name in enumerate(gpu.log) if name != "flush"]
    assert all(gpu.log[index - 1] == "flush" for index, _ in launches)
    timed = [name for _, name in launches]
    for letter in "AB":
        own = [index for index, name in enumerate(timed) if name[0] == letter]
        assert len(own) == 6
        for index in own:
            neighbours = {timed[index - 1], timed[index + 1] if index + 1 < len(timed) else ""}
            assert "R" + timed[index][1] in neighbours
        assert {timed[index][1] for index in own} == {"0", "1", "2"}


def test_a_block_whose_throttle_bits_change_is_dropped_and_made_up_for() -> None:
    gpu = FakeGpu(bits=[0, 0, 0, THERMAL])
    blocks, pairs = run(gpu, Plan(pairs=4, blocks=4, extra_blocks=2, min_pairs=4))
    assert [block.dropped is None for block in blocks] == [True, False, True, True, True]
    assert blocks[1].dropped == "throttle reasons changed: hardware thermal"
    assert len(pairs["A"]) == 5  # raw pairs of the dropped block are kept


def test_a_block_in_which_the_gpu_waited_for_the_host_is_dropped_and_made_up_for() -> None:
    gpu = FakeGpu(late=[False] * 8 + [True, False, True])
    blocks, pairs = run(gpu, Plan(pairs=4, blocks=4, extra_blocks=2, min_pairs=4))
    assert [found.late for found in blocks] == [0, 2, 0, 0, 0]  # six launches a block
    assert [found.dropped for found in blocks][:3] == [None, "the GPU waited for the host before 2 launches", None]
    assert len(pairs["A"]) == 5


def test_a_host_that_is_always_late_leaves_its_blocks_where_they_would_all_go() -> None:
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


TINY = Shape(batch=1, seq_len=64, n_heads=2, d_head=128)
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


def test_a_kernel_that_changes_its_mind_is_an_error() -> None:
    calls = 0

    def moody(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, config: str) -> None:
        nonlocal calls
        calls += 1
        right(q, k, v, out, config)
        if calls > 5:
            out.view(torch.int16)[0, 0, 0, 0] ^= 1

    gpu = FakeGpu()

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        gpu.now += 30.0

    with pytest.raises(FlashladderError, match="other bits") as caught:
        bench_group(
            gpu.hardware(), [kernel_subject(16, CONFIG, moody)], SMALL, PLAN,
            process=0, warm_up_s=0.1, reference=reference,
        )  # fmt: skip
    assert caught.value.exit_code == 1


def test_resuming_refuses_other_machine_code_gpu_or_settings(tmp_path: Path) -> None:
    path = write_result(tmp_path / "bench.json.gz", result())
    fresh = result()
    other_code = {kernel_key(16, FAST): kernel(16, FAST, text="cd" * 32)}
    changes: dict[str, dict[str, object]] = {
        "machine code of 16": {"kernels": other_code},
        "GPU: expected GPU-1": {"gpu": fresh.gpu.model_copy(update={"uuid": "GPU-1"})},
        "settings, pairs: expected 99": {"settings": fresh.settings.model_copy(update={"pairs": 99})},
        "purpose: expected tune": {"purpose": "tune"},
    }
    for told, change in changes.items():
        with pytest.raises(FlashladderError, match=f"another {told}.*choose another --out"):
            bench.earlier(path, fresh.model_copy(update=change))


def test_what_is_timed_where_nothing_is_said() -> None:
    options, tune = (bench.parse_arguments(words) for words in (["7"], ["16", "--tune"]))
    assert options.seq_lens == [512, 1024, 2048, 4096, 8192, 16384]
    assert (options.dtypes, tune.seq_lens) == (["fp16", "bf16"], [4096])
    assert options.plan.pairs >= 20 > tune.plan.pairs
    assert bench.default_key("NVIDIA H200") == "h200"
    assert bench.default_key("NVIDIA H100 80GB HBM3") == bench.default_key("NVIDIA GeForce GTX 1080") == "prog"


class FakeDevice:
    """What the bench asks of an open GPU."""

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = GPU
        self.host = result().host
        self.rung = "GPU"
        self.telemetry = self
        self.foreign_before = 0
        self.sample = gpu.sample

    def foreign_processes(self, *, own_context: bool) -> int:
        return 0


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """The whole command on a simulated GPU: FA2 takes 2 ms, iteration 16 a right 1.6 ms, iteration 15 is wrong."""
    gpu = FakeGpu()

    def fast(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, config: str) -> None:
        gpu.now += 1.6
        right(q, k, v, out, config)

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        gpu.now += 2.0

    def load(number: int) -> Installed:
        forms = [config.short_form() for config in chosen_configs(number, ["a100"], ["fp16", "bf16"])]
        kernels = {form: {"sm_90": {"text_sha256": "ab" * 32}} for form in forms}
        return Installed(number, zeros if number == 15 else fast, {"kernels": kernels})

    monkeypatch.setattr(bench, "load_installed", load)
    monkeypatch.setattr(bench, "open_device", lambda: FakeDevice(gpu))
    monkeypatch.setattr(bench, "reference_identity", lambda kernels: result().reference)
    monkeypatch.setattr(bench, "cuda_hardware", lambda *_: (gpu.hardware(), 2**28))
    monkeypatch.setattr(references, "reference_kernel", lambda dtype, name: f"flash_fwd_{dtype}_of_{name}")
    monkeypatch.setattr(bench, "shape_of", lambda length: TINY.model_copy(update={"seq_len": length // 8}))
    monkeypatch.setattr(bench, "bench_group", functools.partial(bench_group, reference=reference))
    monkeypatch.setattr(bench, "prepare", functools.partial(prepare, device="cpu"))
    return gpu


def test_the_whole_command_and_its_resumption(
    simulated: FakeGpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench.json.gz"
    first = ["16", "--configs", "a100", "--seq-lens", "512", "1024", "--out", str(out)]
    assert bench.main(first) == 0
    made = load_as(out, BenchResult)
    assert [(group.dtype, group.shape.seq_len) for group in made.groups] == [
        ("fp16", 64), ("fp16", 128), ("bf16", 64), ("bf16", 128),
    ]  # fmt: skip
    assert {round(summary.pct) for summary in made.summaries} == {125}
    assert {mean.seq_lens for mean in made.means} == {(64, 128)}
    assert made.reference.kernels == {"fp16": "flash_fwd_fp16_of_fa2", "bf16": "flash_fwd_bf16_of_fa2"}
    assert made.processes[0].foreign_after == 0
    assert problems(made) == []
    assert "125.0+" in capsys.readouterr().out
    launches = len(simulated.log)
    assert bench.main(first) == 0
    assert len(simulated.log) == launches  # nothing was left to time
    assert bench.main([*first, "--dtype", "fp16", "--seq-lens", "512", "1024", "2048"]) == 0
    again = load_as(out, BenchResult)
    assert [group.process for group in again.groups] == [0, 0, 0, 0, 2]


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
    assert bench.main(line) == 0
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
        assert all(cell["batch"] == 16 for cell in report_tables.cells(ladder))


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
    told = [row["a_a_floor_points"] for row in report_tables.progression(ladder)[:2]]
    assert told == ["0.250", "0.750"]
    assert "(A/A floor) ±0.25 to ±0.75 points; intervals" in report_tables.readme_block(ladder)
    assert [Words(ladder, number).noise_points for number in (1, 2, 3)] == [0.25 * BOTH, 0.75 * BOTH, 0.75 * BOTH]
    with pytest.raises(FlashladderError, match="iteration 28 was not measured"):
        Words(ladder, 28).called["noise"]()


def test_the_floor_of_another_card_stands_beside_the_table(tmp_path: Path) -> None:
    fixture = make(tmp_path / "results", lambda number: 90.0 + number, lengths=[4096])
    made = load_as(fixture.bench, BenchResult)
    gpu = made.gpu.model_copy(update={"uuid": "GPU-other"})
    path = fixture.bench.parent / "second_card.json.gz"
    write_result(path, made.model_copy(update={"gpu": gpu, "floors_pct": {"fp16": 0.88}}))
    ladder = report_data.collect(fixture.folder)
    (machine,) = ladder.machines
    assert machine.other_floors == {"fp16": (0.88,)}
    floor = f"(A/A floor) ±{machine.floors('fp16')[0]:.2f} points (on a second card ±0.88)"
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


def test_the_clock_of_a_cell_is_that_of_blocks_that_count() -> None:
    """Three of four blocks are dropped, at another clock."""
    timed = group()
    hot = [sample(bits).model_copy(update={"sm_clock_mhz": 900}) for bits in (0, 0x40)]
    dropped = [block.model_copy(update={"samples": tuple(hot)}) for block in timed.blocks[1:]]
    made = result(timed.model_copy(update={"blocks": (timed.blocks[0], *dropped)}))
    assert {one.sm_clock_mhz for one in summaries.derive(made).summaries} == {1700.0}


SCRIPT = ROOT / "examples" / "one_cell.py"
MS = {"flashladder_27": 2.0, "cudnn": 3.0, "fa3": 2.4, "fa4": 2.5}


class Gpu(FakeGpu):
    """Launches take the times of `MS`."""

    def call(self, name: str) -> Callable[..., torch.Tensor]:
        def launch(q: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
            self.now += MS[name]
            self.log.append(name)
            return torch.zeros_like(q)

        return launch


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """An H200 on which all three run."""
    made, on_cpu = Gpu(), {name: getattr(torch, name) for name in ("randn", "empty")}
    for name, function in on_cpu.items():
        monkeypatch.setattr(torch, name, lambda *a, function=function, **b: function(*a, **{**b, "device": "cpu"}))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: FakeEvent(made))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91900)
    monkeypatch.setitem(sys.modules, "flashladder_27", ModuleType("flashladder_27"))
    operator = SimpleNamespace(forward=made.call("flashladder_27"))
    monkeypatch.setattr(torch.ops, "flashladder_27", operator, raising=False)
    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    for name, module in MODULES.items():
        library: Any = ModuleType(module)
        library.flash_attn_func = made.call(name)
        monkeypatch.setitem(sys.modules, module, library)
    monkeypatch.setattr(functional, "scaled_dot_product_attention", made.call("cudnn"))
    monkeypatch.setattr(metadata, "version", VERSIONS.__getitem__)

    @contextmanager
    def profile(*, acc_events: bool) -> Iterator[SimpleNamespace]:
        assert acc_events
        names = (("flash_fwd_kernel", "CUDA"), ("cudnn_sdpa", "CUDA"), ("aten::empty", "CPU"))
        events = [SimpleNamespace(name=name, device_type=f"DeviceType.{where}") for name, where in names]
        yield SimpleNamespace(events=lambda: events)

    monkeypatch.setattr(torch.profiler, "profile", profile)

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr("os._exit", leave)
    return made


MODULES = {"fa3": "flash_attn_interface", "fa4": "flash_attn.cute"}
VERSIONS = {"flashladder_27": "0.1.0", "flash-attn-3": "3.0.0", "flash-attn-4": "4.0"}


def ran(monkeypatch: pytest.MonkeyPatch, *words: str) -> object:
    """The script with these words; what it leaves with."""
    monkeypatch.setattr(sys, "argv", [SCRIPT.name, *words])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    return caught.value.code


def test_it_tells_who_is_faster(gpu: Gpu, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
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
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
