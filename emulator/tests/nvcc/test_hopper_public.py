"""Hopper programs that were not written here: CUB, libcu++, cooperative groups, Triton, CUTLASS's examples.

Nothing of them is kept: their PTX is made when the tests run. Without Triton (``pip install triton``) or the wheel of
CUTLASS's headers (``pip install --no-deps nvidia-cutlass``) their tests are skipped.
"""

from collections.abc import Callable
from functools import cache
from importlib import util
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.compile import BUILD, FAST, NEEDS, ptx, root
from tests.hopper_programs.products import attended, halves, product, rows
from tests.hopper_programs.program import HERE

import ptxemu
from ptxemu.errors import EmulationError
from ptxemu.machine.tensor_map import TensorMap
from ptxemu.syntax.tree import Instruction
from ptxemu.values import Array

pytestmark = [pytest.mark.nvcc, pytest.mark.skipif(not root(), reason=NEEDS)]
THREADS, PER_THREAD = 256, 4  # CUB's block, and how many elements of a tile its host code would choose
TILE = THREADS * PER_THREAD
ROOM = 128  # bytes that CUB leaves before each tile


@cache
def made(file: str) -> ptxemu.Program:
    return ptxemu.load(ptx(HERE / "public" / f"{file}.cu"), path=f"{file}.ptx")


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


def numbers(dtype: Any, count: int, start: int) -> tuple[Array, Array]:
    whole = (np.arange(count + start + TILE) * 7 % 101 - 50).astype(dtype)
    return whole, whole[start : start + count]


