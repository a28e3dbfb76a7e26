"""Times kernels beside FA2 on this GPU, with raw samples, GPU state and an A/A floor; resumes if `--out` exists.

It follows rules 1 to 11 of the measurement protocol. Other commands that use a GPU for minutes share its options, its
lock on the GPU and its budget (`on_this_gpu`).

Run on a machine with a GPU:
    python -m flashladder.bench 7 --configs a100
    python -m flashladder.bench --all --configs prog --out bench.json.gz
    python -m flashladder.bench 16 --references all                  # cuDNN, FA3, FA4, flash-attn as further arms
    python -m flashladder.bench 16 --tune --out tune.json.gz         # ranks configurations at one length
    python -m flashladder.bench 16 --method nvbench ncu torch warm   # other timers beside the paired one
    python -m flashladder.bench 31 --causal --heads 32 --kv-heads 8  # other problems; --kv-len, --batch, --seq-lens
Exit code: 0 done, 1 a kernel is wrong or a time is impossible, 2 it could not run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import chain, product
import math
from pathlib import Path
from statistics import median
import time
from typing import Any, TypeVar

from pydantic import BaseModel

from flashladder import columns
from flashladder.arguments import (
    CONFIGS,
    DTYPE,
    METHODS,
    OUT,
    add_numbers,
    module_parser,
    output_result,
    require_numbers,
    result_file,
    seconds,
    several_of,
    whole,
    wholes,
)
from flashladder.bench.references import (
    FA2,
    PROBE,
    Subject,
    arms,
    kernel_subject,
    profiled,
    reference_identity,
    unaligned,
)
from flashladder.bench.timing import bench_group, cuda_hardware, estimate_s, prepare
from flashladder.build.wheel import chosen_configs, load_installed
from flashladder.cases.inputs import N_HEADS, SEQ_LENS, shape_of
from flashladder.cases.reference import Run
from flashladder.errors import CheckFailed, FlashladderError
from flashladder.gpu.device import Device, exclusive, open_device, origin
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import gpu_key
from flashladder.ladder.iteration import load_iteration, runnable
from flashladder.names import DTYPES, GPUS, HEADLINE_LENGTH, REFERENCES
from flashladder.parallel import Bar
from flashladder.problem import Problem, kinds
from flashladder.results.derive import Plan, derive, problems
from flashladder.results.files import OTHER_FILE, load_as, write_result
from flashladder.results.schema import A_A, BenchResult, Kernel, Process, Reference, Result, Settings, Summary
from flashladder.results.statistics import stated

ARMS = ("all", *REFERENCES)
MARKS = {"faster": "+", "slower": "-", "same": "=", "ambiguous": "?"}
AnyRun = TypeVar("AnyRun", bound=Result)
Work = TypeVar("Work")


def installed_kernels(
    options: argparse.Namespace, arch: str, problems: Sequence[Problem] = ()
) -> Iterator[tuple[int, KernelConfig, Run, Kernel]]:
    """The selected kernels that compute these problems: iteration, configuration, operator and identity.

    Raises:
        FlashladderError: a wheel is missing; it does not hold a configuration (tuning skips these); no kernel is left.
    """
    found = 0
    for number in runnable(options.numbers, arch):
        if not (configs := computing(number, options, problems)):
            continue
        installed = load_installed(number)
        for config in configs:
            if options.tune and config.short_form() not in installed.built:
                continue
            installed.require(config)
            found += 1
            yield number, config, installed.run, installed.identity(config, arch)
    if not found:
        hint = "build the configurations first: invoke build N --configs tune" if options.tune else None
        raise FlashladderError("no kernel to run on this GPU", hint=hint)


def computing(number: int, options: argparse.Namespace, problems: Sequence[Problem]) -> list[KernelConfig]:
    """The selected configurations of an iteration that compute all these problems.

    Raises:
        FlashladderError: there is none, and the command line names the iteration.
    """
    row_stride = load_iteration(number).row_stride

    def refuses(config: KernelConfig, problem: Problem) -> str:
        if row_stride not in (0, problem.n_heads * problem.d_head):
            return f"expected {row_stride // problem.d_head} heads, found {problem.n_heads}"
        return config.refuses(problem)

    chosen = chosen_configs(number, options.configs or ["prog"], options.dtypes)
    refused = [next(filter(None, (refuses(config, one) for one in problems)), "") for config in chosen]
    if all(refused) and not options.all:
        hint = "invoke list shows what each iteration adds"
        raise FlashladderError(f"no kernel of iteration {number} computes this problem: {refused[-1]}", hint=hint)
    return [config for config, why in zip(chosen, refused, strict=True) if not why]


def choose(options: argparse.Namespace, arch: str) -> tuple[list[Subject], dict[str, Kernel], Mapping[str, Reference]]:
    """What to time, and the identities of kernels and references; prints the references that are left out."""
    chosen = list(installed_kernels(options, arch, options.problems))
    beside = arms(options.references, options.dtypes, options.problems[0])
    for line in beside.left_out:
        print(f"left out: {line}")
    kernels = [kernel_subject(number, config, run) for number, config, run, _ in chosen]
    return [*kernels, *beside.subjects], {kernel.key: kernel for *_, kernel in chosen}, beside.identities


def default_key(gpu_name: str) -> str:
    """The default of `--configs`: this GPU's configurations, or those of all GPUs if it has none."""
    key = gpu_key(gpu_name)
    return key if key in GPUS else "prog"


