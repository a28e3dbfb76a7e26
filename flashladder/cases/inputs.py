"""The inputs of a case: the layout of Q, K, V and O, and the contents of Q, K and V; the cases of GPU and emulator.

If all four tensors had the same layout in a small buffer, a kernel could confuse their strides or multiply them in 32
bits and still be right. So layouts differ between the tensors, and some reach past 2^32 bytes. `CONTENTS` puts the
logits where an online softmax can go wrong. Everything around the inputs and O is NaN, so that a stray read or write
shows.

Tensors are (batch, rows, heads, d_head): Q and O have a row per query, K and V one per key. A slice is (rows, d_head),
of one sample and head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
import math
import mmap
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from flashladder.errors import FlashladderError
from flashladder.ladder.config import D_HEAD, KernelConfig
from flashladder.lazy_torch import Tensor, torch
from flashladder.problem import Problem

View = Literal[
    "contiguous", "head_slice", "packed", "transposed", "sliced", "mixed", "mixed_slots", "one_off",
    "far_rows", "far_heads", "far_samples",
]  # fmt: skip
FAR = ("far_rows", "far_heads", "far_samples")
TENSORS = ("q", "k", "v", "out")
FULL_HEADS = 16  # heads of the tensor that contains a `head_slice`; with d_head 128 its row stride is 2048
VECTOR = 8  # elements in 16 bytes; every offset and stride is a multiple
SLOT = 2  # d_heads per slot of a far view; a quarter of the slot is poison on each side of the data
POISON = 0x7FDA  # bits of a NaN in fp16 and bf16; arithmetic makes other NaNs: 0x7fff, 0x7fc0 or 0x7e00
NO_RESERVE = 0x4000  # Linux' MAP_NORESERVE; Python's mmap has the name from 3.13 on
SEQ_LENS = (512, 1024, 2048, 4096, 8192, 16384)
RAGGED = (1, 17, 129, 1000, 4097)  # lengths for kernels that take any length
BATCH = {8192: 8, 16384: 4}  # 16 up to length 4096
N_HEADS = 16
FAR_BYTES = 9 << 29  # 4.5 GiB: no 32-bit byte offset, signed or not, reaches the end of a far view
LARGE_LOGITS = 30.0  # factor on Q: scores of about +-120, so that softmax is nearly one-hot and exp must not overflow
FAR_ROW = (1 << 29) + (1 << 20)  # bytes from row to row: four rows pass 2^31 bytes, eight 2^32; address space only
EMULATED_RAGGED = ((1, 201, 2), (2, 384, 1), (1, 1, 2), (2, 17, 1), (1, 129, 3), (1, 1000, 1))  # batch, length, heads
EMULATED_REPEATS = 2  # runs of the first case, equal bit for bit: the second run shows that no state is left over
# Queries and keys of a sample, for kernels that take any: shorter and longer ones, and rows that see no key.
GENERAL = (
    *((1, 1), (17, 17), (129, 127), (127, 129), (128, 128), (1000, 129), (1, 1000), (128, 1000), (1000, 1000)),
    *((129, 1), (1000, 17), (17, 4097), (4097, 128), (4097, 4097)),
)
EMULATED_GENERAL = ((1, 1), (17, 300), (129, 127), (300, 129), (260, 385), (1, 513), (385, 17))
PROVEN_GENERAL = ((150, 300),)
# Packed sequences: queries of each, and keys where they are others.
PackedLengths = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
PACKED: PackedLengths = (
    ((1, 17, 127, 128, 129, 1000, 4097), ()),
    ((1000, 0, 1, 129, 300, 64, 0), (129, 40, 1000, 0, 17, 64, 0)),
    ((513,), ()),
    (tuple(range(1, 71)), ()),
    ((2, 3) * 40, (300, 1) * 40),
    ((8192, 128, 2048, 640, 333), ()),
)
EMULATED_PACKED: PackedLengths = (((1, 129, 300, 17), ()), ((130, 0, 1, 70, 9), (5, 40, 200, 0, 300)))
EMULATED_PACKED_MANY: PackedLengths = (((3, 1) * 20, (150, 2) * 20),)  # a warp looks at 32 at a time
EMULATED_PACKED_ALONE: PackedLengths = (((9,), (300,)),)  # one tile: a second CTA finds none
PROVEN_PACKED: PackedLengths = (((150, 1, 0, 300, 20), (300, 17, 40, 129, 0)),)
GROUPS = ((1, 1), (5, 1), (8, 2), (33, 11))  # heads of Q, and of K and V
KINDS = ("normal", "rising", "falling", "overtaken before the last keys", "equal", "large logits")  # of their inputs
BLOCK = 64  # keys per KV block of most kernels; the others take a divisor


@dataclass(frozen=True)
class Case:
    """One input; its name is unique among a kernel's cases."""

    name: str
    shape: Problem
    view: View = "contiguous"  # how the tensors lie in memory
    scale: float = 1.0  # factor on Q
    seed: int = 0  # of the N(0, 1) draw
    # Mixed view: the number of Q's layout; K, V and O have the next ones. View `one_off`: the number of the tensor
    # whose row stride is not 2048 elements.
    turn: int = 0
    far_bytes: int = 0  # the one large stride of a far view
    contents: tuple[str, ...] = ("normal",)  # contents of the slices in turn: heads of sample 0, then of sample 1, ...
    expanded: bool = False  # all heads share K's first head and all samples V's first sample, by strides of 0
    repeats: int = 0  # runs that must agree bit for bit, with the first; 0: the checker's default


