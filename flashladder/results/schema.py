"""The schema of result files: frozen pydantic models, from one pair of times to a whole document.

A document without raw samples, machine-code hash or GPU is refused.
"""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from flashladder.names import Dtype
from flashladder.problem import Problem

Method = Literal["nvbench", "ncu", "torch", "warm", "turns"]  # of a second opinion


class Strict(BaseModel):
    """Base of all models: unknown keys, infinities and assignments are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Sample(Strict):
    """One look at the GPU: seconds since timing began, MHz, W, degrees C, NVML throttle-reason bits."""

    t_s: float
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    power_w: float | None
    temperature_c: int | None
    throttle_bits: int | None


class Accuracy(Strict):
    """Errors against the high-precision reference in the worst of the compared slices, with their bounds."""

    max_error: float | None
    max_allowed: float
    rms_error: float | None
    rms_allowed: float
    finite: bool
    bias: float | None = None  # mean error away from zero, as a share of O's mean size; these four: None in old results
    bias_allowed: float | None = None
    row_bias: float | None = None  # RMS of the same row by row (`flashladder.cases.reference`)
    row_bias_allowed: float | None = None

    @property
    def errors(self) -> str:
        """The largest and the RMS error, each with its bound; ``NaN``: not a number."""
        named = (("max error", self.max_error, self.max_allowed), ("relative RMS", self.rms_error, self.rms_allowed))
        shown = ((name, "NaN" if error is None else f"{error:.3g}", allowed) for name, error, allowed in named)
        return ", ".join(f"{name} {error} (allowed {allowed:.3g})" for name, error, allowed in shown)

    @property
    def unbiased(self) -> bool:
        """Whether the mean signed errors are within their bounds, or were never taken."""
        pairs = ((self.bias, self.bias_allowed), (self.row_bias, self.row_bias_allowed))
        return all(a is b if a is None or b is None else abs(a) <= b for a, b in pairs)

    @property
    def ok(self) -> bool:
        """Whether all bounds hold; an error that is not a number (None) breaks them."""
        if not self.finite or self.max_error is None or self.rms_error is None:
            return False
        return self.max_error <= self.max_allowed and self.rms_error <= self.rms_allowed and self.unbiased


class Pair(NamedTuple):
    """Two adjacent launches on the same inputs: their block, the input set, microseconds of each."""

    block: int
    input_set: int
    reference_us: float
    kernel_us: float


class Block(Strict):
    """Pairs timed between two looks at the GPU, in one order."""

    index: int
    kernel_first: bool
    order: tuple[str, ...]
    samples: tuple[Sample, ...]
    late: int | None = None  # launches that the GPU waited for: their times include a gap; None: protocol 1
    dropped: str | None = None  # why the pairs do not count


class Series(Strict):
    """All pairs of one kernel (`kernel` is its key, or `A_A`), and its errors before and after they were timed."""

    kernel: str
    pairs: tuple[Pair, ...]
    before: Accuracy | None = None
    after: Accuracy | None = None

    @property
    def wrong(self) -> str | None:
        """Which bound its output breaks before or after timing; None: no bound."""
        for when, found in (("before", self.before), ("after", self.after)):
            if found is not None and not found.ok:
                return f"wrong {when} timing: {found.errors.partition(', ')[0]}"
        return None


class Group(Strict):
    """One dtype and shape, timed in one process; its kernels alternate."""

    process: int
    dtype: str
    shape: Problem
    input_seeds: tuple[int, ...]
    warm_up_s: float
    blocks: tuple[Block, ...]
    series: tuple[Series, ...]


class Timings(Strict):
    """One subject's samples: it took `us[i]` microseconds in round `rounds[i]`."""

    subject: str
    rounds: tuple[int, ...]
    us: tuple[float, ...] = Field(min_length=1)
    counters: dict[str, tuple[int, ...]] = Field(default_factory=dict)  # ncu's other metrics, or the host's time

    @model_validator(mode="after")
    def _one_round_each(self) -> Timings:
        if {len(found) for found in (self.rounds, *self.counters.values())} != {len(self.us)} or min(self.us) <= 0:
            raise ValueError(f"{self.subject}: samples without a round or a counter, or of no length")
        return self


class Opinion(Strict):
    """What one tool measured at one dtype and shape, FA2 included."""

    method: Method
    mode: Literal["event-free", "ncu-base", "wall-free"]  # by events or by the host's clock; free: no locked clocks
    version: str
    dtype: Dtype
    shape: Problem
    timings: tuple[Timings, ...]

    def of(self, subject: str) -> Timings | None:
        """The timings of a subject; None if the tool did not time it."""
        return next((one for one in self.timings if one.subject == subject), None)


