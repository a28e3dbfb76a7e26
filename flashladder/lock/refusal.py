"""Whether a measured kernel's machine code is the locked one; if not, why its numbers may not be shown.

Why: a number belongs to machine code and not to a name. Nothing to run here; report, gate and claims ask.
"""

from __future__ import annotations

from flashladder.lock.schema import LockedKernel, LockFile
from flashladder.results.schema import Kernel


def find_locked(lock: LockFile | None, iteration: int, config: str) -> LockedKernel | None:
    """The locked kernel of an iteration in one configuration; None when it is not locked."""
    entry = lock.iterations.get(iteration) if lock else None
    return None if entry is None else entry.kernels.get(config)


def refusal(kernel: Kernel, lock: LockFile) -> str | None:
    """Why a kernel's numbers may not be shown; None when its machine code is the locked one."""
    if kernel.variant:
        return "refused: a variant, which belongs into a file of its own and not beside the ladder's kernels"
    locked = find_locked(lock, kernel.iteration, kernel.config)
    if kernel.text_sha256 is None:
        return "refused: compiled by the driver, so that its machine code is not known"
    if locked is None:
        return f"refused: not in results/locks/{kernel.arch}.json; run: invoke lock {kernel.iteration} --reason '...'"
    if locked.text_sha256 != kernel.text_sha256:
        found, expected = kernel.text_sha256[:12], locked.text_sha256[:12]
        return f"refused: measured machine code {found}..., locked {expected}...; run: invoke bench {kernel.iteration}"
    return None
