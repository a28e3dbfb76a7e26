"""``cvt``: any number of any type against exact rational numbers, and against `struct`, which rounds in C."""

from __future__ import annotations

import math
import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from tests.cases.convert import column
from tests.cases.reference_convert import convert, limits

import ptxemu.isa  # noqa: F401 - fills the table
from ptxemu.table import ROWS, Row
from ptxemu.targets import lacks
from ptxemu.values import DTYPES, Array

FLOATS = ("f16", "f32", "f64")
OLD = [row for row in ROWS.values() if row.group == "convert" and lacks("sm_80", row.form) is None]
SINGLE = [row for row in OLD if len(row.sources) == 1 and ".tf32." not in row.form]
PAIRS = [row for row in OLD if row.form.endswith("x2.f32")]


def computed(row: Row | str, *sources: Array) -> Array:
    function = ROWS[row].function if isinstance(row, str) else row.function
    with np.errstate(all="ignore"):
        return np.asarray(function(*sources))


def numbers(kind: str) -> st.SearchStrategy[Any]:
    """Any number of a PTX type; half of the floats are near an integer or its half."""
    if kind in {"f16", "bf16", "f32", "f64"}:
        dtype = DTYPES[kind]
        bits = st.integers(0, (1 << (8 * dtype.itemsize)) - 1)
        halves = st.integers(-(1 << 34), 1 << 34).map(lambda n: n / 2)
        whole = bits.map(lambda b: float(np.array([b], f"u{dtype.itemsize}").view(dtype)[0]))
        return whole | halves.map(lambda x: float(column([x], kind)[0]))
    low, high = limits(kind)
    return st.integers(low, high) | st.integers(0, 7 * int(kind[1:]) // 8).map(lambda n: min(high, (1 << n) + 1))


@given(st.data())
def test_any_number_converts_as_exact_arithmetic_says(data: st.DataObject) -> None:
    row = data.draw(st.sampled_from(SINGLE))
    source, result = row.sources[0], row.results[0]
    values = data.draw(st.lists(numbers(source), min_size=1, max_size=8))
    found = computed(row, column(values, source).reshape(1, 1, -1))
    wanted = column([convert(row.form, value) for value in values], result)
    assert found.shape == (1, 1, len(values))
    assert found.dtype.itemsize == wanted.dtype.itemsize
    same = found.reshape(-1).view(f"u{wanted.dtype.itemsize}") == wanted.view(f"u{wanted.dtype.itemsize}")
    if result in DTYPES and DTYPES[result].kind not in "iu":
        with np.errstate(all="ignore"):
            same |= np.isnan(found.reshape(-1)) & np.isnan(wanted)
    assert same.all(), row.form


@given(st.floats(), st.sampled_from([("f32", "f", 3.4028235e38), ("f16", "e", 65504.0)]))
def test_rounding_to_nearest_is_what_c_does(value: float, narrow: tuple[str, str, float]) -> None:
    kind, code, largest = narrow
    found = float(computed(f"cvt.rn.{kind}.f64", np.array([value]))[0])
    try:
        wanted = struct.unpack(code, struct.pack(code, value))[0]
    except OverflowError:  # struct refuses what rounds to infinity
        assert abs(value) > largest
        wanted = math.copysign(math.inf, value)
    assert struct.pack("d", found) == struct.pack("d", wanted) or (math.isnan(found) and math.isnan(wanted))


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from(FLOATS))
def test_directed_roundings_enclose_an_integer(value: int, kind: str) -> None:
    down, up, inwards = (float(computed(f"cvt.{mode}.{kind}.s64", np.array([value]))[0]) for mode in ("rm", "rp", "rz"))
    assert down <= value <= up
    assert inwards == (down if value >= 0 else up)
    with np.errstate(over="ignore"):
        assert down == up or np.nextafter(column([down], kind), column([np.inf], kind))[0] == up


@given(st.sampled_from(FLOATS), st.sampled_from(["u8", "s16", "u32", "s32", "u64", "s64"]), st.data())
def test_a_float_goes_to_an_integer_and_back(kind: str, result: str, data: st.DataObject) -> None:
    precision = {"f16": 11, "f32": 24, "f64": 53}[kind]
    low, high = limits(result)
    value = data.draw(st.integers(max(low, -(1 << precision)), min(high, 1 << precision)))
    exact = column([value], kind)
    there = computed(f"cvt.rzi.{result}.{kind}", exact)
    assert there[0] == value
    assert computed(f"cvt.rn.{kind}.{result}", there)[0] == exact[0]