@dataclass(frozen=True)
class Tensors:
    """Q, K, V and O as the kernel sees them, and O's memory with its surroundings; a kernel may write only `out`."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    out_base: Tensor
    lse: Tensor  # (batch, n_heads, seq_len), fp32; only kernels of general problems write it
    bounds: tuple[Tensor, ...] = ()  # of packed sequences: where each begins in Q, and in K and V, int32

    @property
    def packing(self) -> dict[str, Any]:
        """What a kernel or a library gets besides Q, K, V and O."""
        return {"bounds": self.bounds} if self.bounds else {}

    @property
    def poisoned(self) -> Tensor:
        """Which elements of `out_base` hold the poison bit for bit; the kernel wrote any other NaN."""
        return self.out_base.view(torch.int16) == POISON

    def poison(self) -> None:
        """Fills O and its surroundings with a NaN whose bits no arithmetic makes."""
        self.out_base.view(torch.int16).fill_(POISON)
        self.lse.fill_(math.nan)

    @property
    def row_strides(self) -> set[int]:
        """Elements from one position to the next, of all four tensors."""
        return {int(tensor.stride(1)) for tensor in (self.q, self.k, self.v, self.out)}


Sizes = tuple[int, int, int, int]  # of a tensor: batch, rows, heads, d_head


class Layout(NamedTuple):
    """Where a tensor lies: the number of its buffer, the offset of its first element, and its strides in elements."""

    buffer: int
    offset: int
    batch: int
    seq: int
    head: int

    def end(self, sizes: Sizes) -> int:
        """The offset after the last element of a tensor of these sizes."""
        batch, rows, heads, d_head = sizes
        return self.offset + (batch - 1) * self.batch + (rows - 1) * self.seq + (heads - 1) * self.head + d_head


def sizes_of(shape: Problem) -> tuple[Sizes, ...]:
    """The sizes of Q, K, V and O."""
    return (shape.q_shape, shape.kv_shape, shape.kv_shape, shape.q_shape)


def layouts(case: Case) -> tuple[Layout, ...]:
    """The layouts of Q, K, V and O."""
    if case.view in FAR:
        return tuple(_far(case, number) for number in range(4))
    return tuple(_layout(case, number, sizes) for number, sizes in enumerate(sizes_of(case.shape)))


def _layout(case: Case, number: int, sizes: Sizes) -> Layout:
    """The layout of the tensor with this number."""
    if case.view in ("mixed", "mixed_slots"):
        four = _mixed(sizes) if case.view == "mixed" else _mixed_slots(sizes)
        return Layout(number, *four[(number + case.turn) % 4])
    _, rows, heads, d = sizes
    row = heads * d
    plain = (rows * row, row, d)
    if case.view == "packed":
        return Layout(0, number * row, 3 * plain[0], 3 * row, d) if number < len(TENSORS) - 1 else Layout(1, 0, *plain)
    wide, longer = ((d, rows * full * d, full * d, d) for full in (FULL_HEADS, FULL_HEADS + 1))
    if case.view == "one_off":
        return Layout(number, *(longer if number == case.turn else wide))
    one: Mapping[str, tuple[int, int, int, int]] = {
        "contiguous": (0, *plain),
        "transposed": (0, plain[0], d, rows * d),
        "head_slice": wide,
        "sliced": (32 * row, 2 * (rows + 64) * row, row, d),
    }
    return Layout(number, *one[case.view])


def _mixed(sizes: Sizes) -> tuple[tuple[int, int, int, int], ...]:
    """Four offsets and strides of batch, row and head that all differ: contiguous, packed, head-major, sliced."""
    batch, rows, heads, d = sizes
    row = heads * d
    wide = 2 * d + VECTOR  # every second head of rows that are 8 elements longer: multiples of 16 bytes, not of 128
    return (
        (VECTOR, rows * row, row, d),
        (3 * d, 3 * rows * row, 3 * row, 3 * d),  # (batch, rows, heads, q k v, d_head)
        (5 * VECTOR, rows * d, d, batch * rows * d),  # (heads, batch, rows, d_head)
        (32 * row + 7 * VECTOR, 2 * (rows + 64) * heads * wide, heads * wide, wide),
    )


def _mixed_slots(sizes: Sizes) -> tuple[tuple[int, int, int, int], ...]:
    """As `_mixed`, but always with the row stride of `FULL_HEADS` heads that iteration 16 takes; at most 5 heads."""
    batch, rows, _, d = sizes
    row = FULL_HEADS * d
    return (
        (row + VECTOR, rows * row, row, d),
        (2 * row, (rows + 16) * row, row, 2 * d + VECTOR),
        (3 * VECTOR, 2 * rows * row, row, 3 * d),
        (5 * VECTOR, (rows + 8) * row, row, batch * (rows + 8) * row),
    )


def _far(case: Case, number: int) -> Layout:
    """One of Q, K, V and O, which share the rows of one buffer; one stride is `far_bytes` instead of the usual one."""
    d, far = case.shape.d_head, case.far_bytes // 2
    row = FULL_HEADS * d
    offset = number * row // 4 + d // SLOT
    strides = {
        "far_rows": (case.shape.seq_len * far, far, SLOT * d),
        "far_heads": (case.shape.seq_len * row, row, far),
        "far_samples": (far, row, SLOT * d),
    }
    return Layout(0, offset, *strides[case.view])


def torch_dtype(name: str) -> torch.dtype:
    """``fp16`` or ``bf16`` as torch names it."""
    return {"fp16": torch.float16, "bf16": torch.bfloat16}[name]


def make_tensors(case: Case, dtype: str, device: str) -> Tensors:
    """Draws the inputs of a case from its seed; O and everything between and around the tensors is NaN."""
    shape, element = case.shape, torch_dtype(dtype)
    sizes, places = sizes_of(shape), layouts(case)
    buffers = [_buffer(case, places, number, element, device) for number in range(places[-1].buffer + 1)]
    views = [
        torch.as_strided(buffers[one.buffer], own, (*one[2:], 1), one.offset)
        for one, own in zip(places, sizes, strict=True)
    ]
    generator = torch.Generator(device=device).manual_seed(case.seed)
    for view in views[:3]:
        view.copy_(torch.randn(view.shape, generator=generator, device=device, dtype=element))
    views[0].mul_(case.scale)
    group = shape.n_heads // shape.n_kv_heads
    parts = product(range(shape.batch), range(shape.n_kv_heads), shape.sequences)
    for number, (b, h, (rows, keys)) in enumerate(parts):
        q, k, v = (views[i][b, own, head] for i, own, head in ((0, rows, h * group), (1, keys, h), (2, keys, h)))
        if k.numel():  # a packed sequence may have no keys
            CONTENTS[case.contents[number % len(case.contents)]](Slice(q, k, v, generator))
        for other in range(1, group):  # rows of its own, which see the same keys
            views[0][b, rows, h * group + other] = q.roll(other, 0)
    around = buffers[places[-1].buffer]
    if case.view in FAR:
        start = places[-1].offset - shape.d_head // SLOT
        around = torch.as_strided(around, (*sizes[3][:3], SLOT * shape.d_head), (*places[-1][2:], 1), start)
    if case.expanded:
        views[1], views[2] = views[1][:, :, :1].expand(sizes[1]), views[2][:1].expand(sizes[2])
    lse = torch.empty(shape.batch, shape.n_heads, shape.seq_len, device=device)
    bounds = shape.bounds if shape.is_packed else ()
    places_of = tuple(torch.tensor(one, dtype=torch.int32, device=device) for one in bounds)
    tensors = Tensors(views[0], views[1], views[2], views[3], around, lse, places_of)
    tensors.poison()
    return tensors


def _buffer(case: Case, places: tuple[Layout, ...], number: int, element: torch.dtype, device: str) -> Tensor:
    """A buffer of NaN for the tensors with this number, with as much space after the last one as before the first."""
    mine = [(one, sizes) for one, sizes in zip(places, sizes_of(case.shape), strict=True) if one.buffer == number]
    count = max(one.end(sizes) for one, sizes in mine) + min(one.offset for one, _ in mine)
    if case.view in FAR and device == "cpu":
        return _sparse(count, element)
    return torch.full((count,), math.nan, dtype=element, device=device)


def _sparse(count: int, element: torch.dtype) -> Tensor:
    """Any number of zeros, which take address space but no memory until they are written."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", NO_RESERVE)
    try:
        memory = mmap.mmap(-1, 2 * count, flags=flags)
    except OSError as error:
        hint = "lift the limit: ulimit -v unlimited, or sysctl vm.overcommit_memory=0"
        size = f"{2 * count / 2**30:.1f} GiB, of which less than 1 % are touched"
        what = "no address space for a sparse tensor"
        raise FlashladderError(what, expected=size, found=error, hint=hint) from error
    return torch.frombuffer(memory, dtype=element)


