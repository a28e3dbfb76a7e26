"""The toolchain is the pinned one or an error that says what to install; nothing on PATH is ever taken for it."""

from __future__ import annotations

from importlib import metadata
from importlib.machinery import ModuleSpec
import importlib.util
from pathlib import Path
import sys
import types

import pytest

from flashladder.errors import FlashladderError
from flashladder.toolchain import wheels as toolchain
from flashladder.toolchain.wheels import (
    demangle,
    find_ninja,
    find_toolchain,
    gpu_arch,
    host_compiler,
    load_pins,
)

PROGRAMS = ("nvcc", "ptxas", "fatbinary", "cuobjdump", "nvdisasm")


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
    for name in (*(f"bin/{name}" for name in PROGRAMS), *toolchain.NVCC_RUNS, *toolchain.NVCC_READS):
        script(tmp_path / "nvidia" / "cu13" / name)
    spec = ModuleSpec("nvidia", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path / "elsewhere"), str(tmp_path / "nvidia")]

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    return versions


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cuda: [", ":1: not valid YAML, "),
        ("cuda: '13.0'", ": missing key 'packages'"),
        ("- 1", ":1: wrong content: expected a mapping of keys to values, found list [1]"),
        ("", ":1: wrong content: expected a mapping of keys to values, found an empty file"),
        ("cuda: 1\npackages: 2\n", ": the toolchain pins are malformed: found 'int' object"),
        ("cuda: '13.0'\npackages: " + "[" * 500 + "]" * 500, ":2: not valid YAML, it nests deeper than 24 levels"),
    ],
)
def test_malformed_pins(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "toolchain.yaml"
    path.write_text(text)
    with pytest.raises(FlashladderError) as caught:
        load_pins(path)
    assert str(caught.value).startswith(f"{path}{message}")


def test_a_missing_wheel_is_not_replaced_by_nvcc_on_path(
    wheels: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "path" / "nvcc")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    del wheels["nvidia-cuda-nvcc"]
    with pytest.raises(
        FlashladderError, match=r"found nvidia-cuda-nvcc missing; run: pip install nvidia-cuda-nvcc==13"
    ):
        find_toolchain()


def test_another_version_is_an_error(wheels: dict[str, str]) -> None:
    wheels["nvidia-nvvm"] = "13.3.1"
    with pytest.raises(FlashladderError) as caught:
        find_toolchain()
    assert caught.value.expected == "nvidia-nvvm==13.0.88"
    assert caught.value.found == "nvidia-nvvm 13.3.1"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", [*toolchain.NVCC_RUNS, *toolchain.NVCC_READS])
def test_what_nvcc_itself_runs_and_reads_is_there(wheels: dict[str, str], tmp_path: Path, name: str) -> None:
    (tmp_path / "nvidia" / "cu13" / name).unlink()
    with pytest.raises(FlashladderError, match=rf"files are missing: expected the \w+ .*{name}.*--force-reinstall"):
        find_toolchain()


def test_wheels_whose_files_are_gone(wheels: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia" / "cu13" / "bin" / "nvcc").unlink()
    with pytest.raises(FlashladderError, match=r"files are missing: expected nvidia/cu13/bin/nvcc, found .*elsewhere"):
        find_toolchain()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FlashladderError, match="found no such package"):
        find_toolchain()


def test_the_host_compiler_is_cxx_else_the_first_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    clang = script(tmp_path / "clang++")
    assert host_compiler() == clang
    gxx = script(tmp_path / "g++")
    assert host_compiler() == gxx
    monkeypatch.setenv("CXX", "clang++")
    assert host_compiler() == clang
    monkeypatch.setenv("CXX", "g++ -m32")
    with pytest.raises(FlashladderError, match=r"CXX does not name a C\+\+ compiler: .* found g\+\+ -m32"):
        host_compiler()


def test_no_host_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(FlashladderError, match=r"no C\+\+ compiler found.*apt install g\+\+"):
        host_compiler()


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
    with pytest.raises(FlashladderError, match="was not found; run: pip install ninja"):
        find_ninja()


class FakeNvmlError(Exception):
    """Stands for pynvml.NVMLError."""


def fake_nvml(monkeypatch: pytest.MonkeyPatch, *, works: bool) -> None:
    def init() -> None:
        if not works:
            raise FakeNvmlError

    names = {
        "NVMLError": FakeNvmlError,
        "nvmlInit": init,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetCudaComputeCapability": lambda handle: (9, handle),
    }
    module = types.ModuleType("pynvml")
    module.__dict__.update(names)
    monkeypatch.setitem(sys.modules, "pynvml", module)


def test_the_gpu_from_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(monkeypatch, works=True)
    assert gpu_arch() == "sm_90"


@pytest.mark.parametrize(
    ("says", "arch"), [("echo 8.6", "sm_86"), ("echo No devices; exit 6", None), ("echo '[N/A]'", None)]
)
def test_the_gpu_from_nvidia_smi(says: str, arch: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path / "nvidia-smi", says)
    monkeypatch.setenv("PATH", str(tmp_path))
    fake_nvml(monkeypatch, works=False)
    assert gpu_arch() == arch
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_arch() == arch


def test_names_are_demangled_or_the_missing_program_is_named(
    wheels: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    filt = script(tmp_path / "nvidia" / "cu13" / "bin" / "cu++filt", "sed 's/_Z5twicef/twice(float)/'")
    assert demangle("call _Z5twicef", find_toolchain()).strip() == "call twice(float)"
    filt.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FlashladderError, match=r"cu\+\+filt: no working demangler; install binutils"):
        demangle("x", find_toolchain())
