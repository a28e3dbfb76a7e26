"""Other people's timers over the same launches: NVBench (PyPI ``cuda-bench``) and Nsight Compute.

Why: a timer that nobody checks is an opinion; two that share no code with ours are a measurement. NVBench times each
launch alone with CUDA events and a cold L2; ncu reads the GPU's own duration, caches flushed, clocks left alone. Both
run `flashladder.bench.opinion_program` in a process of its own. A tool that is missing or refused is one line, no
failure. Timers of this process, torch's own among them, are `flashladder.bench.doubt.timers`.

Used by `flashladder.bench.second_opinion`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from itertools import islice
from pathlib import Path
import re
import tempfile
from typing import Any

import numpy as np

from flashladder.bench.doubt.timers import ask_torch, ask_turns, ask_warm
from flashladder.bench.opinion_program import Rounds, command
from flashladder.bench.references import BACKENDS
from flashladder.errors import FlashladderError
from flashladder.files import load_json
from flashladder.gpu.device import run_bounded
from flashladder.gpu.doctor import require_ncu
from flashladder.gpu.ncu import ncu_version, read_launches
from flashladder.located import first_problem
from flashladder.names import CYCLES, DURATION, INSTRUCTIONS, KERNEL, TENSOR
from flashladder.results.samples import Method, Opinion, Timings

SAMPLES = 12  # of one turn under NVBench
ROUNDS: Mapping[Method, int] = {"nvbench": 8, "ncu": 24, "torch": 12, "warm": 12, "turns": 36}
"""In each of which every subject has a turn: one sample under ncu, torch and turns, several under the others."""
SAMPLE_TIMES = "nv/json/bin:nv/cold/sample_times"
METRICS = (DURATION, CYCLES, INSTRUCTIONS, TENSOR)
FAMILIES = {
    "fa2": r"pytorch_flash::",
    "flash-attn": r"flash::",
    "cudnn": r"cudnn",
    "fa3": r"cutlass::device_kernel",
    "fa4": r"kernel_cutlass|flash_attn",
}
"""Reference to how the name of its kernel begins."""


def normalised(kernel: str) -> str:
    """``pytorch_flash::flash_fwd_kernel`` of ``void pytorch_flash::flash_fwd_kernel<...>(...)``."""
    return re.split(r"[<(]", kernel.removeprefix("void "), maxsplit=1)[0].strip()


def family(kernel: str) -> str | None:
    """Whose kernel this is: `KERNEL` for ours, the name of a reference, or None."""
    name = normalised(kernel)
    if name == KERNEL:
        return KERNEL
    return next((key for key, start in FAMILIES.items() if re.match(start, name)), None)


def ask_nvbench(cells: Sequence[Rounds], timeout_s: float) -> list[Opinion]:
    """NVBench's times of all cells, from one process.

    Raises:
        FlashladderError: it is not installed, failed, or wrote what we cannot read.
    """
    try:
        version = metadata.version("cuda-bench")
        metadata.version("cuda-bindings")
    except metadata.PackageNotFoundError as error:
        raise FlashladderError(
            f"the package {error.name} is not installed", hint="pip install 'cuda-bench[cu13]'"
        ) from error
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "nvbench.json"
        _run(command(cells, "--nvbench", str(out), "--samples", str(SAMPLES)), timeout_s, "NVBench")
        found = read_nvbench(out, cells)
    return [_opinion("nvbench", f"cuda-bench {version}", *one) for one in zip(cells, found, strict=True)]


def read_nvbench(path: Path, cells: Sequence[Rounds]) -> list[tuple[Timings, ...]]:
    """Per cell samples by subject from NVBench's JSON and the binary files beside it: little-endian float32 seconds.

    Raises:
        FlashladderError: a turn is missing, was skipped, or its samples are not those that the document tells of.
    """
    try:
        document = load_json(path.read_bytes())
        states = {bench["name"]: bench["states"][0] for bench in document["benchmarks"]}
        return [
            tuple(_sampled(path.parent, states, number, index, rounds) for index in range(len(rounds.subjects)))
            for number, rounds in enumerate(cells)
        ]
    except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise FlashladderError("cannot read what NVBench wrote", found=f"{type(error).__name__}: {error}") from error


def _sampled(folder: Path, states: Mapping[str, Any], cell: int, index: int, rounds: Rounds) -> Timings:
    """All turns of a subject in a cell; raises ValueError, KeyError or OSError."""
    turns = [(number, _samples(folder, states[f"{cell} {number} {index}"])) for number in range(rounds.rounds)]
    return Timings(
        subject=rounds.subjects[index],
        rounds=tuple(number for number, found in turns for _ in found),
        us=tuple(float(seconds) * 1e6 for _, found in turns for seconds in found),
    )


def _samples(folder: Path, state: Mapping[str, object]) -> Sequence[float]:
    """One state's samples in seconds; raises ValueError, KeyError or OSError."""
    if state.get("is_skipped"):
        msg = f"skipped: {state.get('skip_reason')}"
        raise ValueError(msg)
    summaries = state["summaries"]
    if not isinstance(summaries, list):
        msg = "no summaries"
        raise TypeError(msg)
    data: Sequence[Mapping[str, str]] = next((one["data"] for one in summaries if one["tag"] == SAMPLE_TIMES), [])
    told = {one["name"]: one["value"] for one in data}
    found = np.fromfile(folder / told["filename"], dtype="<f4")
    if found.size != int(told["size"]) or not found.size:
        msg = f"{found.size} samples, told {told['size']}"
        raise ValueError(msg)
    return [float(one) for one in found]


