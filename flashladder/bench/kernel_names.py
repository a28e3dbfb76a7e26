"""Asks torch's profiler, in a process of its own, for the kernel that a reference launches.

Why a process of its own: once torch's profiler has looked, CUPTI hands its buffers back while the process ends, to a
profiler that is gone: glibc ended 6 of 18 runs of ``bench`` on an H200 then (``free(): invalid pointer``, exit code
134), after everything was written. This program leaves without that, and what times kernels never loads CUPTI.

Run, on a machine with a GPU: ``python -m flashladder.bench.kernel_names fa2 fp16 --out kernel.json``.
"""

from __future__ import annotations

from collections.abc import Sequence
import json
import os
from pathlib import Path
import sys
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from flashladder.arguments import Parser
from flashladder.bench.references import BACKENDS, FA2, backend, probe
from flashladder.errors import one_line_errors
from flashladder.files import load_json, write_atomic
from flashladder.gpu.device import run_bounded
from flashladder.ladder.config import DTYPES
from flashladder.results.schema import Reference

TIMEOUT_S = 300.0  # FA4 is compiled by its first call


def reference_kernel(dtype: str, name: str = FA2) -> str | None:
    """The name of the kernel that a reference launches; None when the profiler sees none, or no second process may run.

    Not to be called while anything is timed: it uses the GPU.
    """
    with TemporaryDirectory(prefix="flashladder-") as folder:
        out = Path(folder, "kernel.json")
        program = [sys.executable, "-m", "flashladder.bench.kernel_names", name, dtype, "--out", str(out)]
        run_bounded(program, TIMEOUT_S)
        if not out.is_file():
            return None
        found: str | None = load_json(out.read_bytes())["kernel"]
        return found


def seen_kernel(dtype: str, name: str) -> str | None:
    """The same, by this process's profiler: of several launches the longest."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    q = probe(dtype)
    forward = backend(name).forward()
    forward(q, q, q)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as seen:
        forward(q, q, q)
        torch.cuda.synchronize()
    return longest_kernel(seen.events())


def longest_kernel(events: Sequence[Any]) -> str | None:
    """The name of the longest launch among a profiler's events; copies and fills do not count."""
    launches = [
        (float(event.time_range.elapsed_us()), str(event.name))
        for event in events
        if str(event.device_type).endswith("CUDA") and not event.name.startswith(("Memset", "Memcpy"))
    ]
    return max(launches)[1] if launches else None


def profiled(reference: Reference, name: str, dtypes: Sequence[str]) -> Reference:
    """The same reference with its kernels' names in these dtypes, and its tile; asks the profiler for new ones."""
    names = dict(reference.kernels)
    for dtype in dtypes:
        if dtype not in names and (kernel := reference_kernel(dtype, name)):
            names[dtype] = kernel
    if names == reference.kernels:
        return reference
    tile = next((tile for kernel in names.values() if (tile := backend(name).tile(kernel))), reference.tile)
    return reference.model_copy(update={"kernels": names, "tile": tile})


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Writes ``{"kernel": name or null}``, and ends at once: nothing of CUPTI runs after that."""
    parser = Parser(
        prog="python -m flashladder.bench.kernel_names", description="Asks which kernel a reference launches.",
        epilog="example: python -m flashladder.bench.kernel_names fa2 fp16 --out kernel.json",
    )  # fmt: skip
    parser.add_argument("name", choices=BACKENDS)
    parser.add_argument("dtype", choices=DTYPES)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args(argv)
    with one_line_errors():
        write_atomic(arguments.out, json.dumps({"kernel": seen_kernel(arguments.dtype, arguments.name)}))
    os._exit(0)


if __name__ == "__main__":
    main()
