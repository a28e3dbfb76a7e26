"""Iterations 25 to 28 with several tiles a CTA on the CPU: any counts of tiles and blocks, any logits, no race.

A CTA of these goes on to its next tile without a stop, so that what one tile leaves behind meets the next one: rings
that go round, buffers of P whose direction depends on the number of blocks, a maximum that is kept for too long. Where
there are few tiles, 28 splits them: tests/nvcc/test_hopper_split.py.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from flashladder.emulate.kernel import attention_fp64, forward, make_tensors
from flashladder.ladder.iteration import Iteration, load_all
from flashladder.ladder.selection import one_config
from flashladder.problem import Shape
import ptxemu
from ptxemu.values import Array
from tests.nvcc.test_hopper_ladder import require_near

pytestmark = pytest.mark.nvcc
STEPS = [step for step in load_all() if getattr(one_config(step, "h200"), "persistent", False)]
TILE = 128  # rows of a tile of Q, and of a block of K and V
ROOT = np.sqrt(128.0)  # what scores are divided by
Fill = Callable[[Array, Array], tuple[Array, Array]]  # Q and K of other contents


def require_right(
    step: Iteration,
    shape: tuple[int, int, int],
    multiprocessors: int,
    *,
    dtype: str = "fp16",
    schedule: str | int = "together",
    fill: Fill | None = None,
) -> None:
    """One launch on a GPU of so many multiprocessors, with numbers and hazards."""
    config = one_config(step, "h200", dtype)
    assert (config.B_r, config.B_c) == (TILE, TILE)
    batch, seq_len, heads = shape
    size = Shape(batch=batch, seq_len=seq_len, n_heads=heads, d_head=config.d_head)
    tensors, hazards = make_tensors(step, config, size, seed=seq_len + heads), ptxemu.Hazards()
    q, k, v, out = tensors
    if fill is not None:
        q[...], k[...] = (made.astype(q.dtype) for made in fill(q.astype(np.float32), k.astype(np.float32)))
    found = forward(
        step, config, tensors, observers=(hazards,), multiprocessors=multiprocessors, schedule=schedule
    )  # fmt: skip
    assert found.blocks == min(multiprocessors, -(-seq_len // TILE) * heads * batch)
    assert hazards.render() == ""
    require_near(out, attention_fp64(q, k, v), dtype)


@pytest.mark.parametrize(
    ("shape", "multiprocessors", "dtype"),
    [
        ((1, 384, 2), 1, "fp16"),  # six tiles of three blocks: either slot of the loop opens tiles
        ((1, 384, 2), 2, "bf16"),  # nine blocks a CTA
        ((1, 257, 1), 3, "fp16"),  # a tile a CTA, the last block of one row
        ((1, 257, 1), 7, "bf16"),  # more multiprocessors than tiles
        ((1, 256, 3), 4, "fp16"),  # two blocks a tile; two tiles in some CTAs and one in others
        ((2, 201, 3), 2, "bf16"),  # heads and samples take turns
        ((2, 129, 2), 1, "fp16"),  # eight tiles
        ((1, 128, 7), 1, "fp16"),  # one block a tile: all that a tile is opens and ends in a slot
        ((2, 1, 4), 3, "bf16"),  # one row
        ((1, 17, 8), 1, "bf16"),
        ((5, 128, 1), 2, "fp16"),
        ((1, 512, 1), 3, "bf16"),  # four blocks: from the second on a maximum may be kept
        ((1, 451, 2), 3, "fp16"),  # four, the first of them ragged: from the third on
    ],
)
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.slug)
def test_tile_after_tile(step: Iteration, shape: tuple[int, int, int], multiprocessors: int, dtype: str) -> None:
    require_right(step, shape, multiprocessors, dtype=dtype)


@pytest.mark.parametrize(
    ("schedule", "shape"), [("reverse", (1, 257, 1)), ("reverse", (1, 17, 5)), (1, (1, 129, 2)), (2, (1, 17, 5))]
)
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.slug)
def test_in_another_order_of_warps(step: Iteration, shape: tuple[int, int, int], schedule: str | int) -> None:
    require_right(step, shape, 2, schedule=schedule)


def by_key(scores: Array) -> Fill:
    """Every row has these scores, one a key, before they are divided by `ROOT`."""

    def fill(q: Array, k: Array) -> tuple[Array, Array]:
        q, k = np.zeros_like(q), np.zeros_like(k)
        q[..., 0], k[..., 0] = 8.0, scores[None, :, None] / 8
        return q, k

    return fill


def one_hot(q: Array, k: Array) -> tuple[Array, Array]:
    """Every row has one key, whose score is far above the others': key 7 i + 3 of row i."""
    chosen = (7 * np.arange(k.shape[1]) + 3) % k.shape[1]
    return 6 * k[:, chosen], k


def outlier(q: Array, k: Array) -> tuple[Array, Array]:
    """In a block that comes late one key is huge, for a few rows alone: some warps follow it, others do not."""
    q[..., 1] = 0
    q[:, [3, 70], :, 1] = 24
    k[..., 1] = 0
    k[:, [5, 150], :, 1] = 20
    return q, k


