"""Names of instructions that a claim may use: opcodes of machine code, opcodes of PTX, and our own measures.

Why: a misspelt opcode is counted 0 times in every kernel, and a claim about it would say nothing. SASS opcodes are
those of NVIDIA's tables (configs/opcodes.yaml), PTX opcodes those that the emulator runs (docs/emulator-opcodes.md).

Try ``unknown("IADDD3", "sass")``.
"""

from __future__ import annotations

import difflib
from functools import cache
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from flashladder.files import CONFIGS
from flashladder.located import read_located, validate

MEASURES = {
    "sass": {
        "total": "instructions of the whole kernel",
        "registers": "registers per thread",
        "hmma_after_ldsm": "for each LDSM the HMMA that stand after it, summed: the order of the two in the listing",
    },
    "ptx": {
        "total": "instructions",
        "mma_before_use": "for each ldmatrix the mma that stand between it and the first one that reads it, summed",
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


@cache
def sass_opcodes() -> frozenset[str]:
    """Every opcode of machine code, without modifiers.

    Raises:
        FlashladderError: the file is missing or malformed.
    """
    groups = validate(OpcodesFile, read_located(CONFIGS / "opcodes.yaml")).model_dump(exclude={"source", "url"})
    return frozenset(name for group in groups.values() for name in group)


@cache
def ptx_opcodes() -> frozenset[str]:
    """Every opcode of PTX that the emulator runs, with modifiers and without."""
    from flashladder.emulator import opcodes  # noqa: F401 - imports every module that adds rows
    from flashladder.emulator.table import ROWS

    return frozenset({*ROWS, *(form.partition(".")[0] for form in ROWS)})


def unknown(name: str, language: str) -> tuple[str, str | None] | None:
    """What was expected in place of a name that is none, and the closest one as a hint; None for a name.

    Args:
        name: an opcode or a measure. Modifiers are checked for PTX, whose every form the emulator lists; those of
            machine code have no list, and one that occurs in neither kernel bears out no claim.
        language: ``sass`` or ``ptx``.
    """
    opcode, dot, modifiers = name.partition(".")
    known = sass_opcodes() if language == "sass" else ptx_opcodes()
    if name in MEASURES[language] or (opcode if language == "sass" else name) in known:
        return None
    where = "configs/opcodes.yaml" if language == "sass" else "docs/emulator-opcodes.md"
    expected = f"an opcode of {where}, or one of {', '.join(MEASURES[language])}"
    if language == "ptx":
        close = difflib.get_close_matches(name, sorted(n for n in known if n[:1] == name[:1]), n=1)
    else:
        close = difflib.get_close_matches(opcode.upper(), sorted(known), n=1) or difflib.get_close_matches(
            opcode, list(MEASURES["sass"]), n=1
        )
    return expected, f"did you mean {close[0] + (dot + modifiers) * (language == 'sass')!r}?" if close else None
