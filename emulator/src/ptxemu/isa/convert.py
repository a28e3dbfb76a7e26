"""``cvt`` between integers and floats of all widths, 8-bit floats, bf16 and tf32, as the PTX ISA rounds and clamps.

A conversion is at most four steps, each a function of one array: flush the input (``.ftz``), round to the new type,
flush the result, clamp it (``.sat``, ``.relu``). The table's rows are chains of such steps. Sources and results
narrower than their register are cut and extended by the engine. 8-bit floats come in pairs, always clamped to the
finite range on the way in, exact on the way out; bf16 goes by way of f32, which holds it exactly. Source: PTX ISA 9.0,
9.7.9.21 (cvt) and 9.7.9.22 (cvt.pack).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from ptxemu.arithmetic import MODES, canonical, directed, ftz, narrow, saturate, to_odd, two_sum, vanishes
from ptxemu.table import lane
from ptxemu.values import BFLOAT16, DTYPES, Array, halves, pack_halves

Step: TypeAlias = Callable[[Array], Array]

INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
FLOATS = ("f16", "f32", "f64")
TO_INTEGRAL: dict[str, Step] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
CANONICAL = np.uint16(0x7FFF)  # the NaN of f16 and bf16 results
LARGEST = {np.dtype(np.float16): np.float32(65504.0), BFLOAT16: np.float32(3.3895313892515355e38)}


def chain(*steps: Step | None) -> Step:
    """The steps one after another; None stands for no step, no step at all for the identity."""
    chosen = [step for step in steps if step is not None]
    if len(chosen) == 1:
        return chosen[0]

    def run(value: Array) -> Array:
        for step in chosen:
            value = step(value)
        return value

    return run


def limits(ptx_type: str) -> tuple[int, int]:
    """The least and the greatest value of an integer type."""
    info = np.iinfo(DTYPES[ptx_type])
    return int(info.min), int(info.max)


def clipped(result: str, source: str) -> Step:
    """Integer to integer with ``.sat``: the nearest value that the result can hold."""
    (low, high), (least, greatest) = limits(result), limits(source)
    number, dtype = DTYPES[source].type, DTYPES[result]
    bottom, top = number(max(low, least)), number(min(high, greatest))
    return lambda a: np.minimum(np.maximum(a, bottom), top).astype(dtype)


def from_integer(result: str, source: str, mode: str) -> Step:
    """Integer to float, rounded once in `mode` (``rn``, ``rz``, ``rm``, ``rp``)."""
    dtype = DTYPES[result]
    if mode == "rn" and result in {"f32", "f64"}:
        return lambda a: a.astype(dtype)  # C's conversion: to nearest even
    if DTYPES[source].itemsize < 8:  # exact in float64
        return lambda a: a.astype(dtype) if result == "f64" else narrow(a.astype(np.float64), dtype, mode)

    def convert(a: Array) -> Array:
        number = a.dtype.type
        total, error = two_sum((a >> number(32)) * 2.0**32, (a & number(0xFFFFFFFF)).astype(np.float64))
        return directed(total, error, mode) if result == "f64" else narrow(to_odd(total, error), dtype, mode)

    return convert


def to_integer(result: str, source: str) -> Step:
    """A float that is integral already to an integer: clamped to the result's range, NaN as the ISA has it.

    NaN becomes 0, but with an ``f64`` source or a 64-bit result the number with only the highest bit set.
    """
    low, high = limits(result)
    dtype = DTYPES[result]
    bits = 8 * dtype.itemsize
    nan = np.array(1 << (bits - 1) if bits == 64 or source == "f64" else 0, dtype=f"u{bits // 8}").view(dtype)

    def convert(a: Array) -> Array:
        wide = a.astype(np.float64)
        if bits < 64:
            inside = np.minimum(np.maximum(wide, low), high).astype(np.int64).astype(dtype)
        else:  # 2^63 - 1 and 2^64 - 1 are no float64
            over = wide >= float(high)
            inside = np.where(over, 0.0, np.maximum(wide, float(low))).astype(dtype)
            inside = np.where(over, dtype.type(high), inside)
        return np.where(np.isnan(wide), nan, inside) if np.isnan(np.maximum.reduce(wide, axis=None)) else inside

    return convert


def canonical16(narrowed: Array, wide: Array) -> Array:
    """An f16 or bf16 value with 0x7fff where the value that it was rounded from is NaN."""
    if not np.isnan(np.maximum.reduce(wide, axis=None)):
        return narrowed
    return np.where(np.isnan(wide), CANONICAL, narrowed.view(np.uint16)).view(narrowed.dtype)


def to_narrower(result: str, mode: str) -> Step:
    """Float to a narrower float, rounded once in `mode`."""
    dtype = DTYPES[result]

    def convert(a: Array) -> Array:
        rounded = a.astype(dtype) if mode == "rn" else narrow(a.astype(np.float64), dtype, mode)
        return canonical16(rounded, a) if a.dtype == np.float32 else rounded

    return convert


def canonical_of(value: Array) -> Array:
    """A float with every NaN replaced by the one that the hardware returns: 0x7fff, 0x7fffffff; f64 as it is."""
    if value.dtype == np.float64:
        return value
    return canonical(value) if value.dtype == np.float32 else canonical16(value, value)


def wider(result: str) -> Step:
    """To a type that holds the source exactly, or integer to integer: the low bits, or the source's sign extended."""
    dtype = DTYPES[result]
    return lambda a: a.astype(dtype, copy=False)


