"""Where a sweep runs: GPUs, chosen and locked by UUID, or CPUs; which kernels are installed here; building the others.

A grid that was made for one GPU model is refused on another before hours are spent on it. NVML is asked, no CUDA
context is opened: the workers do that, each on its own GPU. What is installed is read from the wheels' manifests alone,
of environments whose Python may be another one. Kernels are built before anything is timed: a compiler beside a
measurement takes its CPU and its clock.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
import importlib.metadata
import os
from pathlib import Path
import shutil
import subprocess
import sys
from typing import Any

from tqdm import tqdm

from flashladder.bench.references import INSTALL
from flashladder.build.compile import ptx_many
from flashladder.errors import FlashladderError
from flashladder.files import load_json
from flashladder.gpu.device import exclusive
from flashladder.gpu.doctor import decoded, require_gpu
from flashladder.ladder.ablation import load_description, parse_subject
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import gpu_key, load_gpus
from flashladder.ladder.grid import Grid
from flashladder.ladder.selection import select_configs
from flashladder.paths import BUILD, ROOT
from flashladder.results.files import machine_name
from flashladder.results.schema import PlannedCell
from flashladder.sweep import plan
from flashladder.sweep.plan import CPU
from flashladder.sweep.screen import to_build
from flashladder.sweep.workers import Device
from flashladder.toolchain import load_pins

FOLDER = BUILD / "sweep"
MOST_CPUS = 8  # workers: each may take a gigabyte
KEYS = ("prog", "prog-all", "tune", "all")  # of selections, from few kernels to many
PACKAGES = {"fa3": "flash-attn-3", "fa4": "flash-attn-4", "flash-attn": "flash-attn"}  # other references are torch's


@dataclass(frozen=True)
class Place:
    """Where a sweep runs: its devices, the machine's key, the architecture; another GPU that the grid was made for."""

    devices: tuple[Device, ...]
    machine: str
    arch: str
    made_for: str | None = None


@dataclass(frozen=True)
class Card:
    """A GPU of this host as NVML tells it."""

    index: int
    name: str
    uuid: str
    arch: str


@contextmanager
def place_of(grid: Grid, options: argparse.Namespace) -> Iterator[Place]:
    """What the grid is measured on, locked while this lasts.

    Raises:
        FlashladderError: no such GPU, another model, or another process measures on it.
    """
    if grid.mode == "emulator":
        if options.gpus != "all":
            raise FlashladderError("the grid runs on this machine's CPUs", expected="no --gpus", found=options.gpus)
        yield Place(tuple(cpus()), CPU, "")
        return
    fit, other = fitting(chosen(cards(), options.gpus), grid.gpu, anyway=options.anyway)
    with locked(fit) as devices:
        yield Place(tuple(devices), machine_name(fit[0].name), fit[0].arch, other)


def cpus() -> list[Device]:
    """A device per CPU that this process may use; in a task of Slurm per CPU that it was given."""
    given = os.environ.get("SLURM_CPUS_PER_TASK", "")
    count = min(len(os.sched_getaffinity(0)), int(given) if given.isdigit() else MOST_CPUS, MOST_CPUS)
    return [Device(f"cpu{number}", "cpu", {"OMP_NUM_THREADS": "1"}) for number in range(count)]


def cards(environment: Mapping[str, str] = os.environ) -> list[Card]:
    """The GPUs that this process may use: all of the host, or those that CUDA_VISIBLE_DEVICES names.

    Raises:
        FlashladderError: there is none, or NVML does not answer.
    """
    require_gpu("`invoke sweep --grid cpu` sweeps on this CPU")
    try:
        import pynvml
    except ModuleNotFoundError as error:
        raise FlashladderError("NVML binding not installed", hint="pip install nvidia-ml-py") from error
    found = []
    try:
        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            name, uuid = (decoded(ask(handle)) for ask in (pynvml.nvmlDeviceGetName, pynvml.nvmlDeviceGetUUID))
            major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
            found.append(Card(index, name, uuid, f"sm_{major}{minor}"))
    except pynvml.NVMLError as error:
        raise FlashladderError("no GPU answers through NVML", found=error) from error
    return visible(found, environment.get("CUDA_VISIBLE_DEVICES"))


def visible(found: Sequence[Card], named: str | None) -> list[Card]:
    """Of `found` those that CUDA_VISIBLE_DEVICES names, by index or by the beginning of their UUID; None: all."""
    if named is None:
        return list(found)
    words = [word.strip() for word in named.split(",") if word.strip()]
    return [card for word in words for card in found if str(card.index) == word or card.uuid.startswith(word)]


