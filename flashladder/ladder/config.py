"""A kernel's configuration and its name, for all families.

Tables, locks, result files, CUDA tables and people name a kernel by one line that parses back, for example
``(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax``. Its brief form,
``64,64,4 2_2_2+buffer+opt``, omits the knobs that an iteration's parts decide; the family reads it
(`Family.of_brief`). A family lists the `Word`s of the name. Try ``KernelConfig.parse(EXAMPLE)``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
import re
from typing import Any, ClassVar

from typing_extensions import Self

from flashladder.errors import FlashladderError
from flashladder.names import DTYPES
from flashladder.problem import Mask, Problem

ELEMENT_BYTES = 2
MAX_SMEM_BYTES = 227 * 1024  # per CTA on sm_90, the most of any supported GPU
D_HEAD = 128  # elements: the head size of every kernel so far, of grids and of checks
NO_SHORT_FORM = "not the short form of a kernel configuration"
_NAME = re.compile(r"\((?P<dtype>[A-Z0-9]+), (?P<sizes>\d{1,9}(?:, \d{1,9})*)\): (?P<words>\S+)", re.ASCII)
_BRIEF = re.compile(
    r"(?P<tile>\d{1,9}(?:,\d{1,9})*)(?P<numbers>(?: \d{1,9}(?:_\d{1,9})*)*)(?P<flags>(?:\+\w+)*)", re.ASCII
)


@dataclass(frozen=True)
class Word:
    """One word of a configuration's name, and the fields that it stands for."""

    text: str  # ``buffer``; with a placeholder for each number, ``load_{}_{}_{}_tiles``
    fields: tuple[str, ...]  # one Boolean, or one integer for each placeholder
    brief: str = ""  # of a Boolean, its word in the brief form; empty if the parts decide it
    # its key in iterations/*.yaml; empty for a Boolean that the parts decide, and for numbers with a key each
    key: str = ""
    least: int = 0  # of numbers, the smallest legal one
    optional: bool = False  # numbers that are all 0 have no word

    @property
    def is_flag(self) -> bool:
        """Whether it stands for a Boolean."""
        return "{}" not in self.text

    def values(self, config: KernelConfig) -> list[Any]:
        """The values of its fields; empty if the name omits the word."""
        found = [getattr(config, field) for field in self.fields]
        return found if any(found) or not (self.is_flag or self.optional) else []

    def read(self, text: str) -> dict[str, Any] | None:
        """Field to value if `text` is this word, else None."""
        match = re.fullmatch(re.escape(self.text).replace(r"\{\}", r"(\d{1,9})"), text, re.ASCII)
        if match is None:
            return None
        return dict(zip(self.fields, (True,) if self.is_flag else map(int, match.groups()), strict=True))


