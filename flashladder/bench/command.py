"""How fast is a kernel beside FA2? Paired timings on this GPU, with raw samples, GPU state and an A/A floor.

The command follows rules 1 to 11 of the measurement protocol and resumes if `--out` exists. Commands that keep
a GPU busy for minutes share code that is here as well: options, the lock on the card, the budget (`on_this_gpu`).

Run on a machine with a GPU:
    python -m flashladder.bench 7 --configs a100
    python -m flashladder.bench --all --configs prog --out bench.json.gz
    python -m flashladder.bench 16 --references all                  # cuDNN, FA3, FA4, flash-attn as further arms
    python -m flashladder.bench 16 --tune --out tune.json.gz         # ranks configurations at one length
    python -m flashladder.bench 16 --method nvbench ncu torch warm   # other timers beside the paired one
Exit code: 0 done, 1 a kernel is wrong or a time impossible, 2 it could not run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
import time

from pydantic import BaseModel
from tqdm import tqdm

from flashladder import columns
from flashladder.arguments import (
    CONFIGS,
    DTYPE,
    METHODS,
    OUT,
    Parser,
    add_numbers,
    program_of,
    require_numbers,
    result_file,
    seconds,
    several_of,
    whole,
)
from flashladder.bench.references import FA2, Arms, Subject, arms, kernel_subject, profiled, reference_identity
from flashladder.bench.timing import bench_group, cuda_hardware, estimate_s, prepare
from flashladder.build.installed import chosen_configs, load_installed
from flashladder.cases.inputs import SEQ_LENS, shape_of
from flashladder.errors import CheckFailed, FlashladderError
from flashladder.gpu.device import Device, exclusive, open_device
from flashladder.ladder.gpus import gpu_key
from flashladder.ladder.iteration import load_all, load_iteration, runnable
from flashladder.names import DTYPES, GPUS, REFERENCES
from flashladder.problem import Shape
from flashladder.results.derive import Plan, derive, problems
from flashladder.results.files import OTHER_FILE, load_as, write_result
from flashladder.results.schema import BenchResult, Group, Kernel, Process, Settings, Summary
from flashladder.results.statistics import stated

TUNE_LENGTH = 4096
ARMS = ("all", *REFERENCES)
MARKS = {"faster": "+", "slower": "-", "same": "=", "ambiguous": "?"}
HEADLINE = 4096
ROUGH_TFLOPS = 300.0  # FA2 on an H200, for the estimate only


def choose(options: argparse.Namespace, arch: str) -> tuple[list[Subject], dict[str, Kernel]]:
    """The kernels that the command line asks for, and their identities.

    Raises:
        FlashladderError: a wheel is missing, or does not hold a configuration (when tuning, those are left out).
    """
    timed: list[Subject] = []
    identities: dict[str, Kernel] = {}
    for number in runnable(options.numbers, arch):
        installed = load_installed(number)
        for config in chosen_configs(number, options.configs, options.dtypes):
            if options.tune and config.short_form() not in installed.built:
                continue
            installed.require(config)
            timed.append(kernel_subject(number, config, installed.run))
            identities[timed[-1].key] = installed.identity(config, arch)
    if not timed:
        raise FlashladderError(
            "no kernel to time", hint="build the configurations first: invoke build N --configs tune"
        )
    return timed, identities


def default_key(gpu_name: str) -> str:
    """The configurations that are timed when none are named: those of this GPU, or of all where it has none."""
    key = gpu_key(gpu_name)
    return key if key in GPUS else "prog"


def earlier(path: Path | None, fresh: BenchResult) -> BenchResult:
    """`fresh`, with the groups of an earlier file that still hold: same GPU, settings and machine code."""
    if path is None or not path.is_file():
        return fresh
    old = load_as(path, BenchResult, hint=OTHER_FILE)
    mine, theirs = ((one.gpu.uuid, one.settings, one.purpose, one.protocol_version, one.reference.torch)
                    for one in (fresh, old))  # fmt: skip
    require_same(path, zip(("GPU", "settings", "purpose", "protocol", "torch"), mine, theirs, strict=True))
    for key in sorted(old.kernels.keys() & fresh.kernels.keys()):
        require_same_code(path, fresh.kernels[key], old.kernels[key])
    both = sorted(old.references.keys() & fresh.references.keys())
    versions = ((f"version of {name}", fresh.references[name].version, old.references[name].version) for name in both)
    require_same(path, versions)
    return fresh.model_copy(
        update={
            "kernels": old.kernels | fresh.kernels,
            "reference": old.reference,
            "references": fresh.references | old.references,
            "processes": (*old.processes, fresh.processes[0].model_copy(update={"index": len(old.processes)})),
            "groups": old.groups,
        }
    )


def missing(result: BenchResult, subjects: Sequence[Subject], dtype: str, shape: Shape) -> list[Subject]:
    """Subjects of `dtype` that have no pairs at this shape yet."""
    done = {
        series.kernel
        for group in result.groups
        if (group.dtype, group.shape) == (dtype, shape)
        for series in group.series
        if series.pairs
    }
    return [subject for subject in subjects if subject.dtype == dtype and subject.key not in done]


def new_result(
    options: argparse.Namespace, device: Device, kernels: dict[str, Kernel], beside: Arms, flush_bytes: int
) -> BenchResult:
    """A result without groups."""
    started, plan = datetime.now(timezone.utc).isoformat(timespec="seconds"), options.plan
    return BenchResult(
        purpose="tune" if options.tune else "report",
        rung=device.rung,
        gpu=device.gpu,
        host=device.host,
        kernels=kernels,
        reference=reference_identity({}),
        references=dict(beside.identities),
        settings=Settings(pairs=plan.pairs, blocks=plan.blocks, min_pairs=plan.min_pairs, flush_bytes=flush_bytes),
        processes=(Process(index=0, started_utc=started, foreign_before=device.foreign_before),),
        groups=(),
    )


def run_bench(options: argparse.Namespace, device: Device) -> tuple[BenchResult, bool]:
    """Times everything that is missing, writing after each group; the flag says whether all of it was reached."""
    start = time.monotonic()
    hardware, flush_bytes = cuda_hardware(device.telemetry.sample, device.gpu.l2_bytes)
    kernels, identities = choose(options, device.gpu.arch)
    beside = arms(options.references, options.dtypes)
    for line in beside.left_out:
        print(f"left out: {line}")
    subjects = [*kernels, *beside.subjects]
    result = earlier(options.out, new_result(options, device, identities, beside, flush_bytes))
    shapes = [shape_of(seq_len) for seq_len in options.seq_lens]
    work = [(d, s, left) for d in options.dtypes for s in shapes if (left := missing(result, subjects, d, s))]
    slow = [sum(one.key in identities and identities[one.key].iteration == 1 for one in left) for _, _, left in work]
    counts = [(shape, len(left) - n, n) for (_, shape, left), n in zip(work, slow, strict=True)]
    about = estimate_s(counts, options.plan, tflops=ROUGH_TFLOPS)
    print(
        f"{sum(len(left) for *_, left in work)} cells, {options.plan.pairs} pairs each: about {about:.0f} s on an H200"
    )
    complete = True
    with tqdm(total=len(work) * options.plan.blocks, desc="bench", unit="block", disable=None, leave=False) as bar:
        for index, (dtype, shape, left) in enumerate(work):
            if options.budget and time.monotonic() - start > options.budget:
                complete = False
                break
            group = bench_group(
                hardware, left, prepare(dtype, shape, options.plan), options.plan,
                process=result.processes[-1].index, warm_up_s=0.3 if index else 1.5, progress=bar.update,
            )  # fmt: skip
            result = keep(options.out, result, group)
    print(f"{time.monotonic() - start:.0f} s")
    return finish(options.out, result, device, tuple(beside.identities)), complete


def timed(options: argparse.Namespace, device: Device) -> bool:
    """Times, by other tools too where they are asked for, and prints the table; whether all of it was reached.

    Raises:
        CheckFailed: a kernel is wrong, or a time is impossible.
    """
    out = options.out
    if options.methods:
        options.out = None  # the file will hold both, so that it must not exist yet
        if out is not None and out.exists():
            raise FlashladderError("the file exists", where=out, hint="choose another --out, or delete it")
    result, complete = run_bench(options, device)
    if options.methods:
        from flashladder.bench.cross_timers import compare

        compare(out, result, options.methods, options.rounds)
    print(ranking(result) if options.tune else table(result))
    if device.foreign_before:
        print(f"{device.foreign_before} other processes used this GPU: time it again when they are gone")
    if found := problems(result):
        raise CheckFailed(f"{len(found)} problems, the first: {found[0]}")
    return complete


def _half(summary: Summary) -> float:
    return (summary.pct_high - summary.pct_low) / 2


def table(result: BenchResult) -> str:
    """Per dtype and kernel: percent of FA2's speed at each length, harmonic mean, TFLOP/s and SM clock."""
    lines, result = [], stated(result)
    for dtype in dict.fromkeys(summary.dtype for summary in result.summaries):
        mine = [summary for summary in result.summaries if summary.dtype == dtype]
        lengths = sorted({summary.shape.seq_len for summary in mine})
        means = {mean.kernel: mean for mean in result.means if mean.dtype == dtype}
        head = HEADLINE if HEADLINE in lengths else lengths[-1]
        fa2 = median(summary.reference_tflops for summary in mine if summary.shape.seq_len == head)
        lines += [
            f"{result.gpu.name}, {dtype}, {result.mode}, rung: {result.rung}",
            f"percent of FA2 (torch {result.reference.torch}), A/A floor {result.floors_pct[dtype]:.2f} points",
        ]
        rows = [[*map(str, lengths), "hmean", "95 %", f"TF/s@{head}", "+-", "MHz", "kernel"]]
        for kernel in dict.fromkeys(summary.kernel for summary in mine):
            by_length = {summary.shape.seq_len: summary for summary in mine if summary.kernel == kernel}
            cells = [f"{one.pct:.1f}{MARKS[one.verdict]}" if (one := by_length.get(n)) else "" for n in lengths]
            mean, one = means[kernel], by_length.get(head)
            clock = f"{one.sm_clock_mhz:.0f}" if one and one.sm_clock_mhz is not None else ""
            tail = [f"{one.pct / 100 * fa2:.1f}", f"{_half(one):.2f}", clock] if one else ["", "", ""]
            interval = f"{mean.pct_low:.1f}-{mean.pct_high:.1f}"
            rows.append([*cells, f"{mean.pct:.1f}", interval, *tail, _label(result, kernel)])
        lines += columns.table(rows, None, right=range(len(rows[0]) - 1))
        dropped = sum(summary.dropped_share for summary in mine) / len(mine)
        again = sum(summary.readmitted_share for summary in mine) / len(mine)
        lines.append(f"blocks dropped {dropped:.1%}; counted despite late launches or power-cap flicker {again:.1%}")
        lines.append(f"TF/s@{head}: the ratio times one figure for FA2, {fa2:.1f}: its median beside these kernels")
        lines.append("+ faster, - slower, = same within the floor, ? ambiguous")
    return "\n".join(lines)


