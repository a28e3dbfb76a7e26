"""A claim of `iterations/*.yaml`: a prediction about a step that a machine can check, and how a file states it.

A claim may name the architectures on which it holds; otherwise it holds on all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce
import math
import re
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from flashladder import names
from flashladder.located import closest
from flashladder.machine_code.opcodes import unknown

COUNTERS: Mapping[str, str] = MappingProxyType(
    {
        "shared_ld_conflicts": names.CONFLICTS.format("ld"),
        "shared_st_conflicts": names.CONFLICTS.format("st"),
        "shared_ld_wavefronts": names.WAVEFRONTS.format("ld"),
        "shared_st_wavefronts": names.WAVEFRONTS.format("st"),
        "global_ld_sectors": names.GLOBAL_SECTORS.format("ld"),
        "global_st_sectors": names.GLOBAL_SECTORS.format("st"),
        "registers": names.REGISTERS,
        "instructions": names.INSTRUCTIONS,
        "ldsm": names.LDSM,
        "tensor": names.TENSOR,
    }
)
"""The short names that a claim uses for Nsight Compute's counters."""

SEVERAL = ("sm_80", "sm_86", "sm_89", "sm_90")  # the architectures of one family, of which a claim may name some
LOCK_ARCHES = (*SEVERAL, "sm_90a")  # all architectures with machine code and locks
EMULATED = ("copies_upward", "copies_downward")
"""Counters that only the emulator has (`flashladder.emulate.kernel.CopyOrder`)."""

Direction = Literal["falls", "rises", "equals"]
Scope = Literal["kernel", "main_loop", "ptx", "counters"]
PLACES: Mapping[str, str] = MappingProxyType({"main_loop": " in the main loop", "ptx": " in the PTX"})
CLAIM_FORMS = (
    "falls, rises, unchanged, a number, {falls: fraction}, {rises: fraction} or {equals: number, within: fraction}"
)
WITH_ARCHES = CLAIM_FORMS + ", the last three of machine code with on: [sm_80, ...], which names some architectures"
TERMS = re.compile(r"[+/]")


@dataclass(frozen=True)
class Claim:
    """One prediction about a count, against the parent."""

    # opcode classes (opcode up to the first dot, except ``IMAD.MOV.U32``; ``total`` is all of them), opcodes with all
    # their modifiers, measures (`flashladder.machine_code.opcodes.MEASURES`) or counters; ``A+B`` is a sum and ``A/B``
    # a quotient, which binds less tightly
    metric: str
    # ``kernel`` is the whole machine code, ``main_loop`` only the loop over KV blocks, ``ptx`` the PTX in the wheel,
    # all three at equal tile; ``counters`` are a launch's, each side at its own tile
    scope: Scope
    direction: Direction
    at_least: float | None = None  # for falls and rises, the smallest change as a fraction of the parent's count
    value: float | None = None  # for equals, the count itself; None means the parent's
    within: float = 0.0  # for equals, the relative deviation that is still equal
    on: tuple[str, ...] = ()  # the only architectures on which it holds; empty for all

    @property
    def needs_parent(self) -> bool:
        """Whether the claim compares with the parent instead of with a number."""
        return self.form != "number"

    @property
    def form(self) -> str:
        """``falls``, ``rises``, ``unchanged`` or ``number``: the claim without its amount."""
        return self.direction if self.direction != "equals" else "unchanged" if self.value is None else "number"

    @property
    def names(self) -> list[str]:
        """The opcodes, measures or counters in the metric."""
        return TERMS.split(self.metric)

    def measure(self, counts: Mapping[str, float]) -> float:
        """The claim's metric in `counts` (name to count); an absent name counts 0, a quotient by 0 is not a number."""
        counts = {"total": sum(counts.values()), **counts}
        sums = [sum(counts.get(name, 0) for name in term.split("+")) for term in self.metric.split("/")]
        return reduce(lambda quotient, divisor: quotient / divisor if divisor else math.nan, sums)

    def absent(self, own: Mapping[str, float], parent: Mapping[str, float] | None) -> list[str]:
        """Names in the metric that neither side has, for example because a modifier is misspelt."""
        return [name for name in self.names if name != "total" and name not in own and name not in (parent or {})]

    def holds(self, own: Mapping[str, float], parent: Mapping[str, float] | None = None) -> bool:
        """Whether the claim is true for the counts of the iteration and of its parent.

        A claim about names that neither side has does not hold. ValueError if it needs a parent, and there is none.
        """
        if self.needs_parent and parent is None:
            raise ValueError(f"the claim {self} needs the parent's counts")
        if len(self.absent(own, parent)) == len(self.names):
            return False
        after = self.measure(own)
        if self.value is not None:
            return abs(after - self.value) <= self.within * abs(self.value)
        before = self.measure(parent or {})
        if self.direction == "equals":
            return abs(after - before) <= self.within * abs(before)
        change = before - after if self.direction == "falls" else after - before
        return change > 0 and change >= (self.at_least or 0.0) * before

    def in_words(self) -> str:
        """The claim without its metric, for example ``falls by at least 19.2 %``."""
        if self.direction != "equals":
            words = self.direction + ("" if self.at_least is None else f" by at least {100 * self.at_least:.3g} %")
        else:
            words = "is unchanged" if self.value is None else f"is {self.value:g}"
            words += f" within {100 * self.within:.3g} %" if self.within else ""
        return words + (f" (on {', '.join(self.on)} only)" if self.on else "")

    def __str__(self) -> str:
        """The claim in words, for example ``FMUL falls by at least 19.2 %``."""
        return f"{self.metric}{PLACES.get(self.scope, '')} {self.in_words()}"


