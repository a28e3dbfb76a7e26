"""Lane-wise arithmetic beyond `tests.cases`: random operands, shapes, rounding tools, special registers."""

from __future__ import annotations

from fractions import Fraction
import itertools
import math
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
import numpy as np
import pytest
from tests.cases import reference_float
from tests.cases.inputs import edge
from tests.programs import refuses, run, table_of

from ptxemu import arithmetic
import ptxemu.isa  # noqa: F401 - fills the table
from ptxemu.isa.moves import specials
from ptxemu.table import ROWS
from ptxemu.targets import lacks
from ptxemu.values import BFLOAT16, DTYPES, Array

MODES = st.sampled_from(arithmetic.MODES)
DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
NEAR = st.integers(-(2**24), 2**24).map(float)  # sums and products of these are often ties
SINGLES = st.integers(0, 2**32 - 1).map(lambda word: float(np.array([word], np.uint32).view(np.float32)[0])) | NEAR
FORMATS = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": BFLOAT16}
STORE = "st.global.u32 [%rd0], %r1;"


def one(x: float) -> Array:
    return np.array([x])


def bits(x: Array | np.generic) -> list[int]:
    return np.ascontiguousarray(np.atleast_1d(x)).view(f"u{x.dtype.itemsize}").tolist()  # type: ignore[no-any-return]  # NumPy's tolist is untyped


def computed(form: str, *operands: Any) -> Any:
    with np.errstate(all="ignore"):
        return ROWS[form].function(*operands)


# --- rounding tools ---------------------------------------------------------------------------------------------------


@given(DOUBLES, DOUBLES)
def test_two_sum_is_exact(a: float, b: float) -> None:
    with np.errstate(all="ignore"):
        total, error = (float(x[0]) for x in arithmetic.two_sum(one(a), one(b)))
    if math.isfinite(total) and math.isfinite(error):
        assert Fraction(total) + Fraction(error) == Fraction(a) + Fraction(b)
    else:
        assert max(abs(a), abs(b)) > 2.0**1022


@given(st.floats(2.0**-400, 2.0**400), st.floats(2.0**-400, 2.0**400), st.booleans())
def test_two_product_is_exact(a: float, b: float, negative: bool) -> None:
    a = -a if negative else a
    product, error = (float(x[0]) for x in arithmetic.two_product(one(a), one(b)))
    assert Fraction(product) + Fraction(error) == Fraction(a) * Fraction(b)


@given(
    DOUBLES.filter(bool),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from(sorted(FORMATS)),
    MODES,
)
@example(2.0**-400, 0.0, "bf16", "rn")  # zero after the first of two roundings
def test_a_double_and_a_sum_rounded_to_odd_are_narrowed_once(x: float, b: float, kind: str, mode: str) -> None:
    a = float(np.float32(x)) if abs(x) < 3e38 else b
    with np.errstate(all="ignore"):
        for found, exact in (
            (arithmetic.narrow(one(x), FORMATS[kind], mode), Fraction(x)),
            (arithmetic.narrow(arithmetic.odd_sum(one(a), one(b)), FORMATS[kind], mode), Fraction(a) + Fraction(b)),
        ):
            wanted = one(reference_float.round_exact(exact, kind, mode)) if exact else abs(found)
            assert bits(found if exact else abs(found)) == bits(wanted.astype(FORMATS[kind]))


def test_special_values_of_the_tools() -> None:
    least, normal, inf, nan = 2.0**-149, 2.0**-126, math.inf, math.nan
    values = np.array([least, -least, normal - least, normal, -normal, 0.0, -0.0, inf, nan], np.float32)
    assert bits(arithmetic.ftz(values)) == bits(np.array([0.0, -0.0, 0.0, normal, -normal, 0.0, -0.0, inf, nan], "f4"))
    nans = np.array([0x7FC00000, 0xFFC00001, 0x7F800001, 0x3F800000, 0xFF800000], np.uint32).view(np.float32)
    assert bits(arithmetic.canonical(nans)) == [0x7FFFFFFF] * 3 + [0x3F800000, 0xFF800000]
    for dtype in ("f4", "f8"):
        values = np.array([nan, -inf, -1, -0.0, 0.0, 0.25, 1.0, 1.5, inf], dtype)
        assert bits(arithmetic.saturate(values)) == bits(np.array([0, 0, 0, 0, 0, 0.25, 1, 1, 1], dtype))
    for kind, mode, special in itertools.product(FORMATS, arithmetic.MODES, (inf, -inf, 0.0, -0.0)):
        with np.errstate(all="ignore"):
            found = arithmetic.narrow(one(special), FORMATS[kind], mode).astype(np.float64)
            assert np.isnan(arithmetic.narrow(one(nan), FORMATS[kind], mode).astype(np.float64)).all()
        assert bits(found) == bits(one(special))