def resumable(path: Path | None, fresh: AnyRun, **names: str) -> AnyRun | None:
    """The result that a run continues; None if there is no file yet.

    Raises:
        FlashladderError: the GPU, a machine code, or one of the fields `names` (word of messages: field) differs.
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
    """`fresh` with the groups of an earlier file; errors as `resumable`, and other versions of torch or references."""
    old = resumable(path, fresh, settings="settings", purpose="purpose", protocol="protocol_version")
    if path is None or old is None:
        return fresh
    names = sorted(old.references.keys() & fresh.references.keys())
    versions = ((f"version of {name}", fresh.references[name].version, old.references[name].version) for name in names)
    require_same(path, [("torch", fresh.reference.torch, old.reference.torch), *versions])
    process = fresh.processes[0].model_copy(update={"index": len(old.processes)})
    kept = {"reference": old.reference, "groups": old.groups, "processes": (*old.processes, process)}
    both = {"kernels": old.kernels | fresh.kernels, "references": fresh.references | old.references}
    return fresh.model_copy(update=kept | both)


def new_result(plan: Plan, device: Device, kernels: dict[str, Kernel], flush_bytes: int, **more: Any) -> BenchResult:
    """A result without groups; `more` sets further fields."""
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
    """Times what is missing, by other tools too if asked for, and prints the table; writes `options.out` on the way.

    Raises:
        CheckFailed: a kernel is wrong, or a time is impossible.
    """
    out = None if options.methods else options.out  # with methods `compare` writes a file of another kind
    if options.methods and options.out is not None and options.out.exists():
        raise FlashladderError("the file exists", where=options.out, hint="choose another --out, or delete it")
    start, plan = time.monotonic(), options.plan
    hardware, flush_bytes = cuda_hardware(device.telemetry.sample, device.gpu.l2_bytes)
    subjects, kernels, references = choose(options, device.gpu.arch)
    more = {"purpose": "tune" if options.tune else "report", "references": dict(references)}
    result = earlier(out, new_result(plan, device, kernels, flush_bytes, **more))
    require_alike(out, (group.shape for group in result.groups), options.problems)
    done = {(one.kernel, group.dtype, group.shape) for group in result.groups for one in group.series if one.pairs}
    work: list[tuple[str, Problem, list[Subject]]] = []
    for dtype, shape in product(options.dtypes, options.problems):
        if left := [one for one in subjects if one.dtype == dtype and (one.key, dtype, shape) not in done]:
            work.append((dtype, shape, left))
    about = estimate_s([(shape, len(left)) for _, shape, left in work], plan)
    print(f"{sum(len(left) for *_, left in work)} cells, {plan.pairs} pairs each: about {about:.0f} s on an H200")
    with Bar(total=len(work) * plan.blocks, desc="bench", unit="block") as bar:
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
    result = finish(out, result, device, tuple(references))
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
            ", ".join(filter(None, (result.gpu.name, dtype, kinds(summary.shape for summary in mine), result.mode)))
            + f", rung: {result.rung}",
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
            version = result.references[kernel].version if kernel in result.references else None
            label = f"{kernel} ({version})" if version else kernel
            rows.append([*cells, f"{mean.pct:.1f}", interval, *tail, label])
        lines += columns.table(rows, None, right=range(len(rows[0]) - 1))
        dropped = sum(summary.dropped_share for summary in mine) / len(mine)
        again = sum(summary.readmitted_share for summary in mine) / len(mine)
        lines.append(f"blocks dropped {dropped:.1%}; counted despite late launches or power-cap flicker {again:.1%}")
        lines.append(f"TF/s@{head}: the ratio times one figure for FA2, {fa2:.1f}: its median beside these kernels")
        lines.append("+ faster, - slower, = same within the floor, ? ambiguous")
    return "\n".join(lines)


def ranking(result: BenchResult, most: int = 8) -> str:
    """The best configurations per iteration, dtype and length, fastest first; never report them as a measurement.

    Configurations with fewer than `min_pairs` pairs come last: with the number of pairs instead of an interval.
    """
    kernels, mine = result.kernels, (one for one in result.summaries if one.kernel not in result.references)
    groups = columns.grouped(mine, lambda one: (kernels[one.kernel].iteration, one.dtype, one.shape.seq_len))
    lines = ["tuning only: time the winner again in a fresh process before reporting it"]
    for (number, dtype, seq_len), found in groups.items():
        lines.append(f"iteration {number}, {dtype}, S={seq_len}: best {min(most, len(found))} of {len(found)}")
        enough = result.settings.min_pairs
        best = sorted(found, key=lambda summary: (-min(summary.n_pairs, enough), -summary.pct))[:most]
        fa2 = median(summary.reference_tflops for summary in found)
        for one in best:
            spread = f"+- {_half(one):4.2f}" if one.n_pairs >= enough else f"{one.n_pairs:2d} pairs"
            lines.append(f"  {one.pct:6.1f} % {spread}  {one.pct / 100 * fa2:6.1f} TFLOP/s  {one.kernel[3:]}")
    return "\n".join(lines)


def finish(out: Path | None, result: BenchResult, device: Device, beside: Sequence[str] = ()) -> BenchResult:
    """After the last pair: derives the tables, looks for other processes, asks the profiler for references' kernels."""
    foreign = device.telemetry.foreign_processes(own_context=True)
    last = result.processes[-1].model_copy(update={"foreign_after": foreign})
    result = derive(result.model_copy(update={"processes": (*result.processes[:-1], last)}))
    if out:
        write_result(out, result)  # before the profiler, which may fail
    pairs = sorted({(group.dtype, series.kernel) for group in result.groups for series in group.series})
    dtypes = {name: [dtype for dtype, key in pairs if key == name] for name in (A_A, *beside)}
    problem = next((group.shape for group in result.groups), PROBE)  # the others differ in lengths
    fa2 = profiled(result.reference, FA2, dtypes[A_A], problem)
    others = {name: profiled(result.references[name], name, dtypes[name], problem) for name in beside}
    result = result.model_copy(update={"reference": fa2, "references": result.references | others})
    if out:
        write_result(out, result)
    return result


