"""One kernel on one case: run it on poisoned memory, compare, repeat; and the list of cases.

Why: most checkers pass NaN, stale memory or a lucky first run. Here O and all memory around it start as NaN, every
comparison fails on NaN, nothing but O may change, and 20 runs must agree bit for bit (rule 7 of the measurement
protocol). A kernel that cannot take a tensor (iteration 16 fixes its row stride) must refuse it and write nothing.
Works with any callable on any device, so that the checker itself is tested with wrong operators on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from flashladder.cases.contents import CONSTANT, EDGES, HEAVY, LOGITS
from flashladder.cases.inputs import Case, Tensors, View, make_tensors
from flashladder.cases.reference import References, accuracy
from flashladder.errors import FlashladderError
from flashladder.ladder.config import D_HEAD, KernelConfig
from flashladder.problem import Shape
from flashladder.results.schema import Accuracy, CaseResult, kernel_key

if TYPE_CHECKING:
    import torch

REPEATS = 20  # runs that must agree bit for bit, the first included
SEQ_LENS = (512, 1024, 2048, 4096, 8192, 16384)
RAGGED = (1, 17, 129, 1000, 4097)  # lengths for kernels that take any
BATCH = {8192: 8, 16384: 4}  # 16 up to length 4096
N_HEADS = 16
FAR_BYTES = 9 << 29  # 4.5 GiB: no 32-bit number of bytes, signed or not, reaches the end of a far view
LARGEST_KEPT = 2**30  # bytes of an input's storage that are compared whole before and after a launch
LARGE_LOGITS = 30.0  # factor on Q: scores of about +-120, so that softmax is nearly one-hot and exp must not overflow

Run = Callable[..., object]
Status = Literal["pass", "fail", "not_applicable"]


@dataclass(frozen=True)
class Subject:
    """A kernel under test: `run(q, k, v, out, short_form)`; `row_stride` (elements) the only one it takes, 0: any."""

    iteration: int
    config: KernelConfig
    run: Run
    row_stride: int = 0

    @property
    def key(self) -> str:
        """How results name this kernel."""
        return kernel_key(self.iteration, self.config.short_form())


def batch_of(seq_len: int) -> int:
    """The batch that the grid uses at this length: 16, then 8 at 8192 and 4 at 16384."""
    return BATCH.get(seq_len, 16)


def shape_of(seq_len: int) -> Shape:
    """The grid's shape at this length."""
    return Shape(batch=batch_of(seq_len), seq_len=seq_len, n_heads=N_HEADS, d_head=D_HEAD)


def on_grid(shape: Shape) -> bool:
    """Whether it is one of the ladder's: a sweep may have others of the same length."""
    return shape.seq_len in SEQ_LENS and shape == shape_of(shape.seq_len)


def cases_for(config: KernelConfig, *, quick: bool = False) -> tuple[Case, ...]:
    """Every case of a configuration; with `quick` lengths up to 1024 at batch 2 instead of the whole grid."""

    def case(
        name: str, batch: int, seq_len: int, heads: int = N_HEADS, view: View = "contiguous", **other: Any
    ) -> Case:
        shape = Shape(batch=batch, seq_len=seq_len, n_heads=heads, d_head=D_HEAD)
        return Case(f"{name} {batch}x{seq_len}x{heads}", shape, view, seed=seq_len + heads, **other)

    tile = max(config.B_r, config.B_c)
    halves = (LOGITS[:6], LOGITS[6:]) if config.few_tiles else ()
    heavy = (256, 512, 1024) if config.heavy_rows else ()
    lengths = (512, 1024) if quick else SEQ_LENS
    ragged = () if config.multiples else RAGGED[:4] if quick else RAGGED
    return (
        *(case("ragged", 2, length, 3) for length in ragged),
        *(case("grid", 2 if quick else batch_of(length), length) for length in lengths),
        *(case("small", 2, tile * blocks) for blocks in (1, 2, 3)),
        *(case("odd", batch, tile * 3, heads) for batch, heads in ((1, 3), (3, 5))),
        *(case("odd head slice", batch, tile * 3, heads, "head_slice") for batch, heads in ((1, 3), (3, 5))),
        case("qkv packed", 2, 512, view="packed"),
        case("transposed", 2, 512, view="transposed"),
        case("sliced", 2, 512, view="sliced"),
        case("large logits", 2, 1024, scale=LARGE_LOGITS),
        case("large logits", 2, tile, scale=LARGE_LOGITS),
        case("extreme logits", 2, 512, contents=LOGITS),
        case("constant V", 2, 512, contents=CONSTANT),
        case("edge logits", 2, 512, contents=EDGES),
        *(case("heavy rows", 2, length, contents=HEAVY) for length in heavy),
        case("expanded", 3, 2 * tile, expanded=True),
        *(case(f"mixed {turn}", 2, 512, view="mixed", turn=turn) for turn in range(4)),
        *(case(f"mixed rows of 2048 {turn}", 2, 512, 4, "mixed_slots", turn=turn) for turn in range(4)),
        *(case(f"other row stride {turn}", 1, tile, 2, "one_off", turn=turn) for turn in range(4)),
        case("far rows", 1, 2 * tile, 1, "far_rows", far_bytes=far_stride(2 * tile)),
        case("far heads", 1, tile, 2, "far_heads", far_bytes=far_stride(2)),
        case("far samples", 2, tile, 1, "far_samples", far_bytes=far_stride(2)),
        *(case("few tiles", batch, length, heads) for batch, length, heads in config.few_tiles),
        *(
            case(f"few tiles of extreme logits {turn}", 1, tile * 8 - 1, 6, contents=half)
            for turn, half in enumerate(halves)
        ),
    )