@dataclass(frozen=True)
class Slice:
    """Q, K and V of one sample and head, each (seq_len, d_head) of N(0, 1); contents change them in place."""

    q: Tensor
    k: Tensor
    v: Tensor
    generator: torch.Generator

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Random integers of [low, high), by default of shape (d_head,)."""
        return torch.randint(low, high, shape or self.q.shape[1:], generator=self.generator, device=self.q.device)

    def direction(self) -> Tensor:
        """A random direction of +-1, (d_head,). Adding it to Q and to K raises their logits."""
        return (2 * self.integers(0, 2) - 1).to(self.q.dtype)


def _shifted(one: Slice, by: float) -> None:
    """All logits near ``9 sqrt(d_head) by``, about 102 for `by` = 1, with a spread of about 4."""
    along = one.direction()
    one.q.add_(3 * along)
    one.k.add_(3 * by * along)


def _peak(one: Slice, key: int) -> None:
    """One key (negative: counted from the end) is about 10 above all others in every row.

    The weights of the others are subnormal in fp16, and about 1 % together.
    """
    along = one.direction()
    one.q.add_(along)
    one.k[key] += 0.93 * along


def _overtaken(one: Slice, first: int, second: int, row: int | None = None) -> None:
    """Two keys outweigh all others of a row; the weight of `second` is 1.8 to 2.7 times that of `first`.

    Both are given in 32nds of the keys, or negative, from the end. A kernel that reads `first` first and does not
    update its maximum rounds the weight of `second` to 16 bits. This error is common to all elements of the row, which
    have hardly another one. If the length is one above a multiple of the block, the last key (-1) is alone in its
    block. With `row` (0 or 1) only eight of every 16 rows are so. A lane that decides for both of its rows by one of
    them gets the other row wrong.
    """
    along = one.direction()
    own = _own_rows(one, row)
    one.q[own] += along
    for key, factor in ((first, 0.875), (second, 0.9453125)):
        one.k[key * len(one.k) // 32 if key >= 0 else len(one.k) + key] = factor * along


def _own_rows(one: Slice, row: int | None) -> Any:
    """The rows in the upper (0) or lower (1) eight of each 16; None: all. A lane of `mma` or `wgmma` has one of each.

    Shrinks the queries of the other rows to a quarter, so that their keys have similar weights.
    """
    if row is None:
        return slice(None)
    own = torch.arange(len(one.q), device=one.q.device) // 8 % 2 == row
    one.q[~own] *= 0.25
    return own


def _lone(one: Slice, row: int, key: int) -> None:
    """In eight of every 16 rows (`row` 0 or 1) the logit of one key is 68 above all others.

    It is in the first or second half (`key`) of the first 128 keys. A lane of `mma` or `wgmma` holds rows that are
    eight apart. So only one of the lane's four combinations of rows and keys has a weight that is too large. The other
    rows are flat.
    """
    along = one.direction()
    one.q[_own_rows(one, row)] += 3 * along
    one.k[BLOCK * key + 5] += 2 * along


def _slope(one: Slice, sign: int) -> None:
    """Logits that rise (1) or fall (-1) by 2 from one block of 64 keys to the next: the maximum moves, or stays."""
    along = one.direction()
    steps = torch.arange(len(one.k), device=one.k.device, dtype=torch.float32) / 32 / math.sqrt(one.k.shape[1])
    one.q.add_(along)
    one.k.add_(((steps if sign > 0 else steps.flip(0))[:, None] * along).to(one.k.dtype))


def _deep(one: Slice) -> None:
    """Every q.k is -2^17, a logit of -11585: below what kernels often use as minus infinity, and exact in fp32."""
    along = 32 * one.direction()
    one.q.copy_(along.expand_as(one.q))
    one.k.copy_(-along.expand_as(one.k))


def _plunging(one: Slice) -> None:
    """The first 64 keys are 204 above all others: exp overflows if a block forgets the maximum of the blocks before."""
    along = one.direction()
    one.q.add_(3 * along)
    one.k[:BLOCK] += 3 * along
    one.k[BLOCK:] -= 3 * along


def _spikes(one: Slice, half: int) -> None:
    """One key in this half of each block of 64 is 204 above all others: exp overflows if the maximum overlooks it."""
    along = one.direction()
    one.q.add_(3 * along)
    one.k.sub_(3 * along)
    firsts = torch.arange(half * BLOCK // 2, len(one.k), BLOCK, device=one.k.device)
    keys = firsts + one.integers(0, BLOCK // 2, *firsts.shape)
    one.k[keys.clamp(max=len(one.k) - 1)] += 6 * along  # the last block may have fewer keys


def _constant(one: Slice) -> None:
    """Each column of V holds one number, exact in both dtypes: O must be that number.

    The numbers have both signs, and range from fp16's subnormal numbers to its largest: the sum of two overflows.
    """
    sign, mantissa = 2 * one.integers(0, 2) - 1, one.integers(128, 256) / 128
    one.v.copy_(sign * mantissa * torch.exp2(one.integers(-17, 16).float()))


def _levels(one: Slice, sign: int) -> None:
    """Each q.k is 2^20 or 2^21 times `sign`: logits of +-92682 and +-185364, of which only the higher ones count.

    They are beyond every number that kernels use as infinity or clamp to, and powers of two, so that their differences
    are exact.
    """
    along = one.direction()
    high = one.integers(1, 3, len(one.k), 1).to(one.k.dtype)
    one.q.copy_((128 * along).expand_as(one.q))
    one.k.copy_(sign * 64 * high * along)


def _wide(one: Slice) -> None:
    """Q, K and a constant V hold numbers that fit bf16 but not fp16; the logits are those of N(0, 1)."""
    _constant(one)
    if one.q.dtype == torch.bfloat16:
        one.q.mul_(2.0**40)
        one.k.mul_(2.0**-40)
        one.v.mul_(torch.exp2(one.integers(-60, 60).float()).to(one.v.dtype))


def _peak_over_constant(one: Slice) -> None:
    """Both contents: weights that are too small for 16 bits are in the row sum, and must be in O."""
    _peak(one, 1)
    _constant(one)


CONTENTS: Mapping[str, Callable[[Slice], object]] = MappingProxyType(
    {
        "normal": lambda _: None,
        "far below zero": partial(_shifted, by=-1.0),
        "far above zero": partial(_shifted, by=1.0),
        "deep below zero": _deep,
        "first key": partial(_peak, key=1),
        "last key": partial(_peak, key=-2),
        "overtaken forward": partial(_overtaken, first=12, second=20),
        "overtaken backward": partial(_overtaken, first=20, second=12),
        "overtaken after the first key": partial(_overtaken, first=0, second=16),
        "overtaken before the last keys": partial(_overtaken, first=31, second=12),
        **{
            f"{rows} rows, {keys} key": partial(_lone, row=row, key=key)
            for row, rows in enumerate(("upper", "lower"))
            for key, keys in enumerate(("left", "right"))
        },
        **{
            f"{rows} rows, overtaken at {place}": partial(_overtaken, first=31, second=second, row=row)
            for row, rows in enumerate(("upper", "lower"))
            for place, second in (("a quarter", 8), ("three eighths", 12))
        },
        **{
            f"last key, overtaken {keys} before the end": partial(_overtaken, first=-1, second=-keys)
            for keys in (20, 40, 60, 100)
        },
        "rising": partial(_slope, sign=1),
        "falling": partial(_slope, sign=-1),
        "plunging": _plunging,
        "left spikes": partial(_spikes, half=0),
        "right spikes": partial(_spikes, half=1),
        "matching": lambda one: one.k.copy_(one.q),  # row i attends to key i, so that permuted rows or keys show
        "equal": lambda one: one.k.copy_(one.k[:1].clone()),  # equal keys have equal weights: O is V's mean
        "zero queries": lambda one: one.q.zero_(),  # as in padding: every logit is 0, and O is V's mean
        "high levels": partial(_levels, sign=1),
        "low levels": partial(_levels, sign=-1),
        "wide": _wide,
        "constant": _constant,
        "first key, constant": _peak_over_constant,
    }
)
"""Contents of a slice of Q, K and V by name; each function changes N(0, 1) draws in place.

