"""Other timers over the same launches as the paired timer's: NVBench, Nsight Compute, torch's, and two of events.

``nvbench`` (PyPI ``cuda-bench``): each launch alone, CUDA events, a cold L2. ``ncu``: the GPU's own duration, caches
flushed, clocks left alone. Both share no code with the paired timer and run this module in a process of its own.
``torch``: `torch.utils.benchmark`, the host's clock around launches back to back. Python takes 20 to 120 us to
queue a launch, so shorter kernels show that time: `HOST` counts it. ``warm``: events around single launches without a
flush; the GPU sleeps before each, so that the host is ahead and the L2 stays warm. ``turns``: the L2 is flushed before
each launch, and all subjects alternate in an order drawn anew for every round. The paired timer compares two subjects
through FA2's time beside each; at the power limit that depends on what runs beside.

In every round each subject has its turn, on the tensors of the paired timer's first input set. A tool that is missing
or refused is one line, no failure.

Run, on a machine with a GPU: ``python -m flashladder.bench 7 --seq-lens 4096 --method nvbench ncu``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
import importlib
from importlib import metadata
from itertools import islice
from pathlib import Path
from random import Random
import re
import sys
import tempfile
import time
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from flashladder.bench.cross_checks import HOST, derive, problems, table
from flashladder.bench.references import BACKENDS, FA2, Subject, kernel_subject, reference_subject
from flashladder.bench.timing import FIRST_SEED, Event, cuda_event, flush_bytes
from flashladder.build.installed import load_installed
from flashladder.cases.inputs import Case, Tensors, make_tensors
from flashladder.errors import CheckFailed, FlashladderError, one_line_errors
from flashladder.files import load_json
from flashladder.gpu.doctor import require_ncu
from flashladder.gpu.ncu import ncu_version, profile, read_launches
from flashladder.ladder.config import KernelConfig
from flashladder.located import first_problem
from flashladder.names import CYCLES, DURATION, INSTRUCTIONS, KERNEL, TENSOR
from flashladder.problem import Shape
from flashladder.results.files import write_result
from flashladder.results.schema import BenchResult, Method, Opinion, SecondOpinionResult, Timings

TIMEOUT_S = 240.0  # of one tool, for each cell
ROUNDS: Mapping[Method, int] = {"nvbench": 8, "ncu": 24, "torch": 12, "warm": 12, "turns": 36}
"""In each of which every subject has a turn: one sample under ncu, torch and turns, several under the others."""
MODES: Mapping[Method, str] = {"ncu": "ncu-base", "torch": "wall-free"}  # clocks and caches; of the others event-free
WARM_UPS = 3  # launches of each subject before its first sample: compilers, plans and allocations are behind it then
SAMPLES = 12  # of one turn under NVBench
SAMPLE_TIMES = "nv/json/bin:nv/cold/sample_times"
METRICS = (DURATION, CYCLES, INSTRUCTIONS, TENSOR)
RUN_S = 0.06  # of one turn under torch's timer, about
FIRST = 10  # launches that tell how many a run takes
QUEUED = (3, 100)  # launches, at least and at most, while queuing is timed: a tenth of a run's
WARM_SAMPLES = 6  # of one turn
RUN_UP_S = 1.0  # of rounds before the first sample: until the clock is that of these subjects
# The GPU sleeps 0.5 or 2 ms before a launch: longer than queuing takes, which is up to 1 ms after another subject.
SLEEP_CYCLES: Mapping[Method, int] = {"warm": 1_000_000, "turns": 4_000_000}
TRIES = 5  # of one launch, until the host was ahead: the GPU sleeps twice as long before each further one

Launches = Mapping[str, Callable[[], object]]  # subject to what queues it once
Single = Callable[[str, Callable[[], object]], float]  # microseconds of one launch of a subject
Samples = dict[str, list[tuple[int, float]]]  # subject to round and microseconds


@dataclass(frozen=True)
class Rounds:
    """What is launched: `subjects` (references by name, kernels by key) in this order, `rounds` times."""

    subjects: tuple[str, ...]
    dtype: str
    shape: Shape
    rounds: int

    def turns(self) -> Iterator[tuple[int, str]]:
        """Round and subject of each turn, in launch order."""
        for number in range(self.rounds):
            for subject in self.subjects:
                yield number, subject


CELLS = TypeAdapter(list[Rounds])


def command(cells: Sequence[Rounds], *nvbench: str) -> list[str]:
    """The command line that launches cells in a new process; `nvbench`: a JSON file that NVBench writes meanwhile."""
    return [sys.executable, "-m", "flashladder.bench.cross_timers", CELLS.dump_json(list(cells)).decode(), *nvbench]


def load(key: str, dtype: str) -> Subject:
    """The reference or the installed kernel with this name.

    Raises:
        FlashladderError: no such kernel, or its wheel is not installed.
    """
    if key in BACKENDS:
        return reference_subject(key, dtype)
    number, _, form = key.partition(" ")
    if not (number.isascii() and number.isdigit()):
        raise FlashladderError("no such subject", expected=f"{', '.join(BACKENDS)} or a kernel's key", found=key)
    installed, config = load_installed(int(number)), KernelConfig.parse(form)
    installed.require(config)
    return kernel_subject(int(number), config, installed.run)


def first_tensors(rounds: Rounds) -> Tensors:
    """Those of the paired timer's first input set, on the GPU."""
    case = Case("second opinion", rounds.shape, seed=FIRST_SEED + rounds.shape.seq_len)
    return make_tensors(case, rounds.dtype, "cuda")


