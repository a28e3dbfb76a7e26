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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
import math
from pathlib import Path
from statistics import median
import time
from typing import Any, TypeVar

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
from flashladder.build.wheel import chosen_configs, load_installed
from flashladder.cases.inputs import SEQ_LENS, shape_of
from flashladder.cases.reference import Run
from flashladder.errors import CheckFailed, FlashladderError
from flashladder.gpu.device import Device, exclusive, open_device, origin
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import gpu_key
from flashladder.ladder.iteration import load_all, load_iteration, runnable
from flashladder.names import DTYPES, GPUS, HEADLINE_LENGTH, REFERENCES
from flashladder.problem import Shape
from flashladder.results.derive import Plan, derive, problems
from flashladder.results.files import OTHER_FILE, load_as, write_result
from flashladder.results.schema import BenchResult, Kernel, Process, Result, Settings, Summary
from flashladder.results.statistics import stated

ARMS = ("all", *REFERENCES)
MARKS = {"faster": "+", "slower": "-", "same": "=", "ambiguous": "?"}
ROUGH_TFLOPS = 300.0  # FA2 on an H200, for the estimate only
AnyRun = TypeVar("AnyRun", bound=Result)
Work = TypeVar("Work")


def installed_kernels(options: argparse.Namespace, arch: str) -> Iterator[tuple[int, KernelConfig, Run, Kernel]]:
    """The kernels that the command line asks for: iteration, configuration, operator, and what results say about it.

    Raises:
        FlashladderError: a wheel is missing, or does not hold a configuration (when tuning, those are left out); none
            is left.
    """
    found = 0
    for number in runnable(options.numbers, arch):
        installed = load_installed(number)
        for config in chosen_configs(number, options.configs, options.dtypes):
            if options.tune and config.short_form() not in installed.built:
                continue
            installed.require(config)
            found += 1
            yield number, config, installed.run, installed.identity(config, arch)
    if not found:
        hint = "build the configurations first: invoke build N --configs tune" if options.tune else None
        raise FlashladderError("no kernel to run on this GPU", hint=hint)


def choose(options: argparse.Namespace, arch: str) -> tuple[list[Subject], dict[str, Kernel], Arms]:
    """Kernels to time, their identities, and the references beside them; prints which references are left out."""
    chosen = list(installed_kernels(options, arch))
    beside = arms(options.references, options.dtypes)
    for line in beside.left_out:
        print(f"left out: {line}")
    timed = [kernel_subject(number, config, run) for number, config, run, _ in chosen]
    return timed, {kernel.key: kernel for *_, kernel in chosen}, beside


def default_key(gpu_name: str) -> str:
    """The configurations that are timed when none are named: those of this GPU, or of all where it has none."""
    key = gpu_key(gpu_name)
    return key if key in GPUS else "prog"


def resumable(path: Path | None, fresh: AnyRun, **names: str) -> AnyRun | None:
    """The file that a run goes on with, None where there is none yet.

    Args:
        path: of the file.
        fresh: what this run has so far.
        names: what messages call the fields, beside GPU and machine code, that must be the same in both.

    Raises:
        FlashladderError: it is of another GPU, of other machine code, or of other `names`.
    """
    if path is None or not path.is_file():
        return None
    old = load_as(path, type(fresh), hint=OTHER_FILE)
    facts = [(what, getattr(fresh, name), getattr(old, name)) for what, name in names.items()]
    require_same(path, [("GPU", fresh.gpu.uuid, old.gpu.uuid), *facts])
    for key in sorted(old.kernels.keys() & fresh.kernels.keys()):
        mine, theirs = fresh.kernels[key], old.kernels[key]
        if not mine.same_code(theirs):
            expected, found = (one.text_sha256 or one.build or "unknown" for one in (mine, theirs))
            what = f"the file holds another machine code of {key}"
            raise FlashladderError(what, where=path, expected=expected, found=found, hint=OTHER_FILE)
    return old


