"""Names of instructions: opcodes of machine code and of PTX, our own measures, and the kind of each opcode.

A claim about a misspelt opcode would count 0 in every kernel. All valid names are in configs/opcodes.yaml: the SASS
opcodes of NVIDIA's tables, and the PTX opcodes that the emulator runs.

A kind is what an instruction does for the kernel (multiply on tensor cores, move a register, copy to shared memory),
not its pipe: IMAD.MOV.U32 moves a register, on the FMA pipe. Kinds follow the groups of NVIDIA's tables, some split.

Try ``unknown("IADDD3", "sass")`` and ``by_kind({"HMMA": 256, "MOV": 3})``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, create_model

from flashladder.located import closest, meant, read_located, validate
from flashladder.machine_code.sass import TENSOR
from flashladder.paths import CONFIGS

MEASURES = {
    "sass": {
        "total": "instructions of the whole kernel",
        "registers": "registers per thread",
        "hmma_after_ldsm": "the HMMA after each LDSM, summed: the order of the two in the listing",
        "mufu_under_products": "MUFU while a group of wgmma may be in flight (`invoke sass N --order`)",
        "usual_path": "instructions on the path that most rounds of the loop take (0: all rounds take one path)",
        "f2fp_under_products": "F2FP while a group of wgmma may be in flight",
        "fadd_under_products": "FADD while a group of wgmma may be in flight",
    },
    "ptx": {
        "total": "instructions",
        "mma_before_use": "the mma between each ldmatrix and its first reader, summed",
        "mma_same_a": "mma with the same A fragment as the previous mma",
    },
}
"""Measures beside counts of opcodes, by language; all but the registers also exist for the main loop."""

_GROUPS = {
    "floating": "fp32", "integer": "integer", "conversion": "convert", "movement": "moves", "predicates": "integer",
    "memory": "global", "uniform": "uniform", "warpgroup": "barriers", "tensor_memory": "copies", "texture": "global",
    "control": "control", "other": "other",
}  # fmt: skip
"""The file's groups of machine code, and the kind of their opcodes; `_OWN` has the exceptions."""
_Sass = Annotated[tuple[Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")], ...], Field(strict=False)]
_Ptx = Annotated[tuple[Annotated[str, Field(pattern=r"^[a-z][a-z0-9]*$")], ...], Field(strict=False)]
_FIELDS: dict[str, Any] = {**dict.fromkeys(("source", "url"), str), **dict.fromkeys(_GROUPS, _Sass), "ptx": _Ptx}
OpcodesFile = create_model("OpcodesFile", __config__=ConfigDict(extra="forbid", strict=True), **_FIELDS)
"""``configs/opcodes.yaml``: the source of the names, and the names by group."""


def read_opcodes(path: Path) -> dict[str, tuple[str, ...]]:
    """The names of the file of opcodes by group; raises `FlashladderError` if it is missing or malformed."""
    found: dict[str, tuple[str, ...]] = validate(OpcodesFile, read_located(path)).model_dump(exclude={"source", "url"})
    return found


@cache
def known_opcodes(language: str) -> frozenset[str]:
    """Every opcode of machine code (``sass``) or of PTX (``ptx``), without modifiers; errors as `read_opcodes`."""
    groups = read_opcodes(CONFIGS / "opcodes.yaml")
    return frozenset(groups["ptx"] if language == "ptx" else (name for group in _GROUPS for name in groups[group]))


def unknown(name: str, language: str) -> tuple[str, str | None] | None:
    """What was expected instead of an unknown opcode or measure, and the closest one as a hint; None for a known name.

    Modifiers are not checked here, but a claim fails if neither kernel has the opcode with these modifiers.
    """
    opcode, dot, modifiers = name.partition(".")
    known = known_opcodes(language)
    if name in MEASURES[language] or opcode in known:
        return None
    expected = f"an opcode of configs/opcodes.yaml, or one of {', '.join(MEASURES[language])}"
    if base := meant(opcode, known):
        return expected, f"did you mean {base + dot + modifiers!r}?"
    return expected, closest(name, MEASURES[language])


KINDS: Mapping[str, str] = {
    "tensor": "products of matrices",
    "fp32": "arithmetic on floats: FFMA, FMUL, FADD, FMNMX",
    "mufu": "ex2 and reciprocals",
    "convert": "conversions: fp32 to fp16 pairs",
    "integer": "integer arithmetic, comparisons and addresses",
    "moves": "registers moved, selected or cleared",
    "shuffle": "values from other lanes",
    "uniform": "the same for a whole warp: uniform registers, constants",
    "ldsm": "matrices from shared memory",
    "shared": "other loads and stores of shared memory",
    "copies": "copies to shared memory, and waits for them",
    "global": "loads and stores of global memory",
    "local": "loads and stores of spilled registers",
    "barriers": "barriers of the CTA",
    "control": "branches and ends",
    "other": "the rest: NOP, special registers, fp16 and fp64 arithmetic",
}
"""Kinds with their descriptions, in the order of tables."""

_OWN = {
    **dict.fromkeys((*TENSOR, "BMMA", "DMMA", "BGMMA", "QGMMA"), "tensor"),
    "MUFU": "mufu",
    "SHFL": "shuffle",
    **dict.fromkeys(("IMAD.MOV.U32", "CS2R"), "moves"),
    **dict.fromkeys(("LDC", "S2UR"), "uniform"),
    "LDSM": "ldsm",
    **dict.fromkeys(("LDS", "STS", "STSM", "STAS", "ATOMS", "REDAS"), "shared"),
    **dict.fromkeys(("LDGSTS", "LDGDEPBAR", "DEPBAR"), "copies"),
    **dict.fromkeys(("LDL", "STL", "CCTLL"), "local"),
    **dict.fromkeys(("BAR", "SYNCS", "MEMBAR", "FENCE", "ERRBAR"), "barriers"),
}


@cache
def _kinds() -> Mapping[str, str]:
    groups = read_opcodes(CONFIGS / "opcodes.yaml")
    found = {name: kind for group, kind in _GROUPS.items() for name in groups[group]}
    other = {name: "other" for name in groups["floating"] if name.startswith(("H", "D"))}
    return found | other | _OWN


def kind_of(opcode_class: str) -> str:
    """The kind of an opcode class; ``other`` if no table has it."""
    return _kinds().get(opcode_class, "other")


def by_kind(counts: Mapping[str, float]) -> dict[str, float]:
    """Counts by opcode class, summed by kind; absent kinds are 0, and ``total`` is ignored."""
    found = dict.fromkeys(KINDS, 0.0)
    for name, count in counts.items():
        if name != "total":
            found[kind_of(name)] += count
    return found
