"""The emulator's committed reading: counters and races of every iteration, beside GPUs' counters and the claims.

Sectors, wavefronts, ldmatrix and tensor instructions follow from the program and its addresses. Because the emulator
agrees with Nsight Compute on them, a machine without a GPU can check the claims of an iteration. The reading
(results/emulator/) follows from the PTX alone and holds its digests. `problems` compares it with hardware counters of
the published kernels and of ours (``results/<machine>/counters.json.gz``); `claims` judges iterations/*.yaml.

Run:
    python -m flashladder.emulate.reading            # compares the committed reading with the PTX, prints its CSV
    python -m flashladder.emulate.reading --write    # writes results/emulator/counters.json and counters.csv
Exit code: 0 current, 1 stale or a race, 2 it could not run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from flashladder import parallel
from flashladder.arguments import module_parser
from flashladder.build.compile import ptx_for, ptx_many
from flashladder.columns import csv_text
from flashladder.emulate.kernel import CopyOrder, forward, make_tensors, version
from flashladder.errors import Checked, CheckFailed, FlashladderError, run_main
from flashladder.files import dump_json, files_in, relative, sha256, write_atomic
from flashladder.gpu.ncu import PEER, SHAPE, read_peer, traffic_differences
from flashladder.ladder.claim import COUNTERS, EMULATED, Claim
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.iteration import Iteration, begun, claim_configs, load_all, load_iteration, load_runnable
from flashladder.located import read_committed
from flashladder.lock.code_claims import Sides, Verdict, checked, judge, next_step
from flashladder.lock.schema import LOCKS, PUBLISHED_ARCH, find_locked, read_lock, refusal
from flashladder.machine_code.ptx import ptx_sha256, read_ptx
from flashladder.names import DTYPES, PUBLISHED_GPU, REGISTERS
from flashladder.paths import BUILD, RESULTS
from flashladder.problem import Problem
from flashladder.results.files import load_as
from flashladder.results.published import N_ITERATIONS
from flashladder.results.schema import CounterResult, Strict, kernel_key
import ptxemu

NAME = "emulator/counters.json"  # under a results folder
READING = RESULTS / NAME
CACHE = BUILD / "emulator"
SHARED = ("ld", "st")
HOW_TO_WRITE = "run: python -m flashladder.emulate.reading --write"
RACE_SHAPE = Problem(batch=1, seq_len=256, n_heads=2, d_head=128)  # several CTAs with several rounds of the main loop
OF_SASS = (REGISTERS, COUNTERS["instructions"])  # properties of machine code, which the emulator does not run


class EmulatedKernel(Strict):
    """One kernel's reading."""

    iteration: int
    config: str  # short form
    ptx_sha256: dict[str, str]  # of the normalised PTX, by dtype
    counters: dict[str, int]  # at `EmulatedCounters.shape`, by Nsight Compute's names
    ideal_wavefronts: dict[str, int]  # of accesses to shared memory if none had conflicts, for ``ld`` and ``st``
    copied_bytes: int  # that ``cp.async`` writes to shared memory
    warp_instructions: int  # PTX instructions executed by warps
    lane_instructions: int  # by lanes
    races: dict[str, int]  # found at `EmulatedCounters.race_shape`, by dtype


class EmulatedCounters(Strict):
    """The reading of all iterations; the counters are those of fp16, and bf16 has the same."""

    schema_version: Literal[1] = 1
    kind: Literal["emulator-counters"] = "emulator-counters"
    shape: Problem
    race_shape: Problem
    kernels: dict[str, EmulatedKernel]

    def of(self, number: int) -> EmulatedKernel:
        """The kernel of an iteration; `FlashladderError` if the reading lacks it."""
        if found := self.find(number):
            return found
        raise FlashladderError(f"no emulated counters of iteration {number}", hint=HOW_TO_WRITE)

    def find(self, number: int) -> EmulatedKernel | None:
        """The kernel of an iteration; None if the reading lacks it."""
        return next((kernel for kernel in self.kernels.values() if kernel.iteration == number), None)


def load_reading(path: Path = READING) -> EmulatedCounters:
    """The committed reading; raises `FlashladderError` if it is missing or malformed."""
    return read_committed(path, EmulatedCounters, "no emulated counters", HOW_TO_WRITE)


def to_csv(reading: EmulatedCounters) -> str:
    """The counters as a table: iteration, configuration, races, then one column per counter."""
    rows = [
        {
            "iteration": kernel.iteration, "config": kernel.config, **dict(sorted(kernel.counters.items())),
            **{f"ideal_wavefronts_{kind}": kernel.ideal_wavefronts[kind] for kind in SHARED},
            **kernel.model_dump(include={"copied_bytes", "warp_instructions", "lane_instructions"}),
            **{f"races_{dtype}": kernel.races[dtype] for dtype in DTYPES},
        }
        for kernel in reading.kernels.values()
    ]  # fmt: skip
    return csv_text(list(rows[0]), (list(row.values()) for row in rows))


