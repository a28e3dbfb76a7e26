"""The pinned toolchain on tiny kernels: hermetic, the same bytes in every checkout, each source compiled once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
import re

import pytest

from flashladder.build import compile as compiling
from flashladder.build.compile import compile_many, tools_of
from flashladder.build.store import CubinEntry, Tools, cubin_entry, fill_all, ptx_entry
from flashladder.errors import FlashladderError
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import load_iteration
from flashladder.toolchain import find_toolchain
from tests.data_files import text_of
from tests.typed import error_line

PART = "#pragma once\n__device__ inline float twice(float x) { return x * 2.0f; }\n"
UNIT = text_of("nvcc/compile", "unit")

pytestmark = pytest.mark.nvcc


@pytest.fixture(scope="module", autouse=True)
def tools() -> Tools:
    return tools_of()


def checkout(root: Path, part: str = PART) -> Path:
    """A folder with kernels/sub/part.cuh, like a clone of this repository."""
    path = root / "kernels" / "sub" / "part.cuh"
    path.parent.mkdir(parents=True)
    path.write_text(part)
    return root


def compile_in(root: Path, tools: Tools, text: str = UNIT, arches: Sequence[str] = ("sm_80",)) -> list[CubinEntry]:
    kernels, store = root / "kernels", root / "build" / "store"
    unit = ptx_entry(text, kernels, [kernels / "sub" / "part.cuh"], tools, store)
    entries = [cubin_entry(unit, arch, tools, store) for arch in arches]
    fill_all(entries)
    return entries


def test_the_wheels_tools_work_whatever_is_on_path(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nvcc", "ptxas", "cicc", "cudafe++", "fatbinary"):
        trap = tmp_path / "trap" / name
        trap.parent.mkdir(exist_ok=True)
        trap.write_text("#!/bin/sh\necho trapped >&2\nexit 77\n")
        trap.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'trap'}:/usr/bin:/bin")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "trap"))
    monkeypatch.setenv("NVCC_PREPEND_FLAGS", "--no-such-flag")
    (entry,) = compile_in(checkout(tmp_path), tools)
    assert entry.usage.arch == "sm_80"
    assert 0 < entry.usage.registers < 64
    assert (entry.usage.smem_static, entry.usage.barriers, entry.usage.spill_stores) == (256, 1, 0)
    assert (entry.usage.cmem or 0) >= 352
    assert entry.meta["wall_ms"] > 0
    assert ".target sm_80" in entry.ptx.read_text()
    assert entry.cubin.read_bytes()[:4] == b"\x7fELF"


@pytest.mark.parametrize("place", ["b/deeper", "umlaut\u00fc's \u2713"])
def test_the_same_bytes_in_every_checkout(tools: Tools, tmp_path: Path, place: str) -> None:
    """__syncwarp has internal linkage: nvcc derives its name from the source's path."""
    unit = UNIT.replace("__syncthreads", "__syncwarp")
    first = compile_in(checkout(tmp_path / "a"), tools, unit, ("sm_80", "sm_90"))
    second = compile_in(checkout(tmp_path / place), tools, unit, ("sm_80", "sm_90"))
    for one, other in zip(first, second, strict=True):
        assert one.key == other.key
        assert one.ptx.read_bytes() == other.ptx.read_bytes()
        assert one.cubin.read_bytes() == other.cubin.read_bytes()
        assert str(tmp_path).encode() not in one.ptx.read_bytes() + one.cubin.read_bytes()
    named = re.findall(r'\.file\s+\d+ "(.*)"', first[0].ptx.read_text())
    assert [name for name in named if not name.startswith("cuda/")] == ["kernel.cu", "kernels/sub/part.cuh"]


def test_a_debug_build_has_debug_information_and_real_paths(tools: Tools, tmp_path: Path) -> None:
    root = checkout(tmp_path)
    (release,) = compile_in(root, tools)
    (debug,) = compile_in(root, tools_of(debug=True))
    assert debug.key != release.key
    assert b".debug_info" in debug.cubin.read_bytes()
    assert b".debug_info" not in release.cubin.read_bytes()
    assert f'"{debug.ptx.parent}/kernel.cu"' in debug.ptx.read_text()
    assert "_Z5twicef" in debug.ptx.read_text()  # not inlined


def test_an_error_names_its_line_in_the_part_and_in_the_unit(tools: Tools, tmp_path: Path) -> None:
    root = checkout(tmp_path, "#pragma once\n__device__ float twice(float x) { return foo(x); }\n")
    with pytest.raises(FlashladderError, match='identifier "foo" is undefined; the full log is') as caught:
        compile_in(root, tools)
    assert str(caught.value.where) == f"{root}/kernels/sub/part.cuh:2"
    (root / "kernels" / "sub" / "part.cuh").write_text(PART)
    with pytest.raises(FlashladderError, match=r"kernel\.cu:8: nvcc: static assertion failed with .*four bytes"):
        compile_in(root, tools, UNIT + 'static_assert(sizeof(int) == 8, "four bytes");\n')


def test_architectures_that_the_tools_do_not_know(tools: Tools, tmp_path: Path) -> None:
    root = checkout(tmp_path)
    for arch in ("sm_12", "sm_75"):  # unknown; known, but older than the PTX
        with pytest.raises(FlashladderError, match="ptxas does not know this GPU architecture"):
            compile_in(root, tools, arches=(arch,))


def test_a_host_compiler_that_does_not_work(tools: Tools, tmp_path: Path) -> None:
    root = checkout(tmp_path)
    with pytest.raises(FlashladderError, match=r"nvcc could not run the host C\+\+ compiler: found .*host compiler"):
        compile_in(root, replace(tools, host_compiler=tmp_path / "g++"))


def test_another_toolchain_decides_ptx_and_machine_code() -> None:
    toolchain = find_toolchain()
    newer = {name: f"{version}.1" for name, version in toolchain.versions.items()}
    other = tools_of(replace(toolchain, versions=newer))
    assert set(other.ptx_versions.values()) & set(newer.values()) == {newer[name] for name in compiling.PTX_PACKAGES}
    assert other.ptxas_version == newer["nvidia-cuda-nvcc"]


SERIALISED = "(FP16, 128, 128, 128, 2): stages_2_2+registers_24_168+overlap"  # 168 registers for O, S and P


def test_products_that_ptxas_serialised_are_a_build_error_of_their_family() -> None:
    iteration, config = load_iteration(24), KernelConfig.parse(SERIALISED)
    message = error_line(compile_many, [(iteration, config, "sm_90")])
    assert f"iteration 24 {SERIALISED}: what ptxas made is not fit to ship" in message
    assert "expected no note C75.. and nothing spilled on sm_90a, found ptxas info" in message
    assert "(C7512)" in message
    assert "ptxas.log" in message
    (entry,) = compile_many([(iteration, config, "sm_90a")], debug=True)  # where nobody asks how fast it is
    assert entry.arch == "sm_90a"
