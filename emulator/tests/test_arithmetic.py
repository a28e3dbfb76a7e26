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
from tests.cases.reference_int import column
from tests.programs import refuses, run

from ptxemu import arithmetic
import ptxemu.isa  # noqa: F401 - fills the table
from ptxemu.isa.moves import specials
from ptxemu.table import ROWS
from ptxemu.targets import lacks
from ptxemu.values import BFLOAT16, Array

MODES = st.sampled_from(arithmetic.MODES)
DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
NEAR = st.integers(-(2**24), 2**24).map(float)  # sums and products of these are often ties
SINGLES = st.integers(0, 2**32 - 1).map(lambda word: float(np.array([word], np.uint32).view(np.float32)[0])) | NEAR
FORMATS = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": BFLOAT16}
STORE = "st.global.u32 [%rd0], %r1;"


def one(x: float) -> Array:
    return np.array([x])


def bits(x: Array | np.generic) -> list[int]:
    return np.atleast_1d(x).view(f"u{x.dtype.itemsize}").tolist()  # type: ignore[no-any-return]  # NumPy's tolist is untyped


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


@pytest.mark.parametrize(
    "form",
    [
        *("add.s32", "mad.wide.s16", "div.s64", "sad.u32", "dp4a.s32.u32", "min.s16x2", "shl.b32", "bfi.b64"),
        *("add.ftz.f32", "mul.f32", "fma.rn.ftz.f32", "div.approx.ftz.f32", "fma.rz.f32", "prmt.b32", "bfe.s32"),
        *("cvt.rn.f16x2.f32", "cvt.rn.bf16x2.f32", "fma.rn.bf16x2"),
    ],
)
def test_results_are_as_small_as_operands_allow_and_operands_stay(form: str) -> None:
    sources = ROWS[form].sources
    ones = [np.full((1, 1, 1), 3, np.uint32) if t.endswith("x2") else column([3], t).reshape(1, 1, 1) for t in sources]
    shapes = [(5, 1, 1), (1, 3, 1), (1, 1, 32), (1, 1, 1)][: len(sources)]
    spread = [np.broadcast_to(value, shape).copy() for value, shape in zip(ones, shapes, strict=True)]
    before = [value.copy() for value in spread]
    single, whole = computed(form, *ones), computed(form, *spread)
    assert (single.shape, whole.shape) == ((1, 1, 1), np.broadcast_shapes(*shapes))
    assert (whole == single).all()
    assert all((value == old).all() for value, old in zip(spread, before, strict=True))


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
    below, equal, above = (found[f"%lanemask_{name}"].reshape(-1) for name in ("lt", "eq", "gt"))
    assert (below ^ equal ^ above == 0xFFFFFFFF).all()
    assert [int(mask).bit_count() for mask in below] == list(range(32))
    assert (found["%nwarpid"].item(), found["%is_explicit_cluster"].item()) == (4, 0)
    found = specials((4, 9, 2), (32, 1, 1), np.array([(3, 7, 1), (0, 3, 0)]), 0, cluster=(2, 3, 2))
    inside = [found[f"%cluster_{name}"].reshape(-1).tolist() for name in ("ctaid.x", "ctaid.y", "ctaid.z", "ctarank")]
    assert inside == [[1, 0], [1, 0], [1, 0], [9, 0]]
    assert [
        found[f"%{name}.{axis}"].reshape(-1).tolist() for name in ("clusterid", "nclusterid") for axis in "xyz"
    ] == [*([1, 0], [2, 1], [0]), *([2], [3], [1])]
    names = ("cluster_nctarank", "cluster_nctaid.y", "is_explicit_cluster", "reserved_smem_offset_begin")
    assert [found[f"%{name}"].item() for name in names] == [12, 3, 1, 1 << 20]
    assert (
        specials((1, 1, 1), (32, 1, 1), np.zeros((1, 3), int), 0, cluster=(1, 1, 1))["%is_explicit_cluster"].item() == 1
    )
    found = specials((3, 2, 1), (64, 2, 1), np.array([(0, 1, 0), (1, 1, 0), (2, 1, 0)]), 1024, 512)
    shapes = {name: found[name].shape for name in ("%tid.x", "%tid.y", "%tid.z", "%ctaid.x", "%ctaid.y", "%laneid")}
    assert list(shapes.values()) == [(1, 4, 32), (1, 4, 1), (1, 1, 1), (3, 1, 1), (1, 1, 1), (1, 1, 32)]
    assert found["%tid.y"].reshape(-1).tolist() == [0, 0, 1, 1]
    assert [found[name].item() for name in ("%ctaid.y", "%dynamic_smem_size", "%total_smem_size")] == [1, 1024, 1536]
