"""What identifies a run, cross-checked inside one document: times, telemetry, sample sets, registers against the lock.

Why: samples, settings and tables may follow from each other and still tell of a run that cannot have been: pairs that
took longer than their process, a clock above the GPU's, a kernel with other registers than its machine code has.
Nothing to run here; `flashladder.gate.verify_document` asks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
import itertools
from pathlib import Path
import re

from flashladder.bench.references import BACKENDS, FA2
from flashladder.check.soak import problems as soak_problems
from flashladder.lock.refusal import find_locked
from flashladder.lock.schema import LOCKS, LockFile, read_lock
from flashladder.names import REGISTERS
from flashladder.results.derive import fastest_possible_us
from flashladder.results.schema import (
    AnyResult,
    BenchResult,
    CounterResult,
    EnergyResult,
    Gpu,
    Group,
    Kernel,
    Reference,
    Result,
    Sample,
    SecondOpinionResult,
    SoakResult,
)

POWER_SHARE = 1.1  # of the limit, that a look may show: the driver averages
HOTTEST = 100  # degrees C, at which no data-centre card still runs
COMPILERS = ("nvidia-cuda-nvcc", "nvidia-nvvm")  # packages whose version decides the machine code


def problems(path: Path, result: AnyResult) -> list[str]:
    """One phrase per contradiction within a document."""
    timed = result.paired if isinstance(result, SecondOpinionResult) else result
    found = list(_times(timed)) if isinstance(timed, BenchResult) else []
    if isinstance(result, EnergyResult):
        found += _sustained(result)
    if isinstance(result, SoakResult):
        found += _soaked(result)
    found += _arms(timed)
    return [*found, *_as_locked(path, result)] if isinstance(result, Result) else found


def _arms(result: AnyResult) -> Iterator[str]:
    """A reference was called as it is, and launched a kernel of its own."""
    first: object = getattr(result, "reference", None)
    named: dict[str, Reference] = getattr(result, "references", {})
    for name, reference in ({FA2: first} | named if isinstance(first, Reference) else {}).items():
        if name not in BACKENDS:
            yield f"reference {name}: expected one of {', '.join(BACKENDS)}"
            continue
        if reference.op != BACKENDS[name].op:
            yield f"reference {name}: op: expected {BACKENDS[name].op}, found {reference.op}"
        for dtype, kernel in reference.kernels.items():
            if not re.search(BACKENDS[name].marks, kernel):
                yield f"reference {name}: its kernel in {dtype} is another's: {kernel[:80]}"


def _times(result: BenchResult) -> Iterator[str]:
    yield from _starts(result)
    launched: defaultdict[int, float] = defaultdict(float)
    ended: defaultdict[int, float] = defaultdict(float)
    for group in result.groups:
        where = f"process {group.process} {group.dtype} S={group.shape.seq_len}"
        yield from (f"{where}: {line}" for line in _clock_of(group))
        yield from (f"{where}: {line}" for line in _telemetry(group, result.gpu))
        sets = {pair.input_set for series in group.series for pair in series.pairs}
        if odd := sorted(one for one in sets if not 0 <= one < len(group.input_seeds)):
            yield f"{where}: pairs on input set {odd[0]}, of {len(group.input_seeds)} seeds"
        launched[group.process] += sum(
            pair.reference_us + pair.kernel_us for series in group.series for pair in series.pairs
        )
        looks = [look.t_s for block in group.blocks for look in block.samples]
        ended[group.process] = max([ended[group.process], *looks])
    for process, microseconds in launched.items():
        if microseconds / 1e6 > ended[process]:
            told = f"its pairs take {microseconds / 1e6:.1f} s, it timed for {ended[process]:.1f} s"
            yield f"process {process}: {told}"


def _starts(result: BenchResult) -> Iterator[str]:
    for one in result.processes:
        try:
            started = datetime.fromisoformat(one.started_utc)
        except ValueError:
            started = None
        if started is None or started.utcoffset() != timedelta():
            expected = "expected a start in UTC, such as 2026-11-20T18:02:36+00:00"
            yield f"process {one.index}: {expected}, found {one.started_utc}"


def _clock_of(group: Group) -> Iterator[str]:
    """Looks at the GPU come one after the other, after the warm-up."""
    looks = [(look.t_s, block.index) for block in group.blocks for look in block.samples]
    if looks and looks[0][0] < group.warm_up_s:
        yield f"block {looks[0][1]}: looked at after {looks[0][0]:g} s, within the warm-up of {group.warm_up_s:g} s"
    for (before, _), (after, index) in itertools.pairwise(looks):
        if after < before:
            yield f"block {index}: looked at after {after:g} s, expected at least {before:g} s, as the one before it"


def _sustained(result: EnergyResult) -> Iterator[str]:
    """Runs are no faster than the GPU's peaks, and were looked at in order, while they lasted."""
    for run in result.runs:
        where = f"{run.subject} {run.dtype} S={run.shape.seq_len}, turn {run.turn}"
        least, each = fastest_possible_us(run.shape, result.gpu.name), run.seconds / run.launches * 1e6
        if least is not None and each < least:
            yield f"{where}: {each:.1f} us is below the {least:.1f} us that the GPU's peaks allow"
        times = [look.t_s for look in run.samples]
        if times != sorted(times):
            yield f"{where}: looked at in another order than that of their times"
        elif times and times[-1] - times[0] > run.seconds:
            yield f"{where}: looked at for {times[-1] - times[0]:.2f} s, expected at most {run.seconds:g}"
        yield from (f"{where}: {line}" for look in run.samples for line in _look(look, result.gpu))


