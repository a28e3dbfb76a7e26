"""The lock without a compiler: schema, comparison, the order of the explanation, re-locking with a reason."""

from __future__ import annotations

from collections.abc import Mapping
import json
from pathlib import Path

import pytest

from flashladder.errors import CheckFailed, FlashladderError
from flashladder.files import sha256
from flashladder.ladder.claim import LOCK_ARCHES
from flashladder.ladder.config import EXAMPLE, KernelConfig
from flashladder.ladder.iteration import load_iteration
from flashladder.lock import command as lock
from flashladder.lock.command import (
    RULE,
    SHOWN,
    TOOLCHAIN_ADVICE,
    Difference,
    compare,
    count_delta,
    explain,
    harmless_edits,
    toolchain_causes,
    what_moved,
)
from flashladder.lock.schema import Lock, LockedKernel, LockFile, find_locked, lock_path, read_lock, refusal, write_lock
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


def test_equal_kernels_do_not_differ() -> None:
    assert compare(ladder(), current(), everything=True) == []


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
        f"part {PART} is locked by iterations 6..9: {RULE}",
        "if this is a true bug fix run: invoke lock 7 --reason '...'",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert "main loop" not in text
    assert "args.cuh" not in text
    assert "toolchain" not in text


def test_every_locked_number_is_compared() -> None:
    for name, value in kernel().model_dump().items():
        other = sha256("x") if name.endswith("sha256") else {"total": 9} if isinstance(value, dict) else value + 1
        assert what_moved(kernel(), kernel().model_copy(update={name: other})), name


@pytest.mark.parametrize("changed", [{"toolchain": {"ptxas": "13.3.21"}}, {"flags": {"ptxas": ("-v",)}}])
def test_the_locked_machine_code_made_otherwise_is_a_difference(changed: dict[str, object]) -> None:
    new = locked("code 8").model_copy(update=changed)
    (difference,) = compare(ladder(), current(i8=new), everything=True)
    assert (difference.kind, difference.iteration, len(difference.moved)) == ("record", 8, 1)
    assert difference.headline().startswith("iteration 8, sm_80: was not made as its lock says")


def test_another_host_compiler_with_the_locked_machine_code_is_none() -> None:
    tools = locked().toolchain | {"host compiler": "g++ 13"}
    now = current(i8=locked("code 8").model_copy(update={"toolchain": tools}))
    assert compare(ladder(), now, everything=True) == []


def test_another_host_compiler_is_a_weak_cause_and_flags_are_a_strong_one() -> None:
    tools = {"ptxas": "13.0.88", "host compiler": "g++ 13"}
    new = locked("other").model_copy(update={"toolchain": tools, "flags": {"ptxas": ("-v",)}})
    (difference,) = compare(ladder(), current(i8=new), everything=True)
    assert difference.causes == (
        "toolchain: host compiler g++ 12 -> g++ 13: only its headers reach a kernel, so look for another cause first",
        "flags of ptxas: -v -lineinfo -> -v",
    )


def test_another_description_is_the_cause_when_nothing_else_changed() -> None:
    (difference,) = compare(ladder(), current(i8=locked("other")), everything=True)
    assert difference.causes[0].startswith("no included file, flag or tool changed: the iteration's description")


def test_a_newly_included_part_is_not_called_locked() -> None:
    new = locked("other").model_copy(
        update={"files": {**locked().files, "kernels/ampere/softmax/new.cuh": sha256("new")}}
    )
    (difference,) = compare(ladder(), current(i8=new), everything=True)
    assert difference.causes[0].startswith("kernels/ampere/softmax/new.cuh is new here")


def test_long_explanations_are_cut_and_causes_told_once() -> None:
    many = [Difference("sm_80", n, EXAMPLE, "changed", ("PTX: a -> b",), ("the cause",)) for n in range(1, SHOWN + 4)]
    lines = explain(many).splitlines()
    assert lines[2 * SHOWN] == f"... and 3 more, of iterations {SHOWN + 1}..{SHOWN + 3}"
    assert lines[-2:] == ["why:", "  the cause"]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("changed", "is not the locked kernel"),
        ("missing", "has no lock; to lock it: invoke lock 7 --reason '...'"),
        ("record", "was not made as its lock says; to correct it: invoke lock 7 --reason '...'"),
        ("surplus", "is locked but no longer built; to drop it: invoke lock 7 --reason '...'"),
    ],
)
def test_a_difference_names_its_kernel_and_what_to_do(kind: str, told: str) -> None:
    whole = Difference("sm_80", 7, "", kind)
    assert str(whole) == whole.headline() == f"iteration 7, sm_80: {told}"
    one = Difference("sm_80", 7, EXAMPLE, kind, ("a: 1 -> 2",), ("why",))
    assert str(one) == f"iteration 7, sm_80, {EXAMPLE}: {told}\n  a: 1 -> 2\n  why"


