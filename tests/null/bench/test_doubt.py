"""Torch's timer and events without a flush on a made-up GPU; kernels beside the best of several libraries."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils import benchmark

from flashladder.bench.doubt import better, timers
from flashladder.bench.doubt.better import PAIRED, advantages, render
from flashladder.bench.doubt.timers import HOST, RUN_UP_S, WARM_SAMPLES, held_up, torch_rounds, turn_rounds, warm_rounds
from flashladder.bench.opinion_program import WARM_UPS, Rounds
from flashladder.bench.references import BACKENDS
from flashladder.bench.second_opinion import problems, table
from flashladder.bench.subject import Subject
from flashladder.cases.inputs import Case, Tensors, make_tensors
from flashladder.errors import FlashladderError
from flashladder.gate import verify
from flashladder.problem import Shape
from flashladder.results.derive import derive
from flashladder.results.files import write_result
from flashladder.results.schema import A_A, BenchResult, Group, Opinion, Series, Timings
from tests.null.bench.test_timing_null import FakeEvent, FakeGpu
from tests.null.bench_fixture import GOOD, SHAPE, group, pairs, result
from tests.null.opinion_fixture import KERNELS, judged, opinion

TINY = Shape(batch=1, seq_len=64, n_heads=2, d_head=128)
ROUNDS = Rounds(("fa2", "cudnn"), "fp16", TINY, 3)


@pytest.fixture(scope="module")
def tensors() -> Tensors:
    return make_tensors(Case("tiny", TINY), "fp16", "cpu")


@dataclass
class Card:
    """A GPU that the host queues for: a launch takes `ms[key]`, queuing it `host_s[key]`."""

    ms: dict[str, float]
    host_s: dict[str, float]
    now: float = 0.0
    queued: int = 0
    log: list[str] = field(default_factory=list)

    def subject(self, key: str) -> Subject:
        def launch(_: Tensors) -> None:
            self.log.append(key)
            self.now += self.host_s[key]

        return Subject(key, "fp16", launch)

    def timer(self, launch: object) -> SimpleNamespace:
        """Torch's: runs it so often, and tells the mean."""

        def timeit(number: int) -> SimpleNamespace:
            before = len(self.log)
            for _ in range(number):
                launch()  # type: ignore[operator]  # what torch_rounds hands in
            key = self.log[before]
            assert self.log[before:] == [key] * number
            return SimpleNamespace(median=max(self.ms[key] / 1e3, self.host_s[key]))

        return SimpleNamespace(timeit=timeit)


def test_torchs_timer_has_each_subject_in_turn_and_tells_what_the_host_took(tensors: Tensors) -> None:
    card = Card({"fa2": 2.0, "cudnn": 0.1}, {"fa2": 20e-6, "cudnn": 97e-6})
    subjects = [card.subject(key) for key in ROUNDS.subjects]
    found = torch_rounds(card.timer, lambda: None, ROUNDS, subjects, tensors, lambda: card.now)
    assert [(one.subject, one.rounds) for one in found] == [("fa2", (0, 1, 2)), ("cudnn", (0, 1, 2))]
    assert found[0].us == pytest.approx((2000.0,) * 3)
    assert found[1].counters[HOST] == (97000,) * 3
    assert [held_up(one) for one in found] == [False, True]
    turns = [key for before, key in zip(["", *card.log], card.log, strict=False) if key != before]
    assert turns == ["fa2", "cudnn"] * 4, "how many fit a run, then three rounds"


def test_it_is_torchs_own_timer_that_is_asked(tensors: Tensors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "RUN_S", 0.001)
    monkeypatch.setattr(timers, "load", lambda key, dtype: Subject(key, dtype, lambda one: one.q + one.k))
    monkeypatch.setattr(timers, "first_tensors", lambda _: tensors)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    asked: list[int] = []
    real = benchmark.Timer.timeit

    def timeit(self: benchmark.Timer, number: int = 1) -> object:
        asked.append(number)
        return real(self, number)

    monkeypatch.setattr(benchmark.Timer, "timeit", timeit)
    (found,) = timers.ask_torch([ROUNDS], 1.0)
    assert (found.method, found.mode) == ("torch", "wall-free")
    assert found.version == f"torch.utils.benchmark of torch {torch.__version__}"
    assert all(0 < us < 1e5 for one in found.timings for us in one.us)
    assert len(asked) == 2 + 2 * ROUNDS.rounds