def flush_wide(value: Array, *, mode: str) -> Array:
    """``.ftz`` of an f64 that is about to be rounded to f32 in `mode`: zero of its sign where the result vanishes."""
    return value * ~vanishes(value, mode)


def finite(dtype: np.dtype[Any]) -> Step:
    """``.satfinite``: an f32 beyond the largest finite number of `dtype` becomes that number, with its sign."""
    largest = LARGEST[dtype]
    return lambda a: np.minimum(np.maximum(a, -largest), largest)


def relu(value: Array) -> Array:
    """``.relu`` on f32, f16 or bf16: negative numbers and -0 become +0; NaN stays."""
    bits = value.view(f"i{value.dtype.itemsize}")
    return np.where((bits < 0) & ~np.isnan(value), bits.dtype.type(0), bits).view(value.dtype)


def packed(single: Step) -> Callable[[Array, Array], Array]:
    """``cvt....f16x2.f32 d, a, b`` from the conversion of one element: `a` becomes the upper half."""

    def both(a: Array, b: Array) -> Array:
        low = single(b).view(np.uint16)
        return np.asarray((single(a).view(np.uint16).astype(np.uint32) << np.uint32(16)) | low)

    return both


def to_f16x2(a: Array, b: Array) -> Array:
    """``cvt.rn.f16x2.f32``, the hot one: NumPy converts straight into the two halves of the result."""
    pair = np.empty((*np.broadcast(a, b).shape, 2), dtype=np.float16)
    pair[..., 0], pair[..., 1] = b, a
    if np.isnan(np.maximum.reduce(a, axis=None)) or np.isnan(np.maximum.reduce(b, axis=None)):
        wide = np.stack(np.broadcast_arrays(b, a), axis=-1)
        pair = canonical16(pair, wide)
    return np.asarray(pair.view(np.uint32)[..., 0])


def pack_saturated(result: str, a: Array, b: Array, c: Array | None = None) -> Array:
    """``cvt.pack.sat``: `a` and `b` (s32) clamped to a narrow type, `a` above `b`, below them the low bits of `c`."""
    signed, bits = result[0] == "s", int(result[1:])
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    part = np.uint32((1 << bits) - 1)
    above, below = (np.minimum(np.maximum(x, np.int32(low)), np.int32(high)).view(np.uint32) & part for x in (a, b))
    both = (above << np.uint32(bits)) | below
    return np.asarray(both if c is None else both | (c << np.uint32(2 * bits)))


