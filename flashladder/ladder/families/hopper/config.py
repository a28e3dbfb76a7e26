"""A configuration of the Hopper family and its short form, which parses back.

Why: a kernel of roles and rings has other knobs than one of warps and loads: how many warpgroups multiply, how deep the
rings of K and V are, how registers are dealt out. What goes with what: `flashladder.ladder.families.hopper.parts`.
Try ``HopperConfig.match("(FP16, 128, 128, 128, 2): stages_2_2+registers_24_240")``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
import re
from typing import Any

from flashladder.ladder.config import DTYPES, ELEMENT_BYTES, KernelConfig, bad_field

WARPGROUP = 128  # threads
MBARRIERS = 16  # bytes of the two mbarriers of a stage: full and empty
STATS = 8  # bytes of a row's maximum and sum


@dataclass(frozen=True, order=True)
class HopperConfig(KernelConfig):
    """The knobs of one compiled kernel; immutable, hashable and ordered by its fields.

    Attributes:
        dtype: element type of Q, K, V and O: ``fp16`` or ``bf16`` (2 bytes each).
        d_head: head size in elements.
        B_r: query rows that one CTA owns.
        B_c: rows of K and V in one KV block.
        n_consumers: warpgroups that multiply; each owns ``B_r / n_consumers`` query rows.
        k_stages: tiles in the ring of K.
        v_stages: tiles in the ring of V.
        producer_registers: registers per thread of the warpgroup that fetches tiles (``setmaxnreg``); 0 without one.
        consumer_registers: of those that multiply; 0 without a producer.
        overlap: the softmax of a block runs under the product P V of the block before it.
        persistent: a CTA computes tile after tile; Q has two stages then, so that the next one's comes early.
        flattened: blocks of all tiles are one loop, with two buffers of P.
        split: where there are few tiles, the CTAs of a cluster share the blocks of one and merge their O.

    Raises:
        FlashladderError: a field has a wrong type, or a value that no kernel could have.
    """

    example = "(FP16, 128, 128, 128, 2): stages_2_2+registers_24_240+overlap"
    dtype: str
    d_head: int
    B_r: int
    B_c: int
    n_consumers: int
    k_stages: int
    v_stages: int
    producer_registers: int = 0
    consumer_registers: int = 0
    overlap: bool = False
    persistent: bool = False
    flattened: bool = False
    split: bool = False

    def __post_init__(self) -> None:
        """Refuses what cannot be a configuration of any iteration."""
        if self.dtype not in DTYPES:
            raise bad_field("dtype", " or ".join(DTYPES), self.dtype)
        for name in INTEGERS:
            value, least = getattr(self, name), int(name not in REGISTERS)
            if isinstance(value, bool) or not isinstance(value, int):
                raise bad_field(name, "an integer", value)
            if value < least:
                raise bad_field(name, f"{least} or more", value)
        for name in SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise bad_field(name, "True or False", getattr(self, name))

    @property
    def q_stages(self) -> int:
        """Tiles of Q in shared memory."""
        return 1 + self.persistent

    @property
    def has_producer(self) -> bool:
        """Whether a warpgroup of its own fetches tiles."""
        return self.producer_registers > 0

    @property
    def n_warpgroups(self) -> int:
        """Warpgroups of a CTA."""
        return self.n_consumers + self.has_producer

    @property
    def n_threads(self) -> int:
        """Threads of a CTA."""
        return WARPGROUP * self.n_warpgroups

    @property
    def rows(self) -> int:
        """Query rows of a warpgroup."""
        return self.B_r // self.n_consumers

    @property
    def multiples(self) -> dict[str, int]:
        """None: a tensor map ends where the tensor does, and the ragged block is masked."""
        return {}

    @property
    def few_tiles(self) -> tuple[tuple[int, int, int], ...]:
        """Tiles that an H200 may split in 2 to 7: parts of unlike lengths, ragged blocks."""
        lengths = ((5, 1, 1), (6, 59, 1), (7, 3, 5), (7, self.B_c, 1), (9, 64, 1), (13, self.B_c - 1, 1))
        return tuple((1, whole * self.B_c + rows, heads) for whole, rows, heads in lengths) if self.split else ()

    @property
    def heavy_rows(self) -> bool:
        """Where tiles follow one another: runs of the kernels before have an exact maximum, and are older."""
        return self.persistent

    @property
    def parting(self) -> tuple[tuple[int, int, int], ...]:
        """Long enough that some warps follow their maximum in a block and others do not; the last block is ragged."""
        return ((1, 14 * self.B_c - 1, 4),) if self.flattened else ()

    @property
    def tile(self) -> str:
        """B_r, B_c and n_consumers."""
        return f"{self.B_r},{self.B_c},{self.n_consumers}"

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA in bytes: Q (whose place O takes), the rings, two mbarriers a stage.

        Where O is merged, m and l of each row besides.
        """
        rows = self.B_r * self.q_stages + self.B_c * (self.k_stages + self.v_stages)
        stages = self.q_stages + self.k_stages + self.v_stages
        return rows * self.d_head * ELEMENT_BYTES + stages * MBARRIERS + self.split * self.B_r * STATS

    def short_form(self) -> str:
        """The configuration on one line, as tables and locks write it; `parse` is its exact inverse."""
        size = f"({self.dtype.upper()}, {self.d_head}, {self.B_r}, {self.B_c}, {self.n_consumers})"
        return f"{size}: {'+'.join(self._words())}"

    def _words(self) -> list[str]:
        """Rings, registers and switches, each as one word."""
        words = [f"stages_{self.k_stages}_{self.v_stages}"]
        if self.producer_registers or self.consumer_registers:
            words.append(f"registers_{self.producer_registers}_{self.consumer_registers}")
        return [*words, *(name for name in SWITCHES if getattr(self, name))]

    def needs(self) -> dict[str, tuple[int, str]]:
        """Threads, shared memory and the registers of the accumulators of O, and of S beside them."""
        each = self.rows * self.d_head // WARPGROUP
        return {
            **super().needs(),
            "registers_per_thread": (max(each, self.consumer_registers), "registers per thread"),
            "registers_per_block": (self.B_r * (self.d_head + self.B_c), "registers per CTA for O and S"),
        }

    @classmethod
    def match(cls, text: str) -> HopperConfig | None:
        """The configuration that `text`, a short form, names; None where it has another form.

        Raises:
            FlashladderError: it has the form, and another spelling than `short_form` gives.
        """
        match = _SHORT_FORM.fullmatch(text)
        if match is None:
            return None
        knobs: dict[str, Any] = {name: int(match[name] or 0) for name in INTEGERS}
        knobs |= {name: match[name] is not None for name in SWITCHES}
        return cls(match["dtype"].lower(), **knobs).spelled(text)

    def brief(self) -> str:
        """What the parts of an iteration leave open, as ``invoke list`` prints it: ``128,128,2 2_2 24_240``.

        That is B_r, B_c and n_consumers, the stages of K and V, the registers of producer and consumers.
        """
        registers = f" {self.producer_registers}_{self.consumer_registers}" if self.has_producer else ""
        return f"{self.tile} {self.k_stages}_{self.v_stages}{registers}"

    def slug(self) -> str:
        """A name that is safe in files, with the same content as the short form."""
        size = f"{self.dtype}_{self.d_head}_{self.B_r}_{self.B_c}_{self.n_consumers}"
        return f"{size}_{'_'.join(self._words())}"

    def with_dtype(self, dtype: str) -> HopperConfig:
        """The same configuration for another element type."""
        return replace(self, dtype=dtype)


