"""The lock without a compiler: schema, comparison, the order of the explanation, re-locking with a reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import json
from pathlib import Path

import pytest

from flashladder.errors import CheckFailed, FlashladderError
from flashladder.files import sha256
from flashladder.ladder.claim import LOCK_ARCHES
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import load_iteration
from flashladder.lock import command as lock
from flashladder.lock.command import (
    RULE,
    Difference,
    compare,
    explain,
    harmless_edits,
)
from flashladder.lock.schema import Lock, LockedKernel, LockFile, lock_path, read_lock, refusal, write_lock
from flashladder.names import EXAMPLE
from flashladder.results.schema import Kernel

CONFIG = KernelConfig.parse(EXAMPLE)
ARCHES = load_iteration(7).family.targets.arches
PART = "kernels/ampere/softmax/exp2_folded.cuh"


def kernel(code: str = "code", **changes: object) -> LockedKernel:
    facts: dict[str, object] = {
        "text_sha256": sha256(code),
        "ptx_sha256": sha256(f"PTX of {code}"),
        "registers": 168,
        "spill_stores": 0,
        "spill_loads": 0,
        "stack": 0,
        "static_smem": 0,
        "dynamic_smem": CONFIG.smem_bytes,
        "counts": {"total": 3, "FMUL": 2, "FFMA": 1},
        "main_loop": {"total": 1, "FFMA": 1},
    }
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


def current(**changes: Lock) -> Mapping[int, Lock]:
    return ladder(**changes).iterations


def test_an_edited_file_with_equal_machine_code_is_fine_and_is_named() -> None:
    now = current(i7=locked("code 7", part="part with a comment"))
    differences = compare(ladder(), now, everything=True)
    assert differences == []
    assert harmless_edits(ladder(), now, differences) == [PART]


def test_an_edited_part_is_explained_in_order() -> None:
    moved = locked("other", part="edited", registers=170, spill_stores=8, counts={"total": 4, "FMUL": 4})
    (difference,) = compare(ladder(), current(i7=moved), everything=True)
    lines = explain([difference]).splitlines()
    assert lines[0] == f"iteration 7, sm_80, {EXAMPLE}: is not the locked kernel"
    assert lines[1].strip() == f"machine code (.text): {sha256('code 7')[:12]} -> {sha256('other')[:12]}"
    text = "\n".join(lines)
    order = [
        "machine code (.text)",
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
    assert "main loop" not in text
    assert "args.cuh" not in text
    assert "toolchain" not in text


@pytest.mark.parametrize("changed", [{"toolchain": {"ptxas": "13.3.21"}}, {"flags": {"ptxas": ("-v",)}}])
def test_the_locked_machine_code_made_otherwise_is_a_difference(changed: dict[str, object]) -> None:
    new = locked("code 8").model_copy(update=changed)
    (difference,) = compare(ladder(), current(i8=new), everything=True)
    assert (difference.kind, difference.iteration, len(difference.moved)) == ("record", 8, 1)
    assert difference.headline().startswith("iteration 8, sm_80: was not made as its lock says")


def test_another_host_compiler_is_a_weak_cause_and_flags_are_a_strong_one() -> None:
    tools = {"ptxas": "13.0.88", "host compiler": "g++ 13"}
    new = locked("other").model_copy(update={"toolchain": tools, "flags": {"ptxas": ("-v",)}})
    (difference,) = compare(ladder(), current(i8=new), everything=True)
    assert difference.causes == (
        "toolchain: host compiler g++ 12 -> g++ 13: only its headers reach a kernel, so look for another cause first",
        "flags of ptxas: -v -lineinfo -> -v",
    )


def test_a_whole_iteration_that_is_missing_has_no_configuration() -> None:
    now = dict(current())
    del now[9]
    now[10] = locked()
    assert compare(ladder(), now, everything=True) == [
        Difference("sm_80", 9, "", "surplus"),
        Difference("sm_80", 10, "", "missing"),
    ]
    assert [(d.iteration, d.kind) for d in compare(ladder(), now, everything=False)] == [(10, "missing")]
    renamed = locked().model_copy(update={"kernels": {EXAMPLE.replace("FP16", "BF16"): kernel()}})
    found = compare(ladder(), current(i8=renamed), everything=True)
    assert [(one.arch, one.config, one.moved, one.causes) for one in found] == [
        ("sm_80", EXAMPLE.replace("FP16", "BF16"), (), ()),
        ("sm_80", EXAMPLE, (), ()),
    ]


def test_lock_files_round_trip_and_are_canonical(tmp_path: Path) -> None:
    path = write_lock(ladder(), tmp_path)
    first = path.read_bytes()
    assert read_lock("sm_80", tmp_path) == ladder()
    write_lock(read_lock("sm_80", tmp_path), tmp_path)
    assert path.read_bytes() == first
    assert json.loads(first)["schema"] == 1


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda data: data | {"schema": 2}, "schema"),
        (lambda data: data | {"arch": "sm_90"}, "another architecture: expected sm_80, found sm_90"),
        (lambda data: {"schema": 1}, "arch: Field required"),
    ],
)
def test_a_malformed_lock_is_one_line(tmp_path: Path, edit: object, message: str) -> None:
    data = json.loads(write_lock(ladder(), tmp_path).read_text(encoding="utf-8"))
    assert callable(edit)
    lock_path("sm_80", tmp_path).write_text(json.dumps(edit(data)), encoding="utf-8")
    with pytest.raises(FlashladderError, match=message) as caught:
        read_lock("sm_80", tmp_path)
    assert "\n" not in str(caught.value)


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> dict[int, Lock]:
    """Replaces compilation by entries that the test chooses."""
    compiled = {number: entry.model_copy(update={"history": ("not locked",)}) for number, entry in current().items()}

    def snapshot(_arch: str, iterations: list[int] | None = None, **_: object) -> dict[int, Lock]:
        return {n: entry for n, entry in compiled.items() if iterations is None or n in iterations}

    monkeypatch.setattr(lock, "snapshot", snapshot)
    return compiled


def test_check_passes_then_fails_with_the_explanation(
    no_compiler: dict[int, Lock], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock.write("sm_80", None, "first lock", folder=tmp_path)
    found = lock.check(["sm_80"], folder=tmp_path)
    found.show()
    assert (found.summary, found.failure) == ("4 kernels compiled and counted anew", None)
    assert capsys.readouterr().out == "sm_80: the machine code is the locked one, 4 kernels counted anew\n"
    no_compiler[7] = locked("other", part="edited")
    with pytest.raises(CheckFailed, match="1 kernel differ") as caught:
        lock.check(["sm_80"], folder=tmp_path).show()
    assert caught.value.exit_code == 1
    assert "is locked by iterations 6, 7, 8, 9" in capsys.readouterr().out


def test_relock_touches_one_iteration_and_remembers_why(no_compiler: dict[int, Lock], tmp_path: Path) -> None:
    for arch in ARCHES:
        lock.write(arch, None, "first lock", folder=tmp_path)
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text("# Changelog\n\n- first\n", encoding="utf-8")
    for number in (7, 8):
        no_compiler[number] = locked(f"fixed {number}", part="fixed")
    lock.relock(7, "masked  a stale\nfragment", folder=tmp_path, changelog=changelog)
    lines = changelog.read_text(encoding="utf-8").splitlines()
    assert lines == ["# Changelog", "", "- first", "- re-lock iteration 7: masked a stale fragment"]
    for arch in ARCHES:
        entries = read_lock(arch, tmp_path).iterations
        assert entries[7].history == ("first lock", "masked a stale fragment")
        assert entries[7].kernels[EXAMPLE].text_sha256 == sha256("fixed 7")
        assert entries[8].history == ("first lock",)
        assert [d.iteration for d in lock.verify(arch, folder=tmp_path)] == [8]


def test_relock_of_the_locked_machine_code_writes_nothing(
    no_compiler: dict[int, Lock], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arch in LOCK_ARCHES:
        lock.write(arch, None, "first lock", folder=tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    lock.relock(7, "for nothing", folder=tmp_path, changelog=tmp_path / "CHANGELOG.md")
    assert capsys.readouterr().out == "nothing to lock: iteration 7's machine code is the locked one\n"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    no_compiler[7] = locked("code 7").model_copy(update={"flags": {"ptxas": ("-v",)}})
    lock.relock(7, "other flags", folder=tmp_path, changelog=tmp_path / "CHANGELOG.md")
    assert read_lock("sm_90", tmp_path).iterations[7].history == ("first lock", "other flags")


@pytest.mark.parametrize("broken", [lambda path: path.write_bytes(b"\xfc"), Path.mkdir], ids=["latin-1", "folder"])
def test_nothing_is_locked_where_the_changelog_cannot_take_the_line(
    no_compiler: dict[int, Lock], tmp_path: Path, broken: Callable[[Path], object]
) -> None:
    for arch in LOCK_ARCHES:
        lock.write(arch, None, "first lock", folder=tmp_path)
    no_compiler[7] = locked("fixed 7", part="fixed")
    broken(tmp_path / "CHANGELOG.md")
    with pytest.raises(FlashladderError, match=r"CHANGELOG\.md"):
        lock.relock(7, "fixed", folder=tmp_path, changelog=tmp_path / "CHANGELOG.md")
    assert {read_lock(arch, tmp_path).iterations[7].history for arch in LOCK_ARCHES} == {("first lock",)}


def test_a_lock_needs_a_reason(tmp_path: Path) -> None:
    with pytest.raises(FlashladderError, match="a lock needs a reason"):
        lock.relock(7, "  \n", folder=tmp_path, changelog=tmp_path / "CHANGELOG.md")
    assert list(tmp_path.iterdir()) == []


LOCK = LockFile(arch="sm_90", iterations={7: locked("code 7")})
OWN = LOCK.iterations[7].kernels[EXAMPLE]


def timed(text: str | None = OWN.text_sha256, **changed: object) -> Kernel:
    made = Kernel(iteration=7, config=EXAMPLE, dtype="fp16", arch="sm_90", text_sha256=text, toolchain={})
    return made.model_copy(update=changed)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (timed(), None),
        (timed(variant=" - swizzle"), "refused: a variant, which belongs into a file of its own and not beside the "),
        (timed(None), "refused: compiled by the driver, so that its machine code is not known"),
        (timed(iteration=8), "refused: not in results/locks/sm_90.json; run: invoke lock 8 --reason '...'"),
        (
            timed("ab" * 32),
            f"refused: measured machine code abababababab..., locked {OWN.text_sha256[:12]}...; run: in",
        ),
    ],
)
def test_numbers_of_other_machine_code_are_refused(made: Kernel, told: str | None) -> None:
    found = refusal(made, LOCK)
    assert found is told or str(found).startswith(str(told))