@pytest.mark.parametrize("schedule", ["together", "reverse"])
@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize(
    ("functor", "dtypes", "result", "function"),
    [
        ("Saxpy", "f4 f4", np.float32, lambda x, y: 3 * x + y),
        ("Square", "f8", np.float64, lambda x: x * x),
        ("Mix", "i1 i2 i4", np.int32, lambda a, b, c: a.astype(np.int32) + 2 * b.astype(np.int32) + 3 * c),
    ],
)
def test_cub_transforms(
    functor: str, dtypes: str, result: Any, function: Callable[..., Array], start: int, schedule: str
) -> None:
    count = 4 * TILE + 333
    pairs = [numbers(dtype, count, start) for dtype in dtypes.split()]
    out = np.zeros(count, result)
    ins = tuple((whole, np.int32(start * whole.itemsize)) for whole, _ in pairs)
    found = kernel("transform", f"{len(functor)}{functor}", "cp.async.bulk", "mbarrier.try_wait")
    given = (np.int32(count), np.int32(PER_THREAD), bytes(1), out, *ins)
    shared = sum(whole.itemsize * TILE + ROOM for whole, _ in pairs)
    clean(found, -(-count // TILE), THREADS, given, shared_bytes=shared, schedule=schedule)
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


def test_clusters_of_cooperative_groups() -> None:
    values, counts = np.random.default_rng(9).integers(-3, 105, 5000, dtype=np.int32), np.zeros(100, np.int32)
    arguments = (counts, np.int32(100), np.int32(25), values, np.int32(len(values)))
    found = kernel("clusters", "histogram", "mapa", "barrier.cluster.arrive", "barrier.cluster.wait", "atom")
    clean(found, 8, 64, arguments, cluster=4, shared_bytes=100)
    np.testing.assert_array_equal(counts, np.bincount(values.clip(0, 99), minlength=100))
    values, out = np.random.default_rng(10).integers(-99, 99, (8, 128), dtype=np.int32), np.zeros(8, np.int32)
    clean(kernel("clusters", "running_sums", "redux.sync", "mapa"), 8, 128, (values, out), cluster=4)
    np.testing.assert_array_equal(out, values.sum(axis=1).reshape(2, 4).cumsum(axis=1).reshape(8))


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton keeps what it compiles in our folder, and has nothing to ask."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(BUILD / "triton"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")


def described(array: Array) -> tuple[Any, ...]:
    """A descriptor as Triton passes it: the map of boxes of 64 x 64, then shape and strides."""
    strides = (stride // array.itemsize for stride in array.strides)
    return (rows(array), *map(np.int32, array.shape), *map(np.int64, strides))


def launch(name: str, warps: int, grid: tuple[int, ...], *args: Any) -> None:
    pytest.importorskip("triton", reason="pip install triton")
    from tests.hopper_programs.public.triton_kernels import compiled

    by_triton, hazards = compiled(name, warps), ptxemu.Hazards()
    assert "wgmma.mma_async" in by_triton.ptx
    arguments = (*args, np.uint64(0), np.uint64(0))
    found = ptxemu.load(by_triton.ptx, path=f"{name}.ptx").kernel()
    found.launch(grid, by_triton.threads, arguments, shared_bytes=by_triton.shared_bytes, observers=(hazards,))
    # Between init and the first copy Triton has a barrier of the block, but not the fence that the ISA asks for.
    assert {each.kind for each in hazards.reports} <= {"mbarrier fence"}


@pytest.mark.parametrize("warps", [4, 8])
def test_triton_multiplies_through_pointers_and_through_tensor_maps(warps: int) -> None:
    a, b, out = halves(1, 128, 160), halves(2, 160, 192), np.zeros((128, 192), np.float32)
    launch("pointers", warps, (2, 3), a, b, out, np.int32(128), np.int32(192), np.int32(160))
    np.testing.assert_array_equal(out, product(a, b.T))
    a, b, out = halves(3, 128, 320), halves(4, 192, 320), np.zeros((128, 192), np.float16)
    launch("descriptors", warps, (2, 3), *described(a), *described(b), *described(out), np.int32(320))
    np.testing.assert_array_equal(out, product(a, b).astype(np.float16))


def test_triton_attends() -> None:
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal(shape).astype(np.float16) for shape in ((128, 64), (256, 64), (256, 64)))
    out = np.zeros((128, 64), np.float16)
    given = (array for tensor in (q, k, v, out) for array in described(tensor))
    launch("attention", 4, (2,), *given, np.int32(256), np.float32(math.log2(math.e) / 8))
    np.testing.assert_allclose(out.astype(np.float64), attended(q, k, v), atol=3e-3)


# The products of CUTLASS's examples are right. They also do what a GPU forgives: `wgmma_sm90.cu` multiplies tiles that
# other threads copy, with no barrier after their waits; `wgmma_tma_sm90.cu` has no fence between the mbarriers' init
# and the copies, and ends while its last copies are on their way. With that mended no check has anything to say.

M, N, K = 256, 256, 320  # four blocks of 128 x 128; five steps of 64 through a ring of three stages
WAIT = "cp.async.wait_all;"
SYNC, REFILL = "  cluster_sync();", "    if ((warp_idx == 0) && lane_predicate)\n    {\n      int pipe"
MENDED = (
    (SYNC, f"  cutlass::arch::fence_barrier_init();\n{SYNC}"),
    (REFILL, REFILL.replace("lane_predicate)", "lane_predicate && k_tile_count > 0)")),
)
MAJORS = {"MN-major": "MajorE1", "K-major": "MajorE0"}


@cache
def example(file: str, changes: tuple[tuple[str, str], ...] = ()) -> str:
    found = util.find_spec("cutlass_library")
    if found is None or found.origin is None:
        pytest.skip("pip install --no-deps nvidia-cutlass")
    folder = Path(found.origin).parent / "source"
    source = folder / "examples/cute/tutorial/hopper" / file
    text = source.read_text(encoding="utf-8")
    for old, new in changes:
        assert text.count(old) == 1, "the example has changed"
        text = text.replace(old, new)
    include = (f"-I{folder / part}" for part in ("include", "tools/util/include"))
    return ptx(source, (*FAST, *include), headers=[folder / "include/cutlass/version.h"], text=text)


def multiplied(text: str, major: str, *, maps: bool) -> tuple[Array, Array, str]:
    """One launch of the example's kernel for a major: what came out, what must, and what the checks say."""
    a, b = (np.random.default_rng(11).integers(-2, 3, (rows, K)).astype(np.float16) for rows in (M, N))
    wanted, out = product(a, b), np.zeros((N, M), np.float16)  # C column by column; it is read, though beta is 0
    assert abs(wanted).max() < 2048  # whole numbers up to there are exact in half precision
    a, b = (np.ascontiguousarray(each.T if major == "MN-major" else each) for each in (a, b))
    operands: list[Any] = []
    for each in (a, b):
        if maps:  # a tensor map with its empty strides behind it
            box = (64, 8) if major == "MN-major" else (64, 128)
            tensor = TensorMap(each, "f16", each.shape[::-1], each.strides[:1], box, swizzle="128B")
            operands += [each, (tensor, np.int8(0))]
        else:  # a stride, a copy's and a layout's empty structures
            operands += [each, np.int32(each.shape[1]).tobytes(), bytes(1), bytes(1)]
    shape, one = tuple(map(np.int32, (M, N, K))), np.int32(1).tobytes()
    factors = (np.float16(1).tobytes(), np.float16(0).tobytes())
    given = (shape, bytes(1), *operands, out, np.int32(M).tobytes(), one + bytes(4), *factors)
    program, hazards = ptxemu.load(text, path="example.ptx"), ptxemu.Hazards()
    (name,) = (name for name in program.entries if MAJORS[major] in name)
    shared, cluster = 3 * 2 * 128 * 64 * 2 + 6 * 8, (2, 1, 1) if maps else None
    options: dict[str, Any] = {"shared_bytes": shared, "cluster": cluster, "observers": (hazards,)}
    program.kernel(name).launch((M // 128, N // 128), 128, given, **options)
    return out.T, wanted, hazards.render()


@pytest.mark.parametrize("major", MAJORS)
def test_product_of_tiles_that_threads_copy(major: str) -> None:
    """Copies that other threads wait for are a race, though the numbers are right by luck: all warps wait first."""
    text = example("wgmma_sm90.cu")
    assert text.count(WAIT) == len(MAJORS)
    out, wanted, said = multiplied(text, major, maps=False)
    np.testing.assert_array_equal(out, wanted)
    for part in ("shared RAW (read after write by another thread)", "wgmma.mma_async", "cp.async"):
        assert part in said
    out, wanted, said = multiplied(text.replace(WAIT, f"{WAIT} fence.proxy.async; bar.sync 0;"), major, maps=False)
    np.testing.assert_array_equal(out, wanted)
    assert said == ""


@pytest.mark.parametrize("major", MAJORS)
def test_product_through_tensor_maps(major: str) -> None:
    """As it stands it ends while copies are on their way."""
    with pytest.raises(EmulationError, match="which has exited") as caught:
        multiplied(example("wgmma_tma_sm90.cu"), major, maps=True)
    assert "cp.async.bulk.tensor" in str(caught.value)
    out, wanted, said = multiplied(example("wgmma_tma_sm90.cu", MENDED), major, maps=True)
    np.testing.assert_array_equal(out, wanted)
    assert said == ""
