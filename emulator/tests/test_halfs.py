"""16-bit floats: any operands against exact rational numbers; pairs are two scalars; every f16 keeps its order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from tests.cases.convert import column
from tests.cases.reference_convert import arithmetic

import ptxemu.isa  # noqa: F401 - fills the table
from ptxemu.isa.halfs import flush16, ordered
from ptxemu.table import ROWS
from ptxemu.values import DTYPES, Array

ARITHMETIC = [
    row for row in ROWS.values()
    if row.group == "halfs" and row.form.split(".")[0] in {"add", "sub", "mul", "fma", "min", "max"}
    and not row.form.endswith("x2")
]  # fmt: skip
BITS = st.integers(0, 0xFFFF)
EVERY = np.arange(1 << 16, dtype=np.uint16)


def computed(form: str, *sources: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(ROWS[form].function(*sources))


@given(st.data())
def test_any_operands_give_what_exact_arithmetic_says(data: st.DataObject) -> None:
    row = data.draw(st.sampled_from(ARITHMETIC))
    name, *words, kind = row.form.split(".")
    operands = [np.array([data.draw(BITS)], np.uint16).view(DTYPES[kind]) for _ in row.sources]
    found = computed(row.form, *operands)
    wanted = column([arithmetic(name, kind, words, *(float(x[0]) for x in operands))], kind)
    assert found.dtype == wanted.dtype
    same_nan = np.isnan(found) & np.isnan(wanted) & (found.view(np.uint16) == 0x7FFF)
    assert (found.view(np.uint16) == wanted.view(np.uint16)) | same_nan, (row.form, operands)


@given(st.data())
def test_a_pair_is_two_scalars(data: st.DataObject) -> None:
    row = data.draw(st.sampled_from(ARITHMETIC))
    kind = row.sources[0]
    pairs = [np.array([[data.draw(BITS), data.draw(BITS)]], np.uint16) for _ in row.sources]
    packed = computed(f"{row.form}x2", *(pair.view(np.uint32).reshape(1, 1, 1) for pair in pairs))
    for half in (0, 1):
        single = computed(row.form, *(pair[:, half].view(DTYPES[kind]) for pair in pairs)).view(np.uint16)
        assert packed.view(np.uint16).reshape(2)[half] == single[0]


def test_the_order_of_bits_is_the_order_of_numbers() -> None:
    values = EVERY.view(np.float16)
    values = values[~np.isnan(values)]
    by_bits = values[np.argsort(ordered(values), kind="stable")]
    assert (np.diff(by_bits.astype(np.float64)) >= 0).all()
    zeros = by_bits[by_bits == 0]
    assert np.signbit(zeros).tolist() == [True, False]


def test_every_subnormal_is_flushed_and_no_other() -> None:
    values = EVERY.view(np.float16)
    flushed = flush16(values)
    small = (np.abs(values) < 2.0**-14) & ~np.isnan(values)
    assert (flushed.view(np.uint16)[small] == (EVERY[small] & 0x8000)).all()
    assert (flushed.view(np.uint16)[~small] == EVERY[~small]).all()


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_signs_of_every_number(kind: str) -> None:
    values = EVERY.view(DTYPES[kind])
    nan = (0x7C00 if kind == "f16" else 0x7F80) < (EVERY & 0x7FFF)
    for form, bits in ((f"neg.{kind}", EVERY ^ 0x8000), (f"abs.{kind}", EVERY & 0x7FFF)):
        assert (computed(form, values).view(np.uint16) == np.where(nan, 0x7FFF, bits)).all()


def test_a_tie_is_broken_by_a_term_that_float64_would_lose() -> None:
    """1.5 x (1 + 2^-7) lies half-way between two bf16; 2^-133 more or less decides."""
    bf16 = DTYPES["bf16"]
    a, b = np.array([1.5], bf16), np.array([1 + 2.0**-7], bf16)
    results = [float(computed("fma.rn.bf16", a, b, np.array([c], bf16))[0]) for c in (2.0**-133, 0.0, -(2.0**-133))]
    assert results == [194 / 128, 194 / 128, 193 / 128]  # without it the even one


def test_both_predicates_share_the_third() -> None:
    ones, twos = (np.array([[[bits]]], np.uint32) for bits in (0x3C003C00, 0x40003C00))
    p, q = ROWS["setp.lt.f16x2"].function(ones, twos)
    assert (bool(p.item()), bool(q.item())) == (False, True)
    flags = np.array([True, False]).reshape(1, 1, 2)
    p, q = ROWS["setp.lt.or.f16x2"].function(ones, twos, flags)
    assert (p.tolist(), q.tolist()) == ([[[True, False]]], [[[True, True]]])