REGISTERS = ("producer_registers", "consumer_registers")
SWITCHES = ("overlap", "persistent", "flattened", "split")
INTEGERS = tuple(one.name for one in fields(HopperConfig) if one.name not in ("dtype", *SWITCHES))
_SHORT_FORM = re.compile(
    r"\((?P<dtype>[A-Z0-9]+), (?P<d_head>\d{1,9}), (?P<B_r>\d{1,9}), (?P<B_c>\d{1,9}), (?P<n_consumers>\d{1,9})\): "
    r"stages_(?P<k_stages>\d{1,9})_(?P<v_stages>\d{1,9})"
    r"(\+registers_(?P<producer_registers>\d{1,9})_(?P<consumer_registers>\d{1,9}))?"
    r"(?P<overlap>\+overlap)?(?P<persistent>\+persistent)?(?P<flattened>\+flattened)?(?P<split>\+split)?",
    re.ASCII,
)
BRIEF = re.compile(
    r"(?P<B_r>\d{1,9}),(?P<B_c>\d{1,9}),(?P<n_consumers>\d{1,9}) (?P<k_stages>\d)_(?P<v_stages>\d)"
    r"( (?P<producer_registers>\d{1,3})_(?P<consumer_registers>\d{1,3}))?",
    re.ASCII,
)
"""What `HopperConfig.brief` writes, with a group per field."""