def prepared(cells: Sequence[Rounds]) -> Iterator[tuple[Rounds, Launches]]:
    """Cells of the same subjects and dtype, each with what launches its subjects."""
    subjects = [load(key, cells[0].dtype) for key in cells[0].subjects]
    for rounds in cells:
        tensors = first_tensors(rounds)
        yield rounds, {subject.key: partial(subject.launch, tensors) for subject in subjects}


def warm_up(launches: Launches) -> None:
    """Launches every subject until its compiler, plans and allocations are behind it."""
    for launch in launches.values():
        for _ in range(WARM_UPS):
            launch()


def launch_rounds(rounds: Rounds, launches: Launches, wait: Callable[[], object], window: Any) -> None:
    """Warms every subject up, then launches all rounds between ``window.start()`` and ``window.stop()``."""
    warm_up(launches)
    wait()
    window.start()
    for _, key in rounds.turns():
        launches[key]()
    wait()
    window.stop()


def nvbench_rounds(
    bench: Any, stream: Callable[[Any], Any], cells: Iterable[tuple[Rounds, Launches]], out: str
) -> None:
    """One NVBench benchmark per turn, named ``CELL ROUND INDEX``; cold L2, isolated, at NVBench's own throttle rule.

    Args:
        bench: the module `cuda.bench`.
        stream: makes a context manager of a launch; what is queued inside goes to NVBench's stream.
        cells: how many turns, and what launches the subjects.
        out: JSON file to write; the samples go into files beside it.
    """

    def benchmark(launch: Callable[[], object]) -> Callable[[Any], None]:
        def isolated(how: Any) -> None:
            with stream(how):
                launch()

        def run(state: Any) -> None:
            state.exec(isolated, batched=False)

        return run

    for cell, (rounds, launches) in enumerate(cells):
        for number in range(rounds.rounds):
            for index, key in enumerate(rounds.subjects):
                made = bench.register(benchmark(launches[key])).set_name(f"{cell} {number} {index}")
                made.set_cold_warmup_runs(WARM_UPS)
    count = str(SAMPLES)
    stop = ["--stopping-criterion", "sample-count", "--target-samples", count, "--min-samples", count]
    bench.run_all_benchmarks(["flashladder", "--devices", "0", *stop, "--jsonbin", out])


def ask_nvbench(cells: Sequence[Rounds], timeout_s: float) -> list[Opinion]:
    """NVBench's times of all cells, from one process.

    Raises:
        FlashladderError: it is not installed, failed, or wrote what we cannot read.
    """
    try:
        version = metadata.version("cuda-bench")
        metadata.version("cuda-bindings")
    except metadata.PackageNotFoundError as error:
        raise FlashladderError(
            f"the package {error.name} is not installed", hint="pip install 'cuda-bench[cu13]'"
        ) from error
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "nvbench.json"
        profile(command(cells, str(out)), timeout_s, "NVBench")
        found = read_nvbench(out, cells)
    return [_opinion("nvbench", f"cuda-bench {version}", *one) for one in zip(cells, found, strict=True)]