def _label(result: BenchResult, key: str) -> str:
    """A kernel by its key, a reference with its version: ``cudnn (9.19.0)``."""
    version = result.references[key].version if key in result.references else None
    return f"{key} ({version})" if version else key


def _spread(summary: Summary, enough: int) -> str:
    """Half an interval; where there are too few pairs for one, how many there are."""
    return f"+- {_half(summary):4.2f}" if summary.n_pairs >= enough else f"{summary.n_pairs:2d} pairs"


def ranking(result: BenchResult, most: int = 8) -> str:
    """Per iteration, dtype and length the best configurations, fastest first; never to be reported as a measurement.

    Those that were left out with few pairs follow those that were timed to the end, and have no interval.
    """
    groups: dict[tuple[int, str, int], list[Summary]] = {}
    for summary in result.summaries:
        if summary.kernel in result.references:
            continue
        number = result.kernels[summary.kernel].iteration
        groups.setdefault((number, summary.dtype, summary.shape.seq_len), []).append(summary)
    lines = ["tuning only: time the winner again in a fresh process before reporting it"]
    for (number, dtype, seq_len), found in groups.items():
        lines.append(f"iteration {number}, {dtype}, S={seq_len}: best {min(most, len(found))} of {len(found)}")
        enough = result.settings.min_pairs
        best = sorted(found, key=lambda summary: (-min(summary.n_pairs, enough), -summary.pct))[:most]
        fa2 = median(summary.reference_tflops for summary in found)
        lines += [
            f"  {one.pct:6.1f} % {_spread(one, enough)}  {one.pct / 100 * fa2:6.1f} TFLOP/s  {one.kernel[3:]}"
            for one in best
        ]
    return "\n".join(lines)


