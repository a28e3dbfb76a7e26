"""The rule of correctness: an fp64 reference, the errors it allows, and one kernel checked on one case.

On each compared slice the maximum error against an fp64 reference is at most twice that of torch's own 16-bit flash
attention (or one unit roundoff of the largest element), and the relative RMS error at most one unit roundoff. If V is
constant, each element of O is that constant to one unit roundoff. Over all compared slices the mean signed error is
that of unbiased rounding. References cover whole (sample, head) slices: all of a small case, every head of a large one.

Most checkers pass NaN, stale memory or a lucky first run. Here O and all memory around it start as NaN, every
comparison fails on NaN, only O may change, and 20 runs must agree bit for bit (rule 7 of the measurement protocol). A
kernel that cannot take a tensor (iteration 16 fixes its row stride) must refuse it and write nothing. The checker takes
any callable on any device, so that tests can give it wrong operators on the CPU.

Tensors are (batch, seq_len, n_heads, d_head); a slice is a pair (batch index, head index).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
import math
import random
from typing import Any, Literal

from flashladder.cases.inputs import Case, Tensors, make_tensors
from flashladder.errors import FlashladderError, first_line
from flashladder.ladder.config import KernelConfig
from flashladder.lazy_torch import Tensor, torch
from flashladder.problem import Mask, Problem
from flashladder.results.schema import Accuracy, CaseResult, kernel_key

REPEATS = 20  # runs that must agree bit for bit, with the first
LARGEST_KEPT = 2**30  # bytes: larger storages of inputs are compared only inside the tensor
UNIT_ROUNDOFF = {"fp16": 2.0**-11, "bf16": 2.0**-8}
CHUNK = 2048  # query rows of the reference at a time: at S=16384 the fp64 scores take 0.27 GB
ALL_SLICES = 32  # cases with at most this many slices are compared in full
BIAS_SHARE = 1 / 16  # unit roundoffs of mean signed error that a right kernel may have
BIAS_PER_KEY = 2.0**-28  # what tensor cores may add to it, because they truncate each sum of 16 products at 2^-24
BIAS_ERRORS = 6  # standard errors that it may have in addition
LSE_ALLOWED = 1e-5  # relative error of the log-sum-exp
ROW_BIAS_SHARE = 1 / 4  # unit roundoffs: RMS over a slice's rows of the error that is common to a row
RIGHT_ROW_BIAS = 0.14  # unit roundoffs: that RMS in a right kernel, about
ENOUGH_ROWS = 64  # slices with fewer rows have their RMS taken together

Run = Callable[..., object]
Status = Literal["pass", "fail", "not_applicable"]


@dataclass(frozen=True)
class Expected:
    """The reference on some slices and the errors it allows."""

    slices: tuple[tuple[int, int], ...]  # n pairs (sample, head)
    output: Tensor  # (n, seq_len, d_head), fp64
    rounded: Tensor  # the same in the dtype of O
    unit: Tensor  # (n, 1, d_head), the unit of errors: 1, or the size of V's column if V is constant
    # (n,), the largest error in these units: twice torch's, at least a unit roundoff of the largest element (torch may
    # be lucky with the few large ones). If V is constant: one unit roundoff of the constant.
    max_allowed: Tensor
    rms_allowed: float  # relative RMS error, one unit roundoff
    lse: Tensor  # (n, seq_len), fp64: the logarithm of each row's sum of exponentials; -inf without a key


@dataclass
class References:
    """Expected outputs by case and dtype, each computed once for all iterations."""

    known: dict[tuple[Case, str], Expected] = field(default_factory=dict)

    def expected(self, case: Case, dtype: str, tensors: Tensors) -> Expected:
        """The reference of this case."""
        if (case, dtype) not in self.known:
            slices = compared_slices(case.shape, case.seed)
            self.known[case, dtype] = expect(tensors, dtype, slices, case.shape)
        return self.known[case, dtype]


def choose_slices(shape: Problem, seed: int, count: int) -> tuple[tuple[int, int], ...]:
    """`count` random (batch, head) slices, or all if there are fewer."""
    every = [(b, h) for b in range(shape.batch) for h in range(shape.n_heads)]
    return tuple(sorted(random.Random(seed).sample(every, min(len(every), count))))  # noqa: S311 - nothing secret


def compared_slices(shape: Problem, seed: int) -> tuple[tuple[int, int], ...]:
    """The slices that a case compares: up to `ALL_SLICES` all, else each head once, with the first and last sample."""
    if shape.batch * shape.n_heads <= ALL_SLICES:
        return choose_slices(shape, seed, ALL_SLICES)
    draw = random.Random(seed)  # noqa: S311 - a choice of slices, nothing secret
    heads = draw.sample(range(shape.n_heads), shape.n_heads)
    ends, between = sorted({0, shape.batch - 1}), range(1, shape.batch - 1)
    samples = [*ends, *draw.sample(between, len(between))]
    return tuple(sorted((samples[number % shape.batch], head) for number, head in enumerate(heads)))


def gather(tensor: Tensor, slices: Sequence[tuple[int, int]], group: int = 1, rows: Any = slice(None)) -> Tensor:
    """`rows` of the (batch, head) slices of a (B, S, H, D) tensor, (n, rows, D); `group` heads of Q read one of K."""
    return torch.stack([tensor[b, rows, h // group] for b, h in slices])


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of 16-bit elements hold the same bits."""
    return torch.equal(one.view(torch.int16), other.view(torch.int16))