@pytest.mark.parametrize(
    ("form", "value", "wanted"),
    [
        ("cvt.rni.s32.f32", 2.5, 2),
        ("cvt.rni.s32.f32", 3.5, 4),
        ("cvt.rni.s32.f32", -2.5, -2),
        ("cvt.rzi.s32.f32", 1e20, 2**31 - 1),
        ("cvt.rzi.u8.f32", -1.0, 0),
        ("cvt.rzi.s8.f32", -1000.0, -128),
        ("cvt.rpi.s32.f32", 1e-45, 1),
        ("cvt.rpi.ftz.s32.f32", 1e-45, 0),
        ("cvt.rzi.u64.f64", 1e30, 2**64 - 1),
        ("cvt.rzi.s32.f32", math.nan, 0),
        ("cvt.rzi.u32.f64", math.nan, 1 << 31),
        ("cvt.rzi.s64.f32", math.nan, -(1 << 63)),
        ("cvt.rzi.u64.f16", math.nan, 1 << 63),
        ("cvt.rn.f16.f32", 65519.996, 65504.0),
        ("cvt.rn.f16.f32", 65520.0, math.inf),
        ("cvt.rz.f16.f32", 1e9, 65504.0),
        ("cvt.rn.satfinite.f16.f32", -math.inf, -65504.0),
        ("cvt.rn.relu.f16.f32", -3.0, 0.0),
        ("cvt.sat.f32.f32", math.nan, 0.0),
        ("cvt.rna.tf32.f32", 1 + 2.0**-11, 0x3F802000),
    ],
)
def test_the_isa_s_own_words(form: str, value: float, wanted: float) -> None:
    row = ROWS[form]
    assert computed(form, column([value], row.sources[0]))[0] == wanted


def test_nan_results_are_canonical_halves() -> None:
    bits = np.array([0xFFC00001, 0x7F800001, 0x3F800000], np.uint32).view(np.float32)
    assert computed("cvt.rn.bf16.f32", bits).view(np.uint16).tolist() == [0x7FFF, 0x7FFF, 0x3F80]
    assert computed("cvt.rn.f16x2.f32", bits, bits).tolist() == [0x7FFF7FFF, 0x7FFF7FFF, 0x3C003C00]


@pytest.mark.parametrize("row", PAIRS, ids=lambda row: row.form)
def test_pairs_broadcast_and_leave_their_sources_alone(row: Row) -> None:
    a = np.array([1.0, -2.0, np.nan], np.float32).reshape(3, 1, 1)
    b = np.arange(4, dtype=np.float32).reshape(1, 1, 4)
    kept = a.copy(), b.copy()
    packed = computed(row, a, b)
    single = row.form.replace("x2", "")
    upper, lower = (computed(single, x).view(np.uint16) for x in (a, b))
    assert packed.shape == (3, 1, 4)
    assert (packed >> 16 == upper).all()
    assert (packed & 0xFFFF == lower).all()
    assert all(np.array_equal(x, y, equal_nan=True) for x, y in zip((a, b), kept, strict=True))


@given(st.lists(st.integers(-(1 << 31), (1 << 31) - 1), min_size=4, max_size=4))
def test_four_numbers_are_packed_as_bytes(values: list[int]) -> None:
    d, c, b, a = (np.array([value], np.int32) for value in values)
    upper = computed("cvt.pack.sat.u8.s32.b32", d, c, np.zeros(1, np.uint32))
    whole = computed("cvt.pack.sat.u8.s32.b32", b, a, upper)
    assert whole.tobytes() == bytes(min(max(value, 0), 255) for value in reversed(values))


def test_conversions_of_newer_architectures_need_them() -> None:
    """8-bit floats need sm_89; bf16 beside f32, and tf32 in other roundings than ties away, sm_90."""
    for row in ROWS.values():
        if row.group != "convert":
            continue
        need = lacks("sm_80", row.form)
        if "e4m3" in row.form or "e5m2" in row.form:
            assert need == "sm_89 or newer"
        elif need is not None:
            assert need == "sm_90 or newer"
            assert "bf16" in row.form or "tf32" in row.form
        assert lacks("sm_90", row.form) is None
    assert lacks("sm_80", "cvt.rn.bf16.s32") == "sm_90 or newer"
    assert lacks("sm_80", "cvt.rna.tf32.f32") is None