def keep(out: Path | None, result: BenchResult, group: Group) -> BenchResult:
    """Adds a group and writes the file; its tables follow in `finish`."""
    result = result.model_copy(
        update={"groups": (*result.groups, group), "summaries": (), "means": (), "floors_pct": {}}
    )
    if out:
        write_result(out, result)
    return result


def finish(out: Path | None, result: BenchResult, device: Device, beside: Sequence[str] = ()) -> BenchResult:
    """After the last pair: derives the tables, looks for other processes, asks the profiler for references' kernels."""
    foreign = device.telemetry.foreign_processes(own_context=True)
    last = result.processes[-1].model_copy(update={"foreign_after": foreign})
    if out:
        write_result(out, derive(result))  # whole, whatever the profiler does
    names = {name: profiled(result.references[name], name, _dtypes(result, name)) for name in beside}
    result = result.model_copy(
        update={
            "processes": (*result.processes[:-1], last),
            "reference": profiled(result.reference, FA2, _dtypes(result)),
            "references": result.references | names,
        }
    )
    result = derive(result)
    if out:
        write_result(out, result)
    return result


def _dtypes(result: BenchResult, key: str | None = None) -> list[str]:
    """Dtypes in which something was timed, or the series `key` was."""
    return sorted(
        {group.dtype for group in result.groups for series in group.series if key is None or series.kernel == key}
    )


