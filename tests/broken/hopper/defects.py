"""Broken Hopper kernels: how each is launched, what its twin computes, and what tells that it is broken."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tests.hopper_programs.layouts import k_major
from tests.hopper_programs.products import halves, product
from tests.hopper_programs.program import Run

from ptxemu.machine.tensor_map import TensorMap
from ptxemu.values import Array
from tests.broken.hopper.harness import Defect

MEMORY = (
    "RAW",
    "WAR",
    "WAW",
    "uninitialised",
    "in-flight",
    "in-flight read",
    "in-flight write",
    "async overwrite",
    "proxy",
)


def floats(count: int) -> Array:
    """0, 1, 2, ... as floats."""
    return np.arange(count, dtype=np.float32)


def only(wanted: Array, *more: object) -> Callable[[], Run]:
    """A result and other arguments; arrays are copied for each launch."""

    def make() -> Run:
        out = np.zeros_like(wanted)
        return Run((out, *(each.copy() if isinstance(each, np.ndarray) else each for each in more)), ((out, wanted),))

    return make


def _rounds(count: int) -> Array:
    """What source_overwritten and its like store: 100 * round + thread."""
    return (100 * np.arange(count)[:, None] + np.arange(64)).astype(np.float32)


def _sums(tiles: Array) -> Array:
    return np.asarray(tiles.reshape(-1, 64)[:, ::2].sum(0), np.float32)


def _map(swizzle: str = "none") -> TensorMap:
    array = floats(256)
    if swizzle == "none":
        return TensorMap(array, "f32", (256,), (), (64,))
    return TensorMap(array, "f32", (32, 8), (128,), (32, 8), swizzle=swizzle)


def _with_map(*more: Array, swizzle: str = "none") -> Callable[[], Run]:
    def make() -> Run:
        out, given = np.zeros(64, np.float32), _map(swizzle)
        wanted = floats(64) if swizzle == "none" else 4 * floats(64)  # the first float of each unit of 16 bytes
        return Run((out, given, *more), ((out, wanted),))

    return make


def _overlapping() -> Run:
    array = np.zeros((8, 16), np.float32)
    wanted = np.concatenate([100 + floats(64), 200 + floats(64)]).reshape(8, 16)
    return Run((TensorMap(array, "f32", (16, 8), (64,), (16, 4)),), ((array, wanted),))


def _image(matrix: Array) -> Array:
    return k_major(matrix, "128B").image


A, B = halves(91, 64, 64), halves(92, 64, 64)
TILES = only(product(A, B), _image(A), _image(B))
FIRST_STEP = only(product(A[:, :16], B[:, :16]), _image(A), _image(B))
DOUBLED = B[:, :16].sum(1, dtype=np.float32) + 2 * B[:, 16:32].sum(1, dtype=np.float32)
NUMBERS = ("numbers",)

PROTOCOLS = (
    Defect("protocols.cu", "wrong_parity", only(floats(32)[::-1].copy()), MEMORY),
    Defect(
        "protocols.cu",
        "waits_for_itself",
        only((5 * floats(32)[::-1] + 10).astype(np.float32), 5),
        ("deadlock",),
        "never completes",
    ),
    Defect("protocols.cu", "count_too_high", only(floats(32)[::-1].copy()), ("deadlock",), "1 of 33 arrivals"),
    Defect("protocols.cu", "count_too_low", only(3 * floats(32) + 96), MEMORY, threads=128, schedule="reverse"),
    Defect("protocols.cu", "expects_too_little", only(floats(64)[::-1].copy(), floats(64)), ("deadlock", "mbarrier")),
    Defect("protocols.cu", "expects_too_much", only(floats(64)[::-1].copy(), floats(64)), ("deadlock",), "16"),
    Defect("protocols.cu", "expects_nothing", only(floats(64)[::-1].copy(), floats(64)), MEMORY),
    Defect("protocols.cu", "not_initialised", only(floats(64), floats(64)), ("mbarrier", "uninitialised"), "init"),
    Defect("protocols.cu", "overwritten", only(floats(64)[::-1].copy()), ("mbarrier",)),
    Defect(
        "protocols.cu", "never_given_back", only(_sums(floats(256)), floats(256), 4), ("deadlock",), "never completes"
    ),
    Defect("protocols.cu", "given_back_too_early", only(_sums(floats(256)), floats(256), 4), MEMORY),
)
TRANSFERS = (
    Defect("transfers.cu", "no_proxy_fence", only(floats(64)), ("proxy",), "fence.proxy.async"),
    Defect("transfers.cu", "no_barrier_after_fence", only(floats(64)), MEMORY),
    Defect("transfers.cu", "source_overwritten", only(_rounds(4), 4), MEMORY),
    Defect("transfers.cu", "one_group_too_many", only(_rounds(5), 5), MEMORY),
    Defect("transfers.cu", "exits_before_reading", only(floats(64)), ("exited",)),
    Defect("transfers.cu", "read_before_it_landed", only(floats(64)[::-1].copy(), floats(64)), MEMORY),
    Defect("transfers.cu", "misaligned_tile", only(floats(64), floats(64)), ("misaligned",)),
    Defect(
        "transfers.cu", "odd_size", only(floats(64), floats(64)), ("misaligned", "arguments", "out-of-bounds"), "16"
    ),
    Defect("transfers.cu", "no_map", _with_map(floats(64)), ("tensor map",)),
    Defect("transfers.cu", "another_rank", _with_map(), ("tensor map",)),
    Defect("transfers.cu", "swizzle_misplaced", _with_map(swizzle="128B"), NUMBERS),
    Defect("transfers.cu", "overlapping_stores", _overlapping, ("WAW",), grid=2),
)
PRODUCTS = (
    Defect("products.cu", "no_fence", TILES, ("missing-fence",), "wgmma.fence", 128),
    Defect("products.cu", "no_wait", TILES, ("in-flight",), "not waited for", 128),
    Defect("products.cu", "one_may_be_left", TILES, ("in-flight",), "not waited for", 128),
    Defect("products.cu", "no_commit", TILES, ("in-flight",), "not waited for", 128),
    Defect(
        "products.cu",
        "operand_overwritten",
        only(np.tile(DOUBLED, (64, 1)), _image(B)),
        ("in-flight",),
        "overwritten",
        128,
    ),
    Defect("products.cu", "tile_overwritten", TILES, MEMORY, threads=128),
    Defect("products.cu", "tile_without_proxy_fence", TILES, ("proxy",), "fence.proxy.async", 128),
    *(Defect("products.cu", name, FIRST_STEP, NUMBERS, threads=128) for name in ("wrong_swizzle", "wrong_stride")),
    *(Defect("products.cu", name, FIRST_STEP, NUMBERS, threads=128) for name in ("wrong_leading", "wrong_start")),
    Defect("products.cu", "three_warps", TILES, ("divergent-warp",), threads=128),
    Defect("products.cu", "half_a_warp", TILES, ("divergent-warp",), threads=128),
)
PEER = (4 * np.arange(32) + 6 + 400 - 32 * np.maximum(0, np.arange(32) - 28)).astype(np.uint32)
ROWS = np.concatenate([np.arange(31, -1, -1), np.arange(131, 99, -1)]).astype(np.int32)
CROSSED = np.concatenate([100 + np.arange(32), np.arange(32)]).astype(np.uint32)
PAIRS = np.tile(floats(256).reshape(4, 2, 32).sum((0, 1)), 2).astype(np.float32)
ROLES = (
    Defect(
        "roles.cu", "one_warp_gives", only(np.arange(256, dtype=np.int32)), ("registers", "divergent-warp"), threads=256
    ),
    Defect("roles.cu", "nobody_gives", only(np.arange(384, dtype=np.int32)), ("deadlock", "registers"), threads=384),
    Defect("registers.ptx", "odd_count", only(np.arange(128, dtype=np.int32)), ("registers", "syntax"), threads=128),
    Defect("roles.cu", "barrier_shared", only(ROWS), (*MEMORY, "deadlock"), threads=128),
    Defect("roles.cu", "two_counts", only(np.arange(31, -1, -1, dtype=np.int32)), ("divergent-barrier",)),
    Defect("roles.cu", "peer_has_left", only(PEER), ("exited", "exit"), "", 32, 2, 2),
    Defect("roles.cu", "remote_race", only(CROSSED), ("RAW", "WAR"), "", 32, 2, 2),
    Defect(
        "roles.cu",
        "no_such_block",
        only(np.tile(floats(64), 2), floats(64)),
        ("out-of-bounds", "arguments"),
        "",
        64,
        2,
        2,
    ),
    Defect("roles.cu", "given_back_at_home", only(PAIRS, floats(256), 4), ("deadlock",), "never completes", 64, 2, 2),
    Defect("roles.cu", "arrives_too_soon", only(np.ones(32, np.uint32)), ("mbarrier", "uninitialised"), "", 32, 2, 2),
)
DEFECTS = (*PROTOCOLS, *TRANSFERS, *PRODUCTS, *ROLES)