@pytest.mark.parametrize("mode", arithmetic.MODES)
def test_what_vanishes_is_what_24_bits_leave_below_the_smallest_normal_number(mode: str) -> None:
    steps = np.array([0.0, 2.0**-46, 2.0**-25, 2.0**-25 + 2.0**-46, 2.0**-24 - 2.0**-46, 2.0**-24, 2.0**-23])
    for sign in (1.0, -1.0):
        exact = sign * 2.0**-126 * (1 - steps)
        rounded = [reference_float.round_exact(Fraction(x), "f32.ftz", mode) for x in exact.tolist()]
        assert arithmetic.vanishes(exact, mode).tolist() == [abs(x) < 2.0**-126 for x in rounded]


# --- rows on random operands ------------------------------------------------------------------------------------------


@given(
    st.sampled_from(["fma", "add", "sub", "mul", "div", "rcp", "sqrt"]),
    st.sampled_from(["f32", "f64"]),
    st.lists(SINGLES | st.floats(), min_size=3, max_size=3),
    MODES,
    st.booleans(),
)
@example("fma", "f32", [2.0**-20 * (1 + 2.0**-23), (1 - 2.0**-23) * 2.0**-4, 1 + 2.0**-23], "rn", False)  # f64: a tie
@example("fma", "f32", [2.0**-60 * (1 + 1500 * 2.0**-23), 2.0**-66 * (1 - 1500 * 2.0**-23), 0.0], "rn", True)
@example("add", "f32", [1.5 * 2.0**-126, 2.0**-127, 0.0], "rn", True)  # a subnormal operand and a normal sum
@example("fma", "f64", [1.5 * 2.0**600, 2.0**500, -math.inf], "rz", False)  # the product alone would overflow
def test_arithmetic_of_any_numbers(name: str, kind: str, three: list[float], mode: str, ftz: bool) -> None:
    """The cases cover conversions, carries and 16-bit floats by the same references."""
    ftz = ftz and kind == "f32"
    form = f"{name}.{mode}{'.ftz' * ftz}.{kind}"
    with np.errstate(all="ignore"):
        operands = [np.array([x]).astype(kind.replace("f", "float")) for x in three[: len(ROWS[form].sources)]]
        found, wanted = computed(form, *operands), reference_float.compute(name, kind, mode, operands, ftz=ftz)
    assert (math.isnan(found[0]) and math.isnan(wanted[0])) or bits(found) == bits(wanted)


@pytest.mark.parametrize("count", [1, 2, 33])  # NumPy takes few numbers, many and the rest in different ways
def test_results_to_the_last_bit(count: int) -> None:
    """What comparisons of values do not see: NaN and which one, the neighbour of a number, the sign of zero."""
    wrong = []
    for forms, words, wanted in table_of("arithmetic", "bits"):
        raw = [np.full((1, 1, count), int(word, 16), f"u{len(word) // 2}") for word in words]
        for form in forms:
            kinds = zip(raw, ROWS[form].sources, strict=True)
            found = bits(computed(form, *(word.view(DTYPES[kind]) for word, kind in kinds)).reshape(-1))
            wrong += [(form, words, wanted, hex(found[-1]))] * (found != [int(wanted, 16)] * count)
    assert wrong == []


def test_operands_that_are_the_same_for_all_lanes_give_what_whole_ones_give() -> None:
    """Constants have paths of their own; results are as small as operands allow, and operands stay as they are."""
    edges = {kind: np.resize(edge(kind, 64)[-64:], (1, 2, 32)) for kind in DTYPES}
    for row in (row for row in ROWS.values() if row.kind == "lane"):
        kinds = [*row.sources, *["pred"] * row.reads_carry]
        whole = [np.roll(edges[kind], 5 * turn, axis=-1) for turn, kind in enumerate(kinds)]
        for alike in itertools.product((False, True), repeat=len(kinds)):
            few = [value[:, 1:, 7:8] if same else value for value, same in zip(whole, alike, strict=True)]
            few[3:] = few[3:] if "lop3" not in row.form else [np.full((1, 1, 1), 0xCA, np.uint32), *few[4:]]
            for value in few:
                value.flags.writeable = False
            shape = np.broadcast_shapes(*(value.shape for value in few))
            full = map(np.ascontiguousarray, np.broadcast_arrays(*few))
            results = computed(row.form, *few), computed(row.form, *full)
            both = (result if isinstance(result, tuple) else (result,) for result in results)
            for found, wanted in zip(*both, strict=True):
                assert np.broadcast_shapes(found.shape, shape) == shape, row.form
                assert bits(np.broadcast_to(found, shape)) == bits(np.broadcast_to(wanted, shape)), row.form


