"""Energy per FLOP without a GPU: a card whose counter ticks, results that lack something, the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
import re
import time
from types import SimpleNamespace
from typing import Any

from pydantic import ValidationError
import pytest

from flashladder.bench import command, energy
from flashladder.bench.energy import PAUSE_S, WARM_UP_S, steady, sustain
from flashladder.bench.references import Arms, Subject
from flashladder.bench.timing import Arm
from flashladder.errors import FlashladderError
from flashladder.ladder.config import KernelConfig
from flashladder.results.files import load_as, write_result
from flashladder.results.schema import EnergyResult, Sample, Sustained
from tests.data_files import table_of
from tests.null.bench_fixture import FAST, KEY, SHAPE, energy_of, group, kernel, look, result, sustained
from tests.typed import error_line

CONFIG = KernelConfig.parse(FAST)
LAUNCH_S, WATTS, TICK_S = 0.0009, 500.0, 0.1


@dataclass
class Card:
    """A GPU that takes `LAUNCH_S` and `WATTS` for a launch; its counter ticks every `TICK_S` seconds."""

    now: float = 0.0  # on the host's clock
    end: float = 0.0  # of all queued launches
    idle: float = 0.0  # seconds without work between two launches
    launches: int = 0
    answer_s: float = 0.0  # of the driver
    tells: bool = True
    ticks: bool = True

    def launch(self, _: int) -> None:
        self.idle += max(0.0, self.now - self.end)
        self.end = max(self.now, self.end) + LAUNCH_S
        self.launches += 1

    def mark(self) -> Callable[[], bool]:
        end = self.end
        return lambda: self.now >= end

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def energy_mj(self) -> int | None:
        self.now += self.answer_s
        ticks = int(self.now / TICK_S) if self.ticks else 0
        return round(ticks * TICK_S * WATTS * 1e3) + 12345 if self.tells else None

    def sample(self) -> Sample:
        return look(t_s=self.now, power_w=WATTS)

    def sustain(self, arm: Arm, at_least_s: float) -> Sustained:
        telemetry: Any = self
        with pytest.MonkeyPatch.context() as patch:
            self.stand_in(patch)
            return sustain(telemetry, arm, "fp16", SHAPE, at_least_s)

    def stand_in(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(energy, "mark", self.mark)
        patch.setattr(time, "monotonic", lambda: self.now)
        patch.setattr(time, "sleep", self.sleep)


def test_a_run_goes_from_tick_to_tick_and_finds_what_the_card_takes() -> None:
    card = Card()
    run = card.sustain(Arm("fa2", card.launch), 1.0)
    assert 1.0 <= run.seconds < 1.0 + 2 * TICK_S
    assert run.watts == pytest.approx(WATTS, rel=2 * PAUSE_S)
    assert run.launches * LAUNCH_S == pytest.approx(run.seconds, rel=2 * PAUSE_S)
    assert run.pj_per_flop == pytest.approx(WATTS * LAUNCH_S / SHAPE.flops * 1e12, rel=4 * PAUSE_S)
    assert run.tflops == pytest.approx(SHAPE.flops / LAUNCH_S / 1e12, rel=2 * PAUSE_S)
    assert run.sm_clock_mhz == 1500
    assert 3 <= len(run.samples) <= 6
    assert card.launches * LAUNCH_S > run.seconds + WARM_UP_S, "warm before the first tick"


@pytest.mark.parametrize(("answer_s", "each"), [(0.0, 20), (0.008, 1)], ids=["longer than a batch", "a slow driver"])
def test_the_gpu_works_on_while_the_driver_is_asked(answer_s: float, each: int) -> None:
    card = Card(answer_s=answer_s)
    found = card.sustain(Arm("fa2", lambda i: tuple(map(card.launch, [i] * each))), 1.0)
    assert found.launches * each * LAUNCH_S == pytest.approx(found.seconds, abs=2 * PAUSE_S + answer_s)
    assert found.watts == pytest.approx(WATTS, rel=0.02 if answer_s else 0.005)
    assert found.seconds >= 1.0
    assert found.samples
    assert card.idle < 6 * PAUSE_S, "between launches that are waited for, before the first batch"


@pytest.mark.parametrize(
    ("card", "message"),
    [
        (Card(tells=False), "this GPU does not report its energy"),
        (Card(ticks=False), "fa2: the GPU's energy counter stands still"),
    ],
)
def test_without_an_energy_counter_there_is_no_run(card: Card, message: str) -> None:
    assert message in error_line(card.sustain, Arm("fa2", card.launch), 0.2)


def test_a_document_comes_back_as_it_was_written_and_prints_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = energy_of(sustained(), sustained(turn=1, joules=960.0), sustained(KEY, joules=450.0))
    path = write_result(tmp_path / "energy.json.gz", document)
    assert load_as(path, EnergyResult) == document
    energy.main(["--show", str(path)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:4] == ["fp16, S = 4096", "subject" + lines[3][7:]]
    assert lines[4].startswith(KEY), "the most frugal first"
    assert lines[5].split() == ["fa2", "1466.0", "620", "1500", "0.423", "power"]
    for runs in ((sustained(), sustained()), (sustained("nobody"),)):
        with pytest.raises(ValidationError, match="a run twice, or of a subject that nothing describes"):
            energy_of(*runs)
    assert "give iterations" in error_line(energy.main, [])


@pytest.mark.parametrize(("clock", "joules", "bits", "limit"), table_of("null/bench/energy", "limits"))
def test_clock_and_power_say_what_holds_a_kernel(
    clock: int | None, joules: float, bits: int | None, limit: str
) -> None:
    looks = (look(sm_clock_mhz=clock, throttle_bits=bits),) * 3
    runs = [sustained(turn=turn, joules=joules, samples=looks) for turn in range(3)]
    (found,) = steady(energy_of(*runs))
    assert (found.limit, found.mhz, found.watts) == (limit, clock, joules / 1.5)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Card:
    """The whole command on a card; a kernel and cuDNN run on it, FA4 is not installed."""
    card, timed = Card(), result(group())
    device = SimpleNamespace(rung="GPU", gpu=timed.gpu, host=timed.host, telemetry=card)
    monkeypatch.setattr(command, "open_device", lambda: device)
    card.stand_in(monkeypatch)
    installed = (16, CONFIG, lambda *_: card.launch(0), timed.kernels[KEY])
    monkeypatch.setattr(command, "installed_kernels", lambda *_: [installed])
    cudnn = Subject("cudnn", "fp16", lambda _: card.launch(0))
    found = Arms((cudnn,), {"cudnn": timed.reference}, ("fa4: not installed",))
    monkeypatch.setattr(command, "arms", lambda *_: found)
    monkeypatch.setattr(energy, "reference_identity", lambda _: timed.reference)
    fa2 = Subject("fa2", "fp16", cudnn.launch)
    monkeypatch.setattr(energy, "reference_subject", lambda *_: fa2)
    tensors = SimpleNamespace(q=0, k=0, v=0, out=0, packing={})
    monkeypatch.setattr(energy, "prepare", lambda *_: SimpleNamespace(sets=(tensors,)))
    return card


LINE = ["24", "--dtype", "fp16", "--references", "all", "--seconds", "0.5"]


def test_the_whole_command_and_its_resumption(
    simulated: Card, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "energy.json.gz"
    line = [*LINE, "--out", str(path), "--seq-lens"]
    with pytest.raises(FlashladderError, match="not finished: the budget of 0 s is spent"):
        energy.main([*line, "4096", "512", "--budget", "0.5"])
    told = capsys.readouterr().out
    assert "left out: fa4: not installed" in told
    assert "2 cells, 2 turns each: about 18 s" in told
    before = simulated.launches
    energy.main([*line, "4096", "512"])
    document = load_as(path, EnergyResult)
    assert [(one.subject, one.shape.seq_len, one.turn) for one in document.runs] == [
        (name, seq_len, turn) for seq_len in (4096, 512) for turn in (0, 1) for name in ("fa2", KEY, "cudnn")
    ]
    assert simulated.launches < 2.2 * before, "what is there is not run again"


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seconds": 1.0}, "duration: expected 0.5, found 1.0; choose another --out"),
        ({"kernels": {KEY: kernel(16, FAST, "cd" * 32)}}, f"kernels, .*, text_sha256: .*found {'cd' * 32}"),
        ({"references": {}, "runs": (sustained(),)}, "set of references: expected cudnn, found none"),
    ],
)
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = tmp_path / "energy.json.gz"
    line = [*LINE, "--out", str(path), "--seq-lens", "4096"]
    energy.main(line)
    write_result(path, load_as(path, EnergyResult).model_copy(update=change))
    assert re.search(f"the file holds another {message}", error_line(energy.main, line))
