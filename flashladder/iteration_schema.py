"""The form of ``iterations/*.yaml`` (pydantic models) and the claims that they make (plain dataclasses).

Why two layers: the models say what a file may contain and give editors a JSON Schema; the rest of the package only sees
frozen dataclasses. A claim is a prediction against the parent that a machine can check: in machine code or in counters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
import re
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, WithJsonSchema
from pydantic_core import PydanticCustomError

from flashladder.located import closest

GPUS = ("a100", "rtx3090", "h200")
"""The GPUs that every iteration has a configuration for."""

COUNTERS: Mapping[str, str] = MappingProxyType(
    {
        "shared_ld_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
        "shared_st_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
        "shared_ld_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
        "shared_st_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
        "global_ld_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
        "global_st_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
        "registers": "launch__registers_per_thread",
        "instructions": "smsp__inst_executed.sum",
        "ldsm": "smsp__inst_executed_op_ldsm.sum",
        "tensor": "smsp__inst_executed_pipe_tensor.sum",
    }
)
"""The short names that a claim uses for Nsight Compute's counters."""

_OPCODES = re.compile(r"total|[A-Z][A-Z0-9]*(\.[A-Z0-9]+)*([+/][A-Z][A-Z0-9]*(\.[A-Z0-9]+)*)*", re.ASCII)


@dataclass(frozen=True)
class Claim:
    """One prediction about a count, against the parent at equal tile configuration.

    Attributes:
        metric: opcode classes (opcode up to the first dot, except ``IMAD.MOV.U32``; ``total`` is all of them) or
            Nsight Compute counters; ``A+B`` is a sum and ``A/B`` a quotient, which binds less tightly.
        scope: ``kernel`` counts the whole kernel, ``main_loop`` the loop over KV blocks only.
        direction: ``falls``, ``rises`` or ``equals``.
        at_least: for falls and rises, the smallest relative change, as a fraction of the parent's count; None is any.
        value: for equals, the count itself; None means the parent's.
        within: for equals, the relative deviation that is still equal.
    """

    metric: str
    scope: Literal["kernel", "main_loop"]
    direction: Literal["falls", "rises", "equals"]
    at_least: float | None = None
    value: float | None = None
    within: float = 0.0

    @property
    def needs_parent(self) -> bool:
        """Whether the claim compares with the parent, as opposed to a number of its own."""
        return self.direction != "equals" or self.value is None

    def measure(self, counts: Mapping[str, float]) -> float:
        """The claim's metric in `counts` (class or counter name to count); an absent class counts 0.

        Raises:
            ZeroDivisionError: the metric is a quotient and its divisor is 0.
        """
        result: float | None = None
        for term in self.metric.split("/"):
            names = term.split("+")
            total = sum(sum(counts.values()) if n == "total" and n not in counts else counts.get(n, 0) for n in names)
            result = total if result is None else result / total
        return 0.0 if result is None else result

    def holds(self, own: Mapping[str, float], parent: Mapping[str, float] | None = None) -> bool:
        """Whether the counts of the iteration, beside those of its parent, bear the claim out.

        A comparison in which neither side has the metric at all does not hold: it would be a misspelt name.

        Raises:
            ValueError: the claim compares with a parent, and there is none.
        """
        after = self.measure(own)
        if not self.needs_parent:
            expected = 0.0 if self.value is None else self.value
            return abs(after - expected) <= self.within * abs(expected)
        if parent is None:
            raise ValueError(f"the claim {self} needs the parent's counts")
        before = self.measure(parent)
        if before == after == 0:
            return False
        if self.direction == "equals":
            return abs(after - before) <= self.within * abs(before)
        change = before - after if self.direction == "falls" else after - before
        return change > 0 and change >= (self.at_least or 0.0) * before

    def __str__(self) -> str:
        """The claim in words, for example ``FMUL falls by at least 19.2 %``."""
        place = " in the main loop" if self.scope == "main_loop" else ""
        if self.direction != "equals":
            amount = "" if self.at_least is None else f" by at least {100 * self.at_least:.3g} %"
            return f"{self.metric}{place} {self.direction}{amount}"
        within = f" within {100 * self.within:.3g} %" if self.within else ""
        goal = "is unchanged" if self.value is None else f"is {self.value:g}"
        return f"{self.metric}{place} {goal}{within}"


@dataclass(frozen=True)
class Expect:
    """The claims of one iteration, and the configuration knobs they are made at where these differ from its own."""

    sass: tuple[Claim, ...]
    counters: tuple[Claim, ...]
    at: Mapping[str, object]


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