@dataclass
class Sleeper(FakeGpu):
    """A GPU that can sleep; a launch takes its subject's milliseconds."""

    def sleep(self, longer: int = 1) -> None:
        self.log.append("sleep" * longer)
        self.now += 0.5 * longer

    def subject(self, key: str, ms: float) -> Subject:
        launch = self.launch(key, ms)
        return Subject(key, "fp16", lambda _: launch(0))

    def event(self) -> FakeEvent:
        return FakeEvent(self)


def test_without_a_flush_the_gpu_sleeps_and_each_subject_has_its_turn(tensors: Tensors) -> None:
    gpu = Sleeper()
    subjects = [gpu.subject("fa2", 2.0), gpu.subject("cudnn", 1.0)]
    found = warm_rounds(gpu.event, gpu.sleep, lambda: None, ROUNDS, subjects, tensors)
    assert found[0].us == pytest.approx((2000.0,) * 3 * WARM_SAMPLES)
    assert found[1].us == pytest.approx((1000.0,) * 3 * WARM_SAMPLES)
    assert found[1].rounds == tuple(number for number in range(3) for _ in range(WARM_SAMPLES))
    warm = ["fa20"] * WARM_UPS + ["cudnn0"] * WARM_UPS
    turn = [one for key in ("fa20", "cudnn0") for one in [key, *["sleep", key] * WARM_SAMPLES]]
    assert gpu.log == [*warm, *turn * 3]
    assert "flush" not in gpu.log


def test_a_launch_that_the_gpu_waited_for_is_taken_again(tensors: Tensors) -> None:
    rounds = Rounds(("fa2",), "fp16", TINY, 1)
    gpu = Sleeper(late=[True, False])
    (found,) = warm_rounds(gpu.event, gpu.sleep, lambda: None, rounds, [gpu.subject("fa2", 2.0)], tensors)
    assert len(found.us) == WARM_SAMPLES
    assert (gpu.log.count("sleep"), gpu.log.count("sleepsleep")) == (WARM_SAMPLES, 1), "longer at the second try"
    gpu = Sleeper(late=[True] * timers.TRIES)
    with pytest.raises(FlashladderError, match="fa2: the host was too slow 5 times"):
        warm_rounds(gpu.event, gpu.sleep, lambda: None, rounds, [gpu.subject("fa2", 2.0)], tensors)


def test_without_a_flush_torchs_events_are_asked(tensors: Tensors, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Sleeper()
    monkeypatch.setattr(timers, "load", lambda key, dtype: gpu.subject(key, 1.5))
    monkeypatch.setattr(timers, "first_tensors", lambda _: tensors)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: gpu.event())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: gpu.sleep(), raising=False)
    (found,) = timers.ask_warm([ROUNDS], 1.0)
    assert (found.method, found.mode) == ("warm", "event-free")
    assert {round(us) for one in found.timings for us in one.us} == {1500}


def test_in_turn_with_each_other_twice_the_l2_is_filled_before_each(
    tensors: Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, asked, cycled = Sleeper(), list[int](), list[int]()

    def buffer(size: int, dtype: torch.dtype, device: str) -> SimpleNamespace:
        assert (dtype, device) == (torch.uint8, "cuda")
        asked.append(size)
        return SimpleNamespace(zero_=gpu.flush)

    monkeypatch.setattr(timers, "load", lambda key, dtype: gpu.subject(key, 1.5))
    monkeypatch.setattr(timers, "first_tensors", lambda _: tensors)
    monkeypatch.setattr(timers, "RUN_UP_S", 0.0)
    monkeypatch.setattr(torch, "empty", buffer)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: gpu.event())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def sleep(cycles: int) -> None:
        cycled.append(cycles)
        gpu.sleep()

    monkeypatch.setattr(torch.cuda, "_sleep", sleep, raising=False)
    of_300_mib = SimpleNamespace(L2_cache_size=300 << 20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: of_300_mib, raising=False)
    (found,) = timers.ask_turns([ROUNDS], 1.0)
    assert (found.method, found.mode) == ("turns", "event-free")
    assert {round(us) for one in found.timings for us in one.us} == {1500}
    assert asked == [600 << 20]
    samples = sum(len(one.us) for one in found.timings)
    assert gpu.log.count("flush") == samples
    assert cycled == [4_000_000] * samples, "2 ms: longer than any library takes the host"
    places = [place for place, one in enumerate(gpu.log) if one == "flush"]
    assert {gpu.log[place - 1] for place in places} == {"sleep"}, "the host queues the flush under the sleep"


