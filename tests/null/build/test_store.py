"""The store with fake tools: keys, whole entries, many through ninja, damage filled again, failures in one line."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
import dataclasses
import json
import os
from pathlib import Path
import re
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from flashladder import toolchain
from flashladder.build import store
from flashladder.build.store import CubinEntry, PtxEntry, Tools, entry_lock, fill, fill_all, missing_entries, ptx_entry
from flashladder.errors import FlashladderError
from flashladder.paths import ROOT
from flashladder.tool_runs import diagnose
from tests.data_files import table_of, text_of
from tests.typed import error_line

TEXT = '#include "sub/part.cuh"\nint unit;\n'
# The last argument is the output. The fake nvcc writes .file lines as the real one does: absolute, through "..".
NVCC = text_of("null/build/store", "nvcc")
PTXAS = text_of("null/build/store", "ptxas")


def build(entry: PtxEntry | CubinEntry) -> None:
    store.prepare(entry)
    fill(entry.folder)


class Lab:
    """A checkout in miniature: kernels, a store, and tools that are shell scripts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.kernels = root / "kernels"
        self.part = self.kernels / "sub" / "part.cuh"
        self.part.parent.mkdir(parents=True)
        self.part.write_text("// part\n")
        self.store = root / "store"
        self.tools = Tools(
            root=root / "cu13",
            nvcc=self.script("nvcc", NVCC),
            ptxas=self.script("ptxas", PTXAS),
            host_compiler=Path("/usr/bin/g++"),
            nvcc_flags=("-arch=compute_80", "-lineinfo"),
            ptxas_flags=("-v", "-lineinfo"),
            ptx_versions={"nvidia-cuda-nvcc": "13.0.88", "host compiler": "g++ 12"},
            ptxas_version="13.0.88",
        )

    def script(self, name: str, text: str) -> Path:
        path = self.root / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def ptx(self, text: str = TEXT, **changes: object) -> PtxEntry:
        tools = dataclasses.replace(self.tools, **changes)  # type: ignore[arg-type]  # any field, by name
        return ptx_entry(text, self.kernels, [self.part], tools, self.store)

    def cubin(self, arch: str = "sm_80", text: str = TEXT) -> CubinEntry:
        return store.cubin_entry(self.ptx(text), arch, self.tools, self.store)

    def nvcc_fails(self, text: str) -> FlashladderError:
        self.script("nvcc", text)
        with pytest.raises(FlashladderError) as caught:
            build(self.ptx())
        assert not self.ptx().is_complete
        assert not list(self.ptx().folder.glob("tmp-*"))
        assert "\n" not in str(caught.value)
        assert caught.value.exit_code == 2
        return caught.value

    def runs(self) -> int:
        return len((self.root / "bin" / "nvcc.runs").read_text().splitlines())


UNSUPPORTED = "h.h:1:2: error: #error -- unsupported GNU version! gcc versions later than 15 are not supported! The"


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda lab: lab.ptx(TEXT + "// a comment"),
        lambda lab: lab.part.write_text("// another comment\n") and lab.ptx(),
        lambda lab: lab.ptx(nvcc_flags=("-arch=compute_80",)),
        lambda lab: lab.ptx(ptx_versions={"nvidia-cuda-nvcc": "13.0.89", "host compiler": "g++ 12"}),
        lambda lab: lab.ptx(ptx_versions={"nvidia-cuda-nvcc": "13.0.88", "host compiler": "g++ 13"}),
        lambda lab: (
            lab.part.rename(lab.part.with_name("p.cuh"))
            and ptx_entry(TEXT, lab.kernels, [lab.part.with_name("p.cuh")], lab.tools, lab.store)
        ),
    ],
    ids=["text", "include", "flags", "nvcc", "host", "include's name"],
)
def test_each_input_changes_the_key_of_the_ptx_and_no_place_does(
    lab: Lab, tmp_path: Path, change: Callable[[Lab], PtxEntry]
) -> None:
    other = Lab(tmp_path / "b" / "deeper")
    assert (other.ptx().key, other.cubin().key) == (lab.ptx().key, lab.cubin().key)
    assert str(tmp_path) not in str(lab.ptx().inputs) + str(lab.cubin().inputs)
    before = lab.ptx().key
    assert change(lab).key != before


