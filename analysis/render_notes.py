"""Question: what did each step predict, what did its machine code do on each architecture, and what came of it in time?

Why: a step is understood when prediction, machine code and timing are read side by side. Every number comes from
committed results and from the claims in iterations/*.yaml. The reasons are written by hand in iterations/reasons.md;
their figures are calls (`flashladder.report.reasons`).

Run: ``python analysis/render_notes.py`` writes iterations/notes/NN.md; ``--check`` compares, exit code 1 when stale.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from flashladder.emulate import reading as emulated
from flashladder.errors import CheckFailed, one_line_errors
from flashladder.files import relative, write_atomic
from flashladder.ladder.claim import COUNTERS, LOCK_ARCHES, Claim
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.iteration import Iteration, claim_configs, load_iteration, same_but_for_parts
from flashladder.lock.code_claims import Verdict, scope_counts, verify
from flashladder.lock.command import locked_kernel
from flashladder.lock.step_counts import StepKernel, read_counts
from flashladder.machine_code.opcodes import MEASURES
from flashladder.names import GPUS, PUBLISHED_GPU
from flashladder.paths import ITERATIONS
from flashladder.report.data import Ladder, collect
from flashladder.report.reasons import bottleneck, reasons
from flashladder.report.tables import counts_of, gpus_of, written

NOTES = ITERATIONS / "notes"
SHOWN = 8  # opcode classes that moved most
WHOLE, LOOP = Claim("total", "kernel", "equals"), Claim("total", "main_loop", "equals")


def predictions(iteration: Iteration, verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Each claim, with what was found in every place where it is judged."""
    for claim in iteration.expect.claims:
        own = [verdict for verdict in verdicts if verdict.iteration == iteration.number and verdict.claim == claim]
        made = [verdict for verdict in own if verdict.claimed]
        text = str(claim)
        for name, full in COUNTERS.items():
            text = text.replace(full, name)
        yield f"- {text}: {counts_of(made)}."
        if left_out := [verdict for verdict in own if not verdict.claimed]:
            places = ", ".join(gpus_of(verdict.place) for verdict in left_out)
            yield f"  It does not apply to {places}: {counts_of(left_out)}."
    words = {word for claim in iteration.expect.claims for word in str(claim).split()}
    yield from (f"\n`{name}`: {text}." for name, text in MEASURES["sass"].items() if "_" in name and name in words)


def machine_code(iteration: Iteration) -> Iterator[str]:
    """The step alone: the classes that moved most against the parent at equal configuration, on every architecture."""
    config, parent_config = claim_configs(iteration)
    if iteration.parent is None or parent_config is None:
        yield f"`{config.short_form()}`; there is nothing to compare with."
        return
    counts = read_counts()
    own, before = counts.of(iteration.number, config), counts.of(iteration.parent, parent_config)
    both = f"`{config.short_form()}`, compared with iteration {iteration.parent} as `{parent_config.short_form()}`"
    both = f"both iterations as `{config.short_form()}`" if config == parent_config else both
    yield f"The change in isolation: {both}. Instructions of the whole kernel; in brackets, of the main loop.\n"
    arches = [arch for arch in LOCK_ARCHES if arch in own.sass and arch in before.sass]
    yield f"| {iteration.parent} to {iteration.number} | {' | '.join(arches)} |"
    yield "| --- |" + " ---: |" * len(arches)
    for name in ["total", "registers", *most_moved(before, own)]:
        cells = []
        for arch in arches:
            pairs = [[scope_counts(one, of, arch).get(name, 0) for of in (before, own)] for one in (WHOLE, LOOP)]
            whole, loop = (f"{old:g} to {new:g}" if old != new else f"{new:g}" for old, new in pairs)
            cells.append(whole if name == "registers" else f"{whole} ({loop})")
        yield f"| {name} | {' | '.join(cells)} |"