def test_subjects_in_turn_with_each_other_run_up_and_change_their_order(tensors: Tensors) -> None:
    """Each round has each subject once, behind a flush; a second's run-up is no sample."""
    rounds, took = Rounds(("fa2", "cudnn", "fa4"), "fp16", TINY, 12), {"fa2": 2.0, "cudnn": 1.0, "fa4": 1.5}

    def once() -> tuple[Sleeper, tuple[Timings, ...]]:
        gpu, ticks = Sleeper(), iter([0.0, 0.4, 0.9, RUN_UP_S])

        def prepare(longer: int) -> None:
            gpu.sleep(longer)
            gpu.flush()

        made = [gpu.subject(key, ms) for key, ms in took.items()]
        clock = lambda: next(ticks)  # noqa: E731
        return gpu, turn_rounds(gpu.event, prepare, lambda: None, rounds, made, tensors, clock=clock)

    gpu, found = once()
    assert once()[0].log == gpu.log, "the same orders in every run"
    assert [one.subject for one in found] == list(took)
    for one in found:
        assert one.rounds == tuple(range(12))
        assert one.us == pytest.approx((took[one.subject] * 1e3,) * 12)
    launched = [line[:-1] for line in gpu.log if line[:-1] in took]
    beginning, samples = launched[: WARM_UPS * 3 + 6], launched[WARM_UPS * 3 + 6 :]
    assert beginning == [*took] * (WARM_UPS + 2)
    orders = [tuple(samples[place : place + 3]) for place in range(0, len(samples), 3)]
    assert {tuple(sorted(one)) for one in orders} == {tuple(sorted(took))}
    assert len(orders) == 12
    assert len(set(orders)) > 3, "the order is drawn anew"
    assert gpu.log[WARM_UPS * 3 :: 3] == ["sleep"] * (len(samples) + 6)
    assert gpu.log[WARM_UPS * 3 + 1 :: 3] == ["flush"] * (len(samples) + 6)


def beside(speeds: dict[str, float], *, apart: bool = False) -> BenchResult:
    """The fixture's two kernels and libraries at these speeds of FA2's; each in blocks of its own where `apart`."""
    whole = group()
    series = [
        Series(kernel=name, pairs=pairs(speed, 7 + n), before=GOOD) for n, (name, speed) in enumerate(speeds.items())
    ]
    known = result()
    libraries = dict.fromkeys(speeds, known.reference)
    if not apart:
        both = whole.model_copy(update={"series": (*whole.series, *series)})
        return derive(result(both).model_copy(update={"references": libraries}))
    groups = [whole.model_copy(update={"series": (one,)}) for one in (*whole.series, *series)]
    return derive(result(*groups).model_copy(update={"references": libraries}))


@pytest.mark.parametrize("apart", [False, True], ids=["in one block", "in blocks of their own"])
def test_a_kernel_is_beside_the_better_library(apart: bool) -> None:
    found = {one.kernel: one for one in advantages(beside({"cudnn": 0.9, "fa4": 1.0}, apart=apart))}
    assert set(found) == set(KERNELS)
    assert A_A not in found
    fast = found[KERNELS[1]]
    assert (fast.timer, fast.over, fast.among) == (PAIRED, "fa4", ("cudnn", "fa4"))
    assert fast.pct == pytest.approx(110.0, abs=0.2)
    assert fast.low < fast.pct < fast.high
    assert fast.high - fast.low < 0.5
    assert fast.over_us == pytest.approx(SHAPE.flops / 350e6, rel=0.001)
    other = {one.kernel: one.over for one in advantages(beside({"cudnn": 1.0, "fa4": 0.9}, apart=apart))}
    assert set(other.values()) == {"cudnn"}


def test_dropped_blocks_do_not_count() -> None:
    made = beside({"cudnn": 1.0})
    (whole,) = made.groups

    def slowed(series: Series) -> Series:
        changed = tuple(
            pair._replace(kernel_us=2 * pair.kernel_us) if pair.block == 0 else pair for pair in series.pairs
        )
        return series.model_copy(update={"pairs": changed})

    dropped = tuple(
        block.model_copy(update={"dropped": "power" if block.index == 0 else None}) for block in whole.blocks
    )
    changed: Group = whole.model_copy(
        update={
            "blocks": dropped,
            "series": tuple(slowed(one) if one.kernel == "cudnn" else one for one in whole.series),
        }
    )
    found = advantages(made.model_copy(update={"groups": (changed,)}))
    assert {one.n for one in found} == {9}
    assert next(one for one in found if one.kernel == KERNELS[1]).pct == pytest.approx(110.0, abs=0.2)


