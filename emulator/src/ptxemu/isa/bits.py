"""Bits: logic, shifts, bit fields, counts, funnel shifts, ``lop3``, byte permutation, SIMD video instructions.

Shift amounts, field positions, selectors and look-up tables are almost always constants, which arrive as arrays of one
element. Those take a path of one or two ufuncs; the general path clamps lane by lane, because NumPy (like C) leaves a
shift by the width or more undefined where PTX defines it. Of the SIMD video instructions there are those that nvcc
still writes (``__vabsdiffu4``, ``__vsadu4``). Functions take and return arrays of the row's dtypes, in the broadcast
shape of their inputs; none raises.

Source: PTX ISA 9.0, 9.7.1 (popc to szext), 9.7.8 (logic and shifts), 9.7.9 (prmt), 9.7.18 (SIMD video).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial, reduce

import numpy as np

from ptxemu.table import lane
from ptxemu.values import Array

# Selectors of the named modes by the two low bits of c, from the ISA's table: digit k selects the byte of d's byte k.
SELECTORS = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}


@lru_cache(maxsize=256)
def _plan(selector: int) -> tuple[tuple[int, int, int], ...]:
    """A selector without signs as (source 0 or 1, bits to move up, mask): bytes that move alike move together."""
    moves: dict[tuple[int, int], int] = {}
    for byte in range(4):
        chosen = (selector >> (4 * byte)) & 7
        move = chosen // 4, 8 * (byte - chosen % 4)
        moves[move] = moves.get(move, 0) | 0xFF << (8 * byte)
    return tuple((source, up, mask) for (source, up), mask in moves.items())


def permute(a: Array, b: Array, c: Array) -> Array:
    """`prmt`: byte k of the result is byte ``c[4k+2:4k]`` of ``b:a``, or eight copies of its sign where ``c[4k+3]``."""
    if c.size == 1 and not c.item() & 0x8888:
        moved = []
        for source, up, mask in _plan(c.item() & 0x7777):
            value = b if source else a
            moved.append((value << up if up > 0 else value >> -up if up < 0 else value) & mask)
        return reduce(np.bitwise_or, moved)
    pair = (b.astype(np.uint64) << 32) | a
    result = np.zeros((1, 1, 1), dtype=np.uint32)
    for byte in range(4):
        control = (c >> (4 * byte)) & 15
        chosen = ((pair >> ((control & 7) * 8).astype(np.uint64)) & 0xFF).astype(np.uint32)
        signs = (chosen >> 7) * np.uint32(0xFF)
        result = result | (np.where(control > 7, signs, chosen) << np.uint32(8 * byte))
    return result


Function = Callable[..., Array]


def _bits(value: Array) -> int:
    """Width in bits."""
    return 8 * value.dtype.itemsize


def shift_left(a: Array, amount: Array) -> Array:
    """``a << amount`` (any unsigned amount): 0 from the width on."""
    bits = _bits(a)
    if amount.size == 1:
        count = amount.item()
        shifted: Array = a << count if count < bits else np.zeros_like(a)
        return shifted
    shifted = a << np.minimum(amount, bits - 1).astype(a.dtype)
    return np.where(amount < bits, shifted, a.dtype.type(0))


def shift_right(a: Array, amount: Array) -> Array:
    """``a >> amount`` (any unsigned amount): from the width on, 0, or the sign of a signed type."""
    bits, signed = _bits(a), a.dtype.kind == "i"
    if amount.size == 1:
        count = min(amount.item(), bits - 1) if signed else amount.item()
        shifted: Array = a >> count if count < bits else np.zeros_like(a)
        return shifted
    shifted = a >> np.minimum(amount, bits - 1).astype(a.dtype)
    return shifted if signed else np.where(amount < bits, shifted, a.dtype.type(0))


def _funnel(left: bool, clamp: bool, a: Array, b: Array, c: Array) -> Array:
    """Upper (left) or lower 32 bits of ``b:a`` shifted by c, which stops at 32 or counts modulo 32."""
    amount = (np.minimum(c, 32) if clamp else c & 31).astype(np.uint64)
    pair = (b.astype(np.uint64) << 32) | a
    return np.asarray((pair << amount) >> 32 if left else pair >> amount).astype(np.uint32)


def population(a: Array) -> Array:
    """Number of ones, as ``u32``: sums of neighbours in fields of 2, 4 and 8 bits, then of bytes by a product."""
    kind, whole = a.dtype.type, (1 << _bits(a)) - 1
    a = a - ((a >> 1) & kind(whole // 3))
    a = (a & kind(whole // 5)) + ((a >> 2) & kind(whole // 5))
    a = (a + (a >> 4)) & kind(whole // 17)
    return np.asarray((a * kind(whole // 255)) >> (_bits(a) - 8)).astype(np.uint32)


def bit_length(a: Array) -> Array:
    """Position of the highest one plus 1 (0 for 0), as ``u32``; the exponent of a double is exact for 32 bits."""
    if _bits(a) == 64:
        upper = bit_length((a >> 32).astype(np.uint32))
        return np.where(upper > 0, upper + np.uint32(32), bit_length(a.astype(np.uint32)))
    return np.asarray(np.frexp(a.astype(np.float64))[1]).astype(np.uint32)


def _find_highest(shift_amount: bool, a: Array) -> Array:
    """Position of the highest bit that is not a copy of the sign, or its distance from the top; all ones if none."""
    length = bit_length((a ^ (a >> (_bits(a) - 1))).view(f"u{a.dtype.itemsize}") if a.dtype.kind == "i" else a)
    if shift_amount:
        return np.where(length > 0, np.uint32(_bits(a)) - length, np.uint32(0xFFFFFFFF))
    return length - np.uint32(1)


def _find_nth(mask: Array, base: Array, offset: Array) -> Array:
    """`fns`: position of the n-th one of mask from bit `base` on, n = abs(offset), downwards if offset < 0."""
    wanted = np.maximum(np.abs(offset.astype(np.int64)), 1)
    found, seen = np.full((1, 1, 1), 0xFFFFFFFF, dtype=np.uint32), np.zeros((1, 1, 1), dtype=np.int64)
    for step in range(32):
        position = np.where(offset < 0, np.uint32(31 - step), np.uint32(step))
        reached = np.where(offset < 0, position <= base, position >= base)
        inside = np.where(offset == 0, position == base, reached) & (base < 32)
        one = ((mask >> position) & 1).astype(np.bool_) & inside
        seen = seen + one
        found = np.where(one & (seen == wanted), position, found)
    return found


def reverse(a: Array) -> Array:
    """Bits in the opposite order: bytes, then halves, quarters and single bits of each byte."""
    kind, whole = a.dtype.type, (1 << _bits(a)) - 1
    a = a.byteswap()
    for step, pattern in ((4, whole // 17), (2, whole // 5), (1, whole // 3)):
        a = ((a >> step) & kind(pattern)) | ((a & kind(pattern)) << step)
    return a


def _low_mask(length: Array, dtype: np.dtype[np.generic]) -> Array:
    """`length` ones from bit 0 on, of an unsigned dtype; all ones from the width on."""
    return ~shift_left(np.full((1, 1, 1), (1 << (8 * dtype.itemsize)) - 1, dtype=dtype), length)


def _extract_unsigned(a: Array, position: Array, length: Array) -> Array:
    """`length` bits of a from bit `position` on; only the low bytes of both count."""
    return shift_right(a, position & 0xFF) & _low_mask(length & 0xFF, a.dtype)


def _extract_signed(a: Array, position: Array, length: Array) -> Array:
    """The same, extended by the field's highest bit (or the number's, where the field ends above it)."""
    bits = _bits(a)
    position, length = position & 0xFF, length & 0xFF
    above = bits - np.minimum(position + length, bits)  # move the field to the top, then down
    moved = shift_right(shift_left(a, above), np.minimum(above + position, bits - 1))
    return np.where(length == 0, a.dtype.type(0), moved)


def _insert(a: Array, b: Array, position: Array, length: Array) -> Array:
    """`b` with `length` bits from bit `position` on replaced by the low bits of `a`."""
    position, length = position & 0xFF, length & 0xFF
    if position.size == length.size == 1:
        place, whole = position.item(), (1 << _bits(a)) - 1
        constant = (((1 << length.item()) - 1) << place) & whole
        return np.asarray((b & (whole ^ constant)) | ((a << place) & constant)) if constant else b
    mask = shift_left(_low_mask(length, a.dtype), position)
    return (b & ~mask) | (shift_left(a, position) & mask)


# Two-input functions by truth table (bit 2b + c), without the two constants.
_TWO_INPUTS: dict[int, Callable[[Array, Array], Array]] = {
    0b0001: lambda b, c: ~(b | c),
    0b0010: lambda b, c: ~b & c,
    0b0011: lambda b, _: ~b,
    0b0100: lambda b, c: b & ~c,
    0b0101: lambda _, c: ~c,
    0b0110: lambda b, c: b ^ c,
    0b0111: lambda b, c: ~(b & c),
    0b1000: lambda b, c: b & c,
    0b1001: lambda b, c: ~(b ^ c),
    0b1010: lambda _, c: c,
    0b1011: lambda b, c: ~b | c,
    0b1100: lambda b, _: b,
    0b1101: lambda b, c: b | ~c,
    0b1110: lambda b, c: b | c,
}


def ternary(a: Array, b: Array, c: Array, table: Array) -> Array:
    """`lop3`: the function of three bits with truth table ``table`` (bit 4a + 2b + c), a constant.

    f(a, b, c) = f(0, b, c) ^ (a & (f(0, b, c) ^ f(1, b, c))): two functions of two inputs, few operations each.
    """
    lut = table.item(0) & 0xFF
    below, change = lut & 15, (lut & 15) ^ (lut >> 4)
    moving = a if change == 15 else a & _TWO_INPUTS[change](b, c) if change else None
    if below == 0:
        return np.zeros_like(a) if moving is None else moving
    fixed = np.full_like(a, 0xFFFFFFFF) if below == 15 else _TWO_INPUTS[below](b, c)
    return fixed if moving is None else fixed ^ moving


def _ones(clamp: bool, a: Array, b: Array) -> Array:
    """`bmsk`: b ones from bit a on; wrap: both modulo 32, clamp: none from position 32 on, length at most 32."""
    return shift_left(_low_mask(b if clamp else b & 31, a.dtype), a if clamp else a & 31)


def _extend(clamp: bool, a: Array, b: Array) -> Array:
    """`szext`: the low b bits (clamp: at most 32; wrap: modulo 32) of a, zero- or sign-extended by a's type; 0 of 0."""
    above = np.uint32(32) - (np.minimum(b, 32) if clamp else b & 31)
    return np.where(above == 32, a.dtype.type(0), shift_right(shift_left(a, above), above))


