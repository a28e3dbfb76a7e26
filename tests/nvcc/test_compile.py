"""The pinned toolchain on tiny kernels: hermetic, the same bytes in every checkout, each source compiled once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
import re
import types
from typing import Any

import pytest

from flashladder.build import compile as compiling
from flashladder.build.compile import compile_many, cubin_for, ptx_for, table_rows, tools_of
from flashladder.build.store import CubinEntry, Tools, cubin_entry, fill_all, ptx_entry
from flashladder.errors import FlashladderError
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.families.ampere import FAMILY
from flashladder.ladder.family import Family
from flashladder.ladder.iteration import load_iteration
from flashladder.machine_code.ptxas import to_csv
from flashladder.toolchain import demangle, find_toolchain

PART = "#pragma once\n__device__ inline float twice(float x) { return x * 2.0f; }\n"
UNIT = """#include "sub/part.cuh"
extern "C" __global__ void flash_fwd_kernel(float* p) {
  __shared__ float s[64];
  s[threadIdx.x] = p[threadIdx.x];
  __syncthreads();
  p[threadIdx.x] = twice(s[63 - threadIdx.x]);
}
"""

pytestmark = pytest.mark.nvcc


@pytest.fixture(scope="module")
def tools() -> Tools:
    try:
        return tools_of()
    except FlashladderError as error:
        pytest.skip(f"needs the toolchain: {error}")


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
    """With a function of internal linkage, __syncwarp, whose name nvcc makes of the source's path."""
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


def test_an_error_names_the_line_of_the_part(tools: Tools, tmp_path: Path) -> None:
    root = checkout(tmp_path, "#pragma once\n__device__ float twice(float x) { return foo(x); }\n")
    with pytest.raises(FlashladderError, match='identifier "foo" is undefined; the full log is') as caught:
        compile_in(root, tools)
    assert str(caught.value.where) == f"{root}/kernels/sub/part.cuh:2"


def test_a_failed_static_assert_and_a_missing_include(tools: Tools, tmp_path: Path) -> None:
    root = checkout(tmp_path)
    with pytest.raises(FlashladderError, match=r"kernel\.cu:8: nvcc: static assertion failed with .*four bytes"):
        compile_in(root, tools, UNIT + 'static_assert(sizeof(int) == 8, "four bytes");\n')
    with pytest.raises(FlashladderError, match=r"kernel\.cu:1: nvcc: none\.cuh: No such file or directory"):
        compile_in(root, tools, '#include "none.cuh"\n')


def test_architectures_that_the_tools_do_not_know(tools: Tools, tmp_path: Path) -> None:
    root = checkout(tmp_path)
    for arch in ("sm_12", "sm_75"):  # unknown; known, but older than the PTX
        with pytest.raises(FlashladderError, match="ptxas does not know this GPU architecture"):
            compile_in(root, tools, arches=(arch,))


def test_a_host_compiler_that_does_not_work(tools: Tools, tmp_path: Path) -> None:
    root = checkout(tmp_path)
    with pytest.raises(FlashladderError, match=r"nvcc could not run the host C\+\+ compiler: found .*host compiler"):
        compile_in(root, replace(tools, host_compiler=tmp_path / "g++"))


def test_real_names_are_demangled(tools: Tools) -> None:
    assert demangle("_Z5twicef", find_toolchain()).strip() == "twice(float)"


@dataclass(frozen=True)
class Config:
    """As much of a configuration as the compiler needs."""

    n: int
    smem_bytes: int = 49152

    def short_form(self) -> str:
        return f"(n = {self.n})"


@dataclass
class Step:
    """As much of an iteration as the compiler needs; not hashable, like the real one."""

    number: int = 7
    family: Family = FAMILY


