"""The package as a wheel: it carries the ladder's files, says what it needs, works in a folder without a checkout."""

from __future__ import annotations

from email.parser import Parser
import os
from pathlib import Path
import subprocess
import sys
import zipfile

from packaging.requirements import Requirement
import pytest

from flashladder.bundle.make import own_wheels
from flashladder.paths import ROOT
from flashladder.toolchain import load_pins
from tests.data_files import text_of

CARRIED = "flashladder/carried/"
FOLDERS = ("configs", "iterations", "kernels", "requirements", "results/locks", "results/published")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the wheels are installed."""
    folder = tmp_path_factory.mktemp("site")
    for wheel in own_wheels(tmp_path_factory.mktemp("wheel")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.name[0] != ".")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found if path.suffix != ".pyc"}


def test_it_carries_the_ladders_files_as_they_are(site: Path) -> None:
    carried = files_of(site / CARRIED)
    expected = {f"{name}/{path}": data for name in FOLDERS for path, data in files_of(ROOT / name).items()}
    assert carried == {**expected, "tasks.py": (ROOT / "tasks.py").read_bytes()}
    modules = {path: data for path, data in files_of(site / "flashladder").items() if not path.startswith("carried/")}
    assert modules == files_of(ROOT / "flashladder")
    assert files_of(site / "ptxemu") == files_of(ROOT / "emulator" / "src" / "ptxemu")


def test_it_says_what_it_needs(site: Path) -> None:
    (metadata,) = site.glob("flashladder-*.dist-info/METADATA")
    needs = [Requirement(line) for line in Parser().parsestr(metadata.read_text()).get_all("Requires-Dist", [])]
    build = {one.name: str(one.specifier) for one in needs if one.marker and one.marker.evaluate({"extra": "build"})}
    pins = {name: f"=={version}" for name, version in load_pins().packages.items()}
    assert {name: version for name, version in build.items() if name.startswith("nvidia-")} == pins


def installed(site: Path, folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs the installed package's command line in `folder`."""
    own = ("FLASHLADDER_ROOT", "FLASHLADDER_BUILD")
    variables = {name: value for name, value in os.environ.items() if name not in own}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False,
        env={**variables, "PYTHONPATH": str(site), **more},
    )  # fmt: skip


def test_without_a_checkout_it_reads_its_own_files_and_builds_in_the_working_folder(site: Path, tmp_path: Path) -> None:
    program = text_of("null/bundle/pipeline", "program")
    ran = installed(site, tmp_path, "-c", program)
    build = tmp_path / "build"
    assert ran.stdout.splitlines() == [
        str(site / "flashladder" / "carried"), str(build), str(build / "store"),
        "flashladder/build/command.py", "kernels/entry.cuh",  # digests of inputs name no place of this machine
    ]  # fmt: skip
    elsewhere = installed(site, tmp_path, "-c", program, FLASHLADDER_BUILD="/somewhere/builds")
    assert elsewhere.stdout.splitlines()[1:3] == ["/somewhere/builds", "/somewhere/builds/store"]
    at_home = installed(site, tmp_path, "-c", program, FLASHLADDER_BUILD="~/builds", HOME=str(tmp_path))
    assert at_home.stdout.splitlines()[1] == str(tmp_path / "builds")
    checkout = installed(site, tmp_path, "-c", program, FLASHLADDER_ROOT=str(ROOT))
    assert checkout.stdout.splitlines()[:2] == [str(ROOT), str(ROOT / "build")]
