"""Limits that committed data must keep: what is locked and checked at all, registers, spills, peaks of GPUs.

Why apart from `flashladder.gate.results`: here nothing is derived again; these are demands on files that could be
consistent with all others and still be wrong. Each function says what breaks them, a line each.

Nothing to run here; `invoke gate` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from flashladder.files import relative
from flashladder.gate.results import CHECK, checks_of
from flashladder.gpu.ncu import PEER, REGISTER_TOLERANCE, read_peer
from flashladder.ladder.claim import LOCK_ARCHES
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import GPUS, Gpu, gpu_key, load_gpus
from flashladder.ladder.iteration import begun, load_all, load_runnable
from flashladder.ladder.selection import select_configs
from flashladder.lock.schema import LockFile, lock_path, read_lock
from flashladder.names import PUBLISHED_GPU, REGISTERS
from flashladder.results.differences import Found
from flashladder.results.files import read_json
from flashladder.results.schema import Gpu as Measured

MOST_SPILLS = 88  # bytes of spill stores per thread at 255 registers: the published (128, 64, 4) kernels
SPILLING_TILE, ALL_REGISTERS = "128,64,4", 255
PEER_ARCH = "sm_90"  # of the published kernels whose registers were read
MOST_SECONDS = {(16, 512, 1): 2.0}  # (iteration, S, heads): every run of the emulator, counters on
HOPPER_GOAL = (512, 3.0)  # sequence length, seconds with counters and hazards
LEAST_RATE = {(1, 1024, 16): 30e6, (16, 1024, 16): 30e6}  # lane-instructions per second, median run
PEAK_ROUNDING = 2e-3  # relative: a datasheet's TFLOP/s are rounded


def lock_files(folder: Path) -> list[Path]:
    """The lock of every architecture that machine code is made for, whether or not it is there."""
    return [lock_path(arch, folder / "locks") for arch in LOCK_ARCHES]


def lock_problems(path: Path) -> Found:
    """Kernels that a lock lacks or should not hold, that spill more than the published ones, or use other registers."""
    lock = read_lock(path.stem, path.parent)
    found = _not_as_selected(lock)
    n = 0
    for number, entry in lock.iterations.items():
        for short_form, kernel in entry.kernels.items():
            config = KernelConfig.parse(short_form)
            full = config.tile == SPILLING_TILE and kernel.registers == ALL_REGISTERS
            allowed = MOST_SPILLS if full else 0
            if kernel.spill_stores > allowed:
                found.append(f"iteration {number}, {short_form}: spills {kernel.spill_stores} bytes, at most {allowed}")
            n += 1
    if lock.arch == PEER_ARCH:
        found += _other_registers(lock)
    return Found([f"{relative(path)}: {line}" for line in found], n)


def _not_as_selected(lock: LockFile) -> list[str]:
    """Configurations of the ladder that are not locked, and locked ones that no iteration has."""
    found = []
    ladder = {iteration.number: iteration for iteration in load_all()}
    for number in sorted(ladder.keys() | lock.iterations.keys()):
        locks_it = number in ladder and lock.arch in ladder[number].family.targets.arches
        wanted = {c.short_form() for c in select_configs(ladder[number], "prog")} if locks_it else set()
        held = set(lock.iterations[number].kernels) if number in lock.iterations else set()
        found += [f"iteration {number}, {form}: is not locked" for form in sorted(wanted - held)]
        found += [f"iteration {number}, {form}: is locked, but not of the ladder" for form in sorted(held - wanted)]
    return found


def _other_registers(lock: LockFile) -> list[str]:
    """Kernels whose registers are farther from the published kernels' than another compiler release explains."""
    peer = read_peer(PEER)
    found = []
    for iteration in (one for one in load_all() if one.number in peer):
        config = iteration.configs[PUBLISHED_GPU].short_form()
        kernel = lock.iterations[iteration.number].kernels.get(config) if iteration.number in lock.iterations else None
        theirs = peer[iteration.number][REGISTERS]
        if kernel and abs(kernel.registers - theirs) > REGISTER_TOLERANCE:
            expected = f"expected {theirs} within {REGISTER_TOLERANCE}, as the published kernel"
            found.append(f"iteration {iteration.number}, {config}: {kernel.registers} registers, {expected}")
    return found


