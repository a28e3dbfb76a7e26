"""Integer rows, called on arrays, against Python's integers, which have no width."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from tests.cases.reference_int import INTEGERS, bits_of, column, quotient, raw, saturate, wrap

from ptxemu.table import ROWS
from ptxemu.values import Array

TYPES = st.sampled_from(INTEGERS)
LANES = 8


def integers(ptx_type: str) -> st.SearchStrategy[int]:
    """Numbers of a type, often near its ends, 0 or a power of two."""
    bits = bits_of(ptx_type)
    near = st.builds(
        lambda sign, power, step: wrap(sign * (1 << power) + step, ptx_type),
        st.sampled_from((-1, 1)),
        st.integers(0, bits),
        st.integers(-2, 2),
    )
    return st.one_of(near, st.integers(0, (1 << bits) - 1).map(lambda value: wrap(value, ptx_type)))


@st.composite
def operands(draw: st.DrawFn, *ptx_types: str) -> list[list[int]]:
    """One list of `LANES` numbers per type."""
    return [draw(st.lists(integers(t), min_size=LANES, max_size=LANES)) for t in ptx_types]


def run(opcode: str, *columns: Any, carry: Array | None = None) -> Any:
    """A row's function on lists of numbers, as the engine calls it: lanes on the last axis."""
    row = ROWS[opcode]
    arrays = [column(list(each), t).reshape(1, 1, -1) for each, t in zip(columns, row.sources, strict=True)]
    with np.errstate(all="ignore"):
        return row.function(*arrays, *([carry] if row.reads_carry else []))


def numbers(value: Array, ptx_type: str) -> list[int]:
    """A result as numbers of a type."""
    return [wrap(number, ptx_type) for number in value.reshape(-1).tolist()]


def expect(opcode: str, ptx_type: str, columns: list[list[int]], function: Any, result: str | None = None) -> None:
    kind = result or ptx_type
    found = numbers(run(opcode, *columns), kind)
    assert found == [wrap(function(*each), kind) for each in zip(*columns, strict=True)]


@settings(deadline=None)
@given(TYPES, st.data())
def test_sums_and_products_wrap(t: str, data: st.DataObject) -> None:
    bits, three = bits_of(t), data.draw(operands(t, t, t))
    two = three[:2]
    expect(f"add.{t}", t, two, lambda a, b: a + b)
    expect(f"sub.{t}", t, two, lambda a, b: a - b)
    expect(f"mul.lo.{t}", t, two, lambda a, b: a * b)
    expect(f"mul.hi.{t}", t, two, lambda a, b: a * b >> bits)
    expect(f"mad.lo.{t}", t, three, lambda a, b, c: a * b + c)
    expect(f"mad.hi.{t}", t, three, lambda a, b, c: (a * b >> bits) + c)
    expect(f"sad.{t}", t, three, lambda a, b, c: abs(a - b) + c)
    expect(f"min.{t}", t, two, min)
    expect(f"max.{t}", t, two, max)


@settings(deadline=None)
@given(st.sampled_from([t for t in INTEGERS if bits_of(t) < 64]), st.data())
def test_wide_products_are_whole(t: str, data: st.DataObject) -> None:
    wide = f"{t[0]}{2 * bits_of(t)}"
    three = data.draw(operands(t, t, wide))
    expect(f"mul.wide.{t}", t, three[:2], lambda a, b: a * b, wide)
    expect(f"mad.wide.{t}", t, three, lambda a, b, c: a * b + c, wide)


@settings(deadline=None)
@given(TYPES, st.data())
def test_division_truncates_and_the_remainder_fits(t: str, data: st.DataObject) -> None:
    a, b = data.draw(operands(t, t))
    b = [divisor or 1 for divisor in b]
    expect(f"div.{t}", t, [a, b], quotient)
    expect(f"rem.{t}", t, [a, b], lambda a, b: a - b * quotient(a, b))


@pytest.mark.parametrize("t", INTEGERS)
@pytest.mark.parametrize("opcode", ["div", "rem"])
def test_division_by_zero_gives_all_ones(opcode: str, t: str) -> None:
    values = [0, 1, -1, 1 << (bits_of(t) - 1), 12345]
    assert numbers(run(f"{opcode}.{t}", values, [0] * len(values)), t) == [wrap(-1, t)] * len(values)


