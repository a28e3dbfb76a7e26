"""Repeats one cell: an iteration, cuDNN and, where they are installed, FA3 and FA4, in turn on the same inputs."""

import argparse
from functools import partial
import importlib
from importlib import metadata
import os
from statistics import median
import sys
from typing import NoReturn

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attention


def positive(text: str) -> int:
    """A whole number from 1 on, for argparse."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, found {text!r}")
    return int(text)


def refuse(why: str) -> NoReturn:
    """Ends with one line and exit code 2: it could not run."""
    print(f"error: {why}", file=sys.stderr)
    raise SystemExit(2) from None


needs = "an H100 or H200, torch, and the wheel alone: pip install flashladder_27-*.whl && python one_cell.py"
parser = argparse.ArgumentParser(description="Times an iteration beside cuDNN, FA3 and FA4.", epilog=f"Needs {needs}")
parser.add_argument("--iteration", type=int, default=27)
parser.add_argument("--references", nargs="*", choices=("fa3", "fa4"), default=["fa3", "fa4"], help="beside cuDNN")
parser.add_argument("--seq-len", type=positive, default=4096)
parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16")
given, heads, d_head, rounds, warm_up = parser.parse_args(), 16, 128, 40, 10
length, batch, ours = given.seq_len, max(1, min(16, 65536 // given.seq_len)), f"flashladder_{given.iteration:02d}"
if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    refuse("expected an H100 or H200 that torch can use, found none; run this on one")
try:
    version = importlib.import_module(ours) and metadata.version(ours)  # brings torch.ops.flashladder_27
except ImportError as error:
    refuse(f"cannot load {ours} ({error}); `invoke build {given.iteration}` makes its wheel")
torch.manual_seed(0)
q, k, v = torch.randn(3, batch, length, heads, d_head, dtype=getattr(torch, given.dtype), device="cuda")
turned = [tensor.transpose(1, 2) for tensor in (q, k, v)]  # torch's own order of axes; nothing is copied
calls = {ours: lambda: getattr(torch.ops, ours).forward(q, k, v), "cudnn": lambda: attention(*turned)}
versions = {ours: version, "cudnn": torch.backends.cudnn.version()}
packages = {  # module, distribution, where it comes from
    "fa3": (
        "flash_attn_interface",
        "flash-attn-3",
        "git+https://github.com/Dao-AILab/flash-attention#subdirectory=hopper",
    ),
    "fa4": ("flash_attn.cute", "flash-attn-4", "flash-attn-4[cu13]"),
}
for name in given.references:
    module, distribution, source = packages[name]
    try:
        calls[name] = partial(importlib.import_module(module).flash_attn_func, q, k, v)
        versions[name] = metadata.version(distribution)
    except ImportError as error:
        calls.pop(name, None)
        print(f"without {name.upper()} ({error}): pip install '{source}' brings it")
flush = torch.empty(2**30, dtype=torch.uint8, device="cuda")  # far more than the L2; meanwhile the host gets ahead
marks = {name: [] for name in calls}
with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):  # cuDNN or an error, no other backend
    apart = (calls[ours]() - calls["cudnn"]().transpose(1, 2)).abs().max().item()
    for turn in range(warm_up + rounds):  # nothing is waited for: the card stays at work
        for name in sorted(calls, reverse=turn % 2 == 1):  # in turn, forth and back
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flush.zero_()
            start.record()
            calls[name]()
            end.record()
            marks[name].append((start, end))
    with torch.profiler.profile(acc_events=True) as seen:
        results = [call() for call in calls.values()]
        torch.cuda.synchronize()
us = {name: [1e3 * start.elapsed_time(end) for start, end in marks[name][warm_up:]] for name in calls}
print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; {given.dtype}, B={batch}, S={length}, H={heads}")
for name, times in us.items():
    tflops = 4 * batch * heads * length**2 * d_head / median(times) / 1e6
    print(f"{name:15s} {versions[name]!s:12s} {median(times):9.1f} us {tflops:7.1f} TFLOP/s")
print("kernels:", *dict.fromkeys(one.name for one in seen.events() if "CUDA" in str(one.device_type)), sep="\n  ")
time, best = min((median(times), name) for name, times in us.items() if name != ours)
faster = f"{time / median(us[ours]):.3f} times as fast as {best}"
print(f"{ours} is {faster}; largest difference to cuDNN {apart:.1e}", flush=True)
os._exit(0)  # at once: torch's profiler can break a process that leaves in the usual way