def chosen(found: Sequence[Card], text: str) -> list[Card]:
    """The cards that ``--gpus`` names: ``all``, indices or UUIDs separated by commas.

    Raises:
        FlashladderError: there is no such card, or one is named twice.
    """
    if text == "all":
        return list(found)
    picked: list[Card] = []
    for word in (word.strip() for word in text.split(",")):
        match = [card for card in found if str(card.index) == word or (len(word) > 4 and card.uuid.startswith(word))]
        if len(match) != 1 or match[0] in picked:
            raise FlashladderError(
                "no such GPU" if not match else "a GPU is named twice",
                expected="all, or some of " + ", ".join(f"{card.index} ({card.uuid})" for card in found),
                found=repr(word),
            )
        picked += match
    return picked


def fitting(found: Sequence[Card], made_for: str, *, anyway: bool) -> tuple[list[Card], str | None]:
    """The cards of one model that a grid may be measured on, and what it was made for if that is another model.

    Raises:
        FlashladderError: the grid was made for a GPU that is not here, or the cards are of different models.
    """
    if not found:
        raise FlashladderError("no GPU is left to measure on", hint="unset CUDA_VISIBLE_DEVICES, or see invoke doctor")
    fit = [card for card in found if made_for in ("any", gpu_key(card.name))]
    other = None
    if not fit:
        if not anyway:
            raise another_gpu(made_for, ", ".join(dict.fromkeys(card.name for card in found)))
        fit, other = list(found), made_for
    if len(models := dict.fromkeys(card.name for card in fit)) > 1:
        raise FlashladderError(
            "GPUs of different models, which one table must not mix",
            found=", ".join(models),
            hint="--gpus names some of one model",
        )
    return fit, other


def another_gpu(made_for: str, found: str) -> FlashladderError:
    """The error for a grid that was made for another GPU than it would be measured on."""
    what, hint = load_gpus()[made_for].title, "--anyway measures it all the same, and marks the results"
    return FlashladderError(
        f"the grid was made for another GPU: {what}", expected=made_for, found=found, hint=hint
    )  # fmt: skip


@contextmanager
def locked(found: Sequence[Card]) -> Iterator[list[Device]]:
    """The cards as devices, each locked against other measurements of this host for as long as this lasts.

    Raises:
        FlashladderError: another process measures on one of them.
    """
    with ExitStack() as stack:
        for card in found:
            stack.enter_context(exclusive(card.uuid))
        yield [
            Device(f"gpu{card.index}", "gpu", {"CUDA_VISIBLE_DEVICES": card.uuid, "OMP_NUM_THREADS": "4"})
            for card in found
        ]


def read_manifest(path: Path) -> Mapping[str, Any] | None:
    """The manifest of a wheel; None where there is none, or a broken one."""
    try:
        data = load_json(path.read_bytes())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) and isinstance(data.get("inputs_digest"), str) else None


@lru_cache(maxsize=256)
def wheel_of(subject: str, cuda: str, root: Path) -> tuple[str, Mapping[str, Any]] | None:
    """The interpreter that has a wheel, and its manifest: the iteration's own environment below `root`, or this one.

    What was found once is kept until `wheel_of.cache_clear`.

    Args:
        subject: an iteration, or an ablation such as ``16 - swizzle``.
        cuda: CUDA version of its compiler; empty for the pinned one.
        root: the checkout, whose ``.nox/build-iteration-N`` are the iterations' own environments.

    Raises:
        FlashladderError: `subject` is no description, or no toolchain of version `cuda` is pinned.
    """
    wanted = parse_subject(subject, cuda)
    own = root / ".nox" / f"build-iteration-{wanted.number}"
    places = [(str(own / "bin" / "python"), folder) for folder in sorted(own.glob("lib/python3*/site-packages"))]
    for python, folder in [*places, *((sys.executable, Path(entry)) for entry in sys.path if entry)]:
        if manifest := read_manifest(folder / wanted.package / "manifest.json"):
            return python, manifest
    return None


def code_of(cell: PlannedCell, arch: str) -> tuple[str, str] | None:
    """The interpreter that has a cell's kernel, and the SHA-256 of its machine code; None where no wheel holds it.

    Where no machine code is ever made for `arch` the driver compiles the PTX, and the digest is that of all inputs of
    the wheel. Where it is made, and this wheel lacks it, the digest is empty.
    """
    found = wheel_of(cell.subject, cell.toolchain, ROOT) if cell.config else None
    kernels = found[1].get("kernels") if found else None
    if found is None or not isinstance(kernels, dict) or cell.config not in kernels:
        return None
    own = kernels[cell.config]
    if kernel := own.get(arch) or own.get(f"{arch}a"):  # machine code for one architecture alone
        return found[0], str(kernel["text_sha256"])
    return found[0], "" if arch in load_pins().arches else str(found[1]["inputs_digest"])


def digests(cells: Sequence[PlannedCell], arch: str) -> list[str]:
    """The digest of each cell's code for `arch`, of a reference its version; empty: it is not built."""
    return [
        (code_of(cell, arch) or ("", ""))[1] if cell.config else reference_version(cell.subject) or "" for cell in cells
    ]


