"""`flashladder.forward` and `flashladder.attention`: the kernels of the ladder, with what is tuned for this GPU.

`torch.ops.flashladder_NN` does the work; this module chooses the library and the configuration. It traces under
`torch.compile` without a graph break. This is the only module of the package that needs torch at import, so the first
use of a name imports it.

    >>> out = flashladder.attention(q, k, v, causal=True)  # any lengths, head groups, mask, log-sum-exp
    >>> out = flashladder.attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k)  # packed sequences
    >>> out = flashladder.forward(q, k, v)                 # the fastest at this length on this GPU
    >>> out = flashladder.forward(q, k, v, iteration=7, config="(FP16, 128, 64, 64, 4): async+...")
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, NoReturn, overload

import torch
from torch.autograd import forward_ad

from flashladder.errors import FlashladderError
from flashladder.files import last_iteration
from flashladder.ladder.config import KernelConfig
from flashladder.problem import Mask

LAST_ITERATION = last_iteration()
ROUNDING = 1e-6  # relative, of a squared scale
MOST_SCALE = 2.0**127  # times log2(e) it is no fp32 number any more
DEVICES = ("cuda", "meta")  # a GPU, or no memory at all, to learn a result's shape
LIBRARIES = ("", *(f"flashladder_{number:02d}" for number in range(1, LAST_ITERATION + 1)))


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    iteration: int | None = None,
    config: KernelConfig | str | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Scaled dot-product attention, forward, non-causal: softmax(q k^T / sqrt(d_head)) v for every batch and head.

    Args:
        q: queries, (batch, seq_len, n_heads, d_head = 128), fp16 or bf16, on a CUDA device of compute capability 8.0
            or later; last dimension contiguous, other strides multiples of 8 elements, seq_len divisible by B_r, B_c.
            From iteration 20 on the kernels need 9.0 and take any seq_len. A dimension of one element may have any
            stride. If batch, seq_len or n_heads is 0, the result is empty.
        k: keys, as q; iterations 16 to 19 also fix the seq_len stride of all four tensors at 2048 elements (16 heads).
        v: values, as q.
        iteration: the step of the ladder; None for the fastest installed one at q's length on its GPU, as measured
            (``configs/fastest.json``).
        config: a configuration or its short form; None for the one tuned for q's GPU, else for its architecture, else
            for the A100.
        out: the tensor to write, as q, overlapping no input; None for a new contiguous tensor.

    Returns:
        `out`, or the new tensor: (batch, seq_len, n_heads, d_head) in q's dtype. It is enqueued on the current stream.

    Raises:
        FlashladderError: the iteration or the configuration is not built (the message lists those that are), an
            argument is not a tensor or not on a GPU, or a gradient would be needed. `torch.compile` quotes this line
            in its own error.
        ValueError: an argument breaks the kernel's contract; the message names it, what was expected and found.
        RuntimeError: the GPU or the driver refused.
    """
    _check_tensors(q=q, k=k, v=v, out=out)
    device = q.device.index if q.device.type == "cuda" else None
    library = library_name(_step_for(q, device) if iteration is None else iteration)
    short_form = config.short_form() if isinstance(config, KernelConfig) else config
    dtype = str(q.dtype).rpartition(".")[2]
    resolved = _resolve(library, short_form, dtype, device)
    operators: Any = getattr(torch.ops, library)
    if out is None:
        out = operators.forward(q, k, v, resolved)
    else:
        operators.forward_out(q, k, v, out, resolved)
    return out


