"""What a step changed beside opcodes, under ``invoke diff N M``: registers, counters and speed, each with its source.

Why: fewer instructions are a reason, not a result. Registers come from locks, or from the counts of steps; counters
from the emulator's reading and from Nsight Compute's, speeds from committed timings, marked by GPU, and from the
published tables. Registers are compared at the configurations whose source is shown, counters and speeds at those that
were measured: where two of these differ in more than the step, the row says so. Nothing is built or run.

Try ``speeds(load_iteration(8), load_iteration(9))``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING

from flashladder.columns import table
from flashladder.errors import FlashladderError
from flashladder.files import files_in
from flashladder.ladder.claim import COUNTERS, LOCK_ARCHES
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.iteration import Iteration, same_but_for_parts
from flashladder.lock.command import locked_kernel
from flashladder.lock.step_counts import read_counts
from flashladder.names import GLOBAL_REQUESTS, HEADLINE_LENGTH, PUBLISHED_GPU
from flashladder.paths import RESULTS

if TYPE_CHECKING:
    from flashladder.report.data import Machine
    from flashladder.results.published import Published

Configs = tuple[KernelConfig, KernelConfig]
Steps = tuple[Iteration, Iteration]
OWN = "own configurations"
HEADINGS = {
    "registers": "registers per thread, bytes spilled",
    "counters": "counters of a launch, {whose}; * tile or loads change as well",
    "speed": "speed in percent of FA2, S = 4096, fp16; * tile or loads change as well",
}


@dataclass(frozen=True)
class Delta:
    """One number of two kernels: which, by whom or on what it was found, and whether the step alone is between them."""

    source: str
    name: str
    before: float
    after: float
    alone: bool = True


def deltas(before: Iteration, after: Iteration, configs: Configs) -> dict[str, list[Delta]]:
    """Everything that is known of two iterations, by the keys of `HEADINGS`; ablations have neither of the last two."""
    if before.description == after.description:
        return {}
    found = {"registers": list(registers((before, after), configs)), "counters": list[Delta](), "speed": list[Delta]()}
    if not (before.is_ablation or after.is_ablation):
        found |= {"counters": list(counters(before, after)), "speed": list(speeds(before, after))}
    return found


def registers(steps: Steps, configs: Configs) -> Iterator[Delta]:
    """Registers on each architecture on which both kernels were locked or counted; bytes spilled where any were."""
    for arch in LOCK_ARCHES:
        old, new = (_usage(step, config, arch) for step, config in zip(steps, configs, strict=True))
        for name in ("registers", "spilled"):
            if name in old and name in new and (name == "registers" or old[name] or new[name]):
                yield Delta(arch, name, old[name], new[name])


def _usage(step: Iteration, config: KernelConfig, arch: str) -> Mapping[str, int]:
    if step.is_ablation:
        return {}
    if kernel := locked_kernel(step.number, config, arch):
        return {"registers": kernel.registers, "spilled": kernel.spill_stores + kernel.spill_loads}
    try:
        return {"registers": read_counts().of(step.number, config).sass[arch].kernel["registers"]}
    except (FlashladderError, KeyError):  # a configuration that no claim is about
        return {}


def counters(before: Iteration, after: Iteration) -> Iterator[Delta]:
    """Counters that differ: those of the emulator, and those that Nsight Compute read on a GPU."""
    old, new = (step.configs[PUBLISHED_GPU] for step in (before, after))
    alone = same_but_for_parts((before, old), (after, new))
    names = {full: short for short, full in COUNTERS.items()} | {GLOBAL_REQUESTS.format("ld"): "global_ld_requests"}
    for source, by_step in _readings():
        pair = by_step.get((before.number, old.short_form())), by_step.get((after.number, new.short_form()))
        if pair[0] is None or pair[1] is None:
            continue
        for name in sorted(pair[0].keys() & pair[1].keys(), key=lambda one: names.get(one, one)):
            if pair[0][name] != pair[1][name]:
                yield Delta(source, names.get(name, name), pair[0][name], pair[1][name], alone)


def _readings() -> Iterator[tuple[str, dict[tuple[int, str], Mapping[str, int]]]]:
    """Who counted, and what by iteration and configuration."""
    from flashladder.emulate.reading import READING, load_reading
    from flashladder.results.files import load_as
    from flashladder.results.schema import CounterResult

    if READING.is_file():
        kernels = load_reading(READING).kernels.values()
        yield (
            "emulator",
            {
                (one.iteration, one.config): {**one.counters, "PTX instructions": one.warp_instructions}
                for one in kernels
            },
        )
    for path in files_in(RESULTS, "*/counters.json.gz"):
        read = load_as(path, CounterResult)
        key = {name: (kernel.iteration, kernel.config) for name, kernel in read.kernels.items()}
        yield f"{path.parent.name.upper()}, ncu", {key[name]: found for name, found in read.counters.items()}


def speeds(before: Iteration, after: Iteration) -> Iterator[Delta]:
    """Percent of FA2 on each machine that timed both, at its own and at the A100's configurations, and as published."""
    machines, published = committed()

    def timed(machine: Machine, step: Iteration, key: str) -> float | None:
        measured = machine.measured.get((step.number, _config(step, key).short_form()))
        summary = measured.summaries.get(HEADLINE_LENGTH) if measured else None
        return summary.pct if summary else None

    for machine in machines:
        for key in dict.fromkeys([machine.key or PUBLISHED_GPU, PUBLISHED_GPU]):
            old, new = timed(machine, before, key), timed(machine, after, key)
            same = key == PUBLISHED_GPU or [_config(one, key) for one in (before, after)] == [
                _config(one, PUBLISHED_GPU) for one in (before, after)
            ]
            if old is None or new is None or (same and key != PUBLISHED_GPU):
                continue  # where both configurations are the A100's, that row says it
            yield Delta(machine.title, whose((before, after)) if same else OWN, old, new, _alone(before, after, key))
    for gpu in published.gpus:
        cells = [published.find(step.number, gpu, "seq4096") for step in (before, after)]
        if cells[0] and cells[1]:
            title = load_gpus()[gpu].title
            yield Delta(title, "published", cells[0].value, cells[1].value, _alone(before, after, gpu))


