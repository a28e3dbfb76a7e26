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
import textwrap

from flashladder.config import KernelConfig
from flashladder.errors import FlashladderError, one_line_errors
from flashladder.files import ITERATIONS, relative
from flashladder.iteration import GPUS, Iteration, load_all, load_description
from flashladder.parts import config_conflicts, fit_config

WIDTH = 100
DEFAULT_GPU = "a100"  # whose configuration is shown when none is named
Counts = Mapping[str, int]


def changes(iteration: Iteration) -> str:
    """What an iteration changes, in a few words: concern to value, or that only knobs move."""
    if iteration.parent is None:
        return "everything"
    return ", ".join(f"{concern}: {value}" for concern, value in iteration.change.items()) or "configurations only"


def knobs(config: KernelConfig) -> str:
    """The part of a configuration that differs between GPUs, short enough for a table's cell."""
    loads = "_".join(map(str, config.load_tiles))
    flags = "+buffer" * config.mma_double_buffer_loads + "+opt" * config.optimized_softmax
    return f"{config.B_r},{config.B_c},{config.n_warps} {loads}{flags}"


def list_iterations(folder: Path = ITERATIONS) -> str:
    """The ladder as an aligned table: number, title, what changes, and the tile configuration on each GPU."""
    rows: list[Sequence[str]] = [("", "title", "changes", *GPUS)]
    rows += [(str(s.number), s.title, changes(s), *(knobs(s.configs[gpu]) for gpu in GPUS)) for s in load_all(folder)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join((row[0].rjust(widths[0]), *(c.ljust(w) for c, w in zip(row[1:], widths[1:], strict=True)))).rstrip()
        for row in rows
    ]
    note = "Configurations: B_r,B_c,n_warps, then the loads of Q_K_V in units of 8 elements of k (0: all up front)."
    return "\n".join([*lines, "", note])


def as_data(iteration: Iteration) -> dict[str, object]:
    """Everything about an iteration except its kernel, as JSON can hold it."""
    return {
        "iteration": iteration.number,
        "description": iteration.description,
        "slug": iteration.slug,
        "title": iteration.title,
        "why": iteration.why,
        "parent": iteration.parent,
        "change": dict(iteration.change),
        "parts": asdict(iteration.parts),
        "era": iteration.era,
        "configs": {gpu: config.short_form() for gpu, config in iteration.configs.items()},
        "expect": {
            "sass": [str(claim) for claim in iteration.expect.sass],
            "counters": [str(claim) for claim in iteration.expect.counters],
        },
        "file": relative(iteration.path),
    }


def pick_config(iteration: Iteration, text: str | None = None) -> KernelConfig:
    """The configuration that a short form names, or the A100's when there is none.

    Raises:
        FlashladderError: not a short form, or a configuration that the iteration cannot express.
    """
    if not text:
        return iteration.configs[DEFAULT_GPU]
    config = KernelConfig.parse(text)
    if conflicts := config_conflicts(iteration.parts, config):
        raise FlashladderError(
            f"iteration {iteration.description} cannot express {text}",
            expected="a legal combination",
            found=conflicts[0],
        )
    return config


def show_iteration(iteration: Iteration, config: KernelConfig) -> str:
    """One page: why, what changes, parts, configurations, claims, then the composed kernel in reading order.

    Raises:
        FlashladderError: the kernel cannot be composed.
    """
    from flashladder.compose import flattened

    return f"{header(iteration)}\n\n// {config.short_form()}\n{flattened(iteration, config)}"


def header(iteration: Iteration) -> str:
    """The page's head, as lines of at most 100 characters."""
    parent = "the first iteration" if iteration.parent is None else f"from iteration {iteration.parent}"
    claims = (*iteration.expect.sass, *iteration.expect.counters)
    sections = [
        f"Iteration {iteration.description}: {iteration.title} ({parent})",
        textwrap.fill(iteration.why, WIDTH),
        _section("changes", iteration.change.items()),
        _section("parts", asdict(iteration.parts).items(), marked=iteration.change),
        _section("configurations", ((gpu, config.short_form()) for gpu, config in iteration.configs.items())),
        _section("expected", ((str(i), claim) for i, claim in enumerate(claims, 1))),
    ]
    return "\n\n".join(section for section in sections if section)


def _section(title: str, items: Iterable[tuple[str, object]], marked: Mapping[str, object] | None = None) -> str:
    """A titled block of aligned names and values; `marked` names get a star. Empty without items."""
    pairs = [(name, str(value)) for name, value in items]
    if not pairs:
        return ""
    width = max(len(name) for name, _ in pairs)
    stars = marked or {}
    return "\n".join([f"{title}:", *(f"  {n.ljust(width)}  {v}{'  *' * (n in stars)}" for n, v in pairs)])


