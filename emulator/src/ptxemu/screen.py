"""What the command prints after a launch: one screen for a person, or the same facts as JSON.

Counters carry both names: a short one, and Nsight Compute's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
import json
import math

import numpy as np

from ptxemu.findings import Finding, of_launch
from ptxemu.observe.counters import Counters, SourceConflicts
from ptxemu.observe.hazards import Hazard, Hazards
from ptxemu.run.launch import Kernel, Result
from ptxemu.values import Array

SCHEMA_VERSION = 2
TOP_OPCODES = 8
TOP_LINES = 5
TOP_HAZARDS = 10
SHOWN = 4  # elements of an array


@dataclass(frozen=True)
class Named:
    """One argument: its name, and an array (a pointer) or a number."""

    name: str
    value: Array | np.generic | int | float


@dataclass(frozen=True)
class Run:
    """A launch and what it showed.

    Attributes:
        kernel, grid, block, shared_bytes: what was launched.
        values: the arguments afterwards.
        changed: elements of each array that differ from before, by name.
        saved: files that were written, by name.
        result, counters: of the launch.
        hazards: None where nobody looked.
        schedules: that were run; `result`, `counters` and the arrays are of the first one.
        differing: arrays that held something else after another schedule, and after which one.
    """

    kernel: Kernel
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    values: list[Named]
    changed: dict[str, int]
    saved: dict[str, str]
    result: Result
    counters: Counters
    hazards: Hazards | None
    schedules: tuple[str | int, ...] = ("together",)
    differing: dict[str, str | int] = field(default_factory=dict)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The hazards, as other tools take them."""
        return tuple(of_launch(self.kernel.name, self.hazards.reports if self.hazards else ()))


def render(found: Run, *, counters: bool) -> str:
    """The screen; `counters`: whether they are shown."""
    parameters = ", ".join(map(str, found.kernel.parameters))
    blocks, threads = found.result.blocks, math.prod(found.block)
    head = (
        f"{found.kernel.name}({parameters}) of {found.kernel.module.path}, {found.kernel.module.target}\n"
        f"{blocks} CTA{'s' if blocks > 1 else ''} of {threads} threads, "
        f"{found.shared_bytes} bytes of dynamic shared memory each"
    )
    wide = max([len(value.name) for value in found.values], default=0)
    arguments = "\n".join(f"{value.name:{wide}s}  {_line(found, value)}" for value in found.values)
    parts = [head, arguments, _speed(found)]
    if counters:
        parts.append(render_counters(found.counters))
    if found.hazards is not None:
        parts.append(render_hazards(found.hazards, len(found.schedules)))
    parts += [f"{name} holds other numbers with --schedule {schedule}" for name, schedule in found.differing.items()]
    return "\n\n".join(part for part in parts if part)


def _line(found: Run, value: Named) -> str:
    """An argument after the launch."""
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
    with np.errstate(over="ignore"):  # a mean of the largest doubles
        return facts | {"min": float(finite.min()), "mean": float(finite.mean()), "max": float(finite.max())}


def _speed(found: Run) -> str:
    """How long it took."""
    slices = f", {found.result.slices} slices" if found.result.slices > 1 else ""
    lanes = found.counters.lane_instructions
    speed = lanes / max(found.result.seconds, 1e-9) / 1e6
    seconds = f"{found.result.seconds:.2f} s{slices}"
    return f"speed    {seconds}: {lanes:,} lane-instructions, {speed:.{0 if speed > 9 else 2}f} million a second"


def render_counters(counters: Counters, *, wrappers: Sequence[str] = (), folder: str = "") -> str:
    """Counters by short name and by Nsight Compute's, the opcodes executed most, and the lines with bank conflicts.

    Args:
        counters: after a launch.
        wrappers: as of `Counters.conflicts`.
        folder: with which names of source files begin, ``kernels/``; it is not repeated before each.
    """
    return "\n\n".join((_table(counters), _opcodes(counters), _conflicts(counters.conflicts(wrappers), folder)))


def _table(counters: Counters) -> str:
    """Short name, value, Nsight Compute's name."""
    short = counters.short()
    wide = max(map(len, short))
    digits = max(len(f"{value:,}") for value, _ in short.values())
    return "\n".join(f"{name:{wide}s}  {value:{digits},d}  {meaning}" for name, (value, meaning) in short.items())


