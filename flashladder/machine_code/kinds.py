"""What machine instructions are for: a dozen kinds of opcodes, so that a kernel is read before it is counted.

Why: forty opcode classes by two dozen iterations are too many to see what a step traded for what. A kind is what an
instruction does for the kernel (multiply on tensor cores, move a register, copy to shared memory), not the pipe that it
is issued to: IMAD.MOV.U32 moves a register, on the FMA pipe. Opcodes are grouped as NVIDIA's tables group them
(configs/opcodes.yaml), taken apart where those are too coarse.

Try ``by_kind({"HMMA": 256, "MOV": 3})``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from flashladder.machine_code.opcodes import read_opcodes
from flashladder.machine_code.sass import TENSOR
from flashladder.paths import CONFIGS

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
"""Kinds in the order in which they are shown, with what they are."""

_GROUPS = {
    "floating": "fp32", "integer": "integer", "conversion": "convert", "movement": "moves", "predicates": "integer",
    "memory": "global", "uniform": "uniform", "warpgroup": "barriers", "tensor_memory": "copies", "texture": "global",
    "control": "control", "other": "other", "ptx": "other",
}  # fmt: skip
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
    groups = read_opcodes(CONFIGS / "opcodes.yaml").model_dump(exclude={"source", "url", "ptx"})
    found = {name: _GROUPS[group] for group, names in groups.items() for name in names}
    other = {name: "other" for name in groups["floating"] if name.startswith(("H", "D"))}
    return found | other | _OWN


def kind_of(opcode_class: str) -> str:
    """The kind of an opcode class; ``other`` for one that no table has."""
    return _kinds().get(opcode_class, "other")


def by_kind(counts: Mapping[str, float]) -> dict[str, float]:
    """Counts by opcode class, summed by kind; kinds that do not occur are 0, and ``total`` is no class."""
    found = dict.fromkeys(KINDS, 0.0)
    for name, count in counts.items():
        if name != "total":
            found[kind_of(name)] += count
    return found
