"""Soaks kernels: beside other work, a million launches, sequences of 2^18 tokens, tensors of more than 2^32 elements.

Benchmarks reveal neither rare races nor 32-bit index overflows. A watchdog ends a hung kernel and prints its name.
`load`: runs every case of the check 50 times; all outputs must be bit-identical. A second stream runs matmuls, which
share the SMs, the L2 cache and the power, so CTA start times vary. Alone on a GPU a kernel's CTAs start together.
`launches`: a million at small shapes. The host queues the first `PLAIN` of a shape one by one; CUDA graphs of `GRAPH`
launches queue the rest. O is filled with NaN before each comparison.
`far`: large shapes. A full fp64 reference would take hours, so only rows near the ends and near powers of two are
compared. NaN shows rows that were not written. A checksum of O detects launches that differ.

Run on a machine with a GPU:
    python -m flashladder.check.soak 26 27 --out soak.json.gz       # resumes if the file exists
    python -m flashladder.check.soak 27 --parts launches --launches 4000000
    python -m flashladder.check.soak --show results/h200/soak.json.gz
Exit code: 0 all correct, 1 a kernel is wrong or hangs, 2 it could not run, or the budget ended first.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
import hashlib
import math
import os
from pathlib import Path
from statistics import median
import sys
import time
from typing import Any, cast

from flashladder.arguments import module_parser, require_numbers, whole
from flashladder.bench import command as bench
from flashladder.bench.references import reference_identity
from flashladder.cases import reference
from flashladder.cases.inputs import Case, Tensors, cases_for, make_tensors
from flashladder.cases.reference import References, Run, Subject, check_case, same_bits
from flashladder.check.command import rule_digest
from flashladder.columns import after, table
from flashladder.errors import CheckFailed, FlashladderError, first_line, run_main
from flashladder.gpu.device import Device, origin
from flashladder.ladder.config import D_HEAD, KernelConfig
from flashladder.ladder.iteration import load_iteration
from flashladder.lazy_torch import Tensor, torch
from flashladder.names import Dtype
from flashladder.problem import Mask, Problem
from flashladder.results.files import OTHER_FILE, load_as, write_result
from flashladder.results.schema import Beside, FarRows, Hammered, Kernel, SoakResult

PARTS = ("load", "launches", "far")
REPEATS = 50
MILLION = 1_000_000
CASE_S = 120.0  # time limit of one case with all its repeats
EXIT_WRONG = 1  # exit code of a hang, as of a wrong kernel
MIN_MATMULS = 6  # on each side of a launch
MATMUL_RATIO = 1.5  # matmul time on each side / launch time
# m, n, k of the matmuls: few long CTAs, and many short ones
SIZES = ((512, 512, 32768), (2048, 2048, 2048), (4096, 4096, 4096))
PLAIN = 10_000  # launches of a shape that the host queues itself
CHUNK = 500  # plain launches per comparison: less than the launch queue's depth, so that a hang does not block the host
GRAPH = 1000  # launches per graph; each replay is followed by a comparison
CHUNK_S = 20.0  # time limit of the launches between two comparisons; they take 3 to 40 ms
LARGE_LAUNCHES = 3  # of each large shape
LARGE_S = 120.0  # time limit of one launch; the longest takes 4 s on an H200
MOST_SLICES = 6  # (sample, head) pairs of a large shape that are compared
SMALL_SIZES = ((1, 1, 2), (3, 129, 1), (1, 512, 2), (2, 1000, 3))  # batch, seq_len, heads
# The last row of 131,073 is alone in its tile. (4, 262144, 16) has 2^31 elements; the last has 2^32 plus one sample.
LONG_SIZES = ((1, 65_537, 2), (1, 131_073, 1), (1, 262_144, 2), (1, 262_143, 1), (4, 262_144, 16), (2049, 1024, 16))
SMALL_SHAPES, LONG_SHAPES = (
    tuple(Problem(batch=batch, seq_len=seq_len, n_heads=heads, d_head=D_HEAD) for batch, seq_len, heads in sizes)
    for sizes in (SMALL_SIZES, LONG_SIZES)
)


def shapes_for(config: KernelConfig, shapes: Sequence[Problem]) -> list[Problem]:
    """Shapes with the mask of a kernel. Kernels of packed sequences get samples as sequences, and short ones."""
    if not config.is_packed:
        return [one.varied(mask=config.mask) for one in shapes]
    return [
        Problem.packing(
            [*[one.seq_len] * one.batch, 1, 0, 77], n_heads=one.n_heads, d_head=one.d_head, mask=config.mask
        )
        for one in shapes
    ]


def described(shape: Problem) -> str:
    """``B=1, S=512, H=2``."""
    return f"B={shape.batch}, S={shape.seq_len}, H={shape.n_heads}"


class Gpu:
    """This process's GPU, with a second stream that runs fp16 matmuls."""

    device = "cuda"

    def __init__(self) -> None:
        self.record_hang: Callable[[str], object] = lambda _: None  # called before the process ends

    @cached_property
    def _second(self) -> tuple[Any, list[tuple[Tensor, Tensor, Tensor]]]:
        """The second stream, and the inputs and the output of each matmul."""
        draw = partial(torch.randn, dtype=torch.float16, device="cuda")
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch does not annotate it
        matmuls = [(draw(m, k), draw(k, n), draw(m, n)) for m, n, k in SIZES]
        torch.cuda.synchronize()
        return stream, matmuls

    def wait(self) -> None:
        """Waits until the GPU has finished all queued work."""
        torch.cuda.synchronize()

    def graph(self, calls: Callable[[], object]) -> Callable[[], object]:
        """Captures the launches of `calls` as a CUDA graph; returns a function that queues them all."""
        made = torch.cuda.CUDAGraph()
        with torch.cuda.graph(made):
            calls()
        replay: Callable[[], object] = made.replay
        return replay

    def matmul(self, index: int) -> None:
        """Queues a matmul on the second stream; `index` selects one of `SIZES`."""
        stream, matmuls = self._second
        a, b, out = matmuls[index % len(matmuls)]
        with torch.cuda.stream(stream):
            torch.mm(a, b, out=out)

    def mark(self, *, second: bool = False) -> Any:
        """Records a timing event on the launches' stream or on the second one."""
        made: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch does not annotate it
        made.record(self._second[0] if second else torch.cuda.current_stream())
        return made

    @contextmanager
    def time_limit(self, seconds: float, what: str) -> Iterator[None]:
        """A timer thread ends the process, because the main thread may be blocked in the GPU wait."""
        line = f"{what}: did not finish within {seconds:g} s"

        def end() -> None:
            try:
                self.record_hang(line)
            finally:
                print(f"error: {line}", file=sys.stderr, flush=True)
                os._exit(EXIT_WRONG)  # a normal exit would wait for the hung GPU

        with after(seconds, end):
            yield


