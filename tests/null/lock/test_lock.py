"""The lock without a compiler: schema, comparison, the order of the explanation, re-locking with a reason."""

from __future__ import annotations

from collections.abc import Callable
import json
from pathlib import Path
from typing import Any

import pytest

from flashladder.files import sha256
from flashladder.ladder.claim import LOCK_ARCHES
from flashladder.ladder.iteration import load_iteration
from flashladder.lock import command as lock
from flashladder.lock.command import RULE, Difference, compare, explain, harmless_edits
from flashladder.lock.schema import Lock, LockedKernel, LockFile, read_lock, write_lock
from flashladder.names import EXAMPLE
from tests.typed import error_line

PART = "kernels/ampere/softmax/exp2_folded.cuh"


def kernel(code: str = "code", **changes: object) -> LockedKernel:
    facts: dict[str, object] = dict.fromkeys(("spill_stores", "spill_loads", "stack", "static_smem", "dynamic_smem"), 0)
    facts |= {"text_sha256": sha256(code), "ptx_sha256": sha256(f"PTX of {code}"), "registers": 168}
    facts |= {"counts": {"total": 3, "FMUL": 2, "FFMA": 1}, "main_loop": {"total": 1, "FFMA": 1}}
    return LockedKernel.model_validate(facts | changes)


def locked(code: str = "code", part: str = "part", **changes: object) -> Lock:
    return Lock(
        history=("first lock",),
        toolchain={"ptxas": "13.0.88", "host compiler": "g++ 12"},
        flags={"ptxas": ("-v", "-lineinfo")},
        files={PART: sha256(part), "kernels/host/args.cuh": sha256("args")},
        kernels={EXAMPLE: kernel(code, **changes)},
    )


def ladder(**changes: Lock) -> LockFile:
    """Iterations 6 to 9, all with `PART`; `i7=...` replaces one."""
    entries = {number: locked(f"code {number}") for number in (6, 7, 8, 9)}
    entries |= {int(name[1:]): entry for name, entry in changes.items()}
    return LockFile(arch="sm_80", iterations=entries)


def differences(**changes: Lock) -> list[Difference]:
    """The differences from the ladder's lock where some iterations are replaced."""
    return compare(ladder(), ladder(**changes).iterations, everything=True)


def test_an_edited_file_with_equal_machine_code_is_fine_and_is_named() -> None:
    edited = locked("code 7", part="part with a comment")
    assert differences(i7=edited) == []
    assert harmless_edits(ladder(), {7: edited}, []) == [PART]


