"""Broken Hopper kernels must be caught, each with its kind, words and line; their correct twins pass.

Each CUDA file of `hopper/kernels` marks a defect with ``BROKEN <kernel>``. An error, a report of the race detector, or
numbers that differ from the twin's catch it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tests.compile import NEEDS, ptx, root
from tests.hopper_programs.layouts import k_major
from tests.hopper_programs.products import halves, product
from tests.hopper_programs.program import HEADERS, Run

import ptxemu
from ptxemu.machine.tensor_map import TensorMap
from ptxemu.syntax.tree import Instruction
from ptxemu.values import Array
from tests.broken.defects import MAX_INSTRUCTIONS, kernel_of, lines_of, marked, ramp, require_all_tried

pytestmark = [pytest.mark.nvcc, pytest.mark.skipif(not root(), reason=NEEDS)]
KERNELS = Path(__file__).parent / "hopper" / "kernels"
PAIR = Path(__file__).parent / "kernels" / "pair.cuh"


@dataclass(frozen=True, eq=False)
class Defect:
    """A launch that must be caught, and whose twin must not.

    Attributes:
        make: arguments, and what the twin must leave where.
        caught: kinds of errors or reports, any of which tells; "numbers" where only they do.
        says: what the message must say.
    """

    file: str
    kernel: str
    make: Callable[[], Run]
    caught: tuple[str, ...]
    says: str = ""
    threads: int = 64
    grid: int = 1
    cluster: int = 1
    schedule: str | int = "together"  # in which it shows

    def __str__(self) -> str:
        return self.kernel


@dataclass(frozen=True)
class Seen:
    """What one launch showed: (kind, message, instructions) of each complaint, and whether the numbers were right."""

    complaints: tuple[tuple[str, str, tuple[Instruction, ...]], ...]
    right: bool


@cache
def program(file: str) -> ptxemu.Program:
    """A file on the emulator."""
    path = KERNELS / file
    text = path.read_text(encoding="utf-8") if file.endswith(".ptx") else ptx(path, headers=(PAIR, *HEADERS))
    return ptxemu.load(text, path=file.replace(".cu", ".ptx"))


def see(defect: Defect, *, fixed: bool, schedule: str | int) -> Seen:
    """Launches the kernel or its twin with counters and the race detector."""
    run, hazards = defect.make(), ptxemu.Hazards()
    try:
        kernel_of(program(defect.file), defect.file, defect.kernel, fixed=fixed).launch(
            defect.grid,
            defect.threads,
            run.arguments,
            cluster=defect.cluster if defect.cluster > 1 else None,
            observers=(ptxemu.Counters(), hazards),
            max_instructions=MAX_INSTRUCTIONS,
            schedule=schedule,
        )
    except ptxemu.EmulationError as error:
        where = (error.instruction,) if isinstance(error.instruction, Instruction) else ()
        return Seen(((error.kind, str(error), where),), right=False)
    found = tuple((each.kind, each.render(), (each.first, each.second)) for each in hazards.reports)
    return Seen(found, all(np.array_equal(*each) for each in run.results))


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
    array = ramp(256)
    if swizzle == "none":
        return TensorMap(array, "f32", (256,), (), (64,))
    return TensorMap(array, "f32", (32, 8), (128,), (32, 8), swizzle=swizzle)


def _with_map(*more: Array, swizzle: str = "none") -> Callable[[], Run]:
    def make() -> Run:
        out, given = np.zeros(64, np.float32), _map(swizzle)
        wanted = ramp(64) if swizzle == "none" else 4 * ramp(64)  # the first float of each unit of 16 bytes
        return Run((out, given, *more), ((out, wanted),))

    return make


def _overlapping() -> Run:
    array = np.zeros((8, 16), np.float32)
    wanted = np.concatenate([100 + ramp(64), 200 + ramp(64)]).reshape(8, 16)
    return Run((TensorMap(array, "f32", (16, 8), (64,), (16, 4)),), ((array, wanted),))


def _image(matrix: Array) -> Array:
    return k_major(matrix, "128B").image


A, B = halves(91, 64, 64), halves(92, 64, 64)
TILES = only(product(A, B), _image(A), _image(B))
FIRST_STEP = only(product(A[:, :16], B[:, :16]), _image(A), _image(B))
DOUBLED = B[:, :16].sum(1, dtype=np.float32) + 2 * B[:, 16:32].sum(1, dtype=np.float32)
NUMBERS = ("numbers",)

PROTOCOLS = (
    Defect("asynchronous.cu", "wrong_parity", only(ramp(32)[::-1].copy()), MEMORY),
    Defect("asynchronous.cu", "waits_for_itself", only((5 * ramp(32)[::-1] + 10).astype(np.float32), 5), ("deadlock",),
           "never completes"),
    Defect("asynchronous.cu", "count_too_high", only(ramp(32)[::-1].copy()), ("deadlock",), "1 of 33 arrivals"),
    Defect("asynchronous.cu", "count_too_low", only(3 * ramp(32) + 96), MEMORY, threads=128, schedule="reverse"),
    Defect("asynchronous.cu", "expects_too_little", only(ramp(64)[::-1].copy(), ramp(64)), ("deadlock", "mbarrier")),
    Defect("asynchronous.cu", "expects_too_much", only(ramp(64)[::-1].copy(), ramp(64)), ("deadlock",), "16"),
    Defect("asynchronous.cu", "expects_nothing", only(ramp(64)[::-1].copy(), ramp(64)), MEMORY),
    Defect("asynchronous.cu", "not_initialised", only(ramp(64), ramp(64)), ("mbarrier", "uninitialised"), "init"),
    Defect("asynchronous.cu", "overwritten", only(ramp(64)[::-1].copy()), ("mbarrier",)),
    Defect("asynchronous.cu", "never_given_back", only(_sums(ramp(256)), ramp(256), 4), ("deadlock",),
           "never completes"),
    Defect("asynchronous.cu", "given_back_too_early", only(_sums(ramp(256)), ramp(256), 4), MEMORY),
)  # fmt: skip
TRANSFERS = (
    Defect("asynchronous.cu", "no_proxy_fence", only(ramp(64)), ("proxy",), "fence.proxy.async"),
    Defect("asynchronous.cu", "no_barrier_after_fence", only(ramp(64)), MEMORY),
    Defect("asynchronous.cu", "source_overwritten", only(_rounds(4), 4), MEMORY),
    Defect("asynchronous.cu", "one_group_too_many", only(_rounds(5), 5), MEMORY),
    Defect("asynchronous.cu", "exits_before_reading", only(ramp(64)), ("exited",)),
    Defect("asynchronous.cu", "read_before_it_landed", only(ramp(64)[::-1].copy(), ramp(64)), MEMORY),
    Defect("asynchronous.cu", "misaligned_tile", only(ramp(64), ramp(64)), ("misaligned",)),
    Defect("asynchronous.cu", "odd_size", only(ramp(64), ramp(64)), ("misaligned", "arguments", "out-of-bounds"),
           "16"),
    Defect("asynchronous.cu", "no_map", _with_map(ramp(64)), ("tensor map",)),
    Defect("asynchronous.cu", "another_rank", _with_map(), ("tensor map",)),
    Defect("asynchronous.cu", "swizzle_misplaced", _with_map(swizzle="128B"), NUMBERS),
    Defect("asynchronous.cu", "overlapping_stores", _overlapping, ("WAW",), grid=2),
)  # fmt: skip
PRODUCTS = (
    Defect("products.cu", "no_fence", TILES, ("missing-fence",), "wgmma.fence", 128),
    Defect("products.cu", "no_wait", TILES, ("in-flight",), "not waited for", 128),
    Defect("products.cu", "one_may_be_left", TILES, ("in-flight",), "not waited for", 128),
    Defect("products.cu", "no_commit", TILES, ("in-flight",), "not waited for", 128),
    Defect("products.cu", "operand_overwritten", only(np.tile(DOUBLED, (64, 1)), _image(B)), ("in-flight",),
           "overwritten", 128),
    Defect("products.cu", "tile_overwritten", TILES, MEMORY, threads=128),
    Defect("products.cu", "tile_without_proxy_fence", TILES, ("proxy",), "fence.proxy.async", 128),
    *(Defect("products.cu", name, FIRST_STEP, NUMBERS, threads=128) for name in ("wrong_swizzle", "wrong_stride")),
    *(Defect("products.cu", name, FIRST_STEP, NUMBERS, threads=128) for name in ("wrong_leading", "wrong_start")),
)  # fmt: skip
PEER = (4 * np.arange(32) + 6 + 400 - 32 * np.maximum(0, np.arange(32) - 28)).astype(np.uint32)
ROWS = np.concatenate([np.arange(31, -1, -1), np.arange(131, 99, -1)]).astype(np.int32)
CROSSED = np.concatenate([100 + np.arange(32), np.arange(32)]).astype(np.uint32)
PAIRS = np.tile(ramp(256).reshape(4, 2, 32).sum((0, 1)), 2).astype(np.float32)
ROLES = (
    Defect("asynchronous.cu", "one_warp_gives", only(np.arange(256, dtype=np.int32)), ("registers", "divergent-warp"),
           threads=256),
    Defect("asynchronous.cu", "nobody_gives", only(np.arange(384, dtype=np.int32)), ("deadlock", "registers"),
           threads=384),
    Defect("registers.ptx", "odd_count", only(np.arange(128, dtype=np.int32)), ("registers", "syntax"), threads=128),
    Defect("asynchronous.cu", "barrier_shared", only(ROWS), (*MEMORY, "deadlock"), threads=128),
    Defect("asynchronous.cu", "two_counts", only(np.arange(31, -1, -1, dtype=np.int32)), ("divergent-barrier",)),
    Defect("asynchronous.cu", "peer_has_left", only(PEER), ("exited", "exit"), "", 32, 2, 2),
    Defect("asynchronous.cu", "remote_race", only(CROSSED), ("RAW", "WAR"), "", 32, 2, 2),
    Defect("asynchronous.cu", "no_such_block", only(np.tile(ramp(64), 2), ramp(64)), ("out-of-bounds", "arguments"),
           "", 64, 2, 2),
    Defect("asynchronous.cu", "given_back_at_home", only(PAIRS, ramp(256), 4), ("deadlock",), "never completes", 64, 2,
           2),
    Defect("asynchronous.cu", "arrives_too_soon", only(np.ones(32, np.uint32)), ("mbarrier", "uninitialised"), "", 32,
           2, 2),
)  # fmt: skip
DEFECTS = (*PROTOCOLS, *TRANSFERS, *PRODUCTS, *ROLES)
SCHEDULES = ("together", "reverse", 1)


def complaint(defect: Defect, seen: Seen) -> bool:
    """Whether a launch was caught as it should be, where it should be."""
    broken = marked(KERNELS / defect.file, "BROKEN", defect.kernel)
    return any(
        kind in defect.caught
        and defect.says in message
        and any(lines_of(instruction, defect.file) & broken for instruction in instructions)
        for kind, message, instructions in seen.complaints
    )


@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_the_defect_is_caught(defect: Defect) -> None:
    seen = see(defect, fixed=False, schedule=defect.schedule)
    if defect.caught == ("numbers",):
        assert (seen.complaints, seen.right) == ((), False)
    else:
        assert complaint(defect, seen), seen.complaints or "nothing was reported"


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_the_twin_is_clean(defect: Defect, schedule: str | int) -> None:
    seen = see(defect, fixed=True, schedule=schedule)
    assert [message for _, message, _ in seen.complaints] == []
    assert seen.right


def test_every_kernel_of_the_folder_is_tried() -> None:
    require_all_tried(KERNELS, {defect.kernel for defect in DEFECTS})
