"""Global memory: what lanes read and write, in one buffer or several, and every address outside them as an error."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pytest
from tests.stepping import Bench

from ptxemu.errors import EmulationError
from ptxemu.machine.core import Step
from ptxemu.machine.memory import ALIGNMENT, RED_ZONE, SHARED_WINDOW, GlobalMemory, per_address
from ptxemu.values import Array, BoolArray

WIDTHS = (1, 2, 4, 8, 16)


def a_step(mask: BoolArray | None = None, blocks: int = 2, warps: int = 2) -> Step:
    return Bench(blocks, warps).step("ld.global.u32", mask=mask)


def addresses(base: int, offsets: Any) -> Array:
    return (np.asarray(offsets, dtype=np.int64) + base).astype(np.uint64)


def mask_of(*lanes: tuple[int, int, int]) -> BoolArray:
    mask = np.zeros((2, 2, 32), dtype=np.bool_)
    mask[tuple(zip(*lanes, strict=True))] = True
    return mask


def as_bytes(values: Array, width: int) -> Array:
    """What a load returned as (..., width) bytes."""
    return np.ascontiguousarray(values if width == 16 else values[..., None]).view(np.uint8)


@pytest.fixture
def data() -> Array:
    return np.random.default_rng(1).integers(0, 256, 4096, dtype=np.uint8)


def test_a_large_array_is_the_buffer_itself_and_a_sparse_one_stays_sparse() -> None:
    size = 1 << 38  # 256 GiB of address space, which copying would fill
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
    array = np.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=np.uint8)
    array[5 << 30] = 7
    memory = GlobalMemory()
    base = memory.allocate(array, "sparse")
    assert memory.load(a_step(), addresses(base, np.full((1, 1, 1), 5 << 30)), 1).item() == 7
    last = addresses(base, np.full((1, 1, 1), size - 4))
    memory.store(a_step(), last, 4, np.full((1, 1, 1), 0x01020304, dtype=np.uint32))
    assert array[-4:].tolist() == [4, 3, 2, 1]
    memory.read_back(base, array)
    with pytest.raises(EmulationError, match="4 bytes past the end of the nearest buffer, `sparse`"):
        memory.load(a_step(), addresses(base, np.full((1, 1, 1), size)), 4)


def test_a_small_or_read_only_or_odd_array_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptxemu.machine.memory.IN_PLACE", 64)
    whole = np.zeros(128, dtype=np.uint8)
    start = -whole.ctypes.data % 16
    fits = whole[start : start + 64]
    frozen = fits.view()
    frozen.flags.writeable = False
    for array, in_place in (
        (fits, True), (fits[:48], False), (frozen, False), (whole[start + 1 : start + 65], False),
        (whole[start : start + 72], False),
    ):  # fmt: skip
        memory = GlobalMemory()
        base = memory.allocate(array, "x")
        memory.store(a_step(), addresses(base, np.zeros((1, 1, 1))), 1, np.full((1, 1, 1), 9, dtype=np.uint8))
        assert bool(array[0] == 9) == in_place
        whole[:] = 0


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("shape", [(2, 2, 32), (1, 2, 32), (1, 1, 1), (2, 1, 1)])
def test_load_gathers_each_lanes_bytes(data: Array, width: int, shape: tuple[int, ...]) -> None:
    memory = GlobalMemory()
    base = memory.allocate(data, "x")
    offsets = np.random.default_rng(2).integers(0, len(data) // width, shape) * width
    values = memory.load(a_step(), addresses(base, offsets), width)
    assert values.shape == (shape if width < 16 else (*shape, 4)), "no larger than the addresses"
    assert (as_bytes(values, width) == data[offsets[..., None] + np.arange(width)]).all()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("masked", [False, True])
def test_store_scatters_each_lanes_bytes(data: Array, width: int, masked: bool) -> None:
    memory = GlobalMemory()
    base = memory.allocate(data, "x")
    rng = np.random.default_rng(3)
    offsets = rng.permutation(len(data) // 16)[:128].reshape(2, 2, 32) * 16
    payload = rng.integers(0, 256, (2, 2, 32, width), dtype=np.uint8)
    mask = rng.random((2, 2, 32)) < 0.5 if masked else None
    values = payload.view(np.uint32) if width == 16 else payload.view(f"u{width}")[..., 0]
    memory.store(a_step(mask), addresses(base, offsets), width, values)
    expected = data.copy()
    for index in np.ndindex(2, 2, 32):
        if mask is None or mask[index]:
            expected[offsets[index] : offsets[index] + width] = payload[index]
    found = np.empty_like(data)
    memory.read_back("x", found)
    assert (found == expected).all()


def test_stores_to_one_address_leave_the_highest_lane() -> None:
    memory = GlobalMemory()
    base = memory.allocate(16, "x")
    everyone = np.arange(128, dtype=np.uint32).reshape(2, 2, 32)
    found = np.zeros(4, np.uint32)
    memory.store(a_step(), addresses(base, [[[0]]]), 4, everyone)
    memory.store(a_step(mask_of((0, 1, 3), (1, 0, 7), (0, 0, 9))), addresses(base, [[[4]]]), 4, everyone)
    memory.store(a_step(), addresses(base, np.full((2, 2, 32), 8)), 4, everyone)
    memory.read_back(base, found)
    assert found.tolist() == [127, 64 + 7, 127, 0]


def test_one_value_is_stored_at_many_addresses() -> None:
    memory = GlobalMemory()
    base = memory.allocate(512, "x")
    memory.store(
        a_step(), addresses(base, np.arange(32).reshape(1, 1, 32) * 16), 16, np.full((1, 1, 1, 4), 7, np.uint32)
    )
    found = np.zeros(128, np.uint32)
    memory.read_back("x", found)
    assert (found == 7).all()


@pytest.mark.parametrize("width", WIDTHS)
def test_lanes_may_be_in_different_buffers(data: Array, width: int) -> None:
    memory = GlobalMemory()
    bases = [memory.allocate(data, "a"), memory.allocate(data[::-1], "b"), memory.allocate(data ^ 255, "c")]
    contents = [data, data[::-1], data ^ 255]
    rng = np.random.default_rng(4)
    which = rng.integers(0, 3, (2, 2, 32))
    offsets = rng.permutation(len(data) // 16)[:128].reshape(2, 2, 32) * 16
    address = addresses(0, np.array(bases)[which] + offsets)
    mask = rng.random((2, 2, 32)) < 0.7
    address[~mask] = rng.integers(0, 2**63, (~mask).sum(), dtype=np.uint64)  # garbage, ignored
    values = as_bytes(memory.load(a_step(mask), address, width), width)
    for index in np.argwhere(mask):
        place = tuple(index)
        start = offsets[place]
        assert (values[place] == contents[which[place]][start : start + width]).all()
    fresh = rng.integers(0, 256, (2, 2, 32, width), dtype=np.uint8)
    memory.store(
        a_step(mask), address, width, fresh.view(np.uint32) if width == 16 else fresh.view(f"u{width}")[..., 0]
    )
    for number, base in enumerate(bases):
        expected, found = contents[number].copy(), np.empty_like(data)
        for index in np.argwhere(mask & (which == number)):
            start = offsets[tuple(index)]
            expected[start : start + width] = fresh[tuple(index)]
        memory.read_back(base, found)
        assert (found == expected).all()


def test_lanes_that_share_an_address_may_be_in_different_buffers_and_inactive() -> None:
    memory = GlobalMemory()
    bases = np.array([memory.allocate(128, "a"), memory.allocate(128, "b")])
    address = addresses(0, bases[np.arange(32) % 2] + 4 * np.arange(32)).reshape(1, 1, 32)
    mask = mask_of((0, 0, 2), (1, 0, 2), (0, 1, 3), (1, 1, 5))
    thread = np.arange(1, 129, dtype=np.uint32).reshape(2, 2, 32)
    memory.store(a_step(mask), address, 4, thread)
    found = np.zeros((2, 32), np.uint32)
    for row, base in zip(found, bases.tolist(), strict=True):
        memory.read_back(base, row)
    assert {(int(row), int(lane)): int(found[row, lane]) for row, lane in np.argwhere(found)} == {
        (0, 2): 64 + 3,
        (1, 3): 32 + 4,
        (1, 5): 64 + 32 + 6,
    }


def test_inactive_lanes_have_no_address() -> None:
    memory = GlobalMemory()
    base = memory.allocate(np.arange(4, dtype=np.uint32), "x")
    address = np.full((2, 2, 32), 3, dtype=np.uint64)
    address[0, 1, 5] = base + 8
    step = a_step(mask_of((0, 1, 5)))
    assert memory.load(step, address, 4)[0, 1, 5] == 2
    memory.store(step, address, 4, np.full((1, 1, 1), 9, np.uint32))
    found = np.zeros(4, np.uint32)
    memory.read_back("x", found)
    assert found.tolist() == [0, 1, 9, 3]
    nobody = a_step(np.zeros((1, 1, 1), dtype=np.bool_))
    assert memory.load(nobody, address, 4).shape == address.shape
    memory.store(nobody, address, 4, np.zeros((1, 1, 1), np.uint32))
    GlobalMemory().store(nobody, address, 4, np.zeros((1, 1, 1), np.uint32))


def test_a_mask_argument_narrows_the_steps_lanes() -> None:
    memory = GlobalMemory()
    base = memory.allocate(np.zeros(32, np.uint32), "x")
    address = addresses(base, np.arange(32).reshape(1, 1, 32) * 4)
    memory.store(a_step(), address, 4, np.full((1, 1, 1), 1, np.uint32), mask_of((1, 1, 2), (0, 0, 4)))
    found = np.zeros(32, np.uint32)
    memory.read_back("x", found)
    assert np.flatnonzero(found).tolist() == [2, 4]


@pytest.mark.parametrize(
    ("offset", "width", "words"),
    [
        (40, 4, "4 bytes past the end of the nearest buffer, `a` (40 bytes"),
        (32, 16, "8 bytes past the end of the nearest buffer, `a` (40 bytes"),
        (-4, 4, "4 bytes before the start of the nearest buffer, `a`"),
        (1 << 32, 4, "bytes past the end of the nearest buffer, `a`"),
        (RED_ZONE - 512, 4, "before the start of the nearest buffer, `b`"),
    ],
)
@pytest.mark.parametrize("masked", [False, True])
def test_an_address_outside_names_the_nearest_buffer(offset: int, width: int, words: str, masked: bool) -> None:
    memory = GlobalMemory()
    base = memory.allocate(40, "a")
    memory.allocate(40, "b")
    lane = (1, 0, 6)
    address = addresses(base, np.zeros((2, 2, 32), np.int64))
    address[lane] = (base + offset) % 2**64
    mask = None
    if masked:
        mask = mask_of(lane, (1, 1, 1))
        address[0, 0, 0] = 12345
    with pytest.raises(EmulationError) as caught:
        memory.load(a_step(mask), address, width)
    error = caught.value
    assert (error.kind, error.block, error.lane, error.address) == ("out-of-bounds", (1, 0, 0), 6, base + offset)
    assert words in str(error)
    with pytest.raises(EmulationError, match=r"past|before"):
        memory.store(
            a_step(mask), address, width, np.zeros((1, 1, 1, 4) if width == 16 else (1, 1, 1), f"u{min(width, 4)}")
        )


def test_no_buffer_at_all() -> None:
    with pytest.raises(EmulationError, match="no buffer") as caught:
        GlobalMemory().load(a_step(), np.zeros((1, 1, 1), np.uint64), 4)
    assert caught.value.kind == "out-of-bounds"


@pytest.mark.parametrize("address", [0, 3, SHARED_WINDOW - 4, 2**64 - 4])
def test_wild_pointers(address: int) -> None:
    memory = GlobalMemory()
    memory.allocate(64, "x")
    with pytest.raises(EmulationError) as caught:
        memory.load(a_step(), np.full((1, 1, 1), address, np.uint64), 4)
    assert (caught.value.kind, caught.value.address) == ("out-of-bounds", address)


@pytest.mark.parametrize("width", [2, 4, 8, 16])
def test_an_odd_address_names_its_lane(width: int) -> None:
    memory = GlobalMemory()
    base = memory.allocate(4096, "x")
    address = addresses(base, np.arange(128).reshape(2, 2, 32) * 16)
    address[0, 1, 4] += width // 2
    with pytest.raises(EmulationError) as caught:
        memory.load(a_step(), address, width)
    assert (caught.value.kind, caught.value.lane, caught.value.address) == ("misaligned", 36, int(address[0, 1, 4]))
    everyone_else = ~mask_of((0, 1, 4))
    memory.load(a_step(everyone_else), address, width)


def test_buffers_are_aligned_and_far_apart() -> None:
    memory = GlobalMemory()
    bases = [memory.allocate(size, str(size)) for size in (0, 1, 700, 16)]
    assert all(base % ALIGNMENT == 0 for base in bases)
    assert bases[0] >= RED_ZONE
    assert all(b - a >= RED_ZONE + n for a, b, n in zip(bases, bases[1:], (0, 1, 700), strict=False))


def test_arrays_of_any_type_and_layout_come_back() -> None:
    memory = GlobalMemory()
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    memory.allocate(table.T, "transposed")
    memory.allocate(np.array(2.5), "scalar")
    back, scalar = np.empty((4, 3), np.float32), np.array(0.0)
    memory.read_back("transposed", back)
    memory.read_back("scalar", scalar)
    assert (back == table.T).all()
    assert scalar == 2.5


def test_what_read_back_and_allocate_refuse() -> None:
    memory = GlobalMemory()
    memory.allocate(8, "x")
    with pytest.raises(ValueError, match="no buffer 'y'"):
        memory.read_back("y", np.zeros(8, np.uint8))
    with pytest.raises(ValueError, match="8 bytes"):
        memory.read_back("x", np.zeros(9, np.uint8))
    with pytest.raises(ValueError, match="C-contiguous"):
        memory.read_back("x", np.zeros(16, np.uint8)[::2])
    with pytest.raises(ValueError, match="already"):
        memory.allocate(8, "x")


def test_per_address_joins_lanes_that_share_an_address() -> None:
    mask = mask_of((1, 0, 3))
    assert per_address(mask, (2, 1, 1)).tolist() == [[[False]], [[True]]]
    assert per_address(mask, (2, 2, 32)) is mask
    assert per_address(mask, (1, 1, 32)).nonzero()[2].tolist() == [3]