def attention_fp64(q: Tensor, k: Tensor, v: Tensor, mask: Mask = "none") -> tuple[Tensor, Tensor]:
    """``softmax(q k^T / sqrt(D)) v`` of (n, S, D) slices in fp64 and the log-sum-exp (n, S), `CHUNK` rows at a time.

    A row that sees no key has output 0 and log-sum-exp -inf.
    """
    scale = 1.0 / math.sqrt(q.shape[-1])
    beyond = k.shape[1] - q.shape[1] + 1  # keys that query 0 sees under a causal mask
    column = torch.arange(k.shape[1], device=q.device)
    outputs, sums = [], []
    for one_q, one_k, one_v in zip(q, k, v, strict=True):
        keys, values = one_k.double().T, one_v.double()
        for start in range(0, q.shape[1], CHUNK):
            scores = (one_q[start : start + CHUNK].double() @ keys) * scale
            if mask == "causal":
                row = torch.arange(start, start + len(scores), device=q.device)
                scores.masked_fill_(column >= row[:, None] + beyond, -math.inf)
            sums.append(torch.logsumexp(scores, dim=-1))
            outputs.append(torch.exp(scores - sums[-1].clamp(min=-1e300)[:, None]) @ values)
    return torch.cat(outputs).view(q.shape), torch.cat(sums).view(q.shape[:2])


