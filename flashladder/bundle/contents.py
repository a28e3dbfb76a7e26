"""What of the ladder goes into a bundle: wheels of iterations, PTX for the emulator, grids for which these suffice.

Why: a node has no compiler, so that all that a sweep, a check or the emulator would compile must come along under the
identity that it has here. Everything is built by the pipeline's own functions; what is in the store is not made again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from flashladder.build.command import build_iteration
from flashladder.build.compile import ptx_many, tools_of
from flashladder.build.store import PtxEntry
from flashladder.errors import FlashladderError
from flashladder.files import dump_json
from flashladder.ladder.ablation import load_description
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.grid import Grid, grid_names, load_grid
from flashladder.ladder.iteration import Iteration
from flashladder.ladder.selection import select_configs
from flashladder.ladder.subject import parse_subject
from flashladder.sweep.place import covering_key
from flashladder.sweep.plan import wanted
from flashladder.toolchain.recorded import NAME, Recorded

KEY = "prog"  # what is built of every iteration: its configuration on each GPU, in both dtypes
LOG = "compiled where the bundle was made\n"
Kernel = tuple[str, str, str]
"""A subject as it describes itself, the CUDA version of its compiler (empty: the pinned one), a short form."""


@dataclass(frozen=True)
class Kernels:
    """What a bundle carries of the ladder.

    Attributes:
        wheels: of iterations, of ablations and of other compilers' builds where a grid wants them.
        built: every kernel in these.
        emulated: every kernel whose PTX is in `store`.
        store: the store's files, by their path below the folder of builds.
    """

    wheels: tuple[Path, ...]
    built: frozenset[Kernel]
    emulated: frozenset[Kernel]
    store: dict[str, bytes]


def kernels_of(grid: Grid) -> set[Kernel]:
    """Every kernel that a grid measures."""
    return {
        (load_description(one.subject).description, one.toolchain, one.config)
        for one in wanted(grid)
        if not one.is_reference
    }


def targets(iteration: Iteration, arches: Sequence[str]) -> tuple[str, ...]:
    """What an iteration's family has machine code for, of the GPUs of `arches`, each once."""
    serving = iteration.family.targets.serving
    return tuple(dict.fromkeys(code for arch in arches if (code := serving(arch))))


def collect(numbers: Sequence[int], grids: Sequence[Grid], arches: Sequence[str]) -> Kernels:
    """Builds what is missing of iterations and of further grids, and gathers it.

    Raises:
        FlashladderError: a build failed, or nothing runs on these architectures.
    """
    ladder = [load_description(str(number)) for number in numbers]
    own = {(one.description, "", config.short_form()) for one in ladder for config in select_configs(one, KEY)}
    more = {kernel for grid in grids if grid.mode != "emulator" for kernel in kernels_of(grid)}
    by_wheel: dict[tuple[str, str], set[str]] = {}
    for subject, cuda, config in sorted(own | more):
        by_wheel.setdefault((subject, cuda), set()).add(config)
    wheels, built = list[Path](), set[Kernel]()
    order = sorted(by_wheel, key=lambda one: parse_subject(*one).package)
    for subject, cuda in tqdm(order, desc="bundle", unit="wheel", disable=None, leave=False):
        iteration = load_description(subject)
        if fit := targets(iteration, arches):
            key = covering_key(subject, by_wheel[subject, cuda])
            wheels.append(build_iteration(subject, ",".join(fit), key, install=False, cuda=cuda).wheel)
            built |= {(subject, cuda, config.short_form()) for config in select_configs(iteration, key)}
    if not wheels:
        raise FlashladderError("no iteration has machine code for these architectures", found=", ".join(arches))
    emulated = own | {kernel for grid in grids if grid.mode == "emulator" for kernel in kernels_of(grid)}
    return Kernels(tuple(wheels), frozenset(built), frozenset(emulated), _store(sorted(emulated)))


def _store(kernels: Iterable[Kernel]) -> dict[str, bytes]:
    """The store's entries of these kernels' PTX, without times and paths of this machine, and what compiled them."""
    tools = tools_of()
    entries = ptx_many([(load_description(subject), KernelConfig.parse(config)) for subject, _, config in kernels])
    record = Recorded(tools.nvcc_flags, tools.ptxas_flags, tools.ptx_versions, tools.ptxas_version)
    files = {f"store/{NAME}": record.as_json().encode()}
    for entry in entries:
        files |= _files(entry)
    return files


def _files(entry: PtxEntry) -> dict[str, bytes]:
    meta = {key: value for key, value in entry.meta.items() if not key.endswith("_ms")}
    folder = f"store/{entry.key}"
    return {
        f"{folder}/{entry.source.name}": entry.source.read_bytes(),
        f"{folder}/{entry.OUTPUT}": entry.ptx.read_bytes(),
        f"{folder}/{entry.LOG}": LOG.encode(),
        f"{folder}/meta.json": dump_json(meta).encode(),
    }


def grids_that_run(kernels: Kernels, arches: Sequence[str]) -> list[str]:
    """The committed grids all of whose kernels are there, for a GPU of one of `arches` or for the emulator."""
    found = []
    for name in grid_names():
        grid = load_grid(name)
        emulated = grid.mode == "emulator"
        fits = emulated or grid.gpu == "any" or load_gpus()[grid.gpu].arch in arches
        if fits and kernels_of(grid) <= (kernels.emulated if emulated else kernels.built):
            found.append(name)
    return found


def facts_text(name: str, arches: Sequence[str], grids: Sequence[str], numbers: Sequence[int]) -> str:
    """What `flashladder.bundle.node` reads on the node."""
    return dump_json({"name": [name], "arches": [*arches], "grids": [*grids], "iterations": [str(n) for n in numbers]})