def add_kernels(parser: argparse.ArgumentParser) -> None:
    """Which kernels: iterations, configurations, dtypes."""
    parser.add_argument("numbers", nargs="*", type=whole, metavar="N", help="iterations")
    parser.add_argument("--configs", nargs="+", metavar="KEY", help="selection keys (default: those of this GPU)")
    parser.add_argument("--dtype", dest="dtypes", nargs="+", choices=DTYPES, default=list(DTYPES), help="default: both")


def add_result(parser: argparse.ArgumentParser, begun: str) -> None:
    """How long, where to, and a file to show instead; `begun`: what is not begun once the budget is spent."""
    parser.add_argument("--budget", type=seconds, default=0.0, help=f"begin no {begun} after this many seconds")
    parser.add_argument("--out", type=result_file, help="result file, .json.gz; what it holds is not run again")
    parser.add_argument(
        "--show", type=result_file, metavar="FILE", help="print the table of a result file and do nothing else"
    )


def require_same(path: Path, facts: Iterable[tuple[str, object, object]]) -> None:
    """Refuses a file that this run cannot go on with; `facts`: name, what this run has, what the file has.

    Raises:
        FlashladderError: says the first thing that differs, also inside of mappings and models.
    """
    for what, mine, theirs in facts:
        if mine != theirs:
            name, expected, found = _first_difference(what, mine, theirs)
            raise FlashladderError(
                f"the file holds another {name}", where=path, expected=expected, found=found, hint=OTHER_FILE
            )


def require_same_code(path: Path, mine: Kernel, theirs: Kernel) -> None:
    """Refuses a file with other machine code of a kernel."""
    if not mine.same_code(theirs):
        expected, found = (one.text_sha256 or one.build or "unknown" for one in (mine, theirs))
        what = f"the file holds another machine code of {mine.key}"
        raise FlashladderError(what, where=path, expected=expected, found=found, hint=OTHER_FILE)


