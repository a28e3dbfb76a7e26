"""Warp-wide instructions: who meets whom, what goes wrong when somebody is missing, and how small results stay.

What the instructions compute is in tests/emulator_cases/warp.py; here the masks, shapes, errors and events.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from tests.cases.warp import source_lane
from tests.programs import run
from tests.stepping import Bench, number

from ptxemu.errors import EmulationError
from ptxemu.isa.warp import ALL, bits, route, whole_warps
from ptxemu.run.undefined import Undefined
from ptxemu.syntax.tree import Operand, Pair
from ptxemu.values import Array, BoolArray

EVEN = (np.arange(32) % 2 == 0).reshape(1, 1, 32)
LOW = (np.arange(32) < 16).reshape(1, 1, 32)
BFLY = "shfl.sync.bfly.b32"


def lanes(blocks: int = 1, warps: int = 1) -> Array:
    """A different number in every lane."""
    return np.arange(blocks * warps * 32, dtype=np.uint32).reshape(blocks, warps, 32) * 3 + 5


def shuffle(bench: Bench, mode: str, a: Array, b: Operand, c: Operand, mask: BoolArray | None = None) -> None:
    destination = Pair(bench.destination("d"), bench.destination("p", np.bool_))
    bench.run(f"shfl.sync.{mode}.b32", destination, bench.set("a", a), b, c, number(-1), mask=mask)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["up", "down", "bfly", "idx"]), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.booleans()
)
def test_shfl_follows_the_pseudocode_for_any_b_and_c(mode: str, b: int, c: int, varying: bool) -> None:
    bench = Bench(2, 3)
    a = lanes(2, 3)
    offset = np.full((1, 1, 1), b, np.uint32)
    if varying:  # the same numbers, but not known to be the same in all lanes
        offset = np.broadcast_to(offset, (1, 3, 32)).copy()
    shuffle(bench, mode, a, bench.set("b", offset), number(c))
    wanted = [source_lane(mode, lane, b, c) for lane in range(32)]
    assert np.array_equal(np.broadcast_to(bench.get("d"), a.shape), a[..., [j for j, _ in wanted]])
    assert np.array_equal(
        np.broadcast_to(bench.get("p"), a.shape), np.broadcast_to([inside for _, inside in wanted], a.shape)
    )


@pytest.mark.parametrize("x", range(32))
def test_a_butterfly_moves_the_widest_pieces_that_stay_together(x: int) -> None:
    known = route("bfly", x, 31)
    assert np.array_equal(known.lane.reshape(32), np.arange(32) ^ x)
    assert known.piece.itemsize == (16 if x % 4 == 0 else 8 if x % 2 == 0 else 4)
    assert len(known.index) * known.piece.itemsize == 128


def test_what_does_not_depend_on_block_or_lane_is_moved_once() -> None:
    bench = Bench(4, 2)
    a = lanes(1, 2)
    shuffle(bench, "bfly", a, number(1), number(31))
    assert bench.get("d").shape == (1, 2, 32)
    same = np.full((4, 1, 1), 9, np.uint32)
    shuffle(bench, "bfly", same, number(1), number(31))
    assert bench.get("d") is same


def test_a_strided_value_is_shuffled_like_its_copy() -> None:
    bench = Bench(2, 2)
    every_other = np.arange(2 * 2 * 64, dtype=np.uint32).reshape(2, 2, 64)[..., ::2]
    shuffle(bench, "bfly", every_other, number(4), number(31))
    assert np.array_equal(bench.get("d"), every_other[..., np.arange(32) ^ 4])


def test_lanes_that_do_not_execute_keep_their_register() -> None:
    bench = Bench()
    d = bench.destination("d")
    bench.run(BFLY, d, bench.set("a", lanes()), number(2), number(31), number(0x55555555), mask=EVEN)
    expected = np.where(EVEN, lanes()[..., np.arange(32) ^ 2], ALL)
    assert np.array_equal(bench.get("d"), expected)


def test_a_missing_lane_is_named() -> None:
    bench = Bench(1, 2)
    mask = np.stack([np.ones(32, np.bool_), np.arange(32) != 5])[None]
    d, a = bench.destination("d"), bench.set("a", lanes())
    with pytest.raises(EmulationError, match="not there") as caught:
        bench.run(BFLY, d, a, number(1), number(31), number(-1), mask=mask)
    assert (caught.value.kind, caught.value.lane, caught.value.line) == ("divergent-warp", 32, 7)
    assert "found lanes 0x00000020" in str(caught.value).replace(":", "")
    assert bench.ears.synced == []


def test_lanes_that_have_exited_are_not_waited_for() -> None:
    bench = Bench()
    bench.machine.live = LOW
    for opcode in ("vote.sync.ballot.b32", "match.any.sync.b32", "redux.sync.add.u32"):
        true: Operand = bench.set("a", np.ones((1, 1, 32), np.bool_ if "vote" in opcode else np.uint32))
        bench.run(opcode, bench.destination("d"), true, number(-1), mask=LOW)
        assert (bench.get("d")[LOW] == (16 if "redux" in opcode else 0xFFFF)).all()


def test_the_mask_has_to_name_the_executing_lane() -> None:
    bench = Bench()
    with pytest.raises(EmulationError, match="does not name the executing lane") as caught:
        bench.run("bar.warp.sync", number(0xFFFF))
    assert (caught.value.kind, caught.value.lane) == ("divergent-warp", 16)


def test_lanes_that_meet_have_to_agree_on_the_mask() -> None:
    bench = Bench()
    masks = np.where(np.arange(32) == 3, 0xFFFF, ALL).astype(np.uint32).reshape(1, 1, 32)
    masks[..., 16:] = 0xFFFF0000
    masks[..., 2] = 0xFFFFFFFF
    with pytest.raises(EmulationError, match="another membermask") as caught:
        bench.run("bar.warp.sync", bench.set("m", masks))
    assert caught.value.kind == "divergent-warp"


def test_whole_warps_may_be_elsewhere() -> None:
    bench = Bench(1, 3)
    mask = np.array([True, False, True]).reshape(1, 3, 1)
    bench.run("vote.sync.ballot.b32", bench.destination("d"), number(1), number(-1), mask=mask)
    assert bench.get("d").reshape(3).tolist() == [ALL, ALL, ALL]
    register = bench.set("m", np.full((1, 3, 32), ALL, np.uint32))
    bench.run(
        "vote.sync.ballot.b32", bench.destination("d"), number(0), register, mask=np.broadcast_to(mask, (1, 3, 32))
    )
    assert np.broadcast_to(bench.get("d"), (1, 3, 32))[0, :, 7].tolist() == [0, ALL, 0]


def test_shfl_from_a_lane_that_takes_no_part_is_an_error() -> None:
    bench = Bench()
    d, a = bench.destination("d"), bench.set("a", lanes())
    with pytest.raises(EmulationError, match="does not take part") as caught:
        bench.run(BFLY, d, a, number(1), number(31), number(0x55555555), mask=EVEN)
    assert (caught.value.kind, caught.value.lane) == ("divergent-warp", 0)
    assert "lanes 0x00000002" in str(caught.value)


def test_what_shfl_reads_from_an_absent_lane_has_all_bits_set() -> None:
    bench = Bench()
    undefined = Undefined(bench.machine)
    undefined.tracking = True
    bench.machine.undefined = undefined.born
    bench.run(BFLY, bench.destination("d"), bench.set("a", lanes()), number(16), number(31), number(0xFFFF), mask=LOW)
    assert (bench.get("d")[LOW] == ALL).all()


def test_shfl_out_of_range_reads_nobody() -> None:
    bench = Bench()
    d = bench.destination("d")
    bench.run("shfl.sync.down.b32", d, bench.set("a", lanes()), number(8), number(15), number(0xFFFF), mask=LOW)
    expected = lanes()[..., [i + 8 if i < 8 else i for i in range(32)]]
    assert np.array_equal(bench.get("d")[LOW], expected[LOW])


def test_groups_with_masks_of_their_own_meet_separately() -> None:
    bench = Bench()
    masks = np.where(LOW, 0xFFFF, 0xFFFF0000).astype(np.uint32)
    bench.run("bar.warp.sync", bench.set("m", masks))
    heard = [bench.machine.full(group) for group in bench.ears.synced if group is not None]
    assert len(heard) == 2
    assert np.array_equal(heard[0], LOW)
    assert np.array_equal(heard[1], ~LOW)


@pytest.mark.parametrize(
    "opcode",
    [
        "vote.sync.any.pred",
        "vote.sync.ballot.b32",
        "match.any.sync.b32",
        "match.all.sync.b64",
        "redux.sync.xor.b32",
        "redux.sync.min.s32",
    ],
)
def test_only_bar_warp_sync_is_told_to_observers(opcode: str) -> None:
    bench = Bench()
    kind = np.bool_ if "vote" in opcode else np.uint64 if "b64" in opcode else np.uint32
    d = bench.destination("d", np.bool_ if ".pred" in opcode else np.uint32)
    bench.run(opcode, d, bench.set("a", np.ones((1, 1, 1), kind)), number(-1))
    bench.run("shfl.sync.bfly.b32", bench.destination("s"), bench.set("a", lanes()), number(1), number(31), number(-1))
    bench.run("activemask.b32", bench.destination("e"))
    assert bench.ears.synced == []
    bench.run("bar.warp.sync", number(-1))
    assert bench.ears.synced == [None]


@pytest.mark.parametrize(
    ("opcode", "expected"),
    [("redux.sync.add.u32", 96), ("redux.sync.xor.b32", 0), ("redux.sync.or.b32", 3), ("match.any.sync.b32", ALL)],
)
def test_one_number_for_all_lanes_gives_one_result(opcode: str, expected: int) -> None:
    bench = Bench(2, 2)
    bench.run(opcode, bench.destination("d"), bench.set("a", np.full((1, 1, 1), 3, np.uint32)), number(-1))
    assert bench.get("d").shape == (1, 1, 1)
    assert bench.get("d").item() == expected


def test_activemask_is_what_executes() -> None:
    bench = Bench()
    d = bench.destination("d")
    bench.run("activemask.b32", d, mask=EVEN)
    assert (bench.get("d")[EVEN] == 0x55555555).all()
    bench.run("activemask.b32", d)
    assert bench.get("d").item() == ALL


def test_aligned_instructions_want_all_32_lanes() -> None:
    bench = Bench(2, 2)
    step = bench.step("movmatrix.sync.aligned.m8n8.trans.b16")
    assert whole_warps(step) is None
    some = np.zeros((2, 2, 32), np.bool_)
    some[1, 0] = True
    step.mask = some
    warps = whole_warps(step)
    assert warps is not None
    assert warps.reshape(4).tolist() == [False, False, True, False]
    step.mask = some & (np.arange(32) != 31)
    with pytest.raises(EmulationError, match="all 32 lanes") as caught:
        whole_warps(step)
    assert (caught.value.kind, caught.value.block, caught.value.lane) == ("divergent-warp", (1, 0, 0), 0)
    assert "0x7fffffff" in str(caught.value)


def test_a_program_that_loses_a_lane_is_told_where() -> None:
    """The whole way from PTX: lane 5 leaves before the others shuffle."""
    left = "setp.eq.u32 %p1, %r0, 5;\n@%p1 bra DONE;\n"
    text = f"{left}shfl.sync.bfly.b32 %r1, %r0, 1, 31, -1;\nst.global.u32 [%rd0], %r1;\nDONE:"
    with pytest.raises(EmulationError, match="not there") as caught:
        run(text)
    assert (caught.value.kind, caught.value.lane) == ("divergent-warp", 0)
    instruction = caught.value.instruction
    assert instruction is not None
    assert instruction.opcode == BFLY
    assert caught.value.line == instruction.line > 0
    with pytest.raises(EmulationError, match="does not take part"):  # lane 4 reads lane 5, which has exited
        run(text.replace("bra DONE", "exit").replace("-1", "0xffffffff"))


@given(st.integers(0, 2**32 - 1))
def test_bits_are_in_the_order_of_lanes(value: int) -> None:
    flags = np.array([value >> lane & 1 == 1 for lane in range(32)]).reshape(1, 1, 32)
    assert bits(flags).item() == value
    assert bits(np.broadcast_to(flags, (3, 2, 32))).tolist() == [[[value]] * 2] * 3


def test_membermasks_of_lanes_in_several_blocks() -> None:
    body = "and.b32 %r1, %r0, 1; shl.b32 %r2, 0x55555555, %r1; shfl.sync.bfly.b32 %r3, %r0, 2, 31, %r2;"
    found = run(body + "st.global.u32 [%rd0], %r3;", blocks=2)
    assert (found == np.arange(32) ^ 2).all()
