"""ldmatrix and movmatrix on many blocks and warps: rows that lanes name, masks, events, errors that name the lane."""

from __future__ import annotations

import numpy as np
import pytest
from tests.stepping import Bench, at

from ptxemu.errors import EmulationError
from ptxemu.isa import matrix
from ptxemu.machine.shared import SharedMemory
from ptxemu.table import ROWS
from ptxemu.values import Array

LDMATRIX = "ldmatrix.sync.aligned.m8n8.{}.shared.b16"


def test_the_rows_are_in_the_table() -> None:
    assert ROWS[LDMATRIX.format("x4.trans")].function is matrix.ldmatrix


def filled(bench: Bench, nbytes: int = 2048) -> Array:
    """Shared memory that holds different 16-bit numbers in every block: (blocks, nbytes / 2)."""
    blocks = bench.shape[0]
    content = np.arange(blocks * nbytes // 2, dtype=np.uint16).reshape(blocks, -1)
    shared = SharedMemory(blocks, nbytes)
    bench.machine.shared = shared
    step = bench.step("st.shared.v4.b32")
    words = content.view(np.uint32).reshape(blocks, -1, 32, 4)
    for part in range(words.shape[1]):
        address = (np.arange(32, dtype=np.uint64) * 16 + part * 512).reshape(1, 1, 32)
        shared.store(step, address, 16, words[:, part : part + 1])
    return content


def pairs(values: Array) -> Array:
    """Two 16-bit numbers, low first, as one word."""
    return np.ascontiguousarray(values).view(np.uint32)[..., 0]


@pytest.mark.parametrize("per_block", [False, True])
@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix_reads_the_rows_that_its_lanes_name(count: int, trans: str, per_block: bool) -> None:
    blocks, warps = 3, 2
    bench = Bench(blocks, warps)
    content = filled(bench)
    shape = (blocks if per_block else 1, warps, 32)
    address = np.random.default_rng(count).integers(0, 128, shape).astype(np.uint32) * 16
    address[..., 8 * count :] = 0xFFFFFFF1  # nobody's: neither read nor checked
    d = bench.fragment("d", [np.zeros((1, 1, 1), np.uint32)] * count)
    bench.run(LDMATRIX.format(f"x{count}{trans}"), d, at(bench.set("p", address)))
    where = np.broadcast_to(address, (blocks, warps, 32)).astype(np.int64) // 2
    for matrix_index in range(count):
        found = np.broadcast_to(bench.get(f"d{matrix_index}"), (blocks, warps, 32))
        for b, w, lane in np.ndindex(blocks, warps, 32):
            g, t = lane >> 2, lane & 3
            rows = where[b, w, 8 * matrix_index : 8 * matrix_index + 8]
            two = [content[b, rows[2 * t + odd] + g] if trans else content[b, rows[g] + 2 * t + odd] for odd in (0, 1)]
            assert found[b, w, lane] == pairs(np.array(two))
    (access,) = bench.ears.accesses
    assert (access.space, access.kind, access.width, access.mask) == ("shared", "ldmatrix", 16, None)
    assert np.array_equal(access.address, address[..., : 8 * count])
    assert bench.ears.synced == []  # ldmatrix orders no memory


def test_ldmatrix_asks_nothing_of_warps_that_do_not_execute() -> None:
    bench = Bench(1, 2)
    content = filled(bench)
    address = np.zeros((1, 2, 32), np.uint32)
    address[0, 1] = 0xFFFFFFF1
    mask = np.array([True, False]).reshape(1, 2, 1)
    d = bench.fragment("d", [np.full((1, 1, 1), 77, np.uint32)] * 4)
    bench.run(LDMATRIX.format("x4"), d, at(bench.set("p", address)), mask=mask)
    assert (bench.get("d3")[0, 1] == 77).all()
    assert bench.get("d3")[0, 0, 1] == pairs(content[0, 2:4])
    assert bench.ears.accesses[0].mask is mask


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [(8, "misaligned"), (2048, "out-of-bounds"), (4096 + 16, "out-of-bounds"), (1024, "uninitialised")],
)
def test_ldmatrix_names_the_lane_with_a_bad_row(wrong: int, kind: str) -> None:
    bench = Bench(2, 2)
    bench.machine.shared = shared = SharedMemory(2, 2048)
    step = bench.step("st.shared.v4.b32")
    shared.store(step, (np.arange(32, dtype=np.uint64) * 16).reshape(1, 1, 32), 16, np.zeros((1, 1, 1, 4), np.uint32))
    address = np.zeros((1, 2, 32), np.uint32)
    address[0, 1, 11] = wrong
    d = bench.fragment("d", [np.zeros((1, 1, 1), np.uint32)] * 2)
    with pytest.raises(EmulationError) as caught:
        bench.run(LDMATRIX.format("x2"), d, at(bench.set("p", address)))
    assert (caught.value.kind, caught.value.lane, caught.value.address) == (kind, 32 + 11, wrong)
    assert bench.ears.accesses == []


def test_movmatrix_twice_is_the_identity() -> None:
    bench = Bench(2, 1)
    a = np.random.default_rng(0).integers(0, 1 << 32, (2, 1, 32), dtype=np.uint32)
    d, once = bench.destination("d"), bench.destination("once")
    for target, source in ((once, bench.set("a", a)), (d, once)):
        bench.run("movmatrix.sync.aligned.m8n8.trans.b16", target, source)
    assert np.array_equal(bench.get("d"), a)
    assert not np.array_equal(bench.get("once"), a)