def _first_difference(what: str, mine: object, theirs: object) -> tuple[str, object, object]:
    a, b = (one.model_dump() if isinstance(one, BaseModel) else one for one in (mine, theirs))
    if not (isinstance(a, Mapping) and isinstance(b, Mapping)):
        return what, a, b
    if a.keys() != b.keys():
        return f"set of {what}", "; ".join(sorted(a)) or "none", "; ".join(sorted(b)) or "none"
    key = next(key for key in a if a[key] != b[key])
    return _first_difference(f"{what}, {key}", a[key], b[key])


def on_this_gpu(options: argparse.Namespace, measure: Callable[[argparse.Namespace, Device], bool]) -> None:
    """Calls `measure` with the GPU locked; it returns whether all was done.

    Raises:
        FlashladderError: no such iteration, no GPU, another process has it, or the budget was spent before the end.
    """
    for number in options.numbers:
        load_iteration(number)  # a wrong number is answered before a GPU is looked for
    device = open_device()
    options.configs = options.configs or [default_key(device.gpu.name)]
    with exclusive(device.gpu.uuid):
        complete = measure(options, device)
    if not complete:
        raise FlashladderError(
            f"not finished: the budget of {options.budget:.0f} s is spent", hint="run it again with the same --out"
        )


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line as a namespace, with the plan of pairs that follows from it."""
    program = program_of("bench")
    example = f"example: {program} 7 --configs a100 --seq-lens 4096"
    parser = Parser(prog=program, description="Times iterations, alternating with FA2.", epilog=example)
    add_numbers(parser)
    parser.add_argument("--dtype", dest="dtypes", nargs="+", choices=DTYPES, default=list(DTYPES), help=DTYPE)
    parser.add_argument("--configs", nargs="+", metavar="KEY", help=f"{CONFIGS} (default: this GPU's)")
    parser.add_argument("--tune", action="store_true", help="rank the configurations of --configs (default: tune)")
    parser.add_argument("--references", nargs="+", default=[], metavar="NAME", help=f"of {', '.join(ARMS)}")
    parser.add_argument("--method", dest="methods", nargs="+", default=[], metavar="M", help=f"of {', '.join(METHODS)}")
    parser.add_argument("--out", type=result_file, help=f"{OUT}; resumes if the file exists")
    parser.add_argument("--seq-lens", nargs="+", type=whole, choices=SEQ_LENS, metavar="S", help="default: all six")
    parser.add_argument("--pairs", type=whole, help="per kernel and length; at least 20 when not tuning")
    parser.add_argument(
        "--rounds", type=whole, help="of each other timer (default: 8 of nvbench, 24 of ncu, 36 of turns, else 12)"
    )
    parser.add_argument("--budget", type=seconds, default=0.0, help="start no group after this many seconds")
    options = parser.parse_args(argv)
    require_numbers(parser, options)
    options.references = several_of("references", ",".join(options.references), ARMS)
    options.methods = several_of("method", ",".join(options.methods), METHODS)
    if options.tune and (options.references or options.methods):
        parser.error("--tune ranks kernels: leave --references and --method out")
    if options.rounds is not None and (options.rounds < 1 or not options.methods):
        parser.error("--rounds: expected at least 1, and --method")
    pairs = options.pairs or (6 if options.tune else 24)
    if pairs < (1 if options.tune else 20):
        parser.error(f"--pairs: expected at least 20, found {pairs}: fewer give no honest interval")
    options.plan = (
        Plan(pairs=pairs, blocks=3, extra_blocks=1, min_pairs=pairs, input_sets=2)
        if options.tune
        else Plan(pairs=pairs)
    )
    options.seq_lens = options.seq_lens or ([TUNE_LENGTH] if options.tune else list(SEQ_LENS))
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Times and prints the table; exit code 1 on a wrong kernel or an impossible time."""
    options = parse_arguments(argv)
    options.numbers = [iteration.number for iteration in load_all()] if options.all else options.numbers
    if options.tune:
        options.configs = options.configs or ["tune"]
    on_this_gpu(options, timed)
    return 0
