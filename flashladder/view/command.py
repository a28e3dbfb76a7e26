"""``invoke list`` and ``invoke show N``: the ladder as a table, and one iteration as a page.

The page says why the step exists, what it changes and what is claimed of it, then shows the composed kernel in reading
order (`flashladder.view.fold`). ``invoke diff N M`` is `flashladder.view.diff`.

Run: ``invoke list``, ``invoke show 7``, ``invoke show 7 --all``; ``--json`` of each.
"""

from __future__ import annotations

from dataclasses import asdict
import json
import re
import textwrap

from flashladder.columns import hanging, natural_width, table, terminal_width
from flashladder.files import relative
from flashladder.ladder.ablation import load_description
from flashladder.ladder.claim import COUNTERS, Claim
from flashladder.ladder.config import KernelConfig
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.iteration import Iteration, claim_configs, load_all
from flashladder.ladder.selection import one_config
from flashladder.names import GPUS
from flashladder.view.fold import NOTE, kernel_text, section


def changes(iteration: Iteration) -> str:
    """What an iteration changes, in a few words: concern to value, or that only knobs move."""
    if iteration.parent is None:
        return "everything"
    if claim_configs(iteration)[1] is None:  # nothing of its family came before
        return f"everything: family {iteration.family.name}"
    return ", ".join(f"{concern}: {value}" for concern, value in iteration.change.items()) or "configurations only"


def on_gpus(iteration: Iteration) -> dict[str, KernelConfig | None]:
    """The configuration on each GPU that iterations are tuned for; None where the iteration's family does not run."""
    gpus, runs = load_gpus(), iteration.family.runs_on
    return {key: iteration.configs[key] if runs(gpus[key].arch) else None for key in GPUS}


def list_iterations(limit: int | None = None) -> str:
    """The ladder as an aligned table: number, title, what changes, and the tile configuration on each GPU.

    Args:
        limit: columns; None for the terminal's. Where they are too few, the configurations follow as a second table.
    """
    limit = limit or terminal_width()
    steps = load_all()
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


def as_data(iteration: Iteration) -> dict[str, object]:
    """Everything about an iteration except its kernel, as JSON can hold it."""
    claims = iteration.expect
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
        "configs": {gpu: c.short_form() if c else None for gpu, c in on_gpus(iteration).items()},
        "expect": {name: list(map(str, getattr(claims, name))) for name in ("sass", "ptx", "counters")},
        "file": relative(iteration.path),
    }


def show_iteration(iteration: Iteration, config: KernelConfig, *, whole: bool = False) -> str:
    """One page: why, what changes, parts, configurations, claims, then the kernel, folded or its `whole` text.

    Raises:
        FlashladderError: the kernel cannot be composed.
    """
    note = textwrap.fill(
        " ".join(NOTE.replace("//", "").split()), terminal_width(), initial_indent="// ", subsequent_indent="// "
    )
    kernel = kernel_text(iteration, config, whole=whole).replace(NOTE, note, 1)
    return f"{header(iteration)}\n\n// {config.short_form()}\n{kernel}"


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
        section("changes", iteration.change.items()),
        section("parts", asdict(iteration.parts).items(), marked=iteration.change),
        section("configurations", ((gpu, c.short_form() if c else "-") for gpu, c in on_gpus(iteration).items())),
        "\n".join(["expected:", *claims] if claims else []),
    ]
    return "\n\n".join(filter(None, sections))


def show_ladder(*, as_json: bool = False) -> None:
    """Prints every iteration in a line, or all of them as JSON."""
    print(json.dumps([as_data(step) for step in load_all()], indent=2) if as_json else list_iterations())


def show(description: str, key: str | None = None, *, whole: bool = False, as_json: bool = False) -> None:
    """Prints an iteration, or an ablation, and its kernel in the configuration that `key` names.

    Raises:
        FlashladderError: there is no such iteration, ablation or configuration.
    """
    iteration = load_description(description)
    config = one_config(iteration, key)
    if as_json:
        kernel = {"config": config.short_form(), "kernel": kernel_text(iteration, config, whole=whole)}
        print(json.dumps(as_data(iteration) | kernel, indent=2))
    else:
        print(show_iteration(iteration, config, whole=whole), end="")
