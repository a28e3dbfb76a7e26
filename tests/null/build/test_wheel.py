"""Wheels without a compiler: the same bit for bit, installed once, and a damaged or failing one noticed."""

from __future__ import annotations

from collections.abc import Iterator
import importlib.util
import json
import os
from pathlib import Path
import shutil
import subprocess
import sys
from types import SimpleNamespace
import zipfile

import pytest

from flashladder.build import command as artifacts
from flashladder.build import command as build
from flashladder.build import wheel
from flashladder.build.command import Request
from flashladder.errors import FlashladderError
from flashladder.files import dump_json, sha256
from flashladder.toolchain import errors

MANIFEST = {"inputs_digest": "d", "library_sha256": sha256(b"\x7fELF")}
MEMBERS = {"__init__.py": b"value = 1\n", "_C.abi3.so": b"\x7fELF", "manifest.json": dump_json(MANIFEST).encode()}


def test_a_wheel_repeats_bit_for_bit_and_its_record_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wheel.wheelfile import WheelFile

    made = []
    for name, epoch in (("one", None), ("two", "1700000000")):
        if epoch:
            monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
        (tmp_path / name).mkdir()
        made.append(wheel.assemble(tmp_path / name, "flashladder_07", "0.1.0", "step 7", MEMBERS))
    assert os.environ["SOURCE_DATE_EPOCH"] == "1700000000"
    assert made[0].name.startswith("flashladder_07-0.1.0-cp310-abi3-linux_")
    assert made[0].read_bytes() == made[1].read_bytes()
    assert list((tmp_path / "one").iterdir()) == [made[0]]
    with WheelFile(made[0]) as archive:  # reading checks every member against RECORD
        assert {name: archive.read(f"flashladder_07/{name}") for name in MEMBERS} == MEMBERS
        assert b"Name: flashladder-07\nVersion: 0.1.0\n" in archive.read("flashladder_07-0.1.0.dist-info/METADATA")
        assert archive.getinfo("flashladder_07/_C.abi3.so").external_attr >> 16 & 0o111


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The members of a wheel unpacked on sys.path, as an installer leaves them."""
    made = wheel.assemble(tmp_path, "flashladder_77", "0.1.0", "no step", MEMBERS)
    with zipfile.ZipFile(made) as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield tmp_path / "site" / "flashladder_77"
    sys.modules.pop("flashladder_77", None)


def test_the_installed_digest_is_read_without_importing(installed: Path) -> None:
    assert wheel.installed_digest("flashladder_77") == "d"
    assert "flashladder_77" not in sys.modules
    for text in ("{", "[]", "{}", '{"inputs_digest": "d"}'):  # the last: of a build that did not record its library
        (installed / "manifest.json").write_text(text)
        assert wheel.installed_digest("flashladder_77") is None
    (installed / "manifest.json").write_bytes(MEMBERS["manifest.json"])
    (installed / wheel.LIBRARY).write_bytes(b"\x7fELG")
    assert wheel.installed_digest("flashladder_77") is None  # its library is damaged
    assert wheel.installed_digest("flashladder_78") is None


class Environment:
    """What `build._install` asks of an environment, counted."""

    def __init__(self) -> None:
        self.digest: str | None = None
        self.good = True
        self.done: list[str] = []

    def install(self, made: Path) -> None:
        self.digest = made.name
        self.done.append("install")

    def check_import(self, name: str, configs: object) -> str:
        self.done.append("check")
        if not self.good:
            raise FlashladderError("the import check failed")
        return name

    def run(self, request: Request, digest: str) -> list[str]:
        self.done = []
        build._install(request, Path(digest), digest)
        return self.done


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Environment, Request]:
    made = Environment()
    monkeypatch.setattr(artifacts, "BUILD", tmp_path)
    monkeypatch.setattr(wheel, "installed_digest", lambda _: made.digest)
    monkeypatch.setattr(wheel, "install", made.install)
    monkeypatch.setattr(wheel, "check_import", made.check_import)
    monkeypatch.setattr(build, "gpu_arch", lambda: None)
    return made, build.make_request(7, "sm_80", "prog:a100")


def test_an_import_is_checked_until_it_passes_and_then_no_more(environment: tuple[Environment, Request]) -> None:
    place, request = environment
    place.good = False
    for steps in (["install", "check"], ["check"]):
        with pytest.raises(FlashladderError, match="import check failed"):
            place.run(request, "d")
        assert place.done == steps
    place.good = True
    assert place.run(request, "d") == ["check"]
    assert place.run(request, "d") == []


def test_only_what_is_not_installed_is_installed(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Path, ...]] = []
    monkeypatch.setattr(wheel, "install", lambda *wheels: asked.append(wheels))
    builds = tmp_path / "builds"
    for number, digest in ((77, "d"), (78, "e")):
        folder = builds / f"iteration_{number}" / "sm_80"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(json.dumps({"inputs_digest": digest}))
        (folder / "x.whl").touch()
    assert wheel.install_built(builds, "sm_80") == ["flashladder_77", "flashladder_78"]
    assert asked == [(builds / "iteration_78" / "sm_80" / "x.whl",)]
    assert wheel.install_built(builds, "sm_90") == []
    (builds / "iteration_78" / "sm_80" / "manifest.json").write_text("{}")
    with pytest.raises(FlashladderError, match=r"manifest is broken.*build that iteration again"):
        wheel.install_built(builds, "sm_80")


def test_nothing_is_installed_outside_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    with pytest.raises(FlashladderError, match=r"not in a virtual environment.*--no-install"):
        wheel.install(tmp_path / "x.whl")


@pytest.mark.parametrize(
    ("says", "full", "told"),
    [
        ("no such wheel", "", r"could not be installed \(no such wheel\)"),
        ("no such file", "", "TMPDIR names no folder"),
        ("No space left on device (os error 28)", "temporary", "temporary: .*full"),
        ("No space left on device (os error 28)", "environment", "environment: .*full"),
    ],
)
def test_an_installer_that_fails_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, full: str, told: str
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    monkeypatch.setattr(errors, "_is_full", lambda folder: folder == tmp_path / full)
    monkeypatch.setattr(wheel, "installer", lambda: [sys.executable, "-c", f"raise SystemExit({says!r})"])
    with pytest.raises(FlashladderError, match=told):
        wheel.install(tmp_path / "x.whl")


def test_a_failing_import_is_one_line() -> None:
    with pytest.raises(
        FlashladderError, match="import check failed: ModuleNotFoundError: No module named 'flashladder_99'"
    ):
        wheel.check_import("flashladder_99", ["(FP16, ...)"])


@pytest.mark.parametrize(
    ("program", "options"), [("uv", {"--reinstall", "--no-cache"}), ("pip", {"--force-reinstall"})]
)
def test_uvs_cache_is_left_out(
    program: str, options: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shares its files with the environments by hard links, and would install a damaged one again."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == program)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    asked: list[str] = []

    def run(command: list[str], **_: object) -> SimpleNamespace:
        asked.extend(map(str, command))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    wheel.install(tmp_path / "x.whl")
    assert asked[:4] == [sys.executable, "-m", program, *(["pip"] if program == "uv" else ["install"])]
    assert {"--no-deps", "--no-index", *options} <= set(asked)
    assert "--no-cache" not in asked or program == "uv"