def _soaked(result: SoakResult) -> Iterator[str]:
    """What went wrong, by the words of the command; launches that are faster than the GPU's peaks; kernels unknown."""
    yield from soak_problems(result)
    for far in result.far:
        least, found = fastest_possible_us(far.shape, result.gpu.name), far.seconds * 1e6
        if least is not None and found < least:
            where = f"{far.kernel} at B={far.shape.batch}, S={far.shape.seq_len}"
            yield f"{where}: {found:.1f} us is below the {least:.1f} us that the GPU's peaks allow"
    named = {one.kernel for part in (result.cases, result.beside, result.hammered, result.far) for one in part}
    yield from (f"kernel {key}: nothing describes it" for key in sorted(named - result.kernels.keys()))


def _telemetry(group: Group, gpu: Gpu) -> Iterator[str]:
    for block in group.blocks:
        yield from (f"block {block.index}: {line}" for look in block.samples for line in _look(look, gpu))


def _look(look: Sample, gpu: Gpu) -> Iterator[str]:
    limits = (
        ("sm_clock_mhz", gpu.max_sm_clock_mhz),
        ("power_w", POWER_SHARE * gpu.power_limit_w if gpu.power_limit_w else None),
        ("temperature_c", HOTTEST),
    )
    for name, most in limits:
        found = getattr(look, name)
        if found is not None and most is not None and not 0 < found <= most:
            yield f"{name}: expected at most {most:g}, found {found:g}"


def _as_locked(path: Path, result: Result) -> Iterator[str]:
    """Registers, spills and compiler of machine code that is the locked one."""
    folder = path.parent.parent / LOCKS.name
    folder = folder if folder.is_dir() else LOCKS
    locks: dict[str, LockFile] = {}
    for key, kernel in result.kernels.items():
        lock = locks.setdefault(kernel.arch, read_lock(kernel.arch, folder))
        yield from (f"kernel {key}: {line}" for line in _of_kernel(kernel, lock))
        locked = None if kernel.variant else find_locked(lock, kernel.iteration, kernel.config)
        read = result.counters.get(key, {}).get(REGISTERS) if isinstance(result, CounterResult) else None
        if locked and read is not None and read != locked.registers:
            yield f"kernel {key}: {REGISTERS}: expected {locked.registers}, as locked, found {read}"


def _of_kernel(kernel: Kernel, lock: LockFile) -> Iterator[str]:
    locked = find_locked(lock, kernel.iteration, kernel.config)
    if locked is None or locked.text_sha256 != kernel.text_sha256:
        return
    for name in ("registers", "spill_stores", "spill_loads"):
        expected, found = getattr(locked, name), getattr(kernel, name)
        if found is not None and found != expected:
            yield f"{name}: expected {expected}, as locked, found {found}"
    versions = lock.iterations[kernel.iteration].toolchain
    for name in () if kernel.variant else COMPILERS:
        expected, found = versions.get(name), kernel.toolchain.get(name)
        if expected and found and expected != found:
            yield f"{name}: expected {expected}, as locked, found {found}"
