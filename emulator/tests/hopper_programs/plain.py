"""Launches of ``kernels/{barriers,bulk,roles,clusters}.cu``: mbarriers, copies of runs of bytes, warps with roles."""

from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from tests.hopper_programs.layouts import box_image, small
from tests.hopper_programs.program import Run, giving, launches

from ptxemu.machine.tensor_map import TensorMap
from ptxemu.values import Array

I32, U32, F32 = np.int32, np.uint32, np.float32
EIGHT = np.arange(8, dtype=U32)


def numbers(seed: int, *shape: int, most: int = 4) -> Array:
    return small(np.random.default_rng(seed), *shape, most=most).astype(F32)


def floats(*shape: int) -> Array:
    return np.arange(int(np.prod(shape)), dtype=F32).reshape(shape)


def integers(*bounds: int) -> Array:
    return np.arange(*bounds, dtype=I32)


@launches("barriers")
def states() -> Run:
    value = integers(128)
    for _ in range(6):
        value = np.roll(value, -33) + 1
    return giving(value.astype(I32), 6)


@launches("barriers")
def ping_pong() -> Run:
    total = np.zeros(64)
    for turn in range(5):
        total = 3 * total + 100 * turn + integers(63, -1, -1)
    return giving(total.astype(I32), 5)


@launches("barriers")
def leavers() -> Run:
    wanted = np.zeros((4, 128), I32)
    for turn in range(4):
        wanted[turn, 32 * (turn + 1) :] = 128 - 32 * turn
    return giving(wanted, 4)


@launches("barriers", 64)
def small_copies() -> Run:
    given, total = numbers(41, 5, 256), np.zeros(64, F32)
    for tile in given:
        total = 2 * total + tile[255 - np.arange(64)]
    return giving(total, given, 5)


@launches("bulk")
def store_in_turn() -> Run:
    given = floats(11, 128)
    return giving(given * np.arange(11, dtype=F32)[:, None], given, 11)


def _reduction(dtype: Any, combine: Callable[..., Array], seed: int) -> Run:
    rows = np.random.default_rng(seed).integers(-100, 100, (5, 256)).astype(np.int64)
    if np.dtype(dtype).kind == "u":
        rows = rows % 97 << 20
    out, given = rows[0].astype(dtype), rows[1:].astype(dtype)
    return Run((out, given), ((out, combine(rows).astype(dtype)),))


REDUCTIONS: tuple[tuple[str, Any, Any], ...] = (
    ("add_f32", np.float32, np.add.reduce), ("add_u64", np.uint64, np.add.reduce),
    ("min_s32", np.int32, np.minimum.reduce), ("xor_b32", np.uint32, np.bitwise_xor.reduce),
    ("add_f16", np.float16, np.add.reduce), ("max_bf16", ml_dtypes.bfloat16, np.maximum.reduce),
)  # fmt: skip
for _seed, (_kernel, _dtype, _combine) in enumerate(REDUCTIONS, 3):
    launches("bulk", 256, 4, kernel=_kernel)(partial(_reduction, _dtype, _combine, _seed))


@launches("bulk")
def ring() -> Run:
    given, total = numbers(1, 8, 96), np.zeros(96, F32)
    for tile in given:
        total = 2 * total + tile[::-1]
    return giving(total, given, 8)


@launches("bulk", 256)
def in_place() -> Run:
    data = numbers(2, 5, 256, most=50)
    return Run((data, 5), ((data, data * data),))


@launches("roles", 384)
def registers() -> Run:
    given = numbers(51, 7, 256)
    return giving(given.sum(0), given, 7)


@launches("roles", 256)
def turns() -> Run:
    value = np.arange(128)
    for _ in range(5):
        value = np.roll(value, -1) * 2 % 10007 + 1
    return giving(value.astype(I32), 5)


@launches("roles", 64)
def votes() -> Run:
    found = [sum((i + turn) % 3 != 0 for i in range(64)) for turn in range(2)]
    return giving(np.repeat(np.array([[found[0] + 100], [found[1] + 1000]], I32), 64, axis=1))


@launches("roles", 32)
def matrices() -> Run:
    lane = np.arange(32, dtype=U32)
    parts = np.stack([1000 * i + 2 * lane + ((1000 * i + 2 * lane + 1) << 16) for i in range(4)]).astype(U32)
    cells = parts.view(np.uint16).reshape(4, 8, 8)  # lane l holds row l / 4, columns 2 (l % 4) and the next
    turned = np.ascontiguousarray(cells.transpose(0, 2, 1)).view(U32).reshape(4, 32)
    total = int((lane.astype(np.int64) ** 2).sum()) + int((lane ^ 21).max())
    return giving(np.concatenate([parts, turned[:2], turned[2:3], np.full((1, 32), total, U32)]).astype(U32))


