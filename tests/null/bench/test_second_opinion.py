"""Second opinions without a GPU: what NVBench and ncu write is read, judged beside the pairs, or left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
import sys
from typing import Any

import pytest
import torch

from flashladder.bench import command as bench
from flashladder.bench import opinion_program, opinion_tools, second_opinion
from flashladder.bench.opinion_program import (
    WARM_UPS,
    Rounds,
    command,
    launch_rounds,
    load,
    nvbench_rounds,
    parse_arguments,
)
from flashladder.bench.opinion_tools import by_turn, family, normalised, read_nvbench
from flashladder.bench.second_opinion import ask, derive, problems, table
from flashladder.bench.subject import Subject
from flashladder.cases.inputs import Case, Tensors, make_tensors
from flashladder.errors import CheckFailed, FlashladderError
from flashladder.gate import verify, verify_document
from flashladder.gpu import doctor
from flashladder.gpu.ncu import read_launches
from flashladder.names import CYCLES, DURATION
from flashladder.results.files import load_as, load_result, write_result
from flashladder.results.samples import Opinion, Timings
from flashladder.results.schema import SecondOpinionResult, Shape
from tests.null.bench.test_bench_null import simulated
from tests.null.bench_fixture import SHAPE
from tests.null.opinion_fixture import FA2_US, KERNELS, NAMES, ROUNDS, judged, ncu_csv, opinion, paired, write_nvbench

__all__ = ["simulated"]  # a fixture

OURS = "flash_fwd_kernel(flashladder::FlashFwdArgs)"
TINY = Shape(batch=1, seq_len=64, n_heads=2, d_head=128)


@pytest.mark.parametrize(
    ("kernel", "whose", "plain"),
    [
        (OURS, "flash_fwd_kernel", "flash_fwd_kernel"),
        ("flash_fwd_kernel", "flash_fwd_kernel", "flash_fwd_kernel"),
        (NAMES["fa2"], "fa2", "pytorch_flash::flash_fwd_kernel"),
        (NAMES["flash-attn"], "flash-attn", "flash::flash_fwd_kernel"),
        (NAMES["cudnn"], "cudnn", NAMES["cudnn"]),
        (NAMES["fa4"], "fa4", NAMES["fa4"]),
        ("void at::native::vectorized_elementwise_kernel<4>(int)", None, "at::native::vectorized_elementwise_kernel"),
    ],
)
def test_a_kernels_name_says_whose_it_is(kernel: str, whose: str | None, plain: str) -> None:
    assert (family(kernel), normalised(kernel)) == (whose, plain)


def launched(*names: str) -> list[tuple[str, dict[str, int]]]:
    return read_launches(ncu_csv(names), opinion_tools.METRICS)


def test_launches_go_to_their_turns() -> None:
    rounds = Rounds(("fa2", KERNELS[0], KERNELS[1], "fa4"), "fp16", TINY, 2)
    turn = (NAMES["fa2"], OURS, OURS, NAMES["fa4"])
    (found,) = by_turn(launched(*turn, *turn), [rounds])
    assert [one.subject for one in found] == list(rounds.subjects)
    assert all((one.rounds, one.us) == ((0, 1), (1.0, 1.0)) for one in found)
    assert found[0].counters[CYCLES] == (1500, 1500)
    assert DURATION not in found[0].counters


def test_what_a_reference_launches_besides_is_its_own() -> None:
    rounds = Rounds(("fa2", KERNELS[0], "fa4"), "fp16", TINY, 2)
    turn = (NAMES["fa2"], OURS, NAMES["fa4"], "prepare(int)", NAMES["fa4"])
    (found,) = by_turn(launched(*turn, *turn), [rounds])
    assert [one.us for one in found] == [(1.0, 1.0), (1.0, 1.0), (3.0, 3.0)]


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
def test_other_launches_than_expected_are_refused(names: tuple[str, ...], message: str) -> None:
    with pytest.raises(FlashladderError, match=message):
        by_turn(launched(*names), [Rounds(("fa2", KERNELS[0]), "fp16", TINY, 1)])


def test_nvbenchs_samples_are_read_round_by_round(tmp_path: Path) -> None:
    path = tmp_path / "nvbench.json"
    write_nvbench(path, ROUNDS)
    (found,) = read_nvbench(path, [ROUNDS])
    assert [one.subject for one in found] == list(ROUNDS.subjects)
    assert found[2].rounds == (0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3)
    assert all(abs(us - 3000.0) < 1e-3 for us in found[2].us)


def test_what_nvbench_leaves_out_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "nvbench.json"
    write_nvbench(path, ROUNDS, skipped="0 2 1")
    with pytest.raises(FlashladderError, match="cannot read what NVBench wrote: found ValueError: skipped: too short"):
        read_nvbench(path, [ROUNDS])
    with pytest.raises(FlashladderError, match="found KeyError: '0 4 0'"):
        more = Rounds(("fa2",), "fp16", TINY, 5)
        read_nvbench(path, [more])
    (tmp_path / "nvbench.json-bin" / "0.bin").write_bytes(b"\0" * 8)
    with pytest.raises(FlashladderError, match="2 samples, told 3"):
        read_nvbench(path, [ROUNDS])
    with pytest.raises(FlashladderError, match="cannot read what NVBench wrote"):
        read_nvbench(tmp_path / "none.json", [ROUNDS])


def test_the_programs_command_parses_back() -> None:
    longer = replace(ROUNDS, shape=SHAPE.model_copy(update={"batch": 4, "seq_len": 16384}))
    for cells in ([ROUNDS], [ROUNDS, longer]):
        line = command(cells, "--nvbench", "out.json", "--samples", "5")
        assert line[:3] == [sys.executable, "-m", "flashladder.bench.opinion_program"]
        found, how = parse_arguments(line[3:])
        assert found == cells
        assert (how.nvbench, how.samples) == ("out.json", 5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rounds", "0"], "--rounds and --samples: expected at least 1"),
        (["--seq-len", "512", "0", "--batch", "1", "1"], "expected at least 1"),
        (["--seq-len", "512", "4096", "--batch", "16"], "--seq-len: expected one for each of 1 --batch, found 2"),
    ],
)
def test_the_programs_numbers_are_asked(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["fa2", *words])
    assert message in capsys.readouterr().err


def test_several_cells_of_one_process_are_told_apart(tmp_path: Path) -> None:
    """Each cell's own times, whatever the tool; NVBench's file has cell 1 ten times as long."""
    first, second = ROUNDS, replace(ROUNDS, shape=TINY, rounds=2)
    path = tmp_path / "nvbench.json"
    write_nvbench(path, first, second)
    found = read_nvbench(path, [first, second])
    assert [round(one.us[0]) for cell in found for one in cell] == [1000, 2000, 3000, 10000, 20000, 30000]
    assert [len(one.us) for cell in found for one in cell] == [12, 12, 12, 6, 6, 6]
    names = [NAMES["fa2"], OURS, OURS]
    slow = {OURS: 2000, NAMES["fa2"]: 1500}
    rows = read_launches(ncu_csv(names * 4), opinion_tools.METRICS)
    rows += read_launches(ncu_csv(names * 2, slow), opinion_tools.METRICS)
    cells = by_turn(rows, [first, second])
    assert [[one.us for one in cell] for cell in cells] == [[(1.0,) * 4] * 3, [(1.5,) * 2, (2.0,) * 2, (2.0,) * 2]]


def test_cells_of_the_same_subjects_share_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[list[int], float]] = []

    def answer(cells: list[Rounds], timeout_s: float) -> list[Opinion]:
        seen.append(([one.shape.seq_len for one in cells], timeout_s))
        assert {one.rounds for one in cells} == {3}
        return []

    monkeypatch.setattr(second_opinion, "ASK", {"nvbench": answer})
    of = paired()
    more = [one.model_copy(update={"shape": one.shape.model_copy(update={"seq_len": 512})}) for one in of.summaries]
    other = more[0].model_copy(update={"dtype": "bf16"})
    monkeypatch.setattr(second_opinion, "derive", lambda result: result)
    ask(of.model_copy(update={"summaries": (*of.summaries, *more, other)}), ["nvbench"], 10.0, 3)
    assert seen == [([4096, 512], 20.0), ([512], 10.0)]


@pytest.mark.parametrize(("key", "message"), [("fa5", "no such subject"), ("99 (FP16)", "iteration 99")])
def test_an_unknown_subject_is_refused(key: str, message: str) -> None:
    with pytest.raises(FlashladderError, match=message):
        load(key, "fp16")


@dataclass
class Log:
    """Notes what happens, in order; also the profiler's window."""

    seen: list[str] = field(default_factory=list)

    def start(self) -> None:
        self.seen.append("start")

    def stop(self) -> None:
        self.seen.append("stop")

    def subject(self, key: str) -> Subject:
        return Subject(key, "fp16", lambda _: self.seen.append(key))


