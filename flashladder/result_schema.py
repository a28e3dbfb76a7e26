"""The schema of result files: frozen pydantic models, from one pair of times to a whole document.

Why: a number without its raw samples, machine-code hash and GPU is worth nothing a month later, so that a document that
lacks one of them is refused. Reading and writing: `flashladder.results`; what is derived: `flashladder.summaries`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from flashladder.result_samples import Accuracy, Block, Group, Pair, Sample, Series, Shape, Strict

__all__ = [
    "A_A",
    "PROTOCOL_VERSION",
    "SCHEMA_VERSION",
    "Accuracy",
    "AnyResult",
    "BenchResult",
    "Block",
    "CaseResult",
    "CheckResult",
    "CounterResult",
    "EmulatedCheckResult",
    "Finding",
    "Gpu",
    "Group",
    "Host",
    "Kernel",
    "Mean",
    "Mode",
    "Origin",
    "Pair",
    "Process",
    "Reference",
    "Result",
    "Sample",
    "SanitizerResult",
    "Series",
    "Settings",
    "Shape",
    "Strict",
    "Summary",
    "kernel_key",
]

SCHEMA_VERSION: Literal[1] = 1
PROTOCOL_VERSION = "1"  # of the measurement: raise it when the timer, the flush or the statistic changes
ROUNDING = 1e-9  # relative: what another order of the same sums may give
A_A = "reference"  # key of the series that times the reference against itself

Mode = Literal["event-free", "event-locked", "ncu-base"]


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

    `build` is the digest of all inputs of the wheel that held it.
    """

    iteration: int
    config: str
    dtype: str
    arch: str
    text_sha256: str | None
    build: str | None = None
    toolchain: dict[str, str]

    @property
    def key(self) -> str:
        """How series and cases name this kernel."""
        return kernel_key(self.iteration, self.config)

    def same_code(self, other: Kernel) -> bool:
        """Whether both are known to be the same machine code."""
        mine = self.text_sha256 or self.build
        return mine is not None and (self.arch, mine) == (other.arch, other.text_sha256 or other.build)


class Reference(Strict):
    """What the kernels are compared with; `kernels` maps dtype to the reference's own kernel name, once profiled."""

    op: str
    torch: str
    cuda: str | None
    kernels: dict[str, str]


class Process(Strict):
    """One process that contributed samples; foreign processes are others on the GPU, None where NVML does not tell."""

    index: int
    started_utc: str
    foreign_before: int | None
    foreign_after: int | None = None


class Settings(Strict):
    """How pairs were taken."""

    pairs: int
    blocks: int
    min_pairs: int
    flush_bytes: int


class Interval(Strict):
    """Derived: a kernel's percentage of the reference's speed, with the ends of its 95 % interval."""

    kernel: str
    dtype: str
    pct: float = Field(gt=0)
    pct_low: float = Field(gt=0)
    pct_high: float = Field(gt=0)

    @model_validator(mode="after")
    def _holds_its_median(self) -> Interval:
        """The interval holds the percentage, but for the rounding of a mean of exponentials."""
        rounding = ROUNDING * self.pct
        if not self.pct_low - rounding <= self.pct <= self.pct_high + rounding:
            shape: Shape | None = getattr(self, "shape", None)
            cell = f"{self.kernel} {self.dtype} {f'S={shape.seq_len}' if shape else 'harmonic mean'}"
            msg = f"{cell}: {self.pct:g} % is not within its interval, {self.pct_low:g} to {self.pct_high:g} %"
            raise ValueError(msg)
        return self


class Summary(Interval):
    """Derived: one kernel at one shape."""

    shape: Shape
    verdict: Literal["faster", "slower", "same", "ambiguous"]
    n_pairs: int
    dropped_share: float
    readmitted_share: float
    kernel_us: float
    reference_us: float
    tflops: float
    reference_tflops: float
    sm_clock_mhz: float | None


class Mean(Interval):
    """Derived: harmonic mean over all lengths of one kernel."""

    seq_lens: tuple[int, ...]


