"""What everything downstream knows of a kernel's configuration, whatever family it is of, and its short form.

Why: tables, locks, result files, CUDA tables and people all name a kernel by the same one-line text, for example
``(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax``, which parses back. The knobs
themselves are a family's (`flashladder.ladder.families`). Try ``KernelConfig.parse(EXAMPLE)``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, TypeVar, get_args

from typing_extensions import Self

from flashladder.errors import FlashladderError

Dtype = Literal["fp16", "bf16"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
ELEMENT_BYTES = 2
MAX_SMEM_BYTES = 227 * 1024  # per CTA on sm_90, the most of any supported GPU
D_HEAD = 128  # elements: the head size of every kernel so far, of grids and of checks
EXAMPLE = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"
Own = TypeVar("Own", bound="KernelConfig")


def bad_field(name: str, expected: str, found: object) -> FlashladderError:
    """What to raise for a value that no kernel could have."""
    return FlashladderError(f"bad kernel configuration, {name}", expected=expected, found=repr(found))


class KernelConfig(ABC):
    """The knobs of one compiled kernel; immutable, hashable, ordered among those of its family.

    Attributes:
        example: a short form of the family, for messages.
        dtype: element type of Q, K, V and O: ``fp16`` or ``bf16`` (2 bytes each).
        d_head: head size in elements.
        B_r: query rows that one CTA owns; `multiples` says whether it divides seq_len.
        B_c: rows of K and V in one step of its loop, as B_r.
    """

    example: ClassVar[str] = ""
    dtype: str
    d_head: int
    B_r: int
    B_c: int

    @property
    @abstractmethod
    def n_threads(self) -> int:
        """Threads of a CTA."""

    @property
    @abstractmethod
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA in bytes."""

    @property
    def multiples(self) -> Mapping[str, int]:
        """What seq_len must be divisible by, by name."""
        return {"B_r": self.B_r, "B_c": self.B_c}

    @property
    def few_tiles(self) -> Sequence[tuple[int, int, int]]:
        """Shapes (batch, seq_len, n_heads) of few tiles, where a launch is another one: a check adds them.

        They are in the order of their lengths.
        """
        return ()

    @property
    def heavy_rows(self) -> bool:
        """Whether a check on a GPU asks for rows whose largest weight is a good part of their sum."""
        return True

    @property
    def parting(self) -> Sequence[tuple[int, int, int]]:
        """Shapes (batch, seq_len, n_heads) at which warps of a warpgroup take different ways: sanitizers see them."""
        return ()

    @property
    @abstractmethod
    def tile(self) -> str:
        """Sizes and warps of a CTA's tile, ``128,64,4``: configurations with equal tiles differ in switches only."""

    @abstractmethod
    def short_form(self) -> str:
        """The configuration on one line, as tables and locks write it; `parse` is its exact inverse."""

    @abstractmethod
    def brief(self) -> str:
        """What the parts of an iteration leave open, as ``invoke list`` prints it."""

    @abstractmethod
    def slug(self) -> str:
        """A name that is safe in files, with the same content as the short form."""

    @abstractmethod
    def with_dtype(self: Own, dtype: str) -> Own:
        """The same configuration for another element type."""

    @classmethod
    @abstractmethod
    def match(cls, text: str) -> KernelConfig | None:
        """The configuration whose short form is `text`; None where `text` is not of this family.

        Raises:
            FlashladderError: it is of this family's form, and not exactly the short form of a configuration.
        """

    def spelled(self, text: str) -> Self:
        """Itself, if `text` is exactly its short form: without a leading zero, say.

        Raises:
            FlashladderError: it is another spelling.
        """
        if self.short_form() != text:
            raise FlashladderError(
                "not the short form of a kernel configuration", expected=repr(self.short_form()), found=repr(text)
            )
        return self

    def needs(self) -> dict[str, tuple[int, str]]:
        """What a CTA needs of a GPU: limit under ``peaks`` of configs/gpus/*.yaml to (number, unit in words)."""
        return {
            "threads_per_block": (self.n_threads, "threads per CTA"),
            "shared_memory_per_block": (self.smem_bytes, "bytes of shared memory per CTA"),
        }

    def __str__(self) -> str:
        """The short form."""
        return self.short_form()

    @classmethod
    def parse(cls, text: str) -> Self:
        """The configuration that `text` names: a short form of any family, or of the class that is asked.

        Raises:
            FlashladderError: `text` is not exactly the short form of some configuration.
        """
        if isinstance(text, str):
            for family in KernelConfig.__subclasses__():
                if isinstance(found := family.match(text), cls):
                    return found
        examples = dict.fromkeys(family.example for family in KernelConfig.__subclasses__() if issubclass(family, cls))
        raise FlashladderError(
            "not the short form of a kernel configuration",
            expected=f"for example {' or '.join(map(repr, filter(None, examples)))}",
            found=repr(text),
        )
