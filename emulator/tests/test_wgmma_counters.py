"""What counters say of wgmma: instructions as warps execute them, ideal cycles, bytes of operands."""

from __future__ import annotations

import pytest
from tests.wgmma_programs import COMMIT, FENCE, RS, SS, WAIT, run

from flashladder import names
from ptxemu import Counters
from ptxemu.observe.counters import cycles, tensor_cycles
from ptxemu.syntax.tree import Instruction, Register, Vector

D = Vector((Register("%f0"),))
DESCRIPTOR = Register("%rd0")


def test_products_count_by_warp_and_cycles_by_warpgroup() -> None:
    counters = Counters()
    run("setp.ge.u32 %p2, %r0, 256; @%p2 bra done;", FENCE, SS, RS, SS, COMMIT, WAIT, "done:", threads=288, blocks=2,
        observers=(counters,))  # fmt: skip
    warpgroups = 2 * 2
    assert counters.as_dict()[names.TENSOR] == 3 * 4 * warpgroups
    assert counters.tensor_cycles == 3 * 4 * warpgroups  # N = 8: 4 cycles each
    assert counters.wgmma_shared_bytes == warpgroups * (2 * (64 + 8) * 32 + 8 * 32)
    assert counters.wgmma_cycles == warpgroups * (2 * 18 + 4)


@pytest.mark.parametrize(("n", "share"), [(8, 22), (16, 40), (32, 66), (64, 100), (128, 100), (256, 100)])
def test_narrow_products_wait_for_a(n: int, share: int) -> None:
    """Per cent of the tensor cores' peak; an H800 was measured at 21, 38, 63 and 95 up (arXiv 2402.13499)."""
    instruction = Instruction(f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.f16.f16", (D, DESCRIPTOR, DESCRIPTOR))
    assert 100 * tensor_cycles(instruction) // cycles(instruction) == share


def test_other_instructions_keep_no_tensor_core_busy() -> None:
    assert cycles(Instruction("wgmma.fence.sync.aligned")) == 0
