"""Names of instructions that a claim may use: opcodes of machine code, opcodes of PTX, and our own measures.

Why: a misspelt opcode is counted 0 times in every kernel, and a claim about it would say nothing. SASS opcodes are
those of NVIDIA's tables, PTX opcodes those that the emulator runs, both listed in configs/opcodes.yaml: a build reads
iterations where there is no emulator.

Try ``unknown("IADDD3", "sass")``.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from flashladder.located import closest, meant, read_located, validate
from flashladder.paths import CONFIGS

MEASURES = {
    "sass": {
        "total": "instructions of the whole kernel",
        "registers": "registers per thread",
        "hmma_after_ldsm": "for each LDSM the HMMA that stand after it, summed: the order of the two in the listing",
        "mufu_under_products": "MUFU while a group of wgmma may be under way (`invoke sass N --order`)",
        "usual_path": "instructions that most rounds run, of a loop in which few rounds wait for all products",
        "f2fp_under_products": "F2FP likewise",
        "fadd_under_products": "FADD likewise",
    },
    "ptx": {
        "total": "instructions",
        "mma_before_use": "for each ldmatrix the mma that stand between it and the first one that reads it, summed",
        "mma_same_a": "mma whose A fragment is that of the mma before it",
    },
}
"""What is counted beside opcodes, by language; in the main loop too, but for the registers."""

Opcodes = tuple[Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")], ...]


class OpcodesFile(BaseModel):
    """``configs/opcodes.yaml``: where the names come from, and the names by group."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    source: str
    url: str
    floating: Annotated[Opcodes, Field(strict=False)]
    integer: Annotated[Opcodes, Field(strict=False)]
    conversion: Annotated[Opcodes, Field(strict=False)]
    movement: Annotated[Opcodes, Field(strict=False)]
    predicates: Annotated[Opcodes, Field(strict=False)]
    memory: Annotated[Opcodes, Field(strict=False)]
    uniform: Annotated[Opcodes, Field(strict=False)]
    warpgroup: Annotated[Opcodes, Field(strict=False)]
    tensor_memory: Annotated[Opcodes, Field(strict=False)]
    texture: Annotated[Opcodes, Field(strict=False)]
    control: Annotated[Opcodes, Field(strict=False)]
    other: Annotated[Opcodes, Field(strict=False)]
    ptx: Annotated[tuple[Annotated[str, Field(pattern=r"^[a-z][a-z0-9]*$")], ...], Field(strict=False)]


def read_opcodes(path: Path) -> OpcodesFile:
    """The file of opcodes.

    Raises:
        FlashladderError: it is missing or malformed.
    """
    return validate(OpcodesFile, read_located(path))


@cache
def known_opcodes(language: str) -> frozenset[str]:
    """Every opcode of machine code (``sass``) or of PTX (``ptx``), without modifiers.

    Raises:
        FlashladderError: the file is missing or malformed.
    """
    groups = read_opcodes(CONFIGS / "opcodes.yaml").model_dump(exclude={"source", "url"})
    return frozenset(
        name for group, names in groups.items() for name in names if (group == "ptx") == (language == "ptx")
    )


def unknown(name: str, language: str) -> tuple[str, str | None] | None:
    """What was expected in place of a name that is none, and the closest one as a hint; None for a name.

    Args:
        name: an opcode or a measure. Modifiers have no list: an opcode with some that occurs in neither kernel bears
            out no claim.
        language: ``sass`` or ``ptx``.
    """
    opcode, dot, modifiers = name.partition(".")
    known = known_opcodes(language)
    if name in MEASURES[language] or opcode in known:
        return None
    expected = f"an opcode of configs/opcodes.yaml, or one of {', '.join(MEASURES[language])}"
    if base := meant(opcode, known):
        return expected, f"did you mean {base + dot + modifiers!r}?"
    return expected, closest(name, MEASURES[language])
