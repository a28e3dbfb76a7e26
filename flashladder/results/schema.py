"""The schema of result files: frozen pydantic models, from one pair of times to a whole document.

Why: a number without its raw samples, machine-code hash and GPU is worth nothing a month later, so that a document that
lacks one of them is refused. Reading: `flashladder.results.files`; what is derived: `flashladder.results.derive`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from flashladder.results.cells import EmulatedCell, Sweep
from flashladder.results.origin import (
    PROTOCOL_VERSION,
    SCHEMA_VERSION,
    Gpu,
    Host,
    Kernel,
    Origin,
    Reference,
    Result,
    kernel_key,
)
from flashladder.results.samples import (
    Accuracy,
    Beside,
    Block,
    FarRows,
    Group,
    Hammered,
    Method,
    Opinion,
    Pair,
    Sample,
    Series,
    Shape,
    Strict,
    Sustained,
)

__all__ = [
    "A_A", "PROTOCOL_VERSION", "SCHEMA_VERSION", "Accuracy", "Agreement", "AnyResult", "BenchResult", "Beside", "Block",
    "CaseResult", "CheckResult", "CounterResult", "EmulatedCheckResult", "EmulatedSweepResult", "EnergyResult",
    "FarRows", "Finding", "Gpu", "Group", "Hammered", "Host", "Kernel", "Mean", "Mode", "Opinion", "Origin", "Pair",
    "Process", "Reference", "Result", "Sample", "SanitizerResult", "SecondOpinionResult", "Series", "Settings", "Shape",
    "SoakResult", "Strict", "Summary", "Sustained", "kernel_key",
]  # fmt: skip

ROUNDING = 1e-9  # relative: what another order of the same sums may give
A_A = "reference"  # key of the series that times the reference against itself

Mode = Literal["event-free", "event-locked", "ncu-base"]


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


class BenchResult(Result):
    """Paired timings; `floors_pct` is the A/A floor per dtype, in percentage points.

    `references` are those that were timed beside the kernels, by subject (``cudnn``); `reference` is the one that all
    are paired with. `sweep` names the planned cells where a grid was measured.
    `purpose`: samples that chose a configuration (``tune``) are never reported; the winner is timed again.
    """

    kind: Literal["bench"] = "bench"
    purpose: Literal["report", "tune"] = "report"
    mode: Mode = "event-free"
    reference: Reference
    references: dict[str, Reference] = Field(default_factory=dict)
    sweep: Sweep | None = None
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


class EmulatedSweepResult(Origin):
    """A grid measured on a CPU: counters and numerics of each kernel's PTX; a kernel's `build` as of a check there."""

    kind: Literal["emulated-sweep"] = "emulated-sweep"
    sweep: Sweep
    cells: tuple[EmulatedCell, ...]


class Agreement(Interval):
    """Derived: another tool's percentage beside the paired timer's; `off_pct` is by how much theirs is larger.

    `agrees`: the two intervals overlap once the paired one is widened by the A/A floor.
    """

    method: Method
    shape: Shape
    kernel_us: float
    reference_us: float
    n_rounds: int
    off_pct: float
    agrees: bool


class SecondOpinionResult(Result):
    """The same cells timed in turn with FA2 (`paired`) and by other tools; `left_out` says which had to be dropped."""

    kind: Literal["second-opinion"] = "second-opinion"
    paired: BenchResult
    opinions: tuple[Opinion, ...]
    agreements: tuple[Agreement, ...] = ()
    left_out: tuple[str, ...] = ()


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
    """compute-sanitizer over one launch per kernel at `shape`, and one per small grid whose tiles a kernel splits."""

    kind: Literal["sanitizer"] = "sanitizer"
    shape: Shape
    findings: tuple[Finding, ...]


class EnergyResult(Result):
    """Sustained runs of kernels and references in turn, at least `seconds` each."""

    kind: Literal["energy"] = "energy"
    reference: Reference
    references: dict[str, Reference] = Field(default_factory=dict)
    seconds: float = Field(gt=0)
    runs: tuple[Sustained, ...]

    @model_validator(mode="after")
    def _each_run_once(self) -> EnergyResult:
        """Every run is of a subject that the document describes, and stands here once."""
        known = {"fa2", *self.kernels, *self.references}
        cells = [(one.subject, one.dtype, one.shape, one.turn) for one in self.runs]
        if len(set(cells)) != len(cells) or not {one.subject for one in self.runs} <= known:
            msg = "a run twice, or of a subject that nothing describes"
            raise ValueError(msg)
        return self


class SoakResult(Result):
    """Kernels under load, launched a million times, and on long rows; `hung` is what did not end, if anything."""

    kind: Literal["soak"] = "soak"
    reference: Reference
    rule: str | None = None
    cases: tuple[CaseResult, ...] = ()
    beside: tuple[Beside, ...] = ()
    hammered: tuple[Hammered, ...] = ()
    far: tuple[FarRows, ...] = ()
    hung: str | None = None


AnyResult = Annotated[
    BenchResult
    | CheckResult
    | EmulatedCheckResult
    | EmulatedSweepResult
    | SecondOpinionResult
    | CounterResult
    | SanitizerResult
    | EnergyResult
    | SoakResult,
    Field(discriminator="kind"),
]
