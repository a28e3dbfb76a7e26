"""Energy per FLOP without a GPU: a card whose counter ticks, results that lack something, the table."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pydantic import ValidationError
import pytest
import torch

from flashladder.bench import command, energy, references
from flashladder.bench import run as timing_run
from flashladder.bench.subject import Subject
from flashladder.bench.timing import Arm
from flashladder.errors import FlashladderError
from flashladder.gate.evidence import proofs
from flashladder.ladder import manifest
from flashladder.ladder.config import DTYPES
from flashladder.results.files import load_as, write_result
from flashladder.results.samples import Sample, Shape, Sustained
from flashladder.results.schema import EnergyResult
from tests.null.bench_fixture import group, result

SHAPE = Shape(batch=16, seq_len=4096, n_heads=16, d_head=128)
LAUNCH_S, WATTS, TICK_S = 0.0009, 500.0, 0.1


@dataclass
class Card:
    """A GPU that takes `LAUNCH_S` and `WATTS` for a launch; its counter ticks every `TICK_S` seconds."""

    now: float = 0.0
    queued: int = 0
    launches: int = 0
    tells: bool = True
    ticks: bool = True

    def launch(self, _: int) -> None:
        self.queued += 1
        self.launches += 1

    def synchronize(self) -> None:
        self.now += self.queued * LAUNCH_S
        self.queued = 0

    def energy_mj(self) -> int | None:
        ticks = int(self.now / TICK_S) if self.ticks else 0
        return round(ticks * TICK_S * WATTS * 1e3) + 12345 if self.tells else None

    def sample(self) -> Sample:
        return Sample(
            t_s=self.now, sm_clock_mhz=1500, memory_clock_mhz=3200, power_w=WATTS, temperature_c=50, throttle_bits=4
        )

    @property
    def meter(self) -> energy.Meter:
        return energy.Meter(self.synchronize, self.energy_mj, self.sample, lambda: self.now)

    @property
    def arm(self) -> Arm:
        return Arm("fa2", self.launch)


def test_a_run_goes_from_tick_to_tick_and_finds_what_the_card_takes() -> None:
    card = Card()
    run = energy.Cell(card.meter, "fp16", SHAPE, 1.0).run(card.arm, 0)
    assert 1.0 <= run.seconds < 1.0 + 2 * TICK_S
    assert run.watts == pytest.approx(WATTS, rel=2 * energy.BATCH_S)
    assert run.launches * LAUNCH_S == pytest.approx(run.seconds)
    assert run.pj_per_flop == pytest.approx(WATTS * LAUNCH_S / SHAPE.flops * 1e12, rel=2 * energy.BATCH_S)
    assert run.tflops == pytest.approx(SHAPE.flops / LAUNCH_S / 1e12)
    assert run.sm_clock_mhz == 1500
    assert 3 <= len(run.samples) <= 6
    assert card.launches * LAUNCH_S > run.seconds + energy.WARM_UP_S, "warm before the first tick"


def test_the_clock_of_a_run_is_the_median_of_its_looks() -> None:
    looks = tuple(Card().sample().model_copy(update={"sm_clock_mhz": clock}) for clock in (1980, 1500, 1510, None))
    assert run(samples=looks).sm_clock_mhz == 1510
    assert run(samples=()).sm_clock_mhz is None


def test_launches_that_take_longer_than_a_batch_are_waited_for_one_by_one() -> None:
    card = Card()
    slow = Arm("slow", lambda i: tuple(map(card.launch, [i] * 20)))
    launches, took, joules, _ = energy.sustain(card.meter, slow, 0.5)
    assert launches * 20 * LAUNCH_S == pytest.approx(took)
    assert joules / took == pytest.approx(WATTS, rel=0.05)


@pytest.mark.parametrize(
    ("card", "message"),
    [
        (Card(tells=False), "this GPU does not tell its energy"),
        (Card(ticks=False), "fa2: the GPU's energy counter stands still"),
    ],
)
def test_a_card_that_does_not_tell_is_one_line(card: Card, message: str) -> None:
    with pytest.raises(FlashladderError, match=message):
        energy.sustain(card.meter, card.arm, 0.2)


def made(*runs: Sustained) -> EnergyResult:
    """A document about one kernel."""
    timed = result(group())
    gpu = timed.gpu.model_copy(update={"name": "NVIDIA H200"})
    return EnergyResult(
        rung=timed.rung, gpu=gpu, host=timed.host, kernels={kernel(): timed.kernels[kernel()]},
        reference=timed.reference, seconds=1.0, runs=runs,
    )  # fmt: skip


def look(watts: float | None) -> Sample:
    return Card().sample().model_copy(update={"power_w": watts})


def run(subject: str = "fa2", **other: Any) -> Sustained:
    facts: dict[str, Any] = {
        "subject": subject, "dtype": "fp16", "shape": SHAPE, "turn": 0, "launches": 400, "seconds": 1.5,
        "joules": 900.0, "samples": (look(600.0), look(None), look(640.0)),
    }  # fmt: skip
    return Sustained(**facts | other)


def kernel() -> str:
    return next(iter(result(group()).kernels))


def test_a_document_comes_back_as_it_was_written_and_prints_a_table(tmp_path: Path) -> None:
    document = made(run(), run(turn=1, joules=960.0), run(kernel(), joules=450.0))
    path = write_result(tmp_path / "energy.json.gz", document)
    assert load_as(path, EnergyResult) == document
    lines = energy.render(document).splitlines()
    assert lines[2:4] == ["fp16, S = 4096", "subject" + lines[3][7:]]
    assert lines[4].startswith(kernel()), "the most frugal first"
    assert lines[5].split() == ["fa2", "586.4", "620", "1500", "1.057"]


@pytest.mark.parametrize(
    "runs", [(run(), run()), (run("nobody"),)], ids=["a run twice", "a subject that nothing describes"]
)
def test_a_document_that_contradicts_itself_is_refused(runs: tuple[Sustained, ...]) -> None:
    with pytest.raises(ValidationError, match="a run twice, or of a subject that nothing describes"):
        made(*runs)


@dataclass
class Timed:
    """What `measure` meets in place of a GPU: subjects that take so many launches of the card, and who ran on what."""

    card: Card = field(default_factory=Card)
    ran: list[tuple[str, str, int]] = field(default_factory=list)

    def launch(self, name: str, q: torch.Tensor, times: int) -> torch.Tensor:
        for _ in range(times):
            self.card.launch(0)
        self.ran.append((name, str(q.dtype).rpartition(".")[2], q.shape[1]))
        return q

    def subject(self, name: str, dtype: str, times: int) -> Subject:
        return Subject(name, dtype, lambda one: self.launch(name, one.q, times), returns=True)


def measured(monkeypatch: pytest.MonkeyPatch) -> tuple[Timed, EnergyResult]:
    """Two kernels and cuDNN beside FA2 at two lengths, FA4 left out: FA2 takes 4 launches of the card, cuDNN 2."""
    timed, known = Timed(), result(group())
    kernels = {f"16 ({dtype.upper()})": known.kernels[kernel()] for dtype in DTYPES}
    subjects = [timed.subject(key, dtype, 1) for key, dtype in zip(kernels, DTYPES, strict=True)]
    cudnn = [timed.subject("cudnn", dtype, 2) for dtype in DTYPES]
    beside = references.Arms(tuple(cudnn), {"cudnn": known.reference}, ("fa4: not installed",))
    monkeypatch.setattr(command, "choose", lambda *_: (subjects, kernels))
    monkeypatch.setattr(command, "shape_of", lambda s: Shape(batch=1, seq_len=s // 8, n_heads=1, d_head=128))
    monkeypatch.setattr(references, "arms", lambda *_: beside)
    monkeypatch.setattr(references, "reference_forward", lambda q, k, v: timed.launch("fa2", q, 4))
    monkeypatch.setattr(references, "reference_identity", lambda _: known.reference)
    monkeypatch.setattr(timing_run, "prepare", partial(timing_run.prepare, device="cpu"))
    monkeypatch.setattr(torch.cuda, "synchronize", timed.card.synchronize)
    monkeypatch.setattr(energy, "Meter", partial(energy.Meter, clock=lambda: timed.card.now))
    device: Any = SimpleNamespace(gpu=known.gpu, host=known.host, rung=known.rung, telemetry=timed.card)
    options = Namespace(references=["cudnn", "fa4"], dtypes=DTYPES, seq_lens=[512, 1024], seconds=0.3, turns=2)
    return timed, energy.measure(options, device)


def test_subjects_take_turns_each_on_inputs_of_its_own_dtype(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    timed, made = measured(monkeypatch)
    assert capsys.readouterr().out == "left out: fa4: not installed\n"
    assert [(one.subject, one.dtype, one.shape.seq_len, one.turn) for one in made.runs] == [
        (subject, dtype, seq_len, turn)
        for dtype in DTYPES for seq_len in (64, 128) for turn in range(2)
        for subject in ("fa2", f"16 ({dtype.upper()})", "cudnn")
    ]  # fmt: skip
    torchs = {"fp16": "float16", "bf16": "bfloat16"}
    assert set(timed.ran) == {(one.subject, torchs[one.dtype], one.shape.seq_len) for one in made.runs}
    for one in made.runs:
        launches = {"fa2": 4, "cudnn": 2}.get(one.subject, 1)
        assert one.seconds == pytest.approx(launches * one.launches * LAUNCH_S), (
            "this subject was launched, not another"
        )
        assert one.seconds >= 0.3


def spec(**other: Any) -> manifest.Energy:
    number = next(iter(result(group()).kernels.values())).iteration
    facts: dict[str, Any] = {
        "holds": "energy", "of": {"iterations": [number], "configs": [configs_key()], "dtypes": ["fp16"]},
        "seq_lens": [4096], "turns": 1, "seconds": 1.0,
    }  # fmt: skip
    return manifest.Energy.model_validate(facts | other)


def configs_key() -> str:
    return next(iter(result(group()).kernels.values())).config


Edit = Callable[[list[Sustained]], list[Sustained]]


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda runs: runs, []),
        (lambda runs: runs[:1], ["turn 0: is missing"]),
        (lambda runs: [*runs, run(turn=1)], ["turn 1: is not in the manifest"]),
        (
            lambda runs: [runs[0].model_copy(update={"seconds": 0.9, "joules": 500.0}), runs[1]],
            ["expected at least 1 s, found 0.9"],
        ),
        (
            lambda runs: [run(joules=9000.0, samples=(look(6000.0),)), runs[1]],
            ["6000 W, the limit is"],
        ),
        (
            lambda runs: [run(joules=0.9), runs[1]],
            ["the counter tells 0.6 W, looks at the card meanwhile 620 W"],
        ),
        (lambda runs: [run(samples=()), runs[1]], ["the counter tells 600 W, looks at the card meanwhile nothing"]),
        (lambda runs: [run(launches=800), runs[1]], ["1875.0 us a launch is below the 2054.1 us that the GPU's peaks"]),
    ],
    ids=[
        "whole",
        "a kernel",
        "a turn",
        "too short",
        "more than the card takes",
        "another unit",
        "no looks",
        "faster than the card",
    ],
)
def test_the_manifest_says_what_is_missing(tmp_path: Path, edit: Edit, told: list[str]) -> None:
    path = write_result(tmp_path / "energy.json.gz", made(*edit([run(), run(kernel())])))
    found = list(proofs.energy(path, spec()))
    assert len(found) == len(told)
    for line, part in zip(found, told, strict=True):
        assert part in line


def test_the_command_wants_something_to_measure(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        energy.main([])
    assert caught.value.code == 2
    assert "expected iterations" in capsys.readouterr().err
    path = write_result(tmp_path / "energy.json.gz", made(run()))
    assert energy.main(["--show", str(path)]) == 0
    assert "pJ/FLOP" in capsys.readouterr().out
