"""References as arms: timed, checked and recorded as kernels are; one that is missing is one line and no failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import json
from pathlib import Path
import re
import subprocess
import sys
from typing import Any
from unittest.mock import Mock, call
import warnings

import pytest
import torch

from flashladder.bench import command as bench
from flashladder.bench import references
from flashladder.bench.references import PROBE, Backend, Subject, arms, lacking, longest_kernel, profiled
from flashladder.bench.timing import bench_group
from flashladder.cases.inputs import Tensors, torch_dtype
from flashladder.errors import FlashladderError
from flashladder.problem import Problem
from flashladder.results.derive import derive, problems
from flashladder.results.files import load_as
from flashladder.results.schema import A_A, Accuracy, BenchResult, Group, Reference, Series
from tests.null.bench.test_bench import PLAN, SMALL, FakeGpu, simulated
from tests.null.bench_fixture import GOOD, NAMES, group, pairs, result
from tests.null.check.test_check import attention
from tests.typed import error_line

__all__ = ["simulated"]  # a fixture


def missing() -> references.Forward:
    raise ModuleNotFoundError("No module named 'flash_attn'")


def refused() -> references.Forward:
    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        warnings.warn("cuDNN attention wants another GPU", UserWarning, stacklevel=1)
        raise RuntimeError("No available kernel.\nAborting execution.")

    return forward


def fake(forward: Callable[[], references.Forward], version: str = "9.19.0") -> Backend:
    return Backend("op", forward, lambda: version, references.BACKENDS["cudnn"].tile, "cudnn")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three references on this CPU: one that works, one that is not installed, one that refuses this GPU."""
    small = torch.randn(1, 64, 1, 128)

    def probe(dtype: str, _: Problem) -> Tensors:
        q = small.to(torch_dtype(dtype))
        return Tensors(q, q, q, q, q, q)

    monkeypatch.setattr(references, "probe", probe)
    for name, forward in (("cudnn", lambda: attention), ("fa3", missing), ("fa4", missing), ("flash-attn", refused)):
        monkeypatch.setitem(references.BACKENDS, name, fake(forward))


@pytest.mark.usefixtures("here")
def test_a_missing_reference_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    found = arms(["all"], ["fp16", "bf16"])
    assert [(one.key, one.dtype) for one in found.subjects] == [("cudnn", "fp16"), ("cudnn", "bf16")]
    assert list(found.identities) == ["cudnn"]
    assert found.left_out == (
        f"fa3: not installed (No module named 'flash_attn'): {references.INSTALL['fa3']}",
        "fa4: not installed (No module named 'flash_attn'): pip install 'flash-attn-4[cu13]'",
        "flash-attn: does not run on this GPU in fp16: No available kernel. Aborting execution.",
        "flash-attn: does not run on this GPU in bf16: No available kernel. Aborting execution.",
    )
    assert arms(["cudnn", "all", "cudnn"], ["fp16"]).subjects[1:] == ()
    assert arms([]) == references.Arms()
    monkeypatch.setitem(references.BACKENDS, "cudnn", fake(lambda: lambda q, k, v: q / 0))
    assert lacking("cudnn", "fp16") == "cudnn: its output in fp16 on this GPU is not finite"


@pytest.mark.parametrize(
    ("name", "kernel", "tile"),
    [
        ("fa2", NAMES["fa2"], "128x64"),
        ("flash-attn", NAMES["flash-attn"], "128x64"),
        ("cudnn", NAMES["cudnn"], "64x128x128"),
        ("cudnn", "cudnn_sdpa", None),
        ("fa4", "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm80Flash", None),
        ("fa3", NAMES["fa3"], "128x176"),
        ("fa3", NAMES["fa3"].replace("cute::C<", "cute::C<(int)"), "128x176"),
    ],
)
def test_a_kernels_name_tells_whose_it_is_and_its_tile(name: str, kernel: str, tile: str | None) -> None:
    assert references.BACKENDS[name].tile(kernel) == tile
    assert [one for one, backend in references.BACKENDS.items() if re.search(backend.marks, kernel)] == [name]


def event(name: str, us: float, where: str = "CUDA") -> Mock:
    made = Mock(device_type=f"DeviceType.{where}", time_range=Mock(elapsed_us=lambda: us))
    made.name = name
    return made


def test_the_longest_launch_is_the_references_kernel() -> None:
    other = [event("aten::randn", 900.0, "CPU"), event("Memset (Device)", 700.0), event("Memcpy DtoD", 600.0)]
    assert longest_kernel([*other, event("prepare", 2.0), event(NAMES["cudnn"], 300.0)]) == NAMES["cudnn"]
    assert longest_kernel(other) is None