@dataclass
class Load:
    """Surrounds launches with matmuls, and sums up how long both ran at the same time."""

    gpu: Gpu
    matmuls: int = 0
    launches: int = 0
    seconds: float = 0.0  # of all launches
    overlap_s: float = 0.0  # of these, with a matmul running
    _per_side: int = MIN_MATMULS
    _last: list[Any] = field(default_factory=list)  # events of the last launch

    def around(self, run: Run) -> Run:
        """The same operator, with matmuls on the second stream before and after each launch."""

        def loaded(*arguments: object) -> object:
            self._add_last()
            begin = self.gpu.mark(second=True)
            self._queue()
            start = self.gpu.mark()
            found = run(*arguments)
            end = self.gpu.mark()
            self._queue()
            self._last = [begin, start, end, self.gpu.mark(second=True)]
            return found

        return loaded

    def _queue(self) -> None:
        for index in range(self._per_side):
            self.gpu.matmul(index)

    def _add_last(self) -> None:
        """Adds the last launch to the sums, and chooses how many matmuls surround the next one."""
        if not self._last:
            return
        self.gpu.wait()
        begin, start, end, done = self._last
        self._last = []
        took_ms, matmuls_ms, queued = start.elapsed_time(end), begin.elapsed_time(done), 2 * self._per_side
        overlap_ms = max(0.0, min(begin.elapsed_time(end), matmuls_ms) - max(0.0, begin.elapsed_time(start)))
        self.launches += 1
        self.matmuls += queued
        self.seconds += took_ms / 1e3
        self.overlap_s += overlap_ms / 1e3
        self._per_side = max(MIN_MATMULS, round(MATMUL_RATIO * took_ms / max(matmuls_ms / queued, 1e-3)))

    def summary(self, kernel: str, case: str) -> Beside | None:
        """The sums of all launches; None if there was no launch."""
        self._add_last()
        if not self.launches or self.seconds <= 0:
            return None
        return Beside(
            kernel=kernel, case=case, launches=self.launches, products=self.matmuls,
            seconds=round(self.seconds, 6), beside_s=round(self.overlap_s, 6),
        )  # fmt: skip


