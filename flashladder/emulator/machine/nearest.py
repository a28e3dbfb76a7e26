"""What to tell a person whose PTX holds an instruction that the emulator does not know."""

from __future__ import annotations

import difflib

from flashladder.emulator.table import ROWS


def unsupported(opcode: str) -> str:
    """The supported forms nearest to `opcode`, or where the list of all of them is."""
    near = difflib.get_close_matches(opcode, ROWS, n=3, cutoff=0.75)
    listed = "docs/emulator-opcodes.md lists every supported form"
    return f"nearest supported: {', '.join(near)}; {listed}" if near else listed