def test_the_profiler_is_asked_once_per_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Mock(side_effect=lambda dtype, name, _: NAMES["cudnn"] if dtype == "fp16" else None)
    monkeypatch.setattr(references, "reference_kernel", kernel)
    once = profiled(Reference(op="op", torch="2", cuda="13", kernels={}), "cudnn", ["bf16", "fp16"])
    assert (once.kernels, once.tile) == ({"fp16": NAMES["cudnn"]}, "64x128x128")
    assert profiled(once, "cudnn", ["fp16"]) is once
    assert kernel.mock_calls == [call("bf16", "cudnn", PROBE), call("fp16", "cudnn", PROBE)]


@pytest.mark.parametrize(
    ("written", "name"), [('{"kernel": "flash_fwd"}', "flash_fwd"), ('{"kernel": null}', None), (None, None)]
)
def test_the_profiler_lives_in_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch, written: str | None, name: str | None
) -> None:
    """What counts is what it wrote: CUPTI may end that process as it likes."""

    def run(command: Sequence[str], timeout_s: float) -> tuple[int, str]:
        assert command[:3] == [sys.executable, "-m", "flashladder.bench.references"]
        assert command[3:6] == ["cudnn", "bf16", "--out"]
        assert timeout_s > 0
        if written is not None:
            Path(command[6]).write_text(written, encoding="utf-8")
        return 134, "free(): invalid pointer"

    monkeypatch.setattr(references, "run_bounded", run)
    assert references.reference_kernel("bf16", "cudnn") == name