@dataclass(frozen=True)
class Expect:
    """The claims of one iteration, and the configuration knobs they are made at where these differ from its own."""

    sass: tuple[Claim, ...]  # about machine code, in the whole kernel and in the main loop
    ptx: tuple[Claim, ...]  # about the PTX that ships
    counters: tuple[Claim, ...]  # about what a launch counts, on a GPU or in the emulator
    at: Mapping[str, object]  # knobs at which `sass` and `ptx` are judged

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The claims of all kinds."""
        return (*self.sass, *self.ptx, *self.counters)


class _Amount(BaseModel):
    """A claim with an amount, as YAML writes it."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    falls: Annotated[float, Field(ge=0, le=1)] | None = None
    rises: Annotated[float, Field(ge=0)] | None = None
    equals: Annotated[float, Field(ge=0)] | None = None
    within: Annotated[float, Field(ge=0, le=1)] = 0.0

    def claim(self) -> Claim:
        """The claim; ValueError unless it has one of falls, rises and equals, and `within` only with equals."""
        directions = self.model_fields_set - {"within"}
        if directions == {"equals"} and self.equals is not None:
            return Claim("", "kernel", "equals", value=self.equals, within=self.within)
        amounts: dict[Direction, float | None] = {"falls": self.falls, "rises": self.rises}
        for direction, amount in amounts.items():
            if self.model_fields_set == {direction} and amount is not None:
                return Claim("", "kernel", direction, at_least=amount)
        raise ValueError("expected one of falls, rises and equals")


class _AmountOn(_Amount):
    """A claim with an amount about machine code, which may name architectures."""

    on: list[str] = Field(default=[], json_schema_extra={"items": {"enum": list(SEVERAL)}})


def _claim(value: object, expected: str = CLAIM_FORMS) -> Claim:
    """The claim that a YAML value states; metric and scope are filled in later."""
    if value == "unchanged":
        return Claim("", "kernel", "equals")
    if value in ("falls", "rises"):
        return Claim("", "kernel", value)
    try:
        return _Amount.model_validate(value if isinstance(value, dict) else {"equals": value}).claim()
    except ValueError as error:
        raise PydanticCustomError("claim", "not a claim", {"expected": expected, "found": str(value)}) from error


def _code_claim(value: object) -> Claim:
    """A claim about machine code, which may name architectures."""
    if not isinstance(value, dict) or "on" not in value:
        return _claim(value)
    on = value["on"] if isinstance(value["on"], list) else []
    if not on or on == [*SEVERAL] or on != [arch for arch in SEVERAL if arch in on]:
        expected = f"some of {', '.join(SEVERAL)} under 'on', in this order (without it: all)"
        raise PydanticCustomError("claim", "not architectures", {"expected": expected, "found": str(value["on"])})
    amount = {key: item for key, item in value.items() if key != "on"}
    return replace(_claim(amount, WITH_ARCHES), on=tuple(on))


def _wrong_name(name: str, expected: str, hint: str | None = None) -> PydanticCustomError:
    return PydanticCustomError("metric", "not a metric", {"expected": expected, "found": repr(name), "hint": hint})


def _opcodes(metric: str, *, language: str, example: str) -> str:
    """An opcode metric: its form, and that every name in it exists."""
    for name in TERMS.split(metric):
        if not re.fullmatch(r"[A-Za-z][\w.:]*", name, re.ASCII):
            raise _wrong_name(metric, f"opcodes such as {example}, or total")
        if wrong := unknown(name, language):
            raise _wrong_name(name, *wrong)
    return metric


def _counters(name: str) -> str:
    """A counter metric, with short names written out as Nsight Compute's."""
    names = [*COUNTERS, *EMULATED]
    for part in TERMS.split(name):
        if part not in names:
            raise _wrong_name(part, f"one of {', '.join(names)}", closest(part, names))
    return re.sub(r"\w+", lambda match: COUNTERS.get(match[0], match[0]), name)


_Word = Literal["falls", "rises", "unchanged"] | Annotated[float, Field(ge=0)]
_Stated = Annotated[_Word | _Amount, Field(description=CLAIM_FORMS)]
_StatedOn = Annotated[_Word | _AmountOn, Field(description=WITH_ARCHES)]
ClaimValue = Annotated[Claim, BeforeValidator(_claim, json_schema_input_type=_Stated)]
CodeClaimValue = Annotated[Claim, BeforeValidator(_code_claim, json_schema_input_type=_StatedOn)]
SassName = Annotated[str, AfterValidator(partial(_opcodes, language="sass", example="LOP3 or IADD3+LOP3"))]
PtxName = Annotated[str, AfterValidator(partial(_opcodes, language="ptx", example="add.s64 or ldmatrix"))]
CounterName = Annotated[str, AfterValidator(_counters)]
