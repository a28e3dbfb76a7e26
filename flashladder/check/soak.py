"""Soaks kernels: launches beside other work, a million launches, rows of 2^18 positions and tensors far beyond 2^31.

A race that shows once in a hundred thousand launches, beside another kernel, or where a number leaves 32 bits, is in no
table of times. All runs under a watchdog, so that a kernel that hangs is named.

`load`: every case of the check, with 50 runs that agree bit for bit while a second stream multiplies matrices of three
sizes. Alone on the GPU a kernel's CTAs begin together and meet the same neighbours each time; beside products they
begin when an SM happens to be free, and share the L2 and the power limit.
`launches`: a million launches of each kernel at small shapes. The host queues the first `PLAIN` of a shape one by one,
CUDA graphs of `GRAPH` launches the others. O is poisoned before each look.
`far`: rows of up to 262,144 positions and tensors of more than 2^32 elements. Whole outputs of that size would take
hours in fp64: rows around powers of two, the first and the last ones are compared. NaN poison shows rows that were not
written; the sum of all bits shows that each launch writes the same.

Run on a machine with a GPU:
    python -m flashladder.check.soak 26 27 --out soak.json.gz       # resumes if the file exists
    python -m flashladder.check.soak 27 --parts launches --launches 4000000
    python -m flashladder.check.soak --show results/h200/soak.json.gz
Exit code: 0 all of it holds, 1 a kernel is wrong or hangs, 2 it could not run, or the budget was spent before its end.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
import hashlib
import os
from pathlib import Path
from statistics import median
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

from flashladder.arguments import Parser, whole
from flashladder.bench.command import add_kernels, add_result, on_this_gpu, require_same, require_same_code
from flashladder.bench.references import reference_identity
from flashladder.build.installed import Installed, chosen_configs, load_installed
from flashladder.cases.inputs import Case, Tensors, cases_for, make_tensors
from flashladder.cases.reference import (
    BIAS_PER_KEY,
    UNIT_ROUNDOFF,
    References,
    Run,
    attention_fp64,
    attention_torch16,
    gather,
    same_bits,
)
from flashladder.check.command import check_iteration, rule
from flashladder.columns import after, table
from flashladder.errors import CheckFailed, FlashladderError, one_line_errors
from flashladder.gpu.device import Device
from flashladder.ladder.config import D_HEAD, DTYPES, Dtype, KernelConfig
from flashladder.ladder.iteration import runnable
from flashladder.problem import Shape
from flashladder.results.files import OTHER_FILE, load_as, write_result
from flashladder.results.schema import Beside, FarRows, Hammered, SoakResult

if TYPE_CHECKING:
    import torch

PARTS = ("load", "launches", "far")
REPEATS = 50
MILLION = 1_000_000
CASE_S = 120.0  # of one case with all its repeats, at most
RIGHT = {2, 3, 4, 5, 6}  # columns of numbers
HUNG = 1  # exit code: a kernel is wrong
LEAST = 6  # products queued on each side of a launch
LEAD = 1.5  # times a launch's own time, that the products before it and behind it take together, each
SIZES = ((512, 512, 32768), (2048, 2048, 2048), (4096, 4096, 4096))  # m, n, k: few CTAs that last, and many that do not
PLAIN = 10_000  # launches of a shape that the host queues itself
CHUNK = 500  # plain launches between two looks: fewer than a queue holds, so that the host is not held by a hang
GRAPH = 1000  # launches of a graph, and between two looks
CHUNK_S = 20.0  # limit of a chunk; it takes 3 to 40 ms
FAR_LAUNCHES = 3
FAR_S = 120.0  # limit of one launch; the longest takes 4 s on an H200
MOST_SLICES = 6


def _shapes(*sizes: tuple[int, int, int]) -> tuple[Shape, ...]:
    return tuple(Shape(batch=batch, seq_len=seq_len, n_heads=heads, d_head=D_HEAD) for batch, seq_len, heads in sizes)


SMALL_SHAPES = _shapes((1, 1, 2), (3, 129, 1), (1, 512, 2), (2, 1000, 3))
LONG_SHAPES = _shapes(
    (1, 65_537, 2),
    (1, 131_073, 1),  # one row in a tile of its own
    (1, 262_144, 2),
    (1, 262_143, 1),
    (4, 262_144, 16),  # 2^31 elements, 2^32 bytes
    (2049, 1024, 16),  # 2^32 elements and a sample; 262,272 tiles
)


def described(shape: Shape) -> str:
    """``B=1, S=512, H=2``."""
    return f"B={shape.batch}, S={shape.seq_len}, H={shape.n_heads}"


def leave(line: str) -> None:
    """Prints a line and ends the process at once."""
    print(f"error: {line}", file=sys.stderr, flush=True)
    os._exit(HUNG)


@dataclass(frozen=True)
class Watchdog:
    """Ends a process whose GPU does not answer: a kernel that hangs holds every call that waits for it.

    A process that ends in the usual way waits for the GPU once more, so that another thread has to end it.

    Attributes:
        tell: writes down what hung; called with one line at the deadline.
        end: ends the process; called with the same line.
    """

    tell: Callable[[str], object] = lambda _: None
    end: Callable[[str], object] = leave

    @contextmanager
    def within(self, seconds: float, what: str) -> Iterator[None]:
        """The body must end within so many seconds."""

        def hung() -> None:
            line = f"{what}: no end within {seconds:g} s"
            try:
                self.tell(line)
            finally:
                self.end(line)

        with after(seconds, hung):
            yield


class Work(Protocol):
    """What a second stream is kept busy with."""

    def product(self, turn: int) -> object:
        """Queues a product; `turn` chooses which."""

    def mark(self) -> Any:
        """An event there."""


@dataclass
class Load:
    """Wraps launches in products, and sums up how long they ran beside each other.

    Attributes:
        work: the second stream.
        mark: an event, with timing, recorded on the launch's own stream.
        wait: until all streams are done.
    """

    work: Work
    mark: Callable[[], Any]
    wait: Callable[[], object]
    products: int = 0
    launches: int = 0
    seconds: float = 0.0
    beside_s: float = 0.0
    _each: int = LEAST
    _last: list[Any] = field(default_factory=list)
    _of: int = 0

    def around(self, run: Run) -> Run:
        """The same operator, with products on the second stream before and behind each launch."""

        def loaded(*arguments: object) -> object:
            self.drain()
            begin = self.work.mark()
            self._queue()
            start = self.mark()
            found = run(*arguments)
            end = self.mark()
            self._queue()
            self._last = [begin, start, end, self.work.mark()]
            self._of = 2 * self._each
            return found

        return loaded

    def drain(self) -> None:
        """Adds the previous launch to the sums, and chooses how many products go around the next one."""
        if not self._last:
            return
        self.wait()
        begin, start, end, done = self._last
        self._last = []
        took, beside = start.elapsed_time(end), begin.elapsed_time(done)
        overlap = max(0.0, min(begin.elapsed_time(end), beside) - max(0.0, begin.elapsed_time(start)))
        self.launches += 1
        self.products += self._of
        self.seconds += took / 1e3
        self.beside_s += overlap / 1e3
        self._each = max(LEAST, round(LEAD * took / max(beside / self._of, 1e-3)))

    def taken(self, kernel: str, case: str) -> Beside | None:
        """The sums of the launches since the last call, which start anew; None if there was no launch."""
        self.drain()
        found = None
        if self.launches and self.seconds > 0:
            found = Beside(
                kernel=kernel, case=case, launches=self.launches, products=self.products,
                seconds=round(self.seconds, 6), beside_s=round(self.beside_s, 6),
            )  # fmt: skip
        self.products = self.launches = 0
        self.seconds = self.beside_s = 0.0
        self._each = LEAST
        return found

    def _queue(self) -> None:
        for turn in range(self._each):
            self.work.product(turn)


class Products:
    """Matrix products in fp16 on a stream of their own."""

    def __init__(self) -> None:
        import torch

        def draw(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(rows, columns, dtype=torch.float16, device="cuda")

        self.stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch does not annotate it
        self.factors = [(draw(m, k), draw(k, n)) for m, n, k in SIZES]
        self.out = [draw(m, n) for m, n, _ in SIZES]
        torch.cuda.synchronize()

    def product(self, turn: int) -> object:
        """Queues one of `SIZES`."""
        import torch

        one = turn % len(SIZES)
        with torch.cuda.stream(self.stream):
            return torch.mm(*self.factors[one], out=self.out[one])

    def mark(self) -> Any:
        """An event on the second stream."""
        return timed_event(self.stream)


def timed_event(stream: Any = None) -> Any:
    """An event with timing, recorded on a stream; None: the current one."""
    import torch

    made: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch does not annotate it
    made.record(stream or torch.cuda.current_stream())
    return made


def on_gpu() -> Load:
    """The load of this process's GPU."""
    import torch

    return Load(Products(), timed_event, torch.cuda.synchronize)