@pytest.fixture
def composed(tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`compile_many` & co. on tiny kernels in a store of their own; the returned list grows with each composition."""
    root, composed = checkout(tmp_path), list[str]()

    def translation_unit(iteration: Step, config: Config) -> str:
        composed.append(UNIT.replace("64", str(config.n)).replace("63", str(config.n - 1)))
        return composed[-1]

    monkeypatch.setattr(compiling, "translation_unit", translation_unit)
    monkeypatch.setattr(compiling, "included_files", lambda text, kernels: (kernels / "sub" / "part.cuh",))
    monkeypatch.setattr(compiling, "STORE", root / "build" / "store")
    return types.SimpleNamespace(calls=composed, kernels=root / "kernels")


def test_many_kernels_at_once(composed: Any) -> None:
    jobs: Any = [
        (step, Config(n), arch) for step in (Step(),) for n in (32, 64) for arch in ("sm_80", "sm_86", "sm_90")
    ]
    entries = compile_many(iter(jobs), kernels=composed.kernels)
    assert [entry.usage.arch for entry in entries] == [arch for _, _, arch in jobs]
    assert [entry.usage.smem_static for entry in entries] == [128] * 3 + [256] * 3
    assert len({entry.ptx for entry in entries}) == 2
    assert len(composed.calls) == 2
    stamps = [(entry.folder / "meta.json").stat().st_mtime_ns for entry in entries]
    again = compile_many(jobs, kernels=composed.kernels)
    assert [(entry.folder / "meta.json").stat().st_mtime_ns for entry in again] == stamps
    rows, warnings = table_rows(jobs, entries)
    assert warnings == []
    assert to_csv(rows).count("\n") == 1 + len(rows)
    assert (rows[0].kernel, rows[0].config, rows[0].smem_dynamic) == ("07", "(n = 32)", 49152)


def test_one_kernel(composed: Any) -> None:
    step: Any = Step()
    config: Any = Config(64)
    (expected,) = compile_many([(step, config, "sm_89")], kernels=composed.kernels)
    assert cubin_for(step, config, "sm_89", kernels=composed.kernels).cubin == expected.cubin
    assert ptx_for(step, config, kernels=composed.kernels).ptx == expected.ptx
    with pytest.raises(FlashladderError, match=r"unknown GPU architecture: .*found sm_50"):
        cubin_for(step, config, "sm_50", kernels=composed.kernels)


def test_another_toolchain_is_another_entry_of_the_store(tools: Tools, tmp_path: Path) -> None:
    """A newer cicc decides the PTX, and through it the machine code; a newer ptxas the machine code alone."""
    part = checkout(tmp_path) / "kernels" / "sub" / "part.cuh"

    def keys(tools: Tools) -> tuple[str, str]:
        unit = ptx_entry(UNIT, tmp_path / "kernels", [part], tools, tmp_path / "store")
        return unit.key, cubin_entry(unit, "sm_90", tools, tmp_path / "store").key

    own = keys(tools)
    cicc = keys(replace(tools, ptx_versions={**tools.ptx_versions, "nvidia-nvvm": "13.1.115"}))
    ptxas = keys(replace(tools, ptxas_version="13.1.115"))
    assert own[0] != cicc[0]
    assert own[1] != cicc[1]
    assert own[0] == ptxas[0]
    assert own[1] != ptxas[1]
    toolchain = find_toolchain()
    newer = {name: f"{version}.1" for name, version in toolchain.versions.items()}
    other = tools_of(replace(toolchain, versions=newer))
    assert set(other.ptx_versions.values()) & set(newer.values()) == {newer[name] for name in compiling.PTX_PACKAGES}
    assert other.ptxas_version == newer["nvidia-cuda-nvcc"]


SERIALISED = "(FP16, 128, 128, 128, 2): stages_2_2+registers_24_168+overlap"  # 168 registers for O, S and P


def test_products_that_ptxas_serialised_are_a_build_error_of_their_family(tools: Tools) -> None:
    del tools
    iteration, config = load_iteration(24), KernelConfig.parse(SERIALISED)
    with pytest.raises(FlashladderError) as caught:
        compile_many([(iteration, config, "sm_90")])
    message = str(caught.value)
    assert f"iteration 24 {SERIALISED}: what ptxas made is not fit to ship" in message
    assert "expected no note C75.. and nothing spilled on sm_90a, found ptxas info" in message
    assert "(C7512)" in message
    assert "ptxas.log" in message
    (entry,) = compile_many([(iteration, config, "sm_90a")], debug=True)  # where nobody asks how fast it is
    assert entry.arch == "sm_90a"


def test_sm_90_is_served_by_code_for_it_alone(tools: Tools) -> None:
    del tools
    iteration = load_iteration(24)
    found = [cubin_for(iteration, iteration.configs["h200"], arch).arch for arch in ("sm_90", "sm_90a")]
    assert found == ["sm_90a", "sm_90a"]
    with pytest.raises(FlashladderError, match="has no code for this: expected sm_90a, found sm_80"):
        cubin_for(iteration, iteration.configs["h200"], "sm_80")
    older = load_iteration(16)
    with pytest.raises(FlashladderError, match="found sm_90a"):
        cubin_for(older, older.configs["h200"], "sm_90a")