class Sustained(Strict):
    """One subject at one dtype and shape, launched back to back."""

    subject: str  # a kernel's key, ``fa2``, or a reference's name
    dtype: Dtype
    shape: Problem
    turn: int = Field(ge=0)  # all subjects of a cell have their first turn before any has its second
    launches: int = Field(gt=0)  # within `seconds`
    seconds: float = Field(gt=0)  # between the ends of two launches
    joules: float = Field(gt=0)  # mean power between two ticks of the GPU's energy counter, times `seconds`
    samples: tuple[Sample, ...]  # taken meanwhile

    @property
    def tflops(self) -> float:
        """TFLOP/s, with the gaps between launches and a warm L2."""
        return self.launches * self.shape.flops / self.seconds / 1e12

    @property
    def watts(self) -> float:
        """Mean power in W."""
        return self.joules / self.seconds

    @property
    def pj_per_flop(self) -> float:
        """Picojoules per floating-point operation; includes the power of an idle card."""
        return self.joules / (self.launches * self.shape.flops) * 1e12

    @property
    def sm_clock_mhz(self) -> float | None:
        """Median SM clock in MHz; None if the GPU does not report it."""
        clocks = [one.sm_clock_mhz for one in self.samples if one.sm_clock_mhz is not None]
        return median(clocks) if clocks else None


class Beside(Strict):
    """One case whose launches run beside matrix products on the same GPU."""

    kernel: str  # its key
    case: str
    launches: int = Field(gt=0)  # that were timed
    products: int = Field(gt=0)
    seconds: float = Field(gt=0)  # of all launches
    beside_s: float = Field(ge=0)  # of these, the seconds in which a product ran as well


class Hammered(Strict):
    """One kernel at one small shape, launched many times on one input."""

    kernel: str
    dtype: Dtype
    shape: Problem
    plain: int = Field(ge=0)  # launches that the host queued one by one
    replayed: int = Field(ge=0)  # launches that CUDA graphs queued
    looks: int = Field(gt=0)  # how often O was poisoned, written again, and compared with the first O bit by bit
    differing: int = Field(ge=0)  # looks at which O had other bits
    finite: bool  # whether all of the first O is
    seconds: float = Field(gt=0)
    digest: str  # SHA-256 of the first O

    @property
    def launches(self) -> int:
        """All launches."""
        return self.plain + self.replayed


class FarRows(Strict):
    """One kernel at one long or large shape: some rows of some slices against fp64.

    The bounds are twice the error of torch's 16-bit attention on the same rows, at least a unit roundoff, plus what
    tensor cores truncate (`flashladder.cases.reference`).
    """

    kernel: str
    dtype: Dtype
    shape: Problem
    slices: tuple[tuple[int, int], ...] = Field(min_length=1)  # (sample, head) pairs that were compared
    rows: tuple[int, ...] = Field(min_length=1)  # of each
    launches: int = Field(gt=1)  # on the same inputs
    differing: int = Field(ge=0)  # launches that wrote another O, by the sum of all its bits and by these rows
    seconds: float = Field(gt=0)  # of one launch, the median
    finite: bool  # whether all of O is
    max_error: float | None  # of these rows; None: not a number
    max_allowed: float
    rms_error: float | None
    rms_allowed: float
    digest: str  # SHA-256 of that sum and of the rows


SCHEMA_VERSION: Literal[2] = 2
PROTOCOL_VERSION = "2"  # of the measurement: raise it if the timer, the flush or the statistic changes


def kernel_key(iteration: int, config: str, variant: str = "") -> str:
    """``"07 (FP16, 64, ...): ..."``: the name of a kernel in result files; ``"16 - swizzle (FP16, ...) ..."``."""
    return f"{iteration:02d}{variant} {config}"


class Gpu(Strict):
    """Identity of a GPU by NVML and CUDA; None: the GPU does not report it."""

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
    """The machine around the GPU; `digest` distinguishes hosts without naming them."""

    digest: str
    cpu: str
    n_cpus: int
    system: str
    python: str


class Kernel(Strict):
    """One installed kernel: its configuration, toolchain and machine code."""

    iteration: int
    variant: str = ""  # an ablation's change (`` - swizzle``) or a toolchain's version (`` cuda 13.1``); else empty
    config: str
    dtype: str
    arch: str
    text_sha256: str | None  # digest of its machine code; None: JIT-compiled
    build: str | None = None  # digest of all inputs of its wheel
    registers: int | None = None
    spill_stores: int | None = None  # bytes
    spill_loads: int | None = None
    toolchain: dict[str, str]

    @property
    def key(self) -> str:
        """The name of this kernel in series and cases."""
        return kernel_key(self.iteration, self.config, self.variant)

    def same_code(self, other: Kernel) -> bool:
        """Whether both have the same known machine code."""
        mine = self.text_sha256 or self.build
        return mine is not None and (self.arch, mine) == (other.arch, other.text_sha256 or other.build)