LENGTH = 4 * TILE  # where there are fewer blocks every maximum is followed
VISITED = np.arange(LENGTH)[::-1]  # when a key comes; blocks are visited from the last to the first
CONTENTS: dict[str, Fill] = {
    # 25 powers of two from block to block: each outgrows the maximum, and no weight of 16 bits holds what is kept
    "rising": by_key(VISITED / TILE * 25 * ROOT * np.log(2)),
    "falling": by_key(-VISITED / TILE * 25 * ROOT * np.log(2)),
    # a room of 5.8 powers of two: the second block stays below it, the third is above and leaves none to the fourth
    "room": by_key(np.repeat([8.0, 7.0, 5.0, 0.0], TILE) * ROOT * np.log(2)),
    "equal": lambda q, k: (q, np.zeros_like(k)),
    "far below 0": by_key(np.full(LENGTH, -60.0 * ROOT)),
    "one hot": one_hot,
    "outlier": outlier,
}


@pytest.mark.parametrize("fill", CONTENTS.values(), ids=CONTENTS.keys())
@pytest.mark.parametrize("step", [STEPS[0], STEPS[-1]], ids=lambda step: step.slug)  # any maximum is followed, or some
def test_logits_of_all_kinds_in_the_same_tiles(step: Iteration, fill: Fill) -> None:
    require_right(step, (1, LENGTH, 1), 2, fill=fill)


def second_head_far_above_0(q: Array, k: Array) -> tuple[Array, Array]:
    """Scores of 45 million in the second head, as of N(0, 1) in the others."""
    q[:, :, 1], k[:, :, 1] = 2000, 2000
    return q, k


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.slug)
def test_a_tile_begins_without_the_maximum_of_the_one_before(step: Iteration) -> None:
    require_right(step, (1, TILE, 3), 1, fill=second_head_far_above_0)


def test_no_score_that_outgrows_its_maximum_is_overlooked() -> None:
    """In each warp of four heads' tiles one row has one huge score, in another accumulator of its lane each time."""
    step = STEPS[-1]
    config = one_config(step, "h200")
    q, k, v, out = make_tensors(step, config, Shape(batch=1, seq_len=LENGTH, n_heads=4, d_head=config.d_head))
    q[...], k[...] = 0, 0
    k[0, np.arange(TILE), :, np.arange(TILE)] = 16  # a key of the block that comes last: one of 128 directions
    for accumulator in range(64):
        head, warp, lane = accumulator // 16, accumulator % 16, accumulator * 5 % 32
        row = 16 * warp + accumulator // 2 % 2 * 8 + lane // 4
        q[0, row, head, accumulator // 4 * 8 + lane % 4 * 2 + accumulator % 2] = 20  # 41 powers of two
    forward(step, config, (q, k, v, out), multiprocessors=3)
    require_near(out, attention_fp64(q, k, v), "fp16")


@pytest.mark.parametrize("heads", [1, 2])
def test_a_maximum_that_rises_in_each_block_of_even_and_odd_numbers(heads: int) -> None:
    """Four blocks a tile, the first of them of a few keys: O is corrected in both slots."""
    length = 3 * TILE + 9
    rising = by_key(np.arange(length)[::-1] / 16 * 10 * ROOT * np.log(2))
    require_right(STEPS[-1], (1, length, heads), 1, fill=rising, dtype="bf16")


def shuffles(blocks: list[Array]) -> int:
    """Of one launch: by them rows agree on a maximum; `blocks`: powers of two, a block's keys each, as they come."""
    step = STEPS[-1]
    config = one_config(step, "h200")
    size = Shape(batch=1, seq_len=len(blocks) * TILE, n_heads=1, d_head=config.d_head)
    q, k, v, out = make_tensors(step, config, size)
    scores = np.concatenate(blocks[::-1]) * ROOT * np.log(2)
    q[...], k[...] = (made.astype(q.dtype) for made in by_key(scores)(q.astype(np.float32), k.astype(np.float32)))
    counters = ptxemu.Counters()
    forward(step, config, (q, k, v, out), observers=(counters,), multiprocessors=1)
    require_near(out, attention_fp64(q, k, v), "fp16")
    return sum(count for name, count in counters.opcodes.items() if name.startswith("shfl"))


def test_a_maximum_is_followed_where_a_score_is_above_the_room_of_its_row() -> None:
    """Which maximum is in use shows in no result: the shuffles by which rows agree on one are counted."""
    flat, one_key = np.zeros(TILE), np.where(np.arange(TILE) == 77, 0.0, -30.0)
    kept = shuffles([flat] * 4)
    assert shuffles([flat, flat + 5, flat + 5, flat + 5]) == kept, "2.5 of 1 / sqrt(512) are 5.8 powers of two"
    once = shuffles([flat, flat + 7, flat + 6.5, flat + 6.5])
    assert once > kept, "a weight above the room is followed"
    assert shuffles([one_key, flat + 1, flat + 0.5, flat + 0.5]) == once, "no room for a row of one weight"
    assert shuffles([flat, flat + 7, flat + 7.5, flat + 6.5]) > once, "what m grew is gone from the room"


def test_where_there_are_few_blocks_every_maximum_is_followed() -> None:
    flat = np.zeros(TILE)
    assert shuffles([flat, flat, flat]) == shuffles([flat, flat + 9, flat + 18])
