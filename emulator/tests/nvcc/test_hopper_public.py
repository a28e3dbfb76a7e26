"""Hopper programs that were not written here: what the wheels' headers hold, and what Triton's compiler makes.

Kernels of CUB; libcu++'s copies, barriers and pipelines; the clusters of cooperative groups. Nothing of them is
kept: their PTX is made when the tests run. Triton is no requirement of this project; without it its tests are skipped
(``pip install triton``). CUTLASS's examples: test_hopper_cutlass.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
import math
from typing import Any

import numpy as np
import pytest
from tests.hopper_programs.products import halves, product
from tests.hopper_programs.program import HERE, tools

from flashladder.build.scheduler import fill_all
from flashladder.build.store import ptx_entry
from flashladder.errors import FlashladderError
from flashladder.paths import BUILD
import ptxemu
from ptxemu.machine.tensor_map import TensorMap
from ptxemu.syntax.tree import Instruction
from ptxemu.values import Array

pytestmark = pytest.mark.nvcc
PUBLIC = HERE / "public"
THREADS, PER_THREAD = 256, 4  # CUB's block, and how many elements of a tile its host code would choose
TILE = THREADS * PER_THREAD
ROOM = 128  # bytes that CUB leaves before each tile


@cache
def made(file: str) -> ptxemu.Program:
    """The kernels of a file of `PUBLIC`."""
    entry = ptx_entry(f'#include "{file}.cu"\n', PUBLIC, [PUBLIC / f"{file}.cu"], tools())
    try:
        fill_all([entry])
    except FlashladderError as error:
        pytest.skip(f"needs the toolchain: {error}")
    return ptxemu.load(entry.ptx.read_text(encoding="utf-8"), path=f"{file}.ptx")


def kernel(file: str, part: str, *opcodes: str) -> ptxemu.Kernel:
    """The one kernel whose name has a part; it has to use these opcodes, or it would witness nothing."""
    (name,) = (name for name in made(file).entries if part in name)
    found = made(file).kernel(name)
    used = " ".join(each.opcode for each in found.function.body if isinstance(each, Instruction))
    assert all(opcode in used for opcode in opcodes), f"{part} uses none of {opcodes}"
    return found


def clean(kernel: ptxemu.Kernel, *launch: Any, forgiven: str = "", **options: Any) -> None:
    """One launch about which no check has anything to say but one kind of report, which it must have."""
    hazards = ptxemu.Hazards()
    kernel.launch(*launch, observers=(hazards,), **options)
    assert {each.kind for each in hazards.reports} == ({forgiven} if forgiven else set()), hazards.render()


def numbers(dtype: type[np.generic], count: int, start: int) -> tuple[Array, Array]:
    """An array, and the part of it behind `start` elements."""
    whole = (np.arange(count + start + TILE) * 7 % 101 - 50).astype(dtype)
    return whole, whole[start : start + count]


@pytest.mark.parametrize("schedule", ["together", "reverse"])
@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize(
    ("functor", "dtypes", "result", "function"),
    [
        ("Saxpy", (np.float32, np.float32), np.float32, lambda x, y: 3 * x + y),
        ("Square", (np.float64,), np.float64, lambda x: x * x),
        (
            "Mix",
            (np.int8, np.int16, np.int32),
            np.int32,
            lambda a, b, c: a.astype(np.int32) + 2 * b.astype(np.int32) + 3 * c,
        ),
    ],
)
def test_cub_transforms(
    functor: str,
    dtypes: tuple[type[np.generic], ...],
    result: type[np.generic],
    function: Callable[..., Array],
    start: int,
    schedule: str,
) -> None:
    count = 4 * TILE + 333
    pairs = [numbers(dtype, count, start) for dtype in dtypes]
    out = np.zeros(count, result)
    ins = tuple((whole, np.int32(start * whole.itemsize)) for whole, _ in pairs)
    clean(
        kernel("transform", f"{len(functor)}{functor}", "cp.async.bulk", "mbarrier.try_wait"),
        -(-count // TILE),
        THREADS,
        (np.int32(count), np.int32(PER_THREAD), bytes(1), out, *ins),
        shared_bytes=sum(whole.itemsize * TILE + ROOM for whole, _ in pairs),
        schedule=schedule,
    )
    np.testing.assert_array_equal(out, function(*(part for _, part in pairs)))


def test_bulk_copies_of_libcu() -> None:
    opcodes = ("cp.async.bulk.shared", "mbarrier.arrive.expect_tx", "cp.async.bulk.global", "fence.proxy.async")
    source, out = np.arange(3072, dtype=np.float32), np.zeros(3072, np.float32)
    clean(kernel("copies", "tile_there_and_back", *opcodes), 3, 96, (source, out))
    np.testing.assert_array_equal(out, 2 * source)


@pytest.mark.parametrize(
    ("name", "threads", "opcodes", "forgiven"),
    [
        ("sum_tiles", 128, ("cp.async.bulk.shared", "mbarrier.expect_tx"), ""),
        # The last thread to count down an atomic number ends the barriers: order by atomics is not followed.
        ("sum_in_roles", 160, ("cp.async.mbarrier.arrive", "mbarrier.try_wait"), "mbarrier"),
    ],
)
@pytest.mark.parametrize("schedule", ["together", "reverse", 3])
def test_barriers_and_pipelines_of_libcu(
    name: str, threads: int, opcodes: tuple[str, ...], forgiven: str, schedule: str | int
) -> None:
    source = np.random.default_rng(8).integers(-999, 999, (7, 1024), dtype=np.int32)
    out = np.zeros(1024, np.int32)
    arguments = (source, out, np.int32(len(source)))
    clean(kernel("copies", name, *opcodes), 1, threads, arguments, schedule=schedule, forgiven=forgiven)
    np.testing.assert_array_equal(out, source.sum(axis=0))


def test_histogram_of_cooperative_groups() -> None:
    values, counts = np.random.default_rng(9).integers(-3, 105, 5000, dtype=np.int32), np.zeros(100, np.int32)
    arguments = (counts, np.int32(100), np.int32(25), values, np.int32(len(values)))
    found = kernel("clusters", "histogram", "mapa", "barrier.cluster.arrive", "barrier.cluster.wait", "atom")
    clean(found, 8, 64, arguments, cluster=4, shared_bytes=100)
    np.testing.assert_array_equal(counts, np.bincount(values.clip(0, 99), minlength=100))


def test_running_sums_of_cooperative_groups() -> None:
    values, out = np.random.default_rng(10).integers(-99, 99, (8, 128), dtype=np.int32), np.zeros(8, np.int32)
    clean(kernel("clusters", "running_sums", "redux.sync", "mapa"), 8, 128, (values, out), cluster=4)
    np.testing.assert_array_equal(out, values.sum(axis=1).reshape(2, 4).cumsum(axis=1).reshape(8))


def rows(array: Array) -> tuple[Any, ...]:
    """A descriptor as Triton passes it: the map of boxes of 64 x 64, then shape and strides."""
    tensor_map = TensorMap(array, "f16", array.shape[::-1], array.strides[:1], (64, 64), swizzle="128B")
    strides = (stride // array.itemsize for stride in array.strides)
    return (tensor_map, *map(np.int32, array.shape), *map(np.int64, strides))


def launch(name: str, warps: int, grid: tuple[int, ...], *args: Any) -> None:
    """One launch of one of Triton's kernels."""
    pytest.importorskip("triton", reason="pip install triton")
    from tests.hopper_programs.public.triton_kernels import compiled

    by_triton, hazards = compiled(name, warps), ptxemu.Hazards()
    assert "wgmma.mma_async" in by_triton.ptx
    arguments = (*args, np.uint64(0), np.uint64(0))
    found = ptxemu.load(by_triton.ptx, path=f"{name}.ptx").kernel()
    found.launch(grid, by_triton.threads, arguments, shared_bytes=by_triton.shared_bytes, observers=(hazards,))
    # Between init and the first copy Triton has a barrier of the block, but not the fence that the ISA asks for.
    assert {each.kind for each in hazards.reports} <= {"mbarrier fence"}


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton keeps what it compiles in our folder, and has nothing to ask."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(BUILD / "triton"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")