CLAIM_FORMS = (
    "falls, rises, unchanged, a number, {falls: fraction}, {rises: fraction} or {equals: number, within: fraction}"
)


def _number(value: object, *, largest: float = float("inf")) -> float | None:
    """`value` as a finite number from 0 to `largest`; None for anything else, truth values too."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value <= largest and value != float("inf") else None


def _claim(value: object) -> Claim:
    """The claim that a YAML value states; metric and scope are filled in later."""
    claim = _claim_in_words(value) if not isinstance(value, dict) else _claim_with_amount(value)
    if claim is None:
        raise PydanticCustomError("claim", "not a claim", {"expected": CLAIM_FORMS, "found": str(value)})
    return claim


def _claim_in_words(value: object) -> Claim | None:
    """``falls``, ``rises``, ``unchanged`` or a number."""
    if value == "falls":
        return Claim("", "kernel", "falls")
    if value == "rises":
        return Claim("", "kernel", "rises")
    if value == "unchanged":
        return Claim("", "kernel", "equals")
    number = _number(value)
    return None if number is None else Claim("", "kernel", "equals", value=number)


def _claim_with_amount(value: Mapping[object, object]) -> Claim | None:
    """``{falls: fraction}``, ``{rises: fraction}`` or ``{equals: number, within: fraction}``."""
    keys = set(value)
    falls, rises = _number(value.get("falls"), largest=1.0), _number(value.get("rises"))
    equals, within = _number(value.get("equals")), _number(value.get("within", 0), largest=1.0)
    if keys == {"falls"} and falls is not None:
        return Claim("", "kernel", "falls", at_least=falls)
    if keys == {"rises"} and rises is not None:
        return Claim("", "kernel", "rises", at_least=rises)
    if "equals" in keys and keys <= {"equals", "within"} and equals is not None and within is not None:
        return Claim("", "kernel", "equals", value=equals, within=within)
    return None


def _opcodes(name: str) -> str:
    """An opcode metric, checked for its form."""
    if _OPCODES.fullmatch(name) is None:
        raise PydanticCustomError(
            "metric", "not a metric", {"expected": "opcodes such as LOP3 or IADD3+LOP3, or total", "found": repr(name)}
        )
    return name


def _counters(name: str) -> str:
    """A counter metric, with short names written out as Nsight Compute's."""
    for part in re.split(r"[+/]", name):
        if part not in COUNTERS:
            raise PydanticCustomError(
                "metric",
                "not a counter",
                {
                    "expected": f"one of {', '.join(COUNTERS)}",
                    "found": repr(part),
                    "hint": closest(part, list(COUNTERS)),
                },
            )
    return re.sub(r"\w+", lambda match: COUNTERS[match[0]], name)


_CLAIM_SCHEMA = {
    "description": CLAIM_FORMS,
    "anyOf": [
        {"enum": ["falls", "rises", "unchanged"]},
        {"type": "number", "minimum": 0},
        *(
            {
                "type": "object",
                "properties": {key: {"type": "number", "minimum": 0}},
                "required": [key],
                "additionalProperties": False,
            }
            for key in ("falls", "rises")
        ),
        {
            "type": "object",
            "properties": {
                "equals": {"type": "number"},
                "within": {"type": "number"},
            },
            "required": ["equals"],
            "additionalProperties": False,
        },
    ],
}
ClaimValue = Annotated[Claim, BeforeValidator(_claim), WithJsonSchema(_CLAIM_SCHEMA)]
Opcodes = Annotated[str, AfterValidator(_opcodes)]
Counters = Annotated[str, AfterValidator(_counters)]


class ExpectFile(_Strict):
    """Claims against the parent at equal tile configuration."""

    at: KnobsFile | None = None
    sass: dict[Opcodes, ClaimValue] = {}
    main_loop: dict[Opcodes, ClaimValue] = {}
    counters: dict[Counters, ClaimValue] = {}


class IterationFile(_Strict):
    """One file ``iterations/NN_name.yaml``: what differs from the parent, why, and what is expected of it."""

    iteration: Annotated[int, Field(ge=1, le=99)]
    title: Annotated[str, Field(min_length=3, max_length=80, pattern=r"^[^\\\n]+$")]
    parent: Annotated[int, Field(ge=1, le=99)] | None = None
    why: Annotated[str, Field(min_length=40)]
    change: ChangeFile = ChangeFile()
    configs: ConfigsFile = ConfigsFile()
    expect: ExpectFile = ExpectFile()
