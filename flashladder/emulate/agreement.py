"""Does the emulator count what the hardware counts, and do the iterations' claims hold in the counters of both?

The emulator's committed reading (`flashladder.emulate.reading`) is compared with Nsight Compute's readings of the
published kernels and of our own (``results/<machine>/counters.json.gz``, of locked machine code alone). The claims of
iterations/*.yaml about counters are judged in both. Hardware counters vary where two pipelines meet at shared memory,
hence the tolerances.

Run: ``python -m flashladder.emulate.agreement``; exit code 1 when something differs or a claim does not hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from flashladder.arguments import Parser
from flashladder.emulate.reading import READING, EmulatedCounters, load_reading
from flashladder.errors import Checked, CheckFailed, FlashladderError, one_line_errors
from flashladder.files import files_in, relative
from flashladder.gpu.ncu import PEER, read_peer, traffic_differences
from flashladder.ladder.claim import COUNTERS, EMULATED
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import Claim, Iteration, begun, claim_configs, load_all, load_runnable
from flashladder.lock.code_claims import Sides, Verdict, checked, judge, next_step
from flashladder.lock.schema import LOCKS, PUBLISHED_ARCH, find_locked, read_lock, refusal
from flashladder.names import PUBLISHED_GPU, REGISTERS
from flashladder.paths import RESULTS
from flashladder.results.files import load_as
from flashladder.results.published import N_ITERATIONS
from flashladder.results.schema import CounterResult, kernel_key

OF_SASS = (REGISTERS, COUNTERS["instructions"])  # properties of machine code, which the emulator does not run


def problems(path: Path, reading: EmulatedCounters | None = None) -> list[str]:
    """What differs from the hardware counters in one file: the published CSV, or one of our results.

    Raises:
        FlashladderError: a file is missing or malformed, or lacks an iteration.
    """
    reading = reading or load_reading()
    published = path.suffix == ".csv"
    hardware = read_peer(path) if published else _own(path)
    found = []
    for iteration in load_all()[:N_ITERATIONS] if published else begun(load_all(), hardware):
        if iteration.number not in hardware:
            raise FlashladderError(f"no counters of iteration {iteration.number}", where=relative(path))
        number = iteration.number
        lines = traffic_differences(number, reading.of(number).counters, hardware[number], "hardware")
        found += [f"iteration {iteration.number}: {line}, in {relative(path)}" for line in lines]
    return found


def _own(path: Path) -> dict[int, dict[str, int]]:
    """Counters by iteration of a result file, in the A100's configurations."""
    result = load_as(path, CounterResult)
    keys = {one.number: kernel_key(one.number, one.configs[PUBLISHED_GPU].short_form()) for one in load_all()}
    return {number: result.counters[key] for number, key in keys.items() if key in result.counters}


def hardware_files(folder: Path = RESULTS) -> list[Path]:
    """Hardware counters that are committed: the published kernels' and our own."""
    return [folder / "published" / PEER.name, *counter_files(folder)]


def countable(claim: Claim) -> bool:
    """Whether a claim is about what the emulator counts: PTX has no registers and no SASS instructions."""
    return not any(name in claim.metric for name in OF_SASS)


def claims(reading: EmulatedCounters) -> list[Verdict]:
    """Every claim about counters that can be judged without machine code; what GPUs judge as well is only confirmed."""
    ladder = load_all()
    counts = {iteration.number: reading.of(iteration.number).counters for iteration in ladder}
    return [
        verdict
        for step in ladder
        for claim in filter(countable, step.expect.counters)
        for verdict in judge(step.number, claim, {"emulator": sides(step, counts)}, confirms=on_hardware(claim))
    ]


def counter_files(folder: Path = RESULTS) -> list[Path]:
    """Committed readings, ``<machine>/counters.json.gz``, in order."""
    return files_in(folder, "*/counters.json.gz")


