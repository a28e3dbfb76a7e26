"""Hopper kernels that were not written here: CUB's, from the wheels' headers, and what Triton's compiler makes.

Nothing of them is kept: their PTX is made when the tests run. Triton is no requirement of this project; without it its
tests are skipped (``pip install triton``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
import math
from typing import Any

import numpy as np
import pytest

from flashladder import emulator
from flashladder.build.scheduler import fill_all
from flashladder.build.store import ptx_entry
from flashladder.emulator.machine.copies.tensor_map import TensorMap
from flashladder.emulator.values import Array
from flashladder.errors import FlashladderError
from flashladder.paths import BUILD
from tests.hopper_programs.products import halves, product
from tests.hopper_programs.program import HERE, tools

pytestmark = pytest.mark.nvcc
PUBLIC = HERE / "public"
THREADS, PER_THREAD = 256, 4  # CUB's block, and how many elements of a tile its host code would choose
TILE = THREADS * PER_THREAD
ROOM = 128  # bytes that CUB leaves before each tile


@cache
def transforms() -> emulator.Program:
    """CUB's kernels."""
    source = PUBLIC / "transform.cu"
    entry = ptx_entry('#include "transform.cu"\n', PUBLIC, [source], tools())
    try:
        fill_all([entry])
    except FlashladderError as error:
        pytest.skip(f"needs the toolchain: {error}")
    return emulator.load(entry.ptx.read_text(encoding="utf-8"), path="transform.ptx")


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
    count, hazards = 4 * TILE + 333, emulator.Hazards()
    pairs = [numbers(dtype, count, start) for dtype in dtypes]
    out = np.zeros(count, result)
    ins = tuple((whole, np.int32(start * whole.itemsize)) for whole, _ in pairs)
    (name,) = (name for name in transforms().entries if f"{len(functor)}{functor}" in name)
    kernel = transforms().kernel(name)
    assert any("cp.async.bulk" in str(item) for item in kernel.function.body)
    kernel.launch(
        -(-count // TILE),
        THREADS,
        (np.int32(count), np.int32(PER_THREAD), bytes(1), out, *ins),
        shared_bytes=sum(whole.itemsize * TILE + ROOM for whole, _ in pairs),
        observers=(hazards,),
        schedule=schedule,
    )
    np.testing.assert_array_equal(out, function(*(part for _, part in pairs)))
    assert hazards.render() == ""


def rows(array: Array) -> tuple[Any, ...]:
    """A descriptor as Triton passes it: the map of boxes of 64 x 64, then shape and strides."""
    tensor_map = TensorMap(array, "f16", array.shape[::-1], array.strides[:1], (64, 64), swizzle="128B")
    strides = (stride // array.itemsize for stride in array.strides)
    return (tensor_map, *map(np.int32, array.shape), *map(np.int64, strides))


def launch(name: str, warps: int, grid: tuple[int, ...], *args: Any) -> None:
    """One launch of one of Triton's kernels."""
    pytest.importorskip("triton", reason="pip install triton")
    from tests.hopper_programs.public.triton_kernels import compiled

    made, hazards = compiled(name, warps), emulator.Hazards()
    assert "wgmma.mma_async" in made.ptx
    scratch = (np.uint64(0), np.uint64(0))
    kernel = emulator.load(made.ptx, path=f"{name}.ptx").kernel()
    kernel.launch(grid, made.threads, (*args, *scratch), shared_bytes=made.shared_bytes, observers=(hazards,))
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
