"""Many entries through ninja (fake compilers): each once, in order, and a failure is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashladder.build import store as scheduler
from flashladder.build.store import (
    CubinEntry,
    PtxEntry,
    Tools,
    cubin_entry,
    fill_all,
    ptx_entry,
)
from flashladder.errors import FlashladderError
from tests.null.store_fixture import PTXAS

NVCC = 'for out; do :; done\necho x >> "$(dirname "$0")/runs"\ncat kernel.cu > "$out"'


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture(params=["plain", "with space, $dollar, 'quote' and :colon"])
def root(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return tmp_path / str(request.param)


def tools(root: Path) -> Tools:
    return Tools(
        root=root,
        nvcc=script(root / "bin" / "nvcc", NVCC),
        ptxas=script(root / "bin" / "ptxas", PTXAS),
        host_compiler=Path("/usr/bin/g++"),
        nvcc_flags=("-arch=compute_80",),
        ptxas_flags=("-v",),
        ptx_versions={"nvcc": "1"},
        ptxas_version="1",
    )


def entries(root: Path, n_units: int = 3, arches: tuple[str, ...] = ("sm_80", "sm_90")) -> list[CubinEntry]:
    chosen, kernels = tools(root), root / "kernels"
    kernels.mkdir(exist_ok=True)
    units = [ptx_entry(f"int unit_{number};\n", kernels, [], chosen, root / "store") for number in range(n_units)]
    return [cubin_entry(unit, arch, chosen, root / "store") for unit in units for arch in arches]


def runs(root: Path) -> int:
    return len((root / "bin" / "runs").read_text().splitlines())


def test_each_source_is_compiled_once_for_all_architectures(root: Path) -> None:
    wanted = entries(root)
    fill_all(wanted + wanted, n_jobs=2)
    assert runs(root) == 3
    assert [entry.cubin.read_text() for entry in wanted[::2]] == [f"int unit_{number};\n" for number in range(3)]
    assert {entry.usage.arch for entry in wanted} == {"sm_80", "sm_90"}
    assert not list((root / "store").glob(".ninja-*"))


def test_nothing_missing_needs_no_ninja(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = entries(tmp_path)
    fill_all(wanted)
    monkeypatch.setattr(scheduler, "find_ninja", lambda: pytest.fail("asked for ninja"))
    monkeypatch.setattr(scheduler, "prepare", lambda entry: pytest.fail("prepared an entry"))
    fill_all(wanted)
    fill_all([])
    assert runs(tmp_path) == 3


def failing(root: Path, tool: str, text: str) -> FlashladderError:
    wanted = entries(root)
    script(root / "bin" / tool, text)
    with pytest.raises(FlashladderError) as caught:
        fill_all(wanted, n_jobs=1)
    assert not any(entry.is_complete for entry in wanted)
    assert not list((root / "store").glob(".ninja-*"))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    return caught.value


def test_a_compile_error_comes_through_as_one_line(root: Path) -> None:
    error = failing(root, "nvcc", "echo 'kernel.cu(4): error: no such thing'; exit 1")
    assert error.what == "nvcc: no such thing"
    assert str(error.where).endswith("/kernel.cu:4")
    assert "nvcc.log" in str(error.hint)


def test_a_killed_ptxas_suggests_fewer_jobs(tmp_path: Path) -> None:
    assert "ptxas was killed (signal 9)" in (said := str(failing(tmp_path, "ptxas", "kill -9 $$")))
    assert "--jobs 1" in said


def test_a_killed_worker_suggests_fewer_jobs(tmp_path: Path) -> None:
    assert "ran out of memory; use fewer jobs" in str(failing(tmp_path, "nvcc", "kill -9 $PPID"))


def test_waiting_for_another_build_is_announced_before_ninja_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted: list[PtxEntry | CubinEntry] = [*entries(tmp_path)]
    monkeypatch.setattr(scheduler, "lock_holder", lambda folder: "4711" if folder == wanted[0].folder else None)
    fill_all(wanted)
    assert capsys.readouterr().err.splitlines() == ["waiting for process 4711, which builds some of the same kernels"]