@pytest.mark.parametrize("t", [t for t in INTEGERS if t[0] == "s"])
def test_the_most_negative_number_has_no_opposite(t: str) -> None:
    least = -(1 << (bits_of(t) - 1))
    assert numbers(run(f"abs.{t}", [least]), t) == [least]
    assert numbers(run(f"neg.{t}", [least]), t) == [least]
    assert numbers(run(f"div.{t}", [least], [-1]), t) == [least]
    assert numbers(run(f"rem.{t}", [least], [-1]), t) == [0]


@settings(deadline=None)
@given(operands("s32", "s32", "s32"))
def test_saturation_stops_at_the_ends(three: list[list[int]]) -> None:
    expect("add.sat.s32", "s32", three[:2], lambda a, b: saturate(a + b))
    expect("sub.sat.s32", "s32", three[:2], lambda a, b: saturate(a - b))
    expect("mad.hi.sat.s32", "s32", three, lambda a, b, c: saturate((a * b >> 32) + c))


@settings(deadline=None)
@given(st.sampled_from(("u32", "s32", "u64", "s64")), st.sampled_from(("add", "sub")), st.data())
def test_carries_join_words_to_one_number(t: str, operation: str, data: st.DataObject) -> None:
    """A chain of any length equals one sum (difference) of long numbers, and leaves its carry (borrow)."""
    words, bits = data.draw(st.integers(1, 6)), bits_of(t)
    a, b = (data.draw(operands(*[t] * words)) for _ in range(2))
    found, carry = [], None
    for place in range(words):
        opcode = f"{operation}.cc.{t}" if place == 0 else f"{operation}c.cc.{t}"
        value, carry = run(opcode, a[place], b[place], carry=carry)
        found.append(numbers(value, f"u{bits}"))
    assert carry is not None
    for lane in range(LANES):
        first, second = (sum(raw(each[lane], t) << bits * place for place, each in enumerate(x)) for x in (a, b))
        result = first + second if operation == "add" else first - second
        assert sum(each[lane] << bits * place for place, each in enumerate(found)) == result % (1 << bits * words)
        assert bool(carry[0, 0, lane]) is (not 0 <= result < 1 << bits * words)


@settings(deadline=None)
@given(st.sampled_from(("u32", "s32", "u64", "s64")), st.sampled_from(("lo", "hi")), st.booleans(), st.data())
def test_the_carry_of_a_multiply_add_is_that_of_its_sum(t: str, half: str, flag: bool, data: st.DataObject) -> None:
    bits, three = bits_of(t), data.draw(operands(t, t, t))
    value, carry = run(f"madc.{half}.cc.{t}", *three, carry=np.full((1, 1, 1), flag))
    for lane, (a, b, c) in enumerate(zip(*three, strict=True)):
        total = raw(a * b >> bits if half == "hi" else a * b, t) + raw(c, t) + flag
        assert numbers(value, t)[lane] == wrap(total, t)
        assert bool(carry[0, 0, lane]) is (total >> bits > 0)


@pytest.mark.parametrize(
    "opcode",
    ["add.s32", "mul.hi.u64", "mad.wide.s16", "div.s64", "sad.u32", "mul24.hi.s32", "dp4a.s32.u32", "min.s16x2"],
)
def test_results_stay_as_small_as_their_inputs(opcode: str) -> None:
    """A value that is the same in all lanes, warps or blocks is stored once, and stays so."""
    row = ROWS[opcode]
    shapes = [(5, 1, 1), (1, 3, 1), (1, 1, 32)][: len(row.sources)]
    ones = [column([3], t).reshape(1, 1, 1) for t in row.sources]
    spread = [np.broadcast_to(one, shape) for one, shape in zip(ones, shapes, strict=False)]
    single = row.function(*ones)
    assert single.shape == (1, 1, 1)
    whole = row.function(*spread)
    assert whole.shape == np.broadcast_shapes(*shapes)
    assert (whole == single).all()
