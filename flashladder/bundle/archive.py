"""Many files to one zip that Python runs: sorted, dated alike, with a manifest of digests; always the same bytes."""

from __future__ import annotations

from collections.abc import Mapping
import io
from pathlib import Path
import stat
import zipfile

from flashladder.build.wheel import EPOCH
from flashladder.bundle import runner
from flashladder.files import dump_json, sha256, write_atomic

PACKED = (".whl",)  # compressed already


def manifest_text(name: str, machine: str, install: Mapping[str, list[str]], files: Mapping[str, bytes]) -> str:
    """The manifest that the runner reads (`flashladder.bundle.runner.read_manifest`).

    Args:
        name: of the bundle.
        machine: what its binaries run on, ``x86_64``.
        install: Python version to the wheels that are unpacked for it, by their path in the bundle.
        files: every file of the bundle but the manifest.
    """
    digests = {path: sha256(data) for path, data in files.items()}
    facts = {"schema": runner.SCHEMA, "name": name, "machine": machine, "install": dict(install), "files": digests}
    return dump_json(facts)


def write_bundle(out: Path, machine: str, install: Mapping[str, list[str]], files: Mapping[str, bytes]) -> Path:
    """Writes the bundle `out`: the runner, the manifest, and `files` by their path in it.

    Raises:
        FlashladderError: the disk is full, or the folder cannot be written.
    """
    whole = {**files, runner.RUNNER: Path(runner.__file__).read_bytes()}
    whole[runner.MANIFEST] = manifest_text(out.stem, machine, install, whole).encode()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for path in sorted(whole, key=lambda path: (path not in (runner.RUNNER, runner.MANIFEST), path)):
            info = zipfile.ZipInfo(path, EPOCH)
            info.compress_type = zipfile.ZIP_STORED if path.endswith(PACKED) else zipfile.ZIP_DEFLATED
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(info, whole[path], compresslevel=9)
    return write_atomic(out, stream.getvalue())