def _integer_rows() -> None:
    for source in INTEGERS:
        least, greatest = limits(source)
        for result in INTEGERS:
            low, high = limits(result)
            lane(f"cvt.{result}.{source}", result, source, wider(result), "truncated, or extended by the source's sign")
            if least < low or greatest > high:
                function = clipped(result, source)
                lane(f"cvt.sat.{result}.{source}", result, source, function, "clamped to the result's range")
        for result in FLOATS:
            for mode in MODES:
                function = from_integer(result, source, mode)
                lane(f"cvt.{mode}.{result}.{source}", result, source, function, "integer to float")
                function = chain(function, saturate)
                lane(f"cvt.{mode}.sat.{result}.{source}", result, source, function, "integer to float, in [0, 1]")


def _to_integer_rows() -> None:
    for source in FLOATS:
        for flush in ("", ".ftz") if source == "f32" else ("",):
            for mode, function in TO_INTEGRAL.items():
                before = ftz if flush else None
                for result in INTEGERS:
                    form = f"cvt.{mode}{flush}{{,.sat}}.{result}.{source}"
                    convert = chain(before, function, to_integer(result, source))
                    lane(form, result, source, convert, "float to integer, clamped; NaN: 0 or the highest bit")
                for sat, after in (("", None), (".sat", saturate)):
                    form = f"cvt.{mode}{flush}{sat}.{source}.{source}"
                    lane(form, source, source, chain(before, function, canonical_of, after), "float to integral float")


def _float_rows() -> None:
    for sat, clamp in (("", None), (".sat", saturate)):
        for source, result in (("f16", "f32"), ("f16", "f64"), ("f32", "f64")):
            function = chain(wider(result), canonical_of, clamp)
            lane(f"cvt{sat}.{result}.{source}", result, source, function, "to a wider float, exact")
        for kind in FLOATS:
            step = clamp or (canonical_of if kind == "f16" else None)
            lane(f"cvt{sat}.{kind}.{kind}", kind, kind, chain(step), "the same type" if not sat else "in [0, 1]")
        lane(f"cvt.ftz{sat}.f32.f16", "f32", "f16", chain(wider("f32"), canonical_of, clamp), "to a wider float")
        lane(f"cvt.ftz{sat}.f64.f32", "f64", "f32", chain(ftz, wider("f64"), clamp), "to a wider float, flushed")
        lane(f"cvt.ftz{sat}.f32.f32", "f32", "f32", chain(ftz, canonical_of, clamp), "subnormal numbers to zero")
        for mode in MODES:
            for source, result in (("f64", "f32"), ("f64", "f16"), ("f32", "f16")):
                function = chain(to_narrower(result, mode), clamp)
                lane(f"cvt.{mode}{sat}.{result}.{source}", result, source, function, "to a narrower float")
            function = chain(partial(flush_wide, mode=mode), to_narrower("f32", mode), clamp)
            lane(f"cvt.{mode}.ftz{sat}.f32.f64", "f32", "f64", function, "float to narrower, flushed")
        for mode in ("rn", "rz"):  # with .rm and .rp an H200 does not flush its input, which the ISA asks for
            function = chain(ftz, to_narrower("f16", mode), clamp)
            lane(f"cvt.{mode}.ftz{sat}.f16.f32", "f16", "f32", function, "float to narrower, flushed")


