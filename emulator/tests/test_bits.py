"""Bit rows, called on arrays, against Python's integers; constants and values that differ by lane must agree."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from tests.cases import reference_int as ref
from tests.cases.reference_int import bits_of, column, raw, wrap

from ptxemu.table import ROWS
from ptxemu.values import Array

LANES = 6
WORDS = st.one_of(st.integers(0, (1 << 32) - 1), st.sampled_from((0, 1, 0x80000000, 0xFFFFFFFF, 0x80FF7F00)))
LONGS = st.one_of(st.integers(0, (1 << 64) - 1), st.sampled_from((0, 1, 1 << 63, (1 << 64) - 1)))
AMOUNTS = st.one_of(st.integers(0, 70), st.integers(0, (1 << 32) - 1), st.sampled_from(ref.AMOUNTS))


def call(opcode: str, *columns: list[int]) -> Any:
    """A row's function on lists of numbers (of one number: a constant), lanes on the last axis."""
    row = ROWS[opcode]
    arrays = [column(each, t).reshape(1, 1, -1) for each, t in zip(columns, row.sources, strict=True)]
    with np.errstate(all="ignore"):
        return row.function(*arrays)


def numbers(value: Array, ptx_type: str) -> list[int]:
    return [wrap(number, ptx_type) for number in np.broadcast_to(value, (1, 1, LANES)).reshape(-1).tolist()]


def lists(values: st.SearchStrategy[int]) -> st.SearchStrategy[list[int]]:
    return st.lists(values, min_size=LANES, max_size=LANES)


def both_ways(opcode: str, result: str, data: list[list[int]], controls: list[list[int]], function: Any) -> None:
    """The row with `controls` (amounts, positions, selectors) by lane, and with each lane's as constants."""
    rows = list(zip(*data, *controls, strict=True))
    assert numbers(call(opcode, *data, *controls), result) == [wrap(function(*row), result) for row in rows]
    for chosen in zip(*controls, strict=True):
        constant = call(opcode, *data, *([control] for control in chosen))
        assert numbers(constant, result) == [wrap(function(*row, *chosen), result) for row in zip(*data, strict=True)]


@settings(deadline=None)
@given(st.sampled_from([f"{kind}{bits}" for kind in "bus" for bits in (16, 32, 64)]), lists(LONGS), lists(AMOUNTS))
def test_shifts_by_any_amount(t: str, values: list[int], amounts: list[int]) -> None:
    typed = [wrap(value, t) for value in values]
    both_ways(f"shr.{t}", t, [typed], [amounts], ref.shift_right)
    if t[0] == "b":
        both_ways(f"shl.{t}", t, [typed], [amounts], lambda a, n: ref.shift_left(a, n, t))


@settings(deadline=None)
@given(st.booleans(), st.booleans(), lists(WORDS), lists(WORDS), lists(AMOUNTS))
def test_funnel_shifts(left: bool, clamp: bool, a: list[int], b: list[int], amounts: list[int]) -> None:
    opcode = f"shf.{'l' if left else 'r'}.{'clamp' if clamp else 'wrap'}.b32"
    both_ways(opcode, "b32", [a, b], [amounts], lambda *each: ref.funnel(left, clamp, *each))


@pytest.mark.parametrize("table", range(256))
def test_lop3_is_its_table(table: int) -> None:
    """The ISA's own definition: the table is the function's value at these three constants."""
    found = call("lop3.b32", [0xF0], [0xCC], [0xAA], [table])
    assert found.item() & 0xFF == table
    lanes = call("lop3.b32", [0xF0] * LANES, [0xCC] * LANES, [0xAA] * LANES, [table])
    assert (lanes & 0xFF == table).all()


@settings(deadline=None)
@given(lists(WORDS), lists(WORDS), lists(st.integers(0, 0xFFFF)))
def test_prmt_moves_bytes_and_signs(a: list[int], b: list[int], selectors: list[int]) -> None:
    both_ways("prmt.b32", "b32", [a, b], [selectors], ref.permute)


