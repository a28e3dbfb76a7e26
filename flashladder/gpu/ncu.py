"""Reads hardware counters of every iteration with Nsight Compute and compares them with the published kernels'.

Equal sectors, ldsm and tensor instructions prove that an iteration moves and multiplies what its published peer does,
at any clock. A profiler or sanitizer watches a process of its own (`Launches`). It draws inputs on the CPU and
copies them: no other kernel runs on the GPU, and every byte counts as initialised.

Run on a machine with a GPU and counter rights:
    python -m flashladder.gpu.ncu --all --out counters.json.gz       # also writes counters.csv beside it
    python -m flashladder.gpu.ncu 7 8
Exit code: 0 as published, 1 a counter differs, 2 it could not run.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
import io
from pathlib import Path
import sys
import tempfile

from pydantic import TypeAdapter

from flashladder.arguments import OUT, add_numbers, module_parser, output_result, require_numbers, seconds
from flashladder.build.wheel import chosen_configs, load_installed
from flashladder.cases.inputs import Case, make_tensors
from flashladder.columns import csv_records, csv_text
from flashladder.columns import table as aligned
from flashladder.errors import CheckFailed, FlashladderError, run_main
from flashladder.files import read_text, relative, write_atomic
from flashladder.gpu.device import open_device, origin, run_bounded
from flashladder.gpu.doctor import find_ncu
from flashladder.ladder.config import KernelConfig
from flashladder.names import CONFLICTS, KERNEL, LDSM, PUBLISHED_GPU, REGISTERS, SECTORS, TENSOR, WAVEFRONTS
from flashladder.paths import RESULTS
from flashladder.problem import Problem
from flashladder.results.files import write_result
from flashladder.results.schema import CounterResult, Kernel, kernel_key

PEER = RESULTS / "published" / "peer_h200_counters.csv"
SHAPE = Problem(batch=1, seq_len=1024, n_heads=16, d_head=128)  # of the peer's counters
CONFIGS = (PUBLISHED_GPU,)  # the peer was built with this GPU's configurations

REFUSED = "ERR_NVGPUCTRPERM"  # ncu prints it if only administrators may read counters
WAVEFRONT_TOLERANCE = 0.001
REGISTER_TOLERANCE = 16
COLUMNS = {"ID", "Kernel Name", "Metric Name", "Metric Value"}  # of ncu's table, that are read
NOISY = range(1, 8)  # iterations whose conflict counters vary from run to run: two pipelines share shared memory
STORE_NOISE = 0.2  # of their store wavefronts; nine readings had up to 18 % conflicts in iteration 2, 15 % in others
BESIDE_PRODUCTS = 0.3  # of store wavefronts while wgmma reads shared memory; iterations 21 to 24 had 8 to 25 %

Counters = Mapping[str, int]


@dataclass(frozen=True)
class Launches:
    """The kernels to launch on one shape, in order of iterations, then configurations."""

    numbers: tuple[int, ...]
    configs: tuple[str, ...]
    dtypes: tuple[str, ...]
    shape: Problem
    rare: bool = False  # also on the shapes where a kernel's control flow differs (few tiles, divergent warps)

    def command(self) -> list[str]:
        """The command line that launches them in a new process."""
        return [sys.executable, "-m", "flashladder.gpu.ncu", "--launch", SPEC.dump_json(self).decode()]

    def shapes(self, config: KernelConfig) -> tuple[Problem, ...]:
        """The shapes of a configuration's launches, in order."""
        rare = (*config.few_tiles, *config.parting) if self.rare else ()
        return (self.shape, *(Problem(batch=b, seq_len=s, n_heads=h, d_head=config.d_head) for b, s, h in rare))

    def kernels(self) -> list[tuple[int, KernelConfig]]:
        """Iteration and configuration of each kernel, in launch order."""
        chosen = {number: chosen_configs(number, self.configs, self.dtypes) for number in self.numbers}
        return [(number, config) for number, configs in chosen.items() for config in configs]

    def identities(self, arch: str) -> dict[str, Kernel]:
        """The identities of these kernels on a GPU of `arch`, by key."""
        found = (load_installed(number).identity(config, arch) for number, config in self.kernels())
        return {kernel.key: kernel for kernel in found}


SPEC = TypeAdapter(Launches)


def launch(launches: Launches) -> int:
    """Launches each kernel once per shape and waits; returns how many. `FlashladderError`: no wheel, failed launch."""
    import torch

    count = 0
    for number, config in launches.kernels():
        run = load_installed(number).run
        for shape in launches.shapes(config):
            drawn = make_tensors(Case("launch", shape, seed=number), config.dtype, "cpu")
            q, k, v, out = (tensor.to("cuda") for tensor in (drawn.q, drawn.k, drawn.v, drawn.out))
            try:
                run(q, k, v, out, config.short_form())
                torch.cuda.synchronize()
            except (ValueError, RuntimeError) as error:
                what, why = f"iteration {number} did not run", str(error).splitlines()[0]
                raise FlashladderError(what, where=config.short_form(), found=why, exit_code=1) from error
            count += 1
    return count


