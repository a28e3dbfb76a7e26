"""Other timers without a GPU: what they are asked, what they write, and how their times are judged beside the pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
import re
import sys
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.utils import benchmark

from flashladder.bench import command as bench
from flashladder.bench import cross_checks
from flashladder.bench.cross_checks import HOST, METRICS, PAIRED, WARM_SAMPLES, WARM_UPS, Rounds, advantages, by_turn
from flashladder.bench.references import Subject
from flashladder.cases.inputs import Case, make_tensors
from flashladder.errors import CheckFailed, FlashladderError
from flashladder.gpu.ncu import read_launches
from flashladder.names import CYCLES
from flashladder.results.derive import derive as derive_paired
from flashladder.results.files import load_as, load_result, write_result
from flashladder.results.schema import BenchResult, Group, Opinion, SecondOpinionResult, Series, Timings
from tests.null import bench_fixture
from tests.null.bench.test_bench import TINY, FakeEvent, FakeGpu, simulated
from tests.null.bench_fixture import KERNELS, NAMES, ROUNDS, group, judged, ncu_csv, opinion, result, write_nvbench
from tests.null.gpu.test_counters import fake_ncu
from tests.typed import error_line

__all__ = ["simulated"]  # a fixture

OURS = "flash_fwd_kernel(flashladder::FlashFwdArgs)"


def launched(*names: str) -> list[tuple[str, dict[str, int]]]:
    return read_launches(ncu_csv(names), METRICS)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((NAMES["fa2"],), "another number of launches: expected 2, found 1"),
        ((NAMES["fa2"], OURS, OURS), "another kernel than was launched: expected no more, found flash_fwd_kernel"),
        ((OURS, OURS), "another kernel than was launched: expected fa2, found flash_fwd_kernel"),
        ((NAMES["fa2"], OURS, "fill(int)"), "expected no more, found fill"),
        (("fill(int)", NAMES["fa2"], OURS), "expected fa2, found fill"),
    ],
)
def test_other_launches_than_expected_are_refused_but_those_of_a_reference_itself(
    names: tuple[str, ...], message: str
) -> None:
    assert message in error_line(by_turn, launched(*names), [Rounds(("fa2", KERNELS[0]), "fp16", TINY, 1)])
    turn = (NAMES["fa2"], OURS, NAMES["fa4"], "prepare(int)", NAMES["fa4"])
    (found,) = by_turn(launched(*turn, *turn), [Rounds(("fa2", KERNELS[0], "fa4"), "fp16", TINY, 2)])
    assert [one.us for one in found] == [(1.0, 1.0), (1.0, 1.0), (3.0, 3.0)]


def test_what_nvbench_leaves_out_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "nvbench.json"
    write_nvbench(path, ROUNDS, skipped="0 2 1")

    def refused(path: Path, message: str, rounds: Rounds = ROUNDS) -> None:
        assert f"cannot read what NVBench wrote: found {message}" in error_line(
            cross_checks.read_nvbench, path, [rounds]
        )

    refused(path, "ValueError: skipped: too short")
    refused(path, "KeyError: '0 4 0'", Rounds(("fa2",), "fp16", TINY, 5))
    (tmp_path / "nvbench.json-bin" / "0.bin").write_bytes(b"\0" * 8)
    refused(path, "ValueError: expected 3 samples, found 2")
    refused(tmp_path / "none.json", "FileNotFoundError")


def test_several_cells_of_one_process_are_told_apart(tmp_path: Path) -> None:
    """Each cell's own times, whatever the tool; NVBench's file has cell 1 ten times as long."""
    first, second = ROUNDS, replace(ROUNDS, shape=TINY, rounds=2)
    path = tmp_path / "nvbench.json"
    write_nvbench(path, first, second)
    found = cross_checks.read_nvbench(path, [first, second])
    assert [round(one.us[0]) for cell in found for one in cell] == [1000, 2000, 3000, 10000, 20000, 30000]
    assert [len(one.us) for cell in found for one in cell] == [12, 12, 12, 6, 6, 6]
    names = [NAMES["fa2"], OURS, OURS]
    slow = {OURS: 2000, NAMES["fa2"]: 1500}
    rows = read_launches(ncu_csv(names * 4), METRICS)
    rows += read_launches(ncu_csv(names * 2, slow), METRICS)
    cells = by_turn(rows, [first, second])
    assert [[one.us for one in cell] for cell in cells] == [[(1.0,) * 4] * 3, [(1.5,) * 2, (2.0,) * 2, (2.0,) * 2]]


def test_only_the_rounds_are_inside_the_profilers_window(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, rounds = list[str](), Rounds(("fa2", "cudnn"), "fp16", TINY, 2)
    launches = {name: partial(seen.append, name) for name in rounds.subjects}
    monkeypatch.setattr(cross_checks, "prepared", lambda cells: [(one, launches) for one in cells])
    monkeypatch.setattr(torch.cuda, "synchronize", partial(seen.append, "wait"))
    for name in ("start", "stop"):
        monkeypatch.setattr(torch.cuda.profiler, name, partial(seen.append, name))
    cross_checks.main(cross_checks.command([rounds])[3:])
    warm = ["fa2"] * WARM_UPS + ["cudnn"] * WARM_UPS
    assert seen == ["wait", *warm, "wait", "start", "fa2", "cudnn", "fa2", "cudnn", "wait", "stop"]


def test_ncu_runs_with_clocks_left_alone_and_its_log_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(("fa2", KERNELS[0]), "fp16", TINY, 2)
    ncu = fake_ncu(tmp_path, ncu_csv([NAMES["fa2"], OURS] * 2, {OURS: 2000}))
    monkeypatch.setattr("flashladder.gpu.ncu.find_ncu", lambda: ncu)
    (found,) = cross_checks.ask_ncu([rounds], 30.0)
    assert (found.method, found.mode, found.version) == ("ncu", "ncu-base", "Version 2025.3")
    assert [(one.rounds, one.us) for one in found.timings] == [((0, 1), (1.0, 1.0)), ((0, 1), (2.0, 2.0))]
    assert [one.counters[CYCLES] for one in found.timings] == [(1500, 1500), (3000, 3000)]
    argv = (tmp_path / "argv.txt").read_text(encoding="utf-8").splitlines()
    assert argv[argv.index("--clock-control") + 1] == "none"
    assert argv[argv.index("--profile-from-start") + 1] == "off"
    assert argv[argv.index(sys.executable) :] == cross_checks.command([rounds])


def test_missing_tools_are_one_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr("flashladder.gpu.ncu.find_ncu", lambda: None)
    assert cross_checks.compare(None, derive_paired(result()), ["nvbench", "ncu"]).left_out == (
        "nvbench: the package cuda-bench is not installed; pip install 'cuda-bench[cu13]'",
        "ncu: Nsight Compute is not installed; install ncu, or put it on PATH",
    )


def test_nvbench_runs_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(program: str) -> list[Opinion]:
        monkeypatch.setattr(cross_checks, "command", lambda _, *more: [sys.executable, "-c", program, *more])
        return cross_checks.ask_nvbench([ROUNDS], 60.0)

    monkeypatch.setattr(metadata, "version", lambda name: "0.3.0")
    (found,) = asked(
        "import pathlib, sys; from tests.null.bench_fixture import ROUNDS, write_nvbench; "
        "write_nvbench(pathlib.Path(sys.argv[1]), ROUNDS)"
    )
    assert (found.method, found.mode, found.version) == ("nvbench", "event-free", "cuda-bench 0.3.0")
    assert len(found.timings) == 3
    assert "NVBench ended with exit code 4: found oh" in error_line(asked, "print('oh'); raise SystemExit(4)")


def test_agreement_is_an_overlap_of_intervals_and_each_timer_has_its_row() -> None:
    made = judged(opinion("nvbench"), opinion("ncu", faster=1.02), left_out=("x: y",))
    found = {(one.method, one.kernel): one for one in made.agreements}
    assert {key for key, one in found.items() if one.agrees} == {("nvbench", key) for key in KERNELS}
    fast = found["ncu", KERNELS[1]]
    assert [fast.pct, fast.off_pct] == pytest.approx([112.2, 2.0], abs=0.1)
    assert fast.reference_us == pytest.approx(bench_fixture.FA2_US, abs=1.0)
    assert fast.n_rounds == 8
    assert cross_checks.problems(made) == []
    lines = cross_checks.table(made).splitlines()
    own = [line for line in lines if line.endswith(KERNELS[1])]
    names = [" ".join(line.split()[:2]) for line in own]
    assert names == [f"{PAIRED} event-free", "nvbench event-free", "ncu ncu-base"]
    assert "agree (" in own[1]
    assert re.search(r" 1700 .*differ \(\+", own[2])
    assert lines[-1] == "left out: x: y"


def test_what_does_not_follow_from_the_samples_or_cannot_be_is_found() -> None:
    made = judged(opinion("nvbench"))
    (only,) = made.opinions
    gpu = made.gpu.model_copy(update={"name": "NVIDIA H200"})

    def found(**update: object) -> list[str]:
        return cross_checks.problems(made.model_copy(update=update))

    def timed(*timings: Timings) -> tuple[Opinion]:
        return (only.model_copy(update={"timings": timings}),)

    fa2, slow, fast = only.timings
    assert found(gpu=gpu) == ["gpu is not that of the pairs"]
    edited = made.agreements[0].model_copy(update={"agrees": False})
    assert "agrees: written False, derived True" in found(agreements=(edited, *made.agreements[1:]))[0]
    assert "1 written, 2 derived" in found(agreements=made.agreements[:1])[0]
    assert found(opinions=timed(fa2, slow)) == [f"nvbench fp16 S=4096: {fast.subject}: not timed"]
    quick = slow.model_copy(update={"us": (1.0,) * 8})
    assert "1.0 us is below the" in found(gpu=gpu, opinions=timed(fa2, quick, fast))[1]
    assert "nvbench has no time of fa2" in error_line(judged, *timed(slow, fast))
    assert "or twice" in found(opinions=timed(fa2, slow, fast, slow))[0]
    paired = made.paired.model_copy(update={"floors_pct": {"fp16": 9.0}})
    assert found(paired=paired)[0].startswith("paired: floors_pct does not follow")


@pytest.mark.parametrize(
    "update", [{"rounds": (0,)}, {"us": (1.0, 0.0)}, {"us": ()}, {"counters": {"a": (1,)}}], ids=str
)
def test_samples_without_a_round_or_a_length_are_refused(update: dict[str, Any]) -> None:
    good: dict[str, Any] = {"subject": "fa2", "rounds": (0, 1), "us": (1.0, 2.0), "counters": {"a": (1, 2)}}
    assert Timings.model_validate(good).subject == "fa2"
    with pytest.raises(ValueError, match="validation error"):
        Timings.model_validate(good | update)


def test_a_file_prints_its_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = judged(opinion("nvbench"), opinion("ncu"))
    path = write_result(tmp_path / "opinions.json.gz", made)
    assert load_result(path) == made == cross_checks.derive(made)
    cross_checks.main([str(path)])
    assert "agree (" in capsys.readouterr().out
    write_result(path, made.model_copy(update={"agreements": made.agreements[:1]}))
    with pytest.raises(CheckFailed, match="1 written, 4 derived"):
        cross_checks.main([str(path)])
    cross_checks.main([str(write_result(path, beside({"fa4": 1.0})))])
    assert capsys.readouterr().out.startswith("fp16, S=4096, B=16, H=16: speed over the best of fa4\n")
    with pytest.raises(FlashladderError, match="no kernel beside a library: expected cudnn or fa3 or fa4"):
        cross_checks.main([str(write_result(path, derive_paired(result())))])
    assert error_line(cross_checks.main, [])


@pytest.mark.usefixtures("simulated")
def test_the_command_asks_tools_for_the_same_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Rounds] = []

    def answer(cells: list[Rounds], timeout_s: float) -> list[Opinion]:
        (rounds,) = cells
        asked.append(rounds)
        given = {"fa2": 2000.0, rounds.subjects[1]: 1600.0}
        timings = [Timings(subject=key, rounds=(0, 1), us=(us, us * 1.0001)) for key, us in given.items()]
        return [cross_checks._opinion("nvbench", "1", rounds, tuple(timings))]

    refuse = Mock(side_effect=FlashladderError("the driver refuses hardware counters"))
    monkeypatch.setattr(cross_checks, "ASK", {"nvbench": answer, "ncu": refuse})
    out = tmp_path / "opinions.json.gz"
    argv = ["16", "--configs", "a100", "--seq-lens", "512", "--method", "nvbench", "ncu", "--out", str(out)]
    bench.main(argv)
    assert [(one.dtype, one.shape.seq_len) for one in asked] == [("fp16", 64), ("bf16", 64)]
    assert {one.subjects[0] for one in asked} == {"fa2"}
    made = load_as(out, SecondOpinionResult)
    assert cross_checks.problems(made) == []
    assert [round(one.pct) for one in made.agreements] == [125, 125]
    assert made.left_out == ("ncu: the driver refuses hardware counters",)
    told = capsys.readouterr().out
    assert told.count("left out: ncu: ") == 1
    assert "the file exists" in error_line(bench.main, argv)


TWO = Rounds(("fa2", "cudnn"), "fp16", TINY, 3)


@dataclass
class Sleeper(FakeGpu):
    """A GPU that can sleep; a launch takes its subject's milliseconds."""

    def sleep(self, longer: int = 1) -> None:
        self.log.append("sleep" * longer)
        self.now += 0.5 * longer

    def launches(self, **ms: float) -> dict[str, Callable[[], object]]:
        return {key: partial(self.launch(key, one), 0) for key, one in ms.items()}

    def single(self, *, flush: bool = False) -> Any:
        def prepare(longer: int) -> None:
            self.sleep(longer)
            if flush:
                self.flush()

        return partial(cross_checks.one_launch, lambda: FakeEvent(self), prepare, lambda: None)


