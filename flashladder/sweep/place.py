"""Chooses and locks the GPUs or CPUs of a sweep, finds installed kernels and builds the missing ones.

This module queries NVML and opens no CUDA context: each worker opens one on its own GPU. It finds installed kernels by
reading the wheels' manifests, and imports none: their environments may use another Python version. Kernels are built
before anything is timed: a compiler that runs during a measurement takes CPU time and changes the clocks.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
import importlib.metadata
import os
from pathlib import Path
import shutil
import subprocess
import sys
from typing import Any

from flashladder.bench.references import INSTALL
from flashladder.build.compile import ptx_many
from flashladder.columns import grouped
from flashladder.errors import FlashladderError
from flashladder.files import load_json
from flashladder.gpu.device import exclusive
from flashladder.gpu.doctor import decoded, nvml, require_gpu
from flashladder.ladder.ablation import load_description, parse_subject
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import gpu_key, load_gpus
from flashladder.ladder.grid import Grid
from flashladder.ladder.selection import select_configs
from flashladder.parallel import Bar
from flashladder.paths import BUILD, ROOT
from flashladder.results.files import machine_name
from flashladder.results.schema import PlannedCell
from flashladder.sweep import plan
from flashladder.sweep.plan import CPU
from flashladder.sweep.screen import to_build
from flashladder.sweep.workers import Device
from flashladder.toolchain import load_pins

FOLDER = BUILD / "sweep"
MOST_CPUS = 8  # workers; each may need 1 GB of memory
KEYS = ("prog", "prog-all", "tune", "all")  # selection keys, from the fewest kernels to the most
PACKAGES = {"fa3": "flash-attn-3", "fa4": "flash-attn-4", "flash-attn": "flash-attn"}  # others are in torch


@dataclass(frozen=True)
class Place:
    """Where a sweep runs. `arch` is empty for CPUs. `made_for` is the grid's GPU if this is another one, else None."""

    devices: tuple[Device, ...]
    machine: str
    arch: str
    made_for: str | None = None


@dataclass(frozen=True)
class Card:
    """A GPU of this host as NVML describes it."""

    index: int
    name: str
    uuid: str
    arch: str


@contextmanager
def place_of(grid: Grid, options: argparse.Namespace, lines: list[str]) -> Iterator[Place]:
    """The place where the grid is measured; its GPUs are locked inside the context.

    If this machine lacks the grid's GPU, a dry run plans for one such GPU and adds a note to `lines`.
    Raises `FlashladderError`: the GPU does not exist, is another model, or another process measures on it.
    """
    if grid.mode == "emulator":
        if options.gpus != "all":
            raise FlashladderError("the grid runs on this machine's CPUs", expected="no --gpus", found=options.gpus)
        yield Place(tuple(cpus()), CPU, "")
        return
    try:
        fit, other = fitting(chosen(cards(), options.gpus), grid.gpu, anyway=options.anyway)
    except FlashladderError as error:
        if not options.dry_run:
            raise
        gpu = load_gpus()[key := "h200" if grid.gpu == "any" else grid.gpu]
        lines.append(f"{error.what}: this is the plan for one {gpu.title}")
        yield Place((Device("gpu0", "gpu"),), key, gpu.arch)
        return
    with ExitStack() as stack:
        for card in fit if not options.dry_run else ():
            stack.enter_context(exclusive(card.uuid))
        devices = [
            Device(f"gpu{card.index}", "gpu", {"CUDA_VISIBLE_DEVICES": card.uuid, "OMP_NUM_THREADS": "4"})
            for card in fit
        ]
        yield Place(tuple(devices), machine_name(fit[0].name), fit[0].arch, other)


def cpus() -> list[Device]:
    """A device per CPU that this process may use, at most 8. In a Slurm task, also at most SLURM_CPUS_PER_TASK."""
    given = os.environ.get("SLURM_CPUS_PER_TASK", "")
    count = min(len(os.sched_getaffinity(0)), int(given) if given.isdigit() else MOST_CPUS, MOST_CPUS)
    return [Device(f"cpu{number}", "cpu", {"OMP_NUM_THREADS": "1"}) for number in range(count)]


def cards(environment: Mapping[str, str] = os.environ) -> list[Card]:
    """The GPUs of this process, as CUDA_VISIBLE_DEVICES says. Raises `FlashladderError`: no GPU, or no NVML."""
    require_gpu("`invoke sweep --grid cpu` sweeps on this CPU")
    found = []
    with nvml() as pynvml:
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
            name, uuid = decoded(pynvml.nvmlDeviceGetName(handle)), decoded(pynvml.nvmlDeviceGetUUID(handle))
            found.append(Card(index, name, uuid, f"sm_{major}{minor}"))
    words = environment.get("CUDA_VISIBLE_DEVICES")
    return found if words is None else [card for word in words.split(",") for card in named(found, word)]


