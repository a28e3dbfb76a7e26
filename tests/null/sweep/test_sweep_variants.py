"""A sweep's ablations and other compilers: planned with the code of their own wheel, built into their environment."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from flashladder.files import dump_json
from flashladder.ladder.iteration import load_iteration
from flashladder.sweep.cells import Wanted
from flashladder.sweep.measure import builds, environments
from flashladder.sweep.measure.builds import command_for
from flashladder.sweep.measure.inventory import Inventory, Place

CONFIG = "(FP16, 128, 128, 64, 4): async"
SHAPE = (16, 4096, 16, 128)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The site-packages of iteration 16's own environment; nothing else is installed anywhere."""
    folder = tmp_path / ".nox" / "build-iteration-16" / "lib" / "python3.11" / "site-packages"
    folder.mkdir(parents=True)
    monkeypatch.setattr(environments, "Inventory", lambda: Inventory(tmp_path, Place(Path(sys.executable), ())))
    environments.forget()
    yield folder
    environments.forget()


def test_the_code_of_a_variant_is_its_own_wheels(site: Path) -> None:
    cells = [
        Wanted("16", CONFIG, "fp16", SHAPE),
        Wanted("16", CONFIG, "fp16", SHAPE, "13.1"),
        Wanted("16 - swizzle", CONFIG, "fp16", SHAPE),
    ]
    assert environments.digests(cells, "sm_90") == ["", "", ""]
    for package in ("flashladder_16", "flashladder_16_cuda_13_1", "flashladder_16_minus_swizzle"):
        (site / package).mkdir()
        kernels = {CONFIG: {"sm_90": {"text_sha256": f"text of {package}"}}}
        (site / package / "manifest.json").write_text(dump_json({"inputs_digest": "d", "kernels": kernels}))
    assert environments.digests(cells, "sm_90") == ["", "", ""]  # as it was when it was first asked
    environments.forget()
    assert environments.digests(cells, "sm_90") == [
        "text of flashladder_16",
        "text of flashladder_16_cuda_13_1",
        "text of flashladder_16_minus_swizzle",
    ]
    assert environments.digests(cells, "sm_86") == ["", "", ""]  # machine code is made for it, but not here
    assert environments.digests(cells[:1], "sm_120") == ["d"]  # the driver compiles the PTX
    assert environments.python_of(cells[2], "sm_90") == str(site.parents[2] / "bin" / "python")
    assert environments.python_of(Wanted("7", CONFIG, "fp16", SHAPE), "sm_90") == sys.executable


def test_the_code_of_a_reference_is_its_name_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"torch": "2.11", "flash-attn-4": "4.0"}

    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr("importlib.metadata.version", version)
    environments.reference_version.cache_clear()
    cells = [Wanted(name, "", "fp16", SHAPE) for name in ("fa2", "cudnn", "fa4", "flash-attn")]
    assert environments.digests(cells, "sm_90") == ["fa2 2.11", "cudnn 2.11", "fa4 4.0", ""]
    assert environments.reference_version("flash-attn") is None
    environments.reference_version.cache_clear()


@pytest.mark.parametrize("nox", ["/bin/nox", None])
def test_a_variant_is_built_into_the_environment_of_its_iteration(
    monkeypatch: pytest.MonkeyPatch, nox: str | None
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: nox)
    session = [nox, "-s", "build-iteration-16", "--"] if nox else [sys.executable, "-m", "flashladder.build", "16"]
    options = ["--arch", "sm_90", "--configs", "prog"]
    assert command_for("16", "", "prog", "sm_90") == [*session, *options]
    both = command_for("16 - swizzle", "13.1", "prog", "sm_90")
    assert both == [*session, "-", "swizzle", *options, "--toolchain", "13.1"]


def test_without_a_checkout_it_is_built_here_where_builds_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An installed package has no sessions; what it starts may not take another folder for that of the builds."""
    monkeypatch.setattr(shutil, "which", lambda _: "/bin/nox")
    monkeypatch.setattr(builds, "ROOT", tmp_path)
    monkeypatch.setattr(builds, "BUILD", tmp_path / "builds")
    asked: list[tuple[list[str], str]] = []

    def run(command: list[str], *, env: dict[str, str], **_: object) -> SimpleNamespace:
        asked.append((command, env["FLASHLADDER_BUILD"]))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    config = load_iteration(16).configs["h200"].short_form()
    builds.build_all([Wanted("16", config, "fp16", SHAPE)], "sm_90")
    command = [sys.executable, "-m", "flashladder.build", "16", "--arch", "sm_90", "--configs", "prog"]
    assert asked == [(command, str(tmp_path / "builds"))]
