"""`build`: what is asked of compiler and linker, without either."""

from __future__ import annotations

from dataclasses import replace
import errno
import fcntl
from importlib import metadata
import os
from pathlib import Path
import re
from unittest.mock import Mock

import pytest

from flashladder.build import command as build
from flashladder.build import compile as compiling
from flashladder.build import library as native
from flashladder.build.command import is_fresh
from flashladder.build.store import TOOLS_FILE, Tools, read_recorded
from flashladder.errors import FlashladderError
from flashladder.files import dump_json, sha256
from flashladder.ladder.iteration import load_all, load_iteration
from tests.null.build.test_store import Lab
from tests.typed import error_line


@pytest.fixture
def build_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of builds, on a machine without a GPU."""
    monkeypatch.setattr(build, "BUILD", tmp_path / "build")
    for module in (build, compiling):
        monkeypatch.setattr(module, "gpu_arch", lambda: None)
    return tmp_path / "build"


@pytest.mark.parametrize(
    ("arch", "key", "debug", "expected"),
    [
        (None, "prog", False, "sm_80"),
        ("", "prog", False, "sm_80"),  # as in a shell variable that is not set
        ("sm_80", "prog:a100", True, "sm_80_prog-a100_debug"),
        ("sm_86", "128,64", False, "sm_86_128-64"),
    ],
)
def test_each_variant_has_a_folder_of_its_own(
    build_folder: Path, arch: str | None, key: str, debug: bool, expected: str
) -> None:
    assert build.make_request(7, arch, key, debug=debug).folder == build_folder / "iteration_07" / expected


def test_an_ablation_and_another_compiler_have_a_wheel_and_a_folder_of_their_own(build_folder: Path) -> None:
    both = build.make_request("16 - swizzle", "sm_90", "prog", cuda="13.1")
    assert both.subject.package == "flashladder_16_minus_swizzle_cuda_13_1"
    assert both.folder == build_folder / "iteration_16_minus_swizzle_cuda_13_1" / "sm_90"
    assert not any("swizzled" in str(config) for config in both.configs)
    pinned = build.make_request("16", "sm_90", "prog", cuda="13.0")
    assert (pinned.subject.package, pinned.folder) == ("flashladder_16", build_folder / "iteration_16" / "sm_90")


def test_machine_code_for_another_gpu_is_a_warning_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "gpu_arch", lambda: "sm_90")
    build.make_request(7, "sm_80", "prog")
    assert "the GPU here is sm_90, but the machine code is for sm_80" in (warning := capsys.readouterr().err)
    assert "--arch sm_80,sm_90" in warning
    build.make_request(7, "sm_80,sm_90", "prog")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("damage", ["changed", "missing", "no manifest", "{", "[]"])
def test_a_whole_build_of_the_same_inputs_is_fresh_and_a_damaged_one_is_not(tmp_path: Path, damage: str) -> None:
    wheel, manifest = tmp_path / "a.whl", tmp_path / "manifest.json"
    wheel.write_text("wheel")
    manifest.write_text(dump_json({"inputs_digest": "d", "outputs": {"a.whl": sha256("wheel")}}))
    assert is_fresh(tmp_path, "d")
    assert not is_fresh(tmp_path, "e")
    if damage == "changed":
        wheel.write_text("other")
    elif damage in ("missing", "no manifest"):
        (wheel if damage == "missing" else manifest).unlink()
    else:
        manifest.write_text(damage)
    assert not is_fresh(tmp_path, "d")


def test_two_builds_of_one_iteration_are_one_clear_line(build_folder: Path) -> None:
    folder = build_folder / "iteration_07"
    folder.mkdir(parents=True)
    with (folder / ".lock").open("w") as other:
        other.write("4711\n")
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        error = error_line(build.main, ["7", "--no-install"])
    assert "another build of iteration 7 is running" in error
    assert "found process 4711" in error


def test_the_last_line_says_whether_it_is_installed_and_what_is_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "build_iteration", lambda *_, **__: build.BuildResult(tmp_path, [], True))
    build.main(["16 - swizzle", "--no-install"])
    assert capsys.readouterr().out.endswith("\nnot installed; next: invoke emulate '16 - swizzle'\n")


def test_all_iterations_are_compiled_in_one_pass_then_linked_and_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled, made = Mock(), Mock(return_value=build.BuildResult(tmp_path, [], False))
    monkeypatch.setattr(build, "find_toolchain", Mock())
    monkeypatch.setattr(native, "host_objects", Mock())
    monkeypatch.setattr(build, "compile_many", compiled)
    monkeypatch.setattr(build, "build_iteration", made)
    build.main(["--all", "--arch", "sm_90", "--configs", "a100"])
    numbers = [iteration.number for iteration in load_all()]
    ((jobs, _), _) = compiled.call_args
    assert sorted({iteration.number for iteration, *_ in jobs}) == numbers
    assert {arch for _, _, arch in jobs} == {"sm_90", "sm_90a"}
    assert sorted(call.args[0] for call in made.call_args_list) == numbers
    assert all(call.kwargs["install"] is False for call in made.call_args_list)
    assert re.findall(r"^iteration (\d+): built: ", capsys.readouterr().out, re.MULTILINE) == list(map(str, numbers))


@pytest.mark.parametrize("words", [[], ["--all", "7"]])
def test_one_iteration_or_all(words: list[str]) -> None:
    assert "give one iteration, or --all" in error_line(build.main, words)


def test_a_build_folder_that_cannot_be_written_is_one_line(build_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse = Mock(side_effect=OSError(errno.EROFS, os.strerror(errno.EROFS), "file"))
    for method in ("mkdir", "open"):  # there is no folder; there is one, without a lock file
        with monkeypatch.context() as patch:
            patch.setattr(Path, method, refuse)
            error = error_line(build.main, ["7", "--no-install"])
        assert re.match(r".*iteration_07: the build could not use a file \(Read-only file ", error)
        (build_folder / "iteration_07").mkdir(parents=True, exist_ok=True)
    assert not list((build_folder / "iteration_07").iterdir())


def test_torch_that_is_missing_or_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", Mock(side_effect=metadata.PackageNotFoundError))
    assert "found no torch; run: pip install 'torch>=2.10'" in error_line(native.torch_version)
    monkeypatch.setattr(metadata, "version", lambda _: "2.9.1+cu130")
    assert "expected 2.10 or later, found 2.9.1" in error_line(native.torch_version)


def test_a_family_has_a_default_among_its_own_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    step = load_iteration(24)
    for found in ("sm_80", None):
        monkeypatch.setattr(compiling, "gpu_arch", lambda found=found: found)
        assert compiling.default_arch(step.family) == "sm_90a"
        assert compiling.arches_of(step, None) == ("sm_90a",)
    assert compiling.arches_of(load_iteration(16), "sm_90, sm_80,sm_90") == ("sm_90", "sm_80")
    assert "no code for this: expected sm_90a, found sm_80" in error_line(compiling.arches_of, step, "sm_80")
    with pytest.raises(FlashladderError, match=r"family ampere, which has no code for this: .* found sm_90a"):
        compiling.arches_of(load_iteration(16), "sm_90a")


@pytest.fixture
def here(tmp_path: Path) -> Tools:
    """The tools of this machine."""
    return Lab(tmp_path / "here").tools


@pytest.fixture
def store(tmp_path: Path, here: Tools, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store that came with a record, on a machine without tools."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / TOOLS_FILE).write_text(here.record(), encoding="utf-8")
    for name in ("find_toolchain", "host_compiler"):
        monkeypatch.setattr(compiling, name, Mock(side_effect=AssertionError))
    monkeypatch.setattr("flashladder.build.store.STORE", tmp_path / "store")
    return tmp_path / "store"


def test_recorded_tools_find_what_the_real_ones_made_and_name_no_place(store: Path, here: Tools) -> None:
    step = load_iteration(1)
    config = step.configs["a100"]
    tools = compiling.tools_of()
    assert (tools.recorded, here.recorded, tools.record()) == (True, False, here.record())
    assert "/" not in here.record()
    assert read_recorded(store / "elsewhere") is None
    assert compiling.ptx_planned(step, config, tools).key == compiling.ptx_planned(step, config, here).key
    other = replace(here, ptx_versions={**here.ptx_versions, "host compiler": "g++ 13"})
    assert compiling.ptx_planned(step, config, tools).key != compiling.ptx_planned(step, config, other).key


def test_what_is_not_in_the_store_is_one_line_and_nothing_is_written(store: Path) -> None:
    step = load_iteration(1)
    with pytest.raises(FlashladderError, match="2 of the kernels that this needs did not come with the bundle"):
        compiling.cubin_for(step, step.configs["a100"], "sm_80")
    assert "1 of the kernels" in error_line(compiling.ptx_for, step, step.configs["a100"])
    assert [path.name for path in store.iterdir()] == [TOOLS_FILE]


@pytest.mark.parametrize("text", ["[]", '{"nvcc_flags": 1}', "\xff"])
def test_a_broken_record_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / TOOLS_FILE).write_text(text, encoding="latin-1")
    assert "the record of the tools that compiled these kernels is broken" in error_line(read_recorded, tmp_path)
