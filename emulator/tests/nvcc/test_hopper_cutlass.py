"""CUTLASS's own examples of wgmma and TMA on the emulator: nothing of them was written here, and nothing is kept.

The wheel of CUTLASS's headers (requirements/headers.txt) holds the examples' sources; they are compiled
when the tests run. Their products are right. They also do what a GPU forgives, and the emulator says so:
`wgmma_sm90.cu` multiplies tiles that other threads copy, with no barrier after their waits; `wgmma_tma_sm90.cu` has no
fence between the mbarriers' init and the copies, and ends while its last copies are on their way. With that mended no
check has anything to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import metadata, util
from pathlib import Path
import subprocess
from typing import Any

import numpy as np
import pytest
from tests.hopper_programs.program import tools

from flashladder.errors import FlashladderError
from flashladder.files import sha256, write_atomic
from flashladder.paths import BUILD
import ptxemu
from ptxemu.errors import EmulationError
from ptxemu.machine.tensor_map import TensorMap
from ptxemu.values import Array

pytestmark = pytest.mark.nvcc
EXAMPLES = "examples/cute/tutorial/hopper"
M, N, K = 256, 256, 320  # four blocks of 128 x 128; five steps of 64 through a ring of three stages
THREADS, SHARED = 128, 3 * 2 * 128 * 64 * 2 + 6 * 8
WAIT = "cp.async.wait_all;"
SYNC, REFILL = "  cluster_sync();", "    if ((warp_idx == 0) && lane_predicate)\n    {\n      int pipe"
MENDED = (
    (SYNC, f"  cutlass::arch::fence_barrier_init();\n{SYNC}"),
    (REFILL, REFILL.replace("lane_predicate)", "lane_predicate && k_tile_count > 0)")),
)
MAJORS = {"MN-major": "MajorE1", "K-major": "MajorE0"}


def source(file: str) -> tuple[Path, str]:
    """The folder of CUTLASS's sources and the text of one of its examples."""
    found = util.find_spec("cutlass_library")
    if found is None or found.origin is None:
        pytest.skip("pip install --no-deps nvidia-cutlass")
    root = Path(found.origin).parent / "source"
    return root, (root / EXAMPLES / file).read_text(encoding="utf-8")


@cache
def compiled(file: str, changes: tuple[tuple[str, str], ...] = ()) -> str:
    """The PTX of an example, parts of its text replaced; kept in ``build/cutlass`` by what decides it."""
    root, text = source(file)
    for old, new in changes:
        assert text.count(old) == 1, "the example has changed"
        text = text.replace(old, new)
    try:
        found = tools()
    except FlashladderError as error:
        pytest.skip(f"needs the toolchain: {error}")
    decides = (text, metadata.version("nvidia-cutlass"), found.nvcc_flags, sorted(found.ptx_versions.items()))
    folder = BUILD / "cutlass" / sha256(repr(decides))
    out = folder / "kernel.ptx"
    if not out.is_file():
        unit = write_atomic(folder / "kernel.cu", text.encode())
        include = [f"-I{root / part}" for part in ("include", "tools/util/include")]
        host = f"-ccbin={found.host_compiler}"
        command = [found.nvcc, *found.nvcc_flags, host, *include, "-ptx", unit, "-o", folder / "raw.ptx"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        write_atomic(out, (folder / "raw.ptx").read_bytes())
    return out.read_text(encoding="utf-8")


def kernel(ptx: str, major: str) -> ptxemu.Kernel:
    """The one of the example's two kernels that reads its operands so."""
    program = ptxemu.load(ptx, path="example.ptx")
    (name,) = (name for name in program.entries if MAJORS[major] in name)
    return program.kernel(name)


def matrices(major: str) -> tuple[Array, Array, Array]:
    """A and B as the kernel reads them, and A B^T, all of whose sums half precision holds exactly."""
    a, b = (np.random.default_rng(11).integers(-2, 3, (rows, K)).astype(np.float16) for rows in (M, N))
    product = a.astype(np.float32) @ b.astype(np.float32).T
    assert abs(product).max() < 2048  # whole numbers up to there are exact
    kept = (a.T, b.T) if major == "MN-major" else (a, b)
    return *map(np.ascontiguousarray, kept), product  # type: ignore[return-value] # map has no length for mypy


def number(value: int) -> bytes:
    """A structure of one C int."""
    return np.int32(value).tobytes()


def arguments(major: str, maps: bool) -> tuple[tuple[Any, ...], Array, Array]:
    """The kernel's arguments, C (column by column) and what C must hold. Beta is 0, but C is read: it must be there."""
    a, b, product = matrices(major)
    out = np.zeros((N, M), np.float16)
    box = (64, 8) if major == "MN-major" else (64, 128)
    operands: Iterator[Any]
    if maps:  # a tensor map with its empty strides behind it
        operands = (
            part
            for each in (a, b)
            for part in (
                each,
                (TensorMap(each, "f16", each.shape[::-1], each.strides[:1], box, swizzle="128B"), np.int8(0)),
            )
        )
    else:  # a stride, a copy's and a layout's empty structures
        operands = (part for each in (a, b) for part in (each, number(each.shape[1]), bytes(1), bytes(1)))
    shape = tuple(map(np.int32, (M, N, K)))
    factors = (np.float16(1).tobytes(), np.float16(0).tobytes())
    return (shape, bytes(1), *operands, out, number(M), number(1) + bytes(4), *factors), out.T, product


def run(ptx: str, major: str, *, maps: bool) -> tuple[Array, Array, str]:
    """One launch: what came out, what must, and what the checks say."""
    given, out, product = arguments(major, maps)
    hazards = ptxemu.Hazards()
    grid, cluster = (M // 128, N // 128), (2, 1, 1) if maps else None
    kernel(ptx, major).launch(grid, THREADS, given, shared_bytes=SHARED, cluster=cluster, observers=(hazards,))
    return out, product, hazards.render()


@pytest.mark.parametrize("major", MAJORS)
def test_copies_that_other_threads_wait_for_are_a_race(major: str) -> None:
    out, product, said = run(compiled("wgmma_sm90.cu"), major, maps=False)
    np.testing.assert_array_equal(out, product)  # by luck: all warps wait before the first multiplies
    assert "shared RAW (read after write by another thread)" in said
    assert "wgmma.mma_async" in said
    assert "cp.async" in said


@pytest.mark.parametrize("major", MAJORS)
def test_product_of_tiles_that_threads_copy(major: str) -> None:
    ptx = compiled("wgmma_sm90.cu")
    assert ptx.count(WAIT) == len(MAJORS)
    out, product, said = run(ptx.replace(WAIT, f"{WAIT} fence.proxy.async; bar.sync 0;"), major, maps=False)
    np.testing.assert_array_equal(out, product)
    assert said == ""


@pytest.mark.parametrize("major", MAJORS)
def test_copies_on_their_way_at_the_end_are_told(major: str) -> None:
    with pytest.raises(EmulationError, match="which has exited") as caught:
        run(compiled("wgmma_tma_sm90.cu"), major, maps=True)
    assert "cp.async.bulk.tensor" in str(caught.value)


@pytest.mark.parametrize("major", MAJORS)
def test_product_through_tensor_maps(major: str) -> None:
    out, product, said = run(compiled("wgmma_tma_sm90.cu", MENDED), major, maps=True)
    np.testing.assert_array_equal(out, product)
    assert said == ""
