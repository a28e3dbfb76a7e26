"""What one slice of Q, K and V holds: N(0, 1), or what puts the logits where an online softmax can go wrong.

Why: with N(0, 1) alone some logit of each row is positive, no two maxima are far apart and every error looks like
noise. A running maximum that starts at zero, is not kept from block to block or misses a column gives right numbers
there; a biased sum shows in no element.

Slices are (seq_len, d_head) of one sample and head; all is done in place, in the tensors' own dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import math
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

BLOCK = 64  # keys that most kernels take at a time, or a multiple of what they take
Content = Callable[["torch.Tensor", "torch.Tensor", "torch.Tensor", "torch.Generator"], object]


def _along(q: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A direction of +-1, (d_head,): what lies along it in Q and in K meets in the logits."""
    import torch

    signs = torch.randint(0, 2, q.shape[1:], generator=generator, device=q.device)
    return (2 * signs - 1).to(q.dtype)


def _shifted(by: float) -> Content:
    """All logits of all rows near ``9 sqrt(d_head) by``, about 102 for `by` = 1, with a spread of about 4."""

    def fill(q: torch.Tensor, k: torch.Tensor, _: torch.Tensor, generator: torch.Generator) -> None:
        along = _along(q, generator)
        q += 3 * along
        k += 3 * by * along

    return fill


def _peak(row: int) -> Content:
    """One key, counted from the start or, if negative, from the end, about 10 above all others in every row.

    The weights of the others are subnormal in fp16, and about 1 % together.
    """

    def fill(q: torch.Tensor, k: torch.Tensor, _: torch.Tensor, generator: torch.Generator) -> None:
        along = _along(q, generator)
        q += along
        k[row] += 0.93 * along

    return fill


def _two_heavy(k: torch.Tensor, first: int, second: int, along: torch.Tensor) -> None:
    """Two keys outweigh all others of a row that has `along` once: the second by 1.8 to 2.7 times the first."""
    k[first] = 0.875 * along
    k[second] = 0.9453125 * along