def test_without_a_flush_the_gpu_sleeps_and_each_subject_has_its_turn() -> None:
    gpu = Sleeper()
    found = cross_checks.warm_rounds(gpu.single(), TWO, gpu.launches(fa2=2.0, cudnn=1.0))
    assert [one.us for one in found] == [pytest.approx((us,) * 3 * WARM_SAMPLES) for us in (2000.0, 1000.0)]
    assert found[1].rounds == tuple(number for number in range(3) for _ in range(WARM_SAMPLES))
    warm = ["fa20"] * WARM_UPS + ["cudnn0"] * WARM_UPS
    turn = [one for key in ("fa20", "cudnn0") for one in [key, *["sleep", key] * WARM_SAMPLES]]
    assert gpu.log == [*warm, *turn * 3]


def test_a_launch_that_the_gpu_waited_for_is_taken_again() -> None:
    rounds = Rounds(("fa2",), "fp16", TINY, 1)
    gpu = Sleeper(late=[True, False])
    (found,) = cross_checks.warm_rounds(gpu.single(), rounds, gpu.launches(fa2=2.0))
    assert len(found.us) == WARM_SAMPLES
    assert (gpu.log.count("sleep"), gpu.log.count("sleepsleep")) == (WARM_SAMPLES, 1), "longer at the second try"
    gpu = Sleeper(late=[True] * cross_checks.TRIES)
    assert "fa2: the host was too slow 5 times" in error_line(
        cross_checks.warm_rounds, gpu.single(), rounds, gpu.launches(fa2=2.0)
    )