def attention_torch16(q: Tensor, k: Tensor, v: Tensor, mask: Mask = "none") -> Tensor:
    """Torch's flash attention in the inputs' 16-bit dtype, on (n, S, D) slices.

    Torch's "math" backend computes in fp32, which no 16-bit tensor-core kernel can match. Its causal mask begins at the
    top left. So queries are added in front, or those without a key are left out, until there are as many as keys.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    if not k.shape[1]:  # a packed sequence without keys
        return torch.zeros_like(q)
    causal, rows, more = mask == "causal", q.shape[1], k.shape[1] - q.shape[1]
    if causal:
        q = torch.cat((q.new_zeros(q.shape[0], max(more, 0), q.shape[2]), q[:, max(-more, 0) :]), dim=1)
    q, k, v = (tensor.unsqueeze(1) for tensor in (q, k, v))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        found = scaled_dot_product_attention(q, k, v, is_causal=causal).squeeze(1)
    return torch.cat((found.new_zeros(found.shape[0], max(-more, 0), found.shape[2]), found), dim=1)[:, -rows:]


def expect(tensors: Tensors, dtype: str, slices: tuple[tuple[int, int], ...], shape: Problem) -> Expected:
    """Computes the reference on `slices` and the errors that it allows.

    Raises:
        FlashladderError: torch's own result is not finite, so that it gives no bound.
    """
    roundoff = UNIT_ROUNDOFF[dtype]
    group = tensors.q.shape[2] // tensors.k.shape[2]
    q, k, v = gather(tensors.q, slices), gather(tensors.k, slices, group), gather(tensors.v, slices, group)
    full = [(rows, keys) for rows, keys in shape.sequences if rows.start < rows.stop]
    parts = [(q[:, rows], k[:, keys], v[:, keys], shape.mask) for rows, keys in full]
    outputs, sums = zip(*(attention_fp64(*one) for one in parts), strict=True)
    exact, lse = torch.cat(outputs, dim=1), torch.cat(sums, dim=1)
    torchs = torch.cat([attention_torch16(*one) for one in parts], dim=1)
    error = (torchs.double() - exact).abs().amax(dim=(1, 2))
    largest = exact.abs().amax(dim=(1, 2))
    constant = (v == v[:, :1]).all(dim=2).all(dim=1)
    if not bool((error.isfinite() | constant).all()):
        raise FlashladderError("torch's 16-bit attention gives no usable bound", found=f"maximum errors {error}")
    return Expected(
        slices=slices,
        output=exact,
        rounded=exact.to(q.dtype),
        unit=torch.where(constant[:, None, None], v[:, :1].double().abs(), 1.0),
        max_allowed=torch.where(constant, roundoff, torch.maximum(2.0 * error, roundoff * largest)),
        rms_allowed=roundoff,
        lse=lse,
    )


def lse_error(lse: Tensor, expected: Expected) -> float:
    """The largest error of the log-sum-exp (B, H, S) on the slices of the reference, relative to its size or to 1.

    NaN or infinite if a value is NaN, or if a row without a key has another value than -inf.
    """
    found = torch.stack([lse[b, h] for b, h in expected.slices]).double()
    error = (found - expected.lse).abs() / expected.lse.abs().clamp(min=1.0)
    return float(torch.where(found == expected.lse, 0.0, error).max())


def accuracy(out: Tensor, expected: Expected) -> Accuracy:
    """Errors of O (B, S, H, D) on the worst slice of the reference, and whether all elements of O are finite."""
    found, unit = gather(out, expected.slices).double(), expected.unit
    error = (found - expected.output) / unit
    largest = error.abs().amax(dim=(1, 2))
    worst = int((largest / expected.max_allowed).argmax())
    size = (expected.output / unit).square().mean(dim=(1, 2)).sqrt()
    relative = float((error.square().mean(dim=(1, 2)).sqrt() / size).max())
    bias, bias_allowed, row_bias = _bias(found, expected)
    return Accuracy(
        max_error=_finite(float(largest[worst])), max_allowed=float(expected.max_allowed[worst]),
        rms_error=_finite(relative), rms_allowed=expected.rms_allowed, finite=bool(torch.isfinite(out).all()),
        bias=_finite(bias), bias_allowed=_finite(bias_allowed), row_bias=_finite(row_bias),
        row_bias_allowed=_row_bias_share(expected.output.shape) * expected.rms_allowed,
    )  # fmt: skip


def _row_bias_share(shape: Sequence[int]) -> float:
    """The allowed RMS by row, in unit roundoffs; of few rows, up to `BIAS_ERRORS` standard errors above the usual."""
    rows = shape[1] if shape[1] >= ENOUGH_ROWS else shape[0] * shape[1]
    return max(ROW_BIAS_SHARE, RIGHT_ROW_BIAS * math.sqrt(1 + BIAS_ERRORS * math.sqrt(2 / rows)))


def _finite(error: float) -> float | None:
    return error if math.isfinite(error) else None


def _bias(found: Tensor, expected: Expected) -> tuple[float, float, float]:
    """The mean error of O away from zero, relative to O's mean size; its bound; its RMS by row.

    If O is (1 + b) times the reference, as with a biased reciprocal or row sum, the mean error is an estimate of b. It
    is taken against the *rounded* reference. If one key dominates, V's 16-bit numbers show through, and the correctly
    rounded O lies on one side of the exact one. Against the rounded reference two errors remain: O's rounding where the
    fp32 results differ, and the rounding of P to 16 bits. Both have mean zero in a right kernel.

    The first error is independent in each element, unless rows have equal weights. The elements of a row share the
    second. So the variance of the mean is the sum of the variances over rows and over columns, which counts each error
    at least once. Beyond `BIAS_ERRORS` standard errors (one in 10^8 for the 64 rows of the smallest case) a right
    kernel may be off by `BIAS_SHARE` of a unit roundoff, and by 2^-24 per 16 keys on tensor cores that truncate sums.
    A factor of 1 + 2^-10 is 1/4 of bf16's roundoff.

    By row, the RMS of the same estimate is at most 0.14 of a roundoff in a right kernel, from the rounding of P. A row
    sum or reciprocal that is rounded to 16 bits makes it 0.3 to 0.5. The worst slice counts, because slices have
    different contents: an error in one of four slices would be half as large in all. Slices of fewer than `ENOUGH_ROWS`
    rows are taken together.
    """
    weight = expected.output.abs() / expected.unit
    signed = expected.output.sign() * (found - expected.rounded.double()) / expected.unit
    total = float(weight.sum())
    bias = float(signed.sum()) / total
    rest = signed - bias * weight
    variance = float(rest.sum(dim=2).square().sum() + rest.sum(dim=1).square().sum())
    floor = BIAS_SHARE * expected.rms_allowed + BIAS_PER_KEY * found.shape[1]
    # a row without a key has no error that is relative to its size
    rows = torch.where(weight.sum(dim=2) > 0, signed.sum(dim=2) / weight.sum(dim=2), 0.0).square()
    by_row = float(rows.mean(dim=1).max().sqrt()) if rows.shape[1] >= ENOUGH_ROWS else float(rows.mean().sqrt())
    return bias, floor + BIAS_ERRORS * math.sqrt(variance) / total, by_row


@dataclass(frozen=True)
class Subject:
    """A kernel under test, ``run(q, k, v, out, short_form)``, with ``lse=`` besides if it takes general problems.

    It takes only `row_stride` (elements), or any if 0.
    """

    iteration: int
    config: KernelConfig
    run: Run
    row_stride: int = 0

    @property
    def key(self) -> str:
        """The kernel's name in results."""
        return kernel_key(self.iteration, self.config.short_form())


