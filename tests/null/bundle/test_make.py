"""``invoke bundle``: its options, the grids that run, what comes from the lock for another Python, and the SBOM."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
import subprocess
from types import SimpleNamespace
from typing import Any
import zipfile

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
import pytest

from flashladder.bundle import make as bundle
from flashladder.bundle.make import Kernels, grids_that_run, sbom
from flashladder.errors import FlashladderError
from flashladder.files import last_iteration
from flashladder.ladder.iteration import load_iteration
from flashladder.ladder.selection import select_configs
from flashladder.toolchain import load_pins
from tests.data_files import table_of, text_of
from tests.typed import command, error_line


def ladder(*numbers: int) -> Kernels:
    """The ladder's wheels of some iterations, and their PTX."""
    steps = [load_iteration(number) for number in numbers]
    found = frozenset((step.description, "", c.short_form()) for step in steps for c in select_configs(step, "prog"))
    return Kernels((), found, found, {})


@pytest.mark.parametrize(
    ("numbers", "arches", "grids"),
    [
        (range(1, last_iteration() + 1), ["sm_80", "sm_86"], ["a100", "beyond", "cpu", "rtx3090", "smoke"]),
        ([1, 7, 8, 14, 15, 16], ["sm_90"], ["smoke"]),
        ([16], ["sm_90"], []),
    ],
)
def test_grids_run_whose_kernels_all_come_along(numbers: list[int], arches: list[str], grids: list[str]) -> None:
    assert grids_that_run(ladder(*numbers), arches) == grids


@pytest.mark.parametrize(("words", "told"), table_of("null/bundle/make", "refused"))
def test_a_mistake_is_refused(words: list[str], told: str) -> None:
    assert told in error_line(command, "bundle", *words)


def test_a_folder_that_is_none_is_refused_before_anything_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "README.md").touch()
    monkeypatch.setattr(bundle, "collect", lambda *_: pytest.fail("the work began"))
    with pytest.raises(FlashladderError, match=r"README\.md: not a folder"):
        command("bundle", "--arch", "sm_80", "--out", str(tmp_path / "README.md"))


LOCK = text_of("null/bundle/make", "lock")


@pytest.mark.parametrize(
    ("python", "numpy"),
    [("3.10", "numpy==2.2.6 --hash=sha256:bb --hash=sha256:cc"), ("3.13", "numpy==2.5.5 --hash=sha256:ee")],
)
def test_markers_are_read_for_the_target_not_for_this_python(python: str, numpy: str) -> None:
    assert bundle.pinned(LOCK, python) == [numpy, "tqdm==4.70.1 --hash=sha256:ff"]


def pip(monkeypatch: pytest.MonkeyPatch, code: int, stderr: str = "") -> list[list[str]]:
    """pip that leaves a wheel, and ends with `code`; its command lines and requirements."""
    asked: list[list[str]] = []

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        (dest,) = (word.partition("=")[2] for word in command if word.startswith("--dest="))
        Path(dest).mkdir()
        (Path(dest) / "numpy.whl").touch()
        asked.extend([command, Path(command[-1]).read_text(encoding="utf-8").splitlines()])
        return SimpleNamespace(returncode=code, stderr=stderr)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    return asked


def test_pip_is_asked_for_binaries_by_hash_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pip(monkeypatch, 0)
    for _ in range(2):
        found = bundle.packages("3.12", ["manylinux_2_28_x86_64", "linux_x86_64"], tmp_path)
        assert [path.name for path in found] == ["numpy.whl"]
    command, lines = asked
    assert {"--require-hashes", "--only-binary=:all:", "--python-version=3.12", "--no-deps"} <= set(command)
    assert {"--platform=manylinux_2_28_x86_64", "--platform=linux_x86_64"} <= set(command)
    assert all(" --hash=sha256:" in line and ";" not in line for line in lines)
    for python, tags in (("3.13", ["manylinux_2_28_x86_64", "linux_x86_64"]), ("3.12", ["manylinux_2_28_x86_64"])):
        bundle.packages(python, tags, tmp_path)
    assert len(asked) == 6
    pip(monkeypatch, 1, "WARNING: x\nERROR: No matching distribution found for numpy==2.5.5\n")
    with pytest.raises(FlashladderError, match=r"cannot be fetched: found No matching distribution .* PIP_FIND_LINKS"):
        bundle.packages("3.11", ["x"], tmp_path / "none")
    assert not list((tmp_path / "none").iterdir())


def wheel(*lines: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("x.dist-info/METADATA", "\n".join(("Metadata-Version: 2.4", *lines)) + "\n\nText\n")
    return stream.getvalue()


WHEELS = {
    "wheels/flashladder.whl": wheel("Name: flashladder", "Version: 0.1.0", "License-Expression: Apache-2.0"),
    "wheels/ml_dtypes.whl": wheel(
        "Name: ml_dtypes", "Version: 0.6.0", "Classifier: License :: OSI Approved :: MIT License"
    ),
    "wheels/odd.whl": wheel("Name: odd", "Version: 1", "License: own words, <script>"),
}  # fmt: skip


def test_the_sbom_is_valid_repeats_and_tells_each_wheels_digest_and_licence() -> None:
    name, pins = "flashladder-0.1.0-sm_90-cp312", load_pins()
    text = sbom(name, WHEELS, pins)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert sbom(name, dict(reversed(WHEELS.items())), pins) == text
    found = json.loads(text)
    other = sbom(name, {**WHEELS, "wheels/odd.whl": wheel("Name: odd", "Version: 2")}, pins)
    assert json.loads(other)["serialNumber"] != found["serialNumber"]
    components: dict[str, Any] = {one["bom-ref"]: one for one in found["components"]}
    assert set(components) == {*WHEELS, "nvidia-cuda-runtime", "torch"}
    for path, data in WHEELS.items():
        assert components[path]["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(data).hexdigest()}]
    assert components["wheels/ml_dtypes.whl"]["purl"] == "pkg:pypi/ml-dtypes@0.6.0"
    licences = {path: components[path]["licenses"][0]["license"] for path in WHEELS}
    assert list(licences.values()) == [
        {"id": "Apache-2.0"}, {"name": "MIT License"}, {"name": "own words, <script>"},
    ]  # fmt: skip
    assert components["torch"]["scope"] == "excluded"
    assert components["nvidia-cuda-runtime"]["version"] == pins.packages["nvidia-cuda-runtime"]
    told = {one["name"]: one["value"] for one in found["metadata"]["properties"]}
    assert told == {f"flashladder:toolchain:{tool}": version for tool, version in pins.packages.items()}
    needs = {one["ref"]: set(one.get("dependsOn", ())) for one in found["dependencies"]}
    assert needs[name] == {*WHEELS, "nvidia-cuda-runtime", "torch"}