def unchecked(folder: Path) -> Found:
    """Configurations of the ladder that were not checked on the GPU of a machine's folder, though it runs them."""
    result = checks_of(folder)
    checked = {(kernel.iteration, kernel.config) for kernel in result.kernels.values()}
    ladder = begun(load_runnable(result.gpu.arch), (number for number, _ in checked))
    wanted = [(one.number, config.short_form()) for one in ladder for config in select_configs(one, "prog")]
    missing = [(number, form) for number, form in wanted if (number, form) not in checked]
    where = relative(folder / CHECK)
    return Found([f"{where}: iteration {number}, {form}: was not checked" for number, form in missing], len(wanted))


def peak_problems(measured: Sequence[Measured], folder: Path = GPUS) -> Found:
    """Peaks that contradict each other or the GPUs that were measured on.

    The rate of all SMs at the boost clock is the peak, no clock is above the most, and a GPU with committed results has
    the SMs and the clock that its driver told.
    """
    gpus = load_gpus(folder)
    found = [line for gpu in gpus.values() for line in _peaks_of(gpu)]
    for device in measured:
        described = gpus.get(gpu_key(device.name, folder) or "")
        for name, told in (("sms", device.n_sm), ("max_clock", device.max_sm_clock_mhz)):
            peak = described.peaks.get(name) if described else None
            if described and told is not None and (peak is None or peak.value != told):
                value = f"{peak.value:g}" if peak else "none"
                found.append(f"{described.gpu}.yaml: peaks.{name}: expected {told}, as the driver told, found {value}")
    return Found([f"{relative(folder)}/{line}" for line in found], sum(len(gpu.peaks) for gpu in gpus.values()))


def _peaks_of(gpu: Gpu) -> list[str]:
    names = ("fp16_tensor", "fp16_tensor_rate", "sms", "boost_clock", "max_clock")
    if missing := [name for name in names if name not in gpu.peaks]:
        return [f"{gpu.gpu}.yaml: peaks: lacks {', '.join(missing)}"]
    peak, rate, sms, boost, most = (gpu.peaks[name].value for name in names)
    made = rate * sms * boost * 1e6 / 1e12
    found = []
    if abs(made - peak) > PEAK_ROUNDING * peak:
        found.append(f"{gpu.gpu}.yaml: peaks.fp16_tensor: expected {made:.1f} TFLOP/s of all SMs, found {peak:g}")
    if boost > most:
        found.append(f"{gpu.gpu}.yaml: peaks.boost_clock: expected at most the max_clock {most:g}, found {boost:g}")
    return found


def speed_problems(path: Path) -> Found:
    """Runs of the emulator that took longer than asked, and those that were not timed."""
    document = read_json(path)
    runs = {(run["iteration"], run["seq_len"], run["heads"]): run for run in document["runs"]}
    found = _slow_loops(path, document.get("loops", []))
    for (step, seq_len, heads), goal in (*MOST_SECONDS.items(), *LEAST_RATE.items()):
        where = f"{relative(path)}: iteration {step}, S = {seq_len}, {heads} heads"
        run = runs.get((step, seq_len, heads))
        if run is None:
            found.append(f"{where}: was not timed")
        elif (step, seq_len, heads) in MOST_SECONDS:
            slowest = max(run["seconds"])
            found += [] if slowest < goal else [f"{where}: expected less than {goal:g} s, found {slowest:.2f} s"]
        else:
            rate = run["lane_instructions"] / median(run["seconds"])
            told = f"{where}: expected {goal / 1e6:g} million lane-instructions a second, found {rate / 1e6:.1f}"
            found += [] if rate >= goal else [told]
    return Found(found, len(MOST_SECONDS) + len(LEAST_RATE) + 1)


def _slow_loops(path: Path, loops: list[dict[str, Any]]) -> list[str]:
    """What is wrong with the time of the Hopper kernel, with counters and hazards."""
    seq_len, goal = HOPPER_GOAL
    where = f"{relative(path)}: Hopper attention, S = {seq_len}"
    slowest = [max(run["seconds"]) for run in loops if run["seq_len"] == seq_len]
    if not slowest:
        return [f"{where}: was not timed"]
    return [] if max(slowest) < goal else [f"{where}: expected less than {goal:g} s, found {max(slowest):.2f} s"]
