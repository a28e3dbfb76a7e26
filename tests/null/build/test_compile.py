"""Compiling without a compiler: arguments, default architectures, and tools that only a record names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flashladder.build import compile as build_compile
from flashladder.build import compile as compiling
from flashladder.build.store import TOOLS_FILE, Tools, read_recorded
from flashladder.errors import FlashladderError
from flashladder.ladder.families.ampere import Ampere
from flashladder.ladder.family import Targets
from flashladder.ladder.iteration import load_iteration


def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        compiling.main(["--iteration", "7", "--arch", "sm_80,sm_12"])
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("error: unknown GPU architecture: expected one of sm_80")


def test_the_default_arch_is_the_gpus_where_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for found, chosen in (("sm_90", "sm_90"), ("sm_120", "sm_80"), (None, "sm_80")):
        monkeypatch.setattr(compiling, "gpu_arch", lambda found=found: found)
        assert compiling.default_arch() == chosen


def test_a_family_has_a_default_among_its_own_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    class Newest(Ampere):
        """As Ampere, made for one GPU."""

        targets = Targets("compute_90", ("sm_90",))

    step = replace(load_iteration(16), family=Newest())
    for found in ("sm_80", None):
        monkeypatch.setattr(compiling, "gpu_arch", lambda found=found: found)
        assert compiling.default_arch(Newest()) == "sm_90"
        assert compiling.arches_of(step, None) == ("sm_90",)
    assert compiling.arches_of(load_iteration(16), "sm_90, sm_80,sm_90") == ("sm_90", "sm_80")
    with pytest.raises(
        FlashladderError, match="family ampere, which has no code for this: expected sm_90, found sm_80"
    ):
        compiling.arches_of(step, "sm_80")


HERE = Tools(
    root=Path("/cuda"),
    nvcc=Path("/cuda/bin/nvcc"),
    ptxas=Path("/cuda/bin/ptxas"),
    host_compiler=Path("/usr/bin/g++"),
    nvcc_flags=("-arch=compute_80", "-lineinfo"),
    ptxas_flags=("-v",),
    ptx_versions={"nvidia-cuda-nvcc": "13.0.88", "host compiler": "g++ (Debian) 12"},
    ptxas_version="13.0.88",
)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store that came with a record, where nothing can be asked for its version."""
    (tmp_path / TOOLS_FILE).write_text(HERE.record(), encoding="utf-8")

    def missing(*_: Any) -> None:
        raise AssertionError

    for name in ("find_toolchain", "host_compiler"):
        monkeypatch.setattr(build_compile, name, missing)
    monkeypatch.setattr(build_compile, "STORE", tmp_path)
    return tmp_path


def test_a_record_is_read_as_it_was_written_and_names_no_place(store: Path) -> None:
    found = read_recorded(store)
    assert found is not None
    assert found.record() == HERE.record()
    assert "/" not in HERE.record().replace("(Debian)", "")
    assert read_recorded(store / "elsewhere") is None


def test_its_tools_find_what_the_real_ones_made(store: Path) -> None:
    step = load_iteration(1)
    config = step.configs["a100"]
    tools = build_compile.tools_of()
    assert tools.recorded
    assert not HERE.recorded
    assert build_compile.ptx_planned(step, config, tools).key == build_compile.ptx_planned(step, config, HERE).key
    other = replace(HERE, ptx_versions={**HERE.ptx_versions, "host compiler": "g++ 13"})
    assert build_compile.ptx_planned(step, config, tools).key != build_compile.ptx_planned(step, config, other).key


def test_what_is_not_in_the_store_is_one_line_and_nothing_is_written(store: Path) -> None:
    step = load_iteration(1)
    with pytest.raises(FlashladderError, match="2 of the kernels that this needs did not come with the bundle"):
        build_compile.cubin_for(step, step.configs["a100"], "sm_80")
    with pytest.raises(FlashladderError, match="1 of the kernels"):
        build_compile.ptx_for(step, step.configs["a100"])
    assert [path.name for path in store.iterdir()] == [TOOLS_FILE]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"nvcc_flags": 1}', "\xff"])
def test_a_broken_record_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / TOOLS_FILE).write_text(text, encoding="latin-1")
    with pytest.raises(FlashladderError, match="the record of what compiled these kernels is broken"):
        read_recorded(tmp_path)