@dataclass(frozen=True)
class Queue:
    """How launches come to the GPU.

    Attributes:
        wait: until all that is queued is done.
        graph: records what is called once, and returns what queues it all.
        clock: seconds that only grow.
    """

    wait: Callable[[], object]
    graph: Callable[[Callable[[], object]], Callable[[], object]]
    clock: Callable[[], float] = time.monotonic


def hammer(
    key: str, config: KernelConfig, run: Run, shape: Shape, launches: int, queue: Queue, dog: Watchdog, device: str
) -> Hammered:
    """`launches` launches of one kernel at one shape."""
    tensors = make_tensors(Case(f"soak {shape.seq_len}", shape, seed=shape.seq_len), config.dtype, device)
    form = config.short_form()

    def launch() -> None:
        run(tensors.q, tensors.k, tensors.v, tensors.out, form)

    def several() -> None:
        for _ in range(GRAPH):
            launch()

    what = f"{key} at {described(shape)}"
    start = queue.clock()
    with dog.within(CHUNK_S, f"{what}, first launch"):
        tensors.poison()
        launch()
        queue.wait()
        first = tensors.out.clone()
        again = queue.graph(several) if launches > PLAIN else launch
        queue.wait()
    plain = replayed = looks = differing = 0
    while plain + replayed < launches:
        more = min(CHUNK, launches - plain) if plain < min(PLAIN, launches) else 0
        with dog.within(CHUNK_S, f"{what}, launch {plain + replayed + 1:,} and those behind it"):
            tensors.poison()
            for _ in range(more):
                launch()
            if not more:
                again()
            queue.wait()
            differing += not same_bits(tensors.out, first)
        plain, replayed, looks = plain + more, replayed + (0 if more else GRAPH), looks + 1
    return Hammered(
        kernel=key, dtype=_dtype(config), shape=shape, plain=plain, replayed=replayed, looks=looks,
        differing=differing, finite=bool(first.isfinite().all()),
        seconds=round(max(queue.clock() - start, 1e-6), 3), digest=bits_digest(first),
    )  # fmt: skip


