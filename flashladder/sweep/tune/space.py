"""A tuning space explained: what is legal, what static facts leave out, and how many warps of a candidate fit an SM.

Why: a ranking is worth as much as the space it was taken over, so that each configuration that was not timed has a
rule that says why (`exclusions` of a family), and a person can see which mechanism a rule stands for.

Run: ``python -m flashladder.sweep --grid tune --dry-run``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
import textwrap

from flashladder.columns import table
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import Gpu
from flashladder.ladder.iteration import Iteration


def left_out(iteration: Iteration) -> Mapping[str, int]:
    """Legal configurations (per dtype) by the first rule that leaves them out; ``""``: those that are timed."""
    family = iteration.family
    firsts = [
        next((rule.name for rule in family.excluded_by(one)), "") for one in family.legal_configs(iteration.parts)
    ]
    return Counter(firsts)


def resident_warps(config: KernelConfig, registers: int, gpu: Gpu) -> int:
    """Warps of a kernel that one SM of `gpu` holds at once; its one barrier per CTA is never the limit."""
    found = gpu.occupancy(registers=registers, threads=config.n_threads, shared_bytes=config.smem_bytes)
    return found.warps


def explained(iterations: Sequence[Iteration], width: int) -> list[str]:
    """The space of each iteration in a line, then each rule with its mechanism; lines of at most `width` columns."""
    rules = [rule for family in dict.fromkeys(one.family for one in iterations) for rule in family.exclusions]
    rows = [["iteration", "legal", "timed", *(rule.name for rule in rules)]]
    for iteration in iterations:
        counts = left_out(iteration)
        each = (sum(counts.values()), counts[""], *(counts[rule.name] for rule in rules))
        rows.append([str(iteration.number), *map(str, each)])
    columns = range(len(rows[0]))
    lines = [*table(rows, width, right=columns), ""]
    lines.append("Configurations per dtype, each left out by the first rule that does:")
    for rule in rules:
        lines += textwrap.wrap(f"{rule.name}: {rule.why}", width, initial_indent="  ", subsequent_indent="    ")
    return lines
