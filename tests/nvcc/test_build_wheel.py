"""A whole build of iteration 1: what it leaves, that it repeats bit for bit, that a second build does nothing.

Kernels come from the shared store; everything else is made in temporary folders, and nothing is installed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
import shutil
import subprocess
import sys
import time
import zipfile

import pytest

from flashladder.binaries import images, kernels_of, with_facts
from flashladder.build import command as artifacts
from flashladder.build import wheel
from flashladder.build.command import BuildResult, build_iteration
from flashladder.build.wheel import Installed
from flashladder.errors import FlashladderError
from flashladder.files import sha256
from flashladder.ladder.ablation import Subject
from flashladder.ladder.iteration import load_iteration
from flashladder.machine_code.cubin import read_cubin
from flashladder.machine_code.ptxas import to_csv
from flashladder.names import KERNEL
from flashladder.paths import ROOT

pytestmark = pytest.mark.nvcc
pytest.importorskip("torch", reason="the torch binding is built against torch")

KEY = "prog:a100"
ARCHES = "sm_80,sm_90"


def build(folder: Path, **options: object) -> BuildResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(artifacts, "BUILD", folder)
        return build_iteration(1, ARCHES, KEY, install=False, **options)  # type: ignore[arg-type]  # debug or nothing


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuildResult:
    return build(tmp_path_factory.mktemp("build"))


@pytest.fixture(scope="module")
def manifest(built: BuildResult) -> dict[str, object]:
    data: dict[str, object] = json.loads((built.wheel.parent / "manifest.json").read_text())
    return data


def test_everything_that_a_build_leaves_is_there(built: BuildResult) -> None:
    assert not built.up_to_date
    files = "_C.abi3.so build.log kernels.csv kernels.txt manifest.json table.cpp"
    top = {path.name for path in built.wheel.parent.iterdir() if path.is_file()}
    assert top == {*files.split(), built.wheel.name}
    kernels = [path for path in built.wheel.parent.iterdir() if path.is_dir()]
    assert len(kernels) == 2  # fp16 and bf16
    for kernel in kernels:
        names = {path.name for path in kernel.iterdir()}
        assert names == {"kernel.cu", "kernel.ptx", "kernel.sm_80.cubin", "kernel.sm_90.cubin", "kernel.fatbin"}
        assert {path.stat().st_nlink for path in kernel.iterdir()} == {1}  # an edit here cannot reach the store


def test_the_manifest_names_every_file_and_every_kernel(built: BuildResult, manifest: dict[str, object]) -> None:
    outputs, kernels = manifest["outputs"], manifest["kernels"]
    assert isinstance(outputs, dict)
    assert isinstance(kernels, dict)
    folder = built.wheel.parent
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert set(outputs) == files - {"manifest.json"}
    assert all(sha256((folder / name).read_bytes()) == digest for name, digest in outputs.items())
    with zipfile.ZipFile(built.wheel) as archive:
        inside = json.loads(archive.read("flashladder_01/manifest.json"))
        assert inside["library_sha256"] == sha256(archive.read("flashladder_01/_C.abi3.so")) == outputs["_C.abi3.so"]
    assert (built.wheel.parent / "kernels.csv").read_text() == to_csv(built.rows)
    assert {row.config for row in built.rows} == set(kernels)
    for row in built.rows:
        assert kernels[row.config][row.arch]["registers"] == row.registers
    hashes = {facts["text_sha256"] for by_arch in kernels.values() for facts in by_arch.values()}
    assert hashes == {read_cubin(path).text_sha256 for path in built.wheel.parent.glob("*/kernel.*.cubin")}


def test_the_wheels_kernels_are_listed_by_the_configurations_of_its_table(built: BuildResult) -> None:
    """All have one symbol: the library's own table, not their names, tells them apart."""
    with images(built.wheel) as found:
        kernels = with_facts(kernels_of(found, "SASS"))
        assert {(one.symbol, one.config, one.arch, one.facts and one.facts.registers) for one in kernels} == {
            (KERNEL, row.config, row.arch, row.registers) for row in built.rows
        }
        assert {one.config for one in kernels_of(found, "PTX")} == {row.config for row in built.rows}


def test_the_log_holds_every_command(built: BuildResult) -> None:
    log = (built.wheel.parent / "build.log").read_text()
    for tool, times in (("nvcc -ptx", 2), ("ptxas -arch=", 4), ("fatbinary", 2), ("-shared", 1), ("binding.cpp", 1)):
        assert sum(tool in line for line in log.splitlines() if line.startswith("$ ")) == times, tool


def test_nothing_in_the_wheel_names_this_machine(built: BuildResult) -> None:
    places = {str(ROOT), str(built.wheel.parent), str(Path(sys.prefix)), str(Path.home())} - {"/"}
    with zipfile.ZipFile(built.wheel) as archive:
        for name in archive.namelist():
            data = archive.read(name)
            assert [place for place in places if place.encode() in data] == [], name


def test_unchanged_inputs_do_nothing_and_need_no_torch(built: BuildResult) -> None:
    before = {path: path.stat().st_mtime_ns for path in built.wheel.parent.rglob("*")}
    code = (
        "import sys; from pathlib import Path; from flashladder.build import command as build\n"
        "build.BUILD = Path(sys.argv[1])\n"
        "result = build.build_iteration(1, sys.argv[2], sys.argv[3], install=False)\n"
        "assert result.up_to_date and 'torch' not in sys.modules"
    )
    started = time.monotonic()
    folder = built.wheel.parent.parent.parent
    subprocess.run([sys.executable, "-c", code, str(folder), ARCHES, KEY], cwd=ROOT, check=True)
    assert time.monotonic() - started < 4  # seconds, the interpreter's start included; 0.5 on an idle machine
    assert {path: path.stat().st_mtime_ns for path in built.wheel.parent.rglob("*")} == before


