"""What is timed: kernels of the ladder, and the references: torch's FA2 and cuDNN, FA3, FA4 and the flash-attn wheel.

References take (B, S, H, D) tensors of any `Problem`, and are launched, checked and timed like kernels. All are paired
with FA2 (rule 2 of the measurement protocol). A reference that does not run here is left out with one line.

``python -m flashladder.bench.references fa2 fp16 --out kernel.json`` asks torch's profiler for the kernel that a
reference launches, in a process of its own: CUPTI crashed 6 of 18 processes at their end on an H200.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
import importlib
from importlib import metadata
from itertools import product
import json
import os
from pathlib import Path
import re
import sys
from tempfile import TemporaryDirectory
from typing import Any, NoReturn
import warnings

from flashladder.arguments import module_parser
from flashladder.cases.inputs import Case, Tensors, make_tensors
from flashladder.cases.reference import Run
from flashladder.errors import FlashladderError, one_line_errors
from flashladder.files import load_json, write_atomic
from flashladder.gpu.device import run_bounded
from flashladder.ladder.config import D_HEAD, KernelConfig
from flashladder.lazy_torch import Tensor, torch
from flashladder.names import DTYPES, REFERENCES
from flashladder.problem import Problem
from flashladder.results.schema import Reference, kernel_key

FA2 = "fa2"  # the reference that everything is paired with
_CUDNN_OP = "scaled_dot_product_attention, SDPBackend.CUDNN_ATTENTION"
REFERENCE_OP = "torch.ops.aten._flash_attention_forward"
PROFILER_S = 300.0  # limit of the profiler's process; FA4 compiles at its first call
PROBE = Problem(batch=1, seq_len=1024, n_heads=16, d_head=D_HEAD)  # what a reference is tried and profiled on
_TRAITS = re.compile(r"kernel_traits<(?:\(int\))?\d+, *(?:\(int\))?(\d+), *(?:\(int\))?(\d+)")  # d_head, B_r, B_c
_C = r"(?:cute::)?C<(?:\(int\))?(\d+)>"
# B_r and B_c of ``CollectiveMainloopFwdSm90<2, tuple<cluster>, tuple<C<128>, C<176>, C<128>>, ...``
_FA3_TILE = re.compile(rf"CollectiveMainloopFwdSm90<.*?tuple<.*?tuple<{_C}, *{_C},")
_KNOB = re.compile(r"_(\d+x\d+x\d+)_")  # in cuDNN's kernel names: rows of a warp group's product, keys, d_head

# Of (q, k, v, causal=False): (B, S, H, D), K and V with perhaps fewer heads; returns O. Of packed sequences, which are
# one sample, also of `bounds` (`Tensors.bounds`) and `longest`, the most queries and keys of one.
Forward = Callable[..., Any]
PACKED_ARGUMENTS = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")  # of flash_attn_varlen_func


@dataclass(frozen=True)
class Subject:
    """Something to time.

    `key`: a kernel's key, or a reference's name. `launch` queues one launch on the tensors and copies nothing.
    `returns`: it returns O, (B, S, H, D), instead of writing it into the tensors' O.
    """

    key: str
    dtype: str
    launch: Callable[[Tensors], object]
    returns: bool = False

    def fill(self, tensors: Tensors) -> None:
        """Launches once and leaves the result in `tensors.out`."""
        found = self.launch(tensors)
        if self.returns:
            tensors.out.copy_(found)  # type: ignore[arg-type]  # a tensor, as `returns` says


def kernel_subject(iteration: int, config: KernelConfig, run: Run, variant: str = "") -> Subject:
    """A kernel of the ladder, or an ablation of one: `run(q, k, v, out, short_form)`."""
    form = config.short_form()
    key = kernel_key(iteration, form, variant)
    return Subject(key, config.dtype, lambda one: run(one.q, one.k, one.v, one.out, form, **one.packing))


@dataclass(frozen=True)
class Backend:
    """How to call a reference."""

    op: str  # its name in results
    forward: Callable[[], Forward]  # imports it
    version: Callable[[], str | None]  # None: torch's
    tile: Callable[..., str | None]  # by the name of its kernel, and causal=False
    marks: str  # a pattern that matches only names of its kernels


def reference_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    bounds: Sequence[Tensor] = (),
    longest: tuple[int, int] = (0, 0),
) -> Tensor:
    """FA2 forward on (B, S, H, D) tensors, as torch ships it; it takes fewer heads of K and V as they are."""
    fa2 = torch.ops.aten._flash_attention_forward  # noqa: SLF001 - torch exposes FA2 itself under no public name
    result: Tensor
    if bounds:
        result = fa2(q[0], k[0], v[0], *bounds, *longest, 0.0, causal, False)[0][None]
    else:
        result = fa2(q, k, v, None, None, q.shape[1], k.shape[1], 0.0, causal, False)[0]
    return result


def unaligned(problem: Problem) -> str:
    """Why references cannot be timed on a problem, as one line; empty if they can.

    With other lengths, torch aligns a causal mask at the top left, other libraries and the kernels at the bottom right.
    """
    if problem.mask == "none" or (problem.kv_len == problem.seq_len and problem.kv_lengths == problem.lengths):
        return ""
    expected = f"expected kv_len {problem.seq_len}, found {problem.kv_len}"
    return f"with unequal lengths a {problem.mask} mask is another one in torch: {expected}"


def on_problem(forward: Forward, problem: Problem) -> Forward:
    """The reference's function of (q, k, v) on a problem; `FlashladderError` if its mask is not the kernels'."""
    if why := unaligned(problem):
        raise FlashladderError(why, hint="leave the mask out, or take equal lengths")
    causal = {"causal": True} if problem.mask == "causal" else {}
    longest = {"longest": (max(problem.lengths), max(problem.kv_lengths))} if problem.is_packed else {}
    return partial(forward, **causal, **longest) if causal or longest else forward


def _cudnn() -> Forward:
    """CuDNN's attention through torch, on transposed views: nothing is copied."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def forward(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, **packing: Any) -> Tensor:
        if packing:  # torch 2.11 has no public way to them
            raise FlashladderError("cuDNN takes no packed sequences through torch")
        grouped = q.shape[2] != k.shape[2]
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            out = scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)
        return out.transpose(1, 2)

    return forward