def test_subjects_in_turn_with_each_other_run_up_and_change_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round has each subject once, behind a flush; a second's run-up is no sample."""
    rounds, took = Rounds(("fa2", "cudnn", "fa4"), "fp16", TINY, 12), {"fa2": 2.0, "cudnn": 1.0, "fa4": 1.5}

    def once() -> tuple[Sleeper, tuple[Timings, ...]]:
        gpu, ticks = Sleeper(), iter([0.0, 0.4, 0.9, cross_checks.RUN_UP_S])
        monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
        return gpu, cross_checks.turn_rounds(gpu.single(flush=True), rounds, gpu.launches(**took))

    gpu, found = once()
    assert once()[0].log == gpu.log, "the same orders in every run"
    assert [one.subject for one in found] == list(took)
    for one in found:
        assert one.rounds == tuple(range(12))
        assert one.us == pytest.approx((took[one.subject] * 1e3,) * 12)
    launched = [line[:-1] for line in gpu.log if line[:-1] in took]
    beginning, samples = launched[: WARM_UPS * 3 + 6], launched[WARM_UPS * 3 + 6 :]
    assert beginning == [one for one in took for _ in range(WARM_UPS)] + [*took] * 2
    orders = [tuple(samples[place : place + 3]) for place in range(0, len(samples), 3)]
    assert [set(one) for one in orders] == [set(took)] * 12
    assert len(set(orders)) > 3, "the order is drawn anew"
    assert gpu.log[WARM_UPS * 3 :: 3] == ["sleep"] * (len(samples) + 6)
    assert gpu.log[WARM_UPS * 3 + 1 :: 3] == ["flush"] * (len(samples) + 6)


