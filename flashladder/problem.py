"""What a call computes: lengths, heads, mask; floating-point operations and bytes follow from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    NonNegativeInt,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

Mask = Literal["none", "causal"]
Count = Annotated[int, Field(gt=0)]


class Problem(BaseModel):
    """Q and O are (batch, seq_len, n_heads, d_head), K and V (batch, kv_len, n_kv_heads, d_head), in elements.

    Documents and files leave out what is as usual: as many keys as queries, as many heads of K and V as of Q, no mask.
    A causal mask is aligned at the bottom right: query i sees the keys up to i + kv_len - seq_len.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    batch: Count
    seq_len: Count  # queries of a sample
    n_heads: Count  # of Q and O
    d_head: Count
    kv_len: Count = 0  # keys of a sample; as many as queries if not given
    n_kv_heads: Count = 0  # heads of K and V, each read by n_heads / n_kv_heads heads of Q; n_heads if not given
    mask: Mask = "none"
    # Packed sequences: the queries and keys of each. Batch is 1 then, and seq_len and kv_len count those of all.
    lengths: tuple[NonNegativeInt, ...] = ()
    kv_lengths: tuple[NonNegativeInt, ...] = ()  # as many as queries if not given

    @model_validator(mode="wrap")
    @classmethod
    def _filled(cls, given: Any, handler: ModelWrapValidatorHandler[Problem]) -> Problem:
        """Fills in what is not given, and checks that heads are groups."""
        if isinstance(given, dict):
            lengths = given.get("lengths")
            own = {"kv_lengths": lengths, "kv_len": given.get("seq_len"), "n_kv_heads": given.get("n_heads")}
            given = {name: value for name, value in own.items() if value is not None} | given
        found = handler(given)
        if found.n_heads % found.n_kv_heads:
            raise ValueError(f"n_kv_heads: expected a divisor of n_heads {found.n_heads}, found {found.n_kv_heads}")
        if (found.lengths or found.kv_lengths) and (found.batch, found.seq_len, found.kv_len, len(found.lengths)) != (
            1, sum(found.lengths), sum(found.kv_lengths), len(found.kv_lengths),
        ):  # fmt: skip
            raise ValueError(
                "lengths: expected batch 1, as many kv_lengths, and sums of seq_len and kv_len, found others"
            )
        return found

    @model_serializer(mode="wrap")
    def _short(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out what is as usual."""
        usual = {"kv_len": self.seq_len, "n_kv_heads": self.n_heads, "mask": "none"}
        usual |= {"lengths": (), "kv_lengths": self.lengths}
        kept = handler(self)  # JSON has lists where this has tuples
        return {name: value for name, value in kept.items() if usual.get(name) != getattr(self, name)}

    def varied(self, **changes: Any) -> Problem:
        """The problem with other sizes or another mask; what is equal now for Q and K stays equal."""
        return Problem.model_validate(self.model_dump() | changes)

    @classmethod
    def packing(cls, lengths: Sequence[int], kv_lengths: Sequence[int] | None = None, **other: Any) -> Problem:
        """Sequences of these numbers of queries and keys, one after another; `other` as of `Problem`."""
        keys = lengths if kv_lengths is None else kv_lengths
        other |= {"batch": 1, "seq_len": sum(lengths), "kv_len": sum(keys)}
        return cls(lengths=tuple(lengths), kv_lengths=tuple(keys), **other)

    @property
    def is_packed(self) -> bool:
        """Whether sequences lie one after another; else all samples have one length."""
        return bool(self.lengths)

    @property
    def is_square(self) -> bool:
        """As many keys as queries, as many heads of K and V as of Q, no mask: all that iterations 1 to 28 compute."""
        usual = (self.seq_len, self.n_heads, "none", False)
        return (self.kv_len, self.n_kv_heads, self.mask, self.is_packed) == usual

    @property
    def bounds(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of packed sequences: the rows of Q, and those of K and V, at which each begins, and the end."""
        return tuple(accumulate(self.lengths, initial=0)), tuple(accumulate(self.kv_lengths, initial=0))

    @property
    def sequences(self) -> tuple[tuple[slice, slice], ...]:
        """The rows of Q, and those of K and V, of each packed sequence; without packing all rows once."""
        if not self.is_packed:
            return ((slice(0, self.seq_len), slice(0, self.kv_len)),)
        rows, keys = ([slice(*pair) for pair in pairwise(bounds)] for bounds in self.bounds)
        return tuple(zip(rows, keys, strict=True))

    @property
    def q_shape(self) -> tuple[int, int, int, int]:
        """Of Q and O."""
        return (self.batch, self.seq_len, self.n_heads, self.d_head)

    @property
    def kv_shape(self) -> tuple[int, int, int, int]:
        """Of K and V."""
        return (self.batch, self.kv_len, self.n_kv_heads, self.d_head)

    @property
    def flops(self) -> int:
        """Floating-point operations of one forward pass, both matrix products: 4 d_head for each score that counts.

        Under a causal mask the scores above the diagonal do not count, nor does half of the diagonal: as everybody
        counts, half of all scores if there are as many keys as queries.
        """
        scores = 0  # twice their number
        for rows, keys in self.sequences:
            queries, kv_len = rows.stop - rows.start, keys.stop - keys.start
            seen = min(queries, kv_len)  # queries that see a key
            scores += 2 * seen * kv_len - seen**2 if self.mask == "causal" else 2 * queries * kv_len
        return 2 * self.batch * self.n_heads * self.d_head * scores

    @property
    def input_bytes(self) -> int:
        """Bytes that must come from DRAM after an L2 flush: Q, K and V in 16 bits (O may stay in the L2)."""
        queries, keys = self.seq_len * self.n_heads, 2 * self.kv_len * self.n_kv_heads
        return 2 * self.batch * (queries + keys) * self.d_head

    @property
    def kind(self) -> str:
        """What is not as usual, for titles: ``heads 32:8, kv_len 77, causal``; empty if nothing is."""
        heads = f"heads {self.n_heads}:{self.n_kv_heads}" if self.n_heads != self.n_kv_heads else ""
        keys = f"kv_len {self.kv_len}" if self.seq_len != self.kv_len else ""
        packed = f"{len(self.lengths)} packed sequences" if self.is_packed else ""
        return ", ".join(filter(None, (packed, heads, keys, self.mask if self.mask != "none" else "")))

    def __str__(self) -> str:
        """``B=1 S=1024 H=16``, and what is not as usual: ``KV=77 HK=8 causal 34 packed``."""
        own = {"KV": (self.kv_len, self.seq_len), "HK": (self.n_kv_heads, self.n_heads)}
        more = [f"{name}={value}" for name, (value, usual) in own.items() if value != usual]
        more += [self.mask] * (self.mask != "none") + [f"{len(self.lengths)} packed"] * self.is_packed
        return " ".join([f"B={self.batch} S={self.seq_len} H={self.n_heads}", *more])


def kinds(problems: Iterable[Problem]) -> str:
    """What is not as usual in a table's problems, for its title; empty if nothing is."""
    return "; ".join(dict.fromkeys(filter(None, (one.kind for one in problems))))
