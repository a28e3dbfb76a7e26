"""What can go wrong with one cell, told apart by what CUDA, torch or the operating system say.

Why: a sweep of hours must go on after a kernel that faults, hangs or computes nonsense, and its record must say which
of these it was; some leave a broken CUDA context behind, so that the worker has to be replaced.
"""

from __future__ import annotations

import signal

from flashladder.errors import failures
from flashladder.results.schema import FailureKind

# Words in CUDA's, NVML's and torch's messages, the first that fits decides; lower case.
WORDS: tuple[tuple[str, FailureKind], ...] = (
    ("illegal memory access", "illegal-address"),
    ("illegal address", "illegal-address"),
    ("misaligned address", "illegal-address"),
    ("device-side assert", "crash"),
    ("illegal instruction", "crash"),
    ("unspecified launch failure", "crash"),
    ("gpu is lost", "gpu-lost"),
    ("fallen off the bus", "gpu-lost"),
    ("no cuda-capable device", "gpu-lost"),
    ("uncorrectable ecc", "gpu-lost"),
    ("unknown error", "gpu-lost"),
    ("out of memory", "out-of-memory"),
    ("outofmemory", "out-of-memory"),
    ("cannot allocate memory", "out-of-memory"),
    ("can't allocate memory", "out-of-memory"),
)
POISONS_CONTEXT: frozenset[FailureKind] = frozenset({"illegal-address", "crash", "gpu-lost"})  # nothing works after it


class CellFailed(Exception):
    """One cell could not be measured; `kind` as of `flashladder.results.schema.Failure`."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def kind_of(error: BaseException) -> FailureKind:
    """The kind of failure that an exception of torch, CUDA or Python tells."""
    if isinstance(error, CellFailed):
        return error.kind
    if isinstance(error, failures()) and error.exit_code == 1:  # a check of ours: other bits from run to run
        return "wrong"
    if isinstance(error, MemoryError):
        return "out-of-memory"
    text = f"{type(error).__name__} {error}".lower()
    known = next((kind for words, kind in WORDS if words in text), None)
    if known is not None:
        return known
    return "refused" if isinstance(error, (ValueError, *failures())) else "crash"


def first_line(error: BaseException) -> str:
    """The first line of what an exception says, or its type."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def told_exit(code: int) -> str:
    """How a process ended, for people: ``signal SIGSEGV`` or ``exit code 3``."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