class KernelConfig(ABC):
    """The knobs of one compiled kernel; each family has a frozen, ordered dataclass."""

    example: ClassVar[str] = ""  # a name of the family, for messages
    sizes: ClassVar[tuple[str, ...]] = ()  # fields of the tile: d_head, B_r, B_c, and the warps or warpgroups
    words: ClassVar[tuple[Word, ...]] = ()  # the rest of the name, in order
    dtype: str  # element type of Q, K, V and O: ``fp16`` or ``bf16`` (2 bytes each)
    d_head: int  # head size in elements
    B_r: int  # query rows that one CTA owns; `multiples` says whether it divides seq_len
    B_c: int  # rows of K and V in one step of its loop, as B_r

    def __post_init__(self) -> None:
        """Raises an error if a field has a value that no kernel of any iteration could have."""
        least = dict.fromkeys(self.sizes, 1) | {name: word.least for word in self.numbers() for name in word.fields}
        wrong = {name: f"{smallest} or more" for name, smallest in least.items() if getattr(self, name) < smallest}
        if self.dtype not in DTYPES:
            wrong["dtype"] = " or ".join(DTYPES)
        for name, expected in wrong.items():
            found = repr(getattr(self, name))
            raise FlashladderError(f"bad kernel configuration, {name}", expected=expected, found=found)

    @classmethod
    def numbers(cls) -> list[Word]:
        """The words that stand for numbers."""
        return [word for word in cls.words if not word.is_flag]

    @classmethod
    def of(cls, knobs: Mapping[str, Any], dtype: str = "fp16") -> Self:
        """The configuration with these fields; the others are 0 or False."""
        made: Callable[..., Self] = cls
        rest = {field: False if word.is_flag else 0 for word in cls.words for field in word.fields}
        return made(dtype=dtype, **{**rest, **knobs})

    @property
    @abstractmethod
    def n_threads(self) -> int:
        """Threads of a CTA."""

    @property
    @abstractmethod
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA in bytes."""

    @property
    def registers(self) -> int:
        """The fewest registers per thread: the fp32 accumulators of O live through the whole main loop."""
        return self.B_r * self.d_head // self.n_threads

    @property
    def multiples(self) -> Mapping[str, int]:
        """Name to size of each tile side that must divide seq_len."""
        return {"B_r": self.B_r, "B_c": self.B_c}

    @property
    def few_tiles(self) -> Sequence[tuple[int, int, int]]:
        """Shapes (batch, seq_len, n_heads) with few tiles, whose launch differs, shortest first; checks add them."""
        return ()

    @property
    def is_general(self) -> bool:
        """Whether lengths and head counts of Q and K may differ, and the log-sum-exp can be asked for."""
        return bool(getattr(self, "general", False))

    @property
    def heavy_rows(self) -> bool:
        """Whether a check on a GPU needs rows whose largest weight is a large part of their sum."""
        return True

    @property
    def parting(self) -> Sequence[tuple[int, int, int]]:
        """Shapes (batch, seq_len, n_heads) at which the warps of a warpgroup diverge; sanitizers run them."""
        return ()

    @property
    def tile(self) -> str:
        """Sizes and warps of a CTA's tile, ``128,64,4``; configurations with equal tiles differ only in switches."""
        return ",".join(str(getattr(self, name)) for name in self.sizes[1:])

    def short_form(self) -> str:
        """The name on one line, as tables and locks write it; `parse` is its exact inverse."""
        sizes = ", ".join(str(getattr(self, name)) for name in self.sizes)
        words = [word.text.format(*values) for word in self.words if (values := word.values(self))]
        return f"({self.dtype.upper()}, {sizes}): {'+'.join(words)}"

    def brief(self) -> str:
        """The name without the knobs that parts decide, as ``invoke list`` prints it: ``128,64,4 2_2_2+buffer``."""
        numbers = ["_".join(map(str, values)) for word in self.numbers() if (values := word.values(self))]
        flags = [word.brief for word in self.words if word.brief and word.values(self)]
        return "+".join([" ".join([self.tile, *numbers]), *flags])

    @classmethod
    def read_brief(cls, text: str) -> dict[str, Any] | None:
        """Field to value of a configuration whose `brief` is `text`; None if `text` has another form."""
        match = _BRIEF.fullmatch(text)
        if match is None:
            return None
        flags = match["flags"].split("+")[1:]
        found: dict[str, Any] = {word.fields[0]: word.brief in flags for word in cls.words if word.brief}
        given = [(cls.sizes[1:], match["tile"].split(","))]
        numbers = zip(cls.numbers(), match["numbers"].split(), strict=False)
        given += [(word.fields, group.split("_")) for word, group in numbers]
        for names, values in given:
            if len(names) != len(values):
                return None
            found |= zip(names, map(int, values), strict=True)
        return found

    def slug(self) -> str:
        """The name in files."""
        return re.sub(r"[^a-z0-9]+", "_", self.short_form().lower()).strip("_")

    def with_dtype(self, dtype: str) -> Self:
        """The same configuration for another element type."""
        return replace(self, dtype=dtype)  # type: ignore[type-var]  # each family's class is a dataclass

    @property
    def mask(self) -> Mask:
        """The mask that is compiled in."""
        return "causal" if getattr(self, "causal", False) else "none"

    def with_mask(self, mask: Mask) -> Self:
        """The same configuration with another mask; only for kernels that have one (`Family.masks`)."""
        return self if mask == self.mask else replace(self, causal=mask == "causal")  # type: ignore[type-var]

    @property
    def is_packed(self) -> bool:
        """Whether it takes packed sequences, and nothing else."""
        return bool(getattr(self, "packed", False))

    def with_packed(self, packed: bool) -> Self:
        """The same configuration for packed sequences or for samples; only for kernels of both (`Family.packs`)."""
        return self if packed == self.is_packed else replace(self, packed=packed)  # type: ignore[type-var]

    def refuses(self, problem: Problem) -> str:
        """Why this kernel does not compute a problem, as one line: expected and found; empty if it does."""
        if problem.d_head != self.d_head:
            return f"expected d_head {self.d_head}, found {problem.d_head}"
        if problem.mask != self.mask:
            return f"expected mask {self.mask}, found {problem.mask}"
        if problem.is_packed != self.is_packed:
            kinds = ("samples of one length", "packed sequences")
            return f"expected {kinds[self.is_packed]}, found {kinds[problem.is_packed]}"
        if not (problem.is_square or self.is_general):
            return f"expected equal lengths and head counts of Q and K, found {problem}"
        for name, size in self.multiples.items():
            if problem.seq_len % size:
                return f"expected seq_len to be a multiple of {name} = {size}, found {problem.seq_len}"
        return ""

    def needs(self) -> dict[str, tuple[int, str]]:
        """The resources of a CTA: limit under ``peaks`` of configs/gpus/*.yaml to (number, unit in words)."""
        return {
            "threads_per_block": (self.n_threads, "threads per CTA"),
            "shared_memory_per_block": (self.smem_bytes, "bytes of shared memory per CTA"),
            "registers_per_thread": (self.registers, "registers per thread"),
            "registers_per_block": (self.B_r * (self.d_head + self.B_c), "registers per CTA for O and S"),
        }

    def __str__(self) -> str:
        return self.short_form()

    @classmethod
    def parse(cls, text: str) -> Self:
        """The configuration with exactly the name `text`, of this class or a subclass; an error if there is none."""
        if isinstance(text, str):
            for family in KernelConfig.__subclasses__():
                if isinstance(found := _match(family, text), cls):
                    return found
        families = (family for family in KernelConfig.__subclasses__() if issubclass(family, cls) and family.example)
        expected = f"for example {' or '.join(repr(family.example) for family in families)}"
        raise FlashladderError(NO_SHORT_FORM, expected=expected, found=repr(text))


@lru_cache(maxsize=4096)  # results name few configurations, many times
def _match(family: type[KernelConfig], text: str) -> KernelConfig | None:
    """The configuration whose name is `text`; None if `text` does not have this family's form.

    A text of this form that is not exactly the name of a configuration is an error.
    """
    form, knobs = _NAME.fullmatch(text), dict[str, Any]()
    for one in form["words"].split("+") if form else ():
        read = next((found for word in family.words if (found := word.read(one)) is not None), None)
        if read is None:
            return None
        knobs |= read
    if form is None or len(sizes := form["sizes"].split(", ")) != len(family.sizes):
        return None
    config = family.of(knobs | dict(zip(family.sizes, map(int, sizes), strict=True)), form["dtype"].lower())
    if (expected := config.short_form()) != text:
        raise FlashladderError(NO_SHORT_FORM, expected=repr(expected), found=repr(text))
    return config
