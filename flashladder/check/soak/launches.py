"""A kernel launched a million times at small shapes, on one input, with the same bits at the end as at the beginning.

Why: a wait that hangs or a slot that is given back too early once in a hundred thousand launches shows in no check. The
first `PLAIN` launches of a shape are queued by the host one by one, all others by CUDA graphs of `GRAPH` launches,
back to back on the GPU. Between two looks O is poisoned, so that a launch that writes nothing shows as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
import hashlib
import time
from typing import TYPE_CHECKING

from flashladder.cases.case import Run
from flashladder.cases.inputs import Case, Tensors, make_tensors
from flashladder.check.soak.watchdog import Watchdog
from flashladder.ladder.config import D_HEAD, Dtype, KernelConfig
from flashladder.problem import Shape
from flashladder.results.schema import Hammered

if TYPE_CHECKING:
    import torch

SHAPES = tuple(
    Shape(batch=batch, seq_len=seq_len, n_heads=heads, d_head=D_HEAD)
    for batch, seq_len, heads in ((1, 1, 2), (3, 129, 1), (1, 512, 2), (2, 1000, 3))
)
PLAIN = 10_000  # launches of a shape that the host queues itself
CHUNK = 500  # plain launches between two looks: fewer than a queue holds, so that the host is not held by a hang
GRAPH = 1000  # launches of a graph, and between two looks
DEADLINE_S = 20.0  # of a chunk; it takes 3 to 40 ms


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

    what = f"{key} at B={shape.batch}, S={shape.seq_len}, H={shape.n_heads}"
    start = queue.clock()
    with dog.within(DEADLINE_S, f"{what}, first launch"):
        tensors.poison()
        launch()
        queue.wait()
        first = tensors.out.clone()
        again = queue.graph(several) if launches > PLAIN else launch
        queue.wait()
    plain = replayed = looks = differing = 0
    while plain + replayed < launches:
        more = min(CHUNK, launches - plain) if plain < min(PLAIN, launches) else 0
        with dog.within(DEADLINE_S, f"{what}, launch {plain + replayed + 1:,} and those behind it"):
            tensors.poison()
            for _ in range(more):
                launch()
            if not more:
                again()
            queue.wait()
            differing += not _same(tensors, first)
        plain, replayed, looks = plain + more, replayed + (0 if more else GRAPH), looks + 1
    return Hammered(
        kernel=key, dtype=_dtype(config), shape=shape, plain=plain, replayed=replayed, looks=looks,
        differing=differing, finite=bool(first.isfinite().all()),
        seconds=round(max(queue.clock() - start, 1e-6), 3), digest=bits_digest(first),
    )  # fmt: skip


def _dtype(config: KernelConfig) -> Dtype:
    return "fp16" if config.dtype == "fp16" else "bf16"


def _same(tensors: Tensors, first: torch.Tensor) -> bool:
    import torch

    return torch.equal(tensors.out.view(torch.int16), first.view(torch.int16))


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


def split(launches: int, shapes: Sequence[Shape] = SHAPES) -> list[tuple[Shape, int]]:
    """So many launches, as equally many of each shape."""
    return [(shape, -(-launches // len(shapes))) for shape in shapes]