def read_peer(path: Path = PEER) -> dict[int, dict[str, int]]:
    """The published kernels' counters by iteration and metric."""
    text = read_text(path)
    try:
        rows = csv_records(io.StringIO(text))
        return {int(row["iteration"]): {k: int(v) for k, v in row.items() if k != "iteration"} for row in rows}
    except (KeyError, TypeError, ValueError) as error:
        raise FlashladderError("cannot read the published counters", where=relative(path), found=error) from error


def read_launches(text: str, metrics: Sequence[str]) -> list[tuple[str, dict[str, int]]]:
    """Each launch's kernel and counters from ncu's CSV; `FlashladderError`: refused, or a metric is missing or bad."""
    if REFUSED in text:
        what = f"the driver refuses hardware counters ({REFUSED}): this is a 'GPU without counters'"
        raise FlashladderError(what, hint="invoke doctor says how to open them")
    lines = text.splitlines()
    start = next((index for index, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise FlashladderError("ncu printed no table", found=(lines or ["nothing"])[-1])
    try:
        rows = csv_records(line for line in lines[start:] if line.startswith('"'))
    except ValueError as error:
        raise FlashladderError("ncu's table is damaged", found=error) from error
    launches: dict[int, tuple[str, dict[str, int]]] = {}
    for row in rows:
        if not row.keys() >= COLUMNS or not (row["ID"].isdecimal() and len(row["ID"]) < 10):
            raise FlashladderError("ncu's table is damaged", expected=", ".join(sorted(COLUMNS)), found=list(row))
        if not row["Metric Name"]:
            continue  # advice of a rule, not a metric
        try:
            value = round(float(row["Metric Value"].replace(",", "")))
        except (ValueError, OverflowError) as error:
            raise FlashladderError(f"ncu has no value for {row['Metric Name']}", found=row["Metric Value"]) from error
        launches.setdefault(int(row["ID"]), (row["Kernel Name"], {}))[1][row["Metric Name"]] = value
    for _, found in launches.values():
        if lacking := set(metrics) - found.keys():
            expected, names = min(lacking), ", ".join(sorted(found))
            raise FlashladderError("ncu did not measure a metric", expected=expected, found=names)
    return [launches[index] for index in sorted(launches)]


def profile(command: Sequence[str], timeout_s: float, tool: str, log: Path | None = None) -> str:
    """Runs a profiler and returns the text of `log`; `FlashladderError`: it failed, or did not end in time."""
    code, output = run_bounded(command, timeout_s)
    text = log.read_text(encoding="utf-8", errors="replace") if log and log.is_file() else ""
    if code is None:
        raise FlashladderError(f"{tool} did not end within {timeout_s:.0f} s")
    if code and REFUSED not in text:
        tail = (text + output).strip().splitlines()[-3:]
        raise FlashladderError(f"{tool} ended with exit code {code}", found=" / ".join(tail))
    return text


def run_ncu(
    program: Sequence[str], metrics: Sequence[str], timeout_s: float, *options: str
) -> tuple[list[tuple[str, dict[str, int]]], str]:
    """`read_launches` of a program, with unlocked clocks, and ncu's version; `FlashladderError`: no ncu, or failed."""
    if (ncu := find_ncu()) is None:
        raise FlashladderError("Nsight Compute is not installed", hint="install ncu, or put it on PATH")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        line = [
            str(ncu), "--clock-control", "none", "--metrics", ",".join(metrics), "--csv", "--print-units", "base",
            *options, "--log-file", str(log), *program,
        ]  # fmt: skip
        found = read_launches(profile(line, timeout_s, "ncu", log), metrics)
    _, version = run_bounded([str(ncu), "--version"], 60.0)
    return found, (version.strip().splitlines() or ["ncu"])[-1]


def read_counters(
    launches: Launches, metrics: Sequence[str], timeout_s: float
) -> tuple[dict[str, dict[str, int]], str]:
    """Each kernel's counters by its key, and ncu's version; errors as `run_ncu`, or of another number of launches."""
    found, version = run_ncu(launches.command(), metrics, timeout_s, "--kernel-name", f"regex:{KERNEL}")
    keys = [kernel_key(number, config.short_form()) for number, config in launches.kernels()]
    if len(found) != len(keys):
        raise FlashladderError("ncu saw another number of launches", expected=len(keys), found=len(found))
    return {key: counted for key, (_, counted) in zip(keys, found, strict=True)}, version


def traffic_differences(iteration: int, ours: Counters, theirs: Counters, whose: str) -> list[str]:
    """Counters of memory and tensor cores that differ by more than the hardware's noise; `whose` names `theirs`."""
    exact = [name for name in (*SECTORS, LDSM, TENSOR) if ours[name] != theirs[name]]
    found = [f"{name}: {ours[name]}, {whose} {theirs[name]}" for name in exact]
    noise = {"ld": WAVEFRONT_TOLERANCE, "st": STORE_NOISE if iteration in NOISY else 0.0}
    if not ours[LDSM]:  # a wavefront that waits for wgmma's is counted again, but not as a conflict
        stores = WAVEFRONTS.format("st")
        if not (1 - BESIDE_PRODUCTS) * theirs[stores] <= ours[stores] <= theirs[stores]:
            found.append(f"{stores}: {ours[stores]}, {whose} {theirs[stores]} less at most {BESIDE_PRODUCTS:.0%}")
        del noise["st"]
    for operation, share in noise.items():
        name, conflicts = WAVEFRONTS.format(operation), CONFLICTS.format(operation)
        if abs(ours[name] - theirs[name]) > share * theirs[name]:
            found.append(f"{name}: {ours[name]}, {whose} {theirs[name]} within {share:.1%}")
        mine, other = (one[name] - one[conflicts] for one in (ours, theirs))
        if mine != other:
            found.append(f"{name} without conflicts: {mine}, {whose} {other}")
    return found


def differences(iteration: int, ours: Counters, peer: Counters) -> list[str]:
    """Counters that differ from the published kernel's by more than their tolerance."""
    found = traffic_differences(iteration, ours, peer, "published")
    if abs(ours[REGISTERS] - peer[REGISTERS]) > REGISTER_TOLERANCE:
        found.append(f"{REGISTERS}: {ours[REGISTERS]}, published {peer[REGISTERS]} +- {REGISTER_TOLERANCE}")
    return found


def to_csv(result: CounterResult) -> str:
    """The counters as CSV: iteration, configuration, then one column per metric."""
    metrics = sorted(next(iter(result.counters.values())))
    named = ((result.kernels[key], found) for key, found in result.counters.items())
    rows = ([kernel.iteration, kernel.config, *(found[metric] for metric in metrics)] for kernel, found in named)
    return csv_text(["iteration", "config", *metrics], rows)


def csv_beside(path: Path) -> Path:
    """The path of a result's CSV: ``counters.csv`` beside ``counters.json.gz``."""
    return path.with_name(path.name.split(".")[0] + ".csv")


def table(counters: Mapping[str, Counters]) -> str:
    """A table of the main counters."""
    shown = {"registers": REGISTERS, "ld wavefr.": WAVEFRONTS.format("ld"), "conflicts": CONFLICTS.format("ld"),
             "st wavefr.": WAVEFRONTS.format("st"), "ld sectors": SECTORS[0], "ldsm": LDSM}  # fmt: skip
    rows = [[*(str(found[metric]) for metric in shown.values()), key] for key, found in counters.items()]
    return "\n".join(aligned([[*shown, "kernel"], *rows], None, right=range(len(shown))))


def main(argv: Sequence[str] | None = None) -> None:
    """Reads, prints and compares the counters; raises `CheckFailed` (exit code 1) for a difference."""
    description = "Reads hardware counters with ncu and compares them with the published kernels'."
    parser = module_parser("gpu.ncu", description, "7 8")
    add_numbers(parser)
    parser.add_argument("--out", type=output_result, help=f"{OUT}; a CSV goes beside it")
    parser.add_argument("--timeout", type=seconds, default=300.0, help="seconds that ncu may take")
    parser.add_argument("--launch", help=argparse.SUPPRESS)  # what a profiler watches: `Launches.command`
    options = parser.parse_args(argv)
    if options.launch:
        print(f"{launch(SPEC.validate_json(options.launch))} launches")
        return
    require_numbers(parser, options)
    peer, device = read_peer(), open_device()
    launches = Launches(tuple(options.numbers), CONFIGS, ("fp16",), SHAPE)
    counters, version = read_counters(launches, sorted(next(iter(peer.values()))), options.timeout)
    kernels = launches.identities(device.gpu.arch)
    result = CounterResult(**origin(device), kernels=kernels, shape=SHAPE, ncu=version, counters=counters)
    if options.out:
        write_result(options.out, result)
        write_atomic(csv_beside(options.out), to_csv(result))
    found = [
        f"{key}: {line}"
        for key, ours in counters.items()
        if (number := kernels[key].iteration) in peer  # later steps have no published peer
        for line in differences(number, ours, peer[number])
    ]
    print(table(counters))
    print("\n".join(found) if found else "as published: sectors, ldsm, tensor instructions, wavefronts, registers")
    if found:
        raise CheckFailed(f"{len(found)} counters differ from the published kernels'")


if __name__ == "__main__":
    run_main(main)