def _dtype(config: KernelConfig) -> Dtype:
    return "fp16" if config.dtype == "fp16" else "bf16"


def bits_digest(tensor: torch.Tensor, *more: int) -> str:
    """SHA-256 of a tensor's bits, and of numbers."""
    import torch

    found = hashlib.sha256(tensor.contiguous().view(torch.int16).cpu().numpy().tobytes())
    found.update(repr(more).encode())
    return found.hexdigest()


def cuda_queue() -> Queue:
    """This process's GPU."""
    import torch

    def graph(calls: Callable[[], object]) -> Callable[[], object]:
        made = torch.cuda.CUDAGraph()
        with torch.cuda.graph(made):
            calls()
        replay: Callable[[], object] = made.replay
        return replay

    return Queue(torch.cuda.synchronize, graph)


def split(launches: int, shapes: Sequence[Shape] = SMALL_SHAPES) -> list[tuple[Shape, int]]:
    """So many launches, as equally many of each shape."""
    return [(shape, -(-launches // len(shapes))) for shape in shapes]


def chosen_rows(seq_len: int) -> tuple[int, ...]:
    """The first rows, those around powers of two from 2^10 on, and the last ones."""
    around = {(1 << bit) + by for bit in range(10, 32) for by in (-1, 0, 1)}
    near_end = {seq_len - by for by in (1, 2, 64, 65, 128, 129)}
    return tuple(sorted(row for row in {0, 1, 63, 64, 127, 128} | around | near_end if 0 <= row < seq_len))


def chosen_slices(shape: Shape) -> tuple[tuple[int, int], ...]:
    """The first, the last, and those in which an element's number or a byte's passes 2^31 or 2^32."""
    row = shape.n_heads * shape.d_head
    beyond = [(shape.batch - 1, shape.n_heads - 1), (0, 0), (shape.batch - 1, 0)]
    for limit in (1 << 32, 1 << 31, 1 << 30):  # elements; of two bytes each
        if (sample := limit // (shape.seq_len * row)) < shape.batch:
            beyond += [(sample, 0), (max(0, sample - 1), shape.n_heads - 1)]
    return tuple(sorted(list(dict.fromkeys(beyond))[:MOST_SLICES]))


def far(
    key: str,
    config: KernelConfig,
    run: Run,
    shape: Shape,
    wait: Callable[[], object],
    dog: Watchdog,
    device: str,
    clock: Callable[[], float] = time.monotonic,
) -> FarRows:
    """One kernel at one shape.

    Raises:
        FlashladderError: the tensors do not fit this GPU.
    """
    try:
        tensors = make_tensors(Case(f"far {shape.seq_len}", shape, seed=shape.seq_len), config.dtype, device)
    except RuntimeError as error:  # out of memory
        raise FlashladderError(
            f"cannot make tensors of {described(shape)}", found=str(error).splitlines()[0]
        ) from error
    slices, rows = chosen_slices(shape), chosen_rows(shape.seq_len)
    what = f"{key} at {described(shape)}"
    took, seen = [], list[tuple[int, str]]()
    finite = True
    for number in range(FAR_LAUNCHES):
        with dog.within(FAR_S, f"{what}, launch {number + 1}"):
            tensors.poison()
            wait()
            start = clock()
            run(tensors.q, tensors.k, tensors.v, tensors.out, config.short_form())
            wait()
            took.append(max(clock() - start, 1e-9))
            finite = finite and _finite(tensors.out)
            total = _total(tensors.out)
            seen.append((total, bits_digest(_rows(tensors.out, slices, rows), total)))
    dtype = _dtype(config)
    found = _errors(tensors, dtype, slices, rows)
    return FarRows(
        kernel=key, dtype=dtype, shape=shape, slices=slices, rows=rows, launches=FAR_LAUNCHES,
        differing=sum(one != seen[0] for one in seen), seconds=round(median(took), 9), finite=finite,
        max_error=found[0], max_allowed=found[1], rms_error=found[2], rms_allowed=found[3], digest=seen[0][1],
    )  # fmt: skip


def _errors(
    tensors: Tensors, dtype: Dtype, slices: Sequence[tuple[int, int]], rows: Sequence[int]
) -> tuple[float | None, float, float | None, float]:
    """Largest and relative RMS error of the rows of the worst slice, each with what is allowed.

    Beside what the rule of the check allows, of the RMS as of the maximum, both may have what tensor cores cut off.
    """
    cut = BIAS_PER_KEY * tensors.k.shape[1]
    roundoff, worst = UNIT_ROUNDOFF[dtype], list[tuple[float, float, float, float]]()
    for one in slices:
        q, k, v = _rows(tensors.q, [one], rows), gather(tensors.k, [one]), gather(tensors.v, [one])
        exact = attention_fp64(q, k, v)
        mine, theirs = (
            (found.double() - exact) for found in (_rows(tensors.out, [one], rows), attention_torch16(q, k, v))
        )
        size, largest = float(exact.square().mean().sqrt()), float(exact.abs().max())
        worst.append(
            (
                float(mine.abs().max()),
                max(2 * float(theirs.abs().max()), roundoff * largest) + cut * largest,
                float(mine.square().mean().sqrt()) / size,
                max(roundoff, 2 * float(theirs.square().mean().sqrt()) / size) + cut,
            )
        )
    most = max(worst, key=lambda one: _share(one[0], one[1]))
    rms = max(worst, key=lambda one: _share(one[2], one[3]))
    return _number(most[0]), most[1], _number(rms[2]), rms[3]


def _share(found: float, allowed: float) -> float:
    """How much of what is allowed; what is not a number is beyond all."""
    return found / allowed if found == found else float("inf")  # noqa: PLR0124 - NaN alone is not itself


def _number(found: float) -> float | None:
    return found if abs(found) < float("inf") else None


def _rows(tensor: torch.Tensor, slices: Sequence[tuple[int, int]], rows: Sequence[int]) -> torch.Tensor:
    """(n, rows, d_head) of a (B, S, H, D) tensor."""
    import torch

    return torch.stack([tensor[b, list(rows), h] for b, h in slices])


def _finite(out: torch.Tensor) -> bool:
    """Whether all of O is finite, a sample at a time: a mask of all of it may not fit."""
    return all(bool(sample.isfinite().all()) for sample in out)


def _total(out: torch.Tensor) -> int:
    """The sum of all bits as 32-bit integers."""
    import torch

    return int(out.view(torch.int32).sum(dtype=torch.int64))


@dataclass(frozen=True)
class Kernel:
    """One configuration of an installed iteration."""

    installed: Installed
    config: KernelConfig
    key: str


@dataclass
class Soak:
    """A run of this command: `result` is written to `out` after each entry; what it holds is not run again.

    Attributes:
        load: the second stream, made where it is first needed.
        queue: how launches are queued and waited for.
        device: torch's, of the tensors.
    """

    result: SoakResult
    out: Path | None
    load: Callable[[], Load]
    queue: Queue
    device: str = "cuda"
    dog: Watchdog = field(default_factory=Watchdog)

    def __post_init__(self) -> None:
        """A hang is written into the file before the process ends."""
        self.dog = Watchdog(lambda line: self.keep(hung=line), self.dog.end)

    def keep(self, **added: object) -> None:
        """Adds an entry to a list of the result, or says what hung; writes the file."""
        lists = {name: (*getattr(self.result, name), one) for name, one in added.items() if name != "hung"}
        self.result = self.result.model_copy(update={**added, **lists})
        if self.out:
            write_result(self.out, self.result)

    def require_enough(self, kernel: Kernel, what: str, found: int, asked: int) -> None:
        """Refuses a file that holds fewer than are asked for: it would not be run again."""
        if found < asked:
            raise FlashladderError(
                f"{kernel.key}: the file holds fewer {what} than are asked for",
                where=self.out,
                expected=f"at least {asked:,}",
                found=f"{found:,}",
                hint=OTHER_FILE,
            )

    def beside_load(self, kernel: Kernel, options: argparse.Namespace, references: References) -> None:
        """Every case of a kernel beside products."""
        load = self.load()
        done = {case.case: case for case in self.result.cases if case.kernel == kernel.key}
        for case in cases_for(kernel.config, quick=options.quick):
            if case.name in done:
                if done[case.name].status == "pass":
                    self.require_enough(kernel, "repeats", done[case.name].repeats, options.repeats)
                continue
            with self.dog.within(CASE_S, f"{kernel.key}, case {case.name}"):
                report = check_iteration(
                    kernel.installed.number,
                    configs=[kernel.config.short_form()],
                    dtypes=DTYPES,
                    references=references,
                    device=self.device,
                    run=load.around(kernel.installed.run),
                    cases=partial(_only, case),
                    repeats=options.repeats,
                    bar=False,
                )
                found = load.taken(kernel.key, case.name)
            self.keep(cases=report.cases[0], **({"beside": found} if found else {}))

    def many_launches(self, kernel: Kernel, launches: int) -> None:
        """All small shapes of a kernel, with so many launches in all."""
        done = {one.shape: one.launches for one in self.result.hammered if one.kernel == kernel.key}
        for shape, count in split(launches):
            if shape in done:
                self.require_enough(kernel, "launches of a shape", done[shape], count)
            else:
                run = kernel.installed.run
                found = hammer(kernel.key, kernel.config, run, shape, count, self.queue, self.dog, self.device)
                self.keep(hammered=found)

    def long_rows(self, kernel: Kernel) -> None:
        """All long and large shapes that a kernel takes."""
        done = {one.shape for one in self.result.far if one.kernel == kernel.key}
        for shape in LONG_SHAPES:
            taken = not kernel.config.multiples or shape.seq_len % max(kernel.config.B_r, kernel.config.B_c) == 0
            if shape not in done and taken:
                run, wait = kernel.installed.run, self.queue.wait
                found = far(kernel.key, kernel.config, run, shape, wait, self.dog, self.device)
                self.keep(far=found)

    def all_parts(self, kernels: Sequence[Kernel], options: argparse.Namespace) -> bool:
        """All parts of all kernels; whether the budget sufficed."""
        start, references = time.monotonic(), References()
        for part in options.parts:
            for kernel in kernels:
                if options.budget and time.monotonic() - start > options.budget:
                    return False
                print(f"{part}: {kernel.key}", flush=True)
                if part == "load":
                    self.beside_load(kernel, options, references)
                elif part == "launches":
                    self.many_launches(kernel, options.launches)
                else:
                    self.long_rows(kernel)
        return True


def _only(case: Case, _: KernelConfig) -> tuple[Case, ...]:
    return (case,)


def earlier(path: Path | None, fresh: SoakResult) -> SoakResult:
    """`fresh` with what an earlier file holds, which must be of the same GPU, kernels, torch and rule; no hang.

    Raises:
        FlashladderError: it is of others.
    """
    if path is None or not path.is_file():
        return fresh
    old = load_as(path, SoakResult, hint=OTHER_FILE)
    mine, theirs = ((one.gpu.uuid, one.reference, one.rule) for one in (fresh, old))
    require_same(path, zip(("GPU", "FA2", "rule of correctness"), mine, theirs, strict=True))
    for key in sorted(old.kernels.keys() & fresh.kernels.keys()):
        require_same_code(path, fresh.kernels[key], old.kernels[key])
    return old.model_copy(update={"kernels": old.kernels | fresh.kernels, "hung": None})


def _kernels(options: argparse.Namespace, arch: str) -> Iterator[Kernel]:
    for number in runnable(options.numbers, arch):
        installed = load_installed(number)
        for config in chosen_configs(number, options.configs, options.dtypes):
            installed.require(config)
            yield Kernel(installed, config, installed.identity(config, arch).key)


def problems(result: SoakResult) -> list[str]:
    """One line per thing that went wrong."""
    found = [f"hung: {result.hung}"] if result.hung else []
    found += [f"{one.kernel}, case {one.case}: {one.reason}" for one in result.cases if one.status == "fail"]
    runs: tuple[Hammered | FarRows, ...] = (*result.hammered, *result.far)
    for run in runs:
        where = f"{run.kernel} at {described(run.shape)}"
        if run.differing:
            count = f"{run.looks} looks found" if isinstance(run, Hammered) else f"{run.launches} launches wrote"
            found.append(f"{where}: {run.differing} of {count} other bits than the first")
        if not run.finite:
            found.append(f"{where}: elements of O are NaN or infinite, or were not written")
        if isinstance(run, FarRows):
            errors = {"max error": (run.max_error, run.max_allowed), "relative RMS": (run.rms_error, run.rms_allowed)}
            for what, (error, allowed) in errors.items():
                if error is None or not error <= allowed:
                    told = "NaN" if error is None else f"{error:.3g}"
                    found.append(f"{where}: {what} {told} (allowed {allowed:.3g})")
    return found


def render(result: SoakResult) -> str:
    """A table of each part that was run."""
    lines = [f"{result.gpu.name}, torch {result.reference.torch}"]
    if result.cases:
        head = ("kernel", "cases", "passed", "refused", "runs of a case", "launches beside load", "of their time")
        rows = [head, *(_beside(result, key) for key in dict.fromkeys(one.kernel for one in result.cases))]
        lines += ["", "beside matrix products, bit for bit", *table(rows, None, right={1, 2, 3, 4, 5, 6})]
    if result.hammered:
        rows = [("kernel", "shape", "by the host", "by graphs", "us each", "looks", "other bits")]
        rows += [
            (_short(one.kernel), described(one.shape), f"{one.plain:,}", f"{one.replayed:,}",
             f"{one.seconds / one.launches * 1e6:.1f}", str(one.looks), str(one.differing))
            for one in result.hammered
        ]  # fmt: skip
        lines += ["", "launched again and again", *table(rows, None, right=RIGHT)]
    if result.far:
        rows = [("kernel", "shape", "launches", "s each", "other bits", "max of allowed", "RMS of allowed")]
        rows += [
            (_short(one.kernel), described(one.shape), str(one.launches), f"{one.seconds:.3f}", str(one.differing),
             _percent(one.max_error, one.max_allowed), _percent(one.rms_error, one.rms_allowed))
            for one in result.far
        ]  # fmt: skip
        lines += ["", "long rows", *table(rows, None, right=RIGHT)]
    wrong = problems(result)
    return "\n".join([*lines, "", *(f"FAILED {line}" for line in wrong), f"{len(wrong)} problems"])


def _beside(result: SoakResult, key: str) -> tuple[str, ...]:
    own = [one for one in result.cases if one.kernel == key]
    load = [one for one in result.beside if one.kernel == key]
    spent = sum(one.seconds for one in load)
    counts = [sum(one.status == status for one in own) for status in ("pass", "not_applicable")]
    return (
        _short(key), str(len(own)), *map(str, counts), str(max(one.repeats for one in own)),
        f"{sum(one.launches for one in load):,}",
        f"{100 * sum(one.beside_s for one in load) / spent:.0f} %" if spent else "",
    )  # fmt: skip


def _percent(found: float | None, allowed: float) -> str:
    return "NaN" if found is None else f"{found / allowed:.0%}"


def _short(key: str) -> str:
    """``27 FP16`` of a kernel's key."""
    number, _, form = key.partition(" (")
    return f"{number} {form.partition(',')[0]}"


def measure(options: argparse.Namespace, device: Device) -> bool:
    """Soaks on this GPU, prints what came of it; whether the budget sufficed."""
    kernels = tuple(_kernels(options, device.gpu.arch))
    if not kernels:
        raise FlashladderError(
            "no kernel to soak on this GPU", expected="iterations that run here", found=list(options.numbers)
        )
    identities = {one.key: one.installed.identity(one.config, device.gpu.arch) for one in kernels}
    fresh = SoakResult(
        rung=device.rung, gpu=device.gpu, host=device.host, kernels=identities, reference=reference_identity({}),
        rule=rule(),
    )  # fmt: skip
    run = Soak(earlier(options.out, fresh), options.out, cache(on_gpu), cuda_queue())
    complete = run.all_parts(kernels, options)
    print(render(run.result))
    if found := problems(run.result):
        raise CheckFailed(f"{len(found)} problems, the first: {found[0]}", where=options.out)
    return complete


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m flashladder.check.soak",
        description="Runs kernels beside other work, a million times, and on long rows.",
        epilog="example: python -m flashladder.check.soak 26 27 --out soak.json.gz",
    )
    add_kernels(parser)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all three")
    parser.add_argument("--repeats", type=whole, default=REPEATS, help=f"of a case beside load (default: {REPEATS})")
    parser.add_argument("--launches", type=whole, default=MILLION, help="of each kernel (default: a million)")
    parser.add_argument("--quick", action="store_true", help="beside load short lengths only")
    add_result(parser, "kernel's part")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Soaks and prints the table, or prints that of a file."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.show:
        print(render(load_as(options.show, SoakResult)))
        return 0
    if not options.numbers or options.repeats < 2 or options.launches < 1:
        parser.error("expected iterations, at least 2 repeats and a launch")
    on_this_gpu(options, measure)
    return 0


if __name__ == "__main__":
    with one_line_errors():
        raise SystemExit(main())
