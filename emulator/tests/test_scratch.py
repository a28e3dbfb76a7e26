"""Shared, local and parameter memory against a model that goes lane by lane and byte by byte."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from tests.stepping import Bench

from ptxemu.errors import EmulationError
from ptxemu.machine.core import Step
from ptxemu.machine.shared import LocalMemory, Parameters, SharedMemory
from ptxemu.values import Array, BoolArray

BLOCKS, WARPS = 3, 2
SHAPE = (BLOCKS, WARPS, 32)
NBYTES = 88  # ends within a 16-byte chunk
SHAPES = [(1, 1, 1), (1, 1, 32), (1, 2, 32), (3, 1, 1), (3, 2, 32), (1, 2, 1)]


def a_step(mask: BoolArray | None = None) -> Step:
    return Bench(BLOCKS, WARPS).step("ld.shared.u32", mask=mask)


def as_bytes(values: Array, width: int) -> Array:
    return np.ascontiguousarray(values if width == 16 else values[..., None]).view(np.uint8)


def from_bytes(payload: Array) -> Array:
    width = payload.shape[-1]
    return payload.view(np.uint32) if width == 16 else payload.view(f"u{width}")[..., 0]


def random_mask(rng: Any) -> BoolArray | None:
    kind = rng.integers(4)
    shape = [(1, 1, 1), (1, 2, 32), (3, 2, 32), (3, 1, 1)][rng.integers(4)]
    return None if kind == 0 else rng.random(shape) < (0.1, 0.5, 0.95)[kind - 1]


class Model:
    """Bytes and flags of every row, one lane at a time; a row is a block's window or a thread's, which begins as -1."""

    def __init__(self, per_thread: bool) -> None:
        self.per_thread = per_thread
        rows = SHAPE if per_thread else (BLOCKS,)
        self.bytes = np.full((*rows, NBYTES), 0xFF if per_thread else 0, np.uint8)
        self.written = np.full((*rows, NBYTES), per_thread)

    def row(self, lane: tuple[int, ...]) -> tuple[int, ...]:
        return lane if self.per_thread else lane[:1]

    def store(self, address: Array, payload: Array, mask: Array) -> None:
        for lane in np.argwhere(mask):
            place = tuple(lane)
            span = slice(int(address[place]), int(address[place]) + payload.shape[-1])
            self.bytes[self.row(place)][span] = payload[place]
            self.written[self.row(place)][span] = True

    def missing(self, address: Array, width: int, mask: Array) -> list[tuple[int, ...]]:
        lanes = [tuple(int(i) for i in lane) for lane in np.argwhere(mask)]
        return [
            lane
            for lane in lanes
            if not self.written[self.row(lane)][int(address[lane]) : int(address[lane]) + width].all()
        ]

    def load(self, lane: tuple[int, ...], address: int, width: int) -> Array:
        row: Array = self.bytes[self.row(lane)]
        return row[address : address + width]


def one_access(memory: SharedMemory | LocalMemory, model: Model, rng: Any) -> None:
    """A random load or store, checked against the model; garbage addresses in inactive lanes."""
    width = int(rng.choice([1, 2, 4, 8, 16]))
    shape = SHAPES[rng.integers(len(SHAPES))]
    address = rng.integers(0, NBYTES // width, shape).astype(np.uint64) * np.uint64(width)
    mask = random_mask(rng)
    active = np.broadcast_to(True if mask is None else mask, SHAPE)
    if shape == SHAPE and mask is not None:
        address[~active] = rng.integers(0, 2**63, (~active).sum(), dtype=np.uint64)
    everywhere = np.broadcast_to(address, SHAPE)
    if rng.random() < 0.5:
        values = rng.integers(0, 256, (*SHAPES[rng.integers(len(SHAPES))], width), dtype=np.uint8)
        memory.store(a_step(mask), address, width, from_bytes(values))
        model.store(everywhere, np.broadcast_to(values, (*SHAPE, width)), active)
        return
    missing = model.missing(everywhere, width, active)
    if missing:
        with pytest.raises(EmulationError) as caught:
            memory.load(a_step(mask), address, width)
        block, warp, lane = missing[0]
        found = (caught.value.kind, caught.value.block, caught.value.lane, caught.value.address)
        assert found == ("uninitialised", (block, 0, 0), warp * 32 + lane, int(everywhere[missing[0]]))
        return
    values = np.broadcast_to(as_bytes(memory.load(a_step(mask), address, width), width), (*SHAPE, width))
    for place in np.argwhere(active):
        lane_ = tuple(int(i) for i in place)
        assert (values[lane_] == model.load(lane_, int(everywhere[lane_]), width)).all()


@pytest.mark.parametrize("per_thread", [False, True])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_any_sequence_of_accesses_is_that_of_the_model(per_thread: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    memory = LocalMemory(SHAPE, NBYTES) if per_thread else SharedMemory(BLOCKS, NBYTES)
    model = Model(per_thread)
    if rng.random() < 0.3:  # from a window that is written everywhere
        for start in range(0, NBYTES, 8):
            address, payload = np.full((1, 1, 1), start, np.uint64), np.full((1, 1, 1, 8), start + 1, np.uint8)
            memory.store(a_step(), address, 8, from_bytes(payload))
            model.store(
                np.broadcast_to(address, SHAPE), np.broadcast_to(payload, (*SHAPE, 8)), np.ones(SHAPE, np.bool_)
            )
    for _ in range(12):
        one_access(memory, model, rng)


@pytest.mark.parametrize("count", [8, 16, 32])
@pytest.mark.parametrize("blocks_differ", [False, True])
def test_matrix_rows_have_a_last_axis_of_their_own(count: int, blocks_differ: bool) -> None:
    shared = SharedMemory(BLOCKS, 4096)
    contents = np.random.default_rng(5).integers(0, 2**32, (BLOCKS, 8, 32, 4), dtype=np.uint32)
    rows = np.arange(256, dtype=np.uint64).reshape(1, 8, 32) * np.uint64(16)
    for part in range(0, 8, 2):
        shared.store(a_step(), rows[:, part : part + 2], 16, contents[:, part : part + 2])
    shape = (BLOCKS if blocks_differ else 1, WARPS, count)
    index = np.random.default_rng(6).integers(0, 256, shape)
    values = shared.load(a_step(), (index * 16).astype(np.uint64), 16)
    index = np.broadcast_to(index, (BLOCKS, WARPS, count))
    expected = np.stack([contents[block].reshape(256, 4)[index[block]] for block in range(BLOCKS)])
    assert values.dtype == np.uint32
    assert (values == expected).all()


def test_matrix_rows_of_inactive_warps_are_ignored() -> None:
    shared = SharedMemory(BLOCKS, 256)
    shared.store(a_step(), np.zeros((1, 1, 1), np.uint64), 16, np.full((1, 1, 1, 4), 5, np.uint32))
    rows = np.zeros((1, WARPS, 8), np.uint64)
    rows[:, 1] = 1 << 40
    warps = np.array([True, False]).reshape(1, WARPS, 1)
    assert (shared.load(a_step(warps), rows, 16, mask=warps)[:, 0] == 5).all()


@pytest.mark.parametrize(
    ("address", "kind"), [(256, "out-of-bounds"), (2**63, "out-of-bounds"), (8, "misaligned"), (32, "uninitialised")]
)
def test_a_matrix_row_that_fails_names_the_lane_that_gave_it(address: int, kind: str) -> None:
    shared = SharedMemory(BLOCKS, 256)
    shared.store(a_step(), np.zeros((1, 1, 1), np.uint64), 16, np.full((1, 1, 1, 4), 5, np.uint32))
    rows = np.zeros((1, WARPS, 16), np.uint64)
    rows[0, 1, 11] = address
    with pytest.raises(EmulationError) as caught:
        shared.load(a_step(), rows, 16)
    assert (caught.value.kind, caught.value.lane, caught.value.address) == (kind, 32 + 11, address)


@pytest.mark.parametrize("memory", [SharedMemory(BLOCKS, 100), LocalMemory(SHAPE, 100)])
@pytest.mark.parametrize(
    ("address", "width", "kind"),
    [(100, 1, "out-of-bounds"), (96, 8, "out-of-bounds"), (2**64 - 4, 4, "out-of-bounds"), (2, 4, "misaligned")],
)
def test_addresses_outside_or_odd(memory: Any, address: int, width: int, kind: str) -> None:
    everywhere = np.zeros(SHAPE, np.uint64)
    everywhere[2, 1, 30] = address
    zero = np.zeros((1, 1, 1), f"u{width}")
    memory.store(a_step(), np.zeros((1, 1, 1), np.uint64), width, zero)
    for access in (memory.load, lambda *args: memory.store(*args, zero)):
        with pytest.raises(EmulationError) as caught:
            access(a_step(), everywhere, width)
        error = caught.value
        assert (error.kind, error.block, error.lane, error.address) == (kind, (2, 0, 0), 62, address)
        access(a_step(everywhere == 0), everywhere, width)


def test_an_empty_window_has_no_address_but_no_lane_needs_one() -> None:
    nobody = np.zeros((1, 1, 1), np.bool_)
    for memory in (SharedMemory(BLOCKS, 0), LocalMemory(SHAPE, 0)):
        assert memory.load(a_step(nobody), np.full((1, 1, 1), 7, np.uint64), 4).size
        with pytest.raises(EmulationError, match=r"4 bytes past the end of the \w+'s 0 bytes"):
            memory.load(a_step(), np.zeros((1, 1, 1), np.uint64), 4)


def test_blocks_do_not_share_and_threads_do_not() -> None:
    shared, local = SharedMemory(BLOCKS, 16), LocalMemory(SHAPE, 16)
    zero = np.zeros((1, 1, 1), np.uint64)
    number = np.arange(BLOCKS * WARPS * 32, dtype=np.uint32).reshape(SHAPE)
    shared.store(a_step(), zero, 4, number)
    local.store(a_step(), zero, 4, number)
    assert shared.load(a_step(), zero, 4).ravel().tolist() == [63, 127, 191], "each block's highest lane"
    assert (local.load(a_step(), zero, 4) == number).all()


def test_a_shared_result_keeps_the_addresses_axes() -> None:
    shared = SharedMemory(BLOCKS, 256)
    shared.store(
        a_step(), np.arange(64, dtype=np.uint64).reshape(1, 2, 32) * np.uint64(4), 4, np.zeros((1, 1, 1), np.uint32)
    )
    for shape in SHAPES:
        assert shared.load(a_step(), np.zeros(shape, np.uint64), 4).shape == (BLOCKS, *shape[1:])


def test_parameters_are_readable_bytes() -> None:
    contents = bytes(range(1, 25))
    parameters = Parameters(contents)
    each = (np.arange(32, dtype=np.uint64) % np.uint64(3)).reshape(1, 1, 32) * np.uint64(8)
    values = parameters.load(a_step(), each, 8)
    assert values.shape == (1, 1, 32)
    assert as_bytes(values, 8)[0, 0, 2].tolist() == list(contents[16:24])
    different = np.zeros(SHAPE, np.uint64)
    different[1] = 20
    assert parameters.load(a_step(), different, 4)[1, 0, 0] == int.from_bytes(contents[20:24], "little")
    with pytest.raises(EmulationError, match="24 bytes of param memory"):
        parameters.load(a_step(), np.full((1, 1, 1), 24, np.uint64), 4)
