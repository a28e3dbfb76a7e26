"""What soaking does to a kernel: launches beside other work, a million launches, long rows; all under a watchdog.

`Load`: alone on the GPU a kernel's CTAs begin together and meet the same neighbours each time. Beside matrix products
of three sizes on a second stream they begin when an SM happens to be free, and share the L2 and the power limit. A
barrier that holds by luck has many more chances not to.

`hammer`: a wait that hangs once in a hundred thousand launches shows in no check. The host queues the first `PLAIN`
launches of a shape one by one; CUDA graphs of `GRAPH` launches queue the others. O is poisoned before each look.

`far`: where a number of keys, rows, tiles, elements or bytes leaves 32 bits, a kernel reads or writes elsewhere. Whole
outputs of that size would take hours in fp64; rows around powers of two, the first and the last ones take seconds. NaN
poison shows rows that were not written; the sum of all bits shows that each launch writes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
import hashlib
import os
from statistics import median
import sys
from threading import Timer
import time
from typing import TYPE_CHECKING, Any, Protocol

from flashladder.cases.inputs import Case, Tensors, make_tensors
from flashladder.cases.reference import (
    BIAS_PER_KEY,
    UNIT_ROUNDOFF,
    Run,
    attention_fp64,
    attention_torch16,
    gather,
    same_bits,
)
from flashladder.errors import FlashladderError
from flashladder.ladder.config import D_HEAD, Dtype, KernelConfig
from flashladder.problem import Shape
from flashladder.results.schema import Beside, FarRows, Hammered

if TYPE_CHECKING:
    import torch

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

        timer = Timer(seconds, hung)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


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
