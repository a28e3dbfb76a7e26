"""From compiled kernels to locks and counts, with a compiler and a disassembler that are planted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flashladder.build import compile as compiler
from flashladder.errors import CheckFailed
from flashladder.files import sha256
from flashladder.ladder.iteration import load_iteration
from flashladder.ladder.selection import select_configs
from flashladder.lock import command as lock
from flashladder.lock import step_counts
from flashladder.lock import step_counts as recounting
from flashladder.lock.step_counts import MachineCode
from flashladder.paths import KERNELS

PTX = ".version 8.0\n.target sm_80\n\tadd.s32 %r1, %r2, %r3;\n\tadd.s64 %rd1, %rd2, %rd3;\n"
KERNEL = {"HMMA.16816.F32": 4, "LDSM.16.M88.4": 2, "IADD3": 1, "IADD3.X": 2, "total": 9, "hmma_after_ldsm": 3}
LOOP = {"HMMA.16816.F32": 2, "MOV": 1, "total": 3, "hmma_after_ldsm": 1}


@dataclass
class Planted:
    """A compiler that makes every kernel out of its name, and remembers what it was asked for."""

    folder: Path
    jobs: list[tuple[int, str, str]] = field(default_factory=list)
    kernels: list[Path] = field(default_factory=list)
    registers: int = 168

    def compile_many(self, jobs: Sequence[Any], *, kernels: Path = KERNELS) -> list[Any]:
        self.kernels.append(kernels)
        entries = []
        for iteration, config, arch in jobs:
            self.jobs.append((iteration.number, config.short_form(), arch))
            ptx = self.folder / f"{len(self.jobs)}.ptx"
            ptx.write_text(PTX, encoding="utf-8")
            includes = {f"part_{iteration.number}.cuh": sha256("part"), "entry.cuh": sha256("entry")}
            inputs = {"versions": {"nvcc": "13.0"}, "flags": ["-O3", "-std=c++17"], "includes": includes}
            usage = SimpleNamespace(spill_stores=1, spill_loads=2, stack=3, smem_static=4)
            entries.append(
                SimpleNamespace(
                    cubin=Path(f"{iteration.number} {arch} {config.short_form()}"),
                    ptx=ptx,
                    usage=usage,
                    inputs={"versions": {"ptxas": "13"}, "flags": ["-v"]},
                    ptx_entry=SimpleNamespace(inputs=inputs),
                )
            )
        return entries

    def recount(self, entries: Sequence[Any]) -> list[MachineCode]:
        kernel = {**KERNEL, "registers": self.registers}
        return [MachineCode(text_sha256=sha256(str(one.cubin)), kernel=kernel, main_loop=LOOP) for one in entries]

    def read_cubin(self, path: Path) -> Any:
        return SimpleNamespace(text_sha256=sha256(str(path)), registers=self.registers)


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planted:
    made = Planted(tmp_path)
    monkeypatch.setattr(compiler, "compile_many", made.compile_many)
    monkeypatch.setattr(lock, "read_cubin", made.read_cubin)
    for module in (lock, recounting):
        monkeypatch.setattr(module, "recount", made.recount)
    return made


def test_what_is_compiled_anew_is_compared_kernel_by_kernel(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, kernels = tmp_path / "locks", tmp_path / "kernels"
    for arch in ("sm_80", "sm_90"):
        lock.write(arch, [7, 8], " first\nlock ", kernels=kernels, folder=folder)
    assert set(planted.kernels) == {kernels}
    assert {arch for _, _, arch in planted.jobs} == {"sm_80", "sm_90"}
    n = sum(len(select_configs(load_iteration(number), "prog")) for number in (7, 8))
    assert lock.verify("sm_80", [8, 7], kernels=kernels, folder=folder) == []
    found = lock.check(["sm_80", "sm_90"], [7, 8], kernels=kernels, folder=folder)
    assert set(planted.kernels) == {kernels}
    assert (found.summary, found.notes, found.problems) == (f"{2 * n} kernels compiled and counted anew", (), ())
    assert found.lines == tuple(
        f"{arch}: the machine code is the locked one, {n} kernels counted anew" for arch in ("sm_80", "sm_90")
    )
    (none,) = lock.check(["sm_90a"], [7, 8], kernels=kernels, folder=folder).lines
    assert none == "sm_90a: none of these iterations is made for it"
    planted.registers = 170
    moved = {one.moved for one in lock.verify("sm_90", [7], kernels=kernels, folder=folder)}
    assert moved == {("registers: 168 -> 170 (+2)",)}
    failed = lock.check(["sm_80", "sm_90"], [7, 8], kernels=kernels, folder=folder)
    assert f"{2 * n} kernels differ from the machine-code lock" in str(failed.failure)
    assert failed.problems == failed.lines


@pytest.fixture
def two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ladder of two steps, so that four kernels are all."""
    ladder = [load_iteration(8), load_iteration(9)]
    monkeypatch.setattr(step_counts, "load_all", lambda: ladder)


@pytest.mark.usefixtures("two_steps")
def test_committed_counts_are_those_of_the_kernels(
    planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "counts.json"
    monkeypatch.setattr(step_counts, "COUNTS", path)
    assert step_counts.main(["--write"]) == 0
    assert capsys.readouterr().out == f"wrote {path}\n"
    assert step_counts.read_counts(path) == step_counts.count_all()
    assert path.read_text(encoding="utf-8").startswith('{\n  "kernels": {')
    found = step_counts.check(path)
    n = len(step_counts.step_kernels())
    assert (found.summary, found.failure) == (f"{n} kernels on 4 architectures", None)
    document = json.loads(path.read_text(encoding="utf-8"))
    names = list(document["kernels"])
    del document["kernels"][names[1]]
    document["kernels"][names[2]]["ptx"]["add.s32"] = 7
    path.write_text(json.dumps(document), encoding="utf-8")
    failed = step_counts.check(path)
    assert failed.summary == ""
    assert str(failed.failure) == (
        f"{path}: counts of 2 kernels are not what their code gives: found {names[1]}; "
        "run: python -m flashladder.lock.step_counts --write"
    )
    monkeypatch.setattr(step_counts, "check", lambda: failed)
    with pytest.raises(CheckFailed):
        step_counts.main([])
