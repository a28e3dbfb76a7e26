"""Does the emulator count what the hardware counts, and do the iterations' claims hold in its counters?

Why: a counter that nothing was compared with is an opinion. The committed reading (`flashladder.emulate.reading`) is
held against Nsight Compute's readings of the published kernels and of our own, and against the claims of
iterations/*.yaml. Hardware counters vary where two pipelines meet at shared memory, hence the tolerances.

Run: ``python -m flashladder.emulate.agreement``; exit code 1 when something differs or a claim does not hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flashladder.arguments import Parser
from flashladder.emulate.counter_claims import counter_files, on_hardware, sides
from flashladder.emulate.reading import READING, EmulatedCounters, load_reading
from flashladder.errors import Checked, CheckFailed, FlashladderError, one_line_errors
from flashladder.files import relative
from flashladder.gpu.ncu import PEER, read_peer, traffic_differences
from flashladder.ladder.claim import COUNTERS
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import Claim, begun, load_all
from flashladder.lock.code_claims import Verdict, checked, judge
from flashladder.lock.schema import PUBLISHED_ARCH, find_locked, read_lock
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
        for iteration in ladder
        for claim in iteration.expect.counters
        if countable(claim)
        for verdict in judge(
            iteration.number, claim, {"emulator": sides(iteration, counts)}, confirms=on_hardware(claim)
        )
    ]


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
    if found:
        raise CheckFailed(f"{len(found)} counters differ")
    return 0


if __name__ == "__main__":
    with one_line_errors():
        raise SystemExit(main())