def _half_rows() -> None:
    lane("cvt.f32.bf16", "f32", "bf16", wider("f32"), "bf16 to f32, exact")
    for mode in ("rn", "rz"):
        for kind in ("f16", "bf16"):
            single = to_narrower(kind, mode)
            for modifiers in ("", ".relu", ".satfinite", ".relu.satfinite"):
                before = finite(DTYPES[kind]) if "satfinite" in modifiers else None
                function = chain(before, single, relu if "relu" in modifiers else None)
                if modifiers or kind == "bf16":
                    lane(f"cvt.{mode}{modifiers}.{kind}.f32", kind, "f32", function, f"f32 to {kind}{modifiers}")
                both = to_f16x2 if (mode, kind, modifiers) == ("rn", "f16", "") else packed(function)
                lane(f"cvt.{mode}{modifiers}.{kind}x2.f32", f"{kind}x2", "f32 f32", both, "a above b")


def _pack_rows() -> None:
    summary = "two clamped numbers packed, `a` above `b`"
    for kind in ("u16", "s16"):
        lane(f"cvt.pack.sat.{kind}.s32", "b32", "s32 s32", partial(pack_saturated, kind), summary)
    for kind in ("u8", "s8", "u4", "s4", "u2", "s2"):
        function = partial(pack_saturated, kind)
        lane(f"cvt.pack.sat.{kind}.s32.b32", "b32", "s32 s32 b32", function, f"{summary}, above them the bits of `c`")


_integer_rows()
_to_integer_rows()
_float_rows()
_half_rows()
_pack_rows()


EIGHT_BITS: dict[str, np.dtype[Any]] = {
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
MOST = {"e4m3": np.float32(448), "e5m2": np.float32(57344)}
NAN = np.uint8(0x7F)
LOW_BITS = np.uint32(0x1FFF)  # of an f32, which tf32 lacks
TF32_NAN = np.uint32(0x7FFFE000)
WIDE = tuple(kind for kind in INTEGERS if kind not in {"u8", "s8"})


def pair_of(kind: str, after: Step | None, a: Array, b: Array) -> Array:
    """Two f32 as 8-bit floats in u16, `a` above `b`, clamped to the finite range; `after` is applied first."""

    def eighth(x: Array) -> Array:
        x = x if after is None else after(x)
        clamped = np.minimum(np.maximum(x, -MOST[kind]), MOST[kind])
        return np.where(np.isnan(x), NAN, clamped.astype(EIGHT_BITS[kind]).view(np.uint8))

    return np.asarray((eighth(a).astype(np.uint16) << np.uint16(8)) | eighth(b))


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


def to_tf32_rounded(a: Array, *, mode: str) -> Array:
    """f32 to tf32 (10 bits of mantissa) in a mode: an f32 whose low 13 bits are 0.

    Every NaN becomes the same one on an H200; ``.rna`` cuts off its low bits: one without others becomes infinite.
    """
    bits = a.view(np.uint32)
    if mode == "rna":  # ties away from zero
        return np.asarray(np.where(np.isnan(a), bits, bits + np.uint32(0x1000)) & ~LOW_BITS)
    up = np.uint32(0) if mode == "rz" else np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    return np.asarray(np.where(np.isnan(a), TF32_NAN, (bits + up) & ~LOW_BITS))


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
            lane(f"cvt.{mode}.bf16.{kind}", "bf16", kind, from_integer("bf16", kind, mode), "integer to bf16")
        for kind in ("f16", "f64"):
            function = (
                chain(single, to_narrower("bf16", mode))
                if kind == "f16"
                else partial(narrow, dtype=BFLOAT16, mode=mode)
            )
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
    lane("cvt.rna.tf32.f32", "b32", "f32", partial(to_tf32_rounded, mode="rna"), "f32 to tf32, ties away from zero")
    for mode in ("rn", "rz"):
        plain = partial(to_tf32_rounded, mode=mode)
        lane(f"cvt.{mode}.tf32.f32", "b32", "f32", plain, "f32 to tf32")
        lane(f"cvt.{mode}.relu.tf32.f32", "b32", "f32", chain(relu, plain), "f32 to tf32, negative numbers to 0")


_eight_bit_rows()
_bf16_rows()
_tf32_rows()
