"""A bundle of one iteration, run as on a node: no compiler, no network, no package but torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata
import os
from pathlib import Path
import subprocess
import sys
import venv
import zipfile

from packaging.requirements import Requirement
import pytest

from flashladder.bundle import make
from tests.data_files import text_of
from tests.package import node
from tests.typed import command

pytestmark = pytest.mark.nvcc
GRID = text_of("nvcc/bundle", "grid")


def packed(name: str, folder: Path) -> Path:
    """An installed package as a wheel."""
    found = metadata.distribution(name)
    path = folder / f"{name}-{found.version}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in found.files or ():
            if not {"..", "tests", "RECORD", "INSTALLER"} & set(file.parts) and file.suffix != ".pyc":
                archive.write(file.locate(), str(file))
    return path


def needs_of(name: str) -> set[str]:
    """A package and all that it needs here."""
    wanted = [Requirement(line) for line in metadata.distribution(name).requires or ()]
    there = {one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})}
    return {name}.union(*map(needs_of, there))


def node_with_torch(folder: Path) -> Path:
    """An environment that has links to torch and its needs, and no other package."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    for name in needs_of("torch"):
        found = metadata.distribution(name)
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(str(found.locate_file(top)))
    return folder


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    names = [line.partition("==")[0] for line in make.pinned(make.LOCK.read_text(encoding="utf-8"), "3.12")]
    wheels = [packed(name, folder) for name in names]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make, "packages", lambda *_: wheels)
        assert command("bundle", "--iterations", "1", "--arch", "sm_90", "--out", str(folder)) == 0
        (made,) = folder.glob("*.pyz")
        whole = made.read_bytes()
        assert command("bundle", "--iterations", "1", "--arch", "sm_90", "--out", str(folder)) == 0
        assert made.read_bytes() == whole
    return made


def run(command: Sequence[str | Path], folder: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_it_runs_without_compiler_network_and_packages(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.yaml").write_text(GRID, encoding="utf-8")
    place = node_with_torch(tmp_path / "node")
    assert node.main([str(bundle.parent), str(place), "--grid", str(tmp_path / "one.yaml")]) == 0
    assert "\n1 cells, of the same code as here" in capsys.readouterr().out


def test_the_wheels_in_it_are_found_with_the_machine_code_that_was_built(bundle: Path, tmp_path: Path) -> None:
    """As a sweep on a GPU plans: by the manifests, for every kernel of the iteration."""
    program = text_of("nvcc/bundle", "program")
    assert run([sys.executable, bundle, "--into", tmp_path, "--help"], tmp_path, os.environ).returncode == 0
    (unpacked,) = tmp_path.iterdir()
    variables = {"PYTHONPATH": str(unpacked / "packages"), "FLASHLADDER_BUILD": str(unpacked / "build")}
    ran = run([sys.executable, "-c", program], tmp_path, os.environ | variables)
    assert ran.returncode == 0, ran.stderr