def add_kernels(parser: argparse.ArgumentParser, configs: str = "this GPU's") -> None:
    """Options that select iterations, configurations and dtypes; `configs`: the default's name in the help."""
    add_numbers(parser)
    parser.add_argument("--configs", nargs="+", metavar="KEY", help=f"{CONFIGS} (default: {configs})")
    parser.add_argument("--dtype", dest="dtypes", nargs="+", choices=DTYPES, default=list(DTYPES), help=DTYPE)
    parser.set_defaults(tune=False)


def add_problem(parser: argparse.ArgumentParser) -> None:
    """Options that say what is computed, with one problem per length (`problems_of`)."""
    parser.add_argument(
        "--seq-lens", nargs="+", type=wholes, metavar="S", help="queries of a sample (default: six lengths from 512 on)"
    )
    parser.add_argument("--batch", type=whole, metavar="N", help="samples (default: 16, but 8 at 8192 and 4 at 16384)")
    parser.add_argument("--heads", dest="n_heads", type=whole, metavar="N", help=f"heads of Q (default: {N_HEADS})")
    own = "heads of K and V (default: as many as of Q)"
    parser.add_argument("--kv-heads", dest="n_kv_heads", type=whole, metavar="N", help=own)
    parser.add_argument("--kv-len", type=whole, metavar="N", help="keys of a sample (default: as many as queries)")
    parser.add_argument("--causal", action="store_true", help="with a causal mask")


def problems_of(
    parser: argparse.ArgumentParser, options: argparse.Namespace, default: Sequence[int] = SEQ_LENS
) -> list[Problem]:
    """The problems of the command line, one per length; exits with 2 if its numbers do not fit each other.

    Raises:
        FlashladderError: no such iteration, or one has no kernel for the problems.
    """
    lengths = list(dict.fromkeys(chain.from_iterable(options.seq_lens or [default])))
    named = {name: getattr(options, name) for name in ("batch", "n_heads", "n_kv_heads", "kv_len")}
    for name, size in [*named.items(), *(("seq-lens", length) for length in lengths)]:
        if size == 0:
            parser.error(f"--{name.removeprefix('n_').replace('_', '-')}: expected at least 1, found 0")
    given = {"mask": "causal" if options.causal else "none"} | {name: size for name, size in named.items() if size}
    problems = []
    for usual in map(shape_of, lengths):
        heads = options.n_heads or usual.n_heads
        if heads % (options.n_kv_heads or heads):
            parser.error(f"--kv-heads: expected a divisor of the {heads} heads of Q, found {options.n_kv_heads}")
        problem = usual.varied(**given)
        if why := unaligned(problem):
            parser.error(f"--kv-len: {why}; leave it out, or --causal")
        problems.append(problem)
    for number in options.numbers:
        computing(number, options, problems)
    return problems