def _by_mode(selectors: tuple[int, ...], a: Array, b: Array, c: Array) -> Array:
    """`prmt` with a mode: the selector is row ``c & 3`` of the mode's table."""
    return permute(a, b, np.array(selectors, dtype=np.uint32)[c & 3])


def _logic() -> None:
    for t in ("pred", "b16", "b32", "b64"):
        lane(f"and.{t}", t, f"{t} {t}", np.bitwise_and, "a & b")
        lane(f"or.{t}", t, f"{t} {t}", np.bitwise_or, "a | b")
        lane(f"xor.{t}", t, f"{t} {t}", np.bitwise_xor, "a ^ b")
        lane(f"not.{t}", t, t, np.invert, "~a")
        if t != "pred":
            lane(f"cnot.{t}", t, t, lambda a: (a == 0).astype(a.dtype), "1 where a is 0, else 0")
            lane(f"shl.{t}", t, f"{t} u32", shift_left, "a << b; 0 from the width on")
    for t in (f"{kind}{bits}" for kind in "bus" for bits in (16, 32, 64)):
        fill = "the sign" if t[0] == "s" else "0"
        lane(f"shr.{t}", t, f"{t} u32", shift_right, f"a >> b; {fill} from the width on")
    lane("lop3.b32", "b32", "b32 b32 b32 b32", ternary, "any function of three bits, by its truth table")
    for name, combine in (("and", np.logical_and), ("or", np.logical_or)):

        def function(*given: Array, combine: Function = combine) -> tuple[Array, Array]:
            result = ternary(*given[:4])
            return result, combine(result != 0, given[4])

        lane(f"lop3.{name}.b32", "b32 pred", "b32 b32 b32 b32 pred", function, f"lop3, and (d != 0) {name} q")
    for side in "lr":
        for mode in ("clamp", "wrap"):
            funnel = partial(_funnel, side == "l", mode == "clamp")
            summary = f"{'upper' if side == 'l' else 'lower'} 32 bits of b:a shifted by c"
            lane(f"shf.{side}.{mode}.b32", "b32", "b32 b32 u32", funnel, summary)


