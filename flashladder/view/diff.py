"""``invoke diff N M``: compares the text, opcodes, registers, counters and speed of two kernels.

Text and opcodes are compared at one configuration if both steps can have it. Opcode counts come from the lock or a
compilation, registers from locks and step counts, counters from the emulator and Nsight Compute, speeds from committed
and published timings. A star marks a counter or speed whose two configurations differ in more than the step.

Run: ``invoke diff 7 8``; ``--page FILE.html`` writes both kernels side by side (`flashladder.view.linked`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
import difflib
from functools import cache
import json
from typing import TYPE_CHECKING

from flashladder.columns import table
from flashladder.errors import FlashladderError
from flashladder.files import files_in, output_file, write_atomic
from flashladder.ladder.ablation import load_description
from flashladder.ladder.claim import COUNTERS, LOCK_ARCHES
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.iteration import Iteration, claim_configs, same_but_for_parts
from flashladder.ladder.selection import one_config
from flashladder.lock import command as lock
from flashladder.lock.step_counts import read_counts
from flashladder.names import GLOBAL_REQUESTS, PUBLISHED_GPU
from flashladder.paths import RESULTS
from flashladder.view.command import kernel_text, section, which_mask

if TYPE_CHECKING:
    from flashladder.report.data import Machine
    from flashladder.results.published import Published

Configs = tuple[KernelConfig, KernelConfig]
Steps = tuple[Iteration, Iteration]
Counts = Mapping[str, int]
OWN = "own configurations"
HEADINGS = {
    "registers": "registers per thread, bytes spilled",
    "counters": "counters of a launch, {whose}{mask}; * tile or loads change as well",
    "speed": "speed in percent of FA2, S = 4096, fp16{mask}; * tile or loads change as well",
}


def equal_configs(before: Iteration, after: Iteration, text: str | None = None) -> Configs:
    """One configuration, fitted to the parts of each of two iterations, so that only these parts differ.

    The first that fits of: `text`, a configuration of `after`; for a parent and its child, that of the child's claims;
    the A100's of `after`; the A100's of `before`. Iterations with equal parts, or with no common configuration, keep
    their own (`caveat` says so). `FlashladderError` if `text` names a configuration that `after` cannot express.
    """
    own = before.configs[PUBLISHED_GPU], after.configs[PUBLISHED_GPU]
    if text:
        wanted = [one_config(after, text)]
        own = own[0].with_dtype(wanted[0].dtype), wanted[0]
    elif before.parts == after.parts or before.family is not after.family:
        return own
    else:
        pairs = ((before, after), (after, before))
        children = [child for parent, child in pairs if not parent.is_ablation and child.parent == parent.number]
        wanted = [*(claim_configs(child)[0] for child in children), own[1], own[0]]
    for config in wanted:
        family = before.family
        old, new = family.fit(before.parts, config), family.fit(after.parts, config)
        if not family.conflicts(before.parts, old) and not family.conflicts(after.parts, new):
            return old, new
    return own


def caveat(before: Iteration, after: Iteration, configs: Configs) -> str:
    """A warning if the configurations differ in more than the parts decide; else empty."""
    if same_but_for_parts((before, configs[0]), (after, configs[1])):
        return ""
    if before.parts == after.parts:
        return "the parts are equal: the step is its configuration, and each side has its own"
    what = "loads" if configs[0].tile == configs[1].tile else "tiles"
    return f"different {what}: not the effect of this step alone"


def diff_iterations(before: Iteration, after: Iteration, configs: Configs, *, whole: bool = False) -> str:
    """The unified diff of the parts and kernels of two iterations, folded or `whole`; empty if they are equal."""
    pages, names = [], []
    for iteration, config in zip((before, after), configs, strict=True):
        names.append(f"iteration {iteration.description}{which_mask(iteration, config)}")
        head = f"{section('parts', asdict(iteration.parts).items())}\n\nconfiguration: {config.short_form()}\n\n"
        pages.append((head + kernel_text(iteration, config, whole=whole)).splitlines())
    return "\n".join(difflib.unified_diff(pages[0], pages[1], names[0], names[1], lineterm=""))


def opcode_counts(iteration: Iteration, config: KernelConfig) -> Counts:
    """Opcode counts of a kernel from the lock, or else from a compilation, which may raise `FlashladderError`."""
    arch = iteration.shown_arch
    if not iteration.is_ablation and (kernel := lock.locked_kernel(iteration.number, config, arch)):
        return kernel.counts
    from flashladder.build.compile import cubin_for
    from flashladder.machine_code.sass import disassemble

    return disassemble(cubin_for(iteration, config, arch).cubin).counts()


def count_changes(before: Counts, after: Counts) -> str:
    """A table of the opcode classes whose static count differs, largest change first."""
    both = [(name, before.get(name, 0), after.get(name, 0)) for name in {*before, *after}]
    both.sort(key=lambda row: (row[0] != "total", -abs(row[2] - row[1]), row[0]))
    rows = [(name, str(old), str(new), _percent(old, new)) for name, old, new in both if old != new]
    return "\n".join(table(rows, None, right={1, 2, 3})) if rows else "no opcode class changes its count"


def _percent(old: float, new: float) -> str:
    return f"{100 * (new - old) / old:+.1f} %" if old else "new"


@dataclass(frozen=True)
class Delta:
    """One number of two kernels."""

    source: str  # the architecture, tool or GPU that gave it
    name: str
    before: float
    after: float
    alone: bool = True  # whether the step is all that differs between the two kernels


def deltas(before: Iteration, after: Iteration, configs: Configs) -> dict[str, list[Delta]]:
    """All known numbers of two iterations, by the keys of `HEADINGS`; nothing is committed for ablations."""
    if before.description == after.description:
        return {}
    if before.is_ablation or after.is_ablation:
        return {heading: [] for heading in HEADINGS}
    steps = before, after
    return {"registers": [*_registers(steps, configs)], "counters": [*_counters(steps)], "speed": [*_speeds(steps)]}


def _registers(steps: Steps, configs: Configs) -> Iterator[Delta]:
    """Registers on each architecture for which both kernels were locked or counted; bytes spilled if either spills."""
    for arch in LOCK_ARCHES:
        old, new = (_usage(step, config, arch) for step, config in zip(steps, configs, strict=True))
        for name in ("registers", "spilled"):
            if name in old and name in new and (name == "registers" or old[name] or new[name]):
                yield Delta(arch, name, old[name], new[name])


def _usage(step: Iteration, config: KernelConfig, arch: str) -> Counts:
    if kernel := lock.locked_kernel(step.number, config, arch):
        return {"registers": kernel.registers, "spilled": kernel.spill_stores + kernel.spill_loads}
    try:
        return {"registers": read_counts().of(step.number, config).sass[arch].kernel["registers"]}
    except (FlashladderError, KeyError):  # a configuration that no claim is about
        return {}


def _counters(steps: Steps) -> Iterator[Delta]:
    names = {full: short for short, full in COUNTERS.items()} | {GLOBAL_REQUESTS.format("ld"): "global_ld_requests"}
    for source, by_step in _readings():
        pair = [by_step.get((step.number, _config(step, PUBLISHED_GPU).short_form()), {}) for step in steps]
        for name in sorted(pair[0].keys() & pair[1].keys(), key=lambda one: names.get(one, one)):
            if pair[0][name] != pair[1][name]:
                yield Delta(source, names.get(name, name), pair[0][name], pair[1][name], _alone(steps, PUBLISHED_GPU))


def _readings() -> Iterator[tuple[str, dict[tuple[int, str], Counts]]]:
    """Each source of counters, with its counters by iteration and configuration."""
    from flashladder.emulate.reading import READING, load_reading
    from flashladder.results.files import load_as
    from flashladder.results.schema import CounterResult

    if READING.is_file():
        by: dict[tuple[int, str], Counts] = {}
        for kernel in load_reading(READING).kernels.values():
            by[kernel.iteration, kernel.config] = kernel.counters | {"PTX instructions": kernel.warp_instructions}
        yield "emulator", by
    for path in files_in(RESULTS, "*/counters.json.gz"):
        result = load_as(path, CounterResult)
        by = {(own.iteration, own.config): result.counters.get(name, {}) for name, own in result.kernels.items()}
        yield f"{path.parent.name.upper()}, ncu", by


def _speeds(steps: Steps) -> Iterator[Delta]:
    """Percent of FA2, measured at the machine's own and at the A100's configurations, and published."""
    machines, published = committed()
    for machine in machines:
        for key in dict.fromkeys([machine.configs_of, PUBLISHED_GPU]):
            timed = (machine.measured.get((step.number, _config(step, key).short_form())) for step in steps)
            old, new = (one.headline if one else None for one in timed)
            are_a100s = all(_config(step, key) == _config(step, PUBLISHED_GPU) for step in steps)
            if old and new and (key == PUBLISHED_GPU or not are_a100s):
                yield Delta(machine.title, whose(steps) if are_a100s else OWN, old.pct, new.pct, _alone(steps, key))
    for gpu in published.gpus:
        cells = [published.find(step.number, gpu, "seq4096") for step in steps]
        if cells[0] and cells[1]:
            yield Delta(load_gpus()[gpu].title, "published", cells[0].value, cells[1].value, _alone(steps, gpu))


@cache
def committed() -> tuple[tuple[Machine, ...], Published]:
    """Every machine with committed timings of the ladder, and the published tables, both read once per process."""
    from flashladder.report.data import collect, swept

    ladder = collect()
    return (*ladder.machines, *swept(ladder)), ladder.published


def _config(step: Iteration, key: str) -> KernelConfig:
    config: KernelConfig = step.configs.get(key, step.configs[PUBLISHED_GPU])
    return config


def _alone(steps: Steps, key: str) -> bool:
    before, after = steps
    return same_but_for_parts((before, _config(before, key)), (after, _config(after, key)))


def whose(steps: Steps) -> str:
    """Names the configurations of two steps: the A100's, or its own for a step that does not run there."""
    there = [step.description for step in steps if step.family.runs_on(load_gpus()[PUBLISHED_GPU].arch)]
    if len(there) == 1:
        return f"A100's configuration of {there[0]}"
    return "A100's configurations" if there else OWN


