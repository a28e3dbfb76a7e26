"""Scripts of analysis/ on committed or made-up data; the choice of the fastest step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from analysis import accuracy
from analysis.pipe_rates import OPS, PER_SM, TRIPS, inputs, named, per_clock, runs
from flashladder.build.wheel import Installed
from flashladder.errors import FlashladderError
from flashladder.gate.verify import verify_file
from flashladder.ladder import selection
from flashladder.ladder.ablation import Subject
from flashladder.ladder.iteration import load_all, load_iteration
from flashladder.ladder.selection import Choices, Fastest, choices, load_fastest
from flashladder.lock.schema import read_lock
from flashladder.paths import RESULTS
from flashladder.report.accuracy import render
from flashladder.results.files import read_json
import ptxemu
from tests.null.check.test_check import attention
from tests.typed import error_line


def test_errors_are_not_measured_without_a_gpu(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    words = ["--wheels", str(tmp_path), "--out", str(tmp_path / "out.json.gz")]
    assert "no GPU that torch can use" in error_line(accuracy.main, words)
    assert not list(tmp_path.iterdir())


def moody(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """A library that refuses one length."""
    if q.shape[1] == 96:
        raise ValueError("96 is not for me")
    return attention(q, k, v)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU, played by this CPU at short lengths, with FA2, cuDNN, an FA4 that fails at times, and Hopper's kernels."""
    monkeypatch.setattr(accuracy, "DEVICE", "cpu")
    monkeypatch.setattr(accuracy, "HEADS", 2)
    monkeypatch.setattr(accuracy, "NORMAL", [(8 + n, 1, seeds) for n, (*_, seeds) in enumerate(accuracy.NORMAL)])
    monkeypatch.setattr(accuracy, "OTHERS", (64, 96, 128))
    properties = SimpleNamespace(name="NVIDIA H200", uuid="0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    beside = {"fa2": attention, "cudnn": attention, "fa4": moody}
    monkeypatch.setattr(accuracy, "libraries", lambda _: (beside, {"cudnn": "9.19.0", "fa4": "4.0"}))
    monkeypatch.setattr(accuracy, "kernels", lambda _, numbers: {str(number): attention for number in numbers})
    lock = read_lock("sm_90a")

    def installed(number: int) -> Installed:
        forms = lock.iterations[number].kernels.items()
        own = {form: {"sm_90a": {"text_sha256": locked.text_sha256}} for form, locked in forms}
        return Installed(Subject(number), attention, {"kernels": own})

    monkeypatch.setattr("flashladder.build.wheel.load_installed", installed)


@pytest.mark.usefixtures("measured")
def test_a_family_is_measured_beside_libraries_and_the_gate_takes_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "h200" / "accuracy_hopper.json.gz"
    path.parent.mkdir()
    line = ["--wheels", str(tmp_path), "--family", "hopper", "--references", "all", "--out", str(path)]
    assert accuracy.main(line) == 0
    numbers = [step.number for step in load_all() if step.family.name == "hopper"]
    assert accuracy.steps("hopper") == tuple(numbers)
    assert min(accuracy.steps("ampere")) == 16
    printed = capsys.readouterr().out
    assert "left out: fa4 fails at Case(inputs='scale 2', seq_len=96, batch=1, seed=1): 96 is not for me" in printed
    assert f"equal      cudnn: 1.00 {numbers[0]}: 1.00" in printed
    assert [line for line in verify_file(path).details if "locked" not in line] == []
    (made,) = render(tmp_path).items()
    assert made[0] == "accuracy_hopper_h200.md"
    page = made[1].decode()
    assert f"| {numbers[-1]}: max | {numbers[-1]}: RMS | cudnn: max | cudnn: RMS | FA2's max |" in page
    assert "is held for other libraries: cudnn 9.19.0." in page
    assert page.count("| one key has all weight ") == page.count("| equal logits ") == 2


KERNELS = {(run.kernel.name, run.kernel.chains): run.kernel for run in runs()}


@pytest.mark.parametrize("key", [key for key in KERNELS if key[1] != 8], ids=lambda key: f"{key[0]}, {key[1]} chains")
def test_a_kernel_runs_as_many_instructions_as_it_divides_by(key: tuple[str, int]) -> None:
    kernel, counters = KERNELS[key], ptxemu.Counters()
    times, data = np.zeros((1, 2, 2), np.uint64), inputs()
    program = ptxemu.load(kernel.text())
    program.kernel().launch((1,), (64,), (times, data, 3), shared_bytes=PER_SM, observers=[counters])
    spent = ptxemu.Counters()
    program.kernel().launch((1,), (64,), (times, data, 1), shared_bytes=PER_SM, observers=[spent])
    for op, _ in kernel.round:
        opcode = OPS[op].text.split()[0]
        trips = counters.opcodes[opcode] - spent.opcodes[opcode]
        others = kernel.instructions[op] // OPS[op].instructions
        assert trips == 2 * 2 * others, op  # two warps, two more trips


def test_a_name_is_read_back() -> None:
    for kernel in KERNELS.values():
        assert named(kernel.name, kernel.chains) == kernel


def test_the_readings_are_of_these_kernels() -> None:
    found = read_json(RESULTS / "h200" / "rates.json.gz")
    assert found["gpu"]["compute_capability"] == "9.0"
    assert [
        (row["round"], row["chains"], row["warps"], row["alone"], row["instructions"], row["trips"])
        for row in found["runs"]
    ] == [(run.kernel.name, run.kernel.chains, run.warps, run.alone, run.kernel.instructions, TRIPS) for run in runs()]
    for run, row in zip(runs(), found["runs"], strict=True):
        ctas = 1 if run.alone else found["gpu"]["n_sm"]
        assert [len(spans) for spans in row["spans"]] == [ctas] * 5
        rate = per_clock(run, row["spans"])
        assert (rate > 3.9) if run.alone else (0.01 < rate < 4.0), run  # four schedulers issue one per clock each


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"h200": {"from_seq_len": {"0": 26}}}', "greater than or equal to 1"),
        ('{"h200": {"from_seq_len": {}}}', "at least 1 item"),
        ('{"h200": ', "line 1"),
    ],
)
def test_a_file_of_another_form_is_one_line(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "fastest.json"
    path.write_text(text)
    assert re.search(f"{says}.*invoke report writes it", error_line(load_fastest, path))


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Choices]]:
    """Calls `choices` with other tables and without its cache."""

    def chosen(gpu: str, arch: str, **tables: Fastest) -> Choices:
        monkeypatch.setattr(selection, "load_fastest", lambda: tables)
        choices.cache_clear()
        return choices(gpu, arch)

    yield chosen
    choices.cache_clear()


