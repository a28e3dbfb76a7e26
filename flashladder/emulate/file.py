"""``invoke emulate FILE.ptx``: one's own kernel on this CPU, its arrays, counters and hazards.

    invoke emulate own.ptx --grid 4 --block 256 --arg n=1000 --arg y=float32:1000:ones --save y=y.npy --hazards
Exit code: 0 it ran and no hazard was found, 1 hazards or a forbidden access, 2 it could not run. `emulate.main` calls
`run`; what an argument may be is in `emulate_arguments`.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from flashladder.emulate import screen as emulate_view
from flashladder.emulate.arguments import Value, parse_all, parse_saves, save
from flashladder.errors import FlashladderError
from flashladder.files import dump_json
import ptxemu
from ptxemu.machine.core import Machine
from ptxemu.machine.observer import Observer
from ptxemu.targets import BLOCK_LIMITS, GRID_LIMITS, MAX_CLUSTER
from ptxemu.text import parse_bytes
from ptxemu.values import Array

SUFFIX = ".ptx"
SHOWN = 4  # elements of an array on the screen


@dataclass(frozen=True)
class Run:
    """A launch and what it showed.

    Attributes:
        kernel, grid, block, shared_bytes: what was launched.
        values: the arguments afterwards.
        changed: elements of each array that differ from before, by name.
        saved: files that were written, by name.
        hazards: None when nobody looked.
    """

    kernel: ptxemu.Kernel
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    values: list[Value]
    changed: dict[str, int]
    saved: dict[str, str]
    result: ptxemu.Result
    counters: ptxemu.Counters
    hazards: ptxemu.Hazards | None

    @property
    def speed(self) -> float:
        """Lane-instructions per second."""
        return self.counters.lane_instructions / max(self.result.seconds, 1e-9)


class Blocks(Observer):
    """A progress bar over the grid's blocks, for a terminal: they finish a slice at a time."""

    def __init__(self, total: int, what: str) -> None:
        self.bar = tqdm(total=total, desc=what, unit=" blocks", leave=False, disable=None)

    def finish(self, machine: Machine) -> None:
        """A slice is done."""
        self.bar.update(machine.shape[0])


def run(options: argparse.Namespace, seed: int) -> tuple[str, bool]:
    """Runs the kernel that the command line names; the text to print, and whether no hazard was found.

    Raises:
        FlashladderError: a bad option, or a file that cannot be read or written.
        EmulationError: the arguments do not fit the kernel, or it does something it may not.
    """
    values = parse_all(options.arg, seed)
    targets = parse_saves(options.save, values)
    kernel = ptxemu.load(_path(options.iteration)).kernel(options.kernel or None)
    grid, block = _sizes(options.grid or "1", "--grid", GRID_LIMITS), _sizes(options.block, "--block", BLOCK_LIMITS)
    cluster = _sizes(options.cluster, "--cluster", (MAX_CLUSTER,) * 3) if options.cluster else None
    schedule = _schedule(options.schedule)
    shared = parse_bytes(options.shared, "an amount of shared memory") if options.shared not in ("", "0") else 0
    before = {value.name: value.value.copy() for value in values if isinstance(value.value, np.ndarray)}
    counters, hazards = ptxemu.Counters(), ptxemu.Hazards() if options.hazards else None
    blocks = Blocks(int(np.prod(grid)), kernel.name)
    observers: list[Observer] = [counters, blocks, *([hazards] if hazards else [])]
    with blocks.bar:
        result = kernel.launch(
            grid,
            block,
            [value.value for value in values],
            shared_bytes=shared,
            observers=observers,
            memory_budget=options.memory_budget,
            target=options.target or None,
            cluster=cluster,
            schedule=schedule,
        )
    after = {value.name: value.value for value in values if isinstance(value.value, np.ndarray)}
    changed = {name: _differences(before[name], array) for name, array in after.items()}
    saved = {name: save(path, after[name]) for name, path in targets.items()}
    found = Run(kernel, grid, block, shared, values, changed, saved, result, counters, hazards)
    passed = hazards is None or not hazards.reports
    return (as_json(found, options) if options.json else render(found, options)), passed


def _path(text: str) -> str:
    if "\n" in text:
        raise FlashladderError("a file's name has one line", found=repr(text))
    return text


