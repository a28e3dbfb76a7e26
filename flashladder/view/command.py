"""Reading the ladder: the functions behind ``invoke list``, ``invoke show N`` and ``invoke diff N M``.

Why: an iteration is a few lines of YAML and a dozen kernel files; a reader wants one page that says what and why, with
the composed kernel in reading order, and the difference of two such pages. Also runs as ``python -m flashladder.view``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
import difflib
import json
from pathlib import Path
import re
import textwrap

from flashladder.arguments import Parser, add_options
from flashladder.columns import hanging, natural_width, table, terminal_width
from flashladder.commands import STATIONS
from flashladder.errors import FlashladderError
from flashladder.files import relative
from flashladder.ladder.ablation import load_description
from flashladder.ladder.claim import COUNTERS
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.iteration import Claim, Iteration, claim_configs, load_all, same_but_for_parts
from flashladder.ladder.selection import one_config
from flashladder.names import GPUS, PUBLISHED_GPU
from flashladder.paths import ITERATIONS
from flashladder.view import deltas
from flashladder.view.counts import diff_counts, opcode_counts
from flashladder.view.fold import NOTE, folded


def changes(iteration: Iteration) -> str:
    """What an iteration changes, in a few words: concern to value, or that only knobs move."""
    if iteration.parent is None:
        return "everything"
    if claim_configs(iteration)[1] is None:  # nothing of its family came before
        return f"everything: family {iteration.family.name}"
    return ", ".join(f"{concern}: {value}" for concern, value in iteration.change.items()) or "configurations only"


def list_iterations(folder: Path = ITERATIONS, limit: int | None = None) -> str:
    """The ladder as an aligned table: number, title, what changes, and the tile configuration on each GPU.

    Args:
        folder: of the iterations.
        limit: columns; None for the terminal's. Where they are too few, the configurations follow as a second table.
    """
    limit = limit or terminal_width()
    steps = load_all(folder)
    numbers = [("#",), *((str(step.number),) for step in steps)]
    texts = [("title", "changes"), *((step.title, changes(step)) for step in steps)]
    configs = [GPUS, *(tuple(c.brief() if c else "-" for c in on_gpus(step).values()) for step in steps)]
    whole = [(*n, *t, *c) for n, t, c in zip(numbers, texts, configs, strict=True)]
    if natural_width(whole) <= limit:
        lines = table(whole, limit, right={0})
    else:
        lines = table([(*n, *t) for n, t in zip(numbers, texts, strict=True)], limit, right={0}, wrapped={1, 2})
        below = [(*n, *c) for n, c in zip(numbers, configs, strict=True)]
        lines += ["", *table(below, limit, right={0}, wrapped={1, 2, 3})]
    legends = [legend for family in dict.fromkeys(step.family for step in steps) if (legend := family.legend)]
    return "\n".join([*lines, "", "Configurations, as --config takes them:", *legends])


def on_gpus(iteration: Iteration) -> dict[str, KernelConfig | None]:
    """The configuration on each GPU that iterations are tuned for; None where the iteration's family does not run."""
    gpus, runs = load_gpus(), iteration.family.runs_on
    return {key: iteration.configs[key] if runs(gpus[key].arch) else None for key in GPUS}


def as_data(iteration: Iteration) -> dict[str, object]:
    """Everything about an iteration except its kernel, as JSON can hold it."""
    return {
        "iteration": iteration.number,
        "description": iteration.description,
        "slug": iteration.slug,
        "title": iteration.title,
        "why": iteration.why,
        "unmeasured": iteration.unmeasured,
        "parent": iteration.parent,
        "change": dict(iteration.change),
        "parts": asdict(iteration.parts),
        **iteration.family.facts(iteration.parts),
        "configs": {gpu: c.short_form() if c else None for gpu, c in on_gpus(iteration).items()},
        "expect": {
            "sass": [str(claim) for claim in iteration.expect.sass],
            "ptx": [str(claim) for claim in iteration.expect.ptx],
            "counters": [str(claim) for claim in iteration.expect.counters],
        },
        "file": relative(iteration.path),
    }