@overload
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = ...,
    scale: float | None = ...,
    return_lse: Literal[False] = ...,
    out: torch.Tensor | None = ...,
) -> torch.Tensor: ...
@overload
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = ...,
    scale: float | None = ...,
    return_lse: Literal[True],
    out: torch.Tensor | None = ...,
) -> tuple[torch.Tensor, torch.Tensor]: ...
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    return_lse: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Scaled dot-product attention, forward: softmax(scale q k^T) v, with groups of heads and a causal mask.

    As many keys as queries, as many heads of each, no mask, the usual scale and no log-sum-exp: the step that `forward`
    takes. All else: the newest installed iteration that computes it (from 29 on, with a mask from 31 on; 9.0 only).

    Args:
        q: queries, (batch, q_len, n_heads, d_head = 128), fp16 or bf16, on a CUDA device; last dimension contiguous,
            other strides multiples of 8 elements. A dimension of one element may have any stride.
        k: keys, (batch, kv_len, n_kv_heads, d_head), otherwise as q. n_kv_heads divides n_heads: head h of q reads
            head h // (n_heads // n_kv_heads) of k and v.
        v: values, as k.
        causal: query i sees the keys up to i + kv_len - q_len (the mask is aligned at the bottom right, as in
            FlashAttention-2 from 2.1 on). A row without keys gives 0, and -inf in the log-sum-exp.
        scale: of the scores, finite and above 0; None for 1 / sqrt(d_head). torch.compile traces again for each value.
        return_lse: also return log(sum(exp(scores))) of each row, the natural logarithm.
        out: the tensor to write, as q, overlapping no input; None for a new contiguous tensor.

    Returns:
        `out`, or the new tensor: (batch, q_len, n_heads, d_head) in q's dtype; with `return_lse` a pair of it and a
        new contiguous fp32 tensor (batch, n_heads, q_len). It is enqueued on the current stream. If batch, q_len or
        n_heads is 0, it is empty; if kv_len is 0, it is 0, and the log-sum-exp -inf.

    Raises:
        FlashladderError: no installed iteration computes this (the message says which to build), or as `forward`.
        ValueError: an argument breaks the kernel's contract; the message names it, what was expected and found.
        RuntimeError: the GPU or the driver refused.
    """
    _check_tensors(q=q, k=k, v=v, out=out)
    _check_options(scale, causal=causal, return_lse=return_lse)
    same = q.shape == k.shape == v.shape
    if same and not causal and not return_lse and (scale is None or _is_usual(scale, q)):
        return forward(q, k, v, out=out)
    device = q.device.index if q.device.type == "cuda" else None
    library = library_name(_general_step(k, device, causal))
    config = _resolve(library, None, str(q.dtype).rpartition(".")[2], device, causal)
    operators: Any = getattr(torch.ops, library)
    if out is None:
        out, lse = operators.attention(q, k, v, causal, scale, return_lse, config)
    else:
        shape = (*q.shape[:1], *q.shape[2:3], *q.shape[1:2])  # the operator's own check refuses other dimensions
        lse = q.new_empty(shape, dtype=torch.float32) if return_lse else None
        operators.attention_out(q, k, v, out, lse, causal, scale, config)
    return (out, lse) if return_lse else out


@overload
def attention_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int | None = ...,
    max_seqlen_k: int | None = ...,
    *,
    causal: bool = ...,
    scale: float | None = ...,
    return_lse: Literal[False] = ...,
    out: torch.Tensor | None = ...,
) -> torch.Tensor: ...
@overload
def attention_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int | None = ...,
    max_seqlen_k: int | None = ...,
    *,
    causal: bool = ...,
    scale: float | None = ...,
    return_lse: Literal[True],
    out: torch.Tensor | None = ...,
) -> tuple[torch.Tensor, torch.Tensor]: ...
def attention_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    return_lse: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """As `attention`, for packed sequences: they lie one after another, and each sees its own keys alone.

    It runs the newest installed iteration that takes packed sequences (from 33 on; 9.0 only).

    Args:
        q: queries of all sequences, (total_q, n_heads, d_head = 128), otherwise as of `attention`.
        k: keys of all sequences, (total_k, n_kv_heads, d_head).
        v: values, as k.
        cu_seqlens_q: int32, on q's device: sequence i has the rows of q from cu_seqlens_q[i] to before
            cu_seqlens_q[i + 1]. It begins with 0, never falls, and ends with total_q; nothing checks that, as the
            numbers are on the device. A sequence may be empty. Rows behind the last number are not written.
        cu_seqlens_k: the same of k and v, for as many sequences. Without keys, a sequence's rows are 0.
        max_seqlen_q: not needed; it is there because other libraries need it.
        max_seqlen_k: the same.
        causal: of each sequence, aligned at its bottom right.
        scale: as of `attention`.
        return_lse: as of `attention`.
        out: the tensor to write, as q, overlapping no input; None for a new contiguous tensor.

    Returns:
        `out`, or the new tensor: (total_q, n_heads, d_head) in q's dtype; with `return_lse` a pair of it and a new
        contiguous fp32 tensor (n_heads, total_q).

    Raises:
        As `attention`.
    """
    _check_tensors(q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, out=out)
    _check_options(scale, causal=causal, return_lse=return_lse)
    for name, length in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k)):
        if length is not None and (isinstance(length, bool) or not isinstance(length, (int, torch.SymInt))):
            _refuse(name, "an integer or None", _type_name(length))
    device = q.device.index if q.device.type == "cuda" else None
    library = library_name(_packed_step(device, causal))
    config = _resolve(library, None, str(q.dtype).rpartition(".")[2], device, causal, packed=True)
    operators: Any = getattr(torch.ops, library)
    bounds = (cu_seqlens_q, cu_seqlens_k)
    if out is None:
        out, lse = operators.attention_varlen(q, k, v, *bounds, causal, scale, return_lse, config)
    else:
        shape = (*q.shape[1:2], *q.shape[:1])  # the operator's own check refuses other dimensions
        lse = q.new_empty(shape, dtype=torch.float32) if return_lse else None
        operators.attention_varlen_out(q, k, v, *bounds, out, lse, causal, scale, config)
    return (out, lse) if return_lse else out


def configurations(iteration: int | None = None) -> tuple[KernelConfig, ...]:
    """The configurations in the installed library of an iteration; None: of the last installed iteration.

    Raises:
        FlashladderError: the iteration is not built.
    """
    number = max(_installed(), default=LAST_ITERATION) if iteration is None else iteration
    return tuple(KernelConfig.parse(line) for line in _built(library_name(number)))


def _check_tensors(**tensors: torch.Tensor | None) -> None:
    """Refuses types, devices and gradients for which torch's dispatcher would print a page."""
    for name, tensor in tensors.items():
        if name == "out" and tensor is None:
            continue
        if not isinstance(tensor, torch.Tensor):
            _refuse(name, "a torch.Tensor", type(tensor).__name__)
        elif tensor.device.type not in DEVICES:
            _refuse(name, "a CUDA tensor", f"one on {tensor.device}", "there is no CPU kernel; call .cuda()")
        elif tensor.requires_grad and torch.is_grad_enabled():
            expected = "a tensor without requires_grad (there is no backward kernel)"
            _refuse(name, expected, "requires_grad=True", "call it under torch.no_grad() or pass .detach()")
        elif forward_ad.unpack_dual(tensor).tangent is not None:  # type: ignore[no-untyped-call]
            _refuse(name, "a tensor without a tangent (there is no forward-mode derivative)", "a dual tensor")