def _counts() -> None:
    for bits in (32, 64):
        t = f"b{bits}"
        lane(f"popc.{t}", "u32", t, population, "number of ones")
        lane(f"clz.{t}", "u32", t, lambda a: np.uint32(_bits(a)) - bit_length(a), "number of leading zeros")
        lane(f"brev.{t}", t, t, reverse, "bits in the opposite order")
        lane(f"bfi.{t}", t, f"{t} {t} u32 u32", _insert, "b with d bits at c replaced by a")
        for kind, extract in (("u", _extract_unsigned), ("s", _extract_signed)):
            t = f"{kind}{bits}"
            lane(f"bfe.{t}", t, f"{t} u32 u32", extract, "c bits of a from bit b on")
            lane(f"bfind.{t}", "u32", t, partial(_find_highest, False), "highest bit unlike the sign")
            lane(f"bfind.shiftamt.{t}", "u32", t, partial(_find_highest, True), "left shift that brings it to the top")


def _fields() -> None:
    lane("fns.b32", "b32", "b32 u32 s32", _find_nth, "position of the n-th one from a bit on")
    for mode in ("clamp", "wrap"):
        lane(f"bmsk.{mode}.b32", "b32", "u32 u32", partial(_ones, mode == "clamp"), "b ones from bit a on")
        for t in ("u32", "s32"):
            lane(f"szext.{mode}.{t}", t, f"{t} u32", partial(_extend, mode == "clamp"), "low b bits of a, extended")
    lane("prmt.b32", "b32", "b32 b32 b32", permute, "bytes of b:a by four selectors")
    for mode, selectors in SELECTORS.items():
        summary = f"bytes of b:a by the {mode} row of the ISA's table"
        lane(f"prmt.b32.{mode}", "b32", "b32 b32 b32", partial(_by_mode, selectors), summary)


_logic()
_counts()
_fields()


def _differences(bits: int, total: bool, a: Array, b: Array, c: Array) -> Array:
    """``|a - b|`` of each unsigned field of `bits` bits, in its field; `total`: c plus the sum of them, wrapping."""
    mask, found = np.uint32((1 << bits) - 1), c if total else np.zeros((1, 1, 1), np.uint32) & c
    for start in range(0, 32, bits):
        left, right = (a >> start) & mask, (b >> start) & mask
        difference = np.maximum(left, right) - np.minimum(left, right)
        found = found + difference if total else found | (difference << start)
    return found


for _n in (2, 4):
    _form = f"vabsdiff{_n}.u32.u32.u32"
    lane(_form, "u32", "u32 u32 u32", partial(_differences, 32 // _n, False), f"|a - b| of {_n} fields")
    lane(f"{_form}.add", "u32", "u32 u32 u32", partial(_differences, 32 // _n, True), f"c + |a - b| of {_n} fields")
