"""A family's plan in C++ gives the same launch, byte for byte, as its `launch` in Python.

The emulator uses `Family.launch` and a GPU uses `plan.cpp`; these tests give both the same problem.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
import json
from pathlib import Path
import subprocess
from typing import Any, TypeAlias

import numpy as np
import pytest

from flashladder.emulate.kernel import arguments_of
from flashladder.ladder.families.ampere import FAMILY as AMPERE
from flashladder.ladder.families.hopper import FAMILY as HOPPER
from flashladder.ladder.families.hopper import HopperConfig, clusters_at_once
from flashladder.ladder.family import Family, Launch
from flashladder.ladder.iteration import load_iteration
from flashladder.paths import KERNELS
from ptxemu import TensorMap
from ptxemu.machine.tensor_map import MAP_BYTES
from tests.data_files import table_of
from tests.nvcc.conftest import compiled
from tests.nvcc.row_family import rows

pytestmark = pytest.mark.nvcc

PLAIN = HopperConfig("fp16", 128, 128, 128, 2, 2, 2)
PERSISTENT = HopperConfig("fp16", 128, 128, 96, 2, 2, 3, 24, 240, overlap=True, persistent=True)
SPLIT = replace(PERSISTENT, B_c=128, flattened=True, split=True)
CAUSAL = replace(SPLIT, split=False, general=True, causal=True)
PROGRAM = Path(__file__).with_name("host") / "plan.cpp"
MOST_TILES = 1 << 30
H200 = 132  # multiprocessors
Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float16]]"


def packed(value: Any, padding: bytes) -> tuple[bytes, int]:
    """A member as C lays it out, and its alignment: a tuple is a structure, an array its address."""
    if isinstance(value, TensorMap):
        assert isinstance(value.tensor, np.ndarray)
        fields = value.encoded(value.tensor.ctypes.data)[8:-4]  # between the emulator's mark and its checksum
        return padding * 8 + fields + padding * 4, MAP_BYTES
    if isinstance(value, np.ndarray):
        value = np.uint64(value.ctypes.data)
    if not isinstance(value, tuple):
        return value.tobytes(), value.itemsize
    found, widest = b"", 1
    for data, align in (packed(one, padding) for one in value):
        found += padding * (-len(found) % align) + data
        widest = max(widest, align)
    return found + padding * (-len(found) % widest), widest


def ragged() -> list[Array]:
    """Q, K, V and O, (1, 17, 1, 128): a length that no block divides, sizes of 1 with strides illegal in a map."""
    odd = np.lib.stride_tricks.as_strided(np.zeros((17, 128), np.float16), (1, 17, 1, 128), (4, 256, 2, 2))
    return [odd, *(np.zeros((1, 17, 1, 128), np.float16) for _ in range(3))]


def tensors() -> list[Array]:
    """Q, K, V and O, (2, 256, 3, 128): equal shapes, four layouts."""
    packed_heads = np.zeros((2, 256, 9, 128), np.float16)
    by_head = np.zeros((2, 3, 256, 128), np.float16)
    contiguous = np.zeros((2, 256, 3, 128), np.float16)
    return [packed_heads[:, :, :3], packed_heads[:, :, 6:], by_head.transpose(0, 2, 1, 3), contiguous]


def program(folder: Path, plan: Path) -> Path:
    """The program `PROGRAM` with a family's plan."""
    (folder / "rows").symlink_to(Path(rows.__file__).parent)
    return compiled(folder, PROGRAM.read_text(encoding="utf-8"), plan, f"-I{folder}", "-Wall", "-Werror")


def words(
    family: Family,
    config: Any,
    given: Sequence[Array],
    multiprocessors: int = H200,
    lse: Any = None,
    bounds: Sequence[Any] = (),
) -> list[str]:
    """The program's arguments for a problem on a device with so many multiprocessors."""
    views = [number for one in given for number in (one.ctypes.data, one.strides[0], one.strides[1], one.strides[2])]
    own = (*family.for_plan(None, config), 0, 0, 0, 0)[:4]
    device = (multiprocessors, *(clusters_at_once(parts, multiprocessors) for parts in range(2, 9)))
    row = (config.dtype == "bf16", config.mask == "causal", *own)
    sizes = (*given[0].shape[:3], *given[1].shape[1:3])
    numbers = (config.B_r, config.B_c, *views, *sizes, *row, *device, 0 if lse is None else lse.ctypes.data)
    numbers += (config.is_packed, *(one.ctypes.data for one in bounds or (np.zeros(1), np.zeros(1))))
    numbers += (len(bounds[0]) - 1 if bounds else 0,)
    return [str(int(number)) for number in numbers]