@pytest.fixture(scope="module")
def tensors() -> Tensors:
    return make_tensors(Case("tiny", TINY), "fp16", "cpu")


def test_only_the_rounds_are_inside_the_profilers_window(tensors: Tensors) -> None:
    log = Log()
    rounds = Rounds(("fa2", "cudnn"), "fp16", TINY, 2)
    launch_rounds(rounds, [log.subject("fa2"), log.subject("cudnn")], tensors, lambda: log.seen.append("wait"), log)
    warm = ["fa2"] * WARM_UPS + ["cudnn"] * WARM_UPS
    assert log.seen == [*warm, "wait", "start", "fa2", "cudnn", "fa2", "cudnn", "wait", "stop"]


@dataclass
class FakeBench:
    """NVBench's Python module: registers, names, then runs every benchmark's launch once."""

    log: Log
    registered: list[Any] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    argv: list[str] = field(default_factory=list)

    def register(self, function: Any) -> FakeBench:
        self.registered.append(function)
        return self

    def set_name(self, name: str) -> FakeBench:
        self.names.append(name)
        return self

    def set_cold_warmup_runs(self, count: int) -> FakeBench:
        assert count == WARM_UPS
        return self

    def run_all_benchmarks(self, argv: list[str]) -> None:
        self.argv = argv
        for function in self.registered:
            function(self)

    def exec(self, launch: Any, *, batched: bool) -> None:
        assert not batched
        launch("its launch")


