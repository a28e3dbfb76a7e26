"""The soak without a GPU: operators beside simulated matmuls, many launches, long rows, and hangs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import re
import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from flashladder.build.wheel import chosen_configs
from flashladder.cases.inputs import Case
from flashladder.cases.reference import Run, Subject
from flashladder.check import soak
from flashladder.check.soak import MIN_MATMULS, Gpu, Load, chosen_rows, chosen_slices, hammer
from flashladder.errors import CheckFailed
from flashladder.gate import verify
from flashladder.problem import Problem
from flashladder.results.files import load_as, write_result
from flashladder.results.schema import FarRows, Hammered, SoakResult
from tests.null.bench.test_bench import FakeEvent, FakeGpu
from tests.null.bench_fixture import GPU, HOST, kernel, result
from tests.null.check.test_check import altered, one_nan, right
from tests.typed import error_line

CONFIG = chosen_configs(27, ["h200"], ["fp16"])[0]
KEY = f"27 {CONFIG.short_form()}"
TINY = Problem(batch=1, seq_len=5, n_heads=2, d_head=128)
SHORT = Problem(batch=2, seq_len=65, n_heads=1, d_head=128)
LONG = Problem(batch=2, seq_len=1030, n_heads=3, d_head=128)


class Planted(Gpu):
    """The CPU with two simulated streams: a matmul takes a millisecond, a launch takes `lag` milliseconds."""

    device = "cpu"

    def __init__(self, lag: float = 2.0) -> None:
        super().__init__()
        self.lag, self.matmuls, self.first = lag, 0, 0.0

    def wait(self) -> None:
        """Nothing is queued."""

    def graph(self, calls: Callable[[], object]) -> Callable[[], object]:
        return calls

    def matmul(self, index: int) -> None:
        self.matmuls += 1

    def mark(self, *, second: bool = False) -> FakeEvent:
        self.first += 0 if second else self.lag / 2
        return FakeEvent(FakeGpu(), self.matmuls if second else self.first)


def subject(run: Run) -> Subject:
    return Subject(27, CONFIG, run)


def hammered(run: Run, count: int = 3000) -> Hammered:
    return hammer(subject(run), TINY, count, Planted())


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small numbers of launches."""
    for name, number in (("PLAIN", 30), ("CHUNK", 10), ("GRAPH", 20)):
        monkeypatch.setattr(soak, name, number)


@pytest.mark.usefixtures("few")
def test_launches_come_one_by_one_and_then_in_graphs() -> None:
    calls: list[None] = []

    def counted(*tensors: Any) -> None:
        calls.append(None)
        right(*tensors)

    found = hammered(counted, 85)
    assert (found.plain, found.replayed, found.looks, found.differing) == (30, 60, 3 + 3, 0)
    assert (found.launches, len(calls)) == (90, 91), "and the first of all"
    assert found.finite
    assert len(found.digest) == 64
    assert hammered(right, 25).plain == 25, "no graph where there are few"
    assert hammered(right, 25).digest == found.digest


@pytest.mark.usefixtures("few")
def test_one_launch_with_other_bits_is_seen_if_it_is_the_last_before_a_look() -> None:
    turn = 0

    def sometimes(out: torch.Tensor) -> None:
        nonlocal turn
        turn += 1
        if turn == 1 + 20:
            out.view(torch.int16)[0, 0, 0, 0] ^= 1

    assert hammered(altered(sometimes), 85).differing == 1


@pytest.mark.usefixtures("few")
def test_a_launch_that_writes_nothing_is_seen() -> None:
    calls: list[None] = []

    def once(*tensors: Any) -> None:
        if not calls:
            right(*tensors)
        calls.append(None)

    assert hammered(once, 85).differing == 6


def test_matmuls_run_before_and_behind_a_launch_and_more_where_it_is_long() -> None:
    gpu = Planted()
    load = Load(gpu)

    def launch() -> None:
        gpu.first += 40.0 - gpu.lag / 2

    run = load.around(launch)
    run()
    assert gpu.matmuls == 2 * MIN_MATMULS
    run()
    assert gpu.matmuls == 2 * MIN_MATMULS + 2 * 60, "1.5 times 40 ms, each side"
    found = load.summary(KEY, "grid")
    assert found is not None
    assert (found.launches, found.products) == (2, 2 * MIN_MATMULS + 120)
    assert found.seconds == pytest.approx(0.080)
    assert found.beside_s == pytest.approx(0.011 + 0.040)
    assert Load(gpu).summary(KEY, "grid") is None


