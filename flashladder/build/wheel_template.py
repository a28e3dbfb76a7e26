"""One iteration of flashladder's ladder, compiled: importing this loads it into torch and makes it traceable.

    >>> import torch, flashladder_16                                        # NN: the step's number
    >>> torch.ops.flashladder_16.forward(q, k, v)                           # (batch, seq_len, n_heads, d_head)
    >>> torch.ops.flashladder_16.forward_out(q, k, v, out, config="(FP16, 128, 64, 64, 4): ...")
    >>> torch.ops.flashladder_31.attention(q, k, v, causal=True)            # (out, lse), see flashladder.attention
    >>> torch.ops.flashladder_33.attention_varlen(q, k, v, cu_q, cu_k)      # the same of packed sequences
    >>> flashladder_16.configurations()

Without `config` the configuration tuned for q's GPU runs, by its compute capability.
Every `flashladder_NN` wheel holds this text as `__init__.py` (template: flashladder/build/wheel_template.py), the
library, `manifest.json` (digests of all inputs) and `kernels.csv` (registers, spills, shared memory).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

__all__ = ["LIBRARY", "NAMESPACE", "configurations"]

NAMESPACE = __name__.rpartition(".")[2]
LIBRARY = Path(__file__).with_name("_C.abi3.so")
OLDEST_TORCH = (2, 10)
DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16"}  # as configurations name them
STORAGE = 2**58  # bytes between the made-up addresses of two storages in a trace: more than any tensor is long


def configurations() -> tuple[str, ...]:
    """The short forms of the configurations that this library holds."""
    lines: str = getattr(torch.ops, NAMESPACE).configurations()
    return tuple(lines.splitlines())


def _forward_fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, config: str = "") -> torch.Tensor:
    """The result of `forward` without running it: a contiguous tensor of q's shape, dtype and device."""
    out = q.new_empty(q.shape)
    _check((q, k, v, out), config, out_given=False)
    return out


def _forward_out_fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, config: str = "") -> None:
    """`forward_out` returns nothing: it writes to `out`."""
    _check((q, k, v, out), config, out_given=True)


def _attention_fake(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    scale: float | None = None,
    return_lse: bool = False,
    config: str = "",
) -> tuple[torch.Tensor, torch.Tensor]:
    """The results of `attention` without running it: out as `forward`, and lse, empty if nobody asked for it."""
    out = q.new_empty(q.shape)
    _check((q, k, v, out), config, causal, scale, return_lse, out_given=False, any_shape=True)
    batch, seq_len, n_heads, _ = q.shape
    return out, q.new_empty((batch, n_heads, seq_len) if return_lse else (0,), dtype=torch.float32)


def _attention_out_fake(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    causal: bool = False,
    scale: float | None = None,
    config: str = "",
) -> None:
    """`attention_out` returns nothing: it writes to `out`, and to `lse` if that is given."""
    tensors = (q, k, v, out) if lse is None else (q, k, v, out, lse)
    _check(tensors, config, causal, scale, lse is not None, out_given=True, any_shape=True)