def test_a_gpu_takes_its_own_table_before_that_of_its_configurations(choose: Callable[..., Choices]) -> None:
    """Lengths ascend. After the first choice come the other steps by rank, and then those without a rank."""
    h200 = Fastest(from_seq_len={1: 26}, ranking=(26, 28, 19, 20))
    h100 = Fastest(from_seq_len={4096: 24, 1: 25, 512: 27})
    found = choose("NVIDIA H100 80GB HBM3", "sm_90", h100=h100, h200=h200)
    assert [(start, steps[:6]) for start, steps in found] == [
        (1, (25, 26, 28, 19, 20, 27)), (512, (27, 26, 28, 19, 20, 25)), (4096, (24, 26, 28, 19, 20, 27)),
    ]  # fmt: skip
    unmeasured = tuple(step.number for step in reversed(load_all()) if step.unmeasured)
    assert all(len(set(steps)) == len(steps) and steps[-len(unmeasured) :] == unmeasured for _, steps in found)
    ((start, steps),) = choose("NVIDIA GH200 480GB", "sm_90", h100=h100, h200=h200)
    assert (start, steps[0]) == (1, 26)


def test_steps_that_a_gpu_does_not_run_are_not_taken(choose: Callable[..., Choices]) -> None:
    """A table with such a step is ignored; a GPU that runs no step is an error."""
    table = Fastest(from_seq_len={1: 26}, ranking=(26, 7))
    ((start, steps),) = choose("NVIDIA A100-SXM4-80GB", "sm_80", a100=table)
    assert (start, steps) == (1, tuple(sorted(steps, reverse=True))), "later steps first"
    assert all(load_iteration(step).family.runs_on("sm_80") for step in steps)
    with pytest.raises(FlashladderError, match=r"^no step runs on this GPU: expected .*8\.0.*, found sm_75$"):
        choose("Tesla T4", "sm_75", a100=table)