def text_of(found: Mapping[str, Sequence[Delta]], steps: Steps, configs: Configs) -> str:
    """The sections for people, without empty ones. Counters and speeds are those of the kernels without a mask."""
    parts, mask = [], ", without a mask" if any(config.mask != "none" for config in configs) else ""
    for heading, deltas_of in found.items():
        digits, rows = int(heading == "speed"), []
        for one in deltas_of:
            change = "" if one.before == one.after else _percent(one.before, one.after)
            change = f"{one.after - one.before:+.1f} points" if digits else change
            name = one.name + ("" if one.alone else " *")
            rows.append((one.source, name, f"{one.before:,.{digits}f}", f"{one.after:,.{digits}f}", change))
        if rows:
            head = HEADINGS[heading].format(whose=whose(steps), mask=mask)
            parts.append("\n".join([head, *table(rows, None, right={2, 3, 4})]))
    return "\n\n".join(parts)


def diff(
    first: str, second: str, config: str | None = None, *, whole: bool = False, page: str = "", as_json: bool = False
) -> None:
    """Prints the difference of two iterations, or writes their page; `FlashladderError` if an option is wrong."""
    steps = before, after = load_description(first), load_description(second)
    configs = equal_configs(before, after, config)
    if page:
        if as_json or whole:
            raise FlashladderError(f"--{'json' if as_json else 'all'} does not go with --page")
        path = output_file(page, ".html", "--page")
        from flashladder.view.linked import linked  # slow to import: it brings the reader of PTX
        from flashladder.view.linked_page import page as page_of

        kernels = [linked(step, config, step.shown_arch) for step, config in zip(steps, configs, strict=True)]
        print(write_atomic(path, page_of(kernels)))
        return
    text, note = diff_iterations(before, after, configs, whole=whole), caveat(before, after, configs)
    counts, opcodes = list[Counts | None](), ""
    for step, own in zip(steps, configs, strict=True):
        try:
            counts.append(opcode_counts(step, own))
        except FlashladderError as error:
            counts.append(None)
            opcodes = f"opcode counts: not locked at this configuration, and it cannot be compiled here: {error}"
    if as_json:
        found = {name: [asdict(row) for row in rows] for name, rows in deltas(before, after, configs).items()}
        sides = [
            {"description": step.description, "config": own.short_form(), "opcode_counts": count}
            for step, own, count in zip(steps, configs, counts, strict=True)
        ]
        facts = {"before": sides[0], "after": sides[1], "caveat": note, "diff": text.splitlines(), **found}
        print(json.dumps(facts, indent=2, default=dict))
        return
    try:
        measured = text_of(deltas(before, after, configs), steps, configs)
    except FlashladderError as error:  # the source diff is shown even if a result is broken
        measured = f"registers, counters and speed are not shown: {error}"
    old, new = counts
    if old is not None and new is not None:
        arches = " -> ".join(dict.fromkeys(step.shown_arch for step in steps))
        head = f"opcode counts ({arches}), {' -> '.join(own.short_form() for own in configs)}"
        opcodes = f"{head}\n{count_changes(old, new)}"
    print("\n\n".join(filter(None, [note, text or "the kernels are the same", opcodes, measured])))