def _sizes(text: str, option: str, limits: tuple[int, int, int]) -> tuple[int, ...]:
    parts = text.split(",")
    if not text or len(parts) > 3 or not all(part.isascii() and part.isdigit() and len(part) < 11 for part in parts):
        expected = f"one to three numbers, for example {option} 128 or {option} 32,4"
        raise FlashladderError(f"bad {option}" if text else f"{option} is missing", expected=expected, found=repr(text))
    sizes = tuple(map(int, parts))
    if any(not 1 <= size <= most for size, most in zip(sizes, limits, strict=False)):
        expected = f"at least 1 and at most {','.join(map(str, limits))} along x,y,z"
        raise FlashladderError(f"bad {option}", expected=expected, found=repr(text))
    return sizes


def _schedule(text: str) -> str | int:
    """The order of warps: a word, or a seed as a number."""
    if text in ("", "together", "reverse"):
        return text or "together"
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise FlashladderError("bad --schedule", expected="together, reverse or a seed", found=repr(text))
    return int(text)


def _differences(before: Array, after: Array) -> int:
    """Elements whose bits differ."""
    bits = [np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}") for array in (before, after)]
    return int((bits[0] != bits[1]).sum())


def render(found: Run, wanted: emulate_view.Wanted) -> str:
    """The screen."""
    parameters = ", ".join(map(str, found.kernel.parameters))
    threads = int(np.prod(found.block))
    ctas = emulate_view.ctas_of(found.result)
    head = (
        f"{found.kernel.name}({parameters}) of {found.kernel.module.path}, {found.kernel.module.target}\n"
        f"{ctas} of {threads} threads, {found.shared_bytes} bytes of dynamic shared memory each"
    )
    wide = max([len(value.name) for value in found.values], default=0)
    arguments = "\n".join(f"{value.name:{wide}s}  {_line(found, value)}" for value in found.values)
    parts = [head, arguments, emulate_view.speed_line(found.result, found.counters)]
    if wanted.counters:
        parts += emulate_view.counter_parts(found.counters)
    if found.hazards is not None:
        parts.append(emulate_view.hazard_lines(found.hazards))
    return "\n\n".join(part for part in parts if part)


def _line(found: Run, value: Value) -> str:
    if not isinstance(value.value, np.ndarray):
        return str(value.value)
    facts = _facts(value.value)
    changed = found.changed[value.name]
    saved = f", saved to {found.saved[value.name]}" if value.name in found.saved else ""
    shape = "x".join(map(str, value.value.shape))
    nans = f", {facts['nan']} NaN" if facts["nan"] else ""
    numbers = f"min {facts['min']:.6g}, mean {facts['mean']:.6g}, max {facts['max']:.6g}" if facts["finite"] else "none"
    first = " ".join(f"{float(item):.6g}" for item in value.value.reshape(-1)[:SHOWN])
    state = f"{changed} of {value.value.size} elements changed" if changed else "unchanged"
    return f"{value.value.dtype} {shape}: {state}{saved}; {numbers}{nans}; {first} ..."


def _facts(array: Array) -> dict[str, float]:
    """Least, mean and largest of the finite numbers of an array, and how many are finite and NaN."""
    numbers = array.reshape(-1).astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    facts: dict[str, float] = {"finite": int(finite.size), "nan": int(np.isnan(numbers).sum())}
    if not finite.size:
        return facts
    return facts | {"min": float(finite.min()), "mean": float(finite.mean()), "max": float(finite.max())}


def as_json(found: Run, wanted: emulate_view.Wanted) -> str:
    """The facts of the screen."""
    arguments = [
        {"name": value.name, "dtype": str(value.value.dtype), "shape": list(value.value.shape)}
        | {"changed": found.changed[value.name], "saved": found.saved.get(value.name)}
        | _facts(value.value)
        if isinstance(value.value, np.ndarray)
        else {"name": value.name, "value": float(value.value)}
        for value in found.values
    ]
    facts: dict[str, object] = {
        "schema_version": emulate_view.SCHEMA_VERSION,
        "kernel": found.kernel.name,
        "ptx": found.kernel.module.path,
        "target": found.kernel.module.target,
        "parameters": [{"name": p.name, "type": p.type, "size": p.size} for p in found.kernel.parameters],
        "grid": list(found.grid),
        "block": list(found.block),
        "shared_bytes": found.shared_bytes,
        "slices": found.result.slices,
        "seconds": found.result.seconds,
        "lane_instructions": found.counters.lane_instructions,
        "arguments": arguments,
        "counters": emulate_view.counter_facts(found.counters) if wanted.counters else None,
        "hazards": None if found.hazards is None else [hazard.render() for hazard in found.hazards.reports],
    }
    return dump_json(facts).rstrip()
