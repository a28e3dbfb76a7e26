"""Three more timers of this process: torch's benchmark, events without a flush, and subjects in turn with each other.

Why: whoever doubts a figure takes the timer that torch ships, `torch.utils.benchmark`: the host's clock around launches
back to back, waited for at the end. And whoever doubts the flush of the paired timer wants none (``warm``): here the
GPU sleeps before each launch instead, touching no memory, so that the host is ahead and the L2 holds what the launch
before left. In every round each subject has its turn, as under the tools of `flashladder.bench.opinion_tools`.

The paired timer has each subject in turn with FA2, so that two of them are compared through FA2's time beside each. On
a card at its power limit that time depends on what runs beside it. Whoever wants none of that has all subjects in turn
with each other, L2 flushed before each, in an order drawn anew for every round (``turns``): one clock for all.

Launches back to back are as fast as the host queues them, which Python does in 20 to 120 us: `HOST` beside each of
torch's samples is what queuing one took, and tells which were held up by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
import time
from typing import Any

from flashladder.bench.opinion_program import WARM_UPS, Rounds, first_tensors, load
from flashladder.bench.run import flush_bytes
from flashladder.bench.subject import Subject
from flashladder.bench.timing import Event
from flashladder.cases.inputs import Tensors
from flashladder.errors import FlashladderError
from flashladder.results.schema import Opinion, Timings

RUN_S = 0.06  # of one turn under torch's timer, about
FIRST = 10  # launches that tell how many a run takes
QUEUED = (
    3,
    100,
)  # launches at least and at most that are queued while the host's own time is taken: a tenth of a run's
HOST = "host_ns"  # to queue one launch
HELD_UP = 0.9  # of a launch's time that the host takes to queue it: from here on it is the host's time, not the GPU's
WARM_SAMPLES = 6  # of one turn
RUN_UP_S = 1.0  # of rounds before the first sample: until the clock is that of this company
SLEEP_CYCLES = 1_000_000  # of the GPU before each launch, 0.5 ms: longer than most launches take the host
TURN_SLEEP_CYCLES = 4_000_000  # 2 ms, where another subject's launch was before: FA4's takes the host up to 1 ms then
TRIES = 5  # of one launch, until the host was ahead: the GPU sleeps twice as long before each further one

Found = dict[str, list[tuple[int, float]]]


def ask_torch(cells: Sequence[Rounds], _: float) -> list[Opinion]:
    """Times of ``torch.utils.benchmark.Timer``, launches back to back for `RUN_S` in each turn.

    Raises:
        FlashladderError: a subject is not installed here.
    """
    import torch
    from torch.utils import benchmark

    def timer(launch: Callable[[], object]) -> Any:
        return benchmark.Timer(stmt="launch()", globals={"launch": launch})

    version = f"torch.utils.benchmark of torch {torch.__version__}"
    return [
        _opinion("torch", "wall-free", version, rounds, torch_rounds(
            timer, torch.cuda.synchronize, rounds, _subjects(rounds), first_tensors(rounds)
        ))
        for rounds in cells
    ]  # fmt: skip


def torch_rounds(
    timer: Callable[[Callable[[], object]], Any],
    wait: Callable[[], object],
    rounds: Rounds,
    subjects: Sequence[Subject],
    tensors: Tensors,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Timings, ...]:
    """One sample a turn: the mean of as many launches as take about `RUN_S`, with the host's own time beside it.

    Args:
        timer: makes torch's timer of something to call.
        wait: until the GPU has done all that is queued.
        rounds: how many turns.
        subjects: in the order of `rounds.subjects`.
        tensors: what they are launched on.
        clock: seconds that only grow.
    """
    launches = {subject.key: _call(subject, tensors) for subject in subjects}
    counts = {key: max(1, round(RUN_S / timer(launch).timeit(FIRST).median)) for key, launch in launches.items()}
    found: Found = {key: [] for key in launches}
    host: dict[str, list[int]] = {key: [] for key in launches}
    for number, key in rounds.turns():
        queued = min(max(QUEUED[0], counts[key] // 10), QUEUED[1])
        wait()
        start = clock()
        for _ in range(queued):
            launches[key]()
        host[key].append(round((clock() - start) / queued * 1e9))
        wait()
        found[key].append((number, float(timer(launches[key]).timeit(counts[key]).median) * 1e6))
    return tuple(_timings(key, found[key], {HOST: tuple(host[key])}) for key in rounds.subjects)


def ask_warm(cells: Sequence[Rounds], _: float) -> list[Opinion]:
    """Events around single launches, without a flush.

    Raises:
        FlashladderError: a subject is not installed here, or the host is too slow.
    """
    import torch

    return [
        _opinion("warm", "event-free", f"events of torch {torch.__version__}", rounds, warm_rounds(
            _event, _sleep, torch.cuda.synchronize, rounds, _subjects(rounds), first_tensors(rounds)
        ))
        for rounds in cells
    ]  # fmt: skip


def warm_rounds(
    event: Callable[[], Event],
    sleep: Callable[[int], object],
    wait: Callable[[], object],
    rounds: Rounds,
    subjects: Sequence[Subject],
    tensors: Tensors,
) -> tuple[Timings, ...]:
    """`WARM_SAMPLES` samples a turn, of launches that the GPU did not wait for; a turn's first launch is no sample.

    Raises:
        FlashladderError: the GPU waited for the host before a launch `TRIES` times.
    """
    launches = {subject.key: _call(subject, tensors) for subject in subjects}
    for launch in launches.values():
        for _ in range(WARM_UPS):
            launch()
    found: Found = {key: [] for key in launches}
    for number, key in rounds.turns():
        launches[key]()
        found[key] += [(number, _sample(event, sleep, wait, key, launches[key])) for _ in range(WARM_SAMPLES)]
    return tuple(_timings(key, found[key], {}) for key in rounds.subjects)


def ask_turns(cells: Sequence[Rounds], _: float) -> list[Opinion]:
    """Events around single launches, L2 flushed before each, all subjects in turn with each other.

    Raises:
        FlashladderError: a subject is not installed here, or the host is too slow.
    """
    import torch

    buffer = torch.empty(
        flush_bytes(torch.cuda.get_device_properties(0).L2_cache_size), dtype=torch.uint8, device="cuda"
    )

    def prepare(longer: int) -> None:
        _sleep(longer, TURN_SLEEP_CYCLES)
        buffer.zero_()

    version = f"events of torch {torch.__version__}"
    return [
        _opinion("turns", "event-free", version, rounds, turn_rounds(
            _event, prepare, torch.cuda.synchronize, rounds, _subjects(rounds), first_tensors(rounds)
        ))
        for rounds in cells
    ]  # fmt: skip


def turn_rounds(
    event: Callable[[], Event],
    prepare: Callable[[int], object],
    wait: Callable[[], object],
    rounds: Rounds,
    subjects: Sequence[Subject],
    tensors: Tensors,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Timings, ...]:
    """One sample a turn, in each round in another order, the same in every run, after `RUN_UP_S` of such rounds.

    Args:
        event: makes an event.
        prepare: queues what comes before each launch: a sleep of the GPU, so many times as long as first, and a flush.
        wait: until the GPU has done all that is queued.
        rounds: how many.
        subjects: in the order of `rounds.subjects`.
        tensors: what they are launched on.
        clock: seconds that only grow.

    Raises:
        FlashladderError: the GPU waited for the host before a launch `TRIES` times.
    """
    launches = {subject.key: _call(subject, tensors) for subject in subjects}
    for _ in range(WARM_UPS):
        for launch in launches.values():
            launch()
    begun = clock()
    while clock() - begun < RUN_UP_S:
        for key, launch in launches.items():
            _sample(event, prepare, wait, key, launch)
    found: Found = {key: [] for key in launches}
    order = Random(rounds.shape.seq_len)  # noqa: S311 - no secret
    for number in range(rounds.rounds):
        for key in order.sample(rounds.subjects, len(rounds.subjects)):
            found[key].append((number, _sample(event, prepare, wait, key, launches[key])))
    return tuple(_timings(key, found[key], {}) for key in rounds.subjects)


def _event() -> Event:
    import torch

    made: Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch does not annotate it
    return made


def _sleep(longer: int, cycles: int = SLEEP_CYCLES) -> None:
    import torch

    torch.cuda._sleep(longer * cycles)  # type: ignore[no-untyped-call]  # noqa: SLF001 - under no public name


def _sample(
    event: Callable[[], Event],
    sleep: Callable[[int], object],
    wait: Callable[[], object],
    key: str,
    launch: Callable[[], object],
) -> float:
    """Microseconds of one launch."""
    for tried in range(TRIES):
        start, end = event(), event()
        sleep(2**tried)
        start.record()
        launch()
        end.record()
        late = start.query()
        wait()
        if not late:
            return start.elapsed_time(end) * 1e3
    raise FlashladderError(f"the host was too slow {TRIES} times", where=key, hint="run it on an idle machine")


def held_up(timings: Timings | None) -> bool:
    """Whether the host, not the GPU, set the time of a subject's samples."""
    if timings is None or HOST not in timings.counters:
        return False
    behind = [host / 1e3 >= HELD_UP * us for host, us in zip(timings.counters[HOST], timings.us, strict=True)]
    return 2 * sum(behind) > len(behind)


def _subjects(rounds: Rounds) -> list[Subject]:
    return [load(key, rounds.dtype) for key in rounds.subjects]


def _call(subject: Subject, tensors: Tensors) -> Callable[[], object]:
    return lambda: subject.launch(tensors)


def _timings(subject: str, found: Sequence[tuple[int, float]], counters: Mapping[str, tuple[int, ...]]) -> Timings:
    return Timings(
        subject=subject,
        rounds=tuple(number for number, _ in found),
        us=tuple(us for _, us in found),
        counters=dict(counters),
    )


def _opinion(method: str, mode: str, version: str, rounds: Rounds, timings: tuple[Timings, ...]) -> Opinion:
    return Opinion.model_validate(
        {
            "method": method, "mode": mode, "version": version, "dtype": rounds.dtype, "shape": rounds.shape,
            "timings": timings,
        }
    )  # fmt: skip
