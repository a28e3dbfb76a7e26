"""Iterations 20 to 28 against the reference: each step, persistent CTAs, and tiles that a cluster shares."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from flashladder.build.compile import cubin_for
from flashladder.cases.reference import UNIT_ROUNDOFF
from flashladder.emulate.kernel import attention_fp64, forward, make_tensors
from flashladder.ladder.iteration import Iteration, load_all, load_iteration
from flashladder.ladder.selection import one_config
from flashladder.machine_code.flow import main_loop
from flashladder.machine_code.order import stretches
from flashladder.machine_code.sass import disassemble
from flashladder.names import CONFLICTS, DTYPES
from flashladder.problem import Problem
import ptxemu
from ptxemu.values import Array
from tests.data_files import table_of

pytestmark = pytest.mark.nvcc

STEPS = [step for step in load_all() if step.family.name == "hopper"]
FROM_25 = [step for step in STEPS if getattr(one_config(step, "h200"), "persistent", False)]
TILE = 128  # rows of a tile of Q, and of a block of K and V, from 25 on
ROOT = np.sqrt(128.0)  # scores are divided by it
OF_BOTH_KINDS = pytest.mark.parametrize("step", [FROM_25[0], FROM_25[-1]], ids=["follows any", "follows some"])
H200, LARGER = 132, 144  # multiprocessors; the larger GPU has room for clusters of eight
SHAPES = {"three blocks": (1, 384, 2), "ragged": (1, 201, 2), "larger": (2, 650, 3), "one row": (1, 1, 1)}
ROUNDOFFS = 2  # allowed error in unit roundoffs of O's largest element: P and O are rounded


def require_near(out: Array, expected: Array, dtype: str) -> None:
    """Every element within `ROUNDOFFS`; a NaN is not."""
    error = np.abs(out.astype(np.float64) - expected).max()
    assert error <= ROUNDOFFS * UNIT_ROUNDOFF[dtype] * np.abs(expected).max()


Fill = Callable[[Array, Array], tuple[Array, Array]]  # Q and K of other contents
Tensors = tuple[Array, Array, Array, Array]


def launched(
    step: Iteration,
    shape: tuple[int, int, int],
    multiprocessors: int = H200,
    *,
    key: str = "h200",
    dtype: str = "fp16",
    schedule: str | int = "together",
    fill: Fill | None = None,
    first: int | None = None,
    counters: ptxemu.Counters | None = None,
) -> tuple[ptxemu.Result, Tensors]:
    """One launch and its tensors, without a hazard; O is right, unless only the `first` CTAs or clusters run."""
    config = one_config(step, key, "" if key.startswith("(") else dtype)
    batch, seq_len, heads = shape
    size = Problem(batch=batch, seq_len=seq_len, n_heads=heads, d_head=config.d_head)
    q, k, v, out = make_tensors(step, config, size, seed=seq_len + heads)
    if fill is not None:
        q[...], k[...] = (made.astype(q.dtype) for made in fill(q.astype(np.float32), k.astype(np.float32)))
    hazards, tensors = ptxemu.Hazards(), (q, k, v, out)
    observers = (hazards, counters) if counters else (hazards,)
    found = forward(
        step, config, tensors, observers=observers, multiprocessors=multiprocessors, schedule=schedule, first=first
    )
    assert hazards.render() == ""
    if first is None:
        require_near(out, attention_fp64(q, k, v), config.dtype)
    return found, tensors


@pytest.mark.parametrize(
    ("shape", "dtype", "schedule"),
    [*zip(SHAPES, DTYPES * 2, ["together"] * 4, strict=True), ("ragged", "fp16", "reverse"), ("ragged", "fp16", 1)],
)
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.slug)
def test_numbers_are_right_and_no_hazard_is_found(step: Iteration, shape: str, dtype: str, schedule: str | int) -> None:
    launched(step, SHAPES[shape], dtype=dtype, schedule=schedule)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.slug)
def test_what_lies_behind_the_last_key_takes_no_weight(step: Iteration) -> None:
    """All scores are about -100; rows that the copy engine fills with zeros have score 0 and would dominate."""
    block: int = one_config(step, "h200").B_c
    for rows in (1, 2, 8, 9, block - 8, block - 1, block, block + 1, 2 * block - 1):
        launched(step, (1, rows, 1), fill=lambda q, k: (q + 3, k - 3))


@pytest.mark.parametrize("number", [23, 24])
def test_a_turn_is_what_issues_the_products_and_ends_before_they_do(number: int) -> None:
    """Results do not depend on it: a ping-pong turn that is passed too early or too late is only slower."""
    step = load_iteration(number)
    cubin = cubin_for(step, one_config(step, "h200"), "sm_90a").cubin
    events = [one.event for one in stretches(main_loop(disassemble(cubin, lines=False)))]
    taken, passed = events.index("wait at a barrier"), events.index("arrive at a barrier")
    products = [place for place, event in enumerate(events) if "products" in event and not event.startswith("fence")]
    assert products
    assert all(taken < place < passed for place in products)
    assert not any(event.startswith("wait") for event in events[taken + 1 : passed])
    waits = f"wait until {'0 groups are' if number == 23 else '1 group is'} left"
    assert events[passed + 1 : passed + 3] == [waits, "arrive on an mbarrier"], "and K's stage is given back at once"


@pytest.mark.parametrize(
    ("number", "form"),
    [
        (20, "(FP16, 128, 256, 48, 2): stages_3_2"),
        (22, "(BF16, 128, 192, 80, 3): stages_2_3+registers_32_160"),
        (24, "(BF16, 128, 128, 176, 2): stages_1_2+registers_24_240+overlap"),
        (24, "(FP16, 128, 128, 96, 2): stages_1_2+registers_24_240+overlap"),
    ],
)
def test_other_tiles_rings_and_registers_are_right(number: int, form: str) -> None:
    launched(load_iteration(number), (1, 401, 2), key=form)


@pytest.mark.parametrize("rows", [201, 5 * TILE + 5])
def test_rows_behind_the_end_are_neither_read_nor_written(rows: int) -> None:
    """Q, K, V and O are the first rows of longer tensors, whose other rows are NaN and stay NaN."""
    step = STEPS[-1]
    config = one_config(step, "h200")
    whole = make_tensors(step, config, Problem(batch=1, seq_len=rows + 100, n_heads=1, d_head=config.d_head), seed=1)
    for tensor in whole:
        tensor[:, rows:] = np.nan
    q, k, v, out = (tensor[:, :rows] for tensor in whole)
    forward(step, config, (q, k, v, out), multiprocessors=H200)
    assert np.isnan(whole[3][:, rows:].astype(np.float32)).all()
    require_near(out, attention_fp64(q, k, v), config.dtype)


@pytest.mark.parametrize(("shape", "multiprocessors", "dtype", "schedule"), table_of("nvcc/hopper_tiles", "launches"))
@pytest.mark.parametrize("step", FROM_25, ids=lambda step: step.slug)
def test_tile_after_tile(
    step: Iteration, shape: tuple[int, int, int], multiprocessors: int, dtype: str, schedule: str | int
) -> None:
    found, _ = launched(step, shape, multiprocessors, dtype=dtype, schedule=schedule)
    assert found.blocks == min(multiprocessors, -(-shape[1] // TILE) * shape[2] * shape[0])


@pytest.mark.parametrize(("n_heads", "multiprocessors"), [(3, 2), (1, 3)])
def test_tiles_under_a_mask_are_each_computed_once(n_heads: int, multiprocessors: int) -> None:
    """In pairs at first, then one by one; with one head and three CTAs one by one from the beginning."""
    step = load_iteration(31)
    config = one_config(step, "h200", "fp16", "causal")
    problem = Problem(batch=1, seq_len=7 * config.B_r + 5, n_heads=n_heads, d_head=config.d_head, mask="causal")
    tensors = make_tensors(step, config, problem)
    found = forward(step, config, tensors, multiprocessors=multiprocessors)
    assert found.blocks == multiprocessors
    require_near(tensors[3], attention_fp64(*tensors[:3], mask="causal"), "fp16")


def by_key(scores: Array) -> Fill:
    """Every row has these scores, one for each key, before the division by `ROOT`."""

    def fill(q: Array, k: Array) -> tuple[Array, Array]:
        q, k = np.zeros_like(q), np.zeros_like(k)
        q[..., 0], k[..., 0] = 8.0, scores[None, :, None] / 8
        return q, k

    return fill


LENGTH = 4 * TILE  # with fewer blocks every maximum is followed
VISITED = np.arange(LENGTH)[::-1]  # the order of keys: blocks are visited from the last to the first
CONTENTS: dict[str, Fill] = {
    # each block is 25 powers of two above the one before, more than a 16-bit weight can hold
    "rising": by_key(VISITED / TILE * 25 * ROOT * np.log(2)),
    "falling": by_key(-VISITED / TILE * 25 * ROOT * np.log(2)),
    # the limit is 5.8 powers of two: the second block stays below, the third exceeds it and uses it up
    "room": by_key(np.repeat([8.0, 7.0, 5.0, 0.0], TILE) * ROOT * np.log(2)),
}


@pytest.mark.parametrize("fill", CONTENTS.values(), ids=CONTENTS.keys())
@OF_BOTH_KINDS
def test_logits_of_all_kinds_in_the_same_tiles(step: Iteration, fill: Fill) -> None:
    launched(step, (1, LENGTH, 1), 2, fill=fill)


def second_head_far_above_0(q: Array, k: Array) -> tuple[Array, Array]:
    """Scores of 45 million in the second head, and of N(0, 1) inputs in the others."""
    q[:, :, 1], k[:, :, 1] = 2000, 2000
    return q, k


@pytest.mark.parametrize("step", FROM_25, ids=lambda step: step.slug)
def test_a_tile_begins_without_the_maximum_of_the_one_before(step: Iteration) -> None:
    launched(step, (1, TILE, 3), 1, fill=second_head_far_above_0)


def outliers(q: Array, k: Array) -> tuple[Array, Array]:
    """In each warp of the tiles of four heads one row has one huge score, each in another accumulator of its lane."""
    q, k = np.zeros_like(q), np.zeros_like(k)
    k[0, np.arange(TILE), :, np.arange(TILE)] = 16  # a key of the block that comes last: one of 128 directions
    for accumulator in range(64):
        head, warp, lane = accumulator // 16, accumulator % 16, accumulator * 5 % 32
        row = 16 * warp + accumulator // 2 % 2 * 8 + lane // 4
        q[0, row, head, accumulator // 4 * 8 + lane % 4 * 2 + accumulator % 2] = 20  # 41 powers of two
    return q, k


@OF_BOTH_KINDS
def test_every_score_that_outgrows_its_maximum_is_noticed(step: Iteration) -> None:
    launched(step, (1, LENGTH, 4), 3, fill=outliers)


@pytest.mark.parametrize("heads", [1, 2])
def test_a_maximum_that_rises_in_each_block_of_even_and_odd_numbers(heads: int) -> None:
    """Four blocks a tile, the first with few keys: both slots rescale O."""
    length = 3 * TILE + 9
    rising = by_key(np.arange(length)[::-1] / 16 * 10 * ROOT * np.log(2))
    launched(FROM_25[-1], (1, length, heads), 1, fill=rising, dtype="bf16")


def shuffles(blocks: list[Array]) -> int:
    """The shuffles of one launch, by which rows agree on a maximum; `blocks`: scores in powers of two, in order."""
    scores, counters = np.concatenate(blocks[::-1]) * ROOT * np.log(2), ptxemu.Counters()
    launched(FROM_25[-1], (1, len(blocks) * TILE, 1), 1, fill=by_key(scores), counters=counters)
    return sum(count for name, count in counters.opcodes.items() if name.startswith("shfl"))


def test_a_maximum_is_followed_where_a_score_is_above_the_room_of_its_row() -> None:
    """No result shows which maximum is in use, so this counts the shuffles by which rows agree on one."""
    flat, one_key = np.zeros(TILE), np.where(np.arange(TILE) == 77, 0.0, -30.0)
    kept = shuffles([flat] * 4)
    assert shuffles([flat, flat + 5, flat + 5, flat + 5]) == kept, "2.5 of 1 / sqrt(512) are 5.8 powers of two"
    once = shuffles([flat, flat + 7, flat + 6.5, flat + 6.5])
    assert once > kept, "a weight above the room is followed"
    assert shuffles([one_key, flat + 1, flat + 0.5, flat + 0.5]) == once, "no room for a row of one weight"
    assert shuffles([flat, flat + 7, flat + 7.5, flat + 6.5]) > once, "what m grew is gone from the room"
    assert shuffles([flat] * 3) == shuffles([flat, flat + 9, flat + 18]), "of few blocks every one"


@pytest.mark.parametrize(
    ("shape", "multiprocessors", "parts", "dtype"),
    [
        ((1, 8 * TILE, 1), 16, 2, "fp16"),  # two parts of four blocks
        ((1, 8 * TILE + 1, 1), 18, 2, "bf16"),  # of four and five, the first block of one row
        ((1, 6 * TILE - 5, 1), H200, 3, "fp16"),  # 16 rows do not divide a third of a tile's
        ((1, 8 * TILE - 127, 1), H200, 4, "bf16"),
        ((1, 10 * TILE, 1), H200, 5, "fp16"),
        ((1, 12 * TILE, 1), H200, 6, "bf16"),
        ((1, 14 * TILE - 3, 1), H200, 7, "fp16"),
        ((1, 15 * TILE + 9, 1), LARGER, 8, "fp16"),
    ],
)
def test_clusters_of_every_size(shape: tuple[int, int, int], multiprocessors: int, parts: int, dtype: str) -> None:
    found, _ = launched(SPLIT, shape, multiprocessors, dtype=dtype)
    assert found.blocks == parts * -(-shape[1] // TILE) * shape[2] * shape[0]


SPLIT = load_iteration(28)
SPLIT_LENGTH = 6 * TILE  # three parts of two blocks; keys of the last two blocks are those of rank 0
BLOCK = np.arange(SPLIT_LENGTH) // TILE
SPLIT_CONTENTS: dict[str, Fill] = {
    # the largest maximum is in the first rank, or in the middle one
    "rising": by_key(BLOCK * 9 * ROOT * np.log(2)),
    "middle": by_key(-np.abs(BLOCK - 2.5) * 4 * ROOT * np.log(2)),
    "one part alone": by_key(np.where(BLOCK // 2 == 1, 0.0, -300.0) * ROOT),  # the others' weights are 0
}


@pytest.mark.parametrize("fill", SPLIT_CONTENTS.values(), ids=SPLIT_CONTENTS.keys())
def test_whoever_has_the_largest_maximum(fill: Fill) -> None:
    found, _ = launched(SPLIT, (1, SPLIT_LENGTH, 1), fill=fill)
    assert found.blocks == 3 * SPLIT_LENGTH // TILE


def test_another_order_of_warps_gives_the_same_bits() -> None:
    """The parts are added in the order of ranks, in whatever order they finish; only the first cluster runs."""
    one = launched(SPLIT, (1, 6 * TILE - 7, 1))[1][3].view(np.uint16)
    found, tensors = launched(SPLIT, (1, 6 * TILE - 7, 1), schedule="reverse", first=1)
    assert found.blocks == 3
    assert np.array_equal(one[:, :TILE], tensors[3].view(np.uint16)[:, :TILE])
    assert np.isnan(tensors[3][:, TILE:]).all()


def test_a_merge_of_tiles_has_no_bank_conflict() -> None:
    counters = ptxemu.Counters()
    launched(SPLIT, (1, 6 * TILE, 1), counters=counters)
    assert counters.opcodes["mapa.shared::cluster.u32"] > 0, "tiles are split"
    found = counters.as_dict()
    assert [found[CONFLICTS.format(kind)] for kind in ("ld", "st")] == [0, 0]