def test_torchs_own_timer_and_events_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = make_tensors(Case("tiny", TINY), "fp16", "cpu")
    gpu, asked, flushed, real = Sleeper(), list[int](), list[int](), benchmark.Timer.timeit

    def timeit(self: benchmark.Timer, number: int = 1) -> object:
        asked.append(number)
        return real(self, number)

    monkeypatch.setattr(cross_checks, "RUN_S", 0.001)
    monkeypatch.setattr(cross_checks, "load", lambda key, dtype, _: Subject(key, dtype, lambda one: one.q + one.k))
    monkeypatch.setattr(cross_checks, "make_tensors", lambda *_: tensors)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(benchmark.Timer, "timeit", timeit)
    (found,) = cross_checks.ask_torch([TWO], 1.0)
    assert (found.method, found.mode) == ("torch", "wall-free")
    assert all(0 < us < 1e5 for one in found.timings for us in one.us)
    assert len(asked) == 2 + 2 * TWO.rounds
    launch = gpu.launch("x", 1.5)
    monkeypatch.setattr(cross_checks, "load", lambda key, dtype, _: Subject(key, dtype, lambda _: launch(0)))
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: FakeEvent(gpu))
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: gpu.sleep(), raising=False)
    (found,) = cross_checks.ask_events("warm", [TWO], 1.0)
    assert (found.method, found.mode) == ("warm", "event-free")
    assert {round(us) for one in found.timings for us in one.us} == {1500}
    monkeypatch.setattr(cross_checks, "RUN_UP_S", 0.0)
    monkeypatch.setattr(torch, "empty", lambda size, **_: SimpleNamespace(zero_=lambda: flushed.append(size)))
    of_300_mib = SimpleNamespace(L2_cache_size=300 << 20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: of_300_mib, raising=False)
    (found,) = cross_checks.ask_events("turns", [TWO], 1.0)
    assert (found.method, found.mode) == ("turns", "event-free")
    assert flushed == [600 << 20] * sum(len(one.us) for one in found.timings), "twice the L2, before each sample"