def named(found: Sequence[Card], word: str) -> list[Card]:
    """The cards with this index, or whose UUID starts with this word."""
    word = word.strip()
    return [card for card in found if str(card.index) == word or (len(word) > 4 and card.uuid.startswith(word))]


def chosen(found: Sequence[Card], text: str) -> list[Card]:
    """The cards of a ``--gpus`` value. Raises `FlashladderError`: a card does not exist or is named twice."""
    if text == "all":
        return list(found)
    picked: list[Card] = []
    for word in text.split(","):
        match = named(found, word)
        if len(match) != 1 or match[0] in picked:
            what, known = "a GPU is named twice" if match else "no such GPU", [f"{c.index} ({c.uuid})" for c in found]
            raise FlashladderError(what, expected=f"all, or some of {', '.join(known)}", found=repr(word.strip()))
        picked += match
    return picked


def fitting(found: Sequence[Card], made_for: str, *, anyway: bool) -> tuple[list[Card], str | None]:
    """The cards, of one model, that may measure a grid, and the grid's GPU if it differs; `FlashladderError`: none."""
    if not found:
        raise FlashladderError("CUDA_VISIBLE_DEVICES hides every GPU", hint="unset it, or see invoke doctor")
    fit = [card for card in found if made_for in ("any", gpu_key(card.name))]
    other = None
    if not fit:
        require_same(made_for, ", ".join(dict.fromkeys(card.name for card in found)), anyway=anyway)
        fit, other = list(found), made_for
    if len(models := dict.fromkeys(card.name for card in fit)) > 1:
        what, hint = "GPUs of different models, which one table must not mix", "use --gpus to select GPUs of one model"
        raise FlashladderError(what, found=", ".join(models), hint=hint)
    return fit, other


def require_same(made_for: str, found: str, *, anyway: bool) -> None:
    """Raises `FlashladderError`: the grid was made for another GPU than the one found. Does nothing if `anyway`."""
    if not anyway:
        what, hint = load_gpus()[made_for].title, "--anyway measures it here and marks the results"
        raise FlashladderError(f"the grid was made for another GPU: {what}", expected=made_for, found=found, hint=hint)


def read_manifest(path: Path) -> Mapping[str, Any] | None:
    """The manifest of a wheel; None if it is missing or invalid."""
    with suppress(OSError, ValueError):
        data = load_json(path.read_bytes())
        return data if isinstance(data, dict) and isinstance(data.get("inputs_digest"), str) else None
    return None


@lru_cache(maxsize=256)
def wheel_of(subject: str, cuda: str, root: Path) -> tuple[str, Mapping[str, Any]] | None:
    """The interpreter that has a subject's wheel, and the wheel's manifest; None if the wheel is not installed.

    Searches the iteration's own environment in ``root/.nox``, then this one. `subject` is an iteration, or an ablation
    such as ``16 - swizzle``. `cuda` is the version of its compiler; empty for the pinned one. Results are cached until
    `wheel_of.cache_clear`. Raises `FlashladderError`: invalid description, or no pinned toolchain of that version.
    """
    wanted = parse_subject(subject, cuda)
    environment = root / ".nox" / f"build-iteration-{wanted.number}"
    folders = [(str(environment / "bin" / "python"), one) for one in environment.glob("lib/python3*/site-packages")]
    for python, folder in [*sorted(folders), *((sys.executable, Path(entry)) for entry in sys.path if entry)]:
        if manifest := read_manifest(folder / wanted.package / "manifest.json"):
            return python, manifest
    return None


def code_of(cell: PlannedCell, arch: str) -> tuple[str, str]:
    """The interpreter that has a cell's kernel, and the SHA-256 of its machine code; for a reference, its version.

    The digest is empty if no wheel contains the kernel, or if the kernel was not built for `arch`. If wheels never
    contain machine code for `arch`, the driver compiles the PTX. Then the digest is that of all inputs of the wheel.
    """
    if not cell.config:
        return sys.executable, reference_version(cell.subject) or ""
    found = wheel_of(cell.subject, cell.toolchain, ROOT)
    kernels = found[1].get("kernels") if found else None
    if found is None or not isinstance(kernels, dict) or cell.config not in kernels:
        return sys.executable, ""
    by_arch = kernels[cell.config]
    if kernel := by_arch.get(arch) or by_arch.get(f"{arch}a"):  # sm_90a code runs on that architecture only
        return found[0], str(kernel["text_sha256"])
    return found[0], "" if arch in load_pins().arches else str(found[1]["inputs_digest"])