def _package(module: str, version: str | Callable[[], str], tile: Callable[..., str | None], marks: str) -> Backend:
    """The functions of an optional package; they return O, or a tuple of O and the log sums."""

    def load() -> Forward:
        package = importlib.import_module(module)

        def forward(
            q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, bounds: Any = (), longest: Any = ()
        ) -> Any:
            if bounds:
                of_packed = dict(zip(PACKED_ARGUMENTS, (*bounds, *longest), strict=True))
                found = package.flash_attn_varlen_func(q[0], k[0], v[0], **of_packed, causal=causal)
            else:
                found = package.flash_attn_func(q, k, v, causal=causal)
            out = found[0] if isinstance(found, tuple | list) else found
            return out[None] if bounds else out

        return forward

    known = version if callable(version) else partial(metadata.version, version)
    return Backend(f"{module}.flash_attn_func", load, known, tile, marks)


def _cudnn_version() -> str | None:
    found = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]  # torch does not annotate it
    return None if found is None else f"{found // 10000}.{found % 10000 // 100}.{found % 100}"


def _fa4_version() -> str:
    """The versions of FA4 and of its compiler, which compiles it at first use."""
    return f"{metadata.version('flash-attn-4')}, nvidia-cutlass-dsl {metadata.version('nvidia-cutlass-dsl')}"


def _named_tile(pattern: re.Pattern[str]) -> Callable[..., str | None]:
    """Reads a tile such as ``128x64`` from a kernel's name: the groups of `pattern`."""
    return lambda kernel, **_: "x".join(found.groups()) if (found := pattern.search(kernel)) else None