def read_nvbench(path: Path, cells: Sequence[Rounds]) -> list[tuple[Timings, ...]]:
    """Per cell samples by subject from NVBench's JSON and the binary files beside it: little-endian float32 seconds.

    Raises:
        FlashladderError: a turn is missing, was skipped, or its samples are not those that the document tells of.
    """
    try:
        document = load_json(path.read_bytes())
        states = {bench["name"]: bench["states"][0] for bench in document["benchmarks"]}
        found: list[tuple[Timings, ...]] = []
        for cell, rounds in enumerate(cells):
            samples: Samples = {key: [] for key in rounds.subjects}
            for number, key in rounds.turns():
                seconds = _samples(path.parent, states[f"{cell} {number} {rounds.subjects.index(key)}"])
                samples[key] += [(number, one * 1e6) for one in seconds]
            found.append(_timings(rounds, samples))
    except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise FlashladderError("cannot read what NVBench wrote", found=f"{type(error).__name__}: {error}") from error
    return found


def _samples(folder: Path, state: Mapping[str, Any]) -> Sequence[float]:
    """One state's samples in seconds."""
    if state.get("is_skipped"):
        msg = f"skipped: {state.get('skip_reason')}"
        raise ValueError(msg)
    told = {one["tag"]: one["data"] for one in state["summaries"]}
    values = {one["name"]: one["value"] for one in told.get(SAMPLE_TIMES, [])}
    found = np.fromfile(folder / values["filename"], dtype="<f4")
    if found.size != int(values["size"]) or not found.size:
        msg = f"{found.size} samples, told {values['size']}"
        raise ValueError(msg)
    return [float(one) for one in found]


def ask_ncu(cells: Sequence[Rounds], timeout_s: float) -> list[Opinion]:
    """Nsight Compute's durations and counters of all cells, one per turn, from one process.

    Raises:
        FlashladderError: no ncu, counters are refused, it failed, or it saw other launches.
    """
    ncu = require_ncu()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        line = [
            str(ncu), "--clock-control", "none", "--profile-from-start", "off", "--print-kernel-base", "demangled",
            "--metrics", ",".join(METRICS), "--csv", "--print-units", "base", "--log-file", str(log),
            *command(cells),
        ]  # fmt: skip
        found = by_turn(read_launches(profile(line, timeout_s, "ncu", log), METRICS), cells)
    version = ncu_version(ncu)
    return [_opinion("ncu", version, *one) for one in zip(cells, found, strict=True)]


def owner(kernel: str) -> str | None:
    """Whose kernel this is: `KERNEL` for ours, the name of a reference, or None."""
    if _short(kernel) == KERNEL:
        return KERNEL
    return next((name for name, one in BACKENDS.items() if re.search(one.marks, kernel)), None)


def _short(kernel: str) -> str:
    """``pytorch_flash::flash_fwd_kernel`` of ``void pytorch_flash::flash_fwd_kernel<...>(...)``."""
    return re.split(r"[<(]", kernel.removeprefix("void "), maxsplit=1)[0].strip()


def by_turn(launches: Sequence[tuple[str, Mapping[str, int]]], cells: Sequence[Rounds]) -> list[tuple[Timings, ...]]:
    """Assigns kernels, in launch order, to the turns that launched them; a reference's several kernels count together.

    Raises:
        FlashladderError: an unknown kernel, or another number of launches than turns.
    """
    turns = [turn for rounds in cells for turn in rounds.turns()]
    taken: list[dict[str, int]] = []
    for name, found in launches:
        mine = owner(name)
        last = turns[len(taken) - 1][1] if taken else None
        if last in BACKENDS and mine in {None, last}:
            taken[-1] = {metric: taken[-1].get(metric, 0) + value for metric, value in found.items()}
            continue
        expected = turns[len(taken)][1] if len(taken) < len(turns) else None
        if expected is None or mine != (expected if expected in BACKENDS else KERNEL):
            raise FlashladderError(
                "ncu saw another kernel than was launched", expected=expected or "no more", found=_short(name)
            )
        taken.append(dict(found))
    if len(taken) != len(turns):
        raise FlashladderError("ncu saw another number of launches", expected=len(turns), found=len(taken))
    try:
        rest = iter(taken)
        return [_counted(rounds, list(islice(rest, len(rounds.subjects) * rounds.rounds))) for rounds in cells]
    except ValueError as error:
        raise FlashladderError("ncu's times are none", found=first_problem(error)) from error


def _counted(rounds: Rounds, counted: Sequence[Mapping[str, int]]) -> tuple[Timings, ...]:
    samples: Samples = {key: [] for key in rounds.subjects}
    counters = {key: {metric: list[int]() for metric in METRICS[1:]} for key in rounds.subjects}  # without the duration
    for (number, key), found in zip(rounds.turns(), counted, strict=True):
        samples[key].append((number, found[DURATION] / 1e3))
        for metric, values in counters[key].items():
            values.append(found[metric])
    return _timings(rounds, samples, counters)


