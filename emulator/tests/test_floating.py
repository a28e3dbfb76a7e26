"""f32 and f64 rows on numbers that hypothesis finds, one lane at a time (the fast paths) and many together."""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st
import numpy as np
import pytest
from tests.cases import reference_float as reference

from ptxemu.isa import approximate, floating
from ptxemu.table import ROWS
from ptxemu.values import Array

MODES = st.sampled_from(["rn", "rz", "rm", "rp"])
SINGLES = st.integers(0, 2**32 - 1).map(lambda word: float(np.array([word], np.uint32).view(np.float32)[0]))
DOUBLES = st.floats()
NEAR = st.integers(-(2**24), 2**24).map(float)  # sums and products of these are often ties
DTYPES = {"f32": np.float32, "f64": np.float64}
assert {floating.__name__, approximate.__name__} <= {f"ptxemu.isa.{row.group}" for row in ROWS.values()}


def run(opcode: str, *operands: float) -> float:
    """One lane of a row."""
    kind = opcode.rpartition(".")[2]
    with np.errstate(all="ignore"):
        arrays = [np.array(operand).astype(DTYPES[kind]).reshape(1, 1, 1) for operand in operands]
        result = ROWS[opcode].function(*arrays)
    assert result.shape == (1, 1, 1)
    assert result.dtype == DTYPES[kind]
    return float(result[0, 0, 0])


def same(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))


def expected(name: str, mode: str, *operands: float, ftz: bool) -> float:
    arrays = [np.array([operand]).astype(np.float32) for operand in operands]
    return float(reference.compute(name, "f32", mode, arrays, ftz=ftz)[0])


@given(SINGLES | NEAR, SINGLES | NEAR, SINGLES | NEAR, MODES, st.booleans())
@example(2.0**-20 * (1 + 2.0**-23), (1 - 2.0**-23) * 2.0**-4, 1 + 2.0**-23, "rn", False)  # a tie for float64 only
@example(2.0**-60 * (1 + 1500 * 2.0**-23), 2.0**-66 * (1 - 1500 * 2.0**-23), 0.0, "rn", True)  # vanishes
def test_fma_f32(a: float, b: float, c: float, mode: str, ftz: bool) -> None:
    assert same(run(f"fma.{mode}{'.ftz' * ftz}.f32", a, b, c), expected("fma", mode, a, b, c, ftz=ftz))


@given(st.sampled_from(["add", "sub", "mul", "div"]), SINGLES | NEAR, SINGLES | NEAR, MODES, st.booleans())
@example("add", 2.0**-126, -1.5 * 2.0**-126, "rn", True)
@example("add", 1.5 * 2.0**-126, 2.0**-127, "rn", True)  # a subnormal operand and a normal sum
@example("mul", 2.0**-127, 2.0**100, "rn", True)
def test_two_operands_f32(name: str, a: float, b: float, mode: str, ftz: bool) -> None:
    assert same(run(f"{name}.{mode}{'.ftz' * ftz}.f32", a, b), expected(name, mode, a, b, ftz=ftz))


@given(st.sampled_from(["rcp", "sqrt"]), SINGLES, MODES, st.booleans())
def test_one_operand_f32(name: str, a: float, mode: str, ftz: bool) -> None:
    assert same(run(f"{name}.{mode}{'.ftz' * ftz}.f32", a), expected(name, mode, a, ftz=ftz))


@given(DOUBLES | NEAR, DOUBLES | NEAR, DOUBLES | NEAR, MODES)
@example(1 + 2.0**-52, 1 - 2.0**-52, -1.0, "rn")
@example(2.0**-600, 2.0**-600, 2.0**-1074, "rp")
@example(1.5 * 2.0**600, 2.0**500, -math.inf, "rz")  # the product alone would overflow to the other infinity
def test_fma_f64(a: float, b: float, c: float, mode: str) -> None:
    assert same(run(f"fma.{mode}.f64", a, b, c), reference.fma("f64", mode, a, b, c))