def test_what_moved_is_told_line_by_line() -> None:
    old = kernel()
    new = kernel("other", ptx_sha256=old.ptx_sha256, dynamic_smem=0, main_loop={"total": 2, "FFMA": 2})
    texts = [sha256(code)[:12] for code in ("code", "other")]
    assert what_moved(old, new) == [
        f"machine code (.text): {texts[0]} -> {texts[1]}",
        f"dynamic smem: {CONFIG.smem_bytes} -> 0 ({-CONFIG.smem_bytes:+d})",
        "opcode counts, main loop: total 1 -> 2 (+1), FFMA 1 -> 2 (+1)",
        "opcode counts: equal, so order, registers or constants moved",
    ]
    ptx = [sha256(f"PTX of {code}")[:12] for code in ("code", "other")]
    assert what_moved(old, kernel("other"))[1] == f"PTX: {ptx[0]} -> {ptx[1]}"
    alone = kernel(ptx_sha256=sha256("PTX of other"))
    assert what_moved(old, alone) == [f"PTX: {ptx[0]} -> {ptx[1]} (same machine code, but the PTX ships too)"]


def test_tools_and_flags_that_came_or_went_are_causes() -> None:
    old = locked().model_copy(update={"toolchain": {"a": "1", "b": "2"}, "flags": {"x": ("-v", "-O3"), "y": ("-g",)}})
    new = locked().model_copy(update={"toolchain": {"b": "2", "c": "3"}, "flags": {"y": ("-g",), "z": ("-a", "-b")}})
    assert toolchain_causes(old, new) == [
        f"toolchain: a 1 -> absent: {TOOLCHAIN_ADVICE}",
        f"toolchain: c absent -> 3: {TOOLCHAIN_ADVICE}",
        "flags of x: -v -O3 -> none",
        "flags of z: none -> -a -b",
    ]
    assert toolchain_causes(old, old) == []


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


def test_edits_in_iterations_that_moved_or_are_new_are_not_harmless() -> None:
    now = dict(current(i7=locked("other", part="edited"), i8=locked("code 8", part="edited too")))
    now[10] = locked("code 10", part="new")
    differences = compare(ladder(), now, everything=True)
    assert {one.iteration for one in differences} == {7, 10}
    assert harmless_edits(ladder(), now, differences) == [PART]
    assert harmless_edits(ladder(), {7: now[7], 10: now[10]}, differences) == []


def test_locking_says_where_and_mends_a_changelog_without_a_last_line_end(
    no_compiler: dict[int, Lock], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text("# Changelog\n\n- first", encoding="utf-8")
    lock.relock(7, "it is new", folder=tmp_path / "locks", changelog=changelog)
    assert changelog.read_text(encoding="utf-8") == "# Changelog\n\n- first\n- lock iteration 7: it is new\n"
    places = [lock_path(arch, tmp_path / "locks") for arch in ARCHES]
    assert capsys.readouterr().out.splitlines() == [f"locked iteration 7: {path}" for path in places]
    changelog.unlink()
    no_compiler[7] = locked("fixed")
    lock.relock(7, "it is fixed", folder=tmp_path / "locks", changelog=changelog)
    assert changelog.read_text(encoding="utf-8") == "# Changelog\n\n- re-lock iteration 7: it is fixed\n"


def test_writing_some_iterations_keeps_the_others(no_compiler: dict[int, Lock], tmp_path: Path) -> None:
    lock.write("sm_80", None, "first lock", folder=tmp_path)
    no_compiler[7] = locked("fixed 7")
    path = lock.write("sm_80", [7], "fixed", folder=tmp_path)
    assert path == lock_path("sm_80", tmp_path)
    entries = read_lock("sm_80", tmp_path).iterations
    assert {number: entry.history for number, entry in entries.items()} == {
        6: ("first lock",), 7: ("first lock", "fixed"), 8: ("first lock",), 9: ("first lock",),
    }  # fmt: skip
    assert lock.locked_kernel(7, CONFIG, folder=tmp_path) == kernel("fixed 7")


def test_count_delta_has_the_total_first_then_the_largest_change() -> None:
    assert count_delta({"A": 2, "B": 3, "total": 5}, {"A": 4, "B": 1, "total": 5}) == "A 2 -> 4 (+2), B 3 -> 1 (-2)"
    assert count_delta({"B": 1, "A": 1}, {"B": 8, "A": 8}) == "A 1 -> 8 (+7), B 1 -> 8 (+7)"
    assert count_delta({"A": 9, "B": 1}, {"A": 8, "B": 3}) == "B 1 -> 3 (+2), A 9 -> 8 (-1)"
    old, new = {"total": 9, "MOV": 5, "SHF": 1}, {"total": 6, "MOV": 1, "IADD3": 2, "SHF": 1}
    assert count_delta(old, new) == "total 9 -> 6 (-3), MOV 5 -> 1 (-4), IADD3 0 -> 2 (+2)"
    assert count_delta(old, old) == ""


def test_lock_files_round_trip_and_are_canonical(tmp_path: Path) -> None:
    path = write_lock(ladder(), tmp_path)
    first = path.read_bytes()
    assert read_lock("sm_80", tmp_path) == ladder()
    write_lock(read_lock("sm_80", tmp_path), tmp_path)
    assert path.read_bytes() == first
    assert json.loads(first)["schema"] == 1


def test_what_a_writer_adds_to_a_lock_is_not_in_the_next_one_that_is_read(tmp_path: Path) -> None:
    arch = ARCHES[0]
    write_lock(LockFile(arch=arch), tmp_path)
    mine = read_lock(arch, tmp_path)
    mine.iterations[7] = next(iter(read_lock(arch).iterations.values()))
    assert read_lock(arch, tmp_path).iterations == {}
    write_lock(mine, tmp_path)
    assert list(read_lock(arch, tmp_path).iterations) == [7]


def test_an_architecture_without_lock_has_an_empty_one(tmp_path: Path) -> None:
    assert read_lock("sm_90", tmp_path).iterations == {}


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda data: data | {"schema": 2}, "schema"),
        (lambda data: data | {"extra": 1}, "extra"),
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