def ask_ncu(cells: Sequence[Rounds], timeout_s: float) -> list[Opinion]:
    """Nsight Compute's durations and counters of all cells, one per turn, from one process.

    Raises:
        FlashladderError: no ncu, counters are refused, it failed, or it saw other launches.
    """
    ncu = require_ncu()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        line = [
            str(ncu), "--clock-control", "none", "--profile-from-start", "off", "--print-kernel-base", "demangled",
            "--metrics", ",".join(METRICS), "--csv", "--print-units", "base", "--log-file", str(log),
            *command(cells),
        ]  # fmt: skip
        _run(line, timeout_s, "ncu", log)
        found = by_turn(read_launches(log.read_text(encoding="utf-8", errors="replace"), METRICS), cells)
    version = ncu_version(ncu)
    return [_opinion("ncu", version, *one) for one in zip(cells, found, strict=True)]


def by_turn(launches: Sequence[tuple[str, Mapping[str, int]]], cells: Sequence[Rounds]) -> list[tuple[Timings, ...]]:
    """Kernels, in launch order, to the turns that launched them; a reference may launch several, which count together.

    Raises:
        FlashladderError: a kernel that is nobody's, or another number of turns than expected.
    """
    turns = [turn for rounds in cells for turn in rounds.turns()]
    taken: list[dict[str, int]] = []
    for name, found in launches:
        mine = family(name)
        last = turns[len(taken) - 1][1] if taken else None
        if last in BACKENDS and mine in {None, last}:
            taken[-1] = {metric: taken[-1].get(metric, 0) + value for metric, value in found.items()}
            continue
        expected = turns[len(taken)][1] if len(taken) < len(turns) else None
        if expected is None or mine != (expected if expected in BACKENDS else KERNEL):
            raise FlashladderError(
                "ncu saw another kernel than was launched", expected=expected or "no more", found=normalised(name)
            )
        taken.append(dict(found))
    if len(taken) != len(turns):
        raise FlashladderError("ncu saw another number of launches", expected=len(turns), found=len(taken))
    told = zip(turns, taken, strict=True)
    try:
        by_cell = [list(islice(told, len(rounds.subjects) * rounds.rounds)) for rounds in cells]
        return [
            tuple(_timings(subject, mine) for subject in rounds.subjects)
            for rounds, mine in zip(cells, by_cell, strict=True)
        ]
    except ValueError as error:
        raise FlashladderError("ncu's times are none", found=first_problem(error)) from error


def _timings(subject: str, turns: Sequence[tuple[tuple[int, str], Mapping[str, int]]]) -> Timings:
    mine = [(number, found) for (number, key), found in turns if key == subject]
    return Timings(
        subject=subject,
        rounds=tuple(number for number, _ in mine),
        us=tuple(found[DURATION] / 1e3 for _, found in mine),
        counters={metric: tuple(found[metric] for _, found in mine) for metric in METRICS if metric != DURATION},
    )


def _run(command: Sequence[str], timeout_s: float, tool: str, log: Path | None = None) -> None:
    """Runs a tool over the program; a log in which counters are refused is left to its reader."""
    reply = run_bounded(command, timeout_s)
    text = log.read_text(encoding="utf-8", errors="replace") if log and log.is_file() else ""
    if reply.code is None:
        raise FlashladderError(f"{tool} did not end within {timeout_s:.0f} s")
    if reply.code and "ERR_NVGPUCTRPERM" not in text:
        tail = (text + reply.output).strip().splitlines()[-3:]
        raise FlashladderError(f"{tool} ended with exit code {reply.code}", found=" / ".join(tail))


def _opinion(method: Method, version: str, rounds: Rounds, timings: tuple[Timings, ...]) -> Opinion:
    return Opinion.model_validate(
        {
            "method": method,
            "mode": "ncu-base" if method == "ncu" else "event-free",
            "version": version,
            "dtype": rounds.dtype,
            "shape": rounds.shape,
            "timings": timings,
        }
    )


ASK: Mapping[Method, Callable[[Sequence[Rounds], float], list[Opinion]]] = {
    "nvbench": ask_nvbench, "ncu": ask_ncu, "torch": ask_torch, "warm": ask_warm, "turns": ask_turns,
}  # fmt: skip