@given(st.sampled_from(["add", "sub", "mul", "div"]), DOUBLES | NEAR, DOUBLES | NEAR, MODES)
def test_two_operands_f64(name: str, a: float, b: float, mode: str) -> None:
    assert same(run(f"{name}.{mode}.f64", a, b), reference.OPERATIONS[name]("f64", mode, a, b))


@given(st.sampled_from(["rcp", "sqrt"]), DOUBLES, MODES)
def test_one_operand_f64(name: str, a: float, mode: str) -> None:
    assert same(run(f"{name}.{mode}.f64", a), reference.OPERATIONS[name]("f64", mode, a))


@given(st.sampled_from(["min", "max"]), SINGLES, SINGLES, st.booleans(), st.booleans())
@example("max", 0.0, -0.0, False, True)
@example("min", -0.0, 0.0, False, False)
@example("max", -1.0, -(2.0**-140), False, True)
def test_min_and_max(name: str, a: float, b: float, nan: bool, ftz: bool) -> None:
    found = run(f"{name}{'.ftz' * ftz}{'.NaN' * nan}.f32", a, b)
    assert same(found, reference.extreme(name, a, b, nan=nan, ftz=ftz))


@pytest.mark.parametrize(
    "opcode", ["add.ftz.f32", "mul.f32", "fma.rn.ftz.f32", "max.f32", "div.approx.ftz.f32", "fma.rz.f32"]
)
def test_operands_broadcast_and_are_not_written(opcode: str) -> None:
    count = len(ROWS[opcode].sources)
    values = np.array([1.5, -0.0, 2.0**-130, math.nan, math.inf, 3.0e38, 7.0, 2.0**-126], np.float32)
    operands: list[Array] = [values.reshape(2, 1, 4), values[:2].reshape(1, 2, 1), values[4:5].reshape(1, 1, 1)][:count]
    before = [operand.copy() for operand in operands]
    with np.errstate(all="ignore"):
        result = ROWS[opcode].function(*operands)
        full = ROWS[opcode].function(*(np.broadcast_to(operand, (2, 2, 4)).copy() for operand in operands))
    assert result.shape == (2, 2, 4)
    assert np.array_equal(result.view(np.uint32), full.view(np.uint32))
    for operand, old in zip(operands, before, strict=True):
        assert np.array_equal(operand.view(np.uint32), old.view(np.uint32))


@pytest.mark.parametrize(
    "opcode", ["add.f32", "mul.ftz.f32", "fma.rn.f32", "ex2.approx.ftz.f32", "rsqrt.approx.f32", "sqrt.rn.f32"]
)
def test_nan_is_canonical(opcode: str) -> None:
    operand = np.array([0xFFC12345], np.uint32).view(np.float32).reshape(1, 1, 1)
    with np.errstate(all="ignore"):
        result = ROWS[opcode].function(*[operand] * len(ROWS[opcode].sources))
    assert result.view(np.uint32).item() == 0x7FFFFFFF


@pytest.mark.parametrize(("name", "exact"), [("ex2", np.exp2), ("lg2", np.log2), ("tanh", np.tanh), ("rsqrt", None)])
def test_approximations_over_all_magnitudes(name: str, exact: np.ufunc | None) -> None:
    words = np.arange(0x00800000, 0x7F800000, 4999, dtype=np.uint32)
    a = words.view(np.float32).reshape(1, -1, 1)
    if name == "ex2":
        a = np.linspace(-125.9, 127.9, 400001, dtype=np.float32).reshape(1, -1, 1)
    with np.errstate(all="ignore"):
        found = ROWS[f"{name}.approx.f32"].function(a).astype(np.float64)
        wide = a.astype(np.float64)
        wanted = exact(wide) if exact else 1 / np.sqrt(wide)
    bound = {"ex2": 2.0**-24, "lg2": 2.0**-22, "tanh": 2.0**-11, "rsqrt": 2.0**-22.9}[name]
    error = np.abs(found - wanted)
    close = (wide > 0.5) & (wide < 2) if name == "lg2" else np.zeros(wide.shape, np.bool_)
    assert (error[~close] <= bound * np.abs(wanted[~close])).all()
    assert (error[close] <= bound).all()
