"""Question: what did each step predict, what did its machine code do, and what came of it on the clock?

Why: a step is understood when prediction, machine code and timing are read side by side. Every number comes from
committed files: claims from iterations/*.yaml, counts from results/locks/sm_80.json, counters and timings from
results/h200. So a note can be rendered again, and a test does.

Run: ``python analysis/render_notes.py`` writes iterations/notes/NN.md; ``--check`` compares, exit code 1 when stale.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from flashladder.config import KernelConfig
from flashladder.counter_claims import Reading, verify
from flashladder.errors import CheckFailed, one_line_errors
from flashladder.files import ITERATIONS, RESULTS, relative, write_atomic
from flashladder.iteration import Iteration, load_iteration
from flashladder.lock import locked_kernel
from flashladder.report_data import Ladder, collect

NOTES = ITERATIONS / "notes"
GPU = "a100"  # whose configurations are compared: those of the published ladder
SHOWN = 8  # opcode classes that moved most


def machine_code(iteration: Iteration) -> Iterator[str]:
    """Registers, spills and the classes that moved most, against the parent's configuration on the same GPU."""
    config: KernelConfig = iteration.configs[GPU]
    own = locked_kernel(iteration.number, config)
    if own is None:
        return
    yield f"`{config.short_form()}` on sm_80: {own.registers} registers, {own.spill_stores} bytes of spill stores."
    parent = load_iteration(iteration.parent) if iteration.parent else None
    before = locked_kernel(parent.number, parent.configs[GPU]) if parent else None
    if parent is None or before is None:
        return
    if parent.configs[GPU] != config:
        yield f"Iteration {parent.number} runs as `{parent.configs[GPU].short_form()}`: not the step alone."
    moved = {name: own.counts.get(name, 0) - before.counts.get(name, 0) for name in {*own.counts, *before.counts}}
    most = sorted((name for name in moved if moved[name] and name != "total"), key=lambda n: (-abs(moved[n]), n))[
        :SHOWN
    ]
    yield ""
    yield f"| whole kernel, sm_80 | iteration {parent.number} | iteration {iteration.number} | in the main loop |"
    yield "| --- | ---: | ---: | ---: |"
    for name in ["total", *most]:
        loop = f"{before.main_loop.get(name, 0)} to {own.main_loop.get(name, 0)}"
        yield f"| {name} | {before.counts.get(name, 0)} | {own.counts.get(name, 0)} | {loop} |"


def timing(iteration: Iteration, ladder: Ladder) -> Iterator[str]:
    """Percent of FA2 on each measured machine, with the published configuration and with the machine's own."""
    for machine in ladder.machines:
        for name, key in (("A100's configuration", GPU), ("its own configuration", None)):
            row = ladder.rows(machine, "fp16", key)[iteration.number - 1]
            if key is None and row.config == iteration.configs[GPU].short_form():
                continue  # already shown
            if row.measured is None or 4096 not in row.measured.summaries or row.measured.mean is None:
                continue
            at = row.measured.summaries[4096]
            yield (
                f"- {machine.title}, {name} `{row.config}`: {at.pct:.1f} % of FA2 at S = 4096 "
                f"({at.pct_low:.1f} to {at.pct_high:.1f}), {row.measured.mean.pct:.1f} % harmonic mean."
            )
    cell = ladder.published.cell(iteration.number, GPU, "seq4096")
    yield f"- Published, A100: {cell.value:g} % at S = 4096."


def render(iteration: Iteration, ladder: Ladder, counters: Sequence[Reading]) -> str:
    """One note."""
    lines = [f"# {iteration.number}. {iteration.title}", "", iteration.why.strip(), "", "## Prediction", ""]
    lines += [f"- {claim}." for claim in iteration.expect.sass]
    lines += [
        f"- {reading.claim}: {reading.after:g} on an H200, which {'holds' if reading.holds else 'does not hold'}."
        for reading in counters
        if reading.iteration == iteration.number
    ]
    if not (iteration.expect.sass or iteration.expect.counters):
        lines.append("None that a machine could check.")
    lines += ["", "## Machine code", "", *machine_code(iteration), "", "## Timing", "", *timing(iteration, ladder)]
    return "\n".join(lines) + "\n\nRendered by `analysis/render_notes.py`; do not edit.\n"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Notes on every iteration, from committed results.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a note is stale")
    check = parser.parse_args(argv).check
    with one_line_errors():
        ladder = collect()
        counters = verify(RESULTS / "h200" / "counters.json.gz")
        for iteration in ladder.iterations:
            path = NOTES / f"{iteration.number:02d}.md"
            text = render(iteration, ladder, counters)
            if check and (not path.is_file() or path.read_text(encoding="utf-8") != text):
                raise CheckFailed("stale note", where=relative(path), hint="run: python analysis/render_notes.py")
            if not check:
                write_atomic(path, text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
