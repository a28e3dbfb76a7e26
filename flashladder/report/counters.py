"""Each iteration's cost on the chip: the emulator's counters, and instructions of a KV block. Also the emulator's time.

Counters are per launch in the A100's configurations. Instructions are static counts from the locks: what the warps of a
CTA issue in the main loop for 64 queries by 64 keys, so tiles of different sizes are comparable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
import statistics
from typing import TYPE_CHECKING, Any

from flashladder.columns import csv_text, markdown
from flashladder.emulate.reading import EmulatedCounters
from flashladder.gpu import ncu
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.iteration import load_all
from flashladder.lock.schema import LOCKS, LockedKernel, find_locked, read_lock
from flashladder.machine_code.opcodes import by_kind
from flashladder.names import CONFLICTS, HEADLINE_LENGTH, LDSM, PUBLISHED_GPU, SECTORS, TENSOR, WAVEFRONTS
from flashladder.paths import ROOT
from flashladder.report.data import Ladder
from flashladder.report.plot import data_digest, saved
from flashladder.report.tables import DASH, fa2_text, gpu_title, headline_machine, rounded, written
from flashladder.results.files import read_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = (
    "iteration", "title", "config", "shared_ld_wavefronts", "shared_ld_wavefronts_ideal", "shared_ld_conflicts",
    "shared_st_wavefronts", "shared_st_wavefronts_ideal", "shared_st_conflicts", "global_ld_sectors",
    "global_st_sectors", "ldsm", "tensor", "cp_async_bytes", "ptx_instructions", "races_fp16", "races_bf16", "machine",
    "gpu", "tflops_seq4096", "pct_of_fa2_seq4096", "ptx_sha256",
)  # fmt: skip
HEADER = (
    "#", "Step", "ld wavefronts", "conflicts", "st wavefronts", "conflicts", "ld sectors", "st sectors", "ldsm", "mma",
    "PTX instructions", "races",
)  # fmt: skip


def render(ladder: Ladder, reading: EmulatedCounters) -> dict[str, bytes]:
    """counters.md and counters.csv of results/report: the A100's configurations, speeds of the headline machine."""
    machine, header, lines, records = headline_machine(ladder), list(HEADER), [], []
    if machine:
        header += [f"{machine.title} TFLOP/s", "% of FA2"]
    for row in ladder.rows(machine, "fp16", PUBLISHED_GPU):
        step, one = row.iteration, row.headline
        if (kernel := reading.find(step.number)) is None:
            continue
        counters, ideal = kernel.counters, kernel.ideal_wavefronts
        loads, stores = (
            (counters[WAVEFRONTS.format(way)], ideal[way], counters[CONFLICTS.format(way)]) for way in ("ld", "st")
        )
        others = [counters[name] for name in (*SECTORS, LDSM, TENSOR)]
        counts = [*loads[::2], *stores[::2], *others, kernel.warp_instructions, sum(kernel.races.values())]
        line = [str(step.number), step.title, *(f"{count:,}" for count in counts)]
        if machine:
            line += [f"{row.tflops:.1f}", f"{one.pct:.1f}"] if row.tflops and one else [DASH, DASH]
        lines.append(line)
        records.append((
            step.number, step.title, kernel.config, *loads, *stores, *others, kernel.copied_bytes,
            kernel.warp_instructions, kernel.races["fp16"], kernel.races["bf16"],
            *((machine.name, machine.gpu.name) if machine else (None, None)),
            *((rounded(row.tflops), rounded(one.pct)) if one else (None, None)), kernel.ptx_sha256["fp16"],
        ))  # fmt: skip
    text = written(
        "counters.md.j2", shape=reading.shape, races=reading.race_shape, gpu=gpu_title(PUBLISHED_GPU), machine=machine,
        length=HEADLINE_LENGTH, fa2=machine and fa2_text(machine, "fp16"), table=markdown(header, lines), ncu=ncu,
    )  # fmt: skip
    return {"counters.md": text.encode(), "counters.csv": csv_text(COLUMNS, records).encode()}


SIDE = 64  # counts are for so many queries and so many keys
WARP = 32


@dataclass(frozen=True)
class Cost:
    """One iteration's kernel in one GPU's configuration."""

    config: KernelConfig
    locked: LockedKernel  # its entry in the lock
    kinds: dict[str, float]  # warp instructions by kind, for `SIDE` queries by `SIDE` keys

    @property
    def total(self) -> float:
        """Warp instructions of all kinds."""
        return sum(self.kinds.values())


def costs(gpu: str, locks: Path = LOCKS) -> dict[int, Cost]:
    """The cost of each locked iteration in the configuration of a GPU, on its architecture."""
    lock, found = read_lock(load_gpus()[gpu].arch, locks), {}
    for step in load_all():
        config = step.configs.get(gpu, step.configs[PUBLISHED_GPU])
        if kernel := find_locked(lock, step.number, config.short_form()):
            scale = config.n_threads / WARP * SIDE**2 / (config.B_r * config.B_c)
            kinds = {kind: count * scale for kind, count in by_kind(kernel.main_loop).items()}
            found[step.number] = Cost(config, kernel, kinds)
    return found


SAMPLES = "results/emulator/speed.json"


def speed(root: Path = ROOT) -> dict[Path, bytes]:
    """The page and the plot of the emulator's speed for a checkout at `root`; empty without samples.

    `analysis/emulator_speed.py` measures. The times depend on the machine, so the gate checks none of them.
    """
    if not (root / SAMPLES).is_file():
        return {}
    document = read_json(root / SAMPLES)
    runs, page = document["runs"], written("speed.md.j2", **document)
    drawn = saved(partial(_figure, runs), f"seconds of the emulator over S; data {data_digest(runs)}")
    folder = root / "emulator" / "docs"
    return {folder / "speed.md": page.encode(), folder / "speed.svg": drawn["svg"]}


def _figure(runs: Sequence[Mapping[str, Any]]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    for number in sorted({run["iteration"] for run in runs}):
        own = [run for run in runs if run["iteration"] == number and run["heads"] == 1]
        medians = [statistics.median(run["seconds"]) for run in own]
        axes.loglog([run["seq_len"] for run in own], medians, marker="o", base=2, label=f"iteration {number}")
    axes.set(xlabel="sequence length (one head)", ylabel="seconds, counters on")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    return figure