def planned(built: Path, lines: Sequence[list[str]]) -> list[dict[str, Any]]:
    """The launches that one process plans for these problems, one after another."""
    done = subprocess.run([built, *chain(*lines)], capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(lines)
    return found


def require_same(found: dict[str, Any], wanted: Launch) -> None:
    """Grid, clusters, residency, and every byte of the arguments except the padding between members."""
    (arguments,) = arguments_of(wanted)
    expected, other = (packed(arguments, padding)[0] for padding in (b"\0", b"\xff"))
    counted = [place for place in range(len(expected)) if expected[place] == other[place]]
    actual = bytes.fromhex(found["bytes"])
    assert [actual[place] for place in counted] == [expected[place] for place in counted]
    assert not any(actual[len(expected) :])
    assert len(counted) > 100
    require_same_extent(found, wanted)


def require_same_extent(found: dict[str, Any], wanted: Launch) -> None:
    """Grid, clusters and residency."""
    assert (tuple(found["grid"]), tuple(found["cluster"])) == (wanted.grid, wanted.cluster)
    assert found["resident"] == wanted.resident


@pytest.mark.parametrize(
    ("family", "plan", "config", "maps"),
    [
        (AMPERE, KERNELS / AMPERE.plan, load_iteration(16).configs["rtx3090"], 0),
        (HOPPER, KERNELS / HOPPER.plan, HopperConfig("fp16", 128, 128, 96, 2, 2, 3, 24, 240), 4),
        (HOPPER, KERNELS / HOPPER.plan, PERSISTENT, 4),
        (HOPPER, KERNELS / HOPPER.plan, SPLIT, 4),
        (rows.FAMILY, Path(rows.__file__).with_name("plan.cpp"), rows.RowConfig("fp16", 128, 8), 0),
    ],
    ids=["ampere", "hopper", "persistent", "split", "rows"],
)
def test_both_sides_hand_over_the_same(tmp_path: Path, family: Family, plan: Path, config: Any, maps: int) -> None:
    problems = [tensors()] if config.multiples else [tensors(), ragged()]
    built = program(tmp_path, plan)
    for given in problems:
        (found,) = planned(built, [words(family, config, given)])
        require_same(found, family.launch(config, given, H200))
        assert found["encoded"] == maps


GENERAL = [
    ((2, 1000, 12), (2, 77, 3)),  # queries, keys: batch, length, heads
    ((1, 1, 8), (1, 4097, 1)),
    ((3, 385, 5), (3, 385, 5)),  # of an odd number of row blocks
]


PACKED = [  # queries of each sequence, its keys, heads of both
    ([300, 0, 1, 129], [17, 40, 0, 1000], (12, 3)),
    ([1], [1], (1, 1)),
    ([128] * 70, [2] * 70, (5, 5)),
]


def made(batch: int, rows: int, heads: int, transposed: bool) -> Array:
    """A tensor of zeros, its rows or its heads farther apart."""
    if transposed:
        return np.zeros((batch, heads, rows, 128), np.float16).transpose(0, 2, 1, 3)
    return np.zeros((batch, rows, heads, 128), np.float16)


@pytest.mark.parametrize("config", [replace(PERSISTENT, general=True), CAUSAL])
@pytest.mark.parametrize(("queries", "keys"), GENERAL)
def test_both_sides_hand_over_the_same_general_problem(
    hopper: Path, config: HopperConfig, queries: Any, keys: Any
) -> None:
    q, out = (np.zeros((*queries, 128), np.float16) for _ in range(2))
    k, v = (np.zeros((*keys, 128), np.float16) for _ in range(2))
    lse = np.zeros((queries[0], queries[2], queries[1]), np.float32)
    for wanted in (None, lse):
        (found,) = planned(hopper, [words(HOPPER, config, [q, k, v, out], lse=wanted)])
        require_same(found, HOPPER.launch(config, [q, k, v, out], H200, wanted))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("lengths", "keys", "heads"), PACKED)