@pytest.mark.parametrize("names", [("fa4",), ("cudnn",), (KERNELS[1],), (KERNELS[1], "cudnn")])
def test_whose_time_is_the_hosts_is_told_also_of_a_library_that_is_not_the_better_one(names: tuple[str, ...]) -> None:
    """cuDNN is slower than FA4 here: as fast as told, or not known at all."""
    made = beside({"cudnn": 0.9, "fa4": 1.0}, apart=True)

    def late(one: Group) -> Group:
        if one.series[-1].kernel not in names:
            return one
        return one.model_copy(update={"blocks": tuple(block.model_copy(update={"late": 1}) for block in one.blocks)})

    assert all(not one.host for one in advantages(made))
    found = {one.kernel: one for one in advantages(made.model_copy(update={"groups": tuple(map(late, made.groups))}))}
    assert found[KERNELS[1]].over == "fa4"
    assert found[KERNELS[1]].host == names
    assert found[KERNELS[0]].host == tuple(name for name in names if name not in KERNELS)


def with_cudnn(of: Opinion, speed: float, **counters: tuple[int, ...]) -> Opinion:
    fa2 = of.timings[0]
    mine = Timings(subject="cudnn", rounds=fa2.rounds, us=tuple(us / speed for us in fa2.us), counters=counters)
    return of.model_copy(update={"timings": (*of.timings, mine)})


def test_other_timers_have_their_own_row_and_their_own_better_one() -> None:
    timed = beside({"cudnn": 1.0})
    nvbench, torchs = with_cudnn(opinion("nvbench"), 1.05), with_cudnn(opinion("torch"), 1.0, **{HOST: (10**9,) * 8})
    made = judged(nvbench, torchs).model_copy(update={"paired": timed})
    found = {(one.timer, one.kernel): one for one in advantages(made)}
    assert {timer for timer, _ in found} == {"paired", "nvbench", "torch"}
    assert found["nvbench", KERNELS[1]].pct == pytest.approx(100 * 1.1 / 1.05, abs=0.1)
    assert found["nvbench", KERNELS[1]].n == 8
    assert found["torch", KERNELS[1]].host == ("cudnn",)
    slow = with_cudnn(opinion("torch"), 0.5, **{HOST: (10**9,) * 8})
    fa4 = slow.timings[-1].model_copy(update={"subject": "fa4", "counters": {}, "us": slow.timings[0].us})
    both = judged(slow.model_copy(update={"timings": (*slow.timings, fa4)}))
    slower = {one.kernel: one for one in advantages(both) if one.timer == "torch"}[KERNELS[1]]
    assert (slower.over, slower.host) == ("fa4", ("cudnn",))
    lines = render(advantages(made))
    assert "fp16, S=4096, B=16, H=16: speed over the best of cudnn" in lines
    assert [line for line in lines if line.endswith("cudnn: the host's time")]
    assert "speed over the best of cudnn" in table(made)
    assert render(advantages(judged(opinion("torch")))) == []


def test_a_round_without_the_library_is_refused() -> None:
    less = with_cudnn(opinion("torch"), 1.0)
    cut = less.timings[-1].model_copy(update={"rounds": (0,) * 8})
    made = judged(opinion("nvbench"))
    made = made.model_copy(update={"opinions": (less.model_copy(update={"timings": (*less.timings[:-1], cut)}),)})
    with pytest.raises(FlashladderError, match="torch has no time of cudnn"):
        advantages(made)


@pytest.mark.parametrize("method", ["torch", "warm", "turns"])
def test_opinions_of_these_timers_are_judged_like_others(method: str) -> None:
    made = judged(opinion(method))
    assert problems(made) == []
    assert all(one.agrees for one in made.agreements)


def test_a_file_prints_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert better.main([str(write_result(tmp_path / "bench.json.gz", beside({"fa4": 1.0})))]) == 0
    assert capsys.readouterr().out.startswith("fp16, S=4096, B=16, H=16: speed over the best of fa4\n")
    alone = write_result(tmp_path / "alone.json.gz", derive(result()))
    with pytest.raises(FlashladderError, match="no kernel beside a library: expected cudnn or fa3 or fa4"):
        better.main([str(alone)])
    assert better.main([]) == 2


def test_a_library_that_launched_anothers_kernel_is_named_in_second_opinions() -> None:
    """As in any other document; here the references are those of the pairs."""
    known = result().reference
    fa4 = known.model_copy(update={"op": BACKENDS["fa4"].op, "kernels": {"fp16": "cudnn_generated_sdpa"}})
    timed = beside({"fa4": 1.0}).model_copy(update={"references": {"fa4": fa4}})
    found = list(verify._references(judged().model_copy(update={"paired": timed})))
    assert [line for line in found if "reference fa4: its kernel is another's" in line]