@pytest.mark.parametrize("warps", [4, 8])
def test_triton_multiplies_through_pointers(warps: int) -> None:
    a, b, out = halves(1, 128, 160), halves(2, 160, 192), np.zeros((128, 192), np.float32)
    launch("pointers", warps, (2, 3), a, b, out, np.int32(128), np.int32(192), np.int32(160))
    np.testing.assert_array_equal(out, product(a, b.T))


@pytest.mark.parametrize("warps", [4, 8])
def test_triton_multiplies_through_tensor_maps(warps: int) -> None:
    a, b, out = halves(3, 128, 320), halves(4, 192, 320), np.zeros((128, 192), np.float16)
    launch("descriptors", warps, (2, 3), *rows(a), *rows(b), *rows(out), np.int32(320))
    np.testing.assert_array_equal(out, product(a, b).astype(np.float16))


def test_triton_attends() -> None:
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal(shape).astype(np.float16) for shape in ((128, 64), (256, 64), (256, 64)))
    scores = q.astype(np.float64) @ k.astype(np.float64).T / 8
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    wanted = weights / weights.sum(axis=1, keepdims=True) @ v.astype(np.float64)
    out = np.zeros((128, 64), np.float16)
    given = (array for tensor in (q, k, v, out) for array in rows(tensor))
    launch("attention", 4, (2,), *given, np.int32(256), np.float32(math.log2(math.e) / 8))
    np.testing.assert_allclose(out.astype(np.float64), wanted, atol=3e-3)
