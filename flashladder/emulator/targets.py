"""What a block may have on the architecture that a launch is for: threads, grid sizes, bytes of shared memory.

Why: a GPU refuses a launch that asks for more, so a kernel that runs here and nowhere else would be no use. PTX for
sm_80 runs on every newer GPU, whose limit may be higher or lower: without another word the file's own ``.target``
counts, `Kernel.launch(target=...)` names another one.

Source: CUDA C++ Programming Guide 13.0, table "Technical Specifications per Compute Capability" (maximum amount of
shared memory per thread block; above 48 KiB it has to be asked for).
"""

from __future__ import annotations

import re

from flashladder.emulator.errors import EmulationError

MAX_THREADS = 1024  # threads of a block
GRID_LIMITS = (2**31 - 1, 65535, 65535)
BLOCK_LIMITS = (1024, 1024, 64)
SHARED_KIB = {  # KiB of shared memory that a block may have, by the number behind sm_
    **dict.fromkeys((50, 52, 53, 60, 61, 62), 48),
    **dict.fromkeys((70, 72), 96),
    75: 64,
    **dict.fromkeys((80, 87), 163),
    **dict.fromkeys((86, 89, 120, 121), 99),
    **dict.fromkeys((90, 100, 103, 110), 227),
}
_TARGET = re.compile(r"(?:sm|compute)_(\d+)[af]?")


def number_of(target: str) -> int | None:
    """80 of ``sm_80``, ``compute_80`` or ``sm_80, debug``; None for anything else."""
    match = _TARGET.fullmatch(target.partition(",")[0].strip())
    return int(match[1]) if match else None


def chosen(own: str, wanted: str | None, path: str) -> str:
    """The architecture that a launch is for, ``sm_80``: the module's own, or a newer one that was asked for.

    Raises:
        EmulationError: (arguments) an unknown architecture, or one that is older than the module's.
    """
    least = number_of(own)
    number = least if wanted is None else number_of(wanted)
    if wanted is not None and (number not in SHARED_KIB or (least is not None and number < least)):
        known = ", ".join(f"sm_{each}" for each in sorted(SHARED_KIB) if each >= (least or 0))
        raise EmulationError(
            "arguments", f"target of a launch of PTX for {own}", path=path, expected=f"one of {known}", found=wanted
        )
    return own if number is None else f"sm_{number}"


def shared_limit(target: str) -> int:
    """Bytes of shared memory that a block may have; of an architecture that is not in the table the most of any."""
    return 1024 * SHARED_KIB.get(number_of(target) or 0, max(SHARED_KIB.values()))