def python_of(cell: PlannedCell, arch: str) -> str:
    """The interpreter of the environment that has the cell's kernel; this one for a reference."""
    found = code_of(cell, arch)
    return found[0] if found else sys.executable


@lru_cache(maxsize=8)
def reference_version(name: str) -> str | None:
    """The version of a reference's package here; None where it is not installed."""
    try:
        return f"{name} {importlib.metadata.version(PACKAGES.get(name, 'torch'))}"
    except importlib.metadata.PackageNotFoundError:
        return None


def available(grid: Grid) -> tuple[Grid, list[str]]:
    """The grid without references that are not installed here, and a line about each of these."""
    missing = [name for name in grid.references if reference_version(name) is None]
    lines = [
        f"{name} is not installed here: not timed; {INSTALL.get(name, 'pip install torch')} brings it"
        for name in missing
    ]
    return grid.model_copy(update={"references": [one for one in grid.references if one not in missing]}), lines


def make_plan(grid: Grid, place: Place, *, build: bool, quiet: bool = True) -> plan.Plan:
    """The plan of a grid at a place, after building what is missing if `build`; else such cells have no code digest.

    Unless `quiet`, says how many kernels are built, and about how long that takes.

    Raises:
        FlashladderError: a build failed.
    """
    if place.machine == CPU:
        from flashladder.sweep.measure import known_digests as digests_here
    else:

        def digests_here(wanted: Sequence[PlannedCell]) -> list[str]:
            return digests(wanted, place.arch)

    made = plan.make(grid, place.machine, digests_here)
    if not build or not made.unbuilt:
        return made
    if not quiet:
        print(to_build(made), flush=True)
    build_all(plan.kernels_of(made.unbuilt), place)
    wheel_of.cache_clear()
    return plan.make(grid, place.machine, digests_here)


def require_built(made: plan.Plan) -> None:
    """Raises `FlashladderError` when a kernel of the plan is not built here."""
    if unbuilt := plan.kernels_of(made.unbuilt):
        first = unbuilt[0]
        raise FlashladderError(
            f"{len(unbuilt)} kernels of the grid are not built here",
            found=f"iteration {first.subject}: {first.config}",
            hint=f"leave out --no-build, or: invoke build '{first.subject}' --configs '{first.config}'",
        )


def build_all(kernels: Sequence[PlannedCell], place: Place) -> None:
    """Builds and installs the wheels that hold these kernels; for the emulator it compiles their PTX.

    Raises:
        FlashladderError: a build failed; its last line is the reason.
    """
    if place.machine == CPU:
        ptx_many([(load_description(kernel.subject), KernelConfig.parse(kernel.config)) for kernel in kernels])
        return
    by_wheel: dict[tuple[str, str], set[str]] = {}
    for kernel in kernels:
        by_wheel.setdefault((kernel.subject, kernel.toolchain), set()).add(kernel.config)
    environment = {**os.environ, "FLASHLADDER_BUILD": str(BUILD)}
    for (subject, toolchain), configs in tqdm(by_wheel.items(), desc="build", unit="wheel", disable=None, leave=False):
        command = build_command(subject, toolchain, covering_key(subject, configs), place.arch)
        ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if ran.returncode:
            lines = [line for line in (ran.stdout + ran.stderr).splitlines() if line.strip()]
            told = next((line for line in reversed(lines) if line.startswith("error:")), lines[-1] if lines else "")
            raise FlashladderError(
                f"iteration {subject} could not be built",
                where=" ".join(command),
                found=told.removeprefix("error: "),
                hint="invoke doctor says what this machine lacks",
            )


def covering_key(subject: str, configs: set[str]) -> str:
    """The selection key with the fewest kernels that selects all these configurations.

    Raises:
        FlashladderError: no key does.
    """
    iteration = load_description(subject)
    for key in KEYS:
        if configs <= {config.short_form() for config in select_configs(iteration, key)}:
            return key
    wanted = ", ".join(sorted(KernelConfig.parse(config).brief() for config in configs))
    raise FlashladderError(f"no selection key holds all configurations of iteration {subject}", found=wanted)


def build_command(subject: str, toolchain: str, key: str, arch: str) -> list[str]:
    """The command that builds and installs one wheel: by nox into its own environment, without nox into this one."""
    number, *change = parse_subject(subject).text.split()
    options = ["--arch", arch, "--configs", key, *(["--toolchain", toolchain] if toolchain else [])]
    if (nox := shutil.which("nox")) and (ROOT / "noxfile.py").is_file():
        return [nox, "-s", f"build-iteration-{number}", "--", *change, *options]
    return [sys.executable, "-m", "flashladder.build", number, *change, *options]
