"""The schema of result files: frozen pydantic models, from one pair of times to a whole document.

A number without its raw samples, machine-code hash and GPU is worth nothing a month later, so a document that lacks one
of them is refused. Reading and writing: `flashladder.results.files`; what is derived: `flashladder.results.derive`.
"""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from flashladder.names import Dtype
from flashladder.problem import Shape

Method = Literal["nvbench", "ncu", "torch", "warm", "turns"]  # of a second opinion


class Strict(BaseModel):
    """Base of all models: unknown keys are errors, values do not change after reading, infinities are no numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Sample(Strict):
    """One look at the GPU: seconds since the process began to time, MHz, W, degrees C, NVML throttle-reason bits."""

    t_s: float
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    power_w: float | None
    temperature_c: int | None
    throttle_bits: int | None


class Accuracy(Strict):
    """Errors against the high-precision reference in the worst of the compared slices, with what is allowed.

    `bias` is the mean error away from zero as a share of O's mean size, `row_bias` the RMS of the same taken row by row
    (`flashladder.cases.reference`); None in results from before they were looked at.
    """

    max_error: float | None
    max_allowed: float
    rms_error: float | None
    rms_allowed: float
    finite: bool
    bias: float | None = None
    bias_allowed: float | None = None
    row_bias: float | None = None
    row_bias_allowed: float | None = None

    @property
    def unbiased(self) -> bool:
        """Whether the mean signed errors are within their bounds, or were never taken."""
        pairs = ((self.bias, self.bias_allowed), (self.row_bias, self.row_bias_allowed))
        return all(
            found is allowed if found is None or allowed is None else abs(found) <= allowed for found, allowed in pairs
        )

    @property
    def ok(self) -> bool:
        """Whether all bounds hold; an error that is not a number (None) never does."""
        if not self.finite or self.max_error is None or self.rms_error is None:
            return False
        return self.max_error <= self.max_allowed and self.rms_error <= self.rms_allowed and self.unbiased


class Pair(NamedTuple):
    """Two adjacent launches on the same inputs: block they belong to, input set, microseconds of each."""

    block: int
    input_set: int
    reference_us: float
    kernel_us: float


class Block(Strict):
    """Pairs timed between two looks at the GPU, in one order; `dropped` says why its pairs do not count.

    `late` counts launches that the GPU had to wait for, so that a gap is part of their time; None in results of
    protocol 1, which did not look.
    """

    index: int
    kernel_first: bool
    order: tuple[str, ...]
    samples: tuple[Sample, ...]
    late: int | None = None
    dropped: str | None = None


class Series(Strict):
    """All pairs of one kernel (`kernel` is its key, or `A_A`), and what it computed before and after being timed."""

    kernel: str
    pairs: tuple[Pair, ...]
    before: Accuracy | None = None
    after: Accuracy | None = None

    @property
    def wrong(self) -> str | None:
        """What is wrong with its numbers before or after timing; None: nothing."""
        for when, look in (("before", self.before), ("after", self.after)):
            if look is not None and not look.ok:
                error = "NaN" if look.max_error is None else f"{look.max_error:.3g}"
                return f"wrong {when} timing: max error {error} (allowed {look.max_allowed:.3g})"
        return None


class Group(Strict):
    """One dtype and shape, timed in one process with all its kernels in turn."""

    process: int
    dtype: str
    shape: Shape
    input_seeds: tuple[int, ...]
    warm_up_s: float
    blocks: tuple[Block, ...]
    series: tuple[Series, ...]


class Timings(Strict):
    """One subject's samples: `rounds[i]` is the round in which it ran `us[i]` microseconds.

    In each round FA2 (``fa2``) and every kernel have their turn. `counters` holds Nsight Compute's other metrics, or
    what torch's timer was told besides, by name, sample by sample.
    """

    subject: str
    rounds: tuple[int, ...]
    us: tuple[float, ...] = Field(min_length=1)
    counters: dict[str, tuple[int, ...]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_round_each(self) -> Timings:
        if {len(found) for found in (self.rounds, *self.counters.values())} != {len(self.us)} or min(self.us) <= 0:
            raise ValueError(f"{self.subject}: samples without a round or a counter, or of no length")
        return self


class Opinion(Strict):
    """What one tool measured at one dtype and shape; FA2's timings are among them.

    `mode`: by events or by the host's clock (``wall-free``), at clocks that are left alone; ``ncu-base`` is ncu's.
    """

    method: Method
    mode: Literal["event-free", "ncu-base", "wall-free"]
    version: str
    dtype: Dtype
    shape: Shape
    timings: tuple[Timings, ...]

    def of(self, subject: str) -> Timings | None:
        """The timings of a subject; None when the tool did not time it."""
        return next((one for one in self.timings if one.subject == subject), None)


class Sustained(Strict):
    """One subject at one dtype and shape, launched back to back."""

    subject: str  # a kernel's key, ``fa2``, or a reference's name
    dtype: Dtype
    shape: Shape
    turn: int = Field(ge=0)  # all subjects of a cell have their first turn before any has its second
    launches: int = Field(gt=0)  # within `seconds`
    seconds: float = Field(gt=0)  # between the ends of two launches
    joules: float = Field(gt=0)  # mean power between two ticks of the GPU's energy counter, times `seconds`
    samples: tuple[Sample, ...]  # looks at the GPU meanwhile

    @property
    def tflops(self) -> float:
        """TFLOP/s, launches and gaps between them included, with whatever the L2 holds."""
        return self.launches * self.shape.flops / self.seconds / 1e12

    @property
    def watts(self) -> float:
        """Mean power in W."""
        return self.joules / self.seconds

    @property
    def pj_per_flop(self) -> float:
        """Picojoules per floating-point operation, the idle card's share included."""
        return self.joules / (self.launches * self.shape.flops) * 1e12

    @property
    def sm_clock_mhz(self) -> float | None:
        """Median SM clock in MHz; None where the GPU does not tell."""
        clocks = [one.sm_clock_mhz for one in self.samples if one.sm_clock_mhz is not None]
        return median(clocks) if clocks else None