def require_alike(path: Path | None, held: Iterable[Problem], problems: Iterable[Problem]) -> None:
    """Raises `FlashladderError` if a file holds problems that differ from these in more than their lengths."""
    for old, new in product(dict.fromkeys(held), problems):
        facts = ((one.n_heads, one.n_kv_heads, one.mask) for one in (old, new))
        if len({*facts}) > 1 or (old.seq_len == new.seq_len and old != new):
            what = "the file holds another problem"
            raise FlashladderError(what, where=path, expected=new, found=old, hint=OTHER_FILE)


def add_result(parser: argparse.ArgumentParser, begun: str) -> None:
    """Options `--budget` and `--out`; `begun`: what does not start after the budget is spent."""
    parser.add_argument("--budget", type=seconds, default=0.0, help=f"start no further {begun} after this many seconds")
    parser.add_argument("--out", type=output_result, help=f"{OUT}; resumes if the file exists")


def add_show(parser: argparse.ArgumentParser) -> None:
    """Option `--show`: a file whose table is printed instead."""
    parser.add_argument("--show", type=result_file, metavar="FILE", help="only print the table of this result file")


def require_same(path: Path, facts: Iterable[tuple[str, object, object]]) -> None:
    """Raises `FlashladderError` for the first difference in or inside `facts`: name, this run's value, the file's."""
    for fact, mine, theirs in facts:
        if mine != theirs:
            name, expected, found = _first_difference(fact, mine, theirs)
            what = f"the file holds another {name}"
            raise FlashladderError(what, where=path, expected=expected, found=found, hint=OTHER_FILE)


def _first_difference(what: str, mine: object, theirs: object) -> tuple[str, object, object]:
    a, b = (one.model_dump() if isinstance(one, BaseModel) else one for one in (mine, theirs))
    if not (isinstance(a, Mapping) and isinstance(b, Mapping)):
        return what, a, b
    if a.keys() != b.keys():
        return f"set of {what}", "; ".join(sorted(a)) or "none", "; ".join(sorted(b)) or "none"
    key = next(key for key in a if a[key] != b[key])
    return _first_difference(f"{what}, {key}", a[key], b[key])


def on_this_gpu(options: argparse.Namespace, measure: Callable[[argparse.Namespace, Device], object]) -> None:
    """Calls `measure` with the GPU locked; `FlashladderError`: no such iteration, no free GPU, or no budget left."""
    for number in options.numbers:
        load_iteration(number)  # reports a wrong number before a missing GPU
    device = open_device()
    options.configs = options.configs or [default_key(device.gpu.name)]
    options.until, options.complete = time.monotonic() + (options.budget or math.inf), True
    with exclusive(device.gpu.uuid):
        measure(options, device)
    if not options.complete:
        what = f"not finished: the budget of {options.budget:.0f} s is spent"
        raise FlashladderError(what, hint="run it again with the same --out")


def until_spent(options: argparse.Namespace, work: Iterable[Work]) -> Iterator[Work]:
    """Yields `work` while the budget lasts; `on_this_gpu` raises an error if some is left."""
    for one in work:
        options.complete = time.monotonic() <= options.until
        if not options.complete:
            return
        yield one


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line as a namespace, with its plan of pairs."""
    example = "31 --seq-lens 4096 --causal --heads 32 --kv-heads 8"
    parser = module_parser("bench", "Times iterations, alternating with FA2.", example, is_task=True)
    add_kernels(parser)
    add_result(parser, "group")
    parser.add_argument("--tune", action="store_true", help="rank the configurations of --configs (default: tune)")
    parser.add_argument("--references", nargs="+", default=[], metavar="NAME", help=f"of {', '.join(ARMS)}")
    parser.add_argument("--method", dest="methods", nargs="+", default=[], metavar="M", help=f"of {', '.join(METHODS)}")
    add_problem(parser)
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
    options.problems = problems_of(parser, options, [HEADLINE_LENGTH] if options.tune else SEQ_LENS)
    return options


def main(argv: Sequence[str] | None = None) -> None:
    """Times and prints the table."""
    on_this_gpu(parse_arguments(argv), timed)
