"""Wavefronts and sectors, against a plain count in Python and the textbook patterns."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from ptxemu.observe.counters import LARGEST, Patterns, sectors, wavefronts
from ptxemu.values import Array, BoolArray

LANE = np.arange(32, dtype=np.uint64)


def one(address: Array, width: int, mask: BoolArray | None = None) -> tuple[int, int]:
    """(wavefronts, phases) of one warp."""
    passes, phases = wavefronts(address, width, mask)
    return int(passes), int(phases)


def counted(address: list[int], width: int, active: list[bool]) -> tuple[int, int]:
    """The definition, lane by lane."""
    lanes = {1: 32, 2: 32, 4: 32, 8: 16, 16: 8}[width]
    passes = phases = 0
    for start in range(0, len(address), lanes):
        banks = defaultdict(set)
        for lane in range(start, start + lanes):
            if active[lane]:
                for byte in range(address[lane], address[lane] + width):
                    banks[byte // 4 % 32].add(byte // 4)
        if banks:
            phases += 1
            passes += max(len(words) for words in banks.values())
    return passes, phases


@pytest.mark.parametrize(
    ("stride", "width", "expected"),
    [
        (4, 4, (1, 1)),
        (8, 4, (2, 1)),
        (128, 4, (32, 1)),
        (132, 4, (1, 1)),  # padding by one word
        (0, 4, (1, 1)),  # broadcast
        (1, 1, (1, 1)),  # four lanes share a word
        (2, 2, (1, 1)),
        (8, 8, (2, 2)),
        (128, 8, (32, 2)),
        (16, 16, (4, 4)),
        (256, 16, (32, 4)),  # rows of 128 halves, not swizzled
        (272, 16, (4, 4)),
    ],
)
def test_strides(stride: int, width: int, expected: tuple[int, int]) -> None:
    assert one(LANE * np.uint64(stride), width) == expected


@pytest.mark.parametrize(
    ("matrices", "swizzled", "expected"),
    [(4, False, (32, 4)), (4, True, (4, 4)), (2, False, (16, 2)), (1, True, (1, 1))],
)
def test_ldmatrix_takes_one_phase_per_matrix(matrices: int, swizzled: bool, expected: tuple[int, int]) -> None:
    row = np.arange(8 * matrices, dtype=np.uint64)
    column = row % np.uint64(8) if swizzled else np.uint64(0)
    assert one(row * np.uint64(256) + np.uint64(16) * column, 16) == expected


def test_phases_without_active_lanes_are_free() -> None:
    mask = LANE < 8
    assert one(LANE * np.uint64(16), 16, mask) == (1, 1)
    assert one(LANE * np.uint64(16), 16, LANE < 0) == (0, 0)
    assert one(LANE * np.uint64(128), 4, mask) == (8, 1)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([1, 2, 4, 8, 16]),
    st.lists(st.integers(0, 63), min_size=32, max_size=32),
    st.lists(st.booleans(), min_size=32, max_size=32),
)
def test_wavefronts_follow_the_definition(width: int, slots: list[int], active: list[bool]) -> None:
    address = [slot * width for slot in slots]
    assert one(np.array(address, dtype=np.uint64), width, np.array(active)) == counted(address, width, active)
    assert one(np.array(address, dtype=np.uint64), width) == counted(address, width, [True] * 32)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 255), min_size=32, max_size=32),
    st.lists(st.booleans(), min_size=32, max_size=32),
)
def test_sectors_are_distinct_32_byte_pieces(slots: list[int], active: list[bool]) -> None:
    address = np.array(slots, dtype=np.uint64) * np.uint64(4) + np.uint64(1 << 40)
    found, requests = sectors(address, 4, np.array(active))
    expected = {slot // 8 for slot, here in zip(slots, active, strict=True) if here}
    assert (int(found), int(requests)) == (len(expected), int(bool(expected)))


def test_totals_do_not_depend_on_how_values_are_stored() -> None:
    rng = np.random.default_rng(0)
    for rule, period in ((wavefronts, 128), (sectors, 32)):
        patterns = Patterns(rule, period)
        pattern = rng.integers(0, 64, (1, 4, 32)).astype(np.uint64) * np.uint64(4)
        shifts = (np.arange(6, dtype=np.uint64) * np.uint64(period)).reshape(6, 1, 1)
        mask = rng.random((6, 4, 32)) < 0.5
        whole = np.broadcast_to(rng.random((6, 4, 1)) < 0.5, (6, 4, 32))
        for chosen in (None, mask, whole, whole[..., :1], mask[:1, :, :], mask[:, :1, :]):
            compact = patterns.total(pattern, 4, chosen, 6, 4)
            assert compact == patterns.total(np.broadcast_to(pattern, (6, 4, 32)), 4, chosen, 6, 4)
            assert compact == patterns.total(pattern + shifts, 4, chosen, 6, 4)
            full = np.broadcast_to(True if chosen is None else chosen, (6, 4, 32))
            plain = rule(np.broadcast_to(pattern, (6, 4, 32)), 4, full)
            assert compact == (int(plain[0].sum()), int(plain[1].sum()))


def test_blocks_that_differ_are_counted_one_by_one() -> None:
    stride = np.array([4, 8, 128], dtype=np.uint64).reshape(3, 1, 1)
    assert Patterns(wavefronts, 128).total(stride * LANE, 4, None, 3, 2) == (2 * (1 + 2 + 32), 6)


def test_one_address_for_all_lanes_is_a_broadcast() -> None:
    assert Patterns(wavefronts, 128).total(np.full((1, 1, 1), 64, dtype=np.uint64), 4, None, 5, 2) == (10, 10)
    assert Patterns(sectors, 32).total(np.full((1, 1, 1), 64, dtype=np.uint64), 4, None, 5, 2) == (10, 10)


def test_garbage_in_idle_lanes_is_harmless() -> None:
    address = np.where(LANE < 16, LANE * np.uint64(4), np.uint64(2**64 - 3)).reshape(1, 1, 32)
    assert Patterns(wavefronts, 128).total(address, 4, (LANE < 16).reshape(1, 1, 32), 1, 1) == (1, 1)


def test_the_memory_of_patterns_is_bounded() -> None:
    patterns = Patterns(wavefronts, 128, limit=8)
    for shift in range(50):
        assert patterns.total((LANE + np.uint64(shift)).reshape(1, 1, 32) * np.uint64(4), 4, None, 1, 1) == (1, 1)
        assert len(patterns._known) <= 8
    large = np.broadcast_to(LANE * np.uint64(4), (1, LARGEST // 32 + 1, 32))
    before = len(patterns._known)
    assert patterns.total(large, 4, None, 1, LARGEST // 32 + 1) == (LARGEST // 32 + 1, LARGEST // 32 + 1)
    assert len(patterns._known) == before