With N(0, 1) alone each row has a positive logit, no two maxima are far apart and every error looks like noise. There a
kernel is right even if its running maximum starts at zero, forgets earlier blocks or overlooks a column.
"""
CONSTANT = ("constant", "first key, constant")
HEAVY = tuple(name for name in CONTENTS if name.startswith("overtaken"))
LONE = tuple(name for name in CONTENTS if name.endswith((" left key", " right key")))
BESIDE = tuple(name for name in CONTENTS if "rows, overtaken" in name)
ENDING = tuple(name for name in CONTENTS if name.endswith("before the end"))
EDGES = ("zero queries", "high levels", "low levels", "wide")
PROVEN = (  # contents of one launch: together they tell most wrong kernels of tests/broken
    *("rising", "last key", "deep below zero", "constant"),
    *("overtaken backward", "far below zero", "high levels", "plunging"),
)
_OTHERS = ("normal", *CONSTANT, *EDGES, *HEAVY, *LONE, *BESIDE, *ENDING)
LOGITS = tuple(name for name in CONTENTS if name not in _OTHERS)


def shape_of(seq_len: int) -> Problem:
    """The grid's shape at this length: the batch is 16, then 8 at 8192 and 4 at 16384."""
    return Problem(batch=BATCH.get(seq_len, 16), seq_len=seq_len, n_heads=N_HEADS, d_head=D_HEAD)


