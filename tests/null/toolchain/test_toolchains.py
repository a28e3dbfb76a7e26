"""Other compilers: installed whole from their lock file, once, and never taken for what they are not."""

from __future__ import annotations

from pathlib import Path
import sys

import pytest

from flashladder.build import other_toolchains as toolchains
from flashladder.build.other_toolchains import provide, toolchain_of
from flashladder.errors import FlashladderError
from flashladder.toolchain import wheels as toolchain
from flashladder.toolchain.wheels import Toolchain, find_toolchain, load_pins

PARTS = (*toolchain.NVCC_RUNS, *toolchain.NVCC_READS)
# Stands for uv: writes the metadata and programs of what the lock file names into --target, and counts its calls.
INSTALLER = """
import sys
from pathlib import Path
words = sys.argv[1:]
assert "--require-hashes" in words and "--no-deps" in words, words
target, locked = Path(words[words.index("--target") + 1]), Path(words[words.index("-r") + 1])
with (locked.parent / "calls").open("a") as calls:
    calls.write("x")
for line in locked.read_text().split():
    name, _, version = line.partition("==")
    info = target / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\\nName: {name}\\nVersion: {version}\\n")
for name in (*("bin/nvcc", "bin/ptxas"), *PARTS):
    program = target / "nvidia" / "cu13" / name
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text("#!/bin/sh\\n")
    program.chmod(0o755)
if "refused" in locked.read_text():
    sys.exit("error: no such hash")
"""


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """requirements/toolchain-13.1.txt of a checkout whose installer needs no network."""
    monkeypatch.setattr(toolchains, "REQUIREMENTS", tmp_path)
    monkeypatch.setattr(toolchains, "installer", lambda: [sys.executable, "-c", f"PARTS = {PARTS}{INSTALLER}"])
    path = tmp_path / "toolchain-13.1.txt"
    path.write_text("\n".join(f"{name}=={version}" for name, version in load_pins().others["13.1"].items()))
    return path


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toolchain:
    """The environment's own toolchain, found without one."""
    root = tmp_path / "environment" / "cu13"
    monkeypatch.setattr(toolchain, "_installed", lambda name: load_pins().packages[name])
    monkeypatch.setattr(toolchain, "_cuda_root", lambda _: root)
    for name in (*(f"bin/{name}" for name in (*toolchain.COMPILERS, *toolchain.READERS)), *PARTS):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
        (root / name).chmod(0o755)
    return find_toolchain()


def test_only_the_compiler_is_another(lock: Path, own: Toolchain, tmp_path: Path) -> None:
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
    with pytest.raises(FlashladderError, match=r"CUDA 13\.1 could not be installed \(error: no such hash\)"):
        provide("13.1", folder)
    assert sorted((folder / "13.1").rglob("*")) == before
    assert [path.name for path in folder.iterdir() if path.name.startswith(".13")] == []
    lock.unlink()
    with pytest.raises(FlashladderError, match=r"toolchain-13\.1\.txt: the compiler of CUDA 13\.1 cannot be installed"):
        provide("13.1", folder)


@pytest.mark.usefixtures("own")
def test_wheels_of_another_version_in_the_folder_are_an_error(lock: Path, tmp_path: Path) -> None:
    lock.write_text(lock.read_text().replace("nvidia-nvvm==13.1.115", "nvidia-nvvm==13.2.86"))
    with pytest.raises(FlashladderError, match=r"expected nvidia-nvvm==13\.1\.115, found nvidia-nvvm 13\.2\.86"):
        toolchain_of("13.1", tmp_path / "toolchains")