def _overtaken(first: int, second: int) -> Content:
    """Two keys outweigh all others in every row, the second by 1.8 to 2.7 times the first; in 32nds of the keys.

    Met in that order, the weight of the second rounds to 16 bits unless the row follows its maximum: by an error that
    all elements of the row have in common, and the row has hardly another. They lie in different blocks of 64 of 256.
    """

    def fill(q: torch.Tensor, k: torch.Tensor, _: torch.Tensor, generator: torch.Generator) -> None:
        along = _along(q, generator)
        q += along
        _two_heavy(k, first * len(k) // 32, second * len(k) // 32, along)

    return fill


def _overtaken_from_the_end(second: int) -> Content:
    """As `_overtaken`, by the last key and the one `second` keys before the end.

    Of a length one above a multiple of the block the last key is a block of its own, which tells too little of a row.
    """

    def fill(q: torch.Tensor, k: torch.Tensor, _: torch.Tensor, generator: torch.Generator) -> None:
        along = _along(q, generator)
        q += along
        _two_heavy(k, len(k) - 1, len(k) - second, along)

    return fill


def _half(q: torch.Tensor, row: int) -> torch.Tensor:
    """Which rows are in the upper (0) or lower (1) eight of their 16: a lane of `mma` or `wgmma` has one of each."""
    import torch

    return torch.arange(len(q), device=q.device) // 8 % 2 == row


def _overtaken_rows(row: int, second: int) -> Content:
    """As `_overtaken`, by a key near the end and one `second` 32nds from the start, in eight of every 16 rows alone.

    The others are flat: queries a quarter as large, so that hardly a key outweighs another. What is decided of one of
    a lane's two rows shows in the other.
    """

    def fill(q: torch.Tensor, k: torch.Tensor, _: torch.Tensor, generator: torch.Generator) -> None:
        along = _along(q, generator)
        own = _half(q, row)
        q[~own] *= 0.25
        q[own] += along
        _two_heavy(k, 31 * len(k) // 32, second * len(k) // 32, along)

    return fill


def _lone(row: int, key: int) -> Content:
    """Eight of every 16 rows (`row` 0 or 1), alone, have one key 68 above all others, among the first 128 keys.

    In their first or second half (`key`). Rows that a lane of `mma` or `wgmma` holds together lie eight apart: of
    what a lane may ask of its rows and keys one answer alone says that a weight is too large. The other rows are flat:
    no question about them has a reason to say so, either.
    """

    def fill(q: torch.Tensor, k: torch.Tensor, _: torch.Tensor, generator: torch.Generator) -> None:
        along = _along(q, generator)
        own = _half(q, row)
        q[~own] *= 0.25
        q[own] += 3 * along
        k[BLOCK * key + 5] += 2 * along

    return fill


def _slope(direction: int) -> Content:
    """Logits that rise (1) or fall (-1) by 2 from one block of 64 keys to the next: the maximum moves, or stays."""

    def fill(q: torch.Tensor, k: torch.Tensor, _: torch.Tensor, generator: torch.Generator) -> None:
        import torch

        along = _along(q, generator)
        steps = torch.arange(len(k), device=k.device, dtype=torch.float32) / 32 / math.sqrt(k.shape[1])
        q += along
        k += ((steps if direction > 0 else steps.flip(0))[:, None] * along).to(k.dtype)

    return fill


def _matching(q: torch.Tensor, k: torch.Tensor, _: torch.Tensor, __: torch.Generator) -> None:
    """Row i attends to key i: a permutation of rows or keys shows, and one key outweighs all others."""
    k.copy_(q)


def _equal(_: torch.Tensor, k: torch.Tensor, __: torch.Tensor, ___: torch.Generator) -> None:
    """All keys alike: the weights are equal, and O is V's mean."""
    k.copy_(k[:1].clone())


def _deep(q: torch.Tensor, k: torch.Tensor, _: torch.Tensor, generator: torch.Generator) -> None:
    """Every q.k is -2^17, logits of -11585: below what is often taken for minus infinity, and exact in fp32."""
    along = 32 * _along(q, generator)
    q.copy_(along.expand_as(q))
    k.copy_(-along.expand_as(k))


def _plunging(q: torch.Tensor, k: torch.Tensor, _: torch.Tensor, generator: torch.Generator) -> None:
    """The first 64 keys are 204 above all others: exp overflows unless the maximum is kept from block to block."""
    along = _along(q, generator)
    q += 3 * along
    k[:BLOCK] += 3 * along
    k[BLOCK:] -= 3 * along


def _spikes(half: int) -> Content:
    """One key in this half of each block of 64 is 204 above all others: exp overflows where a maximum misses it."""

    def fill(q: torch.Tensor, k: torch.Tensor, _: torch.Tensor, generator: torch.Generator) -> None:
        import torch

        along = _along(q, generator)
        q += 3 * along
        k -= 3 * along
        firsts = torch.arange(half * BLOCK // 2, len(k), BLOCK, device=k.device)
        k[firsts + torch.randint(0, BLOCK // 2, firsts.shape, generator=generator, device=k.device)] += 6 * along

    return fill


def _constant(_: torch.Tensor, __: torch.Tensor, v: torch.Tensor, generator: torch.Generator) -> None:
    """Each column of V one number that both dtypes hold: O must be it.

    Of either sign, from the subnormal numbers of fp16 to the largest, where a sum of two is none any more.
    """
    import torch

    def draw(low: int, high: int) -> torch.Tensor:
        return torch.randint(low, high, v.shape[1:], generator=generator, device=v.device)

    v.copy_((2 * draw(0, 2) - 1) * draw(128, 256) / 128 * torch.exp2(draw(-17, 16).float()))


def _zero(q: torch.Tensor, *_: object) -> None:
    """Queries of zeros, as padding has them: every logit and every maximum is exactly 0, and O is V's mean."""
    q.zero_()


def _levels(sign: int) -> Content:
    """Each q.k is 2^20 or 2^21, or their negatives: logits of 92682 and 185364, of which the higher ones count.

    Beyond every number that is taken for infinity or clamped to; of powers of two, whose differences are exact.
    """

    def fill(q: torch.Tensor, k: torch.Tensor, _: torch.Tensor, generator: torch.Generator) -> None:
        import torch

        along = _along(q, generator)
        high = torch.randint(1, 3, (len(k), 1), generator=generator, device=k.device).to(k.dtype)
        q.copy_((128 * along).expand_as(q))
        k.copy_(sign * 64 * high * along)

    return fill


def _wide(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, generator: torch.Generator) -> None:
    """Numbers that bf16 has and fp16 has not, in Q, K and a constant V; the logits are those of N(0, 1)."""
    import torch

    _constant(q, k, v, generator)
    if q.dtype == torch.bfloat16:
        q *= 2.0**40
        k *= 2.0**-40
        v *= torch.exp2(torch.randint(-60, 60, v.shape[1:], generator=generator, device=v.device).float()).to(v.dtype)


def _peak_over_constant(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, generator: torch.Generator) -> None:
    """Both: weights that are too small for 16 bits are part of the row sum, and must be part of O."""
    _peak(1)(q, k, v, generator)
    _constant(q, k, v, generator)


CONTENTS: Mapping[str, Content] = MappingProxyType(
    {
        "normal": lambda *_: None,
        "far below zero": _shifted(-1.0),
        "far above zero": _shifted(1.0),
        "deep below zero": _deep,
        "first key": _peak(1),
        "last key": _peak(-2),
        "overtaken forward": _overtaken(12, 20),
        "overtaken backward": _overtaken(20, 12),
        "overtaken after the first key": _overtaken(0, 16),
        "overtaken before the last keys": _overtaken(31, 12),
        "upper rows, left key": _lone(0, 0),
        "upper rows, right key": _lone(0, 1),
        "lower rows, left key": _lone(1, 0),
        "lower rows, right key": _lone(1, 1),
        "upper rows, overtaken at a quarter": _overtaken_rows(0, 8),
        "upper rows, overtaken at three eighths": _overtaken_rows(0, 12),
        "lower rows, overtaken at a quarter": _overtaken_rows(1, 8),
        "lower rows, overtaken at three eighths": _overtaken_rows(1, 12),
        "last key, overtaken 20 before the end": _overtaken_from_the_end(20),
        "last key, overtaken 40 before the end": _overtaken_from_the_end(40),
        "last key, overtaken 60 before the end": _overtaken_from_the_end(60),
        "last key, overtaken 100 before the end": _overtaken_from_the_end(100),
        "rising": _slope(1),
        "falling": _slope(-1),
        "plunging": _plunging,
        "left spikes": _spikes(0),
        "right spikes": _spikes(1),
        "matching": _matching,
        "equal": _equal,
        "zero queries": _zero,
        "high levels": _levels(1),
        "low levels": _levels(-1),
        "wide": _wide,
        "constant": _constant,
        "first key, constant": _peak_over_constant,
    }
)
"""What a slice of Q, K and V may hold, by name: each turns N(0, 1) draws (seq_len, d_head) into it, in place."""
CONSTANT = ("constant", "first key, constant")
HEAVY = (
    "overtaken forward", "overtaken backward", "overtaken after the first key", "overtaken before the last keys",
)  # fmt: skip
LONE = tuple(f"{row} rows, {key} key" for row in ("upper", "lower") for key in ("left", "right"))
BESIDE = tuple(
    f"{row} rows, overtaken at {key}" for row in ("upper", "lower") for key in ("a quarter", "three eighths")
)
ENDING = tuple(f"last key, overtaken {second} before the end" for second in (20, 40, 60, 100))
EDGES = ("zero queries", "high levels", "low levels", "wide")
_OTHERS = ("normal", *CONSTANT, *EDGES, *HEAVY, *LONE, *BESIDE, *ENDING)
LOGITS = tuple(name for name in CONTENTS if name not in _OTHERS)