def _opcodes(counters: Counters) -> str:
    top = counters.opcodes.most_common(TOP_OPCODES)
    return "\n".join(["executed most, by warps:", *(f"{count:12,d}  {opcode}" for opcode, count in top)])


def _conflicts(found: Sequence[SourceConflicts], folder: str) -> str:
    if not found:
        return "no bank conflicts"
    where = f"({folder}, innermost first)" if folder else "(innermost first)"
    lines = [f"bank conflicts by source line {where}, with wavefronts per conflict-free one:"]
    for one in found[:TOP_LINES]:
        times = one.traffic.wavefronts / one.traffic.phases
        more = f" and {len(one.ptx_lines) - 1} more" if len(one.ptx_lines) > 1 else ""
        lines.append(f"{one.traffic.conflicts:12,d}  {times:.1f}x  {one.opcode}, PTX line {one.ptx_lines[0]}{more}")
        lines.append(f"{'':20s}{' < '.join(line.removeprefix(folder) for line in one.chain) or 'no source line'}")
    if len(found) > TOP_LINES:
        rest = sum(one.traffic.conflicts for one in found[TOP_LINES:])
        lines.append(f"{rest:12,d}  in {len(found) - TOP_LINES} more places")
    return "\n".join(lines)


def render_hazards(hazards: Hazards, schedules: int = 1) -> str:
    """The first hazards, one of each pair of CUDA lines, or that there are none; `schedules`: how many were tried."""
    groups: dict[object, list[Hazard]] = {}
    for each in hazards.reports:
        lines = each.first.source or each.first.line, each.second.source or each.second.line
        groups.setdefault((each.kind, each.space, lines), []).append(each)
    warnings = sum(one.level == "warning" for one in hazards.reports)
    errors = len(hazards.reports) + hazards.dropped - warnings
    shown = [f"HAZARDS: {errors}" if errors else f"no hazards {covered(hazards.may_differ, schedules)}"]
    shown += [f"warnings: {warnings}"] if warnings else []
    for first, *others in list(groups.values())[:TOP_HAZARDS]:
        shown.append(first.render() + (f"; and {len(others)} more of these CUDA lines" if others else ""))
    if rest := sum(map(len, list(groups.values())[TOP_HAZARDS:])):
        shown.append(f"... {rest} more")
    return "\n".join(shown)


def covered(may_differ: Sequence[str], schedules: int) -> str:
    """What "no hazards" covers: all schedules, or those that were tried, and why others may differ."""
    if not may_differ:
        return "in any schedule of this launch"
    tried = f"in {schedules} schedules" if schedules > 1 else "in this schedule"
    more = "" if schedules > 1 else "; --schedules 20 tries more"
    return f"{tried}; others may differ in {may_differ[0]}{more}"


def as_json(found: Run, *, counters: bool) -> str:
    """The facts of the screen, and all source lines and hazards instead of the first ones."""
    arguments = [
        {"name": value.name, "dtype": str(value.value.dtype), "shape": list(value.value.shape)}
        | {"changed": found.changed[value.name], "saved": found.saved.get(value.name)}
        | {name: _number(fact) for name, fact in _facts(value.value).items()}
        if isinstance(value.value, np.ndarray)
        else {"name": value.name, "value": _number(value.value)}
        for value in found.values
    ]
    facts: dict[str, object] = {
        "schema_version": SCHEMA_VERSION,
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
        "counters": found.counters.facts() if counters else None,
        "hazards": None if found.hazards is None else [hazard.fields() for hazard in found.hazards.reports],
        "schedules": list(found.schedules),
        "any_schedule": None if found.hazards is None else found.hazards.any_schedule,
        "may_differ": None if found.hazards is None else list(found.hazards.may_differ),
        "numbers_differ": {name: str(schedule) for name, schedule in found.differing.items()},
        "hazards_dropped": None if found.hazards is None else found.hazards.dropped,
    }
    return json.dumps(facts, indent=2, sort_keys=True)


def _number(value: np.generic | float) -> int | float | str:
    """A number as JSON can hold it: infinities and NaN, which it lacks, as text."""
    if isinstance(value, int | np.integer):
        return int(value)
    return float(value) if math.isfinite(float(value)) else str(float(value))