def test_nvbench_times_every_turn_on_its_own_stream(tensors: Tensors) -> None:
    log, rounds = Log(), Rounds(("fa2", "cudnn"), "fp16", TINY, 2)
    fake = FakeBench(log)

    @contextmanager
    def stream(launch: str) -> Iterator[None]:
        log.seen.append(f"on the stream of {launch}")
        yield

    subjects = [log.subject(key) for key in rounds.subjects]
    nvbench_rounds(fake, stream, [(rounds, tensors)], subjects, samples=5, out="out.json")
    assert fake.names == ["0 0 0", "0 0 1", "0 1 0", "0 1 1"]
    assert log.seen == [one for _, key in rounds.turns() for one in ("on the stream of its launch", key)]
    options = dict(zip(fake.argv[1::2], fake.argv[2::2], strict=True))
    assert options["--jsonbin"] == "out.json"
    assert (options["--stopping-criterion"], options["--target-samples"], options["--min-samples"]) == (
        "sample-count", "5", "5",
    )  # fmt: skip


def fake_ncu(folder: Path, log: str, code: int = 0) -> Path:
    """A program that writes `log` where ncu was told to, notes its command line and leaves with `code`."""
    path = folder / "ncu"
    (folder / "log.txt").write_text(log, encoding="utf-8")
    path.write_text(
        f"#!{sys.executable}\n"
        "import pathlib, sys\n"
        "here = pathlib.Path(__file__).parent\n"
        "if '--version' in sys.argv: print('NVIDIA\\nVersion 2025.3'); sys.exit()\n"
        "(here / 'argv.txt').write_text('\\n'.join(sys.argv))\n"
        "log = sys.argv[sys.argv.index('--log-file') + 1]\n"
        "pathlib.Path(log).write_text((here / 'log.txt').read_text())\n"
        f"print('what it prints'); sys.exit({code})\n",
        encoding="utf-8",
    )
    path.chmod(0o755)
    return path


