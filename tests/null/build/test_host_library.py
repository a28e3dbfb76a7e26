"""The commands that compile and link the host half of a library: what they must contain, whatever the machine."""

from __future__ import annotations

import importlib.util
from pathlib import Path
import sys

import pytest

from flashladder.build import library as host_library
from flashladder.errors import FlashladderError
from flashladder.paths import ROOT

PLACES = {"compiler": Path("/c/g++"), "cuda_root": Path("/cuda"), "torch": Path("/torch")}


def test_an_object_targets_the_oldest_torch_and_names_no_folder_of_this_machine() -> None:
    command = host_library.object_command(Path("binding.cpp"), Path("binding.o"), **PLACES)
    assert command[0] == "/c/g++"
    assert command[-4:] == ["-c", "binding.cpp", "-o", "binding.o"]
    assert "-DTORCH_TARGET_VERSION=0x020a000000000000" in command
    assert f"-ffile-prefix-map={ROOT}=." in command
    assert "/cuda/include" in command
    assert "/torch/include" in command


def test_a_library_exports_nothing_and_links_the_runtime_statically() -> None:
    command = host_library.library_command([Path("binding.o"), Path("table.o")], Path("_C.abi3.so"), **PLACES)
    assert "-Wl,--exclude-libs,ALL" in command
    assert "-Wl,-Bsymbolic" in command
    assert "-lcudart_static" in command
    assert "-lcudart" not in command
    assert command.index("binding.o") < command.index("-ltorch") < command.index("-lcudart_static")


def test_torch_is_found_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = "torch" in sys.modules
    spec = importlib.util.find_spec("torch")
    if spec is not None:
        assert (host_library.torch_root() / "__init__.py").is_file()
        assert ("torch" in sys.modules) is before
    monkeypatch.setattr(host_library, "find_spec", lambda name: None)
    with pytest.raises(FlashladderError, match=r"torch is not installed: expected torch 2\.10 or later"):
        host_library.torch_root()
