"""The inputs of a case: where Q, K, V and O lie in memory, and what Q, K and V hold.

Why: a kernel that confuses two tensors' strides, or multiplies them in 32 bits, is right wherever all four tensors lie
alike in a small buffer. Views therefore differ per tensor and reach past 2^32 bytes; what the slices hold is chosen in
`flashladder.cases.contents`.
Everything around the inputs is NaN, so that a stray read shows; everything around O is NaN, so that a stray write does.

Tensors are (batch, seq_len, n_heads, d_head); a slice of one is (seq_len, d_head) of one sample and head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
import math
import mmap
from typing import TYPE_CHECKING, Literal

from flashladder.cases.contents import CONTENTS
from flashladder.errors import FlashladderError
from flashladder.ladder.config import DTYPES
from flashladder.problem import Shape

if TYPE_CHECKING:
    import torch

View = Literal[
    "contiguous", "head_slice", "packed", "transposed", "sliced", "mixed", "mixed_slots", "one_off",
    "far_rows", "far_heads", "far_samples",
]  # fmt: skip
FAR = ("far_rows", "far_heads", "far_samples")
TENSORS = ("q", "k", "v", "out")
FULL_HEADS = 16  # heads of the tensor that a `head_slice` is cut from; with d_head 128 its row stride is 2048
VECTOR = 8  # elements of 16 bytes, of which every offset and stride is a multiple
SLOT = 2  # d_heads per slot of a far view: a quarter of it is poison on each side of the data
POISON = 0x7FDA  # the bits of a NaN in fp16 and in bf16, which arithmetic would make 0x7fff, 0x7fc0 or 0x7e00
NO_RESERVE = 0x4000  # Linux' MAP_NORESERVE, which Python's mmap names from 3.13 on


@dataclass(frozen=True)
class Case:
    """One input.

    Attributes:
        name: unique among a kernel's cases.
        shape: of all four tensors.
        view: how the tensors lie in memory.
        scale: factor on Q; 30 makes logits of about +-120.
        seed: of the N(0, 1) draw.
        turn: which of the four layouts of a mixed view Q has, K, V and O having the next ones; of a view `one_off`,
            which tensor has another row stride than the others' 2048 elements.
        far_bytes: the one large stride of a far view.
        contents: what the slices hold (`CONTENTS`), in turn: heads of sample 0, then of sample 1, and so on.
        expanded: K has one head and V one sample that serve all, by strides of 0.
        repeats: runs that must agree bit for bit, the first included; 0: as many as the checker makes.
    """

    name: str
    shape: Shape
    view: View = "contiguous"
    scale: float = 1.0
    seed: int = 0
    turn: int = 0
    far_bytes: int = 0
    contents: tuple[str, ...] = ("normal",)
    expanded: bool = False
    repeats: int = 0


@dataclass(frozen=True)
class Tensors:
    """Q, K, V and O as the kernel sees them, and O's memory with what lies around it: only `out` may be written."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    out_base: torch.Tensor

    @property
    def poisoned(self) -> torch.Tensor:
        """Which elements of `out_base` hold the poison, bit for bit: another NaN was written."""
        import torch

        return self.out_base.view(torch.int16) == POISON

    def poison(self) -> None:
        """Fills O and its surroundings with NaN, of bits that no arithmetic makes."""
        import torch

        self.out_base.view(torch.int16).fill_(POISON)

    @property
    def row_strides(self) -> set[int]:
        """Elements from one position to the next, of all four tensors."""
        return {int(tensor.stride(1)) for tensor in (self.q, self.k, self.v, self.out)}


@dataclass(frozen=True)
class Layout:
    """Where a tensor lies: the number of its buffer, its first element in there, and its strides in elements."""

    buffer: int
    offset: int
    batch: int
    seq: int
    head: int

    @property
    def strides(self) -> tuple[int, int, int, int]:
        """In the order of a tensor's dimensions."""
        return self.batch, self.seq, self.head, 1

    def end(self, shape: Shape) -> int:
        """One past the last element."""
        steps = (shape.batch - 1) * self.batch + (shape.seq_len - 1) * self.seq + (shape.n_heads - 1) * self.head
        return self.offset + steps + shape.d_head


def layouts(case: Case) -> tuple[Layout, ...]:
    """The layouts of Q, K, V and O."""
    shape = case.shape
    if case.view in FAR:
        return tuple(_far(case, number) for number in range(4))
    if case.view in ("mixed", "mixed_slots"):
        four = _mixed(shape) if case.view == "mixed" else _mixed_slots(shape)
        turned = four[case.turn % 4 :] + four[: case.turn % 4]
        return tuple(Layout(number, *one) for number, one in enumerate(turned))
    d, row = shape.d_head, shape.n_heads * shape.d_head
    plain = (shape.seq_len * row, row, d)
    if case.view == "packed":
        inputs = tuple(Layout(0, number * row, 3 * plain[0], 3 * row, d) for number in range(3))
        return (*inputs, Layout(1, 0, *plain))
    one: Mapping[str, tuple[int, int, int, int]] = {
        "contiguous": (0, *plain),
        "transposed": (0, plain[0], d, shape.seq_len * d),
        "head_slice": (d, shape.seq_len * FULL_HEADS * d, FULL_HEADS * d, d),
        "sliced": (32 * row, 2 * (shape.seq_len + 64) * row, row, d),
    }
    if case.view == "one_off":
        longer = (d, shape.seq_len * (FULL_HEADS + 1) * d, (FULL_HEADS + 1) * d, d)
        return tuple(Layout(number, *(longer if number == case.turn else one["head_slice"])) for number in range(4))
    return tuple(Layout(number, *one[case.view]) for number in range(4))


