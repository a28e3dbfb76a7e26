"""Kinds of opcodes: each opcode of the locks has one that says something, and no instruction is counted twice."""

from __future__ import annotations

import pytest

from flashladder.ladder.claim import LOCK_ARCHES
from flashladder.lock.schema import read_lock
from flashladder.machine_code.opcodes import by_kind, kind_of
from flashladder.machine_code.sass import LONE_OPCODES


@pytest.mark.parametrize(
    ("opcode", "kind"),
    [
        ("HMMA", "tensor"), ("HGMMA", "tensor"), ("FFMA", "fp32"), ("FMNMX", "fp32"), ("HFMA2", "other"),
        ("MUFU", "mufu"), ("F2FP", "convert"), ("IMAD", "integer"), ("IMAD.MOV.U32", "moves"), ("MOV", "moves"),
        ("CS2R", "moves"), ("ISETP", "integer"), ("SHFL", "shuffle"), ("ULDC", "uniform"), ("LDC", "uniform"),
        ("LDSM", "ldsm"), ("LDS", "shared"), ("STS", "shared"), ("LDGSTS", "copies"), ("DEPBAR", "copies"),
        ("STG", "global"), ("STL", "local"), ("BAR", "barriers"), ("EXIT", "control"), ("NOP", "other"),
        ("QQQ", "other"),
    ],
)  # fmt: skip
def test_kinds_say_what_an_instruction_is_for(opcode: str, kind: str) -> None:
    assert kind_of(opcode) == kind


def test_kinds_of_a_kernel_are_its_instructions() -> None:
    kernels = [k for arch in LOCK_ARCHES for lock in read_lock(arch).iterations.values() for k in lock.kernels.values()]
    for kernel in kernels:
        kinds = by_kind(kernel.counts)
        assert sum(kinds.values()) == kernel.counts["total"]
        assert kinds["tensor"] == sum(kernel.counts.get(name, 0) for name in ("HMMA", "HGMMA"))
        moves = ("MOV", "CS2R", "SEL", "PRMT", *LONE_OPCODES)
        assert kinds["moves"] == sum(kernel.counts.get(name, 0) for name in moves)
        assert kinds["other"] <= 0.03 * kernel.counts["total"]