@settings(deadline=None)
@given(st.sampled_from(("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")), lists(WORDS), lists(WORDS), lists(AMOUNTS))
def test_prmt_modes(mode: str, a: list[int], b: list[int], selectors: list[int]) -> None:
    both_ways(f"prmt.b32.{mode}", "b32", [a, b], [selectors], lambda *each: ref.permute_mode(mode, *each))


@settings(deadline=None)
@given(st.sampled_from(("u32", "s32", "u64", "s64")), lists(LONGS), lists(AMOUNTS), lists(AMOUNTS))
def test_fields_are_extracted_bit_by_bit(t: str, values: list[int], starts: list[int], lengths: list[int]) -> None:
    typed = [wrap(value, t) for value in values]
    bits, signed = bits_of(t), t[0] == "s"
    function = lambda a, b, c: ref.extract(raw(a, t), b, c, bits, signed)  # noqa: E731 - one use
    both_ways(f"bfe.{t}", t, [typed], [starts, lengths], function)


@settings(deadline=None)
@given(st.sampled_from(("b32", "b64")), lists(LONGS), lists(LONGS), lists(AMOUNTS), lists(AMOUNTS))
def test_fields_are_inserted_bit_by_bit(
    t: str, values: list[int], into: list[int], starts: list[int], lengths: list[int]
) -> None:
    data = [[raw(value, t) for value in each] for each in (values, into)]
    both_ways(f"bfi.{t}", t, data, [starts, lengths], lambda a, b, c, d: ref.insert(a, b, c, d, bits_of(t)))


@settings(deadline=None)
@given(st.booleans(), lists(AMOUNTS), lists(AMOUNTS), lists(WORDS))
def test_masks_and_extensions(clamp: bool, a: list[int], b: list[int], values: list[int]) -> None:
    mode = "clamp" if clamp else "wrap"
    both_ways(f"bmsk.{mode}.b32", "b32", [a], [b], lambda a, b: ref.make_mask(clamp, a, b))
    for t in ("u32", "s32"):
        typed = [wrap(value, t) for value in values]
        both_ways(f"szext.{mode}.{t}", t, [typed], [b], lambda a, n, t=t: ref.extend(clamp, t == "s32", raw(a, t), n))


@settings(deadline=None)
@given(lists(WORDS), lists(st.integers(0, 31)), lists(st.integers(-40, 40)))
def test_the_nth_one_is_found_by_walking(masks: list[int], bases: list[int], offsets: list[int]) -> None:
    both_ways("fns.b32", "b32", [masks, bases], [offsets], ref.find_nth)


@settings(deadline=None)
@given(st.sampled_from((32, 64)), lists(LONGS))
def test_counts_follow_the_binary_digits(bits: int, values: list[int]) -> None:
    t = f"b{bits}"
    a = [raw(value, t) for value in values]
    digits = [f"{value:0{bits}b}" for value in a]
    assert numbers(call(f"popc.{t}", a), "u32") == [text.count("1") for text in digits]
    assert numbers(call(f"clz.{t}", a), "u32") == [len(text) - len(text.lstrip("0")) for text in digits]
    assert numbers(call(f"brev.{t}", a), t) == [int(text[::-1], 2) for text in digits]
    for t in (f"u{bits}", f"s{bits}"):
        typed = [wrap(value, t) for value in a]
        for infix, amount in (("", False), (".shiftamt", True)):
            found = numbers(call(f"bfind{infix}.{t}", typed), "s32")
            assert found == [ref.find_highest(value, bits, amount) for value in typed]


@pytest.mark.parametrize("opcode", ["shl.b32", "shr.s64", "bfe.s32", "bfi.b64", "prmt.b32", "lop3.b32", "popc.b64"])
def test_results_stay_as_small_as_their_inputs(opcode: str) -> None:
    row = ROWS[opcode]
    assert call(opcode, *[[5]] * len(row.sources)).shape == (1, 1, 1)
    first = column([5] * 4, row.sources[0]).reshape(4, 1, 1)
    others = [column([5], t).reshape(1, 1, 1) for t in row.sources[1:]]
    assert row.function(first, *others).shape == (4, 1, 1)