def _mixed(shape: Shape) -> tuple[tuple[int, int, int, int], ...]:
    """Offset and strides of batch, row and head, no two alike in any: contiguous, packed, head-major, sliced."""
    d, row, rows = shape.d_head, shape.n_heads * shape.d_head, shape.seq_len
    wide = 2 * d + VECTOR  # every second head of rows that are 8 elements longer: multiples of 16 bytes, not of 128
    return (
        (VECTOR, rows * row, row, d),
        (3 * d, 3 * rows * row, 3 * row, 3 * d),  # (batch, seq_len, n_heads, q k v, d_head)
        (5 * VECTOR, rows * d, d, shape.batch * rows * d),  # (n_heads, batch, seq_len, d_head)
        (32 * row + 7 * VECTOR, 2 * (rows + 64) * shape.n_heads * wide, shape.n_heads * wide, wide),
    )


def _mixed_slots(shape: Shape) -> tuple[tuple[int, int, int, int], ...]:
    """As `_mixed`, with the row stride of `FULL_HEADS` heads throughout, which iteration 16 takes: at most 5 heads."""
    d, row, rows = shape.d_head, FULL_HEADS * shape.d_head, shape.seq_len
    return (
        (row + VECTOR, rows * row, row, d),
        (2 * row, (rows + 16) * row, row, 2 * d + VECTOR),
        (3 * VECTOR, 2 * rows * row, row, 3 * d),
        (5 * VECTOR, (rows + 8) * row, row, shape.batch * (rows + 8) * row),
    )


def _far(case: Case, number: int) -> Layout:
    """Q, K, V and O side by side in rows of one buffer, with one stride of `far_bytes` in place of the usual one."""
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
    import torch

    if name not in DTYPES:
        raise FlashladderError("no such dtype", expected=" or ".join(DTYPES), found=name)
    return torch.float16 if name == "fp16" else torch.bfloat16


def make_tensors(case: Case, dtype: str, device: str) -> Tensors:
    """Draws the inputs of a case from its seed; O comes poisoned with NaN, as does all that lies between and around."""
    import torch

    shape, element = case.shape, torch_dtype(dtype)
    sizes = (shape.batch, shape.seq_len, shape.n_heads, shape.d_head)
    places = layouts(case)
    buffers = [_buffer(case, places, number, element, device) for number in range(places[-1].buffer + 1)]
    views = [torch.as_strided(buffers[one.buffer], sizes, one.strides, one.offset) for one in places]
    generator = torch.Generator(device=device).manual_seed(case.seed)
    for view in views[:3]:
        view.copy_(torch.randn(sizes, generator=generator, device=device, dtype=element))
    views[0].mul_(case.scale)
    _fill(case, views, generator)
    around = buffers[places[-1].buffer]
    if case.view in FAR:
        start = places[-1].offset - shape.d_head // SLOT
        around = torch.as_strided(around, (*sizes[:3], SLOT * shape.d_head), places[-1].strides, start)
    if case.expanded:
        views[1], views[2] = views[1][:, :, :1].expand(sizes), views[2][:1].expand(sizes)
    tensors = Tensors(views[0], views[1], views[2], views[3], around)
    tensors.poison()
    return tensors


def _buffer(case: Case, places: tuple[Layout, ...], number: int, element: torch.dtype, device: str) -> torch.Tensor:
    """A buffer full of NaN for the tensors with this number, with as much after the last as before the first."""
    import torch

    mine = [one for one in places if one.buffer == number]
    count = max(one.end(case.shape) for one in mine) + min(one.offset for one in mine)
    if case.view in FAR and device == "cpu":
        return _sparse(count, element)
    return torch.full((count,), math.nan, dtype=element, device=device)


def _sparse(count: int, element: torch.dtype) -> torch.Tensor:
    """Zeros that take no memory until they are written, however many: address space alone."""
    import torch

    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", NO_RESERVE)
    try:
        memory = mmap.mmap(-1, 2 * count, flags=flags)
    except OSError as error:
        raise FlashladderError(
            "no address space for a sparse tensor",
            expected=f"{2 * count / 2**30:.1f} GiB, of which less than 1 % are touched",
            found=error,
            hint="lift the limit: ulimit -v unlimited, or sysctl vm.overcommit_memory=0",
        ) from error
    return torch.frombuffer(memory, dtype=element)


def _fill(case: Case, views: list[torch.Tensor], generator: torch.Generator) -> None:
    """Turns the slices into what `contents` says, in place."""
    shape = case.shape
    for number in range(shape.batch * shape.n_heads):
        kind = case.contents[number % len(case.contents)]
        b, h = divmod(number, shape.n_heads)
        q, k, v = (view[b, :, h] for view in views[:3])
        CONTENTS[kind](q, k, v, generator)
