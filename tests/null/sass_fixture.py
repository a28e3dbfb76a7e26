"""Machine code for tests: a kernel from a few rows, as nvdisasm would print it."""

from __future__ import annotations

from flashladder.machine_code.sass import Sass, parse


def code(*rows: str) -> Sass:
    """A kernel from rows such as ``.L_x_0:`` or ``@P0 EXIT``."""
    lines, address = ['.section .text.flash_fwd_kernel,"ax",@progbits'], 0
    for row in rows:
        if row.endswith(":"):
            lines.append(row)
        else:
            lines.append(f"        /*{address:04x}*/   {row} ;")
            address += 16
    return parse("\n".join(lines))