@cache
def committed() -> tuple[tuple[Machine, ...], Published]:
    """Every machine whose timings of the ladder are committed, and the published tables; read once in a process.

    Raises:
        FlashladderError: a result is malformed.
    """
    from flashladder.report.data import collect

    ladder = collect()
    return (*ladder.machines, *swept(ladder.machines)), ladder.published


def swept(timed: Sequence[Machine]) -> list[Machine]:
    """Machines whose folder has no timing of its own but a sweep of the ladder: ``h100/h100.json.gz``."""
    from flashladder.lock.schema import read_lock
    from flashladder.report.data import MODE, machine_of
    from flashladder.results.files import load_as
    from flashladder.results.published import load
    from flashladder.results.schema import BenchResult

    known = {machine.name for machine in timed}
    paths = [path for path in files_in(RESULTS, "*/*.json.gz") if path.name == f"{path.parent.name}.json.gz"]
    found = [(path, load_as(path, BenchResult)) for path in paths if path.parent.name not in known]
    return [
        machine_of(path.parent, [(path, result)], {arch: read_lock(arch) for arch in LOCK_ARCHES}, load())
        for path, result in found
        if result.mode == MODE and result.purpose == "report"
    ]


def _config(step: Iteration, key: str) -> KernelConfig:
    config: KernelConfig = step.configs.get(key, step.configs[PUBLISHED_GPU])
    return config


def _alone(before: Iteration, after: Iteration, key: str) -> bool:
    return same_but_for_parts((before, _config(before, key)), (after, _config(after, key)))


def whose(steps: Steps) -> str:
    """Whose configurations stand where the A100's are meant: a step that does not run there has its own."""
    there = [step.description for step in steps if step.family.runs_on(load_gpus()[PUBLISHED_GPU].arch)]
    if len(there) == 1:
        return f"A100's configuration of {there[0]}"
    return "A100's configurations" if there else OWN


def text_of(found: Mapping[str, Sequence[Delta]], steps: Steps) -> str:
    """The sections for people; one without a number is left out."""
    parts = []
    for section, rows in found.items():
        if rows:
            cells = [_row(section, row) for row in rows]
            parts.append(
                "\n".join([HEADINGS[section].format(whose=whose(steps)), *table(cells, None, right={2, 3, 4})])
            )
    return "\n\n".join(parts)


def _row(section: str, row: Delta) -> tuple[str, str, str, str, str]:
    name = row.name + ("" if row.alone else " *")
    if section == "speed":
        return row.source, name, f"{row.before:.1f}", f"{row.after:.1f}", f"{row.after - row.before:+.1f} points"
    change = f"{100 * (row.after - row.before) / row.before:+.1f} %" if row.before else "new"
    return row.source, name, f"{row.before:,.0f}", f"{row.after:,.0f}", "" if row.before == row.after else change


def as_data(found: Mapping[str, Sequence[Delta]]) -> dict[str, list[dict[str, object]]]:
    """The sections as JSON can hold them."""
    return {section: [asdict(row) for row in rows] for section, rows in found.items()}