def test_an_include_from_outside_is_an_error(lab: Lab) -> None:
    outside = lab.root / "stray.cuh"
    outside.touch()
    with pytest.raises(FlashladderError, match=r"stray\.cuh: a kernel includes a file from outside the include folder"):
        ptx_entry(TEXT, lab.kernels, [outside], lab.tools, lab.store)
    with pytest.raises(FlashladderError, match="cannot read the file"):
        ptx_entry(TEXT, lab.kernels, [lab.kernels / "none.cuh"], lab.tools, lab.store)


def test_a_filled_entry_has_everything_and_is_not_filled_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_HOME", "NVCC_APPEND_FLAGS", "CPATH"):
        monkeypatch.setenv(name, "/alien/cuda")
    lab.script("nvcc", f"{NVCC}env | grep -e alien -e TMPDIR= -e LC_ALL")
    ptx, cubin = lab.ptx(), lab.cubin()
    assert not ptx.is_complete
    for entry in (ptx, cubin, ptx, cubin):
        build(entry)
        assert entry.is_complete
    assert lab.runs() == 1
    asked, warning, *environment = ptx.log.read_text().splitlines()
    assert asked.startswith(f"$ {lab.tools.nvcc} -ptx -arch=compute_80 -lineinfo -I ")
    assert warning == "kernel.cu(3): warning #177-D: unused"
    locale, temporary = sorted(environment)  # and nothing of another CUDA
    assert locale == "LC_ALL=C"
    assert temporary.startswith(f"TMPDIR={ptx.folder}/tmp-")
    assert ptx.meta["warnings"] == ["kernel.cu(3): warning #177-D: unused"]
    assert ptx.meta["inputs"] == ptx.inputs
    assert cubin.cubin.read_bytes() == ptx.ptx.read_bytes()
    assert cubin.usage.registers == 10
    files = {"kernel.cu", "kernel.ptx", "nvcc.log", "meta.json", "job.json", ".lock"}
    assert {path.name for path in ptx.folder.iterdir()} == files


def test_a_hash_of_the_sources_path_is_in_no_ptx(tmp_path: Path) -> None:
    """nvcc puts one into names of internal linkage; as bytes of a debug section a line may end within it."""

    def made(digest: str) -> str:
        name = f"_ZN39_INTERNAL_{digest}_9_kernel_cu_7743d80c10__syncwarpEj"
        codes = [str(code) for code in name.encode()]
        rows = [codes[:18], codes[18:40], codes[40:]]
        section = "".join(f".b8 {','.join(row)}\n" for row in [*rows, ["0"]])
        return f"call {name};\n.section .debug_str {{\n{section}}}\n"

    one, other = (store.portable_paths(made(digest), [], tmp_path) for digest in ("64a6603e", "00f8b7e6"))
    assert one == other == made("00000000")


@pytest.mark.parametrize(("says", "ends", "what", "hint"), table_of("null/build/store", "failures"))
def test_failures_of_the_machine_are_recognised(lab: Lab, says: str, ends: int, what: str, hint: str) -> None:
    error = str(lab.nvcc_fails(f"cat <<'END'\n{says}\nEND\nexit {ends}"))
    assert re.search(f"{what}.*; .*{hint}", error), error