class Beside(Strict):
    """How long one case's launches ran, and how much of that beside other work on the GPU; how many products that was.

    `kernel` is a kernel's key, `case` a case's name; `launches` are those that were looked at.
    """

    kernel: str
    case: str
    launches: int = Field(gt=0)
    products: int = Field(gt=0)
    seconds: float = Field(gt=0)
    beside_s: float = Field(ge=0)


class Hammered(Strict):
    """One kernel at one small shape, launched again and again on one input."""

    kernel: str
    dtype: Dtype
    shape: Shape
    plain: int = Field(ge=0)  # launches that the host queued one by one
    replayed: int = Field(ge=0)  # launches that CUDA graphs queued
    looks: int = Field(gt=0)  # how often O was poisoned, written again, and compared with the first O bit by bit
    differing: int = Field(ge=0)  # looks at which it was another one
    finite: bool  # whether all of the first O is
    seconds: float = Field(gt=0)
    digest: str  # SHA-256 of the first O

    @property
    def launches(self) -> int:
        """All of them."""
        return self.plain + self.replayed


class FarRows(Strict):
    """One kernel at one long or large shape: some rows of some slices against fp64, beside torch's 16-bit attention.

    Allowed is twice torch's own error on the same rows, at least a unit roundoff, and what tensor cores cut off
    (`flashladder.cases.reference`).
    """

    kernel: str
    dtype: Dtype
    shape: Shape
    slices: tuple[tuple[int, int], ...] = Field(min_length=1)  # (sample, head) pairs that were compared
    rows: tuple[int, ...] = Field(min_length=1)  # of each
    launches: int = Field(gt=1)  # on the same inputs
    differing: int = Field(ge=0)  # launches that wrote another O, by the sum of all its bits and the rows themselves
    seconds: float = Field(gt=0)  # of one launch, the median
    finite: bool  # whether all of O is
    max_error: float | None  # of these rows; None: not a number
    max_allowed: float
    rms_error: float | None
    rms_allowed: float
    digest: str  # SHA-256 of that sum and of the rows


SCHEMA_VERSION: Literal[2] = 2  # raise it with a step in `flashladder.results.files`
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


FailureKind = Literal[
    "crash", "illegal-address", "timeout", "out-of-memory", "gpu-lost", "wrong", "refused", "not-built"
]
ADDRESS = r"^[0-9a-f]{16}$"


class PlannedCell(Strict):
    """One measurement of a grid."""

    subject: str = Field(min_length=1)  # an iteration (``16``), an ablation (``16 - swizzle``) or a reference (``fa2``)
    config: str  # short form of its configuration; empty for a reference
    dtype: Dtype
    shape: Shape
    toolchain: str = ""  # CUDA version of the compiler's wheels, ``13.1``; empty for the pinned one and for a reference
    code: str  # digest of what runs: machine code, or PTX and emulator; a reference's version; empty: it is not built
    address: str = Field(pattern=ADDRESS)  # digest of all that with machine, settings and protocol: the record's name


class Failure(Strict):
    """Why a cell has no numbers: of that cell alone; `tail` is the end of what its process wrote to stderr."""

    address: str = Field(pattern=ADDRESS)
    kind: FailureKind
    message: str = Field(min_length=1)
    exit_code: int | None = None
    tail: str = ""


class Sweep(Strict):
    """Which grid a document answers: the digest of its file, all cells that it planned, and those that failed.

    `made_for` is the GPU that the grid was made for where it was measured on another one.
    """

    grid: str = Field(min_length=1)
    grid_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    made_for: str | None = None
    planned: tuple[PlannedCell, ...] = Field(min_length=1)
    failures: tuple[Failure, ...] = ()

    @model_validator(mode="after")
    def _each_once(self) -> Sweep:
        planned, failed = ([one.address for one in part] for part in (self.planned, self.failures))
        for told, found in (("is planned twice", planned), ("is failed twice", failed)):
            if wrong := sorted((Counter(found) - Counter(set(found))).keys()):
                raise ValueError(f"cell {wrong[0]} {told}")
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
        if self.status == "pass" and not (self.accuracy and self.accuracy.ok):
            told = f"case {self.case} of {self.kernel} passes, but its errors are not within what is allowed"
            raise ValueError(told)
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
    def _clean_is_without_errors(self) -> Finding:  # one that counted none is not clean when the tool itself failed
        if self.clean and self.errors != 0:
            raise ValueError(f"{self.tool} is called clean, but its errors are {self.errors}")
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
        known = {"fa2", *self.kernels, *self.references}
        cells = [(one.subject, one.dtype, one.shape, one.turn) for one in self.runs]
        if len(set(cells)) != len(cells) or not {one.subject for one in self.runs} <= known:
            raise ValueError("a run twice, or of a subject that nothing describes")
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
KINDS = {model.model_fields["kind"].default for model in get_args(get_args(AnyResult)[0])}
