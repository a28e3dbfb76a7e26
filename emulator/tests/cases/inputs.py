"""Edge values of every PTX type: where instructions go wrong, plus random ones whose seed follows from the type."""

import itertools
from typing import Any
import zlib

import ml_dtypes
import numpy as np

from ptxemu.values import DTYPES, Array

LIMIT = 4096  # elements of a case at most


def _generator(ptx_type: str, use: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(f"{ptx_type} {use}".encode()))


def _integers(bits: int) -> Array:
    """0, 1, ends of the signed and unsigned range, powers of two and neighbours, alternating bits; unsigned."""
    powers = sorted({1, 2, 3, 4, 5, 7, 8, 15, 16, 24, 31, 32, bits // 2, bits - 1} - set(range(bits, 65)))
    whole = (1 << bits) - 1
    values = [0, 1, whole, 1 << (bits - 1), (1 << (bits - 1)) - 1, whole - 1, (1 << (bits - 1)) + 1]
    values += [(1 << power) + step for power in powers for step in (0, -1, 1)]
    values += [-(1 << power) for power in powers]
    values += [whole // 3, whole // 3 * 2, 0x0123456789ABCDEF, 31, 32, 33, 63, 64, 65, 255, 10]
    unique = dict.fromkeys(value & whole for value in values)
    return np.array(list(unique), dtype=np.uint64).astype(f"u{bits // 8}")


def _floats(dtype: np.dtype[np.generic]) -> Array:
    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]  # the package has no annotation here
    one = np.ones((), dtype)
    with np.errstate(all="ignore"):
        tiny, least, largest = (np.array(x, dtype) for x in (info.smallest_normal, info.smallest_subnormal, info.max))
        zero, two = np.zeros((), dtype), np.array(2, dtype)
        magnitudes = [
            zero, one, np.inf, largest, tiny, least, np.nextafter(one, two), np.nextafter(tiny, zero), 0.5, 1.5, 2.5,
            np.nextafter(one, zero), 3.0, np.nextafter(largest, one), np.nextafter(tiny, one), np.pi, 0.1, 100.5,
            np.sqrt(tiny), np.sqrt(largest), largest / two, tiny * np.array(0.75, dtype),
            np.array(info.eps, dtype) / two, 127.5, 255.0, 2.0**31, 2.0**32, 2.0**63, 32767.5,
        ]  # fmt: skip
        positive = np.array([np.array(each, dtype) for each in magnitudes]).astype(dtype)
        both = np.stack([positive, -positive], axis=-1).reshape(-1)
        both = np.concatenate([both[:6], np.array([np.nan], dtype), both[6:]])
    _, first = np.unique(both.view(f"u{dtype.itemsize}"), return_index=True)
    return np.asarray(both[np.sort(first)])


def _core(ptx_type: str) -> Array:
    if ptx_type == "pred":
        return np.array([False, True])
    if ptx_type in {"f16x2", "bf16x2"}:
        single = _core(ptx_type.removesuffix("x2"))
        return _packed(single, np.roll(single, 7))
    dtype = DTYPES[ptx_type]
    return _integers(8 * dtype.itemsize).view(dtype) if dtype.kind in "iu" else _floats(dtype)


def _packed(low: Array, high: Array) -> Array:
    return np.ascontiguousarray(np.stack([low, high], axis=-1)).view(np.uint32)[:, 0]


def sample(ptx_type: str, count: int, use: str = "") -> Array:
    """`count` seeded random values: half with random bits, half of ordinary size (floats: near 1: sums round)."""
    generator = _generator(ptx_type, use)
    if ptx_type == "pred":
        return np.asarray(generator.integers(0, 2, count) == 1)
    if ptx_type in {"f16x2", "bf16x2"}:
        single = ptx_type.removesuffix("x2")
        return _packed(sample(single, count, f"{use} low"), sample(single, count, f"{use} high"))
    dtype = DTYPES[ptx_type]
    unsigned = f"u{dtype.itemsize}"
    bits = generator.integers(0, 1 << 64, count, dtype=np.uint64, endpoint=False).astype(unsigned)
    if dtype.kind in "iu":
        shift = generator.integers(0, 8 * dtype.itemsize, count).astype(unsigned)  # all magnitudes
        return np.asarray(np.where(np.arange(count) % 2 == 0, bits, bits >> shift).astype(unsigned).view(dtype))
    near = generator.standard_normal(count) * np.exp2(generator.integers(-6, 7, count))
    with np.errstate(all="ignore"):
        return np.asarray(np.where(np.arange(count) % 2 == 0, bits.view(dtype), near.astype(dtype)))


def edge(ptx_type: str, count: int = 256) -> Array:
    """The edge values of a PTX type followed by random ones, `count` in all (more if there are more edge values)."""
    core = _core(ptx_type)
    return np.concatenate([core, sample(ptx_type, max(0, count - len(core)), "edge")])


def pairs(first: str, second: str | None = None, limit: int = 1024) -> tuple[Array, Array]:
    """Two arrays of one length <= `limit`: every pair of the foremost edge values, then random pairs."""
    a, b = _combined((first, second or first), limit)
    return a, b


def triples(
    first: str, second: str | None = None, third: str | None = None, limit: int = 1024
) -> tuple[Array, Array, Array]:
    """Three arrays of one length <= `limit`: every triple of the foremost edge values, then random triples."""
    a, b, c = _combined((first, second or first, third or first), limit)
    return a, b, c


def _combined(types: tuple[str, ...], limit: int) -> tuple[Array, ...]:
    """Three quarters are the product of as many foremost edge values as fit; the rest mixes edge and random."""
    cores = [_core(ptx_type) for ptx_type in types]
    sizes = [1] * len(cores)
    for _ in range(max(map(len, cores))):
        for axis, core in enumerate(cores):
            larger = [*sizes[:axis], min(sizes[axis] + 1, len(core)), *sizes[axis + 1 :]]
            if np.prod(larger) <= limit * 3 // 4:
                sizes = larger
    grid = np.array(list(itertools.product(*map(range, sizes)))).T
    rest = limit - grid.shape[1]
    generator = _generator(" ".join(types), "combined")
    columns = []
    for axis, (ptx_type, core) in enumerate(zip(types, cores, strict=True)):
        random = sample(ptx_type, rest, f"combined {axis}")
        edges = core[generator.integers(0, len(core), rest)]
        mixed = np.where(generator.integers(0, 3, rest) == 0, edges, random)
        columns.append(np.concatenate([core[grid[axis]], mixed]))
    return tuple(columns)
