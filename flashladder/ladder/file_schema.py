"""The form of ``iterations/*.yaml`` (pydantic models), and its claims as the rest of the package sees them.

Why two layers: the models say what a file may contain and give editors a JSON Schema; the rest of the package only sees
frozen dataclasses. What a claim is and how a file states it: `flashladder.ladder.claim`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt

from flashladder.ladder.claim import Claim, ClaimValue, CodeClaimValue, CounterName, PtxName, SassName

GPUS = ("a100", "rtx3090", "h200")
"""The GPUs that every iteration has a configuration for."""


@dataclass(frozen=True)
class Expect:
    """The claims of one iteration, and the configuration knobs they are made at where these differ from its own.

    Attributes:
        sass: about machine code, in the whole kernel and in the main loop.
        ptx: about the PTX that ships.
        counters: about what a launch counts, on a GPU or in the emulator.
        at: knobs at which `sass` and `ptx` are judged.
    """

    sass: tuple[Claim, ...]
    ptx: tuple[Claim, ...]
    counters: tuple[Claim, ...]
    at: Mapping[str, object]

    @property
    def claims(self) -> tuple[Claim, ...]:
        """All of them."""
        return (*self.sass, *self.ptx, *self.counters)


class _Strict(BaseModel):
    """No unknown keys, no conversion between types, no change after reading."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ChangeFile(_Strict):
    """What differs from the parent: any of the ten concerns."""

    layout: Literal["linear", "xor", "xor_static", "xor_tiled"] | None = None
    schedule: Literal["lazy", "eager", "peeled", "backward"] | None = None
    operands: Literal["whole", "tiled", "double_buffered"] | None = None
    k_order: Literal["column_major", "row_major"] | None = None
    softmax: Literal["exp", "exp2_folded", "exp2_peeled"] | None = None
    normalize: Literal["divide", "reciprocal"] | None = None
    gmem: Literal["advance", "indexed", "static_stride"] | None = None
    epilogue: Literal["offsets", "encoded"] | None = None
    store_policy: Literal["write_back", "no_allocate"] | None = None
    row_stride: Annotated[int, Field(ge=0, lt=2**22)] | None = None


class KnobsFile(_Strict):
    """Knobs of the configuration on one GPU; absent ones are inherited, or decided by the parts."""

    B_r: Annotated[int, Field(gt=0)] | None = None
    B_c: Annotated[int, Field(gt=0)] | None = None
    n_warps: Annotated[int, Field(gt=0)] | None = None
    load_tiles: Annotated[tuple[StrictInt, StrictInt, StrictInt], Field(strict=False)] | None = None
    double_buffer: bool | None = None
    optimized_softmax: bool | None = None

    def knobs(self) -> dict[str, object]:
        """The knobs that are given, under the names of `KernelConfig`."""
        given: dict[str, object] = self.model_dump(exclude_none=True)
        if self.load_tiles is not None:
            del given["load_tiles"]
            given |= zip((f"{o}_mma_load_K_tiles" for o in "QKV"), self.load_tiles, strict=True)
        if "double_buffer" in given:
            given["mma_double_buffer_loads"] = given.pop("double_buffer")
        return given


class ConfigsFile(_Strict):
    """Knobs per GPU; ``any`` is every GPU, and a GPU's own knobs win over it."""

    any: KnobsFile | None = None
    a100: KnobsFile | None = None
    rtx3090: KnobsFile | None = None
    h200: KnobsFile | None = None


class ExpectFile(_Strict):
    """Claims against the parent: machine code and PTX at equal tile configuration, counters each at its own."""

    at: KnobsFile | None = None
    sass: dict[SassName, CodeClaimValue] = {}
    main_loop: dict[SassName, CodeClaimValue] = {}
    ptx: dict[PtxName, ClaimValue] = {}
    counters: dict[CounterName, ClaimValue] = {}


class IterationFile(_Strict):
    """One file ``iterations/NN_name.yaml``: what differs from the parent, why, and what is expected of it."""

    iteration: Annotated[int, Field(ge=1, le=99)]
    title: Annotated[str, Field(min_length=3, max_length=80, pattern=r"^[^\\\n]+$")]
    parent: Annotated[int, Field(ge=1, le=99)] | None = None
    why: Annotated[str, Field(min_length=40)]
    change: ChangeFile = ChangeFile()
    configs: ConfigsFile = ConfigsFile()
    expect: ExpectFile = ExpectFile()
