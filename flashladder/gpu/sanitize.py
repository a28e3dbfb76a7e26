"""compute-sanitizer over every iteration: memory errors, races, misused barriers, uninitialised reads.

Each tool runs every kernel once, in one process. A kernel whose control flow depends on the shape also runs on those
shapes: small grids whose tiles are split, divergent warps.

Run on a machine with a GPU and compute-sanitizer:
    python -m flashladder.gpu.sanitize --all --out sanitizer.json.gz
Exit code: 0 clean, 1 a tool found something, 2 it could not run.
"""

from __future__ import annotations

from collections.abc import Sequence
import os
from pathlib import Path
import re
import time

from flashladder.arguments import CONFIGS, OUT, add_numbers, module_parser, output_result, require_numbers, seconds
from flashladder.errors import CheckFailed, FlashladderError, run_main
from flashladder.gpu.device import open_device, origin, run_bounded
from flashladder.gpu.doctor import find_tool
from flashladder.gpu.ncu import Launches
from flashladder.names import DTYPES, PUBLISHED_GPU
from flashladder.problem import Problem
from flashladder.results.files import write_result
from flashladder.results.schema import Finding, SanitizerResult

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
SHAPE = Problem(batch=1, seq_len=256, n_heads=16, d_head=128)  # a few blocks per CTA, and iteration 16's row stride
TAIL = 4000  # characters of a tool's output that are kept

_ERRORS = re.compile(r"(?:ERROR SUMMARY: (\d{1,9}) error|RACECHECK SUMMARY: (\d{1,9}) hazard)")


def count_errors(text: str) -> int | None:
    """Errors or hazards in the tool's summary line; None: there is no such line."""
    found = _ERRORS.findall(text)
    return int(found[-1][0] or found[-1][1]) if found else None


def run_tool(sanitizer: Path, tool: str, launches: Launches, timeout_s: float) -> Finding:
    """One tool over all launches; a tool that fails or does not end is not clean."""
    command = [str(sanitizer), "--tool", tool, "--error-exitcode", "86", *launches.command()]
    start = time.monotonic()
    env = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # one allocation per tensor shows writes past its end
    code, output = run_bounded(command, timeout_s, env)
    errors, took = count_errors(output), round(time.monotonic() - start, 2)
    tail = output[-TAIL:] + ("" if code is not None else f"\ndid not end within {timeout_s:.0f} s")
    return Finding(tool=tool, clean=code == 0 and errors == 0, errors=errors, seconds=took, tail=tail)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the tools; raises `CheckFailed` (exit code 1) if one is not clean."""
    description = "Runs compute-sanitizer over kernels at a small shape, both dtypes."
    parser = module_parser("gpu.sanitize", description, "7 --tools racecheck")
    add_numbers(parser)
    parser.add_argument("--configs", nargs="+", metavar="KEY", default=[PUBLISHED_GPU], help=CONFIGS)
    parser.add_argument("--out", type=output_result, help=OUT)
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--timeout", type=seconds, default=240.0, help="seconds that one tool may take")
    options = parser.parse_args(argv)
    require_numbers(parser, options)
    sanitizer = find_tool("compute-sanitizer", "/usr/local/cuda*/bin")
    if sanitizer is None:
        raise FlashladderError("compute-sanitizer is not installed", hint="it comes with the CUDA toolkit")
    device = open_device()
    launches = Launches(tuple(options.numbers), tuple(options.configs), DTYPES, SHAPE, rare=True)
    findings = []
    for tool in options.tools:
        findings.append(run_tool(sanitizer, tool, launches, options.timeout))
        last = findings[-1]
        print(f"{tool:10s} {'clean' if last.clean else 'NOT CLEAN'}  {last.seconds:.0f} s", flush=True)
    kernels = launches.identities(device.gpu.arch)
    result = SanitizerResult(**origin(device), kernels=kernels, shape=SHAPE, findings=tuple(findings))
    if options.out:
        write_result(options.out, result)
    dirty = [finding for finding in findings if not finding.clean]
    for finding in dirty:
        print(finding.tail)
    if dirty:
        raise CheckFailed("not clean: " + ", ".join(f"{found.tool} ({found.errors} errors)" for found in dirty))


if __name__ == "__main__":
    run_main(main)
