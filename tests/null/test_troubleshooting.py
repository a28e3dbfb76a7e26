"""docs/troubleshooting.md: each of its headings is what a tool says, provoked here; each message has one heading."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import re
from types import SimpleNamespace
from typing import Any

import pytest

from flashladder.__main__ import main
from flashladder.build import compile as compiler
from flashladder.build import installed, wheel
from flashladder.errors import CheckFailed, FlashladderError, one_line_errors
from flashladder.gpu import doctor
from flashladder.gpu.device import exclusive
from flashladder.ladder.iteration import load_iteration
from flashladder.lock import command as lock
from flashladder.paths import ROOT
from flashladder.report import command as report
from flashladder.sweep import place as devices
from flashladder.sweep.records import held
from flashladder.toolchain import wheels
from flashladder.toolchain.errors import diagnose

HEADINGS = re.findall(r"^### (.+)$", (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE)
Patch = pytest.MonkeyPatch


def asked(*words: str) -> Callable[[Patch, Path], None]:
    return lambda patch, folder: main(words)


def failed(returncode: int, text: str) -> Callable[[Patch, Path], None]:
    def run(patch: Patch, folder: Path) -> None:
        raise diagnose("nvcc", returncode, text, folder / "nvcc.log", folder)

    return run


def without_compiler(patch: Patch, folder: Path) -> None:
    patch.delenv("CXX", raising=False)
    patch.setenv("PATH", str(folder))
    wheels.host_compiler()


def no_program(patch: Patch, folder: Path) -> None:
    patch.setenv("CXX", "g++ -m64")
    wheels.host_compiler()


def another_toolchain(patch: Patch, folder: Path) -> None:
    patch.setattr(wheels, "_installed", lambda _: "1.0")
    wheels.find_toolchain()


def another_root(patch: Patch, folder: Path) -> None:
    patch.setenv("FLASHLADDER_ROOT", str(folder))
    patch.setattr("flashladder.errors.ROOT", folder)
    with one_line_errors():
        pass


def serialised(patch: Patch, folder: Path) -> None:
    step, usage = load_iteration(24), SimpleNamespace(warnings=("ptxas info : (C7512) serialized",))
    usage.stack = usage.spill_stores = usage.spill_loads = 0
    entry: Any = SimpleNamespace(usage=usage, log=folder / "ptxas.log", arch="sm_90a")
    compiler._require_good(step, step.configs["h200"], entry)


def without_gpu(patch: Patch, folder: Path) -> None:
    patch.setattr(doctor, "n_gpus", lambda: 0)
    doctor.require_gpu()


def without_cuda(patch: Patch, folder: Path) -> None:
    patch.setattr(doctor, "n_gpus", lambda: 1)
    patch.setattr(doctor, "torch_build", lambda: doctor.TorchBuild("2.13.0", None))
    doctor.require_gpu()


def without_wheel(patch: Patch, folder: Path) -> None:
    patch.setattr(wheel, "package_folder", lambda _: None)
    installed.load_installed(7)


def card(name: str) -> Any:
    """What a card is chosen by."""
    return SimpleNamespace(name=name)


def another_gpu(patch: Patch, folder: Path) -> None:
    devices.fitting([card("NVIDIA H200")], "a100", anyway=False)


def two_models(patch: Patch, folder: Path) -> None:
    devices.fitting([card("NVIDIA H200"), card("NVIDIA L4")], "any", anyway=False)


def two_timers(patch: Patch, folder: Path) -> None:
    with exclusive("GPU-1", folder), exclusive("GPU-1", folder):
        pass


def two_sweeps(patch: Patch, folder: Path) -> None:
    with held(folder, None), held(folder, None):
        pass


def another_code(patch: Patch, folder: Path) -> None:
    patch.setattr(lock, "read_lock", lambda *_: {})
    patch.setattr(lock, "snapshot", lambda *_, **__: {})
    patch.setattr(lock, "compare", lambda *_, **__: ["a difference"])
    patch.setattr(lock, "harmless_edits", lambda *_: [])
    patch.setattr(lock, "explain", str)
    if failure := lock.check(["sm_80"]).failure:
        raise failure


def another_table(patch: Patch, folder: Path) -> None:
    found = report.stale({folder / "table.md": b"text"})
    assert found
    raise CheckFailed(f"stale: {found[0]}")


MESSAGES: dict[str, Callable[[Patch, Path], None]] = {
    "no C++ compiler found": without_compiler,
    "CXX does not name": no_program,
    "not one that nvcc supports": failed(
        1, "#error -- unsupported GNU version! gcc versions later than 15 are not supported!"
    ),
    "not the pinned one": another_toolchain,
    "FLASHLADDER_ROOT": another_root,
    "no such task": asked("nosuch"),
    "the disk is full": failed(1, "fatal error: No space left on device"),
    "nvcc was killed": failed(-9, ""),
    "unknown GPU architecture": asked("ptxas", "7", "--arch", "sm_12"),
    "is of the family hopper": asked("build", "24", "--arch", "sm_80"),
    "not fit to ship": serialised,
    "no GPU here": without_gpu,
    "no torch that can use": without_cuda,
    "iteration 7 is not installed": without_wheel,
    "seq_len does not fit": asked("emulate", "1", "--seq-len", "100"),
    "explain follows one warp": asked("explain", "24"),
    "the grid was made for": another_gpu,
    "GPUs of different models": two_models,
    "another flashladder process": two_timers,
    "another sweep measures": two_sweeps,
    "the machine-code lock": another_code,
    "stale": another_table,
}
"""A part of each heading to what provokes it."""


def test_every_heading_is_provoked_and_no_more() -> None:
    assert len(HEADINGS) == len(set(HEADINGS)) == len(MESSAGES)
    for part in MESSAGES:
        assert sum(part in heading for heading in HEADINGS) == 1, part


@pytest.mark.parametrize("part", MESSAGES)
def test_a_heading_is_what_is_said(
    part: str, tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    (heading,) = (one for one in HEADINGS if part in one)
    with pytest.raises((FlashladderError, SystemExit)) as caught:
        MESSAGES[part](monkeypatch, tmp_path)
    said = str(caught.value) if isinstance(caught.value, FlashladderError) else capsys.readouterr().err
    assert heading in said
    assert "\n" not in said.strip()