def ask_torch(cells: Sequence[Rounds], _: float) -> list[Opinion]:
    """Times of ``torch.utils.benchmark.Timer``, launches back to back for `RUN_S` in each turn."""
    import torch
    from torch.utils import benchmark

    def timer(launch: Callable[[], object]) -> Any:
        return benchmark.Timer(stmt="launch()", globals={"launch": launch})

    version, wait = f"torch.utils.benchmark of torch {torch.__version__}", torch.cuda.synchronize
    return [_opinion("torch", version, one, torch_rounds(timer, wait, one, own)) for one, own in prepared(cells)]


def torch_rounds(
    timer: Callable[[Callable[[], object]], Any],
    wait: Callable[[], object],
    rounds: Rounds,
    launches: Launches,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Timings, ...]:
    """One sample a turn: the mean of as many launches as take about `RUN_S`, with the host's own time beside it.

    `timer` makes torch's timer of something to call; `wait` waits for the GPU.
    """
    counts = {key: max(1, round(RUN_S / timer(launch).timeit(FIRST).median)) for key, launch in launches.items()}
    found: Samples = {key: [] for key in launches}
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
    return _timings(rounds, found, {key: {HOST: values} for key, values in host.items()})


def ask_events(method: Method, cells: Sequence[Rounds], _: float) -> list[Opinion]:
    """Events around single launches: without a flush, or with the L2 flushed and all subjects alternating."""
    import torch

    buffer: Any = None
    if method == "turns":
        l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        buffer = torch.empty(flush_bytes(l2_bytes), dtype=torch.uint8, device="cuda")

    def prepare(longer: int) -> None:
        torch.cuda._sleep(longer * SLEEP_CYCLES[method])  # type: ignore[no-untyped-call]  # noqa: SLF001 - its only name
        if buffer is not None:
            buffer.zero_()

    single = partial(one_launch, cuda_event, prepare, torch.cuda.synchronize)
    timed: Callable[[Single, Rounds, Launches], tuple[Timings, ...]]
    timed = turn_rounds if method == "turns" else warm_rounds
    version = f"events of torch {torch.__version__}"
    return [_opinion(method, version, one, timed(single, one, own)) for one, own in prepared(cells)]


def one_launch(
    event: Callable[[], Event],
    prepare: Callable[[int], object],
    wait: Callable[[], object],
    key: str,
    launch: Callable[[], object],
) -> float:
    """Microseconds of one launch that the host had queued before the GPU came to it.

    `prepare` queues what comes before: a sleep of the GPU, so many times as long as first, and perhaps a flush.

    Raises:
        FlashladderError: the GPU waited for the host before a launch `TRIES` times.
    """
    for tried in range(TRIES):
        start, end = event(), event()
        prepare(2**tried)
        start.record()
        launch()
        end.record()
        late = start.query()
        wait()
        if not late:
            return start.elapsed_time(end) * 1e3
    raise FlashladderError(f"the host was too slow {TRIES} times", where=key, hint="run it on an idle machine")


def warm_rounds(single: Single, rounds: Rounds, launches: Launches) -> tuple[Timings, ...]:
    """`WARM_SAMPLES` samples a turn; a turn's first launch is no sample."""
    warm_up(launches)
    found: Samples = {key: [] for key in launches}
    for number, key in rounds.turns():
        launches[key]()
        found[key] += [(number, single(key, launches[key])) for _ in range(WARM_SAMPLES)]
    return _timings(rounds, found)


def turn_rounds(
    single: Single, rounds: Rounds, launches: Launches, clock: Callable[[], float] = time.perf_counter
) -> tuple[Timings, ...]:
    """One sample a turn, in each round in another order, the same in every run, after `RUN_UP_S` of such rounds."""
    warm_up(launches)
    begun = clock()
    while clock() - begun < RUN_UP_S:
        for key, launch in launches.items():
            single(key, launch)
    found: Samples = {key: [] for key in launches}
    order = Random(rounds.shape.seq_len)  # noqa: S311 - no secret
    for number in range(rounds.rounds):
        for key in order.sample(rounds.subjects, len(rounds.subjects)):
            found[key].append((number, single(key, launches[key])))
    return _timings(rounds, found)


