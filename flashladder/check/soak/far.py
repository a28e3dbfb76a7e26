"""Long rows and tensors beyond 2^32 elements: some rows of some slices against fp64.

Why: where a number of keys, rows, tiles, elements or bytes leaves 32 bits, signed or not, a kernel reads or writes
elsewhere, or counts anew. Whole outputs of that size would take hours in fp64; rows around powers of two, the first and
the last ones take seconds. That the others were written is checked through NaN poison, and that they are the same in
each launch by the sum of their bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
import time
from typing import TYPE_CHECKING

from flashladder.cases.case import Run
from flashladder.cases.inputs import Case, Tensors, make_tensors
from flashladder.cases.reference import BIAS_PER_KEY, UNIT_ROUNDOFF, attention_fp64, attention_torch16, gather
from flashladder.check.soak.launches import bits_digest
from flashladder.check.soak.watchdog import Watchdog
from flashladder.errors import FlashladderError
from flashladder.ladder.config import D_HEAD, Dtype, KernelConfig
from flashladder.problem import Shape
from flashladder.results.schema import FarRows

if TYPE_CHECKING:
    import torch

LAUNCHES = 3
DEADLINE_S = 120.0  # of one launch; the longest takes 4 s on an H200
MOST_SLICES = 6
SHAPES = tuple(
    Shape(batch=batch, seq_len=seq_len, n_heads=heads, d_head=D_HEAD)
    for batch, seq_len, heads in (
        (1, 65_537, 2), (1, 131_073, 1),  # one row in a tile of its own
        (1, 262_144, 2), (1, 262_143, 1),
        (4, 262_144, 16),  # 2^31 elements, 2^32 bytes
        (2049, 1024, 16),  # 2^32 elements and a sample; 262,272 tiles
    )
)  # fmt: skip


def chosen_rows(seq_len: int) -> tuple[int, ...]:
    """The first rows, those around powers of two from 2^10 on, and the last ones."""
    around = {(1 << bit) + by for bit in range(10, 32) for by in (-1, 0, 1)}
    near_end = {seq_len - by for by in (1, 2, 64, 65, 128, 129)}
    return tuple(sorted(row for row in {0, 1, 63, 64, 127, 128} | around | near_end if 0 <= row < seq_len))


def chosen_slices(shape: Shape) -> tuple[tuple[int, int], ...]:
    """The first, the last, and those in which an element's number or a byte's passes 2^31 or 2^32."""
    row = shape.n_heads * shape.d_head
    beyond = [(shape.batch - 1, shape.n_heads - 1), (0, 0), (shape.batch - 1, 0)]
    for limit in (1 << 32, 1 << 31, 1 << 30):  # elements; of two bytes each
        if (sample := limit // (shape.seq_len * row)) < shape.batch:
            beyond += [(sample, 0), (max(0, sample - 1), shape.n_heads - 1)]
    return tuple(sorted(list(dict.fromkeys(beyond))[:MOST_SLICES]))


def far(
    key: str,
    config: KernelConfig,
    run: Run,
    shape: Shape,
    wait: Callable[[], object],
    dog: Watchdog,
    device: str,
    clock: Callable[[], float] = time.monotonic,
) -> FarRows:
    """One kernel at one shape.

    Raises:
        FlashladderError: the tensors do not fit this GPU.
    """
    try:
        tensors = make_tensors(Case(f"far {shape.seq_len}", shape, seed=shape.seq_len), config.dtype, device)
    except RuntimeError as error:  # out of memory
        raise FlashladderError(
            f"cannot make tensors of B={shape.batch}, S={shape.seq_len}, H={shape.n_heads}",
            found=str(error).splitlines()[0],
        ) from error
    slices, rows = chosen_slices(shape), chosen_rows(shape.seq_len)
    what = f"{key} at B={shape.batch}, S={shape.seq_len}, H={shape.n_heads}"
    took, seen = [], list[tuple[int, str]]()
    finite = True
    for number in range(LAUNCHES):
        with dog.within(DEADLINE_S, f"{what}, launch {number + 1}"):
            tensors.poison()
            wait()
            start = clock()
            run(tensors.q, tensors.k, tensors.v, tensors.out, config.short_form())
            wait()
            took.append(max(clock() - start, 1e-9))
            finite = finite and _finite(tensors.out)
            total = _total(tensors.out)
            seen.append((total, bits_digest(_rows(tensors.out, slices, rows), total)))
    dtype: Dtype = "fp16" if config.dtype == "fp16" else "bf16"
    found = _errors(tensors, dtype, slices, rows)
    return FarRows(
        kernel=key, dtype=dtype, shape=shape, slices=slices, rows=rows, launches=LAUNCHES,
        differing=sum(one != seen[0] for one in seen), seconds=round(median(took), 9), finite=finite,
        max_error=found[0], max_allowed=found[1], rms_error=found[2], rms_allowed=found[3], digest=seen[0][1],
    )  # fmt: skip


def _errors(
    tensors: Tensors, dtype: Dtype, slices: Sequence[tuple[int, int]], rows: Sequence[int]
) -> tuple[float | None, float, float | None, float]:
    """Largest and relative RMS error of the rows of the worst slice, each with what is allowed.

    Beside what the rule of the check allows, of the RMS as of the maximum, both may have what tensor cores cut off.
    """
    cut = BIAS_PER_KEY * tensors.k.shape[1]
    roundoff, worst = UNIT_ROUNDOFF[dtype], list[tuple[float, float, float, float]]()
    for one in slices:
        q, k, v = _rows(tensors.q, [one], rows), gather(tensors.k, [one]), gather(tensors.v, [one])
        exact = attention_fp64(q, k, v)
        mine, theirs = (
            (found.double() - exact) for found in (_rows(tensors.out, [one], rows), attention_torch16(q, k, v))
        )
        size, largest = float(exact.square().mean().sqrt()), float(exact.abs().max())
        worst.append(
            (
                float(mine.abs().max()),
                max(2 * float(theirs.abs().max()), roundoff * largest) + cut * largest,
                float(mine.square().mean().sqrt()) / size,
                max(roundoff, 2 * float(theirs.square().mean().sqrt()) / size) + cut,
            )
        )
    most = max(worst, key=lambda one: _share(one[0], one[1]))
    rms = max(worst, key=lambda one: _share(one[2], one[3]))
    return _number(most[0]), most[1], _number(rms[2]), rms[3]


def _share(found: float, allowed: float) -> float:
    """How much of what is allowed; what is not a number is beyond all."""
    return found / allowed if found == found else float("inf")  # noqa: PLR0124 - NaN alone is not itself


def _number(found: float) -> float | None:
    return found if abs(found) < float("inf") else None


def _rows(tensor: torch.Tensor, slices: Sequence[tuple[int, int]], rows: Sequence[int]) -> torch.Tensor:
    """(n, rows, d_head) of a (B, S, H, D) tensor."""
    import torch

    return torch.stack([tensor[b, list(rows), h] for b, h in slices])


def _finite(out: torch.Tensor) -> bool:
    """Whether all of O is finite, a sample at a time: a mask of all of it may not fit."""
    return all(bool(sample.isfinite().all()) for sample in out)


def _total(out: torch.Tensor) -> int:
    """The sum of all bits as 32-bit integers."""
    import torch

    return int(out.view(torch.int32).sum(dtype=torch.int64))