def check_case(
    subject: Subject, case: Case, references: References, device: str = "cuda", repeats: int = REPEATS
) -> CaseResult:
    """Runs one kernel on one case; a failure is a result, not an exception."""
    try:
        tensors = make_tensors(case, subject.config.dtype, device)
    except RuntimeError as error:  # out of memory, or an earlier launch broke the context
        raise FlashladderError(f"cannot make the tensors of case {case.name!r}", found=first_line(error)) from error
    repeats = case.repeats or repeats
    refused = bool(subject.row_stride) and tensors.row_strides != {subject.row_stride}
    found: Accuracy | None = None
    status: Status
    if refused:
        status, reason = _check_refusal(subject, tensors)
    else:
        reason, found = _check_run(subject, case, tensors, references, repeats)
        status = "fail" if reason else "pass"
    return CaseResult(
        kernel=subject.key, case=case.name, dtype=subject.config.dtype, shape=case.shape, status=status,
        reason=reason, accuracy=found, repeats=0 if refused else repeats,
    )  # fmt: skip


def _launch(subject: Subject, tensors: Tensors) -> None:
    more = {"lse": tensors.lse} if subject.config.is_general else {}
    form = subject.config.short_form()
    subject.run(tensors.q, tensors.k, tensors.v, tensors.out, form, **more, **tensors.packing)
    if tensors.out.is_cuda:
        torch.cuda.synchronize()  # raises an illegal access here, not in a later call


def _check_refusal(subject: Subject, tensors: Tensors) -> tuple[Status, str | None]:
    strides = sorted(tensors.row_strides)
    try:
        _launch(subject, tensors)
    except (ValueError, RuntimeError) as error:
        if not bool(tensors.poisoned.all()):
            return "fail", f"refused row strides {strides}, but wrote to O"
        return "not_applicable", first_line(error)
    return "fail", f"took row strides {strides}, expected an error: it is compiled for {subject.row_stride}"


def _check_run(
    subject: Subject, case: Case, tensors: Tensors, references: References, repeats: int
) -> tuple[str | None, Accuracy | None]:
    """The problem (None: the kernel is right), and the errors of O."""
    inputs = {name: _memory(tensor) for name, tensor in (("Q", tensors.q), ("K", tensors.k), ("V", tensors.v))}
    before = {name: memory.clone() for name, memory in inputs.items()}
    try:
        _launch(subject, tensors)
    except (ValueError, RuntimeError) as error:
        return f"the launch failed: {first_line(error)}", None
    for name, memory in inputs.items():
        if changed := int((memory != before[name]).sum()):
            return f"wrote to {name}, an input: {changed} of its elements changed", None
    first = tensors.out.clone()
    expected = references.expected(case, subject.config.dtype, tensors)
    found = accuracy(first, expected)
    if not found.finite:
        holes = int((~torch.isfinite(first)).sum())
        return f"{holes} of {first.numel()} elements of O are NaN or infinite, or were not written", found
    around = tensors.out_base.numel() - tensors.out.numel()
    untouched = int(tensors.poisoned.sum())
    if untouched != around:
        return f"wrote outside O: {around - untouched} elements changed", found
    if not found.ok:
        bias = f"mean error away from zero {found.bias:+.3g} (allowed {found.bias_allowed:.3g})"
        by_row = f"by row {found.row_bias:.3g} (allowed {found.row_bias_allowed:.3g})"
        return f"{found.errors}, {bias}, {by_row}", found
    off = lse_error(tensors.lse, expected) if subject.config.is_general else 0.0
    wrong = None if off <= LSE_ALLOWED else f"log-sum-exp: relative error {off:.3g} (allowed {LSE_ALLOWED:.3g})"
    return wrong or _check_repeats(subject, tensors, first, tensors.lse.clone(), repeats), found


def _check_repeats(subject: Subject, tensors: Tensors, first: Tensor, lse: Tensor, repeats: int) -> str | None:
    for repeat in range(2, repeats + 1):
        tensors.poison()
        try:
            _launch(subject, tensors)
        except (ValueError, RuntimeError) as error:
            return f"run {repeat} failed: {first_line(error)}"
        if not same_bits(tensors.out, first):
            return f"run {repeat} differs from the first bit for bit"
        if subject.config.is_general and not torch.equal(tensors.lse, lse):
            return f"run {repeat}: the log-sum-exp differs from the first"
    return None


def _memory(tensor: Tensor) -> Tensor:
    """The bits of a tensor's whole storage, or of the tensor alone if the storage is huge."""
    storage = tensor.untyped_storage()
    if storage.nbytes() > LARGEST_KEPT:
        return tensor.view(torch.int16)
    return torch.empty(0, dtype=torch.int16, device=tensor.device).set_(storage)