def _check_options(scale: float | None, **switches: bool) -> None:
    """Refuses a scale that is no number above 0, and switches that are not Booleans."""
    if scale is not None and (isinstance(scale, bool) or not isinstance(scale, (float, int))):
        _refuse("scale", "a number or None", _type_name(scale))
    if scale is not None and not 0 < scale < MOST_SCALE:
        _refuse("scale", "a finite number above 0", f"{scale:.3g}" if abs(scale) < MOST_SCALE else "one beyond fp32")
    for name, switch in switches.items():
        if not isinstance(switch, bool):
            _refuse(name, "True or False", _type_name(switch))


def _refuse(argument: str, expected: str, found: str, hint: str | None = None) -> NoReturn:
    """Raises the error about an argument; torch.compile calls this function and quotes its line."""
    raise FlashladderError(f"bad argument {argument}", expected=expected, found=found, hint=hint)


def _type_name(value: object) -> str:
    """``int``; ``numpy.bool``."""
    own = type(value)
    return own.__name__ if own.__module__ == "builtins" else f"{own.__module__}.{own.__name__}"


def _is_usual(scale: float, q: torch.Tensor) -> bool:
    """Whether a scale is 1 / sqrt(d_head) up to rounding."""
    return q.dim() > 0 and scale > 0 and abs(float(scale) * float(scale) * q.shape[-1] - 1) < ROUNDING