def test_ncu_runs_with_clocks_left_alone_and_its_log_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(("fa2", KERNELS[0]), "fp16", TINY, 2)
    ncu = fake_ncu(tmp_path, ncu_csv([NAMES["fa2"], OURS] * 2, {OURS: 2000}))
    monkeypatch.setattr(opinion_tools, "require_ncu", lambda: ncu)
    (found,) = opinion_tools.ask_ncu([rounds], 30.0)
    assert (found.method, found.mode, found.version) == ("ncu", "ncu-base", "Version 2025.3")
    assert [one.us for one in found.timings] == [(1.0, 1.0), (2.0, 2.0)]
    argv = (tmp_path / "argv.txt").read_text(encoding="utf-8").splitlines()
    assert argv[argv.index("--clock-control") + 1] == "none"
    assert argv[argv.index("--profile-from-start") + 1] == "off"
    assert argv[argv.index(sys.executable) :] == command([rounds])


@pytest.mark.parametrize(
    ("log", "code", "message"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - no permission", 1, "refuses hardware counters .*; invoke doctor says"),
        ("==ERROR== no kernels were profiled", 0, "ncu printed no table"),
        ("==ERROR== broken", 3, "ncu ended with exit code 3: found ==ERROR== broken"),
    ],
)
def test_a_refused_counter_drops_ncu_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str, code: int, message: str
) -> None:
    monkeypatch.setattr(opinion_tools, "require_ncu", lambda: fake_ncu(tmp_path, log, code))
    made = ask(paired(), ["ncu"])
    assert made.opinions == ()
    assert len(made.left_out) == 1
    with pytest.raises(FlashladderError, match=message):
        opinion_tools.ask_ncu([ROUNDS], 30.0)
    assert "left out: ncu: " in table(made)
    assert problems(made) == []


def test_missing_tools_are_one_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(doctor, "find_ncu", lambda: None)
    assert ask(paired(), ["nvbench", "ncu"]).left_out == (
        "nvbench: the package cuda-bench is not installed; pip install 'cuda-bench[cu13]'",
        "ncu: Nsight Compute is not installed; install ncu, or put it on PATH",
    )


def test_nvbench_runs_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "0.3.0")
    writer = (
        "import pathlib, sys; from tests.null.opinion_fixture import ROUNDS, write_nvbench; "
        "write_nvbench(pathlib.Path(sys.argv[sys.argv.index('--nvbench') + 1]), ROUNDS)"
    )
    monkeypatch.setattr(opinion_tools, "command", lambda _, *more: [sys.executable, "-c", writer, *more])
    (found,) = opinion_tools.ask_nvbench([ROUNDS], 60.0)
    assert (found.method, found.mode, found.version) == ("nvbench", "event-free", "cuda-bench 0.3.0")
    assert len(found.timings) == 3
    monkeypatch.setattr(
        opinion_tools, "command", lambda _, *more: [sys.executable, "-c", "print('oh'); raise SystemExit(4)"]
    )
    with pytest.raises(FlashladderError, match="NVBench ended with exit code 4: found oh"):
        opinion_tools.ask_nvbench([ROUNDS], 60.0)
    monkeypatch.setattr(
        opinion_tools, "command", lambda _, *more: [sys.executable, "-c", "import time; time.sleep(60)"]
    )
    with pytest.raises(FlashladderError, match="NVBench did not end within 0 s"):
        opinion_tools.ask_nvbench([ROUNDS], 0.2)


def test_what_there_is_is_kept_after_each_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: list[Rounds], __: float) -> list[Opinion]:
        raise FlashladderError("it is broken")

    monkeypatch.setattr(second_opinion, "ASK", {"nvbench": lambda *_: [opinion("nvbench")], "ncu": broken})
    kept: list[SecondOpinionResult] = []
    made = ask(paired(), ["nvbench", "ncu"], keep=kept.append)
    assert [(len(one.opinions), len(one.agreements), len(one.left_out)) for one in kept] == [
        (0, 0, 0), (1, 2, 0), (1, 2, 1)
    ]  # fmt: skip
    assert kept[-1] == made
    assert all(problems(one) == [] for one in kept)


def test_agreement_is_an_overlap_of_intervals() -> None:
    made = judged(opinion("nvbench"), opinion("ncu", faster=1.02))
    found = {(one.method, one.kernel[:2]): one for one in made.agreements}
    assert len(found) == 4
    assert found["nvbench", "16"].agrees
    assert found["nvbench", "01"].agrees
    assert not found["ncu", "16"].agrees
    assert abs(found["ncu", "16"].pct - 112.2) < 0.1
    assert abs(found["ncu", "16"].off_pct - 2.0) < 0.1
    assert abs(found["ncu", "16"].reference_us - FA2_US) < 1.0
    assert found["ncu", "16"].n_rounds == 8
    assert problems(made) == []