def hammer(subject: Subject, shape: Problem, launches: int, gpu: Gpu) -> Hammered:
    """Launches one kernel `launches` times at one shape; all outputs must equal the first bit for bit."""
    config, form = subject.config, subject.config.short_form()
    tensors = make_tensors(Case(f"soak {shape.seq_len}", shape, seed=shape.seq_len), config.dtype, gpu.device)

    def launch(times: int = 1) -> None:
        for _ in range(times):
            subject.run(tensors.q, tensors.k, tensors.v, tensors.out, form, **tensors.packing)

    what, start = f"{subject.key} at {described(shape)}", time.monotonic()
    with gpu.time_limit(CHUNK_S, f"{what}, first launch"):
        tensors.poison()
        launch()
        gpu.wait()
        first = tensors.out.clone()
        replay = gpu.graph(lambda: launch(GRAPH)) if launches > PLAIN else launch
        gpu.wait()
    plain = replayed = comparisons = differing = 0
    while plain + replayed < launches:
        more = min(CHUNK, launches - plain) if plain < min(PLAIN, launches) else 0
        with gpu.time_limit(CHUNK_S, f"{what}, launch {plain + replayed + 1:,} and those after it"):
            tensors.poison()
            launch(more)
            if not more:
                replay()
            gpu.wait()
            differing += not same_bits(tensors.out, first)
        plain, replayed, comparisons = plain + more, replayed + (0 if more else GRAPH), comparisons + 1
    return Hammered(
        kernel=subject.key, dtype=cast("Dtype", config.dtype), shape=shape, plain=plain, replayed=replayed,
        looks=comparisons, differing=differing, finite=bool(first.isfinite().all()),
        seconds=round(max(time.monotonic() - start, 1e-6), 3), digest=bits_digest(first),
    )  # fmt: skip


def bits_digest(tensor: Tensor, *more: int) -> str:
    """SHA-256 of a tensor's bits and of further numbers."""
    found = hashlib.sha256(tensor.contiguous().view(torch.int16).cpu().numpy().tobytes())
    found.update(repr(more).encode())
    return found.hexdigest()


def chosen_rows(seq_len: int) -> tuple[int, ...]:
    """The first rows, those around powers of two from 2^10 on, and the last ones."""
    around = {(1 << bit) + by for bit in range(10, 32) for by in (-1, 0, 1)}
    near_end = {seq_len - by for by in (1, 2, 64, 65, 128, 129)}
    return tuple(sorted(row for row in {0, 1, 63, 64, 127, 128} | around | near_end if 0 <= row < seq_len))


