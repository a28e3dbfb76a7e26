"""The bench without a GPU: a group on CPU tensors, resuming, the command line, estimates."""

from __future__ import annotations

import argparse
import functools
from pathlib import Path

import pytest
import torch

from flashladder.bench import command as bench
from flashladder.bench import references
from flashladder.bench.references import kernel_subject
from flashladder.bench.timing import bench_group, prepare
from flashladder.build.installed import Installed, chosen_configs
from flashladder.errors import CheckFailed, FlashladderError
from flashladder.ladder.config import KernelConfig
from flashladder.problem import Shape
from flashladder.results.derive import Plan, derive, problems
from flashladder.results.files import load_result, write_result
from flashladder.results.schema import A_A, BenchResult, kernel_key
from tests.null.bench.test_timing_null import FakeGpu
from tests.null.bench_fixture import FAST, GPU, kernel, result
from tests.null.check.test_check_null import attention, right, zeros

TINY = Shape(batch=1, seq_len=64, n_heads=2, d_head=128)
CONFIG = KernelConfig.parse(FAST)
PLAN = Plan(pairs=4, blocks=2, min_pairs=4, input_sets=2)
SMALL = prepare("fp16", TINY, PLAN, "cpu")


def test_a_group_holds_all_that_its_tables_need() -> None:
    gpu = FakeGpu()
    kernels = [kernel_subject(16, CONFIG, right), kernel_subject(15, CONFIG, zeros)]

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        gpu.now += 2.0
        return attention(q, k, v)

    def slow(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, config: str) -> None:
        gpu.now += 4.0
        right(q, k, v, out, config)

    kernels.append(kernel_subject(1, CONFIG, slow))
    made = bench_group(gpu.hardware(), kernels, SMALL, PLAN, process=3, warm_up_s=0.1, reference=reference)
    by_key = {series.kernel: series for series in made.series}
    assert list(by_key) == [A_A, *(one.key for one in kernels)]
    assert made.process == 3
    assert len(made.input_seeds) == 2
    assert made.warm_up_s >= 0.1
    wrong, slower = by_key[kernels[1].key], by_key[kernels[2].key]
    assert wrong.pairs == ()
    assert wrong.before is not None
    assert not wrong.before.ok
    assert wrong.after is None
    assert len(slower.pairs) == 4
    assert {(round(pair.reference_us), round(pair.kernel_us)) for pair in slower.pairs} == {(2000, 4000)}
    assert {pair.input_set for pair in slower.pairs} == {0, 1}
    assert slower.after is not None
    assert slower.after.ok


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


def test_resuming_takes_over_groups_and_counts_processes(tmp_path: Path) -> None:
    path = write_result(tmp_path / "bench.json.gz", derive(result()))
    fresh = result().model_copy(update={"groups": ()})
    again = bench.earlier(path, fresh)
    assert again.groups == derive(result()).groups
    assert [process.index for process in again.processes] == [0, 1]
    assert bench.earlier(tmp_path / "none.json", fresh) is fresh
    assert bench.earlier(None, fresh) is fresh


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


def parsed(*argv: str) -> argparse.Namespace:
    return bench.parse_arguments(argv)


def test_defaults() -> None:
    options = parsed("7")
    assert options.seq_lens == [512, 1024, 2048, 4096, 8192, 16384]
    assert options.dtypes == ["fp16", "bf16"]
    assert options.plan.pairs >= 20
    tune = parsed("16", "--tune")
    assert tune.seq_lens == [4096]
    assert tune.plan.pairs < options.plan.pairs


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "give iterations"),
        (["7", "--pairs", "5"], "at least 20"),
        (["7", "--seq-lens", "500"], "invalid choice"),
        (["7", "--dtype", "fp32"], "invalid choice"),
    ],
)
def test_bad_arguments(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parsed(*argv)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(FlashladderError, match=r"no GPU here: .*; `invoke check N --backend emulator`"):
        bench.main(["7"])


def test_a_gpu_without_configurations_of_its_own_times_everybodys() -> None:
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
    made = load_result(out)
    assert isinstance(made, BenchResult)
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
    again = load_result(out)
    assert isinstance(again, BenchResult)
    assert [group.process for group in again.groups] == [0, 0, 0, 0, 2]


def test_a_wrong_kernel_is_not_timed_and_fails_the_command(simulated: FakeGpu, tmp_path: Path) -> None:
    argv = ["15", "16", "--configs", "a100", "--dtype", "fp16", "--seq-lens", "512", "--out", str(tmp_path / "b.json")]
    with pytest.raises(CheckFailed, match="not correct before timing") as caught:
        bench.main(argv)
    assert caught.value.exit_code == 1
    made = load_result(tmp_path / "b.json")
    assert isinstance(made, BenchResult)
    assert {summary.kernel[:2] for summary in made.summaries} == {"16"}


def test_tuning_ranks_what_was_built(simulated: FakeGpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "tune.json"
    assert bench.main(["16", "--tune", "--dtype", "fp16", "--out", str(out)]) == 0
    made = load_result(out)
    assert isinstance(made, BenchResult)
    assert made.purpose == "tune"
    assert len(made.kernels) == 1
    assert "best 1 of 1" in capsys.readouterr().out


def test_a_spent_budget_keeps_what_there_is(simulated: FakeGpu, tmp_path: Path) -> None:
    with pytest.raises(FlashladderError, match="not finished"):
        bench.main(["16", "--configs", "a100", "--budget", "0.0001", "--out", str(tmp_path / "bench.json")])