def earlier(path: Path | None, fresh: BenchResult) -> BenchResult:
    """`fresh`, with the groups of an earlier file that still hold: same GPU, settings and machine code."""
    names = {"settings": "settings", "purpose": "purpose", "protocol": "protocol_version"}
    if path is None or (old := resumable(path, fresh, **names)) is None:
        return fresh
    both = sorted(old.references.keys() & fresh.references.keys())
    versions = ((f"version of {name}", fresh.references[name].version, old.references[name].version) for name in both)
    require_same(path, [("torch", fresh.reference.torch, old.reference.torch), *versions])
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
    groups = [group for group in result.groups if (group.dtype, group.shape) == (dtype, shape)]
    done = {series.kernel for group in groups for series in group.series if series.pairs}
    return [subject for subject in subjects if subject.dtype == dtype and subject.key not in done]


def new_result(plan: Plan, device: Device, kernels: dict[str, Kernel], flush_bytes: int, **more: Any) -> BenchResult:
    """A result without groups; `more`: its purpose, its references."""
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return BenchResult(
        **origin(device),
        kernels=kernels,
        reference=reference_identity({}),
        settings=Settings(pairs=plan.pairs, blocks=plan.blocks, min_pairs=plan.min_pairs, flush_bytes=flush_bytes),
        processes=(Process(index=0, started_utc=started, foreign_before=device.foreign_before),),
        groups=(),
        **more,
    )


def timed(options: argparse.Namespace, device: Device) -> None:
    """Times everything that is missing, writing after each group, by other tools too if asked for; prints the table.

    Raises:
        CheckFailed: a kernel is wrong, or a time is impossible.
    """
    out = None if options.methods else options.out  # with methods the file will hold both, so that it must not exist
    if options.methods and options.out is not None and options.out.exists():
        raise FlashladderError("the file exists", where=options.out, hint="choose another --out, or delete it")
    start, plan = time.monotonic(), options.plan
    hardware, flush_bytes = cuda_hardware(device.telemetry.sample, device.gpu.l2_bytes)
    kernels, identities, beside = choose(options, device.gpu.arch)
    more = {"purpose": "tune" if options.tune else "report", "references": dict(beside.identities)}
    result = earlier(out, new_result(plan, device, identities, flush_bytes, **more))
    subjects, shapes = [*kernels, *beside.subjects], [shape_of(seq_len) for seq_len in options.seq_lens]
    work = [(d, s, left) for d in options.dtypes for s in shapes if (left := missing(result, subjects, d, s))]
    about = estimate_s([(shape, len(left)) for _, shape, left in work], plan, tflops=ROUGH_TFLOPS)
    print(f"{sum(len(left) for *_, left in work)} cells, {plan.pairs} pairs each: about {about:.0f} s on an H200")
    with tqdm(total=len(work) * plan.blocks, desc="bench", unit="block", disable=None, leave=False) as bar:
        for index, (dtype, shape, left) in enumerate(until_spent(options, work)):
            group = bench_group(
                hardware, left, prepare(dtype, shape, plan), plan,
                process=result.processes[-1].index, warm_up_s=0.3 if index else 1.5, progress=bar.update,
            )  # fmt: skip
            update = {"groups": (*result.groups, group), "summaries": (), "means": (), "floors_pct": {}}  # see `finish`
            result = result.model_copy(update=update)
            if out:
                write_result(out, result)
    print(f"{time.monotonic() - start:.0f} s")
    result = finish(out, result, device, tuple(beside.identities))
    if options.methods:
        from flashladder.bench.cross_checks import compare

        compare(options.out, result, options.methods, options.rounds)
    print(ranking(result) if options.tune else table(result))
    if device.foreign_before:
        print(f"{device.foreign_before} other processes used this GPU: time it again when they are gone")
    if found := problems(result):
        raise CheckFailed(f"{len(found)} problems, the first: {found[0]}")


def _half(summary: Summary) -> float:
    return (summary.pct_high - summary.pct_low) / 2


def table(result: BenchResult) -> str:
    """Per dtype and kernel: percent of FA2's speed at each length, harmonic mean, TFLOP/s and SM clock."""
    lines, result = [], stated(result)
    for dtype in dict.fromkeys(summary.dtype for summary in result.summaries):
        mine = [summary for summary in result.summaries if summary.dtype == dtype]
        lengths = sorted({summary.shape.seq_len for summary in mine})
        means = {mean.kernel: mean for mean in result.means if mean.dtype == dtype}
        head = HEADLINE_LENGTH if HEADLINE_LENGTH in lengths else lengths[-1]
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