def on_grid(shape: Problem) -> bool:
    """Whether a shape is in the ladder's grid; a sweep may have other shapes of the same length."""
    return shape.seq_len in SEQ_LENS and shape == shape_of(shape.seq_len)


def _case(name: str, batch: int, seq_len: int, heads: int = N_HEADS, view: View = "contiguous", **other: Any) -> Case:
    """A case whose name ends in its shape."""
    size = Problem(batch=batch, seq_len=seq_len, n_heads=heads, d_head=D_HEAD)
    return Case(f"{name} {batch}x{seq_len}x{heads}", size, view, seed=seq_len + heads, **other)


def cases_for(config: KernelConfig, *, quick: bool = False) -> tuple[Case, ...]:
    """Every case of a configuration; with `quick` lengths up to 1024 at batch 2 instead of the whole grid."""
    if config.is_packed:
        return packed_cases(config, PACKED[:3] if quick else PACKED, GROUPS)
    tile = max(config.B_r, config.B_c)
    heavy = (256, 512, 1024) if config.heavy_rows else ()
    lengths = (512, 1024) if quick else SEQ_LENS
    ragged = () if config.multiples else RAGGED[:4] if quick else RAGGED
    square = (
        *(_case("ragged", 2, length, 3) for length in ragged),
        *(_case("grid", 2 if quick else BATCH.get(length, 16), length) for length in lengths),
        *(_case("small", 2, tile * blocks) for blocks in (1, 2, 3)),
        *(_case("odd", batch, tile * 3, heads) for batch, heads in ((1, 3), (3, 5))),
        *(_case("odd head slice", batch, tile * 3, heads, "head_slice") for batch, heads in ((1, 3), (3, 5))),
        _case("qkv packed", 2, 512, view="packed"),
        _case("transposed", 2, 512, view="transposed"),
        _case("sliced", 2, 512, view="sliced"),
        _case("large logits", 2, 1024, scale=LARGE_LOGITS),
        _case("large logits", 2, tile, scale=LARGE_LOGITS),
        _case("extreme logits", 2, 512, contents=LOGITS),
        _case("constant V", 2, 512, contents=CONSTANT),
        _case("edge logits", 2, 512, contents=EDGES),
        *(_case("heavy rows", 2, length, contents=HEAVY) for length in heavy),
        _case("expanded", 3, 2 * tile, expanded=True),
        *(_case(f"mixed {turn}", 2, 512, view="mixed", turn=turn) for turn in range(4)),
        *(_case(f"mixed rows of 2048 {turn}", 2, 512, 4, "mixed_slots", turn=turn) for turn in range(4)),
        *(_case(f"other row stride {turn}", 1, tile, 2, "one_off", turn=turn) for turn in range(4)),
        _case("far rows", 1, 2 * tile, 1, "far_rows", far_bytes=far_stride(2 * tile)),
        *_far_cases(tile),
        *(_case("few tiles", *shape) for shape in config.few_tiles),
        *_extreme_few_tiles(config),
    )
    return (*masked(square, config), *general_cases(config, GENERAL[:6] if quick else GENERAL, GROUPS))


