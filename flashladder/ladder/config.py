"""One kernel configuration under the field's established names, and its short form, which parses back.

Why: tables, locks, result files, CUDA tables and people all name a kernel by the same one-line text, for example
``(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax``. What may be combined with what is
not decided here but in `flashladder.ladder.parts`. Try ``KernelConfig.parse(EXAMPLE)``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
import re

from flashladder.errors import FlashladderError

DTYPES = ("fp16", "bf16")
ELEMENT_BYTES = 2
EXAMPLE = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"

_SHORT_FORM = re.compile(
    r"\((?P<dtype>[A-Z0-9]+), (?P<d_head>\d{1,9}), (?P<B_r>\d{1,9}), (?P<B_c>\d{1,9}), (?P<n_warps>\d{1,9})\): "
    r"(?P<async_copy>async\+)?(?P<eager>eager\+)?(?P<swizzled>swizzled\+)?"
    r"load_(?P<q>\d{1,9})_(?P<k>\d{1,9})_(?P<v>\d{1,9})_tiles(?P<buffer>\+buffer)?(?P<opt_softmax>\+opt_softmax)?",
    re.ASCII,
)
_INTEGERS = ("d_head", "B_r", "B_c", "n_warps", "Q_mma_load_K_tiles", "K_mma_load_K_tiles", "V_mma_load_K_tiles")
_MAY_BE_ZERO = _INTEGERS[4:]


@dataclass(frozen=True, order=True)
class KernelConfig:
    """The knobs of one compiled kernel; immutable, hashable and ordered by its fields.

    Attributes:
        dtype: element type of Q, K, V and O: ``fp16`` or ``bf16`` (2 bytes each).
        d_head: head size in elements.
        B_r: query rows that one CTA owns.
        B_c: rows of K and V in one KV block.
        n_warps: warps of a CTA; each owns ``B_r / n_warps`` query rows.
        async_copy: global to shared memory through 16-byte ``cp.async``.
        eager_load_blocks: the next K and V blocks are in flight before they are needed.
        swizzled: tiles in shared memory are permuted in 16-byte units against bank conflicts.
        Q_mma_load_K_tiles: how much of Q one step loads to registers, in units of 8 elements of the mma's k dimension
            (2 is one 16-wide k-tile); 0 is the whole operand before the first mma.
        K_mma_load_K_tiles: the same for K, along d_head.
        V_mma_load_K_tiles: the same for V, along B_c.
        mma_double_buffer_loads: the next step's fragments are loaded while this step's mma run.
        optimized_softmax: iterations 6 and 7: scale and maximum fold into one FFMA before ``ex2``; from 10 on: the
            first KV block starts the row statistics instead of correcting -inf and 0.

    Raises:
        FlashladderError: a field has a wrong type, or a value that no kernel could have.
    """

    dtype: str
    d_head: int
    B_r: int
    B_c: int
    n_warps: int
    async_copy: bool
    eager_load_blocks: bool
    swizzled: bool
    Q_mma_load_K_tiles: int
    K_mma_load_K_tiles: int
    V_mma_load_K_tiles: int
    mma_double_buffer_loads: bool
    optimized_softmax: bool

    def __post_init__(self) -> None:
        """Refuses what cannot be a configuration of any iteration."""
        if self.dtype not in DTYPES:
            raise _bad_field("dtype", " or ".join(DTYPES), self.dtype)
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if field.name not in _INTEGERS:
                if not isinstance(value, bool):
                    raise _bad_field(field.name, "True or False", value)
            elif isinstance(value, bool) or not isinstance(value, int):
                raise _bad_field(field.name, "an integer", value)
            elif value < (0 if field.name in _MAY_BE_ZERO else 1):
                raise _bad_field(field.name, "0 or more" if field.name in _MAY_BE_ZERO else "1 or more", value)

    @property
    def load_tiles(self) -> tuple[int, int, int]:
        """The three load sizes, in the order Q, K, V, in units of 8 elements of k; 0 is the whole operand."""
        return (self.Q_mma_load_K_tiles, self.K_mma_load_K_tiles, self.V_mma_load_K_tiles)

    @property
    def n_threads(self) -> int:
        """Threads of a CTA."""
        return 32 * self.n_warps

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA in bytes: one Q tile (used again for O), one K tile, one V tile."""
        return (self.B_r + 2 * self.B_c) * self.d_head * ELEMENT_BYTES

    def short_form(self) -> str:
        """The configuration on one line, as tables and locks write it; `parse` is its exact inverse."""
        return (
            f"({self.dtype.upper()}, {self.d_head}, {self.B_r}, {self.B_c}, {self.n_warps}): "
            + "async+" * self.async_copy
            + "eager+" * self.eager_load_blocks
            + "swizzled+" * self.swizzled
            + "load_{}_{}_{}_tiles".format(*self.load_tiles)
            + "+buffer" * self.mma_double_buffer_loads
            + "+opt_softmax" * self.optimized_softmax
        )

    def __str__(self) -> str:
        """The short form."""
        return self.short_form()

    @classmethod
    def parse(cls, text: str) -> KernelConfig:
        """The configuration that `text`, a short form, names.

        Raises:
            FlashladderError: `text` is not exactly the short form of some configuration.
        """
        match = _SHORT_FORM.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise FlashladderError(
                "not the short form of a kernel configuration", expected=f"for example {EXAMPLE!r}", found=repr(text)
            )
        numbers = {name: int(match[name]) for name in ("d_head", "B_r", "B_c", "n_warps", "q", "k", "v")}
        config = cls(
            dtype=match["dtype"].lower(),
            d_head=numbers["d_head"],
            B_r=numbers["B_r"],
            B_c=numbers["B_c"],
            n_warps=numbers["n_warps"],
            async_copy=match["async_copy"] is not None,
            eager_load_blocks=match["eager"] is not None,
            swizzled=match["swizzled"] is not None,
            Q_mma_load_K_tiles=numbers["q"],
            K_mma_load_K_tiles=numbers["k"],
            V_mma_load_K_tiles=numbers["v"],
            mma_double_buffer_loads=match["buffer"] is not None,
            optimized_softmax=match["opt_softmax"] is not None,
        )
        if config.short_form() != text:  # a leading zero, say
            raise FlashladderError(
                "not the short form of a kernel configuration", expected=repr(config.short_form()), found=repr(text)
            )
        return config

    def brief(self) -> str:
        """What the parts of an iteration leave open, as ``invoke list`` prints it: ``128,64,4 2_2_2+buffer+opt``.

        That is B_r, B_c and n_warps, the loads of Q, K and V, then the free flags.
        """
        return (
            f"{self.B_r},{self.B_c},{self.n_warps} "
            + "_".join(map(str, self.load_tiles))
            + "+buffer" * self.mma_double_buffer_loads
            + "+opt" * self.optimized_softmax
        )

    def slug(self) -> str:
        """A name that is safe in files, with the same content as the short form."""
        return (
            f"{self.dtype}_{self.d_head}_{self.B_r}_{self.B_c}_{self.n_warps}"
            + "_async" * self.async_copy
            + "_eager" * self.eager_load_blocks
            + "_swizzled" * self.swizzled
            + "_load_{}_{}_{}".format(*self.load_tiles)
            + "_buffer" * self.mma_double_buffer_loads
            + "_opt_softmax" * self.optimized_softmax
        )

    def with_dtype(self, dtype: str) -> KernelConfig:
        """The same configuration for another element type."""
        return replace(self, dtype=dtype)


def _bad_field(name: str, expected: str, found: object) -> FlashladderError:
    """The error for one field of a configuration."""
    return FlashladderError(f"bad kernel configuration, {name}", expected=expected, found=repr(found))