def _resolve(
    library: str, short_form: str | None, dtype: str, device: int | None, causal: bool = False, packed: bool = False
) -> str:
    """The short form of the configuration to run, which is built.

    Empty if no kernel has q's dtype (the operator's own check then names the argument) or if q has no memory.
    """
    built, number = _built(library), LIBRARIES.index(library)
    if short_form is None:
        known = {"float16": "fp16", "bfloat16": "bf16"}.get(dtype)
        gpu = _gpu(device)
        if known is None or gpu is None:
            return ""
        wanted = _tuned(number, known, *gpu, "causal" if causal else "none", packed=packed)
    else:
        wanted = KernelConfig.parse(short_form).short_form()
    if wanted not in built:
        what, where, expected = "this configuration is not built", f"iteration {number}", f"one of {' | '.join(built)}"
        hint = f"pass one of these as config=, or build more: nox -s build-iteration-{number} -- --configs all"
        raise FlashladderError(what, where=where, expected=expected, found=wanted, hint=hint)
    return wanted


def _step_for(q: torch.Tensor, device: int | None) -> int:
    """The installed step that is fastest at q's length on its GPU; for tensors without memory, on any GPU."""
    length = q.shape[1] if q.dim() > 1 else 0  # the operator's own check refuses a q of fewer dimensions
    steps = _steps_on(device)
    return [steps[0][1], *(step for start, step in steps if length >= start)][-1]


def _steps_on(device: int | None) -> tuple[tuple[int, int], ...]:
    """Pairs (least length, step to take from there on) for a GPU; None: for any GPU."""
    return _installed_choices(*(_gpu(device) or (None, None)))


def _general_step(k: torch.Tensor, device: int | None, causal: bool) -> int:
    """The installed step for k's length among those whose kernels take any lengths, heads and scales."""
    length = k.shape[1] if k.dim() > 1 else 0
    steps = _general_steps(device, causal)
    return [steps[0][1], *(step for start, step in steps if length >= start)][-1]


def _general_steps(device: int | None, causal: bool) -> tuple[tuple[int, int], ...]:
    """Pairs (least length, step) as `_steps_on`: those measured with a mask if they are installed, else the newest."""
    gpu, arch = _gpu(device) or (None, None)
    newest = _general_step_on(arch, "causal" if causal else "none")  # an error on a GPU that runs none
    return (_measured(gpu) if causal else ()) or ((1, newest),)


def _packed_step(device: int | None, causal: bool) -> int:
    """The newest installed step for packed sequences on this GPU; None: on any."""
    return _general_step_on((_gpu(device) or (None, None))[1], "causal" if causal else "none", packed=True)


@cache
def _measured(gpu: str | None) -> tuple[tuple[int, int], ...]:
    """The measured choice with a causal mask, empty if one of its steps is not installed."""
    from flashladder.ladder.selection import choices

    found = tuple((start, steps[0]) for start, steps in choices(gpu, mask="causal"))
    return found if {step for _, step in found} <= {*_installed()} else ()


