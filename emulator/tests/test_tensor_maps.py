"""Tensor maps and what is wrong with them or with the copies that use them: one clear line each."""

from __future__ import annotations

from collections.abc import Mapping
import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from tests.programs import refuses, table_of, text_of

import ptxemu
from ptxemu import TensorMap
from ptxemu.machine.tensor_map import DATA_TYPES, SWIZZLES, decoded
from ptxemu.values import Array

GOOD: Mapping[str, Any] = {
    "dtype": "f16", "dims": (128, 64), "strides": (256,), "box": (64, 16), "swizzle": "128B",
}  # fmt: skip


def tensor() -> Array:
    return np.zeros((64, 128), np.float16)


def test_what_the_driver_would_refuse() -> None:
    TensorMap(tensor(), **GOOD)
    TensorMap(0, "bf16", (1 << 32, 1), ((1 << 40) - 16,), (256, 1), fill="nan")
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"dtype": "f8"}, "dtype.*: expected one of u8, u16, .*, found 'f8'"),
        ({"dtype": np.float16}, "dtype.*: expected one of u8, .*found <class 'numpy.float16'>"),
        ({"swizzle": "256B"}, "swizzle.*: expected one of none, 32B, 64B, 128B, found '256B'"),
        ({"interleave": "16B"}, "interleave.*: expected one of none, found '16B'"),
        ({"fill": "ones"}, "fill.*: expected one of zeros, nan"),
        ({"dtype": "s64", "box": (8, 8), "fill": "nan", "dims": (32, 64)}, "zeros for a tensor of integers, found nan"),
        ({"l2_promotion": "1K"}, "l2_promotion"),
        ({"dims": ()}, "rank.*: expected 1 to 5 dims, found 0"),
        ({"dims": (1,) * 6}, "rank.*: expected 1 to 5 dims, found 6"),
        ({"strides": ()}, "strides.*: expected 1 numbers for 2 dims, found 0"),
        ({"box": (64,)}, "box.*: expected 2 numbers for 2 dims, found 1"),
        ({"element_strides": (1,)}, "element_strides.*: expected 2 numbers"),
        ({"dims": (0, 64)}, "dims.*: expected 1 to 2.32 each"),
        ({"strides": (250,)}, r"strides.*: expected multiples of 16 bytes below 2.40, found \(250,\)"),
        ({"strides": (1 << 40,)}, "strides.*: expected multiples of 16 bytes below 2.40"),
        ({"element_strides": (1, 0)}, "element_strides.*: expected 1 to 8 each"),
        ({"strides": (-256,)}, "strides.*: expected multiples of 16 bytes"),
        ({"box": (64, 257)}, r"box.*: expected 1 to 256 elements each, found \(64, 257\)"),
        ({"box": (64, 0)}, "box.*: expected 1 to 256 elements each"),
        ({"element_strides": (1, 9)}, "element_strides.*: expected 1 to 8 each"),
        ({"box": (12, 16)}, "box.*: expected rows of a multiple of 16 bytes, found 24 bytes"),
        ({"box": (72, 16)}, "box.*: expected rows of at most 128B, the swizzle's span, found 144"),
        ({"dims": (128, 65)}, "dims and strides.*: expected a tensor within its array, of which 16384"),
        ({"strides": (272,)}, "found 17392 bytes from the first element to the end of the last"),
        *(({name: wrong}, f"{name}.*: expected whole numbers by axis, .*found") for name, wrong in (
            ("strides", 256), ("strides", None), ("box", (64.5, 16)), ("box", ("64", 16)), ("dims", (np.inf, 64)))),
    )  # fmt: skip
    for change, message in refused:
        with refuses("arguments", f"TensorMap: .*{message}"):
            TensorMap(tensor(), **{**GOOD, **change})
    TensorMap(tensor()[:32], **GOOD)
    TensorMap(tensor()[32:], **{**GOOD, "dims": (128, 32)})  # a part of an array ends with the array
    with refuses("arguments", "of which 8192 bytes are left"):
        TensorMap(tensor()[32:], **{**GOOD, "dims": (128, 33)})