class Origin(Strict):
    """What every result file holds about its origin, on whatever machine."""

    schema_version: Literal[1] = SCHEMA_VERSION
    protocol_version: str = PROTOCOL_VERSION
    rung: str
    host: Host
    kernels: dict[str, Kernel]


class Result(Origin):
    """A result measured on a GPU."""

    gpu: Gpu


class BenchResult(Result):
    """Paired timings; `floors_pct` is the A/A floor per dtype, in percentage points.

    `purpose`: samples that chose a configuration (``tune``) are never reported; the winner is timed again.
    """

    kind: Literal["bench"] = "bench"
    purpose: Literal["report", "tune"] = "report"
    mode: Mode = "event-free"
    reference: Reference
    settings: Settings
    processes: tuple[Process, ...]
    groups: tuple[Group, ...]
    summaries: tuple[Summary, ...] = ()
    means: tuple[Mean, ...] = ()
    floors_pct: dict[str, float] = Field(default_factory=dict)


class CaseResult(Strict):
    """One kernel on one case: `pass`, `fail`, or `not_applicable` (the kernel refuses such tensors, and did)."""

    kernel: str
    case: str
    dtype: str
    shape: Shape
    status: Literal["pass", "fail", "not_applicable"]
    reason: str | None = None
    accuracy: Accuracy | None = None
    repeats: int = 0

    @model_validator(mode="after")
    def _a_pass_is_accurate(self) -> CaseResult:
        """A case passes only with errors within its own limits."""
        if self.status == "pass" and not (self.accuracy and self.accuracy.ok):
            msg = f"case {self.case} of {self.kernel} passes, but its errors are not within what is allowed"
            raise ValueError(msg)
        return self


class CheckResult(Result):
    """Numerical checks of kernels on a GPU; `rule` is the digest of the checker that made the verdicts."""

    kind: Literal["check"] = "check"
    reference: Reference
    rule: str | None = None
    cases: tuple[CaseResult, ...]


class EmulatedCheckResult(Origin):
    """Numerical checks of kernels' PTX on a CPU; a kernel's `build` is the digest of its PTX, emulator and rule."""

    kind: Literal["emulated-check"] = "emulated-check"
    reference: Reference
    cases: tuple[CaseResult, ...]


class CounterResult(Result):
    """Hardware counters of one launch per kernel, read by Nsight Compute."""

    kind: Literal["counters"] = "counters"
    mode: Mode = "ncu-base"
    shape: Shape
    ncu: str
    counters: dict[str, dict[str, int]]

    @model_validator(mode="after")
    def _one_table(self) -> CounterResult:
        """Every kernel that was read is described, and all were read for the same metrics."""
        if not self.counters or not self.counters.keys() <= self.kernels.keys():
            msg = "counters without a kernel"
            raise ValueError(msg)
        if len({frozenset(found) for found in self.counters.values()}) != 1:
            msg = "kernels with different metrics"
            raise ValueError(msg)
        return self


class Finding(Strict):
    """One run of compute-sanitizer over all kernels."""

    tool: str
    clean: bool
    errors: int | None
    seconds: float
    tail: str

    @model_validator(mode="after")
    def _clean_is_without_errors(self) -> Finding:
        """A clean run counted no error; one that counted none is not clean when the tool itself failed."""
        if self.clean and self.errors != 0:
            msg = f"{self.tool} is called clean, but its errors are {self.errors}"
            raise ValueError(msg)
        return self


class SanitizerResult(Result):
    """compute-sanitizer over one launch per kernel."""

    kind: Literal["sanitizer"] = "sanitizer"
    shape: Shape
    findings: tuple[Finding, ...]


AnyResult = Annotated[
    BenchResult | CheckResult | EmulatedCheckResult | CounterResult | SanitizerResult, Field(discriminator="kind")
]


def kernel_key(iteration: int, config: str) -> str:
    """``"07 (FP16, 64, ...): ..."``: the name of a kernel in result files."""
    return f"{iteration:02d} {config}"