def beside(speeds: dict[str, float], *, apart: bool = False) -> BenchResult:
    """The fixture's two kernels and libraries at these speeds of FA2's; each in blocks of its own where `apart`."""
    libraries = [
        Series(kernel=name, pairs=bench_fixture.pairs(speed, 7 + n)) for n, (name, speed) in enumerate(speeds.items())
    ]
    series = (*group().series, *libraries)
    parts = [(one,) for one in series] if apart else [series]
    made = result(*(group().model_copy(update={"series": part}) for part in parts))
    return derive_paired(made.model_copy(update={"references": dict.fromkeys(speeds, made.reference)}))


@pytest.mark.parametrize("apart", [False, True], ids=["in one block", "in blocks of their own"])
def test_a_kernel_is_beside_the_better_library(apart: bool) -> None:
    found = {one.kernel: one for one in advantages(beside({"cudnn": 0.9, "fa4": 1.0}, apart=apart))}
    assert set(found) == set(KERNELS)
    fast = found[KERNELS[1]]
    assert (fast.timer, fast.over, fast.among) == (PAIRED, "fa4", ("cudnn", "fa4"))
    assert fast.pct == pytest.approx(110.0, abs=0.2)
    assert fast.low < fast.pct < fast.high < fast.low + 0.5
    assert fast.over_us == pytest.approx(bench_fixture.SHAPE.flops / 350e6, rel=0.001)
    other = {one.kernel: one.over for one in advantages(beside({"cudnn": 1.0, "fa4": 0.9}, apart=apart))}
    assert set(other.values()) == {"cudnn"}


def test_dropped_blocks_do_not_count() -> None:
    made = beside({"cudnn": 1.0})
    (whole,) = made.groups
    *kernels, cudnn = whole.series
    slow = tuple(pair._replace(kernel_us=pair.kernel_us * (1 + (pair.block == 0))) for pair in cudnn.pairs)
    blocks = (whole.blocks[0].model_copy(update={"dropped": "power"}), *whole.blocks[1:])
    series = (*kernels, cudnn.model_copy(update={"pairs": slow}))
    changed = whole.model_copy(update={"blocks": blocks, "series": series})
    found = {one.kernel: one for one in advantages(made.model_copy(update={"groups": (changed,)}))}
    assert {one.n for one in found.values()} == {9}
    assert found[KERNELS[1]].pct == pytest.approx(110.0, abs=0.2)


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
    lines = cross_checks.beside_libraries(advantages(made))
    assert "fp16, S=4096, B=16, H=16: speed over the best of cudnn" in lines
    assert [line for line in lines if line.endswith("cudnn: the host's time")]
    assert "speed over the best of cudnn" in cross_checks.table(made)
    assert cross_checks.beside_libraries(advantages(judged(opinion("torch")))) == []