@lru_cache(maxsize=8)
def reference_version(name: str) -> str | None:
    """The installed version of a reference's package; None if it is not installed."""
    try:
        return f"{name} {importlib.metadata.version(PACKAGES.get(name, 'torch'))}"
    except importlib.metadata.PackageNotFoundError:
        return None


def available(grid: Grid) -> tuple[Grid, list[str]]:
    """The grid without the references that are not installed, and one line about each of those."""
    there = [name for name in grid.references if reference_version(name) is not None]
    lines = [
        f"{name} is not installed, so it is not timed; to install it: {INSTALL.get(name, 'pip install torch')}"
        for name in grid.references
        if name not in there
    ]
    return grid.model_copy(update={"references": there}), lines


def make_plan(grid: Grid, place: Place, *, build: bool | None = None, quiet: bool = True) -> plan.Plan:
    """The plan of a grid at a place.

    If `build` is True, builds missing kernels; if False, raises if one is missing; if None, their code digests stay
    empty. Unless `quiet`, prints how many kernels it builds and the estimated time.
    Raises `FlashladderError`: a build failed, or a kernel is missing and `build` is False.
    """

    def digests(wanted: Sequence[PlannedCell]) -> Sequence[str]:
        if place.machine != CPU:
            return [code_of(cell, place.arch)[1] for cell in wanted]
        from flashladder.sweep.measure import known_digests

        return known_digests(wanted)

    made = plan.make(grid, place.machine, digests)
    if build and made.unbuilt:
        if not quiet:
            print(to_build(made)[2], flush=True)
        build_all(made.unbuilt, place)
        wheel_of.cache_clear()
        made = plan.make(grid, place.machine, digests)
    if build is not None and (unbuilt := made.unbuilt):
        subject, config = unbuilt[0].subject, unbuilt[0].config
        what, found = f"{len(unbuilt)} kernels of the grid are not built", f"iteration {subject}: {config}"
        hint = f"omit --no-build, or run: invoke build '{subject}' --configs '{config}'"
        raise FlashladderError(what, found=found, hint=hint)
    return made


def build_all(kernels: Sequence[PlannedCell], place: Place) -> None:
    """Installs wheels with these kernels; for the emulator, compiles PTX. Raises `FlashladderError`: a build failed."""
    if place.machine == CPU:
        ptx_many([(load_description(kernel.subject), KernelConfig.parse(kernel.config)) for kernel in kernels])
        return
    by_wheel = grouped(kernels, lambda kernel: (kernel.subject, kernel.toolchain))
    environment = {**os.environ, "FLASHLADDER_BUILD": str(BUILD)}
    for (subject, toolchain), wanted in Bar(by_wheel.items(), desc="build", unit="wheel"):
        number, *words = parse_subject(subject).text.split()
        words += ["--arch", place.arch, "--configs", covering_key(subject, {kernel.config for kernel in wanted})]
        words += ["--toolchain", toolchain] if toolchain else []
        command = [sys.executable, "-m", "flashladder.build", number, *words]  # into this environment
        if (nox := shutil.which("nox")) and (ROOT / "noxfile.py").is_file():
            command = [nox, "-s", f"build-iteration-{number}", "--", *words]  # into the iteration's own environment
        ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if ran.returncode:
            lines = [line for line in (ran.stdout + ran.stderr).splitlines() if line.strip()] or [""]
            reason = next((line for line in reversed(lines) if line.startswith("error:")), lines[-1])
            what, found = f"iteration {subject} could not be built", reason.removeprefix("error: ")
            hint = "invoke doctor lists what this machine lacks"
            raise FlashladderError(what, where=" ".join(command), found=found, hint=hint)


def covering_key(subject: str, configs: set[str]) -> str:
    """The key of the smallest selection with all `configs`. Raises `FlashladderError`: no key selects them all."""
    iteration = load_description(subject)
    for key in KEYS:
        if configs <= {config.short_form() for config in select_configs(iteration, key)}:
            return key
    wanted = ", ".join(sorted(KernelConfig.parse(config).brief() for config in configs))
    raise FlashladderError(f"no selection key contains all configurations of iteration {subject}", found=wanted)
