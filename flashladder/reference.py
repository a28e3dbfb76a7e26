"""Inputs, high-precision references and the error bound that decides whether a kernel is correct.

Why: one place says what "correct" means (rule 7 of the measurement protocol): the maximum error against an fp64
reference is at most twice that of torch's own 16-bit flash attention on the same slices, and the relative RMS error at
most one unit roundoff of the dtype. References cover random (sample, head) slices, so that length 16384 stays cheap;
that every other slice was written is checked through NaN poison. Works on CPU and GPU tensors alike.

Tensors are (batch, seq_len, n_heads, d_head); "slices" below are (batch index, head index) pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
import math
import random
from typing import TYPE_CHECKING, Literal

from flashladder.errors import FlashladderError
from flashladder.result_schema import Accuracy, Shape

if TYPE_CHECKING:
    import torch

View = Literal["contiguous", "head_slice", "packed", "transposed", "sliced"]
UNIT_ROUNDOFF = {"fp16": 2.0**-11, "bf16": 2.0**-8}
FULL_HEADS = 16  # heads of the tensor that a `head_slice` is cut from; with d_head 128 its row stride is 2048
CHUNK = 2048  # query rows of the reference at a time: at S=16384 the fp64 scores take 0.27 GB


@dataclass(frozen=True)
class Case:
    """One input: shape, how the tensors lie in memory, factor on Q (large logits), seed of the N(0, 1) draw."""

    name: str
    shape: Shape
    view: View = "contiguous"
    scale: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Tensors:
    """Q, K, V and O as the kernel sees them, and the storage behind O: outside of `out` nothing may be written."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    out_base: torch.Tensor

    def poison(self) -> None:
        """Fills O and its surroundings with NaN."""
        self.out_base.fill_(math.nan)

    @property
    def row_strides(self) -> set[int]:
        """Elements from one position to the next, of all four tensors."""
        return {int(tensor.stride(1)) for tensor in (self.q, self.k, self.v, self.out)}


@dataclass(frozen=True)
class Expected:
    """The reference on some slices, (n, seq_len, d_head) in fp64, and the errors it allows."""

    slices: tuple[tuple[int, int], ...]
    output: torch.Tensor
    max_allowed: float
    rms_allowed: float


@dataclass
class References:
    """Expected outputs by case and dtype: sixteen iterations share one computation."""

    known: dict[tuple[Case, str], Expected] = field(default_factory=dict)

    def expected(self, case: Case, dtype: str, tensors: Tensors) -> Expected:
        """The reference of this case, computed at first use."""
        if (case, dtype) not in self.known:
            self.known[case, dtype] = expect(tensors, dtype, choose_slices(case.shape, case.seed))
        return self.known[case, dtype]


def torch_dtype(name: str) -> torch.dtype:
    """``fp16`` or ``bf16`` as torch names it."""
    import torch

    if name not in UNIT_ROUNDOFF:
        raise FlashladderError("no such dtype", expected=" or ".join(UNIT_ROUNDOFF), found=name)
    return torch.float16 if name == "fp16" else torch.bfloat16


def make_tensors(case: Case, dtype: str, device: str) -> Tensors:
    """Draws the inputs of a case from its seed; O comes poisoned with NaN and lies in memory as Q does."""
    import torch

    generator = torch.Generator(device=device).manual_seed(case.seed)

    def draw(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, generator=generator, device=device, dtype=torch_dtype(dtype))

    if case.view == "packed":
        shape = case.shape
        packed = draw(shape.batch, shape.seq_len, 3, shape.n_heads, shape.d_head)
        packed[:, :, 0] *= case.scale
        q, k, v = packed.unbind(2)
        out_base = torch.empty(q.shape, device=device, dtype=q.dtype)
        out = out_base
    else:
        (_, q), (_, k), (_, v), (out_base, out) = (_laid_out(case, draw) for _ in range(4))
        q *= case.scale
    tensors = Tensors(q, k, v, out, out_base)
    tensors.poison()
    return tensors


