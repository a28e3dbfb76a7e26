"""The record behind a count of machine code: the lock's entry of its kernel.

Why one: several sections count the same kernels, and a number leads to the same record wherever it stands. Nothing to
run here.
"""

from __future__ import annotations

from pathlib import Path

from flashladder.lock.schema import LockedKernel, read_lock
from flashladder.report.page.book import Book


def locked_record(book: Book, path: Path, number: int, kernel: LockedKernel) -> str:
    """The lock's entry of one kernel; `path` is that of the lock, ``sm_90.json``."""
    lock = book.ladder.locks.get(path.stem) or read_lock(path.stem, path.parent)
    entry = lock.iterations[number]
    facts = {
        "machine code": f"SHA-256 of .text {kernel.text_sha256}", "normalised PTX": f"SHA-256 {kernel.ptx_sha256}",
        "compiled by": ", ".join(f"{name} {found}" for name, found in entry.toolchain.items()),
        "registers": kernel.registers, "spilled": f"{kernel.spill_stores}/{kernel.spill_loads} bytes stored/loaded",
        "derived again by": "invoke gate, which compiles it and counts", "locked because": entry.history[-1],
    }  # fmt: skip
    return book.records.fact(path, f"Iteration {number}, {path.stem}", facts)