@launches("clusters", 32, (4, 8, 1), (2, 4, 1))
def ranks() -> Run:
    wanted = np.zeros((8, 4, 14), U32)
    for y in range(8):
        for x in range(4):
            inner, outer = (x % 2, y % 4), (x // 2, y // 4)
            wanted[y, x] = [inner[0] + 2 * inner[1], 8, *inner, 0, 2, 4, 1, *outer, 2, 2, 1, 7]
    return giving(wanted)


def _blocks(count: int) -> Array:
    """1000 * block + thread, of 64 threads."""
    return (1000 * np.arange(count)[:, None] + np.arange(64)).astype(U32)


def _next(size: int, count: int) -> Array:
    return np.arange(count) // size * size + (np.arange(count) + 1) % size


def _read_next(size: int) -> Run:
    return giving(_blocks(32)[_next(size, 32), ::-1].copy(), size)


for _size, _name in ((2, ""), (8, "read_next_8"), (16, "read_next_16")):
    launches("clusters", 64, 32, _size, kernel="read_next", name=_name)(partial(_read_next, _size))


@launches("clusters", 64, 8, 4)
def write_next() -> Run:
    wanted = np.zeros((8, 64), U32)
    wanted[_next(4, 8)] = _blocks(8)
    return giving(wanted + np.arange(64, dtype=U32) ** 2, 4)


@launches("clusters", 64, 8, 4)
def histogram() -> Run:
    given, wanted = np.random.default_rng(61).integers(0, 1000, 8 * 64).astype(U32), np.zeros(65, U32)
    for part in range(2):
        wanted[32 * part : 32 * part + 32] = np.bincount(given[256 * part : 256 * part + 256] % 32, minlength=32)
    wanted[64] = 2 * sum(range(256))
    return giving(wanted, given)


@launches("clusters", 256, 8, 4)
def hand_over() -> Run:
    given = numbers(62, 8, 256, most=99)
    wanted = np.zeros_like(given)
    wanted[_next(4, 8)] = 2 * given[:, ::-1]
    return giving(wanted, given, 4)


@launches("clusters", grid=4, cluster=2)
def multicast_halves() -> Run:
    array = (np.arange(64 * 128) % 2039).astype(np.float16).reshape(64, 128)
    given = TensorMap(array, "f16", (128, 64), (256,), (64, 32), swizzle="128B")
    images = [[box_image(given, (64 * half, block // 2 * 32)) for half in range(2)] for block in range(4)]
    return giving(np.stack(images), given)


@launches("clusters", 256, 8, 4)
def multicast_odd() -> Run:
    given, wanted = floats(1024), np.full((8, 256), -1, F32)
    for block in (1, 3, 5, 7):
        wanted[block] = given[block // 4 * 256 : block // 4 * 256 + 256]
    return giving(wanted, given, 0b1010)


@launches("clusters", 96, 4, 2)
def multicast_ring() -> Run:
    array, total = numbers(63, 9, 64), np.zeros((4, 64), F32)
    for row in array:
        total = 2 * total + row * np.array([1, 2, 1, 2], F32)[:, None]
    return giving(total, TensorMap(array, "f32", (64, 9), (256,), (32, 1)), 9)


# file, kernel, (threads, blocks, blocks of a cluster), run
SHORT: tuple[tuple[str, str, tuple[int, ...], Callable[[], Run]], ...] = (
    ("barriers", "counts", (128,), lambda: giving(7 * integers(127, -1, -1))),
    ("barriers", "pending", (32,), lambda: giving(np.array([10, 7, 6, 1, 4, 1, 10, 1], U32))),
    ("barriers", "transactions", (64,), lambda: giving(np.full(64, 17, I32), 17)),
    ("barriers", "place_again", (64,), lambda: giving(np.tile(1000 + integers(31, -1, -1), 2))),
    ("barriers", "patience", (128,), lambda: giving(np.full(128, 5, I32), 5)),
    ("bulk", "load", (128,), lambda: giving(floats(1024)[::-1].copy(), floats(1024))),
    ("bulk", "pieces", (128,), lambda: giving(2 * floats(1024), floats(1024))),
    ("bulk", "store", (128, 3), lambda: giving(np.tile(floats(512) + 1, (3, 1)), floats(512))),
    ("bulk", "hints", (256,), lambda: giving(floats(256) + 3, floats(256))),
    ("roles", "early_exit", (128,), lambda: giving((integers(96) ** 2).reshape(3, 32).sum(0).astype(I32)[::-1].copy())),
    ("roles", "elected", (128,), lambda: giving(np.ones(8, I32))),
    ("roles", "dependents", (128, 2), lambda: giving(integers(256) + 1, integers(256))),
    ("clusters", "remote_arrivals", (32, 8, 8), lambda: giving(np.add.outer(EIGHT, 100 * EIGHT), 8)),
    ("clusters", "announced", (64, 2, 2), lambda: giving((10 * np.array([1, 0])[:, None] + np.arange(64)).astype(F32))),
)
for _file, _kernel, _sizes, _make in SHORT:
    launches(_file, *_sizes, kernel=_kernel)(_make)
