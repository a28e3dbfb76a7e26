"""Launches and references of ``integers.cu``: Python's integers, number by number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from tests.cuda_programs.program import Program, one

from ptxemu.values import Array

WORD, WIDE = (1 << 32) - 1, (1 << 64) - 1


def _signed(value: int, bits: int = 32) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _over(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _quotients(a: int, b: int) -> list[int]:
    ua, ub, low, divisor = a & WIDE, b & WIDE, _signed(a), _signed(b) | 1
    small = _over(low, 7) + _signed((a & WORD) % 10 + _over(low, divisor))
    rows = [_over(a, b), a - b * _over(a, b), ua // ub, ua % ub, ua * ub >> 64, a * b >> 64, ua * ub + ua >> 40]
    return [*rows, small]


def _fields(value: int, bits: int, *, signed: bool = False) -> list[int]:
    parts = [value >> start & ((1 << bits) - 1) for start in range(0, 32, bits)]
    return [_signed(part, bits) for part in parts] if signed else parts


def _joined(parts: Sequence[int], bits: int) -> int:
    return sum((part & ((1 << bits) - 1)) << bits * place for place, part in enumerate(parts))


def _permute(x: int, y: int, selector: int) -> int:
    source = (y << 32 | x).to_bytes(8, "little")
    return _joined([source[selector >> 4 * place & 7] for place in range(4)], 8)


def _tricks(x: int, y: int) -> list[int]:
    both, other, sx, sy, shift = x << 32 | y, y << 32 | x, _signed(x), _signed(y), y & 31
    pairs8 = list(zip(_fields(x, 8), _fields(y, 8), strict=True))
    signed8 = zip(_fields(x, 8, signed=True), _fields(y, 8, signed=True), strict=True)
    signed16 = zip(_fields(x, 16, signed=True), _fields(y, 16, signed=True), strict=True)
    return [
        x.bit_count() + 100 * both.bit_count(), 32 - x.bit_length() + 100 * (64 - both.bit_length()),
        (x & -x).bit_length() + 100 * (both & -both).bit_length(),
        int(f"{x:032b}"[::-1], 2) ^ int(f"{both:064b}"[::-1], 2),
        _permute(x, y, 0x5140), _permute(x, y, y & 0x7777), other << 13 >> 32, other >> shift,
        other << min(y, 32) >> 32, x * y >> 32, sx * sy >> 32, _signed(x, 24) * _signed(y, 24), abs(sx - sy) + 5,
        (x + y) // 2, (sx + sy + 1) // 2, 9 + sum(a * b for a, b in signed8), _joined([a + b for a, b in pairs8], 8),
        _joined([abs(a - b) for a, b in pairs8], 8), _joined([max(a, b) for a, b in signed16], 16), abs(x - y) + 1,
        x >> shift | sx >> (y & 15), x << shift | (x & 255) * _signed(y, 8),
    ]  # fmt: skip


def _steps(program: bytes, start: int, thread: int) -> int:
    stack, pc = [start], 0
    while pc < len(program):
        code, a, b = program[pc], stack[-1], stack[-2] if len(stack) > 1 else 0
        assert len(stack) > 1 or code not in {2, 3, 4, 5, 6, 10}, "the kernel would leave its stack"
        binary = {2: a + b, 3: a - b, 4: a * b, 5: a ^ b, 6: _over(a, b) if b else -1}
        unary = {7: -a, 8: (a & WORD).bit_count(), 9: a >> 3}
        if code in {0, 1}:
            stack.append(thread if code == 0 else a)
        elif code in binary:
            stack[-2:] = [_signed(binary[code])]
        elif code == 10:
            stack[-2:] = [a, b]
        elif code == 11:
            pc += a & 1
        else:
            stack[-1] = _signed(unary.get(code, code))
        pc += 1
    return stack[-1]


def _collatz(n: int) -> int:
    count = 0
    while n > 1:
        n, count = (n // 2 if n % 2 == 0 else 3 * n + 1), count + 1
    return count


def _raised(record: bytes) -> tuple[bytes, int, int]:
    """A text with its words capitalised, its hash, its length."""
    text, start, digest = bytearray(record), True, 2166136261
    for place, byte in enumerate(text):
        if start and 97 <= byte <= 122:
            text[place] -= 32
        start = text[place] == 32 or text[place] >= 128
        digest = (digest ^ text[place]) * 16777619 & WORD
    return bytes(text), digest, len(text)


def integers() -> Iterator[Program]:
    rng = np.random.default_rng(4)
    a: Array = rng.integers(-(1 << 63), 1 << 63, 70) >> rng.integers(0, 60, 70)
    b: Array = rng.integers(-(1 << 63), 1 << 63, 70) >> rng.integers(0, 62, 70)
    b[b == 0] = 3
    rows = [[_signed(value, 64) for value in _quotients(int(x), int(y))] for x, y in zip(a, b, strict=True)]
    yield one("wide_division", 3, 32, (a, b, ..., 70), np.array(rows, np.int64).T.copy())
    a, b = (rng.integers(0, 1 << 32, 80, dtype=np.uint32) >> rng.integers(0, 32, 80, dtype=np.uint32) for _ in range(2))
    a[:3], b[:4] = (0, WORD, 1 << 31), (0, 1 << 31, WORD, 0)
    rows = [[value & WORD for value in _tricks(int(x), int(y))] for x, y in zip(a, b, strict=True)]
    yield one("bit_tricks", 3, 32, (a, b, ..., 80), np.array(rows, np.uint32).T.copy())
    keys = rng.permutation(256).astype(np.int32) * 7 - 900
    values = rng.integers(0, 256, 256, dtype=np.uint8)
    order = np.argsort(keys.reshape(2, 128), axis=1)
    taken = [np.take_along_axis(array.reshape(2, 128), order, axis=1) for array in (keys, values)]
    yield one("bitonic_sort", 2, 128, (keys, values), after=dict(enumerate(taken)))
    numbers = np.sort(rng.integers(0, 1000, 300, dtype=np.int32))
    ends, wanted = rng.integers(0, 301, 100, dtype=np.int32), rng.integers(-5, 1005, 100, dtype=np.int32)
    places = np.array([np.searchsorted(numbers[:end], x) for end, x in zip(ends, wanted, strict=True)], np.int32)
    yield one("binary_search", 2, 64, (numbers, ends, wanted, ..., 100), places)
    starts = np.arange(64, dtype=np.uint32)
    yield one("collatz", 2, 32, (starts, ...), np.array(list(map(_collatz, starts.tolist())), np.int32))
    words = [b"the quick brown", b"", b"fox", b"jumps over the!!", b"a\xe9b c z", b"  two", b"Q"]
    records = np.array(words * 6, "S16")
    texts, hashes, lengths = zip(*map(_raised, records.tolist()), strict=True)
    results = np.array(texts, "S16").view(np.int8), np.array(hashes, np.uint32), np.array(lengths, np.int16)
    yield one("text", 1, 64, (records.view(np.int8), ..., ..., ..., len(records), 16), *results)
    program = bytes([1, 0, 2, 1, 4, 0, 11, 7, 5, 1, 9, 3, 0, 10, 6, 11, 8, 0, 1, 77, 4, 2, 11, 11, 9, 0, 3])
    starts = rng.integers(-1000, 1000, 64, dtype=np.int32)
    ends = np.array([_steps(program, int(start), i) for i, start in enumerate(starts)], np.int32)
    yield one("stack_machine", 2, 32, (np.frombuffer(program, np.uint8), len(program), starts, ...), ends)
