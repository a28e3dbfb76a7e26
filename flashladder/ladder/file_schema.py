"""The form of ``iterations/*.yaml`` (pydantic models), and its claims as the rest of the package sees them.

Why two layers: the models say what a file may contain and give editors a JSON Schema; the rest of the package only sees
frozen dataclasses. What a claim is and how a file states it: `flashladder.ladder.claim`;
which concerns and knobs there are: the family (`file_model`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from flashladder.ladder.claim import Claim, ClaimValue, CodeClaimValue, CounterName, PtxName, SassName
from flashladder.ladder.family import DEFAULT, Family, Knobs, Model
from flashladder.names import GPUS

_KEYS = ("any", *GPUS)


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


class GpusFile(Model):
    """Knobs per GPU; ``any`` is every GPU, and a GPU's own knobs win over it."""


class ExpectFile(Model):
    """Claims against the parent: machine code and PTX at equal tile configuration, counters each at its own."""

    at: Knobs | None = None
    sass: Mapping[SassName, CodeClaimValue] = Field(default_factory=dict)
    main_loop: Mapping[SassName, CodeClaimValue] = Field(default_factory=dict)
    ptx: Mapping[PtxName, ClaimValue] = Field(default_factory=dict)
    counters: Mapping[CounterName, ClaimValue] = Field(default_factory=dict)


class IterationFile(Model):
    """One file ``iterations/NN_name.yaml``: what differs from the parent, why, and what is expected of it."""

    iteration: Annotated[int, Field(ge=1, le=99)]
    title: Annotated[str, Field(min_length=3, max_length=80, pattern=r"^[^\\\n]+$")]
    parent: Annotated[int, Field(ge=1, le=99)] | None = None
    family: str = DEFAULT
    why: Annotated[str, Field(min_length=40)]
    unmeasured: Annotated[str, Field(min_length=40)] | None = None
    change: Model = Model()
    configs: GpusFile = GpusFile()
    expect: ExpectFile = ExpectFile()


@cache
def file_model(family: Family) -> type[IterationFile]:
    """The form of a family's files: `IterationFile` with its concerns and knobs."""
    knobs: Any = (family.knobs_model | None, None)
    configs = create_model("ConfigsFile", __base__=GpusFile, __doc__=GpusFile.__doc__, **dict.fromkeys(_KEYS, knobs))
    expect = create_model("ExpectFile", __base__=ExpectFile, __doc__=ExpectFile.__doc__, at=knobs)
    own: dict[str, Any] = {
        "family": (Literal[family.name], DEFAULT) if family.name == DEFAULT else (Literal[family.name], ...),
        "change": (family.change_model, family.change_model()),
        "configs": (configs, configs()),
        "expect": (expect, expect()),
    }
    return create_model("IterationFile", __base__=IterationFile, __doc__=IterationFile.__doc__, **own)