def test_the_floor_is_allowed_for() -> None:
    """0.4 % off is no disagreement where two runs of FA2 differ by 0.5 %, and one where they do not."""
    near = judged(opinion("ncu", faster=1.004))
    assert not any(one.agrees for one in near.agreements)
    (only,) = near.opinions
    summary = next(one for one in near.paired.summaries if one.kernel == KERNELS[1])
    assert second_opinion._agreement(only, only.timings[2], summary, 1.005).agrees


def test_each_sample_is_compared_with_fa2_in_its_round() -> None:
    """A card that slows down for half of the rounds slows both: the ratio and its interval do not move."""
    steady = opinion("ncu")
    slowed = steady.model_copy(
        update={
            "timings": tuple(
                one.model_copy(update={"us": tuple(us * (1.3 if n < 4 else 1) for n, us in enumerate(one.us))})
                for one in steady.timings
            )
        }
    )
    for a, b in zip(judged(steady).agreements, judged(slowed).agreements, strict=True):
        assert [round(x, 9) for x in (a.pct, a.pct_low, a.pct_high)] == [
            round(x, 9) for x in (b.pct, b.pct_low, b.pct_high)
        ]


def test_the_table_has_all_timers_of_a_cell_beside_each_other() -> None:
    lines = table(judged(opinion("nvbench"), opinion("ncu", faster=1.02), left_out=("x: y",))).splitlines()
    at = lines.index(KERNELS[1])
    assert [line.split()[0] for line in lines[at + 2 : at + 5]] == ["paired", "nvbench", "ncu"]
    assert [line.split()[1] for line in lines[at + 2 : at + 5]] == ["event-free", "event-free", "ncu-base"]
    assert "agree (" in lines[at + 3]
    assert "differ (+" in lines[at + 4]
    assert " 1700 " in lines[at + 4]
    assert lines[-1] == "left out: x: y"


def test_what_does_not_follow_from_the_samples_is_found() -> None:
    made = judged(opinion("nvbench"))
    edited = made.agreements[0].model_copy(update={"agrees": False})
    changed = made.model_copy(update={"agreements": (edited, *made.agreements[1:])})
    assert "agrees: written False, derived True" in problems(changed)[0]
    assert "1 written, 2 derived" in problems(made.model_copy(update={"agreements": made.agreements[:1]}))[0]
    (only,) = made.opinions
    fewer = only.model_copy(update={"timings": only.timings[:-1]})
    assert problems(made.model_copy(update={"opinions": (fewer,)})) == [
        f"nvbench fp16 S=4096: {only.timings[-1].subject}: not timed"
    ]
    twice = only.model_copy(update={"timings": (*only.timings, only.timings[1])})
    assert "or twice" in problems(made.model_copy(update={"opinions": (twice,)}))[0]
    paired_ = made.paired.model_copy(update={"floors_pct": {"fp16": 9.0}})
    assert problems(made.model_copy(update={"paired": paired_}))[0].startswith("paired: floors_pct does not follow")


def test_a_time_below_the_gpus_peak_is_found() -> None:
    made = judged(opinion("ncu"))
    gpu = made.gpu.model_copy(update={"name": "NVIDIA H200"})
    (only,) = made.opinions
    assert problems(made.model_copy(update={"gpu": gpu})) == ["gpu is not that of the pairs"]
    quick = only.timings[1].model_copy(update={"us": (1.0,) * 8})
    changed = only.model_copy(update={"timings": (only.timings[0], quick, only.timings[2])})
    found = problems(made.model_copy(update={"gpu": gpu, "opinions": (changed,)}))
    assert found.pop(0) == "gpu is not that of the pairs"
    assert "1.0 us is below the" in found[0]


def test_a_round_without_fa2_is_refused() -> None:
    only = opinion("ncu")
    with pytest.raises(FlashladderError, match="ncu has no time of FA2"):
        judged(only.model_copy(update={"timings": only.timings[1:]}))