def long_rows(run: Run, shape: Problem = LONG) -> FarRows:
    return soak.run_large(subject(run), shape, Planted())


def test_under_a_mask_each_row_is_compared_with_its_own_keys() -> None:
    def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, _: str) -> None:
        q, k, v = (one.transpose(1, 2).float() for one in (q, k, v))
        out.copy_(torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2))

    masked = LONG.varied(mask="causal")
    assert not soak.problems(made(far=(long_rows(causal, masked),)))
    assert soak.problems(made(far=(long_rows(right, masked),)))
    assert soak.problems(made(far=(long_rows(causal),)))


def test_rows_around_powers_of_two_are_compared() -> None:
    found = long_rows(right)
    assert found.rows == (0, 1, 63, 64, 127, 128, 901, 902, 965, 966, 1023, 1024, 1025, 1028, 1029)
    assert found.slices == ((0, 0), (1, 0), (1, 2))
    assert (found.launches, found.differing, found.finite) == (3, 0, True)
    assert soak.problems(made(far=(found,))) == []
    assert {2**15 - 1, 2**15, 2**16, 2**17 + 1, 2**18 - 2} <= set(chosen_rows(2**18 - 1))
    assert max(chosen_rows(2**18 - 1)) == 2**18 - 2


def test_slices_on_both_sides_of_2_to_the_31_are_compared() -> None:
    found = chosen_slices(Problem(batch=4, seq_len=2**18, n_heads=16, d_head=128))
    assert {(0, 0), (3, 15), (2, 0), (1, 15)} <= set(found)
    assert chosen_slices(Problem(batch=2049, seq_len=1024, n_heads=16, d_head=128))[-1] == (2048, 15)
    assert (2047, 15) in chosen_slices(Problem(batch=2049, seq_len=1024, n_heads=16, d_head=128))
    whole = chosen_slices(Problem(batch=2, seq_len=2**18, n_heads=16, d_head=128))  # 2^30 elements
    assert {sample for sample, _ in whole} == {0, 1}
    assert max(shape.batch * shape.seq_len * shape.n_heads * 128 for shape in soak.LONG_SHAPES) > 2**32


def off(out: torch.Tensor) -> None:
    out[1, 1024, 2] *= 1.02


def moody() -> Callable[[torch.Tensor], object]:
    turn = iter(range(9))
    return lambda out: out[0, 500, 1].mul_(1 + next(turn))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (off, ["max error", "relative RMS"]),
        (one_nan, ["elements of O are NaN or infinite", "max error NaN", "relative RMS NaN"]),
        (moody(), ["2 of 3 launches differ from the first output"]),
    ],
    ids=["a row that is off", "a NaN", "other bits where nobody compares"],
)
def test_wrong_long_rows_are_told(change: Callable[[torch.Tensor], object], told: list[str]) -> None:
    found = soak.problems(made(far=(long_rows(altered(change)),)))
    assert [line.startswith(f"{KEY} at B=2, S=1030, H=3: {part}") for line, part in zip(found, told, strict=True)]
    assert all(part in line for line, part in zip(found, told, strict=True))


def test_tensors_that_do_not_fit_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "make_tensors", Mock(side_effect=RuntimeError("CUDA out of memory\nmore")))
    assert "cannot make tensors of B=2, S=1030, H=3: found CUDA out of memory" in error_line(long_rows, right)


SOAKED = kernel(27, CONFIG.short_form())


def made(**parts: Any) -> SoakResult:
    reference = result().reference
    return SoakResult(rung="GPU", gpu=GPU, host=HOST, kernels={SOAKED.key: SOAKED}, reference=reference, **parts)


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch, few: None) -> Callable[[Run], None]:
    """The command on a made-up GPU: two small cases, two small shapes, one long one."""
    device = SimpleNamespace(gpu=GPU, host=HOST, rung="GPU")
    small = [Case(f"small {n}", TINY.varied(seq_len=n)) for n in (3, 64)]

    def plant(run: Run) -> None:
        wheel = SimpleNamespace(run=run, require=lambda _: None, identity=lambda *_: SOAKED)
        monkeypatch.setattr("flashladder.bench.command.open_device", lambda: device)
        monkeypatch.setattr("flashladder.bench.command.load_installed", lambda _: wheel)
        monkeypatch.setattr(soak, "cases_for", lambda *_, **__: small)
        monkeypatch.setattr(soak, "Gpu", Planted)
        monkeypatch.setattr(soak, "SMALL_SHAPES", (TINY, SHORT))
        monkeypatch.setattr(soak, "LONG_SHAPES", (LONG,))
        monkeypatch.setattr(soak, "reference_identity", lambda _: made().reference)

    return plant


