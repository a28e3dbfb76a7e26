"""A damaged entry of the store is noticed and filled again, whatever is wrong with it (fake tools)."""

from __future__ import annotations

from collections.abc import Callable
import json
import os
from pathlib import Path
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from flashladder.build.store import CubinEntry, PtxEntry, fill_all, missing_entries
from tests.null.store_fixture import NVCC, Lab

Entry = PtxEntry | CubinEntry


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def edit_meta(entry: Entry, **changes: object) -> None:
    (entry.folder / "meta.json").write_text(json.dumps(entry.meta | changes))


def flip(path: Path) -> None:
    """Changes one bit in place, as a bad disk does, or an editor through another name of the file."""
    with path.open("r+b") as stream:
        first = stream.read(1)[0]
        stream.seek(0)
        stream.write(bytes([first ^ 1]))


DAMAGE: dict[str, Callable[[Entry], object]] = {
    "bit flip": lambda entry: flip(entry.folder / entry.OUTPUT),
    "truncated": lambda entry: os.truncate(entry.folder / entry.OUTPUT, 5),
    "no output": lambda entry: (entry.folder / entry.OUTPUT).unlink(),
    "no log": lambda entry: entry.log.unlink(),
    "no record": lambda entry: (entry.folder / "meta.json").unlink(),
    "not UTF-8": lambda entry: (entry.folder / "meta.json").write_bytes(b"\xff"),
    "a list": lambda entry: (entry.folder / "meta.json").write_text("[]"),
    "another digest": lambda entry: edit_meta(entry, sha256="0" * 64),
    "of another entry": lambda entry: edit_meta(entry, key="0" * 64),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("which", [0, 1], ids=["ptx", "cubin"])
def test_a_damaged_entry_is_filled_again(lab: Lab, damage: str, which: int) -> None:
    entry = (lab.ptx(), lab.cubin())[which]
    fill_all([lab.cubin()])
    good = (entry.folder / entry.OUTPUT).read_bytes()
    DAMAGE[damage](entry)
    assert missing_entries([lab.cubin()]) == [entry]
    fill_all([lab.cubin()])
    assert (entry.folder / entry.OUTPUT).read_bytes() == good
    assert missing_entries([lab.cubin()]) == []


def test_numbers_of_ptxas_that_cannot_be_read_are_damage(lab: Lab) -> None:
    entry = lab.cubin()
    fill_all([entry])
    edit_meta(entry, registers="many")
    assert not entry.is_complete
    edit_meta(entry, registers=10, warnings="none")
    assert not entry.is_complete
    fill_all([entry])
    assert entry.usage.registers == 10


def test_an_edited_translation_unit_is_put_back(lab: Lab) -> None:
    entry = lab.ptx()
    lab.build(entry)
    entry.source.write_text("edited")
    assert not entry.is_complete
    fill_all([entry])
    assert entry.source.read_text() == entry.text
    assert lab.runs() == 1  # the PTX was never made from the edited one


def test_a_tool_that_fails_on_a_full_disk_is_not_blamed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "echo 'nvcc error: cicc died with status 1'; exit 1"
    assert "nvcc failed" in str(lab.nvcc_fails(script))
    for mebibytes, full in ((15, True), (16, False)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=mebibytes * 2**20: SimpleNamespace(free=free))
        assert ("the disk is full; free space" in str(lab.nvcc_fails(script))) is full


def test_folders_of_killed_builds_are_removed_and_those_of_running_ones_kept(lab: Lab) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    lab.store.mkdir()
    names = [f".ninja-{ended.pid}-abc", f".ninja-{os.getpid()}-abc", ".ninja-word-abc", f".ninja-{10**30}-abc"]
    for name in names:
        (lab.store / name).mkdir()
        (lab.store / name / "build.ninja").touch()
    lab.script("nvcc", f'ls -a "{lab.store}" > "$(dirname "$0")/seen"\n{NVCC}')
    fill_all([lab.cubin("sm_80"), lab.cubin("sm_90")])
    assert sorted(path.name for path in lab.store.glob(".ninja-*")) == sorted(names[1:])
    seen = (lab.root / "bin" / "seen").read_text().split()
    assert sum(name.startswith(f".ninja-{os.getpid()}-") for name in seen) == 2  # the one above and that of this build