def files_of(reading: EmulatedCounters) -> Mapping[Path, str]:
    """The committed files of a reading and their texts."""
    return {READING: dump_json(reading.model_dump(mode="json")), READING.with_suffix(".csv"): to_csv(reading)}


def stale(reading: EmulatedCounters) -> list[str]:
    """One line for each committed file that differs from `reading`."""
    return [
        f"{relative(file)}: {'differs from what the PTX gives' if file.is_file() else 'is missing'}; {HOW_TO_WRITE}"
        for file, text in files_of(reading).items()
        if not file.is_file() or file.read_bytes() != text.encode()
    ]


def read_kernel(number: int) -> EmulatedKernel:
    """Counters and races of an iteration, cached under build/ until the PTX or the emulator changes."""
    iteration = load_iteration(number)
    configs = {dtype: iteration.configs[PUBLISHED_GPU].with_dtype(dtype) for dtype in DTYPES}
    digests: dict[str, str] = {
        dtype: ptx_sha256(read_ptx(ptx_for(iteration, config).ptx)) for dtype, config in configs.items()
    }
    cached = CACHE / f"{sha256(version(Path(__file__)) + repr((number, digests, SHAPE, RACE_SHAPE)))}.json"
    with suppress(FileNotFoundError, ValidationError):
        return EmulatedKernel.model_validate_json(cached.read_bytes())

    def launch(config: KernelConfig, shape: Problem, *observers: ptxemu.Observer) -> None:
        forward(iteration, config, make_tensors(iteration, config, shape), observers=observers)

    counters, order = ptxemu.Counters(), CopyOrder()
    launch(configs["fp16"], SHAPE, counters, order)
    hazards = {dtype: ptxemu.Hazards() for dtype in DTYPES}
    for dtype, observer in hazards.items():
        launch(configs[dtype], RACE_SHAPE, observer)
    found = EmulatedKernel(
        iteration=number,
        config=configs["fp16"].short_form(),
        ptx_sha256=digests,
        counters={n: value for n, value in counters.as_dict().items() if "_op_atom" not in n} | order.as_dict(),
        ideal_wavefronts={operation: counters.traffic("shared", operation).phases for operation in SHARED},
        copied_bytes=counters.copied_bytes,
        warp_instructions=counters.warp_instructions,
        lane_instructions=counters.lane_instructions,
        races={dtype: len(observer.reports) for dtype, observer in hazards.items()},
    )
    with suppress(FlashladderError):  # without a writable folder the next run only takes longer
        write_atomic(cached, dump_json(found.model_dump(mode="json")))
    return found


def read_all() -> EmulatedCounters:
    """The reading of all iterations, a process per CPU; raises `FlashladderError` if nothing here can compile them."""
    ladder = load_all()
    ptx_many([(one, one.configs[PUBLISHED_GPU].with_dtype(dtype)) for one in ladder for dtype in DTYPES])
    kernels = parallel.over(read_kernel, [iteration.number for iteration in ladder[::-1]], "counters")  # slowest first
    named = {kernel_key(kernel.iteration, kernel.config): kernel for kernel in kernels[::-1]}
    return EmulatedCounters(shape=SHAPE, race_shape=RACE_SHAPE, kernels=named)


def check(reading: EmulatedCounters | None = None) -> Checked:
    """Whether a reading (None: a new one) has no races and equals the committed one; errors as `read_all`."""
    reading, failure = reading or read_all(), None
    if numbers := sorted({one.iteration for one in reading.kernels.values() if any(one.races.values())}):
        where = ", ".join(f"iteration {number}" for number in numbers)
        hint = f"invoke emulate {numbers[0]} --hazards tells where"
        failure = CheckFailed("races were found", where=where, hint=hint)
    elif found := stale(reading):
        failure = CheckFailed("; ".join(found))
    return Checked(f"{len(reading.kernels)} kernels", failure=failure)


def problems(path: Path, reading: EmulatedCounters) -> list[str]:
    """Differences from the hardware counters in one file: the published CSV, or one of our results.

    Raises:
        FlashladderError: a file is missing or malformed, or lacks an iteration.
    """
    if path.suffix == ".csv":
        hardware, ladder = read_peer(path), load_all()[:N_ITERATIONS]
    else:
        result, keys = load_as(path, CounterResult), {step.number: _key(step) for step in load_all()}
        hardware = {number: result.counters[key] for number, key in keys.items() if key in result.counters}
        ladder = begun(load_all(), hardware)
    found = []
    for number in (iteration.number for iteration in ladder):
        if number not in hardware:
            raise FlashladderError(f"no counters of iteration {number}", where=relative(path))
        lines = traffic_differences(number, reading.of(number).counters, hardware[number], "hardware")
        found += [f"iteration {number}: {line}, in {relative(path)}" for line in lines]
    return found


