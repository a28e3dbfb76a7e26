"""The order of loads, tensor instructions and softmax work, in listings short enough to follow by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashladder.lock.step_counts import by_class, scope_of
from flashladder.machine_code.flow import main_loop
from flashladder.machine_code.order import (
    hmma_after_ldsm,
    mma_before_use,
    steady,
    stretches,
    under_products,
    usual_path,
)
from flashladder.machine_code.sass import Instruction, Sass
from flashladder.view.code import order
from tests.null.sass_fixture import code as listing

MMA = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1, %f2}, {%r1, %r2}, {%r3, %r4}, {%f1, %f2}"
OTHER = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f3, %f4}, {%r5, %r6}, {%r7, %r8}, {%f3, %f4}"
LEFT = "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1, %r2}, [%r9]"
RIGHT = "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r3, %r4}, [%r9]"
UNREAD = "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r10, %r11}, [%r9]"


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        ([LEFT, RIGHT, MMA], 0),
        ([LEFT, OTHER, RIGHT, MMA], 1),
        ([LEFT, RIGHT, OTHER, OTHER, MMA], 4),
        ([LEFT, RIGHT, MMA, OTHER, MMA], 0),  # the first reader counts
        ([LEFT, LEFT, OTHER, MMA], 1),  # the second load replaces the first, which nobody reads
        ([UNREAD, OTHER], 0),
    ],
)
def test_mma_between_a_load_and_its_first_reader(statements: list[str], expected: int) -> None:
    text = "".join(f"\t{statement};\n" for statement in statements)
    assert (
        mma_before_use(f".version 8.0\n.target sm_80\n.entry k() {{\n.reg .b32 %r<12>;\n{text}ret;\n}}\n") == expected
    )


@pytest.mark.parametrize(("order", "expected"), [("LH", 1), ("HL", 0), ("LLHH", 4), ("LHLH", 3), ("HHLL", 0), ("", 0)])
def test_hmma_after_each_ldsm(order: str, expected: int) -> None:
    opcodes = {"L": "LDSM.16.M88.4", "H": "HMMA.16816.F32"}
    code = [Instruction(16 * i, "", opcodes[letter], "R0, [R1]") for i, letter in enumerate(order)]
    code.append(Instruction(999, "", "MOV", "R0, R1"))
    assert hmma_after_ldsm(code) == expected


PRODUCT, LAST = "HGMMA.64x128x16.F32 R24, gdesc[UR8], R24", "HGMMA.64x128x16.F32 R24, gdesc[UR8], R24, gsb0"
WAIT = "WARPGROUP.DEPBAR.LE gsb0, 0x{}"


def code(*texts: str, begin: int = 0x100) -> tuple[Instruction, ...]:
    """Instructions one after another."""
    made = []
    for place, text in enumerate(texts):
        opcode, _, operands = text.partition(" ")
        made.append(Instruction(begin + 16 * place, "", opcode, operands))
    return tuple(made)


TURN = code(
    "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR45+0x28010], R7", "@!P1 BRA", "BAR.SYNC.DEFER_BLOCKING R2, 0x100",
    "WARPGROUP.ARRIVE", PRODUCT, "UIADD3 UR8, UR8, 0x2", LAST, PRODUCT, LAST, "BAR.ARV R11, 0x100",
    WAIT.format(1), "SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR45], RZ", "MUFU.EX2 R0, R4", "FADD R1, R1, R0",
    "MUFU.EX2 R2, R4", WAIT.format(0), "MUFU.EX2 R3, R4", "F2FP.F16.F32.PACK_AB R4, R2, R3", "BRA `(.L_x_7)",
)  # fmt: skip


def test_work_between_a_commit_and_its_wait_is_under_products() -> None:
    assert under_products(TURN) == {"mufu_under_products": 2, "f2fp_under_products": 0, "fadd_under_products": 1}


def test_a_group_that_a_round_leaves_under_way_covers_the_beginning_of_the_next() -> None:
    loop = code("MUFU.EX2 R0, R4", WAIT.format(0), "MUFU.EX2 R1, R4", PRODUCT, LAST, "F2FP.F16 R2, R0, R1")
    assert under_products(loop) == {"mufu_under_products": 1, "f2fp_under_products": 1, "fadd_under_products": 0}


def test_a_wait_that_leaves_one_group_keeps_what_follows_covered() -> None:
    both = code(PRODUCT, LAST, PRODUCT, LAST, WAIT.format(1), "MUFU.EX2 R0, R4", WAIT.format(0))
    assert under_products(both)["mufu_under_products"] == 1
    alone = code(PRODUCT, LAST, WAIT.format(0), "MUFU.EX2 R0, R4")
    assert under_products(alone)["mufu_under_products"] == 0
    over = code(PRODUCT, LAST, WAIT.format(0), WAIT.format(1), "MUFU.EX2 R0, R4")
    assert under_products(over)["mufu_under_products"] == 0, "none is left, though one might be"


def test_only_waits_for_products_end_them() -> None:
    other = code(PRODUCT, LAST, "DEPBAR.LE SB0, 0x0", "MUFU.EX2 R0, R4", WAIT.format(0))
    assert under_products(other)["mufu_under_products"] == 1
    assert [one.event for one in stretches(other)][1:] == ["wait for copies", "wait until 0 groups are left"]


def test_events_are_told_with_what_stands_behind_them() -> None:
    found = stretches(TURN)
    assert [one.event for one in found] == [
        "wait for an mbarrier", "wait at a barrier", "fence before products", "2 products 64x128x16, a group",
        "2 products 64x128x16, a group", "arrive at a barrier", "wait until 1 group is left", "arrive on an mbarrier",
        "wait until 0 groups are left",
    ]  # fmt: skip
    assert [one.pending for one in found] == [0, 0, 0, 1, 2, 2, 1, 1, 0]
    assert [one.counts for one in found[-2:]] == [{"MUFU": 2, "FADD": 1}, {"MUFU": 1, "F2FP": 1}]
    assert [f"{one.address:x}" for one in found[:3]] == ["100", "120", "130"]


def test_blocks_that_lie_apart_repeat_a_wait_and_do_not_count() -> None:
    again = code("SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR45], R7", "MUFU.EX2 R9, R9", begin=0x4000)
    assert steady((*TURN, *again)) == TURN
    before = code("SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR45], R7", *["MUFU.EX2 R9, R9"] * 40, begin=-0x4000)
    assert steady((*before, *TURN)) == TURN, "first and longer, and without a product"
    left = code("MUFU.EX2 R0, R4", WAIT.format(0), PRODUCT, LAST, "FADD R1, R1, R0")  # under way over the loop's end
    counted = scope_of((*left, *again))
    assert counted.items() >= under_products(left).items(), "what is committed and claimed"
    assert by_class(counted)["MUFU"] == 2, "opcodes are those of all blocks"


def rare(*within: str, wait: str = WAIT.format(0), predicate: str = "@!P0") -> Sass:
    """A loop in which a branch goes around a block with `wait` and other instructions."""
    rows = [
        ".L_x_0:", PRODUCT, LAST, PRODUCT, LAST, WAIT.format(1), f"{predicate} BRA `(.L_x_1)".strip(), wait, *within,
        ".L_x_1:", "MUFU.EX2 R0, R4", "F2FP.F16.F32.PACK_AB R4, R2, R3", "@P3 BRA `(.L_x_0)", "EXIT",
    ]  # fmt: skip
    return listing(*rows)


def test_a_rare_block_that_waits_for_all_products_is_walked_around() -> None:
    sass = rare("FADD R0, R1, R2", "MUFU.EX2 R5, R6")
    loop = main_loop(sass)
    path = usual_path(loop, sass.targets)
    assert (len(loop), len(path)) == (12, 9)
    assert under_products(path) == {"mufu_under_products": 1, "f2fp_under_products": 1, "fadd_under_products": 0}
    assert under_products(loop)["mufu_under_products"] == 0, "as if every round waited"


@pytest.mark.parametrize("asked", ["SHFL.BFLY PT, R9, R12, 0x2, 0x1f", "VOTE.ANY P0, P0"])
def test_a_block_in_which_lanes_ask_each_other_is_walked_around(asked: str) -> None:
    sass = rare("FADD R0, R1, R2", wait=asked)
    loop = main_loop(sass)
    assert (len(loop), len(usual_path(loop, sass.targets))) == (11, 9)


def loop_of(turn: tuple[Instruction, ...]) -> Sass:
    """A kernel that is this loop."""
    back = replace(turn[-1], opcode="BRA", operands="`(.L_x_0)", predicate="@P0")
    behind = code("MUFU.RCP R0, R1", "F2FP.F16.F32.PACK_AB R4, R2, R3", "EXIT", begin=back.address + 16)
    whole = (*turn[:-1], back, *behind)
    moved = tuple(replace(one, address=one.address - turn[0].address) for one in whole)
    return Sass(moved, {".L_x_0": 0})


def test_the_table_ends_with_how_much_is_under_products() -> None:
    text = order("kernel", loop_of(TURN))
    assert text.startswith("kernel\nmain loop, 19 instructions\n")
    assert text.endswith("Under products: 2 of 3 MUFU, 0 of 1 F2FP, 1 of 1 FADD.")
    assert "2 products 64x128x16, a group" in text
    plain = order("kernel", loop_of(code("BAR.SYNC.DEFER_BLOCKING R2", "HMMA.16816.F32 R0", "MUFU.EX2 R0", "BRA")))
    assert plain.endswith("mma are waited for where they stand.")


def test_what_the_table_leaves_out_is_counted() -> None:
    """A wait's later tries stand behind the kernel's end and lead back into the loop."""
    first = code("SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR45], R7", "BRA", "HGMMA.64x128x16.F32 R24, gsb0", "BRA", "EXIT")
    again = code("SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR45], R7", "BRA", "BRA", begin=first[-1].address + 16)
    leave, back = (
        replace(first[i], operands=to, predicate=p) for i, to, p in ((1, "`(.L_w)", "@!P1"), (3, "`(.L_0)", "@P0"))
    )
    retry, enter = replace(again[1], operands="`(.L_w)", predicate="@!P1"), replace(again[2], operands="`(.L_1)")
    every = (first[0], leave, first[2], back, first[4], again[0], retry, enter)
    labels = {".L_0": first[0].address, ".L_1": first[2].address, ".L_w": again[0].address}
    text = order("kernel", Sass(every, labels))
    assert text.splitlines()[1].startswith("main loop, 4 instructions, plus 3 out of line")
