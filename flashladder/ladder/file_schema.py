"""The form of ``iterations/*.yaml`` (pydantic models), and its claims as the rest of the package sees them.

Why two layers: the models say what a file may contain and give editors a JSON Schema; the rest of the package only sees
frozen dataclasses. What a claim is and how a file states it: `flashladder.ladder.claim`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, create_model

from flashladder.ladder.claim import Claim, ClaimValue, CodeClaimValue, CounterName, PtxName, SassName
from flashladder.ladder.config import FLAGS, LOADS
from flashladder.ladder.parts import VALUES


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


class _Change(_Strict):
    """What differs from the parent: any of the ten concerns."""


if TYPE_CHECKING:
    ChangeFile = _Change
else:
    _CONCERNS = {name: (Literal[values or ("",)] | None, None) for name, values in VALUES.items()}
    _CONCERNS["row_stride"] = (Annotated[int, Field(ge=0, lt=2**22)] | None, None)
    ChangeFile = create_model("ChangeFile", __base__=_Change, __doc__=_Change.__doc__, **_CONCERNS)


class _Knobs(_Strict):
    """Knobs of the configuration on one GPU; absent ones are inherited, or decided by the parts."""

    B_r: Annotated[int, Field(gt=0)] | None = None
    B_c: Annotated[int, Field(gt=0)] | None = None
    n_warps: Annotated[int, Field(gt=0)] | None = None
    load_tiles: Annotated[tuple[StrictInt, StrictInt, StrictInt], Field(strict=False)] | None = None

    def knobs(self) -> dict[str, object]:
        """The knobs that are given, under the names of `KernelConfig`."""
        given: dict[str, object] = self.model_dump(exclude_none=True)
        if self.load_tiles is not None:
            del given["load_tiles"]
            given |= zip(LOADS, self.load_tiles, strict=True)
        for name, flag in FLAGS.items():
            if flag.key in given:
                given[name] = given.pop(flag.key)
        return given


if TYPE_CHECKING:
    KnobsFile = _Knobs
else:  # with the flags that a file may set
    _FLAGS = {flag.key: (bool | None, None) for flag in FLAGS.values() if flag.key}
    KnobsFile = create_model("KnobsFile", __base__=_Knobs, __doc__=_Knobs.__doc__, **_FLAGS)


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
