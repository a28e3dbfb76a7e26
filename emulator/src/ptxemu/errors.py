"""Errors of this package. `EmulationError` names the place: PTX line, CUDA source line, block, lane, address.

`EmulationError.kind` is one of `KINDS`, so that a script can tell the cases apart without reading the message.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

LONGEST_FACT = 2000  # characters of what was expected or found that a message shows

KINDS = {
    "syntax": "the PTX text could not be read",
    "unsupported": "an instruction or directive that the emulator does not know",
    "arguments": "the launch does not fit the kernel: arguments, grid, block, shared memory",
    "out-of-bounds": "an address outside every buffer of its state space",
    "misaligned": "an address that is not a multiple of the access's width",
    "uninitialised": "shared memory that nobody wrote was read",
    "divergent-barrier": "a warp reached an aligned barrier with some of its lanes elsewhere, or after some had exited",
    "divergent-warp": "a warp-wide instruction whose member lanes are not all there",
    "missing-fence": "a wgmma uses registers that were touched after the last wgmma.fence",
    "in-flight": "registers of a wgmma are touched before the wait that guarantees it",
    "undefined": "a value that a shuffle read from an absent lane is stored, is an address or decides a branch",
    "tensor map": "a tensor map that is none, or does not fit the instruction that uses it",
    "exited": "shared memory of a block that has exited was used, by a block of the cluster or a copy in flight",
    "deadlock": "threads wait at a barrier that the others never reach",
    "mbarrier": "an mbarrier used against its rules: not initialised, overwritten, counts out of range",
    "registers": "setmaxnreg against its rules: counts, whole warpgroups",
    "endless-loop": "threads come back to the values that they had before, while nobody stores anything",
    "budget": "more instructions than the budget allows",
    "trap": "the program executed trap or brkpt",
}


class PtxemuError(Exception):
    """Something could not be done; ``str()`` is one line: ``where: what: expected E, found F; hint``.

    Args:
        what: what happened, as a short sentence without a full stop.
        where: where it was seen, for example ``kernel.ptx:12``.
        expected: what would have been right.
        found: what was there instead.
        hint: what to try next.
    """

    exit_code = 2

    def __init__(
        self,
        what: str,
        *,
        where: str | Path | None = None,
        expected: object | None = None,
        found: object | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = None if where is None else str(where)
        self.expected = expected
        self.found = found
        self.hint = hint

    def __str__(self) -> str:
        line = _shown(self.what) if self.where is None else f"{_shown(self.where)}: {_shown(self.what)}"
        both = (("expected", self.expected), ("found", self.found))
        facts = [f"{name} {_shown(value)}" for name, value in both if value is not None]
        if facts:
            line += ": " + ", ".join(facts)
        return f"{line}; {_shown(self.hint)}" if self.hint else line


def _shown(fact: object) -> str:
    """A fact on one line that a terminal can show: its beginning and its length where it is too long."""
    text = printable(" ".join(str(fact).split()))
    return text if len(text) <= LONGEST_FACT else f"{text[:LONGEST_FACT]}... ({len(text)} characters)"


def printable(text: str) -> str:
    """`text` with control characters, direction marks and bytes that are not UTF-8 as escapes, as in ``repr``."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


class _Source(Protocol):
    """Where an instruction comes from."""

    @property
    def file(self) -> str:
        """The CUDA file."""

    @property
    def line(self) -> int:
        """Its line."""

    @property
    def chain(self) -> str:
        """Its CUDA lines, those of inlined calls included."""


class Located(Protocol):
    """An instruction, whose ``str()`` is PTX, and its place in the file."""

    @property
    def opcode(self) -> str:
        """Its full dotted text."""

    @property
    def line(self) -> int:
        """Its PTX line."""

    @property
    def source(self) -> _Source | None:
        """Its CUDA lines, where they are known."""


class EmulationError(PtxemuError):
    """A program that may not run as it is written.

    Attributes:
        kind: a key of `KINDS`.
        instruction: the offending instruction, None where there is none (syntax, arguments).
        block: (x, y, z) of the first offending block, None when it does not apply.
        lane: linear thread index within the block of the first offending lane.
        address: the first offending address, in bytes of its state space.
        line: line in the PTX file, 0 when unknown.
    """

    def __init__(
        self,
        kind: str,
        what: str,
        *,
        path: str = "<ptx>",
        instruction: Located | None = None,
        line: int = 0,
        block: tuple[int, int, int] | None = None,
        lane: int | None = None,
        address: int | None = None,
        expected: object | None = None,
        found: object | None = None,
        hint: str | None = None,
    ) -> None:
        self.kind = kind
        self.instruction = instruction
        self.block = block
        self.lane = lane
        self.address = address
        self.line = instruction.line if instruction else line
        facts = [what]
        if address is not None:
            facts.append(f"address {address:#x}")
        if lane is not None:
            facts.append(f"thread {lane} (warp {lane // 32}, lane {lane % 32})")
        if block is not None:
            facts.append(f"block {block}")
        if instruction is not None:
            facts.append(f"in `{instruction}`" + (f" from {instruction.source.chain}" if instruction.source else ""))
        where = f"{path}:{self.line}" if self.line else path
        super().__init__(", ".join(facts), where=where, expected=expected, found=found, hint=hint)

    def fields(self) -> dict[str, object]:
        """The same facts for scripts."""
        source = self.instruction.source if self.instruction else None
        return {
            "kind": self.kind, "message": str(self), "line": self.line,
            "instruction": str(self.instruction) if self.instruction else None,
            "source": source.chain if source else None, "block": self.block, "thread": self.lane,
            "address": self.address,
        }  # fmt: skip