def _attention_varlen_fake(  # noqa: PLR0917 - the order of the operator
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    causal: bool = False,
    scale: float | None = None,
    return_lse: bool = False,
    config: str = "",
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `_attention_fake`, for packed sequences (rows, n_heads, d_head)."""
    out = q.new_empty(q.shape)
    tensors = (q, k, v, out, cu_seqlens_q, cu_seqlens_k)
    _check(tensors, config, causal, scale, return_lse, out_given=False, any_shape=True, packed=True)
    return out, q.new_empty((q.shape[1], q.shape[0]) if return_lse else (0,), dtype=torch.float32)


def _attention_varlen_out_fake(  # noqa: PLR0917 - as above
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    causal: bool = False,
    scale: float | None = None,
    config: str = "",
) -> None:
    """`attention_varlen_out` returns nothing: it writes to `out`, and to `lse` if that is given."""
    tensors = (q, k, v, out, cu_seqlens_q, cu_seqlens_k, *([] if lse is None else [lse]))
    _check(tensors, config, causal, scale, lse is not None, out_given=True, any_shape=True, packed=True)


def _check(
    tensors: tuple[torch.Tensor, ...],
    config: str,
    causal: bool = False,
    scale: float | None = None,
    wants_lse: bool = False,
    *,
    out_given: bool,
    any_shape: bool = False,
    packed: bool = False,
) -> None:
    """The operator's own check of its arguments, on the shapes and strides of tensors that have no memory.

    `tensors` are q, k, v, out, if sequences are packed their bounds, and lse if the caller gives it. A symbolic
    dimension counts with its value in this trace, without a guard: the operator checks again when it runs. If a
    symbol has no value yet, nothing is checked.

    Raises:
        ValueError: an argument breaks the kernel's contract, in the words of the operator.
    """
    facts = []
    for tensor in tensors:
        if (numbers := _known((*tensor.shape, *tensor.stride(), tensor.storage_offset()))) is None:
            return
        facts.append(numbers)
    ranks = [t.dim() for t in tensors]
    storages = [t.untyped_storage()._cdata for t in tensors]  # noqa: SLF001 - torch has no public name for a storage
    getattr(torch.ops, NAMESPACE).check(
        ranks,
        [size for rank, numbers in zip(ranks, facts, strict=True) for size in numbers[:rank]],
        [stride for rank, numbers in zip(ranks, facts, strict=True) for stride in numbers[rank:-1]],
        [
            (storages.index(storage) + 1) * STORAGE + numbers[-1] * tensor.element_size()
            for storage, numbers, tensor in zip(storages, facts, tensors, strict=True)
        ],
        [DTYPES.get(tensor.dtype) or str(tensor.dtype).removeprefix("torch.") for tensor in tensors],
        # A meta tensor may be moved to any device: it counts as being on the right one.
        ["cuda" if tensor.device.type == "meta" else str(tensor.device) for tensor in tensors],
        out_given,
        config,
        any_shape,
        causal,
        scale,
        wants_lse,
        packed,
    )


def _known(numbers: Sequence[int | torch.SymInt]) -> list[int] | None:
    """Sizes, strides and offsets as plain numbers; None if one of them is a symbol without a value."""
    if any(isinstance(number, torch.SymInt) and not number.node.has_hint() for number in numbers):
        return None
    return [int(number.node.hint) if isinstance(number, torch.SymInt) else number for number in numbers]


def _load() -> None:
    """Loads the library into torch and registers the fake implementations, once."""
    if str(LIBRARY) in torch.ops.loaded_libraries:
        return
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < OLDEST_TORCH:
        raise ImportError(f"{NAMESPACE}: expected torch 2.10 or later, found {torch.__version__}; upgrade torch")
    if hasattr(getattr(torch.ops, NAMESPACE), "forward"):
        raise ImportError(f"{NAMESPACE}: another library is already loaded under this name; start a new process")
    operators: Any = torch.ops  # untyped in torch
    try:
        operators.load_library(LIBRARY)
    except OSError as error:
        reason = error.__cause__ or error
        raise ImportError(f"{NAMESPACE}: torch could not load the library ({reason}); build it again") from error
    torch.library.register_fake(f"{NAMESPACE}::forward", _forward_fake)
    torch.library.register_fake(f"{NAMESPACE}::forward_out", _forward_out_fake)
    torch.library.register_fake(f"{NAMESPACE}::attention", _attention_fake)
    torch.library.register_fake(f"{NAMESPACE}::attention_out", _attention_out_fake)
    torch.library.register_fake(f"{NAMESPACE}::attention_varlen", _attention_varlen_fake)
    torch.library.register_fake(f"{NAMESPACE}::attention_varlen_out", _attention_varlen_out_fake)


if NAMESPACE != "wheel_template":  # in the checkout this file is only the template
    _load()
