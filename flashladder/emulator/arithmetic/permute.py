"""Byte permutation, `prmt`.

Why two paths: a selector is almost always a constant, and most constants move two or more bytes by the same distance,
so that two shifts and two masks do. Source: PTX ISA 9.0, section 9.7.9 (prmt). Arrays are uint32, in any shapes that
broadcast; nothing raises.
"""

from __future__ import annotations

from functools import lru_cache, reduce

import numpy as np

from flashladder.emulator.values import Array

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


def _permute_constant(a: Array, b: Array, selector: int) -> Array:
    """`prmt` by a selector without signs."""
    terms = []
    for source, up, mask in _plan(selector & 0x7777):
        value = b if source else a
        terms.append((value << up if up > 0 else value >> -up if up < 0 else value) & mask)
    return reduce(np.bitwise_or, terms)


def permute(a: Array, b: Array, c: Array) -> Array:
    """`prmt`: byte k of the result is byte ``c[4k+2:4k]`` of ``b:a``, or eight copies of its sign where ``c[4k+3]``."""
    if c.size == 1 and not c.item() & 0x8888:
        return _permute_constant(a, b, c.item())
    pair = (b.astype(np.uint64) << 32) | a
    result = np.zeros((1, 1, 1), dtype=np.uint32)
    for byte in range(4):
        control = (c >> (4 * byte)) & 15
        chosen = ((pair >> ((control & 7) * 8).astype(np.uint64)) & 0xFF).astype(np.uint32)
        signs = (chosen >> 7) * np.uint32(0xFF)
        result = result | (np.where(control > 7, signs, chosen) << np.uint32(8 * byte))
    return result


def permute_mode(selectors: tuple[int, ...], a: Array, b: Array, c: Array) -> Array:
    """`prmt` with a mode: the selector is row ``c & 3`` of the mode's table."""
    return permute(a, b, np.array(selectors, dtype=np.uint32)[c & 3])
