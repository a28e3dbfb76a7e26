"""Locks, claims and reasons against what the compiler gives."""

from __future__ import annotations

import json
from pathlib import Path
import shutil

import pytest

from flashladder.build.compile import compile_many, ptx_many
from flashladder.build.store import CubinEntry
from flashladder.errors import CheckFailed
from flashladder.ladder.claim import LOCK_ARCHES
from flashladder.ladder.iteration import load_all, load_iteration
from flashladder.ladder.selection import select_configs
from flashladder.lock import step_counts
from flashladder.lock.command import KEY, RULE, check, explain, locked_kernel, verify
from flashladder.lock.schema import lock_path, read_lock
from flashladder.lock.step_counts import by_class, count_all, read_counts, recount
from flashladder.machine_code import flow, order, sass
from flashladder.machine_code.ptx import ptx_sha256, read_ptx
from flashladder.machine_code.sass import disassemble
from flashladder.names import DTYPES
from flashladder.paths import KERNELS
from flashladder.toolchain import load_pins

pytestmark = pytest.mark.nvcc


NUMBER = 7
PART = Path("ampere") / "softmax" / "exp2_folded.cuh"
TEXT = (KERNELS / PART).read_text(encoding="utf-8")
ASCENDING = "for (int n = 0; n < s_tiles; ++n) {"
DESCENDING = "for (int n = s_tiles - 1; n >= 0; --n) {"


def edited(folder: Path, text: str) -> Path:
    """A copy of the kernels in which the part has this text."""
    kernels = Path(shutil.copytree(KERNELS, folder / "checkout" / KERNELS.name))
    (kernels / PART).write_text(text, encoding="utf-8")
    return kernels


def entry_of(kernels: Path = KERNELS, number: int = NUMBER) -> CubinEntry:
    iteration = load_iteration(number)
    return compile_many([(iteration, iteration.configs["a100"], "sm_80")], kernels=kernels)[0]


@pytest.mark.parametrize("arch", LOCK_ARCHES)
def test_the_committed_lock_holds(arch: str) -> None:
    differences = verify(arch)
    assert not differences, explain(differences)
    ladder = [one.number for one in load_all() if arch in one.family.targets.arches]
    assert sorted(read_lock(arch).iterations) == ladder
    assert ladder


def test_the_ptx_of_every_step_is_the_locked_one() -> None:
    """In one dtype, turn by turn; `nox -s reproduce` compares the machine code of all kernels on two architectures."""
    ladder = load_all()
    jobs = [(one, config) for one in ladder for config in select_configs(one, KEY, (DTYPES[one.number % 2],))]
    assert {iteration.number for iteration, _ in jobs} == {iteration.number for iteration in ladder}
    for (iteration, config), entry in zip(jobs, ptx_many(jobs), strict=True):
        arch = next(one for one in LOCK_ARCHES if one in iteration.family.targets.arches)
        locked = locked_kernel(iteration.number, config, arch)
        assert locked, (iteration.number, config)
        assert ptx_sha256(read_ptx(entry.ptx)) == locked.ptx_sha256, (iteration.number, config.short_form())


@pytest.mark.parametrize("field", ["registers", "spill_loads", "dynamic_smem", "counts.FFMA", "main_loop.CREATED"])
def test_every_number_of_a_lock_is_made_anew(tmp_path: Path, field: str) -> None:
    """The check finds each edit, and nothing in the committed lock."""
    shutil.copy(lock_path("sm_90"), tmp_path)
    assert verify("sm_90", [NUMBER], folder=tmp_path) == []
    document = json.loads(lock_path("sm_90", tmp_path).read_text(encoding="utf-8"))
    config = load_iteration(NUMBER).configs["h200"].short_form()
    numbers = document["iterations"][str(NUMBER)]["kernels"][config]
    group, _, name = field.rpartition(".")
    numbers = numbers[group] if group else numbers
    numbers[name] = numbers.get(name, 0) + 1
    lock_path("sm_90", tmp_path).write_text(json.dumps(document), encoding="utf-8")
    (difference,) = verify("sm_90", [NUMBER], folder=tmp_path)
    assert difference.config == config
    (moved,) = difference.moved
    assert name.replace("_", " ") in moved


def test_kept_counts_are_those_of_their_machine_code_and_a_damaged_one_is_made_again(tmp_path: Path) -> None:
    one, other = entry_of(), entry_of(number=16)
    first = recount([one, other], tmp_path)
    assert first[0] != first[1]
    assert recount([other, one], tmp_path) == first[::-1]
    for path in tmp_path.iterdir():
        path.write_text('{"counts": {"total": -1}}', encoding="utf-8")
    assert recount([one, other], tmp_path) == first
    assert [by_class(found.kernel) for found in first] == [disassemble(entry.cubin).counts() for entry in (one, other)]


def test_another_disassembler_or_reader_counts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries, pins = [entry_of()], load_pins()
    recount(entries, tmp_path)
    other = pins.model_copy(update={"packages": {**pins.packages, step_counts.DISASSEMBLER: "0"}})
    monkeypatch.setattr(step_counts, "load_pins", lambda: other)
    recount(entries, tmp_path)
    for module in (sass, flow, order, step_counts):
        monkeypatch.setattr(module, "__file__", __file__)
        recount(entries, tmp_path)
    assert len(list(tmp_path.iterdir())) == 6


def test_a_changed_loop_order_fails_with_the_explanation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ASCENDING in TEXT
    kernels = edited(tmp_path, TEXT.replace(ASCENDING, DESCENDING))
    with pytest.raises(CheckFailed) as caught:
        check(["sm_80"], [NUMBER], kernels=kernels).show()
    assert caught.value.exit_code == 1
    printed = capsys.readouterr().out
    for expected in (
        f"iteration {NUMBER}, sm_80, {load_iteration(NUMBER).configs['a100']}: is not the locked kernel",
        "machine code (.text): ",
        f"part kernels/{PART} is locked by iterations 6, 7, 8, 9: {RULE}",
        f"if this is a true bug fix run: invoke lock {NUMBER} --reason '...'",
    ):
        assert expected in printed


def test_a_comment_does_not_matter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = edited(tmp_path, f"// A comment that moves every line.\n\n{TEXT}// And one more.\n")
    check(["sm_80"], [NUMBER], kernels=copy).show()
    printed = capsys.readouterr().out
    assert "the machine code is the locked one" in printed
    assert f"without effect on machine code: kernels/{PART}" in printed
    assert entry_of(copy).ptx_entry.inputs["includes"] != entry_of().ptx_entry.inputs["includes"]


def test_the_committed_counts_are_those_of_the_kernels() -> None:
    assert count_all() == read_counts()