def masked(cases: Iterable[Case], config: KernelConfig) -> tuple[Case, ...]:
    """The cases with the mask of a kernel."""
    return tuple(replace(one, shape=one.shape.varied(mask=config.mask)) for one in cases)


def packed_cases(
    config: KernelConfig, lengths: PackedLengths, groups: Sequence[tuple[int, int]], first: int = 0, **other: Any
) -> tuple[Case, ...]:
    """For kernels of packed sequences: each list of lengths with each pair of head counts, and two kinds of inputs."""
    found = []
    for number, ((queries, keys), (heads, kv_heads)) in enumerate(product(lengths, groups), first):
        sizes = {"n_heads": heads, "n_kv_heads": kv_heads, "d_head": D_HEAD, "mask": config.mask}
        shape = Problem.packing(queries, keys or None, **sizes)
        kinds = [KINDS[(number + more) % len(KINDS)] for more in (0, 1 + number // len(KINDS) % (len(KINDS) - 1))]
        for kind in kinds:
            scale, contents = (LARGE_LOGITS, "normal") if kind == "large logits" else (1.0, kind)
            name = f"{kind} packed {len(queries)} of {shape.seq_len}:{shape.kv_len}x{heads}:{kv_heads}"
            view: View = ("contiguous", "mixed", "packed", "transposed")[number % 4]
            turn = number // 4 % 4 if view == "mixed" else 0
            view = "contiguous" if view == "packed" and (keys or heads != kv_heads) else view  # of one shape
            case = Case(name, shape, view, scale=scale, seed=number, turn=turn, contents=(contents, "normal"), **other)
            found.append(case)
    return tuple(found)


def general_cases(
    config: KernelConfig, lengths: Sequence[tuple[int, int]], groups: Sequence[tuple[int, int]], **other: Any
) -> tuple[Case, ...]:
    """For kernels of general problems: each pair of lengths with each pair of head counts, and two kinds of inputs."""
    found = []
    for number, ((queries, keys), (heads, kv_heads)) in enumerate(product(lengths, groups)):
        if not config.is_general:
            break
        shape = Problem(
            batch=1 + number % 2, seq_len=queries, n_heads=heads, d_head=D_HEAD, kv_len=keys, n_kv_heads=kv_heads,
            mask=config.mask,
        )  # fmt: skip
        kinds = KINDS[number % len(KINDS) :] + KINDS[: number % len(KINDS)]
        for kind in (kinds[0], kinds[1 + number // len(KINDS) % (len(KINDS) - 1)]):
            scale, contents = (LARGE_LOGITS, "normal") if kind == "large logits" else (1.0, kind)
            name = f"{kind} {shape.batch}x{queries}:{keys}x{heads}:{kv_heads}"
            found.append(Case(name, shape, scale=scale, seed=number, contents=(contents,), **other))
    return tuple(found)


def _extreme_few_tiles(config: KernelConfig, **other: Any) -> tuple[Case, ...]:
    """If the kernel splits tiles that are few: two cases with half of the extreme logits each."""
    length, heads = max(config.B_r, config.B_c) * 8 - 1, len(LOGITS) // 2
    halves = enumerate((LOGITS[:heads], LOGITS[heads:]) if config.few_tiles else ())
    return tuple(
        _case(f"few tiles of extreme logits {turn}", 1, length, heads, contents=half, **other) for turn, half in halves
    )


def _far_cases(tile: int, **other: Any) -> tuple[Case, Case]:
    return (
        _case("far heads", 1, tile, 2, "far_heads", far_bytes=far_stride(2), **other),
        _case("far samples", 2, tile, 1, "far_samples", far_bytes=far_stride(2), **other),
    )


def emulator_cases(config: KernelConfig, row_stride: int = 0, *, quick: bool = False) -> tuple[Case, ...]:
    """The emulator's cases of a configuration: small shapes, odd counts, views of all kinds, logits of all kinds.

    Args:
        config: lengths are multiples of its tiles.
        row_stride: the only row stride that the kernel takes, in elements; 0: any. Such a kernel gets head slices of
            tensors with that row stride, and must refuse the other layouts.
        quick: one length and one refusal. A kernel that takes any length also gets one that no block size divides, and
            one that only some block sizes divide.
    """
    if config.is_packed and quick:
        return packed_cases(config, EMULATED_PACKED[:1], GROUPS[2:3], repeats=1)
    if config.is_packed:
        many = packed_cases(config, EMULATED_PACKED_MANY, ((2, 1),), first=4, repeats=1)
        alone = packed_cases(config, EMULATED_PACKED_ALONE, GROUPS[:1], repeats=1)
        return (*packed_cases(config, EMULATED_PACKED, GROUPS[1:3], repeats=1), *many, *alone)
    tile = max(config.B_r, config.B_c)
    fixed = row_stride == FULL_HEADS * D_HEAD
    case = partial(_case, view="head_slice" if fixed else "contiguous", repeats=1)
    slices = len(LOGITS) // 2
    main, few = case("small", 2, 256, 2, repeats=EMULATED_REPEATS), [case("few tiles", *s) for s in config.few_tiles]
    ragged = [] if config.multiples else [case("ragged", *shape) for shape in EMULATED_RAGGED]
    last = []
    if ragged:  # one row short of a block: the missing row must not count as a key or in the maximum
        last = [case("ragged extreme logits", 2, tile * 2 - 1, slices, contents=LOGITS)]
    if quick:
        square = (main, case("transposed", 1, tile, 2, view="transposed"), *few[:1], *ragged[:2])
        return (*masked(square, config), *general_cases(config, GENERAL[1:2], GROUPS[2:3], repeats=1))
    square = (
        main,
        *few,
        *ragged,
        case("long", 1, 1024, 1),
        case("one block", 1, tile, 1),
        case("odd", 3, tile * 3, 1),
        case("odd", 1, tile * 2, 3),
        case("many heads", 1, tile, 9),
        case("many samples", 9, tile, 1),
        case("samples of heads", 3, tile, 3),
        case("expanded", 3, tile, 2, expanded=True),
        case("head slice", 2, tile, 3, view="head_slice"),
        case("qkv packed", 2, tile * 2, 2, view="packed"),
        case("transposed", 2, tile * 2, 2, view="transposed"),
        case("sliced", 2, tile * 2, 2, view="sliced"),
        *(case(f"mixed {turn}", 2, tile * 2, 2, view="mixed", turn=turn) for turn in (0, 2)),
        *(
            case(f"mixed rows of 2048 {turn}", 2, tile * 2, 2, view="mixed_slots", turn=turn)
            for turn in (0, 2)
            if fixed
        ),
        *(case(f"other row stride {turn}", 1, tile, 2, view="one_off", turn=turn) for turn in range(4) if fixed),
        case("far rows", 1, tile * 2, 1, view="far_rows", far_bytes=FAR_ROW),
        *_far_cases(tile, repeats=1),
        case("large logits", 1, tile * 2, 1, scale=LARGE_LOGITS),
        case("extreme logits", 2, max(192, tile * 2), slices, contents=LOGITS),
        *_extreme_few_tiles(config, repeats=1),
        *last,
        case("edge logits", 1, max(192, tile * 2), len(EDGES), contents=EDGES),
        case("constant V", 1, tile * 2, 2, contents=CONSTANT),
        *(case("heavy rows", 1, length, len(HEAVY), contents=HEAVY) for length in (max(256, tile * 2), 512)),
        case("lone weights", 1, tile * 5, len(LONE), contents=LONE),
        case("heavy rows beside flat ones", 1, 512, len(BESIDE), contents=BESIDE),
        *([case("heavy last key", 1, tile * 5 + 1, len(ENDING), contents=ENDING)] if ragged else ()),
    )
    return (*masked(square, config), *general_cases(config, EMULATED_GENERAL, GROUPS[1:3], repeats=1))


def proof_cases(config: KernelConfig, row_stride: int = 0) -> tuple[Case, ...]:
    """One launch that runs every part of a kernel, a second where few tiles run another part; as `emulator_cases`.

    Two samples with four heads have three row tiles each, the last one ragged if the kernel takes any length, and at
    least three KV blocks. Q, K, V and O have strides of their own, and each head has other contents.
    """
    if config.is_packed:
        return packed_cases(config, PROVEN_PACKED, ((2, 1),), repeats=1)[:1]
    length = max(config.B_r, config.B_c) * 3 - (0 if config.multiples else 7)
    view: View = "mixed_slots" if row_stride == FULL_HEADS * D_HEAD else "mixed"
    few = [_case("few tiles", *shape, repeats=1) for shape in config.few_tiles[:1]]
    square = (_case("proof", 2, length, len(PROVEN) // 2, view, repeats=1, contents=PROVEN), *few)
    return (*masked(square, config), *general_cases(config, PROVEN_GENERAL, ((2, 1),), repeats=1)[:1])


def far_stride(count: int) -> int:
    """The stride in bytes, a multiple of 16, that puts the last of `count` rows at least `FAR_BYTES` from the first."""
    return -(-FAR_BYTES // (count - 1)) // 16 * 16 + 16