def test_a_lane_gets_what_it_would_get_alone() -> None:
    """Questions about all lanes at once, which spare repairs, do not fail for a NaN in the lane beside."""
    words = [0x7F800001, 0x7F000001, 0x7FFFFF, 0xFFBFFFFF, 0, 0x7FC00000, 1 << 31, 0x3F800000, 0x800000, 0x7F800000]
    singles = np.array([*words, 0xFF800000, 0xBFC00000, 0x7F7FFFFF, 1], np.uint32).view(np.float32)
    edges = {kind: np.resize(edge(kind, 64)[-64:], 14) for kind in DTYPES} | {"f32": singles}
    edges["f64"] = (singles.view(np.uint32).astype(np.uint64) << np.uint64(32)).view(np.float64)
    for row in (row for row in ROWS.values() if row.kind == "lane" and {"f32", "f64"} & {*row.sources}):
        whole = [np.roll(edges[kind], 4 * turn).reshape(1, 1, -1) for turn, kind in enumerate(reversed(row.sources))]
        results = []
        for size in (1, 2, 14):
            parts = [computed(row.form, *(x[..., i : i + size] for x in whole[::-1])) for i in range(0, 14, size)]
            results.append([word for part in parts for word in bits(np.ravel(part[0]))])  # of two results the first
        assert results[0] == results[1] == results[2], row.form


def test_forms_of_newer_architectures_and_forms_that_do_not_exist() -> None:
    """8-bit floats need sm_89; bf16 beside f32, and tf32 in other roundings than ties away, sm_90."""
    for row in ROWS.values():
        need = lacks("sm_80", row.form) if row.group == "convert" else None
        if row.group == "convert" and ("e4m3" in row.form or "e5m2" in row.form):
            assert need == "sm_89 or newer"
        elif need is not None:
            assert need == "sm_90 or newer"
            assert "bf16" in row.form or "tf32" in row.form
    assert lacks("sm_80", "cvt.rn.bf16.s32") == "sm_90 or newer"
    assert lacks("sm_80", "cvt.rna.tf32.f32") is None
    absent = ["setp.lo.s32", "setp.lt.b32", "setp.ltu.u32", "setp.lt.ftz.f64", "red.global.exch.b32", "atom.add.f16"]
    absent += ["atom.global.add.b32", "red.cas.b32", "ld.global.v4.b64", "st.const.u32", "ld.global.f16"]
    assert not set(absent) & set(ROWS)


# --- moves and special registers --------------------------------------------------------------------------------------


def test_vectors_addresses_and_special_registers_in_a_program() -> None:
    assert (run("mov.b32 %r1, {7, 9}; mov.b32 {_, %h1}, %r1; cvt.u32.u16 %r1, %h1;" + STORE) == 9).all()
    body = "mov.u32 %r1, table+12; mov.u32 %r2, table; sub.u32 %r1, %r1, %r2;" + STORE
    assert (run(body, declarations=".shared .align 8 .b8 table[64];") == 12).all()
    body = "mov.u32 %r2, %laneid; mov.u32 %r3, %warpid; mad.lo.u32 %r1, %r3, 32, %r2; add.u32 %r1, %r1, %ctaid.x;"
    assert (run(body + STORE, 96, 2) == np.arange(96) + np.arange(2)[:, None]).all()
    body = "mov.u32 %r2, %clock; mov.u64 %rd1, %clock64; mov.u64 %rd2, %globaltimer; mov.u32 %r3, %smid;"
    body += "cvt.u32.u64 %r4, %rd1; or.b32 %r1, %r2, %r3; or.b32 %r1, %r1, %r4;" + STORE
    assert (run(body, 64, 2) == 0).all()  # clocks stand still
    for items in ("{%h1, %h2, %h3}", "{%r2}"):
        with refuses("syntax", r"items? in a vector of b32.*expected 2 or 4"):
            run(f"mov.b32 %r1, {items};")
    with refuses("unsupported", "special register %pm3 is not supported"):
        run("mov.u32 %r1, %pm3;")
    with refuses("unsupported", "special register %envreg2 is not supported, .*grid sync of cooperative groups"):
        run("mov.u32 %r1, %envreg2;")


def test_special_registers_of_blocks_of_three_dimensions() -> None:
    block = (5, 3, 7)  # 105 threads: four warps, the last with nine threads
    found = specials((2, 2, 2), block, np.array([(0, 0, 0), (1, 0, 1)]), 0)
    order = [(x, y, z) for z, y, x in itertools.product(*map(range, reversed(block)))]
    for axis, name in enumerate("xyz"):
        whole = np.broadcast_to(found[f"%tid.{name}"], (1, 4, 32)).reshape(-1)
        assert whole[:105].tolist() == [place[axis] for place in order]
        assert (found[f"%ntid.{name}"].item(), found[f"%nctaid.{name}"].item()) == (block[axis], 2)


@pytest.mark.parametrize("told", table_of("arithmetic", "specials"), ids=["cluster", "grid", "one"])
def test_every_special_register(told: dict[str, Any]) -> None:
    grid, block, blocks, shared, static, cluster = told["launch"]
    found = specials(grid, block, np.array(blocks), shared, static, cluster)
    assert {name: value.tolist() for name, value in found.items()} == told["values"]
    wide = {name for name, value in found.items() if value.dtype != np.uint32}
    assert wide == {"%clock64", "%globaltimer", "%gridid"}