class Reference(Strict):
    """What kernels are compared with."""

    op: str
    version: str | None = None  # of its package; None: torch
    tile: str | None = None  # (B_r, B_c); None: unknown
    torch: str
    cuda: str | None
    kernels: dict[str, str]  # dtype to the name of its own kernel, once profiled


class Origin(Strict):
    """The origin of every result, with or without a GPU."""

    schema_version: Literal[2] = SCHEMA_VERSION
    protocol_version: str = PROTOCOL_VERSION
    rung: str
    host: Host
    kernels: dict[str, Kernel]


class Result(Origin):
    """A result measured on a GPU."""

    gpu: Gpu


FailureKind = Literal[
    "crash", "illegal-address", "timeout", "out-of-memory", "gpu-lost", "wrong", "refused", "not-built"
]
ADDRESS = r"^[0-9a-f]{16}$"


class PlannedCell(Strict):
    """One measurement of a grid."""

    subject: str = Field(min_length=1)  # an iteration (``16``), an ablation (``16 - swizzle``) or a reference (``fa2``)
    config: str  # short form of its configuration; empty for a reference
    dtype: Dtype
    shape: Problem
    toolchain: str = ""  # CUDA version of the compiler's wheels, ``13.1``; empty for the pinned one and for a reference
    code: str  # digest of machine code, or of PTX and emulator; a reference's version; empty if it is not built
    address: str = Field(pattern=ADDRESS)  # digest of the above, machine, settings and protocol; names the record


class Failure(Strict):
    """Why a cell has no numbers; `tail` is the end of its process's stderr."""

    address: str = Field(pattern=ADDRESS)
    kind: FailureKind
    message: str = Field(min_length=1)
    exit_code: int | None = None
    tail: str = ""


class Sweep(Strict):
    """A grid: the digest of its file, all cells that it planned, and those that failed."""

    grid: str = Field(min_length=1)
    grid_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    made_for: str | None = None  # the grid's own GPU, if another one measured it
    planned: tuple[PlannedCell, ...] = Field(min_length=1)
    failures: tuple[Failure, ...] = ()

    @model_validator(mode="after")
    def _each_once(self) -> Sweep:
        planned, failed = ([one.address for one in part] for part in (self.planned, self.failures))
        for problem, found in (("is planned twice", planned), ("is failed twice", failed)):
            if wrong := sorted((Counter(found) - Counter(set(found))).keys()):
                raise ValueError(f"cell {wrong[0]} {problem}")
        if wrong := sorted({*failed} - {*planned}):
            raise ValueError(f"cell {wrong[0]} failed, but was not planned")
        return self


class EmulatedCell(Strict):
    """One kernel run on the CPU from its PTX."""

    address: str = Field(pattern=ADDRESS)  # of the planned cell
    accuracy: Accuracy
    counters: dict[str, int]  # Nsight Compute's names to the emulator's counts, in one launch
    instructions: int = Field(gt=0)  # warp instructions executed
    hazards: int = Field(ge=0)  # races and missing waits that were reported


A_A = "reference"  # key of the series that times the reference against itself
Mode = Literal["event-free", "event-locked", "ncu-base"]


class Process(Strict):
    """One process that contributed samples. Foreign processes are others on the GPU; None: NVML does not tell."""

    index: int
    started_utc: str
    foreign_before: int | None
    foreign_after: int | None = None


class Settings(Strict):
    """How the pairs were timed."""

    pairs: int
    blocks: int
    min_pairs: int
    flush_bytes: int


class Interval(Strict):
    """Derived: a kernel's percentage of the reference's speed, with its 95 % interval."""

    kernel: str
    dtype: str
    pct: float = Field(gt=0)
    pct_low: float = Field(gt=0)
    pct_high: float = Field(gt=0)


class Summary(Interval):
    """Derived: one kernel at one shape."""

    shape: Problem
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
    """Paired timings."""

    kind: Literal["bench"] = "bench"
    purpose: Literal["report", "tune"] = "report"  # samples that chose a configuration (``tune``) are never reported
    mode: Mode = "event-free"
    reference: Reference  # of all pairs
    references: dict[str, Reference] = Field(default_factory=dict)  # timed like kernels, by subject (``cudnn``)
    sweep: Sweep | None = None  # the cells of a grid
    settings: Settings
    processes: tuple[Process, ...]
    groups: tuple[Group, ...]
    summaries: tuple[Summary, ...] = ()
    means: tuple[Mean, ...] = ()
    floors_pct: dict[str, float] = Field(default_factory=dict)  # A/A floor per dtype, in percentage points


