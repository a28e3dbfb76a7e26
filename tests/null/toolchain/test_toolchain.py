"""The toolchain is the pinned one, another one from its lock file, or an error that says what to install."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
import re
import sys
import types

import pytest

from flashladder import toolchain
from flashladder.build import wheel as toolchains
from flashladder.build.wheel import provide, toolchain_of
from flashladder.errors import FlashladderError
from flashladder.toolchain import find_ninja, find_toolchain, gpu_arch, host_compiler, load_pins
from tests.data_files import text_of
from tests.null.gpu.test_telemetry import FakeNvml
from tests.typed import error_line

INSTALLED = (*toolchain.COMPILERS, *toolchain.READERS, *toolchain.NVCC_READS)


def script(path: Path, text: str = "exit 0") -> Path:
    """An executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment with all wheels at their pins; a test changes the versions or removes files."""
    versions = dict(load_pins().packages)
    for name in INSTALLED:
        script(tmp_path / "nvidia" / "cu13" / name)

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(toolchain, "_cuda_root", lambda _: tmp_path / "nvidia" / "cu13")
    return versions


def test_malformed_pins(tmp_path: Path) -> None:
    path = tmp_path / "toolchain.yaml"
    path.write_text("cuda: '13.0'")
    assert error_line(load_pins, path).startswith(f"{path}:1: missing key 'packages'")


def test_another_version_or_none_is_an_error_and_nvcc_on_path_is_not_taken(
    wheels: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels["nvidia-nvvm"] = "13.3.1"
    assert "expected nvidia-nvvm==13.0.88, found nvidia-nvvm 13.3.1" in error_line(find_toolchain)
    script(tmp_path / "path" / "nvcc")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    del wheels["nvidia-cuda-nvcc"]
    with pytest.raises(
        FlashladderError, match=r"found nvidia-cuda-nvcc missing.*; run: pip install nvidia-cuda-nvcc=="
    ):
        find_toolchain()


@pytest.mark.usefixtures("wheels")
@pytest.mark.parametrize("name", ["bin/nvcc", "bin/nvdisasm", "nvvm/bin/cicc", "include/crt/host_config.h"])
def test_wheels_whose_files_are_gone(tmp_path: Path, name: str) -> None:
    (tmp_path / "nvidia" / "cu13" / name).unlink()
    assert re.search(rf"files are missing: expected .*{name}.*--force-reinstall", error_line(find_toolchain))


def test_the_host_compiler_is_cxx_else_the_first_on_path_or_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    clang = script(tmp_path / "clang++")
    assert host_compiler() == clang
    gxx = script(tmp_path / "g++")
    assert host_compiler() == gxx
    monkeypatch.setenv("CXX", "clang++")
    assert host_compiler() == clang
    monkeypatch.setenv("CXX", "g++ -m32")
    assert re.search(r"CXX does not name a C\+\+ compiler: .* found g\+\+ -m32", error_line(host_compiler))
    monkeypatch.delenv("CXX")
    gxx.unlink()
    clang.unlink()
    assert re.search(r"no C\+\+ compiler found.*apt install g\+\+", error_line(host_compiler))


def test_ninja_from_its_wheel_then_from_path_then_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = types.ModuleType("ninja")
    monkeypatch.setattr(wheel, "BIN_DIR", str(tmp_path / "wheel"), raising=False)
    monkeypatch.setitem(sys.modules, "ninja", wheel)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    in_path, in_wheel = script(tmp_path / "path" / "ninja"), script(tmp_path / "wheel" / "ninja")
    assert find_ninja() == in_wheel
    in_wheel.unlink()
    assert find_ninja() == in_path
    monkeypatch.setitem(sys.modules, "ninja", None)
    assert find_ninja() == in_path
    in_path.unlink()
    assert "was not found; run: pip install ninja" in error_line(find_ninja)


def test_the_gpu_from_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, found in ((FakeNvml(), "sm_90"), (FakeNvml(refused=("nvmlInit",)), None), (None, None)):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        assert gpu_arch() == found


# Stands for uv: writes the metadata and programs of what the lock file names into --target, and counts its calls.
INSTALLER = text_of("null/toolchain/toolchain", "installer")


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """requirements/toolchain-13.1.txt of a checkout whose installer needs no network."""
    monkeypatch.setattr(toolchains, "REQUIREMENTS", tmp_path)
    monkeypatch.setattr(toolchains, "installer", lambda: [sys.executable, "-c", f"PARTS = {INSTALLED}{INSTALLER}"])
    path = tmp_path / "toolchain-13.1.txt"
    path.write_text("\n".join(f"{name}=={version}" for name, version in load_pins().others["13.1"].items()))
    return path


@pytest.mark.usefixtures("wheels")
def test_only_the_compiler_is_another(lock: Path, tmp_path: Path) -> None:
    own = find_toolchain()
    found = toolchain_of("13.1", tmp_path / "toolchains")
    root = tmp_path / "toolchains" / "13.1" / "nvidia" / "cu13"
    assert (found.root, found.nvcc, found.ptxas) == (root, root / "bin" / "nvcc", root / "bin" / "ptxas")
    assert (found.fatbinary, found.nvdisasm) == (own.fatbinary, own.nvdisasm)
    assert found.versions == {**own.versions, **load_pins().others["13.1"]}
    assert found.versions["nvidia-cuda-nvcc"] != own.versions["nvidia-cuda-nvcc"]
    assert toolchain_of("13.0", tmp_path / "toolchains") == toolchain_of("", tmp_path / "toolchains") == own
    assert lock.with_name("calls").read_text() == "x"


def test_it_is_installed_once_and_again_when_the_lock_file_changes(lock: Path, tmp_path: Path) -> None:
    folder = tmp_path / "toolchains"
    made = provide("13.1", folder)
    assert provide("13.1", folder) == made
    assert lock.with_name("calls").read_text() == "x"
    lock.write_text("nvidia-nvvm==1")
    provide("13.1", folder)
    assert lock.with_name("calls").read_text() == "xx"
    assert [path.name for path in made.glob("*.dist-info")] == ["nvidia-nvvm-1.dist-info"]
    (made / toolchains.STAMP).unlink()  # as one that was killed would leave it
    provide("13.1", folder)
    assert lock.with_name("calls").read_text() == "xxx"


def test_a_failed_installation_leaves_what_was_there(lock: Path, tmp_path: Path) -> None:
    folder = tmp_path / "toolchains"
    before = sorted(provide("13.1", folder).rglob("*"))
    lock.write_text("refused==1")
    assert "CUDA 13.1 could not be installed: found error: no such hash" in error_line(provide, "13.1", folder)
    assert sorted((folder / "13.1").rglob("*")) == before
    assert [path.name for path in folder.iterdir() if path.name.startswith(".13")] == []
    lock.unlink()
    assert "toolchain-13.1.txt: cannot read the file" in error_line(provide, "13.1", folder)


@pytest.mark.parametrize(("name", "word"), [("-a.ptx", "./-a.ptx"), ("a b.ptx", "'a b.ptx'")])
def test_ptx_is_not_compiled_and_a_file_without_a_kernel_has_nothing_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, word: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FlashladderError, match=rf"^{name}: PTX is compiled already.*`ptxemu {word}`$"):
        toolchain.compile_file(Path(name))
    monkeypatch.setattr(toolchain, "compile_file", lambda *_: Path(name))
    for entry, says in (("", "no kernel is in it"), (".entry add() { ret; }", f"run it with `ptxemu {word} --grid")):
        Path(name).write_text(f".version 9.0\n.target sm_80\n{entry}\n")
        toolchain.compile_and_tell("own.cu", "sm_80")
        assert says in capsys.readouterr().out
