"""``mov`` of every type, packing and unpacking of vectors, special registers, and addresses of one space in another.

Values are never changed in place, so that a ``mov`` between scalars hands on its source's array. Special registers are
arrays as small as their contents allow: ``%ctaid.x`` one number per block, ``%laneid`` one per lane. Source: PTX ISA
9.0, 9.7.9.1 (mov), 9.7.9.17 to 9.7.9.19 (isspacep, cvta) and 10 (special registers).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ptxemu.machine.memory import LOCAL_WINDOW, SHARED_WINDOW
from ptxemu.machine.state import FullStep
from ptxemu.syntax.tree import Vector
from ptxemu.table import lane, machine
from ptxemu.values import DTYPES, WARP, Array, constant

SCALARS = ("pred", "u16", "s16", "u32", "s32", "f32", "u64", "s64", "f64")
# What cvta adds; global and const are generic already.
WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": SHARED_WINDOW | LOCAL_WINDOW}
WINDOW_BITS = np.uint64(SHARED_WINDOW | LOCAL_WINDOW)


def same(value: Array) -> Array:
    """The value itself: arrays are shared, never changed in place."""
    return value


for _type in SCALARS:
    lane(f"mov.{_type}", _type, _type, same, "a copy of a register, constant, address or special register")


@machine("mov.{b16,b32,b64}", "a copy; or a vector's items packed into one value, the first lowest; or the reverse")
def move_bits(step: FullStep) -> None:
    """``mov.b64 d, a``, ``mov.b64 d, {a, b}`` and ``mov.b64 {d, e}, a`` (PTX ISA 9.7.9.2)."""
    kind = step.instruction.opcode[4:]
    destination, source = step.instruction.operands
    if isinstance(source, Vector):
        step.write(0, packed(step.vector(1, item_type(step, kind, source)), kind))
    elif isinstance(destination, Vector):
        item_type(step, kind, destination)
        step.write_vector(0, unpacked(step.source(1, kind), len(destination.items)))
    else:
        step.write(0, step.source(1, kind))


def item_type(step: FullStep, kind: str, vector: Vector) -> str:
    """The type of a vector's items: two, four or eight of them share the bits of `kind`.

    Fails: (syntax) another number of items.
    """
    item = f"b{int(kind[1:]) / len(vector.items):g}"
    if len(vector.items) == 1 or item not in DTYPES:
        step.fail("syntax", f"{len(vector.items)} items in a vector of {kind}", expected="2 or 4 that fill it")
    return item


def packed(items: Sequence[Array], kind: str) -> Array:
    """Items (unsigned, all of one width) as one value of `kind`; the first item is its lowest part."""
    whole = constant(0, kind).dtype
    bits = 8 * items[0].dtype.itemsize
    result: Array = items[0].astype(whole)
    for place, item in enumerate(items[1:], start=1):
        result = result | (item.astype(whole) << whole.type(bits * place))
    return result


def unpacked(value: Array, count: int) -> list[Array]:
    """The inverse of `packed`: `count` unsigned items, the lowest part first."""
    bits = 8 * value.dtype.itemsize // count
    part = np.dtype(f"u{bits // 8}")
    return [(value >> value.dtype.type(bits * place) if place else value).astype(part) for place in range(count)]


def _in_window(window: np.uint64, address: Array) -> Array:
    return np.asarray((address & WINDOW_BITS) == window)


def _address_rows() -> None:
    for space in ("global", "const", "shared", "local", "param"):
        window = np.uint64(WINDOWS.get(space, 0))
        for name in (space, f"{space}::cta") if space == "shared" else (space,):
            if window:
                lane(f"cvta.{name}.u64", "u64", "u64", lambda a, w=window: a | w, f"generic address of a {space} one")
                summary = f"{space} address of a generic one"
                lane(f"cvta.to.{name}.u64", "u64", "u64", lambda a: a & ~WINDOW_BITS, summary)
            else:
                lane(f"cvta{{,.to}}.{name}.u64", "u64", "u64", same, f"{space} addresses are generic as they are")
            if space not in {"const", "param"}:
                inside = partial(_in_window, window)
                lane(f"isspacep.{name}", "pred", "u64", inside, f"is it a {space} address?")


_address_rows()


@machine("nanosleep.u32", "nothing: time stands still")
def sleep(_step: FullStep) -> None:
    """A hint to the scheduler (9.7.20.6)."""


RESERVED = 1 << 20  # offset of reserved shared memory: beyond what a block can have
STILL = {
    **dict.fromkeys(("%smid", "%clock", "%clock_hi", "%globaltimer_lo", "%globaltimer_hi"), "u32"),
    **dict.fromkeys(("%clock64", "%globaltimer", "%gridid"), "u64"),
}


def specials(
    grid: Sequence[int],
    block: Sequence[int],
    blocks: Array,
    shared_bytes: int,
    static_bytes: int = 0,
    cluster: Sequence[int] | None = None,
) -> dict[str, Array]:
    """The special registers of a slice of the grid, each in the smallest shape that broadcasts.

    Args:
        grid: blocks along x, y, z (``%nctaid``).
        block: threads along x, y, z (``%ntid``).
        blocks: (n, 3) integers: ``%ctaid`` of the slice's blocks.
        shared_bytes: dynamic shared memory of a block, in bytes.
        static_bytes: its static shared memory, in bytes.
        cluster: blocks of a cluster along x, y, z; None: the launch asks for none, and each block is one.

    Clocks and timers stand still at 0, ``%gridid`` is 0, every block runs on ``%smid`` 0: programs may read them, and a
    result that depends on them is no result. The shared memory that the driver reserves is not there: programs may take
    its address (cooperative groups do), which lies beyond the window; using it is an out-of-bounds error.
    """
    threads = int(np.prod(block))
    warps = -(-threads // WARP)
    linear = np.arange(warps * WARP, dtype=np.int64).reshape(1, warps, WARP)
    places = (linear % block[0], linear // block[0] % block[1], linear // (block[0] * block[1]))
    lanes = np.arange(WARP, dtype=np.uint64).reshape(1, 1, WARP)
    equal, every = np.uint64(1) << lanes, np.uint64(0xFFFFFFFF)
    below, names = equal - np.uint64(1), [f"%lanemask_{name}" for name in ("eq", "lt", "le", "gt", "ge")]
    values: dict[str, Array] = {
        "%laneid": lanes,
        "%warpid": np.arange(warps, dtype=np.uint64).reshape(1, warps, 1),
        **dict(zip(names, (equal, below, below | equal, every ^ below ^ equal, every ^ below), strict=True)),
    }
    clusters = (1, 1, 1) if cluster is None else tuple(cluster)
    values["%cluster_ctarank"], step = np.zeros((len(blocks), 1, 1), np.int64), 1  # it counts x fastest
    for axis, name in enumerate("xyz"):
        here = blocks[:, axis].reshape(-1, 1, 1)
        values[f"%tid.{name}"], values[f"%ctaid.{name}"] = places[axis], here
        values[f"%clusterid.{name}"], values[f"%cluster_ctaid.{name}"] = here // clusters[axis], here % clusters[axis]
        values["%cluster_ctarank"] = values["%cluster_ctarank"] + here % clusters[axis] * step
        step *= clusters[axis]
    constants = {
        "%nwarpid": warps,
        "%cluster_nctarank": int(np.prod(clusters)),
        "%is_explicit_cluster": int(cluster is not None),
        **{f"%cluster_nctaid.{name}": size for name, size in zip("xyz", clusters, strict=True)},
        **{f"%nclusterid.{name}": grid[axis] // clusters[axis] for axis, name in enumerate("xyz")},
        "%nsmid": 1,
        "%dynamic_smem_size": shared_bytes,
        "%total_smem_size": shared_bytes + static_bytes,
        "WARP_SZ": WARP,
        **{f"%reserved_smem_offset_{name}": RESERVED for name in ("begin", "end", "0", "1")},
        **{f"%ntid.{name}": size for name, size in zip("xyz", block, strict=True)},
        **{f"%nctaid.{name}": size for name, size in zip("xyz", grid, strict=True)},
    }
    result = {name: smallest(value).astype(np.uint32) for name, value in values.items()}
    result |= {name: constant(value, "u32") for name, value in constants.items()}
    return result | {name: constant(0, kind) for name, kind in STILL.items()}


def smallest(value: Array) -> Array:
    """The value with every axis along which it does not change cut to length 1."""
    for axis in range(value.ndim):
        first = value.take([0], axis=axis)
        if (value == first).all():
            value = first
    return value
