"""Wheels without a compiler: the table in the library, the wheel bit for bit, its installation, and damage noticed."""

from __future__ import annotations

import base64
from collections.abc import Iterator
import hashlib
import json
from pathlib import Path
import re
import shutil
import sys
import types
from unittest.mock import Mock, call
import zipfile

import pytest

from flashladder import tool_runs
from flashladder.build import command as build
from flashladder.build import wheel
from flashladder.build.library import LIBRARY_NAME, table_source
from flashladder.build.wheel import load_installed
from flashladder.errors import FlashladderError
from flashladder.files import dump_json, sha256
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.families.ampere import FAMILY
from flashladder.ladder.iteration import load_iteration
from flashladder.ladder.selection import one_config
from flashladder.paths import KERNELS
from tests.data_files import table_of
from tests.null.bench_fixture import FAST
from tests.typed import error_line

MANIFEST = {"inputs_digest": "d", "library_sha256": sha256(b"\x7fELF")}
LOADS = """import torch
from pathlib import Path
Path(__file__).with_name("loaded").touch()
"""
MEMBERS = {"__init__.py": LOADS.encode(), "_C.abi3.so": b"\x7fELF", "manifest.json": dump_json(MANIFEST).encode()}


def test_a_wheel_repeats_bit_for_bit_and_its_record_holds(tmp_path: Path) -> None:
    made = [wheel.assemble(tmp_path / name, "flashladder_07", "0.1.0", "step 7", MEMBERS) for name in ("one", "two")]
    assert made[0].name.startswith("flashladder_07-0.1.0-cp310-abi3-linux_")
    assert made[0].read_bytes() == made[1].read_bytes()
    assert list((tmp_path / "one").iterdir()) == [made[0]]
    with zipfile.ZipFile(made[0]) as archive:
        assert {name: archive.read(f"flashladder_07/{name}") for name in MEMBERS} == MEMBERS
        rows = archive.read("flashladder_07-0.1.0.dist-info/RECORD").decode().splitlines()
        found = {path: (digest, size) for path, digest, size in (row.split(",") for row in rows)}
        assert found.keys() == set(archive.namelist())
        digest = base64.urlsafe_b64encode(hashlib.sha256(MEMBERS["_C.abi3.so"]).digest()).decode()
        assert found["flashladder_07/_C.abi3.so"] == (f"sha256={digest.rstrip('=')}", "4")
        assert b"Name: flashladder-07\nVersion: 0.1.0\n" in archive.read("flashladder_07-0.1.0.dist-info/METADATA")
        assert archive.getinfo("flashladder_07/_C.abi3.so").external_attr >> 16 & 0o111


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """flashladder_76 as an installer leaves it, with a torch that has its operator."""
    torch = types.ModuleType("torch")
    operators = types.SimpleNamespace(flashladder_76=types.SimpleNamespace(forward_out=print))
    torch.__dict__["ops"] = operators
    monkeypatch.setitem(sys.modules, "torch", torch)
    with zipfile.ZipFile(wheel.assemble(tmp_path, "flashladder_76", "0.1.0", "no step", MEMBERS)) as archive:
        archive.extractall(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "flashladder_76"
    sys.modules.pop("flashladder_76", None)


def test_the_installed_digest_is_read_without_importing(package: Path) -> None:
    assert wheel.installed_digest("flashladder_76") == "d"
    assert "flashladder_76" not in sys.modules
    (package / LIBRARY_NAME).write_bytes(b"\x7fELG")
    assert wheel.installed_digest("flashladder_76") is None  # its library is damaged
    assert wheel.installed_digest("flashladder_77") is None


def test_an_import_is_checked_until_it_passes_and_then_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install, check = Mock(), Mock(side_effect=[FlashladderError("no import"), FlashladderError("no import"), None])
    monkeypatch.setattr(build, "BUILD", tmp_path)
    monkeypatch.setattr(build, "gpu_arch", lambda: None)
    monkeypatch.setattr(wheel, "installed_digest", lambda _: "d" if install.called else None)
    monkeypatch.setattr(wheel, "install", install)
    monkeypatch.setattr(wheel, "check_import", check)
    request = build.make_request(7, "sm_80", "prog:a100")
    for _ in range(2):
        assert "no import" in error_line(build._install, request, Path("d"), "d")
    for _ in range(2):
        build._install(request, Path("d"), "d")
    assert (install.call_count, check.call_count) == (1, 3)


@pytest.mark.usefixtures("package")
def test_only_what_is_not_installed_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel, "install", install := Mock())
    monkeypatch.setattr(wheel, "default_arch", lambda _: "sm_80")
    builds = tmp_path / "builds"
    for number, digest in ((76, "d"), (77, "e")):
        folder = builds / f"iteration_{number}" / "sm_80"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(json.dumps({"inputs_digest": digest}))
        (folder / "x.whl").touch()
    assert wheel.install_built(builds) == ["flashladder_76", "flashladder_77"]
    install.assert_called_once_with(builds / "iteration_77" / "sm_80" / "x.whl")
    (builds / "iteration_76" / "sm_80" / "manifest.json").write_text(json.dumps({"inputs_digest": "newer"}))
    wheel.install_built(builds)
    assert install.call_args.args == tuple(builds / f"iteration_{n}" / "sm_80" / "x.whl" for n in (76, 77))
    monkeypatch.setattr(wheel, "default_arch", lambda _: "sm_90")
    assert wheel.install_built(builds) == []
    monkeypatch.setattr(wheel, "default_arch", lambda _: "sm_80")
    (builds / "iteration_77" / "sm_80" / "manifest.json").write_text("{}")
    with pytest.raises(FlashladderError, match=r"manifest is broken.*build that iteration again"):
        wheel.install_built(builds)


