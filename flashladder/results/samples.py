"""The raw part of a result: shapes, looks at the GPU, errors, pairs, blocks, groups of them; other tools' samples.

Why apart from `flashladder.results.schema`: the timer, the checker and what reads NVBench's and Nsight Compute's output
(`flashladder.bench.cross_timers`) make these and know nothing of documents.
"""

from __future__ import annotations

from statistics import median
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

from flashladder.ladder.config import Dtype

Method = Literal["nvbench", "ncu", "torch", "warm", "turns"]  # of a second opinion


class Strict(BaseModel):
    """Base of all models: unknown keys are errors, values do not change after reading, infinities are no numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Shape(Strict):
    """Tensor shape (batch, seq_len, n_heads, d_head)."""

    batch: int = Field(gt=0)
    seq_len: int = Field(gt=0)
    n_heads: int = Field(gt=0)
    d_head: int = Field(gt=0)

    @property
    def flops(self) -> int:
        """Floating-point operations of one forward pass: 4 B H S^2 d_head."""
        return 4 * self.batch * self.n_heads * self.seq_len**2 * self.d_head

    @property
    def input_bytes(self) -> int:
        """Bytes that must come from DRAM after an L2 flush: Q, K and V in 16 bits (O may stay in the L2)."""
        return 3 * 2 * self.batch * self.seq_len * self.n_heads * self.d_head


class Sample(Strict):
    """One look at the GPU: seconds since the process began to time, MHz, W, degrees C, NVML throttle-reason bits."""

    t_s: float
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    power_w: float | None
    temperature_c: int | None
    throttle_bits: int | None


class Accuracy(Strict):
    """Errors against the high-precision reference over the compared slices, with what is allowed.

    The maximum and the RMS error are those of the worst slice. `bias` is the mean error away from zero as a share of
    O's mean size, `row_bias` the RMS of the same taken row by row in the worst slice (`flashladder.cases.reference`);
    None in results from before they were looked at.
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
        """Every sample is longer than nothing and has its round and its counters."""
        if {len(found) for found in (self.rounds, *self.counters.values())} != {len(self.us)} or min(self.us) <= 0:
            msg = f"{self.subject}: samples without a round or a counter, or of no length"
            raise ValueError(msg)
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
    """One subject at one dtype and shape, launched back to back.

    Attributes:
        subject: a kernel's key, ``fa2``, or a reference's name.
        turn: which of its turns; all subjects of a cell have their first before any has its second.
        launches: that were done within `seconds`.
        seconds: between the ends of two launches.
        joules: the mean power between two ticks of the GPU's energy counter, times `seconds`.
        samples: looks at the GPU meanwhile.
    """

    subject: str
    dtype: Dtype
    shape: Shape
    turn: int = Field(ge=0)
    launches: int = Field(gt=0)
    seconds: float = Field(gt=0)
    joules: float = Field(gt=0)
    samples: tuple[Sample, ...]

    @property
    def flops(self) -> int:
        """Floating-point operations of all launches."""
        return self.launches * self.shape.flops

    @property
    def tflops(self) -> float:
        """TFLOP/s, launches and gaps between them included, with whatever the L2 holds."""
        return self.flops / self.seconds / 1e12

    @property
    def watts(self) -> float:
        """Mean power in W."""
        return self.joules / self.seconds

    @property
    def pj_per_flop(self) -> float:
        """Picojoules per floating-point operation, the idle card's share included."""
        return self.joules / self.flops * 1e12

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
    """One kernel at one small shape, launched again and again on one input; `digest` is the first O's SHA-256.

    Attributes:
        plain: launches that the host queued one by one; `replayed`: those that CUDA graphs queued.
        looks: how often O was poisoned, written by the launches in between, and compared with the first O bit by bit.
        differing: looks at which it was another one.
        finite: whether all of the first O is.
    """

    kernel: str
    dtype: Dtype
    shape: Shape
    plain: int = Field(ge=0)
    replayed: int = Field(ge=0)
    looks: int = Field(gt=0)
    differing: int = Field(ge=0)
    finite: bool
    seconds: float = Field(gt=0)
    digest: str

    @property
    def launches(self) -> int:
        """All of them."""
        return self.plain + self.replayed


class FarRows(Strict):
    """One kernel at one long or large shape: some rows of some slices against fp64, beside torch's 16-bit attention.

    Attributes:
        slices: (sample, head) pairs that were compared, `rows` of each.
        launches: on the same inputs.
        differing: launches that wrote another O than the first, by the sum of all its bits and the rows themselves.
        seconds: of one launch, the median.
        finite: whether all of O is.
        max_error: of these rows; None: not a number. Allowed is, of RMS as of maximum, twice torch's own error on the
            same rows, at least a unit roundoff, and what tensor cores cut off (`flashladder.cases.reference`).
        digest: SHA-256 of that sum and of the rows.
    """

    kernel: str
    dtype: Dtype
    shape: Shape
    slices: tuple[tuple[int, int], ...] = Field(min_length=1)
    rows: tuple[int, ...] = Field(min_length=1)
    launches: int = Field(gt=1)
    differing: int = Field(ge=0)
    seconds: float = Field(gt=0)
    finite: bool
    max_error: float | None
    max_allowed: float
    rms_error: float | None
    rms_allowed: float
    digest: str