def most_moved(before: StepKernel, own: StepKernel) -> list[str]:
    """Opcode classes whose count differs most on any architecture, largest change first."""
    moved: dict[str, int] = {}
    for arch in own.sass.keys() & before.sass.keys():
        old, new = scope_counts(WHOLE, before, arch), scope_counts(WHOLE, own, arch)
        for name in {*old, *new}:
            if name.isupper() and ("." not in name or name == "IMAD.MOV.U32"):
                change = abs(int(new.get(name, 0) - old.get(name, 0)))
                moved[name] = max(moved.get(name, 0), change)
    return sorted((name for name in moved if moved[name]), key=lambda name: (-moved[name], name))[:SHOWN]


def configurations(iteration: Iteration) -> Iterator[str]:
    """Per PUBLISHED_GPU: the configuration, what it costs there, and whether it changes with the step."""
    for gpu in GPUS:
        config, facts = iteration.configs[gpu], load_gpus()[gpu]
        code = iteration.family.targets.serving(facts.arch)
        if code is None:
            yield f"- {facts.title}: not run there; it needs {iteration.family.needs}."
            continue
        kernel = locked_kernel(iteration.number, config, code)
        cost = f", {kernel.registers} registers, {kernel.spill_stores} bytes of spill stores" if kernel else ""
        yield f"- {facts.title} ({code}): `{config.short_form()}`{cost}."
        if iteration.parent is None:
            continue
        parent = load_iteration(iteration.parent)
        old = parent.configs[gpu]
        if same_but_for_parts((parent, old), (iteration, config)):  # the rule of `invoke diff`
            yield f"  Iteration {parent.number} has the same configuration there."
        else:
            yield f"  Iteration {parent.number} has another configuration there: `{old.short_form()}`."


def timing(iteration: Iteration, ladder: Ladder) -> Iterator[str]:
    """Percent of FA2 on each measured machine, with the published configuration and with the machine's own."""
    lines, on_a100 = [], iteration.family.targets.serving(load_gpus()[PUBLISHED_GPU].arch) is not None
    for machine in ladder.machines:
        published = "A100's configuration" if on_a100 else "configuration"
        for name, key in ((published, PUBLISHED_GPU), ("its own configuration", None)):
            row = ladder.rows(machine, "fp16", key)[iteration.number - 1]
            if key is None and row.config == iteration.configs[PUBLISHED_GPU].short_form():
                continue  # already shown
            if row.measured is None or (at := row.headline) is None or row.measured.mean is None:
                continue
            lines.append(
                f"- {machine.title}, {name} `{row.config}`: {at.pct:.1f} % of FA2 at S = 4096 "
                f"({at.pct_low:.1f} to {at.pct_high:.1f}), {row.measured.mean.pct:.1f} % harmonic mean."
            )
    found = {gpu: ladder.published.find(iteration.number, gpu, "seq4096") for gpu in GPUS}
    lines += [
        f"- Published, {load_gpus()[gpu].title}: {one.value:g} % at S = 4096." for gpu, one in found.items() if one
    ]
    if iteration.unmeasured:
        lines.append(f"- No timing of it counts yet: {iteration.unmeasured}")
    if not lines:
        yield f"- Nobody has timed it yet; `invoke bench {iteration.number}` does, on {iteration.family.needs}."
    yield from lines


def render(iteration: Iteration, ladder: Ladder, verdicts: Sequence[Verdict]) -> str:
    return written(
        "note.md.j2", iteration=iteration, predictions=predictions(iteration, verdicts), code=machine_code(iteration),
        configurations=configurations(iteration), timing=timing(iteration, ladder),
        bottleneck=bottleneck(ladder, iteration.number), reasons=reasons(ladder, iteration.number),
    )  # fmt: skip


def notes(ladder: Ladder) -> dict[Path, str]:
    """Every note by its file."""
    verdicts = [*verify(counts=read_counts())]
    verdicts += [one for path in emulated.counter_files() for one in emulated.hardware_claims(path)]
    verdicts += emulated.claims(emulated.load_reading())
    return {NOTES / f"{one.number:02d}.md": render(one, ladder, verdicts) for one in ladder.iterations}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Notes on every iteration, from committed results.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a note is stale")
    check = parser.parse_args(argv).check
    with one_line_errors():
        for path, text in notes(collect()).items():
            if not check:
                write_atomic(path, text)
            elif not path.is_file() or path.read_bytes() != text.encode():
                raise CheckFailed("stale note", where=relative(path), hint="run: python analysis/render_notes.py")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