def _key(iteration: Iteration) -> str:
    """The name of an iteration's kernel in the A100's configuration."""
    return kernel_key(iteration.number, iteration.configs[PUBLISHED_GPU].short_form())


def counter_files(folder: Path = RESULTS) -> list[Path]:
    """The committed hardware counters of our kernels, ``<machine>/counters.json.gz``, in order."""
    return files_in(folder, "*/counters.json.gz")


def hardware_files() -> list[Path]:
    """All committed hardware counters: those of the published kernels, then ours."""
    return [PEER, *counter_files()]


def countable(claim: Claim) -> bool:
    """Whether the emulator counts a claim's metric: PTX has no registers and no SASS instructions."""
    return not any(name in claim.metric for name in OF_SASS)


def on_hardware(claim: Claim) -> bool:
    """Whether a GPU counts a claim's metric: only the emulator sees the order of addresses."""
    return not any(name in EMULATED for name in claim.names)


def claims(reading: EmulatedCounters) -> list[Verdict]:
    """The verdicts on claims that the emulator counts; if a GPU counts a claim too, only whether it holds."""
    ladder = load_all()
    counts = {iteration.number: reading.of(iteration.number).counters for iteration in ladder}
    return [
        verdict
        for step in ladder
        for claim in filter(countable, step.expect.counters)
        for verdict in judge(step.number, claim, {"emulator": _sides(step, counts)}, confirms=on_hardware(claim))
    ]


def hardware_claims(path: Path, locks: Path = LOCKS) -> list[Verdict]:
    """The verdicts on all counter claims of the families in one file of hardware counters.

    Raises:
        FlashladderError: the file is another document, lacks an iteration, or was read from unlocked machine code.
    """
    result = load_as(path, CounterResult)
    counts: dict[int, dict[str, int]] = {}
    ladder = begun(load_runnable(result.gpu.arch), (kernel.iteration for kernel in result.kernels.values()))
    for iteration in ladder:
        if (key := _key(iteration)) not in result.kernels:
            what = f"no reading of iteration {iteration.number}"
            expected = iteration.configs[PUBLISHED_GPU].short_form()
            raise FlashladderError(what, where=relative(path), expected=expected)
        kernel = result.kernels[key]
        if reason := refusal(kernel, read_lock(kernel.arch, locks)):
            what = f"the reading of {key} is of machine code that no lock holds"
            hint = "read the counters again: python -m flashladder.gpu.ncu --all"
            raise FlashladderError(what, where=relative(path), found=reason, hint=hint)
        counts[iteration.number] = result.counters[key]
    return [
        verdict
        for step in ladder
        for claim in filter(on_hardware, step.expect.counters)
        for verdict in judge(step.number, claim, {path.parent.name: _sides(step, counts)})
    ]


def _sides(step: Iteration, counts: Mapping[int, Mapping[str, float]]) -> Sides:
    """The counts that a step's claims compare, from the counts of all steps by number."""
    if step.parent is None or claim_configs(step)[1] is None:  # the first of its family
        return Sides(counts[step.number], None, counts[next_step(step).number])
    return Sides(counts[step.number], counts[step.parent], counts[step.parent])


def check_hardware_claims(folder: Path = RESULTS, locks: Path = LOCKS) -> Checked:
    """Whether the claims hold in all committed hardware counters of our kernels; errors as of `hardware_claims`."""
    return checked("counters", [verdict for path in counter_files(folder) for verdict in hardware_claims(path, locks)])


def check_claims() -> Checked:
    """Whether the claims hold in the emulator's committed counters; errors as of `load_reading`."""
    return checked("counters in the emulator", claims(load_reading()))


def reading_problems(path: Path) -> list[str]:
    """The races in a committed reading, and its kernels whose PTX is not the locked one."""
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


def main(argv: Sequence[str] | None = None) -> None:
    """Makes the reading, writes or compares it, prints it; exit code 1 if it is stale or has a race."""
    description = "Counters and races of every iteration, from the PTX that ships."
    parser = module_parser("emulate.reading", description, "--write")
    parser.add_argument("--write", action="store_true", help="write the committed files")
    wants_write = parser.parse_args(argv).write
    reading = read_all()
    if wants_write:
        for path, text in files_of(reading).items():
            write_atomic(path, text)
    print(to_csv(reading), end="")
    if failure := check(reading).failure:
        raise failure


if __name__ == "__main__":
    run_main(main)
