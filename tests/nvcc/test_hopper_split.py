"""Iteration 28 with few tiles on the CPU: the CTAs of a cluster share the blocks of one, and merge what each has.

Each CTA has its own maximum of a row; which of them is the largest, and by how much, is what a merge can get wrong.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from flashladder.emulate.kernel import attention_fp64, forward, make_tensors
from flashladder.ladder.families.hopper import LEAST_SAVED, parts_of
from flashladder.ladder.iteration import Iteration, load_iteration
from flashladder.ladder.selection import one_config
from flashladder.names import CONFLICTS
from flashladder.problem import Shape
import ptxemu
from ptxemu.values import Array
from tests.nvcc.test_hopper_ladder import require_near
from tests.nvcc.test_hopper_tiles import ROOT, TILE, Fill, by_key

pytestmark = pytest.mark.nvcc
H200, LARGER = 132, 144  # multiprocessors; of the second clusters of eight may run at once


@cache
def step() -> Iteration:
    return load_iteration(28)


def computed(
    shape: tuple[int, int, int],
    multiprocessors: int,
    *,
    dtype: str = "fp16",
    schedule: str | int = "together",
    fill: Fill | None = None,
    first: int | None = None,
) -> tuple[ptxemu.Result, tuple[Array, Array, Array, Array]]:
    """One launch without a hazard, and its tensors."""
    batch, seq_len, heads = shape
    config = one_config(step(), "h200", dtype)
    size = Shape(batch=batch, seq_len=seq_len, n_heads=heads, d_head=config.d_head)
    q, k, v, out = make_tensors(step(), config, size, seed=seq_len + heads)
    if fill is not None:
        q[...], k[...] = (made.astype(q.dtype) for made in fill(q.astype(np.float32), k.astype(np.float32)))
    hazards = ptxemu.Hazards()
    tensors = (q, k, v, out)
    found = forward(
        step(), config, tensors, observers=(hazards,), multiprocessors=multiprocessors, schedule=schedule, first=first
    )  # fmt: skip
    assert hazards.render() == ""
    return found, tensors


def require_right(
    shape: tuple[int, int, int], multiprocessors: int, parts: int, *, dtype: str, fill: Fill | None = None
) -> None:
    """A launch in which `parts` CTAs share a tile."""
    found, (q, k, v, out) = computed(shape, multiprocessors, dtype=dtype, fill=fill)
    batch, seq_len, heads = shape
    assert found.blocks == parts * -(-seq_len // TILE) * heads * batch
    require_near(out, attention_fp64(q, k, v), dtype)


@pytest.mark.parametrize(
    ("shape", "multiprocessors", "parts", "dtype"),
    [
        ((1, 8 * TILE, 1), 16, 2, "fp16"),  # two parts of four blocks
        ((1, 8 * TILE + 1, 1), 18, 2, "bf16"),  # of four and five, the first block of one row
        ((1, 6 * TILE - 5, 1), H200, 3, "fp16"),  # 16 rows do not divide a third of a tile's
        ((1, 7 * TILE, 2), H200, 3, "bf16"),
        ((1, 8 * TILE - 127, 1), H200, 4, "bf16"),
        ((3, 8 * TILE - 60, 1), H200, 4, "fp16"),
        ((1, 10 * TILE, 1), H200, 5, "fp16"),
        ((1, 12 * TILE, 1), H200, 6, "bf16"),
        ((1, 14 * TILE - 3, 1), H200, 7, "fp16"),
        ((1, 15 * TILE + 9, 1), LARGER, 8, "fp16"),
    ],
)
def test_clusters_of_every_size(shape: tuple[int, int, int], multiprocessors: int, parts: int, dtype: str) -> None:
    require_right(shape, multiprocessors, parts, dtype=dtype)


LENGTH = 6 * TILE  # three parts of two blocks; keys of the last two blocks are those of rank 0
BLOCK = np.arange(LENGTH) // TILE
CONTENTS: dict[str, Fill] = {
    # whose maximum is the largest: the last rank's, the first one's, the one in the middle's
    "falling": by_key(-BLOCK * 9 * ROOT * np.log(2)),
    "rising": by_key(BLOCK * 9 * ROOT * np.log(2)),
    "middle": by_key(-np.abs(BLOCK - 2.5) * 4 * ROOT * np.log(2)),
    "a little apart": by_key(BLOCK // 2 * ROOT * np.log(2)),
    "equal": lambda q, k: (q, np.zeros_like(k)),
    "far below 0": by_key(np.full(LENGTH, -60.0 * ROOT)),
    "one part alone": by_key(np.where(BLOCK // 2 == 1, 0.0, -300.0) * ROOT),  # the others' weights are 0
}


@pytest.mark.parametrize("fill", CONTENTS.values(), ids=CONTENTS.keys())
def test_whoever_has_the_largest_maximum(fill: Fill) -> None:
    require_right((1, LENGTH, 1), H200, 3, dtype="fp16", fill=fill)


@pytest.mark.slow
def test_another_order_of_warps_gives_the_same_bits() -> None:
    """Parts are added in the order of ranks, whoever is ready first; of all clusters but the first nobody is asked."""
    one = computed((1, 6 * TILE - 7, 1), H200)[1][3].view(np.uint16)
    found, tensors = computed((1, 6 * TILE - 7, 1), H200, schedule="reverse", first=1)
    assert found.blocks == 3
    assert np.array_equal(one[:, :TILE], tensors[3].view(np.uint16)[:, :TILE])
    assert np.isnan(tensors[3][:, TILE:]).all()


def test_no_bank_conflict_in_what_a_merge_writes_and_reads() -> None:
    config, counters = one_config(step(), "h200"), ptxemu.Counters()
    tensors = make_tensors(step(), config, Shape(batch=1, seq_len=6 * TILE, n_heads=1, d_head=config.d_head))
    forward(step(), config, tensors, observers=(counters,), multiprocessors=H200)
    assert counters.opcodes["mapa.shared::cluster.u32"] > 0, "tiles are split"
    found = counters.as_dict()
    assert [found[CONFLICTS.format(kind)] for kind in ("ld", "st")] == [0, 0]


def test_rows_beyond_the_end_are_not_written() -> None:
    """The last tile has five rows of 128, so that most boxes of it lie outside."""
    rows = 5 * TILE + 5
    config = one_config(step(), "h200")
    tensors = make_tensors(step(), config, Shape(batch=1, seq_len=rows + 100, n_heads=1, d_head=config.d_head))
    q, k, v, out = (one[:, :rows] for one in tensors)
    forward(step(), config, (q, k, v, out), multiprocessors=H200)
    assert np.isnan(tensors[3][:, rows:]).all()
    require_near(out, attention_fp64(q, k, v), "fp16")


def test_a_large_grid_is_that_of_the_step_before() -> None:
    before = load_iteration(27)
    config = one_config(step(), "h200")
    tensors = make_tensors(step(), config, Shape(batch=16, seq_len=512, n_heads=16, d_head=config.d_head))
    ours = step().family.launch(config, tensors, H200)
    theirs = before.family.launch(one_config(before, "h200"), tensors, H200)
    assert (ours.resident, ours.cluster) == (True, (1, 1, 1))
    assert replace(ours, arguments=(), shared_bytes=0) == replace(theirs, arguments=(), shared_bytes=0)


@pytest.mark.parametrize("shape", [(2, 300, 3), (1, 512, 2)])
def test_without_clusters_it_computes_the_bits_of_the_step_before(shape: tuple[int, int, int]) -> None:
    """But for rows of four blocks and more of which one is ragged: there it keeps a maximum for a little shorter."""
    before = load_iteration(27)
    batch, seq_len, heads = shape
    config = one_config(before, "h200")
    q, k, v, theirs = make_tensors(
        before, config, Shape(batch=batch, seq_len=seq_len, n_heads=heads, d_head=config.d_head), seed=seq_len + heads
    )
    forward(before, config, (q, k, v, theirs), multiprocessors=2)
    _, (*_, ours) = computed(shape, 2)
    assert np.array_equal(ours.view(np.uint16), theirs.view(np.uint16))


def test_more_parts_are_taken_only_where_they_are_shorter_and_save_enough() -> None:
    for blocks in range(1, 40):
        parts = parts_of(1, blocks, H200)
        longest = -(-blocks // parts)
        assert parts == 1 or blocks - longest >= LEAST_SAVED
        assert all(-(-blocks // fewer) > longest for fewer in range(1, parts))
    assert parts_of(67, 64, H200) == 1, "clusters of two would not all run at once"