def _laid_out(case: Case, draw: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Storage and the view of it that has the case's shape."""
    batch, seq_len, n_heads, d_head = (getattr(case.shape, name) for name in type(case.shape).model_fields)
    if case.view == "transposed":
        base = draw(batch, n_heads, seq_len, d_head)
        return base, base.transpose(1, 2)
    if case.view == "head_slice":
        base = draw(batch, seq_len, FULL_HEADS, d_head)
        return base, base[:, :, 1 : 1 + n_heads]
    if case.view == "sliced":
        base = draw(2 * batch, seq_len + 64, n_heads, d_head)
        return base, base[::2, 32 : 32 + seq_len]
    base = draw(batch, seq_len, n_heads, d_head)
    return base, base


def choose_slices(shape: Shape, seed: int, most: int = 4) -> tuple[tuple[int, int], ...]:
    """Random (batch, head) slices: all when there are few, `most` of them otherwise, two from length 8192 on."""
    every = [(b, h) for b in range(shape.batch) for h in range(shape.n_heads)]
    count = min(len(every), 2 if shape.seq_len >= 8192 else most)
    return tuple(sorted(random.Random(seed).sample(every, count)))  # noqa: S311 - a choice of slices, nothing secret


def gather(tensor: torch.Tensor, slices: Sequence[tuple[int, int]]) -> torch.Tensor:
    """The (batch, head) slices of a (B, S, H, D) tensor, stacked to (n, S, D)."""
    import torch

    return torch.stack([tensor[b, :, h] for b, h in slices])


def attention_fp64(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """``softmax(q k^T / sqrt(D)) v`` of (n, S, D) tensors in fp64, `CHUNK` query rows at a time."""
    import torch

    scale = 1.0 / math.sqrt(q.shape[-1])
    outputs = []
    for one_q, one_k, one_v in zip(q, k, v, strict=True):
        keys, values = one_k.double().T, one_v.double()
        rows = [torch.softmax((chunk.double() @ keys) * scale, dim=-1) @ values for chunk in one_q.split(CHUNK)]
        outputs.append(torch.cat(rows))
    return torch.stack(outputs)


def attention_torch16(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Torch's flash attention in the inputs' own 16-bit dtype, on (n, S, D) slices.

    Flash and not math: the latter computes in fp32 inside, which no 16-bit tensor-core kernel can match.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return scaled_dot_product_attention(q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1)).squeeze(1)


def expect(tensors: Tensors, dtype: str, slices: tuple[tuple[int, int], ...]) -> Expected:
    """Computes the reference on `slices` and what it allows.

    Raises:
        FlashladderError: torch's own result is not finite, so that it bounds nothing.
    """
    q, k, v = (gather(tensor, slices) for tensor in (tensors.q, tensors.k, tensors.v))
    exact = attention_fp64(q, k, v)
    error = float((attention_torch16(q, k, v).double() - exact).abs().max())
    if not (math.isfinite(error) and error > 0):
        raise FlashladderError("torch's 16-bit attention gives no usable bound", found=f"maximum error {error}")
    return Expected(slices, exact, 2.0 * error, UNIT_ROUNDOFF[dtype])


def accuracy(out: torch.Tensor, expected: Expected) -> Accuracy:
    """Errors of O (B, S, H, D) on the reference's slices, and whether every element of all slices is finite."""
    import torch

    error = gather(out, expected.slices).double() - expected.output
    largest = float(error.abs().max())
    relative = float(error.square().mean().sqrt() / expected.output.square().mean().sqrt())
    return Accuracy(
        max_error=largest if math.isfinite(largest) else None,
        max_allowed=expected.max_allowed,
        rms_error=relative if math.isfinite(relative) else None,
        rms_allowed=expected.rms_allowed,
        finite=bool(torch.isfinite(out).all()),
    )
