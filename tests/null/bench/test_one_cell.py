"""The script for strangers: short, refuses politely, and on a made-up GPU it tells who is faster, and by how much."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
import itertools
import runpy
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from flashladder.paths import ROOT

SCRIPT = ROOT / "examples" / "one_cell.py"
MS = {"flashladder_27": 2.0, "cudnn": 3.0, "fa3": 2.4, "fa4": 2.5}


MODULES = {"fa3": "flash_attn_interface", "fa4": "flash_attn.cute"}
VERSIONS = {"flashladder_27": "0.1.0", "flash-attn-3": "3.0.0", "flash-attn-4": "4.0"}


class Gpu:
    """Launches take the times of `MS`; events tell when they were queued."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def call(self, name: str) -> Callable[..., torch.Tensor]:
        def launch(q: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
            self.now += MS[name]
            self.log.append(name)
            return torch.zeros_like(q)

        return launch

    def event(self, *, enable_timing: bool) -> Event:
        assert enable_timing
        return Event(self)


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.at = gpu, -1.0

    def record(self) -> None:
        self.at = self.gpu.now

    def elapsed_time(self, end: Event) -> float:
        return end.at - self.at


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """An H200 on which all three run."""
    made, on_cpu = Gpu(), {name: getattr(torch, name) for name in ("randn", "empty")}
    for name, function in on_cpu.items():
        monkeypatch.setattr(torch, name, lambda *a, function=function, **b: function(*a, **{**b, "device": "cpu"}))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "Event", made.event)
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


@pytest.mark.parametrize(
    ("missing", "best"), [("fa3", "1.250 times as fast as fa4"), ("fa4", "1.200 times as fast as fa3")]
)
def test_a_library_that_is_not_installed_is_one_line(
    missing: str, best: str, gpu: Gpu, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, MODULES[missing], None)
    assert ran(monkeypatch, "--seq-len", "32") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"without {missing.upper()} (")
    assert "pip install" in lines[0]
    assert best in lines[-1]
    assert set(gpu.log) == MS.keys() - {missing}


@pytest.mark.usefixtures("gpu")
def test_another_gpu_or_no_wheel_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "flashladder_26", None)  # as where it is not installed
    assert ran(monkeypatch, "--iteration", "26") == 2
    told = capsys.readouterr().err
    assert told.startswith("error: cannot load flashladder_26 (")
    assert "; `invoke build 26` makes its wheel" in told
    refused = "error: expected an H100 or H200 that torch can use, found none; run this on one\n"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    assert (ran(monkeypatch), capsys.readouterr().err) == (2, refused)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert (ran(monkeypatch), capsys.readouterr().err) == (2, refused)


@pytest.mark.parametrize("text", ["abc", "0", "-3", "1.5"])
def test_a_length_that_is_none_is_named(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran(monkeypatch, f"--seq-len={text}") == 2
    assert f"expected a whole number from 1 on, found '{text}'" in capsys.readouterr().err