LINE = ["27", "--dtype", "fp16", "--launches", "60", "--repeats", "3"]


def test_the_whole_command_goes_on_where_it_stopped(
    planted: Callable[[Run], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planted(right)
    path = tmp_path / "soak.json.gz"
    line = [*LINE, "--out", str(path)]
    soak.main([*line, "--parts", "load"])
    first = load_as(path, SoakResult)
    both = ("small 3", "small 64")
    assert [(one.case, one.status, one.repeats) for one in first.cases] == [(name, "pass", 3) for name in both]
    assert [(one.case, one.launches) for one in first.beside] == [(name, 3) for name in both]
    assert "not finished: the budget of 0 s is spent" in error_line(soak.main, [*line, "--budget", "0.000000001"])
    soak.main(line)
    whole = load_as(path, SoakResult)
    assert whole.cases == first.cases, "what is there is not run again"
    assert [(one.shape, one.launches) for one in whole.hammered] == [(TINY, 30), (SHORT, 30)]
    assert [one.shape for one in whole.far] == [LONG]
    assert "0 problems" in capsys.readouterr().out
    soak.main(["--show", str(path)])
    assert "27 FP16" in capsys.readouterr().out
    (verified,) = verify.verify(path)
    assert verified.summary.startswith("soak, 2 cases, 60 launches")


def test_a_file_that_holds_less_than_is_asked_for_is_no_answer(
    planted: Callable[[Run], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(right)
    line = [*LINE, "--out", str(tmp_path / "soak.json.gz")]
    soak.main(line)
    for more, told in ((["--launches", "600"], "fewer launches of a shape"), (["--repeats", "9"], "fewer repeats")):
        assert told in error_line(soak.main, [*line, *more])
    monkeypatch.setattr("flashladder.bench.command.runnable", lambda *_: [])
    assert "no kernel to run on this GPU" in error_line(soak.main, LINE)


def test_a_wrong_kernel_ends_with_1(planted: Callable[[Run], None], tmp_path: Path) -> None:
    planted(altered(one_nan))
    path = tmp_path / "soak.json.gz"
    with pytest.raises(CheckFailed, match=r"problems, the first: .*small 3"):
        soak.main([*LINE, "--out", str(path)])
    assert len(soak.problems(load_as(path, SoakResult))) == 2 + 2 + 3


def test_a_hang_is_written_and_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    codes, ended, path = list[int](), threading.Event(), tmp_path / "soak.json.gz"

    def leave(code: int) -> None:
        codes.append(code)
        ended.set()

    monkeypatch.setattr("os._exit", leave)
    gpu = soak.Soak(made(), path, Gpu()).gpu
    with gpu.time_limit(30.0, "quick"):
        pass
    with gpu.time_limit(0.01, "27 at S=129"):
        assert ended.wait(30)
    assert codes == [1]
    assert capsys.readouterr().err == "error: 27 at S=129: did not finish within 0.01 s\n"
    assert "FAILED hung: 27 at S=129: did not finish within 0.01 s" in soak.render(load_as(path, SoakResult))
    assert soak.earlier(path, made()).hung is None


@pytest.mark.parametrize(
    ("told", "update"),
    [
        ("machine code of .*: expected unknown", {"kernels": {KEY: kernel(27, CONFIG.short_form(), None)}}),
        ("FA2, torch: expected 9.9", {"reference": made().reference.model_copy(update={"torch": "9.9"})}),
        ("rule of correctness: expected abab", {"rule": "ab" * 32}),
    ],
)
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, told: str, update: dict[str, object]) -> None:
    path = write_result(tmp_path / "soak.json.gz", made())
    assert soak.earlier(path, made()) == made()
    assert re.search(f"the file holds another {told}", error_line(soak.earlier, path, made().model_copy(update=update)))


def test_the_command_wants_something_to_soak() -> None:
    for argv in (["27", "--repeats", "1"], ["27", "--launches", "0"]):
        assert "--repeats must be at least 2, --launches at least 1" in error_line(soak.main, argv)
