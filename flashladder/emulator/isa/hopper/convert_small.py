"""``cvt`` as sm_89 and sm_90 extended it: 8-bit floats, bf16 to and from every type, tf32 in other roundings.

Why apart from `convert`: an 8-bit float comes in pairs, always clamped to the finite range on the way in, exact on the
way out; bf16 goes by way of f32, which holds it exactly. Source: PTX ISA 9.0, 9.7.9.21 (cvt).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from flashladder.emulator.arithmetic.rounding import MODES, narrow, odd_sum
from flashladder.emulator.isa.convert import (
    INTEGERS,
    TO_INTEGRAL,
    Step,
    canonical16,
    chain,
    relu,
    to_integer,
    to_narrower,
    wider,
)
from flashladder.emulator.table import lane
from flashladder.emulator.values import BFLOAT16, Array, halves, pack_halves

EIGHT_BITS: dict[str, np.dtype[Any]] = {
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
MOST = {"e4m3": np.float32(448), "e5m2": np.float32(57344)}
NAN = np.uint8(0x7F)
LOW_BITS = np.uint32(0x1FFF)  # of an f32, which tf32 lacks
TF32_NAN = np.uint32(0x7FFFE000)
WIDE = tuple(kind for kind in INTEGERS if kind not in {"u8", "s8"})


def eighth(kind: str, a: Array) -> Array:
    """f32 as an 8-bit float in u8: to nearest even, clamped to the finite range; every NaN is 0x7f."""
    clamped = np.minimum(np.maximum(a, -MOST[kind]), MOST[kind])
    return np.where(np.isnan(a), NAN, clamped.astype(EIGHT_BITS[kind]).view(np.uint8))


def pair_of(kind: str, after: Step | None, a: Array, b: Array) -> Array:
    """Two f32 as 8-bit floats in u16, `a` above `b`; `after` is applied to the numbers first."""
    high, low = (eighth(kind, x if after is None else after(x)) for x in (a, b))
    return np.asarray((high.astype(np.uint16) << np.uint16(8)) | low)


def pair_of_halves(kind: str, after: Step | None, a: Array) -> Array:
    """A packed f16x2 as two 8-bit floats in u16."""
    both = halves(a, "f16x2").astype(np.float32)
    return pair_of(kind, after, both[..., 1], both[..., 0])


def to_halves(kind: str, after: Step | None, a: Array) -> Array:
    """Two 8-bit floats as a packed f16x2, exactly."""
    both = np.ascontiguousarray(a).view(np.uint16)[..., None].view(EIGHT_BITS[kind])
    wide = both.astype(np.float32)
    found = canonical16(wide.astype(np.float16), wide)
    return pack_halves(found if after is None else after(found))


def to_tf32(a: Array, *, mode: str) -> Array:
    """f32 to tf32, to nearest even or towards zero: an f32 whose low 13 bits are 0.

    Every NaN becomes one and the same on an H200; ``.rna`` keeps their high bits, see `convert.to_tf32`.
    """
    bits = a.view(np.uint32)
    up = np.uint32(0) if mode == "rz" else np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    return np.asarray(np.where(np.isnan(a), TF32_NAN, (bits + up) & ~LOW_BITS))


def integer_to_bf16(mode: str, a: Array) -> Array:
    """An integer to bf16, rounded once."""
    if a.dtype.itemsize < 8:  # exact in float64
        return narrow(a.astype(np.float64), BFLOAT16, mode)
    number = a.dtype.type
    high, low = (a >> number(32)) * 2.0**32, (a & number(0xFFFFFFFF)).astype(np.float64)
    return narrow(odd_sum(high, low), BFLOAT16, mode)


def from_f64(a: Array, *, mode: str) -> Array:
    """f64 to bf16, rounded once: NumPy's own way by f32 rounds twice."""
    return narrow(a, BFLOAT16, mode)


def _eight_bit_rows() -> None:
    for kind in EIGHT_BITS:
        for name, after in (("", None), (".relu", relu)):
            form = f"cvt.rn.satfinite{name}.{kind}x2"
            lane(f"{form}.f32", "b16", "f32 f32", partial(pair_of, kind, after), "two 8-bit floats, `a` above `b`")
            lane(f"{form}.f16x2", "b16", "f16x2", partial(pair_of_halves, kind, after), "two 8-bit floats")
            lane(f"cvt.rn{name}.f16x2.{kind}x2", "f16x2", "b16", partial(to_halves, kind, after), "8-bit floats to f16")


def _bf16_rows() -> None:
    single = wider("f32")
    lane("cvt.f64.bf16", "f64", "bf16", wider("f64"), "bf16 to f64, exact")
    for mode in MODES:
        for kind in WIDE:
            lane(f"cvt.{mode}.bf16.{kind}", "bf16", kind, partial(integer_to_bf16, mode), "integer to bf16")
        for kind in ("f16", "f64"):
            function = chain(single, to_narrower("bf16", mode)) if kind == "f16" else partial(from_f64, mode=mode)
            lane(f"cvt.{mode}.bf16.{kind}", "bf16", kind, function, "to bf16, rounded once")
        lane(f"cvt.{mode}.f16.bf16", "f16", "bf16", chain(single, to_narrower("f16", mode)), "bf16 to f16")
        if mode in {"rm", "rp"}:
            lane(f"cvt.{mode}.bf16.f32", "bf16", "f32", to_narrower("bf16", mode), "f32 to bf16")
    for mode, function in TO_INTEGRAL.items():
        for kind in WIDE:
            convert = chain(single, function, to_integer(kind, "f32"))
            lane(
                f"cvt.{mode}.{kind}.bf16", kind, "bf16", convert, "bf16 to integer, clamped; NaN: 0 or the highest bit"
            )
        integral = chain(single, function, to_narrower("bf16", "rn"))
        lane(f"cvt.{mode}.bf16.bf16", "bf16", "bf16", integral, "bf16 to integral bf16")


def _tf32_rows() -> None:
    for mode in ("rn", "rz"):
        plain = partial(to_tf32, mode=mode)
        lane(f"cvt.{mode}.tf32.f32", "b32", "f32", plain, "f32 to tf32")
        lane(f"cvt.{mode}.relu.tf32.f32", "b32", "f32", chain(relu, plain), "f32 to tf32, negative numbers to 0")


_eight_bit_rows()
_bf16_rows()
_tf32_rows()