@pytest.mark.parametrize(
    ("prints", "full", "message"),
    [
        ("no such wheel", "", "could not be installed: found no such wheel"),
        ("No space left on device (os error 28)", "environment", "environment: .*full"),
    ],
)
def test_a_wheel_that_cannot_be_installed_or_imported_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prints: str, full: str, message: str
) -> None:
    unknown = "import check failed: found ModuleNotFoundError: No module named 'flashladder_99'"
    assert unknown in error_line(wheel.check_import, "flashladder_99", ["(FP16, ...)"])
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert re.search(r"not in a virtual environment.*--no-install", error_line(wheel.install, tmp_path / "x.whl"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    monkeypatch.setattr(tool_runs, "_is_full", lambda folder: folder == tmp_path / full)
    monkeypatch.setattr(wheel, "installer", lambda: [sys.executable, "-c", f"raise SystemExit({prints!r})"])
    assert re.search(message, error_line(wheel.install, tmp_path / "x.whl"))


def test_uvs_cache_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shares its files with the environments by hard links, and would install a damaged one again."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(wheel, "run", run := Mock())
    wheel.install(tmp_path / "x.whl")
    command = run.call_args.args[0]
    assert command[:4] == [sys.executable, "-m", "uv", "pip"]
    assert {"--no-deps", "--no-index", "--reinstall", "--no-cache"} <= set(command)


CONFIG = KernelConfig.parse("(FP16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax")


def test_a_row_holds_the_configuration_in_the_order_of_the_struct() -> None:
    source = table_source("flashladder_16", FAMILY, [(CONFIG, Path("a/kernel.fatbin"), ())], ("sm_90", "sm_80"), 2048)
    row = f'{{"{CONFIG.short_form()}", "fp16", 128, 64, 128, 128, 65536, 80, 2048, flashladder_fatbin_0'
    assert f"{row}, 0, 0, {2**30 - 1}, 0, 0, 0, 0, {{0}}}}," in source
    struct = re.search(r"struct KernelRow \{(.*?)\n\};", (KERNELS / "host" / "rows.h").read_text(), re.DOTALL)
    assert struct is not None
    declared = re.sub(r"//.*", "", struct[1]).replace("*", " ").split(";")
    names = [name.split()[-1] for line in declared if line.strip() for name in line.split(",")]
    expected = "config dtype B_r B_c d_head n_threads smem_bytes capability row_stride fatbin alone any_length"
    expected += " max_row_stride general causal packed flat_grid own[4]"
    assert names == expected.split()


def test_kernels_of_general_problems_have_an_operator_of_their_own() -> None:
    """It also gets the log-sum-exp's tensor and whether there is a mask, which the configuration says."""
    operators = types.SimpleNamespace(forward_out=Mock(), attention_out=Mock())
    run = wheel.launcher(operators)
    plain, causal = (one_config(load_iteration(31), "h200", mask=mask).short_form() for mask in ("none", "causal"))
    run("q", "k", "v", "out", FAST)
    run("q", "k", "v", "out", plain)
    run("q", "k", "v", "out", causal, lse="lse")
    assert operators.forward_out.mock_calls == [call("q", "k", "v", "out", FAST)]
    assert operators.attention_out.mock_calls == [
        call("q", "k", "v", "out", None, False, None, plain),
        call("q", "k", "v", "out", "lse", True, None, causal),
    ]
    with pytest.raises(ValueError, match=r"lse: expected None, as \(FP16"):
        run("q", "k", "v", "out", FAST, lse="lse")


def test_a_variant_is_loaded_beside_it_and_names_its_kernels(package: Path) -> None:
    name = "flashladder_76_minus_swizzle_cuda_13_1"
    variant = package.with_name(name)
    shutil.copytree(package, variant)
    kernels = {FAST: {"sm_90": {"text_sha256": "t", "registers": 255, "spill_stores": 40, "spill_loads": 44}}}
    (variant / "manifest.json").write_text(dump_json(MANIFEST | {"kernels": kernels}))
    operators = sys.modules["torch"].__dict__["ops"]
    setattr(operators, name, types.SimpleNamespace(forward_out=lambda *given: given))
    found = load_installed("76 - swizzle", "13.1")
    assert found.run("q", "k", "v", "out", FAST) == ("q", "k", "v", "out", FAST)
    kernel = found.identity(KernelConfig.parse(FAST), "sm_90")
    assert (kernel.iteration, kernel.variant, kernel.text_sha256) == (76, " - swizzle cuda 13.1", "t")
    assert (kernel.registers, kernel.spill_stores, kernel.spill_loads) == (255, 40, 44)
    assert found.identity(KernelConfig.parse(FAST), "sm_86").registers is None
    assert kernel.key == f"76 - swizzle cuda 13.1 {FAST}"
    assert load_installed("76", "13.0").subject.variant == ""
    assert (package / "loaded").exists()
    sys.modules.pop(name)
    with pytest.raises(
        FlashladderError,
        match=r"iteration 76 \+ swizzle \(CUDA 13\.2\) is not installed here \(no module flashladder_76_plus_swizzle"
        r"_cuda_13_2\); nox -s build-iteration-76 -- \+ swizzle --toolchain 13\.2,",
    ):
        load_installed("76 + swizzle", "13.2")
    with pytest.raises(FlashladderError, match=r"iteration 76 - swizzle \(CUDA 13\.1\) was not built") as caught:
        found.require(KernelConfig.parse(FAST.replace("FP16", "BF16")))
    assert str(caught.value.hint).startswith('invoke build "76 - swizzle" --toolchain 13.1 --configs')


@pytest.mark.parametrize(("name", "content", "message"), table_of("null/build/wheel", "damaged"))
def test_a_damaged_wheel_is_one_line_before_it_is_loaded(package: Path, name: str, content: str, message: str) -> None:
    (package / name).write_text(content)
    assert re.search(f"{message}.*nox -s build-iteration-76", error_line(load_installed, 76))
    assert not (package / "loaded").exists()