def show_iteration(iteration: Iteration, config: KernelConfig, *, whole: bool = False) -> str:
    """One page: why, what changes, parts, configurations, claims, then the kernel, folded or its `whole` text.

    Raises:
        FlashladderError: the kernel cannot be composed.
    """
    kernel = kernel_text(iteration, config, whole=whole)
    note = " ".join(NOTE.replace("//", "").split())
    wrapped = textwrap.fill(note, terminal_width(), initial_indent="// ", subsequent_indent="// ")
    return f"{header(iteration)}\n\n// {config.short_form()}\n{kernel.replace(NOTE, wrapped, 1)}"


def kernel_text(iteration: Iteration, config: KernelConfig, *, whole: bool = False) -> str:
    """The composed kernel in reading order: folded for reading, or its `whole` text.

    Raises:
        FlashladderError: the kernel cannot be composed.
    """
    from flashladder.ladder.iteration import flattened, part_files, sources, translation_unit

    if whole:
        return re.sub(r"\n(?:[ \t]*\n){2,}", "\n\n", flattened(iteration, config))
    texts = sources(iteration, config)
    return folded(translation_unit(iteration, config), texts, shared=texts.keys() - {*part_files(iteration, config)})


def expectation(claim: Claim) -> str:
    """A claim as a line that needs no legend: where it is counted, what, and what becomes of it."""
    if claim.scope == "counters":
        counters = {name: short for short, name in COUNTERS.items()}
        short = re.sub(r"[^+/]+", lambda match: counters.get(match[0], match[0]), claim.metric)
        full = f" ({claim.metric})" if short != claim.metric else ""
        return f"counter {short}{full} {claim.in_words()}"
    place = {"kernel": "SASS", "main_loop": "main loop", "ptx": "PTX"}[claim.scope]
    metric = re.sub(r"\btotal\b", "total instructions", claim.metric)
    return f"{place}: {metric} {claim.in_words().replace('is unchanged', 'unchanged')}"


def header(iteration: Iteration) -> str:
    """The page's head, as lines that fit the terminal."""
    width = terminal_width()
    parent = "the first iteration" if iteration.parent is None else f"from iteration {iteration.parent}"
    claims = [hanging("  ", expectation(claim)) for claim in iteration.expect.claims]
    sections = [
        textwrap.fill(f"Iteration {iteration.description}: {iteration.title} ({parent})", width),
        textwrap.fill(iteration.why, width),
        textwrap.fill(f"Not measured yet: {iteration.unmeasured}", width) if iteration.unmeasured else "",
        _section("changes", iteration.change.items()),
        _section("parts", asdict(iteration.parts).items(), marked=iteration.change),
        _section("configurations", ((gpu, c.short_form() if c else "-") for gpu, c in on_gpus(iteration).items())),
        "\n".join(["expected:", *claims] if claims else []),
    ]
    return "\n\n".join(section for section in sections if section)


def _section(title: str, items: Iterable[tuple[str, object]], marked: Mapping[str, object] | None = None) -> str:
    """A titled block of aligned names and values; `marked` names get a star. Empty without items."""
    pairs = [(name, str(value)) for name, value in items]
    if not pairs:
        return ""
    longest = max(len(name) for name, _ in pairs)
    stars = marked or {}
    rows = (hanging(f"  {n.ljust(longest)}  ", f"{v}{'  *' * (n in stars)}") for n, v in pairs)
    return "\n".join([f"{title}:", *rows])