def test_an_edited_part_is_explained_in_order() -> None:
    moved = locked("other", part="edited", registers=170, spill_stores=8, counts={"total": 4, "FMUL": 4})
    text = explain(differences(i7=moved))
    order = [
        f"iteration 7, sm_80, {EXAMPLE}: is not the locked kernel\n",
        f"machine code (.text): {sha256('code 7')[:12]} -> {sha256('other')[:12]}\n",
        "PTX:",
        "registers: 168 -> 170 (+2)",
        "spill stores: 0 -> 8 (+8)",
        "opcode counts, whole kernel: total 3 -> 4 (+1), FMUL 2 -> 4 (+2), FFMA 1 -> 0 (-1)",
        "why:",
        f"part {PART} is locked by iterations 6, 7, 8, 9: {RULE}",
        "if this is a true bug fix run: invoke lock 7 --reason '...'",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert not [word for word in ("main loop", "args.cuh", "toolchain") if word in text]


@pytest.mark.parametrize("changed", [{"toolchain": {"ptxas": "13.3.21"}}, {"flags": {"ptxas": ("-v",)}}])
def test_the_locked_machine_code_made_otherwise_is_a_difference(changed: dict[str, object]) -> None:
    (difference,) = differences(i8=locked("code 8").model_copy(update=changed))
    assert (difference.kind, difference.iteration, len(difference.moved)) == ("record", 8, 1)
    assert difference.headline().startswith("iteration 8, sm_80: was not made as its lock says")


def test_another_host_compiler_is_a_weak_cause_and_flags_are_a_strong_one() -> None:
    tools = {"ptxas": "13.0.88", "host compiler": "g++ 13"}
    new = locked("other").model_copy(update={"toolchain": tools, "flags": {"ptxas": ("-v",)}})
    (difference,) = differences(i8=new)
    assert difference.causes == (
        "toolchain: host compiler g++ 12 -> g++ 13: only its headers reach a kernel, so look for another cause first",
        "flags of ptxas: -v -lineinfo -> -v",
    )


def test_a_whole_iteration_that_is_missing_has_no_configuration() -> None:
    now = {number: entry for number, entry in ladder(i10=locked()).iterations.items() if number != 9}
    assert compare(ladder(), now, everything=True) == [
        Difference("sm_80", 9, "", "surplus"),
        Difference("sm_80", 10, "", "missing"),
    ]
    assert [(d.iteration, d.kind) for d in compare(ladder(), now, everything=False)] == [(10, "missing")]
    renamed = locked().model_copy(update={"kernels": {EXAMPLE.replace("FP16", "BF16"): kernel()}})
    assert differences(i8=renamed) == [
        Difference("sm_80", 8, EXAMPLE.replace("FP16", "BF16"), "missing"),
        Difference("sm_80", 8, EXAMPLE, "surplus"),
    ]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda data: data | {"schema": 2}, "schema"),
        (lambda data: data | {"arch": "sm_90"}, "another architecture: expected sm_80, found sm_90"),
        (lambda data: {"schema": 1}, "arch: Field required"),
    ],
)
def test_a_malformed_lock_is_one_line(tmp_path: Path, edit: Callable[[Any], object], message: str) -> None:
    path = write_lock(ladder(), tmp_path)
    path.write_text(json.dumps(edit(json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8")
    assert message in error_line(lambda: read_lock("sm_80", tmp_path))


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> dict[int, Lock]:
    """Replaces compilation by entries that the test chooses."""
    compiled = dict(ladder().iterations)

    def snapshot(_arch: str, iterations: list[int] | None = None, **_: object) -> dict[int, Lock]:
        return {n: entry for n, entry in compiled.items() if iterations is None or n in iterations}

    monkeypatch.setattr(lock, "snapshot", snapshot)
    return compiled


@pytest.fixture
def locks(no_compiler: dict[int, Lock], tmp_path: Path) -> Path:
    """A folder with the first lock of every architecture."""
    for arch in LOCK_ARCHES:
        lock.write(arch, None, "first lock", folder=tmp_path)
    return tmp_path


def relock(folder: Path, reason: str) -> None:
    lock.relock(7, reason, folder=folder, changelog=folder / "CHANGELOG.md")


def test_relock_touches_one_iteration_and_remembers_why(no_compiler: dict[int, Lock], locks: Path) -> None:
    changelog = locks / "CHANGELOG.md"
    changelog.write_text("# Changelog\n\n- first\n", encoding="utf-8")
    for number in (7, 8):
        no_compiler[number] = locked(f"fixed {number}", part="fixed")
    relock(locks, "masked  a stale\nfragment")
    lines = changelog.read_text(encoding="utf-8").splitlines()
    assert lines == ["# Changelog", "", "- first", "- re-lock iteration 7: masked a stale fragment"]
    for arch in load_iteration(7).family.targets.arches:
        entries = read_lock(arch, locks).iterations
        assert entries[7].history == ("first lock", "masked a stale fragment")
        assert entries[7].kernels[EXAMPLE].text_sha256 == sha256("fixed 7")
        assert entries[8].history == ("first lock",)
        assert [difference.iteration for difference in lock.verify(arch, folder=locks)] == [8]


def test_relock_of_the_locked_machine_code_writes_nothing(
    no_compiler: dict[int, Lock], locks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.read_bytes() for path in locks.iterdir()}
    relock(locks, "for nothing")
    assert capsys.readouterr().out == "nothing to lock: iteration 7's machine code is the locked one\n"
    assert {path.name: path.read_bytes() for path in locks.iterdir()} == before
    no_compiler[7] = locked("code 7").model_copy(update={"flags": {"ptxas": ("-v",)}})
    relock(locks, "other flags")
    assert read_lock("sm_90", locks).iterations[7].history == ("first lock", "other flags")
    compiled, no_compiler[7] = no_compiler[7], locked("other")
    lock.write("sm_86", [7], "other code on one architecture", folder=locks)
    no_compiler[7] = compiled
    relock(locks, "back again")
    assert read_lock("sm_90", locks).iterations[7].history[-1] == "back again"
    del no_compiler[8]
    lock.write("sm_80", None, "all", folder=locks)
    assert 8 not in read_lock("sm_80", locks).iterations, "the ladder has no such step any more"


@pytest.mark.parametrize(
    ("spoil", "reason", "message"),
    [
        (lambda path: path.write_bytes(b"\xfc"), "fixed", "CHANGELOG.md"),
        (Path.mkdir, "fixed", "CHANGELOG.md"),
        (Path, "  \n", "a lock needs a reason"),
    ],
    ids=["latin-1", "folder", "no reason"],
)
def test_nothing_is_locked_without_a_reason_or_a_changelog_that_takes_it(
    no_compiler: dict[int, Lock], locks: Path, spoil: Callable[[Path], object], reason: str, message: str
) -> None:
    no_compiler[7] = locked("fixed 7", part="fixed")
    spoil(locks / "CHANGELOG.md")
    assert message in error_line(lambda: relock(locks, reason))
    assert {read_lock(arch, locks).iterations[7].history for arch in LOCK_ARCHES} == {("first lock",)}