def chosen_slices(shape: Problem) -> tuple[tuple[int, int], ...]:
    """At most `MOST_SLICES`: the first, the last, and those where an element or byte index passes 2^31 or 2^32."""
    last_sample, last_head = shape.batch - 1, shape.n_heads - 1
    chosen = [(last_sample, last_head), (0, 0), (last_sample, 0)]
    for limit in (1 << 32, 1 << 31, 1 << 30):  # elements, of two bytes each
        if (sample := limit // (shape.seq_len * shape.n_heads * shape.d_head)) < shape.batch:
            chosen += [(sample, 0), (max(0, sample - 1), last_head)]
    return tuple(sorted(list(dict.fromkeys(chosen))[:MOST_SLICES]))


def run_large(subject: Subject, shape: Problem, gpu: Gpu) -> FarRows:
    """Compares some rows of a kernel with fp64 at a long or large shape; `FlashladderError` if the GPU is too small."""
    config = subject.config
    try:
        tensors = make_tensors(Case(f"far {shape.seq_len}", shape, seed=shape.seq_len), config.dtype, gpu.device)
    except RuntimeError as error:  # out of memory
        raise FlashladderError(f"cannot make tensors of {described(shape)}", found=first_line(error)) from error
    slices, rows = chosen_slices(shape), chosen_rows(shape.seq_len)
    took, seen, finite = list[float](), list[tuple[int, str]](), True
    for number in range(LARGE_LAUNCHES):
        with gpu.time_limit(LARGE_S, f"{subject.key} at {described(shape)}, launch {number + 1}"):
            tensors.poison()
            gpu.wait()
            start = time.monotonic()
            subject.run(tensors.q, tensors.k, tensors.v, tensors.out, config.short_form(), **tensors.packing)
            gpu.wait()
            took.append(max(time.monotonic() - start, 1e-9))
            # one sample at a time, because a mask of all of O may not fit
            finite = finite and all(bool(sample.isfinite().all()) for sample in tensors.out)
            checksum = int(tensors.out.view(torch.int32).sum(dtype=torch.int64))
            seen.append((checksum, bits_digest(reference.gather(tensors.out, slices, rows=list(rows)), checksum)))
    dtype = cast("Dtype", config.dtype)
    (largest, allowed), (rms, rms_allowed) = _errors(tensors, dtype, shape.mask, slices, rows)
    return FarRows(
        kernel=subject.key, dtype=dtype, shape=shape, slices=slices, rows=rows, launches=LARGE_LAUNCHES,
        differing=sum(one != seen[0] for one in seen), seconds=round(median(took), 9), finite=finite,
        max_error=largest, max_allowed=allowed, rms_error=rms, rms_allowed=rms_allowed, digest=seen[0][1],
    )  # fmt: skip


def _errors(
    tensors: Tensors, dtype: Dtype, mask: Mask, slices: Sequence[tuple[int, int]], rows: Sequence[int]
) -> list[tuple[float | None, float]]:
    """Max error and relative RMS error of the rows: (error, tolerance) of the worst slice for each.

    The tolerance is twice torch's error, at least a unit roundoff, plus the truncation error of tensor cores.
    """

    def of_rows(attention: Callable[..., Tensor], q: Tensor, *kv: Tensor) -> Tensor:
        """The rows' attention; under a mask, of each row to the keys that it sees."""
        if mask == "none":
            return attention(q, *kv)
        seen = [row + 1 for row in rows]  # as many keys as queries
        return torch.cat([attention(q[:, i : i + 1], *(one[:, :n] for one in kv)) for i, n in enumerate(seen)], dim=1)

    truncation, roundoff = reference.BIAS_PER_KEY * tensors.k.shape[1], reference.UNIT_ROUNDOFF[dtype]
    found: list[tuple[tuple[float, float], tuple[float, float]]] = []  # of each slice
    for one in slices:
        q, out = (reference.gather(tensor, [one], rows=list(rows)) for tensor in (tensors.q, tensors.out))
        k, v = (reference.gather(tensor, [one]) for tensor in (tensors.k, tensors.v))
        exact = of_rows(lambda *qkv: reference.attention_fp64(*qkv)[0], q, k, v)
        mine, theirs = (each.double() - exact for each in (out, of_rows(reference.attention_torch16, q, k, v)))
        size, largest = float(exact.square().mean().sqrt()), float(exact.abs().max())
        allowed = max(2 * float(theirs.abs().max()), roundoff * largest) + truncation * largest
        rms_allowed = max(roundoff, 2 * float(theirs.square().mean().sqrt()) / size) + truncation
        rms = float(mine.square().mean().sqrt()) / size
        found.append(((float(mine.abs().max()), allowed), (rms, rms_allowed)))

    def share(error: tuple[float, float]) -> float:
        return math.inf if math.isnan(error[0]) else error[0] / error[1]

    worst = (max(errors, key=share) for errors in zip(*found, strict=True))
    return [(error if math.isfinite(error) else None, allowed) for error, allowed in worst]


@dataclass
class Soak:
    """A run of this command. It writes `result` to `out` after each entry, and skips what `result` holds."""

    result: SoakResult
    out: Path | None
    gpu: Gpu
    references: References = field(default_factory=References)

    def __post_init__(self) -> None:
        """Lets the watchdog write a hang into the file."""
        self.gpu.record_hang = lambda line: self.update(hung=line)

    def keep(self, **added: object) -> None:
        """Adds entries to lists of the result and writes the file."""
        self.update(**{name: (*getattr(self.result, name), one) for name, one in added.items()})

    def update(self, **fields: object) -> None:
        """Changes fields of the result and writes the file."""
        self.result = self.result.model_copy(update=fields)
        if self.out:
            write_result(self.out, self.result)

    def require_enough(self, subject: Subject, what: str, found: int, asked: int) -> None:
        """Rejects a file whose entry has fewer repeats or launches than this run asks for."""
        if found < asked:
            problem, least = f"{subject.key}: the file holds fewer {what} than are asked for", f"at least {asked:,}"
            raise FlashladderError(problem, where=self.out, expected=least, found=f"{found:,}", hint=OTHER_FILE)

    def load(self, subject: Subject, options: argparse.Namespace) -> None:
        """Part `load`: every case of a kernel beside matmuls."""
        done = {case.case: case for case in self.result.cases if case.kernel == subject.key}
        for case in cases_for(subject.config, quick=options.quick):
            if case.name in done:
                if done[case.name].status == "pass":
                    self.require_enough(subject, "repeats", done[case.name].repeats, options.repeats)
                continue
            load = Load(self.gpu)
            loaded = replace(subject, run=load.around(subject.run))
            with self.gpu.time_limit(CASE_S, f"{subject.key}, case {case.name}"):
                checked = check_case(loaded, case, self.references, self.gpu.device, options.repeats)
                found = load.summary(subject.key, case.name)
            self.keep(cases=checked, **({"beside": found} if found else {}))

    def launches(self, subject: Subject, options: argparse.Namespace) -> None:
        """Part `launches`: `options.launches` launches of a kernel, shared by all small shapes."""
        done = {one.shape: one.launches for one in self.result.hammered if one.kernel == subject.key}
        each = -(-options.launches // len(SMALL_SHAPES))
        for shape in shapes_for(subject.config, SMALL_SHAPES):
            if shape in done:
                self.require_enough(subject, "launches of a shape", done[shape], each)
            else:
                self.keep(hammered=hammer(subject, shape, each, self.gpu))

    def far(self, subject: Subject, _: argparse.Namespace) -> None:
        """Part `far`: all long and large shapes that a kernel supports."""
        done = {one.shape for one in self.result.far if one.kernel == subject.key}
        for shape in shapes_for(subject.config, LONG_SHAPES):
            if shape not in done and not subject.config.refuses(shape):
                self.keep(far=run_large(subject, shape, self.gpu))


def problems(result: SoakResult) -> list[str]:
    """One line per problem."""
    found = [f"hung: {result.hung}"] if result.hung else []
    found += [f"{one.kernel}, case {one.case}: {one.reason}" for one in result.cases if one.status == "fail"]
    counted: list[tuple[Hammered | FarRows, str]] = [(run, f"{run.looks} comparisons") for run in result.hammered]
    for run, count in (*counted, *((run, f"{run.launches} launches") for run in result.far)):
        where = f"{run.kernel} at {described(run.shape)}"
        if run.differing:
            found.append(f"{where}: {run.differing} of {count} differ from the first output")
        if not run.finite:
            found.append(f"{where}: elements of O are NaN or infinite, or were not written")
        for what, error, allowed in _errors_of(run) if isinstance(run, FarRows) else ():
            if error is None or not error <= allowed:
                value = "NaN" if error is None else f"{error:.3g}"
                found.append(f"{where}: {what} {value} (allowed {allowed:.3g})")
    return found


def _errors_of(run: FarRows) -> tuple[tuple[str, float | None, float], ...]:
    return (("max error", run.max_error, run.max_allowed), ("relative RMS", run.rms_error, run.rms_allowed))


def render(result: SoakResult) -> str:
    """A table of each part that was run, and the problems. "overlap": share of launch time with a matmul running."""
    beside = [("kernel", "cases", "passed", "rejected", "repeats", "launches under load", "overlap")]
    beside += [_beside(result, key) for key in dict.fromkeys(one.kernel for one in result.cases)]
    hammered = [("kernel", "shape", "stream launches", "graph launches", "us/launch", "comparisons", "mismatches")]
    for one in result.hammered:
        microseconds = f"{one.seconds / one.launches * 1e6:.1f}"
        counts = (f"{one.plain:,}", f"{one.replayed:,}", microseconds, str(one.looks), str(one.differing))
        hammered.append((_short(one.kernel), described(one.shape), *counts))
    far = [("kernel", "shape", "launches", "s/launch", "mismatches", "max err / tol", "RMS err / tol")]
    for run in result.far:
        shares = ["NaN" if error is None else f"{error / allowed:.0%}" for _, error, allowed in _errors_of(run)]
        counts = (str(run.launches), f"{run.seconds:.3f}", str(run.differing), shares[0], shares[1])
        far.append((_short(run.kernel), described(run.shape), *counts))
    lines, wrong = [f"{result.gpu.name}, torch {result.reference.torch}"], problems(result)
    tables = (("cases under load", beside, 1), ("repeated launches", hammered, 2), ("long and large shapes", far, 2))
    for title, rows, first_right in tables:
        if rows[1:]:
            lines += ["", title, *table(rows, None, right=range(first_right, 7))]
    return "\n".join([*lines, "", *(f"FAILED {line}" for line in wrong), f"{len(wrong)} problems"])


def _beside(result: SoakResult, key: str) -> tuple[str, str, str, str, str, str, str]:
    own = [one for one in result.cases if one.kernel == key]
    load = [one for one in result.beside if one.kernel == key]
    spent = sum(one.seconds for one in load)
    passed, rejected = (str(sum(one.status == status for one in own)) for status in ("pass", "not_applicable"))
    repeats, launches = max(one.repeats for one in own), sum(one.launches for one in load)
    share = f"{100 * sum(one.beside_s for one in load) / spent:.0f} %" if spent else ""
    return _short(key), str(len(own)), passed, rejected, str(repeats), f"{launches:,}", share


def _short(key: str) -> str:
    """``27 FP16`` of a kernel's key."""
    number, _, form = key.partition(" (")
    return f"{number} {form.partition(',')[0]}"


def measure(options: argparse.Namespace, device: Device) -> None:
    """Soaks on this GPU and prints the result.

    Raises:
        CheckFailed: a kernel is wrong.
        FlashladderError: the file was made with another GPU, kernel, torch or rule.
    """
    kernels: dict[Subject, Kernel] = {}
    for number, config, run, kernel in bench.installed_kernels(options, device.gpu.arch):
        kernels[Subject(number, config, run, load_iteration(number).row_stride)] = kernel
    fresh = SoakResult(
        **origin(device), kernels={one.key: one for one in kernels.values()}, reference=reference_identity({}),
        rule=rule_digest(),
    )  # fmt: skip
    soak = Soak(earlier(options.out, fresh), options.out, Gpu())
    work = [(part, subject) for part in options.parts for subject in kernels]
    for part, subject in bench.until_spent(options, work):
        print(f"{part}: {subject.key}", flush=True)
        getattr(soak, part)(subject, options)  # the method named after the part
    print(render(soak.result))
    if found := problems(soak.result):
        raise CheckFailed(f"{len(found)} problems, the first: {found[0]}", where=options.out)


def earlier(path: Path | None, fresh: SoakResult) -> SoakResult:
    """Adds the entries of an earlier file of the same GPU, kernels, torch and rule, and clears a recorded hang."""
    old = bench.resumable(path, fresh, **{"FA2": "reference", "rule of correctness": "rule"})
    return old.model_copy(update={"kernels": old.kernels | fresh.kernels, "hung": None}) if old else fresh


def main(argv: Sequence[str] | None = None) -> None:
    """Soaks and prints the tables, or prints the tables of a file."""
    description = "Runs kernels beside other work, a million times, and on long sequences."
    parser = module_parser("check.soak", description, "26 27 --out soak.json.gz")
    bench.add_kernels(parser)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all three")
    parser.add_argument("--repeats", type=whole, default=REPEATS, help=f"per case in part 'load' (default: {REPEATS})")
    parser.add_argument("--launches", type=whole, default=MILLION, help="per kernel in part 'launches' (default: 10^6)")
    parser.add_argument("--quick", action="store_true", help="part 'load': short lengths only")
    bench.add_result(parser, "kernel's part")
    bench.add_show(parser)
    options = parser.parse_args(argv)
    if options.show:
        print(render(load_as(options.show, SoakResult)))
        return
    require_numbers(parser, options)
    if options.repeats < 2 or options.launches < 1:
        parser.error("--repeats must be at least 2, --launches at least 1")
    bench.on_this_gpu(options, measure)


if __name__ == "__main__":
    run_main(main)