class CaseResult(Strict):
    """One kernel on one case: `pass`, `fail`, or `not_applicable` (the kernel refused the tensors, as it should)."""

    kernel: str
    case: str
    dtype: str
    shape: Problem
    status: Literal["pass", "fail", "not_applicable"]
    reason: str | None = None
    accuracy: Accuracy | None = None
    repeats: int = 0

    @model_validator(mode="after")
    def _a_pass_is_accurate(self) -> CaseResult:
        if self.status == "pass" and not (self.accuracy and self.accuracy.ok):
            raise ValueError(f"case {self.case} of {self.kernel} passes, but its errors are not within what is allowed")
        return self


class CheckResult(Result):
    """Numerical checks of kernels on a GPU; `rule` is the digest of the checker."""

    kind: Literal["check"] = "check"
    reference: Reference
    rule: str | None = None
    cases: tuple[CaseResult, ...]


class EmulatedCheckResult(Origin):
    """Numerical checks of kernels' PTX on a CPU; a kernel's `build` is the digest of PTX, emulator and rule."""

    kind: Literal["emulated-check"] = "emulated-check"
    reference: Reference
    cases: tuple[CaseResult, ...]


class EmulatedSweepResult(Origin):
    """A grid measured on a CPU: counters and errors of each kernel's PTX; `build` as in `EmulatedCheckResult`."""

    kind: Literal["emulated-sweep"] = "emulated-sweep"
    sweep: Sweep
    cells: tuple[EmulatedCell, ...]


class Agreement(Interval):
    """Derived: another tool's percentage beside the paired timer's."""

    method: Method
    shape: Problem
    kernel_us: float
    reference_us: float
    n_rounds: int
    off_pct: float  # how much larger the tool's percentage is
    agrees: bool  # whether the intervals overlap once the paired one is widened by the A/A floor


class SecondOpinionResult(Result):
    """The same cells by the paired timer (`paired`) and by other tools; `left_out` says which tools failed, and why."""

    kind: Literal["second-opinion"] = "second-opinion"
    paired: BenchResult
    opinions: tuple[Opinion, ...]
    agreements: tuple[Agreement, ...] = ()
    left_out: tuple[str, ...] = ()


class CounterResult(Result):
    """Nsight Compute's counters of one launch per kernel."""

    kind: Literal["counters"] = "counters"
    mode: Mode = "ncu-base"
    shape: Problem
    ncu: str
    counters: dict[str, dict[str, int]]

    @model_validator(mode="after")
    def _one_table(self) -> CounterResult:
        if not self.counters or not self.counters.keys() <= self.kernels.keys():
            raise ValueError("counters without a kernel")
        if len({frozenset(found) for found in self.counters.values()}) != 1:
            raise ValueError("kernels with different metrics")
        return self


class Finding(Strict):
    """One run of compute-sanitizer over all kernels."""

    tool: str
    clean: bool
    errors: int | None
    seconds: float
    tail: str

    @model_validator(mode="after")
    def _clean_is_without_errors(self) -> Finding:  # without errors it is still not clean if the tool itself failed
        if self.clean and self.errors != 0:
            raise ValueError(f"{self.tool} is called clean, but its errors are {self.errors}")
        return self


class SanitizerResult(Result):
    """compute-sanitizer over one launch per kernel at `shape`, and at the shapes where its control flow differs."""

    kind: Literal["sanitizer"] = "sanitizer"
    shape: Problem
    findings: tuple[Finding, ...]


class EnergyResult(Result):
    """Sustained runs of kernels and references that alternate, each of at least `seconds`."""

    kind: Literal["energy"] = "energy"
    reference: Reference
    references: dict[str, Reference] = Field(default_factory=dict)
    seconds: float = Field(gt=0)
    runs: tuple[Sustained, ...]

    @model_validator(mode="after")
    def _each_run_once(self) -> EnergyResult:
        known = {"fa2", *self.kernels, *self.references}
        runs = {(one.subject, one.dtype, one.shape, one.turn) for one in self.runs}
        if len(runs) != len(self.runs) or not {one.subject for one in self.runs} <= known:
            raise ValueError("a run twice, or of a subject that nothing describes")
        return self


class SoakResult(Result):
    """Kernels beside other work, launched a million times, and on long rows; `hung` names a launch that did not end."""

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
KINDS = {model.model_fields["kind"].default for model in get_args(get_args(AnyResult)[0])}