@st.composite
def maps(draw: st.DrawFn) -> TensorMap:
    """Any map that the driver takes, of no array."""
    rank = draw(st.integers(1, 5))
    dtype, swizzle = draw(st.sampled_from(DATA_TYPES)), draw(st.sampled_from(SWIZZLES))
    size = TensorMap(0, dtype, (1,), (), (16,)).itemsize
    most = {"none": 256, "32B": 32 // size, "64B": 64 // size, "128B": 128 // size}[swizzle]
    inner = 16 // size * draw(st.integers(1, max(1, min(most, 64) * size // 16)))
    axes = st.integers(1, 5)
    return TensorMap(
        0,
        dtype,
        tuple(draw(st.lists(st.integers(1, 40), min_size=rank, max_size=rank))),
        tuple(16 * each for each in draw(st.lists(st.integers(0, 1 << 30), min_size=rank - 1, max_size=rank - 1))),
        (inner, *draw(st.lists(axes, min_size=rank - 1, max_size=rank - 1))),
        tuple(draw(st.lists(st.integers(1, 8), min_size=rank, max_size=rank))),
        swizzle=swizzle,
        l2_promotion=draw(st.sampled_from(("none", "64B", "128B", "256B"))),
    )


@given(given_map=maps(), address=st.integers(0, 1 << 50))
@settings(max_examples=60, deadline=None)
def test_a_map_is_read_back_from_its_bytes(given_map: TensorMap, address: int) -> None:
    contents = given_map.encoded(16 * address)
    found = decoded(contents)
    assert found is not None
    assert found.address == 16 * address
    names = ("dtype", "dims", "strides", "box", "element_strides", "swizzle", "interleave", "fill", "l2_promotion")
    assert [getattr(found.map, name) for name in names] == [getattr(given_map, name) for name in names]
    assert decoded(contents[:60] + bytes([contents[60] ^ 1]) + contents[61:]) is None  # written over


# --- copies that use them ---------------------------------------------------------------------------------------------

HEAD = text_of("programs", "copy_head") + "@one mbarrier.arrive.expect_tx.shared::cta.b64 _, [mb], 2048;\n"
LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
TAIL = text_of("tensor_maps", "map_wait")
WAIT = "waits: mbarrier.try_wait.parity.shared::cta.b64 ok, [mb], 0;\n@!ok bra waits;\n"
H200 = Path(__file__).parent / "data" / "host_programs_h200.json"


def launch(text: str, *arguments: Any) -> None:
    given_map = TensorMap(tensor(), **GOOD)
    ptxemu.load(HEAD + text + TAIL, path="k.ptx").kernel().launch((2,), (64,), arguments or (given_map, tensor()))


@pytest.mark.parametrize("row", table_of("tensor_maps", "bad_copies"))
def test_a_copy_that_may_not_be(row: list[Any]) -> None:
    text, kind, message, changes = (*row, {})[:4]
    with refuses(kind, message) as caught:
        launch(text, TensorMap(tensor(), **{**GOOD, **changes}), tensor())
    assert caught.value.line == 13 or kind == "mbarrier"


def test_a_copy_over_its_own_mbarrier() -> None:
    copy = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    with refuses("mbarrier", r"a copy over an mbarrier, at 0x1400.*memory of its own"):
        launch(f".shared .align 16 .b8 more[64];\n@one {copy} [at+2064], [out], 2048, [mb];")


def test_copies_finish_in_the_order_of_their_issue() -> None:
    memory, copy = np.arange(4096, dtype=np.uint32), LOAD.replace(".tensor.2d", "").replace(".tile", "")
    text = "".join(f"@one {copy} [at], [out+{start}], 1024, [mb];\n" for start in (4096, 8192))
    text += "look: mbarrier.try_wait.parity.shared::cta.b64 ok, [mb], 0;\n@!ok bra look;\nld.shared.u32 turn, [at];"
    launch(f"{text}\nst.global.u32 [out], turn;", TensorMap(tensor(), **GOOD), memory)
    assert memory[0] == 2048


@pytest.mark.parametrize(("offset", "copied"), [(0, True), (2044, True), (2048, False)])
def test_a_read_of_what_a_copy_is_still_to_write_names_the_copy(offset: int, copied: bool) -> None:
    with refuses("uninitialised", "4-byte read of shared memory not written before") as caught:
        launch(f"@one {LOAD} [at], [map, {{0, 0}}], [mb];\nld.shared.u32 turn, [at+{offset}];")
    assert ("which the cp.async.bulk of line 13 is still to write" in str(caught.value)) == copied
    assert ("check parity and expect_tx" in str(caught.value)) == copied


def test_a_copy_that_needs_the_rest_of_a_buffer() -> None:
    """The map tells of a tensor that the memory does not hold: only on the machine that runs it is that known."""
    given_map = TensorMap(0, **GOOD).encoded(1 << 36)
    with refuses("out-of-bounds", "past the end of the nearest buffer|which has no buffer|before the start"):
        launch(f"@one {LOAD} [at], [map, {{0, 40}}], [mb];", given_map, np.zeros(4096, np.uint8))


LOAD_BOX = f"@one {LOAD} [at], [map, {{0, 0}}], [mb];"


def test_a_tensor_is_named_by_its_place_among_the_arguments() -> None:
    array, fields = np.arange(64 * 128, dtype=np.uint16).reshape(64, 128), {**GOOD, "dtype": "u16"}
    launch(LOAD_BOX, TensorMap(1, **fields), array)
    wrongs: tuple[Any, ...] = (0, [1, 2], None, 1.0)
    for wrong in wrongs:
        with refuses("arguments", "an array, or the index of one"):
            launch(LOAD_BOX, TensorMap(wrong, **fields), array)
    with refuses("arguments", "a tensor within its array"):
        launch(LOAD_BOX, TensorMap(1, **fields), array[:32].copy())
    with refuses("arguments", r"float16; a CUtensorMap takes a ptxemu\.TensorMap"):
        launch("", tensor(), tensor())


def test_a_map_may_be_a_member_of_a_structure_or_lie_in_global_memory() -> None:
    """Where C++ puts it: behind a number at the next multiple of 128 bytes; or as a copy of the parameter's bytes."""
    launch("prefetch.param.tensormap [m];\n" + LOAD_BOX)
    text = HEAD.replace("m[128]", "m[256]") + f"@one {LOAD} [at], [map+128, {{0, 0}}], [mb];" + TAIL
    ptxemu.load(text).kernel().launch(1, 64, ((np.int32(5), TensorMap(tensor(), **GOOD)), tensor()))
    text = text_of("tensor_maps", "map_words")
    launch(f"{text}@one {LOAD} [at], [out, {{0, 0}}], [mb];", TensorMap(tensor(), **GOOD), np.zeros(256, np.uint8))


@pytest.mark.parametrize("dtype", ["f32", "f32.ftz", "tf32", "tf32.ftz"])
def test_a_copy_through_a_map_of_tf32_rounds_as_an_h200_does(dtype: str) -> None:
    words = {int(old, 16): int(new, 16) for old, new in json.loads(H200.read_text(encoding="utf-8"))["tf32"].items()}
    memory = np.zeros((64, 64), np.uint32)
    memory[0, : len(words)] = list(words)
    given = TensorMap(memory, dtype, (len(words), 1), (256,), (32, 16), fill="nan")
    show = "ld.shared.u32 turn, [at+{0}];\n@one st.global.u32 [out+{0}], turn;\n"
    text = "".join(show.format(4 * one) for one in range(32))
    found = []
    for first in (0, 32):
        out = np.zeros(32, np.uint32)
        launch(f"@one {LOAD} [at], [map, {{{first}, 0}}], [mb];\n{WAIT}{text}", given, out)
        found += out.tolist()
    wanted = list(words.values() if dtype.startswith("tf32") else words) + [0x7FF77FF7] * (64 - len(words))
    assert found == wanted


TWO = text_of("tensor_maps", "map_two")


def test_threads_of_one_instruction_name_different_maps() -> None:
    tensors = [np.full((64, 128), number, np.float16) for number in (1, 2)]
    maps = tuple(TensorMap(each, **GOOD) for each in tensors)
    out = np.zeros(4, np.float16)
    ptxemu.load(HEAD.replace("m[128]", "m[256]") + TWO).kernel().launch((1,), (64,), (maps, out))
    assert out.tolist() == [1, 1, 2, 2]


@pytest.mark.parametrize(("opcode", "old"), [("cp.async", 0), ("cp.reduce.async", 5)])
def test_a_box_partly_outside_beside_a_whole_one(opcode: str, old: int) -> None:
    """Each block waits on its own; what is not stored of the second one's box nobody has written."""
    array = np.full((64, 64), old, np.uint32)
    given = TensorMap(array, "u32", (58, 62), (256,), (32, 16))
    tail = ".add.tile.bulk_group" if old else ".tile.bulk_group"
    store = f"{opcode}.bulk.tensor.2d.global.shared::cta{tail} [map, {{word, place}}], [at];"
    text = HEAD + text_of("tensor_maps", "boxes_stored").replace("STORE", store) + "ret;\n}\n"
    ptxemu.load(text.replace("SKIPPED", "7")).kernel().launch(2, 64, (given, array))  # outside, as what is below
    wanted = np.full((64, 64), old)
    wanted[:16, :32] += 1
    wanted[54:62, 32 : 58 if old else 60] += 2
    assert np.array_equal(array, wanted)
    with refuses("uninitialised", r"at 0x460, .*block \(1, 0, 0\)"):  # 16 bytes of which a half is stored
        ptxemu.load(text.replace("SKIPPED", "6")).kernel().launch(2, 64, (given, array))


def test_a_stride_that_wraps_leads_backwards_and_not_out_of_the_array() -> None:
    """Ten rows before row FROM, of which six go before row TO: both are counted from 2^30 rows too far on."""
    array, end = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64), 1 << 30
    given = TensorMap(array, "u16", (64, end, end + 1, 70), (128, 2**34 - 128, 128), (64, 16, 1, 1), wraps=True)
    text = text_of("tensor_maps", "map_backwards")
    launch(text.replace("FROM", "50").replace("TO", "30"), given, array)
    assert (array[:, 0] // 64).tolist() == [*range(24), *range(40, 46), *range(30, 64)]
    for source, target in ((9, 30), (50, 5), (65, 30)):
        with refuses("out-of-bounds", "of the nearest buffer"):
            launch(text.replace("FROM", str(source)).replace("TO", str(target)), given, array)


# --- maps that a program makes ----------------------------------------------------------------------------------------

BUILD = text_of("tensor_maps", "map_build")
SHOW = text_of("tensor_maps", "show_box")


def built(text: str = BUILD) -> Array:
    """The first 64 words of the box at (0, 16) of a tensor of which the kernel makes the map."""
    memory = np.zeros(16384 + 512, np.uint8)
    memory[:16384].view(np.uint16)[:] = np.arange(8192)
    load = f"@one {LOAD} [at], [out, {{0, 16}}], [mb];"
    program = ptxemu.load(HEAD + text + load + SHOW, path="k.ptx")
    program.kernel().launch((1,), (64,), (TensorMap(tensor(), **GOOD), memory))
    return memory[16384 + 128 :].view(np.uint16)[:128]


def test_a_map_that_the_program_makes() -> None:
    rows = np.arange(8192).reshape(64, 128)[16:18, :64].reshape(2, 8, 8)
    wanted = [rows[0].reshape(-1), rows[1][np.arange(8) ^ 1].reshape(-1)]  # the second row is swizzled
    assert built().tolist() == np.concatenate(wanted).tolist()


@pytest.mark.parametrize(("old", "new", "message"), table_of("tensor_maps", "bad_maps"))
def test_a_map_that_a_program_makes_wrong(old: str, new: str, message: str) -> None:
    assert old in BUILD
    with pytest.raises(ptxemu.EmulationError, match=message):
        built(BUILD.replace(old, new, 1))
