"""Integer instructions over Python's integers, which have no width: nothing here can wrap or overflow by accident."""

from collections.abc import Callable
from typing import Any

import numpy as np
from tests.cases.harness import Case, Typed, plain

from ptxemu.values import DTYPES, Array

INTEGERS = tuple(f"{kind}{bits}" for bits in (16, 32, 64) for kind in "us")
AMOUNTS = (0, 1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 127, 128, 255, 256, 257, 1 << 31, (1 << 32) - 1)


def bits_of(ptx_type: str) -> int:
    return int(ptx_type[1:])


def raw(value: int, ptx_type: str) -> int:
    return value % (1 << bits_of(ptx_type))


def wrap(value: int, ptx_type: str) -> int:
    low = raw(value, ptx_type)
    return low - (1 << bits_of(ptx_type)) if ptx_type[0] == "s" and low >> (bits_of(ptx_type) - 1) else low


def parts(value: int, kind: str, bits: int) -> list[int]:
    return [wrap(value >> start, f"{kind}{bits}") for start in range(0, 32, bits)]


def saturate(value: int) -> int:
    return max(-(1 << 31), min((1 << 31) - 1, value))


def quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (-1 if (a < 0) != (b < 0) else 1)


def column(values: list[Any], ptx_type: str) -> Array:
    dtype = DTYPES[ptx_type]
    if dtype.kind in "iu":
        return np.array([raw(int(value), ptx_type) for value in values], dtype=f"u{dtype.itemsize}").view(dtype)
    with np.errstate(all="ignore"):
        return np.array(values, np.float64).astype(dtype)


def lanes(function: Callable[..., Any], ptx_type: str, *inputs: Array) -> Array:
    return column([function(*each) for each in zip(*(array.tolist() for array in inputs), strict=True)], ptx_type)


def case(opcode: str, inputs: Typed, result: str, function: Callable[..., Any], **fields: Any) -> Case:
    """The case of ``opcode d, <inputs in order>;`` with one result."""
    return plain(opcode, inputs, result, lanes(function, result, *(array for _, array in inputs.values())), **fields)


def crossed(*axes: Any, limit: int = 1024) -> tuple[list[int], ...]:
    """The product of some lists, thinned evenly to at most `limit` tuples, one list per axis."""
    grid = np.stack(np.meshgrid(*(np.arange(len(axis)) for axis in axes), indexing="ij"), -1).reshape(-1, len(axes))
    if len(grid) > limit:
        grid = grid[np.random.default_rng(len(grid)).permutation(len(grid))[:limit]]
    return tuple([int(axis[index]) for index in grid[:, place]] for place, axis in enumerate(axes))


def shift_left(a: int, amount: int, ptx_type: str) -> int:
    return raw(a << min(amount, 64), ptx_type)


def shift_right(a: int, amount: int) -> int:
    return a >> amount


def funnel(left: bool, clamp: bool, a: int, b: int, c: int) -> int:
    """shf."""
    n = min(c, 32) if clamp else c & 31
    pair = b << 32 | a
    return ((pair << n) >> 32) % (1 << 32) if left else (pair >> n) % (1 << 32)


def find_highest(a: int, bits: int, shift_amount: bool) -> int:
    """bfind; `a` is negative where the type is signed and the number negative."""
    if a < 0:
        a = ~a
    found = a.bit_length() - 1
    return found if found < 0 or not shift_amount else bits - 1 - found


def find_nth(mask: int, base: int, offset: int) -> int:
    """fns; -1 where there is none."""
    if offset == 0:
        return base if mask >> base & 1 else -1
    step, left, position = (1 if offset > 0 else -1), abs(offset), base
    while 0 <= position < 32:
        left -= mask >> position & 1
        if left == 0:
            return position
        position += step
    return -1


def extract(a: int, position: int, length: int, bits: int, signed: bool) -> int:
    """bfe, bit by bit; `a` from 0 on."""
    position, length = position & 255, length & 255
    sign = signed and length > 0 and a >> min(position + length - 1, bits - 1) & 1
    chosen = [a >> (position + i) & 1 if i < length and position + i < bits else int(sign) for i in range(bits)]
    return sum(bit << i for i, bit in enumerate(chosen))


def insert(a: int, b: int, position: int, length: int, bits: int) -> int:
    """bfi, bit by bit."""
    position, length = position & 255, length & 255
    for i in range(length):
        if position + i < bits:
            b = b & ~(1 << position + i) | (a >> i & 1) << position + i
    return b


def make_mask(clamp: bool, a: int, b: int) -> int:
    """bmsk, in the ISA's steps."""
    start, width = a & 31, b & 31
    lower, upper = (-1) << start, (-1) << (start + width)
    if clamp and a >= 32:
        lower = 0
    if start + width >= 32 or (clamp and (a >= 32 or b >= 32)):
        upper = 0
    elif width == 0:
        upper = -1
    return (lower & ~upper) % (1 << 32)


def extend(clamp: bool, signed: bool, a: int, b: int) -> int:
    """szext, in the ISA's steps; `a` from 0 on."""
    width, too_large = b & 31, clamp and b >= 32
    mask = 0 if too_large else (-1) << width
    sign = signed and width > 0 and not too_large and a >> (width - 1) & 1
    return (a & ~mask | (mask if sign else 0)) % (1 << 32)


def ternary(a: int, b: int, c: int, table: int) -> int:
    """lop3, bit by bit."""
    return sum((table >> ((a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1)) & 1) << i for i in range(32))


def permute(a: int, b: int, selector: int) -> int:
    """prmt without a mode, byte by byte."""
    source, result = (b << 32 | a).to_bytes(8, "little"), b""
    for place in range(4):
        control = selector >> 4 * place & 15
        byte = source[control & 7]
        result += bytes([255 * (byte >> 7) if control & 8 else byte])
    return int.from_bytes(result, "little")


def permute_mode(mode: str, a: int, b: int, c: int) -> int:
    """prmt with a mode, from what its name says: bytes of b:a, most significant first."""
    n = c & 3
    order = {
        "f4e": [n + 3, n + 2, n + 1, n],
        "b4e": [(n + 5) % 8, (n + 6) % 8, (n + 7) % 8, n],
        "rc8": [n, n, n, n],
        "ecl": [max(n, 3), max(n, 2), max(n, 1), n],
        "ecr": [n, min(n, 2), min(n, 1), 0],
        "rc16": [2 * (n & 1) + 1, 2 * (n & 1), 2 * (n & 1) + 1, 2 * (n & 1)],
    }[mode]
    source = (b << 32 | a).to_bytes(8, "little")
    return int.from_bytes(bytes(source[index] for index in order), "big")
