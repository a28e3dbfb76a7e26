"""Every instruction on its edge values: what the emulator computes is what an independent reference says.

With `--hw` the same cases run on this machine's GPU: pytest tests/null/emulator/test_cases.py --hw
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from tests.cases.harness import Case, collect, compare, edge, entry_name, launch_case, pairs, ptx_of, run_case
from tests.cases.inputs import LIMIT

import ptxemu
from ptxemu.chip import Gpu
from ptxemu.table import ROWS
from ptxemu.values import BFLOAT16

MODULES = collect()
FORMS = 120  # opcode forms that must have cases


@cache
def program(module: str) -> ptxemu.Program:
    """All cases of one file in one PTX module, parsed once."""
    return ptxemu.load(ptx_of(MODULES[module]))


@pytest.fixture
def run_one(hardware: Gpu | None) -> Callable[[str, int], str | None]:
    """Runs a case on the emulator, or with `--hw` on the GPU; what differs from its expectation."""

    def run(module: str, index: int) -> str | None:
        case = MODULES[module][index]
        if hardware is not None:
            return compare(case, run_case(case, hardware.load))
        return compare(case, launch_case(case, program(module).kernel(entry_name(index))))

    return run


@pytest.mark.parametrize(
    ("module", "index"),
    [
        pytest.param(module, index, id=f"{module}-{case.opcode}")
        for module, cases in MODULES.items()
        for index, case in enumerate(cases)
    ],
)
def test_case(module: str, index: int, run_one: Callable[[str, int], str | None]) -> None:
    assert run_one(module, index) is None


def test_every_lane_row_has_a_case() -> None:
    covered = {case.opcode for cases in MODULES.values() for case in cases}
    assert covered <= set(ROWS)
    assert sorted(row.form for row in ROWS.values() if row.kind == "lane" and row.form not in covered) == []
    counts = Counter(ROWS[opcode].kind for opcode in covered)
    print(f"{len(covered)} of {len(ROWS)} opcode forms have cases: {dict(counts)}")
    assert len(covered) >= FORMS


# --- the harness itself ----------------------------------------------------------------------------------------------


def adding(wrong: int = 0) -> Case:
    a, b = pairs("s32")
    with np.errstate(over="ignore"):
        expected = a + b
    expected[3] += wrong
    return Case("add.s32", "add.s32 d, a, b;", {"a": ("s32", a), "b": ("s32", b)}, {"d": "s32"}, {"d": expected})


def test_a_wrong_expectation_is_reported() -> None:
    outputs = run_case(adding(), ptxemu.load)
    assert compare(adding(), outputs) is None
    told = compare(adding(wrong=1), outputs)
    assert told is not None
    assert "add.s32: 1 of 1024 elements differ, first 3: a = 0 (0x00000000), b = -2147483648 (0x80000000)" in told
    assert told.endswith("d expected -2147483647 (0x80000001), found -2147483648 (0x80000000)")


def test_a_wrong_instruction_is_reported() -> None:
    case = adding()
    wrong = replace(case, text="sub.s32 d, a, b;")
    assert compare(case, run_case(wrong, ptxemu.load)) is not None


@pytest.mark.parametrize("n", [1, 31, 33, 128, 1000])
def test_any_length_is_padded_to_whole_warps(n: int) -> None:
    values = np.arange(n, dtype=np.int32)
    case = Case("add.s32", "add.s32 d, a, 1;", {"a": ("s32", values)}, {"d": "s32"}, {"d": values + np.int32(1)})
    assert case.ctas * case.threads >= n
    assert compare(case, run_case(case, ptxemu.load)) is None


FLOAT = {"f16": np.dtype(np.float16), "bf16": BFLOAT16, "f32": np.dtype(np.float32), "f64": np.dtype(np.float64)}


def judged(ptx_type: str, expected: float, found: float, tolerance: float = 0.0, absolute: float = 0.0) -> bool:
    dtype = FLOAT[ptx_type]
    zero, wanted = np.zeros(1, dtype), np.array([expected]).astype(dtype)
    case = Case("x", "", {"a": (ptx_type, zero)}, {"d": ptx_type}, {"d": wanted}, tolerance, "", absolute)
    return compare(case, {"d": np.array([found]).astype(dtype)}) is None


@pytest.mark.parametrize("ptx_type", FLOAT)
def test_floats_agree_bit_by_bit_but_for_nan(ptx_type: str) -> None:
    assert judged(ptx_type, np.nan, -np.nan)
    assert not judged(ptx_type, np.nan, 1.0)
    assert not judged(ptx_type, 1.0, np.nan)
    assert not judged(ptx_type, 0.0, -0.0)
    assert not judged(ptx_type, np.inf, -np.inf)
    assert judged(ptx_type, np.inf, np.inf)
    assert not judged(ptx_type, 1.0, 1.0078125)


def test_a_tolerance_is_relative_and_never_hides_infinities_or_signs() -> None:
    assert judged("f32", 1.0, 1.0001, 1e-3)
    assert not judged("f32", 1.0, 1.01, 1e-3)
    assert not judged("f32", 0.0, -0.0, 1e-3)
    assert not judged("f32", 0.0, 1e-30, 1e-3)
    assert judged("f32", 0.0, -1e-7, 1e-3, absolute=1e-6)
    assert not judged("f32", 3e38, np.inf, 10.0)
    assert not judged("f32", np.inf, 3e38, 10.0)
    assert not judged("f32", np.nan, 1.0, 10.0)


def test_packed_halves_may_hold_any_nan() -> None:
    wanted = np.array([0x7E003C00], np.uint32)
    for ptx_type, found, good in (
        ("f16x2", 0xFE013C00, True),
        ("f16x2", 0x7E003C01, False),
        ("b32", 0xFE013C00, False),
    ):
        case = Case("x", "", {"a": (ptx_type, wanted)}, {"d": ptx_type}, {"d": wanted})
        assert (compare(case, {"d": np.array([found], np.uint32)}) is None) == good


def test_a_slip_in_a_case_is_not_taken_for_one_in_the_instruction() -> None:
    one = np.ones(1, np.int32)
    for inputs, outputs, expected in (
        ({"a": ("s32", np.ones(1))}, {"d": "s32"}, {"d": one}),
        ({"a": ("s32", one), "b": ("s32", np.ones(2, np.int32))}, {"d": "s32"}, {"d": one}),
        ({"a": ("s32", one)}, {"d": "u32"}, {"d": one}),
        ({"a": ("s32", one)}, {"d": "s32", "e": "s32"}, {"d": one}),
        ({"a": ("s32", np.ones(LIMIT + 1, np.int32))}, {"d": "s32"}, {"d": np.ones(LIMIT + 1, np.int32)}),
    ):
        with pytest.raises(ValueError, match="x: "):
            Case("x", "", inputs, outputs, expected)


@pytest.mark.parametrize("ptx_type", FLOAT)
def test_edge_values_hold_what_goes_wrong(ptx_type: str) -> None:
    values = edge(ptx_type).astype(np.float64)
    assert np.isnan(values).any()
    assert {np.inf, -np.inf, 1.0, -1.0, 0.5, 2.5} <= set(values[~np.isnan(values)].tolist())
    assert {bool(np.signbit(value)) for value in values if value == 0} == {True, False}
    assert (np.abs(values[values != 0]) < float(np.finfo(np.float32).tiny)).any() or ptx_type == "f16"


@pytest.mark.parametrize("ptx_type", ["u8", "s16", "b32", "u64"])
def test_edge_values_of_integers_are_the_ends_and_the_powers(ptx_type: str) -> None:
    values = edge(ptx_type)
    bits = 8 * values.itemsize
    unsigned = {int(value) % (1 << bits) for value in values}
    assert {0, 1, (1 << bits) - 1, 1 << (bits - 1), (1 << (bits - 1)) - 1} <= unsigned
    assert np.array_equal(edge(ptx_type), values)
    first, second = pairs(ptx_type, "pred")
    assert len(first) == len(second) == 1024
    assert second.dtype == np.bool_
