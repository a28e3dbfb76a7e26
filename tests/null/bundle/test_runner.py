"""A bundle's runner: what it takes, what it refuses before anything is used, and where it writes."""

from __future__ import annotations

from collections.abc import Mapping
import io
import os
from pathlib import Path
import platform
import stat
import subprocess
import sys
import zipfile

import pytest

from flashladder.bundle import runner
from flashladder.bundle.make import write_bundle
from flashladder.bundle.runner import Refused

HERE = (sys.version_info[0], sys.version_info[1])
PYTHON = f"{HERE[0]}.{HERE[1]}"
MACHINE = platform.machine()
NODE = """\
import os, sys
print("node", sys.argv[1:], os.environ["FLASHLADDER_BUILD"], os.environ.get("FLASHLADDER_ROOT"))
raise SystemExit(1)
"""


def zipped(files: Mapping[str, bytes], mode: int = stat.S_IFREG | 0o644) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, data)
    return stream.getvalue()


WHEEL = zipped(
    {
        "flashladder/__init__.py": b"",
        "flashladder/bundle/__init__.py": b"",
        "flashladder/bundle/make.py": NODE.encode(),
        "x.data/purelib/beside.py": b"",
        "x.data/platlib/beside.so": b"",
        "x.data/scripts/tool": b"",
    }
)


def bundle(folder: Path, wheel: bytes = WHEEL, more: Mapping[str, bytes] | None = None) -> Path:
    files = {"wheels/x.whl": wheel, "build/store/tools.json": b"{}", **(more or {})}
    return write_bundle(folder / "b.pyz", MACHINE, {PYTHON: ["wheels/x.whl"]}, files)


def rewritten(path: Path, change: Mapping[str, bytes | None]) -> Path:
    """The bundle with members replaced, added, or (None) removed; its manifest as it was, unless that is changed."""
    with zipfile.ZipFile(path) as archive:
        files: dict[str, bytes | None] = {name: archive.read(name) for name in archive.namelist()}
    path.write_bytes(zipped({name: data for name, data in {**files, **change}.items() if data is not None}))
    return path


def refusal(path: Path, into: Path) -> str:
    """Why a bundle is refused; nothing was written for it."""
    with pytest.raises(Refused) as caught:
        runner.prepare(["--into", str(into), "list"], path)
    assert not into.exists() or not any(into.iterdir())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_bundle_runs_as_one_file_and_leaves_with_the_codes_of_its_command(tmp_path: Path) -> None:
    path = bundle(tmp_path)
    command = [sys.executable, str(path), "sweep", "--x y"]
    variables = {**os.environ, "FLASHLADDER_ROOT": "/a/checkout"}
    ran = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr.count("\n")) == (1, 1)
    (folder,) = (tmp_path / "b").iterdir()
    assert ran.stdout == f"node ['sweep', '--x y'] {folder / 'build'} None\n"
    assert (folder / "build" / "store" / "tools.json").read_bytes() == b"{}"
    assert all((folder / "packages" / f"beside.{suffix}").is_file() for suffix in ("py", "so"))
    assert not list(folder.rglob("tool"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "b.pyz"]


def test_a_checkout_in_the_working_folder_is_not_taken_for_the_bundle(tmp_path: Path) -> None:
    other = tmp_path / "flashladder" / "bundle"
    other.mkdir(parents=True)
    (other.parent / "__init__.py").touch()
    (other / "__init__.py").touch()
    (other / "make.py").write_text("raise SystemExit('the checkout')\n", encoding="utf-8")
    command = [sys.executable, str(bundle(tmp_path)), "x"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout[:12]) == (1, "node ['x'] /")


def test_a_bundle_is_unpacked_once_also_by_two_processes(tmp_path: Path) -> None:
    path = bundle(tmp_path)
    ran = [subprocess.Popen([sys.executable, path, "x"], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert len({one.communicate()[0] for one in ran}) == 1
    (first,) = (tmp_path / "b").iterdir()
    (first / "build" / "records").mkdir()
    assert runner.unpacked(path, tmp_path / "b", HERE, MACHINE) == first
    assert (first / "build" / "records").is_dir()
    other = bundle(tmp_path, more={"build/new": b""})
    assert runner.unpacked(other, tmp_path / "b", HERE, MACHINE) != first


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"wheels/x.whl": WHEEL + b"\0"}, "wheels/x.whl was changed: expected sha256"),
        ({"wheels/x.whl": None}, "'wheels/x.whl' is missing"),
        ({"build/more": b""}, "'build/more' is not a file of this bundle"),
        ({"a\x1b[2J": b""}, r"'a\x1b[2J' is not a file of this bundle"),
        ({"__main__.py": b"print('other')"}, "__main__.py was changed"),
        ({"MANIFEST.json": None}, "MANIFEST.json is damaged or missing (KeyError)"),
        ({"MANIFEST.json": b"[" * 100_000}, "MANIFEST.json is damaged or missing (RecursionError)"),
        ({"MANIFEST.json": b'{"schema": 2, "files": {}, "install": {}}'}, "is not one of a bundle of schema 1"),
    ],
)
def test_a_changed_bundle_is_refused_before_anything_is_written(
    change: dict[str, bytes | None], told: str, tmp_path: Path
) -> None:
    path = rewritten(bundle(tmp_path), change)
    assert told in refusal(path, tmp_path / "into")
    data = bundle(tmp_path).read_bytes()
    for length in (0, 20, 400):
        path.write_bytes(data[:length])
        assert "not a whole archive" in refusal(path, tmp_path / "into")


def test_another_python_or_machine_and_words_that_cannot_be_are_told(tmp_path: Path) -> None:
    path, into = bundle(tmp_path), tmp_path / "into"
    for version, machine, told in (
        ((3, 9), MACHINE, "another Python: expected"),
        ((3, 99), MACHINE, "found 3.99; make one where there is a network: invoke bundle --python 3.99"),
        (HERE, "riscv64", f"another machine: expected {MACHINE}, found riscv64"),
    ):
        with pytest.raises(Refused, match=told):
            runner.unpacked(path, into, version, machine)
    for words, place, told in ((["--into"], path, "--into needs a folder"), ([], tmp_path, "expected the one file")):
        with pytest.raises(Refused, match=told):
            runner.prepare(words, place)
    assert not into.exists()


def test_what_is_unpacked_stays_in_its_folder(tmp_path: Path) -> None:
    """Also if a wheel in the manifest holds links and paths that lead elsewhere."""
    wheel = zipped({"../x": b"x", "/y": b"y", "link": b"/etc/passwd"}, stat.S_IFLNK | 0o777)
    path = bundle(tmp_path, wheel)
    site = runner.unpacked(path, tmp_path / "into", HERE, MACHINE) / "packages"
    assert sorted(one.name for one in site.iterdir()) == ["link", "x", "y"]
    assert not any(one.is_symlink() for one in site.iterdir())
    assert sorted(one.name for one in tmp_path.iterdir()) == ["b.pyz", "into"]


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    """A file in the place of the folder: also root cannot unpack there."""
    path = bundle(tmp_path)
    (tmp_path / "b").write_text("", encoding="utf-8")
    ran = subprocess.run([sys.executable, path, "list"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    last = ran.stderr.splitlines()[-1]
    assert last.startswith(f"error: {tmp_path / 'b'}: the bundle cannot be unpacked")
    assert last.endswith("--into FOLDER")