def hardware_claims(path: Path, locks: Path = LOCKS) -> list[Verdict]:
    """Every counter claim of every iteration of the families that a file of a GPU's readings is about.

    Raises:
        FlashladderError: the file holds something else, lacks an iteration, or was read from other machine code.
    """
    result = load_as(path, CounterResult)
    counts: dict[int, dict[str, int]] = {}
    ladder = begun(load_runnable(result.gpu.arch), (kernel.iteration for kernel in result.kernels.values()))
    for iteration in ladder:
        short_form = iteration.configs[PUBLISHED_GPU].short_form()
        key = kernel_key(iteration.number, short_form)
        if key not in result.kernels:
            what = f"no reading of iteration {iteration.number}"
            raise FlashladderError(what, where=relative(path), expected=short_form)
        kernel = result.kernels[key]
        if reason := refusal(kernel, read_lock(kernel.arch, locks)):
            what = f"the reading of {key} is of machine code that no lock holds"
            hint = "read the counters again: python -m flashladder.gpu.ncu --all"
            raise FlashladderError(what, where=relative(path), found=reason, hint=hint)
        counts[iteration.number] = result.counters[key]
    return [
        verdict
        for iteration in ladder
        for claim in filter(on_hardware, iteration.expect.counters)
        for verdict in judge(iteration.number, claim, {path.parent.name: sides(iteration, counts)})
    ]


def on_hardware(claim: Claim) -> bool:
    """Whether a claim is about what a GPU counts: the order of addresses is seen by the emulator only."""
    return not any(name in EMULATED for name in claim.names)


def sides(iteration: Iteration, counts: Mapping[int, Mapping[str, float]]) -> Sides:
    """The counts that an iteration's claims are judged on, of those of all iterations by number."""
    own = counts[iteration.number]
    if iteration.parent is None or claim_configs(iteration)[1] is None:  # nothing of its family came before
        return Sides(own, None, counts[next_step(iteration).number])
    return Sides(own, counts[iteration.parent], counts[iteration.parent])


def check_hardware_claims(folder: Path = RESULTS, locks: Path = LOCKS) -> Checked:
    """Whether the claims hold in every committed file of readings.

    Raises:
        FlashladderError: as `hardware_claims`.
    """
    return checked("counters", [verdict for path in counter_files(folder) for verdict in hardware_claims(path, locks)])


def check_claims(path: Path = READING) -> Checked:
    """Whether the claims hold in the emulator's counters.

    Raises:
        FlashladderError: there is no reading, or it is malformed.
    """
    return checked("counters in the emulator", claims(load_reading(path)))


def reading_problems(path: Path) -> list[str]:
    """Races that the reading found, and kernels whose PTX is not the locked one."""
    arches = {one.number: one.shown_arch for one in load_all()}
    locks = {arch: read_lock(arch, path.parent.parent / "locks") for arch in {PUBLISHED_ARCH, *arches.values()}}
    found = []
    for key, kernel in load_reading(path).kernels.items():
        found += [f"{key}: {count} races in {dtype}" for dtype, count in kernel.races.items() if count]
        for dtype, digest in kernel.ptx_sha256.items():
            config = KernelConfig.parse(kernel.config).with_dtype(dtype).short_form()
            locked = find_locked(locks[arches.get(kernel.iteration, PUBLISHED_ARCH)], kernel.iteration, config)
            if locked is None or locked.ptx_sha256 != digest:
                found.append(f"{key}: its PTX ({dtype}) is not the locked one")
    return [f"{relative(path)}: {line}" for line in found]


def main(argv: Sequence[str] | None = None) -> int:
    """Compares and prints; exit code 1 when something differs."""
    parser = Parser(
        prog="python -m flashladder.emulate.agreement",
        description="Holds the emulator's committed counters to a GPU's, and to the iterations' claims.",
        epilog="example: python -m flashladder.emulate.agreement",
    )
    parser.parse_args(argv)
    reading = load_reading()
    found = [line for path in hardware_files() for line in problems(path, reading)] + reading_problems(READING)
    print("\n".join(found) or f"as on hardware: {', '.join(map(relative, hardware_files()))}")
    check_claims().show()
    check_hardware_claims().show()
    if found:
        raise CheckFailed(f"{len(found)} counters differ")
    return 0


if __name__ == "__main__":
    with one_line_errors():
        raise SystemExit(main())