def test_both_sides_hand_over_the_same_packed_sequences(
    hopper: Path, lengths: list[int], keys: list[int], heads: tuple[int, int], transposed: bool, causal: bool
) -> None:
    config = replace(CAUSAL, causal=causal, packed=True)
    shapes = [(1, sum(rows), count) for rows, count in ((lengths, heads[0]), (keys, heads[1]))]
    q, k, v, out = (made(*shapes[i], transposed and i < 2) for i in (0, 1, 1, 0))
    bounds = [np.cumsum([0, *one], dtype=np.int32) for one in (lengths, keys)]
    lse = np.zeros((heads[0], sum(lengths)), np.float32)
    line = words(HOPPER, config, [q, k, v, out], lse=lse, bounds=bounds)
    (found,) = planned(hopper, [line])
    require_same(found, HOPPER.launch(config, [q, k, v, out], H200, lse, bounds))
    assert found["grid"][0] >= heads[0] * sum(-(-rows // (128 << causal)) for rows in lengths), "at least all tiles"
    line[-1] = str(MOST_TILES)
    assert f"expected at most {MOST_TILES} blocks" in refused(hopper, line)


@pytest.fixture(scope="module")
def hopper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program with the Hopper family's plan."""
    return program(tmp_path_factory.mktemp("hopper"), KERNELS / HOPPER.plan)


def test_tensors_at_one_address_share_a_map_only_if_all_its_fields_are_equal(hopper: Path) -> None:
    """Each problem differs from the first in one field of a map; all have the same addresses."""
    config = HopperConfig("fp16", 128, 128, 96, 2, 2, 3, 24, 240)
    first = [np.zeros((2, 256, 3, 128), np.float16) for _ in range(4)]
    problems: list[tuple[HopperConfig, list[Array]]] = [
        (config, first),
        (config.with_dtype("bf16"), first),
        (replace(config, B_c=64), first),  # boxes of K and V
        (replace(config, B_r=64, n_consumers=2), first),  # boxes of Q and O
        (config, [one.reshape(2, 3, 256, 128).transpose(0, 2, 1, 3) for one in first]),  # equal sizes, other strides
        (config, [one[:, :200] for one in first]),
        (config, [one[:, :, :2] for one in first]),
        (config, [one[:1] for one in first]),
        (config, [first[1], first[0], first[3], first[2]]),
        (config, first),
    ]
    found = planned(hopper, [words(HOPPER, config, given) for config, given in problems])
    for answer, (config, given) in zip(found, problems, strict=True):
        require_same(answer, HOPPER.launch(config, given, H200))
    assert [one["encoded"] for one in found] == [4, 4, 2, 2, 4, 4, 4, 4, 2, 0]


def test_a_thread_that_has_not_used_the_gpu_yet_is_given_a_context(hopper: Path) -> None:
    given = tensors()
    line: list[str | Path] = [hopper, *words(HOPPER, PLAIN, given)]
    fresh = subprocess.run(line, capture_output=True, text=True, check=True, env={"FRESH_THREAD": "1"})
    require_same(json.loads(fresh.stdout), HOPPER.launch(PLAIN, given, H200))


def test_maps_that_are_kept_do_not_grow_without_bound(hopper: Path) -> None:
    line = words(HOPPER, PLAIN, tensors())
    moved = [[*line[:2], str(int(line[2]) + 16 * turn), *line[3:]] for turn in range(1100)]  # the address of Q
    found = planned(hopper, [*moved, moved[0]])
    assert found[0]["encoded"] == 4
    assert {one["encoded"] for one in found[1:]} >= {1}
    assert found[-1]["encoded"] >= 1, "the first was given up"
    digits = 2 * (4 * MAP_BYTES + 10 * 4)  # of the members; padding at the end may be anything
    assert found[-1]["bytes"][:digits] == found[0]["bytes"][:digits]


# Batch, positions and heads, multiprocessors, and how many CTAs then share a tile.
SHARED = table_of("nvcc/plan", "shared")


def test_both_sides_deal_the_blocks_of_a_tile_out_alike(hopper: Path) -> None:
    shapes = [(1, 128 * blocks - 5, heads) for blocks in range(1, 34, 2) for heads in (1, 3)]
    asked = [(shape, count) for shape, count, _ in SHARED]
    asked += [(shape, count) for shape in shapes for count in (1, 16, 78, H200)]
    given = [([np.broadcast_to(np.float16(0), (*shape, 128))] * 4, count) for shape, count in asked]  # one element each
    found = []
    for first in range(0, len(asked), 100):  # a process keeps more maps than these problems need
        found += planned(hopper, [words(HOPPER, SPLIT, *problem) for problem in given[first : first + 100]])
    for answer, problem in zip(found, given, strict=True):
        require_same_extent(answer, HOPPER.launch(SPLIT, *problem))
    for answer, (_, _, parts) in zip(found, SHARED, strict=False):
        assert (answer["cluster"], answer["resident"]) == ([parts, 1, 1], parts == 1)


def refused(hopper: Path, line: Sequence[str], **environment: str) -> str:
    """The plan's error for a problem."""
    done = subprocess.run([hopper, *line], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 3
    assert done.stdout.startswith("flashladder_20: ")
    assert done.stdout.count("\n") == 1
    return done.stdout


def test_more_tiles_or_blocks_than_a_cta_can_count_are_one_line(hopper: Path) -> None:
    """A CTA counts the blocks of K of all of its tiles."""
    line = words(HOPPER, PERSISTENT, tensors())
    line[18:23] = map(str, (1 << 10, 128 << 7, 1 << 13, 1, 1))  # samples, queries, heads; keys, heads of them
    assert planned(hopper, [line])[0]["grid"] == [MOST_TILES, 1, 1]
    line[18] = str((1 << 10) + 1)
    message = refused(hopper, line)
    assert f"expected at most {MOST_TILES} blocks of 128 rows" in message
    assert f"found {MOST_TILES + (1 << 20)}\n" in message

    longest, heads = (1 << 31) - 1, 1 << 14

    def blocks(positions: int) -> int:
        """Of K, for a multiprocessor."""
        return -(-heads * -(-positions // PERSISTENT.B_r) // H200) * -(-positions // PERSISTENT.B_c)

    positions = bisect_right(range(1 << 20), longest, key=blocks) - 1
    assert blocks(positions) <= longest < blocks(positions + 1)
    line[18:23] = map(str, (1, positions, heads, positions, heads))
    assert planned(hopper, [line])[0]["grid"] == [heads * -(-positions // PERSISTENT.B_r), 1, 1]
    line[19] = line[21] = str(positions + 1)
    limit = f"at most {longest} blocks of K for one multiprocessor, found {blocks(positions + 1)}"
    assert limit in refused(hopper, line)


def test_a_mask_has_a_cta_count_the_blocks_of_two_tiles(hopper: Path) -> None:
    heads = 1 << 14
    line = words(HOPPER, CAUSAL, tensors())
    most = ((1 << 31) - 1) // (2 * -(-heads // H200)) * CAUSAL.B_c  # keys, if each head has one pair of tiles
    line[18:23] = map(str, (1, 2 * CAUSAL.B_r, heads, most, heads))
    assert planned(hopper, [line])[0]["grid"] == [heads, 1, 1]
    line[21] = str(most + 1)
    assert "blocks of K for one multiprocessor" in refused(hopper, line)


def test_a_driver_without_maps_and_a_map_that_it_refuses_are_one_line(hopper: Path) -> None:
    line = words(HOPPER, PLAIN, tensors())
    assert "expected cuTensorMapEncodeTiled of CUDA 12.0 or later" in refused(hopper, line, OLD_DRIVER="1")
    line[8] = "1000"  # bytes between two positions of K
    assert "k: expected strides that a tensor map takes, found 1000, 128, 256, 589824 bytes" in refused(hopper, line)