def far_stride(count: int, reach: int = FAR_BYTES) -> int:
    """The stride in bytes, a multiple of 16, with which the last of `count` lies at least `reach` from the first."""
    return -(-reach // (count - 1)) // 16 * 16 + 16


def check_case(
    subject: Subject, case: Case, references: References, device: str = "cuda", repeats: int = REPEATS
) -> CaseResult:
    """Runs one kernel on one case; a failure is a result, not an exception."""
    try:
        tensors = make_tensors(case, subject.config.dtype, device)
    except RuntimeError as error:  # out of memory, or a context that an earlier launch has broken
        raise FlashladderError(f"cannot make the tensors of case {case.name!r}", found=_first_line(error)) from error
    repeats = case.repeats or repeats
    refused = bool(subject.row_stride) and tensors.row_strides != {subject.row_stride}
    found: Accuracy | None = None
    reason: str | None
    status: Status
    if refused:
        status, reason = _check_refusal(subject, tensors)
    else:
        reason, found = _check_run(subject, case, tensors, references, repeats)
        status = "fail" if reason else "pass"
    return CaseResult(
        kernel=subject.key,
        case=case.name,
        dtype=subject.config.dtype,
        shape=case.shape,
        status=status,
        reason=reason,
        accuracy=found,
        repeats=0 if refused else repeats,
    )


def _launch(subject: Subject, tensors: Tensors) -> None:
    import torch

    subject.run(tensors.q, tensors.k, tensors.v, tensors.out, subject.config.short_form())
    if tensors.out.is_cuda:
        torch.cuda.synchronize()  # an illegal access shows here and not in an innocent call later


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _check_refusal(subject: Subject, tensors: Tensors) -> tuple[Status, str]:

    strides = sorted(tensors.row_strides)
    try:
        _launch(subject, tensors)
    except (ValueError, RuntimeError) as error:
        if not bool(tensors.poisoned.all()):
            return "fail", f"refused row strides {strides}, but wrote to O"
        return "not_applicable", _first_line(error)
    return "fail", f"took row strides {strides}, expected an error: it is compiled for {subject.row_stride}"


def _check_run(
    subject: Subject, case: Case, tensors: Tensors, references: References, repeats: int
) -> tuple[str | None, Accuracy | None]:
    """What is wrong (None: nothing), and the errors found."""
    import torch

    inputs = {name: _memory(tensor) for name, tensor in (("Q", tensors.q), ("K", tensors.k), ("V", tensors.v))}
    before = {name: memory.clone() for name, memory in inputs.items()}
    try:
        _launch(subject, tensors)
    except (ValueError, RuntimeError) as error:
        return f"the launch failed: {_first_line(error)}", None
    for name, memory in inputs.items():
        if not torch.equal(memory, before[name]):
            return f"wrote to {name}, an input: {int((memory != before[name]).sum())} of its elements changed", None
    first = tensors.out.clone()
    found = accuracy(first, references.expected(case, subject.config.dtype, tensors))
    if not found.finite:
        holes = int((~torch.isfinite(first)).sum())
        return f"{holes} of {first.numel()} elements of O are NaN or infinite, or were not written", found
    around = tensors.out_base.numel() - tensors.out.numel()
    untouched = int(tensors.poisoned.sum())
    if untouched != around:
        return f"wrote outside O: {around - untouched} elements changed", found
    if not found.ok:
        return (
            f"max error {found.max_error:.3g} (allowed {found.max_allowed:.3g}), "
            f"relative RMS {found.rms_error:.3g} (allowed {found.rms_allowed:.3g}), "
            f"mean error away from zero {found.bias:+.3g} (allowed {found.bias_allowed:.3g}), "
            f"by row {found.row_bias:.3g} (allowed {found.row_bias_allowed:.3g})"
        ), found
    return _check_repeats(subject, tensors, first, repeats), found


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of a tensor with those around it in its storage; of a storage that is huge, the tensor's own."""
    import torch

    storage = tensor.untyped_storage()
    if storage.nbytes() > LARGEST_KEPT:
        return tensor.view(torch.int16)
    return torch.empty(0, dtype=torch.int16, device=tensor.device).set_(storage)


def _check_repeats(subject: Subject, tensors: Tensors, first: torch.Tensor, repeats: int) -> str | None:
    import torch

    for repeat in range(1, repeats):
        tensors.poison()
        try:
            _launch(subject, tensors)
        except (ValueError, RuntimeError) as error:
            return f"run {repeat + 1} failed: {_first_line(error)}"
        if not torch.equal(tensors.out.view(torch.int16), first.view(torch.int16)):
            return f"run {repeat + 1} differs from the first bit for bit"
    return None
