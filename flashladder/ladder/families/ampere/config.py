"""A configuration of the Ampere family under the field's established names, and its short form, which parses back.

Why: the list of fields is the one home of a knob: short form, what ``invoke list`` prints, file names and the keys of
iterations/*.yaml follow from it. What may be combined with what is not decided here but in
`flashladder.ladder.families.ampere.parts`. Try ``AmpereConfig.match(EXAMPLE)``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
import re
from types import MappingProxyType
from typing import Annotated, Any, get_type_hints

from flashladder.ladder.config import DTYPES, ELEMENT_BYTES, EXAMPLE, KernelConfig, bad_field


@dataclass(frozen=True)
class Flag:
    """How a Boolean knob is written; what has no word somewhere is decided by the parts there.

    Attributes:
        word: in the short form and in file names.
        brief: in what ``invoke list`` prints.
        key: in iterations/*.yaml.
        early: in the short form before the loads, not behind them.
    """

    word: str
    brief: str = ""
    key: str = ""
    early: bool = False


@dataclass(frozen=True, order=True)
class AmpereConfig(KernelConfig):
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
        kv_rings: K and V lie in rings of two stages each, instead of one tile each.

    Raises:
        FlashladderError: a field has a wrong type, or a value that no kernel could have.
    """

    example = EXAMPLE
    dtype: str
    d_head: int
    B_r: int
    B_c: int
    n_warps: int
    async_copy: Annotated[bool, Flag("async", early=True)]
    eager_load_blocks: Annotated[bool, Flag("eager", early=True)]
    swizzled: Annotated[bool, Flag("swizzled", early=True)]
    Q_mma_load_K_tiles: int
    K_mma_load_K_tiles: int
    V_mma_load_K_tiles: int
    mma_double_buffer_loads: Annotated[bool, Flag("buffer", brief="buffer", key="double_buffer")]
    optimized_softmax: Annotated[bool, Flag("opt_softmax", brief="opt", key="optimized_softmax")]
    kv_rings: Annotated[bool, Flag("rings")] = False

    def __post_init__(self) -> None:
        """Refuses what cannot be a configuration of any iteration."""
        if self.dtype not in DTYPES:
            raise bad_field("dtype", " or ".join(DTYPES), self.dtype)
        for name in INTEGERS:
            value, least = getattr(self, name), int(name not in LOADS)
            if isinstance(value, bool) or not isinstance(value, int):
                raise bad_field(name, "an integer", value)
            if value < least:
                raise bad_field(name, f"{least} or more", value)
        for name in FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise bad_field(name, "True or False", getattr(self, name))

    @property
    def load_tiles(self) -> tuple[int, int, int]:
        """The three load sizes, in the order Q, K, V, in units of 8 elements of k; 0 is the whole operand."""
        return (self.Q_mma_load_K_tiles, self.K_mma_load_K_tiles, self.V_mma_load_K_tiles)

    def _flags(self, form: str, words: Mapping[str, str]) -> str:
        """The words of the flags that are set, each in `form`."""
        return "".join(form.format(word) for name, word in words.items() if getattr(self, name))

    @property
    def n_threads(self) -> int:
        """Threads of a CTA."""
        return 32 * self.n_warps

    @property
    def tile(self) -> str:
        """B_r, B_c and n_warps."""
        return f"{self.B_r},{self.B_c},{self.n_warps}"

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA in bytes: one Q tile (used again for O), a tile of K and of V a stage."""
        stages = 2 if self.kv_rings else 1
        return (self.B_r + 2 * stages * self.B_c) * self.d_head * ELEMENT_BYTES

    def short_form(self) -> str:
        """The configuration on one line, as tables and locks write it; `parse` is its exact inverse."""
        before, after = self._flags("{}+", _EARLY), self._flags("+{}", _LATE)
        loads = "_".join(map(str, self.load_tiles))
        size = f"({self.dtype.upper()}, {self.d_head}, {self.B_r}, {self.B_c}, {self.n_warps})"
        return f"{size}: {before}load_{loads}_tiles{after}"

    def needs(self) -> dict[str, tuple[int, str]]:
        """Threads, shared memory and the registers that every iteration needs.

        Those are the fp32 accumulators of O, which live through the whole main loop, and of S beside them. What else a
        kernel keeps is the assembler's to place or to spill.
        """
        return {
            **super().needs(),
            "registers_per_thread": (self.B_r * self.d_head // self.n_threads, "registers per thread for O"),
            "registers_per_block": (self.B_r * (self.d_head + self.B_c), "registers per CTA for O and S"),
        }

    @classmethod
    def match(cls, text: str) -> AmpereConfig | None:
        """The configuration that `text`, a short form, names; None where it has another form.

        Raises:
            FlashladderError: it has the form, and another spelling than `short_form` gives.
        """
        match = _SHORT_FORM.fullmatch(text)
        if match is None:
            return None
        knobs: dict[str, Any] = {name: int(match[name]) for name in INTEGERS}
        knobs |= {name: match[name] is not None for name in FLAGS}
        return cls(match["dtype"].lower(), **knobs).spelled(text)

    def brief(self) -> str:
        """What the parts of an iteration leave open, as ``invoke list`` prints it: ``128,64,4 2_2_2+buffer+opt``.

        That is B_r, B_c and n_warps, the loads of Q, K and V, then the free flags.
        """
        loads = "_".join(map(str, self.load_tiles))
        return f"{self.B_r},{self.B_c},{self.n_warps} {loads}{self._flags('+{}', _BRIEF)}"

    def slug(self) -> str:
        """A name that is safe in files, with the same content as the short form."""
        before, after = self._flags("_{}", _EARLY), self._flags("_{}", _LATE)
        loads = "_".join(map(str, self.load_tiles))
        return f"{self.dtype}_{self.d_head}_{self.B_r}_{self.B_c}_{self.n_warps}{before}_load_{loads}{after}"

    def with_dtype(self, dtype: str) -> AmpereConfig:
        """The same configuration for another element type."""
        return replace(self, dtype=dtype)


FLAGS: Mapping[str, Flag] = MappingProxyType(
    {
        name: hint.__metadata__[0]
        for name, hint in get_type_hints(AmpereConfig, include_extras=True).items()
        if hasattr(hint, "__metadata__")
    }
)
"""Every Boolean knob by its field's name, in the order in which the short form writes them."""
_EARLY = {name: flag.word for name, flag in FLAGS.items() if flag.early}
_LATE = {name: flag.word for name, flag in FLAGS.items() if not flag.early}
_BRIEF = {name: flag.brief for name, flag in FLAGS.items() if flag.brief}
INTEGERS = tuple(one.name for one in fields(AmpereConfig) if one.name not in FLAGS and one.name != "dtype")
LOADS = tuple(name for name in INTEGERS if name.endswith("_mma_load_K_tiles"))
KEYS: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(LOADS, "load_tiles") | {name: flag.key for name, flag in FLAGS.items() if flag.key}
)
"""Fields whose key in iterations/*.yaml is another one than their name, or stands for several."""


def _numbers(separator: str, names: Sequence[str], digits: str = r"\d{1,9}") -> str:
    return separator.join(f"(?P<{name}>{digits})" for name in names)


def _optional(form: str, words: Mapping[str, str]) -> str:
    """A group per flag, named after its field, which matches its word in `form` or nothing."""
    return "".join(f"(?P<{name}>{form.format(word)})?" for name, word in words.items())


_SHORT_FORM = re.compile(
    rf"\((?P<dtype>[A-Z0-9]+), {_numbers(', ', [name for name in INTEGERS if name not in LOADS])}\): "
    + _optional(r"{}\+", _EARLY)
    + rf"load_{_numbers('_', LOADS)}_tiles"
    + _optional(r"\+{}", _LATE),
    re.ASCII,
)
BRIEF = re.compile(
    f"{_numbers(',', ('B_r', 'B_c', 'n_warps'))} {_numbers('_', LOADS, chr(92) + 'd')}" + _optional(r"\+{}", _BRIEF),
    re.ASCII,
)
"""What `AmpereConfig.brief` writes, with a group per field."""