@pytest.mark.parametrize(
    ("line", "where", "what"),
    [
        ("../../kernels/sub/part.cuh(12): error: no foo", "kernels/sub/part.cuh:12", "no foo"),
        ("kernel.cu:1:10: fatal error: nothere.cuh: No such file or directory", "kernel.cu:1", "nothere.cuh: No such"),
        ("ptxas ../x/kernel.ptx, line 39; error   : Unknown modifier '.snc'", "x/kernel.ptx:39", "Unknown modifier"),
    ],
)
def test_an_error_in_the_source_is_shown_with_its_line_and_the_log(lab: Lab, line: str, where: str, what: str) -> None:
    error = lab.nvcc_fails(f"cat <<'END'\nnote\n{line}\n9.cu(9): error: a later one\nEND\nexit 1")
    assert str(error.where).endswith(where)
    assert ".." not in str(error.where)
    assert error.what.startswith(f"nvcc: {what}")
    assert str(error.hint) == f"the full log is {lab.ptx().log}"
    assert "a later one" in lab.ptx().log.read_text()


def test_a_part_of_a_later_error_is_not_named(tmp_path: Path) -> None:
    """tests/nvcc/test_contracts.py compiles parts that break a contract."""
    text = 'a.cuh(7): error: static assertion failed with "Gmem must"\na.cuh(9): error: later\n[with Part=Kernel::Gmem]'
    assert diagnose("nvcc", 2, text, tmp_path / "nvcc.log", tmp_path).found is None


def worker(entry: PtxEntry) -> subprocess.Popen[str]:
    store.prepare(entry)
    command = [sys.executable, "-S", "-m", "flashladder.build.store", str(entry.folder)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)


def test_a_killed_build_leaves_nothing_that_looks_finished(lab: Lab) -> None:
    entry = lab.ptx()
    lab.script("nvcc", 'for out; do :; done; echo half > "$out"; sleep 60')
    with worker(entry) as process:
        while not list(entry.folder.glob("tmp-*/kernel.ptx")):
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
    assert not lab.ptx().is_complete
    assert not entry.ptx.exists()
    lab.script("nvcc", NVCC)
    build(entry)
    assert entry.is_complete
    assert not list(entry.folder.glob("tmp-*"))


def test_two_processes_on_one_entry_compile_once(lab: Lab) -> None:
    lab.script("nvcc", "sleep 0.3\n" + NVCC)
    with worker(lab.ptx()) as first, worker(lab.ptx()) as second:
        assert (first.wait(30), second.wait(30)) == (0, 0)
    assert lab.runs() == 1
    assert lab.ptx().is_complete


