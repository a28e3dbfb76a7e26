"""Copies, vectors, address spaces and special registers: contents, and shapes as small as they can be."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from tests.programs import run

from ptxemu.errors import EmulationError
from ptxemu.isa.moves import packed, smallest, specials, unpacked
from ptxemu.table import ROWS

STORE = "st.global.u32 [%rd0], %r1;"


def ids(*blocks: tuple[int, int, int]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.array(blocks, dtype=np.int64)


@pytest.mark.parametrize("form", ["mov.f32", "mov.u64", "mov.pred", "cvta.to.global.u64", "cvta.global.u64"])
def test_copies_share_their_array(form: str) -> None:
    value = np.zeros((1, 1, 32), ROWS[form].sources[0].replace("f32", "f4").replace("u64", "u8").replace("pred", "?"))
    assert ROWS[form].function(value) is value


@given(st.sampled_from([("b32", 2), ("b32", 4), ("b64", 2), ("b64", 4)]), st.integers(0, (1 << 64) - 1))
def test_vectors_are_taken_apart_and_put_together(form: tuple[str, int], number: int) -> None:
    kind, count = form
    dtype = np.dtype(f"u{int(kind[1:]) // 8}")
    value = np.array([[[number % (1 << (8 * dtype.itemsize))]]], dtype)
    items = unpacked(value, count)
    assert b"".join(item.tobytes() for item in items) == value.tobytes()
    assert packed(items, kind).tobytes() == value.tobytes()
    assert packed(items, kind).dtype == dtype


def test_items_of_different_shapes_broadcast() -> None:
    low, high = np.arange(32, dtype=np.uint16).reshape(1, 1, 32), np.array([1, 2], np.uint16).reshape(2, 1, 1)
    whole = packed([low, high], "b32")
    assert whole.shape == (2, 1, 32)
    assert whole[1, 0, 5] == 0x20005
    assert unpacked(high.astype(np.uint32), 2)[0].shape == (2, 1, 1)


def test_sinks_and_immediates_in_vectors() -> None:
    body = "mov.b32 %r1, {7, 9}; mov.b32 {_, %h1}, %r1; cvt.u32.u16 %r1, %h1;" + STORE
    assert (run(body) == 9).all()


@pytest.mark.parametrize("items", ["{%h1, %h2, %h3}", "{%r2}"])
def test_a_vector_must_fill_its_value(items: str) -> None:
    with pytest.raises(EmulationError, match=r"items? in a vector of b32.*expected 2 or 4") as caught:
        run(f"mov.b32 %r1, {items};" + STORE)
    assert caught.value.kind == "syntax"


def test_an_unknown_special_register_is_named() -> None:
    with pytest.raises(EmulationError, match="special register %pm3") as caught:
        run("mov.u32 %r1, %pm3;" + STORE)
    assert caught.value.kind == "unsupported"


def test_addresses_of_variables_and_beyond() -> None:
    body = "mov.u32 %r1, table+12; mov.u32 %r2, table; sub.u32 %r1, %r1, %r2;" + STORE
    assert (run(body, declarations=".shared .align 8 .b8 table[64];") == 12).all()


# --- special registers ------------------------------------------------------------------------------------------------


def test_thread_indices_of_a_block_of_three_dimensions() -> None:
    block = (5, 3, 7)  # 105 threads: four warps, the last with nine threads
    found = specials((2, 2, 2), block, ids((0, 0, 0), (1, 0, 1)), 0)
    order = [(x, y, z) for z, y, x in itertools.product(*map(range, reversed(block)))]
    for axis, name in enumerate("xyz"):
        whole = np.broadcast_to(found[f"%tid.{name}"], (1, 4, 32)).reshape(-1)
        assert whole[:105].tolist() == [place[axis] for place in order]
        assert found[f"%ntid.{name}"].item() == block[axis]
        assert found[f"%nctaid.{name}"].item() == 2


def test_special_registers_are_as_small_as_they_can_be() -> None:
    found = specials((3, 2, 1), (64, 2, 1), ids((0, 1, 0), (1, 1, 0), (2, 1, 0)), 1024, 512)
    shapes = {name: value.shape for name, value in found.items()}
    assert shapes["%tid.x"] == (1, 4, 32)
    assert shapes["%tid.y"] == (1, 4, 1)  # constant within a warp
    assert shapes["%tid.z"] == (1, 1, 1)
    assert shapes["%ctaid.x"] == (3, 1, 1)
    assert shapes["%ctaid.y"] == (1, 1, 1)
    assert shapes["%laneid"] == shapes["%lanemask_lt"] == (1, 1, 32)
    assert shapes["%warpid"] == (1, 4, 1)
    assert found["%tid.y"].reshape(-1).tolist() == [0, 0, 1, 1]
    assert found["%ctaid.y"].item() == 1
    assert found["%dynamic_smem_size"].item() == 1024
    assert found["%total_smem_size"].item() == 1536
    wide = {name for name, value in found.items() if value.dtype != np.uint32}
    assert wide == {"%clock64", "%globaltimer", "%gridid"}


def test_lane_masks_cover_the_warp() -> None:
    found = specials((1, 1, 1), (32, 1, 1), ids((0, 0, 0)), 0)
    below, equal, above = (found[f"%lanemask_{name}"].reshape(-1) for name in ("lt", "eq", "gt"))
    assert (below | equal | above == 0xFFFFFFFF).all()
    assert (below & equal | below & above | equal & above == 0).all()
    assert [int(mask).bit_count() for mask in below] == list(range(32))


def test_clocks_stand_still() -> None:
    body = "mov.u32 %r2, %clock; mov.u64 %rd1, %clock64; mov.u64 %rd2, %globaltimer; mov.u32 %r3, %smid;"
    body += "cvt.u32.u64 %r4, %rd1; or.b32 %r1, %r2, %r3; or.b32 %r1, %r1, %r4;" + STORE
    assert (run(body, threads=64, blocks=2) == 0).all()


def test_special_registers_reach_the_program() -> None:
    body = "mov.u32 %r2, %laneid; mov.u32 %r3, %warpid; mad.lo.u32 %r1, %r3, 32, %r2;"
    body += "add.u32 %r1, %r1, %ctaid.x;" + STORE
    assert (run(body, threads=96, blocks=2) == np.arange(96) + np.arange(2)[:, None]).all()


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_smallest_keeps_every_element(blocks: int, warps: int, lanes: int) -> None:
    whole = np.broadcast_to(np.arange(warps, dtype=np.uint32).reshape(1, warps, 1), (blocks, warps, lanes))
    cut = smallest(whole)
    assert cut.shape == (1, warps, 1)
    assert (np.broadcast_to(cut, whole.shape) == whole).all()
