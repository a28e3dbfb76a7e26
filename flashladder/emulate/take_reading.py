"""Counters and races of every iteration, as the emulator finds them in the PTX that ships, beside a GPU's own counters.

Why: sectors, wavefronts, ldsm and tensor instructions follow from the program and its addresses. Where the emulator
agrees with Nsight Compute (`flashladder.emulate.agreement`), a machine without a GPU can hold an iteration to its
claims. The committed reading (results/emulator/) follows from the PTX alone: the gate makes it anew and compares.

Run:
    python -m flashladder.emulate.take_reading            # compares the committed reading with the PTX, prints the
    table
    python -m flashladder.emulate.take_reading --write    # writes results/emulator/counters.json and counters.csv
Exit code: 0 current, 1 stale or a race, 2 it could not run.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from flashladder import parallel
from flashladder.arguments import Parser
from flashladder.build.compile import ptx_for, ptx_many
from flashladder.emulate.kernel import CopyOrder, forward, make_tensors, version
from flashladder.emulate.reading import SHARED, EmulatedCounters, EmulatedKernel, files_of, stale, table
from flashladder.errors import Checked, CheckFailed, FlashladderError, one_line_errors
from flashladder.files import dump_json, sha256, write_atomic
from flashladder.gpu.ncu import SHAPE
from flashladder.ladder.config import DTYPES
from flashladder.ladder.iteration import Iteration, load_all, load_iteration
from flashladder.machine_code.ptx import ptx_sha256, read_ptx
from flashladder.names import PUBLISHED_GPU
from flashladder.paths import BUILD
from flashladder.problem import Shape
from flashladder.results.schema import kernel_key
import ptxemu
from ptxemu import Observer

CACHE = BUILD / "emulator"
RACE_SHAPE = Shape(batch=1, seq_len=256, n_heads=2, d_head=128)  # several CTAs, and rounds of the main loop, in each


def launch(iteration: Iteration, dtype: str, shape: Shape, *observers: Observer) -> None:
    """Runs an iteration's published A100 kernel on N(0, 1) inputs for observers.

    Raises:
        FlashladderError: nothing here can compile it.
        EmulationError: the kernel does something it may not.
    """
    config = iteration.configs[PUBLISHED_GPU].with_dtype(dtype)
    forward(iteration, config, make_tensors(iteration, config, shape), observers=observers)


def read_kernel(number: int) -> EmulatedKernel:
    """Counters and races of an iteration; kept under build/ for as long as neither PTX nor emulator changes."""
    iteration = load_iteration(number)
    configs = {dtype: iteration.configs[PUBLISHED_GPU].with_dtype(dtype) for dtype in DTYPES}
    digests: dict[str, str] = {
        dtype: ptx_sha256(read_ptx(ptx_for(iteration, config).ptx)) for dtype, config in configs.items()
    }
    code = version(Path(__file__))
    cached = CACHE / f"{sha256(code + repr((number, digests, SHAPE, RACE_SHAPE)))}.json"
    with suppress(FileNotFoundError, ValidationError):
        return EmulatedKernel.model_validate_json(cached.read_bytes())
    counters, order = ptxemu.Counters(), CopyOrder()
    launch(iteration, "fp16", SHAPE, counters, order)
    races: dict[str, int] = {}
    for dtype in DTYPES:
        hazards = ptxemu.Hazards()
        launch(iteration, dtype, RACE_SHAPE, hazards)
        races[dtype] = len(hazards.reports)
    found = EmulatedKernel(
        iteration=number,
        config=configs["fp16"].short_form(),
        ptx_sha256=digests,
        counters={n: value for n, value in counters.as_dict().items() if "_op_atom" not in n} | order.as_dict(),
        ideal_wavefronts={operation: counters.traffic("shared", operation).phases for operation in SHARED},
        copied_bytes=counters.copied_bytes,
        warp_instructions=counters.warp_instructions,
        lane_instructions=counters.lane_instructions,
        races=races,
    )
    with suppress(FlashladderError):  # a folder that cannot be written costs time, not the reading
        write_atomic(cached, dump_json(found.model_dump(mode="json")))
    return found


def read_all() -> EmulatedCounters:
    """The reading of all iterations, a process per CPU.

    Raises:
        FlashladderError: nothing here can compile them.
    """
    ladder = load_all()
    ptx_many([(one, one.configs[PUBLISHED_GPU].with_dtype(dtype)) for one in ladder for dtype in DTYPES])
    kernels = parallel.over(read_kernel, [iteration.number for iteration in ladder[::-1]], "counters")  # longest first
    named = {kernel_key(kernel.iteration, kernel.config): kernel for kernel in kernels[::-1]}
    return EmulatedCounters(shape=SHAPE, race_shape=RACE_SHAPE, kernels=named)


def check() -> Checked:
    """Makes the reading anew and compares: whether it is free of races and the committed one.

    Raises:
        FlashladderError: as `read_all`.
    """
    reading = read_all()
    return Checked(f"{len(reading.kernels)} kernels", failure=unsound(reading))


def unsound(reading: EmulatedCounters) -> CheckFailed | None:
    """The races of a reading, else the committed files that differ from it; None where there are neither."""
    if raced := [key for key, kernel in reading.kernels.items() if any(kernel.races.values())]:
        numbers = sorted({reading.kernels[key].iteration for key in raced})
        hint = f"invoke emulate {numbers[0]} --hazards tells where"
        return CheckFailed("races were found", where=", ".join(f"iteration {number}" for number in numbers), hint=hint)
    problems = stale(reading)
    return CheckFailed("; ".join(problems)) if problems else None


def main(argv: Sequence[str] | None = None) -> int:
    """Makes the reading, writes or compares it, prints it; exit code 1 when it is stale or a race was found."""
    parser = Parser(
        prog="python -m flashladder.emulate.take_reading",
        description="Counters and races of every iteration, from the PTX that ships.",
        epilog="example: python -m flashladder.emulate.take_reading --write",
    )
    parser.add_argument("--write", action="store_true", help="write the committed files")
    wants_write = parser.parse_args(argv).write
    reading = read_all()
    if wants_write:
        for path, text in files_of(reading).items():
            write_atomic(path, text)
    Checked("", (table(reading),), failure=unsound(reading)).show()
    return 0


if __name__ == "__main__":
    with one_line_errors():
        raise SystemExit(main())
