"""The machine-code lock: what `results/locks/sm_XX.json` holds, read strictly and written canonically.

A published number belongs to one machine code. The lock records its digest, its sources and the toolchain. `refusal`
says why a measured kernel's numbers may not be shown.

Try: ``read_lock("sm_80").iterations[8].kernels``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from flashladder.errors import FlashladderError
from flashladder.files import dump_json, relative, write_atomic
from flashladder.located import first_problem, parsed
from flashladder.paths import RESULTS
from flashladder.results.schema import Kernel, Strict

LOCKS = RESULTS / "locks"
PUBLISHED_ARCH = "sm_80"  # of the GPU that the published ladder was measured on

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]


class LockedKernel(Strict):
    """One kernel: an iteration in one configuration on one architecture."""

    text_sha256: Digest  # of the cubin's ``.text.flash_fwd_kernel``
    ptx_sha256: Digest  # of the normalised PTX (`flashladder.machine_code.ptx`)
    registers: Count  # per thread
    spill_stores: Count  # bytes per thread, as ptxas reports them; spill_loads and stack likewise
    spill_loads: Count
    stack: Count
    static_smem: Count  # bytes per CTA, as ptxas reports them
    dynamic_smem: Count  # bytes per CTA, requested at the launch
    counts: dict[str, Count]  # instructions per opcode class and ``total``, whole kernel
    main_loop: dict[str, Count]  # the same within the loop over KV blocks


class Lock(Strict):
    """One iteration: its kernels by short form, their sources and toolchain."""

    history: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=1)  # reasons of each lock, oldest first
    toolchain: dict[str, str]  # version of every tool that affects the machine code
    flags: dict[str, tuple[str, ...]]  # of nvcc and ptxas, without paths
    files: dict[str, Digest]  # of every included kernel file, by its path from the checkout's root
    kernels: dict[str, LockedKernel]


class LockFile(Strict):
    """All locked iterations of one architecture."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    arch: str
    iterations: dict[int, Lock] = Field(default_factory=dict)


def lock_path(arch: str, folder: Path = LOCKS) -> Path:
    """The file of the lock of `arch`."""
    return folder / f"{arch}.json"


def read_lock(arch: str, folder: Path = LOCKS) -> LockFile:
    """The lock of `arch`; empty if there is no file. A malformed file or another architecture's lock is an error."""
    path = lock_path(arch, folder)
    if not path.exists() and not path.is_symlink():
        return LockFile(arch=arch)
    try:
        lock = parsed(path.read_bytes(), LockFile)
    except (OSError, ValueError) as error:
        what, hint = f"not a machine-code lock of schema 1: {first_problem(error)}", "git checkout -- results/locks"
        raise FlashladderError(what, where=relative(path), hint=f"restore the file: {hint}") from error
    if lock.arch != arch:
        what = "the lock of another architecture"
        raise FlashladderError(what, where=relative(path), expected=arch, found=lock.arch)
    return lock.model_copy(update={"iterations": dict(lock.iterations)})  # writers add to it


def write_lock(lock: LockFile, folder: Path = LOCKS) -> Path:
    """Writes `lock` where `read_lock` finds it; the same lock always gives the same bytes."""
    return write_atomic(lock_path(lock.arch, folder), dump_json(lock.model_dump(mode="json", by_alias=True)))


def find_locked(lock: LockFile | None, iteration: int, config: str) -> LockedKernel | None:
    """The locked kernel of an iteration in one configuration; None if it is not locked."""
    entry = lock.iterations.get(iteration) if lock else None
    return None if entry is None else entry.kernels.get(config)


def refusal(kernel: Kernel, lock: LockFile) -> str | None:
    """Why a kernel's numbers may not be shown; None if its machine code is the locked one."""
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