def test_a_damaged_build_is_made_again(built: BuildResult, tmp_path: Path) -> None:
    folder = tmp_path / "iteration_01" / built.wheel.parent.name
    shutil.copytree(built.wheel.parent, folder)
    assert build(tmp_path).up_to_date
    (folder / "_C.abi3.so").write_bytes(b"")
    for kernel in folder.glob("*/kernel.*"):
        kernel.write_bytes(b"edited")
    again = build(tmp_path)
    assert not again.up_to_date
    assert again.wheel.read_bytes() == built.wheel.read_bytes()


def test_a_debug_build_has_its_own_folder_and_flags(tmp_path: Path) -> None:
    result = build(tmp_path, debug=True)
    assert result.wheel.parent.name.endswith("_debug")
    mangled, readable = ((result.wheel.parent / name).read_text() for name in ("build.log", "build.demangled.log"))
    assert "_Z" in mangled  # functions that are not inlined
    assert "_Z" not in readable
    assert len(readable.splitlines()) == len(mangled.splitlines())
    log = (result.wheel.parent / "build.log").read_text()
    assert " -G " in log
    assert " -lineinfo " not in log


def test_a_failed_link_leaves_nothing_but_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "table_source", lambda *_: "this is not C++")
    with pytest.raises(FlashladderError, match=r"table\.cpp:1"):
        build(tmp_path)
    left = {path.name for path in (tmp_path / "iteration_01").iterdir()}
    assert left == {".lock", "sm_80-sm_90_prog-a100.failed.log"}
    assert "error: " in (tmp_path / "iteration_01" / "sm_80-sm_90_prog-a100.failed.log").read_text()


def test_the_unpacked_wheel_imports_and_offers_its_configurations(built: BuildResult, tmp_path: Path) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        archive.extractall(tmp_path)
    configs = sorted({row.config for row in built.rows})

    def run(expected: list[str]) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", wheel._IMPORT_CHECK, "flashladder_01", json.dumps(expected)]
        environment = os.environ | {"PYTHONPATH": str(tmp_path)}
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)

    good = run(configs)
    assert good.returncode == 0, good.stderr
    assert good.stdout.strip() == str(tmp_path / "flashladder_01" / "__init__.py")
    bad = run(configs[:1])
    assert bad.returncode == 1
    assert "expected the configurations" in bad.stderr


def test_an_ablation_is_a_wheel_of_its_own_beside_the_ladders(built: BuildResult) -> None:
    found = build_iteration("1 + swizzle", ARCHES, KEY, install=False)
    assert found.wheel.parent.parent.name == "iteration_01_plus_swizzle"
    assert found.wheel.name.startswith("flashladder_01_plus_swizzle-")
    manifest, ladder = (json.loads((each.wheel.parent / "manifest.json").read_text()) for each in (found, built))
    assert (manifest["iteration"], manifest["subject"], manifest["variant"]) == (1, "1 + swizzle", " + swizzle")
    assert (ladder["subject"], ladder["variant"], ladder["cuda"]) == ("1", "", "13.0")
    texts = [{kernel["sm_90"]["text_sha256"] for kernel in each["kernels"].values()} for each in (manifest, ladder)]
    assert not texts[0] & texts[1]
    with zipfile.ZipFile(found.wheel) as archive:
        assert b"flashladder_01_plus_swizzle" in archive.read("flashladder_01_plus_swizzle/_C.abi3.so")


def test_a_wheel_for_one_architecture_is_asked_for_by_its_gpus(tmp_path: Path) -> None:
    """A Hopper kernel: built for sm_90, it holds code for sm_90a, PTX for it alone, and what its plan needs to know."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(artifacts, "BUILD", tmp_path)
        found = build_iteration(24, "sm_90", KEY, install=False)
    assert found.wheel.parent.name.startswith("sm_90a")
    manifest = json.loads((found.wheel.parent / "manifest.json").read_text())
    assert manifest["arches"] == ["sm_90a"]
    table = (found.wheel.parent / "table.cpp").read_text()
    assert 'flashladder_ptx[] = "compute_90a"' in table
    assert table.count(f", 1, 1, {2**39 - 8}, 0, 0, 0, 0, {{64, 64, 0, 0}}}},") == 2
    config = load_iteration(24).configs["h200"]
    assert table.count(f"128, 128, 128, 384, {config.smem_bytes}, 90, 0, flashladder_fatbin_") == 2
    installed = Installed(Subject(24), print, manifest)
    identity = installed.identity(config, "sm_90")
    assert identity.arch == "sm_90a"
    assert identity.text_sha256 == manifest["kernels"][config.short_form()]["sm_90a"]["text_sha256"]
    assert installed.identity(config, "sm_80").text_sha256 is None
    with images(found.wheel.parent / "_C.abi3.so") as inside:
        assert {(image.kind, image.arch) for image in inside} == {("SASS", "sm_90a"), ("PTX", "compute_90a")}
        kernels = with_facts(kernels_of(inside, "SASS", "sm_90a"))
        assert {(one.config, one.arch) for one in kernels} == {
            (config.with_dtype(dtype).short_form(), "sm_90a") for dtype in ("fp16", "bf16")
        }