def equal_configs(before: Iteration, after: Iteration, text: str | None = None) -> tuple[KernelConfig, KernelConfig]:
    """Configurations at which two iterations differ in their parts only: one of them, fitted to the parts of each.

    That is `text`, which is one of `after`; else, for a parent and its child, the one that the child's claims are made
    at; else the A100's of `after`, or of `before`. Iterations of the same parts (7 and its parent) differ only in their
    configurations and keep their own, as do those that can share none (`caveat` says so).

    Raises:
        FlashladderError: `text` names a configuration that `after` cannot express.
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


def caveat(before: Iteration, after: Iteration, configs: tuple[KernelConfig, KernelConfig]) -> str:
    """What to know before reading a difference at `configs`; empty when they differ only as the parts decide."""
    old, new = configs
    if same_but_for_parts((before, old), (after, new)):
        return ""
    if before.parts == after.parts:
        return "the parts are equal: the step is its configuration, and each side has its own"
    tiles = [config.tile for config in configs]
    return f"different {'loads' if tiles[0] == tiles[1] else 'tiles'}: not the effect of this step alone"


def diff_iterations(
    before: Iteration, after: Iteration, configs: tuple[KernelConfig, KernelConfig], *, whole: bool = False
) -> str:
    """The unified diff of two iterations' pages without their prose, or of their `whole` texts; empty when equal.

    Raises:
        FlashladderError: a kernel cannot be composed.
    """
    pages = []
    for iteration, config in zip((before, after), configs, strict=True):
        head = f"{_section('parts', asdict(iteration.parts).items())}\n\nconfiguration: {config.short_form()}\n\n"
        pages.append((head + kernel_text(iteration, config, whole=whole)).splitlines())
    old, new = (f"iteration {iteration.description}" for iteration in (before, after))
    return "\n".join(difflib.unified_diff(pages[0], pages[1], old, new, lineterm=""))


def main(argv: Sequence[str] | None = None) -> int:
    """``list``, ``show ITERATION`` or ``diff BEFORE AFTER``; prints, and returns the exit code 0."""
    arguments = _arguments(argv)
    if arguments.verb == "list":
        print(json.dumps([as_data(step) for step in load_all()], indent=2) if arguments.json else list_iterations())
    elif arguments.verb == "show":
        iteration = load_description(arguments.iteration)
        _show(iteration, one_config(iteration, arguments.config), as_json=arguments.json, whole=arguments.all)
    else:
        before, after = load_description(arguments.before), load_description(arguments.after)
        configs = equal_configs(before, after, arguments.config)
        if arguments.page:
            if arguments.json or arguments.all:
                wrong = "json" if arguments.json else "all"
                raise FlashladderError(f"--{wrong} does not go with --page")
            from flashladder.view.linked.command import write_diff_page  # which brings the reader of PTX

            write_diff_page((before, after), configs, arguments.page)
            return 0
        _diff((before, after), configs, as_json=arguments.json, whole=arguments.all)
    return 0


def _show(iteration: Iteration, config: KernelConfig, *, as_json: bool, whole: bool) -> None:
    """Prints one iteration."""
    if not as_json:
        print(show_iteration(iteration, config, whole=whole), end="")
        return
    kernel = {"config": config.short_form(), "kernel": kernel_text(iteration, config, whole=whole)}
    print(json.dumps(as_data(iteration) | kernel, indent=2))


def measured_text(before: Iteration, after: Iteration, configs: tuple[KernelConfig, KernelConfig]) -> str:
    """Registers, counters and speed of both, or why they cannot be told: a broken result hides no source."""
    try:
        return deltas.text_of(deltas.deltas(before, after, configs), (before, after))
    except FlashladderError as error:
        return f"registers, counters and speed are not told: {error}"


def _diff(
    steps: tuple[Iteration, Iteration], configs: tuple[KernelConfig, KernelConfig], *, as_json: bool, whole: bool
) -> None:
    """Prints the difference of two iterations."""
    before, after = steps
    text, note = diff_iterations(before, after, configs, whole=whole), caveat(before, after, configs)
    if not as_json:
        if note:
            print(f"{note}\n")
        print(text or "the kernels are the same")
        print()
        print(diff_counts(before, after, configs))
        if told := measured_text(before, after, configs):
            print(f"\n{told}")
        return
    sides = [
        {"description": i.description, "config": c.short_form(), "opcode_counts": opcode_counts(i, c)}
        for i, c in zip((before, after), configs, strict=True)
    ]
    found = deltas.as_data(deltas.deltas(before, after, configs))
    page = {"before": sides[0], "after": sides[1], "caveat": note, "diff": text.splitlines(), **found}
    print(json.dumps(page, indent=2, default=dict))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = Parser(prog="python -m flashladder.view", description="Reads the ladder.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for command in STATIONS["Read"]:
        verb = verbs.add_parser(command.name, description=command.does, epilog=f"example: {command.examples[0]}")
        add_options(verb, command.options)
    return parser.parse_args(argv)
