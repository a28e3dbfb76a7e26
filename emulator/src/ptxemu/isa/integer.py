"""Integer arithmetic: add, sub, mul, mad, their carry forms, div, rem, min, max, dot products.

Two's complement arithmetic wraps in NumPy arrays exactly as it does on the chip, so that most rows are the ufunc
itself; only high halves of products, division and saturation need more. All functions take and return arrays of the
row's dtypes, in the broadcast shape of their inputs; none raises (division by zero is defined below).

Source: PTX ISA 9.0, 9.7.1 (integer arithmetic) and 9.7.2 (extended precision).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ptxemu.table import lane
from ptxemu.values import DTYPES, Array, BoolArray, halves, pack_halves

Function = Callable[..., Array]


def unsigned(value: Array) -> Array:
    """The same bits as an unsigned integer of the same width; no copy."""
    return value.view(f"u{value.dtype.itemsize}")


def widened(a: Array, b: Array) -> Array:
    """The whole product of two 16- or 32-bit arrays, twice as wide, of the same signedness."""
    return np.asarray(np.multiply(a, b, dtype=f"{a.dtype.kind}{2 * a.dtype.itemsize}"))


def high(a: Array, b: Array) -> Array:
    """Upper half of the product, exact for every width: bits 2n-1..n."""
    bits = 8 * a.dtype.itemsize
    if bits < 64:
        return np.asarray(widened(a, b) >> bits).astype(a.dtype)
    product = _high_unsigned64(unsigned(a), unsigned(b))
    if a.dtype.kind == "i":  # a negative factor reads as itself plus 2^64: the other factor too much in the upper half
        product = product - unsigned((a >> 63) & b) - unsigned((b >> 63) & a)
    return product.view(a.dtype)


def _saturated_sum(product: Function, a: Array, b: Array, c: Array) -> Array:
    return _saturated(np.add, product(a, b), c)


def _high_unsigned64(a: Array, b: Array) -> Array:
    """Upper 64 bits of an unsigned product, by four products of 32-bit halves; no partial sum exceeds 64 bits."""
    low_mask = np.uint64(0xFFFFFFFF)
    a_low, a_high, b_low, b_high = a & low_mask, a >> 32, b & low_mask, b >> 32
    cross = a_high * b_low + ((a_low * b_low) >> 32)
    middle = a_low * b_high + (cross & low_mask)
    return np.asarray(a_high * b_high + (cross >> 32) + (middle >> 32))


def _plus(product: Function) -> Function:
    """``product(a, b) + c``, wrapping."""
    return lambda a, b, c: np.asarray(product(a, b) + c)


def _product24(a: Array, b: Array) -> Array:
    """The 48-bit product of the low 24 bits of two 32-bit arrays, as 64 bits of the same signedness."""
    kind = "i8" if a.dtype.kind == "i" else "u8"
    return np.asarray(((a << 8) >> 8).astype(kind) * ((b << 8) >> 8))  # >> extends the sign of a signed type


def _part24(shift: int, a: Array, b: Array) -> Array:
    return np.asarray(_product24(a, b) >> shift).astype(a.dtype)


def _saturated(function: np.ufunc, a: Array, b: Array) -> Array:
    """``function(a, b)`` of ``s32`` arrays, limited to their range."""
    exact = function(a, b, dtype=np.int64)
    return np.asarray(np.clip(exact, -(1 << 31), (1 << 31) - 1)).astype(np.int32)


def _carry_out(a: Array, b: Array, carry: BoolArray | None = None) -> tuple[Array, BoolArray]:
    """``a + b + carry`` of unsigned arrays and its carry."""
    total = a + b
    overflow = total < a
    if carry is None:
        return total, overflow
    result = total + carry
    return result, overflow | (result < total)


def _borrow_out(a: Array, b: Array, borrow: BoolArray | None = None) -> tuple[Array, BoolArray]:
    """``a - (b + borrow)`` of unsigned arrays and its borrow."""
    difference = a - b
    below = a < b
    if borrow is None:
        return difference, below
    return difference - borrow, below | (difference < borrow)


def _add_carry_forms(name: str, ptx_type: str, sources: str, function: Callable[..., tuple[Array, BoolArray]]) -> None:
    """The forms ``name.cc`` (carry out), ``namec`` (in) and ``namec.cc`` (both); `name` may end in ``.lo``/``.hi``."""
    opcode, dot, half = name.partition(".")
    rest = f"{dot}{half}"
    what = {"add": "a + b", "sub": "a - b", "mad": f"a * b ({half}) + c"}[opcode]
    sign, flag = ("-", "borrow") if opcode == "sub" else ("+", "carry")
    lane(f"{opcode}{rest}.cc.{ptx_type}", ptx_type, sources, function, f"{what}, {flag} out", writes_carry=True)
    summary = f"{what} {sign} {flag}"

    def carried(*operands: Array) -> Array:
        return function(*operands)[0]

    lane(f"{opcode}c{rest}.{ptx_type}", ptx_type, sources, carried, summary, reads_carry=True)
    both = f"{opcode}c{rest}.cc.{ptx_type}"
    lane(both, ptx_type, sources, function, f"{summary}, {flag} out", reads_carry=True, writes_carry=True)


def _magnitude(a: Array) -> Array:
    """|a| as an unsigned number: the magnitude of the most negative number fits."""
    return unsigned(np.abs(a)) if a.dtype.kind == "i" else a


def divide(a: Array, b: Array) -> Array:
    """Quotient rounded towards zero; all ones where b is 0 (unspecified by the ISA); INT_MIN / -1 wraps to INT_MIN."""
    quotient = _magnitude(a) // _magnitude(b)
    if a.dtype.kind == "i":
        quotient = np.where((a < 0) != (b < 0), -quotient, quotient).view(a.dtype)
    return np.where(b == 0, ~np.zeros((), a.dtype), quotient)


def remainder(a: Array, b: Array) -> Array:
    """``a - b * divide(a, b)``, with the sign of a; all ones where b is 0 (unspecified by the ISA)."""
    rest = _magnitude(a) % _magnitude(b)
    if a.dtype.kind == "i":
        rest = np.where(a < 0, -rest, rest).view(a.dtype)
    return np.where(b == 0, ~np.zeros((), a.dtype), rest)


def _packed(function: Function, half_type: str, a: Array, b: Array) -> Array:
    """`function` on both 16-bit halves of 32-bit arrays."""
    return pack_halves(function(halves(a, half_type), halves(b, half_type)))


def _parts(value: Array, ptx_type: str) -> Array:
    """The 8- or 16-bit integers in each 32-bit value as ``s32`` of shape (..., 4) or (..., 2), lowest first."""
    return np.ascontiguousarray(value)[..., None].view(DTYPES[ptx_type]).astype(np.int32)


def _every_width(kind: str, bits: int) -> None:
    """The rows that exist for 16, 32 and 64 bits, signed (`kind` s) and unsigned (u)."""
    t = f"{kind}{bits}"
    two, three = f"{t} {t}", f"{t} {t} {t}"
    lane(f"add.{t}", t, two, np.add, "a + b, wrapping")
    lane(f"sub.{t}", t, two, np.subtract, "a - b, wrapping")
    lane(f"mul.lo.{t}", t, two, np.multiply, f"low {bits} bits of a * b")
    lane(f"mul.hi.{t}", t, two, high, f"high {bits} bits of a * b")
    lane(f"mad.lo.{t}", t, three, _plus(np.multiply), f"low {bits} bits of a * b, plus c, wrapping")
    lane(f"mad.hi.{t}", t, three, _plus(high), f"high {bits} bits of a * b, plus c, wrapping")
    lane(f"sad.{t}", t, three, lambda a, b, c: np.where(a < b, b - a, a - b) + c, "c + |a - b|, wrapping")
    lane(f"div.{t}", t, two, divide, "a / b towards zero; all ones where b is 0")
    lane(f"rem.{t}", t, two, remainder, "a % b with the sign of a; all ones where b is 0")
    lane(f"min.{t}", t, two, np.minimum, "the smaller")
    lane(f"max.{t}", t, two, np.maximum, "the larger")
    if kind == "s":
        lane(f"abs.{t}", t, t, np.abs, "|a|; the most negative number stays")
        lane(f"neg.{t}", t, t, np.negative, "-a, wrapping")
    if bits < 64:
        wide = f"{kind}{2 * bits}"
        lane(f"mul.wide.{t}", wide, two, widened, f"a * b in {2 * bits} bits")
        lane(f"mad.wide.{t}", wide, f"{two} {wide}", _plus(widened), f"a * b + c in {2 * bits} bits, wrapping")


def _dot(a_type: str, b_type: str, first: int, a: Array, b: Array, c: Array) -> Array:
    """``c`` plus products of parts of a, as many as fill it, with bytes of b from `first` on, wrapping."""
    left, right = _parts(a, a_type), _parts(b, b_type)
    products = left * right[..., first : first + left.shape[-1]]
    return np.asarray(products.sum(axis=-1, dtype=np.int32).view(c.dtype) + c)


def _dots(a_type: str, b_type: str) -> None:
    """Dot products of bytes; the accumulator is unsigned only when both factors are."""
    t, pair, bytes_of = "u32" if a_type == b_type == "u32" else "s32", f"{a_type}.{b_type}", f"{b_type[0]}8"
    four = partial(_dot, f"{a_type[0]}8", bytes_of, 0)
    lane(f"dp4a.{pair}", t, f"b32 b32 {t}", four, "c + four products of bytes")
    for mode, first in (("lo", 0), ("hi", 2)):
        summary = f"c + two products of 16-bit parts of a with bytes {first}, {first + 1} of b"
        lane(f"dp2a.{mode}.{pair}", t, f"b32 b32 {t}", partial(_dot, f"{a_type[0]}16", bytes_of, first), summary)


def _pairs() -> None:
    """Two 16-bit integers in 32 bits, and ``.relu`` (sm_90)."""
    for name, function, what in (("min", np.minimum, "smaller"), ("max", np.maximum, "larger")):
        for t in ("u16x2", "s16x2"):
            lane(f"{name}.{t}", "b32", "b32 b32", partial(_packed, function, t), f"the {what}, by halves")

        def relu(a: Array, b: Array, function: Function = function) -> Array:
            return np.asarray(np.maximum(function(a, b), a.dtype.type(0)))

        lane(f"{name}.relu.s16x2", "b32", "b32 b32", partial(_packed, relu, "s16x2"), f"the {what} or 0, by halves")
        lane(f"{name}.relu.s32", "s32", "s32 s32", relu, f"the {what}, or 0 if negative")
    lane("add{.u16x2,.s16x2}", "b32", "b32 b32", partial(_packed, np.add, "u16x2"), "a + b by halves, wrapping")


def _saturating() -> None:
    """The ``.sat`` forms: results limited to the range of ``s32``."""
    three = "s32 s32 s32"
    lane("add.sat.s32", "s32", "s32 s32", partial(_saturated, np.add), "a + b, limited to s32")
    lane("sub.sat.s32", "s32", "s32 s32", partial(_saturated, np.subtract), "a - b, limited to s32")
    for form, product, what in (("mad", high, "high 32 bits of a * b"), ("mad24", partial(_part24, 16), "bits 47..16")):
        function = partial(_saturated_sum, product)
        lane(f"{form}.hi.sat.s32", "s32", three, function, f"{what}, plus c, limited to s32")


def _carried(kind: str, bits: int) -> None:
    """Extended precision, 32 and 64 bits; sums do not depend on signedness, the upper half of a product does."""
    t, u = f"{kind}{bits}", f"u{bits}"
    _add_carry_forms("add", t, f"{u} {u}", _carry_out)
    _add_carry_forms("sub", t, f"{u} {u}", _borrow_out)
    for half, product in (("lo", np.multiply), ("hi", high)):

        def add(a: Array, b: Array, c: Array, *carry: BoolArray, by: Function = product) -> tuple[Array, BoolArray]:
            return _carry_out(unsigned(by(a, b)), unsigned(c), *carry)  # the carry of the sum, not of the product

        _add_carry_forms(f"mad.{half}", t, f"{t} {t} {t}", add)


for _kind in "us":
    for _bits in (16, 32, 64):
        _every_width(_kind, _bits)
    for _bits in (32, 64):
        _carried(_kind, _bits)
    _type = f"{_kind}32"
    for _half, _shift, _range in (("lo", 0, "31..0"), ("hi", 16, "47..16")):
        _part = partial(_part24, _shift)
        _two, _three = f"{_type} {_type}", f"{_type} {_type} {_type}"
        lane(f"mul24.{_half}.{_type}", _type, _two, _part, f"bits {_range} of a 24-bit by 24-bit product")
        lane(f"mad24.{_half}.{_type}", _type, _three, _plus(_part), f"bits {_range} of a 24-bit product, plus c")
for _pair in (("u32", "u32"), ("u32", "s32"), ("s32", "u32"), ("s32", "s32")):
    _dots(*_pair)
_pairs()
_saturating()