def equal_configs(before: Iteration, after: Iteration, text: str | None = None) -> tuple[KernelConfig, KernelConfig]:
    """Configurations at which two iterations differ in their parts only, as far as they can express that.

    Iterations of the same parts (7 and its parent) are compared in their own configurations.

    Raises:
        FlashladderError: `text` names a configuration that `after` cannot express.
    """
    if not text and before.parts == after.parts:
        return before.configs[DEFAULT_GPU], after.configs[DEFAULT_GPU]
    config = pick_config(after, text)
    same = fit_config(before.parts, config)
    return (before.configs[DEFAULT_GPU] if config_conflicts(before.parts, same) else same), config


def diff_iterations(before: Iteration, after: Iteration, configs: tuple[KernelConfig, KernelConfig]) -> str:
    """The unified diff of two iterations' pages without their prose; empty when their kernels are the same.

    Raises:
        FlashladderError: a kernel cannot be composed.
    """
    from flashladder.compose import flattened

    pages = []
    for iteration, config in zip((before, after), configs, strict=True):
        head = f"{_section('parts', asdict(iteration.parts).items())}\n\nconfiguration: {config.short_form()}\n\n"
        pages.append((head + flattened(iteration, config)).splitlines())
    old, new = (f"iteration {iteration.description}" for iteration in (before, after))
    return "\n".join(difflib.unified_diff(pages[0], pages[1], old, new, lineterm=""))


def count_changes(before: Counts, after: Counts) -> str:
    """A table of the opcode classes whose static count differs, largest change first."""
    rows = []
    for name in sorted({*before, *after}, key=lambda n: (n != "total", -abs(after.get(n, 0) - before.get(n, 0)), n)):
        old, new = before.get(name, 0), after.get(name, 0)
        if old != new:
            rows.append((name, str(old), str(new), f"{100 * (new - old) / old:+.1f} %" if old else "new"))
    if not rows:
        return "no opcode class changes its count"
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join((row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))))
        for row in rows
    )


def locked_counts(iteration: Iteration, config: KernelConfig) -> Counts | None:
    """Opcode counts of a kernel from the committed lock of sm_80; None for what is not locked (ablations never are)."""
    from flashladder.lock import opcode_counts

    return None if iteration.is_ablation else opcode_counts(iteration.number, config)


def diff_counts(before: Iteration, after: Iteration, configs: tuple[KernelConfig, KernelConfig]) -> str:
    """The opcode counts' changes from the lock, at `configs`, or at the A100's own where these are not locked."""
    own = (before.configs[DEFAULT_GPU], after.configs[DEFAULT_GPU])
    for pair in dict.fromkeys((configs, own)):
        counts = [locked_counts(iteration, config) for iteration, config in zip((before, after), pair, strict=True)]
        if counts[0] is not None and counts[1] is not None:
            return f"opcode counts (sm_80), {pair[0].short_form()} -> {pair[1].short_form()}\n" + count_changes(
                counts[0], counts[1]
            )
    return "opcode counts: not in results/locks/sm_80.json for these two"


def main(argv: Sequence[str] | None = None) -> int:
    """``list``, ``show ITERATION`` or ``diff BEFORE AFTER``; prints, and returns the exit code 0."""
    arguments = _arguments(argv)
    if arguments.verb == "list":
        print(json.dumps([as_data(step) for step in load_all()], indent=2) if arguments.json else list_iterations())
    elif arguments.verb == "show":
        iteration = load_description(arguments.iteration)
        _show(iteration, pick_config(iteration, arguments.config), as_json=arguments.json)
    else:
        before, after = load_description(arguments.before), load_description(arguments.after)
        _diff(before, after, equal_configs(before, after, arguments.config), as_json=arguments.json)
    return 0


def _show(iteration: Iteration, config: KernelConfig, *, as_json: bool) -> None:
    """Prints one iteration."""
    if not as_json:
        print(show_iteration(iteration, config))
        return
    from flashladder.compose import flattened

    kernel = {"config": config.short_form(), "kernel": flattened(iteration, config)}
    print(json.dumps(as_data(iteration) | kernel, indent=2))


def _diff(before: Iteration, after: Iteration, configs: tuple[KernelConfig, KernelConfig], *, as_json: bool) -> None:
    """Prints the difference of two iterations."""
    text = diff_iterations(before, after, configs)
    if not as_json:
        print(text or "the kernels are the same")
        print()
        print(diff_counts(before, after, configs))
        return
    sides = [
        {"description": i.description, "config": c.short_form(), "opcode_counts": locked_counts(i, c)}
        for i, c in zip((before, after), configs, strict=True)
    ]
    print(json.dumps({"before": sides[0], "after": sides[1], "diff": text.splitlines()}, indent=2, default=dict))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m flashladder.view", description="Reads the ladder.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    lister = verbs.add_parser("list", epilog="example: list --json")
    shower = verbs.add_parser("show", epilog="example: show '16 - swizzle'")
    shower.add_argument("iteration", help="a number, or an ablation")
    differ = verbs.add_parser("diff", epilog="example: diff 7 8")
    differ.add_argument("before")
    differ.add_argument("after")
    for verb in (lister, shower, differ):
        verb.add_argument("--json", action="store_true", help="print JSON")
    for verb in (shower, differ):
        verb.add_argument("--config", help="a configuration's short form (default: the A100's)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    with one_line_errors():
        raise SystemExit(main())
