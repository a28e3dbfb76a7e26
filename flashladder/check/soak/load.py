"""Every case of a kernel beside other work: matrix products on a second stream, before, while and after it runs.

Why: alone on the GPU a kernel's CTAs begin together and meet the same neighbours each time. Beside products of three
sizes they begin when a multiprocessor happens to be free, share the L2 and the power limit, and a barrier or a wait
that holds by luck has many more chances not to. The cases are those of the check, by its rule, with more repeats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from flashladder.cases.case import Run
from flashladder.results.schema import Beside

LEAST = 6  # products queued on each side of a launch
LEAD = 1.5  # times a launch's own time, that the products before it and behind it take together, each
SIZES = ((512, 512, 32768), (2048, 2048, 2048), (4096, 4096, 4096))  # m, n, k: few CTAs that last, and many that do not


class Work(Protocol):
    """What a second stream is kept busy with."""

    def product(self, turn: int) -> object:
        """Queues a product; `turn` chooses which."""

    def mark(self) -> Any:
        """An event there."""


@dataclass
class Load:
    """A launch wrapped in products, and what is known of how long they ran beside each other.

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
            self.settle()
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

    def settle(self) -> None:
        """Adds up the launch before, and queues more or fewer products around the next one."""
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
        """What is known of the launches since the last call; None where there were none."""
        self.settle()
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