def _fa4_tile(kernel: str, *, causal: bool = False) -> str | None:
    """FA4's tile on Hopper for d_head = 128, from its own table; kernel names do not contain it."""
    if "sm90" not in kernel.lower():
        return None
    try:
        from flash_attn.cute import interface  # type: ignore[import-not-found]  # optional package

        chosen = interface._tile_size_fwd_sm90(D_HEAD, D_HEAD, causal, False)  # noqa: SLF001 - under no public name
    except (ImportError, AttributeError, TypeError):
        return None  # another version keeps its table elsewhere
    return f"{chosen.m_block_size}x{chosen.n_block_size}"


BACKENDS: dict[str, Backend] = {
    FA2: Backend(REFERENCE_OP, lambda: reference_forward, lambda: None, _named_tile(_TRAITS), r"pytorch_flash::"),
    "cudnn": Backend(_CUDNN_OP, _cudnn, _cudnn_version, _named_tile(_KNOB), "cudnn"),
    "fa3": _package("flash_attn_interface", "flash-attn-3", _named_tile(_FA3_TILE), r"FlashAttnFwdSm90"),
    "fa4": _package("flash_attn.cute", _fa4_version, _fa4_tile, r"flash_attn.*cute"),
    "flash-attn": _package("flash_attn", "flash-attn", _named_tile(_TRAITS), r"^(?!.*pytorch_flash).*\bflash_fwd"),
}
INSTALL = {
    "fa3": "pip install 'git+https://github.com/Dao-AILab/flash-attention#subdirectory=hopper'",
    "fa4": "pip install 'flash-attn-4[cu13]'",
    "flash-attn": "pip install flash-attn",
}


@dataclass(frozen=True)
class Arms:
    """References that run here, their identities by name, and one line for each reference that is left out."""

    subjects: tuple[Subject, ...] = ()
    identities: Mapping[str, Reference] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