def add_kernels(parser: argparse.ArgumentParser, configs: str = "this GPU's") -> None:
    """Which kernels: iterations, configurations, dtypes; `configs`: what the help calls the default."""
    add_numbers(parser)
    parser.add_argument("--configs", nargs="+", metavar="KEY", help=f"{CONFIGS} (default: {configs})")
    parser.add_argument("--dtype", dest="dtypes", nargs="+", choices=DTYPES, default=list(DTYPES), help=DTYPE)
    parser.set_defaults(tune=False)


def add_result(parser: argparse.ArgumentParser, begun: str) -> None:
    """How long, and where to; `begun`: what is not begun once the budget is spent."""
    parser.add_argument("--budget", type=seconds, default=0.0, help=f"begin no {begun} after this many seconds")
    parser.add_argument("--out", type=result_file, help=f"{OUT}; resumes if the file exists")


def add_show(parser: argparse.ArgumentParser) -> None:
    """A file to show instead."""
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


def _first_difference(what: str, mine: object, theirs: object) -> tuple[str, object, object]:
    a, b = (one.model_dump() if isinstance(one, BaseModel) else one for one in (mine, theirs))
    if not (isinstance(a, Mapping) and isinstance(b, Mapping)):
        return what, a, b
    if a.keys() != b.keys():
        return f"set of {what}", "; ".join(sorted(a)) or "none", "; ".join(sorted(b)) or "none"
    key = next(key for key in a if a[key] != b[key])
    return _first_difference(f"{what}, {key}", a[key], b[key])


def on_this_gpu(options: argparse.Namespace, measure: Callable[[argparse.Namespace, Device], object]) -> None:
    """Calls `measure` with the GPU locked.

    Raises:
        FlashladderError: no such iteration, no GPU, another process has it, or the budget was spent before the end.
    """
    options.numbers = [one.number for one in load_all()] if options.all else options.numbers
    for number in options.numbers:
        load_iteration(number)  # a wrong number is answered before a GPU is looked for
    device = open_device()
    options.configs = options.configs or [default_key(device.gpu.name)]
    options.until, options.complete = time.monotonic() + (options.budget or math.inf), True
    with exclusive(device.gpu.uuid):
        measure(options, device)
    if not options.complete:
        raise FlashladderError(
            f"not finished: the budget of {options.budget:.0f} s is spent", hint="run it again with the same --out"
        )


def until_spent(options: argparse.Namespace, work: Iterable[Work]) -> Iterator[Work]:
    """`work`, while the budget lasts; `on_this_gpu` tells where it did not."""
    for one in work:
        options.complete = time.monotonic() <= options.until
        if not options.complete:
            return
        yield one


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line as a namespace, with the plan of pairs that follows from it."""
    program = program_of("bench")
    example = f"example: {program} 7 --configs a100 --seq-lens 4096"
    parser = Parser(prog=program, description="Times iterations, alternating with FA2.", epilog=example)
    add_kernels(parser)
    add_result(parser, "group")
    parser.add_argument("--tune", action="store_true", help="rank the configurations of --configs (default: tune)")
    parser.add_argument("--references", nargs="+", default=[], metavar="NAME", help=f"of {', '.join(ARMS)}")
    parser.add_argument("--method", dest="methods", nargs="+", default=[], metavar="M", help=f"of {', '.join(METHODS)}")
    parser.add_argument("--seq-lens", nargs="+", type=whole, choices=SEQ_LENS, metavar="S", help="default: all six")
    parser.add_argument("--pairs", type=whole, help="per kernel and length; at least 20 when not tuning")
    parser.add_argument(
        "--rounds", type=whole, help="of each other timer (default: 8 of nvbench, 24 of ncu, 36 of turns, else 12)"
    )
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
    short = {"blocks": 3, "extra_blocks": 1, "min_pairs": pairs, "input_sets": 2} if options.tune else {}
    options.plan = Plan(pairs=pairs, **short)
    options.configs = options.configs or (["tune"] if options.tune else None)
    options.seq_lens = options.seq_lens or ([HEADLINE_LENGTH] if options.tune else list(SEQ_LENS))
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Times and prints the table; exit code 1 on a wrong kernel or an impossible time."""
    on_this_gpu(parse_arguments(argv), timed)
    return 0