@pytest.mark.parametrize(
    "update", [{"rounds": (0,)}, {"us": (1.0, 0.0)}, {"us": ()}, {"counters": {"a": (1,)}}], ids=str
)
def test_samples_without_a_round_or_a_length_are_refused(update: dict[str, Any]) -> None:
    good: dict[str, Any] = {"subject": "fa2", "rounds": (0, 1), "us": (1.0, 2.0), "counters": {"a": (1, 2)}}
    assert Timings.model_validate(good).subject == "fa2"
    with pytest.raises(ValueError, match="validation error"):
        Timings.model_validate(good | update)


def test_a_result_survives_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = judged(opinion("nvbench"), opinion("ncu"))
    path = write_result(tmp_path / "opinions.json.gz", made)
    assert load_result(path) == made
    assert derive(made) == made
    assert second_opinion.main([str(path)]) == 0
    assert "agree (" in capsys.readouterr().out
    write_result(path, made.model_copy(update={"agreements": made.agreements[:1]}))
    with pytest.raises(CheckFailed, match="1 written, 4 derived"):
        second_opinion.main([str(path)])


def test_verify_derives_the_agreements_again(tmp_path: Path) -> None:
    """An agreement that was edited before the digest was made is found, as in every other document."""
    path, made = tmp_path / "opinions.json.gz", judged(opinion("nvbench"))
    assert [line for line in verify_document.problems(write_result(path, made)) if "agreements" in line] == []
    edited = made.agreements[0].model_copy(update={"agrees": False})
    found = verify_document.problems(
        write_result(path, made.model_copy(update={"agreements": (edited, made.agreements[1])}))
    )
    assert [line for line in found if "agrees: written False, derived True" in line]
    assert verify.verify(path)[0].summary.startswith("second-opinion, 2 cells")


@pytest.mark.usefixtures("simulated")
def test_the_command_asks_tools_for_the_same_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Rounds] = []

    def answer(cells: list[Rounds], timeout_s: float) -> Any:
        (rounds,) = cells
        asked.append(rounds)
        given = {"fa2": 2000.0, rounds.subjects[1]: 1600.0}
        timings = [
            {"subject": key, "rounds": (0, 1, 2), "us": (us, us * 1.0001, us * 0.9999)} for key, us in given.items()
        ]
        return [
            Opinion.model_validate(
                {"method": "nvbench", "mode": "event-free", "version": "1", "dtype": rounds.dtype,
                 "shape": rounds.shape, "timings": timings}
            )
        ]  # fmt: skip

    def refuse(cells: list[Rounds], timeout_s: float) -> Any:
        raise FlashladderError("the driver refuses hardware counters")

    monkeypatch.setattr(second_opinion, "ASK", {"nvbench": answer, "ncu": refuse})
    out = tmp_path / "opinions.json.gz"
    argv = ["16", "--configs", "a100", "--seq-lens", "512", "--method", "nvbench", "ncu", "--out", str(out)]
    assert bench.main(argv) == 0
    assert [(one.dtype, one.shape.seq_len) for one in asked] == [("fp16", 64), ("bf16", 64)]
    assert {one.subjects[0] for one in asked} == {"fa2"}
    made = load_as(out, SecondOpinionResult)
    assert problems(made) == []
    assert [round(one.pct) for one in made.agreements] == [125, 125]
    assert made.left_out == ("ncu: the driver refuses hardware counters",)
    told = capsys.readouterr().out
    assert told.count("left out: ncu: ") == 1
    with pytest.raises(FlashladderError, match="the file exists"):
        bench.main(argv)


def test_tuning_takes_no_methods() -> None:
    with pytest.raises(SystemExit):
        bench.parse_arguments(["16", "--tune", "--method", "ncu"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_the_program_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    assert opinion_program.parse_arguments(["fa2"])[0][0].rounds == 1
    with pytest.raises(FlashladderError, match="no GPU here"):
        bench.main(["16", "--method", "ncu"])


def test_the_help_says_how_many_rounds_each_timer_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.parse_arguments(["--help"])
    rounds = opinion_tools.ROUNDS
    (rest,) = {number for timer, number in rounds.items() if timer not in ("nvbench", "ncu", "turns")}
    told = f"{rounds['nvbench']} of nvbench, {rounds['ncu']} of ncu, {rounds['turns']} of turns, else {rest})"
    assert told in " ".join(capsys.readouterr().out.split())