def _timings(
    rounds: Rounds, samples: Samples, counters: Mapping[str, Mapping[str, Sequence[int]]] | None = None
) -> tuple[Timings, ...]:
    return tuple(
        Timings(
            subject=key,
            rounds=tuple(number for number, _ in samples[key]),
            us=tuple(us for _, us in samples[key]),
            counters={name: tuple(values) for name, values in (counters or {}).get(key, {}).items()},
        )
        for key in rounds.subjects
    )


def _opinion(method: Method, version: str, rounds: Rounds, timings: tuple[Timings, ...]) -> Opinion:
    mode = MODES.get(method, "event-free")
    facts = {"method": method, "mode": mode, "version": version, "dtype": rounds.dtype, "shape": rounds.shape}
    return Opinion.model_validate({**facts, "timings": timings})


ASK: Mapping[Method, Callable[[Sequence[Rounds], float], list[Opinion]]] = {
    "nvbench": ask_nvbench,
    "ncu": ask_ncu,
    "torch": ask_torch,
    "warm": partial(ask_events, "warm"),
    "turns": partial(ask_events, "turns"),
}


def ask(
    paired: BenchResult,
    methods: Sequence[Method],
    timeout_s: float = TIMEOUT_S,
    rounds: int | None = None,
    keep: Callable[[SecondOpinionResult], object] = lambda _: None,
) -> SecondOpinionResult:
    """Has every cell of a fresh paired result timed by other tools; a tool that cannot is left out with its reason.

    `keep` is called with what there is, before the first tool and after each; `rounds`: None for each tool's own.
    """
    result = derive(
        SecondOpinionResult(
            rung=paired.rung, gpu=paired.gpu, host=paired.host, kernels=paired.kernels, paired=paired, opinions=()
        )
    )
    keep(result)
    for method in methods:
        opinions, left_out = result.opinions, result.left_out
        try:
            for cells in _alike(paired, rounds or ROUNDS[method]):
                opinions = (*opinions, *ASK[method](cells, timeout_s * len(cells)))
        except FlashladderError as error:
            left_out = (*left_out, f"{method}: {error}")
        result = derive(result.model_copy(update={"opinions": opinions, "left_out": left_out}))
        keep(result)
    return result


def _alike(paired: BenchResult, rounds: int) -> list[list[Rounds]]:
    """Per dtype and shape FA2 and what was timed beside it; cells of the same subjects, dtype and heads together."""
    subjects: dict[tuple[str, Shape], tuple[str, ...]] = {}
    for one in paired.summaries:  # a kernel that was wrong has none
        subjects[one.dtype, one.shape] = (*subjects.get((one.dtype, one.shape), (FA2,)), one.kernel)
    found: dict[tuple[object, ...], list[Rounds]] = {}
    for (dtype, shape), keys in subjects.items():
        found.setdefault((keys, dtype, shape.n_heads), []).append(Rounds(keys, dtype, shape, rounds))
    return list(found.values())


def compare(out: Path | None, paired: BenchResult, methods: Sequence[Method], rounds: int | None = None) -> None:
    """Asks the tools, writes the result and prints its table.

    Raises:
        CheckFailed: a tool's times cannot be; the file is written all the same.
    """
    import torch

    torch.cuda.empty_cache()  # the tools' processes need the memory
    result = ask(paired, methods, rounds=rounds, keep=lambda one: write_result(out, one) if out else None)
    print(table(result))
    if found := problems(result):
        raise CheckFailed(f"{len(found)} problems, the first: {found[0]}", where=out)


def main(words: Sequence[str]) -> int:
    """Launches cells on the current GPU: the words are those of `command`."""
    if not 1 <= len(words) <= 2 or "--help" in words:
        print("usage: python -m flashladder.bench.cross_timers CELLS [NVBENCH.json]; bench --method starts it")
        return 0 if "--help" in words else 2
    import torch

    cells = list(prepared(CELLS.validate_json(words[0])))
    torch.cuda.synchronize()
    if len(words) == 1:
        from torch.cuda import profiler

        for rounds, launches in cells:
            launch_rounds(rounds, launches, torch.cuda.synchronize, profiler)
        return 0
    bench = importlib.import_module("cuda.bench")  # optional package

    def on_stream(launch: Any) -> Any:
        external: Any = torch.cuda.ExternalStream
        return torch.cuda.stream(external(launch.get_stream().addressof()))

    nvbench_rounds(bench, on_stream, cells, words[1])
    return 0


if __name__ == "__main__":
    with one_line_errors():
        raise SystemExit(main(sys.argv[1:]))
