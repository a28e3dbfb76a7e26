"""The SBOM: CycloneDX's own schema takes it, every wheel is in it with digest, licence and needs; always the same."""

from __future__ import annotations

import hashlib
import io
import json
from typing import Any
import zipfile

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
import pytest

from flashladder.bundle.make import sbom
from flashladder.toolchain.wheels import load_pins


def wheel(*lines: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("x.dist-info/METADATA", "\n".join(("Metadata-Version: 2.4", *lines)) + "\n\nText\n")
    return stream.getvalue()


WHEELS = {
    "wheels/flashladder_07.whl": wheel(
        "Name: flashladder-07", "Version: 0.1.0", "License-Expression: Apache-2.0", "Requires-Dist: torch>=2.10"
    ),
    "wheels/flashladder.whl": wheel(
        "Name: flashladder", "Version: 0.1.0", "License-Expression: Apache-2.0", "Requires-Dist: Ml_Dtypes>=0.4",
        "Requires-Dist: pandas; extra == 'report'",
    ),
    "wheels/ml_dtypes.whl": wheel(
        "Name: ml_dtypes", "Version: 0.6.0", "Classifier: License :: OSI Approved :: MIT License"
    ),
    "wheels/odd.whl": wheel("Name: odd", "Version: 1", "License: own words, <script>"),
}  # fmt: skip


@pytest.fixture(scope="module")
def text() -> str:
    return sbom("flashladder-0.1.0-sm_90-cp312", WHEELS, load_pins())


def test_it_is_valid_and_always_the_same(text: str) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert sbom("flashladder-0.1.0-sm_90-cp312", dict(reversed(WHEELS.items())), load_pins()) == text
    other = sbom(
        "flashladder-0.1.0-sm_90-cp312", {**WHEELS, "wheels/odd.whl": wheel("Name: odd", "Version: 2")}, load_pins()
    )
    assert json.loads(other)["serialNumber"] != json.loads(text)["serialNumber"]


def test_every_wheel_is_a_component_with_its_digest_and_licence(text: str) -> None:
    components: dict[str, Any] = {one["bom-ref"]: one for one in json.loads(text)["components"]}
    assert set(components) == {*WHEELS, "nvidia-cuda-runtime", "torch"}
    for path, data in WHEELS.items():
        assert components[path]["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(data).hexdigest()}]
    assert components["wheels/ml_dtypes.whl"]["purl"] == "pkg:pypi/ml-dtypes@0.6.0"
    assert components["wheels/flashladder.whl"]["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    assert components["wheels/odd.whl"]["licenses"] == [{"license": {"name": "own words, <script>"}}]
    assert components["wheels/ml_dtypes.whl"]["licenses"] == [{"license": {"name": "MIT License"}}]
    assert components["torch"]["scope"] == "excluded"
    assert components["nvidia-cuda-runtime"]["version"] == load_pins().packages["nvidia-cuda-runtime"]


def test_needs_are_told_without_extras(text: str) -> None:
    needs = {one["ref"]: set(one.get("dependsOn", ())) for one in json.loads(text)["dependencies"]}
    assert needs["flashladder-0.1.0-sm_90-cp312"] == set(WHEELS)
    assert needs["wheels/flashladder.whl"] == {"wheels/ml_dtypes.whl"}
    assert needs["wheels/flashladder_07.whl"] == {"torch", "nvidia-cuda-runtime"}


def test_the_toolchain_is_told(text: str) -> None:
    told = {one["name"]: one["value"] for one in json.loads(text)["metadata"]["properties"]}
    pins = load_pins().packages
    assert told == {f"flashladder:toolchain:{name}": version for name, version in pins.items()}