def test_counts_come_from_the_lock(tmp_path: Path) -> None:
    write_lock(ladder(), tmp_path)
    assert lock.opcode_counts(7, CONFIG, folder=tmp_path) == {"total": 3, "FMUL": 2, "FFMA": 1}
    assert lock.opcode_counts(10, CONFIG, folder=tmp_path) is None
    assert lock.opcode_counts(7, CONFIG.with_dtype("bf16"), folder=tmp_path) is None
    assert lock.opcode_counts(7, CONFIG, "sm_90", tmp_path) is None


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
    assert "is locked by iterations 6..9" in capsys.readouterr().out


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


def test_locking_everything_drops_iterations_that_are_gone(no_compiler: dict[int, Lock], tmp_path: Path) -> None:
    lock.write("sm_80", None, "first lock", folder=tmp_path)
    del no_compiler[9]
    assert [d.kind for d in lock.verify("sm_80", folder=tmp_path)] == ["surplus"]
    lock.write("sm_80", None, "the ladder got shorter", folder=tmp_path)
    assert sorted(read_lock("sm_80", tmp_path).iterations) == [6, 7, 8]


@pytest.mark.parametrize("reason", ["", "  \n"])
def test_a_lock_needs_a_reason(reason: str, tmp_path: Path) -> None:
    with pytest.raises(FlashladderError, match="a lock needs a reason"):
        lock.relock(7, reason, folder=tmp_path, changelog=tmp_path / "CHANGELOG.md")
    assert list(tmp_path.iterdir()) == []


def test_command_needs_a_reason_to_write(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        lock.main(["write", "--arch", "sm_80", "--iterations", "7"])
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("error: a lock needs a reason")


LOCK = LockFile(arch="sm_90", iterations={7: locked("code 7")})
OWN = LOCK.iterations[7].kernels[EXAMPLE]


def timed(text: str | None = OWN.text_sha256, **changed: object) -> Kernel:
    made = Kernel(iteration=7, config=EXAMPLE, dtype="fp16", arch="sm_90", text_sha256=text, toolchain={})
    return made.model_copy(update=changed)


def test_a_locked_kernel_is_found_by_iteration_and_configuration() -> None:
    assert find_locked(LOCK, 7, EXAMPLE) == OWN
    assert find_locked(LOCK, 7, "other") is None
    assert find_locked(LOCK, 8, EXAMPLE) is None
    assert find_locked(None, 7, EXAMPLE) is None


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (timed(), None),
        (
            timed(variant=" - swizzle"),
            "refused: a variant, which belongs into a file of its own and not beside the ladder's kernels",
        ),
        (timed(None), "refused: compiled by the driver, so that its machine code is not known"),
        (timed(iteration=8), "refused: not in results/locks/sm_90.json; run: invoke lock 8 --reason '...'"),
        (timed(config="other"), "refused: not in results/locks/sm_90.json; run: invoke lock 7 --reason '...'"),
        (
            timed("ab" * 32),
            f"refused: measured machine code abababababab..., locked {OWN.text_sha256[:12]}...; run: invoke bench 7",
        ),
    ],
)
def test_numbers_of_other_machine_code_are_refused(made: Kernel, told: str | None) -> None:
    assert refusal(made, LOCK) == told