def lacking(name: str, dtype: str, problem: Problem = PROBE) -> str | None:
    """Why the reference does not run here on such a problem, in one line; None: it runs. May compile it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns once per reason why a backend refuses
            forward = on_problem(BACKENDS[name].forward(), problem)
            made = probe(dtype, problem)
            finite = bool(forward(made.q, made.k, made.v, **made.packing).isfinite().all())  # waits for the GPU
    except ImportError as error:
        return f"{name}: not installed ({_line(error)})" + (f": {INSTALL[name]}" if name in INSTALL else "")
    except Exception as error:  # noqa: BLE001 - libraries and compilers raise anything; leave the reference out
        return f"{name}: does not run on this GPU in {dtype}: {_line(error)}"
    return None if finite else f"{name}: its output in {dtype} on this GPU is not finite"


def probe(dtype: str, problem: Problem = PROBE) -> Tensors:
    """Tensors of a problem, N(0, 1) on the GPU."""
    return make_tensors(Case("probe", problem), dtype, "cuda")


def like(problem: Problem) -> Problem:
    """The `PROBE` with the heads, the mask and the kv_len of a problem: libraries choose their kernels by these."""
    if problem.is_packed:
        return problem
    own = {name: getattr(problem, name) for name in ("n_heads", "n_kv_heads", "mask")}
    keys = PROBE.kv_len if problem.kv_len == problem.seq_len else problem.kv_len
    return Problem(**{**PROBE.model_dump(), **own, "kv_len": keys}) if problem.kind else PROBE


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else text[:157] + "..."


def reference_subject(name: str, dtype: str, problem: Problem = PROBE) -> Subject:
    """The reference as something to time on problems with this mask; only a check copies the O that it returns.

    Raises:
        ImportError: it is not installed.
        FlashladderError: its mask is not the kernels'.
    """
    forward = on_problem(BACKENDS[name].forward(), problem)
    return Subject(name, dtype, lambda one: forward(one.q, one.k, one.v, **one.packing), returns=True)


def arms(names: Sequence[str], dtypes: Sequence[str] = DTYPES, problem: Problem = PROBE) -> Arms:
    """The references `names` that run here on such a problem, by dtype; ``all``: every one but FA2, always timed."""
    wanted = dict.fromkeys(name for given in names for name in (REFERENCES if given == "all" else (given,)))
    subjects: list[Subject] = []
    left_out: dict[str, None] = {}
    for name, dtype in product(wanted, dtypes):
        if reason := lacking(name, dtype, like(problem)):
            left_out[reason] = None
        else:
            subjects.append(reference_subject(name, dtype, problem))
    return Arms(tuple(subjects), {one.key: reference_identity({}, one.key) for one in subjects}, tuple(left_out))


def reference_identity(kernels: Mapping[str, str], name: str = FA2) -> Reference:
    """A reference as it is installed here; `kernels` maps dtype to the name of its kernel (`profiled`)."""
    backend, cuda = BACKENDS[name], torch.version.cuda
    version = backend.version()
    return Reference(op=backend.op, version=version, torch=torch.__version__, cuda=cuda, kernels=dict(kernels))


def reference_kernel(dtype: str, name: str = FA2, problem: Problem = PROBE) -> str | None:
    """The name of the kernel that a reference launches; None: the profiler sees none, or no second process may run.

    It uses the GPU: do not call it while anything is timed.
    """
    with TemporaryDirectory(prefix="flashladder-") as folder:
        out = Path(folder, "kernel.json")
        command = [sys.executable, "-m", "flashladder.bench.references", name, dtype, "--out", str(out)]
        run_bounded([*command, "--problem", problem.model_dump_json()], PROFILER_S)
        found: str | None = load_json(out.read_bytes())["kernel"] if out.is_file() else None
        return found


def seen_kernel(dtype: str, name: str, problem: Problem) -> str | None:
    """As `reference_kernel`, by this process's profiler."""
    from torch.profiler import ProfilerActivity, profile

    made = probe(dtype, problem)
    forward = partial(on_problem(BACKENDS[name].forward(), problem), made.q, made.k, made.v, **made.packing)
    forward()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as seen:
        forward()
        torch.cuda.synchronize()
    return longest_kernel(seen.events())


def longest_kernel(events: Sequence[Any]) -> str | None:
    """The name of the longest launch among a profiler's events; copies and fills do not count."""
    launches = [
        (float(event.time_range.elapsed_us()), str(event.name))
        for event in events
        if str(event.device_type).endswith("CUDA") and not event.name.startswith(("Memset", "Memcpy"))
    ]
    return max(launches, default=(0.0, None))[1]


def profiled(reference: Reference, name: str, dtypes: Sequence[str], problem: Problem = PROBE) -> Reference:
    """The reference with its tile and its kernels' names on such a problem; asks the profiler for unknown names."""
    names, probed = dict(reference.kernels), like(problem)
    for dtype in dtypes:
        if dtype not in names and (kernel := reference_kernel(dtype, name, probed)):
            names[dtype] = kernel
    if names == reference.kernels:
        return reference
    tiles = (BACKENDS[name].tile(kernel, causal=problem.mask == "causal") for kernel in names.values())
    tile = next(filter(None, tiles), reference.tile)
    return reference.model_copy(update={"kernels": names, "tile": tile})


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Writes ``{"kernel": name or null}`` and ends without CUPTI's exit handlers."""
    parser = module_parser("bench.references", "Asks which kernel a reference launches.", "fa2 fp16 --out kernel.json")
    parser.add_argument("name", choices=BACKENDS)
    parser.add_argument("dtype", choices=DTYPES)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--problem", type=Problem.model_validate_json, default=PROBE, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    with one_line_errors():
        kernel = seen_kernel(arguments.dtype, arguments.name, arguments.problem)
        write_atomic(arguments.out, json.dumps({"kernel": kernel}))
    os._exit(0)


if __name__ == "__main__":
    main()
