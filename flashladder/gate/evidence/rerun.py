"""A seeded sample of a file's cells, timed anew on this machine's GPU, and compared by rule 12.

Why: whoever invents all raw samples of a file can make everything that follows from them fit. The kernels cannot be
made to fit: the same cells on a GPU of the same model are within the tolerances, or they are not. On another model the
rank order of the cells is compared. Which cells are drawn follows from a seed that the reader chooses.

Run on a machine with a GPU and the iterations' wheels:
    invoke verify results/h200/bench.json.gz --rerun --cells 12 --seed 7
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
import random

from flashladder.errors import FlashladderError
from flashladder.files import relative
from flashladder.gate.evidence.rule12 import same_model
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import gpu_key
from flashladder.paths import RESULTS
from flashladder.report.data import bench_files
from flashladder.results.blocks import Plan
from flashladder.results.derive import problems
from flashladder.results.files import identity, load_as
from flashladder.results.machine import machine_name
from flashladder.results.published import load_description
from flashladder.results.schema import BenchResult, Kernel, Shape
from flashladder.results.statistics import spearman

Place = tuple[str, Shape]  # dtype and shape
Sample = dict[Place, list[Kernel]]
Timer = Callable[[Sample], BenchResult]
CELLS = 8
LEAST_RANKED = 4  # cells, below which a rank order says nothing


@dataclass(frozen=True)
class Rerun:
    """What a rerun found: one line about it, and one for each cell that is elsewhere."""

    told: str
    problems: tuple[str, ...]


def sample(result: BenchResult, cells: int, seed: int, digest: str) -> Sample:
    """`cells` cells of the ladder's kernels by dtype and shape, drawn by the seed and the file's digest.

    Raises:
        FlashladderError: the file has no such cell, or fewer than one is asked for.
    """
    known = [one for one in result.summaries if one.kernel in result.kernels and not result.kernels[one.kernel].variant]
    if not known or cells < 1:
        what = "no cell to time anew"
        raise FlashladderError(what, expected="a benchmark of the ladder's kernels, and --cells of 1 or more")
    drawn = random.Random(f"{digest} {seed}").sample(known, min(cells, len(known)))  # noqa: S311 - a choice of cells
    found: Sample = {}
    for one in sorted(drawn, key=lambda one: (one.dtype, one.shape.seq_len, one.kernel)):
        found.setdefault((one.dtype, one.shape), []).append(result.kernels[one.kernel])
    return found


def rerun(path: Path, cells: int, seed: int, timer: Timer | None = None) -> Rerun:
    """Times a sample of a file's cells anew and compares.

    Args:
        path: of a benchmark that is reported.
        cells: how many are drawn.
        seed: which.
        timer: what times them; this machine's GPU unless given.

    Raises:
        FlashladderError: no GPU, no such wheel, a file of another kind, or a tuning run.
    """
    expected = load_as(path, BenchResult)
    if expected.purpose != "report":
        raise FlashladderError("a tuning run, whose pairs are too few to compare", where=relative(path))
    drawn = sample(expected, cells, seed, identity(path)[1])
    found = (timer or on_this_gpu)(drawn)
    every = sum(len(kernels) for kernels in drawn.values())
    wrong = [f"rerun: {line}" for line in problems(found)]
    where = f"{every} of {len(expected.summaries)} cells of {relative(path)} timed anew on this {found.gpu.name}"
    if found.gpu.name == expected.gpu.name:
        one_length = found.model_copy(update={"means": ()})  # of a sample, no mean is over all lengths
        compared = same_model(expected, one_length, (path.name, "rerun"))
        lost = [f"rerun: {every - compared.n} cells gave no figure"] * (compared.n < every)
        wrong += [*compared.problems, *lost]
        return Rerun(f"{where}, seed {seed}, within the tolerances of the same model", tuple(wrong))
    correlation, line = ranked(expected, found)
    return Rerun(f"{where}, seed {seed}, another model than {expected.gpu.name}: {correlation}", (*wrong, *line))


def ranked(expected: BenchResult, found: BenchResult) -> tuple[str, tuple[str, ...]]:
    """The rank correlation of the cells on another GPU model, in words, and a line where it is too low."""
    theirs = {(one.kernel, one.dtype, one.shape): one.pct for one in expected.summaries}
    pairs = [(one.pct, theirs[key]) for one in found.summaries if (key := (one.kernel, one.dtype, one.shape)) in theirs]
    if len(pairs) < LEAST_RANKED:
        return f"{len(pairs)} cells give no rank order", (f"rerun: expected at least {LEAST_RANKED} cells to rank",)
    bound = load_description().tolerance.other_gpu_spearman_at_least
    value = spearman([one for one, _ in pairs], [one for _, one in pairs])
    told = f"Spearman {value:.3f}, at least {bound:g}"
    return told, () if value >= bound else (f"rerun: rank order of {len(pairs)} cells: {told}; probably another card",)


def file_to_rerun(path: Path | None, gpu_name: str) -> Path:
    """The file that is meant: a benchmark itself, that of a folder, or that of this GPU's model.

    Raises:
        FlashladderError: there is none.
    """
    if path is not None and path.is_file():
        return path
    folder = path or RESULTS / machine_name(gpu_name)
    own = [one for one in bench_files(folder.parent) if one.parent.name == folder.name]
    swept = folder / f"{folder.name}.json.gz"
    if own or swept.is_file():
        return own[0] if own else swept
    raise FlashladderError(
        "nothing to time anew", where=relative(folder), expected="a file bench*.json.gz, or a sweep of the ladder",
        found="none", hint=f"name a file; this GPU is {gpu_key(gpu_name) or gpu_name}",
    )  # fmt: skip


def on_this_gpu(drawn: Sample) -> BenchResult:
    """Times cells on torch's current GPU, by the protocol of `flashladder.bench`.

    Raises:
        FlashladderError: there is no GPU, another process measures on it, or a wheel or a configuration is missing.
    """
    from flashladder.bench.command import finish, new_result
    from flashladder.bench.references import Arms, Subject, kernel_subject
    from flashladder.bench.timing import bench_group, cuda_hardware, prepare
    from flashladder.build.installed import load_installed
    from flashladder.gpu.device import exclusive, open_device

    device, plan = open_device(), Plan()
    work: list[tuple[Place, list[Subject]]] = []
    kernels: dict[str, Kernel] = {}
    for place, wanted in drawn.items():
        work.append((place, []))
        for one in wanted:
            installed, config = load_installed(one.iteration), KernelConfig.parse(one.config)
            installed.require(config)
            work[-1][1].append(kernel_subject(one.iteration, config, installed.run))
            kernels[work[-1][1][-1].key] = installed.identity(config, device.gpu.arch)
    with exclusive(device.gpu.uuid):
        hardware, flush_bytes = cuda_hardware(device.telemetry.sample, device.gpu.l2_bytes)
        made = new_result(argparse.Namespace(tune=False, plan=plan), device, kernels, Arms(), flush_bytes)
        groups = tuple(
            bench_group(hardware, subjects, prepare(*place, plan), plan, process=0, warm_up_s=0.3 if index else 1.5)
            for index, (place, subjects) in enumerate(work)
        )
        return finish(None, made.model_copy(update={"groups": groups}), device)


def this_gpu() -> str:
    """The name of torch's current GPU.

    Raises:
        FlashladderError: there is none.
    """
    from flashladder.gpu.device import open_device

    return open_device().gpu.name


def main(path: Path | None, cells: int, seed: int) -> Rerun:
    """What ``invoke verify --rerun`` does.

    Raises:
        FlashladderError: as `rerun` and `file_to_rerun`; without a GPU before anything is read.
    """
    if path is not None and not path.exists():  # before a GPU is looked for
        raise FlashladderError("no such result", where=relative(path), expected="a result file or a folder of them")
    return rerun(file_to_rerun(path, this_gpu()), cells, seed)


def render(found: Rerun) -> Sequence[str]:
    """One line about a rerun, one per cell that is elsewhere."""
    return [f"{'failed' if found.problems else 'ok':8s}{found.told}", *(f"        {line}" for line in found.problems)]