def test_that_process_ends_without_its_libraries_exit_handlers(tmp_path: Path) -> None:
    program = (
        "import atexit, sys; from flashladder.bench import references as k; atexit.register(print, 'handler ran');"
        "k.seen_kernel = lambda dtype, name, _: f'{name} {dtype}'; k.main(['fa2', 'fp16', '--out', sys.argv[1]])"
    )
    out = tmp_path / "kernel.json"
    done = subprocess.run([sys.executable, "-c", program, str(out)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads(out.read_text(encoding="utf-8")) == {"kernel": "fa2 fp16"}


def test_cudnn_is_asked_for_through_transposed_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is copied: Q, K and V share memory with what was given, and O comes back as (B, S, H, D)."""
    given: list[tuple[int, torch.Size]] = []
    asked: list[dict[str, bool]] = []

    def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: bool) -> torch.Tensor:
        given.extend((one.data_ptr(), one.shape) for one in (q, k, v))
        asked.append(options)
        backends: Any = torch.backends.cuda
        assert (backends.flash_sdp_enabled(), backends.cudnn_sdp_enabled()) == (False, True)
        return q

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", sdpa)
    q, k, v = (torch.randn(2, 64, 3, 128) for _ in range(3))
    out = references.BACKENDS["cudnn"].forward()(q, k, v)
    assert given == [(one.data_ptr(), torch.Size([2, 3, 64, 128])) for one in (q, k, v)]
    assert out.shape == q.shape
    references.BACKENDS["cudnn"].forward()(q, k[:, :, :1], v[:, :, :1], causal=True)
    assert asked == [{"is_causal": False, "enable_gqa": False}, {"is_causal": True, "enable_gqa": True}]


def test_fa2_gets_both_lengths_and_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    op = Mock(side_effect=lambda q, *_: (q,))
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", op)
    q, k = torch.zeros(1, 64, 4, 8), torch.zeros(1, 32, 2, 8)
    problem = Problem(batch=1, seq_len=64, n_heads=4, d_head=8, n_kv_heads=2, mask="causal")
    assert references.on_problem(references.reference_forward, problem)(q, q, q) is q
    assert references.reference_forward(q, k, k) is q
    assert [one.args[5:9] for one in op.mock_calls] == [(64, 64, 0.0, True), (64, 32, 0.0, False)]
    packed = Problem.packing((60, 4), (20, 12), n_heads=4, n_kv_heads=2, d_head=8)
    forward = references.on_problem(references.reference_forward, packed)
    assert forward(q, k, k, bounds=(1, 2), causal=True).shape == q.shape
    assert op.mock_calls[-1].args[3:9] == (1, 2, 60, 20, 0.0, True)


def test_no_reference_has_the_mask_of_unequal_lengths() -> None:
    problem = Problem(batch=1, seq_len=64, n_heads=1, d_head=128, kv_len=32, mask="causal")
    assert "expected kv_len 64, found 32" in error_line(references.on_problem, attention, problem)
    assert "expected kv_len 64, found 32" in str(lacking("fa2", "fp16", problem))
    permuted = Problem.packing((3, 5), (5, 3), n_heads=1, d_head=128, mask="causal")
    assert "with unequal lengths" in error_line(references.on_problem, attention, permuted)


def test_a_reference_is_tried_on_the_heads_the_mask_and_the_keys_of_its_problem() -> None:
    sizes = {"batch": 4, "seq_len": 4096, "n_heads": 32, "d_head": 128}
    own = {"n_kv_heads": 8, "mask": "causal"}
    assert references.like(Problem.model_validate({**sizes, "n_heads": 2})) == PROBE
    assert references.like(Problem.model_validate(sizes | own)) == Problem.model_validate(
        {**PROBE.model_dump(), "n_heads": 32, **own}
    )
    assert references.like(Problem.model_validate(sizes | {"kv_len": 77})).kv_shape == (1, 77, 32, 128)


@pytest.mark.parametrize(
    ("name", "module"), [("fa3", "flash_attn_interface"), ("fa4", "flash_attn.cute"), ("flash-attn", "flash_attn")]
)
def test_a_wheels_arm_is_its_own_function(monkeypatch: pytest.MonkeyPatch, name: str, module: str) -> None:
    """Three packages have a function of one name; each returns O, or O and the log sums."""
    q, k, v, out, sums = (torch.full((1,), float(number)) for number in range(5))
    calls = {}
    for each in ("flash_attn", "flash_attn.cute", "flash_attn_interface"):
        calls[each] = Mock(return_value=out if each == "flash_attn" else (out, sums))
        monkeypatch.setitem(sys.modules, each, Mock(flash_attn_func=calls[each]))
    forward = references.BACKENDS[name].forward()
    assert forward(q, k, v) is forward(q, k, v, causal=True) is out
    asked = [call(q, k, v, causal=causal) for causal in (False, True)]
    assert {each: one.mock_calls for each, one in calls.items() if one.called} == {module: asked}


def test_a_reference_returns_o_and_its_group_may_lack_the_floor() -> None:
    gpu = FakeGpu()
    work = gpu.launch("", 1.0)

    def timed(*subjects: Subject, a_a: bool = False) -> Group:
        hardware, fa2 = gpu.hardware(), lambda *_: work(0)
        return bench_group(hardware, subjects, SMALL, PLAN, process=0, warm_up_s=0.1, a_a=a_a, reference=fa2)

    def right(tensors: Any) -> torch.Tensor:
        work(0)
        before = tensors.out.clone()
        out = attention(tensors.q, tensors.k, tensors.v)
        assert torch.equal(before.view(torch.int16), tensors.out.view(torch.int16))
        return out

    alone = timed(Subject("cudnn", "fp16", right, returns=True))
    assert [series.kernel for series in alone.series] == ["cudnn"]
    assert all(block.order == ("cudnn",) for block in alone.blocks)
    assert [series.kernel for series in timed(a_a=True).series] == [A_A]
    nothing = timed(Subject("cudnn", "fp16", lambda tensors: torch.zeros_like(tensors.q), returns=True))
    assert (nothing.blocks, nothing.warm_up_s) == ((), 0.0)


@pytest.mark.parametrize(("known", "after"), [(True, GOOD), (False, GOOD), (True, None)])
def test_summaries_take_a_reference_that_is_known_and_checked(known: bool, after: Accuracy | None) -> None:
    series = Series(kernel="cudnn", pairs=pairs(1.8, 9), before=GOOD, after=after)
    blocks = tuple(one.model_copy(update={"order": (*one.order, "cudnn")}) for one in group().blocks)
    made = result(group().model_copy(update={"series": (*group().series, series), "blocks": blocks}))
    made = derive(made.model_copy(update={"references": {"cudnn": made.reference} if known else {}}))
    assert round(next(one.pct for one in made.summaries if one.kernel == "cudnn")) == 180
    unknown = "" if known else "the result does not say which machine code this is"
    problem = unknown if after else "not correct after timing"
    assert problems(made) == ([f"cudnn fp16 S=4096: {problem}"] if problem else [])


@pytest.mark.usefixtures("here")
def test_the_command_times_references_and_keeps_them(
    simulated: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        simulated.now += 1.0
        return attention(q, k, v)

    monkeypatch.setitem(references.BACKENDS, "cudnn", fake(lambda: forward))
    monkeypatch.setattr(bench, "reference_identity", references.reference_identity)
    out = tmp_path / "bench.json.gz"
    argv = ["16", "--configs", "a100", "--seq-lens", "512", "--dtype", "fp16", "--out", str(out)]
    bench.main([*argv, "--references", "all"])
    made = load_as(out, BenchResult)
    told = capsys.readouterr().out
    assert told.count("left out: ") == 3
    assert "  cudnn (9.19.0)" in told
    assert {key: one.kernels for key, one in made.references.items()} == {"cudnn": {"fp16": "flash_fwd_fp16_of_cudnn"}}
    assert {round(one.pct): one.kernel[:5] for one in made.summaries} == {125: "16 (F", 200: "cudnn"}
    assert problems(made) == []
    launches = len(simulated.log)
    bench.main([*argv, "--references", "cudnn"])
    assert len(simulated.log) == launches  # nothing was left to time
    bench.main(argv)
    assert load_as(out, BenchResult).references == made.references
    monkeypatch.setitem(references.BACKENDS, "cudnn", fake(lambda: forward, version="9.20.0"))
    with pytest.raises(FlashladderError, match=r"another version of cudnn: expected 9\.20\.0, found 9\.19\.0"):
        bench.main([*argv, "--references", "cudnn"])
