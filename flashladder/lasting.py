"""Objects that live as long as the process, out of the garbage collector's rounds.

Why: the emulator makes closures by the ten thousand, and each round of Python's cyclic collector that they cause walks
over every object of torch, pydantic and the ladder, none of which will ever be garbage: a fifth of a launch's time.
Nothing to run here.
"""

from __future__ import annotations

import gc

YOUNG = 50_000  # objects between two rounds; Python's 700 is for programs that are short of memory


def freeze() -> None:
    """Leaves all that exists now to the end of the process, and looks at new objects less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 20, 20)