# torch.compile calls these while it traces, instead of tracing into them. As a decorator it would have no types.
_mark_constant: Any = torch.compiler.assume_constant_result
_mark_constant(_resolve)
_mark_constant(_steps_on)
_mark_constant(_general_steps)
_mark_constant(_packed_step)
_mark_constant(_refuse)


def library_name(iteration: int) -> str:
    """The package that an iteration's wheel installs, such as ``flashladder_07``.

    Raises:
        FlashladderError: there is no such iteration.
    """
    if isinstance(iteration, bool) or not isinstance(iteration, int) or not 1 <= iteration <= LAST_ITERATION:
        _refuse("iteration", f"an integer from 1 to {LAST_ITERATION}", repr(iteration))
    return LIBRARIES[iteration]  # by index: torch.compile then takes a varying iteration for a constant, not a symbol


@cache
def _built(library: str) -> tuple[str, ...]:
    """Loads an installed library; the short forms of its configurations."""
    number = LIBRARIES.index(library)
    if find_spec(library) is None:
        what, hint = "this iteration is not installed here", f"build it into this environment: invoke build {number}"
        raise FlashladderError(what, where=f"iteration {number}", expected=f"the package {library}", hint=hint)
    try:
        built: tuple[str, ...] = import_module(library).configurations()
    except ImportError as error:
        raise FlashladderError(str(error), where=f"iteration {number}") from error
    return built


@cache
def _gpu(device: int | None) -> tuple[str, str] | None:
    """The driver's name of a GPU, and its architecture, ``sm_90``; None for tensors without memory (meta, fake)."""
    if device is None or not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability(device)
    return torch.cuda.get_device_name(device), f"sm_{major}{minor}"


@cache
def _tuned(iteration: int, dtype: str, gpu: str, arch: str, mask: Mask = "none", *, packed: bool = False) -> str:
    """The short form that iterations/*.yaml gives for a GPU (`configs_for`)."""
    from flashladder.ladder.gpus import configs_for, gpu_key
    from flashladder.ladder.iteration import load_iteration

    config = load_iteration(iteration).configs[configs_for(gpu_key(gpu), arch)]
    return str(config.with_dtype(dtype).with_mask(mask).with_packed(packed))


@cache
def _installed_choices(gpu: str | None, arch: str | None) -> tuple[tuple[int, int], ...]:
    """The first installed step of each of a GPU's `choices`; the first step if none is installed."""
    from flashladder.ladder.selection import choices

    installed = _installed()
    return tuple(
        (start, next((step for step in steps if step in installed), steps[0])) for start, steps in choices(gpu, arch)
    )


@cache
def _general_step_on(arch: str | None, mask: Mask, *, packed: bool = False) -> int:
    """As `_general_step`, by architecture and mask; `packed`: for packed sequences."""
    from flashladder.ladder.iteration import load_all

    able = [step for step in load_all() if step.family.general(step.parts) and mask in step.family.masks(step.parts)]
    able = [step for step in able if step.family.packs(step.parts)] if packed else able
    here = [step.number for step in able if arch is None or step.family.runs_on(arch)]
    what = "a causal mask" if mask == "causal" else "different lengths or heads, a scale or a log-sum-exp"
    what = "packed sequences" if packed else what
    if not here:
        needs = " or ".join(dict.fromkeys(step.family.needs for step in able))
        raise FlashladderError(f"no kernel computes attention with {what} on this GPU", expected=needs, found=arch)
    installed = [number for number in _installed() if number in here]
    if not installed:
        expected = f"iteration {' or '.join(map(str, here))}"
        hint = f"build it into this environment: invoke build {here[-1]}"
        what = f"no installed iteration computes attention with {what}"
        raise FlashladderError(what, expected=expected, hint=hint)
    return installed[-1]


def _installed() -> list[int]:
    """The iterations whose wheels are installed."""
    return [number for number in range(1, LAST_ITERATION + 1) if find_spec(library_name(number))]
