"""Where a result comes from: GPU, host, kernels, reference, and the base of every result document.

Why apart from `flashladder.results.schema`: these models are the same in documents of every kind (rule 9 of the
measurement protocol).
"""

from __future__ import annotations

from typing import Literal

from flashladder.results.samples import Strict

SCHEMA_VERSION: Literal[2] = 2  # raise it with a step in `flashladder.results.migrations`
PROTOCOL_VERSION = "2"  # of the measurement: raise it when the timer, the flush or the statistic changes


def kernel_key(iteration: int, config: str, variant: str = "") -> str:
    """``"07 (FP16, 64, ...): ..."``: the name of a kernel in result files; ``"16 - swizzle (FP16, ...) ..."``."""
    return f"{iteration:02d}{variant} {config}"


class Gpu(Strict):
    """Identity of a GPU as NVML and CUDA tell it; None where the GPU does not answer."""

    name: str
    uuid: str
    form_factor: str | None
    compute_capability: str
    n_sm: int
    l2_bytes: int
    memory_bytes: int
    power_limit_w: float | None
    max_sm_clock_mhz: int | None
    ecc: bool | None
    mig: bool | None
    driver: str

    @property
    def arch(self) -> str:
        """The machine-code architecture, for example ``sm_90``."""
        return "sm_" + self.compute_capability.replace(".", "")


class Host(Strict):
    """The machine around the GPU; `digest` tells hosts apart without naming them."""

    digest: str
    cpu: str
    n_cpus: int
    system: str
    python: str


class Kernel(Strict):
    """One kernel as it was installed: configuration, toolchain, digest of its machine code (None: JIT-compiled).

    `build` is the digest of all inputs of the wheel that held it. `variant` is empty for the ladder's own kernels,
    which locks hold; an ablation has its change there (`` - swizzle``), another toolchain its version (`` cuda 13.1``).
    Registers per thread and spilled bytes are ptxas's, from the wheel's manifest: no lock tells those of a variant.
    """

    iteration: int
    variant: str = ""
    config: str
    dtype: str
    arch: str
    text_sha256: str | None
    build: str | None = None
    registers: int | None = None
    spill_stores: int | None = None
    spill_loads: int | None = None
    toolchain: dict[str, str]

    @property
    def key(self) -> str:
        """How series and cases name this kernel."""
        return kernel_key(self.iteration, self.config, self.variant)

    def same_code(self, other: Kernel) -> bool:
        """Whether both are known to be the same machine code."""
        mine = self.text_sha256 or self.build
        return mine is not None and (self.arch, mine) == (other.arch, other.text_sha256 or other.build)


class Reference(Strict):
    """What the kernels are compared with; `kernels` maps dtype to the reference's own kernel name, once profiled.

    `version` is that of the package it comes from, where that is not torch; `tile` its (B_r, B_c), where it is known.
    """

    op: str
    version: str | None = None
    tile: str | None = None
    torch: str
    cuda: str | None
    kernels: dict[str, str]


class Origin(Strict):
    """What every result file holds about its origin, on whatever machine."""

    schema_version: Literal[2] = SCHEMA_VERSION
    protocol_version: str = PROTOCOL_VERSION
    rung: str
    host: Host
    kernels: dict[str, Kernel]


class Result(Origin):
    """A result measured on a GPU."""

    gpu: Gpu
