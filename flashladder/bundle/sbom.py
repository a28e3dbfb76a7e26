"""What a bundle is made of, as a CycloneDX document: every wheel with version, digest, licence and needs.

Why a library's work: CycloneDX's own package writes the document, in its order and by its schema. Time and serial
number follow from the content, so that the same bundle has the same SBOM.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from email.message import Message
from email.parser import BytesParser
import io
from typing import TYPE_CHECKING
import uuid
import zipfile

from flashladder.build.wheel import EPOCH_SECONDS
from flashladder.errors import FlashladderError
from flashladder.files import sha256
from flashladder.toolchain.wheels import Pins
from flashladder.version import __version__

if TYPE_CHECKING:
    from cyclonedx.model.component import Component

LINKED = "nvidia-cuda-runtime"  # whose static library is part of every iteration's
NOT_ALONG = "torch"  # is on the node


def metadata_of(wheel: bytes, name: str) -> Message:
    """The METADATA of a wheel.

    Raises:
        FlashladderError: it has none.
    """
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        found = [member for member in archive.namelist() if member.endswith(".dist-info/METADATA")]
        if len(found) != 1:
            raise FlashladderError("a wheel without metadata", where=name, expected="one METADATA", found=len(found))
        return BytesParser().parsebytes(archive.read(found[0]), headersonly=True)


def canonical(name: str) -> str:
    """A package's name as indices compare it."""
    from packaging.utils import canonicalize_name

    return str(canonicalize_name(name))


def sbom(name: str, wheels: Mapping[str, bytes], pins: Pins) -> str:
    """The CycloneDX 1.6 JSON of a bundle.

    Args:
        name: of the bundle.
        wheels: every wheel in it by its path.
        pins: the toolchain that compiled the kernels.

    Raises:
        FlashladderError: CycloneDX's library is missing, or a wheel has no metadata.
    """
    try:
        from cyclonedx.model import Property
        from cyclonedx.model.bom import Bom, BomMetaData
        from cyclonedx.model.component import Component, ComponentScope, ComponentType
        from cyclonedx.output.json import JsonV1Dot6
    except ImportError as error:
        raise FlashladderError(
            "cyclonedx-python-lib, which writes the SBOM, is missing", hint="run: nox -s dev"
        ) from error
    whole = Component(type=ComponentType.APPLICATION, name=name, version=__version__, bom_ref=name)
    compiled = [
        Property(name=f"flashladder:toolchain:{tool}", value=version) for tool, version in pins.packages.items()
    ]
    bom = Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_OID, sha256("".join(sha256(wheels[path]) for path in sorted(wheels)))),
        metadata=BomMetaData(
            component=whole,
            timestamp=datetime.fromtimestamp(int(EPOCH_SECONDS), timezone.utc),
            properties=compiled,
        ),
    )
    told = {path: metadata_of(data, path) for path, data in wheels.items()}
    components = {path: _component(path, wheels[path], told[path]) for path in wheels}
    static = Component(name=LINKED, version=pins.packages[LINKED], bom_ref=LINKED, description="linked statically")
    torch = Component(name=NOT_ALONG, bom_ref=NOT_ALONG, scope=ComponentScope.EXCLUDED, description="the node's own")
    for component in (*components.values(), static, torch):
        bom.components.add(component)
    bom.register_dependency(whole, components.values())
    known: dict[str, list[Component]] = {static.name: [static], torch.name: [torch]}
    for component in components.values():
        known.setdefault(component.name, []).append(component)
    for path, component in components.items():
        names = _needs(told[path]) | ({LINKED} if component.name.startswith("flashladder-") else set())
        bom.register_dependency(component, [one for needed in sorted(names) for one in known.get(needed, [])])
    return str(JsonV1Dot6(bom).output_as_string(indent=2)) + "\n"


def _component(path: str, data: bytes, told: Message) -> Component:
    """A wheel as a component."""
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.component import Component
    from packageurl import PackageURL

    name, version = canonical(told["Name"]), str(told["Version"])
    licence = told["License-Expression"] or told["License"] or _classified(told)
    return Component(
        name=name,
        version=version,
        bom_ref=path,
        description=told["Summary"],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256(data))],
        licenses=[LicenseFactory().make_from_string(licence)] if licence else [],
        purl=PackageURL("pypi", name=name, version=version),
    )


def _classified(told: Message) -> str:
    """A licence that only a classifier tells."""
    found = [str(line) for line in told.get_all("Classifier", []) if str(line).startswith("License :: ")]
    return found[0].rpartition(" :: ")[2] if found else ""


def _needs(told: Message) -> set[str]:
    """The names of the packages that a wheel requires, on Linux and without extras."""
    from packaging.requirements import Requirement

    wanted = [Requirement(str(line)) for line in told.get_all("Requires-Dist", [])]
    here = {"extra": "", "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    return {canonical(one.name) for one in wanted if one.marker is None or one.marker.evaluate(here)}