def test_the_second_build_waits_with_a_message(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    folder = lab.ptx().folder
    with ThreadPoolExecutor() as pool:
        with entry_lock(folder):
            assert f"for 0.05 s: found process {os.getpid()}; wait for that" in error_line(fill, folder, timeout_s=0.05)
            waiting = pool.submit(entry_lock(folder, timeout_s=30).__enter__)
            time.sleep(0.2)
            assert not waiting.done()
        waiting.result(30)
    with entry_lock(folder), entry_lock(folder / "other"):
        assert (folder / ".lock").read_text() == f"{os.getpid()}\n", "of the present holder alone"
    told = f"waiting for process {os.getpid()}, which builds {folder}"
    assert capsys.readouterr().err.splitlines() == [told] * 2


@pytest.mark.parametrize("name", [".lock", "kernel.ptx"])
def test_a_folder_in_the_place_of_a_file_of_an_entry_is_named(lab: Lab, name: str) -> None:
    entry = lab.ptx()
    (entry.folder / name).mkdir(parents=True)
    assert error_line(build, entry).endswith(f"{entry.key}/{name}: is a directory; remove it")


@pytest.fixture(params=["plain", "with space, $dollar, 'quote' and :colon"])
def anywhere(tmp_path: Path, request: pytest.FixtureRequest) -> Lab:
    return Lab(tmp_path / str(request.param))


def entries(lab: Lab) -> list[CubinEntry]:
    return [lab.cubin(arch, f"int unit_{number};\n") for number in range(3) for arch in ("sm_80", "sm_90")]


def test_each_source_is_compiled_once_for_all_architectures(anywhere: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = entries(anywhere)
    fill_all(wanted + wanted, n_jobs=2)
    assert anywhere.runs() == 3
    assert [entry.cubin.read_text().splitlines()[0] for entry in wanted[::2]] == [f"int unit_{n};" for n in range(3)]
    assert {entry.usage.arch for entry in wanted} == {"sm_80", "sm_90"}
    assert not list(anywhere.store.glob(".ninja-*"))
    monkeypatch.setattr(toolchain, "find_ninja", lambda: pytest.fail("nothing is missing, and ninja was asked for"))
    fill_all(wanted)


@pytest.mark.parametrize(
    ("tool", "script", "told"),
    [
        ("nvcc", "echo 'kernel.cu(4): error: no such thing'; exit 1", r"kernel.cu:4: nvcc: no such thing; .*nvcc\.log"),
        ("nvcc", "kill -9 $PPID", "ran out of memory; use fewer jobs"),
        ("ptxas", "kill -9 $$", r"ptxas was killed \(signal 9\).*--jobs 1"),
    ],
)
def test_a_failure_comes_through_ninja_as_one_line(anywhere: Lab, tool: str, script: str, told: str) -> None:
    wanted = entries(anywhere)
    anywhere.script(tool, script)
    assert re.search(told, error_line(fill_all, wanted, n_jobs=1))
    assert not any(entry.is_complete for entry in wanted)


def test_a_record_that_breaks_after_it_was_checked_is_one_line(lab: Lab) -> None:
    entry = lab.cubin()
    fill_all([entry])
    for content in (b"{", b"[1]", b"{}"):
        (entry.folder / "meta.json").write_bytes(content)
        with pytest.raises(FlashladderError, match="the record of a compiled kernel is broken"):
            _ = entry.usage
    (entry.folder / "meta.json").unlink()
    with pytest.raises(FlashladderError, match="cannot read the file"):
        _ = entry.usage


def edit_meta(entry: PtxEntry | CubinEntry, **changes: object) -> None:
    (entry.folder / "meta.json").write_text(json.dumps(entry.meta | changes))


def flip(entry: PtxEntry | CubinEntry) -> None:
    data = (entry.folder / entry.OUTPUT).read_bytes()
    (entry.folder / entry.OUTPUT).write_bytes(bytes([data[0] ^ 1]) + data[1:])


DAMAGE: dict[str, Callable[[PtxEntry | CubinEntry], object]] = {
    "bit flip": flip,
    "no output": lambda entry: (entry.folder / entry.OUTPUT).unlink(),
    "no log": lambda entry: entry.log.unlink(),
    "not UTF-8": lambda entry: (entry.folder / "meta.json").write_bytes(b"\xff"),
    "of another entry": lambda entry: edit_meta(entry, key="0" * 64),
    "source": lambda entry: (entry.folder / "kernel.cu").write_text("edited"),
    "registers": lambda entry: edit_meta(entry, registers="many"),
}
CASES = [(name, kind) for name in DAMAGE for kind in ("ptx", "cubin")]
CASES = [case for case in CASES if case not in (("source", "cubin"), ("registers", "ptx"))]


@pytest.mark.parametrize(("damage", "kind"), CASES)
def test_a_damaged_entry_is_filled_again(lab: Lab, damage: str, kind: str) -> None:
    entry = lab.ptx() if kind == "ptx" else lab.cubin()
    fill_all([lab.cubin()])
    good = (entry.folder / entry.OUTPUT).read_bytes()
    DAMAGE[damage](entry)
    assert missing_entries([lab.cubin()]) == [entry]
    fill_all([lab.cubin()])
    assert (entry.folder / entry.OUTPUT).read_bytes() == good
    assert lab.ptx().source.read_text() == TEXT
    assert missing_entries([lab.cubin()]) == []


def test_a_tool_that_fails_on_a_full_disk_is_not_blamed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "echo 'nvcc error: cicc died with status 1'; exit 1"
    assert "nvcc failed" in str(lab.nvcc_fails(script))
    for mebibytes, full in ((15, True), (16, False)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=mebibytes * 2**20: SimpleNamespace(free=free))
        assert ("the disk is full; free space" in str(lab.nvcc_fails(script))) is full
